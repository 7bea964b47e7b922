"""Reads messages for operators: by place, by time, by key. Over the store as it lies there; no gRPC inside."""

from __future__ import annotations

from broker.queries.commit_log_pages import CommitLogPages
from broker.queries.criteria import KeyCriteria, QueueCriteria, TimeCriteria, WantedMessages
from broker.queries.errors import (
    HoldingUnknown,
    IndexIsOff,
    MessageUnknown,
    PageTokenInvalid,
    QueriesBusy,
    QueryError,
    TopicUnknown,
)
from broker.queries.message_queries import MessageQueries
from broker.queries.values import (
    Body,
    Fingerprint,
    FoundOffset,
    MessagePage,
    QueriedMessage,
    QueueState,
    RangeDigest,
)

__all__ = [
    "Body",
    "CommitLogPages",
    "Fingerprint",
    "FoundOffset",
    "HoldingUnknown",
    "IndexIsOff",
    "KeyCriteria",
    "MessagePage",
    "MessageQueries",
    "MessageUnknown",
    "PageTokenInvalid",
    "QueriedMessage",
    "QueriesBusy",
    "QueryError",
    "QueueCriteria",
    "QueueState",
    "RangeDigest",
    "TimeCriteria",
    "TopicUnknown",
    "WantedMessages",
]
