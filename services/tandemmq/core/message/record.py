"""A message as the store takes it and as a record holds it, and the message id that leads to a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from struct import Struct
from typing import Final, NamedTuple

from tandemmq.core.message.properties import java_hash
from tandemmq.core.message.property_names import PROPERTY_DELAY_LEVEL, PROPERTY_TAGS
from tandemmq.core.offsets import PhysicalOffset, QueueOffset

__all__ = [
    "SCHEDULE_TOPIC",
    "Host",
    "MessageRecord",
    "OutgoingMessage",
    "delay_tags_code",
    "offset_message_id",
    "parse_offset_message_id",
    "record_tags_code",
    "tags_code",
]


class Host(NamedTuple):
    """Where a message was born or stored."""

    address: bytes
    """4 bytes (IPv4) or 16 (IPv6), network order."""
    port: int
    """0..65535; stored as i32."""

    @classmethod
    def parse(cls, address: str, port: int) -> Host:
        """From a literal address such as "10.0.0.1" or "fe80::1". Raises ValueError for anything else: no look-up."""
        return cls(ip_address(address).packed, port)

    def __str__(self) -> str:
        address = ip_address(self.address)
        return f"[{address}]:{self.port}" if address.version == 6 else f"{address}:{self.port}"


# A message on its way into the log, and a record as it lies there.


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
    """The tag's code; the store itself computes the due time for the schedule topic."""
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


# Offset message ids: a broker's address and a position in its CommitLog, in upper-case hexadecimal.
#
# | size   | field          |
# |--------|----------------|
# | 4 / 16 | store address  |
# | 4      | port, i32      |
# | 8      | physicalOffset |
#
# 32 characters for IPv4, 56 for IPv6 (RocketMQ's MessageDecoder.createMessageId). A client's unique id may be as long;
# only the context tells them apart.

_PORT_AND_OFFSET: Final = Struct(">iq")
_ID_BYTES: Final = (16, 28)


def offset_message_id(store_host: Host, physical_offset: int) -> str:
    """The id of the record at `physical_offset` of the broker at `store_host`."""
    return (store_host.address + _PORT_AND_OFFSET.pack(store_host.port, physical_offset)).hex().upper()


def parse_offset_message_id(text: str) -> tuple[Host, PhysicalOffset]:
    """Broker and position an id names. Raises ValueError if it is none; the position may still hold no record."""
    raw = bytes.fromhex(text)
    if len(raw) not in _ID_BYTES:
        raise ValueError(f"an offset message id has 32 or 56 hexadecimal digits, not {2 * len(raw)}")
    address_bytes = len(raw) - _PORT_AND_OFFSET.size
    port, physical_offset = _PORT_AND_OFFSET.unpack_from(raw, address_bytes)
    return Host(raw[:address_bytes], port), PhysicalOffset(physical_offset)


# The third field of a ConsumeQueue entry: what a broker filters by, or when a delayed message is due.

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Internal topic of messages waiting for their delay level; queue id = level - 1."""

_UNKNOWN_LEVEL_DELAY_MS: Final = 1000
"""RocketMQ's ScheduleMessageService.computeDeliverTimestamp for a level that has no delay configured."""


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """Java's hash of the tag, 0 without one. Equal codes do not mean equal tags: the consumer compares the text."""
    return java_hash(tag) if tag else 0


def delay_tags_code(level: int, *, store_timestamp_ms: int, delay_levels_ms: Sequence[int]) -> int:
    """Wall-clock time in ms at which a message of the schedule topic is due. `level` is 1-based, capped at the last."""
    capped = min(level, len(delay_levels_ms))
    delay_ms = delay_levels_ms[capped - 1] if capped > 0 else _UNKNOWN_LEVEL_DELAY_MS
    return store_timestamp_ms + delay_ms


def record_tags_code(
    topic: str, properties: dict[str, str], *, store_timestamp_ms: int, delay_levels_ms: Sequence[int]
) -> int:
    """The tags code of a stored record, computed from the record alone as every broker of a group does for itself."""
    if topic == SCHEDULE_TOPIC:
        level = _delay_level(properties)
        if level > 0:
            return delay_tags_code(level, store_timestamp_ms=store_timestamp_ms, delay_levels_ms=delay_levels_ms)
    return tags_code(properties.get(PROPERTY_TAGS))


def _delay_level(properties: dict[str, str]) -> int:
    try:
        return int(properties.get(PROPERTY_DELAY_LEVEL, "0"))
    except ValueError:
        return 0
