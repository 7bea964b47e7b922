"""A send and what the timelines told of it: all that its spans say, before anybody has made spans.

Most traces are looked at by nobody. So a send that is kept stays one note, which is remembered and waits to be exported
as it is: `send_spans` makes spans of it when somebody asks, and an exporter writes their bytes without making them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mqcore.tracing.head_sampler import HeadSampler
from mqcore.tracing.offset_timeline import OffsetTimeline
from mqcore.tracing.span_data import AttributeValue
from mqcore.tracing.trace_context import TraceContext, made_context
from mqcore.tracing.traced_send import AckPolicy, LinkTimeline, TracedSend

__all__ = ["ACKNOWLEDGED", "SENT", "ResolvedSend", "SendSource", "TransferMark", "resolved_send"]

# What may happen between the master and a slave.
SENT: Final = "sent"
ACKNOWLEDGED: Final = "acknowledged"


class SendSource:
    """What is the same for all sends of one master: what they wait for, and attributes that tell where this was."""

    __slots__ = ("broker", "policy", "policy_name")

    def __init__(self, policy: AckPolicy, broker: Mapping[str, AttributeValue]) -> None:
        self.policy = policy
        self.policy_name = policy.name
        self.broker = broker


class TransferMark:
    """When a put's last byte was given to a slave's socket, or when the slave said that it has it: `name` tells which.
    The time is monotonic."""

    __slots__ = ("at_ns", "lag_bytes", "name", "offset", "slave")

    def __init__(self, name: str, at_ns: int, slave: str, offset: int, lag_bytes: int) -> None:
        self.name = name
        self.at_ns = at_ns
        self.slave = slave
        # How far it came with that.
        self.offset = offset
        # How far the slave was then known to be behind the put's end; -1: nothing was known of it.
        self.lag_bytes = lag_bytes


@dataclass(init=False, slots=True)
class ResolvedSend:
    """One send, answered and looked up; nobody changes it any more. Times are monotonic ns, 0 for what did not come to
    pass; `wall_offset_ns` added makes them wall clock. Ids are those of the server's child spans, 0 for none."""

    send: TracedSend
    source: SendSource
    wall_offset_ns: int
    append_id: int
    flush_wait_id: int
    replicate_wait_id: int
    reply_id: int
    span_count: int
    # When the disk had it and nobody waited for that; -1: somebody did, or it is not known.
    flushed_ns: int
    flush_wait_end_ns: int
    replicate_wait_end_ns: int
    # Slaves, and not connections: one that connected anew is still one.
    acks_received: int
    slaves_connected: int
    # Of the slave on which it hung, at the append; -1: not known.
    lag_bytes: int
    # In the order of their times.
    marks: list[TransferMark]

    def __init__(self, send: TracedSend, source: SendSource, wall_offset_ns: int) -> None:
        self.send = send
        self.source = source
        self.wall_offset_ns = wall_offset_ns
        self.append_id = 0
        self.flush_wait_id = 0
        self.replicate_wait_id = 0
        self.reply_id = 0
        self.span_count = 1
        self.flushed_ns = -1
        self.flush_wait_end_ns = 0
        self.replicate_wait_end_ns = 0
        self.acks_received = 0
        self.slaves_connected = 0
        self.lag_bytes = -1
        self.marks = []

    @property
    def replicated_in(self) -> TraceContext:
        """The span that a slave's part is linked with."""
        context = self.send.context
        if not self.replicate_wait_id:
            return context
        made: TraceContext = made_context((context.trace_id, self.replicate_wait_id, True))
        return made

    @property
    def failed_replication(self) -> bool:
        """Whether it was the wait for slaves that failed."""
        return self.send.put_status in ("FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")

    @property
    def end_ns(self) -> int:
        """When the server was done with it."""
        send = self.send
        # Of two: the compiler makes a comparison of that.
        answered_ns = max(send.released_ns, send.received_ns)
        return max(send.written_ns, answered_ns)


def resolved_send(
    send: TracedSend,
    source: SendSource,
    *,
    flushes: OffsetTimeline,
    slaves: Sequence[LinkTimeline],
    sampler: HeadSampler,
    wall_offset_ns: int,
) -> ResolvedSend:
    """Looks up what a send that was answered had waited for."""
    found = ResolvedSend(send, source, wall_offset_ns)
    policy = source.policy
    if send.begun_ns:
        found.append_id = sampler.new_span_id()
        found.span_count += 1
    if send.is_stored:
        _, flushed_ns = flushes.entry_at_or_above(send.end_offset)
        if policy.sync_flush and send.waits:
            found.flush_wait_id = sampler.new_span_id()
            found.span_count += 1
            found.flush_wait_end_ns = send.released_ns if flushed_ns < 0 else min(flushed_ns, send.released_ns)
        else:
            found.flushed_ns = flushed_ns
        if policy.waits_for_slaves and policy.needed_slaves and send.waits:
            found.replicate_wait_id = sampler.new_span_id()
            found.span_count += 1
            _look_up_slaves(found, slaves)
    if send.written_ns > send.released_ns:
        found.reply_id = sampler.new_span_id()
        found.span_count += 1
    return found


def _look_up_slaves(found: ResolvedSend, slaves: Sequence[LinkTimeline]) -> None:
    """What those did that were connected, and when enough of them had it. An acknowledgement after the answer is a
    mark, and not counted."""
    send, policy = found.send, found.source.policy
    connected: set[str] = set()
    # By slave.
    acknowledged_ns: dict[str, int] = {}
    lags: dict[str, int] = {}
    for slave in slaves:
        if slave.gone_ns and slave.gone_ns < send.appended_ns:
            continue
        name = slave.name
        connected.add(name)
        known_offset = slave.acknowledged.offset_until(send.appended_ns)
        if known_offset >= 0:
            lags[name] = max(0, send.end_offset - known_offset)
        reached_ns = _note_transfer(found.marks, slave, name, send.end_offset)
        if 0 <= reached_ns <= send.released_ns:
            acknowledged_ns.setdefault(name, reached_ns)
    marks = found.marks
    if len(marks) > 2 or (len(marks) == 2 and marks[0].at_ns > marks[1].at_ns):
        marks.sort(key=_at_ns)
    found.slaves_connected = len(connected)
    found.acks_received = len(acknowledged_ns)
    if lags:
        found.lag_bytes = _smallest(lags, min(policy.needed_slaves, len(lags)))
    if found.failed_replication or len(acknowledged_ns) < policy.needed_slaves:
        found.replicate_wait_end_ns = send.released_ns
    else:
        found.replicate_wait_end_ns = _smallest(acknowledged_ns, policy.needed_slaves)


def _note_transfer(marks: list[TransferMark], slave: LinkTimeline, name: str, end_offset: int) -> int:
    """When the put's last byte was given to a slave's socket, and when the slave said that it has it. Returns the
    latter, or -1."""
    offset, at_ns = slave.sent.entry_at_or_above(end_offset)
    if at_ns >= 0:
        known_offset = slave.acknowledged.offset_until(at_ns)
        lag_bytes = max(0, end_offset - known_offset) if known_offset >= 0 else -1
        marks.append(TransferMark(SENT, at_ns, name, offset, lag_bytes))
    offset, at_ns = slave.acknowledged.entry_at_or_above(end_offset)
    if at_ns >= 0:
        marks.append(TransferMark(ACKNOWLEDGED, at_ns, name, offset, 0))
    return at_ns


def _smallest(values: dict[str, int], count: int) -> int:
    """The largest of the `count` smallest values."""
    return sorted(values.values())[count - 1]


def _at_ns(mark: TransferMark) -> int:
    return mark.at_ns
