"""Settings as they work now, and those an operator may change until the next start.

A setting is changeable only where the part it belongs to follows at once: that part's applier is registered under its
key. Everything else is for the configuration and a restart, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
from pydantic import SecretStr

from tandemmq.broker.client_api.services import ApiOptions
from tandemmq.broker.send_room import SendRoom
from tandemmq.broker.settings import BrokerSettings
from tandemmq.core.quotas import QuotaRules
from tandemmq.service.logging import LevelSwitch
from tandemmq.service.settings import SettingsError, changed_settings

if TYPE_CHECKING:
    from tandemmq.broker.tracing.observability import BrokerObservability
    from tandemmq.core.delivery.lease_table import LeaseTable
    from tandemmq.core.storage.message_store import MessageStore

log = structlog.get_logger(__name__)

Applier: TypeAlias = Callable[[BrokerSettings], None]
"""Lets one part work with other settings from now on. Does not fail: the settings have been checked together."""

_MASK: Final = "***"


class SettingsRefused(ValueError):
    """Nothing was changed; a line for each problem, with what to do. The operator's fault."""


@dataclass(frozen=True, slots=True)
class SettingState:
    """One setting; secrets are masked."""

    key: str
    value: str
    default_value: str
    # default, configured or changed (while running).
    origin: str
    changeable: bool
    description: str


@dataclass(frozen=True, slots=True)
class SettingChange:
    key: str
    from_value: str
    to_value: str


class RuntimeSettings:
    """`appliers` gives those of now by RocketMQ's key; several keys may share one. `disk_used_ratio` tells how full the
    disk is, 0 to 1. Event loop only."""

    def __init__(
        self,
        settings: BrokerSettings,
        appliers: Callable[[], Mapping[str, Applier]],
        *,
        disk_used_ratio: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._started = settings
        self._appliers = appliers
        self._disk_used_ratio = disk_used_ratio
        self._changed: set[str] = set()
        self.current = settings
        """What works now. Never changed in place."""

    def all(self) -> list[SettingState]:
        """Every setting, in the order of the documentation."""
        configured, appliers = self._started.model_fields_set, self._appliers()
        states = []
        for name, field in BrokerSettings.model_fields.items():
            key = field.alias or name
            origin = "changed" if key in self._changed else "configured" if name in configured else "default"
            states.append(
                SettingState(
                    key=key,
                    value=_shown(getattr(self.current, name)),
                    default_value=_shown(field.default),
                    origin=origin,
                    changeable=key in appliers,
                    description=field.description or "",
                )
            )
        return states

    def changes(self, values: Mapping[str, str]) -> list[SettingChange]:
        """What `change` would change, ordered by key. Raises SettingsRefused."""
        return _differences(self.current, self._checked(values))

    def change(self, values: Mapping[str, str]) -> list[SettingChange]:
        """Changes all of them or, with SettingsRefused, none. They hold until the process ends."""
        settings = self._checked(values)
        changes = _differences(self.current, settings)
        self.current = settings
        keys = [change.key for change in changes]
        appliers = self._appliers()
        for applier in dict.fromkeys(appliers[key] for key in keys):
            applier(settings)
        started = {change.key for change in _differences(self._started, settings)}
        self._changed = (self._changed | set(keys)) & started
        if changes:
            log.info(
                "settings_changed",
                by="operator",
                changes={change.key: f"{change.from_value} to {change.to_value}" for change in changes},
                until="the next start",
            )
        return changes

    def _checked(self, values: Mapping[str, str]) -> BrokerSettings:
        """The settings as they would be."""
        if not values:
            raise SettingsRefused("values: name at least one setting")
        try:
            settings = changed_settings(self.current, values)
        except SettingsError as error:
            raise SettingsRefused("\n".join(error.problems)) from error
        appliers = self._appliers()
        problems = [
            f"{change.key}: cannot change while the broker runs; write it into its configuration and restart it"
            for change in _differences(self.current, settings)
            if change.key not in appliers
        ]
        if settings.max_message_size > self._started.max_message_size:
            # A slave of an earlier version proves its log by a tail twice as long as the largest record of its start.
            problems.append(
                f"maxMessageSize={settings.max_message_size}: while the broker runs it can be at most the "
                f"{self._started.max_message_size} it was started with; for more configure the whole broker group and "
                "restart its slaves first"
            )
        wanted_ratio = settings.disk_space_clean_forcibly_ratio
        if wanted_ratio < self.current.disk_space_clean_forcibly_ratio and wanted_ratio < self._disk_used_ratio():
            # Files would go within seconds and for ever, which nobody expects of a setting.
            problems.append(
                f"diskSpaceCleanForciblyRatio={wanted_ratio}: the disk is {self._disk_used_ratio():.2f} used already, "
                "so the oldest messages would be deleted at once though they have not expired; lower fileReservedTime, "
                "or write it into the configuration and restart the broker"
            )
        if problems:
            raise SettingsRefused("\n".join(problems))
        return settings


def _differences(before: BrokerSettings, after: BrokerSettings) -> list[SettingChange]:
    """Ordered by key."""
    differences = [
        SettingChange(field.alias or name, _shown(getattr(before, name)), _shown(getattr(after, name)))
        for name, field in BrokerSettings.model_fields.items()
        if getattr(before, name) != getattr(after, name)
    ]
    return sorted(differences, key=lambda change: change.key)


def _shown(value: object) -> str:
    """As it would be written into a file."""
    if isinstance(value, SecretStr):
        return _MASK
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


# Which settings a running broker can follow, and what each of them reaches.


def setting_appliers(
    *,
    store: MessageStore,
    observability: BrokerObservability,
    audit_read_rate: Callable[[int], None],
    client_quotas: Callable[[QuotaRules], None],
    send_room: SendRoom,
    log_level: LevelSwitch | None,
) -> dict[str, Applier]:
    """Those of every broker, by key. `audit_read_rate` is told bytes a second.

    Without traces their settings are not among them: nothing would follow.
    """
    appliers: dict[str, Applier] = {
        "auditReadRate": lambda settings: audit_read_rate(settings.audit_read_rate),
        "clientQuotas": lambda settings: client_quotas(settings.quota_rules()),
        "unacknowledgedSendsMax": lambda settings: send_room.change(settings.unacknowledged_sends_max),
    }
    to_store = partial(_to_store, store)
    for key in (
        "fileReservedTime",
        "clockJumpMax",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
    ):
        appliers[key] = to_store
    if log_level is not None:
        appliers["logLevel"] = lambda settings: log_level.set(settings.log_level)
    if observability.trace_options is not None:
        appliers["traceSampleRate"] = appliers["traceSlowThreshold"] = partial(_to_traces, observability)
    return appliers


_OF_API: Final = (
    "maxMessageSize",
    "maxDelayTimeMills",
    "timerMaxDelaySec",
    "autoCreateSubscriptionGroup",
    "transactionTimeOut",
    "transactionCheckInterval",
    "transactionCheckMax",
    "transactionsMax",
    "maxLmqConsumeQueueNum",
    "maxLiteSubscriptionCount",
    "deduplicationIdsMax",
    "defaultTopicQueueNums",
)


def api_options(settings: BrokerSettings) -> ApiOptions:
    return ApiOptions(
        max_message_bytes=settings.max_message_size,
        auto_create_subscription_group=settings.auto_create_subscription_group,
        transaction_timeout_ms=settings.transaction_time_out,
        transaction_check_interval_ms=settings.transaction_check_interval,
        transaction_check_max=settings.transaction_check_max,
        transactions_max=settings.transactions_max,
        max_delay_ms=settings.max_delay_ms,
        lite_topics_max=settings.max_lmq_consume_queue_num,
        lite_subscriptions_max=settings.max_lite_subscription_count,
        deduplication_ids_max=settings.deduplication_ids_max,
        auto_create_topic_queues=settings.default_topic_queue_nums if settings.auto_create_topic_enable else 0,
    )


def master_setting_appliers(*, store: MessageStore, leases: LeaseTable, options: ApiOptions) -> dict[str, Applier]:
    """Those that only a master's clients would notice, by key."""
    to_store, to_leases = partial(_to_store, store), partial(_to_leases, leases)
    return {
        "unreadReservedTime": to_store,
        "unreplicatedReservedTime": to_store,
        "deleteUnreadWhenFull": to_store,
        **dict.fromkeys(_OF_API, partial(_to_api, options)),
        "consumeFromEarliest": to_leases,
        "maxInflightPerQueue": to_leases,
    }


def _to_store(store: MessageStore, settings: BrokerSettings) -> None:
    store.change_options(settings.store_options())


def _to_api(options: ApiOptions, settings: BrokerSettings) -> None:
    now = api_options(settings)
    for option in fields(now):
        setattr(options, option.name, getattr(now, option.name))


def _to_leases(leases: LeaseTable, settings: BrokerSettings) -> None:
    leases.change_options(settings.delivery_options())


def _to_traces(observability: BrokerObservability, settings: BrokerSettings) -> None:
    observability.change(settings.trace_options())
