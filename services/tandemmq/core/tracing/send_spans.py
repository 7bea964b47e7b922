"""The spans of one send, derived from what was noted of it and of the log: the master's, then a slave's.

A send's own note has five times: read, put begun, appended, released, written. What it waited for in between is not
noted with the send: a flush and a slave's report say how far they came, for all sends at once (`OffsetTimeline`). So
every send can be traced after its answer is known, and one that is not costs next to nothing.

    received      begun   appended                      released  written
    |-- decode ---|--append--|-------- flush wait ----|      |--reply--|
                             |-------- replicate wait -------|

Whoever changes what a span says here changes `tandemmq.service.telemetry.span_encoding`, which writes the same without
it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from tandemmq.core.tracing import span_data as names
from tandemmq.core.tracing.span_data import (
    AttributeValue,
    HeadSampler,
    RetainedFor,
    SpanData,
    SpanEvent,
    SpanKind,
    SpanLink,
    TraceContext,
    made_context,
    peer_attributes,
    text_of,
)

# A bounded memory of (offset, time), searched by either: when something had come how far in the CommitLog. What a send
# waits for is told by offsets, and offsets only grow. So the end of a put's wait needs no note of its own: it is the
# first entry at or above the put's end.

# At 4,000 entries a second, which is a slave's reports at one send at a time, the last 4 s: longer than a send waits.
_ENTRIES_MAX: Final = 16_384


class OffsetMark(NamedTuple):
    """All below `offset` was reached at `at_ns` on the monotonic clock."""

    offset: int
    at_ns: int


class OffsetTimeline:
    """The newest entries of one thing that follows the log: between `entries_max` and twice as many, 16 bytes each."""

    __slots__ = ("_entries_max", "_forgotten_below", "_offsets", "_times_ns")

    def __init__(self, *, entries_max: int = _ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._offsets = array("q")
        self._times_ns = array("q")
        # Entries up to this offset may have been dropped.
        self._forgotten_below = -1

    def note(self, offset: int, at_ns: int) -> None:
        """Everything below `offset` is reached. The same offset adds nothing; a lower one starts over, as the log."""
        offsets = self._offsets
        if offsets and offset <= offsets[-1]:
            if offset == offsets[-1]:
                return
            del offsets[:], self._times_ns[:]
            self._forgotten_below = offset
        offsets.append(offset)
        self._times_ns.append(at_ns)
        if len(offsets) >= 2 * self._entries_max:
            self._forgotten_below = offsets[self._entries_max - 1]
            del offsets[: self._entries_max], self._times_ns[: self._entries_max]

    def begin_at(self, offset: int) -> None:
        """Entries will go on from `offset`; unless they ended there, what was reached before is not known."""
        if self.newest_offset != offset:
            del self._offsets[:], self._times_ns[:]
            self._forgotten_below = offset

    @property
    def newest_offset(self) -> int:
        """How far it is; -1 before the first entry."""
        return self._offsets[-1] if self._offsets else -1

    def first_at_or_above(self, offset: int) -> OffsetMark | None:
        """When everything below `offset` had been reached; None if it was not yet, or too long ago to be known."""
        reached_offset, at_ns = self.entry_at_or_above(offset)
        return None if reached_offset < 0 else OffsetMark(reached_offset, at_ns)

    def entry_at_or_above(self, offset: int) -> tuple[int, int]:
        """The same as a bare pair, which costs no object when compiled; (-1, -1) for None."""
        index = bisect_left(self._offsets, offset)
        if index == len(self._offsets) or offset <= self._forgotten_below:
            return -1, -1
        return self._offsets[index], self._times_ns[index]

    def offset_until(self, at_ns: int) -> int:
        """How far it was at that time; -1 if that is not known."""
        index = bisect_right(self._times_ns, at_ns) - 1
        return -1 if index < 0 else self._offsets[index]


# What is noted of a send whose trace is wanted, and of the slaves it may have waited for.


@dataclass(frozen=True, slots=True)
class AckPolicy:
    """What a send waits for, by the broker's settings."""

    needed_slaves: int
    waits_for_slaves: bool
    sync_flush: bool

    @property
    def name(self) -> str:
        """For people."""
        if self.waits_for_slaves and self.needed_slaves > 0:
            return "SYNC_REPLICATION+SYNC_FLUSH" if self.sync_flush else "SYNC_REPLICATION"
        return "SYNC_FLUSH" if self.sync_flush else "ASYNC"


@dataclass(slots=True)
class LinkTimeline:
    """One connection of a slave: what it was sent and what it acknowledged, when."""

    peer: str
    broker_id: int | None = None
    # When the connection ended; 0 while it has not.
    gone_ns: int = 0
    sent: OffsetTimeline = field(default_factory=OffsetTimeline)
    acknowledged: OffsetTimeline = field(default_factory=OffsetTimeline)

    @property
    def name(self) -> str:
        """The slave's broker id where it is known, else its address: a slave of another make does not tell."""
        return str(self.broker_id) if self.broker_id is not None else self.peer


@dataclass(init=False, slots=True)
class TracedSend:
    """One request whose spans are wanted. Times are monotonic ns, 0 for what did not come to pass."""

    # The server's span.
    context: TraceContext
    parent: TraceContext | None
    # Contexts of the messages of a batch whose senders do not agree on one.
    linked: tuple[TraceContext, ...]
    retained_for: RetainedFor
    topic: str
    # The first ones only, if there are many messages.
    message_ids: tuple[str, ...]
    message_count: int
    body_bytes: int
    client_id: str
    peer: str
    received_ns: int
    begun_ns: int
    appended_ns: int
    released_ns: int
    written_ns: int
    # Empty when everything asked for was had; else a name for why not.
    failure: str
    put_status: str
    tag: str
    queue_id: int
    queue_offset: int
    # Bytes of the CommitLog, [start, end); -1 if nothing was stored.
    start_offset: int
    end_offset: int
    # False for a message that said it waits for nothing.
    waits: bool

    # Written out for the compiler, which leaves a dataclass's own to the interpreter.
    def __init__(
        self,
        context: TraceContext,
        parent: TraceContext | None,
        linked: tuple[TraceContext, ...],
        retained_for: RetainedFor,
        topic: str,
        message_ids: tuple[str, ...],
        message_count: int,
        body_bytes: int,
        client_id: str,
        peer: str,
        received_ns: int,
        begun_ns: int = 0,
        appended_ns: int = 0,
        released_ns: int = 0,
        written_ns: int = 0,
        failure: str = "",
        put_status: str = "",
        tag: str = "",
        queue_id: int = -1,
        queue_offset: int = -1,
        start_offset: int = -1,
        end_offset: int = -1,
        waits: bool = True,
    ) -> None:
        self.context = context
        self.parent = parent
        self.linked = linked
        self.retained_for = retained_for
        self.topic = topic
        self.message_ids = message_ids
        self.message_count = message_count
        self.body_bytes = body_bytes
        self.client_id = client_id
        self.peer = peer
        self.received_ns = received_ns
        self.begun_ns = begun_ns
        self.appended_ns = appended_ns
        self.released_ns = released_ns
        self.written_ns = written_ns
        self.failure = failure
        self.put_status = put_status
        self.tag = tag
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.waits = waits

    @property
    def is_stored(self) -> bool:
        """Whether it is in the CommitLog, whatever its sender was told."""
        return self.end_offset >= 0


# A send with what the timelines told of it. Most traces are looked at by nobody, so a kept send stays one note: it is
# remembered and exported as it is. `send_spans` makes spans of it when somebody asks; an exporter writes their bytes
# without making them.

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
    # Slaves, not connections: a slave that reconnected is still one.
    acks_received: int
    slaves_connected: int
    # How far the slave was behind at the append, if the send waited for one; -1: not known.
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


RPC_METHOD: Final = "apache.rocketmq.v2.MessagingService/SendMessage"


def send_spans(send: ResolvedSend) -> list[SpanData]:
    """All spans of a send in the order of their beginnings, the server's first."""
    note, source = send.send, send.source
    spans = [_server(send)]
    if send.append_id:
        spans.append(_append(send))
    if send.flush_wait_id:
        spans.append(
            _child(
                send,
                "flush wait",
                send.flush_wait_id,
                note.appended_ns,
                send.flush_wait_end_ns,
                {names.ACK_POLICY: source.policy_name},
                failure=note.put_status if note.put_status == "FLUSH_DISK_TIMEOUT" else "",
            )
        )
    if send.replicate_wait_id:
        spans.append(_replicate(send))
    if send.reply_id:
        spans.append(_child(send, "reply", send.reply_id, note.released_ns, note.written_ns, {}))
    return spans


def sender_attributes(send: ResolvedSend) -> dict[str, AttributeValue]:
    """Attributes of the server's span that are the same in most sends of a client. They come first."""
    note, source = send.send, send.source
    said: dict[str, AttributeValue] = {
        names.RPC_SYSTEM_NAME: "grpc",
        names.RPC_METHOD: RPC_METHOD,
        names.MESSAGING_SYSTEM: names.MESSAGING_SYSTEM_ROCKETMQ,
        names.MESSAGING_DESTINATION_NAME: note.topic,
        names.MESSAGING_CLIENT_ID: note.client_id,
        **peer_attributes(note.peer),
        **source.broker,
        names.ACK_POLICY: source.policy_name if note.waits else "ASYNC",
        names.RETAINED_FOR: text_of(note.retained_for),
    }
    if note.tag:
        said[names.MESSAGING_ROCKETMQ_MESSAGE_TAG] = note.tag
    if note.put_status:
        said[names.PUT_STATUS] = note.put_status
    return said


def wait_attributes(send: ResolvedSend) -> dict[str, AttributeValue]:
    """The first ones of the wait for slaves, which are the same in most sends."""
    return {
        names.ACK_POLICY: send.source.policy_name,
        names.ACKS_REQUIRED: send.source.policy.needed_slaves,
        names.ACKS_RECEIVED: send.acks_received,
        names.SLAVES_CONNECTED: send.slaves_connected,
    }


def _server(send: ResolvedSend) -> SpanData:
    note = send.send
    said = sender_attributes(send)
    if note.queue_id >= 0:
        said[names.MESSAGING_DESTINATION_PARTITION_ID] = str(note.queue_id)
    said[names.MESSAGING_MESSAGE_BODY_SIZE] = note.body_bytes
    if note.message_count == 1:
        said[names.MESSAGING_MESSAGE_ID] = note.message_ids[0]
    else:
        said[names.MESSAGING_BATCH_MESSAGE_COUNT] = note.message_count
        said[names.MESSAGE_IDS] = note.message_ids
    if note.failure:
        said[names.ERROR_TYPE] = note.failure
    flushed = (SpanEvent("flushed", send.flushed_ns + send.wall_offset_ns),) if send.flushed_ns >= 0 else ()
    return SpanData(
        name=RPC_METHOD,
        context=note.context,
        parent_span_id=0 if note.parent is None else note.parent.span_id,
        kind=SpanKind.SERVER,
        start_ns=note.received_ns + send.wall_offset_ns,
        end_ns=send.end_ns + send.wall_offset_ns,
        attributes=said,
        links=tuple([SpanLink(context) for context in note.linked]),
        events=flushed,
        failure=note.failure,
        parent_is_remote=note.parent is not None,
    )


def _append(send: ResolvedSend) -> SpanData:
    note = send.send
    if not note.is_stored:
        return _child(
            send, "commitlog append", send.append_id, note.begun_ns, note.released_ns, {}, failure=note.failure
        )
    place: dict[str, AttributeValue] = {
        names.PHYSICAL_OFFSET: note.start_offset,
        names.STORED_BYTES: note.end_offset - note.start_offset,
        names.QUEUE_OFFSET: note.queue_offset,
    }
    return _child(send, "commitlog append", send.append_id, note.begun_ns, note.appended_ns, place)


def _replicate(send: ResolvedSend) -> SpanData:
    """From the append until enough slaves have it."""
    note = send.send
    said = wait_attributes(send)
    if send.lag_bytes >= 0:
        said[names.LAG_BYTES] = send.lag_bytes
    events = []
    for mark in send.marks:
        part: dict[str, AttributeValue] = {names.SLAVE: mark.slave, names.PHYSICAL_OFFSET: mark.offset}
        if mark.lag_bytes >= 0:
            part[names.LAG_BYTES] = mark.lag_bytes
        events.append(SpanEvent(mark.name, mark.at_ns + send.wall_offset_ns, part))
    return _child(
        send,
        "replicate wait",
        send.replicate_wait_id,
        note.appended_ns,
        send.replicate_wait_end_ns,
        said,
        events=tuple(events),
        failure=note.put_status if send.failed_replication else "",
    )


def _child(
    send: ResolvedSend,
    name: str,
    span_id: int,
    start_ns: int,
    end_ns: int,
    attributes: dict[str, AttributeValue],
    *,
    events: tuple[SpanEvent, ...] = (),
    failure: str = "",
) -> SpanData:
    parent = send.send.context
    return SpanData(
        name=name,
        context=TraceContext(parent.trace_id, span_id, True),
        parent_span_id=parent.span_id,
        kind=SpanKind.INTERNAL,
        start_ns=start_ns + send.wall_offset_ns,
        end_ns=max(start_ns, end_ns) + send.wall_offset_ns,
        attributes=attributes,
        events=events,
        failure=failure,
    )


# A slave's part in a send that its master traced, derived from what the slave noted of its reads.
#
# The replication protocol carries log bytes and nothing else, so a slave does not know which sends are traced when
# their bytes come. It notes when it came how far, and is told of the traced ones later (`TracedPut`). Its span is
# *linked* with the master's: a link says that the two belong together, and leaves each process to decide what it keeps.


class TracedPut(NamedTuple):
    """A send that the master traced: bytes [start_offset, end_offset) of the CommitLog."""

    # Counts up in one run of the master.
    sequence: int
    # The master's span that waited for slaves.
    context: TraceContext
    topic: str
    queue_id: int
    message_ids: tuple[str, ...]
    start_offset: int
    end_offset: int
    # Why the master traced it: a `RetainedFor`, or what a later version calls its reason.
    retained_for: str


made_put: Final = partial(tuple.__new__, TracedPut)
"""TracedPut of a tuple of its parts, without a frame of Python's."""


class TracedPutsPage(NamedTuple):
    """Some traced puts, oldest first. Numbers of another incarnation mean nothing."""

    incarnation: int
    puts: list[TracedPut]


@dataclass(slots=True)
class ReplicaTimelines:
    """When a slave had come how far. `reported`: what its master was told, which is what it acknowledges."""

    received: OffsetTimeline = field(default_factory=OffsetTimeline)
    appended: OffsetTimeline = field(default_factory=OffsetTimeline)
    flushed: OffsetTimeline = field(default_factory=OffsetTimeline)
    reported: OffsetTimeline = field(default_factory=OffsetTimeline)

    def begin_at(self, offset: int) -> None:
        """The log ends there and will go on from there. What it held before came to another process, or unseen."""
        for timeline in (self.received, self.appended, self.flushed, self.reported):
            timeline.begin_at(offset)


def replica_spans(
    put: TracedPut,
    timelines: ReplicaTimelines,
    *,
    reports_flushed_only: bool,
    broker: Mapping[str, AttributeValue],
    sampler: HeadSampler,
    wall_offset_ns: int,
) -> list[SpanData] | None:
    """`replica append` and its children; none of a put whose times are not known any more. None: it has not come yet,
    or is not reported yet. `broker` are attributes that tell where this was."""
    if timelines.reported.newest_offset < put.end_offset:
        return None
    begun = timelines.received.first_at_or_above(put.start_offset + 1)
    received = timelines.received.first_at_or_above(put.end_offset)
    appended = timelines.appended.first_at_or_above(put.end_offset)
    reported = timelines.reported.first_at_or_above(put.end_offset)
    if begun is None or received is None or appended is None or reported is None:
        return []
    root = sampler.new_root()
    flushed = timelines.flushed.first_at_or_above(put.end_offset)
    waited_for_disk = reports_flushed_only and flushed is not None
    steps = [("commitlog append", received.at_ns, appended.at_ns)]
    events: tuple[SpanEvent, ...] = ()
    written_ns = appended.at_ns
    if flushed is not None and waited_for_disk:
        steps.append(("flush wait", appended.at_ns, flushed.at_ns))
        written_ns = flushed.at_ns
    elif flushed is not None:
        events = (SpanEvent("flushed", flushed.at_ns + wall_offset_ns),)
    steps.append(("report", written_ns, reported.at_ns))
    place: dict[str, AttributeValue] = {
        names.MESSAGING_SYSTEM: names.MESSAGING_SYSTEM_ROCKETMQ,
        names.MESSAGING_DESTINATION_NAME: put.topic,
        names.MESSAGING_DESTINATION_PARTITION_ID: str(put.queue_id),
        **broker,
        names.PHYSICAL_OFFSET: put.start_offset,
        names.STORED_BYTES: put.end_offset - put.start_offset,
        names.RETAINED_FOR: put.retained_for,
    }
    if len(put.message_ids) == 1:
        place[names.MESSAGING_MESSAGE_ID] = put.message_ids[0]
    else:
        place[names.MESSAGE_IDS] = put.message_ids
    spans = [
        SpanData(
            name="replica append",
            context=root,
            parent_span_id=0,
            kind=SpanKind.INTERNAL,
            start_ns=begun.at_ns + wall_offset_ns,
            end_ns=max(begun.at_ns, reported.at_ns) + wall_offset_ns,
            attributes=place,
            links=(SpanLink(put.context),),
            events=events,
        )
    ]
    for name, start_ns, end_ns in steps:
        spans.append(
            SpanData(
                name=name,
                context=sampler.child_of(root),
                parent_span_id=root.span_id,
                kind=SpanKind.INTERNAL,
                start_ns=start_ns + wall_offset_ns,
                end_ns=max(start_ns, end_ns) + wall_offset_ns,
            )
        )
    return spans
