"""Reads the state of a cluster through its NameServers and brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import grpc.aio
from structlog.typing import FilteringBoundLogger

from tandemmq.admin.cluster_state import (
    BrokerState,
    BrokerStatus,
    ClusterState,
    ExpectedBroker,
    Finding,
    NameServerState,
    Severity,
    diagnose,
    is_healthy,
    worst_first,
)
from tandemmq.admin.rpc import BrokerAdminCalls, Channels, NameServerCalls, error_text
from tandemmq.core.clock import Clock
from tandemmq.core.routing.route_table import merge_snapshots
from tandemmq.core.routing.values import RegisteredBroker, RouteSnapshot
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.service.protobuf import as_value
from tandemmq.service.route_messages import broker_value

# Questions in flight at once: a cluster of hundreds of brokers is read in waves.
_ASKED_AT_ONCE: Final = 64


class ClusterReader:
    """Asks every NameServer who lives, then every broker how it is. Not for concurrent `read` calls."""

    def __init__(
        self, channels: Channels, name_servers: Sequence[str], expected: Sequence[ExpectedBroker] = ()
    ) -> None:
        self._channels = channels
        self._name_servers = tuple(name_servers)
        self._expected = tuple(expected)
        self._slots = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def read(self, remembered: Iterable[ExpectedBroker] = ()) -> ClusterState:
        """The state now. What does not answer is part of the result; nothing is raised.

        `remembered` are brokers to ask besides those expected and those registered; where both know a broker, the
        registration wins. Takes at most about 3 s for the NameServers and 3 s for each 64 brokers.
        """
        answers = await asyncio.gather(*(self._ask_name_server(address) for address in self._name_servers))
        found = {(broker.broker_name, broker.broker_id): broker for broker in (*self._expected, *remembered)}
        merged = merge_snapshots([RouteSnapshot(0, {}, brokers) for _, brokers in answers], revision=0)
        registered = {(broker.identity.broker_name, broker.identity.broker_id): broker for broker in merged.brokers}
        found |= {key: _as_registered(broker) for key, broker in registered.items()}
        with_master = {name for (name, _), broker in registered.items() if broker.is_master}
        states = await asyncio.gather(
            *(
                self._ask_broker(broker, registered.get(key), has_master=broker.broker_name in with_master)
                for key, broker in sorted(found.items())
            )
        )
        return ClusterState(name_servers=tuple(server for server, _ in answers), brokers=tuple(states))

    async def _ask_name_server(self, address: str) -> tuple[NameServerState, tuple[RegisteredBroker, ...]]:
        try:
            snapshot = await NameServerCalls(self._channels, address).snapshot()
        except grpc.aio.AioRpcError as error:
            return NameServerState(address=address, error=error_text(error), revision=0, brokers=()), ()
        except EOFError as error:
            return NameServerState(address=address, error=str(error), revision=0, brokers=()), ()
        brokers = tuple(broker_value(broker) for broker in snapshot.brokers)
        keys = tuple(f"{broker.identity.broker_name}:{broker.identity.broker_id}" for broker in brokers)
        return NameServerState(address=address, error=None, revision=snapshot.revision, brokers=keys), brokers

    async def _ask_broker(
        self, broker: ExpectedBroker, registered: RegisteredBroker | None, *, has_master: bool
    ) -> BrokerState:
        # One that NameServers do not know may take itself for the master of a group that has another one by now.
        named_master = registered.is_master if registered is not None else False if has_master else None
        status, failure = None, None
        try:
            async with self._slots:
                status = _status(await BrokerAdminCalls(self._channels, broker.metadata_endpoint).status())
        except grpc.aio.AioRpcError as error:
            failure = error_text(error)
        return BrokerState(
            cluster=broker.cluster,
            broker_name=broker.broker_name,
            broker_id=broker.broker_id,
            client_endpoint=broker.client_endpoint,
            metadata_endpoint=broker.metadata_endpoint,
            ha_endpoint=broker.ha_endpoint,
            registered=registered is not None,
            status=status,
            error=failure,
            named_master=named_master,
        )


def _as_registered(broker: RegisteredBroker) -> ExpectedBroker:
    return ExpectedBroker(
        cluster=broker.identity.cluster,
        broker_name=broker.identity.broker_name,
        broker_id=broker.identity.broker_id,
        client_endpoint=broker.endpoints.client,
        metadata_endpoint=broker.endpoints.metadata,
        ha_endpoint=broker.endpoints.ha,
    )


def _status(reply: admin_pb.GetBrokerStatusResponse) -> BrokerStatus:
    return as_value(
        BrokerStatus,
        reply,
        loop_stall_count=reply.event_loop.stall_count,
        longest_loop_stall_ms=reply.event_loop.longest_stall_ms,
        problems=tuple((problem.problem, problem.remedy) for problem in reply.problems),
    )


# The one reading of the cluster that everybody is shown: page, JSON, gRPC, metrics and role labels.
#
# A reading is made in the background at a fixed pace, so that a hundred open pages ask the brokers no more than one
# does. Brokers seen earlier are remembered for a while: a broker group that has vanished from every NameServer would
# otherwise vanish from sight as well, and with it the finding that matters most.

# A reading is bounded by the deadlines of its calls (seconds); one that takes this long will never end.
_STUCK_AFTER_MS: Final = 60_000
_REMEMBERED_MAX: Final = 1_000


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
        reader: ClusterReader,
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
                self._seen[broker.key] = (broker, now_ms)

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
