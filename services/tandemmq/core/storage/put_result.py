"""What a put answers."""

from __future__ import annotations

from enum import Enum
from typing import Final

THE_DISK_IS: Final = "the disk is"
"""How a store's words begin when it is short of room."""

# The outcome of one put, as RocketMQ's PutMessageStatus names it.


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
    """Refused: shutting down, a slave, or a disk that failed."""
    DISK_FULL = "DISK_FULL"
    """Refused: the disk is fuller than puts are taken on. For RocketMQ this is SERVICE_NOT_AVAILABLE too."""
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    """Refused: no room for the next CommitLog file."""
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    """Refused: no file has room for the record, or the topic is too long."""
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


class AppendResult:
    """Where a message went, or why not. `status` may change later: flush and replication have their say after it.

    `physical_offset`: its first byte in the CommitLog. `end_offset`: what must be flushed and replicated before the put
    is safe. `queue_offset`: its number in its queue. All are -1 if it was refused, and then `store_timestamp_ms`, of
    the wall clock, is 0.
    """

    # No dataclass: the compiler leaves what makes one to the interpreter, and every message has one.
    __slots__ = ("end_offset", "physical_offset", "queue_offset", "status", "store_timestamp_ms")

    def __init__(
        self, status: PutStatus, physical_offset: int, end_offset: int, queue_offset: int, store_timestamp_ms: int
    ) -> None:
        self.status = status
        self.physical_offset = physical_offset
        self.end_offset = end_offset
        self.queue_offset = queue_offset
        self.store_timestamp_ms = store_timestamp_ms

    @classmethod
    def refused(cls, status: PutStatus) -> AppendResult:
        """Nothing was stored."""
        return cls(status, -1, -1, -1, 0)
