"""The bytes of a send's spans, beside those of the spans that are made when somebody looks."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from support.send_samples import kept_send
from tandemmq.core.tracing.send_spans import (
    ACKNOWLEDGED,
    SENT,
    AckPolicy,
    ResolvedSend,
    SendSource,
    TracedSend,
    TransferMark,
    send_spans,
)
from tandemmq.core.tracing.span_data import RetainedFor, TraceContext
from tandemmq.service.telemetry import span_encoding
from tandemmq.service.telemetry.span_encoding import encoded_send, encoded_span

_TIMES = st.integers(min_value=0, max_value=1 << 61)
_OFFSETS = st.integers(min_value=0, max_value=(1 << 62) - 1)
_MAYBE_OFFSETS = st.just(-1) | _OFFSETS
_COUNTS = st.integers(min_value=0, max_value=20_000)
_TEXTS = st.text(max_size=200)
_SPAN_IDS = st.integers(min_value=1, max_value=(1 << 64) - 1)
_MAYBE_SPAN_IDS = st.just(0) | _SPAN_IDS
_CONTEXTS = st.builds(TraceContext, st.integers(min_value=1, max_value=(1 << 128) - 1), _SPAN_IDS, st.just(True))
_PEERS = st.sampled_from(["ipv4:10.0.0.7:51234", "ipv6:%5B::1%5D:4711", "unix:", ""]) | _TEXTS
_STATUSES = st.sampled_from(["PUT_OK"] * 5 + ["", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE", "FLUSH_DISK_TIMEOUT"])
_SOURCES = st.builds(
    SendSource,
    st.builds(AckPolicy, st.integers(min_value=0, max_value=3), st.booleans(), st.booleans()),
    st.dictionaries(_TEXTS.filter(bool), _TEXTS | st.integers(min_value=0, max_value=9), max_size=2),
)
_MARKS = st.builds(TransferMark, st.sampled_from([SENT, ACKNOWLEDGED]), _TIMES, _TEXTS, _OFFSETS, _MAYBE_OFFSETS)


@st.composite
def _notes(draw: st.DrawFn) -> TracedSend:
    count = draw(st.sampled_from([1, 1, 1, 2, 40]))
    return TracedSend(
        context=draw(_CONTEXTS),
        parent=draw(st.none() | _CONTEXTS),
        linked=tuple(draw(st.just([]) | st.lists(_CONTEXTS, max_size=3))),
        retained_for=draw(st.sampled_from(RetainedFor)),
        topic=draw(_TEXTS),
        message_ids=tuple(draw(st.lists(_TEXTS, min_size=count, max_size=count))[:32]),
        message_count=count,
        body_bytes=draw(_OFFSETS),
        client_id=draw(_TEXTS),
        peer=draw(_PEERS),
        received_ns=draw(_TIMES),
        begun_ns=draw(_TIMES),
        appended_ns=draw(_TIMES),
        released_ns=draw(_TIMES),
        written_ns=draw(_TIMES),
        failure=draw(st.sampled_from(["", "", "", "TOPIC_NOT_FOUND"])),
        put_status=draw(_STATUSES),
        tag=draw(st.just("") | _TEXTS),
        queue_id=draw(st.integers(min_value=-1, max_value=2_000)),
        queue_offset=draw(_OFFSETS),
        start_offset=draw(_OFFSETS),
        end_offset=draw(_MAYBE_OFFSETS),
        waits=draw(st.booleans()),
    )


@st.composite
def _sends(draw: st.DrawFn) -> ResolvedSend:
    send = ResolvedSend(draw(_notes()), draw(_SOURCES), draw(_TIMES))
    send.append_id = draw(_MAYBE_SPAN_IDS)
    send.flush_wait_id = draw(_MAYBE_SPAN_IDS)
    send.replicate_wait_id = draw(_MAYBE_SPAN_IDS)
    send.reply_id = draw(_MAYBE_SPAN_IDS)
    send.flushed_ns = draw(st.just(-1) | _TIMES)
    send.flush_wait_end_ns = draw(_TIMES)
    send.replicate_wait_end_ns = draw(_TIMES)
    send.acks_received = draw(_COUNTS)
    send.slaves_connected = draw(_COUNTS)
    send.lag_bytes = draw(_MAYBE_OFFSETS)
    send.marks = draw(st.lists(_MARKS, max_size=6))
    # What is stored ends behind its beginning.
    if send.send.is_stored:
        send.send.end_offset += send.send.start_offset
    return send


def _by_spans(send: ResolvedSend) -> bytes:
    return b"".join([encoded_span(span) for span in send_spans(send)])


@given(send=_sends())
@example(send=kept_send())
@example(send=kept_send(slave_count=3))
@example(send=kept_send(failure="FLUSH_SLAVE_TIMEOUT", retained_for=RetainedFor.FAILED))
def test_a_send_has_the_bytes_of_its_spans(send: ResolvedSend) -> None:
    assert encoded_send(send) == _by_spans(send)


@given(sends=st.lists(_sends(), max_size=4))
def test_what_is_remembered_of_one_send_does_not_show_in_another(sends: list[ResolvedSend]) -> None:
    for send in [*sends, *sends]:
        assert encoded_send(send) == _by_spans(send)


def test_senders_without_number_are_not_all_remembered() -> None:
    for number in range(3_000):
        send = kept_send()
        send.send.client_id = f"client-{number}"
        send.send.queue_id = number
        assert encoded_send(send) == _by_spans(send)
    assert len(span_encoding._senders) <= 1_024
    assert len(span_encoding._partitions) <= 1_024
