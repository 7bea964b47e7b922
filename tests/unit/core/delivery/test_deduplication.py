"""Deduplication windows: what they remember, for how long, and within which bound."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.queue_memory import QueueMemory
from tandemmq.core.delivery.deduplication import Deduplication, Window
from tandemmq.core.message.properties import encode_properties
from tandemmq.core.message.stored_message import StoredMessage
from tandemmq.core.metadata.metadata_store import InvalidTopic
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable

WINDOW_MS = 80_000
SLICE_MS = WINDOW_MS // 8


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30_000)), max_size=80))
def test_id_is_known_for_its_window_and_forgotten_a_slice_later(steps: list[tuple[int, int]]) -> None:
    """Against a table of every id and its time."""
    window, now_ms = Window(WINDOW_MS), 1_000_000
    last: dict[str, tuple[int, int]] = {}
    for number, (key, passed_ms) in enumerate(steps):
        now_ms += passed_ms
        message_id = f"id-{key}"
        known = last.get(message_id)
        found = window.find(message_id, now_ms)
        if known is not None and now_ms - known[1] <= WINDOW_MS:
            assert found == known[0]
        if known is None or now_ms - known[1] > WINDOW_MS + SLICE_MS:
            assert found is None
        if found is None:
            window.remember(message_id, number, now_ms)
            last[message_id] = (number, now_ms)


def test_unsure_id_is_confirmed_once() -> None:
    window = Window(WINDOW_MS)
    window.remember("a", -1 - 7, 1_000)
    window.confirm("a", 6)
    assert window.find("a", 1_000) == -8
    window.confirm("a", 7)
    assert window.find("a", 1_000) == 7


def new(window_s: str = "80", *, queue_count: int = 2) -> tuple[Deduplication, TopicConfig]:
    topics = TopicTable()
    attributes = MappingProxyType({"deduplication.window": window_s})
    config = TopicConfig("orders", queue_count, queue_count, attributes=attributes)
    topics.put(config, now_ms=1)
    return Deduplication(topics), config


def test_topic_without_the_attribute_has_no_window() -> None:
    deduplication, config = new("0")
    assert deduplication.window(config) is None


def test_oldest_ids_go_where_there_are_too_many() -> None:
    deduplication, config = new()
    window = deduplication.window(config)
    assert window is not None
    for number in range(100):
        window.remember(f"id-{number}", number, number * 1_000)
    deduplication.keep_within(60)
    assert deduplication.count <= 60
    assert deduplication.cut_short_count > 0
    assert window.find("id-99", 99_000) == 99
    assert window.find("id-20", 99_000) is None


@pytest.mark.parametrize("queue_count", [2, 1])
def test_window_is_read_from_the_ends_of_the_queues(queue_count: int) -> None:
    """Of all that the topic ever had."""
    deduplication, _ = new(queue_count=queue_count)
    queues = QueueMemory()
    for number in range(300):
        queue_id = number % 2
        offset = queues.put("orders", queue_id)
        queues.records[-1] = StoredMessage(
            queue_id=queue_id,
            queue_offset=offset,
            physical_offset=number,
            sys_flag=0,
            born_timestamp_ms=0,
            born_address=bytes(4),
            store_timestamp_ms=number * 1_000,
            store_address=bytes(4),
            store_port=0,
            body=b"",
            properties=encode_properties([("UNIQ_KEY", f"id-{number}")]),
        )
    now_ms = 299_000
    for _ in deduplication.restore(queues, now_ms=now_ms, ids_max=1_000):
        pass
    window = deduplication.window(new()[1])
    assert window is not None
    assert [window.find(f"id-{number}", now_ms) for number in (299, 298, 219)] == [-1 - 149, -1 - 149, -1 - 109]
    assert window.find("id-200", now_ms) is None


@pytest.mark.parametrize("window_s", ["-1", "x", "86401", "1.5"])
def test_bad_windows_are_refused(window_s: str) -> None:
    with pytest.raises(InvalidTopic, match=r"deduplication\.window"):
        new(window_s)[1].check()
