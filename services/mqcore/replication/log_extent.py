"""Which part of a CommitLog a replica holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

__all__ = ["LogExtent", "LogRange", "ReplicatedLog"]


class LogRange(NamedTuple):
    """Half-open range of CommitLog bytes."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class LogExtent:
    """[min_offset, end_offset) of one replica."""

    min_offset: int
    end_offset: int

    @property
    def is_empty(self) -> bool:
        """True when the replica holds nothing."""
        return self.min_offset == self.end_offset


class ReplicatedLog(Protocol):
    """The log a master serves from; offsets only, the shell moves the bytes."""

    @property
    def min_offset(self) -> int:
        """First byte still held."""

    @property
    def end_offset(self) -> int:
        """One past the last byte."""

    @property
    def segment_bytes(self) -> int:
        """CommitLog file size."""
