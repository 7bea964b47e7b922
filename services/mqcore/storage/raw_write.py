"""Bytes of a master's log on their way to the end of a slave's: the one write that a thread does for the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mqcore.storage.disk import MappedSegment

__all__ = ["RawWrite"]


@dataclass(frozen=True, slots=True)
class RawWrite:
    """Made and finished on the event loop, see CommitLog.raw_write; the bytes are views and must stay until then."""

    segment: MappedSegment
    start: int
    """Where they go in the file."""
    parts: Sequence[memoryview]
    size: int

    def run(self) -> None:
        """Blocks, in any thread. DiskError: some of the bytes may be stored."""
        self.segment.write_parts(self.start, self.parts)
