"""Which names topics and consumer groups may have, as clients give them (RocketMQ's Validators and TopicValidator)."""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "GROUP_NAME_LENGTH_MAX",
    "RESERVED_TOPICS",
    "TOPIC_NAME_LENGTH_MAX",
    "group_name_problem",
    "topic_name_problem",
]

TOPIC_NAME_LENGTH_MAX: Final = 127
GROUP_NAME_LENGTH_MAX: Final = 120

# Topics that brokers keep for themselves, besides those with a reserved prefix.
RESERVED_TOPICS: Final = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)

_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
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


def _form_problem(kind: str, name: str, length_max: int) -> str | None:
    if not name:
        return f"the {kind} name is empty"
    if len(name) > length_max:
        return f"the {kind} name has {len(name)} characters, the limit is {length_max}"
    if not _ALLOWED.fullmatch(name):
        return f"{kind} name {name!r}: use only the characters a-z A-Z 0-9 _ - % |"
    return None
