"""Consumer groups of one broker (`subscriptionGroup.json`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

from mqcore.metadata.data_version import DataVersion
from mqcore.metadata.errors import InvalidGroup
from mqcore.metadata.java_json import JavaObject, JavaText, JavaValue, read_java_json, write_java_json
from mqcore.metadata.replica_merge import (
    REMOVALS,
    Entries,
    follow_master,
    merge_replica,
    merged_version,
    read_removals,
    removed,
)

__all__ = ["SubscriptionGroupConfig", "SubscriptionGroupTable"]

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_MAX_NAME_LENGTH: Final = 255


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """One consumer group. RocketMQ's SubscriptionGroupConfig with its defaults."""

    group_name: str
    consume_enable: bool = True
    """False: the group receives nothing."""
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    """True: a queue gives nothing more while something of its last batch is unacknowledged (FIFO group)."""
    retry_queue_count: int = 1
    retry_max_times: int = 16
    """Redeliveries before a message goes to the dead letter topic; the first delivery is not counted."""
    retry_policy: Mapping[str, JavaValue] = field(default_factory=lambda: MappingProxyType({"type": "CUSTOMIZED"}))
    """As RocketMQ wrote it; kept for Java readers. Not to be changed."""
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minutes: int = 15
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """RocketMQ 5's group attributes. Not to be changed."""

    @property
    def max_attempts(self) -> int:
        """Deliveries in all, the first included."""
        return self.retry_max_times + 1

    def check(self) -> None:
        """Raises InvalidGroup unless the group may be made. What is read from a file or a master is not checked."""
        if not _NAME.fullmatch(self.group_name) or len(self.group_name) > _MAX_NAME_LENGTH:
            raise InvalidGroup(
                f"group name {self.group_name[:300]!r}: use 1 to {_MAX_NAME_LENGTH} of the characters "
                f"a-z A-Z 0-9 _ - % |"
            )
        if self.retry_max_times < 0:
            raise InvalidGroup(f"group {self.group_name}: retryMaxTimes {self.retry_max_times}; use 0 or more")

    def to_fields(self) -> dict[str, JavaValue]:
        """RocketMQ's JSON object, fields in its order."""
        return {
            "attributes": self.attributes,
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minutes,
            "groupName": self.group_name,
            "groupRetryPolicy": self.retry_policy,
            "groupSysFlag": self.group_sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queue_count,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }

    @classmethod
    def from_object(cls, name: str, fields: JavaObject) -> SubscriptionGroupConfig:
        """Reads one group; what is missing, as in files of RocketMQ 4, has the default."""
        return cls(
            group_name=fields.text("groupName", name),
            consume_enable=fields.flag("consumeEnable", default=True),
            consume_from_min_enable=fields.flag("consumeFromMinEnable", default=True),
            consume_broadcast_enable=fields.flag("consumeBroadcastEnable", default=True),
            consume_message_orderly=fields.flag("consumeMessageOrderly", default=False),
            retry_queue_count=fields.integer("retryQueueNums", 1),
            retry_max_times=fields.integer("retryMaxTimes", 16),
            retry_policy=MappingProxyType(fields.raw("groupRetryPolicy") or {"type": "CUSTOMIZED"}),
            broker_id=fields.integer("brokerId", 0),
            which_broker_when_consume_slowly=fields.integer("whichBrokerWhenConsumeSlowly", 1),
            notify_consumer_ids_changed_enable=fields.flag("notifyConsumerIdsChangedEnable", default=True),
            group_sys_flag=fields.integer("groupSysFlag", 0),
            consume_timeout_minutes=fields.integer("consumeTimeoutMinute", 15),
            attributes=MappingProxyType(fields.texts("attributes")),
        )


class SubscriptionGroupTable:
    """All consumer groups of this broker. The version changes with every change."""

    def __init__(self) -> None:
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: Mapping[str, JavaValue] = {}
        """RocketMQ's forbiddenTable, group to topic to bits: kept as read, for Java readers."""
        self._removals: dict[str, int] = {}
        """Marks of groups that operators removed: see `replica_merge`."""
        self._made_by_brokers: frozenset[str] = frozenset()
        self._texts: dict[str, tuple[SubscriptionGroupConfig, JavaText]] = {}
        self._version = DataVersion()

    @property
    def version(self) -> DataVersion:
        """Compared by slaves."""
        return self._version

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """The group, if this broker has it."""
        return self._groups.get(name)

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, config: SubscriptionGroupConfig, *, now_ms: int) -> bool:
        """Adds or changes a group; False when it was just so already. Raises InvalidGroup."""
        config.check()
        if self._groups.get(config.group_name) == config:
            return False
        self._groups[config.group_name] = config
        self._version = self._version.next(now_ms)
        return True

    def add_system_groups(self, groups: Iterable[SubscriptionGroupConfig]) -> None:
        """Adds those of a new broker that are missing. The table looks no newer for it: a new disk's is the oldest."""
        made = list(groups)
        self._made_by_brokers = frozenset(group.group_name for group in made)
        for group in made:
            if group.group_name not in self._groups:
                self.put(group, now_ms=self._version.timestamp_ms)

    def remove(self, name: str, *, now_ms: int) -> bool:
        """Removes a group because somebody said so, and leaves a mark of it; False when there is none."""
        if name not in self._groups:
            return False
        self._take(removed(self._entries, name, now_ms=now_ms))
        self._version = self._version.next(now_ms)
        return True

    @property
    def _entries(self) -> Entries[SubscriptionGroupConfig]:
        return Entries(self._groups, self._removals)

    def _take(self, entries: Entries[SubscriptionGroupConfig]) -> None:
        self._groups, self._removals = entries.held, entries.removals

    def to_json(self) -> str:
        """The text of `subscriptionGroup.json`."""
        fields: dict[str, JavaValue] = {
            "dataVersion": self._version.to_fields(),
            "forbiddenTable": self._forbidden,
            "subscriptionGroupTable": {name: self._text_of(group) for name, group in self._groups.items()},
        }
        if self._removals:
            fields[REMOVALS] = self._removals
        return write_java_json(fields)

    def _text_of(self, group: SubscriptionGroupConfig) -> JavaText:
        known = self._texts.get(group.group_name)
        if known is None or known[0] is not group:
            known = self._texts[group.group_name] = (group, JavaText(group.to_fields(), depth=2))
        return known[1]

    def copied(self) -> Self:
        """The table as it is now, to be printed in a thread. What was printed before is shared."""
        copy = type(self)()
        copy._groups, copy._removals, copy._version = dict(self._groups), self._removals, self._version
        copy._forbidden = self._forbidden
        if len(self._texts) > 2 * len(self._groups):
            self._texts = {name: self._texts[name] for name in self._groups if name in self._texts}
        copy._texts = self._texts
        return copy

    def load_json(self, text: str) -> None:
        """Replaces everything, version included, by the text. MetadataCorrupt leaves the table as it was."""
        self._version, entries, self._forbidden = _read(text)
        self._take(entries)

    def apply_from_master(self, text: str, version: DataVersion) -> list[str]:
        """Takes the master's table, without losing what no operator removed; one line for each group kept."""
        _, master, self._forbidden = _read(text)
        entries, kept = follow_master(self._entries, master, made_by_brokers=self._made_by_brokers)
        self._take(entries)
        self._version = version
        return [f"group {name}: kept, since the master lacks it and nobody deleted it" for name in kept]

    def merge_replica(self, text: str) -> list[str]:
        """Takes what a replica holds beside ours, before a master serves; one line for each group that came of it."""
        before, before_forbidden = self._entries, self._forbidden
        their_version, theirs, their_forbidden = _read(text)
        theirs_newer = their_version.is_newer_than(self._version)
        merged = merge_replica(before, theirs, theirs_newer=theirs_newer)
        older, newer = (before_forbidden, their_forbidden) if theirs_newer else (their_forbidden, before_forbidden)
        self._forbidden = {**older, **newer}
        self._version = merged_version(
            (self._version, (before, before_forbidden)),
            (their_version, (theirs, their_forbidden)),
            (merged, self._forbidden),
        )
        self._take(merged)
        return [f"group {name}" for name in merged.held if name not in before.held]


def _read(text: str) -> tuple[DataVersion, Entries[SubscriptionGroupConfig], Mapping[str, JavaValue]]:
    fields = read_java_json(text)
    groups = fields.object("subscriptionGroupTable")
    held = {name: SubscriptionGroupConfig.from_object(name, groups.object(name)) for name in groups}
    return (
        DataVersion.from_object(fields.object("dataVersion")),
        Entries(held, read_removals(fields)),
        fields.raw("forbiddenTable"),
    )
