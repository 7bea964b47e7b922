"""Consumer groups of one broker (`subscriptionGroup.json`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from mqcore.metadata.errors import InvalidGroup
from mqcore.metadata.java_json import JavaObject, JavaValue
from mqcore.metadata.replica_merge import NamedTable

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
    def name(self) -> str:
        """Its key in the table."""
        return self.group_name

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


class SubscriptionGroupTable(NamedTable[SubscriptionGroupConfig]):
    """All consumer groups of this broker. RocketMQ's forbiddenTable, group to topic to bits, is kept as read."""

    def __init__(self) -> None:
        super().__init__(
            SubscriptionGroupConfig, kind="group", field="subscriptionGroupTable", kept_field="forbiddenTable"
        )
