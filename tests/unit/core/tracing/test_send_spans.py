"""Spans of a send, derived from what was noted of it and of the log. Times are in ms here, from the read on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from tandemmq.core.tracing.send_spans import (
    AckPolicy,
    LinkTimeline,
    OffsetTimeline,
    ResolvedSend,
    SendSource,
    TracedSend,
    resolved_send,
    send_spans,
)
from tandemmq.core.tracing.span_data import HeadSampler, RetainedFor, SpanData, TraceContext

MS = 1_000_000
WALL_NS = 1_700_000_000_000 * MS
SYNC_MASTER = AckPolicy(needed_slaves=1, waits_for_slaves=True, sync_flush=False)
SYNC_BOTH = AckPolicy(needed_slaves=1, waits_for_slaves=True, sync_flush=True)
ASYNC = AckPolicy(needed_slaves=0, waits_for_slaves=False, sync_flush=False)
PARENT = TraceContext(0xABC, 0xDEF, True)

SEND = TracedSend(
    context=TraceContext(0xABC, 1, True),
    parent=PARENT,
    linked=(),
    retained_for=RetainedFor.SAMPLED,
    topic="orders",
    message_ids=("id-1",),
    message_count=1,
    body_bytes=1_024,
    client_id="client@1",
    peer="ipv4:10.0.0.7:51234",
    received_ns=1 * MS,
    begun_ns=2 * MS,
    appended_ns=3 * MS,
    released_ns=10 * MS,
    written_ns=11 * MS,
    put_status="PUT_OK",
    queue_id=3,
    queue_offset=17,
    start_offset=1_000,
    end_offset=2_200,
)


def timeline(*marks: tuple[int, float]) -> OffsetTimeline:
    made = OffsetTimeline()
    for offset, at_ms in marks:
        made.note(offset, int(at_ms * MS))
    return made


def slave(name: int, *, sent: OffsetTimeline, acknowledged: OffsetTimeline) -> LinkTimeline:
    return LinkTimeline(f"10.0.0.{name}:40000", name, sent=sent, acknowledged=acknowledged)


SLAVE_1 = slave(1, sent=timeline((900, 0), (2_200, 4)), acknowledged=timeline((1_000, 2), (2_200, 9)))
SLAVE_2 = slave(2, sent=timeline((2_200, 4.5)), acknowledged=timeline((200, 1), (2_200, 40)))


def resolved(
    send: TracedSend = SEND,
    *,
    flushes: OffsetTimeline | None = None,
    slaves: Sequence[LinkTimeline] = (SLAVE_1,),
    policy: AckPolicy = SYNC_MASTER,
) -> ResolvedSend:
    ids = itertools.count(100)
    return resolved_send(
        send,
        SendSource(policy, {"tandemmq.broker_group": "broker-a"}),
        flushes=flushes or timeline(),
        slaves=slaves,
        sampler=HeadSampler(1.0, chance=lambda: 0.0, bits=lambda _: next(ids)),
        wall_offset_ns=WALL_NS,
    )


def derived(
    send: TracedSend = SEND,
    *,
    flushes: OffsetTimeline | None = None,
    slaves: Sequence[LinkTimeline] = (SLAVE_1,),
    policy: AckPolicy = SYNC_MASTER,
) -> list[SpanData]:
    return send_spans(resolved(send, flushes=flushes, slaves=slaves, policy=policy))


def times(spans: list[SpanData]) -> dict[str, tuple[float, float]]:
    """Of each span by its last word or two, in ms."""
    return {
        span.name.rpartition("/")[2]: ((span.start_ns - WALL_NS) / MS, (span.end_ns - WALL_NS) / MS) for span in spans
    }


def span_of(spans: list[SpanData], name: str) -> SpanData:
    [found] = [span for span in spans if span.name.endswith(name)]
    return found


def events(span: SpanData) -> list[tuple[str, float, Mapping[str, object]]]:
    return [(event.name, (event.at_ns - WALL_NS) / MS, event.attributes) for event in span.events]


def test_each_wait_ends_with_what_ended_it() -> None:
    spans = derived(flushes=timeline((1_500, 5), (3_000, 8)), policy=SYNC_BOTH)
    assert times(spans) == {
        "SendMessage": (1, 11),
        "commitlog append": (2, 3),
        "flush wait": (3, 8),
        "replicate wait": (3, 9),
        "reply": (10, 11),
    }


def test_children_are_the_servers_and_the_server_is_its_callers() -> None:
    spans = derived()
    server, *children = spans
    assert (server.context, server.parent_span_id, server.parent_is_remote) == (SEND.context, PARENT.span_id, True)
    assert {child.parent_span_id for child in children} == {SEND.context.span_id}
    assert {child.context.trace_id for child in children} == {PARENT.trace_id}
    assert len({span.context.span_id for span in spans}) == len(spans)


def test_a_slaves_part_is_linked_with_the_wait_for_it() -> None:
    send = resolved()
    assert send.replicated_in == span_of(send_spans(send), "replicate wait").context
    assert resolved(policy=ASYNC).replicated_in == SEND.context


def test_the_server_span_says_what_was_sent_and_what_became_of_it() -> None:
    assert span_of(derived(), "SendMessage").attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": "apache.rocketmq.v2.MessagingService/SendMessage",
        "messaging.system": "rocketmq",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.message.id": "id-1",
        "messaging.message.body.size": 1_024,
        "messaging.client.id": "client@1",
        "network.peer.address": "10.0.0.7",
        "network.peer.port": 51_234,
        "tandemmq.broker_group": "broker-a",
        "tandemmq.ack.policy": "SYNC_REPLICATION",
        "tandemmq.put_status": "PUT_OK",
        "tandemmq.trace.retained_for": "sampled",
    }


def test_the_wait_for_slaves_tells_each_ones_part() -> None:
    wait = span_of(derived(slaves=(SLAVE_1, SLAVE_2)), "replicate wait")
    assert wait.attributes == {
        "tandemmq.ack.policy": "SYNC_REPLICATION",
        "tandemmq.ack.required": 1,
        "tandemmq.ack.received": 1,
        "tandemmq.slaves_connected": 2,
        "tandemmq.lag_bytes": 1_200,
    }
    assert events(wait) == [
        ("sent", 4, {"tandemmq.slave": "1", "tandemmq.physical_offset": 2_200, "tandemmq.lag_bytes": 1_200}),
        ("sent", 4.5, {"tandemmq.slave": "2", "tandemmq.physical_offset": 2_200, "tandemmq.lag_bytes": 2_000}),
        ("acknowledged", 9, {"tandemmq.slave": "1", "tandemmq.physical_offset": 2_200, "tandemmq.lag_bytes": 0}),
        ("acknowledged", 40, {"tandemmq.slave": "2", "tandemmq.physical_offset": 2_200, "tandemmq.lag_bytes": 0}),
    ]


def test_two_slaves_needed_means_waiting_for_the_second() -> None:
    late = replace(SEND, released_ns=41 * MS, written_ns=42 * MS)
    spans = derived(late, slaves=(SLAVE_1, SLAVE_2), policy=replace(SYNC_MASTER, needed_slaves=2))
    assert times(spans)["replicate wait"] == (3, 40)
    assert span_of(spans, "replicate wait").attributes["tandemmq.lag_bytes"] == 2_000


def test_a_slave_that_connected_anew_is_counted_once() -> None:
    again = slave(1, sent=timeline((2_200, 6)), acknowledged=timeline((1_000, 5), (2_200, 9.5)))
    wait = span_of(derived(slaves=(SLAVE_1, again)), "replicate wait")
    assert (wait.attributes["tandemmq.ack.received"], wait.attributes["tandemmq.slaves_connected"]) == (1, 1)


def test_a_slave_that_had_gone_has_no_part() -> None:
    gone = replace(SLAVE_2, gone_ns=2 * MS)
    assert span_of(derived(slaves=(SLAVE_1, gone)), "replicate wait").attributes["tandemmq.slaves_connected"] == 1


@pytest.mark.parametrize(
    ("status", "failed_span"),
    [("FLUSH_SLAVE_TIMEOUT", "replicate wait"), ("FLUSH_DISK_TIMEOUT", "flush wait")],
)
def test_a_wait_that_ended_badly_lasts_to_the_answer_and_fails(status: str, failed_span: str) -> None:
    failed = replace(SEND, put_status=status, failure=status, released_ns=3_003 * MS, written_ns=3_004 * MS)
    spans = derived(failed, slaves=(), policy=SYNC_BOTH)
    assert times(spans)[failed_span] == (3, 3_003)
    assert {span.name.rpartition("/")[2] for span in spans if span.failure} == {"SendMessage", failed_span}
    assert span_of(spans, "SendMessage").attributes["error.type"] == status


def test_a_flush_that_nobody_waits_for_is_an_event() -> None:
    spans = derived(flushes=timeline((3_000, 480)), policy=SYNC_MASTER)
    assert "flush wait" not in times(spans)
    assert events(span_of(spans, "SendMessage")) == [("flushed", 480, {})]


def test_a_message_that_waits_for_nothing_has_no_waits() -> None:
    spans = derived(replace(SEND, waits=False), policy=SYNC_BOTH)
    assert set(times(spans)) == {"SendMessage", "commitlog append", "reply"}
    assert span_of(spans, "SendMessage").attributes["tandemmq.ack.policy"] == "ASYNC"


def test_a_send_that_was_refused_by_the_store_failed_in_its_append() -> None:
    refused = replace(
        SEND, appended_ns=0, start_offset=-1, end_offset=-1, queue_offset=-1, failure="SERVICE_NOT_AVAILABLE"
    )
    spans = derived(refused)
    assert times(spans) == {"SendMessage": (1, 11), "commitlog append": (2, 10), "reply": (10, 11)}
    assert span_of(spans, "commitlog append").failure == "SERVICE_NOT_AVAILABLE"


def test_a_send_that_never_came_to_the_store_is_one_span() -> None:
    refused = replace(
        SEND, begun_ns=0, appended_ns=0, start_offset=-1, end_offset=-1, written_ns=0, failure="TOPIC_NOT_FOUND"
    )
    assert times(derived(refused)) == {"SendMessage": (1, 10)}


def test_a_batch_tells_its_messages_and_links_to_their_contexts() -> None:
    others = (TraceContext(7, 7, True), TraceContext(8, 8, False))
    batch = replace(SEND, message_ids=("a", "b"), message_count=40, parent=None, linked=others)
    server = span_of(derived(batch), "SendMessage")
    assert server.attributes["messaging.batch.message_count"] == 40
    assert server.attributes["tandemmq.message_ids"] == ("a", "b")
    assert tuple(link.context for link in server.links) == others
    assert server.parent_span_id == 0


def test_no_span_ends_before_it_begins() -> None:
    early = slave(1, sent=timeline((2_200, 1)), acknowledged=timeline((2_200, 1)))
    assert all(span.end_ns >= span.start_ns for span in derived(slaves=(early,)))
