"""The picture: where a bar is painted wrong, and for whom."""

from __future__ import annotations

import pytest

from support.audit_summaries import GIB, equal_group, finding, replica
from tandemmq.consistency.report.report_view import Bar, PartState, replica_bars
from tandemmq.core.audit.findings import Finding, FindingKind, Verdict
from tandemmq.core.audit.run_summary import GroupSummary, Outcome
from tandemmq.core.replication.log_history import LogRange


def _bars(group: GroupSummary, *findings: Finding) -> dict[int, Bar]:
    return {bar.replica.broker_id: bar for bar in replica_bars(group, findings)[1]}


def _states(bar: Bar) -> list[tuple[PartState, float, float]]:
    return [(part.state, part.start, part.width) for part in bar.parts]


def test_parts_of_one_state_are_one_piece() -> None:
    bar = _bars(equal_group())[1]
    assert _states(bar) == [
        (PartState.EARLIER, 0.0, 0.5),
        (PartState.EQUAL, 0.5, 0.25),
        (PartState.NEVER, 0.75, 0.25),
    ]
    assert bar.marks == ()


def test_a_finding_is_painted_on_the_replica_it_names_and_on_no_other() -> None:
    bars = _bars(equal_group(extent_map="=x=="), finding(start_offset=GIB + 10, end_offset=GIB + 20))
    assert [part.state for part in bars[0].parts] == [PartState.EQUAL]
    wrong = [part for part in bars[1].parts if part.state is PartState.WRONG]
    assert [(part.start, part.width) for part in wrong] == [((GIB + 10) / (4 * GIB), 10 / (4 * GIB))]
    assert [mark.state for mark in bars[1].marks] == [PartState.WRONG]
    assert bars[0].marks == ()


def test_what_nobody_is_named_for_is_undecided_everywhere() -> None:
    undecided = finding(broker_id=None, source_broker_id=None, verdict=Verdict.UNDECIDED, start_offset=GIB + 1)
    for bar in _bars(equal_group(extent_map="=x=="), undecided).values():
        assert PartState.UNDECIDED in {part.state for part in bar.parts}
        assert [mark.state for mark in bar.marks] == [PartState.UNDECIDED]


def test_a_difference_whose_finding_is_not_listed_is_painted_all_the_same() -> None:
    for bar in _bars(equal_group(extent_map="=x=x", findings=2), finding(start_offset=GIB + 1, broker_id=2)).values():
        assert _states(bar)[1] == (PartState.UNDECIDED, 0.25, 0.25)
        assert bar.marks


def test_what_no_finding_covers_in_a_differing_extent_is_equal() -> None:
    bars = _bars(equal_group(extent_map="xxxx", findings=1), finding(start_offset=GIB, end_offset=GIB + 200))
    assert _states(bars[0]) == [(PartState.EQUAL, 0.0, 1.0)]
    assert [part.state for part in bars[1].parts] == [PartState.EQUAL, PartState.WRONG]


def test_a_missing_tail_reaches_beyond_the_common_range() -> None:
    group = equal_group(
        end_offset=3 * GIB, replicas=(replica(0), replica(1, end_offset=3 * GIB)), extent_map="=", watermark=0
    )
    axis, bars = replica_bars(
        group,
        [finding(FindingKind.TAIL_MISSING, start_offset=3 * GIB, end_offset=4 * GIB, verdict=Verdict.MASTER_RULE)],
    )
    assert axis == LogRange(0, 4 * GIB)
    assert _states(bars[0]) == [(PartState.EQUAL, 0.0, 0.75), (PartState.OUTSIDE, 0.75, 0.25)]
    assert _states(bars[1]) == [(PartState.EQUAL, 0.0, 0.75), (PartState.WRONG, 0.75, 0.25)]


@pytest.mark.parametrize("kind", [FindingKind.QUEUE_ENTRY_WRONG, FindingKind.CONSUMER_OFFSET_STALE])
def test_findings_that_leave_the_log_alone_are_not_painted_on_it(kind: FindingKind) -> None:
    assert _bars(equal_group(), finding(kind))[1].marks == ()


def test_unread_replica_has_no_bar() -> None:
    lost = replica(1, outcome=Outcome.INCOMPLETE, end_offset=0, problem="no answer")
    bars = _bars(equal_group(replicas=(replica(0), lost)))
    assert bars[1].parts == ()
    assert bars[0].parts


def test_empty_group_has_no_bars() -> None:
    empty = equal_group(end_offset=0, watermark=0, extent_map="", replicas=(replica(0, end_offset=0),))
    assert [bar.parts for bar in _bars(empty).values()] == [()]


def test_without_a_map_the_watermark_tells() -> None:
    assert _states(_bars(equal_group(extent_map="", watermark=GIB))[0]) == [
        (PartState.EARLIER, 0.0, 0.25),
        (PartState.NEVER, 0.25, 0.75),
    ]


def test_marks_on_one_place_are_one() -> None:
    many = [finding(start_offset=GIB + number * 1_000, end_offset=GIB + number * 1_000 + 500) for number in range(50)]
    assert len(_bars(equal_group(extent_map="=x=="), *many)[1].marks) == 1
