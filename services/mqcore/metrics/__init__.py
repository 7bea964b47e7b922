"""What is counted where messages pass. Pure; how it is exposed is `mqservice`'s."""

from mqcore.metrics.histogram import Exemplar, Histogram, HistogramReading

__all__ = ["Exemplar", "Histogram", "HistogramReading"]
