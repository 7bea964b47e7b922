"""Scenarios 45 and 60: SQL92 filters, reading by offset, and a group's progress by number."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from contract.client_api.conftest import Endpoint
from contract.client_api.raw_client import RawClient
from support.api_requests import message, receive_request
from support.running_time import PATIENCE_S, until
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

Code = definition.Code
GROUP = definition.Resource(name="group")


def queue(queue_id: int = 0, topic: str = "single") -> definition.MessageQueue:
    return definition.MessageQueue(topic=definition.Resource(name=topic), id=queue_id)


def pull_request(
    offset: int, *, batch_size: int = 32, sql: str = "", poll_ms: int = 0, topic: str = "single"
) -> pb.PullMessageRequest:
    request = pb.PullMessageRequest(group=GROUP, message_queue=queue(topic=topic), offset=offset, batch_size=batch_size)
    request.filter_expression.CopyFrom(
        definition.FilterExpression(type=definition.SQL if sql else definition.TAG, expression=sql or "*")
    )
    if poll_ms:
        request.long_polling_timeout.FromMilliseconds(poll_ms)
    return request


class Pulled:
    """Elements of one pull, their order checked: one status, messages, one next offset."""

    def __init__(self, elements: list[pb.PullMessageResponse]) -> None:
        kinds = [element.WhichOneof("content") for element in elements]
        if kinds[-1:] == ["next_offset"]:
            self.next_offset: int | None = elements.pop().next_offset
        else:
            self.next_offset = None
        assert [element.WhichOneof("content") for element in elements] == ["status", *["message"] * (len(elements) - 1)]
        self.code = elements[0].status.code
        self.text = elements[0].status.message
        self.messages = [element.message for element in elements[1:]]
        self.bodies = [one.body for one in self.messages]


async def pull(client: RawClient, request: pb.PullMessageRequest) -> Pulled:
    return Pulled(await client.pull(request))


async def get_offset(client: RawClient, queue_id: int = 0) -> tuple[int, int]:
    request = pb.GetOffsetRequest(group=GROUP, message_queue=queue(queue_id))
    answer = await client.unary("GetOffset", request, pb.GetOffsetResponse)
    return answer.status.code, answer.offset


async def update_offset(client: RawClient, offset: int) -> int:
    request = pb.UpdateOffsetRequest(group=GROUP, message_queue=queue(), offset=offset)
    return (await client.unary("UpdateOffset", request, pb.UpdateOffsetResponse)).status.code


async def query_offset(
    client: RawClient, policy: definition.QueryOffsetPolicy, time_ms: int | None = None
) -> tuple[int, int]:
    request = pb.QueryOffsetRequest(message_queue=queue(), query_offset_policy=policy)
    if time_ms is not None:
        request.timestamp.FromMilliseconds(time_ms)
    answer = await client.unary("QueryOffset", request, pb.QueryOffsetResponse)
    return answer.status.code, answer.offset


@pytest.fixture
async def single(endpoint: Endpoint, client: RawClient) -> Endpoint:
    """With a topic of one queue that holds bodies 0 to 9; property x says which."""
    endpoint.broker.add_topic("single", queue_count=1)
    for number in range(10):
        sent = message("single", b"%d" % number)
        sent.user_properties["x"] = str(number)
        assert (await client.send(sent)).status.code == Code.OK
    return endpoint


async def test_45_sql_filters_deliver_matches_and_bad_sql_is_refused_with_its_place(
    single: Endpoint, client: RawClient
) -> None:
    request = receive_request(topic="single", expression="x > 3 AND x <= 5")
    request.filter_expression.type = definition.SQL
    assert (await client.receive(request)).bodies == [b"4", b"5"]
    request.filter_expression.expression = "x > 3 AND"
    refused = await client.receive(request)
    assert refused.code == Code.ILLEGAL_FILTER_EXPRESSION
    assert "character 10" in refused.text
    settings = definition.Settings(subscription=definition.Subscription(group=GROUP))
    settings.subscription.subscriptions.add(
        topic=definition.Resource(name="single"), expression=request.filter_expression
    )
    async with client.telemetry() as stream:
        await stream.write(pb.TelemetryCommand(settings=settings))
        told = await stream.read()
        assert isinstance(told, pb.TelemetryCommand)
        assert (told.status.code, told.WhichOneof("command")) == (Code.ILLEGAL_FILTER_EXPRESSION, None)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "character 10" in (caught.value.details() or "")


async def test_60_pull_and_progress_go_round(single: Endpoint, client: RawClient) -> None:
    assert await get_offset(client) == (Code.OFFSET_NOT_FOUND, 0)
    assert await query_offset(client, definition.BEGINNING) == (Code.OK, 0)
    assert await query_offset(client, definition.END) == (Code.OK, 10)
    first = await pull(client, pull_request(0, batch_size=4))
    assert (first.code, first.next_offset, first.bodies) == (Code.OK, 4, [b"0", b"1", b"2", b"3"])
    assert await get_offset(client) == (Code.OFFSET_NOT_FOUND, 0), "a pull moves nobody"
    assert await update_offset(client, 4) == Code.OK
    assert await get_offset(client) == (Code.OK, 4)
    assert (await client.receive(receive_request(topic="single"))).bodies == [b"%d" % number for number in range(4, 10)]
    assert await update_offset(client, 1) == Code.OK
    assert await get_offset(client) == (Code.OK, 1), "backwards too"


async def test_60_an_offset_that_was_set_voids_what_is_in_hand(single: Endpoint, client: RawClient) -> None:
    before = await client.receive(receive_request(topic="single", batch_size=2))
    assert await update_offset(client, 0) == Code.OK
    request = pb.AckMessageRequest(group=GROUP, topic=definition.Resource(name="single"))
    request.entries.add(message_id="x", receipt_handle=before.handles[0])
    answer = await client.unary("AckMessage", request, pb.AckMessageResponse)
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
    again = await client.receive(receive_request(topic="single", batch_size=2))
    assert again.bodies == before.bodies == [b"0", b"1"]


async def test_60_a_pulled_message_is_whole_and_has_nothing_to_acknowledge(single: Endpoint, client: RawClient) -> None:
    (pulled,) = (await pull(client, pull_request(3, batch_size=1))).messages
    (received,) = (await client.receive(receive_request(topic="single", batch_size=1))).messages
    system = pulled.system_properties
    assert pulled.topic.name == "single"
    assert dict(pulled.user_properties) == {"x": "3"}
    assert (system.queue_offset, system.queue_id) == (3, 0)
    assert system.body_digest.checksum
    assert system.body_encoding == definition.IDENTITY
    assert not system.HasField("receipt_handle")
    assert received.system_properties.queue_offset == 0


async def test_60_a_pull_filters_and_passes_over(single: Endpoint, client: RawClient) -> None:
    found = await pull(client, pull_request(0, sql="x > 6", batch_size=2))
    assert (found.bodies, found.next_offset) == ([b"7", b"8"], 9)
    nothing = await pull(client, pull_request(0, sql="x > 60"))
    assert (nothing.code, nothing.next_offset) == (Code.MESSAGE_NOT_FOUND, 10)
    bad = await pull(client, pull_request(0, sql="x >"))
    assert (bad.code, bad.next_offset) == (Code.ILLEGAL_FILTER_EXPRESSION, None)


@pytest.mark.parametrize(("offset", "next_offset"), [(-1, 0), (11, 10)])
async def test_60_an_offset_outside_of_the_queue_is_told_where_it_is(
    single: Endpoint, client: RawClient, offset: int, next_offset: int
) -> None:
    answer = await pull(client, pull_request(offset))
    assert (answer.code, answer.next_offset) == (Code.ILLEGAL_OFFSET, next_offset)
    assert "0 to 10" in answer.text
    assert await update_offset(client, offset) == Code.ILLEGAL_OFFSET


async def test_60_what_is_not_there_is_told(single: Endpoint, client: RawClient) -> None:
    assert (await pull(client, pull_request(0, topic="nowhere"))).code == Code.TOPIC_NOT_FOUND
    request = pb.QueryOffsetRequest(message_queue=queue(7))
    assert (await client.unary("QueryOffset", request, pb.QueryOffsetResponse)).status.code == Code.BAD_REQUEST
    assert (await query_offset(client, definition.TIMESTAMP))[0] == Code.BAD_REQUEST


async def test_60_a_queue_of_a_group_that_is_away_is_not_taken_for_this_ones(
    single: Endpoint, client: RawClient
) -> None:
    away = queue()
    away.broker.name = "broker-z"
    update = pb.UpdateOffsetRequest(group=GROUP, message_queue=away, offset=7)
    assert (await client.unary("UpdateOffset", update, pb.UpdateOffsetResponse)).status.code == Code.PROXY_TIMEOUT
    assert await get_offset(client) == (Code.OFFSET_NOT_FOUND, 0)
    get = pb.GetOffsetRequest(group=GROUP, message_queue=away)
    assert (await client.unary("GetOffset", get, pb.GetOffsetResponse)).status.code == Code.PROXY_TIMEOUT
    query = pb.QueryOffsetRequest(message_queue=away, query_offset_policy=definition.END)
    assert (await client.unary("QueryOffset", query, pb.QueryOffsetResponse)).status.code == Code.PROXY_TIMEOUT
    read = pull_request(0)
    read.message_queue.CopyFrom(away)
    pulled = await pull(client, read)
    assert (pulled.code, pulled.next_offset) == (Code.PROXY_TIMEOUT, None)


async def test_60_a_policy_that_there_is_not_is_refused_by_its_name(single: Endpoint, client: RawClient) -> None:
    request = pb.QueryOffsetRequest.FromString(b"\x10\x09")
    request.message_queue.CopyFrom(queue())
    status = (await client.unary("QueryOffset", request, pb.QueryOffsetResponse)).status
    assert (status.code, status.message.partition(":")[0]) == (Code.BAD_REQUEST, "query_offset_policy")


async def test_60_offset_of_a_time(single: Endpoint, client: RawClient) -> None:
    stored = [one.system_properties.store_timestamp.ToMilliseconds() for one in
              (await pull(client, pull_request(0))).messages]  # fmt: skip
    assert await query_offset(client, definition.TIMESTAMP, 0) == (Code.OK, 0)
    assert await query_offset(client, definition.TIMESTAMP, stored[-1] + 1) == (Code.OK, 10)
    for moment in stored:
        assert await query_offset(client, definition.TIMESTAMP, moment) == (Code.OK, stored.index(moment))


async def test_60_a_pull_waits_for_what_comes(single: Endpoint, client: RawClient) -> None:
    pulls = [asyncio.create_task(pull(client, pull_request(10, poll_ms=20_000))) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_S):
        await until(lambda: single.broker.api.waiting_receive_count == 2)
        await client.send(message("single", b"at last"))
        answers = [await one for one in pulls]
    assert [(answer.bodies, answer.next_offset) for answer in answers] == [([b"at last"], 11)] * 2


async def test_60_a_pull_shows_nothing_that_a_change_of_master_might_take(single: Endpoint, client: RawClient) -> None:
    broker = single.broker
    broker.confirmed_offset = broker.store.end_offset
    await client.send(message("single", b"unconfirmed"))
    assert await query_offset(client, definition.END) == (Code.OK, 10)
    hidden = await pull(client, pull_request(10))
    assert (hidden.code, hidden.next_offset) == (Code.MESSAGE_NOT_FOUND, 10)
    waiting = asyncio.create_task(pull(client, pull_request(10, poll_ms=20_000)))
    async with asyncio.timeout(PATIENCE_S):
        await until(lambda: broker.api.waiting_receive_count == 1)
        broker.confirmed_offset = broker.store.end_offset
        broker.api.confirmed()
        assert (await waiting).bodies == [b"unconfirmed"]
