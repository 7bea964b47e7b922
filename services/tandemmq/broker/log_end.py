"""Where a master's log ended after its last write: 8 bytes, big-endian, in `logEnd` below the store, mapped.

A page of zeros at the end of a log looks like its end, and after a kill nobody else may know better: NameServers hear
of the end once a second, and the entries of ConsumeQueues are written later. The mark is in another page than the log.
It follows each write and is never ahead of it, so a log that ends before its mark has lost something, unless the
machine lost its power: then the mark may be the newer of the two.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from struct import Struct
from typing import Final

from tandemmq.core.storage.recovery import RecoveryReport

__all__ = ["LogEndMark", "missing_to_mark"]

FILE_NAME: Final = "logEnd"
_OFFSET: Final = Struct(">q")


def missing_to_mark(report: RecoveryReport, noted_end: int) -> str:
    """What a log lacks that was recovered so, and was noted to go up to `noted_end`, in words; "" if nothing. After a
    loss of power the mark says nothing."""
    if not (report.clean or report.same_boot) or noted_end <= report.end_offset:
        return ""
    return f"the log ends at {report.end_offset}, and the last run had written it up to {noted_end}"


class LogEndMark:
    """The mark of one store, from `open` to `close`. Nothing is synced: it tells of kills, not of power."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._map: mmap.mmap | None = None

    def open(self) -> int:
        """The end that the last run noted; 0: none did. Blocks; OSError."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            self._map = mmap.mmap(fd, mmap.PAGESIZE)
        finally:
            os.close(fd)
        return int(_OFFSET.unpack_from(self._map)[0])

    def note(self, end_offset: int) -> None:
        """The log is written up to here; 0: nobody keeps the mark from now on. Nothing before `open`."""
        if self._map is not None:
            _OFFSET.pack_into(self._map, 0, end_offset)

    def close(self) -> None:
        """Lets the file go; what was noted stays."""
        if self._map is not None:
            self._map.close()
            self._map = None
