"""IndexFile: finds records by key. A hash table of fixed size in one mapped file (RocketMQ's IndexFile, IndexHeader).

Big-endian. Header, then `slot_count` slots of 4 bytes, then entries of 20 bytes; entry 0 is never used.

| header offset | size | name           | meaning                                              |
|---------------|------|----------------|------------------------------------------------------|
| 0             | 8    | beginTimestamp | store timestamp of the first record, ms              |
| 8             | 8    | endTimestamp   | of the last one                                      |
| 16            | 8    | beginPhyOffset | where the first record starts                        |
| 24            | 8    | endPhyOffset   | where the last one starts                            |
| 32            | 4    | hashSlotCount  | slots in use                                         |
| 36            | 4    | indexCount     | number of the next entry, 1 at first                 |

A slot holds the number of its newest entry, 0 for none.

| entry offset | size | name      | meaning                                                         |
|--------------|------|-----------|-----------------------------------------------------------------|
| 0            | 4    | keyHash   | see key_hash                                                    |
| 4            | 8    | phyOffset | where the record starts                                         |
| 12           | 4    | timeDiff  | its store timestamp - beginTimestamp, whole seconds             |
| 16           | 4    | previous  | number of the next older entry of the slot, 0 for none          |

The header counts entries before they are written, and a slot leads to an entry only after it: a process killed in
between leaves entries that cannot be found, never a slot that leads astray. A machine that stops leaves anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from struct import Struct, unpack
from types import FunctionType
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, write_i64_le
from mypy_extensions import i64

from tandemmq.core.message.properties import extend_hash, java_hash
from tandemmq.core.offsets import PhysicalOffset
from tandemmq.core.storage.disk import MappedSegment

if TYPE_CHECKING:
    from tandemmq.core.storage.record_batch import IndexColumns


# What an index holds for a message: a hash for each key, and one for its tag. Made for every message stored.

HASH_BYTES: Final = 8
"""Size of one hash that `add_term_hashes` has added."""
_TOPICS_MAX: Final = 16_384
_TAGS_MAX: Final = 1_024
_BITS: Final = 0xFFFF_FFFF


class _TopicTerms:
    """What is kept of one topic: where the hash of "topic#key" starts from, and the hashes of tags, which repeat."""

    __slots__ = ("start", "tags")

    def __init__(self, topic: str) -> None:
        self.start = java_hash(f"{topic}#")
        self.tags: dict[str, int] = {}


_topics: Final[dict[str, _TopicTerms]] = {}
"""The last few. It forgets everything when it is full, as do the tags of a topic."""


def term_hashes(topic: str, keys: Sequence[str], tag: str | None) -> list[int]:
    """The hashes of a message in the order in which it is entered: its keys, then its tag. See `key_hash`."""
    hashes = BytesWriter()
    add_term_hashes(hashes, topic, tuple(keys), tag)
    return hashes_of(hashes)


def hashes_of(added: BytesWriter) -> list[int]:
    return list(unpack(f"<{len(added) // HASH_BYTES}q", added.getvalue()))


def add_term_hashes(hashes: BytesWriter, topic: str, keys: tuple[str, ...], tag: str | None) -> int:
    """Adds what `term_hashes` gives to `hashes`, each as `HASH_BYTES`, little-endian; returns how many they are."""
    known = _topics.get(topic)
    if known is None:
        if len(_topics) >= _TOPICS_MAX:
            _topics.clear()
        known = _topics[topic] = _TopicTerms(topic)
    for key in keys:
        write_i64_le(hashes, without_sign(_extended(known.start, key)))
    if not tag:
        return len(keys)
    tagged = known.tags.get(tag)
    if tagged is None:
        if len(known.tags) >= _TAGS_MAX:
            known.tags.clear()
        tagged = known.tags[tag] = without_sign(_extended(known.start, f"T#{tag}"))
    write_i64_le(hashes, tagged)
    return len(keys) + 1


def without_sign(bits: i64) -> i64:
    """What an index holds for a hash of 32 bits: Java's Math.abs, and 0 for the one value that has no counterpart."""
    if bits & 0x8000_0000:
        return (0x1_0000_0000 - bits) & 0x7FFF_FFFF
    return bits


def ascii_extended(start: i64, data: bytes) -> i64:
    """The 32 bits of a text's hash; `start` is the hash of its beginning, and `data` is the rest."""
    value = start
    for index in range(len(data)):
        value = (value * 31 + data[index]) & 0xFFFF_FFFF
    return value & 0xFFFF_FFFF


def _extended(start: int, text: str) -> int:
    """The 32 bits of `extend_hash`."""
    if _IS_COMPILED:
        try:
            data = text.encode()
        except UnicodeEncodeError:  # Half a surrogate pair, which Java's strings may hold.
            return extend_hash(start, text) & _BITS
        if len(data) == len(text):
            return ascii_extended(start, data)
    return extend_hash(start, text) & _BITS


# Compiled, a loop over the bytes of a text is the fastest there is; for the interpreter it is the slowest.
_IS_COMPILED: Final = not isinstance(_extended, FunctionType)
_HEADER: Final = Struct(">qqqqii")
_SLOT: Final = Struct(">i")
_ENTRY: Final = Struct(">iqii")
_MOST_SECONDS: Final = 0x7FFF_FFFF
_SLOTS_PIECE: Final = 1 << 16
"""Counted at once: half a megabyte of numbers."""
_HASH_BITS: Final = 0xFFFF_FFFF
_USED_SLOTS_AT: Final = 32
_SLOTS_START: Final = _HEADER.size
_HEADER_BYTES: Final = _HEADER.size
_SLOT_BYTES: Final = _SLOT.size
_ENTRY_BYTES: Final = _ENTRY.size

_write_header: Final = _HEADER.pack_into
_read_slot: Final = _SLOT.unpack_from
_write_slot: Final = _SLOT.pack_into
_write_entry: Final = _ENTRY.pack_into


def index_file_bytes(*, slot_count: int, entry_count: int) -> int:
    return _HEADER_BYTES + slot_count * _SLOT_BYTES + entry_count * _ENTRY_BYTES


@lru_cache(maxsize=16_384)
def _topic_hash(topic: str) -> int:
    """What the hash of "topic#key" starts from."""
    return java_hash(f"{topic}#")


@lru_cache(maxsize=16_384)
def tag_hash(topic: str, tag: str) -> int:
    """What an index holds for a tag, from RocketMQ 5.5 on. Tags repeat, so the last few are remembered."""
    return without_sign(java_hash(f"{topic}#T#{tag}") & _HASH_BITS)


def key_hash(topic: str, key: str) -> int:
    """What an index holds for a key of a topic: the absolute value of Java's hash of "topic#key"."""
    return without_sign(extend_hash(_topic_hash(topic), key) & _HASH_BITS)


class IndexFile:
    """One file of the index. One thread only, but `sync` may run in another."""

    def __init__(self, segment: MappedSegment, *, slot_count: int, entry_count: int) -> None:
        """Reads the header of a mapped file, which may be all zeros."""
        self.segment = segment
        """The file itself; for who removes it."""
        self._view = segment.view
        self.slot_count = slot_count
        self._entries_start = _SLOTS_START + slot_count * _SLOT_BYTES
        self.entry_count: Final = entry_count
        """Numbers there are; the one of them that is 0 is not used."""
        self.read_header()

    def read_header(self) -> None:
        """As the file says now: it was opened, or its bytes were put in place by a repair."""
        header: tuple[int, int, int, int, int, int] = _HEADER.unpack_from(self._view)
        self.begin_timestamp_ms, self.end_timestamp_ms = header[0:2]
        self.begin_physical_offset, self.end_physical_offset = header[2:4]
        self._used_slots = header[4]
        self.next_entry = max(1, header[5])

    @property
    def path(self) -> str:
        return self.segment.path

    @property
    def is_full(self) -> bool:
        """Whether the next entry needs another file."""
        return self.next_entry >= self.entry_count

    def entry_position(self, number: int) -> int:
        """Where an entry is in the file; slots end before entry 0, which is not used."""
        return self._entries_start + number * _ENTRY_BYTES

    @property
    def entries_end(self) -> int:
        """Where the next entry goes in the file."""
        return self._entries_start + self.next_entry * _ENTRY_BYTES

    @property
    def is_empty(self) -> bool:
        return self.next_entry <= 1

    @property
    def is_plausible(self) -> bool:
        """Whether the header could have been written by a store: what is left when a machine lost power may not."""
        return 1 <= self.next_entry <= self.entry_count and 0 <= self.begin_physical_offset <= self.end_physical_offset

    def continue_after(self, previous: IndexFile) -> None:
        """Starts a new file with the end of the one before it, as RocketMQ does; the first entry corrects it."""
        self.begin_timestamp_ms = self.end_timestamp_ms = previous.end_timestamp_ms
        self.begin_physical_offset = self.end_physical_offset = previous.end_physical_offset
        self._write_header()

    def add(self, hashes: Sequence[int], physical_offset: int, store_timestamp_ms: int) -> int:
        """Enters a record under each of `hashes`, as far as there is room. Returns how many were entered.

        The hottest loop of a put: three times for a message with a unique id, a key and a tag.
        """
        entry = self.next_entry
        count = len(hashes)
        if entry + count > self.entry_count:
            count = self.entry_count - entry
            if count <= 0:
                return 0
            hashes = hashes[:count]
        seconds = self._seconds_since_begin(store_timestamp_ms)
        if entry == 1:
            self.begin_timestamp_ms = store_timestamp_ms
            self.begin_physical_offset = physical_offset
        self.end_timestamp_ms = store_timestamp_ms
        self.end_physical_offset = physical_offset
        self.next_entry = entry + count
        view = self._view
        used_slots = self._used_slots
        slot_count = self.slot_count
        _write_header(
            view,
            0,
            self.begin_timestamp_ms,
            store_timestamp_ms,
            self.begin_physical_offset,
            physical_offset,
            used_slots,
            entry + count,
        )
        position = self._entries_start + entry * _ENTRY_BYTES
        for hashed in hashes:
            slot = hashed % slot_count * _SLOT_BYTES + _SLOTS_START
            (previous,) = _read_slot(view, slot)
            if not 0 < previous < entry:
                previous = 0
                used_slots += 1
            _write_entry(view, position, hashed, physical_offset, seconds, previous)
            _write_slot(view, slot, entry)
            position += _ENTRY_BYTES
            entry += 1
        if used_slots != self._used_slots:
            self._used_slots = used_slots
            _write_slot(view, _USED_SLOTS_AT, used_slots)
        return count

    @property
    def room(self) -> int:
        return self.entry_count - self.next_entry

    def add_columns(self, columns: IndexColumns) -> None:
        """Enters many records, which fit, into a file that has an entry: as `add` would one after the other."""
        first_entry = self.next_entry
        assert first_entry > 1, "the first entry sets the begin of a file"
        assert 0 < len(columns) <= self.room, "entries for another file"
        self.end_timestamp_ms = int(columns.store_timestamps_ms[-1])
        self.end_physical_offset = int(columns.physical_offsets[-1])
        self.next_entry = first_entry + len(columns)
        self._write_header()
        self._used_slots += columns.write(
            self._view,
            slots_start=_SLOTS_START,
            slot_count=self.slot_count,
            entries_start=self._entries_start,
            first_entry=first_entry,
            begin_timestamp_ms=self.begin_timestamp_ms,
        )
        _write_slot(self._view, _USED_SLOTS_AT, self._used_slots)

    def records(self, hashed: int, *, begin_ms: int, end_ms: int) -> Iterator[PhysicalOffset]:
        """Records under a hash and stored in [begin_ms, end_ms], newest first. Other keys may share the hash.

        Store times are known to the second: a record of the second before `begin_ms` may be among them.
        """
        for physical_offset in self.chain(hashed, begin_ms=begin_ms, end_ms=end_ms):
            if physical_offset is not None:
                yield physical_offset

    def chain(self, hashed: int, *, begin_ms: int, end_ms: int) -> Iterator[PhysicalOffset | None]:
        """The same, with None for each entry on the way that does not match, so that a long walk may stop anywhere.

        What is entered meanwhile does not disturb the walk; after a `truncate` it ends sooner or later by itself.
        """
        view = self._view
        (entry,) = _read_slot(view, _SLOTS_START + hashed % self.slot_count * _SLOT_BYTES)
        newer = self.next_entry
        while 0 < entry < newer:  # Chains lead to ever lower numbers; anything else is damage, and ends the walk.
            found, physical_offset, seconds, previous = _ENTRY.unpack_from(
                view, self._entries_start + entry * _ENTRY_BYTES
            )
            # Entry 1 of a continued file counts from the end of the file before it, but it is the begin by definition.
            stored_ms = self.begin_timestamp_ms + (seconds * 1000 if entry > 1 else 0)
            if stored_ms + 999 < begin_ms:
                return
            yield PhysicalOffset(physical_offset) if found == hashed and stored_ms <= end_ms else None
            newer, entry = entry, previous

    def truncate(self, physical_end: int, stored_ms: Callable[[int], int | None]) -> None:
        """Takes back the entries of records that start at or beyond `physical_end`, newest first, and those a killed
        process had only counted. The file is then what entering the others alone would have left.

        `stored_ms` knows the store time of a record. Undoing the entries in this order restores every slot exactly:
        one that a kill kept from its slot is not found there.
        """
        view = self._view
        end = self.next_entry
        while not self.is_empty:
            entry = self.next_entry - 1
            position = self._entries_start + entry * _ENTRY_BYTES
            hashed, physical_offset, _, previous = _ENTRY.unpack_from(view, position)
            is_written = physical_offset > 0 or (self.begin_physical_offset == 0 and hashed != 0)
            if is_written and physical_offset < physical_end:
                break
            slot = _SLOTS_START + hashed % self.slot_count * _SLOT_BYTES
            if _read_slot(view, slot)[0] == entry:
                _write_slot(view, slot, previous)
            view[position : position + _ENTRY_BYTES] = bytes(_ENTRY_BYTES)
            self.next_entry = entry
        if not self.is_empty:
            if self.next_entry == end and self.end_physical_offset == physical_offset:
                return
            self.end_physical_offset = physical_offset
            self.end_timestamp_ms = stored_ms(physical_offset) or self.end_timestamp_ms
            self._used_slots = self._count_used_slots()
        self._write_header()

    def _count_used_slots(self) -> int:
        """A killed process may not have come to write down how many they are."""
        slots = self._view[_SLOTS_START : self._entries_start].cast("i")
        pieces = range(0, self.slot_count, _SLOTS_PIECE)
        return self.slot_count - sum(slots[start : start + _SLOTS_PIECE].tolist().count(0) for start in pieces)

    @property
    def last_record_entries(self) -> int:
        """How many entries the last record has here: a file may have become full in the middle of it."""
        entry = self.next_entry
        while entry > 1:
            position = self._entries_start + (entry - 1) * _ENTRY_BYTES
            if _ENTRY.unpack_from(self._view, position)[1] != self.end_physical_offset:
                break
            entry -= 1
        return self.next_entry - entry

    @property
    def first_record_entries(self) -> int:
        """How many entries the first record has here: the file before may have become full in the middle of it."""
        entry = 1
        while entry < self.next_entry:
            position = self._entries_start + entry * _ENTRY_BYTES
            if _ENTRY.unpack_from(self._view, position)[1] != self.begin_physical_offset:
                break
            entry += 1
        return entry - 1

    def overlaps(self, *, begin_ms: int, end_ms: int) -> bool:
        """Whether some record of the file may have been stored in [begin_ms, end_ms]."""
        return not self.is_empty and self.begin_timestamp_ms <= end_ms and begin_ms <= self.end_timestamp_ms

    def sync(self) -> None:
        """Blocks until everything entered before is durable; may run in another thread."""
        self.segment.sync()

    def close(self) -> None:
        self.segment.close()

    def _seconds_since_begin(self, store_timestamp_ms: int) -> int:
        if self.begin_timestamp_ms <= 0:
            return 0
        seconds = (store_timestamp_ms - self.begin_timestamp_ms) // 1000
        return seconds if 0 <= seconds <= _MOST_SECONDS else max(0, min(seconds, _MOST_SECONDS))

    def _write_header(self) -> None:
        _write_header(
            self._view,
            0,
            self.begin_timestamp_ms,
            self.end_timestamp_ms,
            self.begin_physical_offset,
            self.end_physical_offset,
            self._used_slots,
            self.next_entry,
        )
