"""A whole audit of a group's folders in one process: what a run of the consistency job does, without the job."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from support.audit_stores import GROUP, open_group
from tandemmq.core.audit.causes import one_for_each_cause, without_repeats
from tandemmq.core.audit.comparison import compare_replicas
from tandemmq.core.audit.derived_facts import compare_derived_files, joined_spans
from tandemmq.core.audit.derived_files import check_derived_files
from tandemmq.core.audit.equality import BoundRules, common_range, is_empty, missing_messages
from tandemmq.core.audit.findings import Finding
from tandemmq.core.audit.metadata_comparison import compare_metadata
from tandemmq.core.audit.record_check import check_records
from tandemmq.core.audit.replica_store import ReplicaStore, digest_extents
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.replication.log_history import LogRange

EXTENT_BYTES: Final = 64 << 10


class FolderAudit:
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
        # Both ways see a file that is too long.
        once = dict.fromkeys(without_repeats(self.compared, self.checked))
        return one_for_each_cause([*once, *self.metadata])


def whole_digests(store: ReplicaStore) -> dict[LogRange, bytes]:
    """Digests of all extents, for the next run to compare with."""
    log_range = LogRange(store.facts.min_offset, store.facts.end_offset)
    return {
        LogRange(extent.start_offset, extent.end_offset): extent.digest
        for extent in digest_extents(store, log_range, extent_bytes=EXTENT_BYTES, new_hash=hashlib.md5)
    }


def audit_folders(folders: Sequence[Path], *, earlier: Mapping[LogRange, bytes] | None = None) -> FolderAudit:
    """Compares, checks, and compares metadata."""
    audit = FolderAudit()
    stores = open_group(folders)
    common = common_range(store.facts for store in stores.values())
    audit.compared += missing_messages(stores, rules=BoundRules())
    for differing in _differing_ranges(stores, common):
        comparison = compare_replicas(stores, differing, earlier=earlier, new_hash=hashlib.md5)
        audit.compared += comparison.findings
        for name, count in comparison.benign.items():
            audit.benign[name] = audit.benign.get(name, 0) + count
    texts = {broker_id: {file: store.metadata(file) for file in MetadataFile} for broker_id, store in stores.items()}
    derived = {}
    group_end = max(store.facts.end_offset for store in stores.values())
    for broker_id, store in stores.items():
        if is_empty(store.facts):
            continue
        checked = check_records(store, store.facts.min_offset, store.facts.end_offset)
        audit.checked += checked.findings
        damaged = _damaged_ranges(broker_id, [*audit.compared, *checked.findings])
        spans = joined_spans([checked.queue_spans])
        found, derived[broker_id] = check_derived_files(store, spans, damaged, group_end=group_end)
        audit.checked += found
    audit.checked += compare_derived_files(GROUP, derived, texts)
    master = texts.pop(0)
    audit.metadata = compare_metadata(GROUP, master, texts, settled=True)
    return audit


def _damaged_ranges(broker_id: int, findings: Sequence[Finding]) -> list[LogRange]:
    return [
        LogRange(finding.start_offset, finding.end_offset)
        for finding in findings
        if finding.start_offset is not None
        and finding.end_offset is not None
        and finding.broker_id in (None, broker_id)
    ]


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
