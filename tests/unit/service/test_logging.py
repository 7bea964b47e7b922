"""Log lines of a process, as a pod writes them."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider

from tandemmq.core.tracing.span_data import TraceContext
from tandemmq.service.logging import EventMemory, LineRoom, configure_logging, get_logger, traced_lines

CONTEXT = TraceContext(0xA1, 0xB2, True)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_lines_of_a_traced_operation_have_its_ids(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging({}, broker_name="broker-a")
    with traced_lines(CONTEXT):
        get_logger().info("inside")
    get_logger().info("outside")

    inside, outside = lines(capsys)
    assert inside["trace_id"] == f"{0xA1:032x}"
    assert inside["span_id"] == f"{0xB2:016x}"
    assert inside["broker_name"] == "broker-a"
    assert "trace_id" not in outside


def test_no_context_leaves_the_one_around_it(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging({})
    with traced_lines(CONTEXT), traced_lines(None):
        get_logger().info("inside")

    assert lines(capsys)[0]["span_id"] == f"{0xB2:016x}"


def test_libraries_lines_have_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging({})
    with traced_lines(CONTEXT):
        logging.getLogger("grpc").warning("of a library")

    assert lines(capsys)[0]["trace_id"] == f"{0xA1:032x}"


def test_lines_within_an_opentelemetry_span_have_its_ids(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging({})
    with TracerProvider().get_tracer("test").start_as_current_span("work") as span:
        get_logger().info("inside")

    assert lines(capsys)[0]["trace_id"] == f"{span.get_span_context().trace_id:032x}"


def test_lines_written_while_a_thread_loads_that_library_have_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logging({})
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", ModuleType("opentelemetry.trace"))
    get_logger().info("inside")

    assert "trace_id" not in lines(capsys)[0]


def test_the_level_changes_for_loggers_that_exist_and_what_is_remembered_stays_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    memory = EventMemory()
    level = configure_logging({"LOG_LEVEL": "WARNING"}, memory=memory)
    log = get_logger()
    log.info("first")
    level.set("DEBUG")
    log.debug("second")
    logging.getLogger("grpc").debug("of a library")
    level.set("")
    log.info("third")
    log.error("fourth")

    assert [line["event"] for line in lines(capsys)] == ["second", "fourth"]
    assert [event.event for event in memory.events_after(0, 10)] == ["first", "third", "fourth"]


@given(st.text(alphabet=st.characters(), max_size=30))
@example("Topic:\x1b]0;owned\x07")
@example("one\nanother line")
@example("\ud800\u2028")
def test_what_strangers_say_does_nothing_to_a_terminal(said: str) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with patch.object(sys, "stdout", Terminal()) as terminal:
        configure_logging({})
        get_logger().warning("access_refused", resource=said, other=f"{said} {said}")
        written = re.sub(r"\x1b\[\d*m", "", terminal.getvalue())
    assert written.endswith("\n")
    assert written[:-1].isprintable()
    if said and said.isascii() and said.isalnum():
        assert said in written


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_traceback_shows_no_value_of_a_variable_and_does_nothing_to_a_terminal(is_terminal: bool) -> None:
    class Output(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    def failing(password: str) -> None:
        raise ValueError(f"a name \x1b[2J of {len(password)} characters")

    with patch.object(sys, "stdout", Output()) as output:
        configure_logging({})
        try:
            failing("emases nepo"[::-1])
        except ValueError:
            get_logger().exception("handler_failed", path="SendMessage")
        logging.getLogger("asyncio").error("of a library", exc_info=_raised("emases nepo"[::-1]))
        written = re.sub(r"\x1b\[\d*m", "", output.getvalue())
    assert "ValueError" in written
    assert "sesame" not in written
    assert "\x1b" not in written  # of a terminal; JSON escapes it


def _raised(password: str) -> Exception:
    try:
        raise ValueError(f"{len(password)} characters")
    except ValueError as error:
        return error


_REFUSALS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 5), st.sampled_from([0, 0, 0, 1, 40, 2_000, 11_000])), max_size=400
)


@given(_REFUSALS)
def test_of_what_anybody_causes_each_is_told_or_counted_once(refusals: list[tuple[int, int, int]]) -> None:
    """Whoever comes, however often, and whether it comes again or not."""
    room, now_ms, told, times = LineRoom(), 0, 0, []
    for host, kind, pause_ms in refusals:
        now_ms += pause_ms
        line = room.take((str(host), str(kind)), str(host), now_ms)
        if line is not None:
            told += 1 + line.of_this_kind + line.others
            times.append(now_ms)
    # In any ten seconds a hundred lines.
    assert all(later - earlier >= 10_000 for earlier, later in zip(times, times[100:], strict=False))
    last = room.take(("last",), "last", now_ms + 60_000)
    assert last is not None
    assert told + last.others == len(refusals)


def test_a_flood_from_as_many_addresses_as_there_are_is_bounded_and_one_line_counts_what_was_left_out() -> None:
    room, lines = LineRoom(), []
    for number in range(200_000):
        line = room.take((str(number),), str(number), number // 10)
        if line is not None:
            lines.append(line)
    assert len(lines) <= 200
    assert len(room._lines) <= 100
    assert len(room._shares) <= 100
    last = room.take(("1",), "1", 60_000)
    assert last is not None
    assert last.others + sum(1 + line.of_this_kind + line.others for line in lines) == 200_000
