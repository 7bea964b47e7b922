"""A finished span as plain data: made where the facts are, exported elsewhere and later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from mqcore.tracing.trace_context import TraceContext

__all__ = ["AttributeValue", "SpanData", "SpanEvent", "SpanKind", "SpanLink"]

AttributeValue: TypeAlias = str | int | float | bool | tuple[str, ...]


class SpanKind(Enum):
    """OpenTelemetry's span kinds."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at one moment of a span. Wall clock in ns since the epoch."""

    name: str
    at_ns: int
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanLink:
    """Another span that this one has to do with."""

    context: TraceContext
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanData:
    """One finished span. Times are wall clock in ns since the epoch, `end_ns` >= `start_ns`."""

    name: str
    context: TraceContext
    # 0: a root.
    parent_span_id: int
    kind: SpanKind
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    links: tuple[SpanLink, ...] = ()
    events: tuple[SpanEvent, ...] = ()
    # Empty unless the operation failed; then why.
    failure: str = ""
    # True when the parent lives in another process.
    parent_is_remote: bool = False
