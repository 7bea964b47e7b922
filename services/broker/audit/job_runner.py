"""Does the jobs of the helper process, with the same checks that run on volumes and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from broker.audit.errors import FileGone, LogUnsound
from broker.audit.jobs import (
    CheckRecordsJob,
    CheckStagedJob,
    DigestAlgorithm,
    DigestExtentsJob,
    DigestRangeJob,
    FindEntriesJob,
    Job,
    JobFailure,
)
from broker.audit.paced_files import PacedFiles
from mqcore.audit.findings import EXTENT_BYTES, Hash, extents_of
from mqcore.audit.replica_store import ReplicaFacts, ReplicaStore, ReplicaUnreadable
from mqcore.replication.log_history import LogRange

__all__ = ["JobRunner", "hash_factory"]

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

    def _run(self, job: Job, store: ReplicaStore, files: PacedFiles) -> Iterator[dict[str, Any]]:
        if isinstance(job, DigestExtentsJob):
            yield from _digest_extents(job, files)
        elif isinstance(job, DigestRangeJob):
            yield from _digest_range(job, files)
        elif isinstance(job, CheckRecordsJob):
            yield from _check_records(job, store)
        elif isinstance(job, CheckStagedJob):
            yield from _check_staged(job, files)
        else:
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
    """What mqcore.audit.findings computes, from small pieces and in less CPU time; b"" if a file is short."""
    offset, end = log_range
    while offset < end:
        within = offset % facts.segment_bytes
        length = min(end - offset, facts.segment_bytes - within, EXTENT_BYTES)
        if files.feed(f"commitlog/{offset - within:020d}", within, length, hashed.update) < length:
            return b""
        offset += length
    return hashed.digest()


# What follows needs numpy, 30 MB, which most runs do without: they only digest.


def _check_records(job: CheckRecordsJob, store: ReplicaStore) -> Iterator[dict[str, Any]]:
    from mqcore.audit.record_check import check_records

    checked = check_records(
        store, job.start_offset, job.end_offset, with_queues=job.with_queues, with_index=job.with_index
    ).to_json()
    yield from _in_lines(checked.pop("findings"))
    yield from _in_lines(checked.pop("queue_spans"), name="spans")
    yield {"done": checked}


def _check_staged(job: CheckStagedJob, files: PacedFiles) -> Iterator[dict[str, Any]]:
    from broker.audit.staged_range import check_staged

    staged = check_staged(job, files)
    yield from _in_lines([finding.to_json() for finding in staged.findings])
    yield {"done": {"records": staged.records}}


def _find_entries(job: FindEntriesJob, store: ReplicaStore) -> Iterator[dict[str, Any]]:
    from broker.audit.queue_entries import queue_entries

    try:
        yield from _in_lines([list(entry) for entry in queue_entries(job, store)])
    except LogUnsound as error:
        yield _failed(JobFailure.UNSOUND, str(error))
        return
    yield {"done": {}}


def _in_lines(items: list[Any], *, name: str = "items") -> Iterator[dict[str, Any]]:
    for start in range(0, len(items), _ITEMS_MAX):
        yield {name: items[start : start + _ITEMS_MAX]}


def _failed(failure: JobFailure, message: str) -> dict[str, Any]:
    return {"failed": str(failure), "message": message}
