"""Sends as a master keeps them, for tests."""

from __future__ import annotations

import random

from support.span_samples import MESSAGE_ID, START_NS, TOPIC, TRACE_ID
from tandemmq.core.tracing.send_spans import (
    AckPolicy,
    LinkTimeline,
    OffsetTimeline,
    ResolvedSend,
    SendSource,
    TracedSend,
    resolved_send,
)
from tandemmq.core.tracing.span_data import HeadSampler, RetainedFor, TraceContext

SOURCE = SendSource(
    AckPolicy(needed_slaves=1, waits_for_slaves=True, sync_flush=False),
    {"tandemmq.broker_group": "broker-a", "tandemmq.broker_id": 0},
)
_MS = 1_000_000
_randomness = random.Random(3)


def kept_send(
    *,
    trace_id: int = TRACE_ID,
    message_id: str = MESSAGE_ID,
    start_ns: int = START_NS,
    retained_for: RetainedFor = RetainedFor.SAMPLED,
    failure: str = "",
    slave_count: int = 1,
) -> ResolvedSend:
    """A send of one message that waited for a slave: four spans. `start_ns` is the wall clock's."""
    randomness = _randomness
    start_offset = randomness.getrandbits(40)
    end_offset = start_offset + 412
    begin_ns = randomness.getrandbits(50)
    slaves = []
    for number in range(1, slave_count + 1):
        slave = LinkTimeline(f"10.0.0.{number}:40000", number)
        slave.sent.note(end_offset, begin_ns + 3 * _MS)
        slave.acknowledged.note(start_offset, begin_ns)
        slave.acknowledged.note(end_offset, begin_ns + (4 + number) * _MS)
        slaves.append(slave)
    send = TracedSend(
        context=TraceContext(trace_id, randomness.getrandbits(63) + 1, True),
        parent=None,
        linked=(),
        retained_for=retained_for,
        topic=TOPIC,
        message_ids=(message_id,),
        message_count=1,
        body_bytes=128,
        client_id="client@1",
        peer="ipv4:10.0.0.7:51234",
        received_ns=begin_ns,
        begun_ns=begin_ns + 1 * _MS,
        appended_ns=begin_ns + 2 * _MS,
        released_ns=begin_ns + 7 * _MS,
        written_ns=begin_ns + 8 * _MS,
        failure=failure,
        put_status=failure or "PUT_OK",
        queue_id=3,
        queue_offset=1_042,
        start_offset=start_offset,
        end_offset=end_offset,
    )
    return resolved_send(
        send,
        SOURCE,
        flushes=OffsetTimeline(),
        slaves=slaves,
        sampler=HeadSampler(1.0, chance=randomness.random, bits=randomness.getrandbits),
        wall_offset_ns=start_ns - begin_ns,
    )
