"""A message as the store takes it and as a record holds it, how a record is written and read, and the message id that
leads to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

from librt.strings import BytesWriter, write_i32_be, write_i64_be

from tandemmq.core.message.properties import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    encode_properties,
    index_terms,
    tags_code,
)
from tandemmq.core.message.record_layout import (
    BLANK,
    BLANK_MAGIC,
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_TYPE_MASK,
    CRC_MASK,
    HOST_FLAGS,
    MAX_V1_TOPIC_BYTES,
    MULTI_TAGS,
    PART_LENGTH,
    SCAN_HEADS,
    SMALLEST_RECORD_BYTES,
    STORE_HOST_V6,
    V1_MAGIC,
    V2_MAGIC,
    WHOLE_HEADS,
    MalformedRecord,
    crc32,
)
from tandemmq.core.offsets import PhysicalOffset, QueueOffset


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


_CARRIED_FLAGS: Final = COMPRESSED | COMPRESSION_TYPE_MASK | MULTI_TAGS
"""How to read body and tags. What else a sysFlag says is of the record it stands in: its hosts, its transaction."""


def copy_of_record(
    record: MessageRecord,
    topic: str,
    queue_id: int,
    properties: dict[str, str],
    *,
    encoded: bytes | None = None,
    flags: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> OutgoingMessage:
    """A stored message that is put again. `encoded` is its property string where that is not `properties`, of which its
    tag and keys are; `flags` are added to those that say how to read it."""
    tag, index_keys = index_terms(properties)
    return OutgoingMessage(
        topic,
        queue_id,
        record.body,
        encode_properties(properties.items()) if encoded is None else encoded,
        tags_code(tag),
        index_keys,
        tag,
        record.born_timestamp_ms,
        record.born_host,
        record.flag,
        record.sys_flag & _CARRIED_FLAGS | flags,
        reconsume_times,
        prepared_transaction_offset,
    )


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
    return (store_host.address + _PORT_AND_OFFSET.pack(store_host.port, physical_offset)).hex().upper()


def message_id_of(record: MessageRecord | RecordOutline, properties: Mapping[str, str]) -> str:
    """Its client's; of a message without one, the id of its record."""
    return properties.get(PROPERTY_UNIQUE_KEY) or offset_message_id(record.store_host, record.physical_offset)


def parse_offset_message_id(text: str) -> tuple[Host, PhysicalOffset]:
    """Broker and position an id names. Raises ValueError if it is none; the position may still hold no record."""
    raw = bytes.fromhex(text)
    if len(raw) not in _ID_BYTES:
        raise ValueError(f"an offset message id has 32 or 56 hexadecimal digits, not {2 * len(raw)}")
    address_bytes = len(raw) - _PORT_AND_OFFSET.size
    port, physical_offset = _PORT_AND_OFFSET.unpack_from(raw, address_bytes)
    return Host(raw[:address_bytes], port), PhysicalOffset(physical_offset)


# Topics in which brokers keep messages that are not yet for consumers, and what became of them.

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Messages waiting for their delay level; queue id = level - 1."""
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""Delayed messages wait in its one queue, as in RocketMQ."""
TIMER_OP_TOPIC: Final = "rmq_sys_wheel_timer_op"
"""Names those that were delivered or recalled. RocketMQ has none: it keeps that in local files."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Where halves go that nobody decided; made when the first one is given up."""
DEDUPLICATION_TOPIC: Final = "rmq_sys_deduplication"
"""A record in its one queue means: all that lies before it outlives a failure once it does. RocketMQ has none."""


# The third field of a ConsumeQueue entry: what a broker filters by, or when a delayed message is due.

_UNKNOWN_LEVEL_DELAY_MS: Final = 1000
"""RocketMQ's ScheduleMessageService.computeDeliverTimestamp for a level that has no delay configured."""


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


# Writes records. One `join` per message: the bytes are laid out once and copied once more, into the segment.
#
# bytes copied    the record twice (join, segment), the head four times allocations     head, record

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


# Reads records: one of them whole (`decode_record`), or one after the other with little effort (`scan_record`).
#
# Both accept a record only if its parts add up to its size, as RocketMQ's CommitLog.checkMessageAndReturnSize does.

Buffer: TypeAlias = bytes | bytearray | memoryview

_unpack_length: Final = PART_LENGTH.unpack_from


class RecordFound(NamedTuple):
    """A valid record: what dispatch and recovery need of it."""

    size: int
    """Bytes; the next record starts so much further on."""
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_timestamp_ms: int
    topic: str
    properties: bytes


@dataclass(frozen=True, slots=True)
class Blank:
    """The rest of the file holds nothing. `size` is what is written there: the caller compares it with what is left."""

    size: int


@dataclass(frozen=True, slots=True)
class Corrupt:
    """No record starts here: a torn write, stale bytes or a bad disk."""

    reason: str


class ScanStop(Enum):
    """Why there is no record, and nothing wrong either."""

    INCOMPLETE = "incomplete"
    """The record goes on beyond `limit`: more bytes have to arrive. At the end of a file it is a torn write."""
    END_OF_DATA = "end_of_data"
    """Zeros: nothing was written here yet."""


ScanResult: TypeAlias = RecordFound | Blank | Corrupt | ScanStop


def scan_record(
    buffer: Buffer, position: int, limit: int, *, physical_offset: int, check_crc: bool = True
) -> ScanResult:
    """Looks at the record at `position`. Bytes up to `limit` may be read.

    `physical_offset` is where in the CommitLog `position` is. A record that says otherwise is Corrupt: it was copied
    here by accident, or is left over from before a truncation.
    """
    available = limit - position
    if available < BLANK.size:
        return ScanStop.INCOMPLETE
    size, magic = BLANK.unpack_from(buffer, position)
    if magic == BLANK_MAGIC:
        return Blank(size) if size >= BLANK.size else Corrupt(f"a blank of {size} bytes")
    if magic not in (V1_MAGIC, V2_MAGIC):
        return ScanStop.END_OF_DATA if size == 0 and magic == 0 else Corrupt(f"magic code {magic:08x}")
    if size < SMALLEST_RECORD_BYTES:
        return Corrupt(f"total size {size}")
    if size > available:
        return ScanStop.INCOMPLETE
    head = SCAN_HEADS[0]
    fields = head.unpack_from(buffer, position)
    host_flags = fields[6] & HOST_FLAGS
    if host_flags:
        head = SCAN_HEADS[host_flags >> 4]
        if size < head.size:
            return Corrupt(f"total size {size} with IPv6 hosts")
        fields = head.unpack_from(buffer, position)
    _, _, body_crc, queue_id, queue_offset, own_offset, sys_flag, store_timestamp_ms, body_bytes = fields
    if own_offset != physical_offset:
        return Corrupt(f"the record was written for physical offset {own_offset}")
    body_start = position + head.size
    try:
        topic_start, topic_end, properties_start = _bounds(
            buffer, position=position, size=size, magic=magic, body_start=body_start, body_bytes=body_bytes
        )
        if check_crc:
            _check_body(buffer, position, body_start, body_bytes, body_crc)
    except MalformedRecord as error:
        return Corrupt(error.reason)
    return RecordFound(
        size,
        queue_id,
        queue_offset,
        own_offset,
        sys_flag,
        store_timestamp_ms,
        str(buffer[topic_start:topic_end], "utf-8", "replace"),
        bytes(buffer[properties_start : position + size]),
    )


def decode_record(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> MessageRecord:
    """The whole record at `position`. Raises MalformedRecord if there is none, or only a part of one."""
    size, magic, body_start, fields = _whole_head(buffer, position)
    (
        _,
        _,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
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
    topic_start, topic_end, properties_start = _bounds(
        buffer, position=position, size=size, magic=magic, body_start=body_start, body_bytes=body_bytes
    )
    if check_crc:
        _check_body(buffer, position, body_start, body_bytes, body_crc)
    return MessageRecord(  # In the order of its fields: names would cost a tenth of the whole.
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp_ms,
        Host(born_address, born_port),
        store_timestamp_ms,
        Host(store_address, store_port),
        reconsume_times,
        prepared_transaction_offset,
        bytes(buffer[body_start : body_start + body_bytes]),
        str(buffer[topic_start:topic_end], "utf-8", "replace"),
        bytes(buffer[properties_start : position + size]),
    )


def _whole_head(buffer: Buffer, position: int) -> tuple[int, int, int, tuple[Any, ...]]:
    """Size and magic of the record at `position`, where its body starts, and all fields before that."""
    available = len(buffer) - position
    if available < SMALLEST_RECORD_BYTES:
        raise MalformedRecord(position, f"{available} bytes are too few")
    size, magic = BLANK.unpack_from(buffer, position)
    if magic not in (V1_MAGIC, V2_MAGIC):
        raise MalformedRecord(position, f"magic code {magic:08x}")
    if not SMALLEST_RECORD_BYTES <= size <= available:
        raise MalformedRecord(position, f"total size {size} with {available} bytes at hand")
    head = WHOLE_HEADS[0]
    fields = head.unpack_from(buffer, position)
    host_flags = fields[7] & HOST_FLAGS
    if host_flags:
        head = WHOLE_HEADS[host_flags >> 4]
        if size < head.size:
            raise MalformedRecord(position, f"total size {size} with IPv6 hosts")
        fields = head.unpack_from(buffer, position)
    return size, magic, position + head.size, fields


def _bounds(
    buffer: Buffer, *, position: int, size: int, magic: int, body_start: int, body_bytes: int
) -> tuple[int, int, int]:
    """Where the topic starts and ends and where the properties start; they end with the record."""
    end = position + size
    topic_length_at = body_start + body_bytes
    if body_bytes < 0 or topic_length_at + PART_LENGTH.size > end:
        raise MalformedRecord(position, f"a body of {body_bytes} bytes in a record of {size}")
    if magic == V1_MAGIC:
        topic_bytes = buffer[topic_length_at]
        if topic_bytes > 127:  # Java reads the byte as signed
            raise MalformedRecord(position, f"a V1 topic of {topic_bytes} bytes")
        topic_start = topic_length_at + 1
    else:
        (topic_bytes,) = _unpack_length(buffer, topic_length_at)
        topic_start = topic_length_at + PART_LENGTH.size
    topic_end = topic_start + topic_bytes
    if topic_bytes < 0 or topic_end + PART_LENGTH.size > end:
        raise MalformedRecord(position, f"a topic of {topic_bytes} bytes in a record of {size}")
    (properties_bytes,) = _unpack_length(buffer, topic_end)
    properties_start = topic_end + PART_LENGTH.size
    if properties_bytes < 0 or properties_start + properties_bytes != end:
        raise MalformedRecord(position, f"the parts do not add up to the total size {size}")
    return topic_start, topic_end, properties_start


def _check_body(buffer: Buffer, position: int, body_start: int, body_bytes: int, body_crc: int) -> None:
    if crc32(buffer[body_start : body_start + body_bytes]) & CRC_MASK != body_crc:
        raise MalformedRecord(position, "the body does not match its CRC")


# All of a record but its body, read in place: for lists of messages, where nobody may want the bodies.

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
    size, magic, body_start, fields = _whole_head(log, 0)
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
    topic_start, topic_end, properties_start = _bounds(
        log, position=0, size=size, magic=magic, body_start=body_start, body_bytes=body_bytes
    )
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
        physical_offset + body_start,
        body_bytes,
        str(log[topic_start:topic_end], "utf-8", "replace"),
        bytes(log[properties_start:size]),
    )
