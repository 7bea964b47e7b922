"""The export's queue and thread, with a sender that does what a receiver may do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pytest
import structlog

from support.running_time import PATIENCE_S, running_time
from support.send_samples import kept_send
from support.span_samples import send_spans
from tandemmq.core.tracing.send_spans import ResolvedSend
from tandemmq.core.tracing.span_data import SpanData
from tandemmq.service.telemetry.span_export import Exported, SpanExport, SpanFan


class FakeSender:
    """Takes batches; `problem` is what it answers, `gate` holds it while it is clear."""

    def __init__(self) -> None:
        self.batches: list[list[Exported]] = []
        self.problem = ""
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def send(self, batch: Sequence[Exported]) -> str:
        """Answers as told."""
        self.entered.set()
        self.gate.wait()
        if self.error is not None:
            raise self.error
        self.batches.append(list(batch))
        return self.problem

    def abort(self) -> None:
        """Lets a held call go, as a closed channel does."""
        self.problem = self.problem or "CANCELLED"
        self.gate.set()


def _export(sender: FakeSender, *, queue_spans: int = 8_192, pause_s: float) -> SpanExport:
    return SpanExport(lambda: sender, target="collector:4317", queue_spans=queue_spans, pause_s=pause_s)


def _wait_until(condition: object, limit_s: float = PATIENCE_S) -> None:
    assert callable(condition)
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)


async def test_what_waits_at_the_end_is_sent() -> None:
    sender = FakeSender()
    export = _export(sender, pause_s=60)
    export.add(send_spans())
    await export.close()
    assert [len(batch) for batch in sender.batches] == [4]
    assert export.counts == {"exported": 4, "failed": 0, "dropped": 0}


async def test_batches_are_bounded_and_a_full_one_does_not_wait_for_the_pause() -> None:
    sender = FakeSender()
    export = _export(sender, pause_s=60)
    for number in range(1, 801):
        export.add(send_spans(trace_id=number))
    _wait_until(lambda: sum(map(len, sender.batches)) >= 2_048)
    await export.close()
    assert sum(map(len, sender.batches)) == 3_200
    assert max(map(len, sender.batches)) == 2_048


async def test_what_does_not_fill_a_batch_waits_for_others_to_go_with() -> None:
    sender = FakeSender()
    export = _export(sender, pause_s=60)
    sender.gate.clear()
    for number in range(1, 601):
        export.add(send_spans(trace_id=number))
    sender.gate.set()
    _wait_until(lambda: export.counts["exported"] >= 2_048)
    await asyncio.sleep(0.05)
    assert export.counts["exported"] == 2_048
    assert export.waiting_count == 2_400 - 2_048
    await export.close()
    assert export.counts["exported"] == 2_400


async def test_a_full_queue_drops_whole_traces_and_counts_them() -> None:
    sender = FakeSender()
    sender.gate.clear()
    export = _export(sender, queue_spans=10, pause_s=0.001)
    export.add(send_spans())
    assert sender.entered.wait(PATIENCE_S)
    for number in range(1, 6):
        export.add(send_spans(trace_id=number))
    assert (export.waiting_count, export.counts["dropped"]) == (8, 12)
    sender.gate.set()
    await export.close()
    assert export.counts == {"exported": 12, "failed": 0, "dropped": 12}
    assert all(len(batch) % 4 == 0 for batch in sender.batches)


async def test_a_send_counts_as_many_spans_as_it_has() -> None:
    sender = FakeSender()
    sender.gate.clear()
    export = _export(sender, queue_spans=10, pause_s=0.001)
    export.add(send_spans())
    assert sender.entered.wait(PATIENCE_S)
    sends = [kept_send(trace_id=number) for number in range(1, 5)]
    export.add_sends(sends)
    assert (export.waiting_count, export.counts["dropped"]) == (8, 8)
    sender.gate.set()
    await export.close()
    assert export.counts == {"exported": 12, "failed": 0, "dropped": 8}
    assert [item for batch in sender.batches[1:] for item in batch] == sends[:2]


async def test_batches_of_sends_are_bounded() -> None:
    sender = FakeSender()
    export = _export(sender, pause_s=60)
    export.add_sends([kept_send(trace_id=number) for number in range(1, 801)])
    _wait_until(lambda: export.counts["exported"] >= 2_048)
    await export.close()
    assert export.counts["exported"] == 3_200
    assert max(map(len, sender.batches)) == 512


async def test_a_receiver_that_hangs_does_not_hold_the_stop() -> None:
    sender = FakeSender()
    sender.gate.clear()
    export = _export(sender, pause_s=0.001)
    export.add(send_spans())
    assert sender.entered.wait(PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        await export.close()
    assert export.counts["failed"] == 4


async def test_a_call_that_never_ends_is_waited_for_once() -> None:
    class DeafSender(FakeSender):
        def abort(self) -> None:
            """Changes nothing."""

    sender = DeafSender()
    sender.gate.clear()
    export = _export(sender, pause_s=0.001)
    export.add(send_spans())
    assert sender.entered.wait(PATIENCE_S)
    await export.close()
    with running_time() as seconds:
        await export.close()
        assert seconds() < 1.9
    sender.gate.set()


async def test_a_failure_is_one_line_and_its_end_another() -> None:
    sender = FakeSender()
    with structlog.testing.capture_logs() as lines:
        export = _export(sender, pause_s=0.001)
        sender.problem = "UNAVAILABLE: connection refused"
        for number in range(1, 4):
            export.add(send_spans(trace_id=number))
            _wait_until(lambda number=number: export.counts["failed"] == 4 * number)
        sender.problem = ""
        export.add(send_spans())
        _wait_until(lambda: export.counts["exported"] == 4)
        await export.close()
    assert [line["event"] for line in lines] == ["span_export_failing", "span_export_recovered"]
    assert lines[0]["receiver"] == "collector:4317"
    assert lines[0]["problem"] == "UNAVAILABLE: connection refused"
    assert lines[1]["failed"] == 12


@pytest.mark.parametrize("error", [ValueError("no such attribute"), RuntimeError("what?")])
async def test_spans_that_cannot_be_sent_do_not_end_the_export(error: Exception) -> None:
    sender = FakeSender()
    sender.error = error
    export = _export(sender, pause_s=0.001)
    export.add(send_spans())
    _wait_until(lambda: export.counts["failed"] == 4)
    sender.error = None
    export.add(send_spans())
    _wait_until(lambda: export.counts["exported"] == 4)
    await export.close()


async def test_a_receiver_that_cannot_be_dialled_is_dialled_again() -> None:
    sender = FakeSender()
    problems = [ValueError("no such certificate")] * 2

    def connect() -> FakeSender:
        if problems:
            raise problems.pop()
        return sender

    with structlog.testing.capture_logs() as lines:
        export = SpanExport(connect, target="collector:4317", pause_s=0.001)
        export.add(send_spans())
        _wait_until(lambda: export.counts["failed"] == 4)
        export.add(send_spans())
        _wait_until(lambda: export.counts["exported"] == 4)
        await export.close()
    assert lines[0]["problem"] == "ValueError: no such certificate"


async def test_after_the_close_spans_are_counted_and_no_more() -> None:
    export = _export(FakeSender(), pause_s=60)
    await export.close()
    export.add(send_spans())
    assert export.counts["dropped"] == 4


def test_a_fan_gives_every_span_to_each() -> None:
    class Sink:
        def __init__(self) -> None:
            self.spans: list[SpanData] = []
            self.sends: list[ResolvedSend] = []

        def add(self, spans: Sequence[SpanData]) -> None:
            self.spans.extend(spans)

        def add_sends(self, sends: Sequence[ResolvedSend]) -> None:
            self.sends.extend(sends)

    sinks = (Sink(), Sink())
    fan = SpanFan(sinks)
    fan.add(send_spans())
    send = kept_send()
    fan.add_sends([send])
    assert [len(sink.spans) for sink in sinks] == [4, 4]
    assert [sink.sends for sink in sinks] == [[send], [send]]


@pytest.mark.parametrize("module", ["broker.broker", "nameserver.name_server", "admin.http_api"])
def test_a_service_that_exports_nothing_loads_no_exporter(module: str) -> None:
    script = f"import sys, tandemmq.{module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))] == []
