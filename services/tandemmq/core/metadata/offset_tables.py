"""How far each consumer group has come in each queue (`consumerOffset.json`), and the delayed topics' offsets.

An offset is the first one not yet acknowledged. It never moves back by itself: not by a late commit, and not on a slave
whose master is behind. RocketMQ merges whatever the master says; a master restarted from an old file then sets the
progress back everywhere, and everything is consumed again after the next switch.

Only an operator moves an offset back or lets it be forgotten, and a slave has to know that it was an operator. So each
such act leaves a mark beside the offsets: the wall clock in ms, never the same twice. A slave follows a mark that is
newer than its own, whatever it holds. The one exception is a log that gave up or lost what was consumed: see `cut`.

Offsets are numbers of messages, and a master that joined when all messages of a queue had expired does not know which
came last. Given again from 0, they would be passed over wherever a group's offset is higher. So with the offsets travel
the ends of queues without messages, and whoever becomes master goes on there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, TypeVar

from tandemmq.core.metadata.metadata_store import (
    DataVersion,
    JavaObject,
    JavaText,
    JavaValue,
    read_java_json,
    write_java_json,
)
from tandemmq.core.metadata.replica_merge import MARKS_KEPT_MS, REMOVALS, REMOVALS_MAX, merged_version, read_removals
from tandemmq.core.offsets import ConsumerOffset, QueueOffset

KeyT = TypeVar("KeyT", str, int)

_RESETS: Final = "operatorResets"
_QUEUE_ENDS: Final = "queueEnds"
"""Ours as well."""


class ProgressCut(NamedTuple):
    """A group had come further in a queue than that goes."""

    topic: str
    group: str
    queue_id: int
    offset: int
    end: int
    """Where it goes on."""

    def __str__(self) -> str:
        return f"{self.topic}@{self.group} queue {self.queue_id}: from {self.offset} back to {self.end}"


OFFSETS_MAX: Final = (1 << 40) - 1
"""No queue has given so many numbers: with their heads alone such messages would fill 100 TB."""


class QueueEnd(NamedTuple):
    """Of a queue that had messages, and none any more."""

    next_number: int
    log_offset: int
    """A message of the queue whose record begins here or behind in the CommitLog has that number, or a higher one."""


class GroupOffset(NamedTuple):
    """Progress of one group in one queue."""

    group: str
    topic: str
    queue_id: int
    offset: int
    """First offset not acknowledged."""


class OperatorMarks(NamedTuple):
    """Marks of what operators did, by subscription (topic@group): of queues that were set, and of removals."""

    resets: dict[str, dict[int, int]]
    removals: dict[str, int]


class OperatorActs(NamedTuple):
    resets: list[GroupOffset]
    """Where groups go on; a subscription removed before is in `removed` as well."""
    removed: set[tuple[str, str]]
    """Progress of (group, topic) that is to be forgotten."""

    @property
    def are_none(self) -> bool:
        """The usual case: nothing is to be done."""
        return not self.resets and not self.removed


@dataclass(frozen=True, slots=True)
class OffsetKept:
    """A commit below the offset already held was refused; nothing changed."""

    subscription: str
    """topic@group, RocketMQ's key."""
    queue_id: int
    held_offset: int
    refused_offset: int

    def __str__(self) -> str:
        return (
            f"{self.subscription} queue {self.queue_id}: kept {self.held_offset}, not set back to {self.refused_offset}"
        )


class ConsumerOffsetTable:
    """Progress of all groups. The version changes with every call that moved something."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[int, int]] = {}
        self._pull_offsets: dict[str, JavaValue] = {}
        """RocketMQ 5.5's pullOffsetTable, kept as read for Java readers; our consumers have no second progress."""
        self._resets: dict[str, dict[int, int]] = {}
        """Marks of queues whose progress was set."""
        self._removals: dict[str, int] = {}
        """Marks of subscriptions that were removed; oldest first."""
        self._queue_ends: dict[str, dict[int, QueueEnd]] = {}
        """By topic and queue id. Only the highest number counts, whoever tells it and when. No topic's map changes."""
        self._end_texts: dict[str, tuple[dict[int, QueueEnd], JavaText]] = {}
        """As they were printed last; shared with copies. They are many and change seldom."""
        self._version = DataVersion()

    @property
    def version(self) -> DataVersion:
        return self._version

    def __len__(self) -> int:
        return len(self._offsets)

    def offset(self, group: str, topic: str, queue_id: int) -> ConsumerOffset | None:
        """First offset not acknowledged; None when the group never consumed the queue."""
        queues = self._offsets.get(f"{topic}@{group}")
        offset = queues.get(queue_id) if queues else None
        return None if offset is None else ConsumerOffset(offset)

    def commit(self, group: str, topic: str, queue_id: int, offset: int, *, now_ms: int) -> OffsetKept | None:
        """Moves forward; says so when it was asked to move back instead."""
        kept = self.commit_all([GroupOffset(group, topic, queue_id, offset)], now_ms=now_ms)
        return kept[0] if kept else None

    def commit_all(self, offsets: Iterable[GroupOffset], *, now_ms: int) -> list[OffsetKept]:
        """Many commits, one change of version."""
        kept: list[OffsetKept] = []
        moved = False
        for group, topic, queue_id, offset in offsets:
            outcome = self._move_forward(f"{topic}@{group}", queue_id, offset)
            if isinstance(outcome, OffsetKept):
                kept.append(outcome)
            else:
                moved |= outcome
        if moved:
            self._version = self._version.next(now_ms)
        return kept

    def reset(self, group: str, topic: str, queue_id: int, offset: int, *, now_ms: int) -> None:
        """Sets progress to any offset, because an operator said so."""
        self.reset_all([GroupOffset(group, topic, queue_id, offset)], now_ms=now_ms)

    def reset_all(self, offsets: Sequence[GroupOffset], *, now_ms: int) -> None:
        """Many queues at once. Old marks are looked for once: there may be a thousand for each group and topic."""
        if not offsets:
            return
        for group, topic, queue_id, offset in offsets:
            subscription = f"{topic}@{group}"
            self._offsets.setdefault(subscription, {})[queue_id] = offset
            marks = self._resets.setdefault(subscription, {})
            marks[queue_id] = max(now_ms, marks.get(queue_id, 0) + 1)
        self._let_old_marks_go(now_ms)
        self._version = self._version.next(now_ms)

    def cut(self, queue_end: Callable[[str, int], int], *, now_ms: int) -> list[ProgressCut]:
        """Sets progress beyond a queue's end back to it: the log lost or gave up what was consumed there. It leaves no
        mark: a replica that knows that a group came further is to be believed."""
        cuts: list[ProgressCut] = []
        for subscription, queues in self._offsets.items():
            topic = subscription.partition("@")[0]
            for queue_id, offset in queues.items():
                if offset > (end := queue_end(topic, queue_id)):
                    queues[queue_id] = end
                    cuts.append(ProgressCut(topic, subscription.partition("@")[2], queue_id, offset, end))
        if cuts:
            self._version = self._version.next(now_ms)
        return cuts

    def queue_ends(self) -> list[tuple[str, int, QueueEnd]]:
        """By topic and queue id: of queues that had no messages when somebody looked. They may have some again."""
        return [(topic, queue_id, end) for topic, ends in self._queue_ends.items() for queue_id, end in ends.items()]

    def queue_end(self, topic: str, queue_id: int) -> QueueEnd | None:
        return self._queue_ends.get(topic, {}).get(queue_id)

    def note_queue_ends(self, ends: Iterable[tuple[str, int, int]], log_offset: int, *, now_ms: int) -> bool:
        """Topic, queue id and next number of queues without a message from `log_offset` on; True if that is news."""
        changed: dict[str, dict[int, QueueEnd]] = {}
        for topic, queue_id, next_number in ends:
            known = self.queue_end(topic, queue_id)
            if known is None or next_number > known.next_number:
                changed.setdefault(topic, {})[queue_id] = QueueEnd(next_number, log_offset)
        if changed:
            self._queue_ends = _highest(self._queue_ends, changed)
            self._version = self._version.next(now_ms)
        return bool(changed)

    def note_consumed_ends(self, is_empty: Callable[[str, int], bool], log_offset: int, *, now_ms: int) -> bool:
        """What a group has consumed had a number: of empty queues that may be all that is known."""
        ends: dict[tuple[str, int], int] = {}
        for _, topic, queue_id, offset in self:
            if offset <= OFFSETS_MAX:
                ends[topic, queue_id] = max(offset, ends.get((topic, queue_id), 0))
        consumed = [(*queue, offset) for queue, offset in ends.items() if offset and is_empty(*queue)]
        return self.note_queue_ends(consumed, log_offset, now_ms=now_ms)

    def forget_queue_ends(self, queues: Iterable[tuple[str, int]], *, now_ms: int) -> None:
        """Another numbering is valid in these queues."""
        for topic, queue_id in queues:
            ends = dict(self._queue_ends.get(topic, {}))
            if ends.pop(queue_id, None) is not None:
                self._queue_ends = {**self._queue_ends, topic: ends}
                if not ends:
                    del self._queue_ends[topic]
                self._version = self._version.next(now_ms)

    def remove_topic(self, topic: str, *, now_ms: int) -> None:
        """Forgets a deleted topic. If one of its name is made later, groups start anew in it."""
        self._remove([one for one in self._offsets if one.startswith(f"{topic}@")], now_ms)

    def remove_pairs(self, pairs: Iterable[tuple[str, str]], *, now_ms: int) -> None:
        """Forgets groups in topics: of each pair the group and the topic."""
        found = dict.fromkeys(f"{topic}@{group}" for group, topic in pairs)
        self._remove([one for one in found if one in self._offsets], now_ms)

    def remove_group(self, group: str, *, now_ms: int) -> None:
        """Forgets a removed group. A later group of its name starts anew."""
        self._remove([one for one in self._offsets if one.endswith(f"@{group}")], now_ms)

    def _remove(self, subscriptions: list[str], now_ms: int) -> None:
        for subscription in subscriptions:
            del self._offsets[subscription]
            self._resets.pop(subscription, None)
            # The newest last, so that the first are the oldest.
            self._removals[subscription] = max(now_ms, self._removals.pop(subscription, 0) + 1)
        if subscriptions:
            self._let_old_marks_go(now_ms)
            self._version = self._version.next(now_ms)

    @property
    def marks(self) -> OperatorMarks:
        """For `acts_since`: of this moment."""
        resets = {subscription: dict(marks) for subscription, marks in self._resets.items()}
        return OperatorMarks(resets, dict(self._removals))

    def acts_since(self, marks: OperatorMarks) -> OperatorActs:
        """What this table knows of operators' acts, and a table with these `marks` does not. A group that goes on
        elsewhere since is given as it stands."""
        removed = set()
        for subscription, marked_ms in self._removals.items():
            if marked_ms > marks.removals.get(subscription, 0):
                topic, _, group = subscription.partition("@")
                removed.add((group, topic))
        resets = []
        for subscription, ours in self._resets.items():
            topic, _, group = subscription.partition("@")
            known, offsets = marks.resets.get(subscription, {}), self._offsets.get(subscription, {})
            resets += [
                GroupOffset(group, topic, queue_id, offsets[queue_id])
                for queue_id, marked_ms in ours.items()
                if marked_ms > known.get(queue_id, 0) and queue_id in offsets
            ]
        return OperatorActs(resets, removed)

    def _let_old_marks_go(self, now_ms: int) -> None:
        oldest_ms = now_ms - MARKS_KEPT_MS
        surplus = len(self._removals) - REMOVALS_MAX
        for number, (subscription, marked_ms) in enumerate(list(self._removals.items())):
            if number >= surplus and marked_ms >= oldest_ms:
                break
            del self._removals[subscription]
        self._resets = {
            subscription: kept
            for subscription, marks in self._resets.items()
            if (kept := {queue_id: marked_ms for queue_id, marked_ms in marks.items() if marked_ms >= oldest_ms})
        }

    def __iter__(self) -> Iterator[GroupOffset]:
        for subscription, queues in self._offsets.items():
            topic, _, group = subscription.partition("@")
            for queue_id, offset in queues.items():
                yield GroupOffset(group, topic, queue_id, offset)

    def pairs(self) -> list[tuple[str, str]]:
        """Every group and topic it has progress in."""
        # A list: it is asked for in a thread, too.
        return [(group, topic) for topic, _, group in (one.partition("@") for one in list(self._offsets))]

    def offsets_of(self, group: str, topic: str) -> dict[int, int]:
        """Progress of a group by queue id; empty when it never consumed the topic."""
        return dict(self._offsets.get(f"{topic}@{group}", {}))

    def to_json(self) -> str:
        """The text of `consumerOffset.json`. The marks are ours: RocketMQ passes over fields it does not know."""
        fields: dict[str, JavaValue] = {"dataVersion": self._version.to_fields(), "offsetTable": self._offsets}
        if self._pull_offsets:
            fields["pullOffsetTable"] = self._pull_offsets
        if self._resets:
            fields[_RESETS] = self._resets
        if self._removals:
            fields[REMOVALS] = self._removals
        if self._queue_ends:
            fields[_QUEUE_ENDS] = {topic: self._end_text(topic, ends) for topic, ends in self._queue_ends.items()}
        return write_java_json(fields)

    def _end_text(self, topic: str, ends: dict[int, QueueEnd]) -> JavaText:
        known = self._end_texts.get(topic)
        if known is None or known[0] is not ends:
            known = self._end_texts[topic] = (ends, JavaText(ends, depth=2))
        return known[1]

    def copied(self) -> Self:
        copy = type(self)()
        copy._offsets = {subscription: dict(queues) for subscription, queues in self._offsets.items()}
        copy._resets = {subscription: dict(marks) for subscription, marks in self._resets.items()}
        copy._pull_offsets, copy._removals, copy._version = self._pull_offsets, dict(self._removals), self._version
        copy._queue_ends, copy._end_texts = dict(self._queue_ends), self._end_texts
        return copy

    def load_json(self, text: str) -> None:
        """Replaces everything, version included, by the text. MetadataCorrupt leaves the table as it was."""
        read = _read(text)
        self._version, self._offsets, self._pull_offsets = read.version, read.offsets, read.pull_offsets
        self._resets, self._removals, self._queue_ends = read.resets, read.removals, read.queue_ends

    def renew(self, *, now_ms: int) -> None:
        """Of a new master: see `NamedTable.renew`."""
        self._version = self._version.renewed(now_ms)

    def give_way(self, text: str) -> list[str]:
        """Lets go what an operator did here and our master's table knows nothing of: see `NamedTable.give_way`. Where
        the master has progress it counts; one line for each queue or subscription."""
        theirs = _read(text)
        lines: list[str] = []
        for subscription, marks in list(self._resets.items()):
            known, queues = theirs.resets.get(subscription, {}), theirs.offsets.get(subscription, {})
            for queue_id in [each for each, mark in marks.items() if mark > known.get(each, 0)]:
                del marks[queue_id]
                held = self._offsets.get(subscription, {}).get(queue_id)
                if queue_id in queues and queues[queue_id] != held:
                    self._offsets[subscription][queue_id] = queues[queue_id]
                    lines.append(f"{subscription} queue {queue_id}: its reset to {held}")
        for subscription, mark in list(self._removals.items()):
            if mark > theirs.removals.get(subscription, 0):
                del self._removals[subscription]
                if subscription in theirs.offsets:
                    lines.append(f"{subscription}: its removal")
        return lines

    def apply_from_master(self, text: str, version: DataVersion) -> list[str]:
        """Merges the master's table: only where an operator was at work something is removed or moves back.

        One line for each offset kept.
        """
        theirs = _read(text)
        for subscription, marked_ms in theirs.removals.items():
            if marked_ms > self._removals.get(subscription, 0):
                self._offsets.pop(subscription, None)
                self._resets.pop(subscription, None)
        notices: list[str] = []
        for subscription, queues in theirs.offsets.items():
            marks, held_marks = theirs.resets.get(subscription, {}), self._resets.get(subscription, {})
            for queue_id, offset in queues.items():
                if marks.get(queue_id, 0) > held_marks.get(queue_id, 0):
                    self._offsets.setdefault(subscription, {})[queue_id] = offset
                    continue
                outcome = self._move_forward(subscription, queue_id, offset)
                if isinstance(outcome, OffsetKept):
                    notices.append(str(outcome))
        self._removals = _newer(theirs.removals, self._removals)
        self._resets = {
            subscription: _newer(marks, self._resets.get(subscription, {}))
            for subscription, marks in theirs.resets.items()
        }
        self._pull_offsets = theirs.pull_offsets
        # Those that a master of an older version does not tell stay.
        self._queue_ends = _highest(self._queue_ends, theirs.queue_ends)
        self._version = version
        return notices

    def merge_replica(self, text: str) -> list[str]:
        """Takes what a replica holds beside ours, before a master serves; one line for each group that came further.

        The higher offset counts, but for what an operator did: of a subscription removed, or a queue set, by one side
        alone, what that side knows.
        """
        theirs = _read(text)
        ours = _Read(self._version, self._offsets, self._pull_offsets, self._resets, self._removals, self._queue_ends)
        offsets: dict[str, dict[int, int]] = {}
        resets: dict[str, dict[int, int]] = {}
        for subscription in {**ours.offsets, **theirs.offsets}:
            our_mark, their_mark = ours.removals.get(subscription, 0), theirs.removals.get(subscription, 0)
            sides = [ours] if our_mark > their_mark else [theirs] if their_mark > our_mark else [ours, theirs]
            queues: dict[int, tuple[int, int]] = {}
            for side in sides:
                marks = side.resets.get(subscription, {})
                for queue_id, offset in side.offsets.get(subscription, {}).items():
                    # The newer mark first, then the higher offset.
                    known = (marks.get(queue_id, 0), offset)
                    queues[queue_id] = max(queues.get(queue_id, known), known)
            if queues:
                offsets[subscription] = {queue_id: offset for queue_id, (_, offset) in queues.items()}
            if marked := {queue_id: mark for queue_id, (mark, _) in queues.items() if mark}:
                resets[subscription] = marked
        removals = {name: max(ours.removals.get(name, 0), mark) for name, mark in theirs.removals.items()}
        removals = dict(sorted({**ours.removals, **removals}.items(), key=lambda item: item[1]))
        newer, older = (theirs, ours) if theirs.version.is_newer_than(ours.version) else (ours, theirs)
        pull_offsets, queue_ends = (
            {**older.pull_offsets, **newer.pull_offsets},
            _highest(ours.queue_ends, theirs.queue_ends),
        )
        merged = _Read(ours.version, offsets, pull_offsets, resets, removals, queue_ends)
        self._version = merged_version((ours.version, ours[1:]), (theirs.version, theirs[1:]), merged[1:])
        _, self._offsets, self._pull_offsets, self._resets, self._removals, self._queue_ends = merged
        return [f"progress of {name}" for name, queues in offsets.items() if queues != ours.offsets.get(name)]

    def _move_forward(self, subscription: str, queue_id: int, offset: int) -> OffsetKept | bool:
        """True when it moved, False when it was there already."""
        queues = self._offsets.setdefault(subscription, {})
        held = queues.get(queue_id, -1)
        if offset < held:
            return OffsetKept(subscription, queue_id, held, offset)
        queues[queue_id] = offset
        return offset != held


class _Read(NamedTuple):
    """A table's text."""

    version: DataVersion
    offsets: dict[str, dict[int, int]]
    pull_offsets: dict[str, JavaValue]
    resets: dict[str, dict[int, int]]
    removals: dict[str, int]
    queue_ends: dict[str, dict[int, QueueEnd]]


def _read(text: str) -> _Read:
    fields = read_java_json(text)
    pulls, ends = fields.object("pullOffsetTable"), fields.object(_QUEUE_ENDS)
    return _Read(
        version=DataVersion.from_object(fields.object("dataVersion")),
        offsets=_offsets_by_name(fields.object("offsetTable")),
        pull_offsets={subscription: pulls.offsets(subscription) for subscription in pulls},
        resets=_offsets_by_name(fields.object(_RESETS)),
        removals=read_removals(fields),
        queue_ends={
            topic: {queue_id: QueueEnd(*pair) for queue_id, pair in ends.pairs(topic).items()} for topic in ends
        },
    )


def _highest(
    ours: dict[str, dict[int, QueueEnd]], theirs: dict[str, dict[int, QueueEnd]]
) -> dict[str, dict[int, QueueEnd]]:
    """Both together."""
    ends = dict(ours)
    for topic, queues in theirs.items():
        known = ends.get(topic, {})
        higher = {
            queue_id: end
            for queue_id, end in queues.items()
            if queue_id not in known or end.next_number > known[queue_id].next_number
        }
        if higher:
            ends[topic] = {**known, **higher}
    return ends


def _offsets_by_name(table: JavaObject) -> dict[str, dict[int, int]]:
    return {subscription: table.offsets(subscription) for subscription in table}


def _newer(theirs: dict[KeyT, int], ours: dict[KeyT, int]) -> dict[KeyT, int]:
    """Their marks, or ours where they are newer. What a master does not mark any more is old."""
    return {key: max(marked_ms, ours.get(key, 0)) for key, marked_ms in theirs.items()}


# How far each delay level has been delivered (`delayOffset.json`).


class DelayOffsetTable:
    """Next offset of each level's queue in the schedule topic; level n, from 1, is queue n - 1.

    A log that lost its tail may end below it: who delivers goes on at the end of the queue then, or what is put there
    from now on would never come.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}
        self._version = DataVersion()

    @property
    def version(self) -> DataVersion:
        return self._version

    def __len__(self) -> int:
        return len(self._offsets)

    def offset(self, level: int) -> QueueOffset:
        """First offset not delivered yet; 0 for a level never used."""
        return QueueOffset(self._offsets.get(level, 0))

    def advance(self, level: int, offset: int, *, now_ms: int) -> None:
        """Everything below `offset` was delivered. Persisted late it is only delivered again: at least once."""
        if offset > self._offsets.get(level, -1):
            self._offsets[level] = offset
            self._version = self._version.next(now_ms)

    def to_json(self) -> str:
        return write_java_json({"dataVersion": self._version.to_fields(), "offsetTable": self._offsets})

    def copied(self) -> Self:
        copy = type(self)()
        copy._offsets, copy._version = dict(self._offsets), self._version
        return copy

    def load_json(self, text: str) -> None:
        """Replaces everything, version included, by the text. MetadataCorrupt leaves the table as it was."""
        self._version, self._offsets = _read_delay_offsets(text)

    def apply_from_master(self, text: str, version: DataVersion) -> list[str]:
        """Takes the master's levels as they are; one line for each that it lacks, which stays as it was."""
        _, levels = _read_delay_offsets(text)
        kept = [
            f"delay level {level}: kept {offset}, the master has none"
            for level, offset in self._offsets.items()
            if level not in levels
        ]
        self._offsets = {**self._offsets, **levels}
        self._version = version
        return kept

    def merge_replica(self, text: str) -> list[str]:
        """Takes what a replica holds beside ours, before a master serves; one line for each level that came further."""
        their_version, theirs = _read_delay_offsets(text)
        before = self._offsets
        merged = {level: max(before.get(level, 0), theirs.get(level, 0)) for level in {**before, **theirs}}
        self._version = merged_version((self._version, before), (their_version, theirs), merged)
        self._offsets = merged
        return [f"delay level {level}" for level, offset in merged.items() if offset != before.get(level)]


def _read_delay_offsets(text: str) -> tuple[DataVersion, dict[int, int]]:
    fields = read_java_json(text)
    return DataVersion.from_object(fields.object("dataVersion")), fields.offsets("offsetTable")
