"""When something had come how far."""

from __future__ import annotations

import pytest

from tandemmq.core.tracing.send_spans import OffsetMark, OffsetTimeline


@pytest.fixture
def timeline() -> OffsetTimeline:
    timeline = OffsetTimeline()
    for offset, at_ns in ((100, 10), (250, 20), (400, 30)):
        timeline.note(offset, at_ns)
    return timeline


@pytest.mark.parametrize(("offset", "mark"), [(0, (100, 10)), (100, (100, 10)), (101, (250, 20)), (400, (400, 30))])
def test_finds_the_entry_that_first_reached_an_offset(
    timeline: OffsetTimeline, offset: int, mark: tuple[int, int]
) -> None:
    assert timeline.first_at_or_above(offset) == OffsetMark(*mark)


def test_what_was_not_reached_is_not_known(timeline: OffsetTimeline) -> None:
    assert timeline.first_at_or_above(401) is None


def test_tells_how_far_it_was_at_a_time(timeline: OffsetTimeline) -> None:
    assert timeline.offset_until(29) == 250
    assert timeline.offset_until(9) == -1


def test_the_same_offset_again_keeps_the_first_time(timeline: OffsetTimeline) -> None:
    timeline.note(400, 40)
    assert timeline.first_at_or_above(400) == OffsetMark(400, 30)


def test_a_dropped_entry_is_not_answered_by_a_later_one() -> None:
    timeline = OffsetTimeline(entries_max=2)
    for number in range(1, 5):
        timeline.note(number * 100, number)
    assert timeline.first_at_or_above(150) is None
    assert timeline.first_at_or_above(200) is None
    assert timeline.first_at_or_above(201) == OffsetMark(300, 3)


def test_a_log_that_was_cut_begins_anew(timeline: OffsetTimeline) -> None:
    timeline.note(300, 50)
    assert timeline.first_at_or_above(260) is None
    assert timeline.first_at_or_above(300) is None
    timeline.note(350, 60)
    assert timeline.first_at_or_above(320) == OffsetMark(350, 60)


def test_what_was_reached_before_the_beginning_is_not_known() -> None:
    timeline = OffsetTimeline()
    timeline.begin_at(1_000)
    timeline.note(1_500, 10)
    assert timeline.first_at_or_above(1_000) is None
    assert timeline.first_at_or_above(1_001) == OffsetMark(1_500, 10)


def test_beginning_where_it_ended_forgets_nothing(timeline: OffsetTimeline) -> None:
    timeline.begin_at(400)
    assert timeline.first_at_or_above(101) == OffsetMark(250, 20)
