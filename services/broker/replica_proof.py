"""What members of a broker group tell each other about their CommitLogs, and when one has proven that it agrees."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from broker.replica_identity import ReplicaIdentity
from mqcore.replication.log_history import LogHistory, LogRange
from mqcore.routing.values import ReplicaMemory

__all__ = ["LocalLog", "ReplicaProof"]


class LocalLog(Protocol):
    """The part of the store that replicas ask about."""

    @property
    def min_offset(self) -> int:
        """First byte held."""

    @property
    def end_offset(self) -> int:
        """One past the last byte."""

    @property
    def flushed_offset(self) -> int:
        """One past the last byte on disk."""

    @property
    def segment_bytes(self) -> int:
        """CommitLog file size."""

    def read_log(self, offset: int, max_bytes: int) -> memoryview:
        """Bytes within one file."""

    def digest(self, start_offset: int, end_offset: int) -> bytes:
        """SHA-256 of a range; safe on another thread."""


class ReplicaProof:
    """Compares what a member says of its log with the local one. It proves no more than what was asked about: the bytes
    of its tail, while we serve.
    """

    def __init__(
        self,
        *,
        log: LocalLog,
        replica: ReplicaIdentity,
        serving: Callable[[], bool],
        verified: Callable[[int, int, str], None],
        superseded: Callable[[str], None],
        leave_master: Callable[[], Awaitable[None]],
    ) -> None:
        """`verified` hears of each proof: broker id, one past the last byte that is equal, and the connection that it
        was made for. `superseded` hears why another master must have taken our place: a member follows a later epoch.
        `leave_master` ends a slave's connection, and returns when no byte comes any more.
        """
        self._log = log
        self._replica = replica
        self._serving = serving
        self._verified = verified
        self._superseded = superseded
        self._leave_master = leave_master

    @property
    def history(self) -> LogHistory:
        """The epochs of the local log."""
        return self._replica.history

    async def promise(self, epoch: int, disk_id: str) -> bool:
        """Promises a starting master to take no byte of an earlier epoch, and drops the master that is followed."""
        if not await self._replica.promise(epoch, disk_id):
            return False
        await self._leave_master()
        return True

    def holds(self, item: LogRange) -> bool:
        """The local log has all of it."""
        return self._log.min_offset <= item.start_offset <= item.end_offset <= self._log.end_offset

    async def digest(self, item: LogRange) -> bytes:
        """SHA-256 of what is held. On a worker thread: hashing releases the interpreter lock."""
        return await asyncio.to_thread(self._log.digest, item.start_offset, item.end_offset)

    async def verify(self, member: ReplicaMemory, *, tail: LogRange, digest: bytes, connection: str) -> bool:
        """Whether the member's tail is ours, by its digest. A proof counts for the connection it names; without one it
        is an answer and no more. The member is remembered before its proof counts: our next start asks it.
        """
        if not self._serving():
            return False
        last_epoch = self._replica.history.last_epoch
        if member.epoch > last_epoch:
            self._superseded(f"broker {member.broker_id} follows epoch {member.epoch}, and ours is {last_epoch}")
            return False
        if member.epoch == last_epoch > 0 and member.end_offset > self._log.end_offset:
            self._superseded(
                f"broker {member.broker_id} holds {member.end_offset} bytes of epoch {last_epoch}, "
                f"and we have {self._log.end_offset}"
            )
            return False
        # A slave that holds nothing: there is nothing to compare, but its connection has a name.
        is_equal = tail.start_offset == tail.end_offset == 0
        if not is_equal:
            is_equal = self.holds(tail) and await self.digest(tail) == digest
        if is_equal and connection:
            await self._replica.remember(member)
            self._verified(member.broker_id, tail.end_offset, connection)
        return is_equal
