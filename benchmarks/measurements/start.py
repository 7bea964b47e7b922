"""Start time: from the start of a stopped master to the first send it accepts. Its store is that of an orderly stop,
and the NameServer runs meanwhile, as it does when a broker is rolled.

Twice: an ASYNC_MASTER alone, which is the process's own start, and a SYNC_MASTER whose slave runs on and has to find it
again. The row that is judged is the first: in the second RocketMQ's slave tries again only every 5 s.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from measurements.first_send import wait_first_send
from measurements.rounds import alone
from measurements.side_by_side import LOCAL, OURS
from peer.installation import Installation
from peer.rocketmq import ProxyMode, RocketPair
from plan import Plan
from report import Row, Samples
from system_under_test import Member, SystemUnderTest, TandemPair

TOPIC: Final = "bench-start"
LIMIT_S: Final = 180.0


def _restart(system: SystemUnderTest) -> float:
    """Seconds from the start of the master to its first accepted send."""
    system.stop(Member.MASTER)
    began = time.perf_counter()
    system.launch(Member.MASTER)
    return wait_first_send(system.endpoint, TOPIC, limit_s=LIMIT_S) - began


def _restarts(
    systems: Sequence[SystemUnderTest], *, with_slave: bool, title: str, rounds: int, say: Callable[[str], None]
) -> dict[str, Samples]:
    """Both systems in turn; the one not measured is paused."""
    seconds: dict[str, list[float]] = {system.label: [] for system in systems}
    try:
        for system in systems:
            say(f"{title} · {system.label}: first start, to have a store to start over")
            system.start(with_slave=with_slave)
            system.create_topic(TOPIC)
            wait_first_send(system.endpoint, TOPIC, limit_s=LIMIT_S)
        for number in range(1, rounds + 1):
            for system in systems:
                with alone(system, systems):
                    seconds[system.label].append(_restart(system))
                say(f"round {number}/{rounds} · {title} · {system.label}: {seconds[system.label][-1]:.2f} s")
    finally:
        for system in systems:
            system.stop_all()
    return {label: Samples(tuple(values)) for label, values in seconds.items()}


def _rows(name: str, samples: dict[str, Samples]) -> list[Row]:
    rows = []
    for label, values in samples.items():
        rows.append(Row.absolute(f"{name}_{label}", values.median, "s"))
        rows.append(Row.absolute(f"{name}_{label}_spread", values.spread_percent, "%"))
    return rows


def measure(folder: Path, installation: Installation, plan: Plan, say: Callable[[str], None]) -> list[Row]:
    """RocketMQ with the proxy inside the broker: fewest processes to start, and the same API to ask."""
    found = {}
    for name, synchronous in (("start_time", False), ("start_time_with_slave", True)):
        shutil.rmtree(folder, ignore_errors=True)
        systems: tuple[SystemUnderTest, ...] = (
            TandemPair(folder / OURS, synchronous=synchronous),
            RocketPair(folder / LOCAL, installation, ProxyMode.LOCAL, synchronous=synchronous),
        )
        title = "start time, SYNC_MASTER and running slave" if synchronous else "start time, ASYNC_MASTER alone"
        found[name] = _restarts(systems, with_slave=synchronous, title=title, rounds=plan.rounds, say=say)
    shutil.rmtree(folder, ignore_errors=True)
    judged = found["start_time"]
    return [
        Row.at_most("start_time", judged[OURS].median / judged[LOCAL].median, 0.5),
        *(row for name, samples in found.items() for row in _rows(name, samples)),
    ]
