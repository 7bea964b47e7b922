"""How far each consumer group has come in each queue (`consumerOffset.json`).

An offset is the first one not yet acknowledged. It never moves back by itself: not by a late commit, and not on a slave
whose master is behind. RocketMQ merges whatever the master says, so that a master restarted from an old file sets the
progress back everywhere and everything is consumed again after the next switch. Only `reset` moves back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mqcore.metadata.data_version import DataVersion
from mqcore.metadata.java_json import JavaValue, read_java_json, write_java_json
from mqcore.offsets import ConsumerOffset

__all__ = ["ConsumerOffsetTable", "GroupOffset", "OffsetKept"]


class GroupOffset(NamedTuple):
    """Progress of one group in one queue."""

    group: str
    topic: str
    queue_id: int
    offset: int
    """First offset not acknowledged."""


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
        self._version = DataVersion()

    @property
    def version(self) -> DataVersion:
        """Compared by slaves."""
        return self._version

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
        self._offsets.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        self._version = self._version.next(now_ms)

    def remove_topic(self, topic: str, *, now_ms: int) -> None:
        """Forgets a deleted topic: one made later under its name starts at offset 0 again."""
        gone = [subscription for subscription in self._offsets if subscription.startswith(f"{topic}@")]
        for subscription in gone:
            del self._offsets[subscription]
        if gone:
            self._version = self._version.next(now_ms)

    def __iter__(self) -> Iterator[GroupOffset]:
        for subscription, queues in self._offsets.items():
            topic, _, group = subscription.partition("@")
            for queue_id, offset in queues.items():
                yield GroupOffset(group, topic, queue_id, offset)

    def to_json(self) -> str:
        """The text of `consumerOffset.json`."""
        fields: dict[str, JavaValue] = {"dataVersion": self._version.to_fields(), "offsetTable": self._offsets}
        if self._pull_offsets:
            fields["pullOffsetTable"] = self._pull_offsets
        return write_java_json(fields)

    def load_json(self, text: str) -> None:
        """Replaces everything, version included, by the text. MetadataCorrupt leaves the table as it was."""
        self._version, self._offsets, self._pull_offsets = _read(text)

    def apply_from_master(self, text: str, version: DataVersion) -> list[str]:
        """Merges the master's table: nothing is removed and nothing moves back. One line for each offset kept."""
        _, offsets, pull_offsets = _read(text)
        notices: list[str] = []
        for subscription, queues in offsets.items():
            for queue_id, offset in queues.items():
                outcome = self._move_forward(subscription, queue_id, offset)
                if isinstance(outcome, OffsetKept):
                    notices.append(str(outcome))
        self._pull_offsets = pull_offsets
        self._version = version
        return notices

    def _move_forward(self, subscription: str, queue_id: int, offset: int) -> OffsetKept | bool:
        """True when it moved, False when it was there already."""
        queues = self._offsets.setdefault(subscription, {})
        held = queues.get(queue_id, -1)
        if offset < held:
            return OffsetKept(subscription, queue_id, held, offset)
        queues[queue_id] = offset
        return offset != held


def _read(text: str) -> tuple[DataVersion, dict[str, dict[int, int]], dict[str, JavaValue]]:
    fields = read_java_json(text)
    version = DataVersion.from_object(fields.object("dataVersion"))
    table = fields.object("offsetTable")
    offsets = {subscription: table.offsets(subscription) for subscription in table}
    pulls = fields.object("pullOffsetTable")
    pull_offsets: dict[str, JavaValue] = {subscription: pulls.offsets(subscription) for subscription in pulls}
    return version, offsets, pull_offsets
