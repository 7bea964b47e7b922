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

from functools import partial
from struct import Struct
from typing import Final, NamedTuple

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from mqcore.offsets import QueueOffset
from mqcore.storage.consume_queue_files import ConsumeQueueFiles, queue_folder
from mqcore.storage.monotone_search import first_false

__all__ = ["ENTRY", "ConsumeQueue", "QueueEntry", "QueueRun"]

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
        "_first_file_start",
        "_is_dirty",
        "_tail",
        "_tail_offset",
        "_written_offset",
        "last_physical_end",
        "max_offset",
        "min_offset",
        "queue_id",
        "topic",
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
        self._first_file_start = 0
        self._tail = bytearray()
        self._tail_offset = 0
        self._written_offset = 0

    def restore(self, *, first_file_start: int, min_offset: int, max_offset: int, last_physical_end: int) -> None:
        """Takes over what was found in the files at start."""
        self.min_offset = QueueOffset(min_offset)
        self.max_offset = QueueOffset(max_offset)
        self.last_physical_end = last_physical_end
        self._first_file_start = first_file_start
        self._tail_offset = self._written_offset = max_offset

    def append(self, entry_offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Enters a message; one that is in the queue already is left alone, so dispatching twice does no harm."""
        if entry_offset != self.max_offset or physical_offset < self.last_physical_end:
            if self.is_empty:
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
        """Where the files are."""
        return queue_folder(self.topic, self.queue_id)

    @property
    def is_empty(self) -> bool:
        """Whether no message is in it. Its max_offset still counts then: the next message of a master gets it."""
        return self.last_physical_end == 0

    @property
    def first_file_start(self) -> int:
        """Position of the first file's first byte in the stream."""
        return self._first_file_start

    @property
    def memory_offset(self) -> int:
        """Entries from here on are read from memory, as this process made them; those before from files."""
        return self._tail_offset

    @property
    def written_offset(self) -> int:
        """Entries below are in files; the others wait in memory."""
        return self._written_offset

    @property
    def begins_file(self) -> bool:
        """Whether the next `write_out` makes a file, if it has anything to write."""
        return self._written_offset * ENTRY_BYTES % self._files.file_bytes == 0

    def write_out(self, *, kept_entries: int) -> None:
        """Writes the entries not yet in a file, then keeps at most `kept_entries` of the last ones in memory.

        After a DiskError nothing is lost from memory; the call may be repeated.
        """
        if self._written_offset < self.max_offset:
            unwritten = self._tail[(self._written_offset - self._tail_offset) * ENTRY_BYTES :]
            self._files.write(self.folder, self._written_offset * ENTRY_BYTES, unwritten)
            self._written_offset = self.max_offset
        self._is_dirty = False
        surplus = self.max_offset - self._tail_offset - kept_entries
        if surplus > 0:
            del self._tail[: surplus * ENTRY_BYTES]
            self._tail_offset += surplus

    def rewrite(self, entry_offset: int, entries: bytes) -> None:
        """Puts entries in the place of those that are there, in files and memory alike; for a repair, which has found
        them wrong. Durable after the next sync. DiskError: some may be written; the call may be repeated."""
        end = entry_offset + len(entries) // ENTRY_BYTES
        assert self._first_offset <= entry_offset < end <= self.max_offset, f"[{entry_offset}, {end}) is not held"
        written_end = min(end, self._written_offset)
        if entry_offset < written_end:
            written = entries[: (written_end - entry_offset) * ENTRY_BYTES]
            self._files.write(self.folder, entry_offset * ENTRY_BYTES, written)
        if self._tail_offset < end:
            start = max(entry_offset, self._tail_offset)
            kept = slice((start - self._tail_offset) * ENTRY_BYTES, (end - self._tail_offset) * ENTRY_BYTES)
            self._tail[kept] = entries[(start - entry_offset) * ENTRY_BYTES :]
        if end == self.max_offset:
            self.last_physical_end = self.entry(end - 1).physical_end

    def truncate(self, physical_end: int) -> None:
        """Drops the entries of records that end beyond `physical_end`. Durable when it returns, so that none of them
        comes back after a crash; the caller cuts the CommitLog after it and not before."""
        if self.last_physical_end <= physical_end:
            return
        end = first_false(
            self._first_offset, self.max_offset, lambda offset: self.entry(offset).physical_end <= physical_end
        )
        last_physical_end = self.entry(end - 1).physical_end if end > self._first_offset else 0
        written_end = self._written_offset
        kept_in_tail = max(0, end - self._tail_offset)
        del self._tail[kept_in_tail * ENTRY_BYTES :]
        self._tail_offset = min(self._tail_offset, end)
        self._written_offset = min(written_end, end)
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
        """Deletes files all of whose records are gone, never the last file. Returns how many."""
        removed = 0
        while True:
            next_start = self._first_file_start + self._files.file_bytes
            if next_start >= self._written_offset * ENTRY_BYTES:
                return removed
            last = next_start // ENTRY_BYTES - 1
            if not _is_below(self.entry(last), log_min_offset) or self._seems_below(last, log_min_offset):
                return removed
            self._files.remove(self.folder, self._first_file_start)
            self._first_file_start = next_start
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
        return self._first_file_start // ENTRY_BYTES

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
        self._files.remove_queue(self.folder)
        file_bytes = self._files.file_bytes
        self._first_file_start = entry_offset * ENTRY_BYTES // file_bytes * file_bytes
        self._tail.clear()
        self._tail_offset = self._written_offset = self._first_offset
        self.max_offset = QueueOffset(self._first_offset)
        self._fill_up_to(entry_offset, 0)
        self.min_offset = QueueOffset(entry_offset)

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
        file_bytes = self._files.file_bytes
        folder = self.folder
        file_start = (end - 1) // file_bytes * file_bytes
        while file_start >= start and file_start > self._first_file_start:
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
        """`next_offset`: the queue's end, or that of a run of its which is entered before this one."""
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
