"""Which messages are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Criteria", "KeyCriteria", "QueueCriteria", "TimeCriteria", "WantedMessages"]


@dataclass(frozen=True, slots=True)
class QueueCriteria:
    """[start_offset, end_offset) of one queue, in its order. `end_offset` 0: to the end."""

    queue_id: int
    start_offset: int = 0
    end_offset: int = 0


@dataclass(frozen=True, slots=True)
class TimeCriteria:
    """Stored in [start_ms, end_ms), from all queues, by store time. None: open on that side."""

    start_ms: int | None = None
    end_ms: int | None = None
    newest_first: bool = False


@dataclass(frozen=True, slots=True)
class KeyCriteria:
    """With a key or a client's message id, stored in [start_ms, end_ms), newest first."""

    key: str
    start_ms: int | None = None
    end_ms: int | None = None


Criteria: TypeAlias = QueueCriteria | TimeCriteria | KeyCriteria


@dataclass(frozen=True, slots=True)
class WantedMessages:
    """One query: what of which topic, and how much of it at once."""

    topic: str
    criteria: Criteria
    # From 1.
    limit: int = 50
    # Bytes of each body; 0: none.
    body_bytes: int = 0
    # Only these tags; empty: all.
    tags: frozenset[str] = frozenset()
