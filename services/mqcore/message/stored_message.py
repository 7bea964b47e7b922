"""What a delivery needs of a record, read in place: the hot path of receiving.

The whole record (`decode_record`) costs three times as much and copies the body; most of its fields no client sees.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from mqcore.message.errors import MalformedRecord
from mqcore.message.record_layout import CRC_MASK, DELIVERY_HEADS, HOST_FLAGS, SCAN_HEADS, V1_MAGIC, V2_MAGIC

__all__ = ["StoredMessage", "read_store_timestamp_ms", "read_stored_message"]


class StoredMessage(NamedTuple):
    """The fields of one record a receiver is shown, and those that name it."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_address: bytes
    """4 bytes (IPv4) or 16 (IPv6), network order."""
    store_timestamp_ms: int
    store_address: bytes
    store_port: int
    body: bytes | memoryview
    """A memoryview lies in the CommitLog: not to be kept, it keeps the space of a file that was removed."""
    properties: bytes
    """Raw property string; decode_properties reads it."""


_make: Final = partial(tuple.__new__, StoredMessage)
"""StoredMessage._make without a Python frame."""
_unpack_length: Final = Struct(">h").unpack_from


def read_stored_message(log: memoryview, position: int, size: int, physical_offset: int) -> StoredMessage:
    """The record of `size` bytes at `position` of a piece of the CommitLog, `physical_offset` in the whole of it.

    Raises MalformedRecord unless exactly this record lies there with a body that matches its CRC.
    """
    end = position + size
    head = DELIVERY_HEADS[0]
    if size < head.size or end > len(log):
        raise MalformedRecord(position, f"a record of {size} bytes with {len(log) - position} at hand")
    fields = head.unpack_from(log, position)
    host_flags = fields[6] & HOST_FLAGS
    if host_flags:
        head = DELIVERY_HEADS[host_flags >> 4]
        if size < head.size:
            raise MalformedRecord(position, f"total size {size} with IPv6 hosts")
        fields = head.unpack_from(log, position)
    (
        total_size,
        magic,
        body_crc,
        queue_id,
        queue_offset,
        own_offset,
        sys_flag,
        born_timestamp_ms,
        born_address,
        store_timestamp_ms,
        store_address,
        store_port,
        body_bytes,
    ) = fields
    if total_size != size or own_offset != physical_offset:
        raise MalformedRecord(position, f"another record lies there: {total_size} bytes, written for {own_offset}")
    body_start = position + head.size
    topic_length_at = body_start + body_bytes
    if body_bytes < 0 or topic_length_at + 3 > end:
        raise MalformedRecord(position, f"a body of {body_bytes} bytes in a record of {size}")
    if magic == V1_MAGIC:
        properties_length_at = topic_length_at + 1 + log[topic_length_at]
    elif magic == V2_MAGIC:
        properties_length_at = topic_length_at + 2 + _unpack_length(log, topic_length_at)[0]
    else:
        raise MalformedRecord(position, f"magic code {magic:08x}")
    # A negative length points before the topic, where whatever is read there adds up to the end by no chance: checked.
    if not topic_length_at < properties_length_at <= end - 2:
        raise MalformedRecord(position, f"a topic that ends at {properties_length_at - position} of {size} bytes")
    if properties_length_at + 2 + _unpack_length(log, properties_length_at)[0] != end:
        raise MalformedRecord(position, f"the parts do not add up to the total size {size}")
    body = log[body_start:topic_length_at]
    if crc32(body) & CRC_MASK != body_crc:
        raise MalformedRecord(position, "the body does not match its CRC")
    return _make(
        (
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
            bytes(log[properties_length_at + 2 : end]),
        )
    )


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
