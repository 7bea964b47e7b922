"""Receive and acknowledge: a new consumer group drains a topic that was filled before."""

from __future__ import annotations

from typing import Final

from measurements.rounds import Case, Rounds
from measurements.side_by_side import CLUSTER, LOCAL, OURS, SideBySide
from report import Row

CASE: Final = "drain"


def cases(side: SideBySide) -> list[Case]:
    """8 receivers, 32 messages a receive."""
    return [Case(CASE, "receive and acknowledge, 8 receivers of 32 messages, Go generator", side.drains())]


def rows(rounds: Rounds) -> list[Row]:
    """Against the better gRPC mode."""
    rate = {label: rounds.median(CASE, label, lambda w: w.rate) for label in rounds.contenders(CASE)}
    cpu = {label: rounds.median(CASE, label, lambda w: w.server_cpu_us) for label in rounds.contenders(CASE)}
    return [
        Row.at_least("drain_rate", rate[OURS] / max(rate[LOCAL], rate[CLUSTER]), 4.0),
        Row.at_most("drain_cpu", cpu[OURS] / min(cpu[LOCAL], cpu[CLUSTER]), 0.2),
        *rounds.absolute_rows("drain", "", CASE),
    ]
