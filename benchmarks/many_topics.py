"""A broker with 10,000 topics of 8 queues: how long it takes to start, to answer, and to come back after a kill.

python benchmarks/many_topics.py                 # build/many-topics.json
python benchmarks/many_topics.py --topics 1000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Final

import grpc
import psutil

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from measurements.growth import QUEUES, topic_name, write_topics
from support.cluster_processes import ProcessCluster, ServiceProcess
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service

METADATA: Final = (("x-mq-client-id", "bench@1@0@0"), ("x-mq-language", "PYTHON"))
INFLIGHT: Final = 64
# 80,000 files that were written a moment ago: recovery waits for the disk more than for us.
RESTART_LIMIT_S: Final = 300.0


def row(name: str, value: float, unit: str) -> dict[str, object]:
    """One line of build/many-topics.json."""
    return {"name": name, "value": round(value, 3), "unit": unit, "target": None, "holds": True}


def request(number: int) -> service.SendMessageRequest:
    return service.SendMessageRequest(
        messages=[
            definition.Message(
                topic=definition.Resource(name=topic_name(number)),
                body=b"x" * 100,
                system_properties=definition.SystemProperties(
                    message_id=f"01{number * QUEUES + queue:032X}",
                    message_type=definition.NORMAL,
                    body_encoding=definition.IDENTITY,
                ),
            )
            for queue in range(QUEUES)
        ]
    )


async def send_to_all(broker: ServiceProcess, count: int) -> float:
    """A message into every queue; returns the seconds it took."""
    numbers = iter(range(count))
    started = time.perf_counter()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{broker.ports['grpcServerPort']}") as channel:
        call = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/SendMessage",
            request_serializer=service.SendMessageRequest.SerializeToString,
            response_deserializer=service.SendMessageResponse.FromString,
        )

        async def sender() -> None:
            for number in numbers:
                answer = await call(request(number), metadata=METADATA, timeout=30)
                if answer.status.code != definition.OK:
                    raise SystemExit(f"many_topics: a send was answered {answer.status}")

        await asyncio.gather(*(sender() for _ in range(INFLIGHT)))
    return time.perf_counter() - started


def timed_start(broker: ServiceProcess) -> float:
    """Starts a stopped broker; seconds until it serves."""
    started = time.perf_counter()
    broker.start()
    return time.perf_counter() - started


def main() -> int:
    """Measures and writes build/many-topics.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=10_000)
    count = parser.parse_args().topics
    folder = ROOT / "build" / "many-topics"
    shutil.rmtree(folder, ignore_errors=True)
    write_topics(folder / "broker-a-0", count)
    with ProcessCluster(folder) as cluster:
        cluster.add_name_server()
        started = time.perf_counter()
        broker = cluster.add_broker("broker-a", settings={"brokerRole": "ASYNC_MASTER"})
        rows = [row("start_time", time.perf_counter() - started, "s")]
        broker.start_limit_s = RESTART_LIMIT_S
        process = psutil.Process(broker.pid)
        rows.append(row("memory_before_messages", process.memory_info().rss / 2**20, "MiB"))
        rows.append(row("time_of_a_message_in_each_queue", asyncio.run(send_to_all(broker, count)), "s"))
        rows.append(row("memory_with_messages", process.memory_info().rss / 2**20, "MiB"))
        broker.kill()
        rows.append(row("start_time_after_kill", timed_start(broker), "s"))
        rows.append(row("time_of_one_more_in_each_queue", asyncio.run(send_to_all(broker, count)), "s"))
        if broker.stop() != 0:
            raise SystemExit(f"many_topics: the broker did not stop in order:\n{broker.log_text()[-2000:]}")
        rows.append(row("start_time_after_stop", timed_start(broker), "s"))
        rows.append(row("open_files", len(psutil.Process(broker.pid).open_files()), "files"))
    shutil.rmtree(folder, ignore_errors=True)
    (ROOT / "build" / "many-topics.json").write_text(json.dumps(rows, indent=2) + "\n")
    print(f"{count} topics of {QUEUES} queues")
    for entry in rows:
        print(f"  {entry['name']:<34} {entry['value']:>12} {entry['unit']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
