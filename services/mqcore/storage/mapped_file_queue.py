"""Files of one length in one folder, each named by the offset of its first byte: one long range of bytes.

Mirrors RocketMQ's MappedFileQueue. No write position is stored anywhere; recovery finds it by scanning.
"""

from __future__ import annotations

from typing import Final

from mqcore.storage.disk import Disk, MappedSegment
from mqcore.storage.errors import LogGap

__all__ = ["MappedFileQueue", "file_name"]

NAME_DIGITS: Final = 20


def file_name(start_offset: int) -> str:
    """How the file is called that starts at `start_offset`: decimal, 20 digits, so that names sort as numbers."""
    return f"{start_offset:0{NAME_DIGITS}d}"


class MappedFileQueue:
    """The files, all of them mapped, in order and without a gap. Files end where they end: nothing is read or judged.

    Removed files are dropped from the list and not closed: a flush in another thread or a transfer may still hold
    one, and the last holder lets go of it.
    """

    def __init__(self, disk: Disk, folder: str, *, file_bytes: int) -> None:
        self._disk = disk
        self._folder = folder
        self._file_bytes = file_bytes
        self._segments: list[MappedSegment] = []
        self._first_offset = 0

    @property
    def folder(self) -> str:
        """Where the files are."""
        return self._folder

    @property
    def file_count(self) -> int:
        """How many files there are."""
        return len(self._segments)

    @property
    def first_offset(self) -> int:
        """Start of the first file; 0 without files."""
        return self._first_offset

    @property
    def end_offset(self) -> int:
        """End of the last file, written or not."""
        return self._first_offset + len(self._segments) * self._file_bytes

    def load(self) -> None:
        """Maps what is there. SegmentSizeMismatch and LogGap mean that someone changed settings or files: no start.

        A last file of length 0 is removed, as RocketMQ does: a crash came while it was made.
        """
        entries = [
            entry
            for entry in self._disk.list_folder(self._folder)
            if not entry.is_folder and len(entry.name) == NAME_DIGITS and entry.name.isdigit()
        ]
        if entries and entries[-1].size == 0:
            self._disk.remove(f"{self._folder}/{entries.pop().name}")
        self._segments = []
        for entry in entries:
            start_offset = int(entry.name)
            if not self._segments:
                self._first_offset = start_offset
            elif start_offset != self.end_offset:
                raise LogGap(self._folder, expected_offset=self.end_offset, found_offset=start_offset)
            self._segments.append(self._map(start_offset, create=False))

    def file_start(self, offset: int) -> int:
        """Start of the file that holds, or would hold, `offset`."""
        return offset - offset % self._file_bytes

    def path(self, start_offset: int) -> str:
        """Path of the file that starts, or would start, at `start_offset`."""
        return f"{self._folder}/{file_name(start_offset)}"

    def segment(self, offset: int) -> MappedSegment | None:
        """The file that holds `offset`; None when it is outside."""
        number = (offset - self._first_offset) // self._file_bytes
        return self._segments[number] if 0 <= number < len(self._segments) else None

    def segments(self, start_offset: int, end_offset: int) -> list[MappedSegment]:
        """The files that hold any byte of [start_offset, end_offset), in order."""
        if start_offset >= end_offset:
            return []
        first = max(0, (start_offset - self._first_offset) // self._file_bytes)
        last = (end_offset - 1 - self._first_offset) // self._file_bytes
        return self._segments[first : last + 1]

    def append_file(self, start_offset: int, prepared: MappedSegment | None = None) -> MappedSegment:
        """Adds the next file, or the first one, which may start anywhere. DiskError: nothing changed."""
        assert start_offset % self._file_bytes == 0, f"a file cannot start at {start_offset}"
        assert not self._segments or start_offset == self.end_offset, f"{start_offset} does not follow the last file"
        segment = prepared if prepared is not None else self._map(start_offset, create=True)
        if not self._segments:
            self._first_offset = start_offset
        self._segments.append(segment)
        return segment

    def remove_from(self, start_offset: int) -> None:
        """Removes the file that starts at `start_offset` and all behind it, the last one first.

        So a crash in between leaves files without a gap.
        """
        while self._segments and self.end_offset > start_offset:
            self._disk.remove(self.path(self.end_offset - self._file_bytes))
            self._segments.pop()

    def forget_first(self, count: int) -> list[MappedSegment]:
        """Hands the `count` oldest files over to the caller, who removes them."""
        forgotten = self._segments[:count]
        del self._segments[:count]
        self._first_offset += count * self._file_bytes
        return forgotten

    def close(self) -> None:
        """Lets go of every file."""
        for segment in self._segments:
            segment.close()
        self._segments.clear()

    def _map(self, start_offset: int, *, create: bool) -> MappedSegment:
        return self._disk.map_segment(self.path(start_offset), self._file_bytes, create=create)
