"""What the entries of a ConsumeQueue should be, by the records of the CommitLog alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from broker.audit.errors import LogUnsound
from broker.audit.jobs import FindEntriesJob
from mqcore.audit.replica_store import ReplicaStore
from mqcore.message.properties import decode_properties
from mqcore.message.record import record_tags_code
from mqcore.message.record_decoder import Blank, Corrupt, RecordFound, ScanStop, scan_record
from mqcore.message.record_layout import enters_consume_queue
from mqcore.storage.record_batch import RecordBatch, read_batch

__all__ = ["DueEntry", "queue_entries"]

_PIECE_BYTES: Final = 4 << 20


class DueEntry(NamedTuple):
    """The entry a record should have."""

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int


def queue_entries(job: FindEntriesJob, store: ReplicaStore) -> Iterator[DueEntry]:
    """In the order of the log, until each offset was found. Raises LogUnsound where no record follows before that."""
    missing = set(range(job.first_queue_offset, job.end_queue_offset))
    for entry in _in_log_order(job, store):
        # Of two records with one offset the queue has taken the first.
        if entry.queue_offset in missing:
            missing.discard(entry.queue_offset)
            yield entry
            if not missing:
                return


def _in_log_order(job: FindEntriesJob, store: ReplicaStore) -> Iterator[DueEntry]:
    offset = job.start_offset
    length = _PIECE_BYTES
    while offset < job.end_offset:
        file_end = min(store.segment_end(offset), job.facts.end_offset)
        limit = min(file_end, offset + length)
        view = store.read_log(offset, limit)
        position = 0
        while True:
            batch = read_batch(view, position, len(view), physical_offset=offset + position)
            if batch is not None:
                yield from _of_batch(job, batch)
                position = batch.end_offset - offset
            found = scan_record(view, position, len(view), physical_offset=offset + position)
            if not isinstance(found, RecordFound):
                break
            yield from _of_record(job, found)
            position += found.size
        offset += position
        if isinstance(found, Blank) and found.size == store.segment_end(offset) - offset:
            offset += found.size
        elif found is ScanStop.INCOMPLETE and (position == len(view) or limit < file_end):
            # A record may be longer than what was read.
            length = _PIECE_BYTES if position else 2 * length
        elif offset < job.end_offset:
            reason = found.reason if isinstance(found, Corrupt) else "no whole record"
            raise LogUnsound(f"the CommitLog is damaged at {offset} ({reason}): repair it first")


def _of_batch(job: FindEntriesJob, batch: RecordBatch) -> Iterator[DueEntry]:
    if job.topic not in batch.topics:
        return
    wanted = (
        (batch.topic_of == batch.topics.index(job.topic))
        & (batch.queue_ids == job.queue_id)
        & (batch.queue_offsets >= job.first_queue_offset)
        & (batch.queue_offsets < job.end_queue_offset)
    )
    columns = (batch.queue_offsets, batch.offsets, batch.sizes, batch.tags_codes)
    for row in np.flatnonzero(wanted).tolist():
        yield DueEntry(*(int(column[row]) for column in columns))


def _of_record(job: FindEntriesJob, record: RecordFound) -> Iterator[DueEntry]:
    if (
        record.topic != job.topic
        or record.queue_id != job.queue_id
        or not job.first_queue_offset <= record.queue_offset < job.end_queue_offset
        or not enters_consume_queue(record.sys_flag)
    ):
        return
    tags_code = record_tags_code(
        record.topic,
        decode_properties(record.properties),
        store_timestamp_ms=record.store_timestamp_ms,
        delay_levels_ms=job.delay_levels_ms,
    )
    yield DueEntry(record.queue_offset, record.physical_offset, record.size, tags_code)
