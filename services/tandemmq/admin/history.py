"""The last day of a cluster, as figures: what the console plots, and from which it foretells.

Of the last hour every five seconds, of the hours before every two minutes: there a figure is the highest of its two
minutes, since what is looked for a night later is a peak.

Brokers tell counters and histograms since their start; here they become rates and quantiles. What is not known, while a
broker did not answer or over its restart, is NaN: a plot has a gap there. Where the wall clock is set back, what was
kept before moves back with it: times grow. One broker with one slave takes about 200 KB. Of topics and consumer groups
see `UsageHistory`.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tandemmq.admin.cluster_state import BrokerState, BrokerStatus, LatencyCounts, SlaveState

if TYPE_CHECKING:
    from tandemmq.admin.cluster_reader import ClusterReading


# Quantiles of latencies from what brokers count.


def between(earlier: LatencyCounts, later: LatencyCounts) -> LatencyCounts | None:
    """What was observed between two readings of one process; None if they are not of one."""
    if not later.counts or earlier.bounds_s != later.bounds_s or len(earlier.counts) != len(later.counts):
        return None
    counts = tuple(new - old for old, new in zip(earlier.counts, later.counts, strict=True))
    if any(count < 0 for count in counts):
        return None
    return LatencyCounts(later.bounds_s, counts, max(0.0, later.sum_s - earlier.sum_s))


def quantile_s(latency: LatencyCounts, share: float) -> float | None:
    """The latency that `share` (0 to 1) of all observations did not exceed, in seconds; None without observations.

    Spread evenly within a bucket, so exact to the bucket's width; what is above the last bound counts as that bound.
    """
    total = sum(latency.counts)
    if not total:
        return None
    wanted = share * total
    seen = 0
    for bucket, count in enumerate(latency.counts):
        if count and seen + count >= wanted:
            return _within(latency.bounds_s, bucket, (wanted - seen) / count)
        seen += count
    return latency.bounds_s[-1]


def _within(bounds_s: Sequence[float], bucket: int, part: float) -> float:
    if bucket >= len(bounds_s):
        return bounds_s[-1]
    lower = bounds_s[bucket - 1] if bucket else 0.0
    return lower + (bounds_s[bucket] - lower) * part


_INTERVAL_MS: Final = 5_000
_KEPT: Final = 720
# Of the time before that: 24 hours.
_COARSE_MS: Final = 120_000
_COARSE_KEPT: Final = 720
# A thousand brokers of one slave each; beyond that new ones are not kept.
_BROKERS_MAX: Final = 2_000
# Of one master; a slave that reconnects keeps its key.
_SLAVES_MAX: Final = 16
# How far back a slave's speed is looked at.
_SLOPE_MS: Final = 60_000
_SLOPE_MS_MIN: Final = 4_000
_RECENT: Final = _SLOPE_MS // _INTERVAL_MS + 1


class Figure(StrEnum):
    """What is kept of each broker. Rates are per second, latencies in seconds."""

    MESSAGES_IN = "messages in"
    MESSAGES_OUT = "messages out"
    BYTES_IN = "bytes in"
    # Growth of the CommitLog: of a slave, how fast it copies.
    LOG_GROWTH = "log growth"
    SEND_P50 = "send p50"
    SEND_P99 = "send p99"
    ACK_P50 = "ack p50"
    ACK_P99 = "ack p99"
    WAITING_SENDS = "waiting sends"
    MEMORY = "memory"
    DISK_USED = "disk used"
    CLIENTS = "clients"
    # Longest since the start, as told; a plot of it is a staircase.
    LONGEST_STALL = "longest stall"
    # Of a master, for each slave; see `ClusterHistory.lag`.
    LAG_BYTES = "lag bytes"
    LAG_SECONDS = "lag seconds"


_SUMMED: Final = (Figure.MESSAGES_IN, Figure.MESSAGES_OUT, Figure.BYTES_IN)


@dataclass(frozen=True, slots=True)
class Samples:
    """A figure over time, oldest first; NaN where it is not known."""

    # On the wall clock, in ms.
    times_ms: Sequence[float] = ()
    values: Sequence[float] = ()
    # The time before, coarser; it may overlap with this.
    older: Samples | None = None

    @property
    def newest(self) -> float | None:
        """The last value; None if it is not known."""
        return _known(self.values[-1]) if self.values else None

    def since(self, from_ms: float) -> Samples:
        if self.older is not None and self.older.times_ms and (not self.times_ms or from_ms < self.times_ms[0]):
            # In one width as far as it goes: a plot of a day has no use for seconds at its end.
            older = self.older.since(from_ms)
            rest = self._from(older.times_ms[-1] + 1) if older.times_ms else self._from(from_ms)
            return Samples((*older.times_ms, *rest.times_ms), (*older.values, *rest.values))
        return self._from(from_ms)

    def _from(self, from_ms: float) -> Samples:
        first = bisect_left(self.times_ms, from_ms)
        return Samples(self.times_ms[first:], self.values[first:])

    def is_known(self) -> bool:
        """True when there is any value."""
        return any(value == value for value in self.values) or (self.older is not None and self.older.is_known())


def slave_key(slave: SlaveState) -> str:
    """What a slave is called among its master's: its broker id, or where it comes from until it has proved one."""
    return str(slave.broker_id) if slave.broker_id >= 0 else slave.peer


@dataclass(frozen=True, slots=True)
class _Before:
    """What the next sample is compared with."""

    at_ms: int
    status: BrokerStatus


class _Columns:
    """Figures by name, each as long as `times_ms`; the oldest fall out."""

    def __init__(self, kept: int) -> None:
        self.times_ms = array("d")
        self.columns: dict[str, array[float]] = {}
        self._kept = kept

    def add(self, at_wall_ms: int, values: Mapping[str, float]) -> None:
        for name in values:
            if name not in self.columns:
                self.columns[name] = array("d", [math.nan] * len(self.times_ms))
        self.times_ms.append(at_wall_ms)
        for name, column in self.columns.items():
            column.append(values.get(name, math.nan))
        if len(self.times_ms) > self._kept:
            self.times_ms.pop(0)
            for column in self.columns.values():
                column.pop(0)
            for name in [name for name, column in self.columns.items() if all(value != value for value in column)]:
                del self.columns[name]

    def move_back(self, by_ms: float) -> None:
        self.times_ms = array("d", (at_ms - by_ms for at_ms in self.times_ms))


class _Track:
    """One broker, topic or group: `fine` as it is sampled, `coarse` the highest of each two minutes."""

    def __init__(self, fine_kept: int = _KEPT) -> None:
        self.fine = _Columns(fine_kept)
        self._coarse = _Columns(_COARSE_KEPT)
        self._began_ms = 0.0
        self._highest: dict[str, float] = {}
        # The last minute's answers of this process, newest last.
        self.recent: deque[_Before] = deque(maxlen=_RECENT)

    @property
    def columns(self) -> Mapping[str, array[float]]:
        """The fine ones."""
        return self.fine.columns

    def add(self, at_wall_ms: int, values: Mapping[str, float]) -> None:
        if self.fine.times_ms and self.fine.times_ms[-1] >= at_wall_ms:
            set_back_ms = self.fine.times_ms[-1] - at_wall_ms + 1
            self.fine.move_back(set_back_ms)
            self._coarse.move_back(set_back_ms)
            self._began_ms -= set_back_ms
        self.fine.add(at_wall_ms, values)
        if at_wall_ms - self._began_ms >= _COARSE_MS:
            if self._began_ms:
                self._coarse.add(round(self._began_ms), self._highest)
            self._began_ms, self._highest = at_wall_ms, {}
        for name, value in values.items():
            if value == value:
                self._highest[name] = max(value, self._highest.get(name, value))

    def samples(self, name: str) -> Samples:
        """A figure's; empty if nothing is kept of it."""
        older = _column(self._coarse, name)
        newest = _column(self.fine, name)
        return Samples(newest.times_ms, newest.values, older if older.times_ms else None)


class ClusterHistory:
    """Give `observe` to `CachedCluster.on_reading`. One event loop."""

    def __init__(self) -> None:
        # By broker key.
        self._tracks: dict[str, _Track] = {}
        self._totals = _Track()
        self._sampled_ms: int | None = None

    def observe(self, reading: ClusterReading) -> None:
        """Takes a sample, if the last is old enough."""
        # Readings come in steps of their own; without the slack every other one would be just too early.
        if self._sampled_ms is not None and reading.read_at_ms - self._sampled_ms < _INTERVAL_MS * 0.9:
            return
        self._sampled_ms = reading.read_at_ms
        seen = {broker.key: broker for broker in reading.state.brokers}
        for key, broker in seen.items():
            if key in self._tracks or len(self._tracks) < _BROKERS_MAX:
                self._sample(self._tracks.setdefault(key, _Track()), broker, reading)
        for key in [key for key in self._tracks if key not in seen]:
            del self._tracks[key]
        self._totals.add(reading.read_at_wall_ms, dict(self._sums()))

    def _sums(self) -> Iterator[tuple[str, float]]:
        for figure in _SUMMED:
            columns = (track.columns.get(figure) for track in self._tracks.values())
            known = [column[-1] for column in columns if column is not None and not math.isnan(column[-1])]
            if known:
                yield figure, sum(known)

    def figure(self, broker_key: str, figure: Figure) -> Samples:
        """A figure of one broker; empty if nothing is kept of it."""
        return self._samples(broker_key, figure)

    def lag(self, master_key: str, slave: str, figure: Figure = Figure.LAG_BYTES) -> Samples:
        """LAG_BYTES or LAG_SECONDS of a slave (`slave_key`) as its master told it."""
        return self._samples(master_key, _lag_column(figure, slave))

    def total(self, figure: Figure) -> Samples:
        """The sum over all brokers that were known at each moment: of messages in and out, and of bytes in."""
        return self._totals.samples(figure)

    def closing_rate(self, master_key: str, slave: str) -> float | None:
        """By how many bytes a second the lag of a slave shrinks, over the last minute; negative when it grows."""
        samples = self.lag(master_key, slave)
        if not samples.times_ms:
            return None
        recent = [point for point in _points(samples) if point[0] >= samples.times_ms[-1] - _SLOPE_MS]
        if len(recent) < 2 or recent[-1][0] - recent[0][0] < _SLOPE_MS_MIN:
            return None
        return (recent[0][1] - recent[-1][1]) / (recent[-1][0] - recent[0][0]) * 1_000

    def catch_up_seconds(self, master_key: str, slave: SlaveState) -> float | None:
        """When a slave holds all if it goes on as in the last minute; None: it comes no nearer, or not known."""
        if not slave.lag_bytes:
            return 0.0
        rate = self.closing_rate(master_key, slave_key(slave))
        return slave.lag_bytes / rate if rate is not None and rate > 0 else None

    def ack_latency(self, broker_key: str) -> LatencyCounts | None:
        """From append to acknowledgement, over the last minute; None if it is not known."""
        track = self._tracks.get(broker_key)
        if track is None or len(track.recent) < 2:
            return None
        return between(track.recent[0].status.ack_latency, track.recent[-1].status.ack_latency)

    def _samples(self, broker_key: str, column: str) -> Samples:
        track = self._tracks.get(broker_key)
        return track.samples(column) if track is not None else Samples()

    def _sample(self, track: _Track, broker: BrokerState, reading: ClusterReading) -> None:
        status = broker.status
        if status is None:
            track.recent.clear()
            track.add(reading.read_at_wall_ms, {})
            return
        values = dict(_levels(status))
        if track.recent and status.uptime_seconds < track.recent[-1].status.uptime_seconds:
            # Another process: it counts from 0.
            track.recent.clear()
        if track.recent:
            values |= _changes(track.recent[-1], status, reading.read_at_ms)
        track.recent.append(_Before(reading.read_at_ms, status))
        track.add(reading.read_at_wall_ms, values)


def _column(columns: _Columns, name: str) -> Samples:
    column = columns.columns.get(name)
    return Samples(columns.times_ms, column) if column is not None else Samples()


def _levels(status: BrokerStatus) -> Iterator[tuple[str, float]]:
    """What is told as it is."""
    yield Figure.WAITING_SENDS, status.waiting_send_count
    yield Figure.MEMORY, status.resident_bytes
    yield Figure.CLIENTS, status.client_count
    yield Figure.LONGEST_STALL, status.longest_loop_stall_ms / 1_000
    if status.disk is not None:
        yield Figure.DISK_USED, status.disk.used_ratio
    for slave in status.slaves[:_SLAVES_MAX]:
        yield _lag_column(Figure.LAG_BYTES, slave_key(slave)), slave.lag_bytes
        yield _lag_column(Figure.LAG_SECONDS, slave_key(slave)), slave.lag_seconds
    if status.master_link is not None:
        yield Figure.LAG_BYTES, status.master_link.lag_bytes


def _changes(before: _Before, status: BrokerStatus, now_ms: int) -> dict[str, float]:
    seconds = (now_ms - before.at_ms) / 1_000
    earlier = before.status
    if seconds <= 0:
        return {}
    rates = {
        Figure.MESSAGES_IN: status.messages_in_count - earlier.messages_in_count,
        Figure.MESSAGES_OUT: status.messages_out_count - earlier.messages_out_count,
        Figure.BYTES_IN: status.bytes_in_count - earlier.bytes_in_count,
        Figure.LOG_GROWTH: status.end_offset - earlier.end_offset,
    }
    values: dict[str, float] = {name: change / seconds for name, change in rates.items() if change >= 0}
    for median, high, old, new in (
        (Figure.SEND_P50, Figure.SEND_P99, earlier.send_latency, status.send_latency),
        (Figure.ACK_P50, Figure.ACK_P99, earlier.ack_latency, status.ack_latency),
    ):
        latency = between(old, new)
        for name, share in ((median, 0.5), (high, 0.99)):
            value = quantile_s(latency, share) if latency is not None else None
            if value is not None:
                values[name] = value
    return values


def _lag_column(figure: Figure, slave: str) -> str:
    return f"{figure}:{slave}"


def _points(samples: Samples) -> list[tuple[float, float]]:
    return [point for point in zip(samples.times_ms, samples.values, strict=True) if point[1] == point[1]]


def _known(value: float) -> float | None:
    return None if value != value else value


# Topics and consumer groups: what came in and how far groups are behind.

USAGE_INTERVAL_MS: Final = 15_000
USAGE_NAMES_MAX: Final = 300
"""Of topics, and of groups, by name: that much is asked for at once. One takes up to 20 KB."""
_USAGE_KEPT: Final = 240


class UsageHistory:
    """Messages stored a second by topic; lag and messages in flight by group."""

    def __init__(self) -> None:
        self._topics: dict[str, _Track] = {}
        self._groups: dict[str, _Track] = {}
        # By name: when, and how many messages had been stored by then.
        self._stored: dict[str, tuple[int, int]] = {}

    def observe_topics(self, stored: Mapping[str, int], *, at_ms: int, at_wall_ms: int) -> None:
        """Messages ever stored by topic, of all masters; below 0, or missing: not known, and a gap in the plot."""
        for name in self._topics.keys() - stored.keys():
            del self._topics[name]
        before, self._stored = self._stored, {}
        for name, count in stored.items():
            track = self._topics.setdefault(name, _Track(_USAGE_KEPT))
            values = {}
            if count >= 0:
                self._stored[name] = (at_ms, count)
                earlier_ms, earlier = before.get(name, (at_ms, count))
                # Less than before: the topic was made anew.
                if at_ms > earlier_ms and count >= earlier:
                    values["rate"] = (count - earlier) / (at_ms - earlier_ms) * 1_000
            track.add(at_wall_ms, values)

    def observe_groups(self, standing: Mapping[str, tuple[int, int]], *, at_wall_ms: int) -> None:
        """Lag and messages in flight by group, of all masters; below 0: not known."""
        for name in self._groups.keys() - standing.keys():
            del self._groups[name]
        for name, (lag, inflight) in standing.items():
            values = {key: float(value) for key, value in (("lag", lag), ("in flight", inflight)) if value >= 0}
            self._groups.setdefault(name, _Track(_USAGE_KEPT)).add(at_wall_ms, values)

    def rate(self, topic: str) -> Samples:
        """Messages stored a second."""
        return self._topics[topic].samples("rate") if topic in self._topics else Samples()

    def lag(self, group: str) -> Samples:
        """Messages that the group has not acknowledged."""
        return self._groups[group].samples("lag") if group in self._groups else Samples()

    def inflight(self, group: str) -> Samples:
        """Messages that are with consumers."""
        return self._groups[group].samples("in flight") if group in self._groups else Samples()
