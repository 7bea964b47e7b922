"""Records of the store as queries read them: only the parts that are wanted, and no page of them cold."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from tandemmq.broker.audit.store_files import OpenFile
from tandemmq.broker.queries.values import Body
from tandemmq.core.message.record import (
    RECORD_HEAD_BYTES_MAX,
    RECORD_TAIL_BYTES_MAX,
    MessageRecord,
    RecordOutline,
    decode_record,
    read_record_outline,
)
from tandemmq.core.message.record_layout import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_ZSTD,
    CRC_MASK,
    MalformedRecord,
    crc32,
)
from tandemmq.core.message.stored_message import read_store_timestamp_ms
from tandemmq.core.storage.commit_log import file_name
from tandemmq.service.page_cache import resident_pages

if TYPE_CHECKING:
    from tandemmq.core.storage.message_store import MessageStore


# Brings parts of the CommitLog into the page cache before the event loop touches them.
#
# The log is mapped. Touching a page of it that the cache does not hold stops the whole process until the disk has
# answered: the interpreter's lock is held meanwhile, in whichever thread. A read of the file lets go of that lock. So
# what is cold is read once by a thread, and then found warm in the map; what is warm costs one question to the kernel.

LogRange: TypeAlias = tuple[int, int]
"""Bytes [start, end) of the CommitLog."""

_OPEN_FILES_MAX: Final = 8
_GAP_BYTES: Final = 32 << 10
"""Ranges so near to each other are one: reading what lies between takes no longer than a second read."""
_READS_AT_ONCE: Final = 2
"""The threads are shared with others, and so is the disk."""
_PIECE_BYTES: Final = 1 << 20


class Pages(Protocol):
    """Makes memory of what is on disk."""

    async def fetch(self, ranges: Sequence[LogRange]) -> None:
        """Returns when touching these bytes waits for no disk, as far as that can be had."""


class CommitLogPages:
    """`Pages` over the files of `folder`, each of `file_bytes`. Event loop only."""

    def __init__(self, folder: Path, *, file_bytes: int) -> None:
        self._folder: Final = str(folder)
        self._file_bytes: Final = file_bytes
        self._open: OrderedDict[int, OpenFile] = OrderedDict()
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    async def fetch(self, ranges: Sequence[LogRange]) -> None:
        """See `Pages`. What cannot be read is left: whoever touches it finds out why."""
        absent = [piece for piece in self._pieces(ranges) if not self._is_resident(*piece)]
        if absent:
            async with self._reads:
                await asyncio.to_thread(_read_all, absent)

    def are_resident(self, ranges: Sequence[LogRange]) -> bool:
        """Touching these bytes waits for no disk. What cannot be read counts as here, as `fetch` leaves it."""
        return all(self._is_resident(*piece) for piece in self._pieces(ranges))

    def _pieces(self, ranges: Sequence[LogRange]) -> list[tuple[OpenFile, int, int]]:
        """The ranges joined where they are near, cut where a file ends: file, offset within it, length."""
        joined: list[list[int]] = []
        for start, end in sorted(ranges):
            if joined and start <= joined[-1][1] + _GAP_BYTES:
                joined[-1][1] = max(joined[-1][1], end)
            elif start < end:
                joined.append([start, end])
        pieces = []
        for start, end in joined:
            while start < end:
                within = start % self._file_bytes
                length = min(end - start, self._file_bytes - within)
                file = self._file(start - within)
                if file is not None:
                    pieces.append((file, within, length))
                start += length
        return pieces

    def _file(self, start_offset: int) -> OpenFile | None:
        file = self._open.get(start_offset)
        if file is not None:
            self._open.move_to_end(start_offset)
            return file
        try:
            file = OpenFile.of_path(f"{self._folder}/{file_name(start_offset)}")
        except OSError:
            return None  # It expired, or was never there.
        self._open[start_offset] = file
        if len(self._open) > _OPEN_FILES_MAX:
            self._open.popitem(last=False)
        return file

    @staticmethod
    def _is_resident(file: OpenFile, offset: int, length: int) -> bool:
        return all(resident_pages(file.number, offset, length))


def _read_all(pieces: Sequence[tuple[OpenFile, int, int]]) -> None:
    """Reads and forgets. In a thread: the reads let go of the interpreter's lock."""
    buffer = memoryview(bytearray(min(_PIECE_BYTES, max(length for _, _, length in pieces))))
    for file, offset, length in pieces:
        done = 0
        while done < length:
            try:
                count = os.preadv(file.number, [buffer[: length - done]], offset + done)
            except OSError:
                break
            if not count:
                break
            done += count


# Unpacks bodies, and never more of one than is wanted: a few bytes of a compressed one may stand for gigabytes.

_BY_FLAG: Final = {COMPRESSION_LZ4: "lz4", COMPRESSION_ZSTD: "zstd"}
"""By sysFlag; everything else is zlib, as clients before 5.0 wrote it."""
_BY_MAGIC: Final = (
    (b"\x1f\x8b", "gzip"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)
"""Clients of the gRPC API say only that a body is compressed, and readers look at its first bytes."""
_ANY_ZLIB: Final = 32 + zlib.MAX_WBITS
"""Takes zlib's header and gzip's."""
_ZSTD_WINDOW_BYTES_MAX: Final = 16 << 20
"""A frame may ask for 2 GiB of memory. RocketMQ's clients compress at levels that need 8 MiB at most."""


def compression_of(sys_flag: int, first_bytes: bytes) -> str:
    """zlib, gzip, lz4 or zstd; empty: the body is not compressed. Without `first_bytes` the flag alone counts."""
    if not sys_flag & COMPRESSED:
        return ""
    for magic, name in _BY_MAGIC:
        if first_bytes.startswith(magic):
            return name
    return _BY_FLAG.get(sys_flag & COMPRESSION_TYPE_MASK, "zlib")


def unpacked(stored: bytes, *, sys_flag: int, body_crc: int | None, max_bytes: int) -> Body:
    """The first `max_bytes` of a body, unpacked. `stored` is all of it, or at least as much if it is not compressed.

    `body_crc` None: not checked. Takes 3 ms for each MiB that comes out; may run in a thread.
    """
    assert max_bytes > 0, "to zlib 0 means without end"
    compression = compression_of(sys_flag, stored[:4])
    problem = ""
    if body_crc is not None and crc32(stored) & CRC_MASK != body_crc:
        problem = "the body does not match its checksum (bodyCRC): this copy is damaged"
    if not compression:
        return Body(stored[:max_bytes], "", problem)
    unpack = _UNPACK.get(compression)
    if unpack is None:
        return Body(b"", compression, problem or f"this broker cannot unpack {compression}")
    try:
        return Body(unpack(stored, max_bytes), compression, problem)
    except tuple(_UNPACK_ERRORS) as error:
        return Body(b"", compression, problem or f"it says it is compressed by {compression}, and is not: {error}")


def _unzipped(stored: bytes, max_bytes: int) -> bytes:
    return zlib.decompressobj(_ANY_ZLIB).decompress(stored, max_bytes)


def _from_lz4(stored: bytes, max_bytes: int) -> bytes:
    assert _lz4_frame is not None, "there is no lz4"
    data: bytes = _lz4_frame.LZ4FrameDecompressor().decompress(stored, max_length=max_bytes)
    return data


def _from_zstd(stored: bytes, max_bytes: int) -> bytes:
    assert _zstandard is not None, "there is no zstandard"
    decompressor = _zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    with decompressor.stream_reader(stored) as reader:
        data: bytes = reader.read(max_bytes)
        return data


def _module(name: str) -> ModuleType | None:
    """A package an image may lack: only a store taken over from a Java broker has bodies for it."""
    try:
        return import_module(name)
    except ImportError:
        return None


_lz4_frame: Final = _module("lz4.frame")
_zstandard: Final = _module("zstandard")
_UNPACK: Final[dict[str, Callable[[bytes, int], bytes]]] = {"zlib": _unzipped, "gzip": _unzipped}
_UNPACK_ERRORS: list[type[Exception]] = [zlib.error, EOFError]
if _lz4_frame is not None:
    _UNPACK["lz4"] = _from_lz4
    _UNPACK_ERRORS.append(RuntimeError)
if _zstandard is not None:
    _UNPACK["zstd"] = _from_zstd
    _UNPACK_ERRORS.append(_zstandard.ZstdError)
_SIZE_BYTES: Final = 4
_INLINE_BODY_BYTES_MAX: Final = 32 << 10
"""Smaller bodies are unpacked at once; others, by a thread."""


class StoredRecords:
    """Reads what lies at given places. Event loop only; never holds it for longer than a few records take."""

    def __init__(self, store: MessageStore, pages: Pages) -> None:
        self._store = store
        self._pages = pages

    async def outlines(self, places: Sequence[tuple[int, int]]) -> list[RecordOutline | None]:
        """The records at (physical offset, size), a few dozen; None for one that has expired or cannot be read."""
        longest = self._store.segment_bytes
        await self._pages.fetch(
            [part for offset, size in places if 0 < size <= longest for part in _outer_parts(offset, size)]
        )
        return [self._outline(offset, size) if 0 < size <= longest else None for offset, size in places]

    async def outline_at(self, physical_offset: int) -> RecordOutline | None:
        """The record that begins there; None if none does."""
        await self._pages.fetch([(physical_offset, physical_offset + RECORD_HEAD_BYTES_MAX)])
        size = int.from_bytes(self._store.read_log(physical_offset, _SIZE_BYTES), signed=True)
        (outline,) = await self.outlines([(physical_offset, size)])
        return outline

    async def whole(self, physical_offset: int, size: int) -> MessageRecord | None:
        """All of a record, as stored and with its CRC checked; None as in `outlines`."""
        if not 0 < size <= self._store.segment_bytes:
            return None
        await self._pages.fetch([(physical_offset, physical_offset + size)])
        try:
            record = decode_record(self._store.read_log(physical_offset, size))
        except MalformedRecord:
            return None
        return record if (record.physical_offset, record.total_size) == (physical_offset, size) else None

    async def store_ms(self, physical_offset: int) -> int | None:
        """When the record was stored that begins there; None as in `outlines`."""
        await self._pages.fetch([(physical_offset, physical_offset + RECORD_HEAD_BYTES_MAX)])
        return read_store_timestamp_ms(self._store.read_log(physical_offset, RECORD_HEAD_BYTES_MAX), physical_offset)

    async def body(self, outline: RecordOutline, *, max_bytes: int) -> Body:
        """The first bytes of a record's body, unpacked; its checksum is compared when all of it is read."""
        is_compressed = bool(outline.sys_flag & COMPRESSED)
        if max_bytes < 1 or not outline.body_bytes:
            return Body(b"", compression_of(outline.sys_flag, b""))
        stored_bytes = outline.body_bytes if is_compressed else min(outline.body_bytes, max_bytes)
        await self._pages.fetch([(outline.body_offset, outline.body_offset + stored_bytes)])
        # A slave may have cut its log meanwhile, and hold another record there.
        if self._outline(outline.physical_offset, outline.total_size) != outline:
            return Body(b"", compression_of(outline.sys_flag, b""), "it expired or was cut off while it was read")
        stored = bytes(self._store.read_log(outline.body_offset, stored_bytes))
        body_crc = outline.body_crc if stored_bytes == outline.body_bytes else None
        if stored_bytes <= _INLINE_BODY_BYTES_MAX and (not is_compressed or max_bytes <= _INLINE_BODY_BYTES_MAX):
            return unpacked(stored, sys_flag=outline.sys_flag, body_crc=body_crc, max_bytes=max_bytes)
        return await asyncio.to_thread(
            unpacked, stored, sys_flag=outline.sys_flag, body_crc=body_crc, max_bytes=max_bytes
        )

    def _outline(self, physical_offset: int, size: int) -> RecordOutline | None:
        try:
            outline = read_record_outline(self._store.read_log(physical_offset, size), physical_offset)
        except MalformedRecord:
            return None
        return outline if outline.total_size == size else None


def _outer_parts(offset: int, size: int) -> list[LogRange]:
    """What an outline touches of a record."""
    if size <= RECORD_HEAD_BYTES_MAX + RECORD_TAIL_BYTES_MAX:
        return [(offset, offset + max(size, RECORD_HEAD_BYTES_MAX))]
    return [(offset, offset + RECORD_HEAD_BYTES_MAX), (offset + size - RECORD_TAIL_BYTES_MAX, offset + size)]


# When a message was stored, read from its record's head alone.


_HEAD_BYTES: Final = 256
"""Of a record; more than its fixed fields take."""


def read_stored_at_ms(store: MessageStore, physical_offset: int) -> int | None:
    """Wall clock in ms; None if no record begins there. May read from the disk."""
    return read_store_timestamp_ms(store.read_log(physical_offset, _HEAD_BYTES), physical_offset)
