"""Topics and groups every broker has from its first boot, as RocketMQ's TopicConfigManager makes them."""

from __future__ import annotations

from typing import Final

from mqcore.metadata.subscription_group_table import SubscriptionGroupConfig
from mqcore.metadata.topic_table import PERM_INHERIT, PERM_READ_WRITE, TopicConfig

__all__ = [
    "AUTO_CREATE_TOPIC",
    "SYSTEM_GROUPS",
    "is_system_topic",
    "system_subscription_groups",
    "system_topics",
]

AUTO_CREATE_TOPIC: Final = "TBW102"
"""Its configuration is what a topic made by the first send inherits."""

SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
_SYSTEM_PREFIX: Final = "rmq_sys_"
_FIXED_TOPICS: Final = {
    "SELF_TEST_TOPIC": 1,
    "BenchmarkTest": 1024,
    "OFFSET_MOVED_EVENT": 1,
    "SCHEDULE_TOPIC_XXXX": 18,
    "RMQ_SYS_TRANS_HALF_TOPIC": 1,
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1,
    "rmq_sys_wheel_timer": 1,
}
"""Name and number of queues."""
_CHECKED_TOO_OFTEN_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Made when the first half message is given up."""
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


def system_subscription_groups() -> list[SubscriptionGroupConfig]:
    """What the group table of a new broker holds."""
    return [SubscriptionGroupConfig(name) for name in SYSTEM_GROUPS]


def is_system_topic(name: str, *, cluster: str, broker_name: str) -> bool:
    """True for the broker's own topics: no client sends to them. Retry and dead letter topics are not among them."""
    return (
        name in _FIXED_TOPICS
        or name in (AUTO_CREATE_TOPIC, _CHECKED_TOO_OFTEN_TOPIC, cluster, broker_name, f"{cluster}_REPLY_TOPIC")
        or name.startswith((_SYSTEM_PREFIX, "RMQ_SYS_"))
    )
