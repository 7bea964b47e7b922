"""Quantiles of latencies from what brokers count."""

from __future__ import annotations

from collections.abc import Sequence

from admin.cluster_state import LatencyCounts

__all__ = ["between", "quantile_s"]


def between(earlier: LatencyCounts, later: LatencyCounts) -> LatencyCounts | None:
    """What was observed between two readings of one process; None if they are not of one."""
    if not later.counts or earlier.bounds_s != later.bounds_s or len(earlier.counts) != len(later.counts):
        return None
    counts = tuple(new - old for old, new in zip(earlier.counts, later.counts, strict=True))
    if any(count < 0 for count in counts):
        return None
    return LatencyCounts(later.bounds_s, counts, max(0.0, later.sum_s - earlier.sum_s))


def quantile_s(latency: LatencyCounts, share: float) -> float | None:
    """The latency that `share` (0 to 1) of all observations did not exceed, in seconds; None without observations.

    Spread evenly within a bucket, so exact to the bucket's width; what is above the last bound counts as that bound.
    """
    total = sum(latency.counts)
    if not total:
        return None
    wanted = share * total
    seen = 0
    for bucket, count in enumerate(latency.counts):
        if count and seen + count >= wanted:
            return _within(latency.bounds_s, bucket, (wanted - seen) / count)
        seen += count
    return latency.bounds_s[-1]


def _within(bounds_s: Sequence[float], bucket: int, part: float) -> float:
    if bucket >= len(bounds_s):
        return bounds_s[-1]
    lower = bounds_s[bucket - 1] if bucket else 0.0
    return lower + (bounds_s[bucket] - lower) * part
