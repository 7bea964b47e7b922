"""The CommitLog: every record of the broker, one after the other, in files of one length.

    min_offset                    flushed_offset        end_offset
        |  records … | blank |  records …  |  records …     |  zeros to the end of the file
        |<------ file ------>|<------------- file -------------------------------------->|

Invariants:

- Everything from `end_offset` to the end of the last file is zero, durably so before anything is appended there.
  A record left over from before a truncation therefore never comes back, whatever a power loss does to what is
  written over it.
- A record lies in one file. One of L bytes fits if L + 8 <= what is left; else the file is closed with a blank.
- [min_offset, flushed_offset) is on the platter. `end_offset` is volatile: a start finds it by scanning.
- `append` keeps a record, and `write_gathered` puts all that was kept into the file by one system call; from then on
  it outlives the process. Whoever reads or flushes writes first. Stores into the map would cost a fault for each
  4 KiB (docs/adr/0027).

One thread writes (the event loop's), or has a thread write what comes next (`raw_write`). Flush jobs run beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from tandemmq.core.message.record import RECORD_HEAD_BYTES_MAX
from tandemmq.core.message.record_layout import encode_blank
from tandemmq.core.message.stored_message import read_store_timestamp_ms
from tandemmq.core.storage.disk import (
    FROM_A_REPLICA,
    Disk,
    FolderEntry,
    LogGap,
    MappedSegment,
    RawWrite,
    SegmentSizeMismatch,
    StorageError,
)

# Files of one length in one folder make one long range of bytes; each is named by the offset of its first byte
# (RocketMQ's MappedFileQueue). No write position is stored anywhere. Recovery finds it by scanning.

NAME_DIGITS: Final = 20

_DAMAGED_FILE: Final = f"the file is damaged: {FROM_A_REPLICA}"
_CHANGED_SETTING: Final = (
    "set mappedFileSizeCommitLog back to what the store was created with; "
    f"if nobody changed it, the file is damaged: {FROM_A_REPLICA}"
)

OTHER_FILES: Final = "it is damaged, or the master's mappedFileSizeCommitLog is not ours: set it as the master has it"
"""Why a record of a master has no place in our files. Only a Java master does not say first how long its files are."""


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
        self.folder = folder
        self._file_bytes = file_bytes
        self._segments: list[MappedSegment] = []
        self.first_offset = 0
        """Start of the first file; 0 without files."""

    @property
    def file_count(self) -> int:
        return len(self._segments)

    @property
    def end_offset(self) -> int:
        """End of the last file, written or not."""
        return self.first_offset + len(self._segments) * self._file_bytes

    def load(self) -> None:
        """Maps what is there. SegmentSizeMismatch and LogGap mean that someone changed settings or files: no start.

        A last file of length 0 is removed, as RocketMQ does: a crash came while it was made.
        """
        entries = [
            entry
            for entry in self._disk.list_folder(self.folder)
            if not entry.is_folder and len(entry.name) == NAME_DIGITS and entry.name.isdigit()
        ]
        if entries and entries[-1].size == 0:
            self._disk.remove(f"{self.folder}/{entries.pop().name}")
        self._segments = []
        self._check_lengths(entries)
        for entry in entries:
            start_offset = int(entry.name)
            if not self._segments:
                self.first_offset = start_offset
            elif start_offset != self.end_offset:
                raise LogGap(self.folder, expected_offset=self.end_offset, found_offset=start_offset)
            self._segments.append(self._map(start_offset, create=False))

    def _check_lengths(self, entries: Sequence[FolderEntry]) -> None:
        wrong = [entry for entry in entries if entry.size != self._file_bytes]
        if wrong:
            is_damaged = len(wrong) < len(entries) or wrong[0].size == 0
            raise SegmentSizeMismatch(
                f"{self.folder}/{wrong[0].name}",
                found_bytes=wrong[0].size,
                expected_bytes=self._file_bytes,
                remedy=_DAMAGED_FILE if is_damaged else _CHANGED_SETTING,
            )

    def file_start(self, offset: int) -> int:
        """Start of the file that holds, or would hold, `offset`."""
        return offset - offset % self._file_bytes

    def path(self, start_offset: int) -> str:
        """Path of the file that starts, or would start, at `start_offset`."""
        return f"{self.folder}/{file_name(start_offset)}"

    def segment(self, offset: int) -> MappedSegment | None:
        """The file that holds `offset`; None when it is outside."""
        number = (offset - self.first_offset) // self._file_bytes
        return self._segments[number] if 0 <= number < len(self._segments) else None

    def segments(self, start_offset: int, end_offset: int) -> list[MappedSegment]:
        """The files that hold any byte of [start_offset, end_offset), in order."""
        if start_offset >= end_offset:
            return []
        first = max(0, (start_offset - self.first_offset) // self._file_bytes)
        last = (end_offset - 1 - self.first_offset) // self._file_bytes
        return self._segments[first : last + 1]

    def append_file(self, start_offset: int, prepared: MappedSegment | None = None) -> MappedSegment:
        """Adds the next file, or the first one, which may start anywhere. DiskError: nothing changed."""
        assert start_offset % self._file_bytes == 0, f"a file cannot start at {start_offset}"
        assert not self._segments or start_offset == self.end_offset, f"{start_offset} does not follow the last file"
        segment = prepared if prepared is not None else self._map(start_offset, create=True)
        if not self._segments:
            self.first_offset = start_offset
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
        self.first_offset += count * self._file_bytes
        return forgotten

    def close(self) -> None:
        """Lets go of every file."""
        for segment in self._segments:
            segment.close()
        self._segments.clear()

    def _map(self, start_offset: int, *, create: bool) -> MappedSegment:
        return self._disk.map_segment(self.path(start_offset), self._file_bytes, create=create)


COMMIT_LOG_FOLDER: Final = "commitlog"

_BLANK_HEAD_BYTES: Final = 8
"""Room that must be left behind every record, for the blank that closes the file."""
_GATHERED_BYTES_MAX: Final = 256 << 10
"""More than that is written at once: what a system call costs is nothing beside it."""
_TAIL_BYTES: Final = 16 << 20
"""What was written last is read without readahead; twice of what devices usually read ahead."""
_NOTHING: Final = memoryview(b"")
_DIGEST_CHUNK_BYTES: Final = 1 << 20


class CommitLog:
    """See the module's docstring. Offsets are absolute; ranges are half-open."""

    def __init__(self, disk: Disk, *, file_bytes: int) -> None:
        self._disk = disk
        self.file_bytes = file_bytes
        self.files = MappedFileQueue(disk, COMMIT_LOG_FOLDER, file_bytes=file_bytes)
        """The files; for recovery and retention, which work on whole files."""
        self.end_offset = 0
        """Where the next record goes. Read by everyone, set here only; an attribute because every put reads it."""
        self.flushed_offset = 0
        # The file being written, unpacked for the hot path. Without one _file_start == _file_end == end_offset.
        self._segment: MappedSegment | None = None
        self._file_start = 0
        self._file_end = 0
        # Where that file starts and how its end is read: together, since digests read in threads.
        self._tail = (0, _NOTHING)
        # What was appended and is not yet in the file, and where that begins if there is something.
        self._gathered: list[bytes] = []
        self._gathered_start = 0
        self._prepared: tuple[int, MappedSegment] | None = None
        self.cuts = 0
        """Counts truncations: a flush begun before one says nothing about what was appended since."""

    @property
    def min_offset(self) -> int:
        """Oldest byte kept; start of the first file."""
        return self.files.first_offset if self.files.file_count else self.end_offset

    # Appending

    def append(self, record: bytes) -> bool:
        """Takes a record, or several joined ones, to be written with those that follow: see `write_gathered`.

        False, and nothing is taken, if they and the blank behind them have no room in the file being written.
        DiskError: many bytes were gathered, and could not be written.
        """
        end_offset = self.end_offset + len(record)
        if end_offset + _BLANK_HEAD_BYTES > self._file_end:
            return False
        if not self._gathered:
            self._gathered_start = self.end_offset
        self._gathered.append(record)
        self.end_offset = end_offset
        if end_offset - self._gathered_start >= _GATHERED_BYTES_MAX:
            self.write_gathered()
        return True

    @property
    def has_gathered(self) -> bool:
        """Whether something was appended that is not yet in its file."""
        return bool(self._gathered)

    def write_gathered(self) -> None:
        """Writes what was appended: it outlives the process. DiskError: some of it does; the next call tries again."""
        if self._gathered:
            assert self._segment is not None, "appended without a file"
            self._segment.write_parts(self._gathered_start - self._file_start, self._gathered)
            self._gathered = []

    def roll(self) -> None:
        """Closes the file being written with a blank and goes on in the next. DiskError: nothing changed."""
        self.write_gathered()
        segment = self._next_segment(self._file_end)
        rest = self._file_end - self.end_offset
        if rest:
            assert rest >= _BLANK_HEAD_BYTES, f"no room for a blank at {self.end_offset}"
            assert self._segment is not None, "room without a file"
            self._segment.write_parts(self.end_offset - self._file_start, [encode_blank(rest)])
        self.end_offset = self._file_end
        self._enter(segment, self._file_end)

    def append_parts(self, parts: Sequence[memoryview]) -> None:
        """Writes bytes of a master's log, each part of which lies within one file. DiskError, and StorageError if one
        does not: the rest is not there."""
        if len(parts) == 1 and self._segment is not None and self.end_offset + len(parts[0]) <= self._file_end:
            # What a slave reads that follows closely.
            self._segment.write_parts(self.end_offset - self._file_start, parts)
            self.end_offset += len(parts[0])
            return
        first = 0
        while first < len(parts):
            if self.end_offset == self._file_end:
                self._enter(self._next_segment(self._file_end), self._file_end)
            write = self._raw_write(parts, first)
            write.run()
            self.written(write)
            first += len(write.parts)

    def raw_write(self, parts: Sequence[memoryview]) -> RawWrite | None:
        """What stores `parts` at the end, to be run in a thread; None if that takes more than the file being written.

        Until it has run and `written` was told, nothing else may be appended, cut or moved.
        """
        if self.end_offset + sum(map(len, parts)) > self._file_end:
            return None
        return self._raw_write(parts, 0)

    def written(self, write: RawWrite) -> None:
        """The write has run: what it stored belongs to the log."""
        assert write.start == self.end_offset - self._file_start, "something was appended under a write"
        self.end_offset += write.size

    def _raw_write(self, parts: Sequence[memoryview], first: int) -> RawWrite:
        """For as many of parts[first:] as lie in the file being written."""
        left = self._file_end - self.end_offset
        end, size = first, 0
        while end < len(parts) and size + len(parts[end]) <= left:
            size += len(parts[end])
            end += 1
        if end == first:
            raise StorageError(f"{len(parts[first])} bytes at {self.end_offset} go on in the next file: {OTHER_FILES}")
        assert not self._gathered, "behind puts there are no bytes of another's log"
        assert self._segment is not None, "the log has no file"
        return RawWrite(self._segment, self.end_offset - self._file_start, parts[first:end], size)

    def restart_at(self, start_offset: int) -> None:
        """Moves an empty log: its files go, the next one starts at `start_offset`."""
        assert self.end_offset == self.min_offset, "only an empty log can be moved"
        self.cuts += 1
        self._drop_prepared()
        self.files.remove_from(self.files.first_offset)
        self._leave(start_offset)
        self.end_offset = self.flushed_offset = start_offset

    # Reading

    def read(self, offset: int, max_bytes: int) -> memoryview:
        """Bytes from `offset`, no copy: at most `max_bytes`, within one file, not beyond the end; empty if outside.

        The view stays readable when the file is removed. It must not be kept for long: it keeps the file's space.
        In another thread than the one that appends only what was written. DiskError: what was gathered can't be.
        """
        if not self.min_offset <= offset < self.end_offset:
            return _NOTHING
        start = offset % self.file_bytes
        length = min(max_bytes, self.end_offset - offset, self.file_bytes - start)
        if self._gathered and offset + length > self._gathered_start:
            self.write_gathered()
        tail_start, tail = self._tail
        if tail and offset >= tail_start and offset + _TAIL_BYTES >= self.end_offset:
            return tail[start : start + length]
        segment = self.files.segment(offset)
        assert segment is not None, f"no file holds {offset}"
        return segment.view[start : start + length]

    def stored_ms(self, offset: int) -> int | None:
        """When the record that begins at `offset` was stored; None if none does."""
        return read_store_timestamp_ms(self.read(offset, RECORD_HEAD_BYTES_MAX), offset)

    def digest(self, start_offset: int, end_offset: int) -> bytes:
        """SHA-256 of [start_offset, end_offset), which must be kept. Blocks for about 0.6 ms per MiB."""
        assert self.min_offset <= start_offset <= end_offset <= self.end_offset, f"[{start_offset}, {end_offset})"
        sha256 = hashlib.sha256()
        while start_offset < end_offset:
            piece = self.read(start_offset, min(_DIGEST_CHUNK_BYTES, end_offset - start_offset))
            sha256.update(piece)
            start_offset += len(piece)
        return sha256.digest()

    # Repair

    def replace(self, offset: int, data: bytes) -> None:
        """Stores other bytes in the place of durable ones, within one file. Durable after the file's next sync."""
        assert self.min_offset <= offset <= offset + len(data) <= self.flushed_offset, f"{offset} is not durable"
        segment = self.files.segment(offset)
        assert segment is not None, f"no file holds {offset}"
        start = offset % self.file_bytes
        assert start + len(data) <= self.file_bytes, f"{len(data)} bytes at {offset} span two files"
        segment.view[start : start + len(data)] = data

    # Flushing

    def unflushed(self) -> tuple[list[MappedSegment], int]:
        """Files to sync and the offset up to which everything is durable after that. DiskError as of write_gathered."""
        self.write_gathered()
        return self.files.segments(self.flushed_offset, self.end_offset), self.end_offset

    def flushed(self, end_offset: int, *, cuts: int) -> None:
        """A flush up to `end_offset` has succeeded, begun when `cuts` was current."""
        if cuts == self.cuts:
            self.flushed_offset = max(self.flushed_offset, end_offset)

    # Files ahead and files behind

    def next_file(self) -> tuple[int, Callable[[], MappedSegment]] | None:
        """Start of the file that will be needed next and how to make it, in a thread.

        None if it is there, or if the file being written is not half full: a young store should not take twice the
        space it needs.
        """
        start_offset = self._file_end
        if self._prepared is not None or start_offset - self.end_offset > self.file_bytes // 2:
            return None
        path = self.files.path(start_offset)
        return start_offset, lambda: self._disk.map_segment(path, self.file_bytes, create=True)

    def take_prepared(self, start_offset: int, segment: MappedSegment) -> None:
        """The next file was made ahead. If the log needed it meanwhile, it has mapped the same file itself."""
        if self.files.segment(start_offset) is None:
            self._prepared = (start_offset, segment)

    def forget_first(self, file_count: int) -> list[MappedSegment]:
        """Gives up the oldest files, never the one being written nor an unflushed one; the caller removes them."""
        assert self.files.first_offset + file_count * self.file_bytes <= min(self.flushed_offset, self._file_start)
        return self.files.forget_first(file_count)

    # Recovery and truncation

    def load(self) -> None:
        """Maps the files. Until `set_end` the log counts as full and may be read, but not written."""
        self.files.load()
        self.end_offset = self.files.end_offset

    def store_again(self, start_offset: int, end_offset: int) -> None:
        """Stores the bytes of [start_offset, end_offset) once more: the next sync of their files writes them."""
        while start_offset < end_offset:
            segment = self.files.segment(start_offset)
            assert segment is not None, f"no file holds {start_offset}"
            start = start_offset % self.file_bytes
            end = min(start + end_offset - start_offset, self.file_bytes)
            segment.store_again(start, end)
            start_offset += end - start

    def set_end(self, end_offset: int) -> int:
        """Cuts the log at `end_offset`, durably. Returns the distance to the end of what was behind it.

        Safe against a crash at every step: first the record at `end_offset` is made invalid, then files behind are
        removed from the last one on, then the rest is cleared. Recovery after any of these ends at `end_offset`.
        """
        self.write_gathered()
        self.cuts += 1
        self._drop_prepared()
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self.end_offset = end_offset
        segment = self.files.segment(end_offset)
        if segment is None:
            self._leave(end_offset)
            return 0
        start = end_offset % self.file_bytes
        file_start = end_offset - start
        cleared_bytes = max(0, self.files.end_offset - file_start - self.file_bytes)
        head = segment.view[start : start + _BLANK_HEAD_BYTES]
        if any(head):
            cleared_bytes = max(cleared_bytes, len(head))
            head[:] = bytes(len(head))
            segment.sync()
        self.files.remove_from(file_start + self.file_bytes)
        cleared_bytes = max(cleared_bytes, segment.zero_from(start))
        if cleared_bytes:
            segment.sync()
        self._enter(segment, file_start)
        return cleared_bytes

    def close(self) -> None:
        """Lets go of the files. Not a flush; what was gathered and not written is forgotten."""
        self._leave(self.end_offset)
        self.files.close()

    def _next_segment(self, start_offset: int) -> MappedSegment:
        prepared = self._prepared
        self._prepared = None
        if prepared is not None and prepared[0] == start_offset:
            return self.files.append_file(start_offset, prepared[1])
        return self.files.append_file(start_offset)

    def _drop_prepared(self) -> None:
        """Removes the file made ahead. Before any other goes: a load must never find it behind a gap."""
        if self._prepared is not None:
            self._disk.remove(self.files.path(self._prepared[0]))
            self._prepared = None

    def _enter(self, segment: MappedSegment, file_start: int) -> None:
        self._segment = segment
        self._tail = (file_start, segment.new_tail_view())
        self._file_start = file_start
        self._file_end = file_start + self.file_bytes

    def _leave(self, offset: int) -> None:
        """No file is being written; the next one is made when it is needed."""
        self._segment = None
        self._tail = (0, _NOTHING)
        self._gathered = []
        self._file_start = self._file_end = offset
