"""What one client that names new consumer groups in a loop takes from the sends of the others.

A SYNC_MASTER with its slave, single sends from a few callers at once: first alone, then beside the client.

python benchmarks/new_groups.py                                      # the limits of the settings
python benchmarks/new_groups.py --per-second 100000 --groups 20000   # without them: what each group costs
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import grpc

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.topic_admin import broker_status, create_topic
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.proto.rocketmq.v2 import service_pb2_grpc

TOPIC: Final = "bench"
SENDERS: Final = 4


def metadata(client_id: str) -> tuple[tuple[str, str], ...]:
    return (("x-mq-client-id", client_id), ("x-mq-language", "PYTHON"))


async def send_until(stub: service_pb2_grpc.MessagingServiceStub, sender: int, end_s: float, sent: list[float]) -> None:
    """One send after the other; how long each took."""
    number = 0
    while (started_s := time.monotonic()) < end_s:
        message = definition.Message(
            topic=definition.Resource(name=TOPIC),
            body=b"x" * 100,
            system_properties=definition.SystemProperties(
                message_id=f"01{(sender << 64) + time.monotonic_ns() + number:032X}",
                message_type=definition.NORMAL,
                body_encoding=definition.IDENTITY,
            ),
        )
        number += 1
        answer = await stub.SendMessage(
            service.SendMessageRequest(messages=[message]), metadata=metadata(f"sender-{sender}"), timeout=30
        )
        if answer.status.code == definition.OK:
            sent.append(time.monotonic() - started_s)


async def name_groups(
    stub: service_pb2_grpc.MessagingServiceStub, end_s: float, limit: int, answers: Counter[str]
) -> None:
    """A receive for one new group after the other, by one client."""
    for number in range(limit):
        if time.monotonic() >= end_s:
            return
        request = service.ReceiveMessageRequest(
            group=definition.Resource(name=f"new-{number}"),
            message_queue=definition.MessageQueue(
                topic=definition.Resource(name=TOPIC), id=0, permission=definition.READ_WRITE
            ),
            filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
            batch_size=1,
        )
        request.invisible_duration.FromSeconds(30)
        request.long_polling_timeout.FromMilliseconds(0)
        async for answer in stub.ReceiveMessage(request, metadata=metadata("namer"), timeout=30):
            if answer.HasField("status"):
                answers[definition.Code.Name(answer.status.code)] += 1


async def measure(master: ServiceProcess, *, seconds: float, limit: int) -> dict[str, object]:
    """Sends a second, and the slowest, alone and beside the client."""
    figures: dict[str, object] = {}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{master.ports['grpcServerPort']}") as channel:
        stub = service_pb2_grpc.MessagingServiceStub(channel)
        for beside in (False, True):
            end_s = time.monotonic() + seconds
            sent: list[float] = []
            answers: Counter[str] = Counter()
            async with asyncio.TaskGroup() as tasks:
                for sender in range(SENDERS):
                    tasks.create_task(send_until(stub, sender, end_s, sent))
                if beside:
                    tasks.create_task(name_groups(stub, end_s, limit, answers))
            name = "beside" if beside else "alone"
            figures[f"{name}_sends_per_s"] = round(len(sent) / seconds)
            figures[f"{name}_p99_ms"] = round(sorted(sent)[len(sent) * 99 // 100] * 1_000, 1)
            figures |= {f"receives_{code}": count for code, count in answers.items()}
        figures["groups"] = (await broker_status(master)).group_count
    return figures


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--groups", type=int, default=1_000_000, help="no more new names than these")
    parser.add_argument("--per-second", type=int, help="newGroupsPerSecond and newGroupsPerClientPerSecond")
    options = parser.parse_args()
    settings = {}
    if options.per_second is not None:
        settings = {
            "newGroupsPerSecond": str(options.per_second),
            "newGroupsPerClientPerSecond": str(options.per_second),
            "subscriptionGroupsMax": "1000000",
        }
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder, ProcessCluster(Path(folder)) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker("broker-a", settings=settings)
        cluster.add_broker("broker-a", broker_id=1, settings=settings)
        asyncio.run(create_topic(master, TOPIC))
        wait_until(lambda: has_slave(master), limit_s=60, what="the slave is in sync")
        print(json.dumps(asyncio.run(measure(master, seconds=options.seconds, limit=options.groups))))


def has_slave(master: ServiceProcess) -> bool:
    return any(slave.in_sync for slave in asyncio.run(broker_status(master)).slaves)


if __name__ == "__main__":
    main()
