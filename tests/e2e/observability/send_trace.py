"""One send's trace out of what a collector received: the tree in the master and the slave's part linked to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from e2e.observability.otel_collector import CollectedSpan

SERVER: Final = "apache.rocketmq.v2.MessagingService/SendMessage"


class TraceIncomplete(Exception):
    """Not all of the trace is there, perhaps not yet; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class SendTrace:
    """Both replicas' spans of one send."""

    client: CollectedSpan
    server: CollectedSpan
    append: CollectedSpan
    replicate_wait: CollectedSpan
    reply: CollectedSpan
    replica_append: CollectedSpan
    all_spans: tuple[CollectedSpan, ...]

    def event_ns(self, name: str) -> int:
        """When the master noted an event of its `replicate wait`."""
        return next(at_ns for event, at_ns, _ in self.replicate_wait.events if event == name)


def send_trace(spans: Iterable[CollectedSpan], trace_id: str) -> SendTrace:
    """The trace of that id. Raises TraceIncomplete."""
    every = list(spans)
    own = [span for span in every if span.trace_id == trace_id]
    server = _one(own, SERVER)
    children = [span for span in own if span.parent_id == server.span_id]
    wait = _one(children, "replicate wait")
    linked = [span for span in every if (trace_id, wait.span_id) in span.links]
    return SendTrace(
        client=_one(own, "send shop-orders", "send shop-payments"),
        server=server,
        append=_one(children, "commitlog append"),
        replicate_wait=wait,
        reply=_one(children, "reply"),
        replica_append=_one(linked, "replica append"),
        all_spans=(*own, *linked),
    )


def _one(spans: Sequence[CollectedSpan], *names: str) -> CollectedSpan:
    found = [span for span in spans if span.name in names]
    if len(found) != 1:
        raise TraceIncomplete(f"{len(found)} spans {' or '.join(names)} among {sorted(span.name for span in spans)}")
    return found[0]
