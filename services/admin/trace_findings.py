"""What brokers say about traces and single messages, as values."""

from __future__ import annotations

from dataclasses import dataclass

from mqcore.tracing.span_data import SpanData

__all__ = [
    "BrokerSpan",
    "SlaveHolding",
    "StoredCopy",
    "TraceFindings",
    "TraceLine",
    "TraceList",
    "TracingState",
]


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
    """A trace in one line."""

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
