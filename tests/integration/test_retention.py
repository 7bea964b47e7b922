"""Real processes on disks that are short of room: who deletes what, and who says so."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import grpc

from support.acknowledged_sends import METADATA, AcknowledgedSender
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.running_time import PATIENCE_S
from support.topic_admin import broker_status, create_topic
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb
from tandemmq.proto.admin.v1 import broker_operations_service_pb2_grpc
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.proto.rocketmq.v2.service_pb2_grpc import MessagingServiceStub

TOPIC, EXPIRED = "kept", "expired"
SMALL = {"mappedFileSizeCommitLog": str(128 << 10), "maxMessageSize": "1024"}
SHORT_OF_ROOM = {"diskMaxUsedSpaceRatio": "0.001", "diskSpaceCleanForciblyRatio": "0.002"}
"""Any disk is fuller than that."""


def first_offset(broker: ServiceProcess) -> int:
    return int(asyncio.run(broker_status(broker)).min_offset)


def write_refusal(broker: ServiceProcess) -> str:
    return str(asyncio.run(broker_status(broker)).write_refusal)


def change(broker: ServiceProcess, **values: str) -> None:
    """As `tandemmq broker config set` does."""
    with grpc.insecure_channel(f"127.0.0.1:{broker.ports['listenPort']}") as channel:
        stub = broker_operations_service_pb2_grpc.BrokerOperationsServiceStub(channel)
        stub.UpdateConfig(pb.UpdateConfigRequest(values=values), timeout=PATIENCE_S)


def send(broker: ServiceProcess, topic: str) -> int:
    """One message, in sync with the slave or not; returns its number in the queue."""
    with grpc.insecure_channel(f"127.0.0.1:{broker.ports['grpcServerPort']}") as channel:
        call = MessagingServiceStub(channel).SendMessage
        properties = definition.SystemProperties(
            message_id=f"01{time.time_ns():032X}", message_type=definition.NORMAL, body_encoding=definition.IDENTITY
        )
        message = definition.Message(topic=definition.Resource(name=topic), body=b"b", system_properties=properties)
        answer = call(service.SendMessageRequest(messages=[message]), metadata=METADATA, timeout=PATIENCE_S)
    assert answer.status.code in (definition.OK, definition.HA_NOT_AVAILABLE), answer.status.message
    return int(answer.entries[0].offset)


def queue_ends(cluster: ProcessCluster) -> str:
    """What the slave's table says of queues without messages."""
    text = (cluster.store_folder("broker-a-1") / "config" / "consumerOffset.json").read_text()
    return text.partition("queueEnds")[2]


def test_a_disk_short_of_room_deletes_nothing_that_nobody_read_unless_a_setting_says_so(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker("broker-a", settings=SMALL | SHORT_OF_ROOM)
        slave = cluster.add_broker("broker-a", broker_id=1, settings=SMALL | SHORT_OF_ROOM)
        asyncio.run(create_topic(master, TOPIC))
        asyncio.run(create_topic(master, EXPIRED, queues=1))
        next_number = [send(master, EXPIRED) for _ in range(20)][-1] + 1
        with AcknowledgedSender(master, TOPIC) as sender:
            wait_until(lambda: len(sender.acknowledged) > 1_500, limit_s=PATIENCE_S, what="1,500 acknowledged sends")
        assert asyncio.run(broker_status(master)).end_offset > 4 * (128 << 10)
        change(master, diskSpaceWarningLevelRatio="0.003")
        wait_until(
            lambda: f"topic {EXPIRED}, of which no group has read queue" in write_refusal(master),
            limit_s=PATIENCE_S,
            what="the master says for whom its disk is full",
        )
        assert (first_offset(master), first_offset(slave)) == (0, 0)
        change(master, deleteUnreadWhenFull="true")
        for broker in (master, slave):
            wait_until(lambda broker=broker: first_offset(broker) > 0, limit_s=PATIENCE_S, what="files went")  # type: ignore[misc]
        assert first_offset(slave) <= first_offset(master)
        # Nothing in the log tells how far the first topic's queue had come.
        wait_until(
            lambda: f'"{EXPIRED}"' in queue_ends(cluster), limit_s=PATIENCE_S, what="the slave is told of its number"
        )
        master.kill()
        shutil.rmtree(cluster.store_folder("broker-a-0"))
        master.settings["diskSpaceWarningLevelRatio"] = "0.99"
        master.start()
        assert send(master, EXPIRED) == next_number
