"""The spans of one send, derived from what was noted of it and of the log.

A send's own note has five times: read, put begun, appended, released, written. What it waited for in between is not
noted with the send: a flush and a slave's report say how far they came, for all sends at once (`OffsetTimeline`). So
every send can be traced after its answer is known, and one that is not costs next to nothing.

    received      begun   appended                      released  written
    |-- decode ---|--append--|-------- flush wait ----|      |--reply--|
                             |-------- replicate wait -------|
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mqcore.tracing import attributes as names
from mqcore.tracing.attributes import RetainedFor, text_of
from mqcore.tracing.head_sampler import HeadSampler
from mqcore.tracing.offset_timeline import OffsetTimeline
from mqcore.tracing.peer_attributes import peer_attributes
from mqcore.tracing.span_data import AttributeValue, SpanData, SpanEvent, SpanKind, SpanLink, made_event
from mqcore.tracing.trace_context import TraceContext

__all__ = ["AckPolicy", "LinkTimeline", "SendSpans", "TracedSend", "send_spans"]

RPC_METHOD: Final = "apache.rocketmq.v2.MessagingService/SendMessage"
# A module's global is cheaper than an attribute of the enum.
_INTERNAL: Final = SpanKind.INTERNAL
_SERVER: Final = SpanKind.SERVER
_NO_FACTS: Final[dict[str, AttributeValue]] = {}


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

    # Of the server's span.
    context: TraceContext
    parent: TraceContext | None
    # Contexts of the messages of a batch whose senders do not agree on one.
    linked: tuple[TraceContext, ...]
    retained_for: RetainedFor
    topic: str
    # Of the first messages, if there are many.
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


class SendSpans(NamedTuple):
    """Spans in the order of their beginnings, and which of them a slave's part is linked with."""

    spans: list[SpanData]
    replicated_in: TraceContext


class _Tree:
    """The server's span and its children in the making."""

    def __init__(self, send: TracedSend, sampler: HeadSampler, wall_offset_ns: int) -> None:
        self.send = send
        self.sampler = sampler
        self.wall_offset_ns = wall_offset_ns
        self.spans: list[SpanData] = []

    def child(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, AttributeValue],
        events: tuple[SpanEvent, ...] = (),
        failure: str = "",
    ) -> TraceContext:
        parent = self.send.context
        context = self.sampler.child_of(parent)
        start_ns += self.wall_offset_ns
        end_ns += self.wall_offset_ns
        self.spans.append(
            SpanData(  # By place: it takes all of them but two.
                name,
                context,
                parent.span_id,
                _INTERNAL,
                start_ns,
                max(start_ns, end_ns),
                attributes,
                (),
                events,
                failure,
            )
        )
        return context


def send_spans(
    send: TracedSend,
    *,
    flushes: OffsetTimeline,
    slaves: Sequence[LinkTimeline],
    policy: AckPolicy,
    broker: Mapping[str, AttributeValue],
    sampler: HeadSampler,
    wall_offset_ns: int,
) -> SendSpans:
    """All spans of a send that was answered, the server's first. `broker` are attributes that tell where this was."""
    tree = _Tree(send, sampler, wall_offset_ns)
    flushed_events: list[SpanEvent] = []
    replicated_in = send.context
    if send.begun_ns:
        _append(tree)
    if send.is_stored:
        flushed = flushes.first_at_or_above(send.end_offset)
        if policy.sync_flush and send.waits:
            reached_ns = send.released_ns if flushed is None else min(flushed.at_ns, send.released_ns)
            failure = send.put_status if send.put_status == "FLUSH_DISK_TIMEOUT" else ""
            tree.child("flush wait", send.appended_ns, reached_ns, {names.ACK_POLICY: policy.name}, failure=failure)
        elif flushed is not None:
            flushed_events.append(made_event(("flushed", flushed.at_ns + wall_offset_ns, _NO_FACTS)))
        if policy.waits_for_slaves and policy.needed_slaves and send.waits:
            replicated_in = _replicate(tree, slaves, policy)
    if send.written_ns > send.released_ns:
        tree.child("reply", send.released_ns, send.written_ns, _NO_FACTS)
    return SendSpans([_server(tree, policy, broker, flushed_events), *tree.spans], replicated_in)


def _server(tree: _Tree, policy: AckPolicy, broker: Mapping[str, AttributeValue], events: list[SpanEvent]) -> SpanData:
    send = tree.send
    attributes: dict[str, AttributeValue] = {
        names.RPC_SYSTEM_NAME: "grpc",
        names.RPC_METHOD: RPC_METHOD,
        names.MESSAGING_SYSTEM: names.MESSAGING_SYSTEM_ROCKETMQ,
        names.MESSAGING_DESTINATION_NAME: send.topic,
        names.MESSAGING_CLIENT_ID: send.client_id,
        **peer_attributes(send.peer),
        names.MESSAGING_MESSAGE_BODY_SIZE: send.body_bytes,
        **broker,
        names.ACK_POLICY: policy.name if send.waits else "ASYNC",
        names.RETAINED_FOR: text_of(send.retained_for),
    }
    if send.message_count == 1:
        attributes[names.MESSAGING_MESSAGE_ID] = send.message_ids[0]
    else:
        attributes[names.MESSAGING_BATCH_MESSAGE_COUNT] = send.message_count
        attributes[names.MESSAGE_IDS] = send.message_ids
    if send.tag:
        attributes[names.MESSAGING_ROCKETMQ_MESSAGE_TAG] = send.tag
    if send.queue_id >= 0:
        attributes[names.MESSAGING_DESTINATION_PARTITION_ID] = str(send.queue_id)
    if send.put_status:
        attributes[names.PUT_STATUS] = send.put_status
    if send.failure:
        attributes[names.ERROR_TYPE] = send.failure
    end_ns = max(send.written_ns, send.released_ns, send.received_ns)
    return SpanData(
        name=RPC_METHOD,
        context=send.context,
        parent_span_id=0 if send.parent is None else send.parent.span_id,
        kind=_SERVER,
        start_ns=send.received_ns + tree.wall_offset_ns,
        end_ns=end_ns + tree.wall_offset_ns,
        attributes=attributes,
        links=tuple([SpanLink(context) for context in send.linked]) if send.linked else (),
        events=tuple(events),
        failure=send.failure,
        parent_is_remote=send.parent is not None,
    )


def _append(tree: _Tree) -> None:
    send = tree.send
    if not send.is_stored:
        tree.child("commitlog append", send.begun_ns, send.released_ns, _NO_FACTS, failure=send.failure)
        return
    place: dict[str, AttributeValue] = {
        names.PHYSICAL_OFFSET: send.start_offset,
        names.STORED_BYTES: send.end_offset - send.start_offset,
        names.QUEUE_OFFSET: send.queue_offset,
    }
    tree.child("commitlog append", send.begun_ns, send.appended_ns, place)


def _replicate(tree: _Tree, slaves: Sequence[LinkTimeline], policy: AckPolicy) -> TraceContext:
    """From the append until enough slaves have it. An acknowledgement after that is an event, and not counted."""
    send = tree.send
    connected = [slave for slave in slaves if not slave.gone_ns or slave.gone_ns >= send.appended_ns]
    events: list[SpanEvent] = []
    # By slave: one that connected anew is still one.
    acknowledged_ns: dict[str, int] = {}
    lags: dict[str, int] = {}
    for slave in connected:
        before = slave.acknowledged.last_until(send.appended_ns)
        if before is not None:
            lags[slave.name] = send.end_offset - before.offset
        events += _transfer_events(tree, slave)
        acknowledged = slave.acknowledged.first_at_or_above(send.end_offset)
        if acknowledged is not None and acknowledged.at_ns <= send.released_ns:
            acknowledged_ns.setdefault(slave.name, acknowledged.at_ns)
    facts: dict[str, AttributeValue] = {
        names.ACK_POLICY: policy.name,
        names.ACKS_REQUIRED: policy.needed_slaves,
        names.ACKS_RECEIVED: len(acknowledged_ns),
        names.SLAVES_CONNECTED: len({slave.name for slave in connected}),
    }
    if lags:
        # Of the slave on which it hung.
        facts[names.LAG_BYTES] = sorted(lags.values())[min(policy.needed_slaves, len(lags)) - 1]
    failed = send.put_status in ("FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")
    reached_ns = sorted(acknowledged_ns.values())[policy.needed_slaves - 1 : policy.needed_slaves]
    return tree.child(
        "replicate wait",
        send.appended_ns,
        send.released_ns if failed or not reached_ns else reached_ns[0],
        facts,
        events=tuple(sorted(events, key=_at_ns)),
        failure=send.put_status if failed else "",
    )


def _at_ns(event: SpanEvent) -> int:
    return event.at_ns


def _transfer_events(tree: _Tree, slave: LinkTimeline) -> list[SpanEvent]:
    """When the put's last byte was given to a slave's socket, and when the slave said it has it."""
    end_offset = tree.send.end_offset
    events: list[SpanEvent] = []
    for name, timeline in (("sent", slave.sent), ("acknowledged", slave.acknowledged)):
        mark = timeline.first_at_or_above(end_offset)
        if mark is not None:
            facts: dict[str, AttributeValue] = {names.SLAVE: slave.name, names.PHYSICAL_OFFSET: mark.offset}
            known = slave.acknowledged.last_until(mark.at_ns)
            if known is not None:
                facts[names.LAG_BYTES] = max(0, end_offset - known.offset)
            events.append(made_event((name, mark.at_ns + tree.wall_offset_ns, facts)))
    return events
