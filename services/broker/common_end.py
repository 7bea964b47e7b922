"""Up to where two replicas hold the same log, and what stands there in ours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from broker.api.peer_client import PeerClient
from mqcore.message import Blank, RecordFound, ScanStop, scan_record
from mqcore.replication import CommonPrefixSearch, LogExtent, LogRange
from mqcore.storage import MessageStore, record_boundaries, record_boundary_before

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
    is_damaged = not _ours_is_sound(store, offset) and await _theirs_is_sound(peer, offset, theirs, store.segment_bytes)
    return CommonEnd(offset, is_damaged)


async def _digests(store: MessageStore, ranges: Sequence[LogRange]) -> list[bytes]:
    return [await digest_of(store, item) for item in ranges]


def _ours_is_sound(store: MessageStore, offset: int) -> bool:
    """A record, or the filler of a file's end; at the end of the log it may be a part of one."""
    if offset >= store.end_offset:
        return True
    data = store.read_log(offset, store.segment_bytes)
    found = scan_record(data, 0, len(data), physical_offset=offset)
    return isinstance(found, RecordFound | Blank) or found is ScanStop.INCOMPLETE


async def _theirs_is_sound(peer: PeerClient, offset: int, theirs: LogExtent, segment_bytes: int) -> bool:
    end_offset = min(theirs.end_offset, offset - offset % segment_bytes + segment_bytes, offset + _RECORD_BYTES_MAX)
    if not theirs.min_offset <= offset < end_offset:
        return False
    data = b""
    async for _, piece in peer.read_log(LogRange(offset, end_offset)):
        data += piece
        found = scan_record(data, 0, len(data), physical_offset=offset)
        if found is not ScanStop.INCOMPLETE:
            return isinstance(found, RecordFound | Blank)
    return False
