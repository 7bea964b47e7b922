"""A message on its way into the log, and a record as it lies there."""

from __future__ import annotations

from dataclasses import dataclass

from mqcore.message.host import Host
from mqcore.offsets import PhysicalOffset, QueueOffset

__all__ = ["MessageRecord", "OutgoingMessage"]


@dataclass(slots=True)
class OutgoingMessage:
    """What a put takes. Everything the broker decides at the moment of the append is missing."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    """The stored property string, see encode_properties; at most MAX_PROPERTIES_BYTES."""
    tags_code: int
    """Of the tag; the store computes the due time itself for the schedule topic."""
    index_keys: tuple[str, ...]
    """UNIQ_KEY and then each word of KEYS, without the topic."""
    tag: str | None
    born_timestamp_ms: int
    born_host: Host
    flag: int = 0
    sys_flag: int = 0
    """Without the two bits for IPv6 hosts: the encoder sets them."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    wait_store_ok: bool = True
    """False: the sender waits neither for the disk nor for a slave (property WAIT)."""


@dataclass(slots=True)
class MessageRecord:
    """One record of the CommitLog, every field as stored. The bytes are copies and live as long as the object."""

    total_size: int
    magic: int
    """V1_MAGIC or V2_MAGIC, unsigned."""
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: bytes
    """Raw property string; decode_properties reads it."""
