"""The decoder of SendMessage requests gives what protobuf gives, or leaves the request to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from support.api_requests import message, send_request
from tandemmq.broker.client_api import sent_message
from tandemmq.broker.client_api.delivery_encoding import length_delimited, tag_of
from tandemmq.broker.client_api.sent_message import MESSAGES_MAX, SendRequest, SentMessage, decode_messages
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import RequestTooLong

_FIELDS = (
    "topic",
    "body",
    "user_properties",
    "tag",
    "keys",
    "message_id",
    "message_group",
    "message_type",
    "body_encoding",
    "trace_context",
    "born_host",
    "is_born",
    "born_seconds",
    "born_ms",
    "has_digest",
    "digest_type",
    "digest_checksum",
    "delivery_timestamp",
    "recovery_duration",
)
_TEXT = st.text(max_size=200)
_INT32 = st.integers(-(2**31), 2**31 - 1)
_SHORT = st.integers(0, 6)


def fields_of(sent: SentMessage) -> Mapping[str, object]:
    return {name: getattr(sent, name) for name in _FIELDS}


def by_protobuf(data: bytes) -> list[Mapping[str, object]] | None:
    try:
        request = pb.SendMessageRequest.FromString(data)
    except DecodeError:
        return None
    return [fields_of(SentMessage.of(decoded)) for decoded in request.messages]


def here(data: bytes) -> list[Mapping[str, object]] | None:
    decoded = decode_messages(data)
    return None if decoded is None else [fields_of(sent) for sent in decoded]


@st.composite
def _timestamps(draw: st.DrawFn) -> dict[str, int]:
    return {
        "seconds": draw(st.integers(0, 2**34) | st.integers(-(2**63), 2**63 - 1)),
        "nanos": draw(st.integers(0, 999_999_999) | _INT32),
    }


_SYSTEM = st.fixed_dictionaries(
    {},
    optional={
        "tag": _TEXT,
        "keys": st.lists(_TEXT, max_size=4),
        "message_id": _TEXT,
        "body_digest": st.fixed_dictionaries({"type": _SHORT | _INT32, "checksum": _TEXT}),
        "body_encoding": _SHORT | _INT32,
        "message_type": _SHORT | _INT32,
        "born_timestamp": _timestamps(),
        "born_host": _TEXT,
        "queue_id": _SHORT | _INT32,
        "message_group": _TEXT,
        "trace_context": _TEXT,
    },
)
_UNUSUAL_SYSTEM = st.fixed_dictionaries(
    {},
    optional={
        "store_host": _TEXT,
        "delivery_timestamp": _timestamps(),
        "receipt_handle": _TEXT,
        "priority": _INT32,
        "orphaned_transaction_recovery_duration": st.fixed_dictionaries({"seconds": _SHORT}),
    },
)


@st.composite
def _messages(draw: st.DrawFn) -> definition.Message:
    unusual = draw(_UNUSUAL_SYSTEM) if draw(st.integers(0, 9)) == 0 else {}
    sent = definition.Message(
        body=draw(st.binary(max_size=300)),
        user_properties=draw(st.dictionaries(_TEXT, _TEXT, max_size=4)),
    )
    if draw(st.booleans()):
        sent.topic.CopyFrom(definition.Resource(name=draw(_TEXT), resource_namespace=draw(st.just("") | _TEXT)))
    if system := draw(_SYSTEM) | unusual:
        sent.system_properties.CopyFrom(definition.SystemProperties(**system))  # type: ignore[arg-type]
    return sent


_REQUESTS = st.lists(_messages(), max_size=4).map(lambda messages: pb.SendMessageRequest(messages=messages))


@given(_REQUESTS)
def test_both_decoders_read_the_same(request: pb.SendMessageRequest) -> None:
    data = request.SerializeToString()
    decoded = here(data)
    assert decoded is None or decoded == by_protobuf(data)
    assert [fields_of(sent) for sent in SendRequest.FromString(data)] == by_protobuf(data)


@given(_REQUESTS, st.data())
def test_damaged_bytes_are_read_as_protobuf_reads_them_or_left_to_it(
    request: pb.SendMessageRequest, data: st.DataObject
) -> None:
    damaged = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(damaged) - 1)))
        damaged[at : at + data.draw(st.integers(0, 1))] = data.draw(st.binary(max_size=2))
    decoded = here(bytes(damaged))
    assert decoded is None or decoded == by_protobuf(bytes(damaged))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_as_protobuf_reads_them_or_left_to_it(data: bytes) -> None:
    decoded = here(data)
    assert decoded is None or decoded == by_protobuf(data)


def test_what_clients_send_is_decoded_here() -> None:
    sent = message(tag="red", keys=["one", "two"], message_group="g")
    sent.user_properties.update({"color": "grün", "n": ""})
    sent.topic.resource_namespace = "ns"
    sent.system_properties.queue_id = 7
    sent.system_properties.trace_context = "00-trace"
    sent.system_properties.body_digest.CopyFrom(definition.Digest(type=definition.CRC32, checksum="0A"))
    data = send_request(sent, message(body=b"")).SerializeToString()
    assert here(data) == by_protobuf(data)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300, 20_000])
def test_bodies_of_any_length_are_decoded_here(size: int) -> None:
    data = send_request(message(body=bytes(size))).SerializeToString()
    assert here(data) == by_protobuf(data)


def test_every_cut_of_a_request_is_left_to_protobuf_or_read_alike() -> None:
    sent = message(tag="red", keys=["key"])
    sent.user_properties["color"] = "blue"
    data = send_request(sent).SerializeToString()
    for end in range(len(data)):
        decoded = here(data[:end])
        assert decoded is None or decoded == by_protobuf(data[:end])


def test_only_the_compiled_decoder_is_used() -> None:
    assert sent_message._IS_COMPILED is not str(sent_message.__file__).endswith(".py")


def test_bytes_that_are_no_message_are_refused_as_protobuf_refuses_them() -> None:
    with pytest.raises(DecodeError):
        SendRequest.FromString(b"\x0a\xff")


def test_text_that_is_no_utf8_is_refused_as_protobuf_refuses_it() -> None:
    system = length_delimited(tag_of(definition.SystemProperties, "message_id"), b"\xed\xa0\x80")
    sent = length_delimited(tag_of(definition.Message, "system_properties"), system)
    with pytest.raises(DecodeError):
        SendRequest.FromString(length_delimited(tag_of(pb.SendMessageRequest, "messages"), sent))


def test_field_that_comes_twice_is_left_to_protobuf() -> None:
    body = tag_of(definition.Message, "body")
    sent = length_delimited(body, b"one") + length_delimited(body, b"two")
    data = length_delimited(tag_of(pb.SendMessageRequest, "messages"), sent)
    assert decode_messages(data) is None
    assert SendRequest.FromString(data)[0].body == b"two"


@pytest.mark.parametrize(
    ("kind", "prefix", "names"),
    [
        (pb.SendMessageRequest, "REQUEST", "messages"),
        (definition.Message, "MESSAGE", "topic user_properties system_properties body"),
        (definition.Resource, "RESOURCE", "name"),
        (definition.Digest, "DIGEST", "type checksum"),
        (
            definition.SystemProperties,
            "SYSTEM",
            "tag keys message_id body_digest body_encoding message_type born_timestamp born_host queue_id",
        ),
    ],
)
def test_fields_have_the_numbers_of_the_proto_files(kind: type[Message], prefix: str, names: str) -> None:
    for name in names.split():
        assert bytes((getattr(sent_message, f"_{prefix}_{name.upper()}"),)) == tag_of(kind, name), name


def test_fields_of_two_digits_have_the_numbers_of_the_proto_files() -> None:
    assert tag_of(definition.SystemProperties, "message_group") == bytes((0x8A, 1))
    assert tag_of(definition.SystemProperties, "trace_context") == bytes((0x92, 1))


def test_no_more_messages_are_read_than_a_request_may_have() -> None:
    data = pb.SendMessageRequest(messages=[definition.Message(body=b"x")] * (MESSAGES_MAX + 500)).SerializeToString()
    assert len(decode_messages(data) or ()) == MESSAGES_MAX + 1
    assert len(SendRequest.FromString(data)) == MESSAGES_MAX + 1
    uncommon = b"\x10\x01" + data
    assert decode_messages(uncommon) is None
    assert len(SendRequest.FromString(uncommon)) == MESSAGES_MAX + 1
    whole = pb.SendMessageRequest(messages=[definition.Message(body=b"x")] * MESSAGES_MAX).SerializeToString()
    assert len(decode_messages(whole) or ()) == len(SendRequest.FromString(whole)) == MESSAGES_MAX


def _many(field: bytes, inner: bytes, count: int) -> bytes:
    return b"".join(length_delimited(field, inner.replace(b"#", b"%06x" % number)) for number in range(count))


_SYSTEM_TAG = tag_of(definition.Message, "system_properties")
_PROPERTY_TAG = tag_of(definition.Message, "user_properties")
_KEYS_TAG = tag_of(definition.SystemProperties, "keys")


@pytest.mark.parametrize("hidden_by", [b"", b"\x7b\x7c"], ids=["nothing", "a group"])
@pytest.mark.parametrize(
    "content",
    [
        lambda count: _many(_PROPERTY_TAG, b"\x0a\x06#", count),
        lambda count: _many(_PROPERTY_TAG, b"", count),
        lambda count: length_delimited(_SYSTEM_TAG, _many(_KEYS_TAG, b"", count)),
        lambda count: _many(_SYSTEM_TAG, b"", count),
    ],
    ids=["properties", "empty properties", "keys", "system properties"],
)
@pytest.mark.parametrize("spread", [1, 2])
def test_a_message_of_a_million_fields_is_refused_before_anything_is_made_of_it(
    content: Callable[[int], bytes], hidden_by: bytes, spread: int
) -> None:
    """Two bytes each, of a request of 130 MiB, from anybody: gigabytes, and minutes of the loop."""
    field = tag_of(pb.SendMessageRequest, "messages")
    too_many = 200_000 // spread
    data = length_delimited(field, hidden_by + content(too_many)) * spread
    with pytest.raises(RequestTooLong, match="more than 163,840 properties, keys and other fields"):
        SendRequest.FromString(data)
    assert len(SendRequest.FromString(length_delimited(field, hidden_by + content(2_000)))) == 1


@pytest.mark.parametrize("hidden_by", [b"", b"\x7b\x7c"])
def test_messages_behind_a_group_are_counted_too(hidden_by: bytes) -> None:
    field = tag_of(pb.SendMessageRequest, "messages")
    data = hidden_by + length_delimited(field, b"") * (MESSAGES_MAX + 500)
    assert len(SendRequest.FromString(data)) == MESSAGES_MAX + 1


def test_what_has_many_properties_or_keys_is_left_to_protobuf() -> None:
    for count in (1_024, 1_025):
        for sent in (
            message(keys=[f"{number}" for number in range(count)]),
            definition.Message(user_properties={f"{number}": "" for number in range(count)}),
        ):
            decoded = decode_messages(pb.SendMessageRequest(messages=[sent]).SerializeToString())
            assert (decoded is None) is (count > 1_024)
