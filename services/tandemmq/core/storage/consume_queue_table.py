"""All ConsumeQueues of a store, and where the entries of each end after a stop.

Theory of operation. The files have their full length from the start, so the end has to be searched for. How to search
depends on the stop:

- *clean*: everything was synced, entries are followed by zeros. The end is bisected for.
- *killed*: every write is there, one after the other.
- *power lost*: of what was not synced anything may be there: sectors missing or kept, in any order.

Damage looks like an end, too. Where durable entries follow, or a file is missing or has another length than the rest,
the queue ends before the damage, and the CommitLog gives the rest again. What is gone without a trace, a queue's first
files, its last entries or all of it, is known from `consumequeue-ends`: where each queue began and ended when it was
written. While that file is there queues only grow, so that every later start can hold them against it. It is some
seconds older than the checkpoint: what the log has between the two, each queue has to have as well.

Entries up to the checkpoint's `logics_physical_offset` were synced before the checkpoint said so. After a kill or a
power loss, entries of later records are dropped, the rest of the file is erased, and the CommitLog gives them again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from tandemmq.core.message.record_layout import crc32
from tandemmq.core.storage.consume_queue import (
    CONSUME_QUEUE_FOLDER,
    ENTRY,
    ENTRY_BYTES,
    ConsumeQueue,
    ConsumeQueueFiles,
    ConsumeQueueSync,
    QueueEntry,
    file_path,
    first_false,
)
from tandemmq.core.storage.disk import LOST_AND_FOUND, Disk, DiskFull, SegmentSizeMismatch

_QUEUE_FILE_SIZE: Final = (
    "set mappedFileSizeConsumeQueue back to what the store was created with; if nobody changed it, the file is "
    f"damaged: move the folder {CONSUME_QUEUE_FOLDER} away, and the start makes it again from the CommitLog"
)

# The search for a queue's end.

_BLOCK_BYTES: Final = 200 * ENTRY_BYTES
"""Read at once: about a page."""


class StopKind(Enum):
    """How the process before this one ended."""

    CLEAN = "clean"
    KILLED = "killed"
    """The machine runs on: every write the process made is there."""
    POWER_LOST = "power_lost"
    """The machine was restarted, since the stop or in a recovery that did not finish."""


class _QueueEnd(NamedTuple):
    file_start: int
    """The file that holds the last entry, or the first file if there is none."""
    offset: int
    """One past the last entry."""


class LoadedQueue(NamedTuple):
    """What became of a queue's files."""

    has_files: bool
    """False as well if they have another length."""
    damaged_from: int | None
    """Where in the CommitLog the last believed record ends, if durable entries behind it are gone: they were damaged,
    or hidden by damage. All records from there on are to be entered again. None: nothing is wrong."""
    other_length: SegmentSizeMismatch | None = None
    """All files of the queue have one other length: they are damaged, unless those of all queues have."""


def load_consume_queue(
    queue: ConsumeQueue,
    files: ConsumeQueueFiles,
    stop: StopKind,
    durable_offset: int,
    *,
    log_end: int,
    farthest: Callable[[QueueEntry], None] = lambda _entry: None,
) -> LoadedQueue:
    """Restores `queue` from its files. `durable_offset` is logics_physical_offset, 0: unknown. No record ends beyond
    `log_end`. `farthest` is told, after an unclean stop, the entry of the record that lies farthest in the log, before
    it is perhaps dropped.

    After an unclean stop, and where they are damaged, the files are repaired; that is durable after the next sync.
    """
    try:
        starts, is_damaged = _file_starts(queue.folder, files, stop)
    except SegmentSizeMismatch as mismatch:
        return LoadedQueue(False, 0, mismatch)
    if not starts:
        return LoadedQueue(False, 0 if is_damaged else None)
    reader = _EntryReader(files, queue.folder)
    if stop is StopKind.CLEAN:
        end = _bisected_end(reader, starts, _is_entry)
    elif durable_offset > 0:
        end = _bisected_end(reader, starts, lambda entry: _is_entry(entry) and entry.physical_offset <= durable_offset)
    else:
        end = _linear_end(reader, starts)
    first_offset = starts[0] // ENTRY_BYTES
    last = reader.entry(end.offset - 1) if end.offset > first_offset else None
    while end.offset > first_offset and not _is_within(reader.entry(end.offset - 1), log_end):
        is_damaged = True
        end = _QueueEnd((end.offset - 2) * ENTRY_BYTES // files.file_bytes * files.file_bytes, end.offset - 1)
    end = _QueueEnd(max(starts[0], end.file_start), end.offset)
    hidden = _read_behind(files, queue.folder, starts, end, stop, durable_offset)
    is_damaged = is_damaged or hidden.are_durable
    last = hidden.last or last
    if last is not None and stop is not StopKind.CLEAN:
        farthest(last)
    for start in reversed(starts):
        if start > end.file_start:
            files.remove(queue.folder, start)
    if is_damaged or stop is not StopKind.CLEAN:
        _erase_rest(files, queue.folder, end)
    _restore(queue, reader, starts[0], end.offset)
    return LoadedQueue(True, queue.last_physical_end if is_damaged else None)


def _is_within(entry: QueueEntry, log_end: int) -> bool:
    return entry.physical_end <= log_end


class _HiddenEntries(NamedTuple):
    """What lies behind the end of a queue."""

    are_durable: bool
    """Some of it was synced: the end is the place of a damage."""
    last: QueueEntry | None
    """That of the record that lies farthest, after an unclean stop. Of an entry that was torn a part is zero, which
    makes it less and never more; of damaged ones nothing is believed."""


def _read_behind(
    files: ConsumeQueueFiles, folder: str, starts: list[int], end: _QueueEnd, stop: StopKind, durable_offset: int
) -> _HiddenEntries:
    """After an orderly stop nothing is there at all."""
    position = end.offset * ENTRY_BYTES
    are_durable, last = False, None
    for start in starts:
        first = max(start, position)
        if first >= start + files.file_bytes:
            continue
        used_bytes = files.used_bytes_from(folder, first)
        if used_bytes and stop is StopKind.CLEAN:
            return _HiddenEntries(True, None)
        whole_bytes = min(used_bytes + ENTRY_BYTES - 1, start + files.file_bytes - first) // ENTRY_BYTES * ENTRY_BYTES
        for piece in range(first, first + whole_bytes, _BLOCK_BYTES):
            data = files.read(folder, piece, min(_BLOCK_BYTES, first + whole_bytes - piece))
            for entry in map(_make_entry, ENTRY.iter_unpack(data)):
                if entry.size > 0 and entry.physical_offset > 0:
                    are_durable = are_durable or entry.physical_offset <= durable_offset
                    last = entry if last is None or entry.physical_end > last.physical_end else last
    return _HiddenEntries(are_durable, None if are_durable else last)


def _restore(queue: ConsumeQueue, reader: _EntryReader, first_start: int, end_offset: int) -> None:
    def is_leading_filler(offset: int) -> bool:
        entry = reader.entry(offset)
        return entry.is_filler and entry.physical_offset == 0

    first_offset = first_start // ENTRY_BYTES
    queue.restore(
        first_file_start=first_start,
        min_offset=(
            first_false(first_offset, end_offset, is_leading_filler)
            if end_offset > first_offset and is_leading_filler(first_offset)
            else first_offset
        ),
        max_offset=end_offset,
        last_physical_end=reader.entry(end_offset - 1).physical_end if end_offset > first_offset else 0,
    )


_make_entry: Final = partial(tuple.__new__, QueueEntry)
"""QueueEntry._make without a Python frame: seven entries are read of each queue."""


class _EntryReader:
    """Entries of one queue's files. Keeps the block it read last: most queues are no longer than one."""

    __slots__ = ("_block", "_block_offset", "files", "folder")

    def __init__(self, files: ConsumeQueueFiles, folder: str) -> None:
        self.files = files
        self.folder = folder
        self._block = b""
        self._block_offset = 0

    def entry(self, offset: int) -> QueueEntry:
        within = (offset - self._block_offset) * ENTRY_BYTES
        if not 0 <= within < len(self._block):
            within = self._read_block(offset)
        return _make_entry(ENTRY.unpack_from(self._block, within))

    def _read_block(self, offset: int) -> int:
        """Reads the block of an entry, which ends with the file at the latest; returns where the entry is in it."""
        position = offset * ENTRY_BYTES
        file_rest = self.files.file_bytes - position % self.files.file_bytes
        before = min(position % _BLOCK_BYTES, position % self.files.file_bytes)
        length = before + min(_BLOCK_BYTES - before, file_rest)
        self._block = self.files.read(self.folder, position - before, length)
        self._block_offset = (position - before) // ENTRY_BYTES
        return before


def _is_entry(entry: QueueEntry) -> bool:
    """RocketMQ's test for the end of the valid data (ConsumeQueue.recover)."""
    return entry.physical_offset >= 0 and entry.size > 0


def _file_starts(folder: str, files: ConsumeQueueFiles, stop: StopKind) -> tuple[list[int], bool]:
    """Start positions of the queue's files, ascending and without a hole; and whether one is missing or damaged.

    A file whose creation was cut short is removed, and so is everything behind a missing file. After a power loss it
    was perhaps not synced; then nothing up to the checkpoint is in it. SegmentSizeMismatch, and nothing is removed: all
    have one other length.
    """
    starts: list[int] = []
    is_cut_off = is_damaged = False
    entries = [found for found in files.disk.list_folder(folder) if not found.is_folder and found.name.isdecimal()]
    sizes = {found.size for found in entries if found.size}
    is_other_length = len(sizes) == 1 and all(size != files.file_bytes and size % ENTRY_BYTES == 0 for size in sizes)
    for found in entries:
        start = int(found.name)
        expected = starts[-1] + files.file_bytes if starts else start
        if stop is StopKind.POWER_LOST and (is_cut_off or found.size == 0 or start != expected):
            is_cut_off = True
            files.remove(folder, start)
        elif found.size == 0:
            files.remove(folder, start)
        elif is_other_length:
            raise SegmentSizeMismatch(
                file_path(folder, start),
                found_bytes=found.size,
                expected_bytes=files.file_bytes,
                remedy=_QUEUE_FILE_SIZE,
            )
        elif is_damaged or found.size != files.file_bytes or start != expected:
            is_damaged = True
            files.remove(folder, start)
        else:
            starts.append(start)
    return starts, is_damaged


def _bisected_end(reader: _EntryReader, starts: list[int], is_sound: Callable[[QueueEntry], bool]) -> _QueueEnd:
    """The end of the run of sound entries.

    An entry may lie across the border of two sectors. If the first was lost, the entry has lost the upper half of its
    physical offset, or all of it, and may look sound because it seems to be old. The entry before it tells: that one
    was lost as well, or ends beyond where this one claims to start.
    """

    def holds(offset: int) -> bool:
        entry = reader.entry(offset)
        if offset == first_offset or not is_sound(entry):
            return is_sound(entry)
        previous = reader.entry(offset - 1)
        return is_sound(previous) and previous.physical_end <= entry.physical_offset

    per_file = reader.files.file_bytes // ENTRY_BYTES
    for start in reversed(starts):
        first_offset = start // ENTRY_BYTES
        if is_sound(reader.entry(first_offset)):
            return _QueueEnd(start, first_false(first_offset, first_offset + per_file, holds))
    return _QueueEnd(starts[0], starts[0] // ENTRY_BYTES)


def _linear_end(reader: _EntryReader, starts: list[int]) -> _QueueEnd:
    """The end when nothing is known to be durable: looks at every entry of the last file that has one.

    As RocketMQ's recovery, but it also stops where an entry points before the end of the one before it, which no
    writer does: that entry is torn.
    """
    per_file = reader.files.file_bytes // ENTRY_BYTES
    for start in reversed(starts):
        first_offset = start // ENTRY_BYTES
        if not _is_entry(reader.entry(first_offset)):
            continue
        physical_end = 0
        for offset in range(first_offset, first_offset + per_file):
            entry = reader.entry(offset)
            if not _is_entry(entry) or entry.physical_offset < physical_end:
                return _QueueEnd(start, offset)
            physical_end = entry.physical_end
        return _QueueEnd(start, first_offset + per_file)
    return _QueueEnd(starts[0], starts[0] // ENTRY_BYTES)


def _erase_rest(files: ConsumeQueueFiles, folder: str, end: _QueueEnd) -> None:
    """Makes everything behind the end in the last file zero, so that no dropped entry ever comes back."""
    position = end.offset * ENTRY_BYTES
    if position < end.file_start + files.file_bytes:
        files.zero_from(folder, position)


_KEPT_ENTRIES_TOTAL: Final = 2_000_000
"""Entries all queues together keep in memory for consumers at their tails: 40 MB."""
_KEPT_ENTRIES_MIN: Final = 32
_KEPT_ENTRIES_MAX: Final = 4096
"""Bounds of what one queue keeps: one receive of the usual size, and as much as a fast queue gets in a moment."""

_NEW_FILE_COST: Final = 8
"""Writing a queue's first entries against writing some more: two folders and a file are made (ext4: 290 µs, 33 µs)."""


QUEUE_ENDS_FILE: Final = "consumequeue-ends"
"""Eight hexadecimal digits, the CRC of what follows; a line's end; JSON: [logics_physical_offset, [[topic, queue id,
start of the first file, max offset], ...], start of the CommitLog, start of the index], the last two of which earlier
versions did not write."""

_ENDS_WAIT_MS: Final = 10_000
"""How old the file becomes while only entries are added."""
_ENDS_WAIT_MS_PER_QUEUE: Final = 1
"""How long it stays in any case: of 80,000 queues, writing them down takes 0.1 s."""
_WITH_INDEX: Final = 1
"""With it the checksum begins of a text that says where the index begins. A version that knows no such text would end
at one; so it takes the file for damaged, and does without."""


class QueueEnds(NamedTuple):
    """Where queues were at one moment."""

    durable_offset: int
    """The checkpoint's logics_physical_offset: every entry below an end belongs to a record at or before it."""
    ends: Sequence[tuple[str, int, int, int]]
    """Topic, queue id, start of the first file, max offset."""
    log_start: int = 0
    """Of the CommitLog. Before retention moves it this is not written down any more."""
    index_start: int = -1
    """Where the first record of the oldest IndexFile starts; -1: there is none."""

    @classmethod
    def decode(cls, data: bytes) -> QueueEnds:
        """ValueError: it is not what was written."""
        checksum, _, text = data.partition(b"\n")
        if checksum not in (b"%08x" % crc32(text, _WITH_INDEX), b"%08x" % crc32(text)):
            raise ValueError("its checksum is wrong")
        durable_offset, ends, *starts = json.loads(text)
        return cls(durable_offset, [tuple(end) for end in ends], *starts[:2])

    @classmethod
    def load(cls, disk: Disk) -> QueueEnds | None:
        """What was written down last; None: nothing."""
        try:
            return cls.decode(disk.read_file(QUEUE_ENDS_FILE) or b"")
        except ValueError:
            return None

    def save(self, disk: Disk) -> None:
        """Replaces the file, durably. Blocks, in any thread: made piece by piece, so that others go on between them."""
        pieces = [self.ends[start : start + 500] for start in range(0, len(self.ends), 500)]
        ends = ",".join(json.dumps(piece, separators=(",", ":"))[1:-1] for piece in pieces)
        text = f"[{self.durable_offset},[{ends}],{self.log_start},{self.index_start}]".encode()
        disk.write_file(QUEUE_ENDS_FILE, b"%08x\n" % crc32(text, _WITH_INDEX) + text)


class ConsumeQueueTable:
    """Finds a queue by topic and queue id, and does to all queues what is done to all."""

    def __init__(self, disk: Disk, *, file_bytes: int) -> None:
        """`file_bytes` is the length of every file, a multiple of 20 that may not change while there are files."""
        self._disk: Final = disk
        self._files: Final = ConsumeQueueFiles(disk, file_bytes=file_bytes, before_loss=self.forget_ends)
        self._queues: Final[dict[tuple[str, int], ConsumeQueue]] = {}
        self._ids: Final[dict[str, set[int]]] = {}
        """Queue ids by topic: of 80,000 queues, a topic's are found without looking at all."""
        self._dirty: Final[list[ConsumeQueue]] = []
        """Shared with the queues, which enter themselves."""
        self._round: Final[list[ConsumeQueue]] = []
        """What is left of the queues that were dirty when the round began."""
        self.damaged: Final[list[tuple[str, int, int]]] = []
        """Queues whose files `load` found damaged, and the first entry that was lost: topic, queue id, queue offset."""
        self._next_numbers: Final[dict[tuple[str, int], int]] = {}
        """Of damaged queues, as they were written down."""
        self.index_start: Callable[[], int] = lambda: -1
        """See `QueueEnds`."""
        self.new_count = 0
        """Queues that got their first message since the last round began: each has a file to be made."""
        self.ends_are_there = False
        """A start would miss what goes of the queues from now on. Of this run: what an earlier one has written down
        stays until the recovery is over, or the next start would not miss what this one had not made again when it was
        interrupted."""
        self.told_from = 0
        """Where the log has to go up to, for what queues without records tell of it: its end may have been lost."""
        self._ends_age_ms = 0
        """When `ends_at` last gave any, by its clock."""
        self.losses = 0
        """How often entries in files were deleted or erased; ends of before are not to be written down after it."""

    def load(
        self,
        stop: StopKind,
        *,
        durable_offset: int,
        written: QueueEnds | None = None,
        log_end: int = sys.maxsize,
        farthest: Callable[[QueueEntry], None] = lambda _entry: None,
    ) -> int | None:
        """Finds every queue on disk; the head says what is dropped after an unclean stop.

        What it changes in the files is durable when it returns. `durable_offset` is the checkpoint's
        logics_physical_offset; no record ends beyond `log_end`. What is less than `written` is damaged. `farthest` is
        told an entry of each queue, after an unclean stop, before anything of the queue is dropped. Returns from where
        on records have to be entered again because files are damaged; None: none. SegmentSizeMismatch: all files have
        another length, the setting was changed. Blocks: about 0.1 ms for a queue.
        """
        damaged_from: int | None = None
        other_lengths: list[tuple[ConsumeQueue, SegmentSizeMismatch]] = []
        self._begin_anew()
        # What is no topic may lie there as well.
        folders = [found.name for found in self._disk.list_folder(CONSUME_QUEUE_FOLDER) if found.is_folder]
        for topic in (name for name in folders if name != LOST_AND_FOUND):
            for queue_id in self._disk.list_folder(f"{CONSUME_QUEUE_FOLDER}/{topic}"):
                if queue_id.is_folder and queue_id.name.isdecimal():
                    queue = self._new_queue(topic, int(queue_id.name))
                    loaded = load_consume_queue(
                        queue, self._files, stop, durable_offset, log_end=log_end, farthest=farthest
                    )
                    if loaded.has_files:
                        self._enter(queue)
                    if loaded.other_length is not None:
                        other_lengths.append((queue, loaded.other_length))
                    if loaded.damaged_from is not None:
                        self.damaged.append((queue.topic, queue.queue_id, queue.max_offset))
                        damaged_from = (
                            loaded.damaged_from if damaged_from is None else min(damaged_from, loaded.damaged_from)
                        )
        for queue, mismatch in other_lengths:
            if not len(self):
                raise mismatch
            self._files.remove_queue(queue.folder)
        if written is not None:
            damaged_from = self._compare_with_ends(written, damaged_from, is_exact=stop is StopKind.CLEAN)
        # All at once: after a kill there may be something to erase in each of 80,000 files.
        repairs = self.take_sync()
        if repairs is not None:
            repairs.run()
        return damaged_from

    def _begin_anew(self) -> None:
        """A load that found no room left what it had come to."""
        self._files.close()
        for known in (self._queues, self._ids, self._dirty, self._round, self.damaged, self._next_numbers):
            known.clear()

    def damaged_themselves(self) -> tuple[tuple[str, int, int], ...]:
        """Of `damaged`, after the walk through a log that is damaged: the queues that were made again in part. Of the
        others only the entries went whose records are gone."""
        return tuple(
            (topic, queue_id, offset)
            for topic, queue_id, offset in dict.fromkeys(self.damaged)
            if (queue := self.get(topic, queue_id)) is None or queue.max_offset != offset
        )

    def keep_numbers(self, *, told_from: int) -> None:
        """Damaged queues of which the log has no record any more go on with the number they had come to: given again,
        it would be taken for a message that slaves and consumers have had. After the log was walked, which ends before
        `told_from` if some of what was written down is lost: then a queue's records may be among that."""
        self.told_from = told_from
        for (topic, queue_id), next_number in self._next_numbers.items():
            queue = self.get_or_create(topic, queue_id)
            if queue.max_offset < next_number and queue.last_physical_end <= self._files.log_start:
                queue.begin_at(next_number)

    def without_records(self) -> list[tuple[str, int, int]]:
        """Queues that gave numbers and of which the log has no record any more: topic, queue id and next number, which
        counts for records from `told_from` on."""
        log_start = self._files.log_start
        return [
            (queue.topic, queue.queue_id, queue.max_offset)
            for queue in self
            if queue.max_offset > 0 and queue.last_physical_end <= log_start
        ]

    def has_records(self, topic: str, queue_id: int) -> bool:
        """Whether the log has any record of the queue."""
        queue = self.get(topic, queue_id)
        return queue is not None and queue.last_physical_end > self._files.log_start

    def go_on_at(self, topic: str, queue_id: int, next_number: int) -> bool:
        """A queue of which the log has no record gives no number below `next_number`: a replica that had its messages
        says so. Whether it would have. To be said again after a restart, until a message has come."""
        if self.has_records(topic, queue_id):
            return False
        queue = self.get(topic, queue_id)
        if queue is None:
            queue = self._new_queue(topic, queue_id)
            self._enter(queue)
        if queue.max_offset >= next_number:
            return False
        queue.go_on_at(next_number)
        return True

    def save_ends(self, durable_offset: int) -> None:
        """Writes down where every queue begins and ends, durably: all entries must be. Without room for it nothing is
        written down. Blocks."""
        self.ends_are_there = True
        try:
            self._ends(durable_offset).save(self._disk)
        except DiskFull:
            self.forget_ends()

    def ends_at(self, durable_offset: int, *, now_ms: int) -> QueueEnds | None:
        """What a flush that begins now may write down once all entries made by now are durable; None: not yet.

        At once, but for many queues, when there is none or queues are new; else every ten seconds.
        """
        wait_ms = len(self._queues) * _ENDS_WAIT_MS_PER_QUEUE
        if self.ends_are_there and not self.new_count:
            wait_ms = max(wait_ms, _ENDS_WAIT_MS)
        if now_ms - self._ends_age_ms < wait_ms:
            return None
        self._ends_age_ms = now_ms
        return self._ends(durable_offset)

    def ends_saved(self, *, losses: int) -> None:
        """What `ends_at` gave when `losses` was so many is in the file."""
        self.ends_are_there = True
        if losses != self.losses:
            self.forget_ends()

    def forget_ends(self) -> None:
        """Queues or log may become shorter from now on: no start is to miss what goes. Durable when it returns."""
        self.losses += 1
        if self.ends_are_there:
            self._disk.remove(QUEUE_ENDS_FILE)
            self.ends_are_there = False

    def _ends(self, durable_offset: int) -> QueueEnds:
        return QueueEnds(
            durable_offset,
            [
                (queue.topic, queue.queue_id, queue.first_file_start, queue.max_offset)
                for queue in self
                if queue.max_offset > 0 and not queue.is_unfiled
            ],
            self._files.log_start,
            self.index_start(),
        )

    def _compare_with_ends(self, written: QueueEnds, damaged_from: int | None, *, is_exact: bool) -> int | None:
        """`damaged_from`, or an earlier place where a queue is less than what was written down."""
        for topic, queue_id, first_file_start, max_offset in written.ends:
            queue = self.get(topic, queue_id)
            lost_from = rebuilt_from = 0
            if queue is not None and queue.first_file_start == first_file_start:
                if queue.max_offset == max_offset or (queue.max_offset > max_offset and not is_exact):
                    continue
                if queue.max_offset < max_offset and (lost_from := queue.last_physical_end):
                    rebuilt_from = queue.max_offset
            if queue is not None and not lost_from:
                self._remove([(topic, queue_id)])
                self._files.remove_queue(queue.folder)
            self.damaged.append((topic, queue_id, rebuilt_from))
            self._next_numbers[topic, queue_id] = max_offset
            damaged_from = lost_from if damaged_from is None else min(damaged_from, lost_from)
        return damaged_from

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, or None if it never had a message here."""
        return self._queues.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; an empty one if there is none. Its first file is made when its first entry is written out."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._new_queue(topic, queue_id)
            self._enter(queue)
            self.new_count += 1
        return queue

    def ids_of(self, topic: str) -> list[int]:
        """Ids of the topic's queues that ever had a message here, ascending."""
        return sorted(self._ids.get(topic, ()))

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def last_physical_end(self) -> int:
        """End in the CommitLog of the last record any queue has."""
        return max((queue.last_physical_end for queue in self), default=0)

    def write_out(self) -> None:
        """Writes all entries that are not yet in a file. Not durable before the next sync."""
        self.begin_round()
        while not self.write_out_some(cost_max=len(self._round)):
            pass

    @property
    def dirty_count(self) -> int:
        """About how many queues have something to write."""
        return len(self._dirty)

    def begin_round(self) -> None:
        """Takes up every queue that has something to write, for `write_out_some`; also what an earlier round left."""
        self._round.extend(self._dirty)
        self._dirty.clear()
        self.new_count = 0

    def write_out_some(self, *, cost_max: int) -> bool:
        """Writes out queues of the round, at least one; True if none is left of it.

        Then, and after the next sync, every entry made before the round began is durable. A queue costs 1, or 8 if it
        begins a file. After a DiskError the call may be repeated.
        """
        kept_entries = self._kept_entries()
        cost = 0
        while self._round and cost < cost_max:
            queue = self._round[-1]
            cost += _NEW_FILE_COST if queue.begins_file else 1
            queue.write_out(kept_entries=kept_entries)
            self._round.pop()
        return not self._round

    def take_sync(self) -> ConsumeQueueSync | None:
        """The files written since the last call, for a thread to sync; None if there are none.

        After `write_out`, and once its `run` returned, every entry made before is durable, if what was taken before
        has run as well. One at a time.
        """
        return self._files.take_sync()

    def truncate(self, physical_end: int) -> None:
        """Drops the entries of all records that end beyond `physical_end`, durably. Call it before the log is cut."""
        for queue in self:
            queue.truncate(physical_end)

    def log_starts_at(self, log_min_offset: int) -> None:
        """What lies before is gone from the CommitLog, or is about to go."""
        self._files.log_start = log_min_offset

    def correct_min_offsets(self, log_min_offset: int) -> None:
        """Moves every queue's min_offset to its first record that the CommitLog still has."""
        for queue in self:
            queue.correct_min_offset(log_min_offset)

    def remove_expired_files(self, log_min_offset: int) -> int:
        """Deletes files whose records are all gone from the CommitLog, but no queue's last one. Returns how many."""
        return sum(queue.remove_expired_files(log_min_offset) for queue in self)

    def remove_all(self) -> None:
        """Forgets and deletes every queue: the CommitLog is empty, or starts anew somewhere else."""
        self._remove(list(self._queues))
        self._files.remove_folder(CONSUME_QUEUE_FOLDER)

    def close(self) -> None:
        """Closes what is open. Entries neither written out nor synced are not saved by it."""
        self._files.close()

    def _new_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        return ConsumeQueue(self._files, self._dirty, topic=topic, queue_id=queue_id)

    def _enter(self, queue: ConsumeQueue) -> None:
        self._queues[queue.topic, queue.queue_id] = queue
        self._ids.setdefault(queue.topic, set()).add(queue.queue_id)

    def _remove(self, keys: Iterable[tuple[str, int]]) -> None:
        removed = set()
        for topic, queue_id in keys:
            removed.add(id(self._queues.pop((topic, queue_id))))
            ids = self._ids[topic]
            ids.discard(queue_id)
            if not ids:
                del self._ids[topic]
        for waiting in (self._dirty, self._round):
            waiting[:] = [queue for queue in waiting if id(queue) not in removed]

    def _kept_entries(self) -> int:
        fair_share = _KEPT_ENTRIES_TOTAL // max(1, len(self._queues))
        return max(_KEPT_ENTRIES_MIN, min(_KEPT_ENTRIES_MAX, fair_share))
