"""Stands where a module of the shell says `PeerClient`: the same calls, over the simulated network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Self, TypeVar

from simulation.network import PeerUnavailable
from simulation.process import running_process
from simulation.sim_replica_service import REPLICAS, WATCH_LIMIT_MS, PeerLog, ReplicaService
from tandemmq.broker.leases import LeaseChange, LeasePosition
from tandemmq.broker.peer_client import EpochPromise, ReplicaClaim
from tandemmq.core.metadata.metadata_store import DataVersion, MetadataFile
from tandemmq.core.replication.log_history import LogHistory, LogRange
from tandemmq.core.routing.values import BrokerIdentity

CALL_TIMEOUT_MS: Final = 3_000
VERIFY_TIMEOUT_MS: Final = 10_000
LEASES_TIMEOUT_MS: Final = 30_000
FAILOVER_TIMEOUT_MS: Final = 1_000
APPEND_TIMEOUT_MS: Final = 500
# Small against the product's 1 MiB, so that a fetch is many calls and faults fall between them.
PIECE_BYTES: Final = 2_000


ResultT = TypeVar("ResultT")


class SimPeerClient:
    """See `tandemmq.broker.peer_client.PeerClient`."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._host = endpoint.partition(":")[0]
        self._process = running_process()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def close(self) -> None:
        """Nothing is held open."""

    async def _ask(
        self, ask: Callable[[ReplicaService], Awaitable[ResultT]], timeout_ms: int = CALL_TIMEOUT_MS
    ) -> ResultT:
        return await self._process.network.call(self._process, self._host, REPLICAS, ask, timeout_ms=timeout_ms)

    async def log(self) -> PeerLog:
        return await self._ask(lambda peer: peer.log())

    async def digests(self, ranges: Sequence[LogRange]) -> list[bytes]:
        return await self._ask(lambda peer: peer.digests(ranges))

    async def verify(self, claim: ReplicaClaim, *, tail: LogRange, digest: bytes, connection: str) -> LogHistory | None:
        return await self._ask(
            lambda peer: peer.verify(claim, tail=tail, digest=digest, connection=connection), VERIFY_TIMEOUT_MS
        )

    async def promise_epoch(
        self, epoch: int, *, disk_id: str, nonce: str, identity: BrokerIdentity
    ) -> EpochPromise | None:
        return await self._ask(lambda peer: peer.promise_epoch(epoch, disk_id, nonce))

    async def withhold_claim(self, identity: BrokerIdentity, *, epoch: int, duration_ms: int) -> bool:
        return await self._ask(lambda peer: peer.withhold_claim(epoch, duration_ms), FAILOVER_TIMEOUT_MS)

    async def copy_progress(self, identity: BrokerIdentity) -> bool:
        return await self._ask(lambda peer: peer.copy_progress(), FAILOVER_TIMEOUT_MS)

    async def append_leases(self, identity: BrokerIdentity, change: LeaseChange) -> LeasePosition:
        return await self._ask(lambda peer: peer.append_leases(change), APPEND_TIMEOUT_MS)

    async def record_changed(self, identity: BrokerIdentity) -> None:
        await self._ask(lambda peer: peer.record_changed(), FAILOVER_TIMEOUT_MS)

    async def read_log(self, wanted: LogRange) -> AsyncIterator[tuple[int, bytes]]:
        """ReadLog, one call a piece."""
        offset = wanted.start_offset
        while offset < wanted.end_offset:
            piece = LogRange(offset, min(wanted.end_offset, offset + PIECE_BYTES))
            data = await self._piece(piece)
            if not data:
                raise PeerUnavailable(f"{self._host} no longer holds {offset}")
            yield offset, data
            offset += len(data)

    async def _piece(self, wanted: LogRange) -> bytes:
        return await self._ask(lambda peer: peer.read_log(wanted))

    async def metadata_table(
        self, file: MetadataFile, known: DataVersion | None, *, accept_copy: bool = False
    ) -> tuple[DataVersion, str | None]:
        return await self._ask(lambda peer: peer.metadata_table(file, known, accept_copy=accept_copy))

    async def leases(self, known: LeasePosition, *, accept_copy: bool = False) -> LeaseChange:
        return await self._ask(lambda peer: peer.leases(known, accept_copy=accept_copy), LEASES_TIMEOUT_MS)

    async def leases_ahead(self) -> LeaseChange | None:
        """GetLeases of a slave that served reads: here none does."""
        return None

    async def metadata_changes(self) -> AsyncIterator[None]:
        while True:
            yield None
            await self._ask(lambda peer: peer.metadata_change(), WATCH_LIMIT_MS + CALL_TIMEOUT_MS)
