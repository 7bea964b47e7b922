"""The memory of spans: what is found, what is forgotten first, and how much it takes."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.send_samples import kept_send
from support.span_samples import MESSAGE_ID, TRACE_ID, delivery_spans, send_spans, slave_spans
from tandemmq.core.tracing import span_data as names
from tandemmq.core.tracing.recent_spans import RecentSpans
from tandemmq.core.tracing.send_spans import send_spans as made_spans
from tandemmq.core.tracing.span_data import RetainedFor, SpanData, SpanKind, TraceContext


@contextmanager
def estimate_checked() -> Iterator[RecentSpans]:
    """An empty memory of spans, whose estimate of its size is held against what it took in the block."""
    recent = RecentSpans(limit_bytes=100 << 20)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield recent
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.8 * taken <= recent.size_bytes <= 2 * taken


def test_a_trace_is_found_by_its_id_and_by_every_message_it_names() -> None:
    recent = RecentSpans(limit_bytes=1 << 20)
    recent.add([*send_spans(), *slave_spans(), *delivery_spans()])

    trace = recent.by_trace(TRACE_ID)
    assert trace is not None
    assert [span.name for span in trace.spans][1:] == ["commitlog append", "replicate wait", "reply"]
    found = recent.by_message(MESSAGE_ID)
    # The send, the slave's part, the receive and the acknowledgement, which name it in their links.
    assert [trace.spans[0].name.rpartition("/")[2] for trace in found] == [
        "SendMessage",
        "replica append",
        "ReceiveMessage",
        "AckMessage",
    ]
    assert recent.by_trace(1) is None
    assert not recent.by_message("unknown")


def test_a_batch_is_found_by_each_of_its_messages() -> None:
    recent = RecentSpans(limit_bytes=1 << 20)
    span = SpanData(
        "SendMessage",
        TraceContext(7, 8, True),
        0,
        SpanKind.SERVER,
        1,
        2,
        {names.MESSAGE_IDS: ("A", "B")},
    )
    recent.add([span])
    assert [len(recent.by_message(message_id)) for message_id in ("A", "B", "C")] == [1, 1, 0]


def test_the_oldest_traces_are_forgotten_whole_and_with_their_messages() -> None:
    recent = RecentSpans(limit_bytes=64 << 10)
    for number in range(1, 101):
        recent.add(send_spans(trace_id=number, message_id=f"M{number}", retained_for=RetainedFor.SAMPLED))

    assert recent.size_bytes <= 32 << 10
    assert recent.by_trace(1) is None
    assert not recent.by_message("M1")
    newest = recent.by_trace(100)
    assert newest is not None
    assert len(newest.spans) == 4
    kept = [trace.trace_id for trace in recent.newest()]
    assert kept == list(range(100, 100 - len(kept), -1))


def test_what_was_slow_or_failed_outlives_what_chance_picked() -> None:
    recent = RecentSpans(limit_bytes=64 << 10)
    recent.add(send_spans(trace_id=1, message_id="slow"))
    recent.add(send_spans(trace_id=2, message_id="failed", failure="FLUSH_SLAVE_TIMEOUT"))
    for number in range(3, 200):
        recent.add(send_spans(trace_id=number, message_id=f"M{number}", retained_for=RetainedFor.SAMPLED))

    assert [trace.trace_id for trace in recent.newest(notable_only=True)] == [2, 1]
    assert recent.by_message("slow")


def test_a_trace_that_fails_late_becomes_notable_as_a_whole() -> None:
    recent = RecentSpans(limit_bytes=64 << 10)
    first, *rest = send_spans(trace_id=5, retained_for=RetainedFor.SAMPLED)
    recent.add([first])
    assert not list(recent.newest(notable_only=True))
    recent.add([*rest, SpanData("late", TraceContext(5, 99, True), 0, SpanKind.INTERNAL, 1, 2, failure="it broke")])
    (trace,) = recent.newest(notable_only=True)
    assert len(trace.spans) == 5
    assert recent.trace_count == 1


def test_one_trace_id_for_everything_does_not_take_the_memory() -> None:
    recent = RecentSpans(limit_bytes=1 << 20)
    for _ in range(300):
        recent.add(send_spans(trace_id=5))
    trace = recent.by_trace(5)
    assert trace is not None
    assert (len(trace.spans), trace.dropped_count) == (512, 300 * 4 - 512)


def test_long_ids_of_a_batch_count_with_their_length() -> None:
    recent = RecentSpans(limit_bytes=1 << 20)
    for number in range(1, 101):
        ids = tuple(f"{number}-{place}-{'x' * 10_000}" for place in range(32))
        recent.add([SpanData("a", TraceContext(number, 8, True), 0, SpanKind.SERVER, 1, 2, {names.MESSAGE_IDS: ids})])
    assert recent.trace_count == 1


@pytest.mark.parametrize("with_slave", [False, True])
def test_the_estimate_of_its_memory_is_close(with_slave: bool) -> None:
    randomness = random.Random(1)
    with estimate_checked() as recent:
        for number in range(500):
            trace_id, message_id = randomness.getrandbits(128), f"01{number:032X}"
            start_ns = randomness.getrandbits(60)
            recent.add(send_spans(trace_id=trace_id, message_id=message_id, start_ns=start_ns))
            if with_slave:
                recent.add(slave_spans(trace_id=trace_id, message_id=message_id, start_ns=start_ns))


def test_a_send_is_found_like_its_spans_which_are_made_then() -> None:
    recent = RecentSpans(limit_bytes=1 << 20)
    send = kept_send()
    recent.add_sends([send])
    recent.add(delivery_spans())

    trace = recent.by_trace(TRACE_ID)
    assert trace is not None
    assert trace.spans == made_spans(send)
    assert trace.start_ns == trace.spans[0].start_ns == recent.oldest_ns
    assert [trace.trace_id for trace in recent.by_message(MESSAGE_ID)] == [TRACE_ID, TRACE_ID + 1, TRACE_ID + 2]
    assert recent.kept_count == 4 + len(delivery_spans())


@pytest.mark.parametrize(
    ("retained_for", "failure"), [(RetainedFor.SLOW, ""), (RetainedFor.FAILED, "FLUSH_SLAVE_TIMEOUT")]
)
def test_a_slow_or_failed_send_outlives_sampled_ones(retained_for: RetainedFor, failure: str) -> None:
    recent = RecentSpans(limit_bytes=64 << 10)
    recent.add_sends([kept_send(trace_id=1, message_id="notable", retained_for=retained_for, failure=failure)])
    recent.add_sends([kept_send(trace_id=number, message_id=f"M{number}") for number in range(2, 200)])
    assert [trace.trace_id for trace in recent.newest(notable_only=True)] == [1]
    assert recent.by_message("notable")
    assert not recent.by_message("M2")
    assert recent.size_bytes <= 36 << 10


def test_one_trace_id_for_every_send_does_not_take_the_memory() -> None:
    recent = RecentSpans(limit_bytes=1 << 20)
    recent.add_sends([kept_send(trace_id=5) for _ in range(300)])
    trace = recent.by_trace(5)
    assert trace is not None
    assert (len(trace.spans), trace.dropped_count) == (512, 300 * 4 - 512)


@pytest.mark.parametrize("slave_count", [0, 1, 4])
def test_the_estimate_of_what_sends_take_is_close(slave_count: int) -> None:
    randomness = random.Random(1)
    with estimate_checked() as recent:
        for number in range(500):
            trace_id, message_id = randomness.getrandbits(128), f"01{number:032X}"
            recent.add_sends([kept_send(trace_id=trace_id, message_id=message_id, slave_count=slave_count)])
