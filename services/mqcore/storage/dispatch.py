"""Dispatch: what a record of the CommitLog adds to the ConsumeQueue of its queue and to the index.

A master does this at the append, where every field is at hand; this is the way for records read back from the log, on
a slave and in recovery. Mirrors RocketMQ's CommitLogDispatcherBuildConsumeQueue and …BuildIndex.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mqcore.message import RecordFound, decode_properties, index_terms, record_tags_code
from mqcore.message.sys_flag import enters_consume_queue, enters_index
from mqcore.storage.consume_queue_table import ConsumeQueueTable
from mqcore.storage.index_table import IndexTable

__all__ = ["Dispatcher"]


class Dispatcher:
    """Stateless but for the tables it feeds. Dispatching a record twice does no harm."""

    def __init__(self, queues: ConsumeQueueTable, index: IndexTable | None, *, delay_levels_ms: Sequence[int]) -> None:
        self._queues: Final = queues
        self._index: Final = index
        self._delay_levels_ms: Final = delay_levels_ms

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
