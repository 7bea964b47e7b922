"""Who this replica is, what it remembers of its group, the history of its log and where that ended: the
files behind it."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

import structlog

from tandemmq.core.replication.log_history import (
    EPOCH_FILE,
    REPLICA_FILE,
    HistoryCorrupt,
    LogHistory,
    RecordDamaged,
    ReplicaRecord,
)
from tandemmq.core.replication.mastership import GroupRecord
from tandemmq.core.routing.values import BrokerIdentity, ReplicaMemory
from tandemmq.core.storage.disk import Disk, DiskFull

if TYPE_CHECKING:
    from tandemmq.core.storage.recovery import RecoveryReport

log = structlog.get_logger(__name__)


class ForeignStore(Exception):
    """The store belongs to another broker group: its messages would become this group's. Or to another member."""


class ReplicaIdentity:
    """Owns `replica.json` and `epochFileCheckpoint` of a store. Changes are durable when they return.

    `read` first, and `count_start` once the store is locked; both block. Everything else on the event loop.
    """

    def __init__(
        self,
        disk: Disk,
        identity: BrokerIdentity,
        *,
        new_disk_id: Callable[[], str],
        nonce: str,
        keeps_disks_apart: bool = False,
    ) -> None:
        """`nonce` is of this process, and unlike that of any other. `keeps_disks_apart`: the folder of another member
        is left as it is. In a group that fails over its id is in the in-sync set, and with another one nobody could be
        elected, also when the folder is back in its place."""
        self.nonce = nonce
        self._disk = disk
        self._identity = identity
        self._new_disk_id = new_disk_id
        self._keeps_disks_apart = keeps_disks_apart
        self._writing = asyncio.Lock()
        self._record = self._first_record("")
        self.history = LogHistory()
        """The epochs of our log."""
        self.was_used = False
        """A broker has run on this disk before, though perhaps nobody knows any more which one."""
        self.heir_of_epoch = 0
        """The epoch of a master that was in the in-sync set when this disk saw it last: it has all that this member, as
        the master before or as its slave, helped to confirm. 0: no later record was seen in this run, or it named
        another."""
        self.is_proven = False
        """This process has served as a master, or has reached its master's end: its disk is no older copy."""

    @property
    def disk_id(self) -> str:
        """Of this disk, for as long as it lives."""
        return self._record.disk_id

    @property
    def run(self) -> int:
        """Starts of this disk, this one included; 1 at its first."""
        return self._record.run

    @property
    def replicas(self) -> tuple[ReplicaMemory, ...]:
        """The other members, as they were last heard of."""
        return self._record.replicas

    @property
    def greatest_epoch(self) -> int:
        """No byte of an earlier one is taken: the greatest that was followed, or promised to a master that starts."""
        return max(self.history.last_epoch, self._record.promised_epoch)

    @property
    def followed_epoch(self) -> int:
        """The greatest of which our log may hold bytes. A promised one counts where the history is not known."""
        return self.history.last_epoch or self.greatest_epoch

    def read(self) -> None:
        """Reads both files. ForeignStore: the folder is another group's, or another member's."""
        noted_end = self._disk.read_file(LOG_END_FILE)
        self.was_used = noted_end is not None or self._disk.read_file(REPLICA_FILE) is not None
        if self.was_used and noted_end is None:
            log.warning("log_end_mark_missing", file=LOG_END_FILE, effect="a log cut short by zeros looks whole")
        known = self._known_record()
        self._record = self._first_record(self._new_disk_id()) if known is None else known.next_run()
        self.history = self._known_history(was_master=any(noted_end or b""))

    def count_start(self) -> None:
        """Writes down that this disk was started once more."""
        self._disk.write_file(REPLICA_FILE, self._record.to_json().encode())

    async def count_runs(self, run: int) -> None:
        """Others remember more starts of this disk than it does."""
        async with self._writing:
            await self._write_record(replace(self._record, run=max(run, self._record.run)))

    async def begin_epoch(self, history: LogHistory) -> None:
        """Our log goes on in the last epoch of `history`. No door may be open before this returned."""
        await self._write_history(history)

    @property
    def epoch_owner(self) -> str:
        """Disk id of the master that began `greatest_epoch`, or to which it was promised; empty: not known."""
        return self._record.promised_to if self._record.promised_epoch >= self.history.last_epoch else ""

    async def adopt_history(self, history: LogHistory, *, owner: str = "") -> None:
        """Takes over the master's history, before a byte of its epoch is taken. `owner` is its disk id."""
        if owner and history.last_epoch > self._record.promised_epoch:
            async with self._writing:
                await self._write_record(
                    replace(self._record, promised_epoch=history.last_epoch, promised_to=owner, promised_nonce="")
                )
        if history != self.history:
            await self._write_history(history)

    @property
    def record_version(self) -> tuple[int, int]:
        """Epoch and renewals of the group's record that this disk has seen; (0, 0): none. Renewals that changed nothing
        are not counted: a record that was put back behind one of them is as good as before."""
        return self._record.record_epoch, self._record.record_renewals

    async def see_record(self, record: GroupRecord) -> None:
        """The group's record names a disk as the master of its epoch: no byte of an earlier one is taken any more, and
        none of that epoch from another disk, whatever was promised to whom. And it names who holds what was
        acknowledged: an authority that is put back to an earlier set is known, after a restart as well."""
        in_sync = tuple(sorted(replica.disk_id for replica in record.in_sync))
        async with self._writing:
            known = self._record
            is_older = (record.epoch, record.renewals) < self.record_version
            if is_older or (record.epoch, in_sync) == (known.record_epoch, known.record_in_sync):
                return
            if record.epoch > known.record_epoch:
                self.heir_of_epoch = record.epoch if record.master.disk_id in known.record_in_sync else 0
            seen = replace(known, record_epoch=record.epoch, record_renewals=record.renewals, record_in_sync=in_sync)
            if record.epoch > known.record_epoch and record.epoch >= self.greatest_epoch:
                seen = replace(
                    seen,
                    promised_epoch=record.epoch,
                    promised_to=record.master.disk_id,
                    promised_nonce=record.nonce,
                )
            await self._write_record(seen)

    async def hold_to(self, version: tuple[int, int]) -> None:
        """The authority was put back behind this epoch and its renewals: what it has is not believed at the next start
        either."""
        async with self._writing:
            if version > self.record_version:
                epoch, renewals = version
                await self._write_record(
                    replace(self._record, record_epoch=epoch, record_renewals=renewals, record_in_sync=())
                )

    async def promise(self, epoch: int, disk_id: str, nonce: str) -> bool:
        """Takes no byte of an epoch before `epoch` from now on. False: as much was promised to another disk already, or
        to another process: of two on copies of one disk each gets its own epoch."""
        async with self._writing:
            known = self._record
            if (epoch, disk_id) == (known.promised_epoch, known.promised_to) and known.promised_nonce in ("", nonce):
                return True
            if epoch <= self.greatest_epoch:
                return False
            await self._write_record(replace(known, promised_epoch=epoch, promised_to=disk_id, promised_nonce=nonce))
            return True

    async def remember(self, *memories: ReplicaMemory) -> None:
        """Writes down what was heard of other members, unless it is known."""
        async with self._writing:
            record = self._record.remembering(*memories)
            if set(record.replicas) != set(self._record.replicas):
                await self._write_record(record)

    async def forget(self, disk_ids: Iterable[str]) -> None:
        """Disks that an operator gave up are not asked for again."""
        async with self._writing:
            await self._write_record(self._record.forgetting(disk_ids))

    def known_file(self, path: str) -> bytes:
        """What belongs in REPLICA_FILE or EPOCH_FILE."""
        return (self._record.to_json() if path == REPLICA_FILE else self.history.to_text()).encode()

    async def write_file(self, path: str, data: bytes | None) -> None:
        """Writes one of the two again, with None as it is known, whatever it holds. DiskError."""
        async with self._writing:
            await self._write(path, self.known_file(path) if data is None else data)

    def _first_record(self, disk_id: str) -> ReplicaRecord:
        identity = self._identity
        return ReplicaRecord(
            disk_id=disk_id,
            run=1,
            cluster=identity.cluster,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
        )

    def _known_record(self) -> ReplicaRecord | None:
        """The file's record; None: it is the disk's first start, or nobody knows any more which disk it is."""
        data = self._disk.read_file(REPLICA_FILE)
        if data is None and not self.was_used:
            return None
        try:
            if data is None:
                raise RecordDamaged(f"{REPLICA_FILE} is gone, and {LOG_END_FILE} is there")
            record = ReplicaRecord.from_json(data.decode())
        except (RecordDamaged, UnicodeDecodeError) as error:
            log.error("replica_record_damaged", error=str(error), remedy="none: this disk gets a new id")
            return None
        identity = self._identity
        if (record.cluster, record.broker_name) != (identity.cluster, identity.broker_name):
            raise ForeignStore(
                f"storePathRootDir: this store belongs to broker group {record.broker_name} of {record.cluster}, and "
                f"the settings say {identity.broker_name} of {identity.cluster}; set brokerName and brokerClusterName "
                "as the store has them, or name another folder"
            )
        if record.broker_id != identity.broker_id:
            # A copy of another member's folder, or two that were exchanged.
            if self._keeps_disks_apart:
                raise ForeignStore(
                    f"storePathRootDir: this store is that of broker {record.broker_id} of its group, and the settings "
                    f"say brokerId={identity.broker_id}; give each member its own folder. Who has lost it begins with "
                    "an empty one, and copies all from the others. If this is a copy, and is to be another disk from "
                    f"now on, remove {REPLICA_FILE} from it"
                )
            # A disk of its own from now on.
            log.warning("disk_of_another_member", disk_id=record.disk_id, broker_id=record.broker_id)
            return None
        return record

    def _known_history(self, *, was_master: bool) -> LogHistory:
        """A master begins an epoch before anything else, and a slave promises one; but not to a foreign master."""
        data = self._disk.read_file(EPOCH_FILE)
        if data is None and not was_master and not self._record.promised_epoch:
            return LogHistory()
        try:
            if data is None:
                raise HistoryCorrupt(f"{EPOCH_FILE} is gone")
            return LogHistory.from_text(data.decode())
        except (HistoryCorrupt, UnicodeDecodeError) as error:
            log.error("epoch_file_damaged", error=str(error), remedy="none: other members are asked for theirs")
            return LogHistory()

    async def _write_history(self, history: LogHistory) -> None:
        def written() -> None:
            self.history = history

        async with self._writing:
            await self._write(EPOCH_FILE, history.to_text().encode(), written)

    async def _write_record(self, record: ReplicaRecord) -> None:
        def written() -> None:
            self._record = record

        await self._write(REPLICA_FILE, record.to_json().encode(), written)

    async def _write(self, path: str, data: bytes, written: Callable[[], None] = lambda: None) -> None:
        """Within the turn, which lasts as long as the thread: a caller that is cancelled is let go when that is done.
        Of two threads the one with the older content could end last, and what it wrote over had been answered."""
        writing = asyncio.ensure_future(asyncio.to_thread(self._disk.write_file, path, data))
        is_cancelled = False
        while not writing.done():
            try:
                await asyncio.wait([writing])
            except asyncio.CancelledError:
                is_cancelled = True
        if (error := writing.exception()) is None:
            written()
        if is_cancelled:
            raise asyncio.CancelledError
        if error is not None:
            raise error


# Where a master's log ended after its last write: 8 bytes, big-endian, in `logEnd` below the store, mapped.
#
# A page of zeros at the end of a log looks like its end, and after a kill nobody else may know better: NameServers hear
# of the end once a second, and the entries of ConsumeQueues are written later. The mark is in another page than the
# log. It follows each write and is never ahead of it, so a log that ends before its mark has lost something, unless the
# machine lost its power: then the mark may be the newer of the two.

LOG_END_FILE: Final = "logEnd"
_OFFSET: Final = Struct(">q")


def missing_to_mark(report: RecoveryReport, noted_end: int) -> str:
    """What a log lacks that was recovered so, and was noted to go up to `noted_end`, in words; "" if nothing. After a
    loss of power the mark says nothing."""
    if not (report.clean or report.same_boot) or noted_end <= report.end_offset:
        return ""
    return f"the log ends at {report.end_offset}, and the last run had written it up to {noted_end}"


@dataclass(frozen=True, slots=True)
class LogDamage:
    """What was wrong with the log's tail when it was read at the start."""

    text: str
    end_offset: int
    """Up to where the log went at least, before."""
    history: LogHistory
    """Whose bytes they were."""

    def is_made_good(self, history: LogHistory, end_offset: int) -> bool:
        """Whether a log with this history and end holds what was lost: an epoch has one writer, so its bytes are the
        same ones. Without histories nobody knows."""
        return end_offset >= self.end_offset and self.history.shared_end(history) >= self.end_offset


class LogEndMark:
    """The mark of one store, from `open` to `close`. Nothing is synced: it tells of kills, not of power."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOG_END_FILE
        self._map: mmap.mmap | None = None

    def open(self) -> int:
        """The end that the last run noted; 0: none did. Blocks; DiskFull, OSError."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                # Written, not lengthened: where a page without its place finds no room the process is killed.
                os.pwrite(fd, os.pread(fd, mmap.PAGESIZE, 0).ljust(mmap.PAGESIZE, b"\0"), 0)
                self._map = mmap.mmap(fd, mmap.PAGESIZE)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"disk full: {self._path}: {error.strerror}") from error
            raise
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
