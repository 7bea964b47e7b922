"""A finished span as plain data: made where the facts are, exported elsewhere and later."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from mqcore.tracing.trace_context import TraceContext

__all__ = ["AttributeValue", "SpanData", "SpanEvent", "SpanKind", "SpanLink"]

AttributeValue: TypeAlias = str | int | float | bool | tuple[str, ...]

_NONE: Final[Mapping[str, AttributeValue]] = MappingProxyType({})

# Named tuples: a broker makes four spans of a send, and a frozen dataclass takes five times as long.


class SpanKind(Enum):
    """OpenTelemetry's span kinds."""

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


class SpanData(NamedTuple):
    """One finished span. Times are wall clock in ns since the epoch, `end_ns` >= `start_ns`."""

    name: str
    context: TraceContext
    # 0: a root.
    parent_span_id: int
    kind: SpanKind
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue] = _NONE
    links: tuple[SpanLink, ...] = ()
    events: tuple[SpanEvent, ...] = ()
    # Empty unless the operation failed; then why.
    failure: str = ""
    # True when the parent lives in another process.
    parent_is_remote: bool = False
