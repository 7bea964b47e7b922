"""What the filters of a query say about where its rows may lie.

Filters only narrow what is read; Spark still applies each of them to the rows that come. So a filter that is not
understood costs time and never a wrong answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

__all__ = ["Bounds", "PushedFilters"]


@dataclass(slots=True)
class Bounds:
    """Values that a column may have; both ends included. None: no limit."""

    low: int | None = None
    high: int | None = None

    def admit(self, first: int, last: int) -> bool:
        """Whether a value in [first, last] may be one."""
        return (self.low is None or last >= self.low) and (self.high is None or first <= self.high)

    def raise_low(self, value: int) -> None:
        """No value below it."""
        self.low = value if self.low is None else max(self.low, value)

    def lower_high(self, value: int) -> None:
        """No value above it."""
        self.high = value if self.high is None else min(self.high, value)


@dataclass(slots=True)
class PushedFilters:
    """The filters of one query, as far as they help."""

    physical_offset: Bounds = field(default_factory=Bounds)
    store_timestamp_ms: Bounds = field(default_factory=Bounds)
    queue_offset: Bounds = field(default_factory=Bounds)
    topics: frozenset[str] | None = None
    """None: all."""
    queue_ids: frozenset[int] | None = None

    def take(self, filters: Iterable[Filter]) -> None:
        """Narrows by these; they hold all at once."""
        for one in filters:
            column: tuple[str, ...] = getattr(one, "attribute", ())
            if len(column) == 1:
                self._take(column[0], one)

    def admits(self, topic: str, queue_id: int) -> bool:
        """Whether rows of a queue are wanted."""
        return (self.topics is None or topic in self.topics) and (self.queue_ids is None or queue_id in self.queue_ids)

    def _take(self, column: str, one: Filter) -> None:
        values = _values(one)
        if column == "topic" and values is not None:
            self.topics = _narrowed(self.topics, values)
        elif column == "queue_id" and values is not None:
            self.queue_ids = _narrowed(self.queue_ids, values)
        elif column == "physical_offset":
            _narrow(self.physical_offset, one)
        elif column == "queue_offset":
            _narrow(self.queue_offset, one)
        elif column == "store_timestamp":
            _narrow(self.store_timestamp_ms, one)


def _values(one: Filter) -> frozenset[Any] | None:
    """The only values that pass, if the filter says them."""
    if isinstance(one, EqualTo):
        return frozenset([one.value])
    return frozenset(one.value) if isinstance(one, In) else None


def _narrowed(known: frozenset[Any] | None, values: frozenset[Any]) -> frozenset[Any]:
    return values if known is None else known & values


def _narrow(bounds: Bounds, one: Filter) -> None:
    # Moments are cut to whole milliseconds: a bound that is one too wide costs nothing.
    if isinstance(one, (EqualTo, GreaterThan, GreaterThanOrEqual)):
        bounds.raise_low(_as_number(one.value))
    if isinstance(one, (EqualTo, LessThan, LessThanOrEqual)):
        bounds.lower_high(_as_number(one.value))


def _as_number(value: Any) -> int:
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1_000)
    return int(value)
