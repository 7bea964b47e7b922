"""Records of the store as queries read them: only the parts that are wanted, and no page of them cold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from broker.queries.bodies import compression_of, unpacked
from broker.queries.commit_log_pages import LogRange, Pages
from broker.queries.values import Body
from mqcore.message.record import MessageRecord
from mqcore.message.record_decoder import (
    RECORD_HEAD_BYTES_MAX,
    RECORD_TAIL_BYTES_MAX,
    RecordOutline,
    decode_record,
    read_record_outline,
)
from mqcore.message.record_layout import COMPRESSED, MalformedRecord
from mqcore.message.stored_message import read_store_timestamp_ms
from mqcore.storage.consume_queue import ConsumeQueue
from mqcore.storage.consume_queue_table import ConsumeQueueTable

__all__ = ["ReadableStore", "StoredRecords"]

_SIZE_BYTES: Final = 4
_INLINE_BODY_BYTES_MAX: Final = 32 << 10
"""Smaller bodies are unpacked at once; others, by a thread."""


class ReadableStore(Protocol):
    """The part of `MessageStore` that queries read."""

    @property
    def min_offset(self) -> int:
        """Oldest byte of the CommitLog."""

    @property
    def end_offset(self) -> int:
        """One past its last byte."""

    @property
    def flushed_offset(self) -> int:
        """One past its last byte on disk."""

    @property
    def segment_bytes(self) -> int:
        """Length of a CommitLog file."""

    @property
    def log_cuts(self) -> int:
        """Counts truncations."""

    @property
    def queues(self) -> ConsumeQueueTable:
        """All ConsumeQueues."""

    def consume_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """One of them, up to date."""

    def read_log(self, offset: int, max_bytes: int) -> memoryview:
        """Bytes of the log, no copy."""

    def index_walk(self, topic: str, key: str, *, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Where records with a key may start."""


class StoredRecords:
    """Reads what lies at given places. Event loop only; never holds it for longer than a few records take."""

    def __init__(self, store: ReadableStore, pages: Pages) -> None:
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
