"""Limits of delivery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["MAX_INVISIBLE_MS", "MIN_INVISIBLE_MS", "DeliveryOptions"]

MIN_INVISIBLE_MS: Final = 10_000
"""Shortest lease a client may ask for; the edge answers ILLEGAL_INVISIBLE_TIME below it."""
MAX_INVISIBLE_MS: Final = 12 * 3_600_000
"""Longest lease a client may ask for."""


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """What a lease table may be told."""

    consume_from_earliest: bool = False
    """Where a group begins that never consumed a topic: at the oldest message, or at the end."""
    max_inflight_per_queue: int = 100_000
    """Unacknowledged messages of one group in one queue; new ones wait beyond it. About 100 bytes each."""
    max_scanned_per_receive: int = 4_096
    """Messages one receive looks at when its filter lets few pass: about a millisecond of the event loop."""
    renew_interval_ms: int = 60_000
    """Length of a lease the server renews, and of each renewal. RocketMQ's first lease is as long."""
    renew_total_ms: int = 3 * 3_600_000
    """A message held longer than this by one client returns to its group even if the client lives."""
    client_gone_visible_ms: int = 1_000
    """Leases of a client that is gone end so much later."""
    reconnect_grace_ms: int = 120_000
    """After a restart, how long clients have to come back before they count as gone; as long as a silent session."""
    compaction_floor_bytes: int = 4 << 20
    """A shorter journal is not worth a snapshot."""
