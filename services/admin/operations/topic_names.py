"""What a topic's name tells of it, and the topics that belong to a group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mqcore.metadata.topic_table import RESERVED_TOPICS, system_topics

__all__ = [
    "CATEGORIES",
    "DEAD_LETTER",
    "DEAD_LETTER_PREFIX",
    "DELAYED_TOPIC",
    "HALF_TOPIC",
    "ORDINARY",
    "RETRY",
    "RETRY_PREFIX",
    "SYSTEM",
    "category_of",
    "dead_letter_topic",
    "retry_topic",
    "system_names",
]

ORDINARY: Final = "topic"
RETRY: Final = "retry"
DEAD_LETTER: Final = "dead letter"
SYSTEM: Final = "system"
CATEGORIES: Final = (ORDINARY, RETRY, DEAD_LETTER, SYSTEM)
"""What `TopicSummary.category` may be, and what a list of topics can be asked for."""

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
_SYSTEM_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_")

# Where a broker keeps delayed messages and half of transactions; only stores taken over from RocketMQ hold any.
DELAYED_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"


def system_names(*, clusters: Iterable[str], broker_names: Iterable[str]) -> frozenset[str]:
    """Topics that brokers have for themselves, some of them named after the cluster or the broker group."""
    names = list(broker_names)
    return RESERVED_TOPICS.union(
        topic.topic_name
        for cluster in clusters
        for name in names
        for topic in system_topics(cluster=cluster, broker_name=name, auto_create_topic=True)
    )


def category_of(topic: str, own: frozenset[str]) -> str:
    """One of `CATEGORIES`. `own` are the `system_names`. Takes less than a microsecond: lists ask it of all topics."""
    if topic.startswith("%"):
        if topic.startswith(RETRY_PREFIX):
            return RETRY
        if topic.startswith(DEAD_LETTER_PREFIX):
            return DEAD_LETTER
    return SYSTEM if topic in own or topic.startswith(_SYSTEM_PREFIXES) else ORDINARY


def retry_topic(group: str) -> str:
    """Where RocketMQ's remoting clients put what a group is to be given again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Where lies what a group could not consume."""
    return DEAD_LETTER_PREFIX + group
