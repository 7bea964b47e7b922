"""Why a query has no answer. The texts are for operators."""

from __future__ import annotations

__all__ = [
    "HoldingUnknown",
    "IndexIsOff",
    "MessageUnknown",
    "PageTokenInvalid",
    "QueriesBusy",
    "QueryError",
    "TopicUnknown",
]


class QueryError(Exception):
    """Root of what queries raise on purpose."""


class TopicUnknown(QueryError):
    """This broker neither has the topic nor holds anything of it."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic[:300]!r} does not exist on this broker")


class MessageUnknown(QueryError):
    """No record lies at the place that was asked for: it has expired, was never written, or the disk lost it."""


class PageTokenInvalid(QueryError):
    """The token is none of this broker's, or another query's. The caller begins again without one."""


class IndexIsOff(QueryError):
    """The broker keeps no IndexFile (`messageIndexEnable`): nothing can be found by key."""

    def __init__(self) -> None:
        super().__init__("messageIndexEnable is off on this broker: search by time, or by queue and offset")


class HoldingUnknown(QueryError):
    """Whether this replica holds a message cannot be known."""


class QueriesBusy(QueryError):
    """More wait for an answer already than will have one in time, or this search alone takes too long."""
