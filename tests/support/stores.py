"""Small stores for tests: files of a few kilobytes, a clock that is told the time, and what a store should hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from support.messages import STORE_HOST
from tandemmq.core.message.properties import decode_properties, index_terms
from tandemmq.core.message.record import Blank, MessageRecord, RecordFound, record_tags_code, scan_record
from tandemmq.core.message.record_layout import enters_consume_queue
from tandemmq.core.storage.consume_queue import QueueEntry
from tandemmq.core.storage.disk import Disk, RecordCorrupt
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.retention import BelievedTime

SMALL_OPTIONS: Final = StoreOptions(
    commit_log_file_bytes=4096,
    consume_queue_file_bytes=400,
    index_slot_count=16,
    index_entry_count=60,
    disk_max_used_ratio=1.0,
    disk_clean_forcibly_ratio=1.0,
    disk_warning_ratio=1.0,
)
"""Everything rolls after a few messages, and how full the machine's disk is decides nothing."""
FILLING_OPTIONS: Final = replace(
    SMALL_OPTIONS, disk_max_used_ratio=0.75, disk_clean_forcibly_ratio=0.85, disk_warning_ratio=0.90
)
"""The same with RocketMQ's limits, for a simulated disk that fills up."""


@dataclass(slots=True)
class ManualClock:
    """Stands still unless the test moves it."""

    now_ms: int = 1_700_000_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def wall_ns(self) -> int:
        return self.now_ms * 1_000_000


def new_store(disk: Disk, clock: ManualClock | None = None, options: StoreOptions = SMALL_OPTIONS) -> MessageStore:
    """A store on `disk`, not loaded yet."""
    return MessageStore(disk, clock or ManualClock(), options, store_host=STORE_HOST, process_id=4711)


def right_time(now_ms: int) -> BelievedTime:
    """A clock that is believed at once."""
    return BelievedTime(
        boot_id="boot",
        saved=None,
        newest_ms=0,
        wall_ms=now_ms,
        monotonic_ms=0,
        jump_max_ms=SMALL_OPTIONS.clock_jump_max_ms,
    )


def flush_all(store: MessageStore) -> None:
    """Runs the flush jobs as a broker would, at once."""
    for job in (store.log_flush_job(), store.queue_flush_job()):
        if job is not None:
            job.run()
            store.flush_finished(job)


def log_bytes(store: MessageStore, start_offset: int | None = None) -> bytes:
    """The log from `start_offset`, or from its beginning, to its end."""
    offset = store.min_offset if start_offset is None else start_offset
    pieces = []
    while offset < store.end_offset:
        piece = bytes(store.read_log(offset, store.end_offset - offset))
        assert piece, f"nothing can be read at {offset}"
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


def records_in(data: bytes, *, start_offset: int, file_bytes: int) -> list[RecordFound]:
    """Every record of a piece of log that begins with one and ends with one or with a blank."""
    records = []
    position = 0
    while position < len(data):
        file_left = file_bytes - (start_offset + position) % file_bytes
        limit = min(len(data), position + file_left)
        found = scan_record(data, position, limit, physical_offset=start_offset + position)
        if isinstance(found, Blank):
            assert found.size == file_left
            position += found.size
            continue
        assert isinstance(found, RecordFound), f"{found} at {start_offset + position}"
        records.append(found)
        position += found.size
    return records


def derived_queues(store: MessageStore) -> dict[tuple[str, int], list[QueueEntry]]:
    """What the ConsumeQueues must hold by the log alone."""
    queues: dict[tuple[str, int], list[QueueEntry]] = {}
    data = log_bytes(store)
    for record in records_in(data, start_offset=store.min_offset, file_bytes=store.segment_bytes):
        if not enters_consume_queue(record.sys_flag):
            continue
        tags_code = record_tags_code(
            record.topic,
            decode_properties(record.properties),
            store_timestamp_ms=record.store_timestamp_ms,
            delay_levels_ms=SMALL_OPTIONS.delay_levels_ms,
        )
        queues.setdefault((record.topic, record.queue_id), []).append(
            QueueEntry(record.physical_offset, record.size, tags_code)
        )
    return queues


def queue_contents(store: MessageStore) -> dict[tuple[str, int], list[QueueEntry]]:
    """What the ConsumeQueues do hold; empty ones left out."""
    contents = {}
    for queue in store.queues:
        queue = store.consume_queue(queue.topic, queue.queue_id) or queue
        entries = queue.read(queue.min_offset, queue.max_offset)
        if entries:
            contents[queue.topic, queue.queue_id] = entries
    return contents


def keys_in(store: MessageStore) -> list[tuple[str, str, int]]:
    """Topic, key and offset of every indexed key by the log alone."""
    found = []
    for record in records_in(log_bytes(store), start_offset=store.min_offset, file_bytes=store.segment_bytes):
        _, keys = index_terms(decode_properties(record.properties))
        found += [(record.topic, key, record.physical_offset) for key in keys]
    return found


def with_options(**changes: int | float | tuple[int, ...]) -> StoreOptions:
    """SMALL_OPTIONS with some of them changed."""
    return replace(SMALL_OPTIONS, **changes)  # type: ignore[arg-type]


def messages_by_key(
    store: MessageStore, topic: str, key: str, *, begin_ms: int, end_ms: int, max_count: int = 64
) -> list[MessageRecord]:
    """Messages with `key`, a unique key or a word of KEYS, stored in [begin_ms, end_ms], newest first."""
    walked = (offset for offset in store.index_walk(topic, key, begin_ms=begin_ms, end_ms=end_ms) if offset is not None)
    records = []
    for offset in dict.fromkeys(islice(walked, max_count)):
        try:
            record = store.message_at(offset)
        except RecordCorrupt:
            continue  # Its file is gone, or the entry is from before a truncation.
        _, keys = index_terms(decode_properties(record.properties))
        if record.topic == topic and key in keys and begin_ms <= record.store_timestamp_ms <= end_ms:
            records.append(record)
    return records
