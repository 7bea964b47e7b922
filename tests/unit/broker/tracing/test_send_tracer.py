"""Which sends a master keeps, and what becomes of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from support.fake_call import FakeCall
from support.manual_time import ManualTime
from tandemmq.broker.put import Put, PutMeter, answer_of
from tandemmq.broker.tracing.send_tracer import BrokerTracing, SendContexts, SendTracer
from tandemmq.core.message.record import Host, OutgoingMessage
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.core.tracing.send_spans import AckPolicy, ResolvedSend, send_spans
from tandemmq.core.tracing.span_data import HeadSampler, SpanData, TraceContext, TraceOptions

MS = 1_000_000
SAMPLED = "00-000000000000000000000000000000aa-00000000000000bb-01"
NOT_SAMPLED = "00-000000000000000000000000000000cc-00000000000000dd-00"


class Rig:
    """A tracer with time and chance in the test's hands."""

    def __init__(self, *, chance: float = 0.999_999, slow_ms: int = 200) -> None:
        self.chance = chance
        self.spans: list[SpanData] = []
        self.time = ManualTime()
        self.meter = PutMeter()
        ids = itertools.count(1)
        self.tracing = BrokerTracing(
            identity=BrokerIdentity("DefaultCluster", "broker-a", 0),
            clock=self.time,
            options=TraceOptions(sample_rate=0.01, slow_ms=slow_ms),
            sampler=HeadSampler(0.01, chance=lambda: self.chance, bits=lambda _: next(ids)),
            sink=self,
        )
        policy = AckPolicy(needed_slaves=1, waits_for_slaves=True, sync_flush=False)
        self.tracer = SendTracer(self.tracing, self.meter, policy=policy)
        self.end_offset = 0

    def add(self, spans: Sequence[SpanData]) -> None:
        """`SpanSink`'s."""
        self.spans += spans

    def add_sends(self, sends: Sequence[ResolvedSend]) -> None:
        """`SpanSink`'s."""
        for send in sends:
            self.add(send_spans(send))

    def send(
        self,
        *,
        traceparents: Sequence[str] = (),
        header: str = "",
        status: PutStatus = PutStatus.PUT_OK,
        took_ms: int = 2,
        count: int = 1,
        message_id: str = "id-",
    ) -> Put:
        """One request, from its read to its answer."""
        metadata = {"x-mq-client-id": "client@1", **({"traceparent": header} if header else {})}
        call = FakeCall(metadata=metadata)
        messages = [_message(f"{message_id}{number}") for number in range(count)]
        received_ns = self.time.monotonic_ns() + 1
        is_traced = self.tracer.begin(call, traceparents) >= 0
        results = []
        for _ in messages:
            results.append(AppendResult(PutStatus.PUT_OK, self.end_offset, self.end_offset + 100, 0, 0))
            self.end_offset += 100
        put = Put(
            results,
            False,
            True,
            answer_of(lambda _: None),
            messages,
            call,
            traceparents,
            received_ns,
            received_ns,
            received_ns + 1,
        )
        if is_traced:
            self.tracer.appended(put)
        for result in results:
            result.status = status
        self.tracer.answered(put, received_ns + took_ms * MS)
        self.tracer.replies_written(received_ns + took_ms * MS + 1)
        return put

    def servers(self) -> list[SpanData]:
        self.tracer.build_all()
        return [span for span in self.spans if span.name.endswith("SendMessage")]


def _message(message_id: str) -> OutgoingMessage:
    host = Host.parse("10.0.0.7", 50_000)
    return OutgoingMessage("orders", 2, b"body", b"", 0, (message_id,), None, 0, host)


def test_what_nobody_asked_for_is_not_kept() -> None:
    rig = Rig()
    rig.send()
    assert rig.servers() == []


def test_chance_keeps_one() -> None:
    rig = Rig(chance=0.001)
    rig.send()
    [server] = rig.servers()
    assert (server.parent_span_id, server.attributes["tandemmq.trace.retained_for"]) == (0, "sampled")


@pytest.mark.parametrize("by", ["message", "call"])
def test_a_caller_that_traces_is_continued(by: str) -> None:
    rig = Rig()
    if by == "message":
        rig.send(traceparents=[SAMPLED], header=NOT_SAMPLED)
    else:
        rig.send(header=SAMPLED)
    [server] = rig.servers()
    assert (server.context.trace_id, server.parent_span_id, server.parent_is_remote) == (0xAA, 0xBB, True)


def test_a_caller_that_does_not_trace_is_not_left_to_chance() -> None:
    rig = Rig(chance=0.0)
    rig.send(traceparents=[NOT_SAMPLED])
    rig.send(header=NOT_SAMPLED)
    assert rig.servers() == []


def test_a_text_that_is_no_context_is_as_if_it_were_not_there() -> None:
    rig = Rig(chance=0.0)
    rig.send(traceparents=["00-nonsense"])
    [server] = rig.servers()
    assert server.parent_span_id == 0


def test_a_slow_send_is_kept_in_its_callers_trace() -> None:
    rig = Rig()
    rig.send(header=NOT_SAMPLED, took_ms=201)
    rig.send(took_ms=200)
    [server] = rig.servers()
    assert server.attributes["tandemmq.trace.retained_for"] == "slow"
    assert server.context.trace_id == 0xCC


def test_no_send_is_slow_without_a_threshold() -> None:
    rig = Rig(slow_ms=0)
    rig.send(took_ms=60_000)
    assert rig.servers() == []


def test_a_failed_send_is_kept() -> None:
    rig = Rig()
    rig.send(status=PutStatus.FLUSH_SLAVE_TIMEOUT)
    [server] = rig.servers()
    assert server.failure == server.attributes["error.type"] == "FLUSH_SLAVE_TIMEOUT"
    assert server.attributes["tandemmq.trace.retained_for"] == "failed"


def test_when_everything_fails_a_few_are_kept_and_the_rest_counted() -> None:
    rig = Rig()
    for _ in range(500):
        rig.send(status=PutStatus.SLAVE_NOT_AVAILABLE)
    assert len(rig.servers()) == 25
    assert rig.tracer.dropped_count == 475


def test_what_its_caller_traces_is_kept_whatever_becomes_of_it() -> None:
    rig = Rig()
    for _ in range(100):
        rig.send(status=PutStatus.SLAVE_NOT_AVAILABLE)
    rig.send(header=SAMPLED, status=PutStatus.SLAVE_NOT_AVAILABLE)
    rig.send(header=SAMPLED, took_ms=300)
    assert [server.context.trace_id for server in rig.servers()[-2:]] == [0xAA, 0xAA]


def test_what_a_client_writes_without_measure_is_cut() -> None:
    rig = Rig(chance=0.0)
    traceparents = [f"00-{number:032x}-00000000000000bb-01" for number in range(1, 501)]
    rig.send(traceparents=traceparents, count=500, message_id="x" * 10_000)
    rig.tracer.refused("orders", ("x" * 10_000,) * 500, FakeCall(), traceparents, "ILLEGAL_MESSAGE_ID")
    for server in rig.servers():
        assert server.attributes["messaging.batch.message_count"] == 500
        assert len(server.links) == 32
        ids = server.attributes["tandemmq.message_ids"]
        assert isinstance(ids, tuple)
        assert (len(ids), len(ids[0])) == (32, 256)
    [put] = rig.tracer.traced_puts.after(incarnation=0, sequence=0).puts
    assert (len(put.message_ids), len(put.message_ids[0])) == (32, 256)


def test_what_waits_to_become_spans_is_bounded() -> None:
    rig = Rig(chance=0.0)
    for _ in range(2_100):
        rig.send()
    assert rig.tracer.dropped_count == 100


def test_messages_that_agree_have_a_parent_and_others_links() -> None:
    rig = Rig(chance=0.0)
    rig.send(traceparents=[SAMPLED, SAMPLED], count=2)
    rig.send(traceparents=[SAMPLED, NOT_SAMPLED], count=2)
    rig.send(traceparents=[SAMPLED], count=2)
    agreed, differing, one_of_two = rig.servers()
    assert (agreed.parent_span_id, agreed.links) == (0xBB, ())
    assert (differing.parent_span_id, [link.context.trace_id for link in differing.links]) == (0, [0xAA, 0xCC])
    assert (one_of_two.parent_span_id, [link.context.trace_id for link in one_of_two.links]) == (0, [0xAA])


def test_those_who_deliver_know_a_sampled_send_from_its_append_on() -> None:
    rig = Rig(chance=0.0)
    results = [AppendResult(PutStatus.PUT_OK, 700, 800, 0, 0)]
    put = Put(results, False, True, answer_of(lambda _: None), [_message("id-1")], FakeCall(), (), 1, 1, 2)
    rig.tracer.appended(put)
    [context] = rig.tracing.send_contexts.contexts_at([700]).values()
    rig.tracer.answered(put, 3)
    assert rig.servers()[0].context == context


def test_an_exemplar_names_the_trace() -> None:
    rig = Rig(chance=0.0)
    rig.send(took_ms=4)
    rig.meter.answered(PutStatus.PUT_OK, 1, 1)
    [server] = rig.servers()
    exemplars = [
        exemplar
        for histogram in (rig.meter.send_to_ack_s[PutStatus.PUT_OK], rig.meter.ack_latency_s)
        for exemplar in histogram.reading().exemplars
        if exemplar is not None
    ]
    assert [exemplar.trace_id for exemplar in exemplars] == [server.context.trace_id] * 2
    assert abs(exemplars[0].value - 0.004) < 1e-6


def test_slaves_can_ask_for_what_was_traced() -> None:
    rig = Rig(chance=0.0)
    rig.send()
    rig.send(count=2)
    rig.servers()
    page = rig.tracer.traced_puts.after(incarnation=0, sequence=0)
    assert [(put.sequence, put.start_offset, put.end_offset) for put in page.puts] == [(1, 0, 100), (2, 100, 300)]
    assert page.puts[1].message_ids == ("id-0", "id-1")
    waits = [span.context for span in rig.spans if span.name == "replicate wait"]
    assert [put.context for put in page.puts] == waits
    after = rig.tracer.traced_puts.after(incarnation=page.incarnation, sequence=1)
    assert [put.sequence for put in after.puts] == [2]


def test_a_slave_that_knows_another_run_gets_all() -> None:
    rig = Rig(chance=0.0)
    rig.send()
    rig.servers()
    assert len(rig.tracer.traced_puts.after(incarnation=4711, sequence=90).puts) == 1


def test_a_refused_request_is_one_span() -> None:
    rig = Rig()
    rig.tracer.refused("missing", ("id-1",), FakeCall(), (), "TOPIC_NOT_FOUND")
    [server] = rig.servers()
    assert (server.failure, server.attributes["messaging.destination.name"]) == ("TOPIC_NOT_FOUND", "missing")
    assert len(rig.spans) == 1
    assert rig.tracer.traced_puts.after(incarnation=0, sequence=0).puts == []


class BrokenContexts:
    """A bug of tracing. No subclass: `tools/compile.py` may have made `SendContexts` an extension type."""

    def note(self, physical_offset: int, context: TraceContext) -> None:
        raise RuntimeError("a bug of tracing")


@pytest.mark.plain
def test_nothing_raises_into_the_write_path() -> None:
    rig = Rig(chance=0.0)
    tracing = replace(rig.tracing, send_contexts=cast(SendContexts, BrokenContexts()))
    rig.tracer = SendTracer(tracing, rig.meter, policy=AckPolicy(1, waits_for_slaves=True, sync_flush=False))
    rig.send()
    rig.send(status=PutStatus.FLUSH_SLAVE_TIMEOUT)
    assert len(rig.servers()) == 2
