"""Scenarios 13 to 15, 18, 26, 31 and 51: limits of a send, delays, transactions, ordered groups, queues."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from contract.client_api.conftest import Endpoint
from contract.client_api.raw_client import RawClient
from support.api_requests import message, receive_request
from tandemmq.core.routing.values import BrokerData, BrokerEndpoints, QueueData, TopicRoute
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

Code = definition.Code
HOUR_MS = 3_600_000


async def code_of_sending(client: RawClient, sent: definition.Message) -> int:
    """Of one message; the answer's own code and that of its entry are the same."""
    answer = await client.send(sent)
    assert [entry.status.code for entry in answer.entries] in ([], [answer.status.code])
    return answer.status.code


def with_properties(properties: Mapping[str, str]) -> definition.Message:
    sent = message()
    sent.user_properties.update(properties)
    return sent


async def test_13_as_many_properties_as_fit_and_one_more(client: RawClient) -> None:
    names = [f"name-{number}" for number in range(129)]
    assert await code_of_sending(client, with_properties(dict.fromkeys(names[:128], "x"))) == Code.OK
    too_many = await code_of_sending(client, with_properties(dict.fromkeys(names, "x")))
    assert too_many == Code.MESSAGE_PROPERTIES_TOO_LARGE
    [got] = (await client.receive()).messages
    assert dict(got.user_properties) == dict.fromkeys(names[:128], "x")


@pytest.mark.parametrize("character", ["x", "ü"])
async def test_13_as_many_bytes_of_properties_as_fit_and_one_more(client: RawClient, character: str) -> None:
    # Name, tag and key count, and bytes do, not characters.
    characters = (16_384 - len("name" + "tag" + "key" + "key")) // len(character.encode())
    rest = 16_384 - len("nametagkeykey") - characters * len(character.encode())
    for more, code in ((0, Code.OK), (1, Code.MESSAGE_PROPERTIES_TOO_LARGE)):
        sent = message(tag="tag", keys=["key", "key"])
        sent.user_properties["name"] = character * characters + "y" * (rest + more)
        assert await code_of_sending(client, sent) == code
    assert len((await client.receive()).messages) == 1


@pytest.mark.parametrize("name", ["KEYS", "TAGS", "UNIQ_KEY", "DELAY", "TIMER_DELIVER_MS", "__SHARDINGKEY", "TRAN_MSG"])
async def test_14_reserved_name(client: RawClient, name: str) -> None:
    assert await code_of_sending(client, with_properties({name: "x"})) == Code.ILLEGAL_MESSAGE_PROPERTY_KEY


@pytest.mark.parametrize("properties", [{"a\u0001b": "x"}, {"a": "x\u0001y"}, {"a": "\u0002"}, {"a": "x\ny"}])
async def test_14_control_character(client: RawClient, properties: dict[str, str]) -> None:
    assert await code_of_sending(client, with_properties(properties)) == Code.ILLEGAL_MESSAGE_PROPERTY_KEY


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag="  "), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag="a\u0001"), Code.ILLEGAL_MESSAGE_TAG),
        (message(keys=["good", " "]), Code.ILLEGAL_MESSAGE_KEY),
        (message(keys=["a\u0001"]), Code.ILLEGAL_MESSAGE_KEY),
        (message("mixed", message_group="g" * 64), Code.ILLEGAL_MESSAGE_GROUP),
        (message("mixed", message_group="ü" * 32), Code.ILLEGAL_MESSAGE_GROUP),
        (message("mixed", message_group=" "), Code.ILLEGAL_MESSAGE_GROUP),
        (message("mixed", message_group="g\u0001"), Code.ILLEGAL_MESSAGE_GROUP),
    ],
    ids=lambda value: "" if isinstance(value, definition.Message) else Code.Name(value),
)
async def test_15_tag_key_or_message_group_that_is_none(
    client: RawClient, endpoint: Endpoint, sent: definition.Message, code: int
) -> None:
    assert await code_of_sending(client, sent) == code
    assert endpoint.broker.store.end_offset == 0, "nothing is stored"


@pytest.mark.parametrize("message_group", ["g" * 63, "ü" * 31 + "g"])
async def test_15_message_group_of_63_bytes(client: RawClient, message_group: str) -> None:
    assert await code_of_sending(client, message("mixed", message_group=message_group)) == Code.OK
    [got] = (await client.receive(receive_request("mixed"))).messages
    assert got.system_properties.message_group == message_group


def delayed(endpoint: Endpoint, delay_ms: int) -> definition.Message:
    sent = message("mixed", b"delayed")
    sent.system_properties.message_type = definition.DELAY
    sent.system_properties.delivery_timestamp.FromMilliseconds(endpoint.clock.wall_ms() + delay_ms)
    return sent


async def test_18_delivery_time_too_far_away(client: RawClient, endpoint: Endpoint) -> None:
    assert await code_of_sending(client, delayed(endpoint, 25 * HOUR_MS)) == Code.ILLEGAL_DELIVERY_TIME
    assert endpoint.broker.store.end_offset == 0, "nothing is stored"
    assert await code_of_sending(client, delayed(endpoint, 23 * HOUR_MS)) == Code.OK


async def test_18_past_delivery_time_is_now(client: RawClient, endpoint: Endpoint) -> None:
    # Nothing delivers delayed messages here: it must be in its queue as soon as the send is answered.
    assert await code_of_sending(client, delayed(endpoint, -5 * 60_000)) == Code.OK
    [got] = (await client.receive(receive_request("mixed"))).messages
    assert (got.body, got.system_properties.message_type) == (b"delayed", definition.DELAY)
    assert got.system_properties.HasField("delivery_timestamp")


async def end_transaction(
    client: RawClient, half: pb.SendResultEntry, resolution: definition.TransactionResolution
) -> int:
    request = pb.EndTransactionRequest(
        topic=definition.Resource(name="mixed"),
        message_id=half.message_id,
        transaction_id=half.transaction_id,
        resolution=resolution,
        source=definition.SOURCE_CLIENT,
    )
    return (await client.unary("EndTransaction", request, pb.EndTransactionResponse)).status.code


async def half_of(client: RawClient, body: bytes) -> pb.SendResultEntry:
    sent = message("mixed", body)
    sent.system_properties.message_type = definition.TRANSACTION
    answer = await client.send(sent)
    assert answer.status.code == Code.OK
    return answer.entries[0]


async def test_26_a_transaction_ends_twice_and_its_message_comes_once(client: RawClient) -> None:
    committed, rolled_back = await half_of(client, b"committed"), await half_of(client, b"rolled back")
    for _ in range(2):
        assert await end_transaction(client, committed, definition.COMMIT) == Code.OK
        assert await end_transaction(client, rolled_back, definition.ROLLBACK) == Code.OK
    # The other way round is an error, and changes nothing.
    assert await end_transaction(client, committed, definition.ROLLBACK) == Code.INVALID_TRANSACTION_ID
    assert await end_transaction(client, rolled_back, definition.COMMIT) == Code.INVALID_TRANSACTION_ID
    answer = await client.receive(receive_request("mixed"))
    assert answer.bodies == [b"committed"]
    assert answer.messages[0].system_properties.message_id == committed.message_id


@pytest.mark.parametrize("transaction_id", ["", " ", "no id"])
async def test_26_transaction_id_that_is_none(client: RawClient, transaction_id: str) -> None:
    half = await half_of(client, b"half")
    wrong = pb.SendResultEntry(message_id=half.message_id, transaction_id=transaction_id)
    assert await end_transaction(client, wrong, definition.COMMIT) == Code.INVALID_TRANSACTION_ID
    assert await end_transaction(client, half, definition.COMMIT) == Code.OK, "it is still to be ended"


async def test_31_an_ordered_batch_comes_again_to_who_asks_with_its_attempt_id(
    client: RawClient, endpoint: Endpoint
) -> None:
    endpoint.broker.add_group("group", fifo=True)
    bodies = [b"%d" % number for number in range(4)]
    for body in bodies:
        await client.send(message("mixed", body, message_group="g"))

    def receive(attempt_id: str) -> pb.ReceiveMessageRequest:
        request = receive_request("mixed", batch_size=3, poll_ms=1_000)
        request.attempt_id = attempt_id
        return request

    first = await client.receive(receive("first"))
    assert first.bodies == bodies[:3]
    other = await client.receive(receive("other"))
    assert (other.code, other.bodies) == (Code.MESSAGE_NOT_FOUND, [])
    again = await client.receive(receive("first"))
    assert again.bodies == bodies[:3]
    assert [one.system_properties.delivery_attempt for one in again.messages] == [1, 1, 1], "nobody has failed"
    # What was acknowledged meanwhile is not of it any more, and the next one waits for the rest.
    request = pb.AckMessageRequest(group=definition.Resource(name="group"), topic=definition.Resource(name="mixed"))
    for one in again.messages[:2]:
        request.entries.add(
            message_id=one.system_properties.message_id, receipt_handle=one.system_properties.receipt_handle
        )
    assert (await client.unary("AckMessage", request, pb.AckMessageResponse)).status.code == Code.OK
    assert (await client.receive(receive("first"))).bodies == bodies[2:3]


async def assignments(client: RawClient, topic: str) -> pb.QueryAssignmentResponse:
    request = pb.QueryAssignmentRequest(
        topic=definition.Resource(name=topic),
        group=definition.Resource(name="group"),
        endpoints=definition.Endpoints(
            scheme=definition.IPv4, addresses=[definition.Address(host="127.0.0.1", port=8_081)]
        ),
    )
    return await client.unary("QueryAssignment", request, pb.QueryAssignmentResponse)


@pytest.fixture
def two_masters(endpoint: Endpoint) -> Endpoint:
    """The topic `spread` has two queues at this broker, and three at another one."""
    groups = {"broker-a": (2, endpoint.address), "broker-b": (3, "127.0.0.1:18081")}
    endpoint.broker.cluster_route = TopicRoute(
        "spread",
        tuple(QueueData(name, count, count, 6, message_type="NORMAL") for name, (count, _) in groups.items()),
        tuple(
            BrokerData("DefaultCluster", name, {0: BrokerEndpoints(client=address)})
            for name, (_, address) in groups.items()
        ),
    )
    return endpoint


async def test_51_an_ordinary_group_polls_each_master_as_one_queue(client: RawClient, two_masters: Endpoint) -> None:
    answer = await assignments(client, "spread")
    assert answer.status.code == Code.OK
    queues = [assignment.message_queue for assignment in answer.assignments]
    assert [(queue.broker.name, queue.id, queue.permission) for queue in queues] == [
        ("broker-a", -1, definition.READ_WRITE),
        ("broker-b", -1, definition.READ_WRITE),
    ]
    assert [queue.topic.name for queue in queues] == ["spread"] * 2
    addresses = [queue.broker.endpoints.addresses[0] for queue in queues]
    assert [f"{address.host}:{address.port}" for address in addresses] == [two_masters.address, "127.0.0.1:18081"]


async def test_51_an_ordered_group_polls_every_queue(client: RawClient, two_masters: Endpoint) -> None:
    two_masters.broker.add_group("group", fifo=True)
    queues = [assignment.message_queue for assignment in (await assignments(client, "spread")).assignments]
    assert sorted((queue.broker.name, queue.id) for queue in queues) == [
        *(("broker-a", queue_id) for queue_id in range(2)),
        *(("broker-b", queue_id) for queue_id in range(3)),
    ]


async def test_51_a_topic_that_nobody_may_read(client: RawClient, endpoint: Endpoint) -> None:
    endpoint.broker.add_topic("write-only", perm=2)
    answer = await assignments(client, "write-only")
    assert (answer.status.code, len(answer.assignments)) == (Code.FORBIDDEN, 0)
