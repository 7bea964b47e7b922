"""HA catch-up: how fast a fresh slave copies its master's log and builds ConsumeQueues and index from it.

    make bench-catchup                                   # about a minute
    python benchmarks/ha_catchup.py --gib 2 --rounds 3

A store of 1 KiB messages (keys and a tag each, 8 queues) is made, a master is started on it, and then, round by round,
a fresh slave. Time counts from the slave's connection; both are processes with their default settings. The ceiling is
iperf3 over the same loopback in the same run, or a plain socket copy where iperf3 is missing. Afterwards the slave is
killed and started again: recovery. Results are in build/bench-catchup.json; medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from processes import memory_in_use

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.cluster_processes import ProcessCluster, ServiceProcess
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.core.message.properties import encode_properties, tags_code
from tandemmq.core.message.record import Host, OutgoingMessage
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.service.event_loop import SystemClock

BODY_BYTES: Final = 1024
QUEUES: Final = 8
BATCH: Final = 32
LIMIT_S: Final = 300.0
LOOPBACK_SECONDS: Final = 3
TARGET_OF_LOOPBACK: Final = 0.5
# What tests make small is as large here as a broker's defaults.
DEFAULT_SIZES: Final = {
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
}


@dataclass(frozen=True, slots=True)
class Round:
    """One catch-up. Seconds count from the slave's connection to its master."""

    seconds: float
    slave_cpu_s: float
    master_cpu_s: float
    recovery_s: float
    recovered_bytes: int
    resident_mib: float


def fill(folder: Path, total_bytes: int) -> int:
    """Makes a store that holds `total_bytes` of log; returns how many messages that are."""
    host = Host.parse("127.0.0.1", 10_911)
    store = MessageStore(PosixDisk(folder), SystemClock(), StoreOptions(), store_host=host)
    store.load()
    body = os.urandom(BODY_BYTES)
    tags = [f"tag-{number}" for number in range(3)]
    count = 0
    while store.end_offset < total_bytes:
        batch = []
        for number in range(count, count + BATCH):
            keys = (f"7F000001{os.getpid():08X}{number:016X}", f"order-{number:010d}")
            tag = tags[number % len(tags)]
            pairs = [
                ("UNIQ_KEY", keys[0]),
                ("KEYS", keys[1]),
                ("TAGS", tag),
                ("WAIT", "true"),
                ("TRACE_ON", "true"),
                ("MSG_REGION", "DefaultRegion"),
                ("CLUSTER", "DefaultCluster"),
            ]
            batch.append(
                OutgoingMessage(
                    topic="bench",
                    queue_id=number % QUEUES,
                    body=body,
                    properties=encode_properties(pairs),
                    tags_code=tags_code(tag),
                    index_keys=keys,
                    tag=tag,
                    born_timestamp_ms=time.time_ns() // 1_000_000,
                    born_host=host,
                )
            )
        assert store.put_batch(batch)[-1].status is PutStatus.PUT_OK
        count += BATCH
    store.close()
    return count


def cpu_seconds(process: ServiceProcess) -> float:
    """User and system CPU so far."""
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def resident_kib(process: ServiceProcess) -> int:
    """Memory of a process, page cache aside."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0


def caught_up_after_s(slave: ServiceProcess) -> float:
    """Waits until the slave says that its ConsumeQueues and index are built; seconds since its connection.

    By its log: asking it over gRPC a hundred times a second costs it a tenth of its time.
    """
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for event in slave.events():
            if event.get("event") == "caught_up_with_master":
                return int(event["duration_ms"]) / 1000
        time.sleep(0.02)
    raise SystemExit(f"ha_catchup: not within {LIMIT_S:g} s\n{slave.log_text()}")


def catch_up(cluster: ProcessCluster, master: ServiceProcess, end_offset: int) -> Round:
    """A fresh slave joins, is measured, killed, and recovers."""
    master_cpu = cpu_seconds(master)
    with memory_in_use(end_offset * 5 // 4):
        slave = cluster.add_broker("broker-a", broker_id=1, settings=DEFAULT_SIZES)
    idle_cpu = cpu_seconds(slave)
    seconds = caught_up_after_s(slave)
    cpu = cpu_seconds(slave) - idle_cpu
    master_cpu = cpu_seconds(master) - master_cpu
    anonymous_kib = resident_kib(slave)
    slave.kill()
    slave.start()
    [recovery] = [event for event in slave.events() if event.get("event") == "store_recovered"]
    slave.kill()
    shutil.rmtree(cluster.store_folder("broker-a-1"))
    return Round(
        seconds=seconds,
        slave_cpu_s=cpu,
        master_cpu_s=master_cpu,
        recovery_s=int(recovery["duration_ms"]) / 1000,
        recovered_bytes=int(recovery["redispatched_records"]) * (end_offset // max(1, MESSAGES[0])),
        resident_mib=anonymous_kib / 1024,
    )


MESSAGES: Final = [0]
"""How many the log holds."""


def iperf_rate() -> float | None:
    """MB/s of iperf3 over loopback; None without iperf3."""
    if shutil.which("iperf3") is None:
        return None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with subprocess.Popen(["iperf3", "-s", "-1", "-p", port], stdout=subprocess.DEVNULL) as server:
        time.sleep(0.3)
        command = ["iperf3", "-c", "127.0.0.1", "-p", port, "-t", str(LOOPBACK_SECONDS), "-J"]
        answer = subprocess.run(command, capture_output=True, check=True)
        server.wait(10)
    return float(json.loads(answer.stdout)["end"]["sum_received"]["bits_per_second"]) / 8e6


def socket_rate() -> float:
    """MB/s of a plain socket copy between two threads, which let go of the interpreter while they copy."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop_at = time.monotonic() + LOOPBACK_SECONDS

        def send() -> None:
            with socket.create_connection(listener.getsockname()) as sender:
                block = bytes(1 << 20)
                while time.monotonic() < stop_at:
                    sender.sendall(block)

        thread = threading.Thread(target=send)
        thread.start()
        receiver, _ = listener.accept()
        total, started = 0, time.monotonic()
        buffer = bytearray(1 << 20)
        with receiver:
            while count := receiver.recv_into(buffer):
                total += count
        thread.join()
        return total / 1e6 / (time.monotonic() - started)


def rows(rounds: list[Round], loopback: list[float], end_offset: int) -> Iterator[dict[str, object]]:
    """The lines of build/bench-catchup.json."""

    def row(name: str, value: float, unit: str, target: float | None = None, holds: bool = True) -> dict[str, object]:
        return {"name": name, "value": round(value, 3), "unit": unit, "target": target, "holds": holds}

    gib = end_offset / 2**30
    rate = statistics.median(end_offset / 1e6 / done.seconds for done in rounds)
    ceiling = statistics.median(loopback)
    yield row("ha_catchup_bytes", end_offset, "bytes")
    yield row("ha_catchup_rate", rate, "MB/s")
    yield row("loopback_rate", ceiling, "MB/s")
    yield row(
        "ha_catchup_vs_loopback", rate / ceiling, "ratio", TARGET_OF_LOOPBACK, rate / ceiling >= TARGET_OF_LOOPBACK
    )
    yield row("ha_catchup_slave_cpu", statistics.median(r.slave_cpu_s for r in rounds) / gib, "s/GiB")
    yield row("ha_catchup_master_cpu", statistics.median(r.master_cpu_s for r in rounds) / gib, "s/GiB")
    yield row("ha_catchup_slave_memory", statistics.median(r.resident_mib for r in rounds), "MiB")
    yield row("recovery_time", statistics.median(r.recovery_s for r in rounds), "s")
    yield row("recovery_bytes", statistics.median(r.recovered_bytes for r in rounds), "bytes")


def main() -> int:
    """Measures, prints and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.5, help="size of the log")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    folder = ROOT / "build" / "bench-catchup"
    shutil.rmtree(folder, ignore_errors=True)
    done: list[Round] = []
    loopback: list[float] = []
    with ProcessCluster(folder) as cluster:
        cluster.add_name_server()
        MESSAGES[0] = fill(cluster.store_folder("broker-a-0"), int(arguments.gib * 2**30))
        master = cluster.add_broker("broker-a", settings=DEFAULT_SIZES | {"brokerRole": "ASYNC_MASTER"})
        [recovered] = [event for event in master.events() if event.get("event") == "store_recovered"]
        end_offset = int(recovered["end_offset"])
        for _ in range(arguments.rounds):
            loopback.append(iperf_rate() or socket_rate())
            done.append(catch_up(cluster, master, end_offset))
            print(f"  loopback {loopback[-1]:.0f} MB/s, {done[-1]}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    results = list(rows(done, loopback, end_offset))
    (ROOT / "build" / "bench-catchup.json").write_text(json.dumps(results, indent=2) + "\n")
    for entry in results:
        print(f"  {entry['name']:<28} {entry['value']:>14} {entry['unit']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
