"""The bytes a delivery is sent as: what protobuf would have written, had it been built field by field."""

from __future__ import annotations

import hashlib
import re
from ipaddress import ip_address

from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tandemmq.broker.client_api.delivery_encoding import DeliveryEncoder, encoded_end
from tandemmq.broker.client_api.message_translation import PROPERTY_TRACE_CONTEXT, is_internal
from tandemmq.core.message import properties as names
from tandemmq.core.message.properties import (
    PROPERTY_BORN_HOST,
    PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID,
    PROPERTY_DEAD_LETTER_ORIGIN_TOPIC,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_LITE_TOPIC,
    PROPERTY_PRIORITY,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
)
from tandemmq.core.message.record import (
    Host,
    MessageRecord,
    OutgoingMessage,
    decode_record,
    encode_record,
    offset_message_id,
)
from tandemmq.core.message.record_layout import COMPRESSED
from tandemmq.core.message.stored_message import read_stored_message
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

KNOWN_NAMES = sorted(value for name, value in vars(names).items() if name.startswith("PROPERTY_"))
# KEYS are taken apart at ASCII white space; what other white space in them means nobody says.
TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\x01\x02\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029"), max_size=20
)
NAMES = st.sampled_from([*KNOWN_NAMES, PROPERTY_TRACE_CONTEXT, "colour", "n", "__RMQ.TRANSIENT.x"]) | TEXT
VALUES = st.sampled_from(["true", "false", "1700000000123", "two words", "", "7", "123456789", "1234567890"]) | TEXT
WELL_FORMED = st.lists(st.tuples(NAMES, VALUES), max_size=15).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
)
# As a broken or hostile member of the family may have stored it.
ANYTHING = st.binary(max_size=60) | st.lists(
    st.sampled_from([b"\x01", b"\x02", b"a", b"TAGS", b"KEYS", b"\xff", "ü".encode()]), max_size=30
).map(b"".join)
ADDRESSES = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)
HOSTS = st.builds(Host, ADDRESSES, st.integers(0, 65_535))


@st.composite
def stored_records(draw: st.DrawFn) -> bytes:
    """Records of all kinds, as bytes of the log."""
    message = OutgoingMessage(
        topic=draw(st.sampled_from(["orders", "t" * 200])),
        queue_id=draw(st.integers(0, 2**31 - 1)),
        body=draw(st.binary(max_size=300) | st.integers(0, 40_000).map(bytes)),
        properties=draw(WELL_FORMED | ANYTHING | st.just(b"a\x01" + b"x" * 20_000 + b"\x02")),
        tags_code=0,
        index_keys=(),
        tag=None,
        born_timestamp_ms=draw(st.integers(-(2**63), 2**63 - 1)),
        born_host=draw(HOSTS),
        sys_flag=draw(st.sampled_from([0, COMPRESSED])),
    )
    return encode_record(
        message,
        queue_offset=draw(st.integers(0, 2**62) | st.integers(0, 40_000)),
        physical_offset=4_096,
        store_timestamp_ms=draw(st.integers(0, 2**45)),
        store_host=draw(HOSTS),
    )


@given(
    stored=stored_records(),
    topic=st.builds(definition.Resource, name=st.text(max_size=200), resource_namespace=st.sampled_from(["", "ns"])),
    handle=st.text(st.characters(codec="ascii"), max_size=200),
    attempt=st.integers(1, 2**31 - 1),
    invisible_ms=st.integers(0, 43_200_000),
)
def test_a_delivery_says_what_a_message_built_field_by_field_says(
    stored: bytes, topic: definition.Resource, handle: str, attempt: int, invisible_ms: int
) -> None:
    message = read_stored_message(memoryview(stored), 0, len(stored), 4_096)
    data = DeliveryEncoder(topic=topic, invisible_ms=invisible_ms).encode(message, handle=handle, attempt=attempt)
    expected = delivered_message(
        decode_record(stored),
        topic=topic,
        receipt_handle=handle,
        delivery_attempt=attempt,
        invisible_ms=invisible_ms,
    )
    assert pb.ReceiveMessageResponse.FromString(data) == pb.ReceiveMessageResponse(message=expected)


# So many messages of one shape of properties that the encoder has learnt it.
USUAL = 80


@settings(max_examples=40, deadline=None)  # patterns are made, a few milliseconds each
@given(
    shapes=st.lists(st.lists(NAMES.filter(bool), min_size=1, max_size=12), min_size=1, max_size=6),
    values=st.lists(st.lists(VALUES, min_size=12, max_size=12), min_size=1, max_size=12),
    times_ms=st.lists(st.integers(0, 2_000) | st.integers(2**45 - 2, 2**45 + 2) | st.integers(0, 2**45), min_size=12),
    damage=st.none() | st.tuples(st.integers(0, 30), st.sampled_from([b"\x00", b"\x01", b"\x02", b"\xff"])),
)
def test_a_usual_shape_changes_nothing(
    shapes: list[list[str]], values: list[list[str]], times_ms: list[int], damage: tuple[int, bytes] | None
) -> None:
    topic = definition.Resource(name="orders")
    encoder = DeliveryEncoder(topic=topic, invisible_ms=10_000)
    for shape in shapes:
        usual = stored_record("".join(f"{name}\x01true\x02" for name in shape).encode())
        for _ in range(USUAL):
            encoder.encode(read_stored_message(memoryview(usual), 0, len(usual), 4_096), handle="h", attempt=1)
    for number, row in enumerate(values):
        names_here = shapes[number % len(shapes)]
        properties = "".join(f"{name}\x01{value}\x02" for name, value in zip(names_here, row, strict=False)).encode()
        if damage is not None:
            place, byte = damage
            properties = properties[:place] + byte + properties[place + 1 :]
        stored = stored_record(properties, time_ms=times_ms[number % len(times_ms)])
        message = read_stored_message(memoryview(stored), 0, len(stored), 4_096)
        data = encoder.encode(message, handle="h", attempt=1)
        expected = delivered_message(
            decode_record(stored), topic=topic, receipt_handle="h", delivery_attempt=1, invisible_ms=10_000
        )
        assert pb.ReceiveMessageResponse.FromString(data) == pb.ReceiveMessageResponse(message=expected)


def stored_record(properties: bytes, *, time_ms: int = 1_700_000_000_000) -> bytes:
    message = OutgoingMessage(
        topic="orders",
        queue_id=0,
        body=b"hello",
        properties=properties,
        tags_code=0,
        index_keys=(),
        tag=None,
        born_timestamp_ms=time_ms,
        born_host=Host(bytes(4), 1),
        sys_flag=0,
    )
    return encode_record(
        message, queue_offset=1, physical_offset=4_096, store_timestamp_ms=time_ms, store_host=Host(bytes(4), 1)
    )


@given(wall_ms=st.integers(0, 2**45))
@example(wall_ms=1_700_000_000_000)
def test_the_stream_ends_with_the_time_of_the_answer(wall_ms: int) -> None:
    response = pb.ReceiveMessageResponse.FromString(encoded_end(wall_ms))
    assert response.WhichOneof("content") == "delivery_timestamp"
    assert response.delivery_timestamp.ToMilliseconds() == wall_ms


def delivered_message(
    record: MessageRecord,
    *,
    topic: definition.Resource,
    receipt_handle: str,
    delivery_attempt: int,
    invisible_ms: int,
) -> definition.Message:
    """What a delivery of the record is to say, field by field."""
    properties = decode_properties(record.properties)
    system = definition.SystemProperties(
        keys=properties.get(PROPERTY_KEYS, "").split(),
        message_id=properties.get(PROPERTY_UNIQUE_KEY) or offset_message_id(record.store_host, record.physical_offset),
        body_digest=definition.Digest(
            type=definition.MD5, checksum=hashlib.md5(record.body, usedforsecurity=False).hexdigest().upper()
        ),
        # RocketMQ marks a compressed body so whatever the codec; clients that can read it look at the bytes.
        body_encoding=definition.GZIP if record.sys_flag & COMPRESSED else definition.IDENTITY,
        message_type=_message_type(properties),
        born_timestamp=_timestamp(record.born_timestamp_ms),
        born_host=properties.get(PROPERTY_BORN_HOST) or str(ip_address(record.born_host.address)),
        store_timestamp=_timestamp(record.store_timestamp_ms),
        store_host=str(record.store_host),
        receipt_handle=receipt_handle,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        delivery_attempt=delivery_attempt,
    )
    system.invisible_duration.seconds, remainder_ms = divmod(invisible_ms, 1_000)
    system.invisible_duration.nanos = remainder_ms * 1_000_000
    _set_what_the_sender_set(system, properties)
    return definition.Message(
        topic=topic,
        user_properties={name: value for name, value in properties.items() if not is_internal(name)},
        system_properties=system,
        body=record.body,
    )


def _set_what_the_sender_set(system: definition.SystemProperties, properties: dict[str, str]) -> None:
    """Fields whose absence differs from an empty value."""
    if tag := properties.get(PROPERTY_TAGS):
        system.tag = tag
    if message_group := properties.get(PROPERTY_SHARDING_KEY):
        system.message_group = message_group
    if trace_context := properties.get(PROPERTY_TRACE_CONTEXT):
        system.trace_context = trace_context
    if lite_topic := properties.get(PROPERTY_LITE_TOPIC):
        system.lite_topic = lite_topic
    deliver_ms = properties.get(PROPERTY_TIMER_DELIVER_MS, "")
    if re.fullmatch("[0-9]{1,15}", deliver_ms):
        system.delivery_timestamp.CopyFrom(_timestamp(int(deliver_ms)))
    priority = properties.get(PROPERTY_PRIORITY, "")
    if re.fullmatch("[0-9]{1,10}", priority) and int(priority) < 1 << 31:
        system.priority = int(priority)
    origin_topic = properties.get(PROPERTY_DEAD_LETTER_ORIGIN_TOPIC)
    origin_message_id = properties.get(PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID)
    if origin_topic and origin_message_id:
        system.dead_letter_queue.topic = origin_topic
        system.dead_letter_queue.message_id = origin_message_id


def _message_type(properties: dict[str, str]) -> definition.MessageType:
    """RocketMQ's GrpcConverter: the kind is not stored, it shows in what the message carries."""
    if properties.get(PROPERTY_TRANSACTION_PREPARED) == "true":
        return definition.TRANSACTION
    if (
        PROPERTY_DELAY_LEVEL in properties
        or PROPERTY_TIMER_DELIVER_MS in properties
        or PROPERTY_TIMER_DELAY_S in properties
    ):
        return definition.DELAY
    if PROPERTY_SHARDING_KEY in properties:
        return definition.FIFO
    if PROPERTY_PRIORITY in properties:
        return definition.PRIORITY
    return definition.LITE if PROPERTY_LITE_TOPIC in properties else definition.NORMAL


def _timestamp(milliseconds: int) -> Timestamp:
    seconds, remainder_ms = divmod(milliseconds, 1_000)
    return Timestamp(seconds=seconds, nanos=remainder_ms * 1_000_000)
