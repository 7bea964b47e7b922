"""Bisection over entries that cost a read each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

__all__ = ["first_false"]


def first_false(start: int, end: int, holds: Callable[[int], bool]) -> int:
    """The smallest i in [start, end) for which `holds(i)` is false, else `end`.

    `holds` must be true up to some i and false from there on. Steps double from `start` before the bisection: most
    queues are short, and then only the first pages of a sparse file are read.
    """
    low, step = start, 1
    while low < end:
        probe = min(low + step, end) - 1
        if not holds(probe):
            return bisect_left(range(probe), True, low, probe, key=lambda i: not holds(i))
        low, step = probe + 1, step * 2
    return end
