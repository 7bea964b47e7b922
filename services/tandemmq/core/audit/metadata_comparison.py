"""Topics, groups, users, policies and offsets of a master and its slaves: equal in meaning, whoever wrote them, and in
what order.

A slave copies its master's tables every few seconds, by DataVersion. A table with another version is about to be
copied; one with the same version and other content never will be. The files of offsets are written every few seconds on
either side, so that either may be the newer one; only what lies a minute apart says something.

A master is not right by being master: its disk may have been set back. Offsets beyond all that a queue has are wrong.
Else this tells, in this order: a table that an earlier run saw with this very version; the newer version, since a slave
has none that no master had; of one version the table that has more, since an entry may get lost and none comes from
nothing, and the offset that went further. Else a person decides.

With the entries belong the marks of what operators removed or set: without them a starting master takes back what was
removed. A slave has all marks of its master, and may have more.

Nobody who audits needs a user's secret, sealed or not: `without_secrets` leaves a digest of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import fields, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from tandemmq.core.access.users_and_policies import Acl, AclTable, User, UserTable
from tandemmq.core.audit.findings import Cause, Finding, FindingKind, Verdict
from tandemmq.core.audit.replica_store import ReplicaFiles, is_of_others
from tandemmq.core.message.record import SCHEDULE_TOPIC
from tandemmq.core.metadata.metadata_store import (
    DataVersion,
    JavaObject,
    MetadataCorrupt,
    MetadataFile,
    MetadataTable,
    read_java_json,
)
from tandemmq.core.metadata.offset_tables import OFFSETS_MAX, ConsumerOffsetTable, DelayOffsetTable
from tandemmq.core.metadata.replica_merge import MARKS_KEPT_MS, REMOVALS, REMOVALS_MAX
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig, SubscriptionGroupTable
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable, is_system_topic
from tandemmq.core.routing.values import MASTER_ID

MetadataTexts: TypeAlias = Mapping[MetadataFile, str | None]
ConfigT = TypeVar("ConfigT", TopicConfig, SubscriptionGroupConfig, User, Acl)

_OFFSETS_APART_MS: Final = 60_000
_MESSAGES_MAX: Final = (1 << 63) - 1
"""What a report holds; offsets may be as far apart as no queue is long."""
_SET_BACK: Final = (
    "the slave keeps the higher one, since no operator set it back; "
    "if the master's is right, reset the group to it on the master"
)
SYNC_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
_OF_OFFSETS: Final = (MetadataFile.CONSUMER_OFFSETS, MetadataFile.DELAY_OFFSETS)
_OF_MARKS: Final = {
    MetadataFile.TOPICS: FindingKind.TOPIC_DIFFERS,
    MetadataFile.SUBSCRIPTION_GROUPS: FindingKind.GROUP_DIFFERS,
    MetadataFile.CONSUMER_OFFSETS: FindingKind.CONSUMER_OFFSET_STALE,
    MetadataFile.USERS: FindingKind.ACCESS_DIFFERS,
    MetadataFile.ACLS: FindingKind.ACCESS_DIFFERS,
}
_TABLE_KEYS: Final = {
    MetadataFile.TOPICS: "topicConfigTable",
    MetadataFile.SUBSCRIPTION_GROUPS: "subscriptionGroupTable",
    MetadataFile.CONSUMER_OFFSETS: "offsetTable",
    MetadataFile.DELAY_OFFSETS: "offsetTable",
    MetadataFile.USERS: "userTable",
    MetadataFile.ACLS: "aclTable",
}
"""What each file has, whoever wrote it, and with nothing in it."""
_OWN_NAMES: Final = {
    MetadataFile.TOPICS: "topicName",
    MetadataFile.SUBSCRIPTION_GROUPS: "groupName",
    MetadataFile.USERS: "username",
}
"""Where an entry says again by which name it is in the table."""
_CANONICAL: Final = "="
"""Before a digest that does not depend on order and spaces; runs of earlier versions digested the text."""
_RESETS: Final = "operatorResets"
_NO_UTF_8: Final = ("\udc80", "\udcff")
"""What stands for bytes that are none."""
_SEALED: Final = re.compile(r'("sealedPassword"\s*:\s*)"([^"]*)"?')
_SHOWN_CHARACTERS: Final = 200
"""Of a value, in a finding."""


class TableMark(NamedTuple):
    """What a run remembers of a table: its version, and a digest of what is in it."""

    state_version: int
    timestamp_ms: int
    counter: int
    digest: str

    @property
    def version(self) -> DataVersion:
        return DataVersion(self.state_version, self.timestamp_ms, self.counter)


Marks: TypeAlias = Mapping[str, TableMark]
"""By file name, of one replica."""
QueueEnds: TypeAlias = Mapping[tuple[str, int], int]
"""By topic and queue id: the position behind the last entry that any replica has."""


def table_marks(texts: MetadataTexts) -> dict[str, TableMark]:
    """What to remember of a replica's tables; those that cannot be read, or hold nothing, are left out."""
    return {
        file.value: _mark(text)
        for file, text in texts.items()
        if text is not None and not _problem(file, text) and _has_content(file, text)
    }


def _mark(text: str) -> TableMark:
    version = _version(text)
    canonical = read_java_json(text).canonical().encode("utf-8", "replace")
    digest = _CANONICAL + blake2b(canonical, digest_size=8).hexdigest()
    return TableMark(version.state_version, version.timestamp_ms, version.counter, digest)


def compare_metadata(
    group: str,
    master: MetadataTexts,
    slaves: Mapping[int, MetadataTexts],
    *,
    settled: bool,
    master_id: int = MASTER_ID,
    seen: Iterable[Marks] = (),
    queue_ends: QueueEnds = MappingProxyType({}),
    unknown_topics: Mapping[int, Set[str]] = MappingProxyType({}),
) -> list[Finding]:
    """What slaves and their master have otherwise; texts are those of the files, None: no file.

    `settled`: what differs now will stay so: the caller waited for longer than slaves take to copy and has read again,
    or the stores were ended in order. Without it only what no copying will mend is reported. `seen`: what an earlier
    run remembers of the tables of each replica. `queue_ends`: of queues that were looked up, read after the texts.
    `unknown_topics`: by broker id those that the replica's log has messages of, and its table has not.
    """
    comparer = _Comparer(
        group,
        master,
        master_id,
        settled=settled,
        seen=list(seen),
        queue_ends=queue_ends,
        unknown_topics=unknown_topics,
    )
    # A master that is wrong is so in the eyes of each of its slaves.
    once: dict[tuple[object, ...], Finding] = {}
    holders: dict[tuple[object, ...], list[int]] = {}
    for slave_id, finding in comparer.compare(slaves):
        key = (finding.kind, finding.broker_id, finding.file, finding.topic, finding.queue_id, finding.detail)
        once.setdefault(key, finding)
        holders.setdefault(key, []).append(slave_id)
    return [_with_holders(finding, holders[key], master_id) for key, finding in once.items()]


def _with_holders(finding: Finding, slaves: list[int], master_id: int) -> Finding:
    """An undecided finding names all who hold either version."""
    if finding.verdict is not Verdict.UNDECIDED:
        return finding
    who = f"replica {slaves[0]} has" if len(slaves) == 1 else f"replicas {', '.join(map(str, slaves))} have"
    return replace(finding, detail=f"{finding.detail}: as {who} it, and not replica {master_id}")


def older_than_seen(group: str, texts: Mapping[int, MetadataTexts], seen: Mapping[int, Marks]) -> Iterator[Finding]:
    """Tables of which an earlier run saw a newer version; all replicas are at rest."""
    yield from _older_everywhere(group, texts, seen)
    yield from _set_back(group, texts, seen)


def of_another_group(
    group: str, texts: Mapping[int, MetadataTexts], names: Mapping[int, str], told: Set[int | None]
) -> Iterator[Finding]:
    """Tables of topics with the topic of another broker group than that of the replica: `names` has by broker id the
    one that is known of it, empty if none is. `told`: of whose table something is known already; None: of all."""
    for broker_id, own in texts.items():
        named = groups_named(own.get(MetadataFile.TOPICS) or "")
        due = names.get(broker_id)
        if named and due and due not in named and not told & {None, broker_id}:
            yield Finding(
                kind=FindingKind.METADATA_UNREADABLE,
                group=group,
                verdict=Verdict.OWN_EVIDENCE,
                detail=f"it is the table of broker group {named[0]}",
                broker_id=broker_id,
                messages=0,
                file=f"config/{MetadataFile.TOPICS.value}",
            )


def is_foreign(group: str, text: str, files: ReplicaFiles) -> bool:
    """Whether a table of topics names other broker groups alone, and knows no topic of which the replica has a
    ConsumeQueue. Of groups with the same topics nothing tells that but what names the replica's. Raises
    ReplicaUnreadable."""
    named = groups_named(text)
    if not named or group in named:
        return False
    found = files.list_folder("consumequeue")
    names = (entry.name for entry in found if entry.is_folder and not is_of_others(entry.name))
    queued = {name for name in names if name[0] != "%" and not is_system_topic(name, cluster="", broker_name=group)}
    return bool(queued) and queued.isdisjoint(_topic_configs(text))


def _set_back(group: str, texts: Mapping[int, MetadataTexts], seen: Mapping[int, Marks]) -> Iterator[Finding]:
    """One replica has an older version than it had, and another one the newer: no slave takes an older table from its
    master while that has a newer one."""
    for file in MetadataFile:
        versions = {
            broker_id: _version(text)
            for broker_id, own in texts.items()
            if (text := own.get(file)) is not None and not _problem(file, text)
        }
        for broker_id, version in versions.items():
            before = seen.get(broker_id, {}).get(file.value)
            if before is None or not before.version.is_newer_than(version):
                continue
            holder = next((own for own, held in versions.items() if not before.version.is_newer_than(held)), None)
            if holder is not None:
                yield Finding(
                    kind=FindingKind.TABLE_OLDER,
                    group=group,
                    verdict=Verdict.STORED_DIGEST,
                    detail=f"an earlier run saw version {_shown(before.version)} here; now it is {_shown(version)}",
                    broker_id=broker_id,
                    source_broker_id=holder,
                    messages=0,
                    file=f"config/{file.value}",
                )


def _older_everywhere(group: str, texts: Mapping[int, MetadataTexts], seen: Mapping[int, Marks]) -> Iterator[Finding]:
    """Tables that each replica has in an older version than an earlier run saw."""
    for file in MetadataFile:
        if file in _OF_OFFSETS:
            continue
        known = [marks[file.value] for marks in seen.values() if file.value in marks]
        newest = max(known, key=lambda mark: mark[:3], default=None)
        held = {broker_id: own.get(file) for broker_id, own in texts.items()}
        if newest is None or not held or any(text is None or _problem(file, text) for text in held.values()):
            continue
        versions = {broker_id: _version(text) for broker_id, text in held.items() if text is not None}
        alike = [text for text in held.values() if text is not None]
        is_older = all(newest.version.is_newer_than(version) for version in versions.values())
        is_changed = all(
            version == newest.version != DataVersion() and _mark(text).digest != newest.digest
            for version, text in zip(versions.values(), alike)
        )
        # An earlier version of this job may have seen the same, digested otherwise.
        is_changed = is_changed and newest.digest.startswith(_CANONICAL)
        # As somebody else writes the same table.
        is_changed = is_changed and not any(mark.digest == _mark(text).digest for mark in known for text in alike)
        if is_older or is_changed:
            what = (
                f"version {_shown(newest.version)}"
                if is_older
                else f"other entries with the same version {_shown(newest.version)}"
            )
            yield Finding(
                kind=FindingKind.TABLE_OLDER,
                group=group,
                verdict=Verdict.STORED_DIGEST,
                detail=f"an earlier run saw {what}; here is {', '.join(map(_shown, dict.fromkeys(versions.values())))}",
                broker_id=next(iter(held)) if len(held) == 1 else None,
                messages=0,
                file=f"config/{file.value}",
            )


class _Side(NamedTuple):
    """Who is wrong about a table, who is right, and how that is known."""

    wrong: int
    right: int
    verdict: Verdict


class _Comparer:
    """One call of compare_metadata."""

    def __init__(
        self,
        group: str,
        master: MetadataTexts,
        master_id: int,
        *,
        settled: bool,
        seen: list[Marks],
        queue_ends: QueueEnds,
        unknown_topics: Mapping[int, Set[str]],
    ) -> None:
        self._group = group
        self._master = master
        self._master_id = master_id
        self._settled = settled
        self._seen = seen
        self._queue_ends = queue_ends
        self._unknown_topics = unknown_topics
        self._side = _Side(master_id, master_id, Verdict.MASTER_RULE)
        """Of the table that is compared now."""

    def compare(self, slaves: Mapping[int, MetadataTexts]) -> Iterator[tuple[int, Finding]]:
        """Each with the slave in whose table it was found; of the master's own files that is the master."""
        readable = []
        for file in MetadataFile:
            problem = _problem(file, self._master.get(file))
            has_it = [own for own, texts in slaves.items() if _has_content(file, texts.get(file))]
            if problem:
                yield self._master_id, self._unreadable(self._master_id, file, problem, has_it)
            elif self._master.get(file) is not None:
                readable.append(file)
            elif self._settled and has_it:
                detail = "there is no such file, and a slave has it"
                gone = self._unreadable(self._master_id, file, detail, has_it)
                yield self._master_id, replace(gone, cause=Cause.NO_FILE)
                for broker_id in (own for own, texts in slaves.items() if texts.get(file) is None):
                    gone = self._unreadable(broker_id, file, "there is no such file", has_it)
                    yield broker_id, replace(gone, cause=Cause.NO_FILE)
        for broker_id, texts in slaves.items():
            for file in MetadataFile:
                problem = _problem(file, texts.get(file))
                if problem:
                    holders = [self._master_id] if file in readable else []
                    yield broker_id, self._unreadable(broker_id, file, problem, holders)
                elif file in readable:
                    yield from ((broker_id, found) for found in self._compare_file(file, broker_id, texts.get(file)))

    def _compare_file(self, file: MetadataFile, broker_id: int, slave: str | None) -> Iterator[Finding]:
        master = self._master[file]
        assert master is not None, "only files that the master has are compared"
        if slave is None:
            if self._settled and _has_content(file, master):
                gone = self._unreadable(broker_id, file, "there is no such file", [self._master_id])
                yield replace(gone, cause=Cause.NO_FILE)
            return
        ours, theirs = _version(slave), _version(master)
        if not self._counts(file, ours, theirs):
            return
        self._side = self._judged(file, broker_id, slave, master)
        wrong, right = slave, master
        if self._side.wrong == self._master_id:
            wrong, right, ours, theirs = master, slave, theirs, ours
        versions = "the same version" if ours == theirs else f"version {_shown(ours)} instead of {_shown(theirs)}"
        cause = Cause.OLDER_TABLE if theirs.is_newer_than(ours) and ours != DataVersion() else None
        found = [replace(own, cause=cause) for own in self._differences(file, wrong, right, versions)]
        yield from found
        if not found and ours == theirs != DataVersion():
            self._side = _Side(broker_id, self._master_id, Verdict.MASTER_RULE)
            yield from self._lost_marks(file, slave, master)

    def _differences(self, file: MetadataFile, wrong: str, right: str, versions: str) -> Iterator[Finding]:
        match file:
            case MetadataFile.TOPICS:
                yield from self._topics(wrong, right, versions)
            case MetadataFile.SUBSCRIPTION_GROUPS:
                yield from self._groups(wrong, right, versions)
            case MetadataFile.CONSUMER_OFFSETS:
                yield from self._consumer_offsets(wrong, right, versions)
            case MetadataFile.DELAY_OFFSETS:
                yield from self._delay_offsets(wrong, right, versions)
            case MetadataFile.USERS | MetadataFile.ACLS:
                yield from self._access(file, wrong, right, versions)

    def _judged(self, file: MetadataFile, broker_id: int, slave: str, master: str) -> _Side:
        """Who is wrong; see the head of the module. Undecided ones name the slave, and nobody in the end."""
        slave_is_wrong = _Side(broker_id, self._master_id, Verdict.MASTER_RULE)
        master_is_wrong = _Side(self._master_id, broker_id, Verdict.OWN_EVIDENCE)
        if file in _OF_OFFSETS and (is_wild := self._has_wild(file, slave)) != self._has_wild(file, master):
            return (slave_is_wrong if is_wild else master_is_wrong)._replace(verdict=Verdict.OWN_EVIDENCE)
        if file is MetadataFile.TOPICS and {whose := self._is_ours(slave), self._is_ours(master)} == {True, False}:
            return (master_is_wrong if whose else slave_is_wrong)._replace(verdict=Verdict.OWN_EVIDENCE)
        held, due = _mark(slave), _mark(master)
        known = [mark for marks in self._seen if (mark := marks.get(file.value)) is not None]
        if held.version == due.version:
            if held.version == DataVersion():
                return slave_is_wrong
            has_seen = {mark.digest for mark in known if mark.version == held.version}
            if (held.digest in has_seen) != (due.digest in has_seen):
                side = master_is_wrong if held.digest in has_seen else slave_is_wrong
                return side._replace(verdict=Verdict.STORED_DIGEST)
            return {
                -1: slave_is_wrong._replace(verdict=Verdict.OWN_EVIDENCE),
                1: master_is_wrong,
                0: slave_is_wrong._replace(verdict=Verdict.UNDECIDED),
            }[_which_has_more(file, slave, master) or self._which_fits_log(file, broker_id, slave, master)]
        is_newer = held.version.is_newer_than(due.version)
        if file not in _OF_OFFSETS and _have_nothing_in_common(file, slave, master):
            # Neither is a later version of the other one, whatever their numbers.
            has_seen = {mark.digest for mark in known}
            if (held.digest in has_seen) != (due.digest in has_seen):
                side = master_is_wrong if held.digest in has_seen else slave_is_wrong
                return side._replace(verdict=Verdict.STORED_DIGEST)
            return slave_is_wrong._replace(verdict=Verdict.UNDECIDED)
        if is_newer and (file not in _OF_OFFSETS or _which_has_more(file, slave, master) == 1):
            return master_is_wrong
        return slave_is_wrong

    def _which_fits_log(self, file: MetadataFile, broker_id: int, slave: str, master: str) -> int:
        """Of two tables of topics: -1 the master's, 1 the slave's: it has what the other's log asks for; else 0."""
        if file is not MetadataFile.TOPICS:
            return 0
        lacks = self._unknown_topics.get(broker_id, set()) & _topic_configs(master).keys()
        master_lacks = self._unknown_topics.get(self._master_id, set()) & _topic_configs(slave).keys()
        return bool(master_lacks) - bool(lacks)

    def _has_wild(self, file: MetadataFile, text: str) -> bool:
        """Whether an offset is one that no queue ever has, or that its queue has not reached."""
        if file is MetadataFile.DELAY_OFFSETS:
            offsets = [((SCHEDULE_TOPIC, level - 1), offset) for level, offset in _delay_offsets(text).items()]
        else:
            offsets = [((topic, number), offset) for (_, topic, number), offset in _consumer_offsets(text).items()]
        return any(not 0 <= offset <= self._queue_ends.get(queue, OFFSETS_MAX) for queue, offset in offsets)

    def _counts(self, file: MetadataFile, ours: DataVersion, theirs: DataVersion) -> bool:
        """Whether a difference between tables of these versions would be one that stays."""
        if ours == theirs and ours != DataVersion():
            return True
        if not self._settled:
            return False
        if file not in _OF_OFFSETS:
            return True
        # Files of RocketMQ 4 have no version.
        return ours == theirs or abs(ours.timestamp_ms - theirs.timestamp_ms) > _OFFSETS_APART_MS

    def _new(
        self,
        kind: FindingKind,
        file: MetadataFile,
        detail: str,
        *,
        topic: str | None = None,
        queue_id: int | None = None,
        queue_offset: int | None = None,
        messages: int = 0,
        whose: str | None = None,
    ) -> Finding:
        is_undecided = self._side.verdict is Verdict.UNDECIDED
        return Finding(
            kind=kind,
            group=self._group,
            verdict=self._side.verdict,
            detail=detail,
            broker_id=None if is_undecided else self._side.wrong,
            source_broker_id=None if is_undecided else self._side.right,
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            messages=messages,
            file=f"config/{file.value}",
            whose=whose,
        )

    def _unreadable(self, broker_id: int, file: MetadataFile, problem: str, holders: list[int]) -> Finding:
        self._side = _Side(broker_id, self._master_id, Verdict.MASTER_RULE)
        finding = self._new(FindingKind.METADATA_UNREADABLE, file, problem)
        return replace(finding, source_broker_id=next(iter(holders), None))

    def _topics(self, wrong: str, right: str, versions: str) -> Iterator[Finding]:
        ours, theirs = TopicTable(), TopicTable()
        ours.load_json(wrong)
        theirs.load_json(right)
        held = {topic.topic_name: topic for topic in ours if not self._is_own(topic.topic_name)}
        due = {topic.topic_name: topic for topic in theirs if not self._is_own(topic.topic_name)}
        for name, change in _changes(held, due):
            kind = FindingKind.TOPIC_DIFFERS if name in held else FindingKind.TOPIC_MISSING
            yield self._new(kind, MetadataFile.TOPICS, f"topic {name}: {change} ({versions})", topic=name)
        if held == due and self._is_ours(wrong) is False and self._is_ours(right):
            detail = f"it is the table of broker group {groups_named(wrong)[0]}, with the same topics ({versions})"
            yield self._new(FindingKind.TOPIC_DIFFERS, MetadataFile.TOPICS, detail)

    def _is_ours(self, text: str) -> bool | None:
        """Whether a table of topics has the one that is named after this group; None: nor after another one."""
        named = groups_named(text)
        return self._group in named if named else None

    def _is_own(self, topic: str) -> bool:
        """Topics named after the broker itself."""
        return topic == self._group or topic.startswith(SYNC_TOPIC_PREFIX)

    def _groups(self, wrong: str, right: str, versions: str) -> Iterator[Finding]:
        held, due = _group_configs(wrong), _group_configs(right)
        for name, change in _changes(held, due):
            kind = FindingKind.GROUP_DIFFERS if name in held else FindingKind.GROUP_MISSING
            whose = f"consumer group {name}"
            detail = f"{whose}: {change} ({versions})"
            yield self._new(kind, MetadataFile.SUBSCRIPTION_GROUPS, detail, whose=whose)

    def _access(self, file: MetadataFile, wrong: str, right: str, versions: str) -> Iterator[Finding]:
        if file is MetadataFile.USERS:
            changes = _changes(_users(wrong), _users(right))
        else:
            changes = _changes(_acls(wrong), _acls(right))
        for name, change in changes:
            whose = f"user {name}" if file is MetadataFile.USERS else f"policies of {name}"
            yield self._new(FindingKind.ACCESS_DIFFERS, file, f"{whose}: {change} ({versions})", whose=whose)

    def _lost_marks(self, file: MetadataFile, slave: str, master: str) -> Iterator[Finding]:
        """Marks of operators that a slave had with this very version, and has no more."""
        kind = _OF_MARKS.get(file)
        if kind is None:
            return
        held, due = _marks(slave), _marks(master)
        oldest_ms = max(held.values(), default=0) - MARKS_KEPT_MS
        lost = [name for name, mark in due.items() if held.get(name, 0) < mark and mark >= oldest_ms]
        if lost and len(held) < REMOVALS_MAX:
            detail = (
                f"{len(lost)} marks of what operators removed or set are missing, the first of {lost[0]}; as a master "
                "it would take back what was removed"
            )
            yield self._new(kind, file, detail)

    def _consumer_offsets(self, wrong: str, right: str, versions: str) -> Iterator[Finding]:
        held, due = _consumer_offsets(wrong), _consumer_offsets(right)
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
            whose = f"consumer group {consumer_group}"
            yield self._new(
                FindingKind.CONSUMER_OFFSET_STALE,
                MetadataFile.CONSUMER_OFFSETS,
                f"{whose}, topic {topic}, queue {queue_id}: offset "
                f"{'none' if own is None else own} instead of {offset}; {effect} ({versions})",
                topic=topic,
                queue_id=queue_id,
                queue_offset=min(own or 0, offset),
                messages=min(abs(offset - (own or 0)), _MESSAGES_MAX),
                whose=whose,
            )

    def _delay_offsets(self, wrong: str, right: str, versions: str) -> Iterator[Finding]:
        held, due = _delay_offsets(wrong), _delay_offsets(right)
        for level, offset in due.items():
            own = held.get(level, 0)
            if own == offset:
                continue
            effect = "would be delivered again" if own < offset else "would never be delivered"
            whose = f"delay level {level}"
            yield self._new(
                FindingKind.DELAY_OFFSET_STALE,
                MetadataFile.DELAY_OFFSETS,
                f"{whose}: offset {own} instead of {offset}; {abs(offset - own)} messages {effect} ({versions})",
                topic=SCHEDULE_TOPIC,
                queue_id=level - 1,
                queue_offset=min(own, offset),
                messages=min(abs(offset - own), _MESSAGES_MAX),
                whose=whose,
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
        MetadataFile.USERS: UserTable,
        MetadataFile.ACLS: AclTable,
    }
    if not text.isascii() and any(_NO_UTF_8[0] <= character <= _NO_UTF_8[1] for character in text):
        return "it is no UTF-8"
    try:
        tables[file]().load_json(text)
        table = read_java_json(text)
        has_table = _TABLE_KEYS[file] in table
        entries = table.raw(_TABLE_KEYS[file]) if file not in _OF_OFFSETS else {}
    except MetadataCorrupt as error:
        return str(error)
    empty = next((name for name, entry in entries.items() if not isinstance(entry, dict)), None)
    if empty is not None:
        return f"{_TABLE_KEYS[file]}.{empty} has nothing in it"
    if has_table and (problem := _other_name(file, table.object(_TABLE_KEYS[file]))):
        return problem
    return "" if has_table else f"it has no {_TABLE_KEYS[file]}: that is another file's content, or none"


def _other_name(file: MetadataFile, entries: JavaObject) -> str:
    """Which entry says another name than the one it is under; empty: none."""
    field_name = _OWN_NAMES.get(file)
    for name in entries if field_name is not None else ():
        try:
            own = entries.object(name).text(field_name or "", name)
        except MetadataCorrupt as error:
            return str(error)
        if own != name:
            return f"{_TABLE_KEYS[file]}.{name} says that it is {own}"
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
        # Each broker has these files, with nobody in them where callers do not sign in; not so one of an older version.
        case MetadataFile.USERS:
            return bool(_users(text) or _marks(text))
        case MetadataFile.ACLS:
            return bool(_acls(text) or _marks(text))


def _entries_of(file: MetadataFile, text: str) -> Mapping[str, object]:
    """What a readable table that is none of offsets holds, by name."""
    match file:
        case MetadataFile.TOPICS:
            return _topic_configs(text)
        case MetadataFile.SUBSCRIPTION_GROUPS:
            return _group_configs(text)
        case MetadataFile.USERS:
            return _users(text)
        case _:
            return _acls(text)


def _have_nothing_in_common(file: MetadataFile, slave: str, master: str) -> bool:
    """Whether two tables that hold something hold not one name alike."""
    held, due = _entries_of(file, slave), _entries_of(file, master)
    return bool(held) and bool(due) and held.keys().isdisjoint(due)


def _which_has_more(file: MetadataFile, slave: str, master: str) -> int:
    """Of two readable tables: -1 the master, 1 the slave, 0 neither, or each something."""
    if file in _OF_OFFSETS:
        return _which_is_further(file, slave, master)
    held, due = _entries_of(file, slave), _entries_of(file, master)
    if any(held[name] != due[name] for name in held.keys() & due.keys()):
        return 0
    return (held.keys() > due.keys()) - (held.keys() < due.keys())


def _which_is_further(file: MetadataFile, slave: str, master: str) -> int:
    """The same of offsets. An operator may have set one back: then nothing is said for the greater one."""
    held: dict[Any, int] = {}
    due: dict[Any, int] = {}
    for table, text in ((held, slave), (due, master)):
        table.update(_delay_offsets(text) if file is MetadataFile.DELAY_OFFSETS else _consumer_offsets(text))
    keys = due.keys() if file is MetadataFile.DELAY_OFFSETS else {*held, *due}
    signs = {(held.get(key, 0) > due.get(key, 0)) - (held.get(key, 0) < due.get(key, 0)) for key in keys}
    if {-1, 1} <= signs:
        return 0
    if 1 in signs and _marks_of_operators(slave) != _marks_of_operators(master):
        return -1
    return sum(signs)


def _marks_of_operators(text: str) -> str:
    table = read_java_json(text)
    return f"{table.raw(_RESETS)} {table.raw(REMOVALS)}"


def _marks(text: str) -> dict[str, int]:
    """Of removals, by name, and of queues that were set, by subscription and queue."""
    table = read_java_json(text)
    removals, resets = table.object(REMOVALS), table.object(_RESETS)
    marks = {name: removals.integer(name, 0) for name in removals}
    for subscription in resets:
        queues = resets.object(subscription)
        marks |= {f"{subscription}, queue {queue}": queues.integer(queue, 0) for queue in queues}
    return marks


def without_secrets(text: str) -> str:
    """The text of a table of users with a digest in the place of each sealed secret, whether it can be read or not."""

    def digest(match: re.Match[str]) -> str:
        hashed = blake2b(match[2].encode("utf-8", "replace"), digest_size=8).hexdigest() if match[2] else ""
        return f'{match[1]}"{hashed}"' if match[0].endswith('"') else f'{match[1]}"{hashed}'

    return _SEALED.sub(digest, text)


def _users(text: str) -> dict[str, User]:
    table = UserTable()
    table.load_json(text)
    return {user.name: user for user in table}


def _acls(text: str) -> dict[str, Acl]:
    """Without order: what is decided does not depend on it."""
    table = AclTable()
    table.load_json(text)
    return {acl.name: replace(acl, entries=tuple(sorted(acl.entries, key=repr))) for acl in table}


def groups_named(text: str) -> list[str]:
    """Broker groups after which a table of topics has a topic named, as brokers do at their start; empty also if it
    cannot be read."""
    try:
        names = _topic_configs(text)
    except MetadataCorrupt:
        return []
    return [name.removeprefix(SYNC_TOPIC_PREFIX) for name in names if name.startswith(SYNC_TOPIC_PREFIX)]


def _topic_configs(text: str) -> dict[str, TopicConfig]:
    table = TopicTable()
    table.load_json(text)
    return {config.topic_name: config for config in table}


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


def _changes(held: Mapping[str, ConfigT], due: Mapping[str, ConfigT]) -> Iterator[tuple[str, str]]:
    """Names whose entries are not equal, with what is otherwise."""
    renamed: dict[str, str] = dict(_renamed(held, due))
    for name in sorted({*held, *due} - {*renamed.values()}):
        if name in renamed:
            yield name, f"it is called {renamed[name]}"
        elif change := _change(held.get(name), due.get(name)):
            yield name, change


def _renamed(held: Mapping[str, ConfigT], due: Mapping[str, ConfigT]) -> Iterator[tuple[str, str]]:
    """Names that are due, and by what other one the same entry is held: one letter was changed."""
    lost, extra = due.keys() - held.keys(), held.keys() - due.keys()
    for name in lost if len(lost) == len(extra) == 1 else ():
        (other,) = extra
        is_near = len(name) == len(other) and sum(one != two for one, two in zip(name, other)) == 1
        ours, theirs = ([getattr(own, each.name) for each in fields(own)[1:]] for own in (held[other], due[name]))
        if is_near and ours == theirs:
            yield name, other


def _change(held: ConfigT | None, due: ConfigT | None) -> str:
    """In words; empty if they are equal."""
    if held is None or due is None:
        return "it is not in the table" if held is None else "it is in no other table"
    return ", ".join(
        f"{each.name} {_value(held, each.name)} instead of {_value(due, each.name)}" if each.repr else "another secret"
        for each in fields(held)
        if getattr(held, each.name) != getattr(due, each.name)
    )


def _value(config: object, name: str) -> str:
    value = getattr(config, name)
    if isinstance(value, tuple):
        value = "; ".join(f"{each.decision} {each.resource.key} {'+'.join(sorted(each.actions))}" for each in value)
    return str(value)[:_SHOWN_CHARACTERS]
