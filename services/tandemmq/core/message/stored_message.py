"""What a delivery needs of a record, read in place: the hot path of receiving.

The whole record (`decode_record`) costs three times as much and copies the body; most of its fields no client sees.
"""

from __future__ import annotations

from typing import Final

from tandemmq.core.message.record_layout import (
    CRC_MASK,
    DELIVERY_HEADS,
    HOST_FLAGS,
    SCAN_HEADS,
    V1_MAGIC,
    V2_MAGIC,
    MalformedRecord,
    crc32,
)


class StoredMessage:
    """The fields of one record a receiver is shown, and those that name it."""

    __slots__ = (
        "body",
        "born_address",
        "born_timestamp_ms",
        "physical_offset",
        "properties",
        "queue_id",
        "queue_offset",
        "store_address",
        "store_port",
        "store_timestamp_ms",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_address: bytes,
        store_timestamp_ms: int,
        store_address: bytes,
        store_port: int,
        body: bytes | memoryview,
        properties: bytes,
        topic: bytes = b"",
    ) -> None:
        self.queue_id: Final = queue_id
        self.queue_offset: Final = queue_offset
        self.physical_offset: Final = physical_offset
        self.sys_flag: Final = sys_flag
        self.born_timestamp_ms: Final = born_timestamp_ms
        self.born_address: Final = born_address
        """4 bytes (IPv4) or 16 (IPv6), network order."""
        self.store_timestamp_ms: Final = store_timestamp_ms
        self.store_address: Final = store_address
        self.store_port: Final = store_port
        self.body: Final = body
        """A memoryview lies in the CommitLog: not to be kept, it keeps the space of a file that was removed."""
        self.properties: Final = properties
        """Raw property string; decode_properties reads it."""
        self.topic: Final = topic
        """UTF-8."""


_V4_HEAD_BYTES: Final = DELIVERY_HEADS[0].size
_unpack_v4_head: Final = DELIVERY_HEADS[0].unpack_from
_LENGTH_BYTES: Final = 2


def read_stored_message(log: memoryview, position: int, size: int, physical_offset: int) -> StoredMessage:
    """The record of `size` bytes at `position` of a piece of the CommitLog, `physical_offset` in the whole of it.

    Raises MalformedRecord unless exactly this record lies there with a body that matches its CRC.
    """
    end = position + size
    head_bytes = _V4_HEAD_BYTES
    if size < head_bytes or end > len(log):
        raise MalformedRecord(position, f"a record of {size} bytes with {len(log) - position} at hand")
    fields = _unpack_v4_head(log, position)
    sys_flag: int = fields[6]
    if host_flags := sys_flag & HOST_FLAGS:
        head = DELIVERY_HEADS[host_flags >> 4]
        head_bytes = head.size
        if size < head_bytes:
            raise MalformedRecord(position, f"total size {size} with IPv6 hosts")
        fields = head.unpack_from(log, position)
    # Typed, so that the compiled module counts with numbers and not with objects.
    total_size: int
    magic: int
    body_crc: int
    own_offset: int
    body_bytes: int
    (
        total_size,
        magic,
        body_crc,
        queue_id,
        queue_offset,
        own_offset,
        _,
        born_timestamp_ms,
        born_address,
        store_timestamp_ms,
        store_address,
        store_port,
        body_bytes,
    ) = fields
    if total_size != size or own_offset != physical_offset:
        raise MalformedRecord(position, f"another record lies there: {total_size} bytes, written for {own_offset}")
    body_start = position + head_bytes
    body_end = body_start + body_bytes
    if body_bytes < 0 or body_end + 3 > end:
        raise MalformedRecord(position, f"a body of {body_bytes} bytes in a record of {size}")
    # Topic and properties with their lengths: at least three bytes.
    rest = bytes(log[body_end:end])
    if magic == V1_MAGIC:
        length_at = 1 + rest[0]
    elif magic == V2_MAGIC:
        length_at = _LENGTH_BYTES + _length(rest, 0)
    else:
        raise MalformedRecord(position, f"magic code {magic:08x}")
    # A negative length points before the topic, where whatever is read there adds up to the end by no chance: checked.
    if not 0 < length_at <= len(rest) - _LENGTH_BYTES:
        raise MalformedRecord(position, f"a topic that ends at {head_bytes + body_bytes + length_at} of {size} bytes")
    if length_at + _LENGTH_BYTES + _length(rest, length_at) != len(rest):
        raise MalformedRecord(position, f"the parts do not add up to the total size {size}")
    body = log[body_start:body_end]
    if crc32(body) & CRC_MASK != body_crc:
        raise MalformedRecord(position, "the body does not match its CRC")
    return StoredMessage(
        queue_id,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp_ms,
        born_address,
        store_timestamp_ms,
        store_address,
        store_port,
        body,
        rest[length_at + _LENGTH_BYTES :],
        rest[1 if magic == V1_MAGIC else _LENGTH_BYTES : length_at],
    )


def _length(data: bytes, position: int) -> int:
    """A signed number of two bytes."""
    value = data[position] << 8 | data[position + 1]
    return value if value < 0x8000 else value - 0x1_0000


def read_store_timestamp_ms(log: memoryview, physical_offset: int) -> int | None:
    """When the record was stored that begins a piece of the CommitLog; None if none does, or only a part of its head.

    Its head is believed: nobody gets the message.
    """
    head = SCAN_HEADS[0]
    if len(log) < head.size:
        return None
    fields = head.unpack_from(log)
    if host_flags := fields[6] & HOST_FLAGS:
        head = SCAN_HEADS[host_flags >> 4]
        if len(log) < head.size:
            return None
        fields = head.unpack_from(log)
    _, magic, _, _, _, own_offset, _, store_timestamp_ms, _ = fields
    return store_timestamp_ms if magic in (V1_MAGIC, V2_MAGIC) and own_offset == physical_offset else None
