"""Makes an IndexFile again from this replica's own CommitLog, while it serves.

A file follows from the records between its first and its last: entries in their order, slots that lead to the newest,
each entry to the one before it. So the helper process enters those records into an empty file beside the store, and
what differs is put into the place of what is there, within one turn of the event loop: no search meets half of it. The
newest file grows meanwhile; what was added is entered as well.

What a running broker knows of a file (where it begins and ends, how many entries it has) is in memory, and is what the
new one must have; where that was wrong when the broker read it, the repair is refused.

What is overwritten is kept first, durably, in `kept-repairs`: `index-NAME-NUMBER`, how many entries the file had, and
then position, length and bytes of each piece. The newest can be put back while the file has no more entries than then.
"""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import replace
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import structlog

from tandemmq.broker.audit.jobs import AuditHelper, MakeIndexJob
from tandemmq.broker.audit.store_files import (
    INDEX_PREFIX,
    FileRepaired,
    LogUnsound,
    keep_next,
    kept_names,
)
from tandemmq.core.audit.index_check import INDEX_ENTRIES
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log
from tandemmq.core.audit.record_columns import RecordCollector
from tandemmq.core.audit.repair_plan import Refusal, RepairRefused
from tandemmq.core.audit.replica_store import ReplicaState, ReplicaStore
from tandemmq.core.storage.disk import DiskError
from tandemmq.core.storage.index_file import IndexFile, index_file_bytes
from tandemmq.core.storage.kept_tail import KEPT_REPAIRS_FOLDER
from tandemmq.core.storage.record_batch import IndexColumns

if TYPE_CHECKING:
    from tandemmq.core.storage.message_store import MessageStore

log = structlog.get_logger(__name__)

_LOG_BYTES: Final = 32 << 20
"""Walked over before its entries are entered."""
_PIECE_BYTES: Final = 4096
_YIELD_BYTES: Final = 4 << 20
"""Put in place before the event loop has another turn."""
_LOOKS_MAX: Final = 5
_COUNT: Final = Struct(">q")
_PIECE_HEAD: Final = Struct(">qi")
_BY_HAND: Final = (
    "stop the broker, remove the folder index, make an empty file called abort, and start it: it is built again"
)


class _Made:
    """A new file's bytes, as IndexFile sees them."""

    def __init__(self, path: str, byte_count: int) -> None:
        self.path = path
        self.size = byte_count
        with open(path, "r+b") as file:
            self.view = memoryview(mmap.mmap(file.fileno(), byte_count))


class _Piece(NamedTuple):
    """Bytes that were overwritten."""

    position: int
    data: bytes


class IndexRepair:
    """Carries out orders; the caller sees to it that there is one at a time. Event loop only."""

    def __init__(
        self,
        *,
        root: str,
        store: MessageStore,
        state: Callable[[], ReplicaState],
        helper: AuditHelper,
        alone_with_store: Callable[[], AbstractAsyncContextManager[None]],
        failed: Callable[[DiskError], None],
    ) -> None:
        self._root = root
        self._store = store
        self._state = state
        self._helper = helper
        self._alone_with_store = alone_with_store
        self._failed = failed

    async def run(self, path: str, *, dry_run: bool, undo: bool) -> FileRepaired:
        """`path` below the store. Raises RepairRefused, OSError, or what AuditHelper.answers raises."""
        file = self._file(path)
        if undo:
            return await self._put_back(file, dry_run=dry_run)
        staged = f"{self._root}/{KEPT_REPAIRS_FOLDER}/index-{_name(path)}.unfinished"
        try:
            made = await self._made(file, staged)
            return await self._replace(file, made, dry_run=dry_run)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(staged)

    def _file(self, path: str) -> IndexFile:
        file = next((own for own in self._store.index_files if own.path == path), None)
        if file is None:
            raise RepairRefused(Refusal.NOT_FOUND, f"the broker knows of no {path}: look what it is, and move it away")
        try:
            size: int | None = os.stat(f"{self._root}/{path}").st_size
        except FileNotFoundError:
            size = None
        if size != file.segment.size:
            what = "missing" if size is None else f"{size} bytes long"
            raise RepairRefused(
                Refusal.NOT_AS_EXPECTED, f"{path} is {what}: that cannot be repaired while the broker runs; {_BY_HAND}"
            )
        return file

    # Making it

    async def _made(self, file: IndexFile, staged: str) -> IndexFile:
        facts = self._state().facts()
        if file.begin_physical_offset < facts.min_offset:
            raise RepairRefused(Refusal.OUT_OF_RANGE, f"the first records of {file.path} have expired from the log")
        files = self._store.index_files
        at = next(number for number, own in enumerate(files) if own is file)
        before = files[at - 1] if at else None
        is_parted = before is not None and before.end_physical_offset == file.begin_physical_offset
        job = MakeIndexJob(
            facts=facts,
            start_offset=file.begin_physical_offset,
            end_offset=file.end_physical_offset + 1,
            staged_path=staged,
            slot_count=file.slot_count,
            entry_count=file.entry_count,
            skipped_entries=before.last_record_entries if before is not None and is_parted else 0,
            due_entries=file.next_entry - 1,
        )
        os.makedirs(os.path.dirname(staged), exist_ok=True)
        end_offset = file.end_physical_offset
        problem = ""
        for with_tags in (True, False):  # RocketMQ enters tags since 5.5.
            done = await self._ask(replace(job, with_tags=with_tags))
            problem = "" if (done["entries"], done["end_offset"]) == (job.due_entries, end_offset) else done["problem"]
            if not problem:
                return IndexFile(
                    _Made(staged, file.segment.size),  # type: ignore[arg-type]  # it has what IndexFile uses
                    slot_count=file.slot_count,
                    entry_count=file.entry_count,
                )
        raise RepairRefused(
            Refusal.NOT_AS_EXPECTED,
            f"the broker knows {file.path} with {job.due_entries} entries up to offset {end_offset}, and {problem}: "
            f"{_BY_HAND}",
        )

    async def _ask(self, job: MakeIndexJob) -> dict[str, Any]:
        async with aclosing(self._helper.answers(job)) as frames:
            done: dict[str, Any] = {}
            async for frame in frames:
                done = frame.get("done", done)
            return done

    # Putting it in place

    async def _replace(self, file: IndexFile, made: IndexFile, *, dry_run: bool) -> FileRepaired:
        kept: dict[int, bytes] = {}
        kept_path = ""
        for _ in range(_LOOKS_MAX):
            due = made.next_entry
            settled = await asyncio.to_thread(_differing, file, made, file.entry_position(1), file.entry_position(due))
            async with self._alone_with_store():
                self._file(file.path)
                _follow(file, made)
                rest = _differing(file, made, 0, file.entry_position(1))
                rest += _differing(file, made, file.entry_position(due), file.entry_position(made.next_entry))
                pieces = [*settled, *rest]
                if dry_run or not pieces:
                    return FileRepaired(bool(pieces))
                if all(kept.get(piece.position) == piece.data for piece in pieces):
                    await self._write(file, made, pieces)
                    log.warning("index_file_rewritten", file=file.path, pieces=len(pieces), kept=kept_path)
                    return FileRepaired(changed=True, kept_path=kept_path)
                count = file.next_entry
            kept = dict(pieces)
            kept_path = await asyncio.to_thread(self._keep, _name(file.path), count, pieces)
        raise RepairRefused(Refusal.BUSY, f"{file.path} changes all the time; try again")

    async def _write(self, file: IndexFile, made: IndexFile, pieces: Sequence[_Piece]) -> None:
        # The newest slots must not wait for another turn: the next entry reads them.
        for piece in pieces:
            file.segment.view[piece.position : piece.position + len(piece.data)] = made.segment.view[
                piece.position : piece.position + len(piece.data)
            ]
        file.read_header()
        await self._sync(file)

    async def _sync(self, file: IndexFile) -> None:
        try:
            await asyncio.to_thread(file.sync)
        except DiskError as error:
            self._failed(error)
            raise RepairRefused(Refusal.READ_BACK_DIFFERS, f"the disk failed: {error}") from error

    # Back

    async def _put_back(self, file: IndexFile, *, dry_run: bool) -> FileRepaired:
        path = await asyncio.to_thread(self._newest_kept, _name(file.path))
        if path is None:
            raise RepairRefused(Refusal.NOT_FOUND, f"nothing is kept of {file.path}: it was not repaired")
        count, pieces = await asyncio.to_thread(_read_kept, f"{self._root}/{path}")
        async with self._alone_with_store():
            if file.next_entry != count:
                raise RepairRefused(
                    Refusal.NOT_AS_EXPECTED,
                    f"{file.path} has more entries than when it was repaired; it stays as it is",
                )
            view = file.segment.view
            changed = [own for own in pieces if view[own.position : own.position + len(own.data)] != own.data]
            if changed and not dry_run:
                for own in changed:
                    view[own.position : own.position + len(own.data)] = own.data
                await self._sync(file)
                log.warning("index_file_put_back", file=file.path, from_file=path)
        return FileRepaired(bool(changed))

    def _keep(self, name: str, count: int, pieces: Sequence[_Piece]) -> str:
        data = _COUNT.pack(count)
        data += b"".join(_PIECE_HEAD.pack(own.position, len(own.data)) + own.data for own in pieces)
        return f"{KEPT_REPAIRS_FOLDER}/{keep_next(f'{self._root}/{KEPT_REPAIRS_FOLDER}', f'index-{name}-', data)}"

    def _newest_kept(self, name: str) -> str | None:
        found = kept_names(f"{self._root}/{KEPT_REPAIRS_FOLDER}", f"index-{name}-")
        return f"{KEPT_REPAIRS_FOLDER}/{found[-1]}" if found else None


def _name(path: str) -> str:
    return path.removeprefix(INDEX_PREFIX)


def _read_kept(path: str) -> tuple[int, list[_Piece]]:
    with open(path, "rb") as file:
        data = file.read()
    (count,) = _COUNT.unpack_from(data)
    pieces = []
    at = _COUNT.size
    while at < len(data):
        position, length = _PIECE_HEAD.unpack_from(data, at)
        at += _PIECE_HEAD.size
        pieces.append(_Piece(position, data[at : at + length]))
        at += length
    return count, pieces


def _differing(file: IndexFile, made: IndexFile, start: int, end: int) -> list[_Piece]:
    """Pieces of [start, end) in which the file holds something else, as it holds them."""
    held, due = file.segment.view, made.segment.view
    found = []
    for block in range(start, end, _YIELD_BYTES):
        block_end = min(block + _YIELD_BYTES, end)
        if held[block:block_end] == due[block:block_end]:
            continue
        for position in range(block, block_end, _PIECE_BYTES):
            piece_end = min(position + _PIECE_BYTES, block_end)
            if held[position:piece_end] != due[position:piece_end]:
                found.append(_Piece(position, bytes(held[position:piece_end])))
    return found


def _follow(file: IndexFile, made: IndexFile) -> None:
    """Enters what was added to the file since the other one was made."""
    first, end = made.next_entry, file.next_entry
    if end <= first:
        return
    data = bytes(file.segment.view[file.entry_position(first) : file.entry_position(end)])
    entries = np.frombuffer(data, dtype=INDEX_ENTRIES)
    times = made.begin_timestamp_ms + entries["seconds"].astype(np.int64) * 1_000
    times[-1] = file.end_timestamp_ms
    made.add_columns(IndexColumns(entries["hash"].astype(np.int64), entries["offset"].astype(np.int64), times))


# In the helper process.


def make_index(job: MakeIndexJob, store: ReplicaStore) -> dict[str, object]:
    """Enters the records of [start_offset, end_offset) into a new file, as a broker would have. Raises LogUnsound.

    Returns `entries` and `end_offset`, as its header has them, and `problem`: what does not fit, in words.
    """
    size = index_file_bytes(slot_count=job.slot_count, entry_count=job.entry_count)
    with open(job.staged_path, "wb") as file:
        file.truncate(size)
    made = IndexFile(
        _Made(job.staged_path, size),  # type: ignore[arg-type]  # it has what IndexFile uses
        slot_count=job.slot_count,
        entry_count=job.entry_count,
    )
    skipped, total = job.skipped_entries, 0
    for columns in _columns(job, store):
        columns = columns.part(min(skipped, len(columns)), len(columns))
        skipped = 0
        total += len(columns)
        columns = columns.part(0, min(len(columns), job.due_entries - made.next_entry + 1))
        if made.is_empty and len(columns):
            end = columns.record_end(0)
            offset, time_ms = int(columns.physical_offsets[0]), int(columns.store_timestamps_ms[0])
            made.add(columns.hashes[:end].tolist(), offset, time_ms)
            columns = columns.part(end, len(columns))
        if len(columns):
            made.add_columns(columns)
    is_full = job.due_entries + 1 >= job.entry_count
    problem = f"its records have {total}, the last of them at {made.end_physical_offset}"
    is_right = total == job.due_entries or (is_full and total > job.due_entries)
    return {
        "entries": made.next_entry - 1 if is_right else -1,
        "end_offset": made.end_physical_offset,
        "problem": problem,
    }


def _columns(job: MakeIndexJob, store: ReplicaStore) -> Iterator[IndexColumns]:
    """Rows of the index, some megabytes of the log at a time; none is empty."""
    collector, taken_from = RecordCollector(), job.start_offset
    pieces = walk_log(store, job.start_offset, job.end_offset, in_batches=True, from_boundary=True)
    for piece in pieces:
        if not isinstance(piece, LogPiece):
            collector.add_batch(piece)
        elif piece.kind in (PieceKind.RECORD, PieceKind.BAD_BODY) and piece.record is not None:
            collector.add_record(piece.record)
        elif piece.kind is not PieceKind.PADDING:
            raise LogUnsound(f"the CommitLog is damaged at {piece.start_offset} ({piece.reason}): repair it first")
        if piece.end_offset - taken_from >= _LOG_BYTES:
            yield from _rows(job, collector)
            collector, taken_from = RecordCollector(), piece.end_offset
    yield from _rows(job, collector)


def _rows(job: MakeIndexJob, collector: RecordCollector) -> Iterator[IndexColumns]:
    if not len(collector):
        return
    columns = collector.take()
    is_due = columns.offsets[columns.index_records] < job.end_offset
    if not job.with_tags:
        is_due &= ~columns.index_is_tag
    rows = columns.index_records[is_due]
    if len(rows):
        yield IndexColumns(
            columns.index_hashes[is_due].astype(np.int64), columns.offsets[rows], columns.store_timestamps_ms[rows]
        )
