"""HA catch-up: an empty slave joins a master that holds a gigabyte of 1 KiB messages, and recovery of that master.

Clock: from the slave's connection to the master's HA port, as the kernel shows it, to the moment its ConsumeQueues are
built up to the end of the master's log. Both systems with their default settings. Loopback is measured beside it, in
the same rounds. Both slaves write into memory that this machine has used before (`processes.memory_in_use`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from load_generators import BODY_BYTES, Generators
from measurements.fill import fill
from measurements.first_send import wait_first_send
from measurements.loopback import Loopback
from measurements.rounds import alone
from measurements.side_by_side import LOCAL, OURS
from peer.installation import Installation
from peer.rocketmq import ProxyMode, RocketPair
from plan import Plan
from processes import cpu_seconds, has_connection, memory_in_use, wait_for
from report import Row, Samples
from system_under_test import Member, SystemUnderTest, TandemPair

TOPIC: Final = "bench-ha"
LIMIT_S: Final = 300.0
# Asking costs the slave time it would spend on the log; this is under 1 % of it.
POLL_S: Final = 0.02
GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class CatchUp:
    """One fresh slave."""

    megabytes_per_s: float
    master_cpu_s: float
    # From the start of the process on.
    slave_cpu_s: float


def _catch_up(system: SystemUnderTest, end_offset: int) -> CatchUp:
    system.stop(Member.SLAVE)
    system.wipe(Member.SLAVE)
    master = system.pids()[Member.MASTER]
    cpu_before = cpu_seconds(master)
    with memory_in_use(end_offset * 5 // 4):
        system.launch(Member.SLAVE)
        wait_for(
            lambda: has_connection(system.ha_port),
            limit_s=LIMIT_S,
            pause_s=0.002,
            what=f"{system.label}: a slave connects",
        )
        began = time.perf_counter()

    def complete() -> bool:
        progress = system.progress(Member.SLAVE)
        return progress is not None and min(progress.end_offset, progress.dispatched_offset) >= end_offset

    wait_for(complete, limit_s=LIMIT_S, pause_s=POLL_S, what=f"{system.label}: the slave holds the whole log")
    seconds = time.perf_counter() - began
    slave_cpu = cpu_seconds(system.pids()[Member.SLAVE])
    result = CatchUp(end_offset / 1e6 / seconds, cpu_seconds(master) - cpu_before, slave_cpu)
    system.stop(Member.SLAVE)
    return result


def _recover(system: SystemUnderTest, end_offset: int) -> float:
    """Seconds per GB of log from the start after kill -9 to the first accepted send."""
    system.stop(Member.MASTER, kill=True)
    began = time.perf_counter()
    system.launch(Member.MASTER)
    return (wait_first_send(system.endpoint, TOPIC, limit_s=LIMIT_S) - began) / (end_offset / GB)


def measure(
    folder: Path, installation: Installation, generators: Generators, plan: Plan, say: Callable[[str], None]
) -> list[Row]:
    """Fills both masters once; then in turn fresh slaves, loopback, and at last a kill of each master."""
    shutil.rmtree(folder, ignore_errors=True)
    systems: Sequence[SystemUnderTest] = (
        TandemPair(folder / OURS, synchronous=False),
        RocketPair(folder / LOCAL, installation, ProxyMode.LOCAL, synchronous=False),
    )
    loopback, carried = Loopback(), []
    found: dict[str, list[CatchUp]] = {system.label: [] for system in systems}
    recovered: dict[str, float] = {}
    ends: dict[str, int] = {}
    try:
        for system in systems:
            say(f"HA catch-up · filling the master of {system.label}")
            system.start(with_slave=False)
            system.create_topic(TOPIC)
            ends[system.label] = fill(generators, system, topic=TOPIC, until_bytes=plan.catch_up_bytes, size=BODY_BYTES)
        for number in range(1, plan.rounds + 1):
            prefix = f"round {number}/{plan.rounds}"
            for system in systems:
                with alone(system, systems):
                    one = _catch_up(system, ends[system.label])
                found[system.label].append(one)
                say(
                    f"{prefix} · HA catch-up · {system.label}: {one.megabytes_per_s:,.0f} MB/s, "
                    f"master {one.master_cpu_s:.1f} s, slave {one.slave_cpu_s:.1f} s of CPU"
                )
            for system in systems:
                system.pause()
            carried.append(loopback.megabytes_per_s(plan.loopback_s))
            for system in systems:
                system.resume()
            say(f"{prefix} · loopback by {loopback.tool}: {carried[-1]:,.0f} MB/s")
        for system in systems:
            with alone(system, systems):
                recovered[system.label] = _recover(system, ends[system.label])
            say(f"recovery after kill -9 · {system.label}: {recovered[system.label]:.2f} s per GB of log")
    finally:
        for system in systems:
            system.stop_all()
        shutil.rmtree(folder, ignore_errors=True)
    rate = {label: Samples(tuple(one.megabytes_per_s for one in many)) for label, many in found.items()}
    ceiling = Samples(tuple(carried))
    rows = [
        Row.at_least("ha_catchup_rate", rate[OURS].median / rate[LOCAL].median, 8.0),
        Row.at_least("ha_catchup_vs_loopback", rate[OURS].median / ceiling.median, 0.5),
        Row.absolute(f"loopback_rate_{loopback.tool.replace(' ', '_')}", ceiling.median, "MB/s"),
        Row.absolute("loopback_rate_spread", ceiling.spread_percent, "%"),
    ]
    for label, many in found.items():
        rows += [
            Row.absolute(f"ha_catchup_rate_{label}", rate[label].median, "MB/s"),
            Row.absolute(f"ha_catchup_rate_{label}_spread", rate[label].spread_percent, "%"),
            Row.absolute(f"ha_catchup_bytes_{label}", ends[label], "bytes"),
            Row.absolute(f"ha_catchup_master_cpu_{label}", Samples(tuple(o.master_cpu_s for o in many)).median, "s"),
            Row.absolute(f"ha_catchup_slave_cpu_{label}", Samples(tuple(o.slave_cpu_s for o in many)).median, "s"),
            Row.absolute(f"recovery_time_per_gb_{label}", recovered[label], "s/GB"),
        ]
    return rows
