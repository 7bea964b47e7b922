"""Consumer groups as the client API treats them: what their configuration means, and when they come into being."""

from __future__ import annotations

from typing import Final

from broker.api.client_settings import GroupPolicy
from broker.api.services import BrokerServices
from broker.api.status_codes import Code, Outcome
from mqcore.metadata.subscription_group_table import SubscriptionGroupConfig, SubscriptionGroupTable

__all__ = ["admit_group", "admitted_still", "group_policy"]

# RocketMQ's default of 16 retries (`retryMaxTimes`) after the first delivery.
_DEFAULT_POLICY: Final = GroupPolicy(fifo=False, max_attempts=17)


def group_policy(groups: SubscriptionGroupTable, group: str) -> GroupPolicy:
    """The group's configuration, or the one it will be created with."""
    config = groups.get(group)
    if config is None:
        return _DEFAULT_POLICY
    return GroupPolicy(fifo=config.consume_message_orderly, max_attempts=config.max_attempts)


def admit_group(services: BrokerServices, group: str, *, client_id: str) -> Outcome | None:
    """Lets a group consume; creates it when it is new and the settings say so. A new one is not durable yet."""
    config = services.groups.get(group)
    if config is None:
        if not services.options.auto_create_subscription_group:
            return Outcome(
                Code.CONSUMER_GROUP_NOT_FOUND,
                f"consumer group {group} does not exist; create it, or set autoCreateSubscriptionGroup=true",
            )
        refusal = services.create_group(group, client_id=client_id)
        if refusal is not None:
            return Outcome(Code.TOO_MANY_REQUESTS, f"consumer group {group} was not created: {refusal}", retryable=True)
        return None
    return _disabled(config)


def admitted_still(groups: SubscriptionGroupTable, group: str) -> Outcome | None:
    """Why a group that was let in when its receive began to wait may not consume any more; None: it may."""
    config = groups.get(group)
    if config is None:
        return Outcome(Code.CONSUMER_GROUP_NOT_FOUND, f"consumer group {group} was removed meanwhile")
    return _disabled(config)


def _disabled(config: SubscriptionGroupConfig) -> Outcome | None:
    if config.consume_enable:
        return None
    return Outcome(Code.FORBIDDEN, f"consumer group {config.group_name} is disabled (consumeEnable=false)")
