"""Dispatch: what a record of the CommitLog adds to the ConsumeQueue of its queue and to the index.

A master does this at the append, where every field is at hand; this is the way for records read back from the log, on
a slave and in recovery. Mirrors RocketMQ's CommitLogDispatcherBuildConsumeQueue and …BuildIndex.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final, NamedTuple

from mqcore.message.properties import decode_properties, index_terms
from mqcore.message.record_decoder import RecordFound
from mqcore.message.sys_flag import enters_consume_queue, enters_index
from mqcore.message.tags_code import record_tags_code
from mqcore.storage.consume_queue_table import ConsumeQueueTable
from mqcore.storage.errors import DiskFull
from mqcore.storage.index_table import IndexTable
from mqcore.storage.record_walk import IS_COMPILED, RecordWalk

__all__ = ["BatchDone", "Dispatcher"]

_BATCH_BYTES_MAX: Final = 4 << 20
"""Of one batch: a few milliseconds, and columns that fit a processor's cache."""
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
        """Of less there is never a batch."""

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
        from mqcore.storage.batch_dispatch import enter_batch, enter_batch_into_index
        from mqcore.storage.record_batch import read_batch

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
