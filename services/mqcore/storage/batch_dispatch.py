"""Dispatch of many records at once: their ConsumeQueue entries and index entries, a column at a time.

Leaves what dispatching them one by one would leave, byte for byte. Imports numpy: see record_batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from mqcore.storage.consume_queue import ENTRY
from mqcore.storage.consume_queue_table import ConsumeQueueTable
from mqcore.storage.errors import DiskFull
from mqcore.storage.index_columns import IndexColumns
from mqcore.storage.index_table import IndexTable
from mqcore.storage.record_batch import RecordBatch

__all__ = ["enter_batch", "enter_batch_into_index"]

Integers: TypeAlias = npt.NDArray[np.int64]
_Run: TypeAlias = tuple[str, int, Integers | slice]
"""Topic, queue id and rows, in log order."""

_ENTRIES: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert _ENTRIES.itemsize == ENTRY.size
_RUN_ROWS_MIN: Final = 24
"""Records a queue from which on their entries are made as columns: some ten calls of numpy, 6 µs, are spread over them.
One by one they cost 0.3 µs each."""


def enter_batch(batch: RecordBatch, queues: ConsumeQueueTable, index: IndexTable | None) -> None:
    """Enters records into their ConsumeQueues and into the index.

    DiskFull: something could not be written out; all entries of queues are in memory, and what comes next has no room.
    """
    runs = _by_queue(batch)
    no_room = _enter_each(batch, queues) if runs is None else _enter_runs(batch, runs, queues)
    enter_batch_into_index(batch, index)
    if no_room is not None:
        raise no_room


def _enter_each(batch: RecordBatch, queues: ConsumeQueueTable) -> DiskFull | None:
    """Record by record. Returns what could not be written out, if anything; the entry is in memory then."""
    no_room: DiskFull | None = None
    for topic, queue_id, queue_offset, physical_offset, size, tags_code in zip(
        batch.topic_of.tolist(),
        batch.queue_ids.tolist(),
        batch.queue_offsets.tolist(),
        batch.offsets.tolist(),
        batch.sizes.tolist(),
        batch.tags_codes.tolist(),
    ):
        try:
            queues.get_or_create(batch.topics[topic], queue_id).append(queue_offset, physical_offset, size, tags_code)
        except DiskFull as error:
            no_room = error
    return no_room


def _enter_runs(batch: RecordBatch, runs: Iterable[_Run], queues: ConsumeQueueTable) -> DiskFull | None:
    """Queue by queue, all entries of one at once. Returns as `_enter_each` does."""
    entries = np.empty(len(batch), dtype=_ENTRIES)
    entries["offset"] = batch.offsets
    entries["size"] = batch.sizes
    entries["tags_code"] = batch.tags_codes
    no_room: DiskFull | None = None
    for topic, queue_id, rows in runs:
        queue = queues.get_or_create(topic, queue_id)
        queue_offsets = batch.queue_offsets[rows]
        count = len(queue_offsets)
        first_offset = int(queue_offsets[0])
        own = entries[rows]
        try:
            if int(queue_offsets[-1]) - first_offset == count - 1 and (np.diff(queue_offsets) == 1).all():
                last_offset, last_size, _ = own[-1].tolist()
                if queue.append_run(
                    first_offset, int(own["offset"][0]), own.tobytes(), physical_end=last_offset + last_size
                ):
                    continue
            # A gap, or entries that are there already: the queue knows what to do with each.
            for queue_offset, (physical_offset, size, tags_code) in zip(queue_offsets.tolist(), own.tolist()):
                try:
                    queue.append(queue_offset, physical_offset, size, tags_code)
                except DiskFull as error:
                    no_room = error
        except DiskFull as error:
            no_room = error
    return no_room


def enter_batch_into_index(batch: RecordBatch, index: IndexTable | None) -> None:
    """Enters records into the index alone."""
    if index is not None and len(batch.index_hashes):
        index.put_columns(
            IndexColumns(
                hashes=batch.index_hashes,
                physical_offsets=batch.offsets[batch.index_records],
                store_timestamps_ms=batch.store_timestamps_ms[batch.index_records],
            )
        )


def _by_queue(batch: RecordBatch) -> list[_Run] | None:
    """Each queue that has records in the batch; None: they are too many for so few records."""
    topic_of, queue_ids = batch.topic_of, batch.queue_ids
    first_topic, first_queue = int(topic_of[0]), int(queue_ids[0])
    if len(batch.topics) == 1 and (queue_ids == first_queue).all():
        return [(batch.topics[first_topic], first_queue, slice(None))]
    places = topic_of << 32 | (queue_ids & 0xFFFF_FFFF)
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])).tolist()
    if len(starts) * _RUN_ROWS_MIN > len(order):
        return None
    runs: list[_Run] = []
    for start, end in zip(starts, [*starts[1:], len(order)]):
        rows = order[start:end]
        first = int(rows[0])
        runs.append((batch.topics[int(topic_of[first])], int(queue_ids[first]), rows))
    return runs
