"""The one reading of the cluster that everybody is shown: page, JSON, gRPC, metrics and role labels.

A reading is made in the background at a fixed pace, so that a hundred open pages ask the brokers no more than one does.
Brokers seen earlier are remembered for a while: a broker group that has vanished from every NameServer would otherwise
vanish from sight as well, and with it the finding that matters most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from admin.cluster_state import (
    BrokerState,
    ClusterState,
    ExpectedBroker,
    Finding,
    Severity,
    diagnose,
    is_healthy,
    worst_first,
)
from mqcore.clock import Clock

__all__ = ["CachedCluster", "ClusterReading", "Reader"]

# A reading is bounded by the deadlines of its calls (seconds); one that takes this long will never end.
_STUCK_AFTER_MS: Final = 60_000
_REMEMBERED_MAX: Final = 1_000


class Reader(Protocol):
    """What reads; `admin.cluster_reader.ClusterReader`."""

    async def read(self, remembered: Iterable[ExpectedBroker] = ()) -> ClusterState:
        """The state now; `remembered` brokers are asked even if no NameServer knows them."""


@dataclass(frozen=True, slots=True)
class ClusterReading:
    """A cluster at one moment, judged."""

    state: ClusterState
    # Problems first.
    findings: tuple[Finding, ...]
    healthy: bool
    # From 1, grows with each reading.
    revision: int
    read_at_wall_ms: int
    # On the monotonic clock.
    read_at_ms: int
    duration_ms: int

    def age_ms(self, now_ms: int) -> int:
        """Time since it was read; `now_ms` is on the monotonic clock."""
        return max(0, now_ms - self.read_at_ms)


class CachedCluster:
    """Reads a cluster again and again. One event loop; `latest` never goes back to None."""

    def __init__(
        self,
        reader: Reader,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        forget_after_ms: int,
        more_findings: Callable[[], Iterable[Finding]] = tuple,
    ) -> None:
        """`more_findings` are what is known of the cluster besides what its members say; asked at each reading."""
        self.latest: ClusterReading | None = None
        self._more_findings = more_findings
        self._reader = reader
        self._clock = clock
        self._log = log
        self._forget_after_ms = forget_after_ms
        # By broker key: where it was, and when a NameServer last knew it.
        self._seen: dict[str, tuple[ExpectedBroker, int]] = {}
        self._log_ends = _LogEnds(forget_after_ms)
        self._listeners: set[Callable[[ClusterReading], None]] = set()
        self._turn_began_ms = clock.monotonic_ms()

    @property
    def listener_count(self) -> int:
        """How many are told of new readings."""
        return len(self._listeners)

    def on_reading(self, listener: Callable[[ClusterReading], None]) -> Callable[[], None]:
        """Tells `listener` of each new reading until the returned function is called. A listener must not raise."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def is_stuck(self) -> bool:
        """True when reading has stopped making progress: the process is to be restarted."""
        return self._clock.monotonic_ms() - self._turn_began_ms > _STUCK_AFTER_MS

    async def keep_reading(self, *, interval_ms: int) -> None:
        """Reads until cancelled, with `interval_ms` between the end of a reading and the start of the next."""
        while True:
            await self.read_once()
            await asyncio.sleep(interval_ms / 1_000)

    async def read_once(self) -> ClusterReading:
        """One reading, made `latest` and told to the listeners. Not for concurrent calls."""
        began_ms = self._turn_began_ms = self._clock.monotonic_ms()
        self._forget_old(began_ms)
        state = await self._reader.read([broker for broker, _ in self._seen.values()])
        now_ms = self._clock.monotonic_ms()
        fallen = self._log_ends.fallen(state, now_ms)
        findings = tuple(worst_first([*diagnose(state), *fallen, *self._more_findings()]))
        before = self.latest
        reading = ClusterReading(
            state=state,
            findings=findings,
            healthy=is_healthy(findings),
            revision=before.revision + 1 if before is not None else 1,
            read_at_wall_ms=self._clock.wall_ms(),
            read_at_ms=now_ms,
            duration_ms=now_ms - began_ms,
        )
        self._remember(state, now_ms)
        self.latest = reading
        if before is None or {_identity(each) for each in before.findings} != {_identity(each) for each in findings}:
            self._log_change(reading)
        for listener in list(self._listeners):
            listener(reading)
        return reading

    def _log_change(self, reading: ClusterReading) -> None:
        self._log.info(
            "cluster_health_changed",
            healthy=reading.healthy,
            brokers=len(reading.state.brokers),
            findings=[f"{finding.subject} {finding.problem}" for finding in reading.findings[:20]],
        )

    def _remember(self, state: ClusterState, now_ms: int) -> None:
        for broker in state.brokers:
            if broker.registered and (broker.key in self._seen or len(self._seen) < _REMEMBERED_MAX):
                self._seen[broker.key] = (_as_expected(broker), now_ms)

    def _forget_old(self, now_ms: int) -> None:
        for key, (_, seen_ms) in list(self._seen.items()):
            if now_ms - seen_ms > self._forget_after_ms:
                del self._seen[key]


class _LogEnds:
    """The greatest end of each broker's log in the time that is remembered."""

    def __init__(self, forget_after_ms: int) -> None:
        self._forget_after_ms = forget_after_ms
        # By broker key: the end, and when it was seen.
        self._greatest: dict[str, tuple[int, int]] = {}

    def fallen(self, state: ClusterState, now_ms: int) -> Iterator[Finding]:
        """Of each log that ends before where it ended: a problem, or a note where another member holds that much."""
        ends: dict[str, int] = {}
        for broker in state.brokers:
            if broker.status is not None:
                ends[broker.broker_name] = max(ends.get(broker.broker_name, 0), broker.status.end_offset)
        for key, (_, seen_ms) in list(self._greatest.items()):
            if now_ms - seen_ms > self._forget_after_ms:
                del self._greatest[key]
        for broker in state.brokers:
            if broker.status is None:
                continue
            end_offset = broker.status.end_offset
            greatest, _ = self._greatest.get(broker.key, (0, 0))
            if end_offset >= greatest:
                if broker.key in self._greatest or len(self._greatest) < _REMEMBERED_MAX:
                    self._greatest[broker.key] = (end_offset, now_ms)
                continue
            is_held = ends[broker.broker_name] >= greatest
            yield Finding(
                Severity.NOTE if is_held else Severity.PROBLEM,
                broker.key,
                f"its log ends at {end_offset:,}; it ended at {greatest:,} before"
                + ("" if is_held else ", and no member in reach holds that much"),
                "`tandemmq events` says why; `tandemmq restore-kept-tail` lists what was cut off, and a disk that was "
                "replaced may still hold it",
            )


def _identity(finding: Finding) -> tuple[str, str, str]:
    # Without the problem's text, which counts bytes and would differ in every reading.
    return finding.severity, finding.subject, finding.remedy


def _as_expected(broker: BrokerState) -> ExpectedBroker:
    return ExpectedBroker(
        cluster=broker.cluster,
        broker_name=broker.broker_name,
        broker_id=broker.broker_id,
        client_endpoint=broker.client_endpoint,
        metadata_endpoint=broker.metadata_endpoint,
        ha_endpoint=broker.ha_endpoint,
    )
