"""Writes records. One `join` per message: the bytes are laid out once and copied once more, into the segment.

bytes copied    the record twice (join, segment), the head three times
allocations     head, record
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from mqcore.message.checksum import crc32
from mqcore.message.host import Host
from mqcore.message.record import OutgoingMessage
from mqcore.message.record_layout import (
    COMMON_HEADS,
    CRC_MASK,
    HOST_FLAGS,
    MAX_V1_TOPIC_BYTES,
    PART_LENGTH,
    V1_MAGIC,
    V2_MAGIC,
    WHOLE_HEADS,
)
from mqcore.message.sys_flag import BORN_HOST_V6, STORE_HOST_V6

__all__ = ["RecordEncoder", "encode_record", "record_size"]

_IPV4_BYTES: Final = 4
_V4_HEAD_BYTES: Final = 88
_LENGTH_BYTES: Final = 2
_APPLICATION_FLAGS: Final = ~HOST_FLAGS
_pack_length: Final = PART_LENGTH.pack
_pack_port: Final = Struct(">i").pack
_LENGTH_COUNT: Final = 2_048
_LENGTHS: Final = tuple(_pack_length(length) for length in range(_LENGTH_COUNT))
"""Of nearly all property strings."""
_TOPICS_MAX: Final = 16_384
_topic_parts: Final[dict[str, tuple[int, bytes]]] = {}
"""Of the topics of late. It forgets everything when it is full."""

assert WHOLE_HEADS[0].size == _V4_HEAD_BYTES, "an IPv4 head is what the format says"


class RecordEncoder:
    """Encodes records of one store: what depends on `store_host` alone is found out once."""

    __slots__ = ("_store_address", "_store_flag", "_store_host", "_store_port", "_v4_head", "_v6_head")

    def __init__(self, store_host: Host) -> None:
        self._store_address, self._store_port = store_host
        self._store_host: Final = self._store_address + _pack_port(self._store_port)
        self._store_flag: Final = STORE_HOST_V6 if len(self._store_address) != _IPV4_BYTES else 0
        self._v4_head: Final = COMMON_HEADS[self._store_flag >> 4].pack
        self._v6_head: Final = COMMON_HEADS[(self._store_flag | BORN_HOST_V6) >> 4].pack

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
        is_v4 = len(born_address) == _IPV4_BYTES
        host_flags = self._store_flag if is_v4 else self._store_flag | BORN_HOST_V6
        size = (_V4_HEAD_BYTES if not host_flags else WHOLE_HEADS[host_flags >> 4].size) + (
            body_bytes + len(topic) + _LENGTH_BYTES + properties_bytes
        )
        sys_flag = message.sys_flag & _APPLICATION_FLAGS | host_flags
        if message.flag or message.reconsume_times or message.prepared_transaction_offset:
            head = WHOLE_HEADS[host_flags >> 4].pack(
                size,
                magic,
                crc32(body) & CRC_MASK,
                message.queue_id,
                message.flag,
                queue_offset,
                physical_offset,
                sys_flag,
                message.born_timestamp_ms,
                born_address,
                born_host[1],
                store_timestamp_ms,
                self._store_address,
                self._store_port,
                message.reconsume_times,
                message.prepared_transaction_offset,
                body_bytes,
            )
        else:
            pack_head = self._v4_head if is_v4 else self._v6_head
            head = pack_head(
                size,
                magic,
                crc32(body) & CRC_MASK,
                message.queue_id,
                queue_offset,
                physical_offset,
                sys_flag,
                message.born_timestamp_ms,
                born_address,
                born_host[1],
                store_timestamp_ms,
                self._store_host,
                body_bytes,
            )
        parts.append(head)
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


def _topic_part(topic: str) -> tuple[int, bytes]:
    """The magic that goes with a topic, and the topic behind its length; remembered."""
    encoded = topic.encode()
    if len(encoded) <= MAX_V1_TOPIC_BYTES:
        part = (V1_MAGIC, bytes((len(encoded),)) + encoded)
    else:
        part = (V2_MAGIC, _pack_length(len(encoded)) + encoded)
    if len(_topic_parts) >= _TOPICS_MAX:
        _topic_parts.clear()
    _topic_parts[topic] = part
    return part
