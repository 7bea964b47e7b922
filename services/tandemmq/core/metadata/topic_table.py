"""Topics of one broker: how many queues each has and what may be done with them (`topics.json`).

The topics and groups that every broker has from its first boot are here as well, and the rules for names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tandemmq.core.message.record import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_OP_TOPIC,
    TIMER_TOPIC,
)
from tandemmq.core.metadata.metadata_store import InvalidTopic, JavaObject, JavaValue
from tandemmq.core.metadata.replica_merge import NamedTable

PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4
PERM_READ_WRITE: Final = PERM_READ | PERM_WRITE
_PERM_MAX: Final = 15
"""All bits, with 8 for priority."""

MAX_QUEUE_COUNT: Final = 1024
"""A queue costs a ConsumeQueue; RocketMQ's own largest topic, BenchmarkTest, has as many."""

ATTRIBUTE_MESSAGE_TYPE: Final = "message.type"
ATTRIBUTE_TRANSACTION_TIMEOUT: Final = "transaction.timeout"
"""In place of the broker's `transactionTimeOut`, ms; likewise the next two, a time in ms and a count."""
ATTRIBUTE_TRANSACTION_CHECK_INTERVAL: Final = "transaction.check.interval"
ATTRIBUTE_TRANSACTION_CHECK_MAX: Final = "transaction.check.max"
ATTRIBUTE_LITE_EXPIRATION: Final = "lite.topic.expiration"
"""Of a LITE topic: minutes that a lite topic lives without a new message; -1: for ever."""
LITE_EXPIRATION_MINUTES_MAX: Final = 43_200
ATTRIBUTE_DEDUPLICATION_WINDOW: Final = "deduplication.window"
"""Seconds in which a message id is stored once; 0, or absent: ids are not looked at."""
DEDUPLICATION_WINDOW_S_MAX: Final = 86_400
MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE")

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
TOPIC_NAME_LENGTH_MAX: Final = 127
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
        return self.topic_name

    @property
    def queue_count(self) -> int:
        """Queues that producers or consumers see."""
        return max(self.read_queue_count, self.write_queue_count)

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
        longest = _MAX_INTERNAL_NAME_LENGTH if self.topic_name.startswith("%") else TOPIC_NAME_LENGTH_MAX
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
        expiration = self.attributes.get(ATTRIBUTE_LITE_EXPIRATION, "-1")
        is_number = expiration.isascii() and expiration.isdigit()
        if expiration != "-1" and not (is_number and 0 < int(expiration) <= LITE_EXPIRATION_MINUTES_MAX):
            raise InvalidTopic(
                f"topic {self.topic_name}: {ATTRIBUTE_LITE_EXPIRATION} {expiration!r}; use -1 for ever, or 1 to "
                f"{LITE_EXPIRATION_MINUTES_MAX} minutes"
            )

        window = self.attributes.get(ATTRIBUTE_DEDUPLICATION_WINDOW, "0")
        if not (window.isascii() and window.isdigit() and int(window) <= DEDUPLICATION_WINDOW_S_MAX):
            raise InvalidTopic(
                f"topic {self.topic_name}: {ATTRIBUTE_DEDUPLICATION_WINDOW} {window!r}; use 0 for none, or up to "
                f"{DEDUPLICATION_WINDOW_S_MAX} seconds"
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


def deduplication_window_ms(config: TopicConfig) -> int:
    """How long a message id of the topic is remembered; 0: not at all."""
    text = config.attributes.get(ATTRIBUTE_DEDUPLICATION_WINDOW, "")
    return min(int(text), DEDUPLICATION_WINDOW_S_MAX) * 1_000 if text.isascii() and text.isdigit() else 0


class TopicTable(NamedTable[TopicConfig]):
    def __init__(self) -> None:
        super().__init__(TopicConfig, kind="topic", field="topicConfigTable")

    def get(self, name: str) -> TopicConfig | None:
        """As the base has it. Every send asks, and here it is compiled."""
        return self._entries.held.get(name)

    def put(self, config: TopicConfig, *, now_ms: int) -> bool:
        """As the base does. A topic that gets fewer queues is removed and made again: the mark tells an audit, which
        finds messages in queues that the table does not have, that it had them until then."""
        before = self.get(config.topic_name)
        if before is not None and config.queue_count < before.queue_count:
            config.check()
            self.remove(config.topic_name, now_ms=now_ms)
        return super().put(config, now_ms=now_ms)


# Topics every broker has from its first boot, as RocketMQ's TopicConfigManager makes them.

AUTO_CREATE_TOPIC: Final = "TBW102"
"""Its configuration is what a topic made by the first send inherits."""

_SYSTEM_PREFIX: Final = "rmq_sys_"
_FIXED_TOPICS: Final = {
    "SELF_TEST_TOPIC": 1,
    "BenchmarkTest": 1024,
    "OFFSET_MOVED_EVENT": 1,
    SCHEDULE_TOPIC: 18,
    HALF_TOPIC: 1,
    OP_TOPIC: 1,
    TIMER_TOPIC: 1,
    TIMER_OP_TOPIC: 1,
}
"""Name and number of queues."""
_INHERITED: Final = PERM_READ_WRITE | PERM_INHERIT


def system_topics(*, cluster: str, broker_name: str, auto_create_topic: bool) -> list[TopicConfig]:
    """What the topic table of a new broker holds."""
    topics = [TopicConfig(name, count, count) for name, count in _FIXED_TOPICS.items()]
    topics += [
        TopicConfig(cluster, 16, 16, perm=_INHERITED),
        TopicConfig(broker_name, 1, 1, perm=_INHERITED),
        TopicConfig(f"{cluster}_REPLY_TOPIC", 1, 1),
        TopicConfig(f"{_SYSTEM_PREFIX}REVIVE_LOG_{cluster}", 8, 8),
        TopicConfig(f"{_SYSTEM_PREFIX}SYNC_BROKER_MEMBER_{broker_name}", 1, 1, perm=PERM_INHERIT),
    ]
    if auto_create_topic:
        topics.append(TopicConfig(AUTO_CREATE_TOPIC, 8, 8, perm=_INHERITED))
    return topics


def is_system_topic(name: str, *, cluster: str, broker_name: str) -> bool:
    """True for the broker's own topics: no client sends to them. Retry and dead letter topics are not among them."""
    return (
        name in _FIXED_TOPICS
        or name in (AUTO_CREATE_TOPIC, GIVEN_UP_TOPIC, cluster, broker_name, f"{cluster}_REPLY_TOPIC")
        or name.startswith((_SYSTEM_PREFIX, "RMQ_SYS_"))
    )


# Which names topics and consumer groups may have, as clients give them (RocketMQ's Validators and TopicValidator).

GROUP_NAME_LENGTH_MAX: Final = 120
LITE_TOPIC_CHARACTERS_MAX: Final = 64
"""RocketMQ's maxLiteTopicSize."""

# Topics that brokers keep for themselves, besides those with a reserved prefix.
RESERVED_TOPICS: Final = frozenset(
    {AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", GIVEN_UP_TOPIC}
)

_RESERVED_TOPIC_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_")
_RESERVED_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


def topic_name_problem(name: str) -> str | None:
    """Why a client may not use this topic name, in words for its user; None if it may.

    Retry and dead letter topics (%RETRY%group, %DLQ%group) may be used; groups read from them.
    """
    problem = _form_problem("topic", name, TOPIC_NAME_LENGTH_MAX)
    if problem is None and (name in RESERVED_TOPICS or name.startswith(_RESERVED_TOPIC_PREFIXES)):
        return f"topic {name} is reserved for the brokers' own use"
    return problem


def group_name_problem(name: str) -> str | None:
    """Why a client may not use this consumer group name, in words for its user; None if it may."""
    problem = _form_problem("consumer group", name, GROUP_NAME_LENGTH_MAX)
    if problem is None and name.startswith(_RESERVED_GROUP_PREFIX):
        return f"consumer group {name} is reserved for the brokers' own use"
    return problem


def lite_topic_problem(lite_topic: str) -> str | None:
    """Why a lite topic may not have the name; None if it may."""
    if not lite_topic.strip():
        return "lite_topic: it is blank; name the lite topic"
    if len(lite_topic) > LITE_TOPIC_CHARACTERS_MAX:
        return f"lite_topic: {len(lite_topic)} characters; use {LITE_TOPIC_CHARACTERS_MAX} at most"
    if not lite_topic.isprintable() or "," in lite_topic:
        return f"lite_topic {lite_topic!r}: it must have neither a comma nor a control character"
    return None


def _form_problem(kind: str, name: str, length_max: int) -> str | None:
    if not name:
        return f"the {kind} name is empty"
    if len(name) > length_max:
        return f"the {kind} name has {len(name)} characters, the limit is {length_max}"
    if not _NAME.fullmatch(name):
        return f"{kind} name {name!r}: use only the characters a-z A-Z 0-9 _ - % |"
    return None
