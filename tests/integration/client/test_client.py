"""Producer and consumer of the client library against brokers on loopback."""

from __future__ import annotations

import asyncio

import pytest

from support.broker_assembly import BrokerAssembly
from support.client_endpoint import serving
from tandemmq.client import (
    BrokerRefused,
    ClientOptions,
    EndpointUnreachable,
    Producer,
    ReceivedMessage,
    SendFailed,
    SimpleConsumer,
    TopicNotFound,
    parse_access_points,
)
from tandemmq.client.messages import AccessPointInvalid
from tandemmq.core.routing.values import BrokerData, BrokerEndpoints, QueueData, TopicRoute
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.service.event_loop import SystemClock

CLOCK = SystemClock()


def new_broker(name: str = "broker-a") -> BrokerAssembly:
    broker = BrokerAssembly(clock=CLOCK, timers=asyncio.get_running_loop(), broker_name=name)
    broker.add_topic("orders")
    return broker


def options(*access_points: str, send_attempts_max: int = 3) -> ClientOptions:
    # A send that takes longer than its limit is tried again, and stored twice.
    return ClientOptions(access_points, send_attempts_max=send_attempts_max, request_timeout_ms=60_000)


def consumer(address: str, expression: str = "*") -> SimpleConsumer:
    return SimpleConsumer(options(address), CLOCK, group="group", subscriptions={"orders": expression}, await_ms=5_000)


def route_over(*brokers: BrokerAssembly) -> TopicRoute:
    """The topic on several broker groups, as NameServers tell it to each of them."""
    return TopicRoute(
        "orders",
        tuple(QueueData(broker.identity.broker_name, 4, 4, 6) for broker in brokers),
        tuple(
            BrokerData("DefaultCluster", broker.identity.broker_name, {0: BrokerEndpoints(broker.client_endpoint)})
            for broker in brokers
        ),
    )


async def test_what_is_sent_is_received_and_acknowledged() -> None:
    broker = new_broker()
    async with serving(broker) as address:
        async with Producer(options(address), CLOCK) as producer:
            receipt = await producer.send("orders", b"body", tag="paid", keys=["k1", "k2"], properties={"a": "b"})
        async with consumer(address, "paid || open") as receiver:
            [message] = await receiver.receive()
            await receiver.ack(message)
        assert (receipt.broker_name, receipt.attempts) == ("broker-a", 1)
        assert (message.body, message.tag, message.keys) == (b"body", "paid", ("k1", "k2"))
        assert (message.properties, message.message_id) == ({"a": "b"}, receipt.message_id)
        assert message.intact
        assert all(state.committed_offset == state.next_offset for state in broker.leases.progress())


async def test_many_sends_at_once_are_all_stored() -> None:
    broker = new_broker()
    # None is sent again, however slow this machine is: a second copy would be stored as well.
    async with (
        serving(broker) as address,
        Producer(options(address), CLOCK) as producer,
    ):
        receipts = await asyncio.gather(*(producer.send("orders", b"%d" % number) for number in range(500)))
        assert len({receipt.message_id for receipt in receipts}) == 500
        assert sum(broker.store.queue_max_offset("orders", queue_id) for queue_id in range(4)) == 500


async def test_brokers_know_their_clients_until_the_goodbye() -> None:
    broker = new_broker()
    async with serving(broker) as address:
        async with consumer(address) as receiver:
            await receiver.receive(await_ms=5_000)
            [session] = broker.sessions.all()
            assert (session.client_type, session.group) == ("SIMPLE_CONSUMER", "group")
        assert len(broker.sessions) == 0


async def test_only_the_new_handle_of_a_changed_lease_can_be_acknowledged() -> None:
    async with serving(new_broker()) as address:
        async with Producer(options(address), CLOCK) as producer:
            await producer.send("orders", b"body")
        async with consumer(address) as receiver:
            [message] = await receiver.receive()
            changed = await receiver.change_invisible(message, 60_000)
            with pytest.raises(BrokerRefused, match="INVALID_RECEIPT_HANDLE"):
                await receiver.ack(message)
            await receiver.ack(changed)


async def test_an_empty_broker_group_does_not_hold_up_one_that_has_messages() -> None:
    full, empty = new_broker("broker-a"), new_broker("broker-b")
    async with serving(full) as address, serving(empty):
        async with Producer(options(address), CLOCK) as producer:
            for _ in range(6):
                await producer.send("orders", b"body")
        full.cluster_route = route_over(full, empty)
        async with consumer(address) as receiver:
            asked_at_ms = CLOCK.monotonic_ms()
            messages: list[ReceivedMessage] = []
            while len(messages) < 6:
                messages += await receiver.receive(1)
            # The first receive may have waited at the empty one; with a full wait each time it would take 25 s.
            assert CLOCK.monotonic_ms() - asked_at_ms < 20_000
            for message in messages:
                await receiver.ack(message)
            await send_late(empty)
            assert [message.body for message in await receiver.receive()] == [b"late"]


async def send_late(broker: BrokerAssembly) -> None:
    """Sends one message to `broker`, which knows of itself only."""
    async with Producer(options(broker.client_endpoint), CLOCK) as producer:
        await producer.send("orders", b"late")


async def test_send_goes_to_another_broker_when_one_is_gone() -> None:
    alive, dead = new_broker("broker-a"), new_broker("broker-b")
    async with serving(alive) as address:
        async with serving(dead):
            pass
        alive.cluster_route = route_over(alive, dead)
        async with Producer(options(address), CLOCK) as producer:
            receipts = [await producer.send("orders", b"body") for _ in range(8)]
    assert {receipt.broker_name for receipt in receipts} == {"broker-a"}
    assert sum(receipt.attempts > 1 for receipt in receipts) == 1


async def test_send_that_is_not_safe_is_retried_then_reported_with_every_reason() -> None:
    broker = new_broker()
    broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    async with serving(broker) as address, Producer(options(address, send_attempts_max=2), CLOCK) as producer:
        with pytest.raises(SendFailed, match="SLAVE_PERSISTENCE_TIMEOUT") as caught:
            await producer.send("orders", b"body")
    assert len(caught.value.failures) == 2


async def test_refusal_that_no_retry_can_change_is_raised_at_once() -> None:
    async with serving(new_broker()) as address, Producer(options(address), CLOCK) as producer:
        with pytest.raises(BrokerRefused) as caught:
            await producer.send("orders", b"body", tag="a|b")
    assert caught.value.code == definition.ILLEGAL_MESSAGE_TAG


async def test_unknown_topic_is_reported_as_such() -> None:
    async with serving(new_broker()) as address, Producer(options("127.0.0.1:1", address), CLOCK) as producer:
        with pytest.raises(TopicNotFound, match="nothing"):
            await producer.send("nothing", b"body")


async def test_nobody_at_the_access_point() -> None:
    async with Producer(options("127.0.0.1:1", send_attempts_max=1), CLOCK) as producer:
        with pytest.raises(SendFailed, match=r"127\.0\.0\.1:1") as caught:
            await producer.send("orders", b"body")
    assert isinstance(caught.value.failures[0], EndpointUnreachable)


async def test_route_outlives_an_access_point_that_fell_silent() -> None:
    first, second = new_broker("broker-a"), new_broker("broker-b")
    async with serving(second):
        async with serving(first) as address:
            first.cluster_route = route_over(first, second)
            producer = await Producer(options(address), CLOCK).__aenter__()
            await producer.send("orders", b"body")
        receipts = [await producer.send("orders", b"body") for _ in range(4)]
        await producer.__aexit__(None, None, None)
    assert {receipt.broker_name for receipt in receipts} == {"broker-b"}


@pytest.mark.parametrize("text", ["", "host", "host:0", "host:99999", ":80", "a:1;b"])
def test_access_points_that_are_none(text: str) -> None:
    with pytest.raises(AccessPointInvalid):
        parse_access_points(text)


def test_access_points() -> None:
    assert parse_access_points("a:1; [::1]:2 ;") == ("a:1", "[::1]:2")
