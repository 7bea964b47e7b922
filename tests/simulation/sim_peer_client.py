"""Stands where a module of the shell says `PeerClient`: the same calls, over the simulated network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Final, Self

from mqcore.replication import LogRange
from simulation.network import PeerUnavailable
from simulation.process import running_process
from simulation.sim_replica_service import REPLICAS, PeerLog

__all__ = ["SimPeerClient"]

CALL_TIMEOUT_MS: Final = 3_000
VERIFY_TIMEOUT_MS: Final = 10_000
DIGEST_TIMEOUT_MS: Final = 30_000
# Small against the product's 1 MiB, so that a fetch is many calls and faults fall between them.
PIECE_BYTES: Final = 2_000


class SimPeerClient:
    """See `broker.api.peer_client.PeerClient`."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._host = endpoint.partition(":")[0]
        self._process = running_process()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def log(self) -> PeerLog:
        """GetLogExtent."""
        return await self._process.network.call(
            self._process, self._host, REPLICAS, lambda peer: peer.log(), timeout_ms=CALL_TIMEOUT_MS
        )

    async def digests(self, ranges: Sequence[LogRange]) -> list[bytes]:
        """GetRangeDigests."""
        return await self._process.network.call(
            self._process, self._host, REPLICAS, lambda peer: peer.digests(ranges), timeout_ms=DIGEST_TIMEOUT_MS
        )

    async def verify(self, *, broker_id: int, tail: LogRange, digest: bytes, connection: str) -> bool:
        """VerifyReplica."""
        return await self._process.network.call(
            self._process,
            self._host,
            REPLICAS,
            lambda peer: peer.verify(broker_id=broker_id, tail=tail, digest=digest, connection=connection),
            timeout_ms=VERIFY_TIMEOUT_MS,
        )

    async def read_log(self, wanted: LogRange) -> AsyncIterator[tuple[int, bytes]]:
        """ReadLog, one call a piece."""
        offset = wanted.start_offset
        while offset < wanted.end_offset:
            piece = LogRange(offset, min(wanted.end_offset, offset + PIECE_BYTES))
            data = await self._process.network.call(
                self._process, self._host, REPLICAS, lambda peer, piece=piece: peer.read_log(piece),  # type: ignore[misc]
                timeout_ms=CALL_TIMEOUT_MS,
            )  # fmt: skip
            if not data:
                raise PeerUnavailable(f"{self._host} no longer holds {offset}")
            yield offset, data
            offset += len(data)
