"""Records of a part of the log as columns, whether they were read many at once or alone. Imports numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from mqcore.message.properties import decode_properties, index_terms
from mqcore.message.property_names import PROPERTY_INNER_COUNT
from mqcore.message.record_decoder import RecordFound
from mqcore.message.sys_flag import INNER_BATCH, enters_consume_queue, enters_index
from mqcore.message.tags_code import record_tags_code
from mqcore.storage.options import StoreOptions
from mqcore.storage.record_batch import RecordBatch
from mqcore.storage.term_hashes import term_hashes

__all__ = ["RecordCollector", "RecordColumns"]

Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_DELAY_LEVELS_MS: Final = StoreOptions().delay_levels_ms


@dataclass(slots=True)
class RecordColumns:
    """One row a record, in log order."""

    topics: list[str]
    topic_of: Integers
    """Index into `topics`."""
    offsets: Integers
    """Physical."""
    sizes: Integers
    queue_ids: Integers
    queue_offsets: Integers
    advances: Integers
    """By so much the next record's queue offset is greater; 0: this one has none."""
    tags_codes: Integers
    enters_queue: Flags
    store_timestamps_ms: Integers
    index_records: Integers
    """Of each index entry the row; ascending."""
    index_hashes: Integers
    index_is_tag: Flags
    """Entered by some versions only."""

    def __len__(self) -> int:
        return len(self.offsets)


class RecordCollector:
    """Takes records in log order until they are enough."""

    def __init__(self) -> None:
        self._topics: list[str] = []
        self._index_of: dict[str, int] = {}
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []
        self._index_parts: list[tuple[npt.NDArray[Any], ...]] = []
        self._alone: list[tuple[int, ...]] = []
        self._alone_terms: list[tuple[int, int, bool]] = []
        self._parted_rows = 0

    def __len__(self) -> int:
        return self._parted_rows + len(self._alone)

    def add_batch(self, batch: RecordBatch) -> None:
        """Many records: plain ones, all of which enter a ConsumeQueue."""
        self._part_alone()
        topic_of = np.array([self._topic(topic) for topic in batch.topics], dtype=np.int64)[batch.topic_of]
        count = len(batch)
        self._parts.append(
            (
                topic_of,
                batch.offsets,
                batch.sizes,
                batch.queue_ids,
                batch.queue_offsets,
                np.ones(count, dtype=np.int64),
                batch.tags_codes,
                np.ones(count, dtype=np.bool_),
                batch.store_timestamps_ms,
            )
        )
        rows = batch.index_records
        is_last = np.ones(len(rows), dtype=np.bool_)
        is_last[:-1] = rows[1:] != rows[:-1]
        is_tag = is_last & (batch.tags_codes[rows] != 0)
        self._index_parts.append((rows + self._parted_rows, batch.index_hashes, is_tag))
        self._parted_rows += count

    def add_record(self, record: RecordFound) -> None:
        """One record of any sort."""
        properties = decode_properties(record.properties)
        enters_queue = enters_consume_queue(record.sys_flag)
        advance = int(enters_queue)
        if record.sys_flag & INNER_BATCH:
            count = properties.get(PROPERTY_INNER_COUNT, "")
            advance = int(count) if count.isdecimal() else 1
        if enters_index(record.sys_flag):
            tag, keys = index_terms(properties)
            row = self._parted_rows + len(self._alone)
            for number, hashed in enumerate(term_hashes(record.topic, keys, tag)):
                self._alone_terms.append((row, hashed, number == len(keys)))
        tags_code = record_tags_code(
            record.topic,
            properties,
            store_timestamp_ms=record.store_timestamp_ms,
            delay_levels_ms=_DELAY_LEVELS_MS,
        )
        self._alone.append(
            (
                self._topic(record.topic),
                record.physical_offset,
                record.size,
                record.queue_id,
                record.queue_offset,
                advance,
                tags_code,
                enters_queue,
                record.store_timestamp_ms,
            )
        )

    def take(self) -> RecordColumns:
        """All records since the last call."""
        self._part_alone()
        columns = [np.concatenate(column) for column in zip(*self._parts)] if self._parts else _no_columns(9)
        index = [np.concatenate(column) for column in zip(*self._index_parts)] if self._index_parts else _no_columns(3)
        taken = RecordColumns(
            self._topics,
            columns[0],
            columns[1],
            columns[2],
            columns[3],
            columns[4],
            columns[5],
            columns[6],
            columns[7].astype(np.bool_),
            columns[8],
            index[0],
            index[1],
            index[2].astype(np.bool_),
        )
        self._parts, self._index_parts, self._parted_rows = [], [], 0
        return taken

    def _topic(self, topic: str) -> int:
        index = self._index_of.get(topic)
        if index is None:
            index = self._index_of[topic] = len(self._topics)
            self._topics.append(topic)
        return index

    def _part_alone(self) -> None:
        """Makes columns of what came one by one."""
        if self._alone:
            self._parts.append(tuple(np.array(self._alone, dtype=np.int64).T))
            self._parted_rows += len(self._alone)
            self._alone = []
        if self._alone_terms:
            self._index_parts.append(tuple(np.array(self._alone_terms, dtype=np.int64).T))
            self._alone_terms = []


def _no_columns(count: int) -> list[Integers]:
    return [np.empty(0, dtype=np.int64)] * count
