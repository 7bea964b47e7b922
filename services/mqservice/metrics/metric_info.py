"""What a metric is, said once: scrapes, exports and the table in the documentation are made from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["MetricInfo", "MetricKind"]


class MetricKind(StrEnum):
    """How a metric moves."""

    GAUGE = "gauge"
    """Up and down."""
    COUNTER = "counter"
    """Up only, from zero at the start of the process. The name ends in `_total`."""
    HISTOGRAM = "histogram"
    """Observations by size, from zero at the start of the process."""


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """One metric."""

    # As in a query: a counter's with `_total`.
    name: str
    kind: MetricKind
    # UCUM, as OpenTelemetry writes it: By, s, ms, 1 for ratios and flags, {message} for things counted.
    unit: str
    # A sentence.
    meaning: str
    # All of them, in the order in which samples give their values.
    labels: Sequence[str] = ()
