"""What a process remembers of its own log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tandemmq.service.logging import EventMemory, configure_logging, get_logger


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def line(event: str, level: str = "info", **fields: object) -> dict[str, object]:
    return {"timestamp": "2026-11-22T04:00:00.250Z", "level": level, "event": event, **fields}


def test_lines_are_remembered_with_number_and_time() -> None:
    memory = EventMemory()
    memory.note(line("topic_created", topic="orders", queues=8))
    memory.note(line("slave_connected", "warning", peer="10.0.0.2:5"))
    first, second = memory.events_after(0, 10)
    assert (first.sequence, first.event, first.fields) == (1, "topic_created", {"topic": "orders", "queues": "8"})
    assert (second.sequence, second.level) == (2, "warning")
    assert first.wall_ms == 1_795_320_000_250


def test_only_what_came_after_is_told_and_the_newest_of_too_many() -> None:
    memory = EventMemory(lines_max=5)
    for number in range(8):
        memory.note(line(f"event_{number}"))
    assert [event.event for event in memory.events_after(6, 10)] == ["event_6", "event_7"]
    assert [event.sequence for event in memory.events_after(0, 10)] == [4, 5, 6, 7, 8]
    assert [event.sequence for event in memory.events_after(0, 2)] == [7, 8]
    assert memory.events_after(8, 10) == []
    assert memory.last_sequence == 8


def test_memory_is_bounded_in_each_direction() -> None:
    memory = EventMemory()
    fields: dict[str, object] = {f"field_{number}": number for number in range(100)}
    memory.note({**line("long", text="x" * 100_000), **fields})
    (event,) = memory.events_after(0, 1)
    assert len(event.fields["text"]) < 500
    assert len(event.fields) <= 24


def test_a_process_is_given_its_own_lines_but_for_debug(capsys: pytest.CaptureFixture[str]) -> None:
    memory = EventMemory()
    configure_logging({"LOG_LEVEL": "DEBUG"}, memory=memory, broker_name="broker-a")
    get_logger().debug("detail")
    get_logger().info("topic_created", topic="orders")
    (event,) = memory.events_after(0, 10)
    assert (event.event, dict(event.fields)) == ("topic_created", {"topic": "orders"})
    assert "topic_created" in capsys.readouterr().out


def test_what_is_told_again_and_again_pushes_out_nothing_else() -> None:
    memory = EventMemory(lines_max=8)
    memory.note(line("slave_connected"))
    for number in range(100):
        memory.note(line("event_loop_stalled", "warning", number=number))
    kept = memory.events_after(0, 100)
    assert [event.event for event in kept] == ["slave_connected", "event_loop_stalled", "event_loop_stalled"]
    assert [event.sequence for event in kept] == [1, 100, 101]
    for number in range(20):
        memory.note(line(f"kind_{number}"))
    kept = memory.events_after(0, 100)
    assert [event.event for event in kept] == [f"kind_{number}" for number in range(12, 20)]
