"""Topics of one broker: how many queues each has and what may be done with them (`topics.json`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from mqcore.metadata.errors import InvalidTopic
from mqcore.metadata.java_json import JavaObject, JavaValue
from mqcore.metadata.replica_merge import NamedTable

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
    def name(self) -> str:
        """Its key in the table."""
        return self.topic_name

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


class TopicTable(NamedTable[TopicConfig]):
    """All topics of this broker."""

    def __init__(self) -> None:
        super().__init__(TopicConfig, kind="topic", field="topicConfigTable")
