"""Messages of other kinds: in order, delayed and transactional, against RocketMQ's gRPC ways."""

from __future__ import annotations

from typing import Final

from measurements.rounds import Case, Rounds
from measurements.side_by_side import CLUSTER, KINDS, LOCAL, OURS, SideBySide
from report import Row

INFLIGHT: Final = 32
DRAINED: Final = ("fifo", "delay")
_TITLES: Final = {
    "fifo": "FIFO sends of 64 message groups",
    "delay": "DELAY sends",
    "transaction": "transactions, each a half message and its commit",
}
JUDGED: Final = (*[f"{kind}_send_cpu" for kind in KINDS], *[f"{kind}_drain_cpu" for kind in DRAINED])
"""Rows that are there even when the measurement fails."""


def cases(side: SideBySide) -> list[Case]:
    """32 sends in flight of each kind, and what a group takes of FIFO and DELAY messages."""
    sends = [
        Case(f"{kind}_send", f"{_TITLES[kind]}, {INFLIGHT} in flight, Go generator", side.kind_sends(kind, INFLIGHT))
        for kind in KINDS
    ]
    drains = [
        Case(f"{kind}_drain", f"{kind.upper()} messages received and acknowledged, 8 receivers", side.kind_drains(kind))
        for kind in DRAINED
    ]
    return [*sends, *drains]


def rows(rounds: Rounds) -> list[Row]:
    """CPU and rate against the better gRPC mode, then every contender's own figures."""
    found = []
    for case in (*[f"{kind}_send" for kind in KINDS], *[f"{kind}_drain" for kind in DRAINED]):
        cpu = {label: rounds.median(case, label, lambda w: w.server_cpu_us) for label in rounds.contenders(case)}
        rate = {label: rounds.median(case, label, lambda w: w.rate) for label in rounds.contenders(case)}
        # On a machine without a CPU to spare one of the two may refuse its load; without both there is no comparison.
        theirs = [label for label in (LOCAL, CLUSTER) if label in cpu]
        if OURS not in cpu or not theirs:
            found.append(Row.missing(f"{case}_cpu"))
            continue
        found += [
            Row.at_most(f"{case}_cpu", cpu[OURS] / min(cpu[label] for label in theirs), 0.5),
            Row.absolute(f"{case}_rate", rate[OURS] / max(rate[label] for label in theirs), "ratio"),
            *rounds.absolute_rows(case, "", case),
        ]
    return found
