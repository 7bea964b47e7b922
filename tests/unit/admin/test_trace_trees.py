"""Spans of several brokers become trees, and clocks that differ do not bend them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.span_samples import START_NS
from support.trace_samples import MASTER, SLAVE, consumer_spans, master_spans, replica_spans
from tandemmq.admin.trace_reader import BrokerSpan
from tandemmq.admin.trace_trees import TraceNode, TraceTree, trace_trees
from tandemmq.core.tracing.span_data import SpanData, SpanEvent, SpanKind, TraceContext


def _names(node: TraceNode) -> list[str]:
    return [found.span.name.rpartition("/")[2] for found in node.walk()]


def _copy_in(tree: TraceTree) -> TraceNode:
    return next(node for node in tree.root.walk() if node.is_linked)


def test_a_slaves_part_is_inside_its_masters_wait_and_deliveries_are_trees_of_their_own() -> None:
    spans = [*consumer_spans(), *replica_spans(), *reversed(master_spans())]
    trees = trace_trees(spans)
    assert [_names(tree.root) for tree in trees] == [
        ["SendMessage", "commitlog append", "replicate wait", "replica append", "reply"],
        ["ReceiveMessage", "poll wait", "lease"],
        ["AckMessage"],
    ]
    assert _copy_in(trees[0]).broker == SLAVE
    assert not trees[0].shifts


def test_without_the_slaves_part_and_without_the_masters() -> None:
    (alone,) = trace_trees(master_spans())
    assert _names(alone.root) == ["SendMessage", "commitlog append", "replicate wait", "reply"]
    (orphan,) = trace_trees(replica_spans())
    assert _names(orphan.root) == ["replica append"]
    assert trace_trees([]) == []


def test_where_the_time_went_adds_up() -> None:
    (tree,) = trace_trees([*master_spans(), *replica_spans()])
    parts = dict(tree.parts)
    assert parts == {"replicate wait": 7_000_000, "reply": 220_000, "commitlog append": 60_000, "": 90_000}
    assert sum(parts.values()) == tree.root.duration_ns


def test_what_overlaps_is_not_counted_twice_as_elsewhere() -> None:
    (tree,) = trace_trees(master_spans(sync_flush=True))
    parts = dict(tree.parts)
    assert (parts["flush wait"], parts["replicate wait"], parts[""]) == (3_500_000, 7_000_000, 90_000)


@pytest.mark.parametrize("ahead_us", [3_000_000, -3_000_000, 9_000, -450])
def test_a_clock_that_differs_is_found_out_by_what_cannot_be(ahead_us: int) -> None:
    (tree,) = trace_trees([*master_spans(), *replica_spans(clock_ahead_us=ahead_us)])
    wait = next(node for node in tree.root.walk() if node.span.name == "replicate wait")
    copy = _copy_in(tree)
    assert wait.events[0].at_ns <= copy.start_ns
    assert copy.end_ns <= wait.events[-1].at_ns
    assert copy.duration_ns == 6_680_000
    (shift,) = tree.shifts
    assert (shift.broker, shift.against) == (SLAVE, MASTER)
    assert abs(shift.ahead_ns - ahead_us * 1_000) < 200_000
    # Its events move with it.
    assert copy.events[0].at_ns == copy.start_ns


def test_a_clock_that_contradicts_nothing_is_believed() -> None:
    (tree,) = trace_trees([*master_spans(), *replica_spans(clock_ahead_us=50)])
    assert not tree.shifts
    assert _copy_in(tree).start_ns == START_NS + 370_000


def test_a_copy_that_was_never_acknowledged_is_moved_behind_its_sending_only() -> None:
    failed = master_spans(failure="FLUSH_SLAVE_TIMEOUT", wait_us=3_000_000)
    (late,) = trace_trees([*failed, *replica_spans(clock_ahead_us=5_000_000)])
    assert not late.shifts, "it may have come five seconds later"
    (early,) = trace_trees([*failed, *replica_spans(clock_ahead_us=-5_000_000)])
    assert _copy_in(early).start_ns == START_NS + 180_000


def test_what_a_slave_does_after_the_answer_is_on_the_scale() -> None:
    (tree,) = trace_trees([*master_spans(wait_us=1_000, failure="x"), *replica_spans(clock_ahead_us=90_000)])
    assert tree.end_ns > tree.root.end_ns
    assert tree.start_ns == START_NS


def test_an_event_long_after_the_answer_does_not_stretch_the_scale() -> None:
    root, *rest = master_spans()
    later = SpanEvent("flushed", START_NS + 10**9)
    (tree,) = trace_trees([BrokerSpan(MASTER, replace(root.span, events=(later,))), *rest])
    assert tree.end_ns == tree.root.end_ns
    assert tree.root.events == (later,)


def test_a_parent_elsewhere_makes_a_root_and_a_span_is_not_its_own_parent() -> None:
    (tree,) = trace_trees(master_spans(parent=0xABC))
    assert tree.root.span.parent_span_id == 0xABC
    odd = SpanData("odd", TraceContext(1, 2, True), 2, SpanKind.INTERNAL, 1, 2)
    (alone,) = trace_trees([BrokerSpan(MASTER, odd)])
    assert alone.root.span is odd


def test_two_sends_of_one_message_are_two_trees() -> None:
    first = master_spans()
    again = [
        BrokerSpan(
            one.broker,
            replace(
                one.span,
                context=one.span.context._replace(trace_id=9),
                start_ns=one.span.start_ns + 10**9,
                end_ns=one.span.end_ns + 10**9,
            ),
        )
        for one in first
    ]
    assert len(trace_trees([*again, *first])) == 2
