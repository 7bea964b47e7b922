"""Topics, groups and offsets of a master and its slaves: equal in meaning, whoever wrote them, and in what order.

A slave copies its master's tables every few seconds, by DataVersion. A table with another version is about to be
copied; one with the same version and other content never will be. The files of offsets are written every few seconds on
either side, so that either may be the newer one; only what lies a minute apart says something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Final, TypeAlias, TypeVar

from tandemmq.core.audit.findings import Finding, FindingKind, Verdict
from tandemmq.core.message.record import SCHEDULE_TOPIC
from tandemmq.core.metadata.metadata_store import (
    COMPARED,
    DataVersion,
    MetadataCorrupt,
    MetadataFile,
    MetadataTable,
    read_java_json,
)
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable, DelayOffsetTable
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig, SubscriptionGroupTable
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable
from tandemmq.core.routing.values import MASTER_ID

__all__ = ["compare_metadata"]

MetadataTexts: TypeAlias = Mapping[MetadataFile, str | None]
ConfigT = TypeVar("ConfigT", TopicConfig, SubscriptionGroupConfig)

_OFFSETS_APART_MS: Final = 60_000
_SET_BACK: Final = (
    "the slave keeps the higher one, since no operator set it back; "
    "if the master's is right, reset the group to it on the master"
)
_SYNC_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"


def compare_metadata(
    group: str,
    master: MetadataTexts,
    slaves: Mapping[int, MetadataTexts],
    *,
    settled: bool,
    master_id: int = MASTER_ID,
) -> list[Finding]:
    """What slaves have otherwise than their master; texts are those of the files, None: no file.

    `settled`: what differs now will stay so: the caller waited for longer than slaves take to copy and has read again,
    or the stores were ended in order. Without it only what no copying will mend is reported.
    """
    return list(_Comparer(group, master, master_id, settled=settled).compare(slaves))


class _Comparer:
    """One call of compare_metadata."""

    def __init__(self, group: str, master: MetadataTexts, master_id: int, *, settled: bool) -> None:
        self._group = group
        self._master = master
        self._master_id = master_id
        self._settled = settled

    def compare(self, slaves: Mapping[int, MetadataTexts]) -> Iterator[Finding]:
        readable = []
        for file in COMPARED:
            problem = _problem(file, self._master.get(file))
            if problem:
                yield self._unreadable(self._master_id, file, problem)
            elif self._master.get(file) is not None:
                readable.append(file)
            elif self._settled and any(_has_content(file, texts.get(file)) for texts in slaves.values()):
                yield self._unreadable(self._master_id, file, "there is no such file, and a slave has a copy of it")
        for broker_id, texts in slaves.items():
            for file in COMPARED:
                problem = _problem(file, texts.get(file))
                if problem:
                    yield self._unreadable(broker_id, file, problem)
                elif file in readable:
                    yield from self._compare_file(file, broker_id, texts.get(file))

    def _compare_file(self, file: MetadataFile, broker_id: int, slave: str | None) -> Iterator[Finding]:
        master = self._master[file]
        assert master is not None, "only files that the master has are compared"
        if slave is None:
            if self._settled and _has_content(file, master):
                yield self._unreadable(broker_id, file, "there is no such file")
            return
        ours, theirs = _version(slave), _version(master)
        if not self._counts(file, ours, theirs):
            return
        versions = "the same version" if ours == theirs else f"version {_shown(ours)} instead of {_shown(theirs)}"
        match file:
            case MetadataFile.TOPICS:
                yield from self._topics(broker_id, slave, master, versions)
            case MetadataFile.SUBSCRIPTION_GROUPS:
                yield from self._groups(broker_id, slave, master, versions)
            case MetadataFile.CONSUMER_OFFSETS:
                yield from self._consumer_offsets(broker_id, slave, master, versions)
            case MetadataFile.DELAY_OFFSETS:
                yield from self._delay_offsets(broker_id, slave, master, versions)

    def _counts(self, file: MetadataFile, ours: DataVersion, theirs: DataVersion) -> bool:
        """Whether a difference between tables of these versions would be one that stays."""
        if ours == theirs and ours != DataVersion():
            return True
        if not self._settled:
            return False
        if file in (MetadataFile.TOPICS, MetadataFile.SUBSCRIPTION_GROUPS):
            return True
        # Files of RocketMQ 4 have no version.
        return ours == theirs or abs(ours.timestamp_ms - theirs.timestamp_ms) > _OFFSETS_APART_MS

    def _new(
        self,
        kind: FindingKind,
        broker_id: int,
        file: MetadataFile,
        detail: str,
        *,
        topic: str | None = None,
        queue_id: int | None = None,
        queue_offset: int | None = None,
        messages: int = 0,
    ) -> Finding:
        return Finding(
            kind=kind,
            group=self._group,
            verdict=Verdict.MASTER_RULE,
            detail=detail,
            broker_id=broker_id,
            source_broker_id=None if broker_id == self._master_id else self._master_id,
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            messages=messages,
            file=f"config/{file.value}",
        )

    def _unreadable(self, broker_id: int, file: MetadataFile, problem: str) -> Finding:
        return self._new(FindingKind.METADATA_UNREADABLE, broker_id, file, problem)

    def _topics(self, broker_id: int, slave: str, master: str, versions: str) -> Iterator[Finding]:
        ours, theirs = TopicTable(), TopicTable()
        ours.load_json(slave)
        theirs.load_json(master)
        held = {topic.topic_name: topic for topic in ours if not self._is_own(topic.topic_name)}
        due = {topic.topic_name: topic for topic in theirs if not self._is_own(topic.topic_name)}
        for name in sorted({*held, *due}):
            change = _change(held.get(name), due.get(name))
            if change:
                kind = FindingKind.TOPIC_DIFFERS if name in held else FindingKind.TOPIC_MISSING
                yield self._new(
                    kind, broker_id, MetadataFile.TOPICS, f"topic {name}: {change} ({versions})", topic=name
                )

    def _is_own(self, topic: str) -> bool:
        """Topics named after the broker itself."""
        return topic == self._group or topic.startswith(_SYNC_TOPIC_PREFIX)

    def _groups(self, broker_id: int, slave: str, master: str, versions: str) -> Iterator[Finding]:
        held, due = _group_configs(slave), _group_configs(master)
        for name in sorted({*held, *due}):
            change = _change(held.get(name), due.get(name))
            if change:
                kind = FindingKind.GROUP_DIFFERS if name in held else FindingKind.GROUP_MISSING
                detail = f"consumer group {name}: {change} ({versions})"
                yield self._new(kind, broker_id, MetadataFile.SUBSCRIPTION_GROUPS, detail)

    def _consumer_offsets(self, broker_id: int, slave: str, master: str, versions: str) -> Iterator[Finding]:
        held, due = _consumer_offsets(slave), _consumer_offsets(master)
        # What only the slave has its master forgot with a deleted topic, long ago: a slave does not keep up with that.
        for (consumer_group, topic, queue_id), offset in due.items():
            own = held.get((consumer_group, topic, queue_id))
            if own == offset:
                continue
            effect = (
                f"{offset - (own or 0)} messages would be consumed again"
                if (own or 0) <= offset
                else f"{(own or 0) - offset} messages would be skipped; {_SET_BACK}"
            )
            yield self._new(
                FindingKind.CONSUMER_OFFSET_STALE,
                broker_id,
                MetadataFile.CONSUMER_OFFSETS,
                f"consumer group {consumer_group}, topic {topic}, queue {queue_id}: offset "
                f"{'none' if own is None else own} instead of {offset}; {effect} ({versions})",
                topic=topic,
                queue_id=queue_id,
                queue_offset=min(own or 0, offset),
                messages=abs(offset - (own or 0)),
            )

    def _delay_offsets(self, broker_id: int, slave: str, master: str, versions: str) -> Iterator[Finding]:
        held, due = _delay_offsets(slave), _delay_offsets(master)
        for level, offset in due.items():
            own = held.get(level, 0)
            if own == offset:
                continue
            effect = "would be delivered again" if own < offset else "would never be delivered"
            yield self._new(
                FindingKind.DELAY_OFFSET_STALE,
                broker_id,
                MetadataFile.DELAY_OFFSETS,
                f"delay level {level}: offset {own} instead of {offset}; "
                f"{abs(offset - own)} messages {effect} ({versions})",
                topic=SCHEDULE_TOPIC,
                queue_id=level - 1,
                queue_offset=min(own, offset),
                messages=abs(offset - own),
            )


def _problem(file: MetadataFile, text: str | None) -> str:
    """Why a table cannot be read; empty if it can, or if there is none."""
    if text is None:
        return ""
    tables: dict[MetadataFile, Callable[[], MetadataTable]] = {
        MetadataFile.TOPICS: TopicTable,
        MetadataFile.SUBSCRIPTION_GROUPS: SubscriptionGroupTable,
        MetadataFile.CONSUMER_OFFSETS: ConsumerOffsetTable,
        MetadataFile.DELAY_OFFSETS: DelayOffsetTable,
    }
    try:
        tables[file]().load_json(text)
    except MetadataCorrupt as error:
        return str(error)
    return ""


def _has_content(file: MetadataFile, text: str | None) -> bool:
    """Whether a table is worth having; one that cannot be read is told by itself."""
    if text is None or _problem(file, text):
        return False
    match file:
        case MetadataFile.TOPICS | MetadataFile.SUBSCRIPTION_GROUPS:
            return True
        case MetadataFile.CONSUMER_OFFSETS:
            return bool(_consumer_offsets(text))
        case MetadataFile.DELAY_OFFSETS:
            return bool(_delay_offsets(text))
        case _:
            return False


def _version(text: str) -> DataVersion:
    return DataVersion.from_object(read_java_json(text).object("dataVersion"))


def _shown(version: DataVersion) -> str:
    return f"{version.counter} of {version.timestamp_ms}"


def _group_configs(text: str) -> dict[str, SubscriptionGroupConfig]:
    groups = read_java_json(text).object("subscriptionGroupTable")
    return {name: SubscriptionGroupConfig.from_object(name, groups.object(name)) for name in groups}


def _consumer_offsets(text: str) -> dict[tuple[str, str, int], int]:
    table = ConsumerOffsetTable()
    table.load_json(text)
    return {(own.group, own.topic, own.queue_id): own.offset for own in table}


def _delay_offsets(text: str) -> dict[int, int]:
    return read_java_json(text).offsets("offsetTable")


def _change(held: ConfigT | None, due: ConfigT | None) -> str:
    """In words; empty if they are equal."""
    if held is None or due is None:
        return "the slave does not know it" if held is None else "the master does not know it"
    return ", ".join(
        f"{each.name} {getattr(held, each.name)} instead of {getattr(due, each.name)}"
        for each in fields(held)
        if getattr(held, each.name) != getattr(due, each.name)
    )
