"""The spans of a send as the bytes of OTLP, straight from its note, with no `SpanData` in between.

The usual send is one message that was stored and had everything asked for. Its bytes are put together of pieces: some
are the same for all spans, some are remembered by what they depend on, and the rest are ids, times and numbers. Any
other send is encoded by its spans. The layout and the order of fields are `span_encoding`'s; what is said, and in which
order, is `tandemmq.core.tracing.send_spans`'s.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from tandemmq.core.tracing import attributes as names
from tandemmq.core.tracing.send_spans import (
    RPC_METHOD,
    ResolvedSend,
    SendSource,
    TransferMark,
    send_spans,
    sender_attributes,
    wait_attributes,
)
from tandemmq.service.telemetry.span_encoding import (
    END_OF_SPAN,
    END_OF_SPAN_OF_REMOTE_PARENT,
    KIND_INTERNAL,
    KIND_SERVER,
    encoded_attributes,
    encoded_key,
    encoded_name,
    encoded_span,
    encoded_text,
    varint,
)

__all__ = ["encoded_send"]

_ATTRIBUTE: Final = b"\x4a"
_EVENT_ATTRIBUTE: Final = b"\x1a"
_pack_times: Final = Struct("<cQcQ").pack
_pack_time: Final = Struct("<cQ").pack
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
_REMEMBERED_MAX: Final = 1_024
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
        if len(_senders) >= _REMEMBERED_MAX:
            _senders.clear()
        known = _senders[key] = encoded_attributes(_ATTRIBUTE, sender_attributes(send))
    return known


def _partition(queue_id: int) -> bytes:
    known = _partitions.get(queue_id)
    if known is None:
        if len(_partitions) >= _REMEMBERED_MAX:
            _partitions.clear()
        known = _partitions[queue_id] = _PARTITION.encoded(str(queue_id))
    return known


def _said_of_wait(send: ResolvedSend) -> bytes:
    """For slaves: the wait's attributes, and its events."""
    key = (send.source, send.acks_received, send.slaves_connected)
    known = _waits.get(key)
    if known is None:
        if len(_waits) >= _REMEMBERED_MAX:
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
        if len(_marks) >= _REMEMBERED_MAX:
            _marks.clear()
        name = mark.name.encode()
        said = encoded_attributes(_EVENT_ATTRIBUTE, {names.SLAVE: mark.slave})
        known = _marks[key] = b"".join((b"\x12", varint(len(name)), name, said))
    return known
