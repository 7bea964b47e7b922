"""A slave's part in a traced send. Times are in ms here."""

from __future__ import annotations

import itertools

from tandemmq.core.tracing.send_spans import OffsetTimeline, ReplicaTimelines, TracedPut, replica_spans
from tandemmq.core.tracing.span_data import HeadSampler, SpanData, SpanLink, TraceContext

MS = 1_000_000
WALL_NS = 1_700_000_000_000 * MS
PUT = TracedPut(5, TraceContext(0xABC, 7, True), "orders", 3, ("id-1",), 1_000, 2_200, "slow")


def timeline(*marks: tuple[int, float]) -> OffsetTimeline:
    made = OffsetTimeline()
    for offset, at_ms in marks:
        made.note(offset, int(at_ms * MS))
    return made


def derived(timelines: ReplicaTimelines, *, reports_flushed_only: bool = False) -> list[SpanData] | None:
    ids = itertools.count(100)
    return replica_spans(
        PUT,
        timelines,
        reports_flushed_only=reports_flushed_only,
        broker={"tandemmq.broker_id": 1},
        sampler=HeadSampler(1.0, chance=lambda: 0.0, bits=lambda _: next(ids)),
        wall_offset_ns=WALL_NS,
    )


def times(spans: list[SpanData] | None) -> dict[str, tuple[float, float]]:
    return {span.name: ((span.start_ns - WALL_NS) / MS, (span.end_ns - WALL_NS) / MS) for span in spans or []}


def two_reads() -> ReplicaTimelines:
    """The put's bytes came in two reads, the second with more behind them."""
    return ReplicaTimelines(
        received=timeline((900, 1), (1_500, 4), (3_000, 5)),
        appended=timeline((900, 1.5), (1_500, 4.5), (3_000, 6)),
        flushed=timeline((3_000, 8)),
        reported=timeline((900, 2), (1_500, 4.75), (3_000, 9)),
    )


def test_a_flush_of_what_was_cut_off_is_none_of_what_came_in_its_place() -> None:
    timelines = ReplicaTimelines(flushed=timeline((2_500, 1)))
    timelines.begin_at(900)
    for of, at_ms in ((timelines.received, 5), (timelines.appended, 6), (timelines.reported, 7)):
        of.note(3_000, at_ms * MS)
    assert times(derived(timelines, reports_flushed_only=True))["report"] == (6, 7)


def test_the_part_reaches_from_the_first_byte_to_the_report_of_the_last() -> None:
    assert times(derived(two_reads())) == {"replica append": (4, 9), "commitlog append": (5, 6), "report": (6, 9)}


def test_a_slave_that_promises_its_disk_waits_for_it() -> None:
    assert times(derived(two_reads(), reports_flushed_only=True)) == {
        "replica append": (4, 9),
        "commitlog append": (5, 6),
        "flush wait": (6, 8),
        "report": (8, 9),
    }


def test_it_is_a_trace_of_its_own_that_links_to_the_masters_wait() -> None:
    spans = derived(two_reads())
    assert spans is not None
    root, *children = spans
    assert root.links == (SpanLink(PUT.context),)
    assert root.context.trace_id != PUT.context.trace_id
    assert root.parent_span_id == 0
    assert {child.parent_span_id for child in children} == {root.context.span_id}
    assert root.attributes == {
        "messaging.system": "rocketmq",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.message.id": "id-1",
        "tandemmq.broker_id": 1,
        "tandemmq.physical_offset": 1_000,
        "tandemmq.stored_bytes": 1_200,
        "tandemmq.trace.retained_for": "slow",
    }


def test_a_put_that_is_not_reported_yet_is_asked_for_again() -> None:
    timelines = two_reads()
    timelines.reported = timeline((900, 2))
    assert derived(timelines) is None


def test_a_put_from_before_the_notes_has_no_part() -> None:
    timelines = two_reads()
    timelines.received = OffsetTimeline(entries_max=1)
    for offset, at_ms in ((1_500, 4), (3_000, 5), (4_000, 6)):
        timelines.received.note(offset, at_ms * MS)
    assert derived(timelines) == []
