"""Index entries of many records as columns, written into an IndexFile all at once. Imports numpy: see record_batch.

The bytes are those of entering the records one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["IndexColumns"]

Integers: TypeAlias = npt.NDArray[np.int64]

_ENTRY_DTYPE: Final = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_SLOT_DTYPE: Final = np.dtype(">i4")
_WAITING: Final = np.dtype("<i8")
_MOST_SECONDS: Final = 0x7FFF_FFFF
_LOW_BITS: Final = 32
_LOW_MASK: Final = (1 << _LOW_BITS) - 1


@dataclass(frozen=True, slots=True)
class IndexColumns:
    """One row an entry, in the order in which they are entered; entries of a record are neighbours."""

    hashes: Integers
    physical_offsets: Integers
    """Ascending."""
    store_timestamps_ms: Integers

    @classmethod
    def of_records(cls, hashes: bytes, records: bytes) -> IndexColumns:
        """The entries of records in log order: all their hashes; and of each record how many are its, where and when it
        was stored. Numbers of 8 bytes, little-endian."""
        columns = np.frombuffer(records, dtype=_WAITING).reshape(-1, 3)
        repeats = columns[:, 0]
        return cls(
            np.frombuffer(hashes, dtype=_WAITING), np.repeat(columns[:, 1], repeats), np.repeat(columns[:, 2], repeats)
        )

    def __len__(self) -> int:
        return len(self.hashes)

    def part(self, start: int, end: int) -> IndexColumns:
        """Rows [start, end)."""
        return IndexColumns(
            self.hashes[start:end], self.physical_offsets[start:end], self.store_timestamps_ms[start:end]
        )

    def first_from(self, physical_offset: int) -> int:
        """The first row of a record that starts at or behind `physical_offset`."""
        return int(np.searchsorted(self.physical_offsets, physical_offset, side="left"))

    def record_start(self, row: int) -> int:
        """The first row of the record that `row` belongs to; the number of rows for that number."""
        return self.first_from(int(self.physical_offsets[row])) if row < len(self) else row

    def record_end(self, row: int) -> int:
        """The row behind the last one of the record that `row` belongs to."""
        return int(np.searchsorted(self.physical_offsets, int(self.physical_offsets[row]), side="right"))

    def write(
        self,
        view: memoryview,
        *,
        slots_start: int,
        slot_count: int,
        entries_start: int,
        first_entry: int,
        begin_timestamp_ms: int,
    ) -> int:
        """Writes entries and then slots; returns how many slots came into use. See index_file for the layout."""
        count = len(self)
        slots = np.ndarray((slot_count,), dtype=_SLOT_DTYPE, buffer=view, offset=slots_start)
        slot_of = self.hashes % slot_count
        numbers = np.arange(first_entry, first_entry + count, dtype=np.int64)
        previous = slots[slot_of].astype(np.int64)
        # By slot and then by row, in one sort of integers: the fastest there is.
        ordered = np.sort(slot_of << _LOW_BITS | np.arange(count, dtype=np.int64))
        order, ordered_slots = ordered & _LOW_MASK, ordered >> _LOW_BITS
        follows = ordered_slots[1:] == ordered_slots[:-1]
        previous[order[1:][follows]] = numbers[order[:-1][follows]]
        is_first_ever = (previous <= 0) | (previous >= numbers)
        previous[is_first_ever] = 0
        entries = np.ndarray(
            (count,),
            dtype=_ENTRY_DTYPE,
            buffer=view,
            offset=entries_start + first_entry * _ENTRY_DTYPE.itemsize,
        )
        entries["hash"] = self.hashes
        entries["offset"] = self.physical_offsets
        entries["seconds"] = self._seconds_since(begin_timestamp_ms)
        entries["previous"] = previous
        is_last = np.append(~follows, True)
        slots[ordered_slots[is_last]] = numbers[order[is_last]]
        return int(np.count_nonzero(is_first_ever))

    def _seconds_since(self, begin_timestamp_ms: int) -> Integers:
        if begin_timestamp_ms <= 0:
            return np.zeros(len(self), dtype=np.int64)
        return np.clip((self.store_timestamps_ms - begin_timestamp_ms) // 1000, 0, _MOST_SECONDS)
