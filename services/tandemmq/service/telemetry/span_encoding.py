"""Spans as the bytes of OTLP, with no protobuf object in between: a tenth of the time.

Source: opentelemetry-proto 1.7, trace.proto, common.proto and trace_service.proto. Fields in the order of their numbers
and none that has its default, so that the bytes are those that protobuf itself would write. A tag is the field's number
and its wire type (0 varint, 1 eight bytes, 2 a length and so many bytes, 5 four bytes); numbers are little-endian.

    ExportTraceServiceRequest  resource_spans 1
    ResourceSpans              resource 1 | scope_spans 2
    ScopeSpans                 scope 1 | spans 2
    Span                       trace_id 1 | span_id 2 | parent_span_id 4 | name 5 | kind 6 | start_time_unix_nano 7 |
                               end_time_unix_nano 8 | attributes 9 | events 11 | links 13 | status 15 | flags 16
    Span.Event                 time_unix_nano 1 | name 2 | attributes 3
    Span.Link                  trace_id 1 | span_id 2 | attributes 4 | flags 6
    Status                     message 2 | code 3
    KeyValue                   key 1 | value 2
    AnyValue                   string 1 | bool 2 | int 3 | double 4 | array 5
    ArrayValue                 values 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

from tandemmq.core.tracing.span_data import AttributeValue, SpanData, SpanEvent, SpanKind, SpanLink

__all__ = [
    "END_OF_SPAN",
    "END_OF_SPAN_OF_REMOTE_PARENT",
    "KIND_INTERNAL",
    "KIND_SERVER",
    "encoded_attributes",
    "encoded_key",
    "encoded_name",
    "encoded_request",
    "encoded_span",
    "encoded_text",
    "varint",
]

_UNSIGNED: Final = (1 << 64) - 1
_DIGITS: Final[list[bytes]] = [bytes((value,)) for value in range(0x80)]
_DIGITS_BEFORE: Final[list[bytes]] = [bytes((value | 0x80,)) for value in range(0x80)]
"""With the bit that says that another one follows."""

# Trace flags: SAMPLED, and from SpanFlags that it is known whether the parent is remote, and that it is.
_FLAGS: Final = Struct("<I")
END_OF_SPAN: Final[bytes] = b"\x85\x01" + _FLAGS.pack(0x101)
END_OF_SPAN_OF_REMOTE_PARENT: Final[bytes] = b"\x85\x01" + _FLAGS.pack(0x301)
_OF_LINK: Final[bytes] = b"\x35" + _FLAGS.pack(0x300)
_OF_SAMPLED_LINK: Final[bytes] = b"\x35" + _FLAGS.pack(0x301)

# Nearly all are of this kind, and the hash of an enum's member takes long.
_INTERNAL: Final = SpanKind.INTERNAL
KIND_INTERNAL: Final = b"\x30\x01"
KIND_SERVER: Final = b"\x30\x02"
_KINDS: Final[dict[SpanKind, bytes]] = {
    SpanKind.INTERNAL: KIND_INTERNAL,
    SpanKind.SERVER: KIND_SERVER,
    SpanKind.CLIENT: b"\x30\x03",
    SpanKind.PRODUCER: b"\x30\x04",
    SpanKind.CONSUMER: b"\x30\x05",
}
_pack_times: Final = Struct("<cQcQ").pack
_pack_time: Final = Struct("<cQ").pack
_DOUBLE: Final = Struct("<cd")
_STATUS_ERROR: Final = b"\x18\x02"


def encoded_request(spans: Sequence[bytes], *, resource: bytes, scope: bytes) -> bytes:
    """An ExportTraceServiceRequest of spans as `encoded_span` gives them; `resource` and `scope` are whole messages."""
    of_scope = b"".join((b"\x0a", varint(len(scope)), scope))
    scope_bytes = len(of_scope) + sum(map(len, spans))
    before = b"".join((b"\x0a", varint(len(resource)), resource, b"\x12", varint(scope_bytes)))
    # In one step, as the spans may be a megabyte.
    return b"".join((b"\x0a", varint(len(before) + scope_bytes), before, of_scope, *spans))


def encoded_span(span: SpanData) -> bytes:
    """One of the `spans` of a ScopeSpans, with tag and length."""
    context = span.context
    parts = [b"\x0a\x10", context.trace_id.to_bytes(16, "big"), b"\x12\x08", context.span_id.to_bytes(8, "big")]
    if span.parent_span_id:
        parts += (b"\x22\x08", span.parent_span_id.to_bytes(8, "big"))
    parts += (
        encoded_name(span.name),
        KIND_INTERNAL if span.kind is _INTERNAL else _KINDS[span.kind],
        _pack_times(b"\x39", span.start_ns, b"\x41", span.end_ns),
    )
    _add_attributes(parts, b"\x4a", span.attributes)
    for event in span.events:
        encoded = _event(event)
        parts += (b"\x5a", varint(len(encoded)), encoded)
    for link in span.links:
        encoded = _link(link)
        parts += (b"\x6a", varint(len(encoded)), encoded)
    if span.failure:
        message = span.failure.encode()
        status = b"".join((b"\x12", varint(len(message)), message, _STATUS_ERROR))
        parts += (b"\x7a", varint(len(status)), status)
    parts.append(END_OF_SPAN_OF_REMOTE_PARENT if span.parent_span_id and span.parent_is_remote else END_OF_SPAN)
    whole = b"".join(parts)
    return b"".join((b"\x12", varint(len(whole)), whole))


def _event(event: SpanEvent) -> bytes:
    name = event.name.encode()
    parts = [_pack_time(b"\x09", event.at_ns), b"\x12", varint(len(name)), name]
    _add_attributes(parts, b"\x1a", event.attributes)
    return b"".join(parts)


def _link(link: SpanLink) -> bytes:
    context = link.context
    parts = [b"\x0a\x10", context.trace_id.to_bytes(16, "big"), b"\x12\x08", context.span_id.to_bytes(8, "big")]
    _add_attributes(parts, b"\x22", link.attributes)
    parts.append(_OF_SAMPLED_LINK if context.is_sampled else _OF_LINK)
    return b"".join(parts)


def encoded_name(name: str) -> bytes:
    """A span's, with tag and length."""
    known = _names.get(name)
    if known is None:
        encoded = name.encode()
        known = b"".join((b"\x2a", varint(len(encoded)), encoded))
        if len(_names) >= _REMEMBERED_MAX:
            _names.clear()
        _names[name] = known
    return known


def encoded_attributes(tag: bytes, attributes: Mapping[str, AttributeValue]) -> bytes:
    """Each with the tag of the field it is in, and its length."""
    parts: list[bytes] = []
    _add_attributes(parts, tag, attributes)
    return b"".join(parts)


def _add_attributes(parts: list[bytes], tag: bytes, attributes: Mapping[str, AttributeValue]) -> None:
    if not attributes:
        return
    # For the compiler, which knows a dict's ways.
    facts = attributes if isinstance(attributes, dict) else dict(attributes)
    for name, value in facts.items():
        parts.append(tag)
        key = _keys.get(name)
        if key is None:
            key = _new_key(name)
        if isinstance(value, str):
            pair = key.texts.get(value)
            parts.append(_text_pair(key, value) if pair is None else pair)
        else:
            parts.append(_pair(key.encoded, _value(value)))


class _Key:
    """The name of an attribute, and pairs of it. Most pairs of text are the same in each span of a kind: names of
    methods, topics and brokers."""

    __slots__ = ("encoded", "texts")

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded
        self.texts: dict[str, bytes] = {}


# Beyond so many pieces of one kind all of them are forgotten. 40 keys of 256 pairs of 300 bytes: 3 MB.
_REMEMBERED_MAX: Final = 256
_REMEMBERED_TEXT_MAX: Final = 128
_names: Final[dict[str, bytes]] = {}
_keys: Final[dict[str, _Key]] = {}


def _new_key(name: str) -> _Key:
    key = _Key(encoded_key(name))
    if len(_keys) >= _REMEMBERED_MAX:
        _keys.clear()
    _keys[name] = key
    return key


def encoded_key(name: str) -> bytes:
    """The key of a KeyValue, with the tag of the value that follows."""
    encoded = name.encode()
    return b"".join((b"\x0a", varint(len(encoded)), encoded, b"\x12"))


def _text_pair(key: _Key, value: str) -> bytes:
    pair = _pair(key.encoded, encoded_text(value))
    if len(value) <= _REMEMBERED_TEXT_MAX:
        if len(key.texts) >= _REMEMBERED_MAX:
            key.texts.clear()
        key.texts[value] = pair
    return pair


def _pair(key: bytes, value: bytes) -> bytes:
    """A KeyValue after its length."""
    length = varint(len(value))
    return b"".join((varint(len(key) + len(length) + len(value)), key, length, value))


def encoded_text(value: str) -> bytes:
    """An AnyValue."""
    encoded = value.encode()
    return b"".join((b"\x0a", varint(len(encoded)), encoded))


def _value(value: AttributeValue) -> bytes:
    """An AnyValue. Unlike other fields, one that has its default is written: it says which type it is."""
    if isinstance(value, str):
        return encoded_text(value)
    if isinstance(value, bool):
        # Before int: a bool is one.
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + varint(value)
    if isinstance(value, float):
        return _DOUBLE.pack(b"\x21", value)
    items: list[bytes] = []
    for item in value:
        text = encoded_text(item)
        items += (b"\x0a", varint(len(text)), text)
    whole = b"".join(items)
    return b"".join((b"\x2a", varint(len(whole)), whole))


def varint(value: int) -> bytes:
    """A number by seven bits a byte. Negative ones in two's complement of 64 bits."""
    if 0 <= value < 0x80:
        return _DIGITS[value]
    if 0 <= value < 0x4000:
        return _DIGITS_BEFORE[value & 0x7F] + _DIGITS[value >> 7]
    value &= _UNSIGNED
    digits: list[bytes] = []
    while value > 0x7F:
        digits.append(_DIGITS_BEFORE[value & 0x7F])
        value >>= 7
    digits.append(_DIGITS[value])
    return b"".join(digits)
