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
import secrets
from typing import Final

import structlog

from broker.lease_copy import LeaseChange, LeaseFiles, LeasePosition, file_path
from mqcore.clock import Clock
from mqcore.delivery.lease_table import LeaseTable
from mqcore.storage.disk import AppendFile, Disk

__all__ = ["LeaseStorage"]

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

    def load(self) -> None:
        """Restores the table from the newest snapshot and the journals behind it, then opens the journal."""
        snapshots, journals = self._files()
        self._generation = max(snapshots, default=0)
        snapshot = self.disk.read_file(file_path(self._generation, "snapshot")) or b""
        journal = self._journals_since(self._generation)
        report = self._table.restore(
            snapshot, journal, now_ms=self._clock.monotonic_ms(), clock_offset_ms=self._clock_offset_ms()
        )
        # What a kill leaves torn is nothing: no answer depended on it. A bad snapshot is a bad disk.
        (log.info if report.snapshot_valid else log.error)(
            "leases_restored",
            snapshot_valid=report.snapshot_valid,
            journal_bytes=report.journal_bytes,
            torn_bytes=report.torn_bytes,
        )
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
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("lease_clock_unreadable", file=_CLOCK_PATH, error=str(error), consequence="as after a reboot")
        offset_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        self.disk.write_file(_CLOCK_PATH, json.dumps({"bootId": boot_id, "offsetMs": offset_ms}).encode())
        return offset_ms

    def persist(self) -> None:
        """Writes what changed since the last call; before any answer that depends on it."""
        changes = self._table.take_journal()
        if changes:
            assert self._journal is not None, "load() opens the journal"
            self._journal.append(changes)

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
            await asyncio.to_thread(self.disk.write_file, file_path(generation, "snapshot"), snapshot)
            self._remove_before(generation)
            self._base_generation = generation
            log.debug("leases_compacted", snapshot_bytes=len(snapshot))
        finally:
            self._compacting = False
            if self._folded is not None:
                self._folded.close()
                self._folded = None

    def close(self) -> None:
        """Writes the rest and makes it durable."""
        self.persist()
        if self._journal is not None:
            self._journal.sync()
            self._journal.close()
            self._journal = None
