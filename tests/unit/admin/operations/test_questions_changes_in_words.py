"""What changes come to, in words, before they are made; and who has one when it ends half way."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest

from support.fake_brokers import rpc_error
from tandemmq.admin.operations.questions import (
    Answer,
    CallFailure,
    FailureKind,
    OperationFailed,
    require_all,
    unseen_of,
)
from tandemmq.admin.operations.topics import (
    attributes_text,
    category_of,
    changed_topic,
    difference_text,
    moved_message_groups,
    read_attributes,
    system_names,
    topic_problems,
    unread_queues,
)
from tandemmq.admin.operations.values import BrokerTopic, Extent, TopicChange

BEFORE = BrokerTopic("broker-a", 8, 4, 6, "FIFO")


@pytest.mark.parametrize(
    ("change", "before", "words"),
    [
        (TopicChange("t"), BEFORE, "no change"),
        (TopicChange("t", read_queue_count=8, permission=6), BEFORE, "no change"),
        (TopicChange("t", read_queue_count=2, write_queue_count=9), BEFORE, "read queues 8 → 2, write queues 4 → 9"),
        (
            TopicChange("t", permission=2, message_type="NORMAL"),
            BEFORE,
            "read and write → write only, type FIFO → NORMAL",
        ),
        (TopicChange("t"), None, "created with the broker's default number of queues, NORMAL, read and write"),
        (TopicChange("t", 4, 4, 4, "FIFO"), None, "created with 4 queues, FIFO, read only"),
        (
            TopicChange("t", read_queue_count=4),
            None,
            "created with 4 read and the broker's default number of write queues, NORMAL, read and write",
        ),
    ],
)
def test_a_change_of_a_topic_is_told(change: TopicChange, before: BrokerTopic | None, words: str) -> None:
    assert difference_text(before, changed_topic(change, "broker-a", before)) == words


def test_queues_that_nobody_reads_any_more_are_warned_of() -> None:
    extents = [Extent("broker-a", queue_id, 0, 10) for queue_id in range(4)] + [Extent("broker-b", 3, 5, 5)]
    [warning] = unread_queues(TopicChange("t", read_queue_count=2), extents)
    assert warning.startswith("broker-a: 20 messages in queues from 2 on")
    assert unread_queues(TopicChange("t"), extents) == []


@pytest.mark.parametrize("message_type", ["FIFO", "MIXED", "NORMAL"])
@pytest.mark.parametrize("write_queues", [3, 4, 5])
@pytest.mark.parametrize("held", [0, 1])
def test_message_groups_that_move_while_messages_wait_are_warned_of(
    message_type: str, write_queues: int, held: int
) -> None:
    topic = replace(BEFORE, message_type=message_type)
    before = {"broker-a": (topic, [Extent("broker-a", 0, 10, 10 + held)])}
    change = TopicChange("t", write_queue_count=write_queues)
    warnings = moved_message_groups(before, {"broker-a": changed_topic(change, "broker-a", topic)})
    assert bool(warnings) is (message_type != "NORMAL" and write_queues != 4 and held > 0)
    # Another broker group takes its share of them.
    added = {"broker-a": topic, "broker-b": changed_topic(change, "broker-b", None)}
    assert bool(moved_message_groups(before, added)) is (message_type != "NORMAL" and held > 0)
    assert moved_message_groups({}, added) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (TopicChange(""), "the topic name is empty"),
        (TopicChange("two words"), "use only the characters"),
        (TopicChange("x" * 128), "the limit is 127"),
        (TopicChange("TBW102"), "reserved"),
        (TopicChange("t", read_queue_count=-1), "-1 read queues"),
        (TopicChange("t", write_queue_count=1_025), "1025 write queues"),
        (TopicChange("t", permission=7), "permission 7"),
        (TopicChange("t", message_type="ODD"), "message type ODD"),
        (TopicChange("t", attributes={"lite.topic": "1"}), "attribute 'lite.topic'"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(change: TopicChange, problem: str) -> None:
    [found] = topic_problems(change)
    assert problem in found


def test_topics_have_categories() -> None:
    names = {
        "orders": "topic",
        "%RETRY%g": "retry",
        "%DLQ%g": "dead letter",
        "%other": "topic",
        "broker-a": "system",
        "Main": "system",
        "Main_REPLY_TOPIC": "system",
        "RMQ_SYS_TRANS_HALF_TOPIC": "system",
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": "system",
    }
    own = system_names(clusters={"Main"}, broker_names={"broker-a", "broker-b"})
    assert {name: category_of(name, own) for name in names} == names


def _answer(broker: str, code: grpc.StatusCode | None = None, details: str = "") -> Answer[int]:
    name = broker.partition(":")[0]
    if code is None:
        return Answer(broker, name, 1)
    return Answer(broker, name, None, CallFailure.of(rpc_error(code, details)))


def test_a_change_that_all_took_is_done() -> None:
    assert require_all([_answer("a:0"), _answer("b:0")], problem="p") == [1, 1]


def test_a_change_that_some_took_says_who() -> None:
    answers = [_answer("a:0"), _answer("b:0", grpc.StatusCode.UNAVAILABLE, "refused")]
    with pytest.raises(OperationFailed) as partial:
        require_all(answers, problem="topic t could not be changed")
    assert partial.value.kind is FailureKind.PARTIAL
    assert partial.value.problem == "topic t could not be changed: done on 1 of 2"
    assert partial.value.cause == "b:0: UNAVAILABLE: refused\na:0: done"


@pytest.mark.parametrize(
    ("codes", "kind"),
    [
        ([grpc.StatusCode.INVALID_ARGUMENT] * 2, FailureKind.INVALID),
        ([grpc.StatusCode.FAILED_PRECONDITION] * 2, FailureKind.REFUSED),
        ([grpc.StatusCode.NOT_FOUND] * 2, FailureKind.NOT_FOUND),
        ([grpc.StatusCode.DEADLINE_EXCEEDED] * 2, FailureKind.UNAVAILABLE),
        ([grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE], FailureKind.REFUSED),
    ],
)
def test_a_change_that_nobody_took_was_not_made(codes: list[grpc.StatusCode], kind: FailureKind) -> None:
    with pytest.raises(OperationFailed) as failed:
        require_all([_answer(f"{number}:0", code) for number, code in enumerate(codes)], problem="p")
    assert failed.value.kind is kind
    assert failed.value.remedy


def test_a_refusal_in_a_brokers_own_words_has_a_remedy() -> None:
    for details in ("it has members", "its version is older"):
        failure = CallFailure(FailureKind.REFUSED, details).failed("a:0", "group g was not removed")
        assert (failure.cause, failure.remedy) == (f"a:0: {details}", "remove what the cause names, and try again")
    too_old = CallFailure.of(rpc_error(grpc.StatusCode.UNIMPLEMENTED)).failed("a:0", "p")
    assert "upgrade" in too_old.remedy


def test_an_older_broker_is_said_to_be_one() -> None:
    [unseen] = unseen_of([_answer("a:0", grpc.StatusCode.UNIMPLEMENTED, "Method not found!"), _answer("b:0")])
    assert (unseen.subject, unseen.reason) == ("a:0", "cannot do this: its version is older")


def test_attributes_are_set_changed_and_removed_in_words() -> None:
    before = BrokerTopic("a", 8, 8, 6, "LITE", {"lite.topic.expiration": "60", "deduplication.window": "5"})
    change = TopicChange("t", attributes={"lite.topic.expiration": "90", "deduplication.window": ""})
    after = changed_topic(change, "a", before)
    assert difference_text(before, after) == "deduplication.window 5 → not set, lite.topic.expiration 60 → 90"
    assert difference_text(before, changed_topic(TopicChange("t"), "a", before)) == "no change"
    assert "lite.topic.expiration 90" in difference_text(None, after)


def test_attributes_are_read_as_they_are_written() -> None:
    attributes = {"lite.topic.expiration": "60", "deduplication.window": "5"}
    assert read_attributes(attributes_text(attributes).split(",")) == attributes
    assert read_attributes(["a="]) == {"a": ""}
    with pytest.raises(ValueError, match="NAME=VALUE"):
        read_attributes(["a"])
