"""Real processes on disks that are short of room: who deletes what, and who says so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from support.acknowledged_sends import AcknowledgedSender
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.topic_admin import broker_status, create_topic
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb
from tandemmq.proto.admin.v1 import broker_operations_service_pb2_grpc

TOPIC = "kept"
SMALL = {"mappedFileSizeCommitLog": str(128 << 10), "maxMessageSize": "1024"}
SHORT_OF_ROOM = {"diskMaxUsedSpaceRatio": "0.001", "diskSpaceCleanForciblyRatio": "0.002"}
"""Any disk is fuller than that."""
_LOOK_LIMIT_S = 40.0


def first_offset(broker: ServiceProcess) -> int:
    return int(asyncio.run(broker_status(broker)).min_offset)


def write_refusal(broker: ServiceProcess) -> str:
    return str(asyncio.run(broker_status(broker)).write_refusal)


def change(broker: ServiceProcess, **values: str) -> None:
    """As `tandemmq broker config set` does."""
    with grpc.insecure_channel(f"127.0.0.1:{broker.ports['listenPort']}") as channel:
        stub = broker_operations_service_pb2_grpc.BrokerOperationsServiceStub(channel)
        stub.UpdateConfig(pb.UpdateConfigRequest(values=values), timeout=20)


def test_a_disk_short_of_room_deletes_nothing_that_nobody_read_unless_a_setting_says_so(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker("broker-a", settings=SMALL | SHORT_OF_ROOM)
        slave = cluster.add_broker("broker-a", broker_id=1, settings=SMALL | SHORT_OF_ROOM)
        asyncio.run(create_topic(master, TOPIC))
        with AcknowledgedSender(master, TOPIC) as sender:
            wait_until(lambda: len(sender.acknowledged) > 1_500, limit_s=60, what="1,500 acknowledged sends")
        assert asyncio.run(broker_status(master)).end_offset > 4 * (128 << 10)
        change(master, diskSpaceWarningLevelRatio="0.003")
        wait_until(
            lambda: f"topic {TOPIC}, of which no group has read queue" in write_refusal(master),
            limit_s=_LOOK_LIMIT_S,
            what="the master says for whom its disk is full",
        )
        assert (first_offset(master), first_offset(slave)) == (0, 0)
        change(master, deleteUnreadWhenFull="true")
        for broker in (master, slave):
            wait_until(lambda broker=broker: first_offset(broker) > 0, limit_s=_LOOK_LIMIT_S, what="files went")  # type: ignore[misc]
        assert first_offset(slave) <= first_offset(master)
