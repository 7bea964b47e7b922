"""Keeps the lease table on disk: a journal written before each answer leaves, folded into snapshots.

Files below config/: `leases-<generation>.snapshot` and `leases-<generation>.journal`. A snapshot holds everything
before its generation; journals of that generation and later follow it. A compaction first opens the next journal, then
writes the snapshot (atomically), then removes what is older, so that every crash leaves a complete pair behind.

`leaseClock.json` says for which run of the machine how far lease time is ahead of the monotonic clock. It is written
once for each: a wall clock that jumps, even while no broker runs, moves no lease.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from tandemmq.core.clock import Clock
from tandemmq.core.delivery.journal import LeaseReplay, is_beginning_of_frame, read_frames
from tandemmq.core.delivery.queue_progress import RestoreReport
from tandemmq.core.metadata.offset_tables import OperatorActs
from tandemmq.core.storage.disk import AppendFile, Disk

if TYPE_CHECKING:
    from tandemmq.core.delivery.lease_table import LeaseTable


# The files of the leases, and a slave's copy of its master's.
#
# The copy is some seconds old and in the same form: what a master with a new disk begins with. It follows the bytes of
# the files, so that it costs the master no look at its leases, and little when little happens.

FOLDER: Final = "config"
_TAIL_BYTES_MAX: Final = 1 << 20
"""Of the journal in memory, for members that follow it closely: some ten thousand acknowledgements."""
_FILE_NAME: Final = re.compile(r"^leases-(\d{10})\.(snapshot|journal)$")


_AHEAD_PATH: Final = "config/leasesAhead"
"""There while a slave's files are more than a copy: it served reads."""


@dataclass(frozen=True, slots=True)
class LeasePosition:
    """How far a copy of the files has come."""

    source: int
    """Run of the broker whose files these are; 0 for no copy."""
    generation: int
    journal_bytes: int
    """Of all journals behind the snapshot, one after the other."""


NO_LEASES: Final = LeasePosition(0, 0, 0)


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """What leads a copy to `position`."""

    position: LeasePosition
    snapshot: bytes | None
    """None: the journal goes on behind what the copy holds."""
    journal: bytes

    @property
    def since(self) -> LeasePosition:
        """Where a journal without a snapshot goes on."""
        return replace(self.position, journal_bytes=self.position.journal_bytes - len(self.journal))

    def obeying(self, acts: OperatorActs) -> LeaseChange:
        """The same for a copy that is to know what operators did, if it is a whole one."""
        if self.snapshot is None or acts.are_none:
            return self
        replay = LeaseReplay.of_files(self.snapshot, self.journal)
        return LeaseChange(self.position, replay.to_snapshot(), b"") if replay.obey(acts) else self

    @property
    def is_empty(self) -> bool:
        """The copy holds everything."""
        return self.snapshot is None and not self.journal


class LeaseSource(Protocol):
    """Files of leases that may be copied."""

    @property
    def is_open(self) -> bool:
        """There is something to copy."""

    @property
    def is_ahead(self) -> bool:
        """The files are more than a copy of a master's: a slave served reads since it took them. Blocks."""

    async def changes_since(self, known: LeasePosition) -> LeaseChange | None:
        """What leads from `known` to now; None when a snapshot was made meanwhile: ask again."""


class LeaseFiles:
    """The files below config/, whoever writes them."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def _read(self, known: LeasePosition, until: LeasePosition) -> LeaseChange | None:
        """In a thread: what is read was written before the call."""
        goes_on = (known.source, known.generation) == (until.source, until.generation)
        snapshot = None if goes_on else self.disk.read_file(file_path(until.generation, "snapshot"))
        journal = self._journals_since(until.generation)
        snapshots, _ = self._files()
        if max(snapshots, default=0) != until.generation or len(journal) < until.journal_bytes:
            return None
        start = known.journal_bytes if goes_on else 0
        return LeaseChange(until, None if goes_on else snapshot or b"", journal[start : until.journal_bytes])

    @property
    def is_blank(self) -> bool:
        """There is no lease and no progress in the files, or none that can be read. Blocks."""
        _, snapshot, journal = self._newest()
        if snapshot:
            return read_frames(snapshot)[1] < len(snapshot)
        return not LeaseReplay.of_files(b"", journal).subscriptions

    @property
    def is_damaged(self) -> bool:
        """There is less in the files than was written. Blocks."""
        generation, snapshot, journal = self._newest()
        journal_bytes = read_frames(journal)[1]
        report = RestoreReport(
            snapshot_valid=read_frames(snapshot)[1] == len(snapshot),
            journal_bytes=journal_bytes,
            torn_bytes=len(journal) - journal_bytes,
            is_torn=is_beginning_of_frame(journal[journal_bytes:]),
            orphan_count=LeaseReplay.of_files(snapshot, journal).orphan_count,
        )
        return not report.snapshot_valid or bool(_missing(generation, self._files()[1], report))

    @property
    def is_ahead(self) -> bool:
        return self.disk.read_file(_AHEAD_PATH) is not None

    def cut(self, queue_end: Callable[[str, int], int]) -> list[tuple[str, int, int]]:
        """Brings progress beyond a queue's end back to it, durably: topic, queue id and how far it had come. Blocks;
        nobody else writes."""
        replay = LeaseReplay.of_files(*self._newest()[1:])
        cuts = replay.cut(queue_end)
        if cuts:
            self._replace_by(replay)
        return cuts

    def obey(self, acts: OperatorActs) -> None:
        """Does in the files what operators did to the tables, durably. Blocks; nobody else writes."""
        if acts.are_none:
            return
        replay = LeaseReplay.of_files(*self._newest()[1:])
        if replay.obey(acts):
            self._replace_by(replay)

    def _newest(self) -> tuple[int, bytes, bytes]:
        """The generation of the newest snapshot, what is in it, and in the journals behind it."""
        generation = max(self._files()[0], default=0)
        snapshot = self.disk.read_file(file_path(generation, "snapshot")) or b""
        return generation, snapshot, self._journals_since(generation)

    def _replace_by(self, replay: LeaseReplay) -> None:
        snapshots, journals = self._files()
        generation = max([*snapshots, *journals, 0]) + 1
        self.disk.write_file(file_path(generation, "snapshot"), replay.to_snapshot())
        self.disk.open_append_file(file_path(generation, "journal")).close()
        self._remove_before(generation)

    def _journals_since(self, generation: int) -> bytes:
        _, journals = self._files()
        numbers = sorted(number for number in journals if number >= generation)
        return b"".join(self.disk.read_file(file_path(number, "journal")) or b"" for number in numbers)

    def _files(self) -> tuple[list[int], list[int]]:
        found: dict[str, list[int]] = {"snapshot": [], "journal": []}
        for entry in self.disk.list_folder(FOLDER):
            if match := _FILE_NAME.match(entry.name):
                found[match[2]].append(int(match[1]))
        return found["snapshot"], found["journal"]

    def _remove_before(self, generation: int) -> None:
        snapshots, journals = self._files()
        for kind, generations in (("snapshot", snapshots), ("journal", journals)):
            for old in generations:
                if old < generation:
                    self.disk.remove(file_path(old, kind))


class LeaseCopy(LeaseFiles):
    """A slave's copy of its master's files. `take` blocks."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self._source = secrets.randbits(63) | 1
        self._generation = 0
        self._journal: AppendFile | None = None
        self._turn = threading.Lock()
        """A pull that is cancelled leaves its thread at work."""
        self.known = NO_LEASES
        """Of the master's files. After a restart the copy is made anew: its last write may be torn."""
        self._is_lent = False
        self.acts_count = 0
        """How often an operator's act came to be done in the copy. What was asked for before may not know of it."""
        self._acts_done = 0
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """There are files, even if they are those of an earlier run, and no operator's act has to be done in them."""
        return self._acts_done == self.acts_count and bool(self._files()[0])

    def lend(self) -> None:
        """The files are a `LeaseStorage`'s until `take_back`, and more than a copy until a master's take their place;
        that is durable when this returns. Blocks."""
        with self._turn:
            self._is_lent = True
            self._begin_anew()
            self.disk.write_file(_AHEAD_PATH, b"{}")

    def take_back(self) -> None:
        self._is_lent = False

    def cut(self, queue_end: Callable[[str, int], int]) -> list[tuple[str, int, int]]:
        with self._turn:
            self._begin_anew()
            return super().cut(queue_end)

    @property
    def is_busy(self) -> bool:
        """A thread writes: the next one would wait for it."""
        return self._turn.locked()

    async def follow_operator(self, acts: OperatorActs) -> None:
        """Does what operators did to the tables: these come at once, the copy seconds later. A master that begins with
        both takes the higher progress of the two, and would forget the act.

        Until it is done nobody is given the copy; then it is asked for anew. DiskError: it is given to nobody.
        """
        self.acts_count += 1
        await asyncio.to_thread(self._follow_operator, acts, self.acts_count)

    def _follow_operator(self, acts: OperatorActs, number: int) -> None:
        with self._turn:
            self._begin_anew()
            self.obey(acts)
            self._acts_done = max(self._acts_done, number)

    async def changes_since(self, known: LeasePosition) -> LeaseChange | None:
        """Of its own files, for a master that comes with less."""
        return await asyncio.to_thread(self._changes_since, known)

    def _changes_since(self, known: LeasePosition) -> LeaseChange | None:
        generation = max(self._files()[0], default=0)
        return self._read(known, LeasePosition(self._source, generation, len(self._journals_since(generation))))

    def take(
        self, change: LeaseChange, *, acts_count: int | None = None, asked_from: LeasePosition | None = None
    ) -> None:
        """Makes the copy follow, durably. `acts_count` and `asked_from`: that count, and `known`, when the change was
        asked for. What was asked for before an operator's act, or before the copy went on by itself, is passed over.

        What does not go on where the copy ends is passed over, too: the next change is asked for by `known`. A whole
        copy takes the place of the old one in one step.
        """
        with self._turn:
            if self._is_closed or self._is_lent or (change.snapshot is None and change.since != self.known):
                return
            if acts_count not in (None, self.acts_count) or asked_from not in (None, self.known):
                return
            self.known = NO_LEASES
            self._write(change)
            self.known = change.position
            if change.snapshot is not None and acts_count is not None:
                self._acts_done = acts_count

    def append(self, change: LeaseChange) -> LeasePosition:
        """Takes a journal that goes on where the copy ends, and passes over any other; where the copy ends then. It
        outlives the process. A loss of power may take it, as it may take the master's own."""
        with self._turn:
            if not self._is_closed and not change.is_empty and change.since == self.known:
                assert self._journal is not None, "a copy that is known has a journal"
                self.known = NO_LEASES
                self._journal.append(change.journal)
                self.known = change.position
            return NO_LEASES if self._is_closed else self.known

    def _write(self, change: LeaseChange) -> None:
        if change.snapshot is None:
            assert self._journal is not None, "a copy begins with a snapshot"
            self._journal.append(change.journal)
            self._journal.sync()
            return
        self._begin_anew()
        snapshots, journals = self._files()
        self._generation = max([*snapshots, *journals, 0]) + 1
        # In one file: without its journal the snapshot would be older than what it replaces.
        self.disk.write_file(file_path(self._generation, "snapshot"), change.snapshot + change.journal)
        self._journal = self.disk.open_append_file(file_path(self._generation, "journal"))
        self._remove_before(self._generation)
        self.disk.remove(_AHEAD_PATH)

    def _begin_anew(self) -> None:
        self.known = NO_LEASES
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def close(self) -> None:
        """Takes nothing any more: whoever reads the files from now on has all that was promised. Twice is fine."""
        with self._turn:
            self._begin_anew()
            self._is_closed = True


def file_path(generation: int, kind: str) -> str:
    """Of a snapshot or a journal."""
    return f"{FOLDER}/leases-{generation:010d}.{kind}"


def _missing(generation: int, journals: Sequence[int], report: RestoreReport) -> str:
    """What is gone of the leases without a trace of its own; empty: nothing. Each snapshot has its journal, which is
    begun right behind it, and the one before stays until there is a newer snapshot."""
    first = min(journals, default=generation)
    if generation < first:
        return f"{file_path(first, 'snapshot')} is gone"
    if generation and generation not in journals:
        return f"{file_path(generation, 'journal')} is gone"
    if not report.is_torn:
        return f"{report.torn_bytes} bytes at the end of {file_path(generation, 'journal')} are damaged"
    if report.snapshot_valid and report.orphan_count:
        return f"{file_path(generation, 'snapshot')} lacks groups that the journal behind it goes on with"
    return ""


log = structlog.get_logger(__name__)

_CLOCK_PATH: Final = "config/leaseClock.json"


class LeaseStorage(LeaseFiles):
    """Loads and persists one `LeaseTable`. Event loop only, except for the snapshot write of a compaction."""

    def __init__(self, disk: Disk, table: LeaseTable, clock: Clock) -> None:
        super().__init__(disk)
        self._table = table
        self._clock = clock
        self._source = secrets.randbits(63) | 1
        self._generation = 0
        self._base_generation = 0
        """The newest snapshot on the disk."""
        self._journal: AppendFile | None = None
        self._folded: AppendFile | None = None
        """The journal before, while its snapshot is being written: only both together are the state."""
        self._compacting = False
        self.written_bytes = 0
        """Of all journals since `load`."""
        self._base_bytes = 0
        """`written_bytes` where the journals behind the newest snapshot began."""
        self._tail: bytearray | None = None

    def keep_tail(self) -> None:
        """From now on the journal's end is kept in memory, for `change_after`."""
        self._tail = bytearray()

    def bytes_at(self, position: LeasePosition) -> int | None:
        """What `written_bytes` was there; None: it is another master's, or before the newest snapshot."""
        if (position.source, position.generation) != (self._source, self._base_generation):
            return None
        return self._base_bytes + position.journal_bytes

    def goes_on_from(self, position: LeasePosition) -> bool:
        """`change_after` has what a copy that ends there lacks."""
        start, tail = self.bytes_at(position), self._tail
        return start is not None and tail is not None and 0 <= self.written_bytes - start <= len(tail)

    def change_after(self, position: LeasePosition) -> LeaseChange | None:
        """What leads a copy from there to now, from memory; None: it has to take more than that."""
        start, tail = self.bytes_at(position), self._tail
        if start is None or tail is None or not self.goes_on_from(position):
            return None
        end = replace(position, journal_bytes=self.written_bytes - self._base_bytes)
        return LeaseChange(end, None, bytes(tail[len(tail) - (self.written_bytes - start) :]))

    def load(self) -> None:
        """Restores the table from the newest snapshot and the journals behind it, then opens the journal."""
        _, journals = self._files()
        self._generation, snapshot, journal = self._newest()
        report = self._table.restore(
            snapshot,
            journal,
            now_ms=self._clock.monotonic_ms(),
            clock_offset_ms=self._clock_offset_ms(),
        )
        # What a kill leaves torn is nothing: no answer depended on it. A bad snapshot is a bad disk.
        (log.info if report.snapshot_valid else log.error)(
            "leases_restored",
            snapshot_valid=report.snapshot_valid,
            journal_bytes=report.journal_bytes,
            torn_bytes=report.torn_bytes,
        )
        if missing := _missing(self._generation, journals, report):
            log.warning("leases_incomplete", reason=missing, effect="messages that were acknowledged may come again")
        # A journal may end in a torn record; nothing is appended behind it: a new generation starts clean.
        self._generation = max(self._generation, *journals, 0) + 1
        self.disk.write_file(file_path(self._generation, "snapshot"), self._table.snapshot())
        self._table.take_journal()
        self._journal = self.disk.open_append_file(file_path(self._generation, "journal"))
        self._remove_before(self._generation)
        self._base_generation = self._generation

    @property
    def is_open(self) -> bool:
        """The table is loaded, so that the files are this run's."""
        return self._journal is not None

    async def changes_since(self, known: LeasePosition) -> LeaseChange | None:
        """See `LeaseSource`. What has come since the last `persist` is not in it."""
        assert self._journal is not None, "load() opens the journal"
        folded_bytes = 0 if self._folded is None else self._folded.size
        until = LeasePosition(self._source, self._base_generation, folded_bytes + self._journal.size)
        if known == until:
            return LeaseChange(until, None, b"")
        return await asyncio.to_thread(self._read, known, until)

    def _clock_offset_ms(self) -> int:
        """Lease time minus monotonic time in this run of the machine; with its first start here it is the wall clock's.

        A file that says something else, or nothing, is that of another run.
        """
        boot_id = self.disk.boot_id()
        try:
            saved = json.loads(self.disk.read_file(_CLOCK_PATH) or b"{}")
            if saved.get("bootId") == boot_id:
                return int(saved["offsetMs"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            log.warning("lease_clock_unreadable", file=_CLOCK_PATH, error=str(error), consequence="as after a reboot")
        offset_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        self.disk.write_file(_CLOCK_PATH, json.dumps({"bootId": boot_id, "offsetMs": offset_ms}).encode())
        return offset_ms

    def persist(self) -> None:
        """Writes what changed since the last call; before any answer that depends on it."""
        if changes := self._table.take_journal():
            self._append(changes)

    def note_end(self) -> None:
        """The same, and that it is the rest, for copies too: whoever loads one doubts none of the answers."""
        self.persist()
        self._append(self._table.end_journal())

    def _append(self, changes: bytes) -> None:
        assert self._journal is not None, "load() opens the journal"
        self._journal.append(changes)
        self.written_bytes += len(changes)
        if self._tail is not None:
            self._tail += changes
            if len(self._tail) > 2 * _TAIL_BYTES_MAX:
                del self._tail[:-_TAIL_BYTES_MAX]

    def persist_durably(self) -> None:
        """The same, and it outlives a loss of power. Waits for the disk: for operators' acts alone.

        What clients did may be forgotten, since it is delivered again. A reset that is forgotten would leave the group
        where it was, and what it was to consume anew would never come.
        """
        self.persist()
        for journal in (self._folded, self._journal):
            if journal is not None:
                journal.sync()

    async def compact_if_due(self) -> None:
        """Folds the journal into a new snapshot when the table says that it has grown enough."""
        if self._compacting or not self._table.compaction_due:
            return
        self._compacting = True
        try:
            self.persist()
            generation = self._generation + 1
            snapshot = self._table.snapshot()
            self._folded = self._journal
            self._journal = self.disk.open_append_file(file_path(generation, "journal"))
            self._generation = generation
            folded_bytes = self.written_bytes
            await asyncio.to_thread(self.disk.write_file, file_path(generation, "snapshot"), snapshot)
            self._remove_before(generation)
            self._base_generation, self._base_bytes = generation, folded_bytes
            log.debug("leases_compacted", snapshot_bytes=len(snapshot))
        finally:
            self._compacting = False
            if self._folded is not None:
                self._folded.close()
                self._folded = None

    def close(self) -> None:
        """Writes the rest, and that it is the rest, and makes it durable."""
        self.persist()
        if self._journal is not None:
            self._journal.append(self._table.end_journal())
            self._journal.sync()
            self._journal.close()
            self._journal = None
