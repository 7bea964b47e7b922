"""What a run reads: pure arithmetic over what is known of a group and what earlier runs remembered.

A quick run reads three things: what is new since every replica was last verified (so that the cost follows new bytes),
what differed last time (a finding does not go away by being old), and a share of what was verified before (so that bit
rot below the watermark is found within the scrub window). A deep run reads all that the replicas have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from tandemmq.core.audit.equality import SeenReplica
from tandemmq.core.audit.replica_store import extents_of
from tandemmq.core.audit.run_summary import Tier
from tandemmq.core.replication.log_history import LogRange

_DIFFERING_RANGES_MAX: Final = 1_000
"""Remembered of one group; beyond it neighbours are joined, and the next run reads what lies between as well."""
_BY_BROKER_ID: Final = ("replica_watermarks", "seen_at_s", "seen")


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """What earlier runs left behind for a group."""

    algorithm: str
    extent_bytes: int
    replica_watermarks: dict[int, int] = field(default_factory=dict)
    """By broker id: everything below was verified with all other replicas of the time."""
    seen_at_s: dict[int, float] = field(default_factory=dict)
    """By broker id: when the replica was last there."""
    seen: dict[int, SeenReplica] = field(default_factory=dict)
    """By broker id: what it held then. What is missing later stays a finding until it is there again."""
    min_offset: int = 0
    scrub_cursor: int = 0
    scrubbed_at_s: float | None = None
    """When old bytes were last read again, in seconds since 1970."""
    differing: tuple[LogRange, ...] = ()
    extent_files: tuple[tuple[str, int, int], ...] = ()
    """Name, first and end offset of each table of digests, oldest first."""
    run_id: str = ""
    verified_at: str = ""
    deep_findings: int = 0
    """Of the last deep run, of kinds that a quick one does not look for."""
    deep_run_id: str = ""

    def watermark(self, broker_ids: Iterable[int]) -> int:
        """Everything below it was verified on all of these replicas."""
        return min((self.replica_watermarks.get(broker_id, 0) for broker_id in broker_ids), default=0)

    def joined(self, start: GroupMemory, other: GroupMemory) -> GroupMemory:
        """This run's memory and that of another one which ended meanwhile; both began with `start`.

        What either verified is verified; what either found to differ, or did not find equal, still differs.
        """
        watermarks = dict(other.replica_watermarks)
        for broker_id, offset in self.replica_watermarks.items():
            watermarks[broker_id] = max(offset, watermarks.get(broker_id, 0))
        news = [part for part in other.differing if part not in start.differing]
        is_deep_newer = other.deep_run_id > self.deep_run_id
        # The one that began later has seen more, whichever ends first.
        later, earlier = (self, other) if self.run_id > other.run_id else (other, self)
        seen = earlier.seen | later.seen
        # Only deep runs look at what was kept aside.
        kept = {broker_id: own.kept for broker_id, own in (other if is_deep_newer else self).seen.items()}
        return replace(
            self,
            replica_watermarks=watermarks,
            seen_at_s=other.seen_at_s | self.seen_at_s,
            seen={broker_id: replace(own, kept=kept.get(broker_id, own.kept)) for broker_id, own in seen.items()},
            differing=differing_to_remember([*self.differing, *news]),
            extent_files=tuple(dict.fromkeys([*other.extent_files, *self.extent_files])),
            deep_findings=other.deep_findings if is_deep_newer else self.deep_findings,
            deep_run_id=max(other.deep_run_id, self.deep_run_id),
        )

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        values["seen"] = {broker_id: seen.to_json() for broker_id, seen in self.seen.items()}
        return values | {name: {str(key): value for key, value in values[name].items()} for name in _BY_BROKER_ID}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """What `to_json` gave, of this version or another one."""
        known = {name: values[name] for name in cls.__slots__ if name in values}
        for name in _BY_BROKER_ID:
            known[name] = {int(key): value for key, value in known.get(name, {}).items()}
        known["seen"] = {broker_id: SeenReplica.from_json(seen) for broker_id, seen in known["seen"].items()}
        known["differing"] = tuple(LogRange(*value) for value in known.get("differing", ()))
        known["extent_files"] = tuple((name, start, end) for name, start, end in known.get("extent_files", ()))
        return cls(**known)


@dataclass(frozen=True, slots=True)
class ScrubOptions:
    """How fast old bytes are read again."""

    window_s: float
    """All of them within this time; 0: never."""
    budget_bytes: int
    """A run reads at most so many."""


@dataclass(frozen=True, slots=True)
class RangePlan:
    """What a run reads of a group's common range. The ranges are ascending and do not overlap."""

    new: tuple[LogRange, ...]
    again: tuple[LogRange, ...]
    scrub_cursor: int
    """Where the next run goes on, if this one gets through."""
    scrubbed_at_s: float

    @property
    def ranges(self) -> tuple[LogRange, ...]:
        """All that is read, ascending."""
        return merged((*self.new, *self.again))


def plan_ranges(
    tier: Tier, common: LogRange, memory: GroupMemory, watermark: int, *, scrub: ScrubOptions, now_s: float
) -> RangePlan:
    """What to read of `common`, of which everything below `watermark` was verified before."""
    extent_bytes = memory.extent_bytes
    watermark = max(common.start_offset, min(watermark, common.end_offset))
    if watermark < common.end_offset:
        # The last extent of the former run was cut short by the log's end then: read it whole.
        watermark = max(common.start_offset, watermark - watermark % extent_bytes)
    new = (LogRange(watermark, common.end_offset),) if watermark < common.end_offset else ()
    old = LogRange(common.start_offset, watermark)
    if tier is Tier.DEEP:
        again = (old,) if old.start_offset < old.end_offset else ()
        return RangePlan(new, again, scrub_cursor=common.start_offset, scrubbed_at_s=now_s)
    differing = [_within(_widened(part, extent_bytes), old) for part in memory.differing]
    share, cursor = _scrub_share(old, memory, scrub, now_s)
    # Of a clock that was ahead: nothing would have its turn until it is that late again.
    scrubbed_at_s = now_s if share or memory.scrubbed_at_s is None else min(now_s, memory.scrubbed_at_s)
    parts = merged([part for part in (*differing, *share) if part.start_offset < part.end_offset])
    return RangePlan(new, parts, scrub_cursor=cursor, scrubbed_at_s=scrubbed_at_s)


def _scrub_share(old: LogRange, memory: GroupMemory, scrub: ScrubOptions, now_s: float) -> tuple[list[LogRange], int]:
    """The part of the old bytes whose turn it is, in at most two pieces, and where it ends."""
    extent_bytes = memory.extent_bytes
    cursor = memory.scrub_cursor if old.start_offset <= memory.scrub_cursor < old.end_offset else old.start_offset
    old_bytes = old.end_offset - old.start_offset
    if not scrub.window_s or memory.scrubbed_at_s is None or not old_bytes:
        return [], cursor
    elapsed_s = max(0.0, now_s - memory.scrubbed_at_s)
    due = min(int(old_bytes * min(1.0, elapsed_s / scrub.window_s)), scrub.budget_bytes)
    if due < min(extent_bytes, old_bytes):
        return [], cursor
    end = cursor + due
    # Up to the end of an extent: half of one has no digest to compare with.
    end = min(-(-end // extent_bytes) * extent_bytes, cursor + old_bytes)
    if end < old.end_offset:
        return [LogRange(cursor, end)], end
    wrapped = old.start_offset + (end - old.end_offset)
    wrapped = min(-(-wrapped // extent_bytes) * extent_bytes, cursor) if wrapped > old.start_offset else wrapped
    return [LogRange(cursor, old.end_offset), LogRange(old.start_offset, wrapped)], wrapped


def merged(ranges: Iterable[LogRange], *, gap_bytes: int = 0) -> tuple[LogRange, ...]:
    """The same bytes in ascending ranges that neither overlap nor touch, nor lie within `gap_bytes` of each other."""
    found: list[LogRange] = []
    for part in sorted(ranges):
        if found and part.start_offset <= found[-1].end_offset + gap_bytes:
            found[-1] = LogRange(found[-1].start_offset, max(found[-1].end_offset, part.end_offset))
        else:
            found.append(part)
    return tuple(found)


def differing_to_remember(ranges: Iterable[LogRange]) -> tuple[LogRange, ...]:
    """Merged, and few enough to be kept."""
    found = merged(ranges)
    gap_bytes = 4 << 20
    while len(found) > _DIFFERING_RANGES_MAX:
        found = merged(found, gap_bytes=gap_bytes)
        gap_bytes *= 2
    return found


def chunks(ranges: Iterable[LogRange], chunk_bytes: int) -> list[LogRange]:
    """Ranges in pieces for one task each. Cut at absolute multiples, so that the next run cuts at the same places."""
    return [piece for log_range in ranges for piece in extents_of(log_range, chunk_bytes)]


def in_waves(pieces: Sequence[LogRange], pieces_at_once: int) -> Iterator[tuple[LogRange, ...]]:
    """So many at a time: what a wave found out is remembered before the next one starts."""
    for first in range(0, len(pieces), pieces_at_once):
        yield tuple(pieces[first : first + pieces_at_once])


def total_bytes(ranges: Iterable[LogRange]) -> int:
    return sum(log_range.end_offset - log_range.start_offset for log_range in ranges)


def _widened(part: LogRange, extent_bytes: int) -> LogRange:
    start = part.start_offset - part.start_offset % extent_bytes
    return LogRange(start, -(-part.end_offset // extent_bytes) * extent_bytes)


def _within(part: LogRange, whole: LogRange) -> LogRange:
    return LogRange(max(part.start_offset, whole.start_offset), min(part.end_offset, whole.end_offset))
