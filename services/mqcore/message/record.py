"""A message on its way into the log, and a record as it lies there."""

from __future__ import annotations

from dataclasses import dataclass

from mqcore.message.host import Host
from mqcore.offsets import PhysicalOffset, QueueOffset

__all__ = ["MessageRecord", "OutgoingMessage"]


class OutgoingMessage:
    """What a put takes. Everything the broker decides at the moment of the append is missing.

    No dataclass: its constructor would set the fields from outside, at ten times the cost when compiled.
    """

    __slots__ = (
        "body",
        "born_host",
        "born_timestamp_ms",
        "flag",
        "index_keys",
        "prepared_transaction_offset",
        "properties",
        "queue_id",
        "reconsume_times",
        "sys_flag",
        "tag",
        "tags_code",
        "topic",
        "wait_store_ok",
    )

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
    flag: int
    sys_flag: int
    """Without the two bits for IPv6 hosts: the encoder sets them."""
    reconsume_times: int
    prepared_transaction_offset: int
    wait_store_ok: bool
    """False: the sender waits neither for the disk nor for a slave (property WAIT)."""

    def __init__(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        tags_code: int,
        index_keys: tuple[str, ...],
        tag: str | None,
        born_timestamp_ms: int,
        born_host: Host,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        wait_store_ok: bool = True,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.body = body
        self.properties = properties
        self.tags_code = tags_code
        self.index_keys = index_keys
        self.tag = tag
        self.born_timestamp_ms = born_timestamp_ms
        self.born_host = born_host
        self.flag = flag
        self.sys_flag = sys_flag
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self.wait_store_ok = wait_store_ok


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
