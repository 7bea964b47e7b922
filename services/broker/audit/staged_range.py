"""Would the log be sound with other bytes in a range of it? Asked before a repair puts them there."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from broker.audit.jobs import CheckStagedJob
from broker.audit.paced_files import PacedFiles
from broker.audit.store_files import commit_log_start
from mqcore.audit.findings import Finding, FindingKind
from mqcore.audit.record_check import check_records
from mqcore.audit.replica_store import MAX_RECORD_BYTES, ReplicaFiles, ReplicaStore, StoreEntry

__all__ = ["StagedCheck", "check_staged"]

_CHUNK_BYTES: Final = 64 << 20
_ELSEWHERE: Final = frozenset({FindingKind.QUEUE_GAP})
"""Kinds that are not about the bytes of the range."""


class StagedCheck(NamedTuple):
    """What was found."""

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
