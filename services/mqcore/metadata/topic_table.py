"""Topics of one broker: how many queues each has and what may be done with them (`topics.json`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

from mqcore.metadata.data_version import DataVersion
from mqcore.metadata.errors import InvalidTopic
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

__all__ = [
    "ATTRIBUTE_MESSAGE_TYPE",
    "MAX_QUEUE_COUNT",
    "MESSAGE_TYPES",
    "PERM_INHERIT",
    "PERM_READ",
    "PERM_READ_WRITE",
    "PERM_WRITE",
    "TopicConfig",
    "TopicTable",
]

PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4
PERM_READ_WRITE: Final = PERM_READ | PERM_WRITE
_PERM_MAX: Final = 15
"""All bits, with 8 for priority."""

MAX_QUEUE_COUNT: Final = 1024
"""A queue costs a ConsumeQueue; RocketMQ's own largest topic, BenchmarkTest, has as many."""

ATTRIBUTE_MESSAGE_TYPE: Final = "message.type"
MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_MAX_NAME_LENGTH: Final = 127
"""RocketMQ's Validators; the length byte of a V1 record would allow 127 too."""
_MAX_INTERNAL_NAME_LENGTH: Final = 255
"""Names that begin with %RETRY% or %DLQ% contain a group's name."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic on this broker. RocketMQ's TopicConfig."""

    topic_name: str
    read_queue_count: int
    """Queues consumers see; queue ids are 0 up to it."""
    write_queue_count: int
    """Queues producers see."""
    perm: int = PERM_READ_WRITE
    """Bits: 4 read, 2 write, 1 inherit (a new topic may copy this one), 8 priority."""
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """RocketMQ 5's topic attributes. Not to be changed."""
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0

    @property
    def message_type(self) -> str:
        """What producers may send: one of MESSAGE_TYPES; NORMAL when it was never said."""
        return self.attributes.get(ATTRIBUTE_MESSAGE_TYPE, "NORMAL")

    @property
    def readable(self) -> bool:
        """True when consumers may read."""
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        """True when producers may send."""
        return bool(self.perm & PERM_WRITE)

    def check(self) -> None:
        """Raises InvalidTopic unless the topic may be made. What is read from a file or a master is not checked."""
        longest = _MAX_INTERNAL_NAME_LENGTH if self.topic_name.startswith("%") else _MAX_NAME_LENGTH
        if not _NAME.fullmatch(self.topic_name) or len(self.topic_name) > longest:
            raise InvalidTopic(
                f"topic name {self.topic_name[:300]!r}: use 1 to {longest} of the characters a-z A-Z 0-9 _ - % |"
            )
        for what, count in (("read", self.read_queue_count), ("write", self.write_queue_count)):
            if not 1 <= count <= MAX_QUEUE_COUNT:
                raise InvalidTopic(f"topic {self.topic_name}: {count} {what} queues; use 1 to {MAX_QUEUE_COUNT}")
        if not 0 <= self.perm <= _PERM_MAX:
            raise InvalidTopic(f"topic {self.topic_name}: perm {self.perm}; 6 is read and write, 4 read, 2 write")
        if self.message_type not in MESSAGE_TYPES:
            raise InvalidTopic(
                f"topic {self.topic_name}: message type {self.message_type!r}; use one of {', '.join(MESSAGE_TYPES)}"
            )

    def to_fields(self) -> dict[str, JavaValue]:
        """RocketMQ's JSON object, fields in its order."""
        return {
            "attributes": self.attributes,
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_count,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_count,
        }

    @classmethod
    def from_object(cls, name: str, fields: JavaObject) -> TopicConfig:
        """Reads one topic; what is missing has RocketMQ's default."""
        return cls(
            topic_name=fields.text("topicName", name),
            read_queue_count=fields.integer("readQueueNums", 16),
            write_queue_count=fields.integer("writeQueueNums", 16),
            perm=fields.integer("perm", PERM_READ_WRITE),
            order=fields.flag("order", default=False),
            attributes=MappingProxyType(fields.texts("attributes")),
            topic_filter_type=fields.text("topicFilterType", "SINGLE_TAG"),
            topic_sys_flag=fields.integer("topicSysFlag", 0),
        )


class TopicTable:
    """All topics of this broker. The version changes with every change."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicConfig] = {}
        self._removals: dict[str, int] = {}
        """Marks of topics that operators removed: see `replica_merge`."""
        self._made_by_brokers: frozenset[str] = frozenset()
        self._texts: dict[str, tuple[TopicConfig, JavaText]] = {}
        self._version = DataVersion()

    @property
    def version(self) -> DataVersion:
        """Compared by slaves."""
        return self._version

    def get(self, name: str) -> TopicConfig | None:
        """The topic, if this broker has it."""
        return self._topics.get(name)

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    def put(self, config: TopicConfig, *, now_ms: int) -> bool:
        """Adds or changes a topic; False when it was just so already. Raises InvalidTopic."""
        config.check()
        if self._topics.get(config.topic_name) == config:
            return False
        self._topics[config.topic_name] = config
        self._version = self._version.next(now_ms)
        return True

    def add_system_topics(self, topics: Iterable[TopicConfig]) -> None:
        """Adds those of a new broker that are missing. The table looks no newer for it: a new disk's is the oldest."""
        made = list(topics)
        self._made_by_brokers = frozenset(topic.topic_name for topic in made)
        for topic in made:
            if topic.topic_name not in self._topics:
                self.put(topic, now_ms=self._version.timestamp_ms)

    def remove(self, name: str, *, now_ms: int) -> bool:
        """Removes a topic because somebody said so, and leaves a mark of it; False when there is none."""
        if name not in self._topics:
            return False
        self._take(removed(self._entries, name, now_ms=now_ms))
        self._version = self._version.next(now_ms)
        return True

    @property
    def _entries(self) -> Entries[TopicConfig]:
        return Entries(self._topics, self._removals)

    def _take(self, entries: Entries[TopicConfig]) -> None:
        self._topics, self._removals = entries.held, entries.removals

    def to_json(self) -> str:
        """The text of `topics.json`."""
        fields: dict[str, JavaValue] = {
            "dataVersion": self._version.to_fields(),
            "topicConfigTable": {name: self._text_of(topic) for name, topic in self._topics.items()},
        }
        if self._removals:
            fields[REMOVALS] = self._removals
        return write_java_json(fields)

    def _text_of(self, topic: TopicConfig) -> JavaText:
        known = self._texts.get(topic.topic_name)
        if known is None or known[0] is not topic:
            known = self._texts[topic.topic_name] = (topic, JavaText(topic.to_fields(), depth=2))
        return known[1]

    def copied(self) -> Self:
        """The table as it is now, to be printed in a thread. What was printed before is shared."""
        copy = type(self)()
        copy._topics, copy._removals, copy._version = dict(self._topics), self._removals, self._version
        if len(self._texts) > 2 * len(self._topics):
            self._texts = {name: self._texts[name] for name in self._topics if name in self._texts}
        copy._texts = self._texts
        return copy

    def load_json(self, text: str) -> None:
        """Replaces everything, version included, by the text. MetadataCorrupt leaves the table as it was."""
        self._version, entries = _read(text)
        self._take(entries)

    def apply_from_master(self, text: str, version: DataVersion) -> list[str]:
        """Takes the master's table, without losing what no operator removed; one line for each topic kept."""
        _, master = _read(text)
        entries, kept = follow_master(self._entries, master, made_by_brokers=self._made_by_brokers)
        self._take(entries)
        self._version = version
        return [f"topic {name}: kept, since the master lacks it and nobody deleted it" for name in kept]

    def merge_replica(self, text: str) -> list[str]:
        """Takes what a replica holds beside ours, before a master serves; one line for each topic that came of it."""
        before = self._entries
        their_version, theirs = _read(text)
        merged = merge_replica(before, theirs, theirs_newer=their_version.is_newer_than(self._version))
        self._version = merged_version((self._version, before), (their_version, theirs), merged)
        self._take(merged)
        return [f"topic {name}" for name in merged.held if name not in before.held]


def _read(text: str) -> tuple[DataVersion, Entries[TopicConfig]]:
    fields = read_java_json(text)
    topics = fields.object("topicConfigTable")
    return (
        DataVersion.from_object(fields.object("dataVersion")),
        Entries({name: TopicConfig.from_object(name, topics.object(name)) for name in topics}, read_removals(fields)),
    )
