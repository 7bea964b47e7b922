"""What members of the group ask each other about their logs and tables.

See `tandemmq.broker.peer_api.members.ReplicaServicer` and `tandemmq.broker.peer_api.members.MetadataServicer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from simulation.network import PeerUnavailable, ServiceKey
from tandemmq.broker.failover.controller import Failover
from tandemmq.broker.leases import NO_LEASES, LeaseChange, LeasePosition
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.broker.parts import Role
from tandemmq.broker.peer_client import EpochPromise, ReplicaClaim
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.broker.replica_proof import ReplicaProof
from tandemmq.core.metadata.metadata_store import DataVersion, MetadataFile
from tandemmq.core.replication.log_history import LogExtent, LogHistory, LogRange
from tandemmq.core.routing.values import BrokerIdentity, ReplicaMemory
from tandemmq.core.storage.message_store import MessageStore

WATCH_LIMIT_MS: Final = 5_000
"""A watch of the tables is a row of calls that wait for so long."""


@dataclass(frozen=True, slots=True)
class PeerLog:
    """A peer's CommitLog as it describes it."""

    extent: LogExtent
    segment_bytes: int
    serving: bool
    broker_id: int
    flushed_offset: int
    disk_id: str
    run: int
    history: LogHistory
    cluster: str
    broker_name: str
    replicas: tuple[ReplicaMemory, ...]
    nonce: str
    promised_epoch: int
    record_version: tuple[int, int]


class ReplicaService(Protocol):
    """`ReplicaService` of the metadata plane."""

    async def log(self) -> PeerLog:
        """GetLogExtent."""

    async def digests(self, ranges: Sequence[LogRange]) -> list[bytes]:
        """GetRangeDigests."""

    async def verify(self, claim: ReplicaClaim, *, tail: LogRange, digest: bytes, connection: str) -> LogHistory | None:
        """VerifyReplica: the history, if it holds the same."""

    async def promise_epoch(self, epoch: int, disk_id: str, nonce: str) -> EpochPromise:
        """PromiseEpoch."""

    async def read_log(self, wanted: LogRange) -> bytes:
        """One piece of ReadLog."""

    async def metadata_table(
        self, file: MetadataFile, known: DataVersion | None, *, accept_copy: bool
    ) -> tuple[DataVersion, str | None]:
        """GetMetadataTable."""

    async def leases(self, known: LeasePosition, *, accept_copy: bool) -> LeaseChange:
        """GetLeases."""

    async def metadata_change(self) -> None:
        """Returns at a change of any table, or after `WATCH_LIMIT_MS`."""

    async def withhold_claim(self, epoch: int, duration_ms: int) -> bool:
        """WithholdClaim."""

    async def record_changed(self) -> None:
        """NoteRecordChange."""

    async def copy_progress(self) -> bool:
        """CopyProgress."""

    async def append_leases(self, change: LeaseChange) -> LeasePosition:
        """AppendLeases."""


REPLICAS: Final = ServiceKey[ReplicaService]("replica")


class SimReplicaService:
    """Answers from the local log."""

    def __init__(
        self,
        *,
        store: MessageStore,
        identity: BrokerIdentity,
        replica: ReplicaIdentity,
        role: Callable[[], Role],
        tables: MetadataTables,
        failover: Failover | None = None,
    ) -> None:
        self._store = store
        self._identity = identity
        self._replica = replica
        self._asked_role = role
        self._failover = failover
        self._tables = tables
        self._proof = ReplicaProof(log=store, replica=replica, role=role)

    @property
    def _role(self) -> Role:
        return self._asked_role()

    async def withhold_claim(self, epoch: int, duration_ms: int) -> bool:
        return self._failover is not None and self._failover.withhold_claim(epoch, duration_ms)

    async def copy_progress(self) -> bool:
        return self._failover is not None and await self._failover.copy_progress()

    async def append_leases(self, change: LeaseChange) -> LeasePosition:
        return NO_LEASES if self._failover is None else await self._failover.append_leases(change)

    async def record_changed(self) -> None:
        if self._failover is not None:
            self._failover.poke()

    async def log(self) -> PeerLog:
        store, replica = self._store, self._replica
        return PeerLog(
            extent=LogExtent(min_offset=store.min_offset, end_offset=store.end_offset),
            segment_bytes=store.segment_bytes,
            serving=self._role.is_serving,
            broker_id=self._identity.broker_id,
            flushed_offset=store.flushed_offset,
            disk_id=replica.disk_id,
            run=replica.run,
            nonce=replica.nonce,
            history=replica.history,
            cluster=self._identity.cluster,
            broker_name=self._identity.broker_name,
            replicas=replica.replicas,
            promised_epoch=replica.greatest_epoch,
            record_version=replica.record_version,
        )

    async def digests(self, ranges: Sequence[LogRange]) -> list[bytes]:
        for item in ranges:
            self._check(item)
        return [await self._proof.digest(item) for item in ranges]

    async def verify(self, claim: ReplicaClaim, *, tail: LogRange, digest: bytes, connection: str) -> LogHistory | None:
        is_equal = await self._proof.verify(
            ReplicaMemory(
                broker_id=claim.identity.broker_id,
                disk_id=claim.disk_id,
                run=claim.run,
                epoch=claim.epoch,
                end_offset=tail.end_offset,
                metadata_endpoint=claim.metadata_endpoint,
            ),
            tail=tail,
            digest=digest,
            connection=connection,
        )
        return self._proof.history if is_equal else None

    async def promise_epoch(self, epoch: int, disk_id: str, nonce: str) -> EpochPromise:
        if (refusal := self._role.epoch_refusal) is not None:
            raise PeerUnavailable(refusal)
        promised = await self._proof.promise(epoch, disk_id, nonce)
        return EpochPromise(promised, self._replica.greatest_epoch, self._store.end_offset)

    async def read_log(self, wanted: LogRange) -> bytes:
        self._check(wanted)
        return bytes(self._store.read_log(wanted.start_offset, wanted.end_offset - wanted.start_offset))

    async def metadata_table(
        self, file: MetadataFile, known: DataVersion | None, *, accept_copy: bool
    ) -> tuple[DataVersion, str | None]:
        if not accept_copy:
            self._refuse_but_as_master()
        table = self._tables.by_file[file]
        return table.version, None if known == table.version or file in self._tables.damaged else table.to_json()

    async def leases(self, known: LeasePosition, *, accept_copy: bool) -> LeaseChange:
        if not accept_copy:
            self._refuse_but_as_master()
        leases = self._role.leases
        if not leases.is_open or (change := await leases.changes_since(known)) is None:
            raise PeerUnavailable("no leases are loaded here, or a snapshot was made meanwhile; ask again")
        return change

    async def metadata_change(self) -> None:
        self._refuse_but_as_master()
        try:
            async with asyncio.timeout(WATCH_LIMIT_MS / 1000):
                await self._tables.changes.next().wait()
        except TimeoutError:
            pass

    def _refuse_but_as_master(self) -> None:
        if self._role.holds_copies:
            raise PeerUnavailable("this broker is a slave; ask its master")
        if not self._role.is_serving:
            raise PeerUnavailable("this master does not serve yet; ask again later")

    def _check(self, item: LogRange) -> None:
        if not self._proof.holds(item):
            raise PeerUnavailable(f"range [{item.start_offset}, {item.end_offset}) leaves the log")
