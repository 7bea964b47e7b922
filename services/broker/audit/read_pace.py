"""How fast the store may be read by those who audit it, so that the broker's clients do not notice."""

from __future__ import annotations

from typing import Final

__all__ = ["ReadPace"]

_LATE_S_MAX: Final = 0.1
"""A sleep ends late on a busy machine; so much is made up for, and no longer pause."""


class ReadPace:
    """At most `bytes_per_second`, no more at once than one read. No clock: the caller tells the time."""

    def __init__(self, bytes_per_second: int) -> None:
        assert bytes_per_second > 0, "who may read nothing is refused before"
        self._bytes_per_second = bytes_per_second
        self._free_s = 0.0

    def change(self, bytes_per_second: int) -> None:
        """Another pace, from the next read on. May come from another thread."""
        assert bytes_per_second > 0, "who may read nothing is refused before"
        self._bytes_per_second = bytes_per_second

    def wait_s(self, byte_count: int, *, now_s: float) -> float:
        """How long to wait before the next read, after one of `byte_count` bytes. `now_s` is monotonic.

        A pause between two reads earns nothing: what was not read then is not made up for later in a burst.
        """
        self._free_s = max(self._free_s, now_s - _LATE_S_MAX) + byte_count / self._bytes_per_second
        return max(0.0, self._free_s - now_s)
