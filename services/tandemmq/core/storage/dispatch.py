"""Dispatch: what a record of the CommitLog adds to the ConsumeQueue of its queue and to the index.

A master does this at the append, where every field is at hand; this is the way for records read back from the log, on
a slave and in recovery. Mirrors RocketMQ's CommitLogDispatcherBuildConsumeQueue and …BuildIndex.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

from tandemmq.core.message.properties import decode_properties, index_terms
from tandemmq.core.message.record import record_tags_code
from tandemmq.core.message.record_decoder import Blank, Corrupt, RecordFound, ScanResult, scan_record
from tandemmq.core.message.record_layout import enters_consume_queue, enters_index
from tandemmq.core.storage.consume_queue_table import ConsumeQueueTable
from tandemmq.core.storage.disk import DiskFull
from tandemmq.core.storage.index_table import IndexTable
from tandemmq.core.storage.record_walk import IS_COMPILED, RecordWalk

if TYPE_CHECKING:
    from tandemmq.core.storage.commit_log import MappedFileQueue


__all__ = ["BatchDone", "Dispatcher", "LogScan", "first_record", "record_at", "scan_log"]

_BATCH_BYTES_MAX: Final = 4 << 20
"""The size of one batch: a few milliseconds, and columns that fit a processor's cache."""
_SHORT_BATCH: Final = 16
"""Records. A shorter batch cost more than it saved."""
_WALK_BYTES_MAX: Final = 192 << 10
"""Waiting log up to which a compiled walk costs less than columns do."""
_PAUSE_BYTES: Final = 256 << 10
"""Read one by one after a short batch: more of what made it short is likely to follow."""


class BatchDone(NamedTuple):
    """What was dispatched at once."""

    record_count: int
    end_offset: int
    last_record_offset: int
    last_store_timestamp_ms: int
    """The latest of them."""
    no_room: bool
    """DiskFull: the records count as dispatched, as each of them would alone; what comes next has no room."""


class Dispatcher:
    """Stateless but for the tables it feeds. Dispatching a record twice does no harm."""

    def __init__(
        self,
        queues: ConsumeQueueTable,
        index: IndexTable | None,
        *,
        delay_levels_ms: Sequence[int],
        batch_bytes_min: int,
        walk_bytes_max: int | None = None,
    ) -> None:
        """`batch_bytes_min`, `walk_bytes_max`: see StoreOptions.dispatch_batch_bytes_min, .dispatch_walk_bytes_max."""
        self._queues: Final = queues
        self._index: Final = index
        self._delay_levels_ms: Final = delay_levels_ms
        # Without numpy every record is read alone. What reads batches is imported when there is the first.
        self._has_batches = find_spec("numpy") is not None
        self._columns_bytes_min: Final = batch_bytes_min
        self._batches_from = 0
        if walk_bytes_max is None:
            walk_bytes_max = _WALK_BYTES_MAX if IS_COMPILED else 0
        self.walk_bytes_max: Final[int] = walk_bytes_max
        """Up to so much log is walked record by record."""
        self._walk: Final = RecordWalk(queues, index)
        self.batch_bytes_min: Final[int] = 1 if self.walk_bytes_max else batch_bytes_min
        """Fewer bytes are never made a batch."""

    def checked_up_to(self, offset: int) -> None:
        """Records below `offset` were found sound: that may be spared where it is cheap to know."""
        self._walk.checked_offset = offset

    def dispatch_batch(
        self,
        view: memoryview,
        position: int,
        limit: int,
        *,
        physical_offset: int,
        with_zeros: bool = True,
        index_only: bool = False,
    ) -> BatchDone | None:
        """Enters the common records that view[position:limit] begins with, all at once; None: read the next one alone.

        See record_batch for `physical_offset`, `with_zeros` and what is common. DiskError as for `dispatch`.
        """
        if limit - position <= self.walk_bytes_max and with_zeros and not index_only:
            return self._dispatch_walk(view, position, limit, physical_offset)
        if limit - position < self._columns_bytes_min or not self._has_batches:
            return None
        if self._batches_from - _PAUSE_BYTES <= physical_offset < self._batches_from:
            return None
        limit = min(limit, position + _BATCH_BYTES_MAX)
        from tandemmq.core.storage.record_batch import enter_batch, enter_batch_into_index, read_batch

        batch = read_batch(view, position, limit, physical_offset=physical_offset, with_zeros=with_zeros)
        count = 0 if batch is None else len(batch)
        self._batches_from = 0 if count >= _SHORT_BATCH else physical_offset + _PAUSE_BYTES
        if batch is None:
            return None
        no_room = False
        try:
            if index_only:
                enter_batch_into_index(batch, self._index)
            else:
                enter_batch(batch, self._queues, self._index)
        except DiskFull:
            no_room = True
        return BatchDone(count, batch.end_offset, int(batch.offsets[-1]), int(batch.store_timestamps_ms.max()), no_room)

    def _dispatch_walk(self, view: memoryview, position: int, limit: int, physical_offset: int) -> BatchDone | None:
        walk = self._walk
        count = walk.enter(view, position, limit, physical_offset)
        if not count:
            return None
        return BatchDone(count, walk.end_offset, walk.last_record_offset, walk.last_store_timestamp_ms, walk.no_room)

    def dispatch(self, record: RecordFound) -> None:
        """Enters a record into its ConsumeQueue and into the index."""
        properties = decode_properties(record.properties)
        if enters_consume_queue(record.sys_flag):
            self._queues.get_or_create(record.topic, record.queue_id).append(
                record.queue_offset,
                record.physical_offset,
                record.size,
                record_tags_code(
                    record.topic,
                    properties,
                    store_timestamp_ms=record.store_timestamp_ms,
                    delay_levels_ms=self._delay_levels_ms,
                ),
            )
        self._enter_into_index(record, properties)

    def dispatch_to_index(self, record: RecordFound) -> None:
        """Enters a record into the index alone: it was rebuilt from further back than the ConsumeQueues."""
        self._enter_into_index(record, decode_properties(record.properties))

    def _enter_into_index(self, record: RecordFound, properties: dict[str, str]) -> None:
        if self._index is None or not enters_index(record.sys_flag):
            return
        tag, keys = index_terms(properties)
        self._index.put(
            topic=record.topic,
            keys=keys,
            tag=tag,
            physical_offset=record.physical_offset,
            store_timestamp_ms=record.store_timestamp_ms,
            wall_ms=record.store_timestamp_ms,
        )


# Walks through the CommitLog record by record, file by file, up to the first thing that is no record.


@dataclass(slots=True)
class LogScan:
    """Where a walk ended and what it saw."""

    start_offset: int
    end_offset: int
    """End of the last valid record, or of the file a blank closed."""
    record_count: int
    last_record: RecordFound | None
    stop_reason: str
    """Why it went no further."""


def scan_log(
    files: MappedFileQueue,
    start_offset: int,
    *,
    file_bytes: int,
    limit_offset: int,
    check_crc: bool,
    on_record: Callable[[RecordFound], None],
    on_many: Callable[[memoryview, int, int, int], BatchDone | None] | None = None,
) -> LogScan:
    """Calls `on_record` for each valid record that starts in [start_offset, limit_offset); stops at the first bad one.

    The bytes are not trusted: sizes, magic codes, body CRC and the record's own idea of its offset must fit. Neither
    topic nor properties are covered by a CRC; a torn write leaves zeros there, which no valid text contains.

    `on_many(view, position, limit, physical_offset)` may take several records at once, checked no less; None: it takes
    none of what lies at `position`.
    """
    offset = start_offset
    count = 0
    last: RecordFound | None = None
    found: ScanResult
    reason = "end of the files"
    while offset < limit_offset and (segment := files.segment(offset)) is not None:
        view = segment.view
        file_start = offset - offset % file_bytes
        position = offset - file_start
        data_limit = min(file_bytes, limit_offset - file_start)
        while True:
            done = on_many(view, position, data_limit, file_start + position) if on_many is not None else None
            if done is not None:
                last = record_at(files, done.last_record_offset, file_bytes=file_bytes)
                assert last is not None, "a batch ended with no record"
                found = last
                count += done.record_count
                position = done.end_offset - file_start
                if done.end_offset >= limit_offset:
                    break
                continue
            found = scan_record(view, position, file_bytes, physical_offset=file_start + position, check_crc=check_crc)
            if not isinstance(found, RecordFound):
                break
            if b"\0" in found.properties or "\0" in found.topic:
                found = Corrupt("zeros in topic or properties")
                break
            on_record(found)
            last = found
            count += 1
            position += found.size
            if file_start + position >= limit_offset:
                break
        offset = file_start + position
        if isinstance(found, RecordFound):
            break
        if not isinstance(found, Blank):
            reason = found.reason if isinstance(found, Corrupt) else found.value
            break
        if found.size != file_bytes - position:
            reason = f"a blank of {found.size} bytes where {file_bytes - position} are left"
            break
        offset = file_start + file_bytes
    return LogScan(start_offset, offset, count, last, reason)


def record_at(files: MappedFileQueue, offset: int, *, file_bytes: int) -> RecordFound | None:
    """The valid record that starts at `offset`, if there is one."""
    segment = files.segment(offset)
    if segment is None:
        return None
    found = scan_record(segment.view, offset % file_bytes, file_bytes, physical_offset=offset)
    return found if isinstance(found, RecordFound) else None


def first_record(files: MappedFileQueue, file_start: int, *, file_bytes: int) -> RecordFound | None:
    """The first record of a file, its body unchecked; None if the file does not begin with one."""
    segment = files.segment(file_start)
    if segment is None:
        return None
    found = scan_record(segment.view, 0, file_bytes, physical_offset=file_start, check_crc=False)
    return found if isinstance(found, RecordFound) else None
