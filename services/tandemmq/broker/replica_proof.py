"""What members of a broker group tell each other about their CommitLogs, and when one has proven that it agrees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.core.message.record import Blank, RecordFound, ScanStop, scan_record
from tandemmq.core.replication.common_prefix import RANGE_BYTES_MAX, CommonPrefixSearch
from tandemmq.core.replication.log_history import LogExtent, LogHistory, LogRange
from tandemmq.core.routing.values import ReplicaMemory
from tandemmq.core.storage.dispatch import holds_record_header, record_boundaries, record_boundary_before

if TYPE_CHECKING:
    from tandemmq.broker.parts import Role
    from tandemmq.broker.peer_client import PeerClient
    from tandemmq.core.storage.message_store import MessageStore

log = structlog.get_logger(__name__)


class ReplicaProof:
    """Compares what a member says of its log with the local one. It proves no more than what was asked about: the bytes
    of its tail, while we serve.
    """

    def __init__(self, *, log: MessageStore, replica: ReplicaIdentity, role: Callable[[], Role]) -> None:
        self._log = log
        self._replica = replica
        self._role = role

    @property
    def history(self) -> LogHistory:
        return self._replica.history

    async def promise(self, epoch: int, disk_id: str, nonce: str) -> bool:
        """Promises a starting master to take no byte of an earlier epoch, and drops the master that is followed."""
        if not await self._replica.promise(epoch, disk_id, nonce):
            return False
        try:
            await self._role().leave_master()
        except TimeoutError:
            log.warning(
                "master_not_left", epoch=epoch, consequence="the promise is not given; the one who asked asks again"
            )
            return False
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
        if not self._role().is_serving:
            return False
        last_epoch = self._replica.history.last_epoch
        if member.epoch > last_epoch:
            self._role().superseded(f"broker {member.broker_id} follows epoch {member.epoch}, and ours is {last_epoch}")
            return False
        if member.epoch == last_epoch > 0 and member.end_offset > self._log.end_offset:
            self._role().superseded(
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
            self._role().verified(member.broker_id, member.disk_id, tail.end_offset, connection)
        return is_equal


# Up to where two replicas hold the same log, and what stands there in ours.


class CommonEnd(NamedTuple):
    """`offset` is a record boundary of ours; our min offset when nothing is common."""

    offset: int
    ours_is_damaged: bool
    """What stands there in our log is no record, and the peer has one: the difference is damage of ours."""


async def digest_of(store: MessageStore, item: LogRange) -> bytes:
    """SHA-256 of our bytes, on a worker thread: hashing releases the interpreter lock."""
    return await asyncio.to_thread(store.digest, item.start_offset, item.end_offset)


async def find_common_end(peer: PeerClient, store: MessageStore, theirs: LogExtent) -> CommonEnd:
    """Compares digests with a peer that holds `theirs`. PeerUnavailable: it went away."""
    ours = LogExtent(min_offset=store.min_offset, end_offset=store.end_offset)
    search = CommonPrefixSearch(
        ours=ours,
        theirs=theirs,
        boundaries=partial(record_boundaries, store),
        boundary_before=partial(record_boundary_before, store),
        holds_header=partial(holds_record_header, store),
    )
    while ranges := search.next_ranges():
        mine, yours = await asyncio.gather(_digests(store, ranges), peer.digests(ranges))
        # Listing record boundaries scans a file of the log: off the loop.
        await asyncio.to_thread(search.answer, ours=mine, theirs=yours)
    offset = ours.min_offset if search.result is None else search.result
    return CommonEnd(offset, await _ours_is_damaged(peer, store, offset, theirs))


async def _digests(store: MessageStore, ranges: Sequence[LogRange]) -> list[bytes]:
    return [await digest_of(store, item) for item in ranges]


async def _ours_is_damaged(peer: PeerClient, store: MessageStore, offset: int, theirs: LogExtent) -> bool:
    """What stands there in our log is no record, nor a file's filler, and the peer has one.

    A log may end within a record. One whose damaged length leads beyond the end looks the same: then the peer's record
    tells, which would have had room.
    """
    if offset >= store.end_offset:
        return False
    data = store.read_log(offset, store.segment_bytes)
    found = scan_record(data, 0, len(data), physical_offset=offset)
    if isinstance(found, RecordFound | Blank):
        return False
    file_end = offset - offset % store.segment_bytes + store.segment_bytes
    limit = min(theirs.end_offset, file_end, offset + RANGE_BYTES_MAX)
    record_bytes = await _their_record_bytes(peer, offset, limit) if theirs.min_offset <= offset < limit else 0
    return record_bytes > 0 and (found is not ScanStop.INCOMPLETE or record_bytes <= len(data))


async def _their_record_bytes(peer: PeerClient, offset: int, limit: int) -> int:
    """Length of the peer's record, or of its filler; 0 when it has neither below `limit`."""
    data = bytearray()
    async for _, piece in peer.read_log(LogRange(offset, limit)):
        data += piece
        found = scan_record(data, 0, len(data), physical_offset=offset)
        if found is not ScanStop.INCOMPLETE:
            return found.size if isinstance(found, RecordFound | Blank) else 0
    return 0
