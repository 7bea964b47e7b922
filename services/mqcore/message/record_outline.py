"""All of a record but its body, read in place: for lists of messages, whose bodies nobody may want to see."""

from __future__ import annotations

from typing import Final, NamedTuple

from mqcore.message.errors import MalformedRecord
from mqcore.message.host import Host
from mqcore.message.record_layout import (
    BLANK,
    HOST_FLAGS,
    PART_LENGTH,
    SMALLEST_RECORD_BYTES,
    V1_MAGIC,
    V2_MAGIC,
    WHOLE_HEADS,
)

__all__ = ["RECORD_HEAD_BYTES_MAX", "RECORD_TAIL_BYTES_MAX", "RecordOutline", "read_record_outline"]

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
