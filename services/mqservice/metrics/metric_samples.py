"""What a process tells when it is asked for its metrics, in no format yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mqcore.histogram import HistogramReading
from mqservice.metrics.metric_info import MetricInfo, MetricKind

__all__ = ["LabelValues", "MetricFamily", "MetricSamples"]

LabelValues: TypeAlias = tuple[str, ...]


@dataclass(slots=True)
class MetricFamily:
    """All samples of one metric: by their label values a number, or a reading if it is a histogram."""

    info: MetricInfo
    samples: list[tuple[LabelValues, float | HistogramReading]] = field(default_factory=list)


class MetricSamples:
    """Collects samples of the metrics in a catalogue. Of one thread at a time."""

    def __init__(self, catalogue: Iterable[MetricInfo], *, base: Sequence[str] = ()) -> None:
        """`base` are the values of each metric's first labels, which samples then leave out."""
        self._families = {info.name: MetricFamily(info) for info in catalogue}
        self._base = tuple(base)

    def add(self, name: str, value: float, *labels: str) -> None:
        """One sample of a gauge or a counter."""
        family = self._families[name]
        assert len(self._base) + len(labels) == len(family.info.labels), f"{name} has labels {family.info.labels}"
        family.samples.append((self._base + labels, value))

    def add_counts(self, name: str, counts: Mapping[str, int], *labels: str) -> None:
        """A sample for each key, which is the last label."""
        for key, count in sorted(counts.items()):
            self.add(name, count, *labels, key)

    def add_histogram(self, name: str, reading: HistogramReading, *labels: str) -> None:
        """One sample of a histogram."""
        family = self._families[name]
        assert family.info.kind is MetricKind.HISTOGRAM, f"{name} is a {family.info.kind}"
        assert len(self._base) + len(labels) == len(family.info.labels), f"{name} has labels {family.info.labels}"
        family.samples.append((self._base + labels, reading))

    def families(self) -> list[MetricFamily]:
        """Those with samples, in the catalogue's order."""
        return [family for family in self._families.values() if family.samples]
