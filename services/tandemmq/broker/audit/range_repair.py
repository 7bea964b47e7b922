"""Replaces a damaged range of this replica's CommitLog by another member's bytes, or a table, while it serves.

In this order, and nothing is written before the last step:

1. The range is held and on disk, its files are there, the source is a member of this group that this broker knows.
2. The bytes here have the digest the plan was made for. (If they have the source's digest already, that is all.)
3. The source's bytes are fetched into a file beside the log, and have the digest the plan says.
4. With them the log is a chain of sound records, together with what lies around the range.
5. The bytes that are here are kept, in `kept-repairs` beside the log, named by range and digest. Nothing removes them.
6. Page by page what differs is written, then synced, then the range is digested again, through the file system.

Whatever was replaced can be put back: an order whose source is this broker itself takes the bytes from what was kept.
They need not be sound.

A crash in step 6, a caller that goes away, or a log that is cut or expires under it, leaves some pages repaired and
others not: neither digest fits then, and the next run of the job finds the rest. Whatever ends step 6, what it wrote is
synced and logged before the next repair begins.
Step 6 runs on the event loop, as everything that changes the log does, a megabyte at a time; it only copies pages that
the comparison has brought into memory. The rest runs in threads and in the helper process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import structlog
import xxhash

from tandemmq.broker.audit.index_repair import IndexRepair
from tandemmq.broker.audit.jobs import (
    AuditHelper,
    CheckStagedJob,
    DigestAlgorithm,
    DigestRangeJob,
    Job,
    hash_factory,
    to_its_end,
)
from tandemmq.broker.audit.store_files import (
    INDEX_PREFIX,
    FileRepaired,
    OpenFile,
    PacedFiles,
    StoreFiles,
    commit_log_start,
    finish_file,
    keep_file,
    kept_range,
    new_file,
    remove_unfinished,
    write_all,
)
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.core.audit.findings import Finding, FindingKind
from tandemmq.core.audit.record_check import check_records
from tandemmq.core.audit.repair_plan import Refusal, RepairRefused
from tandemmq.core.audit.replica_store import MAX_RECORD_BYTES, ReplicaFiles, ReplicaState, ReplicaStore, StoreEntry
from tandemmq.core.metadata.metadata_store import MetadataCorrupt, MetadataFile
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.storage.disk import DiskError
from tandemmq.core.storage.kept_tail import KEPT_REPAIRS_FOLDER

if TYPE_CHECKING:
    from tandemmq.core.storage.message_store import MessageStore

# Would the log be sound with other bytes in a range of it? Asked before a repair puts them there.

_CHUNK_BYTES: Final = 64 << 20
_ELSEWHERE: Final = frozenset({FindingKind.QUEUE_GAP})
"""Kinds that are not about the bytes of the range."""


class StagedCheck(NamedTuple):
    findings: list[Finding]
    """What is wrong with records that have a byte in the range."""
    records: int
    """That start in it."""


def check_staged(job: CheckStagedJob, files: PacedFiles) -> StagedCheck:
    """Checks every record that has a byte in the range, as if the staged file stood there."""
    descriptor = os.open(job.staged_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        store = ReplicaStore(_WithStaged(files, job, descriptor), job.facts)
        findings, records = [], 0
        # A record from before may reach into the range.
        start = max(job.facts.min_offset, job.start_offset - MAX_RECORD_BYTES)
        while start < job.end_offset:
            is_before = start < job.start_offset
            end = min(start + _CHUNK_BYTES, job.start_offset if is_before else job.end_offset)
            checked = check_records(store, start, end, with_queues=False, with_index=False)
            findings += [finding for finding in checked.findings if _concerns(finding, job)]
            records += 0 if is_before else checked.records
            start = end
        return StagedCheck(findings, records)
    finally:
        os.close(descriptor)


def _concerns(finding: Finding, job: CheckStagedJob) -> bool:
    if finding.kind in _ELSEWHERE or finding.start_offset is None:
        return False
    end_offset = finding.end_offset if finding.end_offset is not None else finding.start_offset + 1
    return finding.start_offset < job.end_offset and job.start_offset < end_offset


class _WithStaged(ReplicaFiles):
    """The store's files, but for the range, whose bytes come from a file of their own."""

    def __init__(self, files: PacedFiles, job: CheckStagedJob, descriptor: int) -> None:
        self._files = files
        self._job = job
        self._descriptor = descriptor

    def list_folder(self, path: str) -> list[StoreEntry]:
        return self._files.list_folder(path)

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        data = self._files.read(path, offset, length)
        file_start = commit_log_start(path)
        if file_start is None:
            return data
        base = file_start + offset
        start, end = max(base, self._job.start_offset), min(base + len(data), self._job.end_offset)
        if start >= end:
            return data
        mixed = bytearray(data)
        mixed[start - base : end - base] = os.pread(self._descriptor, end - start, start - self._job.start_offset)
        assert len(mixed) == len(data), "the staged file is shorter than the range"
        return memoryview(mixed)


# How a step of a repair is taken that must not be left half done.


# Why a repair is not carried out. Nothing was changed, unless the kind says so.


log = structlog.get_logger(__name__)

CHANGES_LISTED_MAX: Final = 1_000
_PAGE_BYTES: Final = 4096
_PIECE_BYTES: Final = 1 << 20
_STAGED_NAME: Final = "repair.unfinished"
_ROOM_LEFT_BYTES: Final = 256 << 20
"""The broker needs its next files more than a repair needs room for a copy."""


SourceReader: TypeAlias = Callable[[int, LogRange], AsyncGenerator[bytes, None]]
"""Reads bytes of the log of the member with that broker id, in order and complete. Raises RepairRefused with
SOURCE_UNAVAILABLE, or when it is not that member."""


@dataclass(frozen=True, slots=True)
class RangeOrder:
    """What a plan's step asks for. Digests are XXH3-128."""

    range: LogRange
    source_broker_id: int
    target_digest: bytes
    source_digest: bytes
    dry_run: bool


@dataclass(slots=True)
class RangeRepaired:
    """What was changed, or would be."""

    changed_bytes: int = 0
    changed_ranges: tuple[LogRange, ...] = ()
    """Whole pages, adjoining ones joined; the first CHANGES_LISTED_MAX."""
    record_count: int = 0

    def add(self, start_offset: int, end_offset: int) -> None:
        """One more range of pages, behind those before."""
        if self.changed_ranges and self.changed_ranges[-1].end_offset == start_offset:
            start_offset = self.changed_ranges[-1].start_offset
            self.changed_ranges = self.changed_ranges[:-1]
        if len(self.changed_ranges) < CHANGES_LISTED_MAX:
            self.changed_ranges += (LogRange(start_offset, end_offset),)


class RangeRepair:
    """Carries out orders; the caller sees to it that there is one at a time. Event loop only."""

    def __init__(
        self,
        *,
        root: str,
        store: MessageStore,
        state: Callable[[], ReplicaState],
        files: StoreFiles,
        helper: AuditHelper,
        read_source: SourceReader,
        failed: Callable[[DiskError], None],
    ) -> None:
        """`root` is the store's folder; `failed` is told when the disk refuses a sync, after which nothing is sure."""
        self._staged_path = f"{root}/{_STAGED_NAME}"
        self._kept_folder = f"{root}/{KEPT_REPAIRS_FOLDER}"
        self._store = store
        self._state = state
        self._files = files
        self._helper = helper
        self._read_source = read_source
        self._failed = failed

    def remove_leftover(self) -> None:
        """Removes what a crash in the middle of a repair has left beside the log. Blocks; while no repair runs."""
        _remove(self._staged_path)
        remove_unfinished(self._kept_folder)

    async def run(self, order: RangeOrder) -> RangeRepaired:
        """Raises RepairRefused, or what AuditHelper.answers raises."""
        cuts = self._store.log_cuts
        self._check_range(order, cuts)
        await self._check_files(order.range)
        found = await self._digest(order)
        if found == order.source_digest:
            return RangeRepaired()
        if found != order.target_digest:
            raise RepairRefused(
                Refusal.NOT_AS_EXPECTED,
                f"the bytes here have digest {found.hex()}, and not {order.target_digest.hex()}: they changed since "
                "the plan was made; verify again",
            )
        try:
            await self._stage(order)
            # What was kept may be as damaged as it was.
            records = 0 if self._is_undo(order) else await self._check_staged(order)
            if not order.dry_run:
                await self._keep(order)
            return await self._replace(order, cuts, records)
        finally:
            # A cancelled call may leave a thread that still reads it; the name goes all the same.
            await asyncio.shield(asyncio.to_thread(_remove, self._staged_path))

    def _check_range(self, order: RangeOrder, cuts: int) -> None:
        state = self._state()
        start, end = order.range
        if not state.min_offset <= start < end <= state.flushed_offset:
            raise RepairRefused(
                Refusal.OUT_OF_RANGE,
                f"range: [{start}, {end}) is not within [{state.min_offset}, {state.flushed_offset}), what is held "
                "and on disk",
            )
        if cuts != self._store.log_cuts:
            raise RepairRefused(Refusal.LOG_CHANGED, "the log was cut meanwhile; verify again")
        if not state.serving:
            raise RepairRefused(
                Refusal.NOT_AS_EXPECTED, "this replica does not serve, or does not follow its master; see its log first"
            )

    async def _check_files(self, log_range: LogRange) -> None:
        """A file that was lost under a running broker is still mapped: what is written there would go nowhere."""
        segment_bytes = self._state().segment_bytes
        first = log_range.start_offset - log_range.start_offset % segment_bytes
        for start in range(first, log_range.end_offset, segment_bytes):
            path = f"commitlog/{start:020d}"
            size = await asyncio.to_thread(self._size, path)
            if size != segment_bytes:
                raise RepairRefused(
                    Refusal.NOT_AS_EXPECTED,
                    f"{path} is {'missing' if size is None else f'{size} bytes long'}: that cannot be repaired while "
                    "the broker runs; stop it, copy the file from the source's store, and start it again",
                )

    def _size(self, path: str) -> int | None:
        file = self._files.open(path)
        return None if file is None else os.fstat(file.number).st_size

    async def _digest(self, order: RangeOrder) -> bytes:
        done = await self._done(DigestRangeJob(self._state().facts(), *order.range))
        return bytes.fromhex(done["digest"])

    async def _stage(self, order: RangeOrder) -> None:
        length = order.range.end_offset - order.range.start_offset
        room = await asyncio.to_thread(_room, os.path.dirname(self._staged_path))
        if room < 2 * length + _ROOM_LEFT_BYTES:
            raise RepairRefused(
                Refusal.NO_ROOM,
                f"the disk has room for {room} bytes; {length} are fetched, and as many that are here are kept",
            )
        hashed = hash_factory(DigestAlgorithm.XXH3_128)()
        # Closed by its last user and not here: a thread that outlives a cancelled call must not write into whatever
        # file was opened next.
        staged = await asyncio.to_thread(new_file, self._staged_path)

        def take(piece: bytes) -> None:
            hashed.update(memoryview(piece))
            write_all(staged, piece)

        received = 0
        pieces_of = (
            self._kept_pieces(order) if self._is_undo(order) else self._read_source(order.source_broker_id, order.range)
        )
        async with aclosing(pieces_of) as pieces:
            async for piece in pieces:
                received += len(piece)
                if received > length:
                    break
                await asyncio.to_thread(take, piece)
        if received != length or hashed.digest() != order.source_digest:
            raise RepairRefused(
                Refusal.SOURCE_UNSOUND,
                f"broker {order.source_broker_id} gave {received} bytes with digest {hashed.digest().hex()}, and not "
                f"{length} with {order.source_digest.hex()}; verify again",
            )

    def _is_undo(self, order: RangeOrder) -> bool:
        return order.source_broker_id == self._state().identity.broker_id

    async def _kept_pieces(self, order: RangeOrder) -> AsyncGenerator[bytes, None]:
        """What an earlier repair of this range has overwritten."""
        path = kept_range(self._kept_folder, order.range, order.source_digest)
        try:
            file = await asyncio.to_thread(OpenFile.of_path, path)
        except FileNotFoundError as error:
            raise RepairRefused(
                Refusal.NOT_AS_EXPECTED, f"there is no {path}: just this range was not repaired here"
            ) from error
        offset = 0
        while piece := await asyncio.to_thread(os.pread, file.number, _PIECE_BYTES, offset):
            yield piece
            offset += len(piece)

    async def _keep(self, order: RangeOrder) -> None:
        """Writes down what is here, durably, before anything of it is overwritten."""
        path = kept_range(self._kept_folder, order.range, order.target_digest)
        await asyncio.to_thread(os.makedirs, self._kept_folder, exist_ok=True)
        unfinished = f"{path}.unfinished"
        file = await asyncio.to_thread(new_file, unfinished)
        offset, end = order.range
        try:
            while offset < end:
                piece = bytes(self._store.read_log(offset, min(_PIECE_BYTES, end - offset)))
                await asyncio.to_thread(write_all, file, piece)
                offset += len(piece)
            await asyncio.to_thread(finish_file, file, unfinished, path)
        except OSError:
            # Half of it would keep the room that a full disk lacks.
            await asyncio.to_thread(_remove, unfinished)
            raise

    async def _check_staged(self, order: RangeOrder) -> int:
        """Returns the number of records; refuses what is no chain of sound ones."""
        job = CheckStagedJob(self._state().facts(), *order.range, staged_path=self._staged_path)
        findings: list[dict[str, Any]] = []
        records = 0
        async with aclosing(self._helper.answers(job)) as frames:
            async for frame in frames:
                findings += frame.get("items", ())
                records = frame.get("done", {}).get("records", records)
        if findings:
            first = findings[0]
            raise RepairRefused(
                Refusal.SOURCE_UNSOUND,
                f"with the source's bytes {len(findings)} findings would remain, the first at "
                f"{first['start_offset']}: {first['kind']}: {first['detail']}",
            )
        return records

    async def _replace(self, order: RangeOrder, cuts: int, record_count: int) -> RangeRepaired:
        repaired = RangeRepaired(record_count=record_count)
        try:
            await self._write_pages(order, cuts, repaired)
        finally:
            if repaired.changed_bytes and not order.dry_run:
                await to_its_end(self._sync(order, repaired))
        if not order.dry_run:
            await self._check_result(order)
        return repaired

    async def _write_pages(self, order: RangeOrder, cuts: int, repaired: RangeRepaired) -> None:
        """Adds to `repaired` what it has written, or would write."""
        offset, end = order.range
        staged = await asyncio.to_thread(OpenFile.of_path, self._staged_path)
        while offset < end:
            self._check_range(order, cuts)
            ours = self._store.read_log(offset, min(_PIECE_BYTES, end - offset))
            pages = await asyncio.to_thread(_differing_pages, ours, staged, offset, order.range.start_offset)
            offset += len(ours)
            # Nothing may come between this and the writing: it is one step of the loop.
            self._check_range(order, cuts)
            for page in pages:
                repaired.changed_bytes += page.changed_bytes
                repaired.add(page.start_offset, page.start_offset + len(page.data))
                if not order.dry_run:
                    self._store.replace_log(page.start_offset, page.data)

    async def _sync(self, order: RangeOrder, repaired: RangeRepaired) -> None:
        log.warning(
            "log_range_repaired",
            start_offset=order.range.start_offset,
            end_offset=order.range.end_offset,
            source_broker_id=order.source_broker_id,
            changed_bytes=repaired.changed_bytes,
            old_digest=order.target_digest.hex(),
            source_digest=order.source_digest.hex(),
        )
        job = self._store.log_sync_job(*order.range)
        try:
            await asyncio.to_thread(job.run)
        except DiskError as error:
            self._failed(error)
            raise RepairRefused(Refusal.READ_BACK_DIFFERS, f"the disk failed: {error}") from error
        self._store.flush_finished(job)

    async def _check_result(self, order: RangeOrder) -> None:
        found = await self._digest(order)
        if found != order.source_digest:
            raise RepairRefused(
                Refusal.READ_BACK_DIFFERS,
                f"the range was written and reads back with digest {found.hex()}, not {order.source_digest.hex()}: the "
                "disk is not to be trusted; replace this replica",
            )

    async def _done(self, job: Job) -> dict[str, Any]:
        done: dict[str, Any] = {}
        async with aclosing(self._helper.answers(job)) as frames:
            async for frame in frames:
                done = frame.get("done", done)
        return done


@dataclass(frozen=True, slots=True)
class _Page:
    start_offset: int
    data: bytes
    changed_bytes: int


def _differing_pages(ours: memoryview, staged: OpenFile, offset: int, staged_start: int) -> list[_Page]:
    """Pages of `ours`, which lies at `offset` of the log, that the staged file has otherwise."""
    theirs = os.pread(staged.number, len(ours), offset - staged_start)
    assert len(theirs) == len(ours), "the staged file is shorter than the range"
    if bytes(ours) == theirs:
        return []
    pages = []
    start = 0
    while start < len(ours):
        # Pages of the file: the first may be a part of one.
        end = min(start + _PAGE_BYTES - (offset + start) % _PAGE_BYTES, len(ours))
        here, there = bytes(ours[start:end]), theirs[start:end]
        if here != there:
            different = int.from_bytes(here, "big") ^ int.from_bytes(there, "big")
            changed_bytes = len(here) - different.to_bytes(len(here), "big").count(0)
            pages.append(_Page(offset + start, there, changed_bytes))
        start = end
    return pages


def _room(folder: str) -> int:
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


# Writes a metadata table again while the broker serves: of a slave after it took its master's, of a master its own.
#
# What a running broker knows is in memory, and its file may have been damaged since it was read. So a file that holds
# something else than the broker does is kept in `kept-repairs` beside the log, and written again. A slave's table may
# be wrong in memory as well: it takes its master's first, whatever versions say, and what it had is kept. Whether a
# master's own table is right, it cannot know.
#
# The other small files that a broker writes as a whole (`OwnFile`: who wrote its log, which disk it is, homes of
# message groups, the checkpoint) have no master to be taken from: they are written as the broker knows them.
#
# What was kept last can be put back.

_LOOKS_MAX: Final = 5
"""At a table that changes meanwhile."""
_DIGEST_CHARACTERS: Final = 32


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A small file that is written as a whole, by one who knows what belongs in it."""

    path: str
    """Below the store."""
    known: Callable[[], bytes]
    """What belongs in it now."""
    write: Callable[[bytes | None], Awaitable[None]]
    """Writes bytes, or with None what is known; after it nobody else's older write follows."""

    @property
    def name(self) -> str:
        """Without its folder."""
        return self.path.rpartition("/")[2]


class TableRepair:
    """Carries out orders, one at a time. Event loop only.

    `retake` has a slave take its master's table; it says whether that changed, or would change, anything.
    """

    def __init__(
        self,
        *,
        root: str,
        tables: MetadataTables,
        retake: Callable[[MetadataFile, bool], Awaitable[bool]],
        own_files: Sequence[OwnFile] = (),
        index: IndexRepair | None = None,
    ) -> None:
        self._root = root
        self._index = index
        self._tables = tables
        self._retake = retake
        self._own_files = {own.name: own for own in own_files}

    async def run(self, name: str, *, dry_run: bool, undo: bool = False) -> FileRepaired:
        """Raises RepairRefused; OSError when the disk refuses."""
        if self._index is not None and name.startswith(INDEX_PREFIX):
            return await self._index.run(name, dry_run=dry_run, undo=undo)
        own = self._own_files.get(name)
        file = next((each for each in MetadataFile if each.value == name), None)
        if own is None and file is None:
            known = ", ".join([each.value for each in MetadataFile] + [*self._own_files])
            raise RepairRefused(Refusal.MALFORMED, f"table: there is no {name!r}; ask for one of {known}")
        if undo:
            return await self._put_back(name, file, own, dry_run=dry_run)
        if own is not None:
            return await self._rewrite_own(own, dry_run=dry_run)
        assert file is not None, "it is one of the two"
        return await self._rewrite(file, dry_run=dry_run)

    # A table

    async def _rewrite(self, file: MetadataFile, *, dry_run: bool) -> FileRepaired:
        if file in self._tables.damaged:
            raise RepairRefused(
                Refusal.NOT_AS_EXPECTED,
                f"{file.value} could not be read at the start, and no replica gave it yet: see its log",
            )
        held = await self._other_content(file)
        is_due = await self._retake(file, True)
        if dry_run:
            return FileRepaired(changed=is_due or held is not None)
        kept = ""
        if is_due:
            kept = await self._keep(file.value, self._tables.by_file[file].to_json().encode())
        if held is not None:
            # Before whatever comes next writes the file; last, for this is what is put back.
            kept = await self._keep(file.value, held)
        is_taken = await self._retake(file, False)
        if held is not None:
            self._tables.write_again(file)
        await self._tables.written()
        if is_taken or kept:
            log.warning("metadata_table_rewritten", table=file.value, kept=kept, from_master=is_taken)
        return FileRepaired(changed=is_taken or held is not None, kept_path=kept)

    async def _other_content(self, file: MetadataFile) -> bytes | None:
        """What the file holds if that is something else than the broker knows; b"" where there is no file."""
        for _ in range(_LOOKS_MAX):
            await self._tables.written()
            before = self._tables.by_file[file].version
            held = await asyncio.to_thread(self._tables.read_file, file)
            if held == self._tables.by_file[file].to_json().encode():
                return None
            if self._tables.by_file[file].version == before and not self._tables.is_unwritten(file):
                return held or b""
        raise RepairRefused(Refusal.BUSY, f"{file.value} changes all the time; try again")

    # Another file

    async def _rewrite_own(self, own: OwnFile, *, dry_run: bool) -> FileRepaired:
        held = await self._other_content_of(own)
        if held is None or dry_run:
            return FileRepaired(changed=held is not None)
        kept = await self._keep(own.name, held)
        await own.write(None)
        log.warning("file_rewritten", file=own.path, kept=kept)
        return FileRepaired(changed=True, kept_path=kept)

    async def _other_content_of(self, own: OwnFile) -> bytes | None:
        for _ in range(_LOOKS_MAX):
            before = own.known()
            held = await asyncio.to_thread(self._read, own.path)
            if held == before:
                return None
            if own.known() == before:
                return held
        raise RepairRefused(Refusal.BUSY, f"{own.path} changes all the time; try again")

    # Back

    async def _put_back(
        self, name: str, file: MetadataFile | None, own: OwnFile | None, *, dry_run: bool
    ) -> FileRepaired:
        path = await asyncio.to_thread(self._newest_kept, name)
        if path is None:
            raise RepairRefused(Refusal.NOT_FOUND, f"nothing is kept of {name}: it was not repaired")
        data = await asyncio.to_thread(self._read, path)
        if own is not None:
            held = await asyncio.to_thread(self._read, own.path)
        else:
            assert file is not None, "it is one of the two"
            self._check_readable(file, data, path)
            held = self._tables.by_file[file].to_json().encode()
        if held == data or dry_run:
            return FileRepaired(changed=held != data)
        kept = await self._keep(name, held, undone=True)
        if own is not None:
            await own.write(data)
        elif file is not None:
            self._tables.put_back(file, data.decode())
            await self._tables.written()
        log.warning("table_put_back", table=name, from_file=path, kept=kept)
        return FileRepaired(changed=True, kept_path=kept)

    def _check_readable(self, file: MetadataFile, data: bytes, path: str) -> None:
        try:
            type(self._tables.by_file[file])().load_json(data.decode())
        except (MetadataCorrupt, UnicodeDecodeError) as error:
            raise RepairRefused(
                Refusal.NOT_AS_EXPECTED, f"what was overwritten cannot be read by a broker ({error}); it is in {path}"
            ) from error

    # Files

    async def _keep(self, name: str, data: bytes, *, undone: bool = False) -> str:
        """`NAME-DIGEST`; what an undo has overwritten is `NAME-DIGEST-undone`, and is not put back by another."""
        path = f"{KEPT_REPAIRS_FOLDER}/{name}-{xxhash.xxh3_128_hexdigest(data)}{_UNDONE if undone else ''}"
        await asyncio.to_thread(self._keep_file, path, data)
        return path

    def _keep_file(self, path: str, data: bytes) -> None:
        os.makedirs(f"{self._root}/{KEPT_REPAIRS_FOLDER}", exist_ok=True)
        keep_file(f"{self._root}/{path}", data)

    def _newest_kept(self, name: str) -> str | None:
        folder = f"{self._root}/{KEPT_REPAIRS_FOLDER}"
        names = os.listdir(folder) if os.path.isdir(folder) else []
        length = len(name) + 1 + _DIGEST_CHARACTERS
        found = [each for each in names if each.startswith(f"{name}-") and len(each) == length]
        newest = max(found, key=lambda each: os.stat(f"{folder}/{each}").st_mtime_ns, default=None)
        return None if newest is None else f"{KEPT_REPAIRS_FOLDER}/{newest}"

    def _read(self, path: str) -> bytes:
        """b"" where there is no file."""
        try:
            with open(f"{self._root}/{path}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""


_UNDONE: Final = "-undone"
