"""Traces of messages: contexts, what a span is made of, which messages get them. Pure; exporting is `mqservice`'s."""

from mqcore.tracing.attributes import RetainedFor
from mqcore.tracing.head_sampler import HeadSampler
from mqcore.tracing.options import TraceOptions
from mqcore.tracing.recent_spans import KeptTrace, RecentSpans
from mqcore.tracing.resolved_send import ResolvedSend
from mqcore.tracing.span_data import SpanData, SpanEvent, SpanKind, SpanLink
from mqcore.tracing.trace_context import TRACEPARENT, TraceContext, parse_traceparent

__all__ = [
    "TRACEPARENT",
    "HeadSampler",
    "KeptTrace",
    "RecentSpans",
    "ResolvedSend",
    "RetainedFor",
    "SpanData",
    "SpanEvent",
    "SpanKind",
    "SpanLink",
    "TraceContext",
    "TraceOptions",
    "parse_traceparent",
]
