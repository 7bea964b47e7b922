"""Metrics as Prometheus reads them: its text format 0.0.4, and OpenMetrics 1.0, which has exemplars beside it.

Not prometheus_client's: that takes 25 us a sample, and a broker with 2,000 topics has 30,000 of them. The text is made
on a thread beside the event loop, which waits for the interpreter as long as it takes; here it takes 1.5 us, and comes
in pieces between which the caller can let go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from math import isinf, isnan
from typing import Final

from mqcore.histogram import Exemplar, HistogramReading
from mqservice.metrics.metric_info import MetricKind
from mqservice.metrics.metric_samples import LabelValues, MetricFamily

__all__ = ["OPEN_METRICS_CONTENT_TYPE", "TEXT_CONTENT_TYPE", "exposition_pieces", "text_exposition"]

TEXT_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS_CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_PIECE_SAMPLES: Final = 250
"""Some 0.4 ms."""
_TOTAL: Final = "_total"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def text_exposition(families: Iterable[MetricFamily]) -> bytes:
    """Everything in the text format, at once."""
    return "".join(exposition_pieces(families)).encode(errors="replace")


def exposition_pieces(families: Iterable[MetricFamily], *, open_metrics: bool = False) -> Iterator[str]:
    """The text piece by piece, each of some tenths of a millisecond."""
    for family in families:
        info = family.info
        is_counter = info.kind is MetricKind.COUNTER
        title = info.name.removesuffix(_TOTAL) if open_metrics and is_counter else info.name
        meaning = info.meaning.translate(_ESCAPES) if open_metrics else info.meaning.replace("\\", r"\\")
        yield f"# HELP {title} {meaning}\n# TYPE {title} {info.kind}\n"
        # One formatting for all labels: three times as fast as one for each.
        labels_format = ",".join([f'{name}="%s"' for name in info.labels])
        name, end = (f"{info.name}{{", "} ") if info.labels else (info.name, " ")
        for start in range(0, len(family.samples), _PIECE_SAMPLES):
            lines: list[str] = []
            for labels, value in family.samples[start : start + _PIECE_SAMPLES]:
                text = labels_format % _escaped(labels)
                if isinstance(value, HistogramReading):
                    lines += _histogram_lines(info.name, text, value, with_exemplars=open_metrics)
                else:
                    lines.append(f"{name}{text}{end}{_number(value)}\n")
            yield "".join(lines)
    if open_metrics:
        yield "# EOF\n"


def _escaped(values: LabelValues) -> LabelValues:
    """As they may stand between quotes; nearly always as they are."""
    joined = "".join(values)
    if '"' in joined or "\\" in joined or "\n" in joined:
        return tuple([value.translate(_ESCAPES) for value in values])
    return values


def _histogram_lines(name: str, labels: str, reading: HistogramReading, *, with_exemplars: bool) -> Iterator[str]:
    before = f"{labels}," if labels else ""
    bounds = (*reading.bounds, float("inf"))
    count = 0
    for bound, count, exemplar in zip(bounds, accumulate(reading.counts), reading.exemplars, strict=True):
        note = _exemplar_text(exemplar) if exemplar is not None and with_exemplars else ""
        yield f'{name}_bucket{{{before}le="{_number(bound)}"}} {count}{note}\n'
    own = f"{{{labels}}}" if labels else ""
    yield f"{name}_sum{own} {_number(reading.total)}\n{name}_count{own} {count}\n"


def _exemplar_text(exemplar: Exemplar) -> str:
    ids = f'trace_id="{exemplar.trace_id:032x}",span_id="{exemplar.span_id:016x}"'
    return f" # {{{ids}}} {_number(exemplar.value)} {exemplar.wall_ms / 1_000:.3f}"


def _number(value: float) -> str:
    if isinstance(value, int):
        return "%d" % value  # noqa: UP031  # a flag is a number here, which str() would not make it
    if isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if isnan(value) else repr(value)
