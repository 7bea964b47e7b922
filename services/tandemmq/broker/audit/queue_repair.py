"""Writes entries of a ConsumeQueue again from this replica's own CommitLog, while it serves.

Which part of the log holds the records is known from the entries around, if they are right; else it is looked for from
the log's start. The helper process reads the records, the event loop compares and writes. Positions without a message
(fillers) have no record and stay. Of each 20,000 entries nothing is written unless every other position has its record.
Whatever ends a repair, what it wrote is synced and logged before the next one begins.

Bytes behind a queue's end are no entries: consumers never come to them, but a start that does not know where the queue
ended may take them for some. They become zeros.

What is overwritten is kept first, durably, in `kept-repairs` beside the log, as positions and entries; the newest of
what was kept of a position can be put back.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple
from urllib.parse import quote

import numpy as np
import structlog
import xxhash

from tandemmq.broker.audit.jobs import (
    AuditHelper,
    FindEntriesJob,
    HelperBusy,
    HelperGone,
    JobFailed,
    JobFailure,
    to_its_end,
)
from tandemmq.broker.audit.store_files import (
    LogUnsound,
    OpenFile,
    StoreFiles,
    keep_file,
    keep_next,
    kept_range,
)
from tandemmq.broker.queue_reader import DamagedEntries
from tandemmq.core.audit.repair_plan import Refusal, RepairRefused
from tandemmq.core.audit.replica_store import ReplicaState, ReplicaStore
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import (
    Blank,
    Corrupt,
    RecordFound,
    ScanStop,
    record_tags_code,
    scan_record,
)
from tandemmq.core.message.record_layout import enters_consume_queue
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.storage.consume_queue import ENTRY, ConsumeQueue, QueueEntry
from tandemmq.core.storage.disk import DiskError, DiskFull, RecordCorrupt
from tandemmq.core.storage.kept_tail import KEPT_REPAIRS_FOLDER
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.record_batch import RecordBatch, read_batch

log = structlog.get_logger(__name__)

ENTRIES_MAX: Final = 10_000_000
CHANGES_LISTED_MAX: Final = 1_000
_CHUNK_ENTRIES: Final = 20_000
"""Looked up, compared and written in one go: some milliseconds of the event loop, and a few megabytes."""
_KEPT_ENTRY: Final = Struct(">qqiq")
"""Position, and the entry that was there."""
_REWRITTEN: Final = "queue"
_ERASED: Final = "erased"
_NO_ENTRY: Final = QueueEntry(0, 0, 0)
_NEIGHBOURS_MAX: Final = 16
"""Entries before and behind that are asked which part of the log it is."""


@dataclass(frozen=True, slots=True)
class QueueOrder:
    """Entries [first, end) of one queue."""

    topic: str
    queue_id: int
    first_queue_offset: int
    end_queue_offset: int
    dry_run: bool
    undo: bool = False
    """What an earlier repair has overwritten is put back."""


@dataclass(frozen=True, slots=True)
class EntryChange:
    queue_offset: int
    old: QueueEntry
    new: QueueEntry


@dataclass(slots=True)
class QueueRepaired:
    """What was changed, or would be."""

    sound_count: int = 0
    changed_count: int = 0
    changes: list[EntryChange] = field(default_factory=list)
    """The first CHANGES_LISTED_MAX."""


class QueueRepair:
    """Carries out orders; the caller sees to it that there is one at a time. Event loop only."""

    def __init__(
        self,
        *,
        kept: KeptEntries,
        store: MessageStore,
        state: Callable[[], ReplicaState],
        files: StoreFiles,
        helper: AuditHelper,
        file_bytes: int,
        delay_levels_ms: tuple[int, ...],
        flushes_paused: Callable[[], AbstractAsyncContextManager[None]],
        failed: Callable[[DiskError], None],
    ) -> None:
        """`file_bytes` is the length of a ConsumeQueue file."""
        self._kept = kept
        self._store = store
        self._state = state
        self._files = files
        self._helper = helper
        self._file_bytes = file_bytes
        self._delay_levels_ms = delay_levels_ms
        self._flushes_paused = flushes_paused
        self._failed = failed

    async def run(self, order: QueueOrder) -> QueueRepaired:
        """Raises RepairRefused, or what AuditHelper.answers raises."""
        cuts = self._store.log_cuts
        first, end = order.first_queue_offset, order.end_queue_offset
        if not 0 <= first < end <= first + ENTRIES_MAX:
            raise RepairRefused(Refusal.MALFORMED, f"entries [{first}, {end}): ask for 1 to {ENTRIES_MAX}")
        queue = self._known_queue(order)
        repaired = QueueRepaired()
        # Where the queue ends now; what was behind its end when the order was made may be entries since.
        queue_end = min(max(first, queue.max_offset), end)
        try:
            if queue_end < end:
                await self._erase(order, queue_end, end, cuts, repaired)
                if queue_end == first or (order.undo and repaired.sound_count + repaired.changed_count):
                    return repaired
                order, end = replace(order, end_queue_offset=queue_end), queue_end
            await self._check_files(self._queue(order, cuts), first, end)
            for start in range(first, end, _CHUNK_ENTRIES):
                await self._repair(order, start, min(start + _CHUNK_ENTRIES, end), cuts, repaired)
        finally:
            if repaired.changed_count and not order.dry_run:
                await to_its_end(self._sync(order, repaired))
        return repaired

    def _known_queue(self, order: QueueOrder) -> ConsumeQueue:
        queue = self._store.consume_queue(order.topic, order.queue_id)
        if queue is None:
            raise RepairRefused(Refusal.NOT_FOUND, f"there is no queue {order.queue_id} of topic {order.topic} here")
        return queue

    def _queue(self, order: QueueOrder, cuts: int) -> ConsumeQueue:
        queue = self._known_queue(order)
        if cuts != self._store.log_cuts:
            raise RepairRefused(Refusal.LOG_CHANGED, "the log was cut meanwhile; verify again")
        if not queue.min_offset <= order.first_queue_offset < order.end_queue_offset <= queue.max_offset:
            raise RepairRefused(
                Refusal.OUT_OF_RANGE,
                f"entries [{order.first_queue_offset}, {order.end_queue_offset}) are not within "
                f"[{queue.min_offset}, {queue.max_offset}), what the queue holds",
            )
        return queue

    async def _erase(self, order: QueueOrder, first: int, end: int, cuts: int, repaired: QueueRepaired) -> None:
        """Positions [first, end) behind the queue's end, of files that are there, become zeros, or what they were."""
        queue = self._known_queue(order)
        room_end = await asyncio.to_thread(self._files_end, queue.folder, first, end)
        if room_end < end:
            raise RepairRefused(
                Refusal.OUT_OF_RANGE,
                f"entries [{order.first_queue_offset}, {order.end_queue_offset}) are not within "
                f"[{queue.min_offset}, {queue.max_offset}), what the queue holds, nor in the rest of its files",
            )
        if order.undo:
            due = await asyncio.to_thread(self._kept.erased, order.topic, order.queue_id, first, end)
        else:
            due = dict.fromkeys(range(first, end), _NO_ENTRY)
        filed = await asyncio.to_thread(self._filed_entries, queue.folder, first, end)
        changes = [EntryChange(at, filed[at - first], new) for at, new in due.items() if filed[at - first] != new]
        if changes and not (order.dry_run or order.undo):
            try:
                await asyncio.to_thread(self._kept.keep, order.topic, order.queue_id, changes, erased=True)
            except OSError as error:
                raise RepairRefused(Refusal.NO_ROOM, f"what is there cannot be kept: {error}") from error
        queue = self._known_queue(order)
        if cuts != self._store.log_cuts:
            raise RepairRefused(Refusal.LOG_CHANGED, "the log was cut meanwhile; verify again")
        # What became an entry meanwhile is none of them.
        changes = [change for change in changes if change.queue_offset >= queue.max_offset]
        repaired.sound_count += len(due) - len(changes)
        repaired.changed_count += len(changes)
        repaired.changes += changes[: CHANGES_LISTED_MAX - len(repaired.changes)]
        if not order.dry_run:
            for run in _runs(changes):
                entries = b"".join(ENTRY.pack(*change.new) for change in run)
                self._written(partial(queue.rewrite_behind, run[0].queue_offset, entries))

    def _written(self, write: Callable[[], None]) -> None:
        try:
            write()
        except DiskFull as error:
            raise RepairRefused(Refusal.NO_ROOM, str(error)) from error
        except DiskError as error:
            self._failed(error)
            raise RepairRefused(Refusal.READ_BACK_DIFFERS, f"the disk failed: {error}") from error

    def _files_end(self, folder: str, first: int, end: int) -> int:
        """`end`, or where the files end before it; `first` if none holds it."""
        place = first * ENTRY.size
        for start in range(place - place % self._file_bytes, end * ENTRY.size, self._file_bytes):
            if self._size(f"{folder}/{start:020d}") != self._file_bytes:
                return max(first, start // ENTRY.size)
        return end

    async def _check_files(self, queue: ConsumeQueue, first: int, end: int) -> None:
        """A file that was lost under a running broker may still be open: what is written there would go nowhere."""
        written_end = min(end, queue.written_offset) * ENTRY.size
        start = first * ENTRY.size
        for file_start in range(start - start % self._file_bytes, written_end, self._file_bytes):
            path = f"{queue.folder}/{file_start:020d}"
            size = await asyncio.to_thread(self._size, path)
            if size != self._file_bytes:
                raise RepairRefused(
                    Refusal.NOT_AS_EXPECTED,
                    f"{path} is {'missing' if size is None else f'{size} bytes long'}: that cannot be repaired while "
                    "the broker runs; stop it, remove the folder consumequeue, and start it: it is built again",
                )

    def _size(self, path: str) -> int | None:
        file = self._files.open(path)
        return None if file is None else os.fstat(file.number).st_size

    async def _repair(self, order: QueueOrder, first: int, end: int, cuts: int, repaired: QueueRepaired) -> None:
        queue = self._queue(order, cuts)
        if order.undo:
            due = await asyncio.to_thread(self._kept.entries, order.topic, order.queue_id, first, end)
        else:
            due = await self._due_entries(order, queue, first, end)
        # The newest entries are in memory as well: consumers are given those, and the next start reads the files.
        filed_end = max(first, min(end, queue.written_offset))
        filed = await asyncio.to_thread(self._filed_entries, queue.folder, first, filed_end)
        queue = self._queue(order, cuts)
        changes = []
        for queue_offset, held in enumerate(_read(queue, first, end), first):
            old = filed[queue_offset - first] if queue_offset < filed_end else held
            new = due.get(queue_offset)
            if new is None and not held.is_filler and not order.undo:
                raise RepairRefused(
                    Refusal.NOT_FOUND, f"the log holds no record for entry {queue_offset}; compare with another replica"
                )
            if new is None or old == held == new:
                repaired.sound_count += 1
            else:
                changes.append(EntryChange(queue_offset, held if old == new else old, new))
        repaired.changed_count += len(changes)
        repaired.changes += changes[: CHANGES_LISTED_MAX - len(repaired.changes)]
        if changes and not order.dry_run:
            if not order.undo:
                try:
                    await asyncio.to_thread(self._kept.keep, order.topic, order.queue_id, changes)
                except OSError as error:
                    raise RepairRefused(Refusal.NO_ROOM, f"what is there cannot be kept: {error}") from error
                self._queue(order, cuts)
            for run in _runs(changes):
                entries = b"".join(ENTRY.pack(*change.new) for change in run)
                queue_offset = run[0].queue_offset
                self._written(partial(self._store.rewrite_queue, order.topic, order.queue_id, queue_offset, entries))

    def _filed_entries(self, folder: str, first: int, end: int) -> list[QueueEntry]:
        data = bytearray()
        position, end_position = first * ENTRY.size, end * ENTRY.size
        while position < end_position:
            within = position % self._file_bytes
            length = min(end_position - position, self._file_bytes - within)
            file = self._files.open(f"{folder}/{position - within:020d}")
            piece = b"" if file is None else os.pread(file.number, length, within)
            data += piece.ljust(length, b"\0")
            position += length
        return [QueueEntry(*fields) for fields in ENTRY.iter_unpack(data)]

    def keep_log(self, offset: int, data: bytes) -> None:
        """Keeps bytes of the log that are about to be overwritten. Blocks; OSError: nothing is kept."""
        self._kept.keep_log(offset, data)

    async def _due_entries(self, order: QueueOrder, queue: ConsumeQueue, first: int, end: int) -> dict[int, QueueEntry]:
        job = FindEntriesJob(
            facts=self._state().facts(),
            start_offset=self._log_start(queue, first),
            end_offset=self._log_end(queue, end),
            topic=order.topic,
            queue_id=order.queue_id,
            first_queue_offset=first,
            end_queue_offset=end,
            delay_levels_ms=self._delay_levels_ms,
        )
        due: dict[int, QueueEntry] = {}
        async with aclosing(self._helper.answers(job)) as frames:
            async for frame in frames:
                for queue_offset, *entry in frame.get("items", ()):
                    due[queue_offset] = QueueEntry(*entry)
        return due

    def _log_start(self, queue: ConsumeQueue, first: int) -> int:
        """No record of entry `first` or a later one starts before it; a record starts there."""
        for queue_offset in range(first - 1, max(queue.min_offset, first - _NEIGHBOURS_MAX) - 1, -1):
            entry = self.sound_entry(queue, queue_offset)
            if entry is not None:
                return entry.physical_end
        return self._store.min_offset

    def _log_end(self, queue: ConsumeQueue, end: int) -> int:
        """No record of an entry before `end` starts behind it."""
        for queue_offset in range(end, min(queue.max_offset, end + _NEIGHBOURS_MAX)):
            entry = self.sound_entry(queue, queue_offset)
            if entry is not None:
                return entry.physical_offset
        return self._store.dispatched_offset

    def log_range(self, queue: ConsumeQueue, first: int, end: int) -> tuple[int, int]:
        """Where in the log the records of entries [first, end) are; a record starts at its start."""
        return self._log_start(queue, first), self._log_end(queue, end)

    def sound_entry(self, queue: ConsumeQueue, queue_offset: int) -> QueueEntry | None:
        """An entry that leads to its own record; None where it does not."""
        try:
            entry = queue.entry(queue_offset)
            if entry.is_filler or entry.size <= 0:
                return None
            record = self._store.message_at(entry.physical_offset, entry.size)
        except (RecordCorrupt, DiskError):
            return None
        is_its_own = (record.topic, record.queue_id, record.queue_offset) == (queue.topic, queue.queue_id, queue_offset)
        return entry if is_its_own else None

    async def _sync(self, order: QueueOrder, repaired: QueueRepaired) -> None:
        log.warning(
            "queue_entries_rewritten",
            topic=order.topic,
            queue_id=order.queue_id,
            first_queue_offset=order.first_queue_offset,
            end_queue_offset=order.end_queue_offset,
            changed_count=repaired.changed_count,
        )
        async with self._flushes_paused():
            job = self._store.queue_sync_job()
            try:
                await asyncio.to_thread(job.run)
            except DiskError as error:
                self._failed(error)
                raise RepairRefused(Refusal.READ_BACK_DIFFERS, f"the disk failed: {error}") from error
            self._store.flush_finished(job)


class KeptEntries:
    """Entries that repairs have overwritten: a file for each time, `queue-TOPIC-QUEUE-FIRST-NUMBER` in `kept-repairs`
    of the store, 28 bytes each: position, and the entry as it was. What was behind a queue's end is in `erased-…`.
    Calls block."""

    def __init__(self, root: str) -> None:
        self._folder = f"{root}/{KEPT_REPAIRS_FOLDER}"

    def keep(self, topic: str, queue_id: int, changes: list[EntryChange], *, erased: bool = False) -> None:
        """Durable when it returns. OSError: nothing is kept."""
        data = b"".join(_KEPT_ENTRY.pack(change.queue_offset, *change.old) for change in changes)
        prefix = f"{self._prefix(topic, queue_id, _ERASED if erased else _REWRITTEN)}{changes[0].queue_offset:020d}-"
        keep_next(self._folder, prefix, data)

    def keep_log(self, offset: int, data: bytes) -> None:
        """Bytes of the CommitLog, named as the repair of a range names them. Durable when it returns; OSError."""
        os.makedirs(self._folder, exist_ok=True)
        keep_file(kept_range(self._folder, LogRange(offset, offset + len(data)), xxhash.xxh3_128(data).digest()), data)

    def entries(self, topic: str, queue_id: int, first: int, end: int) -> dict[int, QueueEntry]:
        """Positions of [first, end) of which anything was kept. RepairRefused: nothing was."""
        found = self._found(self._prefix(topic, queue_id, _REWRITTEN), first, end)
        if not found:
            raise RepairRefused(
                Refusal.NOT_FOUND, f"nothing is kept of entries [{first}, {end}): they were not repaired"
            )
        return found

    def erased(self, topic: str, queue_id: int, first: int, end: int) -> dict[int, QueueEntry]:
        """The same of positions behind a queue's end; empty: nothing was kept."""
        return self._found(self._prefix(topic, queue_id, _ERASED), first, end)

    def _found(self, prefix: str, first: int, end: int) -> dict[int, QueueEntry]:
        names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
        files = [f"{self._folder}/{name}" for name in names if name.startswith(prefix) and name[-1].isdecimal()]
        found: dict[int, QueueEntry] = {}
        # The newest of each position wins.
        for path in sorted(files, key=lambda path: (os.stat(path).st_mtime_ns, path)):
            file = OpenFile.of_path(path)
            data = os.pread(file.number, os.fstat(file.number).st_size, 0)
            whole = len(data) // _KEPT_ENTRY.size * _KEPT_ENTRY.size
            for queue_offset, *entry in _KEPT_ENTRY.iter_unpack(data[:whole]):
                if first <= queue_offset < end:
                    found[queue_offset] = QueueEntry(*entry)
        return dict(sorted(found.items()))

    @staticmethod
    def _prefix(topic: str, queue_id: int, kind: str) -> str:
        return f"{kind}-{quote(topic, safe='')}-{queue_id}-"


def _read(queue: ConsumeQueue, first: int, end: int) -> list[QueueEntry]:
    try:
        entries = queue.read(first, end - first)
    except DiskError as error:
        raise RepairRefused(Refusal.NOT_AS_EXPECTED, f"the entries cannot be read: {error}") from error
    assert len(entries) == end - first, "the queue holds what it said"
    return entries


def _runs(changes: list[EntryChange]) -> Iterator[list[EntryChange]]:
    """Changes of adjoining entries together."""
    offsets = [change.queue_offset for change in changes]
    breaks = [at for at, (one, following) in enumerate(pairwise(offsets), 1) if following != one + 1]
    for start, end in pairwise([0, *breaks, len(changes)]):
        if start < end:
            yield changes[start:end]


# What the entries of a ConsumeQueue should be, by the records of the CommitLog alone.

_PIECE_BYTES: Final = 4 << 20


class DueEntry(NamedTuple):
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int


def queue_entries(job: FindEntriesJob, store: ReplicaStore) -> Iterator[DueEntry]:
    """In the order of the log, until each offset was found. Raises LogUnsound where no record follows before that."""
    missing = set(range(job.first_queue_offset, job.end_queue_offset))
    for entry in _in_log_order(job, store):
        # Of two records with one offset the queue has taken the first.
        if entry.queue_offset in missing:
            missing.discard(entry.queue_offset)
            yield entry
            if not missing:
                return


def _in_log_order(job: FindEntriesJob, store: ReplicaStore) -> Iterator[DueEntry]:
    offset = job.start_offset
    length = _PIECE_BYTES
    while offset < job.end_offset:
        file_end = min(store.segment_end(offset), job.facts.end_offset)
        limit = min(file_end, offset + length)
        view = store.read_log(offset, limit)
        position = 0
        while True:
            batch = read_batch(view, position, len(view), physical_offset=offset + position)
            if batch is not None:
                yield from _of_batch(job, batch)
                position = batch.end_offset - offset
            found = scan_record(view, position, len(view), physical_offset=offset + position)
            if not isinstance(found, RecordFound):
                break
            yield from _of_record(job, found)
            position += found.size
        offset += position
        if isinstance(found, Blank) and found.size == store.segment_end(offset) - offset:
            offset += found.size
        elif found is ScanStop.INCOMPLETE and (position == len(view) or limit < file_end):
            # A record may be longer than what was read.
            length = _PIECE_BYTES if position else 2 * length
        elif offset < job.end_offset:
            reason = found.reason if isinstance(found, Corrupt) else "no whole record"
            raise LogUnsound(f"the CommitLog is damaged at {offset} ({reason}): repair it first")


def _of_batch(job: FindEntriesJob, batch: RecordBatch) -> Iterator[DueEntry]:
    if job.topic not in batch.topics:
        return
    wanted = (
        (batch.topic_of == batch.topics.index(job.topic))
        & (batch.queue_ids == job.queue_id)
        & (batch.queue_offsets >= job.first_queue_offset)
        & (batch.queue_offsets < job.end_queue_offset)
    )
    columns = (batch.queue_offsets, batch.offsets, batch.sizes, batch.tags_codes)
    for row in np.flatnonzero(wanted).tolist():
        yield DueEntry(*(int(column[row]) for column in columns))


def _of_record(job: FindEntriesJob, record: RecordFound) -> Iterator[DueEntry]:
    if (
        record.topic != job.topic
        or record.queue_id != job.queue_id
        or not job.first_queue_offset <= record.queue_offset < job.end_queue_offset
        or not enters_consume_queue(record.sys_flag)
    ):
        return
    tags_code = record_tags_code(
        record.topic,
        decode_properties(record.properties),
        store_timestamp_ms=record.store_timestamp_ms,
        delay_levels_ms=job.delay_levels_ms,
    )
    yield DueEntry(record.queue_offset, record.physical_offset, record.size, tags_code)


# Mends ConsumeQueue entries that were found damaged when somebody needed their messages.
#
# Whoever meets an entry that does not lead to its own record notes it in `DamagedEntries` and waits: no group passes
# over it. The log is the truth, so `QueueRepair` makes the entry, and the damaged ones beside it, again from the log,
# in a helper process that no long audit holds up. If a record is damaged itself, its bytes are fetched from another
# replica, checked, and put back into the log first. Only a place that has no record in the log, or whose record nobody
# in reach has, is told and passed over.
#
# One place after the other; each try and the tries together have a limit, but for those that lack room on the disk.

_RUN_MAX: Final = 1_000
"""Damaged neighbours that are mended with an entry: some pages."""
_TRY_LIMIT_S: Final = 600.0
_PAUSE_S: Final = 2.0
_TRIES_MAX: Final = 60
"""Two minutes and what the tries take: then the place is given up, or the group would wait for ever."""
_SCAN_BYTES: Final = 256 << 10
"""Of the log in one turn of the event loop."""
_MAGIC_AT: Final = 4
_MAGIC_PREFIX: Final = b"\xda\xa3\x20"
"""Of V1's and V2's magic code in a record, at byte 4."""
_FETCHED_BYTES: Final = (64 << 10, 16 << 20)
"""Fetched of a replica for one record, first and if that is not all of it."""

ReplicaRead = Callable[[LogRange], Awaitable[bytes | None]]
"""Bytes of the log as another replica holds them, perhaps fewer; None: there is no other. OSError: not now."""


class _NotNow(Exception):
    """Another replica may have it, and is not in reach."""


class QueueMending:
    """Works off what is noted. Event loop only."""

    def __init__(
        self,
        *,
        damaged: DamagedEntries,
        store: MessageStore,
        repair: QueueRepair,
        read_from_replica: ReplicaRead,
        mended: Callable[[str], None],
        failed: Callable[[DiskError], None],
        pause_s: float = _PAUSE_S,
    ) -> None:
        """`mended` is told the topic of a place that may be read again."""
        self._damaged = damaged
        self._store = store
        self._repair = repair
        self._read_from_replica = read_from_replica
        self._mended = mended
        self._failed = failed
        self._pause_s = pause_s
        self._tries: dict[tuple[str, int, int], int] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._damaged.has_some.wait()
            place = self._damaged.first()
            if place is None:
                self._damaged.has_some.clear()
                continue
            try:
                async with asyncio.timeout(_TRY_LIMIT_S):
                    await self._mend(*place)
            except (
                _NotNow,
                RepairRefused,
                JobFailed,
                HelperGone,
                HelperBusy,
                DiskError,
                OSError,
                TimeoutError,
            ) as error:
                await self._failed_once(place, error)
            else:
                self._tries.pop(place, None)

    async def _failed_once(self, place: tuple[str, int, int], error: Exception) -> None:
        tries = self._tries.get(place, 0)
        if tries == 0:
            topic, queue_id, queue_offset = place
            log.warning(
                "queue_entry_not_mended", topic=topic, queue_id=queue_id, queue_offset=queue_offset, reason=str(error)
            )
        # On a full disk nothing is given up: an operator makes room, and whoever waits for it loses nothing.
        self._tries[place] = max(1, tries if _is_for_room(error) else tries + 1)
        if self._tries[place] >= _TRIES_MAX:
            self._give_up(place, str(error))
            return
        self._damaged.put_last(place)
        await asyncio.sleep(self._pause_s)

    def _give_up(self, place: tuple[str, int, int], reason: str) -> None:
        topic, queue_id, queue_offset = place
        self._tries.pop(place, None)
        self._damaged.lost_count += 1
        log.error("message_unreadable", topic=topic, queue_id=queue_id, queue_offset=queue_offset, reason=reason)
        self._damaged.found_empty(topic, queue_id, queue_offset)
        self._damaged.ended(topic, queue_id, queue_offset, queue_offset + 1)
        self._mended(topic)

    async def _mend(self, topic: str, queue_id: int, queue_offset: int) -> None:
        queue = self._store.consume_queue(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            self._damaged.ended(topic, queue_id, queue_offset, queue_offset + 1)
            return
        end = queue_offset + 1
        while end < min(queue.max_offset, queue_offset + _RUN_MAX) and self._repair.sound_entry(queue, end) is None:
            end += 1
            if end % 64 == 0:
                await asyncio.sleep(0)
        try:
            await self._rewrite(topic, queue_id, queue_offset, end)
        except RepairRefused as error:
            if error.refusal is not Refusal.NOT_FOUND:
                raise
            # One of them has no record: perhaps another than the one that is waited for.
            end = queue_offset + 1
            try:
                await self._rewrite(topic, queue_id, queue_offset, end)
            except RepairRefused as alone:
                if alone.refusal is not Refusal.NOT_FOUND:
                    raise
                self._give_up((topic, queue_id, queue_offset), "the log has no record for it")
                return
        for place in range(queue_offset, min(end, queue.max_offset)):
            if queue.entry(place).is_filler:
                self._damaged.found_empty(topic, queue_id, place)
        self._damaged.ended(topic, queue_id, queue_offset, end)
        self._mended(topic)

    async def _rewrite(self, topic: str, queue_id: int, first: int, end: int) -> None:
        order = QueueOrder(topic, queue_id, first, end, dry_run=False)
        try:
            repaired = await self._repair.run(order)
        except JobFailed as error:
            if error.failure is not JobFailure.UNSOUND:
                raise
            # The log is damaged where the records are.
            queue = self._store.consume_queue(topic, queue_id)
            if queue is None:
                raise
            if not await self._heal(*self._repair.log_range(queue, first, end)):
                self._give_up((topic, queue_id, first), "its record is damaged, and there is no other replica")
                return
            repaired = await self._repair.run(order)
        self._damaged.mended_count += repaired.changed_count
        log.warning(
            "queue_entries_mended", topic=topic, queue_id=queue_id, first=first, end=end, changed=repaired.changed_count
        )

    # The log itself

    async def _heal(self, start: int, end: int) -> bool:
        """Puts back each damaged record of a part of the log; False: there is no other replica to have it from."""
        store = self._store
        offset = start
        scanned = 0
        cuts = store.log_cuts
        while offset < end:
            if cuts != store.log_cuts or offset < store.min_offset:
                raise _NotNow("the log was cut, or expired, meanwhile")
            segment_end = offset - offset % store.segment_bytes + store.segment_bytes
            view = store.read_log(offset, segment_end - offset)
            found = scan_record(view, 0, len(view), physical_offset=offset)
            if isinstance(found, Blank) and found.size == segment_end - offset:
                offset = segment_end
                continue
            if not isinstance(found, RecordFound):
                limit = min(segment_end, store.flushed_offset)
                if limit <= offset:
                    raise _NotNow(f"the log is damaged at {offset}, which is not on disk yet")
                held = bytes(view[: min(limit - offset, _FETCHED_BYTES[-1])])
                for length in _FETCHED_BYTES:
                    data = await self._read_from_replica(LogRange(offset, min(offset + length, limit)))
                    if data is None:
                        return False
                    found = scan_record(data, 0, len(data), physical_offset=offset)
                    if isinstance(found, RecordFound):
                        break
                else:
                    raise _NotNow(f"the log is damaged at {offset}, and another replica gave no record for it")
                await self._put_back(offset, bytes(data[: found.size]), held, cuts)
            offset += found.size
            scanned += found.size
            if scanned >= _SCAN_BYTES:
                scanned = 0
                await asyncio.sleep(0)
        return True

    async def _put_back(self, offset: int, data: bytes, held: bytes, cuts: int) -> None:
        """`held`: what is damaged, and lies behind it in the file. It is kept."""
        store = self._store
        if len(data) > len(held):
            raise _NotNow(f"the log is damaged at {offset}, which is not on disk yet")
        inner = _first_record_behind(held, len(data), offset)
        if inner is not None:
            raise _NotNow(f"another replica's record at {offset} goes on over a sound one of this log, at {inner}")
        await asyncio.to_thread(self._repair.keep_log, offset, held[: len(data)])
        # Nothing may come between this and the writing: it is one step of the loop.
        is_held = store.min_offset <= offset and offset + len(data) <= store.flushed_offset
        if cuts != store.log_cuts or not is_held or store.read_log(offset, len(data)) != held[: len(data)]:
            raise _NotNow(f"the log has changed at {offset} meanwhile")
        store.replace_log(offset, data)
        job = store.log_sync_job(offset, offset + len(data))
        try:
            await asyncio.to_thread(job.run)
        except DiskError as error:
            self._failed(error)
            raise _NotNow(f"the disk failed: {error}") from error
        store.flush_finished(job)
        log.warning("record_put_back", offset=offset, size=len(data))


def _is_for_room(error: Exception) -> bool:
    """What is overwritten is kept first."""
    cause = error.__cause__ if isinstance(error, RepairRefused) else error
    return isinstance(cause, DiskFull) or (isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT))


def _first_record_behind(held: bytes, length: int, offset: int) -> int | None:
    """Where a sound record begins in the first `length` bytes of `held`, which lies at `offset` of the log, and not at
    their start; None: there is none."""
    at = held.find(_MAGIC_PREFIX, _MAGIC_AT + 1)
    while 0 <= at < length + _MAGIC_AT:
        start = at - _MAGIC_AT
        if isinstance(scan_record(memoryview(held), start, len(held), physical_offset=offset + start), RecordFound):
            return offset + start
        at = held.find(_MAGIC_PREFIX, at + 1)
    return None
