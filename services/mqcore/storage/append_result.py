"""What a put answers."""

from __future__ import annotations

from mqcore.storage.put_status import PutStatus

__all__ = ["AppendResult"]


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
