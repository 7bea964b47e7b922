"""Traces of sends on a master: notes offsets and times as they pass, and makes spans of the few sends worth keeping.

A send is kept because its caller wants it traced or chance does, which is decided at its append, or because it was slow
or failed, which is known with its answer. What a kept one waited for is read from the timelines half a second later,
when further slaves have had their say too (`tandemmq.core.tracing.send_spans`). Nothing here raises into the write
path: a trace is never worth a message.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from tandemmq.broker.put import Place, Put, PutMeter
from tandemmq.core.clock import Clock
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.core.tracing import span_data as names
from tandemmq.core.tracing.send_spans import (
    AckPolicy,
    LinkTimeline,
    OffsetTimeline,
    ResolvedSend,
    SendSource,
    TracedPut,
    TracedPutsPage,
    TracedSend,
    made_put,
    resolved_send,
)
from tandemmq.core.tracing.span_data import (
    TRACEPARENT,
    HeadSampler,
    RetainedFor,
    TraceContext,
    TraceOptions,
    parse_traceparent,
    text_of,
)
from tandemmq.service.http2_call import Http2Call
from tandemmq.service.rpc import CLIENT_ID_HEADER, Call
from tandemmq.service.telemetry.span_export import SpanSink

# Which span a message's send was, for those who deliver it and want to link to it.

# A thousand traced sends a second are found for half a minute; about 150 bytes each.
_MESSAGES_MAX: Final = 30_000


class SendContexts:
    """The newest traced sends by the physical offset of their message.

    A message that brought a `traceparent` of its own needs none of this.
    """

    def __init__(self, *, messages_max: int = _MESSAGES_MAX) -> None:
        self._messages_max = messages_max
        self._contexts: OrderedDict[int, TraceContext] = OrderedDict()

    def note(self, physical_offset: int, context: TraceContext) -> None:
        """The send of the message there is traced, by this span. Forgets the oldest beyond the limit."""
        self._contexts[physical_offset] = context
        if len(self._contexts) > self._messages_max:
            self._contexts.popitem(last=False)

    def contexts_at(self, physical_offsets: Iterable[int]) -> dict[int, TraceContext]:
        """The spans of the sends of the messages there; of those that were traced, and not too long ago."""
        contexts = self._contexts
        return {physical_offset: contexts[physical_offset] for physical_offset in contexts.keys() & physical_offsets}


# The puts a master traced, kept for a while for its slaves to ask about.

# Slaves ask every second; at a thousand traced sends a second one may miss a question or two. About 300 bytes each.
_PUTS_MAX: Final = 4_000
PAGE_MAX: Final = 1_000


class TracedPuts:
    """The newest traced puts of one run of a master. Event loop only."""

    def __init__(self, *, incarnation: int) -> None:
        self._incarnation = incarnation
        self._puts: deque[TracedPut] = deque(maxlen=_PUTS_MAX)
        self._sequence = 0

    def note(self, send: TracedSend, context: TraceContext) -> None:
        """A stored send was traced; a slave's part is to be linked with `context`."""
        self._sequence += 1
        self._puts.append(
            made_put(
                (
                    self._sequence,
                    context,
                    send.topic,
                    send.queue_id,
                    send.message_ids,
                    send.start_offset,
                    send.end_offset,
                    text_of(send.retained_for),
                )
            )
        )

    def after(self, *, incarnation: int, sequence: int) -> TracedPutsPage:
        """At most `PAGE_MAX` puts after `sequence` of that incarnation; from the oldest for another one."""
        known = sequence if incarnation == self._incarnation else 0
        # Numbers are consecutive, so the place of the first one wanted is known.
        skipped = max(0, known - (self._sequence - len(self._puts)))
        puts = [self._puts[index] for index in range(skipped, min(len(self._puts), skipped + PAGE_MAX))]
        return TracedPutsPage(self._incarnation, puts)


# What all parts of a broker that make spans share.

_OFFSET_READINGS: Final = 3


@dataclass(frozen=True, slots=True)
class BrokerTracing:
    """There is none while tracing is off: what `is not None` decides costs a message nothing."""

    identity: BrokerIdentity
    clock: Clock
    options: TraceOptions
    sampler: HeadSampler
    sink: SpanSink
    # Told of a send as soon as it is known to be traced, in the turn of its append if chance or its caller decide.
    send_contexts: SendContexts = field(default_factory=SendContexts)

    def wall_offset_ns(self) -> int:
        """What a time on the monotonic clock lacks to be one on the wall clock; asked for when spans are made.

        The two are read one after the other, and the process may rest in between: the closest of some readings counts.
        """
        return min(self._offset_reading() for _ in range(_OFFSET_READINGS))[1]

    def _offset_reading(self) -> tuple[int, int]:
        """How long it took, and what it came to."""
        before_ns = self.clock.monotonic_ns()
        wall_ns = self.clock.wall_ns()
        took_ns = self.clock.monotonic_ns() - before_ns
        return took_ns, wall_ns - before_ns - took_ns // 2


log = structlog.get_logger(__name__)

_NS_PER_MS: Final = 1_000_000
# How long after its answer a send becomes spans: slaves that are not waited for acknowledge within it.
_RIPE_NS: Final = 500 * _NS_PER_MS
_BUILD_PAUSE_S: Final = 0.25
# Of one turn of the loop, which is about 2 ms.
_BUILT_AT_ONCE: Final = 32
# Waiting to become spans, for 0.75 s at most: 2,600 a second. Beyond it a send is not kept, and counted.
_KEPT_MAX: Final = 2_000
# Slow or failed ones between two buildings, 100 a second: when a slave is away all sends are, and tracing must not add
# to it.
_TAIL_MAX: Final = 25
# Connections that ended lately and may have had a part.
_GONE_LINKS_MAX: Final = 8
_NEVER_NS: Final = 1 << 62

# Looked up for every put: a module's global is cheaper than an attribute of the enum.
_PUT_OK: Final = PutStatus.PUT_OK
_FAILED: Final = RetainedFor.FAILED
_SLOW: Final = RetainedFor.SLOW
_SAMPLED: Final = RetainedFor.SAMPLED
# Of what clients choose themselves: of a text, of a message's id, and how many messages of a batch are told of.
_TEXT_MAX: Final = 1_024
_ID_MAX: Final = 256
_BATCH_TOLD_MAX: Final = 32


class SendTracer:
    """Of one master. Event loop only; the write path and the HA listener call it.

    `flushes` is told of every flush by the write path. A send that takes longer than `slow_ns` is kept for that.
    `dropped_count`: sends that were to be traced and found no room.
    """

    def __init__(self, tracing: BrokerTracing, meter: PutMeter, *, policy: AckPolicy) -> None:
        self._tracing = tracing
        self._meter = meter
        self._policy = policy
        self.slow_ns = _NEVER_NS
        self.options_changed()
        self._sampler = tracing.sampler
        self._source = SendSource(
            policy,
            {names.BROKER_GROUP: tracing.identity.broker_name, names.BROKER_ID: tracing.identity.broker_id},
        )
        self.flushes = OffsetTimeline()
        self._links: dict[int, LinkTimeline] = {}
        self._gone_links: deque[LinkTimeline] = deque(maxlen=_GONE_LINKS_MAX)
        self._kept: deque[TracedSend] = deque()
        self._unwritten: list[TracedSend] = []
        self._tail_left = _TAIL_MAX
        self.traced_puts = TracedPuts(incarnation=tracing.clock.wall_ns())
        self.dropped_count = 0
        self._has_failed = False

    def options_changed(self) -> None:
        """Sends are kept for their slowness by the options as they are now."""
        slow_ms = self._tracing.options.slow_ms
        self.slow_ns = slow_ms * _NS_PER_MS if slow_ms else _NEVER_NS

    # Slaves

    def slave_connected(self, link: int, peer: str) -> None:
        self._links[link] = LinkTimeline(peer)

    def slave_started(self, link: int, broker_id: int | None) -> None:
        """It said where it is; which slave it is may be known."""
        timeline = self._links.get(link)
        if timeline is not None:
            timeline.broker_id = broker_id

    def slave_gone(self, link: int, at_ns: int) -> None:
        """The connection ended."""
        timeline = self._links.pop(link, None)
        if timeline is not None:
            timeline.gone_ns = at_ns
            self._gone_links.append(timeline)

    def sent(self, link: int, offset: int, at_ns: int) -> None:
        """All below `offset` was given to a slave's socket."""
        timeline = self._links.get(link)
        if timeline is not None:
            timeline.sent.note(offset, at_ns)

    def acknowledged(self, link: int, offset: int, at_ns: int) -> None:
        """A slave has said that it has all below `offset`; -1: it has said nothing yet."""
        timeline = self._links.get(link)
        if timeline is not None and offset >= 0:
            timeline.acknowledged.note(offset, at_ns)

    # Sends

    @property
    def has_unwritten(self) -> bool:
        """Whether `replies_written` is of any use."""
        return bool(self._unwritten)

    def begin(self, call: Call | None, traceparents: Sequence[str]) -> int:
        """A put's append begins: the time, monotonic in ns, if it is to be traced; else -1. For every put."""
        if call is None:
            return -1  # Of this broker itself.
        try:
            if not traceparents and not _traceparent(call):
                # Nearly all of them.
                is_sampled = self._sampler.takes()
            else:
                is_sampled = self._is_sampled(call, traceparents)
        except Exception:
            self._tell_failure()
            return -1
        return self._tracing.clock.monotonic_ns() if is_sampled else -1

    def appended(self, put: Put) -> None:
        """A put that is to be traced is in the log; in the same turn, before anybody is given its messages."""
        if put.call is None:
            return
        try:
            self._locate(put, put.call)
        except Exception:
            self._tell_failure()

    def answered(self, put: Put, released_ns: int) -> None:
        """A put's sender has its answer. Nothing comes of it for a put that was not sampled, is well and was not slow,
        so that the write path may leave it out.
        """
        status = put.results[0].status
        if status is not _PUT_OK:
            why = _FAILED
        elif released_ns - put.received_ns > self.slow_ns:
            why = _SLOW
        elif put.place is not None:
            why = _SAMPLED
        else:
            return
        call = put.call
        if call is None or not self._has_room(is_sampled=put.place is not None):
            return
        try:
            send = self._noted(put, call, why)
            send.released_ns = released_ns
            self._kept.append(send)
            self._unwritten.append(send)
        except Exception:
            self._tell_failure()

    def refused(
        self, topic: str, message_ids: tuple[str, ...], call: Call, traceparents: Sequence[str], reason: str
    ) -> None:
        """A request was answered without a put. In the turn in which it was read."""
        if not self._has_room(is_sampled=False):
            return
        try:
            context, parent, linked = self._place(call, traceparents, len(message_ids))
            self._kept.append(
                TracedSend(
                    context=context,
                    parent=parent,
                    linked=linked,
                    retained_for=RetainedFor.FAILED,
                    topic=topic[:_TEXT_MAX],
                    message_ids=_told(message_ids),
                    message_count=len(message_ids),
                    body_bytes=0,
                    client_id=_header(call, CLIENT_ID_HEADER)[:_TEXT_MAX],
                    peer=call.peer,
                    received_ns=call.received_ns,
                    released_ns=self._tracing.clock.monotonic_ns(),
                    failure=reason,
                )
            )
        except Exception:
            self._tell_failure()

    def replies_written(self, at_ns: int) -> None:
        """The answers of the sends that were answered last were given to their sockets."""
        for send in self._unwritten:
            send.written_ns = at_ns
        self._unwritten.clear()

    # Spans

    async def run(self) -> None:
        """Makes spans of what was kept, until cancelled."""
        while True:
            await asyncio.sleep(_BUILD_PAUSE_S)
            self._tail_left = _TAIL_MAX
            ripe_ns = self._tracing.clock.monotonic_ns() - _RIPE_NS
            while self._build(ripe_ns, _BUILT_AT_ONCE):
                await asyncio.sleep(0)

    def build_all(self) -> None:
        """Makes spans of all that was kept: the broker stops."""
        self._build(_NEVER_NS, len(self._kept))

    def _build(self, ripe_ns: int, count: int) -> bool:
        """Of so many sends that were answered until then; whether there may be more."""
        kept = self._kept
        if not kept or kept[0].released_ns > ripe_ns:
            return False
        wall_offset_ns = self._tracing.wall_offset_ns()
        slaves = [*self._gone_links, *self._links.values()]
        made: list[ResolvedSend] = []
        for _ in range(count):
            if not kept or kept[0].released_ns > ripe_ns:
                break
            try:
                made.append(self._resolved(kept.popleft(), slaves, wall_offset_ns))
            except Exception:
                self._tell_failure()
        try:
            self._tracing.sink.add_sends(made)
        except Exception:
            self._tell_failure()
        return bool(kept)

    def _resolved(self, send: TracedSend, slaves: Sequence[LinkTimeline], wall_offset_ns: int) -> ResolvedSend:
        """Looks up what it waited for, and lets slaves ask for it."""
        resolved = resolved_send(
            send,
            self._source,
            flushes=self.flushes,
            slaves=slaves,
            sampler=self._sampler,
            wall_offset_ns=wall_offset_ns,
        )
        if send.is_stored:
            self.traced_puts.note(send, resolved.replicated_in)
        if send.put_status:
            self._note_exemplars(send, wall_offset_ns)
        return resolved

    # What is kept

    def _is_sampled(self, call: Call, traceparents: Sequence[str]) -> bool:
        """The caller's own decision, if there is one; a batch is traced if one of its messages is."""
        contexts = _parsed(traceparents or (_traceparent(call),))
        if not contexts:
            return self._sampler.takes()
        return any(context.is_sampled for context in contexts)

    def _has_room(self, *, is_sampled: bool) -> bool:
        """What was sampled has its room whatever becomes of it: those who deliver it link to it."""
        if len(self._kept) < _KEPT_MAX:
            if is_sampled:
                return True
            if self._tail_left:
                self._tail_left -= 1
                return True
        self.dropped_count += 1
        return False

    def _noted(self, put: Put, call: Call, why: RetainedFor) -> TracedSend:
        """What spans need of a put, without its bodies: those are let go with the answer."""
        messages = put.messages
        message, first = messages[0], put.results[0]
        context, parent, linked = put.place or self._locate(put, call)
        is_ok = first.status is _PUT_OK
        # A message is indexed by its id first.
        message_ids: tuple[str, ...] = (message.index_keys[0][:_ID_MAX],)
        body_bytes = len(message.body)
        waits = message.wait_store_ok
        if len(messages) > 1:
            message_ids = _told([each.index_keys[0] for each in messages[:_BATCH_TOLD_MAX]])
            body_bytes = sum([len(each.body) for each in messages])
            waits = any(each.wait_store_ok for each in messages)
        return TracedSend(
            context=context,
            parent=parent,
            linked=linked,
            retained_for=why,
            topic=message.topic,
            message_ids=message_ids,
            message_count=len(messages),
            body_bytes=body_bytes,
            client_id=_header(call, CLIENT_ID_HEADER)[:_TEXT_MAX],
            peer=call.peer,
            received_ns=put.received_ns,
            begun_ns=put.begun_ns,
            appended_ns=put.appended_ns,
            failure="" if is_ok else first.status.name,
            put_status="PUT_OK" if is_ok else first.status.name,
            tag=(message.tag or "")[:_TEXT_MAX],
            queue_id=message.queue_id,
            queue_offset=first.queue_offset,
            start_offset=put.start_offset,
            end_offset=put.end_offset,
            waits=waits,
        )

    def _locate(self, put: Put, call: Call) -> Place:
        """A put is traced: gives it its place, and tells those who deliver its messages."""
        place = put.place = self._place(call, put.traceparents, len(put.messages))
        for result in put.results:
            if result.status.stored:
                self._tracing.send_contexts.note(result.physical_offset, place[0])
        return place

    def _place(self, call: Call, traceparents: Sequence[str], message_count: int) -> Place:
        """A message's own context goes before its call's, and messages that do not agree on one are all linked."""
        parent: TraceContext | None = None
        linked: tuple[TraceContext, ...] = ()
        if traceparents:
            contexts = _parsed(traceparents)
            if len(contexts) == message_count and len(set(contexts)) == 1:
                parent = contexts[0]
            else:
                linked = tuple(dict.fromkeys(contexts))[:_BATCH_TOLD_MAX]
        if parent is None:
            header = _traceparent(call)
            parent = parse_traceparent(header) if header else None
        context = self._sampler.new_root() if parent is None else self._sampler.child_of(parent)
        return context, parent, linked

    def _note_exemplars(self, send: TracedSend, wall_offset_ns: int) -> None:
        """Of a put, now that its trace can be found."""
        policy = self._policy
        status = _PUT_OK if send.put_status == "PUT_OK" else PutStatus[send.put_status]
        acknowledged = policy.waits_for_slaves and send.waits and status is _PUT_OK
        self._meter.note_exemplars(
            send.context,
            status,
            wall_ms=(send.released_ns + wall_offset_ns) // _NS_PER_MS,
            duration_ns=send.released_ns - send.received_ns,
            ack_latency_ns=send.released_ns - send.appended_ns if acknowledged else None,
        )

    def _tell_failure(self) -> None:
        """Once: whatever is wrong with tracing is wrong with every message."""
        if not self._has_failed:
            self._has_failed = True
            log.exception("send_not_traced")


def _header(call: Call, name: str) -> str:
    """For the compiler, which calls a method of a class it knows without a search. Nearly all are of this one."""
    return call.header(name) if isinstance(call, Http2Call) else call.header(name)  # noqa: RUF034


def _traceparent(call: Call) -> str:
    """The call's own; "" for none. The usual class knows it without a search by name."""
    return call.traceparent if isinstance(call, Http2Call) else call.header(TRACEPARENT)


def _told(message_ids: Sequence[str]) -> tuple[str, ...]:
    return tuple([message_id[:_ID_MAX] for message_id in message_ids[:_BATCH_TOLD_MAX]])


def _parsed(traceparents: Sequence[str]) -> list[TraceContext]:
    """Those that are contexts; what is none is as if it were not there."""
    return [context for text in traceparents if (context := parse_traceparent(text)) is not None]
