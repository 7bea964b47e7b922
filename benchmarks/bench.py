"""First base line: synchronous sends by number in flight, HA catch-up, start-up time, idle memory.

    make bench                # everything, about two minutes
    python benchmarks/bench.py --seconds 5 --rounds 3

Sends go through the real client API: a pair of processes as in 2m-2s-sync (SYNC_MASTER with inSyncReplicas=2 and its
slave), one gRPC connection, 1 KiB bodies. Figures are medians of the rounds. Absolute numbers from two machines are no
comparison; the peer joins the same run in a later step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import psutil

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from apache.rocketmq.v2 import definition_pb2 as definition  # noqa: E402
from apache.rocketmq.v2 import service_pb2 as service  # noqa: E402

from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until  # noqa: E402
from support.topic_admin import broker_status, create_topic  # noqa: E402

TOPIC: Final = "bench"
BODY_BYTES: Final = 1024
METADATA: Final = (("x-mq-client-id", "bench@1@0@0"), ("x-mq-language", "PYTHON"))
BENCH_STORE: Final = {"mappedFileSizeCommitLog": str(256 << 20), "maxHashSlotNum": "500000", "maxIndexNum": "2000000"}


@dataclass(frozen=True, slots=True)
class SendWindow:
    """One measured window of sends."""

    messages_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    server_cpu_us: float


def encoded_request(number: int) -> bytes:
    """A SendMessage of one 1 KiB message, encoded."""
    message = definition.Message(
        topic=definition.Resource(name=TOPIC),
        body=b"x" * BODY_BYTES,
        system_properties=definition.SystemProperties(
            message_id=f"01{number:032X}",
            message_type=definition.NORMAL,
            body_encoding=definition.IDENTITY,
            born_host="bench",
        ),
    )
    message.system_properties.born_timestamp.GetCurrentTime()
    return service.SendMessageRequest(messages=[message]).SerializeToString()


def cpu_seconds(processes: list[ServiceProcess]) -> float:
    """User and system CPU of the processes so far."""
    times = [psutil.Process(process.pid).cpu_times() for process in processes]
    return float(sum(entry.user + entry.system for entry in times))


async def send_window(
    channel: grpc.aio.Channel, *, inflight: int, seconds: float, servers: list[ServiceProcess]
) -> SendWindow:
    """Keeps `inflight` sends in the air for `seconds`."""
    call = channel.unary_unary(
        "/apache.rocketmq.v2.MessagingService/SendMessage",
        request_serializer=lambda data: data,
        response_deserializer=service.SendMessageResponse.FromString,
    )
    latencies: list[float] = []
    stop_at = time.perf_counter() + seconds
    number = int(time.time() * 1e6)

    async def sender() -> None:
        nonlocal number
        while (started := time.perf_counter()) < stop_at:
            number += 1
            answer = await call(encoded_request(number), metadata=METADATA, timeout=10)
            if answer.status.code != definition.OK:
                raise SystemExit(f"bench: a send was answered {answer.status}")
            latencies.append(time.perf_counter() - started)

    cpu_before, wall_before = cpu_seconds(servers), time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(inflight)))
    wall, cpu = time.perf_counter() - wall_before, cpu_seconds(servers) - cpu_before
    latencies.sort()

    def at(share: float) -> float:
        return latencies[min(len(latencies) - 1, int(len(latencies) * share))] * 1e3

    return SendWindow(len(latencies) / wall, at(0.5), at(0.99), at(0.999), cpu / len(latencies) * 1e6)


def row(name: str, value: float, unit: str) -> dict[str, object]:
    """One line of build/bench.json; a base line has no target."""
    return {"name": name, "value": round(value, 3), "unit": unit, "target": None, "holds": True}


async def bench_sends(cluster: ProcessCluster, *, seconds: float, rounds: int) -> list[dict[str, object]]:
    """Sends at 1, 32 and 256 in flight."""
    master, slave = cluster.brokers["broker-a-0"], cluster.brokers["broker-a-1"]
    await create_topic(master, TOPIC)
    rows = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{master.ports['grpcServerPort']}") as channel:
        await send_window(channel, inflight=32, seconds=1, servers=[master, slave])
        for inflight in (1, 32, 256):
            windows = [
                await send_window(channel, inflight=inflight, seconds=seconds, servers=[master, slave])
                for _ in range(rounds)
            ]
            for field, unit, name in (
                ("messages_per_s", "msg/s", "rate"),
                ("p50_ms", "ms", "p50"),
                ("p99_ms", "ms", "p99"),
                ("p999_ms", "ms", "p999"),
                ("server_cpu_us", "us/msg", "cpu"),
            ):
                value = statistics.median(getattr(window, field) for window in windows)
                rows.append(row(f"sync_send_{name}_{inflight}", value, unit))
            print(f"  {inflight:>4} in flight: {windows[-1]}", flush=True)
    return rows


def has_slave_in_sync(master: ServiceProcess) -> bool:
    """True when sends can be acknowledged."""
    return any(slave.in_sync for slave in asyncio.run(broker_status(master)).slaves)


def log_end(process: ServiceProcess) -> int:
    """End offset of a broker's CommitLog, from its status."""
    return int(asyncio.run(broker_status(process)).end_offset)


async def fill(cluster: ProcessCluster, *, total_bytes: int) -> None:
    """Sends 1 MiB bodies until the master's log holds `total_bytes`."""
    master = cluster.brokers["broker-a-0"]
    await create_topic(master, TOPIC)
    body = os.urandom(1 << 20)
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{master.ports['grpcServerPort']}", options=[("grpc.max_send_message_length", 8 << 20)]
    ) as channel:
        call = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/SendMessage",
            request_serializer=service.SendMessageRequest.SerializeToString,
            response_deserializer=service.SendMessageResponse.FromString,
        )
        for number in range(total_bytes >> 20):
            request = service.SendMessageRequest.FromString(encoded_request(number))
            request.messages[0].body = body
            await call(request, metadata=METADATA, timeout=30)


def bench_catch_up(cluster: ProcessCluster, *, total_bytes: int) -> list[dict[str, object]]:
    """A fresh slave joins a master that holds `total_bytes`."""
    master = cluster.add_broker("broker-a", settings=BENCH_STORE | {"brokerRole": "ASYNC_MASTER"})
    asyncio.run(fill(cluster, total_bytes=total_bytes))
    end = log_end(master)
    cpu_before = cpu_seconds([master])
    started = time.perf_counter()
    slave = cluster.add_broker("broker-a", broker_id=1, settings=BENCH_STORE)
    serving = time.perf_counter()
    wait_until(lambda: log_end(slave) >= end, limit_s=300, what="the fresh slave holds the whole log")
    seconds = time.perf_counter() - serving
    return [
        row("ha_catchup_rate", end / 1e6 / seconds, "MB/s"),
        row("ha_catchup_bytes", end, "bytes"),
        row("ha_catchup_master_cpu", cpu_seconds([master]) - cpu_before, "s"),
        row("ha_catchup_slave_cpu", cpu_seconds([slave]), "s"),
        row("ha_catchup_with_start", time.perf_counter() - started, "s"),
    ]


def main() -> int:
    """Runs all measurements and writes build/bench.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a window")
    parser.add_argument("--rounds", type=int, default=3, help="windows per measure; the median counts")
    parser.add_argument("--catch-up-mib", type=int, default=1024, help="size of the log a fresh slave copies")
    arguments = parser.parse_args()
    folder = ROOT / "build" / "bench"
    shutil.rmtree(folder, ignore_errors=True)
    rows: list[dict[str, object]] = []
    print("start-up and idle memory", flush=True)
    with ProcessCluster(folder / "sends") as cluster:
        cluster.add_name_server()
        started = time.perf_counter()
        master = cluster.add_broker("broker-a", settings=BENCH_STORE)
        rows.append(row("broker_start_time", time.perf_counter() - started, "s"))
        cluster.add_broker("broker-a", broker_id=1, settings=BENCH_STORE)
        rows.append(row("broker_idle_memory", psutil.Process(master.pid).memory_info().rss / 2**20, "MiB"))
        wait_until(lambda: has_slave_in_sync(master), limit_s=30, what="the slave is in sync")
        print("synchronous sends, 1 KiB, one slave", flush=True)
        rows += asyncio.run(bench_sends(cluster, seconds=arguments.seconds, rounds=arguments.rounds))
    print("HA catch-up of a fresh slave", flush=True)
    with ProcessCluster(folder / "catch-up") as cluster:
        cluster.add_name_server()
        rows += bench_catch_up(cluster, total_bytes=arguments.catch_up_mib << 20)
    shutil.rmtree(folder, ignore_errors=True)
    (ROOT / "build" / "bench.json").write_text(json.dumps(rows, indent=2) + "\n")
    for entry in rows:
        print(f"  {entry['name']:<28} {entry['value']:>14} {entry['unit']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
