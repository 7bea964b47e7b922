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

from tandemmq.core.tracing import span_data as names
from tandemmq.core.tracing.send_spans import (
    RPC_METHOD,
    ResolvedSend,
    SendSource,
    TransferMark,
    send_spans,
    sender_attributes,
    wait_attributes,
)
from tandemmq.core.tracing.span_data import AttributeValue, SpanData, SpanEvent, SpanKind, SpanLink

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


# The spans of a send as the bytes of OTLP, straight from its note, with no `SpanData` in between.
#
# The usual send is one message that was stored and had everything asked for. Its bytes are put together of pieces: some
# are the same for all spans, some are remembered by what they depend on, and the rest are ids, times and numbers. Any
# other send is encoded by its spans. The layout and the order of fields are `span_encoding`'s; what is said, and in
# which order, is `tandemmq.core.tracing.send_spans`'s.

_ATTRIBUTE: Final = b"\x4a"
_EVENT_ATTRIBUTE: Final = b"\x1a"
# Parts of a span: its two ids, its times and its flags, all with their tags; and its parent's id.
_ALWAYS_BYTES: Final = 18 + 10 + 18 + 6
_PARENT_BYTES: Final = 10
_FLUSHED: Final = b"\x12\x07flushed"
_DIGITS_MAX: Final = 10


class _Number:
    """An attribute that is a whole number."""

    __slots__ = ("_before",)

    def __init__(self, tag: bytes, name: str) -> None:
        key = encoded_key(name)
        # What stands before the number, by how many digits that has.
        self._before = [
            b"".join((tag, varint(len(key) + 2 + digits), key, varint(1 + digits), b"\x18"))
            for digits in range(_DIGITS_MAX + 1)
        ]

    def encoded(self, value: int) -> bytes:
        digits = varint(value)
        return self._before[len(digits)] + digits


class _Text:
    """An attribute that is a text which is different every time."""

    __slots__ = ("_key", "_tag")

    def __init__(self, tag: bytes, name: str) -> None:
        self._tag = tag
        self._key = encoded_key(name)

    def encoded(self, value: str) -> bytes:
        text = encoded_text(value)
        length = varint(len(text))
        return b"".join((self._tag, varint(len(self._key) + len(length) + len(text)), self._key, length, text))


_BODY_SIZE: Final = _Number(_ATTRIBUTE, names.MESSAGING_MESSAGE_BODY_SIZE)
_MESSAGE_ID: Final = _Text(_ATTRIBUTE, names.MESSAGING_MESSAGE_ID)
_PARTITION: Final = _Text(_ATTRIBUTE, names.MESSAGING_DESTINATION_PARTITION_ID)
_START: Final = _Number(_ATTRIBUTE, names.PHYSICAL_OFFSET)
_STORED_BYTES: Final = _Number(_ATTRIBUTE, names.STORED_BYTES)
_QUEUE_OFFSET: Final = _Number(_ATTRIBUTE, names.QUEUE_OFFSET)
_LAG: Final = _Number(_ATTRIBUTE, names.LAG_BYTES)
_MARK_OFFSET: Final = _Number(_EVENT_ATTRIBUTE, names.PHYSICAL_OFFSET)
_MARK_LAG: Final = _Number(_EVENT_ATTRIBUTE, names.LAG_BYTES)

_SERVER: Final = encoded_name(RPC_METHOD) + KIND_SERVER
_APPEND: Final = encoded_name("commitlog append") + KIND_INTERNAL
_FLUSH_WAIT: Final = encoded_name("flush wait") + KIND_INTERNAL
_REPLICATE_WAIT: Final = encoded_name("replicate wait") + KIND_INTERNAL
_REPLY: Final = encoded_name("reply") + KIND_INTERNAL

# Beyond so many pieces of one kind all of them are forgotten. A sender takes some 800 bytes.
_SENDS_REMEMBERED_MAX: Final = 1_024
_senders: Final[dict[tuple[SendSource, str, str, str, str, bool, bool], bytes]] = {}
_waits: Final[dict[tuple[SendSource, int, int], bytes]] = {}
_marks: Final[dict[tuple[str, str], bytes]] = {}
_partitions: Final[dict[int, bytes]] = {}

_SAMPLED: Final = names.RetainedFor.SAMPLED


def encoded_send(send: ResolvedSend) -> bytes:
    """All spans of a send, each with tag and length: what `encoded_span` makes of its `send_spans`, byte by byte."""
    note = send.send
    if note.message_count != 1 or note.put_status != "PUT_OK" or note.failure or note.linked or not note.is_stored:
        return b"".join([encoded_span(span) for span in send_spans(send)])
    trace_id, span_id, _ = note.context
    trace = b"".join((b"\x0a\x10", trace_id.to_bytes(16, "big"), b"\x12\x08"))
    of_server = b"\x22\x08" + span_id.to_bytes(8, "big")
    wall_ns = send.wall_offset_ns
    parts: list[bytes] = []
    _add_server(parts, send, trace)
    if send.append_id:
        said = b"".join(
            (
                _START.encoded(note.start_offset),
                _STORED_BYTES.encoded(note.end_offset - note.start_offset),
                _QUEUE_OFFSET.encoded(note.queue_offset),
            )
        )
        times = _times(note.begun_ns + wall_ns, note.appended_ns + wall_ns)
        _add_child(parts, trace, send.append_id, of_server, _APPEND, times, said)
    if send.flush_wait_id:
        times = _times(note.appended_ns + wall_ns, send.flush_wait_end_ns + wall_ns)
        said = encoded_attributes(_ATTRIBUTE, {names.ACK_POLICY: send.source.policy_name})
        _add_child(parts, trace, send.flush_wait_id, of_server, _FLUSH_WAIT, times, said)
    if send.replicate_wait_id:
        times = _times(note.appended_ns + wall_ns, send.replicate_wait_end_ns + wall_ns)
        _add_child(parts, trace, send.replicate_wait_id, of_server, _REPLICATE_WAIT, times, _said_of_wait(send))
    if send.reply_id:
        times = _times(note.released_ns + wall_ns, note.written_ns + wall_ns)
        _add_child(parts, trace, send.reply_id, of_server, _REPLY, times, b"")
    return b"".join(parts)


def _times(start_ns: int, end_ns: int) -> bytes:
    return _pack_times(b"\x39", start_ns, b"\x41", max(start_ns, end_ns))


def _add_server(parts: list[bytes], send: ResolvedSend, trace: bytes) -> None:
    note, wall_ns = send.send, send.wall_offset_ns
    sender = _sender(send)
    partition = _partition(note.queue_id) if note.queue_id >= 0 else b""
    body_size = _BODY_SIZE.encoded(note.body_bytes)
    message_id = _MESSAGE_ID.encoded(note.message_ids[0])
    flushed = b""
    if send.flushed_ns >= 0:
        flushed = b"".join((b"\x5a\x12", _pack_time(b"\x09", send.flushed_ns + wall_ns), _FLUSHED))
    parent, end = b"", END_OF_SPAN
    if note.parent is not None:
        _, parent_id, _ = note.parent
        parent, end = b"\x22\x08" + parent_id.to_bytes(8, "big"), END_OF_SPAN_OF_REMOTE_PARENT
    _, span_id, _ = note.context
    said_bytes = len(sender) + len(partition) + len(body_size) + len(message_id) + len(flushed)
    parts += (
        b"\x12",
        varint(_ALWAYS_BYTES + len(parent) + len(_SERVER) + said_bytes),
        trace,
        span_id.to_bytes(8, "big"),
        parent,
        _SERVER,
        _times(note.received_ns + wall_ns, send.end_ns + wall_ns),
        sender,
        partition,
        body_size,
        message_id,
        flushed,
        end,
    )


def _add_child(
    parts: list[bytes], trace: bytes, span_id: int, of_server: bytes, name: bytes, times: bytes, said: bytes
) -> None:
    """`said`: its attributes and events."""
    parts += (
        b"\x12",
        varint(_ALWAYS_BYTES + _PARENT_BYTES + len(name) + len(said)),
        trace,
        span_id.to_bytes(8, "big"),
        of_server,
        name,
        times,
        said,
        END_OF_SPAN,
    )


def _sender(send: ResolvedSend) -> bytes:
    """The server's first attributes."""
    note = send.send
    key = (send.source, note.topic, note.client_id, note.peer, note.tag, note.waits, note.retained_for is _SAMPLED)
    known = _senders.get(key)
    if known is None:
        if len(_senders) >= _SENDS_REMEMBERED_MAX:
            _senders.clear()
        known = _senders[key] = encoded_attributes(_ATTRIBUTE, sender_attributes(send))
    return known


def _partition(queue_id: int) -> bytes:
    known = _partitions.get(queue_id)
    if known is None:
        if len(_partitions) >= _SENDS_REMEMBERED_MAX:
            _partitions.clear()
        known = _partitions[queue_id] = _PARTITION.encoded(str(queue_id))
    return known


def _said_of_wait(send: ResolvedSend) -> bytes:
    """For slaves: the wait's attributes, and its events."""
    key = (send.source, send.acks_received, send.slaves_connected)
    known = _waits.get(key)
    if known is None:
        if len(_waits) >= _SENDS_REMEMBERED_MAX:
            _waits.clear()
        known = _waits[key] = encoded_attributes(_ATTRIBUTE, wait_attributes(send))
    parts = [known]
    if send.lag_bytes >= 0:
        parts.append(_LAG.encoded(send.lag_bytes))
    for mark in send.marks:
        what = _what(mark)
        offset = _MARK_OFFSET.encoded(mark.offset)
        lag = _MARK_LAG.encoded(mark.lag_bytes) if mark.lag_bytes >= 0 else b""
        length = varint(9 + len(what) + len(offset) + len(lag))
        parts += (b"\x5a", length, _pack_time(b"\x09", mark.at_ns + send.wall_offset_ns), what, offset, lag)
    return b"".join(parts)


def _what(mark: TransferMark) -> bytes:
    """An event's name and its slave."""
    key = (mark.name, mark.slave)
    known = _marks.get(key)
    if known is None:
        if len(_marks) >= _SENDS_REMEMBERED_MAX:
            _marks.clear()
        name = mark.name.encode()
        said = encoded_attributes(_EVENT_ATTRIBUTE, {names.SLAVE: mark.slave})
        known = _marks[key] = b"".join((b"\x12", varint(len(name)), name, said))
    return known
