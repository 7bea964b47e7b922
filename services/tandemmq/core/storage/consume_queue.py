"""ConsumeQueue: for one queue of one topic, where each message lies in the CommitLog.

An entry, big-endian (RocketMQ's ConsumeQueue):

| offset | size | name           | meaning                                              |
|--------|------|----------------|------------------------------------------------------|
| 0      | 8    | physicalOffset | where the record starts                              |
| 8      | 4    | size           | of the record, bytes                                 |
| 12     | 8    | tagsCode       | hash of the tag, or due time in the schedule topic   |

Entry n lies at byte n * 20 of the stream, which is cut into files of equal length. Positions that no message has are
fillers of size 0x7fffffff: those before the first message of a queue that does not start at 0, as in RocketMQ, with
physicalOffset 0; and those of a gap, with the physicalOffset of the message that follows. So physical offsets never
decrease along a queue, and everything can be found by bisection. Zeros end the stream.

New entries wait in memory until `write_out`; the last ones stay there after it, for consumers reading at the tail.
Nothing here is the only copy of anything: entries lost in a crash are derived again from the CommitLog.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from tandemmq.core.offsets import QueueOffset
from tandemmq.core.storage.disk import BlockFile, Disk, DiskError

# The files of all ConsumeQueues. 80,000 queues share this one object and none keeps a file open: a handle is opened for
# a read or a write, and lives on in a small least-recently-used table.

CONSUME_QUEUE_FOLDER: Final = "consumequeue"
_OPEN_FILES_MAX: Final = 256
"""Handles kept open: enough for the queues of a moment, few against a usual limit of 1024 per process."""
_FEW_FILES: Final = 31
"""Up to so many are synced one by one, for 120 µs and more each (ext4): syncing all that there is takes some 20 ms, and
longer where others write to the same file system."""


def queue_folder(topic: str, queue_id: int) -> str:
    return f"{CONSUME_QUEUE_FOLDER}/{topic}/{queue_id}"


def file_path(folder: str, start: int) -> str:
    """A file is named after the position of its first byte in the queue's stream of entries."""
    return f"{folder}/{start:020d}"


@dataclass(slots=True)
class ConsumeQueueSync:
    """Makes durable what was written to ConsumeQueue files up to the moment this was taken.

    `run` blocks and is meant for a thread: it opens handles of its own and touches nothing the event loop uses.
    """

    disk: Disk
    file_bytes: int
    paths: list[str]
    removed: set[str] = field(default_factory=set)
    """Files that were deleted meanwhile. Filled before the deletion, so that a failed open can be told apart."""

    def run(self) -> None:
        """Raises DiskError if something could not be synced; then nobody knows what the files hold."""
        if len(self.paths) > _FEW_FILES and self.disk.sync_all():
            return
        for path in self.paths:
            try:
                file = self.disk.open_block_file(path, self.file_bytes, create=False)
                try:
                    file.sync()
                finally:
                    file.close()
            except DiskError:
                if path not in self.removed:
                    raise


class ConsumeQueueFiles:
    """Reads and writes the streams of entries. Not for use by two threads."""

    def __init__(self, disk: Disk, *, file_bytes: int, before_loss: Callable[[], None] = lambda: None) -> None:
        """`before_loss` is called whenever entries that are in files are about to be deleted or erased."""
        self.disk: Final = disk
        self.file_bytes: Final = file_bytes
        self.before_loss: Final = before_loss
        self.log_start = 0
        """Records that end at or below it are gone from the CommitLog."""
        self._open: OrderedDict[str, BlockFile] = OrderedDict()
        self._unsynced: set[str] = set()
        self._running_sync: ConsumeQueueSync | None = None

    def read(self, folder: str, position: int, length: int) -> bytes:
        """`length` bytes from `position` of the stream; they may span files, all of which exist."""
        parts = []
        while length > 0:
            within = position % self.file_bytes
            count = min(length, self.file_bytes - within)
            parts.append(self._file(file_path(folder, position - within), create=False).read(within, count))
            position += count
            length -= count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, folder: str, position: int, data: bytes | bytearray) -> None:
        """Writes `data` at `position` of the stream and makes the files it begins. Durable after the next sync."""
        written = 0
        while written < len(data):
            within = (position + written) % self.file_bytes
            part = bytes(data[written : written + self.file_bytes - within])
            path = file_path(folder, position + written - within)
            if within and self.unsynced_count > _OPEN_FILES_MAX and path not in self._open:
                # So many are written in turn that no handle would be there the next time.
                self.disk.write_block(path, within, part)
            else:
                self._file(path, create=within == 0).write(within, part)
            self._unsynced.add(path)
            written += len(part)

    def used_bytes_from(self, folder: str, position: int) -> int:
        """The distance from `position` to the end of what is not zero in its file."""
        within = position % self.file_bytes
        return self._file(file_path(folder, position - within), create=False).used_bytes_from(within)

    def zero_from(self, folder: str, position: int) -> bool:
        """Makes the rest of a file zero, from `position` on; False if it was. Durable after the next sync."""
        within = position % self.file_bytes
        path = file_path(folder, position - within)
        if not self._file(path, create=False).zero_from(within):
            return False
        self._unsynced.add(path)
        return True

    def sync(self, folder: str, start: int) -> None:
        """Blocks until the file starting at `start` is durable."""
        path = file_path(folder, start)
        self._file(path, create=False).sync()
        self._unsynced.discard(path)

    @property
    def unsynced_count(self) -> int:
        """How many files were written since the last sync was taken."""
        return len(self._unsynced)

    def take_sync(self) -> ConsumeQueueSync | None:
        """What is to be made durable; None if everything is. The one taken before must have run."""
        if not self._unsynced:
            return None
        self._running_sync = ConsumeQueueSync(self.disk, self.file_bytes, sorted(self._unsynced))
        self._unsynced.clear()
        return self._running_sync

    def remove(self, folder: str, start: int) -> None:
        """Deletes one file, durably."""
        self.before_loss()
        path = file_path(folder, start)
        self._forget(path)
        self.disk.remove(path)

    def remove_queue(self, folder: str) -> None:
        """Deletes the files of one queue, if there are any, durably.

        The disk is asked which they are. A slave that joins late does this for every queue at its first message: going
        through all that is open or unsynced each time would take the square of their number.
        """
        found = self.disk.list_folder(folder)
        if not found:
            return
        self.before_loss()
        for file in found:
            self._forget(f"{folder}/{file.name}")
        self.disk.remove_folder(folder)

    def remove_folder(self, folder: str) -> None:
        """Deletes a folder of files, durably."""
        self.before_loss()
        prefix = f"{folder}/"
        known = {*self._open, *self._unsynced, *(self._running_sync.paths if self._running_sync else ())}
        for path in [path for path in known if path.startswith(prefix)]:
            self._forget(path)
        self.disk.remove_folder(folder)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _file(self, path: str, *, create: bool) -> BlockFile:
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        file = self.disk.open_block_file(path, self.file_bytes, create=create)
        self._open[path] = file
        if len(self._open) > _OPEN_FILES_MAX:
            self._open.popitem(last=False)[1].close()
        return file

    def _forget(self, path: str) -> None:
        if self._running_sync is not None:
            self._running_sync.removed.add(path)
        self._unsynced.discard(path)
        file = self._open.pop(path, None)
        if file is not None:
            file.close()


# Bisection over entries that cost a read each.


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


ENTRY: Final = Struct(">qiq")
ENTRY_BYTES: Final = ENTRY.size
FILLER_SIZE: Final = 0x7FFF_FFFF

_TAIL_BYTES_MAX: Final = 8192 * ENTRY_BYTES
"""Most a queue keeps in memory; then it writes out by itself."""


def _write_entry(writer: BytesWriter, physical_offset: i64, size: i32, tags_code: i64) -> None:
    """An entry as ENTRY has it; compiled, a store of its bytes each, where `pack` takes an object."""
    write_i64_be(writer, physical_offset)
    write_i32_be(writer, size)
    write_i64_be(writer, tags_code)


class QueueEntry(NamedTuple):
    """One message as its queue knows it."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_filler(self) -> bool:
        """Whether no message belongs to this position: readers step over it."""
        return self.size == FILLER_SIZE

    @property
    def physical_end(self) -> int:
        """Where the record ends in the CommitLog."""
        return self.physical_offset if self.size == FILLER_SIZE else self.physical_offset + self.size


_make_entry: Final = partial(tuple.__new__, QueueEntry)
"""QueueEntry._make without a Python frame: a third of its time, once per entry read."""


class ConsumeQueue:
    """The entries [min_offset, max_offset) of one queue. One thread only, the one that appends to the CommitLog.

    There may be tens of thousands: an object holds a few numbers and its last entries, no file.
    """

    __slots__ = (
        "_dirty_queues",
        "_files",
        "_is_dirty",
        "_tail",
        "_tail_offset",
        "first_file_start",
        "is_unfiled",
        "last_physical_end",
        "max_offset",
        "min_offset",
        "queue_id",
        "topic",
        "written_offset",
    )

    def __init__(
        self,
        files: ConsumeQueueFiles,
        dirty_queues: list[ConsumeQueue],
        *,
        topic: str,
        queue_id: int,
    ) -> None:
        """An empty queue without files. `dirty_queues` is where it enters itself when it has something to write."""
        self.topic: Final = topic
        self.queue_id: Final = queue_id
        self.min_offset = QueueOffset(0)
        self.max_offset = QueueOffset(0)
        """The next entry's."""
        self.last_physical_end = 0
        """End in the CommitLog of the last message; records up to it are in the queue already."""
        self._files = files
        self._dirty_queues = dirty_queues
        self._is_dirty = False
        self.first_file_start = 0
        """Position of the first file's first byte in the stream."""
        self.is_unfiled = False
        """It goes on with a number, and there is no file yet that says so."""
        self._tail = bytearray()
        self._tail_offset = 0
        self.written_offset = 0
        """Entries below are in files; the others wait in memory."""

    def restore(self, *, first_file_start: int, min_offset: int, max_offset: int, last_physical_end: int) -> None:
        """Takes over what was found in the files at start."""
        self.min_offset = QueueOffset(min_offset)
        self.max_offset = QueueOffset(max_offset)
        self.last_physical_end = last_physical_end
        self.first_file_start = first_file_start
        self._tail_offset = self.written_offset = max_offset

    def append(self, entry_offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Enters a message; one that is in the queue already is left alone, so dispatching twice does no harm."""
        if entry_offset != self.max_offset or physical_offset < self.last_physical_end:
            if self.is_empty or self._starts_over(entry_offset, physical_offset):
                self._start_at(entry_offset)
            elif entry_offset < self.max_offset or physical_offset + size <= self.last_physical_end:
                return
            else:
                self._fill_up_to(entry_offset, physical_offset)
        entry = BytesWriter()
        _write_entry(entry, physical_offset, size, tags_code)
        self._tail += entry.getvalue()
        self.max_offset = entry_offset + 1  # type: ignore[assignment]  # QueueOffset() costs a call per message
        self.last_physical_end = physical_offset + size
        if not self._is_dirty:
            self._is_dirty = True
            self._dirty_queues.append(self)
        if len(self._tail) >= _TAIL_BYTES_MAX:
            self.write_out(kept_entries=_TAIL_BYTES_MAX // ENTRY_BYTES // 2)

    def append_run(self, entry_offset: int, physical_offset: int, entries: bytes, *, physical_end: int) -> bool:
        """Enters messages with consecutive numbers from `entry_offset` on, the first of which lies at
        `physical_offset`; False, and nothing is done, unless they go on where the queue ends."""
        if entry_offset != self.max_offset or physical_offset < self.last_physical_end:
            return False
        self._tail += entries
        self.max_offset = QueueOffset(entry_offset + len(entries) // ENTRY_BYTES)
        self.last_physical_end = physical_end
        if not self._is_dirty:
            self._is_dirty = True
            self._dirty_queues.append(self)
        if len(self._tail) >= _TAIL_BYTES_MAX:
            self.write_out(kept_entries=_TAIL_BYTES_MAX // ENTRY_BYTES // 2)
        return True

    def read(self, start: int, count: int) -> list[QueueEntry]:
        """Entries [start, start + count), fewer at the end of the queue, none outside [min_offset, max_offset)."""
        if not self.min_offset <= start < self.max_offset or count <= 0:
            return []
        data = self._bytes(start, min(start + count, self.max_offset))
        return list(map(_make_entry, ENTRY.iter_unpack(data)))

    def entry(self, offset: int) -> QueueEntry:
        """One entry of the queue, also one below min_offset whose file is still there."""
        return QueueEntry._make(ENTRY.unpack(self._bytes(offset, offset + 1)))

    @property
    def folder(self) -> str:
        return queue_folder(self.topic, self.queue_id)

    @property
    def is_empty(self) -> bool:
        """Whether no message is in it. Its max_offset still counts then: the next message of a master gets it."""
        return self.last_physical_end == 0

    @property
    def memory_offset(self) -> int:
        """Entries from here on are read from memory, as this process made them; those before from files."""
        return self._tail_offset

    @property
    def begins_file(self) -> bool:
        """Whether the next `write_out` makes a file, if it has anything to write."""
        return self.written_offset * ENTRY_BYTES % self._files.file_bytes == 0

    def write_out(self, *, kept_entries: int) -> None:
        """Writes the entries not yet in a file, then keeps at most `kept_entries` of the last ones in memory.

        After a DiskError nothing is lost from memory; the call may be repeated.
        """
        if self.written_offset < self.max_offset:
            if self.is_unfiled:
                self._begin_file()
            unwritten = self._tail[(self.written_offset - self._tail_offset) * ENTRY_BYTES :]
            self._files.write(self.folder, self.written_offset * ENTRY_BYTES, unwritten)
            self.written_offset = self.max_offset
        self._is_dirty = False
        surplus = self.max_offset - self._tail_offset - kept_entries
        if surplus > 0:
            del self._tail[: surplus * ENTRY_BYTES]
            self._tail_offset += surplus

    def begin_at(self, entry_offset: int) -> None:
        """Holds nothing, and gives the next message the number `entry_offset`, above 0. Durable after the next sync."""
        self._start_at(entry_offset - 1)
        self._fill_up_to(entry_offset, 0)
        self.min_offset = self.max_offset
        self.last_physical_end = 0

    def go_on_at(self, entry_offset: int) -> None:
        """The same in memory alone, until a message comes: fillers up to it may be megabytes, and tens of thousands of
        queues may go on so at once. Files of before stay until then."""
        self._tail.clear()
        self.first_file_start = entry_offset * ENTRY_BYTES
        self._tail_offset = self.written_offset = entry_offset
        self.min_offset = self.max_offset = QueueOffset(entry_offset)
        self.last_physical_end = 0
        self.is_unfiled = True

    def first_behind(self, physical_offset: int) -> int | None:
        """The first message whose record begins at or behind a place in the CommitLog; None: there is none."""
        if self.last_physical_end <= physical_offset:
            return None
        offset = first_false(
            self.min_offset, self.max_offset, lambda offset: self.entry(offset).physical_offset < physical_offset
        )
        while offset < self.max_offset and self.entry(offset).is_filler:
            offset += 1
        return offset if offset < self.max_offset else None

    def rewrite(self, entry_offset: int, entries: bytes) -> None:
        """Puts entries in the place of those that are there, in files and memory alike; for a repair, which has found
        them wrong. Durable after the next sync. DiskError: some may be written; the call may be repeated."""
        end = entry_offset + len(entries) // ENTRY_BYTES
        assert self._first_offset <= entry_offset < end <= self.max_offset, f"[{entry_offset}, {end}) is not held"
        written_end = min(end, self.written_offset)
        if entry_offset < written_end:
            written = entries[: (written_end - entry_offset) * ENTRY_BYTES]
            self._files.write(self.folder, entry_offset * ENTRY_BYTES, written)
        if self._tail_offset < end:
            start = max(entry_offset, self._tail_offset)
            kept = slice((start - self._tail_offset) * ENTRY_BYTES, (end - self._tail_offset) * ENTRY_BYTES)
            self._tail[kept] = entries[(start - entry_offset) * ENTRY_BYTES :]
        if end == self.max_offset:
            self.last_physical_end = self.entry(end - 1).physical_end

    def rewrite_behind(self, entry_offset: int, entries: bytes) -> None:
        """Puts bytes behind the end, where a file has room and no entry is: for a repair. Durable after the next sync;
        DiskError."""
        assert entry_offset >= self.max_offset, f"{entry_offset} is an entry, the queue ends at {self.max_offset}"
        self._files.write(self.folder, entry_offset * ENTRY_BYTES, entries)

    def truncate(self, physical_end: int) -> None:
        """Drops the entries of records that end beyond `physical_end`. Durable when it returns, so that none of them
        comes back after a crash; the caller cuts the CommitLog after it and not before."""
        if self.last_physical_end <= physical_end:
            return
        end = first_false(
            self._first_offset, self.max_offset, lambda offset: self.entry(offset).physical_end <= physical_end
        )
        last_physical_end = self.entry(end - 1).physical_end if end > self._first_offset else 0
        written_end = self.written_offset
        kept_in_tail = max(0, end - self._tail_offset)
        del self._tail[kept_in_tail * ENTRY_BYTES :]
        self._tail_offset = min(self._tail_offset, end)
        self.written_offset = min(written_end, end)
        self.max_offset = QueueOffset(end)
        self.min_offset = min(self.min_offset, self.max_offset)
        self.last_physical_end = last_physical_end
        self._erase(end * ENTRY_BYTES, written_end * ENTRY_BYTES)

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Moves min_offset past the entries whose records are gone because the CommitLog now starts later."""
        high = self.max_offset
        while True:
            found = first_false(self.min_offset, high, lambda offset: _is_below(self.entry(offset), log_min_offset))
            start = found
            # A damaged entry seems to be old, and would hide those before it. In doubt they stay.
            while start > self.min_offset and self._seems_below(start - 1, log_min_offset):
                start -= 1
            if start == self.min_offset or _is_below(self.entry(start - 1), log_min_offset):
                self.min_offset = QueueOffset(start)
                return
            high = QueueOffset(start - 1)

    def remove_expired_files(self, log_min_offset: int) -> int:
        """Deletes each file whose records are all gone, but never the last file. Returns how many."""
        removed = 0
        while True:
            next_start = self.first_file_start + self._files.file_bytes
            if next_start >= self.written_offset * ENTRY_BYTES:
                return removed
            last = next_start // ENTRY_BYTES - 1
            if not _is_below(self.entry(last), log_min_offset) or self._seems_below(last, log_min_offset):
                return removed
            self._files.remove(self.folder, self.first_file_start)
            self.first_file_start = next_start
            self.min_offset = max(self.min_offset, QueueOffset(next_start // ENTRY_BYTES))
            removed += 1

    def _seems_below(self, offset: int, log_min_offset: int) -> bool:
        """Whether an entry is below only by damage: its record ends beyond, or lies before its neighbour's."""
        entry = self.entry(offset)
        if not _is_below(entry, log_min_offset) or (entry.is_filler and entry.physical_offset == 0):
            return False
        if entry.physical_offset < 0 or entry.size <= 0 or entry.physical_end > log_min_offset:
            return True
        return offset > self.min_offset and self.entry(offset - 1).physical_end > entry.physical_offset

    @property
    def _first_offset(self) -> int:
        return self.first_file_start // ENTRY_BYTES

    def _bytes(self, start: int, end: int) -> bytes:
        """The bytes of entries [start, end), partly from a file if need be."""
        tail_offset = self._tail_offset
        if start >= tail_offset:
            return bytes(self._tail[(start - tail_offset) * ENTRY_BYTES : (end - tail_offset) * ENTRY_BYTES])
        file_end = min(end, tail_offset)
        data = self._files.read(self.folder, start * ENTRY_BYTES, (file_end - start) * ENTRY_BYTES)
        if end > tail_offset:
            data += self._tail[: (end - tail_offset) * ENTRY_BYTES]
        return data

    def _start_at(self, entry_offset: int) -> None:
        """Makes `entry_offset` the first position. A slave that joined late starts beyond 0; and a queue that was
        emptied starts again where the CommitLog says, even before the place where its files began."""
        self.is_unfiled = False
        self._files.remove_queue(self.folder)
        file_bytes = self._files.file_bytes
        self.first_file_start = entry_offset * ENTRY_BYTES // file_bytes * file_bytes
        self._tail.clear()
        self._tail_offset = self.written_offset = self._first_offset
        self.max_offset = QueueOffset(self._first_offset)
        self._fill_up_to(entry_offset, 0)
        self.min_offset = QueueOffset(entry_offset)

    def _begin_file(self) -> None:
        """Of a queue that goes on with a number: fillers up to it, and before them no file of another beginning. After
        a DiskError the call may be repeated."""
        self._files.remove_queue(self.folder)
        end = self.first_file_start
        start = end // self._files.file_bytes * self._files.file_bytes
        fillers = ENTRY.pack(0, FILLER_SIZE, 0) * (_TAIL_BYTES_MAX // ENTRY_BYTES)
        for position in range(start, end, _TAIL_BYTES_MAX):
            self._files.write(self.folder, position, fillers[: end - position])
        self.first_file_start = start
        self.is_unfiled = False

    def _starts_over(self, entry_offset: int, physical_offset: int) -> bool:
        """Whether a master that joined when the queue's messages had expired, and knows none of its numbers, has begun
        again with a lower one. Nothing that can be read goes."""
        log_start = self._files.log_start
        return entry_offset < self.max_offset and self.last_physical_end <= log_start <= physical_offset

    def _fill_up_to(self, entry_offset: int, physical_offset: int) -> None:
        """Enters fillers, so that the next entry has its place."""
        filler = ENTRY.pack(physical_offset, FILLER_SIZE, 0)
        while self.max_offset < entry_offset:
            count = min(entry_offset - self.max_offset, _TAIL_BYTES_MAX // ENTRY_BYTES)
            self._tail += filler * count
            self.max_offset = QueueOffset(self.max_offset + count)
            self.write_out(kept_entries=0)

    def _erase(self, start: int, end: int) -> None:
        """Makes bytes [start, end) of the stream zero, durably. Files go from the last one back: never a hole."""
        self._files.before_loss()
        file_bytes = self._files.file_bytes
        folder = self.folder
        file_start = (end - 1) // file_bytes * file_bytes
        while file_start >= start and file_start > self.first_file_start:
            self._files.remove(folder, file_start)
            file_start -= file_bytes
        end = min(end, file_start + file_bytes)
        if start < end:
            self._files.write(folder, start, bytes(end - start))
            self._files.sync(folder, file_start)


class QueueRun:
    """Entries for consecutive messages at the end of a queue, made before their records are in the CommitLog and
    entered once they are."""

    __slots__ = ("_entries", "_physical_end", "_physical_offset", "next_offset", "queue")

    def __init__(self, queue: ConsumeQueue, next_offset: int) -> None:
        """`next_offset`: the queue's end, or the end of a run that is entered before this one."""
        self.queue: Final = queue
        self.next_offset = next_offset
        """The next message's number."""
        self._entries: Final = BytesWriter()
        self._physical_offset = 0
        self._physical_end = 0

    def add(self, physical_offset: int, size: int, tags_code: int) -> None:
        """Another message, behind those before it in the CommitLog."""
        if not len(self._entries):
            self._physical_offset = physical_offset
        _write_entry(self._entries, physical_offset, size, tags_code)
        self._physical_end = physical_offset + size
        self.next_offset += 1

    def enter(self) -> None:
        """The records are in the CommitLog. DiskFull as for `ConsumeQueue.write_out`: all entries are in memory."""
        entries = self._entries.getvalue()
        goes_on = self.queue.append_run(
            self.next_offset - len(entries) // ENTRY_BYTES,
            self._physical_offset,
            entries,
            physical_end=self._physical_end,
        )
        assert goes_on, f"queue {self.queue.queue_id} of {self.queue.topic} ends elsewhere"


def _is_below(entry: QueueEntry, log_min_offset: int) -> bool:
    return entry.physical_offset < log_min_offset or (entry.physical_offset == 0 and entry.is_filler)
