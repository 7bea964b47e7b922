"""Checks IndexFiles: what a file says of itself, and whether each record is found by its keys. Imports numpy.

A search looks at the header first and skips a file whose times do not match, so the header is checked against the first
and last entry and the records they lead to. All times of a file count from its begin.

The length of a file does not tell how many of its bytes are slots. RocketMQ has four entries a slot. Any other number
is found by looking for the first entry, which leads to where the header says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tandemmq.core.audit.findings import Cause, Finding, FindingKind
from tandemmq.core.audit.log_walk import LONGEST_RECORD_BYTES
from tandemmq.core.audit.record_columns import Flags, Integers, RecordColumns, RecordName, describe, read_name
from tandemmq.core.audit.replica_store import ReplicaStore, StoreEntry
from tandemmq.core.replication.log_history import LogRange

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
_CHANGED_RECORDS_MAX: Final = 8
"""Records that contradict an IndexFile at once: of more it is the file that is wrong."""
_CHAIN_STEPS_MAX: Final = 10_000
_NEAR_ROWS: Final = 4
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
    used_slots: int = 0
    problem: str = ""
    """What is wrong with the header; empty: nothing."""

    @property
    def path(self) -> str:
        """Below the store's root."""
        return f"index/{self.name}"

    def entry_position(self, number: int) -> int:
        """Where an entry lies in the file."""
        return HEADER_BYTES + self.slot_count * SLOT_BYTES + number * ENTRY_BYTES

    def entries(self, first: int, end: int) -> Entries:
        """Entries [first, end), fewer where the file ends."""
        data = self.store.read_file(self.path, self.entry_position(first), max(0, end - first) * ENTRY_BYTES)
        # A copy: what a store gives is good until its next read.
        return np.frombuffer(bytes(data), dtype=INDEX_ENTRIES, count=len(data) // ENTRY_BYTES)

    def first_entry(self, offset: int) -> int:
        """The first entry of a record at or behind `offset`. Each is judged with its neighbours: one may be wrong."""
        low, high = 1, self.next_entry
        while low < high:
            middle = (low + high) // 2
            around = self.entries(max(1, middle - 1), min(self.next_entry, middle + 2))["offset"]
            if len(around) and int(np.sort(around)[(len(around) - 1) // 2]) >= offset:
                high = middle
            else:
                low = middle + 1
        # The median of three is off by one place at most.
        start = max(1, low - 2)
        near = self.entries(start, min(self.next_entry, low + 2))["offset"]
        while len(near) and near[-1] < offset:
            near = near[:-1]
        at_least = np.flatnonzero(near >= offset)
        return min(low, start + int(at_least[0])) if len(at_least) else low


def has_usual_layout(size: int) -> bool:
    """Whether a file may be so long that has four entries a slot."""
    return size > HEADER_BYTES and not (size - HEADER_BYTES) % (SLOT_BYTES + _ENTRIES_PER_SLOT * ENTRY_BYTES)


def read_index_file(store: ReplicaStore, entry: StoreEntry) -> IndexFile | None:
    """None: no header, or a layout that is not known. A running broker's header is taken as it is: it is at work."""
    data = bytes(store.read_file(f"index/{entry.name}", 0, HEADER_BYTES))
    if len(data) < HEADER_BYTES:
        return None
    begin_timestamp_ms, end_timestamp_ms, begin_offset, end_offset, used_slots, next_entry = _HEADER.unpack(data)
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
        used_slots=used_slots,
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


def indexed_messages(store: ReplicaStore, log_range: LogRange) -> dict[int, list[int]]:
    """The messages of a range of the log as the IndexFiles have them: where each lies, and the hashes of its keys."""
    found: dict[int, list[int]] = {}
    for entry in store.index_files():
        file = read_index_file(store, entry)
        if file is not None and file.next_entry > 1:
            for own in file.entries(file.first_entry(log_range.start_offset), file.first_entry(log_range.end_offset)):
                offset = int(own["offset"])
                if log_range.start_offset <= offset < log_range.end_offset:
                    found.setdefault(offset, []).append(int(own["hash"]))
    return dict(sorted(found.items()))


# Records against the IndexFiles. A file says which records it covers, and only those are asked for: Java deletes files
# after a crash and rebuilds some, and a broker may keep no index. Entries for tags may be missing (RocketMQ writes them
# since 5.5), and an entry that is there twice does no harm.

_CHAIN_BLOCK: Final = 1 << 18


class IndexCheck:
    """Checks one part [start, end) of a replica's log. Rows come in log order; `damaged` grows meanwhile."""

    def __init__(self, store: ReplicaStore, damaged: list[LogRange], *, start: int, end: int) -> None:
        self._store = store
        self._damaged = damaged
        self._start = start
        self._end = end
        found = (read_index_file(store, entry) for entry in store.index_files())
        self._files = [file for file in found if file is not None and file.next_entry > 1]

    def check(self, columns: RecordColumns) -> Iterator[Finding]:
        """What is wrong with the entries of the next rows."""
        if not len(columns):
            return
        low, high = int(columns.offsets[0]), int(columns.offsets[-1]) + 1
        is_found = np.zeros(len(columns.index_records), dtype=np.bool_)
        is_claimed = np.zeros(len(columns.index_records), dtype=np.bool_)
        entry_offsets = columns.offsets[columns.index_records]
        for file in self._files:
            if file.end_offset < low or file.begin_offset >= high:
                continue
            is_claimed |= (entry_offsets >= file.begin_offset) & (entry_offsets <= file.end_offset)
            first = file.first_entry(low)
            entries = file.entries(first, file.first_entry(high))
            if self._is_exact(file, first, entries, columns, is_found):
                continue
            yield from self._compare(file, first, entries, columns, is_found)
        is_due = is_claimed & (entry_offsets < self._store.facts.index_offset) & ~columns.index_is_tag
        yield from self._missing(columns, is_due & ~is_found)

    def chains(self) -> Iterator[Finding]:
        """Entries no search comes to, of files that begin in this part. Not while the broker runs: it adds to them."""
        facts = self._store.facts
        if facts.is_running:
            return
        for file in self._files:
            if self._start <= max(file.begin_offset, facts.min_offset) < self._end:
                if file.problem:
                    yield self._wrong_header(file)
                yield from self._unreachable(file)

    def _wild(
        self, file: IndexFile, previous: npt.NDArray[np.int32], slot_of: npt.NDArray[np.int32]
    ) -> Iterator[Finding]:
        """Entries that lead on to no earlier entry of their slot, nor to none: a search ends there, or walks in a
        circle, or through another slot's entries."""
        numbers = np.arange(len(previous))
        is_wild = (previous < 0) | ((previous >= numbers) & (previous > 0))
        named = np.where(is_wild, 0, previous)
        is_wild |= (named > 0) & (slot_of[named] != slot_of)
        for number in np.flatnonzero(is_wild).tolist():
            (entry,) = file.entries(number, number + 1)
            hashed, offset, _, before = entry.tolist()
            if (hashed, offset) == (0, 0):
                continue
            finding = Finding.of(
                self._store.facts,
                FindingKind.INDEX_ENTRY_WRONG,
                f"entry {number} of hash {hashed} leads on to entry {before}, none of its slot before it",
                file=file.path,
            )
            in_range = self._store.facts.min_offset <= offset < self._store.facts.end_offset
            yield describe(finding, _record(self._store, offset)) if in_range else finding

    def _wrong_header(self, file: IndexFile) -> Finding:
        return Finding.of(
            self._store.facts,
            FindingKind.INDEX_ENTRY_WRONG,
            f"the header is wrong: {file.problem}",
            messages=0,
            file=file.path,
        )

    # Entries of rows

    def _is_exact(self, file: IndexFile, first: int, entries: Entries, columns: RecordColumns, is_found: Flags) -> bool:
        """Whether the entries are just those of the rows, in their order: the usual case, and the quick one."""
        if len(entries) != len(columns.index_records) or not len(entries):
            return False
        offsets = columns.offsets[columns.index_records]
        if not (entries["offset"] == offsets).all() or not (entries["hash"] == columns.index_hashes).all():
            return False
        if not self._right_seconds(file, first, entries, columns, columns.index_records).all():
            return False
        is_found[:] = True
        return True

    def _compare(
        self, file: IndexFile, first: int, entries: Entries, columns: RecordColumns, is_found: Flags
    ) -> Iterator[Finding]:
        offsets, hashes = entries["offset"].astype(np.int64), entries["hash"].astype(np.int64)
        rows = np.minimum(np.searchsorted(columns.offsets, offsets), len(columns.offsets) - 1)
        is_record = columns.offsets[rows] == offsets
        keys = rows << 31 | (hashes & 0x7FFF_FFFF)
        due = columns.index_records << 31 | columns.index_hashes
        is_right = is_record & np.isin(keys, due) & (hashes >= 0)
        is_right &= self._right_seconds(file, first, entries, columns, rows)
        is_found |= np.isin(due, keys[is_right])
        # Entries of records that cannot be read are not judged; nor is what a killed process had only counted.
        is_wrong = ~is_right & ~self._is_damaged(offsets) & (entries != np.zeros((), dtype=INDEX_ENTRIES))
        is_named = is_record & np.isin(keys, due)
        changed = self._changed_records(file, first, entries, columns, rows, is_record, is_wrong, is_found)
        seen_rows = set(changed)
        for own_row, numbers in changed.items():
            is_found |= columns.index_records == own_row
            yield self._changed_record(file, first, entries, columns, own_row, numbers)
        for number in np.flatnonzero(is_wrong).tolist():
            row = int(rows[number]) if is_named[number] else self._row_of(number, is_right, rows, is_found, columns)
            if row is None and is_record[number]:
                row = int(rows[number])
            if row is None and first + number >= self._settled_entry(file):
                continue
            if row is not None:
                is_found |= columns.index_records == row
                if row in seen_rows:
                    continue
                seen_rows.add(row)
            yield self._finding(file, first + number, entries[number], columns, row)

    def _changed_records(
        self,
        file: IndexFile,
        first: int,
        entries: Entries,
        columns: RecordColumns,
        rows: Integers,
        is_record: Flags,
        is_wrong: Flags,
        is_found: Flags,
    ) -> dict[int, list[int]]:
        """Rows whose entries are what an IndexFile would have of another version of the record, and the numbers of
        these. An entry to which its slot leads has the hash that it was made with, and all entries of a record have
        its time. Few of them: else the file is another one."""
        offsets = columns.offsets[columns.index_records]
        # The first and the last record of a file may have entries in its neighbour.
        is_of_file = (offsets > file.begin_offset) & (offsets < file.end_offset)
        lacking = set(columns.index_records[~is_found & is_of_file].tolist())
        found: dict[int, list[int]] = {}
        for number in np.flatnonzero(is_wrong & is_record).tolist():
            found.setdefault(int(rows[number]), []).append(number)
        # Entries that lead to no record at all are of another log.
        if len(found) > _CHANGED_RECORDS_MAX or np.count_nonzero(is_wrong & ~is_record) > _CHANGED_RECORDS_MAX:
            return {}
        changed = {}
        for row, numbers in found.items():
            own = np.flatnonzero(is_record & (rows == row)).tolist()
            elapsed = (int(columns.store_timestamps_ms[row]) - file.begin_timestamp_ms) // _SECOND_MS
            due = min(max(0, elapsed), _MOST_SECONDS)
            seconds = {int(entries[number]["seconds"]) for number in own}
            has_other_time = len(own) > 1 and len(seconds) == 1 and seconds != {due} and len(numbers) == len(own)
            # Else its keys are others, if the record that lacks this entry is none of its neighbours.
            near = {*range(row - _NEAR_ROWS, row + _NEAR_ROWS + 1)} - {row}
            has_other_keys = seconds == {due} and not near & lacking
            if (has_other_time or has_other_keys) and all(
                self._is_led_to(file, first + number, entries[number]) for number in numbers
            ):
                changed[row] = numbers
        return changed

    def _is_led_to(self, file: IndexFile, number: int, entry: np.void) -> bool:
        """Whether a search for the hash of an entry comes to it."""
        place = HEADER_BYTES + int(entry["hash"]) % file.slot_count * SLOT_BYTES
        at = int.from_bytes(self._store.read_file(file.path, place, SLOT_BYTES), "big", signed=True)
        for _ in range(_CHAIN_STEPS_MAX):
            if at <= number:
                return at == number
            (newer,) = file.entries(at, at + 1) if at < file.next_entry else (None,)
            if newer is None:
                return False
            at = min(int(newer["previous"]), at - 1)
        return False

    def _changed_record(
        self, file: IndexFile, first: int, entries: Entries, columns: RecordColumns, row: int, numbers: list[int]
    ) -> Finding:
        facts = self._store.facts
        of_row = set(columns.index_hashes[columns.index_records == row].tolist())
        hashes = [int(entries[number]["hash"]) for number in numbers]
        names = f"entr{'ies' if len(numbers) > 1 else 'y'} {', '.join(str(first + number) for number in numbers)}"
        if of_row.issuperset(hashes):
            told = f"storeTimestamp: {names} of {file.path} have {entries[numbers[0]]['seconds']} s, the record has not"
        else:
            told = (
                f"properties: {names} of {file.path} were made of other keys, of hashes {', '.join(map(str, hashes))}"
            )
        finding = Finding.of(
            facts,
            FindingKind.FIELD_DIFFERS,
            f"{told}; a search comes there, so that it is the record that was changed",
            cause=Cause.OTHER_RECORD,
            file=self._store.segment_path(int(columns.offsets[row])),
        )
        return describe(finding, self._name(columns, row))

    def _settled_entry(self, file: IndexFile) -> int:
        """Entries from this number on may be half written: a running broker's newest."""
        return file.next_entry - 64 if self._store.facts.is_running else file.next_entry

    def _row_of(
        self, number: int, is_right: Flags, rows: Integers, is_found: Flags, columns: RecordColumns
    ) -> int | None:
        """The record a wrong entry should have led to: one that lacks an entry, between its neighbours' records."""
        before = np.flatnonzero(is_right[:number])
        behind = np.flatnonzero(is_right[number + 1 :])
        low = int(rows[before[-1]]) if len(before) else 0
        high = int(rows[number + 1 + behind[0]]) if len(behind) else len(columns) - 1
        lacking = columns.index_records[~is_found]
        lacking = lacking[(lacking >= low) & (lacking <= high)]
        return int(lacking[0]) if len(lacking) else None

    def _right_seconds(
        self, file: IndexFile, first: int, entries: Entries, columns: RecordColumns, rows: Integers
    ) -> Flags:
        due = (columns.store_timestamps_ms[rows] - file.begin_timestamp_ms) // _SECOND_MS
        is_right: Flags = entries["seconds"] == np.clip(due, 0, _MOST_SECONDS)
        # The first record counts from the end of the file before, or from nothing.
        is_right |= entries["offset"] == file.begin_offset
        return is_right

    def _missing(self, columns: RecordColumns, is_missing: Flags) -> Iterator[Finding]:
        rows = np.unique(columns.index_records[is_missing])
        if not len(rows):
            return
        facts = self._store.facts
        # Rows without keys between two that lack theirs do not part them.
        with_terms = np.unique(columns.index_records)
        places = np.searchsorted(with_terms, rows)
        for run in np.split(rows, np.flatnonzero(np.diff(places) != 1) + 1):
            first, last = int(run[0]), int(run[-1])
            lacking = int(is_missing[columns.index_records == first].sum())
            finding = Finding.of(
                facts,
                FindingKind.INDEX_ENTRY_MISSING,
                f"{lacking} of its keys {'lead' if lacking > 1 else 'leads'} to no entry",
                messages=len(run),
                file=next(
                    file.path for file in self._files if file.begin_offset <= columns.offsets[first] <= file.end_offset
                ),
            )
            last_name = self._name(columns, last) if last != first else None
            yield describe(finding, self._name(columns, first), last=last_name)

    def _finding(
        self, file: IndexFile, number: int, entry: np.void, columns: RecordColumns, row: int | None
    ) -> Finding:
        facts = self._store.facts
        hashed, offset, seconds, previous = entry.tolist()
        finding = Finding.of(
            facts,
            FindingKind.INDEX_ENTRY_WRONG,
            f"entry {number} says hash {hashed}, offset {offset}, {seconds} s, previous {previous}: "
            "no record there has such a key and time",
            file=file.path,
            leads_to=offset,
        )
        return finding if row is None else describe(finding, self._name(columns, row))

    def _name(self, columns: RecordColumns, row: int) -> RecordName | None:
        offset, size = int(columns.offsets[row]), int(columns.sizes[row])
        return read_name(self._store.read_log(offset, offset + size), 0, offset)

    def _is_damaged(self, offsets: Integers) -> Flags:
        is_damaged = np.zeros(len(offsets), dtype=np.bool_)
        for piece in self._damaged:
            is_damaged |= (offsets >= piece.start_offset) & (offsets < piece.end_offset)
        return is_damaged

    # Chains

    def _unreachable(self, file: IndexFile) -> Iterator[Finding]:
        """Every entry must be led to by its slot or by one newer entry of its slot."""
        count = file.next_entry
        slots_data = bytes(self._store.read_file(file.path, HEADER_BYTES, file.slot_count * SLOT_BYTES))
        slots = np.frombuffer(slots_data, dtype=">i4", count=len(slots_data) // SLOT_BYTES)
        if len(slots) < file.slot_count:
            return
        slot_of = np.zeros(count, dtype=np.int32)
        previous = np.zeros(count, dtype=np.int32)
        for first in range(1, count, _CHAIN_BLOCK):
            entries = file.entries(first, min(count, first + _CHAIN_BLOCK))
            slot_of[first : first + len(entries)] = entries["hash"] % file.slot_count
            previous[first : first + len(entries)] = entries["previous"]
        broken = list(self._wild(file, previous, slot_of))
        numbers = np.arange(count, dtype=np.int32)
        is_sound = (previous > 0) & (previous < numbers)
        is_sound[is_sound] = slot_of[previous[is_sound]] == slot_of[is_sound]
        is_led_to = np.zeros(count, dtype=np.bool_)
        is_led_to[previous[is_sound]] = True
        heads = slots[(slots > 0) & (slots < count)]
        is_led_to[heads[slot_of[heads] == np.flatnonzero((slots > 0) & (slots < count))]] = True
        lost = np.flatnonzero(~is_led_to[1:]) + 1
        broken += self._lost_entries(file, lost, is_led_to)
        yield from broken
        used = int(np.count_nonzero(slots))
        if used != file.used_slots and not file.problem and not broken:
            yield self._wrong_header(replace(file, problem=f"it counts {file.used_slots} slots in use, and {used} are"))

    def _lost_entries(self, file: IndexFile, lost: Integers, is_led_to: Flags) -> Iterator[Finding]:
        facts = self._store.facts
        for number in lost.tolist():
            (entry,) = file.entries(number, number + 1)
            hashed, offset, _, _ = entry.tolist()
            in_range = facts.min_offset <= offset < facts.end_offset
            if (hashed, offset) == (0, 0) or not in_range or self._is_entered_again(file, number, entry, is_led_to):
                continue  # Never written, wrong anyway, or there once more: a killed process leaves such entries.
            finding = Finding.of(
                facts,
                FindingKind.INDEX_ENTRY_WRONG,
                f"no search comes to entry {number} of hash {hashed}: neither its slot nor an entry leads to it",
                file=file.path,
            )
            limit = min(self._store.segment_end(offset), facts.end_offset, offset + (1 << 20))
            yield describe(finding, read_name(self._store.read_log(offset, limit), 0, offset))

    def _is_entered_again(self, file: IndexFile, number: int, entry: np.void, is_led_to: Flags) -> bool:
        behind = file.entries(number + 1, min(file.next_entry, number + 64))
        is_same = (behind["hash"] == entry["hash"]) & (behind["offset"] == entry["offset"])
        return bool((is_same & is_led_to[number + 1 : number + 1 + len(behind)]).any())
