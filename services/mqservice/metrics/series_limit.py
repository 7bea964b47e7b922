"""Bounds how many series a label with names of clients' choosing may have."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

__all__ = ["OTHER", "SeriesLimit"]

OTHER: Final = "_other"
"""Label value for the sum of all that have no series of their own. No topic may be called so by chance: names begin
with a letter or %, by RocketMQ's custom."""

KeyT = TypeVar("KeyT", bound=Hashable)


class SeriesLimit(Generic[KeyT]):
    """The first keys get series of their own and keep them until the process ends.

    Not the largest ones: a counter that moved between its own series and `OTHER` would seem to fall, and a rate over
    it would be nonsense.
    """

    def __init__(self, series_max: int) -> None:
        self._series_max = series_max
        self._admitted: set[KeyT] = set()

    def admits(self, key: KeyT) -> bool:
        """Whether the key has a series of its own."""
        if key in self._admitted:
            return True
        if len(self._admitted) >= self._series_max:
            return False
        self._admitted.add(key)
        return True
