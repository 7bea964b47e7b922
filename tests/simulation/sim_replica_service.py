"""What members of the group ask each other about their logs. See `broker.api.replica_servicer.ReplicaServicer`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from broker.replica_proof import ReplicaProof
from mqcore.replication import LogExtent, LogRange
from mqcore.storage import MessageStore
from simulation.network import PeerUnavailable, ServiceKey

__all__ = ["REPLICAS", "PeerLog", "ReplicaService", "SimReplicaService"]


@dataclass(frozen=True, slots=True)
class PeerLog:
    """A peer's CommitLog as it describes it."""

    extent: LogExtent
    segment_bytes: int
    serving: bool
    broker_id: int
    flushed_offset: int


class ReplicaService(Protocol):
    """`ReplicaService` of the metadata plane."""

    async def log(self) -> PeerLog:
        """GetLogExtent."""

    async def digests(self, ranges: Sequence[LogRange]) -> list[bytes]:
        """GetRangeDigests."""

    async def verify(self, *, broker_id: int, tail: LogRange, digest: bytes, connection: str) -> bool:
        """VerifyReplica."""

    async def read_log(self, wanted: LogRange) -> bytes:
        """One piece of ReadLog."""


REPLICAS: Final = ServiceKey[ReplicaService]("replica")


class SimReplicaService:
    """Answers from the local log."""

    def __init__(
        self,
        *,
        store: MessageStore,
        broker_id: int,
        serving: Callable[[], bool],
        verified: Callable[[int, int, str], None],
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self._serving = serving
        self._proof = ReplicaProof(log=store, serving=serving, verified=verified)

    async def log(self) -> PeerLog:
        store = self._store
        return PeerLog(
            extent=LogExtent(min_offset=store.min_offset, end_offset=store.end_offset),
            segment_bytes=store.segment_bytes,
            serving=self._serving(),
            broker_id=self._broker_id,
            flushed_offset=store.flushed_offset,
        )

    async def digests(self, ranges: Sequence[LogRange]) -> list[bytes]:
        for item in ranges:
            self._check(item)
        return [await self._proof.digest(item) for item in ranges]

    async def verify(self, *, broker_id: int, tail: LogRange, digest: bytes, connection: str) -> bool:
        return await self._proof.verify(broker_id=broker_id, tail=tail, digest=digest, connection=connection)

    async def read_log(self, wanted: LogRange) -> bytes:
        self._check(wanted)
        return bytes(self._store.read_log(wanted.start_offset, wanted.end_offset - wanted.start_offset))

    def _check(self, item: LogRange) -> None:
        if not self._proof.holds(item):
            raise PeerUnavailable(f"range [{item.start_offset}, {item.end_offset}) leaves the log")
