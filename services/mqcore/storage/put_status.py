"""The outcome of one put, as RocketMQ's PutMessageStatus names it."""

from __future__ import annotations

from enum import Enum

__all__ = ["PutStatus"]


class PutStatus(Enum):
    """Why a message was acknowledged, stored without an acknowledgement, or refused.

    Expected outcomes, hence values and not exceptions.
    """

    PUT_OK = "PUT_OK"
    """Stored, and every copy and flush asked for was had."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Stored; the local flush did not finish in time."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """Stored; too few slaves reported it in time."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """Stored; too few slaves are near enough to wait for."""
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    """Refused before storing: fewer members than the settings ask for."""
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    """Refused: shutting down, a slave, disk full, or a disk that failed."""
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    """Refused: no room for the next CommitLog file."""
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    """Refused: body or topic too long."""
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    """Refused: more than 32,767 bytes of properties."""
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    """Refused: the log cannot keep up; try again."""
    UNKNOWN_ERROR = "UNKNOWN_ERROR"
    """Refused for a reason without a name of its own."""

    stored: bool
    """True when the message is in the CommitLog, whether or not it may be acknowledged as OK.

    A plain attribute, set below: it is read for every put.
    """


for _status in PutStatus:
    _status.stored = _status in {
        PutStatus.PUT_OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.SLAVE_NOT_AVAILABLE,
    }
