"""A slave's part in a send that its master traced, derived from what the slave noted of its reads.

The replication protocol carries log bytes and nothing else, so a slave does not know which sends are traced when their
bytes come. It notes when it came how far, and is told of the traced ones later (`TracedPut`). Its span is *linked* with
the master's: a link says that the two belong together, and leaves each process to decide what it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from tandemmq.core.tracing import attributes as names
from tandemmq.core.tracing.send_spans import OffsetTimeline
from tandemmq.core.tracing.span_data import AttributeValue, SpanData, SpanEvent, SpanKind, SpanLink
from tandemmq.core.tracing.trace_context import HeadSampler, TraceContext

__all__ = ["ReplicaTimelines", "TracedPut", "TracedPutsPage", "replica_spans"]


class TracedPut(NamedTuple):
    """A send that the master traced: bytes [start_offset, end_offset) of the CommitLog."""

    # Counts up in one run of the master.
    sequence: int
    # The master's span that waited for slaves.
    context: TraceContext
    topic: str
    queue_id: int
    message_ids: tuple[str, ...]
    start_offset: int
    end_offset: int
    # Why the master traced it: a `RetainedFor`, or what a later version calls its reason.
    retained_for: str


made_put: Final = partial(tuple.__new__, TracedPut)
"""TracedPut of a tuple of its parts, without a frame of Python's."""


class TracedPutsPage(NamedTuple):
    """Some traced puts, oldest first. Numbers of another incarnation mean nothing."""

    incarnation: int
    puts: list[TracedPut]


@dataclass(slots=True)
class ReplicaTimelines:
    """When a slave had come how far. `reported`: what its master was told, which is what it acknowledges."""

    received: OffsetTimeline = field(default_factory=OffsetTimeline)
    appended: OffsetTimeline = field(default_factory=OffsetTimeline)
    flushed: OffsetTimeline = field(default_factory=OffsetTimeline)
    reported: OffsetTimeline = field(default_factory=OffsetTimeline)

    def begin_at(self, offset: int) -> None:
        """The log ends there and will go on from there. What it held before came to another process, or unseen."""
        for timeline in (self.received, self.appended, self.flushed, self.reported):
            timeline.begin_at(offset)


def replica_spans(
    put: TracedPut,
    timelines: ReplicaTimelines,
    *,
    reports_flushed_only: bool,
    broker: Mapping[str, AttributeValue],
    sampler: HeadSampler,
    wall_offset_ns: int,
) -> list[SpanData] | None:
    """`replica append` and its children; none of a put whose times are not known any more. None: it has not come yet,
    or is not reported yet. `broker` are attributes that tell where this was."""
    if timelines.reported.newest_offset < put.end_offset:
        return None
    begun = timelines.received.first_at_or_above(put.start_offset + 1)
    received = timelines.received.first_at_or_above(put.end_offset)
    appended = timelines.appended.first_at_or_above(put.end_offset)
    reported = timelines.reported.first_at_or_above(put.end_offset)
    if begun is None or received is None or appended is None or reported is None:
        return []
    root = sampler.new_root()
    flushed = timelines.flushed.first_at_or_above(put.end_offset)
    waited_for_disk = reports_flushed_only and flushed is not None
    steps = [("commitlog append", received.at_ns, appended.at_ns)]
    events: tuple[SpanEvent, ...] = ()
    written_ns = appended.at_ns
    if flushed is not None and waited_for_disk:
        steps.append(("flush wait", appended.at_ns, flushed.at_ns))
        written_ns = flushed.at_ns
    elif flushed is not None:
        events = (SpanEvent("flushed", flushed.at_ns + wall_offset_ns),)
    steps.append(("report", written_ns, reported.at_ns))
    place: dict[str, AttributeValue] = {
        names.MESSAGING_SYSTEM: names.MESSAGING_SYSTEM_ROCKETMQ,
        names.MESSAGING_DESTINATION_NAME: put.topic,
        names.MESSAGING_DESTINATION_PARTITION_ID: str(put.queue_id),
        **broker,
        names.PHYSICAL_OFFSET: put.start_offset,
        names.STORED_BYTES: put.end_offset - put.start_offset,
        names.RETAINED_FOR: put.retained_for,
    }
    if len(put.message_ids) == 1:
        place[names.MESSAGING_MESSAGE_ID] = put.message_ids[0]
    else:
        place[names.MESSAGE_IDS] = put.message_ids
    spans = [
        SpanData(
            name="replica append",
            context=root,
            parent_span_id=0,
            kind=SpanKind.INTERNAL,
            start_ns=begun.at_ns + wall_offset_ns,
            end_ns=max(begun.at_ns, reported.at_ns) + wall_offset_ns,
            attributes=place,
            links=(SpanLink(put.context),),
            events=events,
        )
    ]
    for name, start_ns, end_ns in steps:
        spans.append(
            SpanData(
                name=name,
                context=sampler.child_of(root),
                parent_span_id=root.span_id,
                kind=SpanKind.INTERNAL,
                start_ns=start_ns + wall_offset_ns,
                end_ns=max(start_ns, end_ns) + wall_offset_ns,
            )
        )
    return spans
