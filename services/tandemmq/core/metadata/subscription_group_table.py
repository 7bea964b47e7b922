"""Consumer groups of one broker (`subscriptionGroup.json`), and how many of them clients may make by naming them.

A group is kept for good, in a file that is written whole and copied to every slave. So a client that names new groups
in a loop, by mistake or not, is stopped before it takes the disk or the sends of the others.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from tandemmq.core.metadata.metadata_store import InvalidGroup, JavaObject, JavaValue
from tandemmq.core.metadata.replica_merge import NamedTable

ATTRIBUTE_PRIORITY_FACTOR: Final = "priority.factor"
ATTRIBUTE_LITE_BIND_TOPIC: Final = "lite.bind.topic"
"""The one LITE topic that the group may consume; absent: any."""
ATTRIBUTE_LITE_MODEL: Final = "lite.sub.model"
"""`Shared`, or `Exclusive`: of a group one client at a time has a lite topic, the one that subscribed last."""
ATTRIBUTE_LITE_CLIENT_QUOTA: Final = "lite.sub.client.quota"
"""Lite topics that one client of the group may subscribe to."""
_LITE_MODELS: Final = ("Shared", "Exclusive")
_LITE_CLIENT_QUOTA: Final = 2_000
_LITE_CLIENT_QUOTA_MAX: Final = 100_000
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_MAX_NAME_LENGTH: Final = 255

RETRY_DELAYS_MAX: Final = 100
"""A group may have so many; RocketMQ's own list has 18."""
RETRY_DELAY_SECONDS_MAX: Final = 86_400


def _seconds(milliseconds: int) -> int:
    """Whole ones: Python's and Node's clients read nothing finer."""
    return min(max(1, milliseconds // 1_000), RETRY_DELAY_SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """One consumer group. RocketMQ's SubscriptionGroupConfig with its defaults."""

    group_name: str
    consume_enable: bool = True
    """False: the group receives nothing."""
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    """True: a message group gives nothing more while something of it is unacknowledged (FIFO group)."""
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
        return self.group_name

    @property
    def max_attempts(self) -> int:
        """Deliveries in all, the first included."""
        return self.retry_max_times + 1

    @property
    def priority_factor(self) -> int:
        """Of PRIORITY topics: how many of a hundred receives go by priority; the others take the queues in turn, so
        that what is urgent does not starve the rest. 100 unless the attribute is a number from 0 to 100."""
        text = self.attributes.get(ATTRIBUTE_PRIORITY_FACTOR, "")
        return min(int(text), 100) if text.isascii() and text.isdigit() else 100

    @property
    def lite_bind_topic(self) -> str:
        """The one LITE topic that it may consume; empty: any."""
        return self.attributes.get(ATTRIBUTE_LITE_BIND_TOPIC, "")

    @property
    def lite_exclusive(self) -> bool:
        """One client at a time has a lite topic."""
        return self.attributes.get(ATTRIBUTE_LITE_MODEL, "") == "Exclusive"

    @property
    def lite_client_quota(self) -> int:
        """Lite topics that one client may subscribe to."""
        text = self.attributes.get(ATTRIBUTE_LITE_CLIENT_QUOTA, "")
        return int(text) if text.isascii() and text.isdigit() else _LITE_CLIENT_QUOTA

    @property
    def retry_delays_seconds(self) -> tuple[int, ...]:
        """How long a message that failed waits for its next delivery: after the first, the second; the last one is for
        all that follow. Empty: the default list. Of RocketMQ's `groupRetryPolicy`; below a second is one."""
        policy = self.retry_policy
        kind = policy.get("type")
        if kind == "CUSTOMIZED":
            custom = policy.get("customizedRetryPolicy")
            delays = custom.get("next") if isinstance(custom, dict) else None
            listed = delays if isinstance(delays, list) else []
            return tuple([_seconds(one) for one in listed if isinstance(one, int)][:RETRY_DELAYS_MAX])
        if kind == "EXPONENTIAL":
            growing = policy.get("exponentialRetryPolicy")
            if not isinstance(growing, dict):
                return ()
            delay_ms, max_ms = growing.get("initial", 5_000), growing.get("max", 7_200_000)
            factor = growing.get("multiplier", 2)
            if (
                not isinstance(delay_ms, int)
                or not isinstance(max_ms, int)
                or not isinstance(factor, int)
                or factor < 1
            ):
                return ()
            found: list[int] = []
            for _ in range(min(self.max_attempts, RETRY_DELAYS_MAX)):
                found.append(_seconds(min(delay_ms, max_ms)))
                delay_ms = min(delay_ms * factor, max_ms)
            return tuple(found)
        return ()

    def with_retry_delays(self, seconds: tuple[int, ...]) -> SubscriptionGroupConfig:
        """The group with this list. Raises InvalidGroup unless it may have it."""
        if not 0 < len(seconds) <= RETRY_DELAYS_MAX or not all(1 <= one <= RETRY_DELAY_SECONDS_MAX for one in seconds):
            raise InvalidGroup(
                f"group {self.group_name}: {len(seconds)} retry delays; use 1 to {RETRY_DELAYS_MAX}, each of 1 to "
                f"{RETRY_DELAY_SECONDS_MAX} seconds"
            )
        policy: dict[str, JavaValue] = {
            "customizedRetryPolicy": {"next": [one * 1_000 for one in seconds]},
            "type": "CUSTOMIZED",
        }
        return replace(self, retry_policy=MappingProxyType(policy))

    def check(self) -> None:
        """Raises InvalidGroup unless the group may be made. What is read from a file or a master is not checked."""
        if not _NAME.fullmatch(self.group_name) or len(self.group_name) > _MAX_NAME_LENGTH:
            raise InvalidGroup(
                f"group name {self.group_name[:300]!r}: use 1 to {_MAX_NAME_LENGTH} of the characters "
                f"a-z A-Z 0-9 _ - % |"
            )
        if self.retry_max_times < 0:
            raise InvalidGroup(f"group {self.group_name}: retryMaxTimes {self.retry_max_times}; use 0 or more")
        factor = self.attributes.get(ATTRIBUTE_PRIORITY_FACTOR, "100")
        if not (factor.isascii() and factor.isdigit() and int(factor) <= 100):
            raise InvalidGroup(f"group {self.group_name}: {ATTRIBUTE_PRIORITY_FACTOR} {factor}; use 0 to 100")

        model = self.attributes.get(ATTRIBUTE_LITE_MODEL, _LITE_MODELS[0])
        if model not in _LITE_MODELS:
            raise InvalidGroup(f"group {self.group_name}: {ATTRIBUTE_LITE_MODEL} {model!r}; use Shared or Exclusive")
        quota = self.attributes.get(ATTRIBUTE_LITE_CLIENT_QUOTA, "1")
        if not (quota.isascii() and quota.isdigit() and 0 < int(quota) <= _LITE_CLIENT_QUOTA_MAX):
            raise InvalidGroup(
                f"group {self.group_name}: {ATTRIBUTE_LITE_CLIENT_QUOTA} {quota}; use 1 to {_LITE_CLIENT_QUOTA_MAX}"
            )

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


# The limit on new groups.

_CLIENTS_MAX: Final = 1_000
"""Remembered; the one heard of longest ago is forgotten first."""


class CreationLimit:
    """At most so many a second, of one client and of all, and so many there may be. No clock: the caller tells the
    time, in ms of the monotonic clock. What was not used in one second may be in the next, no later.

    Who makes them is a user, or an address where nobody signs in. One may use up a second: whoever made less than an
    equal share in it finds room beside, in which all together make as many again. And one may make three times what it
    leaves free, since this process began: the rest is for others.
    """

    def __init__(
        self, *, per_second: int, per_client_per_second: int, count_max: int, is_there: Callable[[str], bool]
    ) -> None:
        """`is_there`: whether there is one of that name still."""
        self._per_second = per_second
        self._per_client = per_client_per_second
        self._count_max = count_max
        self._is_there = is_there
        self._all = _Allowance(per_second)
        self._beside = _Allowance(per_second)
        self._clients: OrderedDict[str, _Allowance] = OrderedDict()
        # Of those who made some within a second, the one that did longest ago first.
        self._makers: OrderedDict[str, _Allowance] = OrderedDict()
        self._made_by: dict[str, set[str]] = {}
        self._made_count = 0
        self._look_at_ms = 0

    def refusal(self, name: str, client_id: str, whose: str, *, count: int, now_ms: int) -> str | None:
        """Why not one more besides `count`, and what to do; None: it is made, and counted."""
        if count >= self._count_max:
            return (
                f"the broker has {count} consumer groups, and subscriptionGroupsMax is {self._count_max}: "
                "delete groups nobody uses, or raise it"
            )
        if self._has_its_part(whose, count, now_ms):
            return (
                f"{whose} made {len(self._made_by[whose])} of {count} consumer groups, and what subscriptionGroupsMax="
                f"{self._count_max} leaves is for others: delete groups nobody uses, or raise it"
            )
        client = self._clients.get(client_id) or _Allowance(self._per_client)
        self._clients[client_id] = client
        self._clients.move_to_end(client_id)
        if len(self._clients) > _CLIENTS_MAX:
            self._clients.popitem(last=False)
        if not client.has_one(now_ms):
            return (
                f"client {client_id} names new consumer groups faster than newGroupsPerClientPerSecond="
                f"{self._per_client}: use one group for each application, or create groups beforehand"
            )
        room = self._all if self._all.has_one(now_ms) else self._beside
        if not room.has_one(now_ms) or (room is self._beside and not self._has_less(whose, now_ms)):
            return (
                f"clients name new consumer groups faster than newGroupsPerSecond={self._per_second}: "
                "try again in a second, or create groups beforehand"
            )
        client.take()
        room.take()
        self._note(name, whose, now_ms)
        return None

    def _has_less(self, whose: str, now_ms: int) -> bool:
        """Than an equal share of what was made within a second."""
        own = self._makers.get(whose)
        return own is None or own.taken(now_ms) < max(1, self._per_second // (len(self._makers) + 1))

    def _has_its_part(self, whose: str, count: int, now_ms: int) -> bool:
        names = self._made_by.get(whose)
        if names is None or len(names) < 3 * (self._count_max - count):
            return False
        if now_ms >= self._look_at_ms:
            # Some may have been deleted; to look at all is work.
            self._look_at_ms = now_ms + 1_000
            self._look()
        return len(self._made_by.get(whose, ())) >= 3 * (self._count_max - count)

    def _look(self) -> None:
        there = {whose: set(filter(self._is_there, names)) for whose, names in self._made_by.items()}
        self._made_by = {whose: names for whose, names in there.items() if names}
        self._made_count = sum(map(len, self._made_by.values()))

    def _note(self, name: str, whose: str, now_ms: int) -> None:
        maker = self._makers.get(whose) or _Allowance(self._per_second)
        maker.has_one(now_ms)
        maker.take()
        self._makers[whose] = maker
        self._makers.move_to_end(whose)
        while next(iter(self._makers.values())).is_full(now_ms):
            self._makers.popitem(last=False)
        if self._made_count >= self._count_max:
            self._look()
        names = self._made_by.setdefault(whose, set())
        self._made_count += name not in names
        names.add(name)


class _Allowance:
    """A bucket that holds what one second brings."""

    __slots__ = ("_at_ms", "_left_thousandths", "_per_second")

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left_thousandths = per_second * 1_000
        self._at_ms: int | None = None

    def has_one(self, now_ms: int) -> bool:
        if self._at_ms is not None:
            came = (now_ms - self._at_ms) * self._per_second
            self._left_thousandths = min(self._left_thousandths + came, self._per_second * 1_000)
        self._at_ms = now_ms
        return self._left_thousandths >= 1_000

    def take(self) -> None:
        self._left_thousandths -= 1_000

    def taken(self, now_ms: int) -> int:
        """Of what it holds, in whole ones."""
        self.has_one(now_ms)
        return -((self._left_thousandths - self._per_second * 1_000) // 1_000)

    def is_full(self, now_ms: int) -> bool:
        self.has_one(now_ms)
        return self._left_thousandths == self._per_second * 1_000


# Groups every broker has from its first boot.

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


def system_subscription_groups() -> list[SubscriptionGroupConfig]:
    """What the group table of a new broker holds."""
    return [SubscriptionGroupConfig(name) for name in SYSTEM_GROUPS]
