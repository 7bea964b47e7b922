"""What the broker decided, as a client of RocketMQ's API is told: the one table of codes.

Business outcomes travel in `Status`, while the gRPC call itself ends OK; clients look for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from apache.rocketmq.v2 import definition_pb2 as definition

from mqcore.storage.put_result import PutStatus

__all__ = ["OK", "PUT_OUTCOMES", "Outcome", "common_status", "ok_status", "status_of"]

Code = definition.Code


class Outcome(NamedTuple):
    """A code of the client API and the text that goes with it."""

    code: definition.Code
    text: str
    # Whether the same request may succeed later or at another broker group. For readers and metrics: on the wire the
    # code alone tells.
    retryable: bool = False


OK: Final = Outcome(Code.OK, "OK")

# "Stored" in the text of a failure is a promise to the operator: the message is in the CommitLog and may be delivered,
# the sender was only not assured of all the copies it asked for.
PUT_OUTCOMES: Final[Mapping[PutStatus, Outcome]] = MappingProxyType(
    {
        PutStatus.PUT_OK: OK,
        PutStatus.FLUSH_DISK_TIMEOUT: Outcome(
            Code.MASTER_PERSISTENCE_TIMEOUT, "stored, but the flush to disk did not finish in time", retryable=True
        ),
        PutStatus.FLUSH_SLAVE_TIMEOUT: Outcome(
            Code.SLAVE_PERSISTENCE_TIMEOUT, "stored, but too few slaves confirmed it in time", retryable=True
        ),
        PutStatus.SLAVE_NOT_AVAILABLE: Outcome(
            Code.HA_NOT_AVAILABLE, "stored on the master only: too few slaves are in sync", retryable=True
        ),
        PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: Outcome(
            Code.HA_NOT_AVAILABLE, "not stored: fewer members in sync than inSyncReplicas asks for", retryable=True
        ),
        PutStatus.SERVICE_NOT_AVAILABLE: Outcome(
            Code.INTERNAL_SERVER_ERROR,
            "not stored: the broker takes no messages now (stopping, recovering, or its disk is full)",
            retryable=True,
        ),
        PutStatus.CREATE_MAPPED_FILE_FAILED: Outcome(
            Code.INTERNAL_SERVER_ERROR, "not stored: no room for another CommitLog file", retryable=True
        ),
        PutStatus.MESSAGE_ILLEGAL: Outcome(
            Code.PAYLOAD_TOO_LARGE, "not stored: the message, or the request's messages together, are too large"
        ),
        PutStatus.PROPERTIES_SIZE_EXCEEDED: Outcome(
            Code.MESSAGE_PROPERTIES_TOO_LARGE, "not stored: the properties need more than 32767 bytes"
        ),
        PutStatus.OS_PAGE_CACHE_BUSY: Outcome(
            Code.TOO_MANY_REQUESTS, "not stored: the log cannot keep up", retryable=True
        ),
        PutStatus.UNKNOWN_ERROR: Outcome(Code.INTERNAL_SERVER_ERROR, "not stored: unexpected failure", retryable=True),
    }
)

_OK_STATUS: Final = definition.Status(code=Code.OK, message="OK")


def ok_status() -> definition.Status:
    """The status of success. Shared: for building responses, which copy it; never to be changed."""
    return _OK_STATUS


def status_of(outcome: Outcome) -> definition.Status:
    """The outcome as it travels."""
    return _OK_STATUS if outcome is OK else definition.Status(code=outcome.code, message=outcome.text)


def common_status(outcomes: Iterable[Outcome]) -> definition.Status:
    """The overall status of a request with several entries: their common code, or MULTIPLE_RESULTS."""
    first: Outcome | None = None
    for outcome in outcomes:
        if first is None:
            first = outcome
        elif outcome.code != first.code:
            return definition.Status(code=Code.MULTIPLE_RESULTS, message="the entries have different results")
    assert first is not None, "a response has at least one entry"
    return status_of(first)
