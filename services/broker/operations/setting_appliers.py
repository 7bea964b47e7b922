"""Which settings a running broker can follow, and what each of them reaches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from broker.api.services import ApiOptions
from broker.observability import BrokerObservability
from broker.operations.runtime_settings import Applier
from broker.settings import BrokerSettings
from mqcore.delivery.lease_table import LeaseTable
from mqcore.storage.message_store import MessageStore
from mqservice.logging import LevelSwitch

__all__ = ["setting_appliers"]


def setting_appliers(
    *,
    store: MessageStore,
    leases: LeaseTable,
    api_options: ApiOptions,
    observability: BrokerObservability,
    audit_read_rate: Callable[[int], None],
    log_level: LevelSwitch | None,
    is_master: bool,
) -> Mapping[str, Applier]:
    """Appliers by key. `audit_read_rate` is told bytes a second.

    Without traces their settings are not among them: nothing would follow. Of a slave's settings those are missing that
    only a master's clients would notice.
    """
    appliers: dict[str, Applier] = {
        "auditReadRate": lambda settings: audit_read_rate(settings.audit_read_rate),
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
    if is_master:
        for key in ("unreadReservedTime", "unreplicatedReservedTime", "deleteUnreadWhenFull"):
            appliers[key] = to_store
        appliers["maxMessageSize"] = partial(_to_messages, store, api_options)
        appliers["autoCreateSubscriptionGroup"] = partial(_to_api, api_options)
        # Asked for with each new topic.
        appliers["defaultTopicQueueNums"] = _to_nobody
        appliers["consumeFromEarliest"] = appliers["maxInflightPerQueue"] = partial(_to_leases, leases)
    if observability.trace_options is not None:
        appliers["traceSampleRate"] = appliers["traceSlowThreshold"] = partial(_to_traces, observability)
    return appliers


def _to_store(store: MessageStore, settings: BrokerSettings) -> None:
    store.change_options(settings.store_options())


def _to_messages(store: MessageStore, api_options: ApiOptions, settings: BrokerSettings) -> None:
    store.change_options(settings.store_options())
    api_options.max_message_bytes = settings.max_message_size


def _to_api(api_options: ApiOptions, settings: BrokerSettings) -> None:
    api_options.auto_create_subscription_group = settings.auto_create_subscription_group


def _to_leases(leases: LeaseTable, settings: BrokerSettings) -> None:
    leases.change_options(settings.delivery_options())


def _to_traces(observability: BrokerObservability, settings: BrokerSettings) -> None:
    observability.change(settings.trace_options())


def _to_nobody(_settings: BrokerSettings) -> None:
    """Whoever needs it asks for the current settings."""
