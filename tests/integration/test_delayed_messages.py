"""DELAY messages of real processes that are killed: each is delivered once, and not early."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from support.acknowledged_sends import METADATA, DelayedSender
from support.cluster_processes import ProcessCluster, ServiceProcess, commit_log_bytes, wait_until
from support.failover_group import FailoverGroup
from support.running_time import PATIENCE_S
from support.topic_admin import create_topic
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import MessageRecord, RecordFound, decode_record, scan_record
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.proto.rocketmq.v2 import service_pb2_grpc

REMINDERS = "reminders"
TIMERS = "rmq_sys_wheel_timer"


def records_of(folder: Path) -> list[MessageRecord]:
    """All whole records of a log, which may be written to meanwhile."""
    records = []
    for name, data in sorted(commit_log_bytes(folder).items()):
        view = memoryview(data)
        position = 0
        while isinstance(
            found := scan_record(view, position, len(data), physical_offset=int(name) + position), RecordFound
        ):
            records.append(decode_record(view[position : position + found.size]))
            position += found.size
    return records


def held_and_delivered(records: list[MessageRecord]) -> tuple[set[str], Counter[str]]:
    """Message ids of all timers, and how often each was delivered. Asserts that none was early."""
    held: set[str] = set()
    delivered: Counter[str] = Counter()
    for record in records:
        properties = decode_properties(record.properties)
        message_id = properties.get("UNIQ_KEY", "")
        if record.topic == TIMERS:
            held.add(message_id)
        elif record.topic == REMINDERS:
            delivered[message_id] += 1
            assert record.store_timestamp_ms >= int(properties["TIMER_DELIVER_MS"])
    return held, delivered


def check(folder: Path, acknowledged: list[str]) -> None:
    """Waits until everything was delivered. What came to its master after its time was never held."""

    def is_done() -> bool:
        held, delivered = held_and_delivered(records_of(folder))
        return held <= delivered.keys()

    wait_until(is_done, limit_s=120, what="all timers are delivered")
    time.sleep(1)  # A second delivery would come now.
    _, delivered = held_and_delivered(records_of(folder))
    assert set(acknowledged) <= delivered.keys()
    assert set(delivered.values()) == {1}


def test_a_killed_broker_delivers_what_it_held_once_when_it_is_back(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        broker = cluster.add_broker(settings={"brokerRole": "ASYNC_MASTER"})
        asyncio.run(create_topic(broker, REMINDERS, message_type="DELAY"))
        with DelayedSender(broker, REMINDERS, pause_s=0.02) as sender:
            for _ in range(3):
                time.sleep(1.7)
                broker.kill()
                broker.start()
            wait_until(lambda: len(sender.acknowledged) > 100, limit_s=120, what="timers are acknowledged")
            time.sleep(1.5)
        assert broker.stop() == 0
        broker.start()
        check(cluster.store_folder("broker-a-0"), sender.acknowledged)


def test_a_recall_at_another_broker_group_reaches_the_message(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        alone = {"brokerRole": "ASYNC_MASTER"}
        owner, other = (cluster.add_broker(name, settings=alone) for name in ("broker-a", "broker-b"))
        for broker in (owner, other):
            asyncio.run(create_topic(broker, REMINDERS, message_type="DELAY"))
        handle = asyncio.run(_send_later(owner))

        def code() -> int:
            """PROXY_TIMEOUT until the other group has heard who serves this one."""
            return asyncio.run(_recall(other, handle))

        wait_until(lambda: code() == definition.OK, limit_s=120, what="the recall is passed on")
        assert asyncio.run(_recall(owner, handle)) == definition.NOT_FOUND
        held, delivered = held_and_delivered(records_of(cluster.store_folder("broker-a-0")))
        assert (len(held), delivered) == (1, Counter())
        assert any(record.topic == f"{TIMERS}_op" for record in records_of(cluster.store_folder("broker-a-0")))


async def _send_later(broker: ServiceProcess) -> str:
    system = definition.SystemProperties(message_id="ID-1", message_type=definition.DELAY, born_host="here")
    system.delivery_timestamp.FromMilliseconds((time.time_ns() // 1_000_000) + 3_600_000)
    message = definition.Message(topic=definition.Resource(name=REMINDERS), body=b"later", system_properties=system)
    async with grpc.aio.insecure_channel(f"{broker.host}:{broker.ports['grpcServerPort']}") as channel:
        answer = await service_pb2_grpc.MessagingServiceStub(channel).SendMessage(
            service.SendMessageRequest(messages=[message]), metadata=METADATA, timeout=PATIENCE_S
        )
    return str(answer.entries[0].recall_handle)


async def _recall(broker: ServiceProcess, handle: str) -> int:
    request = service.RecallMessageRequest(topic=definition.Resource(name=REMINDERS), recall_handle=handle)
    async with grpc.aio.insecure_channel(f"{broker.host}:{broker.ports['grpcServerPort']}") as channel:
        answer = await service_pb2_grpc.MessagingServiceStub(channel).RecallMessage(
            request, metadata=METADATA, timeout=PATIENCE_S
        )
    return int(answer.status.code)


@pytest.mark.parametrize("kind", ["kill", "hand over"])
def test_a_new_master_delivers_what_the_old_one_held(tmp_path: Path, kind: str) -> None:
    with FailoverGroup(tmp_path) as group, ExitStack() as stack:
        group.stop_senders()
        asyncio.run(create_topic(group.brokers[0], REMINDERS, message_type="DELAY"))
        senders = [
            stack.enter_context(
                DelayedSender(broker, REMINDERS, inflight=8, first_number=1 << (60 + number), pause_s=0.02)
            )
            for number, broker in enumerate(group.brokers)
        ]
        time.sleep(2)
        first = group.wait_master()
        if kind == "kill":
            group.brokers[first].kill()
        else:
            group.hand_over()
        wait_until(lambda: group.master() not in (None, first), limit_s=120, what="another is the master")
        count = sum(len(sender.acknowledged) for sender in senders)
        wait_until(
            lambda: sum(len(sender.acknowledged) for sender in senders) > count + 100, limit_s=120, what="sends go on"
        )
        if kind == "kill":
            group.brokers[first].start()
        stack.close()
        group.wait_whole()
        master = group.wait_master()
        acknowledged = [message_id for sender in senders for message_id in sender.acknowledged]
        check(group.cluster.store_folder(f"broker-a-{master}"), acknowledged)
        wait_until(group.are_equal, limit_s=120, what="the replicas are equal")
