"""Records of a part of the log as columns, whether they were read many at once or alone. Imports numpy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt

from tandemmq.core.audit.findings import Finding
from tandemmq.core.audit.replica_store import is_number
from tandemmq.core.message.properties import PROPERTY_INNER_COUNT, PROPERTY_UNIQUE_KEY, decode_properties, index_terms
from tandemmq.core.message.record import MessageRecord, RecordFound, decode_record, offset_message_id, record_tags_code
from tandemmq.core.message.record_layout import (
    BLANK,
    CRC_MASK,
    HOST_FLAGS,
    INNER_BATCH,
    V1_MAGIC,
    V2_MAGIC,
    WHOLE_HEADS,
    MalformedRecord,
    enters_consume_queue,
    enters_index,
)
from tandemmq.core.storage.index_file import term_hashes
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.record_batch import RecordBatch

Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_COUNT_DIGITS_MAX: Final = 9
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
    """The row of each index entry; ascending."""
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
            advance = int(count) if is_number(count) and len(count) <= _COUNT_DIGITS_MAX else 1
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


# What people call a record: topic, queue, message id.


class RecordName(NamedTuple):
    """One record's place and names."""

    start_offset: int
    end_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    """UNIQ_KEY, or else the offset message id."""
    store_timestamp_ms: int
    has_unique_key: bool = True


def name_of_record(record: MessageRecord, *, physical_offset: int | None = None) -> RecordName:
    """Names a record that was read whole; `physical_offset` is where it lies, if it says something else itself."""
    start = record.physical_offset if physical_offset is None else physical_offset
    unique_key = decode_properties(record.properties).get(PROPERTY_UNIQUE_KEY)
    return RecordName(
        start_offset=start,
        end_offset=start + record.total_size,
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        message_id=unique_key or offset_message_id(record.store_host, record.physical_offset),
        store_timestamp_ms=record.store_timestamp_ms,
        has_unique_key=unique_key is not None,
    )


def read_name(data: bytes | memoryview, position: int, physical_offset: int) -> RecordName | None:
    """Names the record at `position` of `data`, whatever its body is; None if there is no record."""
    try:
        return name_of_record(decode_record(data, position, check_crc=False), physical_offset=physical_offset)
    except MalformedRecord:
        return None


def read_damaged_name(data: bytes | memoryview, physical_offset: int) -> RecordName | None:
    """Names a record that starts `data` and lost its size or magic code; None if the rest cannot be read."""
    for magic in (V1_MAGIC, V2_MAGIC):
        mended = bytearray(data)
        if len(mended) < BLANK.size:
            return None
        for size in (len(mended), int.from_bytes(mended[:4], "big")):
            BLANK.pack_into(mended, 0, min(size, 0x7FFF_FFFF), magic)
            name = read_name(memoryview(mended), 0, physical_offset)
            if name is not None:
                return name
    return None


def describe(finding: Finding, name: RecordName | None, *, last: RecordName | None = None) -> Finding:
    """The finding with the message's names, and with its range if it has none."""
    if name is None:
        return finding
    return replace(
        finding,
        topic=name.topic,
        queue_id=name.queue_id,
        queue_offset=name.queue_offset,
        message_id=name.message_id,
        store_timestamp_ms=name.store_timestamp_ms,
        start_offset=name.start_offset if finding.start_offset is None else finding.start_offset,
        end_offset=(last or name).end_offset if finding.end_offset is None else finding.end_offset,
        last_message_id=finding.last_message_id if last is None else last.message_id,
    )


# What two versions of one record differ in, by RocketMQ's names of the fields.

_BODY_SHOWN_BYTES: Final = 16
_VALUE_SHOWN: Final = 80
_CRC_PROPERTY: Final = b"__CRC32#\x01"
_CRC_PROPERTY_BYTES: Final = 20


def field_differences(held: bytes | memoryview, right: bytes | memoryview) -> str:
    """ "storeTimestamp 5 instead of 4, …": `held` is what a replica has, both are whole records but for their bodies.

    Empty if they are equal, or if one of them is no record.
    """
    try:
        ours, theirs = decode_record(held, check_crc=False), decode_record(right, check_crc=False)
    except MalformedRecord:
        return ""
    differences = [
        f"{name} {value} instead of {due}"
        for (name, value), (_, due) in zip(_plain_fields(ours), _plain_fields(theirs))
        if value != due
    ]
    if ours.body != theirs.body:
        differences.append(_body_difference(ours.body, theirs.body))
    if ours.properties != theirs.properties:
        differences.append(_property_difference(ours.properties, theirs.properties))
    return ", ".join(differences)


def changed_fields(held: bytes | memoryview, right: bytes | memoryview) -> list[str]:
    """The fields in which bytes differ, where `held` is no record any more; `right` is one, of the same length."""
    return [
        f"{name} {bytes(held[start:end]).hex()} instead of {bytes(right[start:end]).hex()}"
        if end - start <= _BODY_SHOWN_BYTES
        else name
        for name, start, end in _places(right)
        if held[start:end] != right[start:end]
    ]


def has_zero_text(record: bytes | memoryview) -> bool:
    """Whether a record has zeros in its topic or its properties: recovery takes that for a torn write."""
    topic, properties = _texts(record)
    return "\0" in topic or b"\0" in properties


def has_broken_text(record: bytes | memoryview) -> bool:
    """Whether a record's topic or properties are what no broker writes: with zeros, or no UTF-8."""
    topic, properties = _texts(record)
    try:
        return "\0" in topic + properties.decode() or "\ufffd" in topic
    except UnicodeDecodeError:
        return True


def _texts(record: bytes | memoryview) -> tuple[str, bytes]:
    """Topic and properties; nothing of what is no record."""
    try:
        found = decode_record(record, check_crc=False)
    except MalformedRecord:
        return "", b""
    return found.topic, found.properties


def has_right_checksum(record: bytes | memoryview) -> bool | None:
    """Whether a record fits the checksum that it carries of itself, RocketMQ's property `__CRC32#`, the last 20 bytes:
    decimal digits, the lowest first. None: it has none."""
    at = len(record) - _CRC_PROPERTY_BYTES
    if at <= 0 or bytes(record[at : at + len(_CRC_PROPERTY)]) != _CRC_PROPERTY:
        return None
    digits = bytes(record[at + len(_CRC_PROPERTY) : -1])
    return digits.isdigit() and int(digits[::-1]) == crc32(record[:at]) & CRC_MASK


def _plain_fields(record: MessageRecord) -> list[tuple[str, object]]:
    return [
        ("totalSize", record.total_size),
        ("magicCode", f"{record.magic:08x}"),
        ("bodyCRC", f"{record.body_crc:08x}"),
        ("queueId", record.queue_id),
        ("flag", record.flag),
        ("queueOffset", record.queue_offset),
        ("physicalOffset", record.physical_offset),
        ("sysFlag", f"{record.sys_flag:#x}"),
        ("bornTimestamp", record.born_timestamp_ms),
        ("bornHost", record.born_host),
        ("storeTimestamp", record.store_timestamp_ms),
        ("storeHost", record.store_host),
        ("reconsumeTimes", record.reconsume_times),
        ("preparedTransactionOffset", record.prepared_transaction_offset),
        ("topic", record.topic),
    ]


def _body_difference(held: bytes, right: bytes) -> str:
    if len(held) != len(right):
        return f"a body of {len(held)} bytes instead of {len(right)}"
    places = [place for place, (ours, due) in enumerate(zip(held, right)) if ours != due]
    first = places[0]
    return (
        f"{len(places)} bytes of the body, the first at {first}: {held[first]:02x} instead of {right[first]:02x}"
        if len(places) > 1
        else f"byte {first} of the body: {held[first]:02x} instead of {right[first]:02x}"
    )


def _property_difference(held: bytes, right: bytes) -> str:
    ours, due = decode_properties(held), decode_properties(right)
    changes = [
        f"{name} {_shown(ours.get(name))} instead of {_shown(due.get(name))}"
        for name in sorted({*ours, *due})
        if ours.get(name) != due.get(name)
    ]
    return "properties: " + (", ".join(changes) if changes else "bytes that mean nothing")


def _shown(value: str | None) -> str:
    return "none" if value is None else repr(value[:_VALUE_SHOWN])


def _places(record: bytes | memoryview) -> list[tuple[str, int, int]]:
    """Name, start and end of every field of a whole record."""
    sys_flag = int.from_bytes(record[36:40], "big")
    host_flags = sys_flag & HOST_FLAGS
    born = 16 if host_flags & 0x10 else 4
    store = 16 if host_flags & 0x20 else 4
    head_bytes = WHOLE_HEADS[host_flags >> 4].size
    widths = [
        ("totalSize", 4),
        ("magicCode", 4),
        ("bodyCRC", 4),
        ("queueId", 4),
        ("flag", 4),
        ("queueOffset", 8),
        ("physicalOffset", 8),
        ("sysFlag", 4),
        ("bornTimestamp", 8),
        ("bornHost", born + 4),
        ("storeTimestamp", 8),
        ("storeHost", store + 4),
        ("reconsumeTimes", 4),
        ("preparedTransactionOffset", 8),
        ("bodyLength", 4),
        ("body", int.from_bytes(record[head_bytes - 4 : head_bytes], "big")),
    ]
    topic_length_bytes = 1 if int.from_bytes(record[4:8], "big") == V1_MAGIC else 2
    topic_at = sum(width for _, width in widths)
    topic_bytes = int.from_bytes(record[topic_at : topic_at + topic_length_bytes], "big")
    widths += [("topicLength", topic_length_bytes), ("topic", topic_bytes), ("propertiesLength", 2)]
    places = []
    start = 0
    for name, width in widths:
        places.append((name, start, start + width))
        start += width
    return [*places, ("properties", start, len(record))]
