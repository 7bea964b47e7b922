"""What a topic's name tells of it, and the topics that belong to a group."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from mqcore.metadata import is_system_topic

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
]

ORDINARY: Final = "topic"
RETRY: Final = "retry"
DEAD_LETTER: Final = "dead letter"
SYSTEM: Final = "system"
CATEGORIES: Final = (ORDINARY, RETRY, DEAD_LETTER, SYSTEM)
"""What `TopicSummary.category` may be, and what a list of topics can be asked for."""

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"

# Where a broker keeps delayed messages and half of transactions; only stores taken over from RocketMQ hold any.
DELAYED_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"


def category_of(topic: str, *, clusters: Collection[str], broker_names: Collection[str]) -> str:
    """One of `CATEGORIES`. Clusters and broker groups have topics of their own names. Asked of all topics of a list."""
    if topic.startswith("%"):
        if topic.startswith(RETRY_PREFIX):
            return RETRY
        if topic.startswith(DEAD_LETTER_PREFIX):
            return DEAD_LETTER
    if topic in broker_names or any(is_system_topic(topic, cluster=name, broker_name=name) for name in clusters):
        return SYSTEM
    return ORDINARY


def retry_topic(group: str) -> str:
    """Where RocketMQ's remoting clients put what a group is to be given again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Where lies what a group could not consume."""
    return DEAD_LETTER_PREFIX + group
