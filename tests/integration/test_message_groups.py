"""Message groups over two broker groups, of which one dies: sent by two kinds of clients, kept in order, none lost."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import grpc

from support.cluster_processes import ProcessCluster, ServiceProcess
from support.running_time import PATIENCE_S, until
from support.topic_admin import create_group, create_topic
from tandemmq.client.connection import ClientOptions
from tandemmq.client.messages import ClientError
from tandemmq.client.producer import Producer
from tandemmq.core.delivery.lease_terms import broker_of_handle
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.proto.rocketmq.v2.service_pb2_grpc import MessagingServiceStub
from tandemmq.service.event_loop import SystemClock

TOPIC = "ordered"
GROUP = "billing"
MESSAGE_GROUPS = [f"order-{number}" for number in range(12)]
MESSAGES = 40
BROKERS = ("broker-a", "broker-b")
METADATA = (("x-mq-client-id", "raw@1@0@0"), ("x-mq-language", "CPP"))
_SERVICE = "/apache.rocketmq.v2.MessagingService/"


class Raw:
    """A client that calls one broker for everything, as official Rust clients call their access point."""

    def __init__(self, broker: ServiceProcess) -> None:
        options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
        self.channel = grpc.aio.insecure_channel(f"{broker.host}:{broker.ports['grpcServerPort']}", options=options)

    async def send(self, message_group: str, number: int) -> bool:
        message = definition.Message(topic=definition.Resource(name=TOPIC), body=b"%d" % number)
        system = message.system_properties
        system.message_id, system.message_group = f"{message_group}-{number}", message_group
        system.message_type, system.body_encoding = definition.FIFO, definition.IDENTITY
        system.born_timestamp.GetCurrentTime()
        send = MessagingServiceStub(self.channel).SendMessage
        try:
            answer = await send(pb.SendMessageRequest(messages=[message]), metadata=METADATA, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError:
            return False
        assert isinstance(answer, pb.SendMessageResponse)
        return answer.status.code == definition.OK

    async def receive(self, broker_name: str) -> list[definition.Message]:
        queue = definition.MessageQueue(
            topic=definition.Resource(name=TOPIC), broker=definition.Broker(name=broker_name)
        )
        request = pb.ReceiveMessageRequest(
            group=definition.Resource(name=GROUP),
            message_queue=queue,
            filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
            batch_size=4,
        )
        request.invisible_duration.FromMilliseconds(10_000)
        request.long_polling_timeout.FromMilliseconds(5_000)
        receive = MessagingServiceStub(self.channel).ReceiveMessage
        answers = receive(request, metadata=METADATA, timeout=PATIENCE_S)
        try:
            return [element.message async for element in answers if element.HasField("message")]
        except grpc.aio.AioRpcError:
            return []

    async def acknowledge(self, message: definition.Message) -> int:
        system = message.system_properties
        entry = pb.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
        request = pb.AckMessageRequest(
            group=definition.Resource(name=GROUP), topic=definition.Resource(name=TOPIC), entries=[entry]
        )
        ack = MessagingServiceStub(self.channel).AckMessage
        try:
            answer = await ack(request, metadata=METADATA, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError:
            return definition.PROXY_TIMEOUT
        assert isinstance(answer, pb.AckMessageResponse)
        return answer.status.code


class Seen:
    """What consumers were given."""

    def __init__(self) -> None:
        self.first: dict[str, list[int]] = defaultdict(list)
        self.places: dict[str, set[tuple[str | None, int]]] = defaultdict(set)

    def note(self, message: definition.Message) -> None:
        system = message.system_properties
        number = int(message.body)
        if number not in self.first[system.message_group]:
            self.first[system.message_group].append(number)
        self.places[system.message_group].add((broker_of_handle(system.receipt_handle), system.queue_id))

    @property
    def count(self) -> int:
        return sum(map(len, self.first.values()))


async def test_message_groups_keep_one_queue_and_their_order(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        settings = {"brokerRole": "ASYNC_MASTER", "consumeFromEarliest": "true"}
        brokers = [cluster.add_broker(name, settings=settings) for name in BROKERS]
        for broker in brokers:
            await create_topic(broker, TOPIC, queues=2, message_type="FIFO")
            await create_group(broker, GROUP, ordered=True)
        raws = [Raw(broker) for broker in brokers]
        access_points = tuple(f"{broker.host}:{broker.ports['grpcServerPort']}" for broker in brokers)
        options = ClientOptions(access_points, send_attempts_max=1, request_timeout_ms=30_000)
        for raw in raws:
            await _wait_for_both(raw)
        seen = Seen()
        async with Producer(options, SystemClock()) as producer, asyncio.TaskGroup() as tasks:
            consumers = [
                tasks.create_task(_consume(raws[0], "broker-a", seen)),
                # By its own broker, and by one that has to pass everything on.
                tasks.create_task(_consume(raws[1], "broker-b", seen)),
                tasks.create_task(_consume(raws[0], "broker-b", seen)),
            ]
            senders = [tasks.create_task(_send_all(raws, producer, group)) for group in MESSAGE_GROUPS]
            await until(lambda: seen.count >= len(MESSAGE_GROUPS) * MESSAGES // 4)
            brokers[1].kill()
            await asyncio.sleep(1)
            await asyncio.to_thread(brokers[1].start)
            async with asyncio.timeout(120):
                await asyncio.wait(senders)
                await until(lambda: seen.count >= len(MESSAGE_GROUPS) * MESSAGES)
            for consumer in consumers:
                consumer.cancel()
        for raw in raws:
            await raw.channel.close(grace=None)
    assert dict(seen.first) == {group: list(range(MESSAGES)) for group in MESSAGE_GROUPS}
    assert {len(places) for places in seen.places.values()} == {1}
    assert {name for places in seen.places.values() for name, _ in places} == set(BROKERS)


async def _wait_for_both(raw: Raw) -> None:
    query = MessagingServiceStub(raw.channel).QueryRoute
    async with asyncio.timeout(PATIENCE_S):
        while True:
            endpoints = definition.Endpoints(
                scheme=definition.IPv4, addresses=[definition.Address(host="127.0.0.1", port=8081)]
            )
            request = pb.QueryRouteRequest(topic=definition.Resource(name=TOPIC), endpoints=endpoints)
            answer = await query(request, metadata=METADATA, timeout=PATIENCE_S)
            assert isinstance(answer, pb.QueryRouteResponse)
            if {row.broker.name for row in answer.message_queues} == set(BROKERS):
                return
            await asyncio.sleep(0.05)


async def _send_all(raws: list[Raw], producer: Producer, message_group: str) -> None:
    """Each message by another client than the one before, and not before that one is stored."""
    for number in range(MESSAGES):
        attempt = number
        while not await _sent(raws, producer, message_group, number, attempt % 3):
            attempt += 1
            await asyncio.sleep(0.05)


async def _sent(raws: list[Raw], producer: Producer, message_group: str, number: int, way: int) -> bool:
    if way < len(raws):
        return await raws[way].send(message_group, number)
    try:
        await producer.send(TOPIC, b"%d" % number, message_group=message_group)
    except ClientError:
        return False
    return True


async def _consume(raw: Raw, broker_name: str, seen: Seen) -> None:
    while True:
        for message in await raw.receive(broker_name):
            seen.note(message)
            while await raw.acknowledge(message) == definition.PROXY_TIMEOUT:
                await asyncio.sleep(0.1)
        await asyncio.sleep(0.01)
