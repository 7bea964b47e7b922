"""The picture: a bar for each replica of a group, cut into parts by what a run knows of them.

Every bar of a group has the same axis, from the first byte any replica holds to the last, so that a missing tail looks
like one. A part that is wrong is told by form as well as by colour: it is higher than the others and carries a mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final

from mqcore.audit.findings import Finding, Severity
from mqcore.audit.run_summary import GroupSummary, Outcome, ReplicaSummary
from mqcore.replication.log_history import LogRange

__all__ = ["Bar", "Mark", "Part", "PartState", "replica_bars"]


class PartState(StrEnum):
    """What is known of a part of one replica."""

    OUTSIDE = "outside"
    """Held, but not by every replica: nothing to compare with."""
    NEVER = "never"
    """Not verified yet."""
    EARLIER = "earlier"
    """Verified by an earlier run."""
    EQUAL = "equal"
    """Verified by this one."""
    WRONG = "wrong"
    UNDECIDED = "undecided"
    """The replicas differ here and nothing tells who is right."""


_BY_LETTER: Final = {
    ".": PartState.NEVER,
    "o": PartState.EARLIER,
    "=": PartState.EQUAL,
    "x": PartState.UNDECIDED,
}
_ON_THE_LOG: Final = frozenset({Severity.LOSS, Severity.DAMAGE})
_MARKED: Final = frozenset({PartState.WRONG, PartState.UNDECIDED})
# Marks nearer to each other than this share of the bar would cover one another.
_MARK_DISTANCE: Final = 0.012


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a bar; `start` and `width` are shares of the bar, 0 to 1."""

    start: float
    width: float
    state: PartState


@dataclass(frozen=True, slots=True)
class Mark:
    """Points at a place of a bar: something is wrong here, however narrow it is."""

    position: float
    state: PartState


@dataclass(frozen=True, slots=True)
class Bar:
    """One replica. No parts: it could not be read."""

    replica: ReplicaSummary
    parts: tuple[Part, ...]
    marks: tuple[Mark, ...]


_Located = Sequence[tuple[Finding, LogRange]]


def replica_bars(group: GroupSummary, findings: Sequence[Finding]) -> tuple[LogRange, list[Bar]]:
    """The axis in CommitLog bytes, and a bar for each replica. `findings` are the group's own."""
    located = [
        (finding, LogRange(finding.start_offset, finding.end_offset or finding.start_offset + 1))
        for finding in findings
        if finding.start_offset is not None
    ]
    on_the_log = [each for each in located if each[0].severity in _ON_THE_LOG]
    axis = _axis(group, [log_range for _, log_range in on_the_log])
    common = _of_the_map(group, located, all_listed=len(findings) >= group.findings)
    return axis, [_bar(replica, group, common, on_the_log, axis) for replica in group.replicas]


def _axis(group: GroupSummary, located: Iterable[LogRange]) -> LogRange:
    read = [replica for replica in group.replicas if _was_read(replica)]
    ranges = [LogRange(replica.min_offset, replica.end_offset) for replica in read]
    ranges += [LogRange(group.start_offset, group.end_offset), *located]
    ranges = [each for each in ranges if each.end_offset > each.start_offset]
    if not ranges:
        return LogRange(0, 0)
    return LogRange(min(each.start_offset for each in ranges), max(each.end_offset for each in ranges))


def _was_read(replica: ReplicaSummary) -> bool:
    return replica.outcome is not Outcome.INCOMPLETE or replica.end_offset > 0


def _bar(
    replica: ReplicaSummary,
    group: GroupSummary,
    common: Sequence[tuple[LogRange, PartState]],
    on_the_log: _Located,
    axis: LogRange,
) -> Bar:
    if not _was_read(replica) or axis.end_offset == axis.start_offset:
        return Bar(replica, (), ())
    own = [(_state_of(finding, replica), log_range) for finding, log_range in on_the_log]
    accused = [(state, log_range) for state, log_range in own if state is not None]
    parts = [_part(log_range, state, axis) for log_range, state in _merged([*_held(replica, group), *common])]
    # Over the others, as narrow as they are.
    parts += [_part(log_range, state, axis) for state, log_range in accused]
    marks = [Mark(part.start + part.width / 2, part.state) for part in parts if part.state in _MARKED]
    return Bar(replica, tuple(parts), tuple(_thinned(marks)))


def _state_of(finding: Finding, replica: ReplicaSummary) -> PartState | None:
    """What a finding makes of its range on this replica; None if it accuses another one."""
    if finding.broker_id is None:
        # Nobody is named: either nothing tells who is right, or none is.
        return PartState.UNDECIDED if finding.source_broker_id is None else None
    return PartState.WRONG if finding.broker_id == replica.broker_id else None


def _held(replica: ReplicaSummary, group: GroupSummary) -> list[tuple[LogRange, PartState]]:
    """What this replica holds outside the common range."""
    start = min(max(group.start_offset, replica.min_offset), replica.end_offset)
    end = max(min(group.end_offset, replica.end_offset), start)
    return [
        (LogRange(replica.min_offset, start), PartState.OUTSIDE),
        (LogRange(end, replica.end_offset), PartState.OUTSIDE),
    ]


def _of_the_map(group: GroupSummary, located: _Located, *, all_listed: bool) -> list[tuple[LogRange, PartState]]:
    """The extent map, alike for all replicas.

    An extent that differs was looked at down to the message: what no finding covers is equal in it. Only where its
    findings are not listed is it painted as a whole.
    """
    count = len(group.extent_map)
    length = group.end_offset - group.start_offset
    if not count:
        watermark = min(max(group.watermark, group.start_offset), group.end_offset)
        return [
            (LogRange(group.start_offset, watermark), PartState.EARLIER),
            (LogRange(watermark, group.end_offset), PartState.NEVER),
        ]
    found = []
    first = 0
    for letter, same in groupby(group.extent_map):
        last = first + len(list(same))
        part = LogRange(group.start_offset + length * first // count, group.start_offset + length * last // count)
        state = _BY_LETTER.get(letter, PartState.NEVER)
        if state is PartState.UNDECIDED and all_listed and _is_explained(part, located):
            state = PartState.EQUAL
        found.append((part, state))
        first = last
    return found


def _is_explained(part: LogRange, located: _Located) -> bool:
    return any(
        log_range.start_offset < part.end_offset and part.start_offset < log_range.end_offset
        for _, log_range in located
    )


def _merged(pieces: list[tuple[LogRange, PartState]]) -> list[tuple[LogRange, PartState]]:
    """Neighbours of one state as one piece: a map of 256 letters is mostly one of them."""
    ordered = sorted(
        (piece for piece in pieces if piece[0].end_offset > piece[0].start_offset), key=lambda each: each[0]
    )
    merged = []
    for state, same in groupby(ordered, key=lambda piece: piece[1]):
        ranges = [log_range for log_range, _ in same]
        merged.append((LogRange(ranges[0].start_offset, ranges[-1].end_offset), state))
    return merged


def _part(log_range: LogRange, state: PartState, axis: LogRange) -> Part:
    length = axis.end_offset - axis.start_offset
    start = (log_range.start_offset - axis.start_offset) / length
    return Part(start, (log_range.end_offset - log_range.start_offset) / length, state)


def _thinned(marks: Iterable[Mark]) -> list[Mark]:
    """Wrong before undecided, and no two that would lie on each other."""
    kept: list[Mark] = []
    for mark in sorted(marks, key=lambda each: (each.state is PartState.UNDECIDED, each.position)):
        if all(abs(mark.position - other.position) >= _MARK_DISTANCE for other in kept):
            kept.append(mark)
    return sorted(kept, key=lambda each: each.position)
