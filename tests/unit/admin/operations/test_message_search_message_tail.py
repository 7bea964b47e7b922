"""A live tail: what comes in after it began, once, whatever brokers do meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import grpc
import pytest

from support.cluster_states import master
from support.fake_brokers import FakeQuestions, rpc_error
from support.running_time import PATIENCE_S
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.operations.message_search import MessageTail
from tandemmq.admin.operations.questions import FailureKind, Members, OperationFailed
from tandemmq.admin.operations.values import MessageSummary
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.proto.admin.v1 import message_query_service_pb2 as query_pb


class BrokerWithQueues:
    """Queues of one topic by id: names of messages. `answer_max` messages in one answer."""

    def __init__(self, **queues: list[str]) -> None:
        self.queues = {int(name[1:]): messages for name, messages in queues.items()}
        self.has_topic = True
        self.answer_max = 500
        self.failure: grpc.aio.AioRpcError | None = None

    async def topics(self, *, include_system: bool, names: list[str]) -> list[admin_pb.TopicStatus]:
        assert include_system
        if self.failure is not None:
            raise self.failure
        extents = [
            admin_pb.QueueExtent(queue_id=queue_id, max_offset=len(messages))
            for queue_id, messages in self.queues.items()
            if messages
        ]
        return [admin_pb.TopicStatus(topic=names[0], queues=extents)] if self.has_topic else []

    async def query(self, request: query_pb.QueryMessagesRequest) -> query_pb.QueryMessagesResponse:
        stretch = request.queue
        messages = self.queues[stretch.queue_id][stretch.start_offset : stretch.end_offset]
        found = messages[: min(request.limit, self.answer_max)]
        views = [
            query_pb.MessageView(message_id=name, queue_offset=stretch.start_offset + number)
            for number, name in enumerate(found)
        ]
        token = b"more" if len(found) < len(messages) else b""
        return query_pb.QueryMessagesResponse(messages=views, next_page_token=token)


def _tail(**brokers: BrokerWithQueues) -> MessageTail:
    names = {name.replace("_", "-"): broker for name, broker in brokers.items()}
    state = ClusterState(name_servers=(), brokers=tuple(master(name) for name in sorted(names)))
    planes = {f"{name}:0": SimpleNamespace(admin=broker, messages=broker) for name, broker in names.items()}
    return MessageTail(Members(lambda: state), FakeQuestions(planes), poll_s=0)


async def _begun(tail: MessageTail) -> AsyncIterator[MessageSummary]:
    """A tail that knows where the queues end."""
    messages = tail.messages("t", tags=(), body_bytes=0)
    first = asyncio.ensure_future(anext(messages))
    for _ in range(20):
        await asyncio.sleep(0)

    async def all_of_them() -> AsyncIterator[MessageSummary]:
        yield await first
        async for message in messages:
            yield message

    return all_of_them()


async def _next(messages: AsyncIterator[MessageSummary], count: int) -> list[str]:
    async with asyncio.timeout(PATIENCE_S):
        return [(await anext(messages)).message_id for _ in range(count)]


async def test_only_what_comes_after_the_beginning_is_told() -> None:
    broker = BrokerWithQueues(q0=["old"], q1=[])
    messages = await _begun(_tail(broker_a=broker))
    broker.queues[0].append("new")
    # A queue that held nothing before is told from its first message on.
    broker.queues[1] += ["first", "second"]
    assert sorted(await _next(messages, 3)) == ["first", "new", "second"]


async def test_a_broker_that_is_away_for_a_while_is_gone_on_with() -> None:
    a, b = BrokerWithQueues(q0=["old"]), BrokerWithQueues(q0=["old"])
    messages = await _begun(_tail(broker_a=a, broker_b=b))
    a.failure = rpc_error(grpc.StatusCode.UNAVAILABLE)
    a.queues[0].append("while away")
    b.queues[0].append("meanwhile")
    assert await _next(messages, 1) == ["meanwhile"]
    a.failure = None
    assert await _next(messages, 1) == ["while away"]


async def test_a_broker_that_was_away_at_the_beginning_begins_when_it_is_back() -> None:
    a, b = BrokerWithQueues(q0=["old"]), BrokerWithQueues(q0=["old"])
    b.failure = rpc_error(grpc.StatusCode.UNAVAILABLE)
    messages = await _begun(_tail(broker_a=a, broker_b=b))
    b.failure = None
    for _ in range(20):
        await asyncio.sleep(0)
    b.queues[0].append("new")
    assert await _next(messages, 1) == ["new"]


async def test_of_a_burst_the_newest_are_told_and_answers_cut_short_are_gone_on_with() -> None:
    broker = BrokerWithQueues(q0=[])
    broker.answer_max = 30
    messages = await _begun(_tail(broker_a=broker))
    broker.queues[0] += [str(number) for number in range(1_000)]
    assert await _next(messages, 200) == [str(number) for number in range(800, 1_000)]


async def test_a_topic_that_nobody_has_is_said_to_be_missing() -> None:
    broker = BrokerWithQueues()
    broker.has_topic = False
    with pytest.raises(OperationFailed) as missing:
        await anext(_tail(broker_a=broker).messages("t", tags=(), body_bytes=0))
    assert missing.value.kind is FailureKind.NOT_FOUND


async def test_so_many_may_look_and_one_who_stops_makes_room() -> None:
    tail = _tail(broker_a=BrokerWithQueues(q0=[]))
    looking = [tail.messages("t", tags=(), body_bytes=0) for _ in range(16)]
    waiting = [asyncio.ensure_future(anext(messages)) for messages in looking]
    await asyncio.sleep(0)
    with pytest.raises(OperationFailed) as refused:
        await anext(tail.messages("t", tags=(), body_bytes=0))
    assert refused.value.kind is FailureKind.REFUSED
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    waiting[0] = asyncio.ensure_future(anext(tail.messages("t", tags=(), body_bytes=0)))
    await asyncio.sleep(0)
    assert not waiting[0].done()
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
