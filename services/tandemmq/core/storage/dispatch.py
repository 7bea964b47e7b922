"""Dispatch: what a record of the CommitLog adds to the ConsumeQueue of its queue and to the index.

A master does this at the append, where every field is at hand; this is the way for records read back from the log, on
a slave and in recovery. Mirrors RocketMQ's CommitLogDispatcherBuildConsumeQueue and …BuildIndex.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mypy_extensions import i64

from tandemmq.core.message.properties import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
    index_terms,
    java_hash,
    tags_code,
)
from tandemmq.core.message.record import (
    SCHEDULE_TOPIC,
    Blank,
    Corrupt,
    RecordFound,
    ScanResult,
    record_tags_code,
    scan_record,
)
from tandemmq.core.message.record_layout import (
    CRC_MASK,
    HOST_FLAGS,
    INNER_BATCH,
    SCAN_HEADS,
    SMALLEST_RECORD_BYTES,
    TRANSACTION_MASK,
    V1_MAGIC,
    V2_MAGIC,
    crc32,
    enters_consume_queue,
    enters_index,
)
from tandemmq.core.storage.consume_queue_table import ConsumeQueueTable
from tandemmq.core.storage.disk import DiskFull
from tandemmq.core.storage.index_file import ascii_extended, tag_hash, without_sign

if TYPE_CHECKING:
    from tandemmq.core.storage.commit_log import MappedFileQueue
    from tandemmq.core.storage.index_table import IndexTable

# Records read one after the other in compiled code: what dispatch needs of them, with few objects made.
#
# Takes the place of record_batch where few records are waiting: numpy's calls cost as much for one of them as for some
# hundred. It holds itself to the same rule: it takes only records that `scan_record` accepts, with the same checks, and
# only *common* ones; the first that is not ends the walk, and the caller reads that one alone. Not common are V2
# records, parts of transactions, inner batches, the schedule topic, IPv6 hosts and texts beyond ASCII.
#
# Written for mypyc: the log is copied piece by piece into `bytes`, whose letters cost a few instructions each there.
# Plain Python does the same, slowly, so it is not used there.


IS_COMPILED: Final = not __file__.endswith(".py")

_PIECE_BYTES: Final = 64 << 10
"""Copied at once: it stays in a processor's cache, and malloc has it at hand (it maps what is twice as large)."""
_HEAD_BYTES: Final = 88
_LENGTHS_BYTES: Final = 3
"""Bytes of the two lengths behind the body, the topic's and the properties'."""
_SMALLEST_BYTES: Final = 91
_MAGIC: Final = 0xDAA3_20A7
_CRC_MASK: Final = 0x7FFF_FFFF
# Said again, because only what is written out is no look-up in compiled code.
assert SCAN_HEADS[0].size == _HEAD_BYTES
assert (_MAGIC, _CRC_MASK, _SMALLEST_BYTES) == (V1_MAGIC, CRC_MASK, SMALLEST_RECORD_BYTES)
_UNCOMMON_FLAGS: Final = 0xBC
assert _UNCOMMON_FLAGS == INNER_BATCH | TRANSACTION_MASK | HOST_FLAGS
_V1_TOPIC_BYTES_MAX: Final = 127
_TOPICS_MAX: Final = 16_384
_TAGS_MAX: Final = 1024
"""Tags remembered of one topic. All are forgotten at once when the memory is full."""
_UNIQUE_KEY: Final = PROPERTY_UNIQUE_KEY.encode() + b"\x01"
_KEYS: Final = PROPERTY_KEYS.encode() + b"\x01"
_TAGS: Final = PROPERTY_TAGS.encode() + b"\x01"
_UNIQUE_KEY_BYTES: Final = 9
_KEYS_BYTES: Final = 5
_TAGS_BYTES: Final = 5
assert (len(_UNIQUE_KEY), len(_KEYS), len(_TAGS)) == (_UNIQUE_KEY_BYTES, _KEYS_BYTES, _TAGS_BYTES)
_U: Final = 0x55
_K: Final = 0x4B
_T: Final = 0x54
assert (_UNIQUE_KEY[0], _KEYS[0], _TAGS[0]) == (_U, _K, _T)
_SPACE: Final = 0x20
_SHORTEST_PAIR: Final = 6
"""TAGS or KEYS with a value."""

_unpack_head: Final = SCAN_HEADS[0].unpack_from
_unpack_peek: Final = Struct(">iI28xi").unpack_from


class _Tag:
    """What queue and index hold for a tag of a topic."""

    __slots__ = ("code", "hashed")

    def __init__(self, topic: str, raw: bytes) -> None:
        tag = str(raw, "ascii")
        self.code: Final[int] = tags_code(tag)
        self.hashed: Final[int] = tag_hash(topic, tag)


class _Topic:
    """What does not change from one record of a topic to the next."""

    __slots__ = ("hash_before", "is_common", "name", "raw", "tags")

    def __init__(self, raw: bytes) -> None:
        self.raw: Final[bytes] = raw
        self.name: Final[str] = str(raw, "utf-8", "replace")
        self.is_common: Final[bool] = raw.isascii() and self.name != SCHEDULE_TOPIC
        self.hash_before: Final[int] = java_hash(f"{self.name}#") & 0xFFFF_FFFF
        self.tags: Final[dict[bytes, _Tag]] = {}

    def new_tag(self, raw: bytes) -> _Tag:
        if len(self.tags) >= _TAGS_MAX:
            self.tags.clear()
        tag = _Tag(self.name, raw)
        self.tags[raw] = tag
        return tag


def sound_end(view: memoryview, position: int, limit: int, physical_offset: int, stop: int) -> int:
    """Where the common records end that view[position:limit] begins with: checked as `RecordWalk.enter` does, and not
    entered. None that begins at `stop` or behind is looked at."""
    while position < stop and limit - position >= _SMALLEST_BYTES:
        peeked: tuple[int, int, int] = _unpack_peek(view, position)
        size, magic, sys_flag = peeked
        if magic != _MAGIC or sys_flag & _UNCOMMON_FLAGS or size > limit - position:
            break
        data = bytes(view[position : min(limit, position + max(size, _PIECE_BYTES))])
        length = _sound_bytes(data, physical_offset, stop - position)
        if not length:
            break
        position += length
        physical_offset += length
    return position


def _sound_bytes(data: bytes, physical_offset: int, stop: int) -> int:
    """Length of the common records that lie whole in `data`, one behind the other."""
    base: i64 = physical_offset
    limit: i64 = len(data)
    begin_limit: i64 = min(stop, limit - _SMALLEST_BYTES + 1)
    position: i64 = 0
    while position < begin_limit:
        head: tuple[int, int, int, int, int, int, int, int, int] = _unpack_head(data, position)
        size: i64 = head[0]
        own_offset: i64 = head[5]
        body_bytes: i64 = head[8]
        end: i64 = position + size
        body_start: i64 = position + _HEAD_BYTES
        body_end: i64 = body_start + body_bytes
        if head[1] != _MAGIC or head[6] & _UNCOMMON_FLAGS or own_offset != base + position:
            break
        if size < _SMALLEST_BYTES or end > limit or body_bytes < 0 or body_end + _LENGTHS_BYTES > end:
            break
        topic_bytes: i64 = data[body_end]
        topic_end: i64 = body_end + 1 + topic_bytes
        properties_start: i64 = topic_end + 2
        if topic_bytes > _V1_TOPIC_BYTES_MAX or properties_start > end:
            break
        high: i64 = data[topic_end]
        low: i64 = data[topic_end + 1]
        if properties_start + (high << 8 | low) != end or high > 127:
            break
        if crc32(data[body_start:body_end]) & _CRC_MASK != head[2]:
            break
        position = end
    return position


class RecordWalk:
    """Enters records into their ConsumeQueues and has the index take them later.

    What it tells belongs to the last `enter`; each `enter` starts over.
    """

    def __init__(self, queues: ConsumeQueueTable, index: IndexTable | None) -> None:
        self._queues: Final = queues
        self._index: Final = index
        self._topics: Final[dict[bytes, _Topic]] = {}
        self._count = 0
        self._tags_code = 0
        """The tags code of the record whose terms were read last."""
        self.checked_offset = 0
        """Bodies of records below were compared with their CRC already."""
        self.end_offset = 0
        self.last_record_offset = 0
        self.last_store_timestamp_ms = 0
        """The latest of them."""
        self.no_room = False
        """DiskFull: all entries of queues are in memory, and what comes next has no room."""

    def enter(self, view: memoryview, position: int, limit: int, physical_offset: int) -> int:
        """Enters the common records that view[position:limit] begins with; returns how many.

        `physical_offset` is where in the CommitLog `position` is. DiskError: the disk failed, and the rest is void.
        """
        self.last_store_timestamp_ms = 0
        self.no_room = False
        self._count = 0
        while limit - position >= _SMALLEST_BYTES:
            # What is not common, or not all there, is not worth a copy.
            peeked: tuple[int, int, int] = _unpack_peek(view, position)
            size, magic, sys_flag = peeked
            if magic != _MAGIC or sys_flag & _UNCOMMON_FLAGS or size > limit - position:
                break
            walked = self._walk(bytes(view[position : min(limit, position + max(size, _PIECE_BYTES))]), physical_offset)
            if not walked:
                break
            position += walked
            physical_offset += walked
        self.end_offset = physical_offset
        return self._count

    def _walk(self, data: bytes, physical_offset: int) -> int:
        """Enters the common records that lie whole in `data`; returns how many bytes they are."""
        queues, index = self._queues, self._index
        checked: i64 = self.checked_offset - physical_offset
        latest_ms: i64 = self.last_store_timestamp_ms
        base: i64 = physical_offset
        limit: i64 = len(data)
        position: i64 = 0
        topic = _NO_TOPIC
        while position + _SMALLEST_BYTES <= limit:
            head: tuple[int, int, int, int, int, int, int, int, int] = _unpack_head(data, position)
            size: i64 = head[0]
            own_offset: i64 = head[5]
            body_bytes: i64 = head[8]
            end: i64 = position + size
            body_start: i64 = position + _HEAD_BYTES
            body_end: i64 = body_start + body_bytes
            if head[1] != _MAGIC or head[6] & _UNCOMMON_FLAGS or own_offset != base + position:
                break
            if size < _SMALLEST_BYTES or end > limit or body_bytes < 0 or body_end + _LENGTHS_BYTES > end:
                break
            topic_bytes: i64 = data[body_end]
            topic_end: i64 = body_end + 1 + topic_bytes
            properties_start: i64 = topic_end + 2
            if topic_bytes > _V1_TOPIC_BYTES_MAX or properties_start > end:
                break
            high: i64 = data[topic_end]
            low: i64 = data[topic_end + 1]
            if properties_start + (high << 8 | low) != end or high > 127:
                break
            if end > checked and crc32(data[body_start:body_end]) & _CRC_MASK != head[2]:
                break
            topic_raw = data[body_end + 1 : topic_end]
            if topic_raw != topic.raw:
                topic = self._topic(topic_raw)
            properties = data[properties_start:end]
            if not topic.is_common or not properties.isascii():
                break
            hashes = self._read_terms(topic, properties)
            try:
                queues.get_or_create(topic.name, head[3]).append(head[4], head[5], head[0], self._tags_code)
            except DiskFull:
                self.no_room = True
            if index is not None and hashes:
                self._enter_later(index, hashes, head[5], head[7])
            self._count += 1
            self.last_record_offset = head[5]
            store_timestamp_ms: i64 = head[7]
            latest_ms = max(latest_ms, store_timestamp_ms)
            position = end
        self.last_store_timestamp_ms = latest_ms
        return position

    def _enter_later(self, index: IndexTable, hashes: list[int], physical_offset: int, store_timestamp_ms: int) -> None:
        try:
            index.put_hashes_later(hashes, physical_offset, store_timestamp_ms)
        except DiskFull:
            # As `put` has it: what has no room is not found by its keys, and the log goes on.
            index.forget_waiting()
            self.no_room = True

    def _read_terms(self, topic: _Topic, properties: bytes) -> list[int]:
        """What the index holds for a record, its keys first and its tag last; sets its tags code.

        As decode_properties and index_terms have it: of pairs with one name the last counts, a pair without value does
        not, and KEYS are the words between spaces.
        """
        unique_key = words = tag_raw = b""
        for pair in properties.split(b"\x02"):
            if len(pair) < _SHORTEST_PAIR:
                continue
            first = pair[0]
            if first == _T:
                if pair.startswith(_TAGS):
                    tag_raw = pair[_TAGS_BYTES:]
            elif first == _K:
                if pair.startswith(_KEYS):
                    words = pair[_KEYS_BYTES:]
            elif first == _U and len(pair) > _UNIQUE_KEY_BYTES and pair.startswith(_UNIQUE_KEY):
                unique_key = pair[_UNIQUE_KEY_BYTES:]
        hashes: list[int] = []
        if unique_key:
            hashes.append(without_sign(ascii_extended(topic.hash_before, unique_key)))
        if words:
            _append_word_hashes(hashes, topic.hash_before, words)
        self._tags_code = 0
        if tag_raw:
            tag = topic.tags.get(tag_raw)
            if tag is None:
                tag = topic.new_tag(tag_raw)
            hashes.append(tag.hashed)
            self._tags_code = tag.code
        return hashes

    def _topic(self, raw: bytes) -> _Topic:
        topic = self._topics.get(raw)
        if topic is None:
            if len(self._topics) >= _TOPICS_MAX:
                self._topics.clear()
            topic = _Topic(raw)
            self._topics[raw] = topic
        return topic


def _append_word_hashes(hashes: list[int], hash_before: int, words: bytes) -> None:
    """What the index holds for each word of KEYS."""
    before: i64 = hash_before
    hashed: i64 = before
    is_word = False
    for index in range(len(words)):
        unit: i64 = words[index]
        if unit != _SPACE:
            hashed = (hashed * 31 + unit) & 0xFFFF_FFFF
            is_word = True
        elif is_word:
            hashes.append(without_sign(hashed))
            hashed = before
            is_word = False
    if is_word:
        hashes.append(without_sign(hashed))


_NO_TOPIC: Final = _Topic(b"\0")
"""Before the first record."""


# Where records begin, for comparing two replicas record by record. Every CommitLog file begins with a record, so the
# walk starts there: a few microseconds a record, once in a resynchronisation.


_HEADER_PIECE_BYTES: Final = 1 << 20
_RECORD_MAGIC: Final = re.compile(b"|".join(re.escape(magic.to_bytes(4)) for magic in (V1_MAGIC, V2_MAGIC)))
_MAGIC_AT: Final = 4
_OWN_OFFSET_AT: Final = 28


class LogBytes(Protocol):
    @property
    def min_offset(self) -> int:
        """First byte held."""

    @property
    def end_offset(self) -> int:
        """One past the last byte."""

    @property
    def segment_bytes(self) -> int:
        """CommitLog file size."""

    def read_log(self, offset: int, max_bytes: int) -> memoryview:
        """Bytes within one file."""


def holds_record_header(log: LogBytes, start_offset: int, end_offset: int) -> bool:
    """Whether a record begins in [start_offset, end_offset) whose header lies in there, too. Reads up to the first."""
    while start_offset < end_offset:
        piece = log.read_log(start_offset, min(_HEADER_PIECE_BYTES, end_offset - start_offset))
        for found in _RECORD_MAGIC.finditer(piece):
            at = found.start() - _MAGIC_AT
            if 0 <= at <= len(piece) - SMALLEST_RECORD_BYTES:
                own_offset = int.from_bytes(piece[at + _OWN_OFFSET_AT : at + _OWN_OFFSET_AT + 8])
                if own_offset == start_offset + at:
                    return True
        if not piece:
            return False
        # One that begins at the end of this piece is found with the next.
        is_cut = len(piece) == _HEADER_PIECE_BYTES
        start_offset += len(piece) - (SMALLEST_RECORD_BYTES if is_cut else 0)
    return False


def record_boundaries(log: LogBytes, start_offset: int, end_offset: int) -> list[int]:
    """Offsets in [start_offset, end_offset] at which a record begins or the log may end, ascending."""
    found: list[int] = []
    file_start = max(log.min_offset, start_offset - start_offset % log.segment_bytes)
    while file_start <= end_offset and file_start <= log.end_offset:
        found += [offset for offset in _file_boundaries(log, file_start) if start_offset <= offset <= end_offset]
        file_start += log.segment_bytes - file_start % log.segment_bytes
    return found


def record_boundary_before(log: LogBytes, offset: int) -> int:
    """The last boundary at or below `offset`."""
    if offset <= log.min_offset:
        return log.min_offset
    # A boundary at a file's start is found in the file before it as well, when that one ends with its blank.
    file_start = max(log.min_offset, offset - offset % log.segment_bytes)
    boundaries = _file_boundaries(log, file_start)
    return boundaries[bisect_right(boundaries, offset) - 1]


def _file_boundaries(log: LogBytes, file_start: int) -> list[int]:
    """Boundaries in one file, its start included; its end belongs to the next file."""
    data = log.read_log(file_start, log.segment_bytes)
    boundaries = [file_start]
    position = 0
    while position < len(data):
        scanned = scan_record(data, position, len(data), physical_offset=file_start + position, check_crc=False)
        if isinstance(scanned, Blank) or not isinstance(scanned, RecordFound):
            break
        position += scanned.size
        boundaries.append(file_start + position)
    return boundaries


_BATCH_BYTES_MAX: Final = 4 << 20
"""The size of one batch: a few milliseconds, and columns that fit a processor's cache."""
_SHORT_BATCH: Final = 16
"""Records. A shorter batch cost more than it saved."""
_WALK_BYTES_MAX: Final = 192 << 10
"""Waiting log up to which a compiled walk costs less than columns do."""
_PAUSE_BYTES: Final = 256 << 10
"""Read one by one after a short batch: more of what made it short is likely to follow."""


class BatchDone(NamedTuple):
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

    def without_index(self) -> Dispatcher:
        """One that enters records into their ConsumeQueues alone."""
        return Dispatcher(
            self._queues,
            None,
            delay_levels_ms=self._delay_levels_ms,
            batch_bytes_min=self._columns_bytes_min,
            walk_bytes_max=self.walk_bytes_max,
        )

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
