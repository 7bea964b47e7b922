"""What a broker knows beside its messages: topics, subscription groups, progress; RocketMQ's files and versions."""

from __future__ import annotations

from mqcore.metadata.consumer_offset_table import (
    ConsumerOffsetTable,
    GroupOffset,
    OffsetKept,
    OperatorActs,
    OperatorMarks,
)
from mqcore.metadata.creation_limit import CreationLimit
from mqcore.metadata.data_version import DataVersion
from mqcore.metadata.delay_offset_table import DelayOffsetTable
from mqcore.metadata.errors import InvalidGroup, InvalidTopic, MetadataCorrupt, MetadataError
from mqcore.metadata.metadata_store import LoadedFrom, MetadataFile, MetadataStore, MetadataTable
from mqcore.metadata.subscription_group_table import SubscriptionGroupConfig, SubscriptionGroupTable
from mqcore.metadata.system_topics import (
    AUTO_CREATE_TOPIC,
    SYSTEM_GROUPS,
    is_system_topic,
    system_subscription_groups,
    system_topics,
)
from mqcore.metadata.topic_table import (
    ATTRIBUTE_MESSAGE_TYPE,
    MAX_QUEUE_COUNT,
    MESSAGE_TYPES,
    PERM_INHERIT,
    PERM_READ,
    PERM_READ_WRITE,
    PERM_WRITE,
    TopicConfig,
    TopicTable,
)

__all__ = [
    "ATTRIBUTE_MESSAGE_TYPE",
    "AUTO_CREATE_TOPIC",
    "MAX_QUEUE_COUNT",
    "MESSAGE_TYPES",
    "PERM_INHERIT",
    "PERM_READ",
    "PERM_READ_WRITE",
    "PERM_WRITE",
    "SYSTEM_GROUPS",
    "ConsumerOffsetTable",
    "CreationLimit",
    "DataVersion",
    "DelayOffsetTable",
    "GroupOffset",
    "InvalidGroup",
    "InvalidTopic",
    "LoadedFrom",
    "MetadataCorrupt",
    "MetadataError",
    "MetadataFile",
    "MetadataStore",
    "MetadataTable",
    "OffsetKept",
    "OperatorActs",
    "OperatorMarks",
    "SubscriptionGroupConfig",
    "SubscriptionGroupTable",
    "TopicConfig",
    "TopicTable",
    "is_system_topic",
    "system_subscription_groups",
    "system_topics",
]
