"""Reads records: one of them whole (`decode_record`), or one after the other with little effort (`scan_record`).

Both accept a record only if its parts add up to its size, as RocketMQ's CommitLog.checkMessageAndReturnSize does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from tandemmq.core.message.record import Host, MessageRecord
from tandemmq.core.message.record_layout import (
    BLANK,
    BLANK_MAGIC,
    CRC_MASK,
    HOST_FLAGS,
    PART_LENGTH,
    SCAN_HEADS,
    SMALLEST_RECORD_BYTES,
    V1_MAGIC,
    V2_MAGIC,
    WHOLE_HEADS,
    MalformedRecord,
    crc32,
)

__all__ = [
    "RECORD_HEAD_BYTES_MAX",
    "RECORD_TAIL_BYTES_MAX",
    "Blank",
    "Corrupt",
    "RecordFound",
    "RecordOutline",
    "ScanResult",
    "ScanStop",
    "decode_record",
    "read_record_outline",
    "scan_record",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

_unpack_length: Final = PART_LENGTH.unpack_from


class RecordFound(NamedTuple):
    """A valid record: what dispatch and recovery need of it."""

    size: int
    """Bytes; the next record starts so much further on."""
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_timestamp_ms: int
    topic: str
    properties: bytes


@dataclass(frozen=True, slots=True)
class Blank:
    """The rest of the file holds nothing. `size` is what is written there: the caller compares it with what is left."""

    size: int


@dataclass(frozen=True, slots=True)
class Corrupt:
    """No record starts here: a torn write, stale bytes or a bad disk."""

    reason: str


class ScanStop(Enum):
    """Why there is no record, and nothing wrong either."""

    INCOMPLETE = "incomplete"
    """The record goes on beyond `limit`: more bytes have to arrive. At the end of a file it is a torn write."""
    END_OF_DATA = "end_of_data"
    """Zeros: nothing was written here yet."""


ScanResult: TypeAlias = RecordFound | Blank | Corrupt | ScanStop


def scan_record(
    buffer: Buffer, position: int, limit: int, *, physical_offset: int, check_crc: bool = True
) -> ScanResult:
    """Looks at the record at `position`. Bytes up to `limit` may be read.

    `physical_offset` is where in the CommitLog `position` is. A record that says otherwise is Corrupt: it was copied
    here by accident, or is left over from before a truncation.
    """
    available = limit - position
    if available < BLANK.size:
        return ScanStop.INCOMPLETE
    size, magic = BLANK.unpack_from(buffer, position)
    if magic == BLANK_MAGIC:
        return Blank(size) if size >= BLANK.size else Corrupt(f"a blank of {size} bytes")
    if magic not in (V1_MAGIC, V2_MAGIC):
        return ScanStop.END_OF_DATA if size == 0 and magic == 0 else Corrupt(f"magic code {magic:08x}")
    if size < SMALLEST_RECORD_BYTES:
        return Corrupt(f"total size {size}")
    if size > available:
        return ScanStop.INCOMPLETE
    head = SCAN_HEADS[0]
    fields = head.unpack_from(buffer, position)
    host_flags = fields[6] & HOST_FLAGS
    if host_flags:
        head = SCAN_HEADS[host_flags >> 4]
        if size < head.size:
            return Corrupt(f"total size {size} with IPv6 hosts")
        fields = head.unpack_from(buffer, position)
    _, _, body_crc, queue_id, queue_offset, own_offset, sys_flag, store_timestamp_ms, body_bytes = fields
    if own_offset != physical_offset:
        return Corrupt(f"the record was written for physical offset {own_offset}")
    body_start = position + head.size
    try:
        topic_start, topic_end, properties_start = _bounds(
            buffer, position=position, size=size, magic=magic, body_start=body_start, body_bytes=body_bytes
        )
        if check_crc:
            _check_body(buffer, position, body_start, body_bytes, body_crc)
    except MalformedRecord as error:
        return Corrupt(error.reason)
    return RecordFound(
        size,
        queue_id,
        queue_offset,
        own_offset,
        sys_flag,
        store_timestamp_ms,
        str(buffer[topic_start:topic_end], "utf-8", "replace"),
        bytes(buffer[properties_start : position + size]),
    )


def decode_record(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> MessageRecord:
    """The whole record at `position`. Raises MalformedRecord if there is none, or only a part of one."""
    available = len(buffer) - position
    if available < SMALLEST_RECORD_BYTES:
        raise MalformedRecord(position, f"{available} bytes are too few")
    size, magic = BLANK.unpack_from(buffer, position)
    if magic not in (V1_MAGIC, V2_MAGIC):
        raise MalformedRecord(position, f"magic code {magic:08x}")
    if not SMALLEST_RECORD_BYTES <= size <= available:
        raise MalformedRecord(position, f"total size {size} with {available} bytes at hand")
    head = WHOLE_HEADS[0]
    fields = head.unpack_from(buffer, position)
    host_flags = fields[7] & HOST_FLAGS
    if host_flags:
        head = WHOLE_HEADS[host_flags >> 4]
        if size < head.size:
            raise MalformedRecord(position, f"total size {size} with IPv6 hosts")
        fields = head.unpack_from(buffer, position)
    (
        _,
        _,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp_ms,
        born_address,
        born_port,
        store_timestamp_ms,
        store_address,
        store_port,
        reconsume_times,
        prepared_transaction_offset,
        body_bytes,
    ) = fields
    body_start = position + head.size
    topic_start, topic_end, properties_start = _bounds(
        buffer, position=position, size=size, magic=magic, body_start=body_start, body_bytes=body_bytes
    )
    if check_crc:
        _check_body(buffer, position, body_start, body_bytes, body_crc)
    return MessageRecord(  # In the order of its fields: names would cost a tenth of the whole.
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp_ms,
        Host(born_address, born_port),
        store_timestamp_ms,
        Host(store_address, store_port),
        reconsume_times,
        prepared_transaction_offset,
        bytes(buffer[body_start : body_start + body_bytes]),
        str(buffer[topic_start:topic_end], "utf-8", "replace"),
        bytes(buffer[properties_start : position + size]),
    )


def _bounds(
    buffer: Buffer, *, position: int, size: int, magic: int, body_start: int, body_bytes: int
) -> tuple[int, int, int]:
    """Where the topic starts and ends and where the properties start; they end with the record."""
    end = position + size
    topic_length_at = body_start + body_bytes
    if body_bytes < 0 or topic_length_at + PART_LENGTH.size > end:
        raise MalformedRecord(position, f"a body of {body_bytes} bytes in a record of {size}")
    if magic == V1_MAGIC:
        topic_bytes = buffer[topic_length_at]
        if topic_bytes > 127:  # Java reads the byte as signed
            raise MalformedRecord(position, f"a V1 topic of {topic_bytes} bytes")
        topic_start = topic_length_at + 1
    else:
        (topic_bytes,) = _unpack_length(buffer, topic_length_at)
        topic_start = topic_length_at + PART_LENGTH.size
    topic_end = topic_start + topic_bytes
    if topic_bytes < 0 or topic_end + PART_LENGTH.size > end:
        raise MalformedRecord(position, f"a topic of {topic_bytes} bytes in a record of {size}")
    (properties_bytes,) = _unpack_length(buffer, topic_end)
    properties_start = topic_end + PART_LENGTH.size
    if properties_bytes < 0 or properties_start + properties_bytes != end:
        raise MalformedRecord(position, f"the parts do not add up to the total size {size}")
    return topic_start, topic_end, properties_start


def _check_body(buffer: Buffer, position: int, body_start: int, body_bytes: int, body_crc: int) -> None:
    if crc32(buffer[body_start : body_start + body_bytes]) & CRC_MASK != body_crc:
        raise MalformedRecord(position, "the body does not match its CRC")


# All of a record but its body, read in place: for lists of messages, where nobody may want the bodies.

RECORD_HEAD_BYTES_MAX: Final = WHOLE_HEADS[-1].size
"""The body begins no later."""
RECORD_TAIL_BYTES_MAX: Final = 33 << 10
"""What follows a body: topic and properties with their lengths. No broker writes a topic that needs more."""


class RecordOutline(NamedTuple):
    """A record's fields as stored, and where its body lies."""

    total_size: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body_offset: int
    """Place of its first byte in the CommitLog."""
    body_bytes: int
    topic: str
    properties: bytes
    """Raw property string; decode_properties reads it."""


def read_record_outline(log: memoryview, physical_offset: int) -> RecordOutline:
    """The record a piece of the CommitLog begins with; `physical_offset` is the piece's place in it.

    Touches the head of the record and its tail, and neither reads the body nor checks its CRC. Raises MalformedRecord
    if no record begins there, or only a part of it is in the piece.
    """
    if len(log) < SMALLEST_RECORD_BYTES:
        raise MalformedRecord(0, f"{len(log)} bytes are too few")
    size, magic = BLANK.unpack_from(log)
    if magic not in (V1_MAGIC, V2_MAGIC):
        raise MalformedRecord(0, f"magic code {magic:08x}")
    if not SMALLEST_RECORD_BYTES <= size <= len(log):
        raise MalformedRecord(0, f"total size {size} with {len(log)} bytes at hand")
    head = WHOLE_HEADS[0]
    fields = head.unpack_from(log)
    if host_flags := fields[7] & HOST_FLAGS:
        head = WHOLE_HEADS[host_flags >> 4]
        if size < head.size:
            raise MalformedRecord(0, f"total size {size} with IPv6 hosts")
        fields = head.unpack_from(log)
    (
        _,
        _,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        own_offset,
        sys_flag,
        born_timestamp_ms,
        born_address,
        born_port,
        store_timestamp_ms,
        store_address,
        store_port,
        reconsume_times,
        prepared_transaction_offset,
        body_bytes,
    ) = fields
    if own_offset != physical_offset:
        raise MalformedRecord(0, f"the record was written for physical offset {own_offset}")
    topic_start, topic_end, properties_start = _tail(log, size, magic, head.size, body_bytes)
    return RecordOutline(
        size,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        own_offset,
        sys_flag,
        born_timestamp_ms,
        Host(born_address, born_port),
        store_timestamp_ms,
        Host(store_address, store_port),
        reconsume_times,
        prepared_transaction_offset,
        physical_offset + head.size,
        body_bytes,
        str(log[topic_start:topic_end], "utf-8", "replace"),
        bytes(log[properties_start:size]),
    )


def _tail(log: memoryview, size: int, magic: int, body_start: int, body_bytes: int) -> tuple[int, int, int]:
    """Where the topic starts and ends and where the properties start; they end with the record."""
    topic_length_at = body_start + body_bytes
    if body_bytes < 0 or topic_length_at + PART_LENGTH.size > size:
        raise MalformedRecord(0, f"a body of {body_bytes} bytes in a record of {size}")
    if magic == V1_MAGIC:
        topic_bytes, topic_start = log[topic_length_at], topic_length_at + 1
    else:
        (topic_bytes,) = PART_LENGTH.unpack_from(log, topic_length_at)
        topic_start = topic_length_at + PART_LENGTH.size
    topic_end = topic_start + topic_bytes
    if topic_bytes < 0 or topic_end + PART_LENGTH.size > size:
        raise MalformedRecord(0, f"a topic of {topic_bytes} bytes in a record of {size}")
    (properties_bytes,) = PART_LENGTH.unpack_from(log, topic_end)
    properties_start = topic_end + PART_LENGTH.size
    if properties_bytes < 0 or properties_start + properties_bytes != size:
        raise MalformedRecord(0, f"the parts do not add up to the total size {size}")
    return topic_start, topic_end, properties_start
