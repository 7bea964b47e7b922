"""Finds where records begin, for comparing two replicas record by record.

Every CommitLog file begins with a record, so boundaries are found by walking from the file's start: a few microseconds
a record, once in a resynchronisation.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Protocol

from mqcore.message.record_decoder import Blank, RecordFound, scan_record

__all__ = ["LogBytes", "record_boundaries", "record_boundary_before"]


class LogBytes(Protocol):
    """The log as bytes."""

    @property
    def min_offset(self) -> int:
        """First byte held."""

    @property
    def end_offset(self) -> int:
        """One past the last byte."""

    @property
    def segment_bytes(self) -> int:
        """CommitLog file size."""

    def read_log(self, offset: int, max_bytes: int) -> memoryview:
        """Bytes within one file."""


def record_boundaries(log: LogBytes, start_offset: int, end_offset: int) -> list[int]:
    """Offsets in [start_offset, end_offset] at which a record begins or the log may end, ascending."""
    found: list[int] = []
    file_start = max(log.min_offset, start_offset - start_offset % log.segment_bytes)
    while file_start <= end_offset and file_start <= log.end_offset:
        found += [offset for offset in _file_boundaries(log, file_start) if start_offset <= offset <= end_offset]
        file_start += log.segment_bytes - file_start % log.segment_bytes
    return found


def record_boundary_before(log: LogBytes, offset: int) -> int:
    """The last boundary at or below `offset`."""
    if offset <= log.min_offset:
        return log.min_offset
    # A boundary at a file's start is found in the file before it as well, when that one ends with its blank.
    file_start = max(log.min_offset, offset - offset % log.segment_bytes)
    boundaries = _file_boundaries(log, file_start)
    return boundaries[bisect_right(boundaries, offset) - 1]


def _file_boundaries(log: LogBytes, file_start: int) -> list[int]:
    """Boundaries in one file, its start included; its end belongs to the next file."""
    data = log.read_log(file_start, log.segment_bytes)
    boundaries = [file_start]
    position = 0
    while position < len(data):
        scanned = scan_record(data, position, len(data), physical_offset=file_start + position, check_crc=False)
        if isinstance(scanned, Blank) or not isinstance(scanned, RecordFound):
            break
        position += scanned.size
        boundaries.append(file_start + position)
    return boundaries
