"""Lite topics of real processes that are killed: nothing acknowledged is lost, and each keeps its order."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
import pytest

from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.failover_group import FailoverGroup
from support.running_time import PATIENCE_S
from support.topic_admin import create_topic
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.proto.rocketmq.v2 import service_pb2_grpc

TOPIC = "sessions"
GROUP = "workers"
LITE_TOPICS = [f"session-{number}" for number in range(8)]
MESSAGES = 40
LIMIT_S = 120
_LOOK_S = 5
"""So soon a consumer would be given what is new to its group."""
METADATA = (("x-mq-client-id", "raw@1@0@0"), ("x-mq-language", "JAVA"))


class Client:
    """One producer and one consumer that ask all members, as clients do whose route has just changed."""

    def __init__(self, brokers: Sequence[ServiceProcess]) -> None:
        options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
        self._channels = [
            grpc.aio.insecure_channel(f"{broker.host}:{broker.ports['grpcServerPort']}", options=options)
            for broker in brokers
        ]
        self._stubs = [service_pb2_grpc.MessagingServiceStub(channel) for channel in self._channels]
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.acknowledged: dict[str, int] = dict.fromkeys(LITE_TOPICS, 0)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)

    async def subscribe(self) -> None:
        """As Java's client repeats it, to every endpoint."""
        request = pb.SyncLiteSubscriptionRequest(
            topic=definition.Resource(name=TOPIC),
            group=definition.Resource(name=GROUP),
            lite_topic_set=LITE_TOPICS,
            action=definition.COMPLETE_ADD,
            version=time.time_ns(),
        )
        for stub in self._stubs:
            try:
                await stub.SyncLiteSubscription(request, metadata=METADATA, timeout=PATIENCE_S)
            except grpc.aio.AioRpcError:
                continue

    async def send_all(self, lite_topic: str) -> None:
        """Each message until it is stored, and only then the next one."""
        number = turn = 0
        while number < MESSAGES:
            system = definition.SystemProperties(
                message_id=f"{lite_topic}-{number}",
                message_type=definition.LITE,
                lite_topic=lite_topic,
                born_host="here",
                body_encoding=definition.IDENTITY,
            )
            message = definition.Message(
                topic=definition.Resource(name=TOPIC), body=b"%d" % number, system_properties=system
            )
            stub = self._stubs[turn % len(self._stubs)]
            try:
                answer = await stub.SendMessage(
                    pb.SendMessageRequest(messages=[message]), metadata=METADATA, timeout=PATIENCE_S
                )
                is_stored = answer.status.code == definition.OK
            except grpc.aio.AioRpcError:
                is_stored = False
            if is_stored:
                number += 1
                self.acknowledged[lite_topic] = number
                await asyncio.sleep(0.02)
            else:
                turn += 1
                await asyncio.sleep(0.1)

    async def consume(self, index: int) -> None:
        """From one member, for good."""
        stub = self._stubs[index]
        request = pb.ReceiveMessageRequest(
            group=definition.Resource(name=GROUP),
            message_queue=definition.MessageQueue(topic=definition.Resource(name=TOPIC)),
            filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
            batch_size=16,
        )
        request.invisible_duration.FromMilliseconds(10_000)
        request.long_polling_timeout.FromMilliseconds(1_000)
        while True:
            await self.subscribe()
            try:
                elements = [one async for one in stub.ReceiveMessage(request, metadata=METADATA, timeout=PATIENCE_S)]
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)
                continue
            messages = [element.message for element in elements if element.HasField("message")]
            if not messages:
                await asyncio.sleep(0.05)
                continue
            ack = pb.AckMessageRequest(group=request.group, topic=request.message_queue.topic)
            for message in messages:
                system = message.system_properties
                self.seen[system.lite_topic].append(int(message.body))
                ack.entries.add(
                    message_id=system.message_id, receipt_handle=system.receipt_handle, lite_topic=system.lite_topic
                )
            try:
                await stub.AckMessage(ack, metadata=METADATA, timeout=PATIENCE_S)
            except grpc.aio.AioRpcError:
                continue  # They come again.

    @property
    def seen_count(self) -> int:
        return sum(len(set(numbers)) for numbers in self.seen.values())

    def check(self) -> None:
        """Each message came, and its first delivery after that of the one before it."""
        for lite_topic in LITE_TOPICS:
            first = list(dict.fromkeys(self.seen[lite_topic]))
            assert first == list(range(MESSAGES)), lite_topic


async def run(brokers: Sequence[ServiceProcess], disturb: Sequence[Callable[[], None]]) -> None:
    """Sends and consumes while `disturb` is called, one after the other."""
    client = Client(brokers)
    try:
        await client.subscribe()
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
            consumers = [tasks.create_task(client.consume(index)) for index in range(len(brokers))]
            senders = [tasks.create_task(client.send_all(lite_topic)) for lite_topic in LITE_TOPICS]
            for number, act in enumerate(disturb, 1):
                while client.seen_count < number * len(LITE_TOPICS) * MESSAGES // (len(disturb) + 2):
                    await asyncio.sleep(0.05)
                await asyncio.to_thread(act)
            await asyncio.wait(senders)
            while client.seen_count < len(LITE_TOPICS) * MESSAGES:
                await asyncio.sleep(0.05)
            for consumer in consumers:
                consumer.cancel()
    finally:
        await client.close()
    client.check()


def test_a_killed_broker_gives_its_lite_topics_in_order_when_it_is_back(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        broker = cluster.add_broker(settings={"brokerRole": "ASYNC_MASTER"})
        asyncio.run(create_topic(broker, TOPIC, queues=4, message_type="LITE"))

        def kill_and_start() -> None:
            broker.kill()
            broker.start()

        asyncio.run(run([broker], [kill_and_start, kill_and_start]))


@pytest.mark.parametrize("kind", ["kill", "hand over"])
def test_a_new_master_gives_the_lite_topics_of_the_old_one_in_order(tmp_path: Path, kind: str) -> None:
    with FailoverGroup(tmp_path) as group:
        group.stop_senders()
        asyncio.run(create_topic(group.brokers[0], TOPIC, queues=4, message_type="LITE"))

        def change_master() -> None:
            first = group.wait_master()
            if kind == "hand over":
                group.hand_over()
            else:
                group.brokers[first].kill()
            wait_until(lambda: group.master() not in (None, first), limit_s=PATIENCE_S, what="another is the master")
            if kind == "kill":
                group.brokers[first].start()
            group.wait_whole()

        asyncio.run(run(group.brokers, [change_master]))
        group.stop_senders()
        wait_until(group.are_equal, limit_s=PATIENCE_S, what="the replicas are equal")


def test_what_was_acknowledged_stays_so_where_a_start_finds_a_damaged_entry(tmp_path: Path) -> None:
    """Where messages of lite topics lie is read anew at each start: up to the entry, before it is mended."""
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        broker = cluster.add_broker(settings={"brokerRole": "ASYNC_MASTER"})
        asyncio.run(create_topic(broker, TOPIC, queues=1, message_type="LITE"))
        asyncio.run(run([broker], []))
        assert broker.stop() == 0
        [entries] = (cluster.store_folder("broker-a-0") / "consumequeue" / TOPIC / "0").iterdir()
        with entries.open("r+b") as file:
            file.seek(20 * MESSAGES + 7)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))
        broker.start()
        wait_until(lambda: "queue_entries_mended" in broker.log_text(), limit_s=PATIENCE_S, what="the entry is mended")

        async def look() -> dict[str, list[int]]:
            client = Client([broker])
            try:
                async with asyncio.timeout(_LOOK_S):
                    await client.consume(0)
            except TimeoutError:
                return client.seen
            finally:
                await client.close()
            raise AssertionError("it consumes for good")

        assert not asyncio.run(look())
        assert "progress_cut" not in broker.log_text()
