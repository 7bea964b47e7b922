"""What a put answers."""

from __future__ import annotations

from dataclasses import dataclass

from mqcore.storage.put_status import PutStatus

__all__ = ["AppendResult"]


@dataclass(slots=True)
class AppendResult:
    """Where a message went, or why not. `status` may change later: flush and replication have their say after it."""

    status: PutStatus
    physical_offset: int
    """First byte in the CommitLog; -1 if refused."""
    end_offset: int
    """What must be flushed and replicated before the put is safe; -1 if refused."""
    queue_offset: int
    """Number in its queue; -1 if refused."""
    store_timestamp_ms: int
    """Wall clock; 0 if refused."""

    @classmethod
    def refused(cls, status: PutStatus) -> AppendResult:
        """Nothing was stored."""
        return cls(status, -1, -1, -1, 0)
