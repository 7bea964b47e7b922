"""Consumer groups as the client API treats them: what their configuration means, and when they come into being."""

from __future__ import annotations

from typing import Final

from broker.api.client_settings import GroupPolicy
from broker.api.services import BrokerServices
from broker.api.status_codes import Code, Outcome
from mqcore.metadata import SubscriptionGroupTable

__all__ = ["admit_group", "group_policy"]

# RocketMQ's default of 16 retries (`retryMaxTimes`) after the first delivery.
_DEFAULT_POLICY: Final = GroupPolicy(fifo=False, max_attempts=17)


def group_policy(groups: SubscriptionGroupTable, group: str) -> GroupPolicy:
    """The group's configuration, or the one it will be created with."""
    config = groups.get(group)
    if config is None:
        return _DEFAULT_POLICY
    return GroupPolicy(fifo=config.consume_message_orderly, max_attempts=config.max_attempts)


def admit_group(services: BrokerServices, group: str) -> Outcome | None:
    """Lets a group consume; creates it when it is new and the settings say so."""
    config = services.groups.get(group)
    if config is None:
        if not services.options.auto_create_subscription_group:
            return Outcome(
                Code.CONSUMER_GROUP_NOT_FOUND,
                f"consumer group {group} does not exist; create it, or set autoCreateSubscriptionGroup=true",
            )
        services.create_group(group)
        return None
    if not config.consume_enable:
        return Outcome(Code.FORBIDDEN, f"consumer group {group} is disabled (consumeEnable=false)")
    return None
