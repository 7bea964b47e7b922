"""Messages found by ids of both kinds, and shown although half of their group is away."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc
import pytest

from support.cluster_states import healthy_cluster
from support.fake_brokers import FakeQuestions, rpc_error
from support.manual_time import ManualTime
from support.running_time import PATIENCE_S
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.operations.groups import GroupOperations
from tandemmq.admin.operations.messages import MessageOperations, TransactionOperations
from tandemmq.admin.operations.questions import FailureKind, Members, OperationFailed
from tandemmq.core.message.record import Host, offset_message_id
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.proto.admin.v1 import message_query_service_pb2 as pb
from tandemmq.proto.admin.v1 import trace_service_pb2 as trace_pb

_HOST = Host.parse("10.0.0.7", 10_911)


class Replica:
    """One broker's messages by their places in the log."""

    def __init__(self, *views: pb.MessageView) -> None:
        self.views = {view.physical_offset: view for view in views}
        # Places the index still names although their messages have expired.
        self.expired: list[int] = []
        self.is_indexed = True
        self.failure: grpc.aio.AioRpcError | None = None
        self.groups_held: list[admin_pb.SubscriptionGroupStatus] = []
        self.messages = self.traces = self.admin = self

    async def message(self, request: object = None, **_: str) -> object:
        if self.failure is not None:
            raise self.failure
        if request is None:
            found = [*self.views, *self.expired]
            stored = [trace_pb.StoredMessage(physical_offset=offset) for offset in found]
            return trace_pb.FindMessageResponse(messages=stored, indexed=self.is_indexed)
        assert isinstance(request, pb.GetMessageRequest)
        view = self.views.get(request.physical_offset)
        if view is None:
            raise rpc_error(grpc.StatusCode.NOT_FOUND, "no record begins there")
        return view

    async def query(self, request: pb.QueryMessagesRequest) -> pb.QueryMessagesResponse:
        having = [view for view in self.views.values() if request.key.key in (view.message_id, *view.keys)]
        return pb.QueryMessagesResponse(messages=[view for view in having if view.topic == request.topic])

    async def digest(self, *, physical_offset: int, size: int) -> pb.DigestRecordResponse:
        return pb.DigestRecordResponse(held=True, sha256=b"same", end_offset=1 << 40, flushed_offset=size)

    async def groups(self, *, topic: str) -> list[admin_pb.SubscriptionGroupStatus]:
        assert topic
        return self.groups_held


def _view(message_id: str, offset: int, *, topic: str = "orders", keys: tuple[str, ...] = ()) -> pb.MessageView:
    view = pb.MessageView(
        topic=topic,
        message_id=message_id,
        offset_message_id=offset_message_id(_HOST, offset),
        physical_offset=offset,
        queue_offset=offset // 100,
        record_bytes=90,
        keys=keys,
    )
    view.store_time.FromMilliseconds(offset)
    return view


def _operations(master: Replica, slave: Replica, state: ClusterState | None = None) -> MessageOperations:
    members = Members(lambda: state or healthy_cluster())
    questions = FakeQuestions({"broker-a:0": master, "broker-a:1": slave})
    return MessageOperations(members, questions, GroupOperations(members, questions, clock=ManualTime()))


def _without_master() -> ClusterState:
    state = healthy_cluster()
    return replace(state, brokers=(replace(state.brokers[0], status=None, error="refused"), state.brokers[1]))


async def test_an_id_is_no_key_and_what_has_expired_is_left_out() -> None:
    replica = Replica(_view("01A", 100), _view("01B", 200, keys=("01A",)), _view("01A", 300, topic="%DLQ%g"))
    replica.expired = [50]
    ask = _operations(replica, Replica())
    assert [message.physical_offset for message in await ask.find(" 01A ", topic="")] == [300, 100]
    assert [message.physical_offset for message in await ask.find("01A", topic="orders")] == [100]
    assert await ask.find("01C", topic="") == []


async def test_an_id_of_address_and_offset_is_compared_not_dialled() -> None:
    replica = Replica(_view("01A", 100))
    ask = _operations(replica, Replica())
    assert [message.message_id for message in await ask.find(offset_message_id(_HOST, 100).lower(), topic="")] == [
        "01A"
    ]
    # Another broker's message at the same place.
    elsewhere = offset_message_id(Host.parse("10.9.9.9", 10_911), 100)
    assert await ask.find(elsewhere, topic="") == []
    assert await ask.find(offset_message_id(_HOST, 100), topic="payments") == []


async def test_not_found_is_not_said_while_somebody_could_not_be_asked() -> None:
    replica = Replica()
    replica.failure = rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED)
    with pytest.raises(OperationFailed, match="not everybody could be asked") as unknown:
        await _operations(replica, Replica()).find("01A", topic="")
    assert unknown.value.kind is FailureKind.UNAVAILABLE
    replica.failure, replica.is_indexed = None, False
    with pytest.raises(OperationFailed, match="cannot find messages by their ids"):
        await _operations(replica, Replica()).find("01A", topic="")
    for wrong in ("", " ", "x" * 256):
        with pytest.raises(OperationFailed) as invalid:
            await _operations(replica, Replica()).find(wrong, topic="")
        assert invalid.value.kind is FailureKind.INVALID


async def test_a_message_says_who_has_consumed_it() -> None:
    replica = Replica(_view("01A", 100))
    progress = {"done": (0, 2), "waiting": (0, 1), "elsewhere": (5, 9)}
    replica.groups_held = [
        admin_pb.SubscriptionGroupStatus(
            group=group,
            progress=[admin_pb.GroupProgress(topic="orders", queue_id=queue_id, committed_offset=committed)],
        )
        for group, (queue_id, committed) in progress.items()
    ]
    detail = await _operations(replica, Replica()).at_physical("broker-a", 100, body_bytes=9)
    assert detail.consumption == {
        "done": "acknowledged",
        "elsewhere": "not known: it has not read this queue",
        "waiting": "in flight or waiting",
    }
    assert [(copy.broker, copy.equal) for copy in detail.copies] == [("broker-a:0", True), ("broker-a:1", True)]
    assert detail.unseen == ()


async def test_a_message_is_shown_by_a_slave_while_its_master_is_away() -> None:
    ask = _operations(Replica(), Replica(_view("01A", 100)), _without_master())
    detail = await asyncio.wait_for(ask.at_physical("broker-a", 100, body_bytes=9), PATIENCE_S)
    assert detail.message.message_id == "01A"
    assert [(copy.broker, copy.held, copy.equal) for copy in detail.copies] == [
        ("broker-a:0", False, None),
        ("broker-a:1", True, None),
    ]
    assert (detail.consumption, {each.subject for each in detail.unseen}) == ({}, {"broker-a:0"})


@pytest.mark.parametrize(
    ("offset", "kind"), [(-1, FailureKind.INVALID), (1 << 63, FailureKind.INVALID), (7, FailureKind.NOT_FOUND)]
)
async def test_where_no_message_is_none_is_shown(offset: int, kind: FailureKind) -> None:
    with pytest.raises(OperationFailed) as failed:
        await _operations(Replica(), Replica()).at_physical("broker-a", offset, body_bytes=0)
    assert failed.value.kind is kind


async def test_a_queue_beyond_all_numbers_of_queues_is_none() -> None:
    with pytest.raises(OperationFailed) as failed:
        await _operations(Replica(), Replica()).at_queue("broker-a", "orders", 1 << 31, 0, body_bytes=0)
    assert failed.value.kind is FailureKind.INVALID


async def test_a_place_without_its_broker_group_is_refused_with_those_there_are() -> None:
    with pytest.raises(OperationFailed) as failed:
        await _operations(Replica(), Replica()).at_queue("", "orders", 0, 0, body_bytes=0)
    assert (failed.value.kind, failed.value.remedy) == (FailureKind.NOT_FOUND, "choose one of broker-a")


@pytest.mark.parametrize(("queue_id", "queue_offset"), [(1 << 31, 0), (-1, 0), (0, 1 << 63), (0, -1)])
async def test_a_client_is_not_told_of_a_message_at_no_place(queue_id: int, queue_offset: int) -> None:
    members = Members(healthy_cluster)
    with pytest.raises(OperationFailed) as failed:
        await TransactionOperations(members, FakeQuestions({})).command_client(
            "c@1",
            "verify-message",
            broker_name="broker-a",
            topic="orders",
            queue_id=queue_id,
            queue_offset=queue_offset,
        )
    assert failed.value.kind is FailureKind.INVALID
