"""Lite topics: where their messages lie, and that all of it follows from the parent's queues."""

from __future__ import annotations

import random
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.queue_memory import QueueMemory
from tandemmq.core.delivery.lite_topics import LiteTopics, lite_message, lmq_name, parent_of_lmq, split_lmq_name
from tandemmq.core.message.properties import decode_properties, encode_properties
from tandemmq.core.message.record import Host, OutgoingMessage
from tandemmq.core.message.stored_message import StoredMessage
from tandemmq.core.metadata.metadata_store import InvalidTopic
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable, lite_topic_problem
from tandemmq.core.storage.consume_queue import QueueEntry

QUEUES = 3
MINUTE_MS = 60_000


def outgoing(topic: str = "parent", body: bytes = b"x") -> OutgoingMessage:
    return OutgoingMessage(
        topic=topic,
        queue_id=0,
        body=body,
        properties=encode_properties([("UNIQ_KEY", "id")]),
        tags_code=0,
        index_keys=("id",),
        tag=None,
        born_timestamp_ms=0,
        born_host=Host(bytes(4), 0),
    )


class Parent:
    """A parent topic on queues in memory, and its lite topics."""

    def __init__(self, *, expiration: str = "-1") -> None:
        self.queues = QueueMemory()
        self.topics = TopicTable()
        self.cuts = 0
        attributes = MappingProxyType({"message.type": "LITE", "lite.topic.expiration": expiration})
        self.topics.put(TopicConfig("parent", QUEUES, QUEUES, attributes=attributes), now_ms=0)
        self.lites = self.new_lites()

    def new_lites(self) -> LiteTopics:
        return LiteTopics(self.queues, self.topics, log_cuts=lambda: self.cuts)

    def put(self, lite: str, queue_id: int, *, stored_ms: int = 0) -> int:
        """Sends one message as a broker does; its offset in the lite topic."""
        assert self.lites.follow("parent")
        offset = self.lites.next_offset("parent", lite)
        self.store(lite_message(outgoing(), lite, offset).properties, queue_id, stored_ms=stored_ms)
        assert self.lites.follow("parent")
        return offset

    def store(self, properties: bytes, queue_id: int, *, stored_ms: int = 0) -> None:
        offset = self.queues.put("parent", queue_id)
        before = self.queues.records[-1]
        assert before is not None
        self.queues.records[-1] = StoredMessage(
            queue_id, offset, before.physical_offset, 0, 0, bytes(4), stored_ms, bytes(4), 0, b"", properties
        )


def shape(lites: LiteTopics) -> dict[str, tuple[int, int, list[QueueEntry]]]:
    """Everything that a consumer could see."""
    found = {}
    for lite in lites.names("parent"):
        name = lmq_name("parent", lite)
        begin, end = lites.min_offset(name, 0), lites.max_offset(name, 0)
        found[lite] = (begin, end, list(lites.entries(name, 0, begin, end - begin)))
    return found


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "$", "d d"]), st.integers(0, QUEUES - 1)), max_size=60), st.data())
def test_index_follows_from_the_queues_alone(sends: list[tuple[str, int]], data: st.DataObject) -> None:
    parent = Parent()
    counts: dict[str, int] = {}
    for lite, queue_id in sends:
        assert parent.put(lite, queue_id) == counts.get(lite, 0)
        counts[lite] = counts.get(lite, 0) + 1
    anew = parent.new_lites()
    while not anew.follow("parent", data.draw(st.integers(1, 7))):
        pass
    assert shape(anew) == shape(parent.lites)
    assert {lite: end for lite, (_, end, _) in shape(anew).items()} == counts
    assert anew.count == len(counts)


def test_messages_of_a_lite_topic_keep_the_order_of_the_log_over_queues_and_chunks() -> None:
    parent = Parent()
    chance = random.Random(7)
    for _ in range(700):
        parent.put("a", chance.randrange(QUEUES))
    anew = parent.new_lites()
    assert anew.follow("parent")
    name = lmq_name("parent", "a")
    assert [entry.physical_offset for entry in anew.entries(name, 0, 0, 1_000)] == list(range(700))


def test_messages_that_expired_move_the_begin_and_not_the_end() -> None:
    parent = Parent()
    for _ in range(5):
        parent.put("a", 0)
    parent.queues.expire("parent", 0, 3)
    name = lmq_name("parent", "a")
    assert (parent.lites.min_offset(name, 0), parent.lites.max_offset(name, 0)) == (3, 5)
    anew = parent.new_lites()
    assert anew.follow("parent")
    assert (anew.min_offset(name, 0), anew.max_offset(name, 0)) == (3, 5)
    assert parent.put("a", 0) == 5


def test_message_that_cannot_be_read_leaves_its_place_empty() -> None:
    parent = Parent()
    for _ in range(3):
        parent.put("a", 0)
    parent.queues.records[1] = None
    anew = parent.new_lites()
    assert anew.follow("parent")
    name = lmq_name("parent", "a")
    entries = anew.entries(name, 0, 0, 3)
    found = anew.messages(name, 0, (0, 1, 2), entries)
    assert [message is None for message in found] == [False, True, False]


def test_cut_log_is_read_anew() -> None:
    parent = Parent()
    for _ in range(3):
        parent.put("a", 0)
    parent.queues.cut("parent", 0, 1)
    parent.cuts += 1
    assert parent.put("a", 0) == 1


def test_what_no_slave_has_confirmed_is_not_given() -> None:
    parent = Parent()
    for queue_id in (0, 1, 0):
        parent.put("a", queue_id)
    name = lmq_name("parent", "a")
    for confirmed in range(4):
        parent.queues.confirmed_count = confirmed
        assert parent.lites.confirmed_end(name, 0, 0, 3) == confirmed


def test_lite_topic_expires_after_its_last_message_and_begins_anew() -> None:
    parent = Parent(expiration="20")
    parent.put("old", 0, stored_ms=0)
    parent.put("young", 0, stored_ms=10 * MINUTE_MS)
    name = lmq_name("parent", "old")
    assert [one for some in parent.lites.expired(19 * MINUTE_MS) for one in some] == []
    assert [one for some in parent.lites.expired(20 * MINUTE_MS) for one in some] == [name]
    parent.lites.remove(name)
    assert parent.lites.count == 1
    assert parent.put("old", 0, stored_ms=21 * MINUTE_MS) == 0
    assert parent.lites.max_offset(name, 0) == 1
    # A start reads the first life and the second one: only the second counts.
    anew = parent.new_lites()
    assert anew.follow("parent")
    assert shape(anew) == shape(parent.lites)


def test_expiration_below_the_least_counts_as_the_least() -> None:
    parent = Parent(expiration="1")
    parent.put("a", 0)
    assert not [one for some in parent.lites.expired(14 * MINUTE_MS) for one in some]
    assert [one for some in parent.lites.expired(15 * MINUTE_MS) for one in some]


def test_lite_topics_of_an_endless_parent_never_expire() -> None:
    parent = Parent()
    parent.put("a", 0)
    assert not list(parent.lites.expired(1 << 60))


def test_message_that_is_put_again_gets_the_next_place() -> None:
    parent = Parent()
    for _ in range(3):
        parent.put("a", 0)
    again = parent.lites.addressed(lite_message(outgoing(), "a", 0))
    properties = decode_properties(again.properties)
    assert properties["INNER_MULTI_QUEUE_OFFSET"] == "3"
    assert properties["INNER_MULTI_DISPATCH"] == "%LMQ%$parent$a"
    assert properties["__LITE_TOPIC"] == "a"
    other = lite_message(outgoing("other"), "a", 0)
    assert parent.lites.addressed(other) is other


def test_a_lite_topic_of_which_nothing_is_left_goes_on_where_its_groups_are() -> None:
    parent = Parent()
    name = lmq_name("parent", "a")
    parent.lites.reached = {name: 7}.__getitem__
    assert (parent.lites.min_offset(name, 0), parent.lites.max_offset(name, 0)) == (7, 7)
    assert parent.put("a", 0) == 7
    # A replica that knows more of it follows.
    replica = parent.new_lites()
    replica.follow("parent")
    parent.lites.remove(name)
    parent.lites.reached = lambda _: 5
    assert [parent.put("a", 0) for _ in range(4)] == [5, 6, 7, 8]
    assert replica.follow("parent")
    assert shape(replica) == shape(parent.lites)


def test_records_without_a_logical_queue_are_passed_over() -> None:
    parent = Parent()
    for properties in (b"", b"INNER_MULTI_DISPATCH\x01%LMQ%$parent$a\x02", b"INNER_MULTI_DISPATCH\x01x\x02"):
        parent.store(properties, 0)
    parent.store(lite_message(outgoing("other"), "a", 0).properties, 0)
    assert parent.lites.follow("parent")
    assert parent.lites.count == 0
    assert parent.put("a", 0) == 0


def test_names() -> None:
    assert lmq_name("p", "a$b") == "%LMQ%$p$a$b"
    assert split_lmq_name("%LMQ%$p$a$b") == ("p", "a$b")
    assert parent_of_lmq("%LMQ%$p$a") == "p"
    assert parent_of_lmq("p") is None


@pytest.mark.parametrize("lite_topic", ["", "  ", "a" * 65, "a,b", "a\x01"])
def test_bad_names(lite_topic: str) -> None:
    assert "lite_topic" in (lite_topic_problem(lite_topic) or "")


@pytest.mark.parametrize("lite_topic", ["a", "a b", "ä" * 64, "$%|"])
def test_good_names(lite_topic: str) -> None:
    assert lite_topic_problem(lite_topic) is None


@pytest.mark.parametrize("expiration", ["0", "-2", "x", "43201", "1.5"])
def test_bad_expirations_are_refused(expiration: str) -> None:
    attributes = MappingProxyType({"message.type": "LITE", "lite.topic.expiration": expiration})
    with pytest.raises(InvalidTopic, match=r"lite\.topic\.expiration"):
        TopicConfig("parent", 1, 1, attributes=attributes).check()
