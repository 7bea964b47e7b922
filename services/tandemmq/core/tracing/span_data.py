"""A span's place in a trace, a finished span as plain data, and the names of its attributes.

A span is made where the facts are; it is exported elsewhere, and later.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from tandemmq.core.routing.values import peer_host

# W3C Trace Context: the `traceparent` of a message or a call.
#
# Source: W3C Recommendation, Trace Context Level 1, 3.2.


TRACEPARENT: Final = "traceparent"
"""Name of the header, and of the message property."""

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED_FLAG: Final = 0x01


class TraceContext(NamedTuple):
    """One span's place: `trace_id` of 16 bytes and `span_id` of 8, both above 0."""

    trace_id: int
    span_id: int
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.is_sampled:02x}"


made_context: Final = partial(tuple.__new__, TraceContext)
"""TraceContext of a tuple of its parts, without a frame of Python's: five are made for a send that is traced."""


def parse_traceparent(text: str) -> TraceContext | None:
    """The context a header states; None for anything that is none, which is then as if it were not there.

    Versions above 00 may go on after the flags; ff is none.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest is not None):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED_FLAG))
    return context if context.trace_id and context.span_id else None


# Who begins a trace, and with which ids.

_NEVER: Final = 1 << 62


class HeadSampler:
    """Decides at the beginning of an operation. `chance` gives a float in [0, 1), `bits` an int of so many random
    bits.

    Chance is asked once for each operation taken: how many are let pass until the next one. That is the same as to ask
    it every time, and costs the others no more than to count.
    """

    def __init__(self, sample_rate: float, *, chance: Callable[[], float], bits: Callable[[int], int]) -> None:
        self._sample_rate = sample_rate
        self._log_passed = _log_passed(sample_rate)
        self._chance = chance
        self._bits = bits
        self._to_pass = self._drawn()

    @property
    def sample_rate(self) -> float:
        """Share of the operations without a context that are taken; it may change."""
        return self._sample_rate

    @sample_rate.setter
    def sample_rate(self, sample_rate: float) -> None:
        self._sample_rate = sample_rate
        self._log_passed = _log_passed(sample_rate)
        self._to_pass = self._drawn()

    def takes(self) -> bool:
        """Whether an operation that came without a context is to be traced."""
        if self._to_pass:
            self._to_pass -= 1
            return False
        self._to_pass = self._drawn()
        return True

    def child_of(self, parent: TraceContext) -> TraceContext:
        """A new span in the parent's trace, sampled whatever the parent was: who asks has decided to keep it."""
        made: TraceContext = made_context((parent.trace_id, self.new_span_id(), True))
        return made

    def new_root(self) -> TraceContext:
        made: TraceContext = made_context((self._bits(128) or 1, self.new_span_id(), True))
        return made

    def new_span_id(self) -> int:
        """A new id for one more span of a trace."""
        return self._bits(64) or 1

    def _drawn(self) -> int:
        """How many operations pass before the next one that is taken: n with the probability (1 - rate)^n * rate."""
        if self._sample_rate >= 1:
            return 0
        if self._sample_rate <= 0:
            return _NEVER
        return int(math.log1p(-self._chance()) / self._log_passed)


def _log_passed(sample_rate: float) -> float:
    """Logarithm of the share of traces that is kept; 0.0 where none or all are kept."""
    return math.log1p(-sample_rate) if 0 < sample_rate < 1 else 0.0


# What an operator decides about traces.


@dataclass(slots=True)
class TraceOptions:
    """When a trace is kept. A caller's own decision in its `traceparent` goes before `sample_rate`.

    Both may change while traces are made. The one who changes them tells those who keep a copy.
    """

    # Share of operations without a context, 0 to 1.
    sample_rate: float
    # An operation that takes longer, or fails, is kept whatever chance said. 0: none for its slowness.
    slow_ms: int


AttributeValue: TypeAlias = str | int | float | bool | tuple[str, ...]

_NONE: Final[Mapping[str, AttributeValue]] = MappingProxyType({})

# What is made with every span is no frozen dataclass, which takes five times as long, and has an `__init__` that the
# compiler knows, unlike a named tuple's or a dataclass's own.


class SpanKind(Enum):
    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"


class SpanEvent(NamedTuple):
    """Something that happened at one moment of a span. Wall clock in ns since the epoch."""

    name: str
    at_ns: int
    attributes: Mapping[str, AttributeValue] = _NONE


class SpanLink(NamedTuple):
    """Another span that this one has to do with."""

    context: TraceContext
    attributes: Mapping[str, AttributeValue] = _NONE


@dataclass(init=False, slots=True)
class SpanData:
    """One finished span, which nobody changes any more. Times are wall clock in ns since the epoch, `end_ns` >=
    `start_ns`."""

    name: str
    context: TraceContext
    # 0: a root.
    parent_span_id: int
    kind: SpanKind
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue]
    links: tuple[SpanLink, ...]
    events: tuple[SpanEvent, ...]
    # Empty unless the operation failed; then why.
    failure: str
    # True when the parent lives in another process.
    parent_is_remote: bool

    def __init__(
        self,
        name: str,
        context: TraceContext,
        parent_span_id: int,
        kind: SpanKind,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, AttributeValue] = _NONE,
        links: tuple[SpanLink, ...] = (),
        events: tuple[SpanEvent, ...] = (),
        failure: str = "",
        parent_is_remote: bool = False,
    ) -> None:
        self.name = name
        self.context = context
        self.parent_span_id = parent_span_id
        self.kind = kind
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.attributes = attributes
        self.links = links
        self.events = events
        self.failure = failure
        self.parent_is_remote = parent_is_remote


# Attribute names of our spans: OpenTelemetry's semantic conventions for messaging, v1.44, with their RocketMQ page.
#
# What the conventions have no name for starts with `tandemmq.`.

MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_SYSTEM_ROCKETMQ: Final = "rocketmq"
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGING_DESTINATION_PARTITION_ID: Final = "messaging.destination.partition.id"
MESSAGING_CONSUMER_GROUP_NAME: Final = "messaging.consumer.group.name"
MESSAGING_CLIENT_ID: Final = "messaging.client.id"
MESSAGING_MESSAGE_ID: Final = "messaging.message.id"
MESSAGING_MESSAGE_BODY_SIZE: Final = "messaging.message.body.size"
MESSAGING_BATCH_MESSAGE_COUNT: Final = "messaging.batch.message_count"
MESSAGING_ROCKETMQ_NAMESPACE: Final = "messaging.rocketmq.namespace"
MESSAGING_ROCKETMQ_MESSAGE_TYPE: Final = "messaging.rocketmq.message.type"
MESSAGING_ROCKETMQ_MESSAGE_TAG: Final = "messaging.rocketmq.message.tag"
MESSAGING_ROCKETMQ_MESSAGE_KEYS: Final = "messaging.rocketmq.message.keys"
MESSAGING_ROCKETMQ_MESSAGE_GROUP: Final = "messaging.rocketmq.message.group"
RPC_SYSTEM_NAME: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
RPC_RESPONSE_STATUS_CODE: Final = "rpc.response.status_code"
NETWORK_PEER_ADDRESS: Final = "network.peer.address"
NETWORK_PEER_PORT: Final = "network.peer.port"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"

# Ours. Offsets are physical, in bytes of the CommitLog.
BROKER_GROUP: Final = "tandemmq.broker_group"
BROKER_ID: Final = "tandemmq.broker_id"
ACK_POLICY: Final = "tandemmq.ack.policy"
"""ASYNC, SYNC_REPLICATION, SYNC_FLUSH or both: what the send waited for."""
ACKS_REQUIRED: Final = "tandemmq.ack.required"
ACKS_RECEIVED: Final = "tandemmq.ack.received"
LAG_BYTES: Final = "tandemmq.lag_bytes"
"""How far a slave was behind the end of the put."""
SLAVES_CONNECTED: Final = "tandemmq.slaves_connected"
MESSAGE_IDS: Final = "tandemmq.message_ids"
"""The ids of a batch, which has no `messaging.message.id`."""
SLAVE: Final = "tandemmq.slave"
PHYSICAL_OFFSET: Final = "tandemmq.physical_offset"
QUEUE_OFFSET: Final = "tandemmq.queue_offset"
STORED_BYTES: Final = "tandemmq.stored_bytes"
PUT_STATUS: Final = "tandemmq.put_status"
EPOCH: Final = "tandemmq.epoch"
CHANGE_REASON: Final = "tandemmq.failover.reason"
"""Of a change of master, in words."""
RETAINED_FOR: Final = "tandemmq.trace.retained_for"
"""Why the trace was kept: a `RetainedFor`."""


class RetainedFor(StrEnum):
    """Why a broker kept a trace."""

    # The caller's context says so, or chance did.
    SAMPLED = "sampled"
    # Decided when the answer was known.
    SLOW = "slow"
    FAILED = "failed"


def text_of(retained_for: RetainedFor) -> str:
    """Its value; that of an enum's member takes long to read."""
    if retained_for is _SAMPLED:
        return "sampled"
    return "slow" if retained_for is _SLOW else "failed"


_SAMPLED: Final = RetainedFor.SAMPLED
_SLOW: Final = RetainedFor.SLOW


def message_ids_of(attributes: Mapping[str, AttributeValue]) -> tuple[str, ...]:
    """The messages that a span, an event or a link names: one, those of a batch, or none."""
    named = attributes.get(MESSAGING_MESSAGE_ID) or attributes.get(MESSAGE_IDS) or ()
    return named if isinstance(named, tuple) else (str(named),)


# Who called, as spans tell it.


@lru_cache(maxsize=1_024)
def peer_attributes(peer: str) -> Mapping[str, AttributeValue]:
    """Address and port of `ipv4:10.0.0.7:51234` or `ipv6:[::1]:51234`, whose brackets gRPC writes %5B and %5D.

    Nothing for what is neither. Callers share the mapping.
    """
    host, port = peer_host(peer), peer.rpartition(":")[2]
    return {NETWORK_PEER_ADDRESS: host, NETWORK_PEER_PORT: int(port)} if host and port.isdecimal() else {}
