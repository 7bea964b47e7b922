"""What the broker asks its helper process for, and how the two talk.

A line of JSON each way. To the helper:

    {"job": 7, "kind": "digest-extents", …}      the fields of one of the classes below
    {"cancel": 7}                                nobody waits for it any more

From the helper, in the order of the work:

    {"job": 7, "items": [...]}                   results so far
    {"job": 7, "done": {...}}                    the last line of a job: its totals
    {"job": 7, "failed": "gone", "message": …}   or this: see JobFailure

Lines and not lengths: reading a line is one step, so a reader that is cancelled never loses its place. The helper does
one job at a time and ends when its input does, or when it had nothing to do for a minute.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Final

import structlog

from tandemmq.broker.audit.store_files import FileGone, JobCancelled, LogUnsound, PacedFiles
from tandemmq.core.audit.replica_store import (
    EXTENT_BYTES,
    DigestingStore,
    Hash,
    ReplicaFacts,
    ReplicaStore,
    ReplicaUnreadable,
    extents_of,
    holes_of,
)
from tandemmq.core.replication.log_history import LogRange

LINE_BYTES_MAX: Final = 4 << 20
"""Of one line: some thousand findings."""
IDLE_LIMIT_S: Final = 60.0


class DigestAlgorithm(StrEnum):
    XXH3_128 = "xxh3_128"
    BLAKE3 = "blake3"


class JobFailure(StrEnum):
    """Why a job ended without a result."""

    GONE = "gone"
    """A file of the range expired meanwhile."""
    UNREADABLE = "unreadable"
    """The disk refuses."""
    UNSOUND = "unsound"
    """The log is damaged where the job needs it whole."""
    DEFECT = "defect"
    """The job itself is at fault, or what it was installed with."""


@dataclass(frozen=True, slots=True)
class Job:
    """Something to find out about [start_offset, end_offset) of the log that `facts` tell of."""

    kind: ClassVar[str]
    facts: ReplicaFacts
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class DigestExtentsJob(Job):
    """Items: [start, end, digest in hex], the last "" where a file is missing or short."""

    kind: ClassVar[str] = "digest-extents"
    extent_bytes: int
    algorithm: DigestAlgorithm


@dataclass(frozen=True, slots=True)
class DigestRangeJob(Job):
    """One digest (XXH3-128) of a whole range, however long. Done: digest in hex."""

    kind: ClassVar[str] = "digest-range"


@dataclass(frozen=True, slots=True)
class CheckRecordsJob(Job):
    """Items: a Finding as JSON; then spans, likewise: tens of thousands of queues are too much for one line; then
    extents, as DigestExtentsJob has them, if any are wanted. Done: records and bytes_read. All as RecordCheck.to_json
    has them."""

    kind: ClassVar[str] = "check-records"
    with_queues: bool
    with_index: bool
    extent_bytes: int = 0
    """0: nothing is digested."""
    algorithm: DigestAlgorithm = DigestAlgorithm.XXH3_128


@dataclass(frozen=True, slots=True)
class CheckStagedJob(Job):
    """Would the log be sound in [start_offset, end_offset) if it held the bytes of a file?

    Items: a Finding in the range as JSON. Done: records.
    """

    kind: ClassVar[str] = "check-staged"
    staged_path: str
    """Of the file, for the operating system."""


@dataclass(frozen=True, slots=True)
class FindEntriesJob(Job):
    """What a queue's entries should be, by the records of [start_offset, end_offset), which starts with one.

    Items: [queue_offset, physical_offset, size, tags_code], the first of each queue offset, in the order of the log.
    The job ends when it has them all.
    """

    kind: ClassVar[str] = "find-entries"
    topic: str
    queue_id: int
    first_queue_offset: int
    end_queue_offset: int
    delay_levels_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MakeIndexJob(Job):
    """An IndexFile of the records of [start_offset, end_offset), which starts with one, in a file of its own.

    Done: see `make_index`.
    """

    kind: ClassVar[str] = "make-index"
    staged_path: str
    """Of the file, for the operating system."""
    slot_count: int
    entry_count: int
    skipped_entries: int
    """Of the first record, which the file before has."""
    due_entries: int
    """What comes behind so many has a file of its own."""
    with_tags: bool = True


_KINDS: Final[dict[str, type[Job]]] = {
    kind.kind: kind
    for kind in (
        DigestExtentsJob,
        DigestRangeJob,
        CheckRecordsJob,
        CheckStagedJob,
        FindEntriesJob,
        MakeIndexJob,
    )
}


def job_to_json(job: Job, *, number: int) -> dict[str, Any]:
    """What goes to the helper."""
    return asdict(job) | {"job": number, "kind": job.kind, "facts": job.facts.to_json()}


def job_from_json(values: dict[str, Any]) -> Job:
    """What `job_to_json` gave. Both ends are of one version: anything else is a KeyError or TypeError."""
    kind = _KINDS[values["kind"]]
    fields = {name: value for name, value in values.items() if name not in {"job", "kind"}}
    fields["facts"] = ReplicaFacts.from_json(fields["facts"])
    if kind in (DigestExtentsJob, CheckRecordsJob):
        fields["algorithm"] = DigestAlgorithm(fields["algorithm"])
    if kind is FindEntriesJob:
        fields["delay_levels_ms"] = tuple(fields["delay_levels_ms"])
    return kind(**fields)


def line_of(frame: dict[str, Any]) -> bytes:
    return json.dumps(frame, separators=(",", ":")).encode() + b"\n"


# Does the jobs of the helper process, with the same checks that run on volumes and snapshots.

_ITEMS_MAX: Final = 256
"""In one line."""


def hash_factory(algorithm: DigestAlgorithm) -> Callable[[], Hash]:
    """Makes empty hashes. The packages are loaded when first needed: the broker itself has no use for them."""
    if algorithm is DigestAlgorithm.BLAKE3:
        import blake3

        return blake3.blake3
    import xxhash

    return xxhash.xxh3_128


class JobRunner:
    """One job after the other. `pause`: see PacedFiles."""

    def __init__(self, root: str, *, pause: Callable[[int], None]) -> None:
        self._root = root
        self._pause = pause

    def run(self, job: Job) -> Iterator[dict[str, Any]]:
        """Yields the frames of the answer, without the job's number. JobCancelled passes."""
        files = PacedFiles(self._root, pause=self._pause)
        try:
            yield from self._run(job, ReplicaStore(files, job.facts), files)
        except FileGone as error:
            yield _failed(JobFailure.GONE, f"{error} expired meanwhile")
        except ReplicaUnreadable as error:
            yield _failed(JobFailure.UNREADABLE, str(error))
        except JobCancelled:
            raise
        except Exception as defect:  # The job's root: the next one goes on, and who asked is told why this one did not.
            traceback.print_exc()
            told = f"a defect of the broker: {type(defect).__name__}: {defect}; its log has where"
            yield _failed(JobFailure.DEFECT, told)

    def _run(self, job: Job, store: ReplicaStore, files: PacedFiles) -> Iterator[dict[str, Any]]:
        if isinstance(job, DigestExtentsJob):
            yield from _digest_extents(job, files)
        elif isinstance(job, DigestRangeJob):
            yield from _digest_range(job, files)
        elif isinstance(job, CheckRecordsJob):
            yield from _check_records(job, files)
        elif isinstance(job, CheckStagedJob):
            yield from _check_staged(job, files)
        elif isinstance(job, MakeIndexJob):
            yield from _make_index(job, store)
        else:
            assert isinstance(job, FindEntriesJob), f"a job without work: {job}"
            yield from _find_entries(job, store)


def _digest_extents(job: DigestExtentsJob, files: PacedFiles) -> Iterator[dict[str, Any]]:
    new_hash = hash_factory(job.algorithm)
    for extent in extents_of(LogRange(job.start_offset, job.end_offset), job.extent_bytes):
        digest = _digest(extent, job.facts, files, new_hash())
        # One by one: the caller shows progress, and they come at the pace of the reads.
        yield {"items": [[*extent, digest.hex()]]}
    yield {"done": {}}


def _digest_range(job: DigestRangeJob, files: PacedFiles) -> Iterator[dict[str, Any]]:
    hashed = hash_factory(DigestAlgorithm.XXH3_128)()
    yield {"done": {"digest": _digest(LogRange(job.start_offset, job.end_offset), job.facts, files, hashed).hex()}}


def _digest(log_range: LogRange, facts: ReplicaFacts, files: PacedFiles, hashed: Hash) -> bytes:
    """What tandemmq.core.audit.findings computes, from small pieces and in less CPU time; b"" if a file is short."""
    offset, end = log_range
    while offset < end:
        within = offset % facts.segment_bytes
        length = min(end - offset, facts.segment_bytes - within, EXTENT_BYTES)
        if files.feed(f"commitlog/{offset - within:020d}", within, length, hashed.update) < length:
            return b""
        offset += length
    return hashed.digest()


# What follows needs numpy, 30 MB, which most runs do without: they only digest.


def _check_records(job: CheckRecordsJob, files: PacedFiles) -> Iterator[dict[str, Any]]:
    from tandemmq.core.audit.record_check import check_records

    # A broker knows of no file that was taken away from under it.
    facts = replace(job.facts, holes=holes_of(files, job.facts))
    store = ReplicaStore(files, facts)
    if job.extent_bytes:
        log_range = LogRange(job.start_offset, job.end_offset)
        new_hash = hash_factory(job.algorithm)
        store = DigestingStore(files, facts, log_range, extent_bytes=job.extent_bytes, new_hash=new_hash)
    checked = check_records(
        store, job.start_offset, job.end_offset, with_queues=job.with_queues, with_index=job.with_index
    ).to_json()
    yield from _in_lines(checked.pop("findings"))
    yield from _in_lines(checked.pop("queue_spans"), name="spans")
    if isinstance(store, DigestingStore):
        yield from _in_lines([[start, end, digest.hex()] for start, end, digest in store.digests()], name="extents")
    yield {"done": checked}


def _check_staged(job: CheckStagedJob, files: PacedFiles) -> Iterator[dict[str, Any]]:
    from tandemmq.broker.audit.range_repair import check_staged

    staged = check_staged(job, files)
    yield from _in_lines([finding.to_json() for finding in staged.findings])
    yield {"done": {"records": staged.records}}


def _find_entries(job: FindEntriesJob, store: ReplicaStore) -> Iterator[dict[str, Any]]:
    from tandemmq.broker.audit.queue_repair import queue_entries

    try:
        yield from _in_lines([list(entry) for entry in queue_entries(job, store)])
    except LogUnsound as error:
        yield _failed(JobFailure.UNSOUND, str(error))
        return
    yield {"done": {}}


def _make_index(job: MakeIndexJob, store: ReplicaStore) -> Iterator[dict[str, Any]]:
    from tandemmq.broker.audit.index_repair import make_index

    try:
        yield {"done": make_index(job, store)}
    except LogUnsound as error:
        yield _failed(JobFailure.UNSOUND, str(error))
    except OSError as error:
        yield _failed(JobFailure.UNREADABLE, f"the new file cannot be written: {error}")


def _in_lines(items: list[Any], *, name: str = "items") -> Iterator[dict[str, Any]]:
    for start in range(0, len(items), _ITEMS_MAX):
        yield {name: items[start : start + _ITEMS_MAX]}


def _failed(failure: JobFailure, message: str) -> dict[str, Any]:
    return {"failed": str(failure), "message": message}


# The helper process as its broker sees it: started when needed, one job at a time, replaced when it dies.
#
# Whoever holds the turn alone reads the process's output, so there is no task that hands lines out. A caller that goes
# away leaves lines behind; the next one passes over them by the job's number.

log = structlog.get_logger(__name__)

_WAITING_MAX: Final = 16
"""Calls that wait for their turn; more than a handful of readers at once is a mistake, and waiting costs memory."""
_END_LIMIT_S: Final = 2.0


class HelperBusy(Exception):
    """Too many wait already. The caller comes again later."""


class HelperGone(Exception):
    """The process ended under the job, or could not be started. The next call starts another."""


class JobFailed(Exception):
    """The job ended without a result, and why."""

    def __init__(self, failure: JobFailure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class AuditHelper:
    """Event loop only. `close` last; `root` is the store's folder, absolute."""

    def __init__(self, *, root: str, bytes_per_second: int) -> None:
        """No process yet. While it may read 0 bytes a second nothing may be asked of it."""
        self._root = root
        self._bytes_per_second = bytes_per_second
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._process: Process | None = None
        self._last_number = 0
        self._is_closed = False

    @property
    def process_id(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def change_pace(self, bytes_per_second: int) -> None:
        """Another pace for what is read from now on, by a job that is out as well; with 0 that goes on as before."""
        self._bytes_per_second = bytes_per_second
        if bytes_per_second and self._process is not None and self._process.returncode is None:
            _send_nowait(self._process, {"bytes_per_second": bytes_per_second})

    async def answers(self, job: Job) -> AsyncGenerator[dict[str, Any], None]:
        """The job's frames, the last of which has `done`. Iterate to the end, or close it: the job is cancelled then.

        Raises HelperBusy, HelperGone, JobFailed.
        """
        async with self._in_turn():
            # It ends by itself when it had nothing to do, perhaps just as we come; so a job that was not begun is given
            # once more.
            for is_last in (False, True):
                process = await self._running_process()
                self._last_number += 1
                number = self._last_number
                has_begun = is_finished = False
                try:
                    await _send(process, job_to_json(job, number=number))
                    while (frame := await _next_frame(process, number)) is not None:
                        has_begun = True
                        is_finished = "done" in frame or "failed" in frame
                        if "failed" in frame:
                            raise JobFailed(JobFailure(frame["failed"]), frame["message"])
                        yield frame
                        if is_finished:
                            return
                finally:
                    if not is_finished:
                        _send_nowait(process, {"cancel": number})
                if has_begun or is_last:
                    raise HelperGone(f"the audit's helper process ended ({process.returncode})")

    async def close(self) -> None:
        """Ends the process; jobs that are out fail with HelperGone."""
        self._is_closed = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_END_LIMIT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        if self._waiting >= _WAITING_MAX:
            raise HelperBusy(f"{self._waiting} calls wait for the audit's helper process")
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turn.release()

    async def _running_process(self) -> Process:
        if self._is_closed:
            raise HelperGone("the broker stops")
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tandemmq.broker.audit", self._root, str(self._bytes_per_second)),
                stdin=PIPE,
                stdout=PIPE,
                limit=LINE_BYTES_MAX,
            )
        except OSError as error:
            raise HelperGone(f"the audit's helper process could not be started: {error}") from error
        log.info("audit_helper_started", process_id=self._process.pid)
        return self._process


async def _next_frame(process: Process, number: int) -> dict[str, Any] | None:
    """The job's next frame; None when the process has ended."""
    assert process.stdout is not None
    while (line := await _next_line(process, process.stdout)).endswith(b"\n"):
        frame: dict[str, Any] = json.loads(line)
        if frame["job"] == number:
            return frame
    await process.wait()
    return None


async def _next_line(process: Process, output: asyncio.StreamReader) -> bytes:
    try:
        return await output.readline()
    except ValueError as error:
        # What follows would be read from the middle of a line.
        process.kill()
        await process.wait()
        raise HelperGone(f"the audit's helper process wrote a line beyond {LINE_BYTES_MAX} bytes") from error


async def _send(process: Process, frame: dict[str, Any]) -> None:
    assert process.stdin is not None
    with suppress(ConnectionError):  # It has ended: reading tells so as well.
        process.stdin.write(line_of(frame))
        await process.stdin.drain()


def _send_nowait(process: Process, frame: dict[str, Any]) -> None:
    assert process.stdin is not None
    if not process.stdin.is_closing():
        process.stdin.write(line_of(frame))


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Does `work`. A caller that is cancelled meanwhile gets to know when it is done, so that its turn lasts as long.

    What `work` raises then is lost: nobody is there to be told.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
