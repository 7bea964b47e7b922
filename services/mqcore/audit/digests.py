"""Digests of a log's extents: what replicas are compared by before a byte of them is looked at.

Extents lie at absolute multiples of their length, so that the digests of different replicas, and of different runs, are
of the same bytes. The first and the last of a range may be partial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from mqcore.audit.replica_store import ReplicaStore
from mqcore.replication.log_extent import LogRange

__all__ = ["EXTENT_BYTES", "ExtentDigest", "Hash", "digest_extents", "extents_of"]

EXTENT_BYTES: Final = 4 << 20


class Hash(Protocol):
    """What hashlib's objects, xxhash's and blake3's have in common."""

    def update(self, data: memoryview, /) -> object:
        """Takes bytes."""

    def digest(self) -> bytes:
        """Of all bytes taken."""


class ExtentDigest(NamedTuple):
    """Of the bytes [start_offset, end_offset) of one replica."""

    start_offset: int
    end_offset: int
    digest: bytes
    """Empty: some of these bytes have no file."""


def extents_of(log_range: LogRange, extent_bytes: int) -> Iterator[LogRange]:
    """The extents of a range, the first and the last cut to it."""
    start = log_range.start_offset
    while start < log_range.end_offset:
        end = min(start - start % extent_bytes + extent_bytes, log_range.end_offset)
        yield LogRange(start, end)
        start = end


def digest_extents(
    store: ReplicaStore,
    log_range: LogRange,
    *,
    extent_bytes: int,
    new_hash: Callable[[], Hash],
    piece_bytes: int | None = None,
) -> Iterator[ExtentDigest]:
    """The digest of each extent of a range, in order. Holes of the log are not read.

    `piece_bytes`: read and hashed at once, an extent if it is not given; it does not change a digest. A piece that fits
    the processor's cache costs half as much where every read copies; large ones suit reads past the page cache.
    Bytes within one file are not copied here; where a piece spans two they are joined first.
    """
    holes = store.facts.holes
    for start, end in extents_of(log_range, extent_bytes):
        if holes and any(hole.start_offset < end and start < hole.end_offset for hole in holes):
            yield ExtentDigest(start, end, b"")
            continue
        hashed = new_hash()
        for piece in extents_of(LogRange(start, end), piece_bytes or extent_bytes):
            hashed.update(store.read_log(piece.start_offset, piece.end_offset))
        yield ExtentDigest(start, end, hashed.digest())
