"""The page of traces, by what is in it."""

from __future__ import annotations

import re

from support.trace_samples import (
    MASTER,
    SLAVE,
    consumer_spans,
    findings,
    master_spans,
    replica_spans,
    trace_list,
    tracing,
)
from tandemmq.admin.console.frame import PageTemplates
from tandemmq.admin.console.traces import trace_view, traces_view
from tandemmq.admin.trace_reader import TraceFindings, TraceList, TracingState

_TEMPLATES = PageTemplates()


def _found(key: str, found: TraceFindings) -> str:
    return _TEMPLATES.get("trace.html").render(view=trace_view(key, found))


def _newest(found: TraceList, *, notable_only: bool) -> str:
    return _TEMPLATES.get("traces.html").render(view=traces_view(found, notable_only=notable_only))


def test_bars_lie_where_the_time_is() -> None:
    html = _found("x", findings([*master_spans(), *replica_spans(), *consumer_spans()]))
    bars = re.findall(r'<rect class="span" x="(\d+)" y="4" width="(\d+)"', html)
    # Of 7.37 ms: all; 0.09 to 0.15; 0.15 to 7.15; 0.32 to 7.00; 7.15 to 7.37. Then the deliveries.
    assert bars[:5] == [("0", "1000"), ("12", "8"), ("20", "949"), ("43", "906"), ("970", "29")]
    assert len(bars) == 9
    assert html.count('class="bar replica"') == 1
    assert '<span class="tag replica">broker-a:1</span>' in html


def test_what_is_not_there_is_said() -> None:
    down = TracingState(SLAVE, error="UNAVAILABLE: connection refused")
    html = _found("x", findings([], brokers=(tracing(MASTER), down)))
    assert "broker-a:1 does not answer" in html
    assert "this send was none of them" in html
    assert "Where it lies" in html
    assert "Where the time went" not in html


def test_where_every_send_is_traced_one_just_stored_is_waited_for() -> None:
    html = _found("x", findings([], brokers=(tracing(MASTER, sample_rate=1.0),)))
    assert "was none of them" not in html
    assert "look again in a second" in html


def test_a_failure_is_seen() -> None:
    html = _found("x", findings(master_spans(failure="FLUSH_SLAVE_TIMEOUT")))
    assert 'class="dot bad"' in html
    assert html.count('class="bar bad"') == 2


def test_nothing_of_a_message_reaches_the_page_as_markup() -> None:
    html = _found("<b>", findings([], copies=(), message_id="<b>"))
    assert "<b>" not in html
    assert "&lt;b&gt;" in html


def test_the_list_and_its_empty_forms() -> None:
    html = _newest(trace_list(), notable_only=False)
    assert "/traces?id=01A2B3C4D5E6F70001061C2F5A00000001" in html
    # Of many messages the trace is asked for.
    assert f"/traces?id={3:032x}" in html
    assert "broker-a:0 remembers 1,042, back to" in html
    nobody = _newest(trace_list(lines=False, brokers=(TracingState(MASTER),)), notable_only=False)
    assert "No broker keeps traces" in nobody
    quiet = _newest(trace_list(lines=False), notable_only=True)
    assert "None was slow or failed" in quiet
