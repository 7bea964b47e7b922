"""A test message: where it went, or what came of it, in the words of whoever refused it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from support.cluster_states import healthy_cluster
from support.fake_brokers import FakeQuestions
from support.manual_time import ManualTime
from tandemmq.admin.operations.messages import MessageSending
from tandemmq.admin.operations.questions import FailureKind, Members, OperationFailed
from tandemmq.admin.operations.values import TestMessage
from tandemmq.client import BrokerRefused, ClientError, EndpointUnreachable, SendFailed, SendReceipt, TopicNotFound
from tandemmq.proto.admin.v1 import message_query_service_pb2 as query_pb


class FakeClient:
    """Accepts what it is given, unless it is to fail."""

    def __init__(self, error: ClientError | None = None) -> None:
        self.error = error
        self.access_points: tuple[str, ...] = ()
        self.is_open = False

    @asynccontextmanager
    async def at(self, access_points: tuple[str, ...]) -> AsyncIterator[FakeClient]:
        self.access_points = access_points
        self.is_open = True
        yield self
        self.is_open = False

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
    ) -> SendReceipt:
        if self.error is not None:
            raise self.error
        return SendReceipt("01ID", "broker-a", 7, 1)


class Store:
    """Has two messages of that id: another's was sent again."""

    async def query(self, request: query_pb.QueryMessagesRequest) -> query_pb.QueryMessagesResponse:
        assert (request.topic, request.key.key) == ("orders", "01ID")
        views = [query_pb.MessageView(queue_id=queue_id, queue_offset=offset) for queue_id, offset in ((1, 6), (3, 7))]
        return query_pb.QueryMessagesResponse(messages=views)


def _sending(client: FakeClient) -> MessageSending:
    questions = FakeQuestions({"broker-a:0": SimpleNamespace(messages=Store())})
    return MessageSending(Members(healthy_cluster), questions, client.at, clock=ManualTime())


async def test_a_message_is_sent_and_its_queue_found() -> None:
    client = FakeClient()
    receipt = await _sending(client).send(TestMessage("orders", b"x"))
    assert (receipt.message_id, receipt.broker_name, receipt.queue_id, receipt.queue_offset) == (
        "01ID",
        "broker-a",
        3,
        7,
    )
    # The master's first; and the client is gone again.
    assert client.access_points == ("127.0.0.1:8081", "127.0.0.1:8082")
    assert not client.is_open


_REFUSED = BrokerRefused("a:1", "SendMessage", 40_001, "MESSAGE_TOO_LARGE", "too large", retryable=False)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (_REFUSED, FailureKind.REFUSED),
        (TopicNotFound("a:1", "QueryRoute", 40_402, "TOPIC_NOT_FOUND", "none", retryable=False), FailureKind.NOT_FOUND),
        (SendFailed("orders", "01ID", [EndpointUnreachable("a:1", "SendMessage", "refused")]), FailureKind.UNAVAILABLE),
    ],
)
async def test_a_message_that_is_not_accepted_says_why(error: ClientError, kind: FailureKind) -> None:
    client = FakeClient(error)
    with pytest.raises(OperationFailed) as failed:
        await _sending(client).send(TestMessage("orders", b"x"))
    assert failed.value.kind is kind
    assert failed.value.cause == str(error)
    assert not client.is_open


async def test_a_message_of_another_type_than_its_topics_is_told_what_it_lacks() -> None:
    conflict = BrokerRefused(
        "a:1", "SendMessage", 40_014, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", "takes FIFO messages", retryable=False
    )
    with pytest.raises(OperationFailed) as failed:
        await _sending(FakeClient(conflict)).send(TestMessage("orders", b"x"))
    assert failed.value.kind is FailureKind.REFUSED
    assert "--message-group" in failed.value.remedy


async def test_what_no_broker_would_take_is_not_sent() -> None:
    client = FakeClient()
    for message in (TestMessage("two words", b""), TestMessage("orders", bytes((4 << 20) + 1))):
        with pytest.raises(OperationFailed) as refused:
            await _sending(client).send(message)
        assert refused.value.kind is FailureKind.INVALID
    assert client.access_points == ()
