"""What is left of each replica once its other files were checked against its log, and what they tell of each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from tandemmq.core.audit.findings import Cause, Finding, FindingKind, Verdict
from tandemmq.core.audit.index_check import has_usual_layout
from tandemmq.core.audit.queue_check import QueueSpan
from tandemmq.core.message.record import SCHEDULE_TOPIC
from tandemmq.core.metadata.metadata_store import MetadataCorrupt, MetadataFile, read_java_json
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable
from tandemmq.core.metadata.topic_table import TopicTable
from tandemmq.core.storage.consume_queue_table import QUEUE_ENDS_FILE

Queue = tuple[str, int]


@dataclass(frozen=True, slots=True)
class DerivedFacts:
    """What the other replicas need to know of one."""

    broker_id: int
    queue_ends: dict[Queue, int] = field(default_factory=dict)
    """One past the last message, of each queue in the log."""
    min_offset: int = 0
    index_from: int | None = None
    """Where the oldest IndexFile begins; None without any."""
    lease_files: int | None = None
    """None: nobody looked."""
    log_bytes: int = 0
    lease_subscriptions: int | None = None
    """Of which anything was received; None: nobody looked."""
    kept: dict[str, str] = field(default_factory=dict)
    """Digests of bytes that were kept aside, by path: nobody changes them any more."""
    index_bytes: int = 0
    """How long its IndexFiles are; 0 without any, or of a broker that runs."""
    has_ends: bool | None = None
    """Whether it wrote down where its queues ended; None: nobody looked, or it was not stopped in order."""

    def to_json(self) -> dict[str, Any]:
        ends = [[topic, queue_id, end] for (topic, queue_id), end in self.queue_ends.items()]
        return asdict(self) | {"queue_ends": ends}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        ends = {(topic, queue_id): end for topic, queue_id, end in values["queue_ends"]}
        return cls(**(dict(values) | {"queue_ends": ends}))


def joined_spans(parts: Iterable[Sequence[QueueSpan]]) -> dict[Queue, QueueSpan]:
    """The whole log's spans, from those of its parts in the order of the log."""
    joined: dict[Queue, QueueSpan] = {}
    for spans in parts:
        for span in spans:
            before = joined.get((span.topic, span.queue_id))
            joined[span.topic, span.queue_id] = span if before is None else _behind(before, span)
    return joined


def _behind(before: QueueSpan, span: QueueSpan) -> QueueSpan:
    return QueueSpan(
        span.topic,
        span.queue_id,
        min(before.first_queue_offset, span.first_queue_offset),
        span.next_queue_offset,
        before.first_offset,
        span.last_offset,
    )


def compare_derived_files(
    group: str, facts: Mapping[int, DerivedFacts], texts: Mapping[int, Mapping[MetadataFile, str | None]]
) -> list[Finding]:
    """Index and leases that one replica lacks and another has, and offsets of messages that no replica has.

    `facts` are of replicas whose whole log was checked, `texts` their metadata files.
    """
    return [*_lacking_files(group, facts), *_other_index_lengths(group, facts), *_beyond_end(group, facts, texts)]


def _lacking_files(group: str, facts: Mapping[int, DerivedFacts]) -> Iterator[Finding]:
    indexed = {broker_id: own.index_from for broker_id, own in facts.items() if own.index_from is not None}
    leased = [broker_id for broker_id, own in facts.items() if own.lease_files]
    subscribed = [broker_id for broker_id, own in facts.items() if own.lease_subscriptions]
    with_ends = [broker_id for broker_id, own in facts.items() if own.has_ends]
    for broker_id, own in facts.items():
        if own.has_ends is False and with_ends and own.lease_files and own.log_bytes:
            detail = f"there is no such file, and the broker was stopped in order; replica {with_ends[0]} has its own"
            kind = FindingKind.CHECKPOINT_IMPOSSIBLE
            yield replace(
                _lacking(group, kind, broker_id, with_ends[0], detail, QUEUE_ENDS_FILE), source_broker_id=None
            )
        if own.lease_files == 0 and leased and own.log_bytes:
            detail = f"there are no leases-* files; replica {leased[0]} has them"
            yield _lacking(group, FindingKind.LEASES_MISSING, broker_id, leased[0], detail, "config")
        elif own.lease_files and own.lease_subscriptions == 0 and subscribed and own.log_bytes:
            detail = f"its leases-* files hold nothing; those of replica {subscribed[0]} do"
            kind = FindingKind.LEASES_MISSING
            yield replace(_lacking(group, kind, broker_id, subscribed[0], detail, "config"), cause=None)
        if own.lease_files is None or not own.log_bytes or not indexed:
            continue
        source = min(indexed, key=lambda other: indexed[other])
        if own.index_from is None:
            detail = f"there is no IndexFile; replica {source} has them from {indexed[source]} on"
            yield _lacking(group, FindingKind.INDEX_ENTRY_MISSING, broker_id, source, detail, "index")
        elif max(own.min_offset, indexed[source]) < own.index_from:
            detail = f"its IndexFiles begin at {own.index_from}; those of replica {source} at {indexed[source]}"
            yield _lacking(group, FindingKind.INDEX_ENTRY_MISSING, broker_id, source, detail, "index")


def _other_index_lengths(group: str, facts: Mapping[int, DerivedFacts]) -> Iterator[Finding]:
    """A broker starts with IndexFiles of the length that its settings say. These may be its own: wrong is what has not
    RocketMQ's four entries a slot, where all others have one length that has."""
    for broker_id, own in facts.items():
        others = {other: its.index_bytes for other, its in facts.items() if other != broker_id and its.index_bytes}
        if not own.index_bytes or len({*others.values()}) != 1 or has_usual_layout(own.index_bytes):
            continue
        holder, due = next(iter(others.items()))
        if has_usual_layout(due):
            detail = f"its IndexFiles have {own.index_bytes} bytes, and those of replica {holder} have {due}"
            finding = _lacking(group, FindingKind.INDEX_ENTRY_WRONG, broker_id, holder, detail, "index")
            yield replace(finding, cause=None, source_broker_id=None)


def _lacking(group: str, kind: FindingKind, broker_id: int, source: int, detail: str, file: str) -> Finding:
    return Finding(
        kind=kind,
        group=group,
        verdict=Verdict.OWN_EVIDENCE,
        detail=detail,
        broker_id=broker_id,
        source_broker_id=source,
        messages=0,
        file=file,
        cause=Cause.NO_FILE,
    )


def _beyond_end(
    group: str, facts: Mapping[int, DerivedFacts], texts: Mapping[int, Mapping[MetadataFile, str | None]]
) -> Iterator[Finding]:
    ends: dict[Queue, int] = {}
    for own in facts.values():
        for queue, known_end in own.queue_ends.items():
            ends[queue] = max(known_end, ends.get(queue, 0))
    # Where a log begins at 0, what is not in it never was.
    is_whole = bool(facts) and all(own.min_offset == 0 for own in facts.values())
    for broker_id, files in texts.items():
        known = _topic_names(files.get(MetadataFile.TOPICS))
        for name, topic, queue_id, offset in _offsets(files):
            # Of a queue without messages nobody knows the end, unless nothing has expired yet.
            end = ends.get((topic, queue_id))
            if end is None and is_whole and topic in known and topic != SCHEDULE_TOPIC:
                end = 0
            if end is not None and offset > end:
                file = MetadataFile.DELAY_OFFSETS if topic == SCHEDULE_TOPIC else MetadataFile.CONSUMER_OFFSETS
                yield Finding(
                    kind=FindingKind.OFFSET_BEYOND_END,
                    group=group,
                    verdict=Verdict.OWN_EVIDENCE,
                    detail=f"{name}, topic {topic}, queue {queue_id}: offset {offset}; the queue ends at {end}",
                    broker_id=broker_id,
                    topic=topic,
                    queue_id=queue_id,
                    queue_offset=end,
                    messages=0,
                    file=f"config/{file.value}",
                    whose=name,
                )


def _offsets(files: Mapping[MetadataFile, str | None]) -> Iterator[tuple[str, str, int, int]]:
    """Whose, topic, queue and offset of all that is readable."""
    try:
        table = ConsumerOffsetTable()
        table.load_json(files.get(MetadataFile.CONSUMER_OFFSETS) or "")
        for own in table:
            yield f"consumer group {own.group}", own.topic, own.queue_id, own.offset
        delays = read_java_json(files.get(MetadataFile.DELAY_OFFSETS) or "{}").offsets("offsetTable")
        for level, offset in delays.items():
            yield f"delay level {level}", SCHEDULE_TOPIC, level - 1, offset
    except MetadataCorrupt:
        return  # Found where tables are compared.


def _topic_names(text: str | None) -> frozenset[str]:
    table = TopicTable()
    try:
        table.load_json(text or "")
    except MetadataCorrupt:
        return frozenset()
    return frozenset(config.topic_name for config in table)
