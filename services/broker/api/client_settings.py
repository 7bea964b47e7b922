"""The server's half of a client's Settings, laid over what the client sent.

The reply starts as a copy: C++ clients adopt the resource namespace of the echoed topics. What is laid over it follows
RocketMQ's GrpcClientSettingsManager; several clients refuse to start, or busy-loop, when such a field is missing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from apache.rocketmq.v2 import definition_pb2 as definition

__all__ = ["RECEIVE_BATCH_MAX", "GroupPolicy", "merged_settings"]

RECEIVE_BATCH_MAX: Final = 32

_PUSH_POLLING_MS: Final = 20_000
_PRODUCER_ATTEMPTS: Final = 3
_PRODUCER_BACKOFF_INITIAL_MS: Final = 10
_PRODUCER_BACKOFF_MAX_MS: Final = 1_000
_BACKOFF_MULTIPLIER: Final = 2.0

# RocketMQ's delay levels; whole seconds, because Python and Node clients read nothing finer.
_CONSUMER_BACKOFF_S: Final = (
    *(1, 5, 10, 30),
    *(minutes * 60 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(3_600, 7_200),
)


class GroupPolicy(NamedTuple):
    """What the broker's configuration says of a consumer group."""

    # Ordered delivery.
    fifo: bool
    # Deliveries of one message, the first included.
    max_attempts: int


def merged_settings(
    settings: definition.Settings, *, max_body_bytes: int, group_policy: GroupPolicy | None
) -> definition.Settings:
    """The reply to `settings`. `group_policy` is that of the subscription's group; None for a producer."""
    merged = definition.Settings()
    merged.CopyFrom(settings)
    merged.metric.on = False
    if settings.WhichOneof("pub_sub") == "publishing":
        merged.publishing.max_body_size = max_body_bytes
        merged.publishing.validate_message_type = True
        _exponential_backoff(merged.backoff_policy, _PRODUCER_ATTEMPTS)
        return merged
    assert group_policy is not None, "a subscription belongs to a group"
    merged.subscription.fifo = group_policy.fifo
    if settings.client_type == definition.PUSH_CONSUMER:
        merged.subscription.receive_batch_size = RECEIVE_BATCH_MAX
        merged.subscription.long_polling_timeout.FromMilliseconds(_PUSH_POLLING_MS)
    if settings.user_agent.language == definition.NODE_JS:
        # Node implements no customized policy for push consumers.
        _exponential_backoff(merged.backoff_policy, group_policy.max_attempts)
    else:
        _customized_backoff(merged.backoff_policy, group_policy.max_attempts)
    return merged


def _exponential_backoff(policy: definition.RetryPolicy, max_attempts: int) -> None:
    policy.max_attempts = max_attempts
    policy.exponential_backoff.initial.FromMilliseconds(_PRODUCER_BACKOFF_INITIAL_MS)
    policy.exponential_backoff.max.FromMilliseconds(_PRODUCER_BACKOFF_MAX_MS)
    policy.exponential_backoff.multiplier = _BACKOFF_MULTIPLIER


def _customized_backoff(policy: definition.RetryPolicy, max_attempts: int) -> None:
    policy.max_attempts = max_attempts
    # Cleared first: the list must be identical in every reply, since C++ clients append what they read.
    del policy.customized_backoff.next[:]
    for seconds in _CONSUMER_BACKOFF_S:
        policy.customized_backoff.next.add().seconds = seconds
