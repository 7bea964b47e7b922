"""A finished span as plain data: made where the facts are, exported elsewhere and later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from tandemmq.core.tracing.trace_context import TraceContext

__all__ = ["AttributeValue", "SpanData", "SpanEvent", "SpanKind", "SpanLink"]

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
