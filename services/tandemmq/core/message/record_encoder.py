"""Writes records. One `join` per message: the bytes are laid out once and copied once more, into the segment.

bytes copied    the record twice (join, segment), the head four times
allocations     head, record
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be

from tandemmq.core.message.record import Host, OutgoingMessage
from tandemmq.core.message.record_layout import (
    BORN_HOST_V6,
    CRC_MASK,
    HOST_FLAGS,
    MAX_V1_TOPIC_BYTES,
    PART_LENGTH,
    STORE_HOST_V6,
    V1_MAGIC,
    V2_MAGIC,
    WHOLE_HEADS,
    crc32,
)

__all__ = ["RecordEncoder", "encode_record", "record_size"]

_IPV4_BYTES: Final = 4
_V4_HEAD_BYTES: Final = 88
_LENGTH_BYTES: Final = 2
_APPLICATION_FLAGS: Final = ~HOST_FLAGS
_pack_length: Final = PART_LENGTH.pack
_pack_port: Final = Struct(">i").pack
_pack_magic: Final = Struct(">I").pack
_LENGTH_COUNT: Final = 2_048
_LENGTHS: Final = tuple(_pack_length(length) for length in range(_LENGTH_COUNT))
"""The lengths of nearly all property strings."""
_TOPICS_MAX: Final = 16_384
_V1_MAGIC: Final = _pack_magic(V1_MAGIC)
_V2_MAGIC: Final = _pack_magic(V2_MAGIC)
_topic_parts: Final[dict[str, tuple[bytes, bytes]]] = {}
"""Recent topics as they stand in a record. The memory forgets everything when it is full."""

assert WHOLE_HEADS[0].size == _V4_HEAD_BYTES, "an IPv4 head is what the format says"


class RecordEncoder:
    """Encodes records of one store: what depends on `store_host` alone is found out once."""

    __slots__ = ("_head", "_store_flag", "_store_host")

    def __init__(self, store_host: Host) -> None:
        address, port = store_host
        self._store_host: Final = address + _pack_port(port)
        self._store_flag: Final = STORE_HOST_V6 if len(address) != _IPV4_BYTES else 0
        self._head: Final = BytesWriter()

    def encode(
        self, message: OutgoingMessage, queue_offset: int, physical_offset: int, store_timestamp_ms: int
    ) -> bytes:
        """The whole record; see `encode_to`."""
        parts: list[bytes] = []
        self.encode_to(parts, message, queue_offset, physical_offset, store_timestamp_ms)
        return b"".join(parts)

    def encode_to(
        self,
        parts: list[bytes],
        message: OutgoingMessage,
        queue_offset: int,
        physical_offset: int,
        store_timestamp_ms: int,
    ) -> int:
        """Adds what a record is joined of to `parts`, for who joins many; returns its size. V1, unless the topic takes
        more than 127 bytes.

        Lengths must have been checked: a topic or property string longer than 32767 bytes raises struct.error.
        """
        body = message.body
        body_bytes = len(body)
        properties = message.properties
        properties_bytes = len(properties)
        known = _topic_parts.get(message.topic)
        magic, topic = known if known is not None else _topic_part(message.topic)
        born_host = message.born_host
        born_address = born_host[0]
        host_flags = self._store_flag if len(born_address) == _IPV4_BYTES else self._store_flag | BORN_HOST_V6
        size = (_V4_HEAD_BYTES if not host_flags else WHOLE_HEADS[host_flags >> 4].size) + (
            body_bytes + len(topic) + _LENGTH_BYTES + properties_bytes
        )
        # Field by field as WHOLE_HEADS has it: compiled, a store of its bytes each, where `pack` takes an object.
        head = self._head
        head.truncate(0)
        write_i32_be(head, size)
        head.write(magic)
        write_i32_be(head, crc32(body) & CRC_MASK)
        write_i32_be(head, message.queue_id)
        write_i32_be(head, message.flag)
        write_i64_be(head, queue_offset)
        write_i64_be(head, physical_offset)
        write_i32_be(head, message.sys_flag & _APPLICATION_FLAGS | host_flags)
        write_i64_be(head, message.born_timestamp_ms)
        head.write(born_address)
        write_i32_be(head, born_host[1])
        write_i64_be(head, store_timestamp_ms)
        head.write(self._store_host)
        write_i32_be(head, message.reconsume_times)
        write_i64_be(head, message.prepared_transaction_offset)
        write_i32_be(head, body_bytes)
        parts.append(head.getvalue())
        parts.append(body)
        parts.append(topic)
        parts.append(_LENGTHS[properties_bytes] if properties_bytes < _LENGTH_COUNT else _pack_length(properties_bytes))
        parts.append(properties)
        return size


def encode_record(
    message: OutgoingMessage,
    *,
    queue_offset: int,
    physical_offset: int,
    store_timestamp_ms: int,
    store_host: Host,
) -> bytes:
    """One record by itself; see RecordEncoder.encode."""
    return RecordEncoder(store_host).encode(message, queue_offset, physical_offset, store_timestamp_ms)


def record_size(message: OutgoingMessage, store_host: Host) -> int:
    """Bytes that encode_record would return."""
    host_bytes = len(message.born_host.address) + len(store_host.address)
    return (
        WHOLE_HEADS[0].size
        + (host_bytes - 2 * _IPV4_BYTES)
        + len(message.body)
        + len(_topic_part(message.topic)[1])
        + _LENGTH_BYTES
        + len(message.properties)
    )


def _topic_part(topic: str) -> tuple[bytes, bytes]:
    """The magic that goes with a topic, and the topic behind its length; remembered."""
    encoded = topic.encode()
    if len(encoded) <= MAX_V1_TOPIC_BYTES:
        part = (_V1_MAGIC, bytes((len(encoded),)) + encoded)
    else:
        part = (_V2_MAGIC, _pack_length(len(encoded)) + encoded)
    if len(_topic_parts) >= _TOPICS_MAX:
        _topic_parts.clear()
    _topic_parts[topic] = part
    return part
