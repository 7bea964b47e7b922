"""Writes records. One `join` per message: the bytes are laid out once and copied once more, into the segment.

bytes copied    the record twice (join, segment), the head three times
allocations     head, record
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from mqcore.message.checksum import crc32
from mqcore.message.host import Host
from mqcore.message.record import OutgoingMessage
from mqcore.message.record_layout import (
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
_V6_BYTES: Final = 16
_APPLICATION_FLAGS: Final = ~HOST_FLAGS
_pack_length: Final = PART_LENGTH.pack


class RecordEncoder:
    """Encodes records of one store: what depends on `store_host` alone is found out once."""

    __slots__ = ("_heads", "_store_address", "_store_port")

    def __init__(self, store_host: Host) -> None:
        self._store_address, self._store_port = store_host
        store_flag = STORE_HOST_V6 if len(self._store_address) != _IPV4_BYTES else 0
        self._heads: Final = {
            address_bytes: _head(born_flag | store_flag)
            for address_bytes, born_flag in ((_IPV4_BYTES, 0), (_V6_BYTES, BORN_HOST_V6))
        }
        """By the length of the born host's address."""

    def encode(
        self, message: OutgoingMessage, queue_offset: int, physical_offset: int, store_timestamp_ms: int
    ) -> bytes:
        """The whole record. V1, unless the topic takes more than 127 bytes.

        Lengths must have been checked: a topic or property string longer than 32767 bytes raises struct.error.
        """
        body = message.body
        body_bytes = len(body)
        properties = message.properties
        magic, topic = _topic_part(message.topic)
        born_address, born_port = message.born_host
        pack_head, fixed_bytes, host_flags = self._heads[len(born_address)]
        return b"".join(
            (
                pack_head(
                    fixed_bytes + body_bytes + len(topic) + len(properties),
                    magic,
                    crc32(body) & CRC_MASK,
                    message.queue_id,
                    message.flag,
                    queue_offset,
                    physical_offset,
                    message.sys_flag & _APPLICATION_FLAGS | host_flags,
                    message.born_timestamp_ms,
                    born_address,
                    born_port,
                    store_timestamp_ms,
                    self._store_address,
                    self._store_port,
                    message.reconsume_times,
                    message.prepared_transaction_offset,
                    body_bytes,
                ),
                body,
                topic,
                _pack_length(len(properties)),
                properties,
            )
        )


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
        + PART_LENGTH.size
        + len(message.properties)
    )


def _head(host_flags: int) -> tuple[Callable[..., bytes], int, int]:
    """What packs a head, the bytes of a record whose parts are all empty, and the flags that go with it."""
    head = WHOLE_HEADS[host_flags >> 4]
    return head.pack, head.size + PART_LENGTH.size, host_flags


@lru_cache(maxsize=16_384)
def _topic_part(topic: str) -> tuple[int, bytes]:
    """The magic that goes with a topic, and the topic behind its length."""
    encoded = topic.encode()
    if len(encoded) <= MAX_V1_TOPIC_BYTES:
        return V1_MAGIC, bytes((len(encoded),)) + encoded
    return V2_MAGIC, _pack_length(len(encoded)) + encoded
