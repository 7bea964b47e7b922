"""A group's page stays readable, and of bounded size, however much the group has read."""

from __future__ import annotations

from tandemmq.admin.console.groups import QUEUES_SHOWN, TOPICS_SHOWN, group_view, move_text, reset_view
from tandemmq.admin.operations.values import GroupDetail, GroupSummary, OffsetReset, Progress

_SUMMARY = GroupSummary("readers", False, 16, True, 0)


def _progress(topic_count: int, queue_count: int) -> list[Progress]:
    return [
        Progress("readers", f"topic-{topic:04}", "broker-a", queue, 10, 10 + topic, 0)
        for topic in range(topic_count)
        for queue in range(queue_count)
    ]


def test_few_topics_are_in_the_order_of_their_names() -> None:
    view = group_view(GroupDetail(_SUMMARY, _progress(3, 2), (), 0))
    assert [(topic.topic, topic.lag, len(topic.queues)) for topic in view.topics] == [
        ("topic-0000", 0, 2),
        ("topic-0001", 2, 2),
        ("topic-0002", 4, 2),
    ]


def test_of_many_topics_those_it_lacks_most_in_are_shown() -> None:
    view = group_view(GroupDetail(_SUMMARY, _progress(3_000, 1), (), 0))
    assert (view.topic_total, view.topic_matches, len(view.topics)) == (3_000, 3_000, TOPICS_SHOWN)
    assert view.topics[0].topic == "topic-2999"
    found = group_view(GroupDetail(_SUMMARY, _progress(3_000, 1), (), 0), topic_search="TOPIC-0017")
    assert (found.topic_total, found.topic_matches) == (3_000, 1)
    assert [topic.topic for topic in found.topics] == ["topic-0017"]
    assert found.whole.lag == view.whole.lag


def test_rows_of_queues_are_bounded() -> None:
    view = group_view(GroupDetail(_SUMMARY, _progress(5, 400), (), 0))
    assert sum(len(topic.queues) for topic in view.topics) == QUEUES_SHOWN
    assert [len(topic.progress) for topic in view.topics] == [400] * 5


def test_reset_that_moves_nothing_has_no_effect() -> None:
    view = reset_view([OffsetReset("broker-a", 0, 7, 7, 9, 0)])
    assert view.effects == ()
    assert [move_text(move) for move in view.moves] == ["stays"]


def test_one_message_is_one() -> None:
    assert reset_view([OffsetReset("broker-a", 0, 7, 6, 9, 1)]).effects == (
        "1 message will be delivered again.",
        "1 message in clients' hands may be consumed twice.",
    )
