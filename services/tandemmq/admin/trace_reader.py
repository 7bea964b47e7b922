"""Asks all brokers of a cluster for what they know of a trace or of a message, and puts their answers together.

A send's spans are in its master's memory, the copy's in the slave's, a delivery's in whichever broker delivered: nobody
knows where, so everybody is asked. Who does not answer is part of the result.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import grpc
import grpc.aio

from tandemmq.admin.cluster_state import BrokerState
from tandemmq.admin.rpc import Channels, TraceCalls, error_text
from tandemmq.core.tracing.span_data import (
    AttributeValue,
    RetainedFor,
    SpanData,
    SpanEvent,
    SpanKind,
    SpanLink,
    TraceContext,
    message_ids_of,
    parse_traceparent,
)
from tandemmq.proto.admin.v1 import trace_service_pb2 as pb
from tandemmq.service.protobuf import as_value

if TYPE_CHECKING:
    from tandemmq.admin.cluster_reader import CachedCluster


# What brokers say about traces and single messages, as values.


@dataclass(frozen=True, slots=True)
class BrokerSpan:
    """A span and the broker that made it: `broker-a:0`."""

    broker: str
    span: SpanData


@dataclass(frozen=True, slots=True)
class TracingState:
    """How a broker traces, or why it did not say."""

    broker: str
    # Empty when it answered.
    error: str = ""
    tracing: bool = False
    # Share of sends without a context of their own.
    sample_rate: float = 0.0
    # 0: none is kept for its slowness.
    slow_threshold_ms: float = 0.0
    trace_count: int = 0
    # Wall clock; None when it remembers nothing.
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SlaveHolding:
    """Whether a slave holds a record, by its master."""

    # -1: it has not proven what it holds.
    broker_id: int
    missing_bytes: int


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """A record of a message in one replica."""

    broker: str
    topic: str
    # Where it was sent to, if it waits under another topic.
    real_topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    stored_bytes: int
    # By the client's clock.
    born_ms: int
    born_host: str
    # By the master's clock.
    stored_ms: int
    store_host: str
    # This replica has it on its disk.
    flushed: bool
    # As its master sees them; empty of a slave.
    slaves: tuple[SlaveHolding, ...]
    reconsume_times: int
    tag: str
    keys: str
    traceparent: str


@dataclass(frozen=True, slots=True)
class TraceFindings:
    """All that is known of a message, or of a trace."""

    # What was asked for.
    message_id: str
    trace_id: int
    brokers: tuple[TracingState, ...]
    spans: tuple[BrokerSpan, ...]
    # Spans that a broker did not keep, of traces found.
    dropped_span_count: int
    copies: tuple[StoredCopy, ...]
    # Brokers that answered, but not where the message lies.
    unsearched: tuple[TracingState, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceLine:
    broker: str
    trace_id: int
    name: str
    # Wall clock of the broker.
    start_ms: int
    duration_ms: float
    # sampled, slow or failed.
    retained_for: str
    failure: str
    topic: str
    message_ids: tuple[str, ...]
    message_count: int


@dataclass(frozen=True, slots=True)
class TraceList:
    """The newest traces of a cluster, slow and failed ones before the others, each newest first."""

    brokers: tuple[TracingState, ...]
    lines: tuple[TraceLine, ...]


# TraceService's protobuf messages as values. The edge: protobuf stops here.

_KINDS = {kind.value: kind for kind in SpanKind}


def tracing_state(broker: pb.TracingBroker) -> TracingState:
    return as_value(
        TracingState,
        broker,
        broker=_key(broker),
        slow_threshold_ms=broker.slow_threshold.ToNanoseconds() / 1e6,
        oldest_ms=broker.oldest_time.ToMilliseconds() if broker.HasField("oldest_time") else None,
    )


def spans_of(answer: pb.FindTracesResponse) -> tuple[list[BrokerSpan], int]:
    """All spans of an answer, and how many the broker did not keep."""
    key = _key(answer.broker)
    spans = [
        BrokerSpan(key, _span(span, int.from_bytes(trace.trace_id))) for trace in answer.traces for span in trace.spans
    ]
    return spans, sum(trace.dropped_span_count for trace in answer.traces)


def trace_lines(answer: pb.ListTracesResponse) -> list[TraceLine]:
    key = _key(answer.broker)
    return [
        as_value(
            TraceLine,
            summary,
            broker=key,
            trace_id=int.from_bytes(summary.trace_id),
            duration_ms=summary.duration.ToNanoseconds() / 1e6,
        )
        for summary in answer.traces
    ]


def stored_copies(answer: pb.FindMessageResponse) -> list[StoredCopy]:
    """Where a message lies in one replica."""
    key = _key(answer.broker)
    return [
        as_value(StoredCopy, message, broker=key, stored_ms=message.store_time.ToMilliseconds())
        for message in answer.messages
    ]


def _key(broker: pb.TracingBroker) -> str:
    return f"{broker.broker_name}:{broker.broker_id}"


def _span(span: pb.Span, trace_id: int) -> SpanData:
    return SpanData(
        name=span.name,
        context=TraceContext(trace_id, int.from_bytes(span.span_id), True),
        parent_span_id=int.from_bytes(span.parent_span_id),
        kind=_KINDS.get(span.kind, SpanKind.INTERNAL),
        start_ns=span.start_time.ToNanoseconds(),
        end_ns=span.end_time.ToNanoseconds(),
        attributes=_attributes(span.attributes),
        links=tuple(
            SpanLink(
                TraceContext(int.from_bytes(link.trace_id), int.from_bytes(link.span_id), True),
                _attributes(link.attributes),
            )
            for link in span.links
        ),
        events=tuple(
            SpanEvent(event.name, event.event_time.ToNanoseconds(), _attributes(event.attributes))
            for event in span.events
        ),
        failure=span.failure,
        parent_is_remote=span.parent_is_remote,
    )


def _attributes(attributes: Mapping[str, pb.AttributeValue]) -> dict[str, AttributeValue]:
    return {key: _value(attributes[key]) for key in sorted(attributes)}


def _value(value: pb.AttributeValue) -> AttributeValue:
    match value.WhichOneof("value"):
        case "whole":
            return value.whole
        case "number":
            return value.number
        case "flag":
            return value.flag
        case "list":
            return tuple(value.list.texts)
        case _:
            return value.text


AnswerT = TypeVar("AnswerT")

_ASKED_AT_ONCE: Final = 64
_FOLLOWED_MAX: Final = 8
"""Further traces of a message, or messages of a trace, that are asked for in a second round."""
_TOO_OLD: Final = "knows nothing of traces: its version is older"
_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
_SLAVES_PART: Final = "replica append"


class TraceReader:
    """Asks in rounds of 3 s at most for each 64 brokers; nothing is raised."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._slots = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def find(self, brokers: Sequence[BrokerState], key: str, *, topic: str = "") -> TraceFindings:
        """By a message id, a trace id or a whole traceparent."""
        trace_id = trace_id_of(key)
        if trace_id:
            findings = await self.of_trace(brokers, trace_id)
            if findings.spans or not key.isdecimal():
                return findings  # 32 decimal digits may be a message id of RocketMQ 4 as well.
        return await self.of_message(brokers, key, topic=topic)

    async def of_message(self, brokers: Sequence[BrokerState], message_id: str, *, topic: str = "") -> TraceFindings:
        """Everything about a message: its traces, and its records in the stores."""
        found = _Found(message_id=message_id)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._traces_of_message(brokers, message_id, found))
            copies = tasks.create_task(self._copies(brokers, message_id, topic))
        # Other brokers may have parts of these traces that do not name the message.
        brokers = found.that_answered(brokers)
        async with asyncio.TaskGroup() as tasks:
            for trace_id in found.trace_ids[:_FOLLOWED_MAX]:
                tasks.create_task(self._trace(brokers, trace_id, found))
        return found.findings(copies.result())

    async def of_trace(self, brokers: Sequence[BrokerState], trace_id: int) -> TraceFindings:
        """A trace, and what else is known of the messages it is about."""
        found = _Found(trace_id=trace_id)
        await self._trace(brokers, trace_id, found)
        brokers, message_ids = found.that_answered(brokers), found.message_ids
        async with asyncio.TaskGroup() as tasks:
            for message_id in message_ids[:_FOLLOWED_MAX]:
                tasks.create_task(self._traces_of_message(brokers, message_id, found))
        copies = await self._copies(brokers, message_ids[0], "") if len(message_ids) == 1 else _Copies((), ())
        return found.findings(copies)

    async def newest(self, brokers: Sequence[BrokerState], *, count: int, notable_only: bool = False) -> TraceList:
        """The newest traces of all brokers. A slave's parts are left out: they belong to their masters' traces."""
        answers = await self._ask(brokers, lambda calls: calls.newest(page_size=count, notable_only=notable_only))
        lines: list[TraceLine] = []
        for _, answer in answers:
            if answer is not None:
                lines += [line for line in trace_lines(answer) if line.name != _SLAVES_PART]
        lines.sort(key=lambda line: (line.retained_for == RetainedFor.SAMPLED, -line.start_ms))
        return TraceList(
            brokers=tuple(state if answer is None else tracing_state(answer.broker) for state, answer in answers),
            lines=tuple(lines[:count]),
        )

    async def _traces_of_message(self, brokers: Sequence[BrokerState], message_id: str, found: _Found) -> None:
        found.add(await self._ask(brokers, lambda calls: calls.find(message_id=message_id)))

    async def _trace(self, brokers: Sequence[BrokerState], trace_id: int, found: _Found) -> None:
        found.add(await self._ask(brokers, lambda calls: calls.find(trace_id=trace_id.to_bytes(16))))

    async def _copies(self, brokers: Sequence[BrokerState], message_id: str, topic: str) -> _Copies:
        answers = await self._ask(brokers, lambda calls: calls.message(message_id=message_id, topic=topic))
        return _Copies(
            found=tuple(copy for _, answer in answers if answer is not None for copy in stored_copies(answer)),
            failed=tuple(state for state, answer in answers if answer is None),
        )

    async def _ask(
        self, brokers: Sequence[BrokerState], question: Callable[[TraceCalls], Awaitable[AnswerT]]
    ) -> list[tuple[TracingState, AnswerT | None]]:
        """Each broker's answer, or None with a state that says why there is none."""

        async def ask_one(broker: BrokerState) -> tuple[TracingState, AnswerT | None]:
            if broker.error is not None:
                # It did not answer a moment ago; a broker that hangs would cost the time limit again.
                return TracingState(broker.key, error=broker.error), None
            if not broker.metadata_endpoint:
                return TracingState(broker.key, error="its address is not known"), None
            try:
                async with self._slots:
                    answer = await question(TraceCalls(self._channels, broker.metadata_endpoint))
            except grpc.aio.AioRpcError as error:
                is_old = error.code() is grpc.StatusCode.UNIMPLEMENTED
                return TracingState(broker.key, error=_TOO_OLD if is_old else error_text(error)), None
            return TracingState(broker.key), answer

        return list(await asyncio.gather(*(ask_one(broker) for broker in brokers)))


def trace_id_of(key: str) -> int:
    """The trace that a trace id or a traceparent names; 0 if it is a message id."""
    context = parse_traceparent(key.lower())
    if context is not None:
        return context.trace_id
    # A message id of RocketMQ 4 has 32 digits too, in upper case; OpenTelemetry writes lower case.
    return int(key, 16) if _TRACE_ID.fullmatch(key) else 0


class _Copies(NamedTuple):
    found: tuple[StoredCopy, ...]
    # Who did not say.
    failed: tuple[TracingState, ...]


class _Found:
    """What the rounds brought, each span once."""

    def __init__(self, *, message_id: str = "", trace_id: int = 0) -> None:
        self._message_id = message_id
        self._trace_id = trace_id
        self._states: dict[str, TracingState] = {}
        self._spans: dict[tuple[str, int, int], BrokerSpan] = {}
        self._dropped: dict[str, int] = {}

    def add(self, answers: Iterable[tuple[TracingState, pb.FindTracesResponse | None]]) -> None:
        for state, answer in answers:
            if answer is None:
                self._states[state.broker] = state
                continue
            self._states[state.broker] = tracing_state(answer.broker)
            spans, dropped = spans_of(answer)
            self._dropped[state.broker] = max(dropped, self._dropped.get(state.broker, 0))
            for found in spans:
                context = found.span.context
                self._spans[found.broker, context.trace_id, context.span_id] = found

    def that_answered(self, brokers: Sequence[BrokerState]) -> list[BrokerState]:
        """Who is worth a further question."""
        return [broker for broker in brokers if not self._states[broker.key].error]

    @property
    def trace_ids(self) -> list[int]:
        return list(dict.fromkeys(trace_id for _, trace_id, _ in self._spans))

    @property
    def message_ids(self) -> list[str]:
        named = (message_ids_of(one.span.attributes) for one in self._spans.values())
        return list(dict.fromkeys(chain.from_iterable(named)))

    def findings(self, copies: _Copies) -> TraceFindings:
        return TraceFindings(
            message_id=self._message_id or (self.message_ids[0] if len(self.message_ids) == 1 else ""),
            trace_id=self._trace_id,
            brokers=tuple(self._states.values()),
            spans=tuple(self._spans.values()),
            dropped_span_count=sum(self._dropped.values()),
            copies=copies.found,
            # Of who does not answer at all that is said already.
            unsearched=tuple(state for state in copies.failed if not self._states[state.broker].error),
        )


# Traces for the page and the HTTP API: asked of the brokers when somebody wants them, a few at a time.

_QUESTIONS_AT_ONCE: Final = 4
"""Each asks every broker of the cluster; who comes later waits."""


class ClusterTraces:
    """The brokers of the newest reading are asked."""

    def __init__(self, cluster: CachedCluster, channels: Channels) -> None:
        self._cluster = cluster
        self._reader = TraceReader(channels)
        self._slots = asyncio.Semaphore(_QUESTIONS_AT_ONCE)

    async def find(self, key: str, *, topic: str = "") -> TraceFindings:
        """By a message id, a trace id or a traceparent."""
        async with self._slots:
            return await self._reader.find(self._brokers, key, topic=topic)

    async def newest(self, *, count: int, notable_only: bool = False) -> TraceList:
        async with self._slots:
            return await self._reader.newest(self._brokers, count=count, notable_only=notable_only)

    @property
    def _brokers(self) -> tuple[BrokerState, ...]:
        return self._cluster.latest.state.brokers if self._cluster.latest is not None else ()
