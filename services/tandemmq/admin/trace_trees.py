"""Spans of several brokers as the trees people look at: parents with children, a slave's part inside its master's wait.

A slave's part is a trace of its own that *links* to the master's span. For the eye it is put inside that span, and by
the master's clock: a part that, by its own clock, began before its bytes were sent, or was reported after the report
arrived, is moved by what the two clocks must differ, and that is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from tandemmq.core.tracing import span_data as names
from tandemmq.core.tracing.span_data import AttributeValue, SpanData, SpanEvent, SpanKind, TraceContext
from tandemmq.service.texts import bytes_text, nanoseconds_text, wall_text

if TYPE_CHECKING:
    from tandemmq.admin.trace_reader import BrokerSpan, StoredCopy, TraceFindings, TraceLine, TraceList, TracingState

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


# What traces and stored messages are called where people read them, in the terminal and on the page.

_SEND: Final = "SendMessage"
_OPERATIONS: Final = {
    _SEND: "send",
    "ReceiveMessage": "receive",
    "AckMessage": "acknowledge",
    "ChangeInvisibleDuration": "change of visibility",
    "ForwardMessageToDeadLetterQueue": "to the dead letter queue",
    "EndTransaction": "end of transaction",
}
_REASONS: Final = {
    "sampled": "kept because it was sampled",
    "slow": "kept because it was slow",
    "failed": "kept because it failed",
}
_PARTS_SHOWN: Final = 5


def short_name(name: str) -> str:
    """`SendMessage` of apache.rocketmq.v2.MessagingService/SendMessage; other names as they are."""
    return name.rpartition("/")[2] or name


def operation_name(name: str) -> str:
    """What a call is called by people: `send`."""
    return _OPERATIONS.get(short_name(name), short_name(name))


def operation(tree: TraceTree) -> str:
    """What a tree is about, for its heading: `send to shop.orders`, `receive by billing`."""
    span = tree.root.span
    called = operation_name(span.name)
    topic = str(span.attributes.get(names.MESSAGING_DESTINATION_NAME, ""))
    group = str(span.attributes.get(names.MESSAGING_CONSUMER_GROUP_NAME, ""))
    if group:
        return f"{called} by {group}" + (f" from {topic}" if topic and called == "receive" else "")
    return f"{called} to {topic}" if called == "send" and topic else called


def outcome(tree: TraceTree) -> tuple[str, bool]:
    """How it ended and whether that is good: `FLUSH_SLAVE_TIMEOUT`, False."""
    span = tree.root.span
    if span.failure:
        return span.failure, False
    failure = next((node.span.failure for node in tree.root.walk() if node.span.failure), "")
    if failure:
        return failure, False
    return str(span.attributes.get(names.PUT_STATUS, "")) or "ok", True


def facts(node: TraceNode) -> list[str]:
    """What is worth reading beside a span's name; the rest of its attributes is for those who ask."""
    attributes = node.span.attributes
    found = [text for name, say in _FACTS if name in attributes and (text := say(attributes[name], attributes))]
    return [*found, *([node.span.failure] if node.span.failure else [])]


def event_text(event: SpanEvent) -> str:
    """An event and what it says: `sent to slave 1, lag 412 B`."""
    attributes = event.attributes
    slave = attributes.get(names.SLAVE)
    text = event.name
    if slave is not None:
        text += f" {'to' if event.name == 'sent' else 'by'} slave {slave}"
    lag = attributes.get(names.LAG_BYTES)
    if isinstance(lag, int) and lag > 0:
        text += f", {bytes_text(lag)} behind"
    return text


def reason_text(tree: TraceTree) -> str:
    """Why the broker kept it; empty if it does not say."""
    return _REASONS.get(str(tree.root.span.attributes.get(names.RETAINED_FOR, "")), "")


def shift_text(shift: ClockShift) -> str:
    """That two clocks differ, and what was done about it."""
    direction = "ahead of" if shift.ahead_ns > 0 else "behind"
    by = nanoseconds_text(abs(shift.ahead_ns))
    return f"the clock of {shift.broker} is about {by} {direction} that of {shift.against}: its part was moved"


def parts_text(tree: TraceTree) -> str:
    """Where the root's time went, the longest parts first: `of 6 ms: 5 ms replicate wait, 1 ms elsewhere`; or empty."""
    parts = ", ".join(f"{nanoseconds_text(took)} {name or 'elsewhere'}" for name, took in tree.parts[:_PARTS_SHOWN])
    return f"of {nanoseconds_text(tree.root.duration_ns)}: {parts}" if parts else ""


def messages_text(line: TraceLine) -> str:
    """The message a trace is about, its id whole for copying, and how many more there are; empty if it names none."""
    if not line.message_ids:
        return ""
    return line.message_ids[0] + (f" and {line.message_count - 1} more" if line.message_count > 1 else "")


def missing(findings: TraceFindings, trees: Sequence[TraceTree]) -> list[str]:
    """What is not shown, so that it is not taken for what is not there."""
    lines = unanswered(findings.brokers, findings.unsearched)
    for tree in trees:
        lines += _missing_parts(tree, findings.brokers)
    if findings.dropped_span_count:
        lines.append(f"{findings.dropped_span_count:,} more spans of these traces were not kept")
    return lines


def unanswered(brokers: Sequence[TracingState], unsearched: Sequence[TracingState] = ()) -> list[str]:
    """Who did not answer."""
    return [
        *(
            f"{state.broker} does not answer ({state.error}): what it kept is missing here"
            for state in brokers
            if state.error
        ),
        *(
            f"{state.broker} did not say whether it holds the message ({state.error}): with the topic it is quicker"
            for state in unsearched
        ),
    ]


def _missing_parts(tree: TraceTree, brokers: Sequence[TracingState]) -> list[str]:
    """Why a send that waited for slaves shows no slave's part; who does not answer is told by `unanswered`."""
    waits = [node for node in tree.root.walk() if names.ACKS_REQUIRED in node.span.attributes]
    if not waits or any(node.is_linked for node in tree.root.walk()):
        return []
    master = tree.root.broker
    group = master.rpartition(":")[0]
    return [
        f"{state.broker} has no part of it: {_WHY_NONE[state.tracing]}"
        for state in brokers
        if state.broker.rpartition(":")[0] == group and state.broker != master and not state.error
    ]


_WHY_NONE: Final = {
    True: "it has not got the bytes yet, or not yet asked its master what was traced, which it does once a second",
    False: "traceEnable is off there",
}


def advice(findings: TraceFindings) -> list[str]:
    """Why there is no trace of a send, and how to get one of the next. Empty if there is one."""
    has_send = any(short_name(one.span.name) == _SEND for one in findings.spans)
    if has_send or (findings.spans and not findings.message_id):
        return []
    answered = [state for state in findings.brokers if not state.error]
    if not answered:
        return ["no broker answers: see `tandemmq status`"]
    if not findings.copies:
        return _nothing_known(findings, answered)
    # The record that came first, in its master: that is who would have kept the trace of the send.
    stored = min(findings.copies, key=lambda copy: (copy.stored_ms, copy.broker))
    master = next((state for state in answered if state.broker == stored.broker), answered[0])
    if not master.tracing:
        return [f"{master.broker} keeps no traces: traceEnable is off", _HOW_TO_TRACE]
    if master.oldest_ms is None or stored.stored_ms < master.oldest_ms:
        reach = "is empty" if master.oldest_ms is None else f"reaches back to {wall_text(master.oldest_ms)}"
        return [
            f"if {master.broker} kept a trace it is forgotten by now: its memory {reach}",
            "a receiver named by traceExporterTarget keeps traces for longer",
        ]
    if master.sample_rate >= 1:
        return [
            f"{master.broker} traces every send, unless its traceparent says not to",
            "the trace is finished when the bytes are on disk: look again in a second",
        ]
    return [f"{master.broker} keeps {_kept_share(master)}: this send was none of them", _HOW_TO_TRACE]


_HOW_TO_TRACE: Final = (
    "to trace every send set traceEnable=true and traceSampleRate=1.0 (the chart's tracing.enabled and "
    "tracing.sampleRate; locally `tandemmq up --tracing`), or send a message with a sampled traceparent property"
)


def _nothing_known(findings: TraceFindings, answered: Sequence[TracingState]) -> list[str]:
    if findings.trace_id:
        lines = [f"no broker remembers trace {findings.trace_id:032x}"]
        if not any(state.tracing for state in answered):
            return [*lines, "none keeps traces: traceEnable is off", _HOW_TO_TRACE]
        return [*lines, "their memory is bounded; a receiver named by traceExporterTarget keeps traces for longer"]
    return [
        f"no broker that answers knows a message {findings.message_id}",
        "check the id and the cluster; it may also have expired, or never been stored",
    ]


def _kept_share(state: TracingState) -> str:
    share = f"{state.sample_rate * 100:g} % of the sends"
    if not state.slow_threshold_ms:
        return f"{share}, and those that fail"
    return f"{share}, those that take more than {state.slow_threshold_ms:g} ms, and those that fail"


def copy_facts(copies: Sequence[StoredCopy]) -> list[list[tuple[str, str]]]:
    """Where a message lies: for each record of it a label and a line for each thing known, the newest record first. A
    sender that tried again, a redelivery or a delay makes several."""
    records: dict[tuple[str, int], list[StoredCopy]] = {}
    for copy in sorted(copies, key=lambda copy: copy.stored_ms, reverse=True):
        group = copy.broker.rpartition(":")[0]
        records.setdefault((group, copy.physical_offset), []).append(copy)
    return [_record_facts(sorted(record, key=lambda copy: copy.broker)) for record in records.values()]


def _record_facts(copies: Sequence[StoredCopy]) -> list[tuple[str, str]]:
    one = copies[0]
    place = f"{one.topic}, queue {one.queue_id}, offset {one.queue_offset:,}"
    if one.real_topic:
        place += f", on its way to {one.real_topic}"
    if one.reconsume_times:
        place += f", delivered {one.reconsume_times} times before"
    end_offset = one.physical_offset + one.stored_bytes
    delay_ms = one.stored_ms - one.born_ms
    apart = f"{delay_ms:,} ms before" if delay_ms >= 0 else f"{-delay_ms:,} ms later: the clocks differ"
    return [
        ("stored", f"{wall_text(one.stored_ms)} in {place}"),
        ("record", f"CommitLog bytes {one.physical_offset:,} to {end_offset:,} ({bytes_text(one.stored_bytes)})"),
        ("born", f"{wall_text(one.born_ms)} on {one.born_host}, by its clock {apart}"),
        *(("copy", f"{copy.broker}, {_DISK[copy.flushed]}") for copy in copies),
        *(("copy", text) for text in _acknowledged_copies(copies)),
    ]


_DISK: Final = {True: "on disk", False: "in memory, not yet on disk"}


def _acknowledged_copies(copies: Sequence[StoredCopy]) -> list[str]:
    """What a master says of slaves that did not answer themselves."""
    holders = {copy.broker for copy in copies}
    found = []
    for copy in copies:
        for slave in copy.slaves:
            key = f"{copy.broker.rpartition(':')[0]}:{slave.broker_id}"
            if key in holders:
                continue
            name = key if slave.broker_id >= 0 else "a slave that has not proven what it holds"
            held = f"lacks {bytes_text(slave.missing_bytes)} of it" if slave.missing_bytes else "has acknowledged it"
            found.append(f"{name}, which {held}")
    return found


_Attributes = Mapping[str, AttributeValue]


def _acks(received: AttributeValue, attributes: _Attributes) -> str:
    required = attributes.get(names.ACKS_REQUIRED, received)
    return f"{received} of {required} {'slave' if required == 1 else 'slaves'}"


# In the order in which they are said.
_FACTS: Final[Sequence[tuple[str, Callable[[AttributeValue, _Attributes], str]]]] = (
    (names.MESSAGING_BATCH_MESSAGE_COUNT, lambda count, _: f"{count} messages"),
    (names.ACKS_RECEIVED, _acks),
    (names.LAG_BYTES, lambda lag, _: f"slave was {bytes_text(lag)} behind" if isinstance(lag, int) else ""),
    (names.STORED_BYTES, lambda count, _: bytes_text(count) if isinstance(count, int) else ""),
    (names.PHYSICAL_OFFSET, lambda offset, _: f"at {offset:,}" if isinstance(offset, int) else ""),
    (names.NETWORK_PEER_ADDRESS, lambda address, _: f"from {address}" if address else ""),
)


# Traces as JSON for programs: `tandemmq trace --json` and the admin service say the same.


def findings_document(findings: TraceFindings) -> dict[str, Any]:
    """All that is known of a message or a trace. Times are in ns since the epoch; a slave's, by its master's clock."""
    trees = trace_trees(findings.spans)
    return {
        "message_id": findings.message_id,
        "trace_id": f"{findings.trace_id:032x}" if findings.trace_id else "",
        "brokers": [asdict(state) for state in findings.brokers],
        "stored": [asdict(copy) for copy in findings.copies],
        "operations": [_tree(tree) for tree in trees],
        "dropped_span_count": findings.dropped_span_count,
        "notes": [*missing(findings, trees), *advice(findings)],
    }


def list_document(found: TraceList) -> dict[str, Any]:
    return {
        "brokers": [asdict(state) for state in found.brokers],
        "traces": [{**asdict(line), "trace_id": f"{line.trace_id:032x}"} for line in found.lines],
    }


def _tree(tree: TraceTree) -> dict[str, Any]:
    return {
        "trace_id": f"{tree.root.span.context.trace_id:032x}",
        "clock_shifts": [asdict(shift) for shift in tree.shifts],
        "span": _node(tree.root),
    }


def _node(node: TraceNode) -> dict[str, Any]:
    span = node.span
    return {
        "span_id": f"{span.context.span_id:016x}",
        "trace_id": f"{span.context.trace_id:032x}",
        "parent_span_id": f"{span.parent_span_id:016x}" if span.parent_span_id else "",
        "broker": node.broker,
        "name": span.name,
        "kind": span.kind.value,
        "linked": node.is_linked,
        "start_ns": node.start_ns,
        "end_ns": node.end_ns,
        "failure": span.failure,
        "attributes": dict(span.attributes),
        "events": [
            {"name": event.name, "at_ns": event.at_ns, "attributes": dict(event.attributes)} for event in node.events
        ],
        "links": [
            {"trace_id": f"{link.context.trace_id:032x}", "span_id": f"{link.context.span_id:016x}"}
            for link in span.links
        ],
        "children": [_node(child) for child in node.children],
    }
