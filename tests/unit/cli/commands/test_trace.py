"""What `tandemmq trace` prints."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from support.span_samples import MESSAGE_ID, START_NS, TRACE_ID
from support.trace_samples import (
    MASTER,
    SLAVE,
    consumer_spans,
    findings,
    master_spans,
    replica_spans,
    stored_copy,
    trace_list,
    tracing,
)
from tandemmq.admin.trace_reader import TraceFindings, TracingState, trace_id_of
from tandemmq.cli.commands.trace import list_view, trace_view
from tandemmq.cli.output import drawing

_DOWN = TracingState(SLAVE, error="UNAVAILABLE: connection refused")


def _printed(found: TraceFindings, *, width: int = 140) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(drawing(trace_view(found, console)), highlight=False)
    output = console.file
    assert isinstance(output, StringIO)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def test_a_send_its_copy_and_its_deliveries() -> None:
    text = _printed(findings([*master_spans(), *replica_spans(), *consumer_spans()]))
    tree = re.sub(r" *[━·]+ *$", "", text, flags=re.MULTILINE).split("\n\n")[1]
    assert tree.splitlines() == [
        "send to shop.orders  7.37 ms  PUT_OK",
        f"2026-11-22 01:00:00.000 UTC, broker-a:0, kept because it was slow, trace {TRACE_ID:032x}",
        "of 7.37 ms: 7.00 ms replicate wait, 220 µs reply, 90 µs elsewhere, 60 µs commitlog append",
        "at ms  took ms",
        "0.000    7.370  SendMessage  412 B, at 18,274,112",
        "0.090    0.060  ├─ commitlog append  412 B, at 18,274,112",
        "0.150    7.000  ├─ replicate wait  1 of 1 slave, slave was 412 B behind",
        "0.180           │  ├· sent to slave 1, 412 B behind",
        "0.320    6.680  │  ├─ replica append ⇠ broker-a:1  at 18,274,112",
        "0.320           │  │  ├· received",
        "0.410           │  │  ├· appended",
        "7.000           │  │  └· reported",
        "7.150           │  └· acknowledged by slave 1",
        "7.150    0.220  └─ reply",
    ]
    assert "receive by billing from shop.orders  30.00 ms  ok" in text
    assert "acknowledge by billing  600 µs  ok" in text
    assert "note:" not in text


def test_bars_are_on_one_scale_and_give_way_where_there_is_no_room() -> None:
    found = findings([*master_spans(), *replica_spans()])
    bars = [line[line.index("━") :] for line in _printed(found).splitlines() if "━" in line]
    assert len(bars[0]) == 48
    assert "━" not in _printed(found, width=80)
    assert max(map(len, _printed(found, width=80).splitlines())) <= 80


def test_a_failed_send_says_why_and_who_is_missing() -> None:
    text = _printed(
        findings(
            master_spans(failure="FLUSH_SLAVE_TIMEOUT", wait_us=3_000_000),
            brokers=(tracing(MASTER), _DOWN),
            copies=(stored_copy(missing_bytes=412),),
        )
    )
    assert "send to shop.orders  3.00 s  FLUSH_SLAVE_TIMEOUT" in text
    assert "0 of 1 slave" in text
    assert "broker-a:1, which lacks 412 B of it" in text
    assert "note: broker-a:1 does not answer (UNAVAILABLE: connection refused): what it kept is missing here" in text


def test_a_clock_that_differs_is_told() -> None:
    text = _printed(findings([*master_spans(), *replica_spans(clock_ahead_us=-2_500_000)]))
    assert "the clock of broker-a:1 is about 2.50 s behind that of broker-a:0: its part was moved" in text


@pytest.mark.parametrize(
    ("slave", "reason"),
    [(tracing(SLAVE), "not yet asked its master"), (TracingState(SLAVE), "traceEnable is off there")],
)
def test_a_missing_part_of_a_slave_that_answers_is_explained(slave: TracingState, reason: str) -> None:
    text = _printed(findings(master_spans(), brokers=(tracing(MASTER), slave)))
    assert "note: broker-a:1 has no part of it: " in text
    assert reason in text


@pytest.mark.parametrize(
    ("brokers", "reason"),
    [
        (
            (tracing(MASTER),),
            "broker-a:0 keeps 1 % of the sends, those that take more than 200 ms, and those that fail",
        ),
        ((TracingState(MASTER),), "broker-a:0 keeps no traces: traceEnable is off"),
        (
            (tracing(MASTER, oldest_ms=START_NS // 1_000_000 + 5),),
            "its memory reaches back to 2026-11-22 01:00:00.005 UTC",
        ),
        ((tracing(MASTER, oldest_ms=None),), "its memory is empty"),
    ],
)
def test_without_a_trace_it_says_where_the_message_lies_and_why_there_is_none(
    brokers: tuple[TracingState, ...], reason: str
) -> None:
    text = _printed(findings([], brokers=brokers))
    assert "stored   2026-11-22 01:00:00.000 UTC in shop.orders, queue 3, offset 1,042" in text
    assert "copy     broker-a:0, on disk" in text
    assert "copy     broker-a:1, which has acknowledged it" in text
    assert reason in text.replace("\n", " ")


def test_nothing_known() -> None:
    text = _printed(findings([], copies=(), brokers=(tracing(MASTER), _DOWN)))
    assert f"no broker that answers knows a message {MESSAGE_ID}" in text
    assert "broker-a:1 does not answer" in text
    assert "no broker remembers trace" in _printed(findings([], copies=(), message_id="", trace_id=5))
    assert "no broker answers: see `tandemmq status`" in _printed(findings([], copies=(), brokers=(_DOWN,)))


def test_a_client_whose_clock_is_ahead_is_not_taken_at_its_word() -> None:
    text = _printed(findings(master_spans(), copies=(stored_copy(born_ms=START_NS // 1_000_000 + 1_500),)))
    assert "by its clock 1,500 ms later: the clocks differ" in text


def test_the_list_keeps_ids_whole_at_any_width() -> None:
    for width in (80, 140):
        console = Console(file=StringIO(), width=width)
        console.print(drawing(list_view(trace_list(), console)), highlight=False)
        output = console.file
        assert isinstance(output, StringIO)
        lines = output.getvalue().splitlines()
        assert lines[1].startswith(f"{MESSAGE_ID}  7.37 ms  send")
        assert "FLUSH_SLAVE_T" in lines[2]
        assert any(line.startswith("C and 11 more") for line in lines)


def test_what_clients_chose_is_printed_as_it_is_but_for_control_characters() -> None:
    lines = (replace(trace_list().lines[0], topic="a[/b]", message_ids=("[bold]\x1b[2J1",)),)
    found = replace(trace_list(), lines=lines)
    console = Console(file=StringIO(), width=140)
    console.print(drawing(list_view(found, console)), highlight=False)
    output = console.file
    assert isinstance(output, StringIO)
    assert "a[/b]" in output.getvalue()
    assert "[bold]\ufffd[2J1" in output.getvalue()


def test_an_empty_list_says_how_to_get_one() -> None:
    console = Console(file=StringIO(), width=140)
    console.print(
        drawing(list_view(trace_list(lines=False, brokers=(TracingState(MASTER),)), console)), highlight=False
    )
    output = console.file
    assert isinstance(output, StringIO)
    assert "no broker keeps traces: see traceEnable" in output.getvalue()


def test_what_is_a_trace_and_what_a_message() -> None:
    assert trace_id_of(f"{TRACE_ID:032x}") == TRACE_ID
    assert trace_id_of(f"00-{TRACE_ID:032x}-00f067aa0ba902b7-01") == TRACE_ID
    assert trace_id_of(MESSAGE_ID) == 0
    # RocketMQ 4's ids have 32 digits as well, in upper case.
    assert trace_id_of("7F0000010A1C18B4AAC2123456780001") == 0
