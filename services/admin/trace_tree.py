"""Spans of several brokers as the trees people look at: parents with children, a slave's part inside its master's wait.

A slave's part is a trace of its own that *links* to the master's span. For the eye it is put inside that span, and by
the master's clock: a part that, by its own clock, began before its bytes were sent, or was reported after the report
arrived, is moved by what the two clocks must differ, and that is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from admin.trace_findings import BrokerSpan
from mqcore.tracing import attributes as names
from mqcore.tracing.span_data import SpanData, SpanEvent, SpanKind
from mqcore.tracing.trace_context import TraceContext

__all__ = ["ClockShift", "TraceNode", "TraceTree", "trace_trees"]

_SHIFT_MIN_NS: Final = 100_000
"""Below 0.1 ms nobody sees it, and two processes of one machine look like that now and then."""
_DEPTH_MAX: Final = 32
_RECEIVED: Final = "commitlog append"
"""A slave's part begins with its first byte; this child of it begins when the last one was there."""


@dataclass(frozen=True, slots=True)
class ClockShift:
    """How far a broker's clock is ahead of another's; negative: behind. A guess, and by how much times were moved."""

    broker: str
    against: str
    ahead_ns: int


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A span in its place. Times are wall clock in ns, by the clock of the tree's root."""

    broker: str
    span: SpanData
    start_ns: int
    end_ns: int
    events: tuple[SpanEvent, ...]
    # By their beginnings.
    children: tuple[TraceNode, ...]
    # True: no child by its parent id, but a part of it by a link.
    is_linked: bool = False

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns

    def walk(self) -> Iterable[TraceNode]:
        """Itself, then all below it, depth first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class TraceTree:
    """One operation: a send, a delivery, an acknowledgement."""

    root: TraceNode
    shifts: tuple[ClockShift, ...]

    @property
    def start_ns(self) -> int:
        """When the first of it began: a linked part may begin a little before its parent."""
        return min(node.start_ns for node in self.root.walk())

    @property
    def end_ns(self) -> int:
        """When the last of it ended: a slave may append after the answer. Not the last event: an asynchronous flush
        comes half a second later, and everything else would be a point on that scale."""
        return max(node.end_ns for node in self.root.walk())

    @property
    def parts(self) -> list[tuple[str, int]]:
        """Where the root's time went, the longest first: its children, which may overlap, and what none of them covers
        (an empty name)."""
        root = self.root
        parts = [(child.span.name, child.duration_ns) for child in root.children if not child.is_linked]
        if not parts:
            return []
        covered, reached = 0, root.start_ns
        for child in root.children:
            start, end = max(child.start_ns, reached), min(child.end_ns, root.end_ns)
            if end > start and not child.is_linked:
                covered += end - start
                reached = end
        parts.append(("", root.duration_ns - covered))
        return sorted((part for part in parts if part[1] > 0), key=lambda part: -part[1])


def trace_trees(spans: Sequence[BrokerSpan]) -> list[TraceTree]:
    """All operations among `spans`, by their beginnings. A span whose parent is elsewhere is a root here."""
    forest = _Forest(spans)
    return sorted((forest.tree(root) for root in forest.roots), key=lambda tree: tree.start_ns)


class _Forest:
    def __init__(self, spans: Sequence[BrokerSpan]) -> None:
        self._children: dict[tuple[int, int], list[BrokerSpan]] = {}
        self._linked: dict[tuple[int, int], list[BrokerSpan]] = {}
        self.roots: list[BrokerSpan] = []
        known = {_place(one.span.context) for one in spans}
        for one in spans:
            parent = (one.span.context.trace_id, one.span.parent_span_id)
            linked = _linked_part(one.span, known)
            if parent in known and parent != _place(one.span.context):
                self._children.setdefault(parent, []).append(one)
            elif linked is not None:
                self._linked.setdefault(linked, []).append(one)
            else:
                self.roots.append(one)

    def tree(self, root: BrokerSpan) -> TraceTree:
        shifts: list[ClockShift] = []
        return TraceTree(self._node(root, 0, shifts, depth=0), tuple(shifts))

    def _node(
        self, one: BrokerSpan, shift_ns: int, shifts: list[ClockShift], *, depth: int, is_linked: bool = False
    ) -> TraceNode:
        span, place = one.span, _place(one.span.context)
        children: list[TraceNode] = []
        if depth < _DEPTH_MAX:
            own = self._children.get(place, ())
            children += [self._node(child, shift_ns, shifts, depth=depth + 1) for child in own]
            for part in self._linked.get(place, ()):
                own_ns = self._shift_of(part, one)
                if own_ns:
                    shifts.append(ClockShift(part.broker, one.broker, -own_ns))
                children.append(self._node(part, shift_ns + own_ns, shifts, depth=depth + 1, is_linked=True))
        return TraceNode(
            broker=one.broker,
            span=span,
            start_ns=span.start_ns + shift_ns,
            end_ns=span.end_ns + shift_ns,
            events=tuple(event._replace(at_ns=event.at_ns + shift_ns) for event in span.events),
            children=tuple(sorted(children, key=lambda node: (node.start_ns, node.end_ns))),
            is_linked=is_linked,
        )

    def _shift_of(self, part: BrokerSpan, master: BrokerSpan) -> int:
        """Nanoseconds to add to a slave's times so that nothing is known before it was told."""
        sent_ns, acknowledged_ns = _transfer(part, master.span)
        received_ns = part.span.start_ns
        for child in self._children.get(_place(part.span.context), ()):
            if child.span.name == _RECEIVED:
                received_ns = child.span.start_ns
        early_ns = sent_ns - received_ns
        if acknowledged_ns is None:
            shift_ns = max(0, early_ns)
        else:
            late_ns = part.span.end_ns - acknowledged_ns
            # As NTP does: the way there is taken to be as long as the way back.
            shift_ns = (early_ns - late_ns) // 2 if early_ns > 0 or late_ns > 0 else 0
        return shift_ns if abs(shift_ns) >= _SHIFT_MIN_NS else 0


def _linked_part(span: SpanData, known: set[tuple[int, int]]) -> tuple[int, int] | None:
    """Where a span belongs by its link. Deliveries link to their sends too, but are calls of their own."""
    if span.kind is not SpanKind.INTERNAL or span.parent_span_id:
        return None
    return next((place for link in span.links if (place := _place(link.context)) in known), None)


def _transfer(part: BrokerSpan, master: SpanData) -> tuple[int, int | None]:
    """When the master had sent the bytes to this slave, and when it got the report, if it did."""
    slaves = {event.attributes.get(names.SLAVE) for event in master.events if names.SLAVE in event.attributes}
    slave_id = part.broker.rpartition(":")[2]
    slave = slave_id if slave_id in slaves else next(iter(slaves), None) if len(slaves) == 1 else None
    sent_ns, acknowledged_ns = master.start_ns, None
    for event in master.events:
        if slave is None or event.attributes.get(names.SLAVE) != slave:
            continue
        if event.name == "sent":
            sent_ns = event.at_ns
        elif event.name == "acknowledged":
            acknowledged_ns = event.at_ns
    return sent_ns, acknowledged_ns


def _place(context: TraceContext) -> tuple[int, int]:
    return context.trace_id, context.span_id
