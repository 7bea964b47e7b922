"""What consumers were given, by topic and consumer group: plain counters where deliveries pass, read when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mqservice.metrics.series_limit import OTHER

__all__ = ["DeliveryCounts", "DeliveryMeter"]

# As many as consume anything in the largest cluster anybody runs; each costs about 300 bytes.
_PAIRS_MAX: Final = 50_000


@dataclass(slots=True)
class DeliveryCounts:
    """Since the start of the process. Bytes are those of the messages as they went out, encoded."""

    # Deliveries of any attempt, redeliveries among them.
    messages: int = 0
    bytes: int = 0
    # Second and later attempts alone.
    redelivered_messages: int = 0
    redelivered_bytes: int = 0
    # Written to the group's dead letter queue, by the broker or because a client asked.
    dead_letters: int = 0


class DeliveryMeter:
    """Counts for all pairs of topic and consumer group. Event loop only."""

    def __init__(self, *, pairs_max: int = _PAIRS_MAX) -> None:
        """Beyond `pairs_max` a further pair is counted under (`OTHER`, `OTHER`)."""
        self._pairs_max = pairs_max
        self._counts: dict[tuple[str, str], DeliveryCounts] = {}

    @property
    def counts(self) -> Mapping[tuple[str, str], DeliveryCounts]:
        """By (topic, consumer group). A view: it changes with the next delivery."""
        return self._counts

    def of(self, topic: str, group: str) -> DeliveryCounts:
        """The pair's own counters, to be added to."""
        counts = self._counts.get((topic, group))
        return counts if counts is not None else self._first_of(topic, group)

    def _first_of(self, topic: str, group: str) -> DeliveryCounts:
        pair = (topic, group) if len(self._counts) < self._pairs_max else (OTHER, OTHER)
        return self._counts.setdefault(pair, DeliveryCounts())
