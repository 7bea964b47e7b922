"""Index entries of many records as columns, and how they are written into an IndexFile all at once.

The result is, byte for byte, what entering them one after the other leaves. Imports numpy: see record_batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from mqcore.storage.index_file import WaitingRecord, term_hashes, topic_hash

__all__ = ["IndexColumns"]

Integers: TypeAlias = npt.NDArray[np.int64]

_ENTRY: Final = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_SLOT: Final = np.dtype(">i4")
_MOST_SECONDS: Final = 0x7FFF_FFFF
_LOW_BITS: Final = 32
_LOW_MASK: Final = (1 << _LOW_BITS) - 1
_UNSIGNED: Final = 0x7FFF_FFFF
_TEXT_UNITS_MAX: Final = 1024
"""Longest text hashed beside others; longer ones are a key nobody should use."""
_POWERS: Final = np.array([pow(31, power, 1 << 32) for power in range(_TEXT_UNITS_MAX + 1)], dtype=np.uint32)


@dataclass(frozen=True, slots=True)
class IndexColumns:
    """One row an entry, in the order in which they are entered; entries of a record are neighbours."""

    hashes: Integers
    physical_offsets: Integers
    """Ascending."""
    store_timestamps_ms: Integers

    @classmethod
    def of_records(cls, records: Sequence[WaitingRecord]) -> IndexColumns:
        """The entries of records in log order."""
        topics, keys, tags, physical_offsets, store_timestamps_ms = zip(*records)
        texts: list[str] = []
        counts = []
        for own_keys, tag in zip(keys, tags):
            texts += own_keys
            if tag:
                texts.append("T#" + tag)  # What tag_hash puts behind "topic#".
                counts.append(len(own_keys) + 1)
            else:
                counts.append(len(own_keys))
        starts = np.fromiter(map(topic_hash, topics), dtype=np.int64, count=len(topics)).astype(np.uint32)
        hashes = _text_hashes(np.repeat(starts, counts), texts)
        if hashes is None:
            hashes = np.array([hashed for record in records for hashed in term_hashes(*record[:3])], dtype=np.int64)
        return cls(
            hashes,
            np.repeat(np.array(physical_offsets, dtype=np.int64), counts),
            np.repeat(np.array(store_timestamps_ms, dtype=np.int64), counts),
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
        slots = np.ndarray((slot_count,), dtype=_SLOT, buffer=view, offset=slots_start)
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
        entries = np.ndarray((count,), dtype=_ENTRY, buffer=view, offset=entries_start + first_entry * _ENTRY.itemsize)
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


def _text_hashes(starts: npt.NDArray[np.uint32], texts: Sequence[str]) -> Integers | None:
    """For each text what term_hashes gives for it behind a topic's hash; None: some text needs more than bytes."""
    joined = "".join(texts)
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    if not len(texts) or lengths.min() == 0 or lengths.max() > _TEXT_UNITS_MAX or not joined.isascii():
        return None
    ends = np.cumsum(lengths)
    # Of each character of all texts, how many follow it in its own one.
    following = np.repeat(ends, lengths) - np.arange(1, len(joined) + 1)
    products = np.frombuffer(joined.encode(), dtype=np.uint8) * _POWERS[following]
    hashes = np.add.reduceat(products, ends - lengths, dtype=np.uint32)
    hashes += starts * _POWERS[lengths]
    unsigned: Integers = np.abs(hashes.view(np.int32).astype(np.int64)) & _UNSIGNED
    return unsigned
