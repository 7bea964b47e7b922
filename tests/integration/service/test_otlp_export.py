"""Spans over a real connection to a receiver, and to receivers that hang, refuse, forbid or are not there."""

from __future__ import annotations

import logging
import time

import pytest
import structlog

from support.cluster_processes import lasting_port
from support.otlp_receiver import Manner, OtlpReceiver
from support.running_time import PATIENCE_S, running_time
from support.send_samples import kept_send
from support.span_samples import SLAVE, TRACE_ID, send_spans, slave_spans
from tandemmq.core.tracing.send_spans import send_spans as made_spans
from tandemmq.core.tracing.span_data import AttributeValue, SpanData, SpanKind, SpanLink, TraceContext
from tandemmq.service.telemetry import span_export
from tandemmq.service.telemetry.span_export import SpanExport, open_span_export, resource_attributes

_RESOURCE = resource_attributes(
    service="broker", instance_id="DefaultCluster/broker-a/0", attributes={"tandemmq.broker_id": 0}
)

# A call that hangs is given up after so long here: an end that waited for it would take longer on any machine.
CALL_LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def _calls_hang_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "CALL_LIMIT_S", CALL_LIMIT_S)


async def test_every_part_of_a_span_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=broker-a-0")
    with OtlpReceiver() as receiver:
        export = open_span_export(receiver.target, _RESOURCE)
        made = [*send_spans(parent_span_id=0x99, failure="FLUSH_SLAVE_TIMEOUT"), *slave_spans()]
        export.add(made)
        receiver.wait_until(lambda receiver: len(receiver.spans()) == len(made))
        await export.close()
        spans = receiver.spans()

    assert [span.name for span in spans] == [span.name for span in made]
    server, _, wait, _, replica = spans
    assert (server.trace_id, server.span_id, server.parent_span_id) == (TRACE_ID, 0x11, 0x99)
    assert (server.kind, wait.kind) == ("SERVER", "INTERNAL")
    assert (server.start_ns, server.end_ns) == (made[0].start_ns, made[0].end_ns)
    assert server.attributes == dict(made[0].attributes)
    assert (server.failed, server.status_message) == (True, "FLUSH_SLAVE_TIMEOUT")
    assert [(event.name, event.attributes["tandemmq.slave"]) for event in wait.events] == [("sent", SLAVE)]
    assert wait.events[0].at_ns == made[2].events[0].at_ns
    assert [(link.trace_id, link.span_id) for link in replica.links] == [(TRACE_ID, wait.span_id)]
    assert replica.trace_id != TRACE_ID
    assert server.scope == "tandemmq"
    assert server.resource["service.name"] == "tandemmq-broker"
    assert server.resource["service.instance.id"] == "DefaultCluster/broker-a/0"
    assert server.resource["tandemmq.broker_id"] == 0
    assert server.resource["k8s.pod.name"] == "broker-a-0"


async def test_a_send_arrives_as_its_spans() -> None:
    send = kept_send()
    made = made_spans(send)
    with OtlpReceiver() as receiver:
        export = open_span_export(receiver.target, _RESOURCE)
        export.add_sends([send])
        receiver.wait_until(lambda receiver: len(receiver.spans()) == len(made))
        await export.close()
        spans = receiver.spans()
    assert [(span.name, span.span_id, span.parent_span_id, span.start_ns, span.end_ns) for span in spans] == [
        (span.name, span.context.span_id, span.parent_span_id, span.start_ns, span.end_ns) for span in made
    ]
    assert [span.attributes for span in spans] == [dict(span.attributes) for span in made]
    assert [(event.name, event.at_ns, event.attributes) for event in spans[2].events] == [
        (event.name, event.at_ns, dict(event.attributes)) for event in made[2].events
    ]


async def test_attributes_keep_their_types() -> None:
    attributes: dict[str, AttributeValue] = {"text": "a", "whole": -5, "part": 0.25, "yes": True, "list": ("a", "b")}
    span = SpanData(
        "typed",
        TraceContext(1, 2, True),
        0,
        SpanKind.CONSUMER,
        3,
        4,
        attributes,
        links=(SpanLink(TraceContext(5, 6, False), attributes),),
    )
    with OtlpReceiver() as receiver:
        export = open_span_export(f"http://{receiver.target}", _RESOURCE)
        export.add([span])
        receiver.wait_until(lambda receiver: receiver.call_count > 0)
        await export.close()
        (received,) = receiver.spans("typed")
    assert received.attributes == attributes
    assert type(received.attributes["yes"]) is bool
    assert received.links[0].attributes == attributes


@pytest.mark.parametrize("manner", [Manner.HANGS, Manner.REFUSES, Manner.FORBIDS])
async def test_a_bad_receiver_costs_spans_and_nothing_else(manner: Manner, caplog: pytest.LogCaptureFixture) -> None:
    with OtlpReceiver(manner=manner) as receiver, structlog.testing.capture_logs() as lines:
        export = open_span_export(receiver.target, _RESOURCE)
        export.add(send_spans())
        receiver.wait_until(lambda receiver: receiver.call_count > 0)
        started = time.monotonic()
        for number in range(1, 20_000):
            export.add(send_spans(trace_id=number))
        # Each that waited would wait for seconds; without, all take one or two of CPU.
        assert time.monotonic() - started < 60, "somebody waited"
        await _closed_in_time(export)
    assert export.counts["exported"] == 0
    assert export.counts["dropped"] >= 20_000 * 4 - 8_192 - 1_024 * 40
    assert len(lines) <= 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "the library's own lines"


async def test_nobody_listens() -> None:
    with structlog.testing.capture_logs():
        export = open_span_export(f"127.0.0.1:{lasting_port()}", _RESOURCE)
        export.add(send_spans())
        await _closed_in_time(export)
    assert export.counts["exported"] == 0


async def test_a_receiver_that_comes_back_gets_what_is_new() -> None:
    receiver = OtlpReceiver(manner=Manner.FORBIDS)
    with receiver, structlog.testing.capture_logs() as lines:
        export = open_span_export(receiver.target, _RESOURCE)
        export.add(send_spans())
        _wait_for_count(export, "failed", 4)
        receiver.manner = Manner.TAKES
        export.add(send_spans(trace_id=9))
        receiver.wait_until(lambda receiver: len(receiver.spans()) == 4)
        await _closed_in_time(export)
    assert [line["event"] for line in lines] == ["span_export_failing", "span_export_recovered"]
    assert lines[0]["problem"] == "PERMISSION_DENIED: not you"


async def test_two_exports_of_one_process_do_not_mix() -> None:
    with OtlpReceiver() as one, OtlpReceiver() as other:
        exports = [open_span_export(receiver.target, _RESOURCE) for receiver in (one, other)]
        exports[0].add(send_spans(trace_id=1))
        exports[1].add(send_spans(trace_id=2))
        for export in exports:
            await export.close()
        assert {span.trace_id for span in one.spans()} == {1}
        assert {span.trace_id for span in other.spans()} == {2}


async def _closed_in_time(export: SpanExport) -> None:
    with running_time() as seconds:
        await export.close()
        assert seconds() < CALL_LIMIT_S / 2


def _wait_for_count(export: SpanExport, outcome: str, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while export.counts[outcome] < count:
        assert time.monotonic() < deadline, export.counts
        time.sleep(0.01)
