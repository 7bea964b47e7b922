"""Private memory of master and slave together while sends are in flight; page cache is not counted."""

from __future__ import annotations

from typing import Final

from measurements.rounds import Rounds
from measurements.side_by_side import CLUSTER, LOCAL, OURS
from report import Row

# Sampled while this case runs: the most connections' worth of buffers and waiting sends of all cases.
CASE: Final = "sync_send_256"
MIB: Final = float(1 << 20)


def rows(rounds: Rounds) -> list[Row]:
    """Against RocketMQ's master and slave with the proxy apart, which is not counted: its smallest footing."""
    mib = {label: rounds.median(CASE, label, lambda w: w.brokers_bytes / MIB) for label in (OURS, LOCAL, CLUSTER)}
    return [
        Row.at_most("broker_memory", mib[OURS] / mib[CLUSTER], 0.1),
        *(Row.absolute(f"broker_memory_{label}", value, "MiB") for label, value in mib.items()),
    ]
