"""What an IndexFile says of itself, held against its first and its last entry and against the records they lead to.

A search looks at the header first: a file whose times do not reach is passed over, and all times count from its begin.

The length of a file does not tell how many of its bytes are slots. RocketMQ has four entries a slot; any other number
is found by looking for the first entry, which leads to where the header says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from mqcore.audit.log_walk import LONGEST_RECORD_BYTES
from mqcore.audit.record_names import RecordName, read_name
from mqcore.audit.replica_files import StoreEntry
from mqcore.audit.replica_store import ReplicaStore

__all__ = ["ENTRY_BYTES", "HEADER_BYTES", "INDEX_ENTRIES", "SLOT_BYTES", "IndexFile", "read_index_file"]

Entries: TypeAlias = npt.NDArray[np.void]

INDEX_ENTRIES: Final = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
SLOT_BYTES: Final = 4
ENTRY_BYTES: Final = INDEX_ENTRIES.itemsize
_HEADER: Final = Struct(">qqqqii")
HEADER_BYTES: Final = _HEADER.size
_OFFSET: Final = Struct(">q")
_ENTRIES_PER_SLOT: Final = 4
_SEARCHED_BYTES_MAX: Final = 64 << 20
"""A longer file of an unusual layout is not looked into."""
_UNWRITTEN_MAX: Final = 64
"""Entries of one record: a killed process may have counted them and written none."""
_BLOCK: Final = 1 << 16
_SAMPLES: Final = 16
_SECOND_MS: Final = 1000
_MOST_SECONDS: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class IndexFile:
    """What the header and the length of a file say; where the header is wrong, what it should say."""

    store: ReplicaStore
    name: str
    slot_count: int
    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_offset: int
    end_offset: int
    """Where its last record starts."""
    next_entry: int
    """One past its last entry; the first is 1."""
    room: int
    """One past the last entry that the file is long enough for."""
    problem: str = ""
    """What is wrong with the header; empty: nothing."""

    @property
    def path(self) -> str:
        """Below the store's root."""
        return f"index/{self.name}"

    def entry_position(self, number: int) -> int:
        """Of an entry in the file."""
        return HEADER_BYTES + self.slot_count * SLOT_BYTES + number * ENTRY_BYTES

    def entries(self, first: int, end: int) -> Entries:
        """Entries [first, end), fewer where the file ends."""
        data = self.store.read_file(self.path, self.entry_position(first), max(0, end - first) * ENTRY_BYTES)
        # A copy: what a store gives is good until its next read.
        return np.frombuffer(bytes(data), dtype=INDEX_ENTRIES, count=len(data) // ENTRY_BYTES)


def read_index_file(store: ReplicaStore, entry: StoreEntry) -> IndexFile | None:
    """None: no header, or a layout that is not known. A running broker's header is taken as it is: it is at work."""
    data = bytes(store.read_file(f"index/{entry.name}", 0, HEADER_BYTES))
    if len(data) < HEADER_BYTES:
        return None
    begin_timestamp_ms, end_timestamp_ms, begin_offset, end_offset, _, next_entry = _HEADER.unpack(data)
    slot_count = _slot_count(store, entry, begin_offset)
    if slot_count is None:
        return None
    room = (entry.size - HEADER_BYTES - slot_count * SLOT_BYTES) // ENTRY_BYTES
    file = IndexFile(
        store=store,
        name=entry.name,
        slot_count=slot_count,
        begin_timestamp_ms=begin_timestamp_ms,
        end_timestamp_ms=end_timestamp_ms,
        begin_offset=begin_offset,
        end_offset=end_offset,
        next_entry=max(1, min(next_entry, room)),
        room=room,
    )
    if store.facts.is_running:
        return file
    if not 0 <= next_entry <= room:
        file = replace(file, next_entry=_written_end(file, room), problem=f"it counts {next_entry - 1} entries")
    return _with_right_end(_with_right_begin(file))


def _with_right_begin(file: IndexFile) -> IndexFile:
    first = file.entries(1, 2)
    if not len(first) or not any(first.tobytes()):
        return file
    offset = int(first["offset"][0])
    if offset != file.begin_offset:
        if _record(file.store, offset) is None:
            return file  # The entry is wrong, or its record is: both are found elsewhere.
        problem = f"it begins with the record at {file.begin_offset}; its first entry leads to {offset}"
        file = replace(file, begin_offset=offset, problem=problem)
    record = _record(file.store, offset)
    if record is not None and record.store_timestamp_ms != file.begin_timestamp_ms:
        mended = replace(file, begin_timestamp_ms=record.store_timestamp_ms)
        # The record's time may be what was changed: other records tell.
        if _right_times(file) < _right_times(mended):
            problem = f"it begins at {file.begin_timestamp_ms} ms; its first record is of {record.store_timestamp_ms}"
            return replace(mended, problem=problem)
    return file


def _right_times(file: IndexFile) -> int:
    """How many of some entries have the times of their records, counted from the file's begin."""
    right = 0
    for number in range(2, file.next_entry, max(1, file.next_entry // _SAMPLES)):
        entries = file.entries(number, number + 1)
        offset = int(entries["offset"][0]) if len(entries) else file.begin_offset
        record = _record(file.store, offset) if offset != file.begin_offset else None
        right += record is not None and int(entries["seconds"][0]) == _seconds(file, record)
    return right


def _seconds(file: IndexFile, record: RecordName) -> int:
    return min(max(0, (record.store_timestamp_ms - file.begin_timestamp_ms) // _SECOND_MS), _MOST_SECONDS)


def _with_right_end(file: IndexFile) -> IndexFile:
    if file.next_entry <= 1:
        return file
    first = max(1, file.next_entry - _UNWRITTEN_MAX)
    entries = file.entries(first, file.next_entry)
    last, written = entries["offset"], _written(entries)
    if not len(written):
        problem = f"it counts {file.next_entry - 1} entries; the last {len(last)} of them and more are not written"
        return replace(file, next_entry=_written_end(file, first), problem=problem)
    if written[-1] < len(last) - 1:
        return file  # Counted and not written: a killed process leaves that.
    offset = int(last[-1])
    if offset < file.end_offset and _record(file.store, file.end_offset) is not None:
        counted_end = _counted_end(file)
        if counted_end > file.next_entry:
            problem = f"it counts {file.next_entry - 1} entries and has {counted_end - 1}"
            return replace(file, next_entry=counted_end, problem=problem)
    record = _record(file.store, offset)
    if record is None:
        return file
    if offset != file.end_offset and _record(file.store, file.end_offset) is None:
        problem = f"it ends with the record at {file.end_offset}; its last entry leads to {offset}"
        return replace(file, end_offset=offset, problem=problem)
    is_early = file.end_timestamp_ms <= record.store_timestamp_ms - _SECOND_MS
    # A later time does no harm, and is left behind by entries that were taken back.
    if is_early and offset == file.end_offset and int(entries["seconds"][-1]) == _seconds(file, record):
        problem = f"it ends at {file.end_timestamp_ms} ms; its last record is of {record.store_timestamp_ms}"
        return replace(file, problem=problem)
    return file


def _written_end(file: IndexFile, end: int) -> int:
    """One past the last entry before `end` that is not zero."""
    while end > 1:
        first = max(1, end - _BLOCK)
        written = _written(file.entries(first, end))
        if len(written):
            return first + int(written[-1]) + 1
        end = first
    return end


def _written(entries: Entries) -> npt.NDArray[np.int64]:
    """Which of them are not zero."""
    return np.flatnonzero(entries != np.zeros((), dtype=INDEX_ENTRIES))


def _counted_end(file: IndexFile) -> int:
    """One past the last entry that leads to where the header ends, from those it counts on without a break."""
    first = file.next_entry
    while first < file.room:
        offsets = file.entries(first, min(file.room, first + _BLOCK))["offset"]
        beyond = np.flatnonzero((offsets <= 0) | (offsets > file.end_offset))
        if len(beyond):
            return first + int(beyond[0])
        first += max(1, len(offsets))
    return first


def _record(store: ReplicaStore, offset: int) -> RecordName | None:
    facts = store.facts
    if not facts.min_offset <= offset < facts.end_offset or store.is_in_hole(offset):
        return None
    limit = min(store.segment_end(offset), facts.end_offset)
    size = int.from_bytes(store.read_log(offset, min(limit, offset + 4)), "big")
    if not 0 < size <= min(LONGEST_RECORD_BYTES, limit - offset):
        return None
    name = read_name(store.read_log(offset, offset + size), 0, offset)
    own_offset = int.from_bytes(store.read_log(offset, min(limit, offset + 36))[28:], "big", signed=True)
    return name if own_offset == offset else None


def _slot_count(store: ReplicaStore, entry: StoreEntry, begin_offset: int) -> int | None:
    usual, rest = divmod(entry.size - HEADER_BYTES, SLOT_BYTES + _ENTRIES_PER_SLOT * ENTRY_BYTES)
    path = f"index/{entry.name}"
    first = _OFFSET.pack(begin_offset)
    if rest == 0:
        data = bytes(store.read_file(path, HEADER_BYTES + usual * SLOT_BYTES, 2 * ENTRY_BYTES))
        found = data[ENTRY_BYTES + 4 : ENTRY_BYTES + 12]
        is_first = len(found) == _OFFSET.size and not any(data[:ENTRY_BYTES]) and any(data[ENTRY_BYTES:])
        if found == first or (is_first and _record(store, _OFFSET.unpack(found)[0]) is not None):
            return usual
    if entry.size <= _SEARCHED_BYTES_MAX:
        data = bytes(store.read_file(path, 0, entry.size))
        at = data.find(first, HEADER_BYTES + ENTRY_BYTES)
        while at >= 0:
            start = at - 4 - ENTRY_BYTES
            slots, rest = divmod(start - HEADER_BYTES, SLOT_BYTES)
            is_whole = rest == 0 and (entry.size - start) % ENTRY_BYTES == 0
            if is_whole and slots > 0 and not any(data[start : start + ENTRY_BYTES]):
                return slots
            at = data.find(first, at + 1)
    return usual if rest == 0 else None
