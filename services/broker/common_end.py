"""Up to where two replicas hold the same log, and what stands there in ours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from broker.api.peer_client import PeerClient
from mqcore.message.record_decoder import Blank, RecordFound, ScanStop, scan_record
from mqcore.replication.common_prefix import CommonPrefixSearch
from mqcore.replication.log_history import LogExtent, LogRange
from mqcore.storage.message_store import MessageStore
from mqcore.storage.record_walk import record_boundaries, record_boundary_before

__all__ = ["CommonEnd", "digest_of", "find_common_end"]

# A record of the largest size, with room to spare.
_RECORD_BYTES_MAX: Final = 9 << 20


class CommonEnd(NamedTuple):
    """`offset` is a record boundary of ours; our min offset when nothing is common."""

    offset: int
    ours_is_damaged: bool
    """What stands there in our log is no record, and the peer has one: the difference is damage of ours."""


async def digest_of(store: MessageStore, item: LogRange) -> bytes:
    """SHA-256 of our bytes, on a worker thread: hashing releases the interpreter lock."""
    return await asyncio.to_thread(store.digest, item.start_offset, item.end_offset)


async def find_common_end(peer: PeerClient, store: MessageStore, theirs: LogExtent, *, tail_bytes: int) -> CommonEnd:
    """Compares digests with a peer that holds `theirs`. PeerUnavailable: it went away."""
    ours = LogExtent(min_offset=store.min_offset, end_offset=store.end_offset)
    search = CommonPrefixSearch(
        ours=ours,
        theirs=theirs,
        boundaries=partial(record_boundaries, store),
        boundary_before=partial(record_boundary_before, store),
        tail_bytes=tail_bytes,
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
    record_bytes = await _their_record_bytes(peer, offset, theirs, store.segment_bytes)
    return record_bytes > 0 and (found is not ScanStop.INCOMPLETE or record_bytes <= len(data))


async def _their_record_bytes(peer: PeerClient, offset: int, theirs: LogExtent, segment_bytes: int) -> int:
    """Length of the peer's record, or of its filler; 0 when it has neither there."""
    end_offset = min(theirs.end_offset, offset - offset % segment_bytes + segment_bytes, offset + _RECORD_BYTES_MAX)
    if not theirs.min_offset <= offset < end_offset:
        return 0
    data = b""
    async for _, piece in peer.read_log(LogRange(offset, end_offset)):
        data += piece
        found = scan_record(data, 0, len(data), physical_offset=offset)
        if found is not ScanStop.INCOMPLETE:
            return found.size if isinstance(found, RecordFound | Blank) else 0
    return 0
