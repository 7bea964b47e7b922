"""Writes records. One `join` per message: the bytes are laid out once and copied once more, into the segment."""

from __future__ import annotations

from typing import Final
from zlib import crc32

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

__all__ = ["encode_record", "record_size"]

_IPV4_BYTES: Final = 4
_V1_TOPIC_LENGTH: Final = tuple(bytes((length,)) for length in range(MAX_V1_TOPIC_BYTES + 1))
_pack_length: Final = PART_LENGTH.pack


def encode_record(
    message: OutgoingMessage,
    *,
    queue_offset: int,
    physical_offset: int,
    store_timestamp_ms: int,
    store_host: Host,
) -> bytes:
    """The whole record. V1, unless the topic takes more than 127 bytes.

    Lengths must have been checked: a topic or property string longer than 32767 bytes raises struct.error.
    """
    body = message.body
    topic = message.topic.encode()
    properties = message.properties
    born_address, born_port = message.born_host
    store_address, store_port = store_host
    sys_flag = message.sys_flag & ~HOST_FLAGS
    if len(born_address) != _IPV4_BYTES:
        sys_flag |= BORN_HOST_V6
    if len(store_address) != _IPV4_BYTES:
        sys_flag |= STORE_HOST_V6
    if len(topic) <= MAX_V1_TOPIC_BYTES:
        magic = V1_MAGIC
        topic_length = _V1_TOPIC_LENGTH[len(topic)]
    else:
        magic = V2_MAGIC
        topic_length = _pack_length(len(topic))
    head = WHOLE_HEADS[(sys_flag & HOST_FLAGS) >> 4]
    return b"".join(
        (
            head.pack(
                head.size + len(body) + len(topic_length) + len(topic) + PART_LENGTH.size + len(properties),
                magic,
                crc32(body) & CRC_MASK,
                message.queue_id,
                message.flag,
                queue_offset,
                physical_offset,
                sys_flag,
                message.born_timestamp_ms,
                born_address,
                born_port,
                store_timestamp_ms,
                store_address,
                store_port,
                message.reconsume_times,
                message.prepared_transaction_offset,
                len(body),
            ),
            body,
            topic_length,
            topic,
            _pack_length(len(properties)),
            properties,
        )
    )


def record_size(message: OutgoingMessage, store_host: Host) -> int:
    """Bytes that encode_record would return."""
    topic_bytes = len(message.topic.encode())
    topic_length_bytes = 1 if topic_bytes <= MAX_V1_TOPIC_BYTES else PART_LENGTH.size
    host_bytes = len(message.born_host.address) + len(store_host.address)
    return (
        WHOLE_HEADS[0].size
        + (host_bytes - 2 * _IPV4_BYTES)
        + len(message.body)
        + topic_length_bytes
        + topic_bytes
        + PART_LENGTH.size
        + len(message.properties)
    )
