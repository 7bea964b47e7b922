"""A whole audit of a group's folders in one process: what a run of the consistency job does, without the job."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from support.audit_stores import GROUP, open_group
from tandemmq.core.audit.comparison import compare_replicas, without_repeats
from tandemmq.core.audit.findings import Finding, digest_extents
from tandemmq.core.audit.log_walk import common_range, extra_tails, missing_tails
from tandemmq.core.audit.metadata_comparison import compare_metadata
from tandemmq.core.audit.record_check import check_records
from tandemmq.core.audit.replica_store import ReplicaStore
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.replication.log_history import LogRange

__all__ = ["EXTENT_BYTES", "FolderAudit", "audit_folders", "whole_digests"]

EXTENT_BYTES: Final = 64 << 10


class FolderAudit:
    """What was found."""

    def __init__(self) -> None:
        self.compared: list[Finding] = []
        """By comparing logs and their ends."""
        self.checked: list[Finding] = []
        """By each replica's own records, queues and index."""
        self.metadata: list[Finding] = []
        self.benign: dict[str, int] = {}

    @property
    def findings(self) -> list[Finding]:
        """Everything, each thing once."""
        return [*without_repeats(self.compared, self.checked), *self.metadata]


def whole_digests(store: ReplicaStore) -> dict[int, bytes]:
    """Digests of all whole extents by their start, for the next run to compare with."""
    log_range = LogRange(store.facts.min_offset, store.facts.end_offset)
    return {
        extent.start_offset: extent.digest
        for extent in digest_extents(store, log_range, extent_bytes=EXTENT_BYTES, new_hash=hashlib.md5)
        if extent.end_offset - extent.start_offset == EXTENT_BYTES
    }


def audit_folders(folders: Sequence[Path], *, earlier: Mapping[int, bytes] | None = None) -> FolderAudit:
    """Compares, checks, and compares metadata."""
    audit = FolderAudit()
    stores = open_group(folders)
    common = common_range(store.facts for store in stores.values())
    audit.compared += [*missing_tails(stores), *extra_tails(stores)]
    for differing in _differing_ranges(stores, common):
        comparison = compare_replicas(
            stores, differing, earlier=earlier, extent_bytes=EXTENT_BYTES, new_hash=hashlib.md5
        )
        audit.compared += comparison.findings
        for name, count in comparison.benign.items():
            audit.benign[name] = audit.benign.get(name, 0) + count
    for store in stores.values():
        audit.checked += check_records(store, store.facts.min_offset, store.facts.end_offset).findings
    texts = {broker_id: {file: store.metadata(file) for file in MetadataFile} for broker_id, store in stores.items()}
    master = texts.pop(0)
    audit.metadata = compare_metadata(GROUP, master, texts, settled=True)
    return audit


def _differing_ranges(stores: Mapping[int, ReplicaStore], common: LogRange) -> list[LogRange]:
    """Extents whose digests differ, neighbours joined."""
    columns = [
        list(digest_extents(store, common, extent_bytes=EXTENT_BYTES, new_hash=hashlib.md5))
        for store in stores.values()
    ]
    ranges: list[LogRange] = []
    for row in zip(*columns):
        if len({extent.digest for extent in row}) == 1 and row[0].digest:
            continue
        start, end, _ = row[0]
        if ranges and ranges[-1].end_offset == start:
            start = ranges.pop().start_offset
        ranges.append(LogRange(start, end))
    return ranges
