"""One replica's records, each by itself: structure, own position, body CRC; then its ConsumeQueue and index entries.

Finds what replicas have in common, which no comparison does. Works on columns, a microsecond a record or so, and takes
records one by one only where something is uncommon. Imports numpy: see record_batch.

What legitimately has no entry is left alone: parts of transactions, inner batches, records of a topic that was deleted,
or deleted and made again, and whatever the facts say is not in the files yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

from mqcore.audit.finding_list import FindingList
from mqcore.audit.findings import Finding, FindingKind, Verdict
from mqcore.audit.index_check import IndexCheck
from mqcore.audit.log_walk import LogPiece, PieceKind, walk_log
from mqcore.audit.piece_findings import DamageReport
from mqcore.audit.queue_check import QueueCheck
from mqcore.audit.queue_spans import QueueSpan
from mqcore.audit.record_columns import RecordCollector
from mqcore.audit.replica_store import ReplicaStore

__all__ = ["RecordCheck", "check_records"]

WINDOW_RECORDS: Final = 1 << 18
"""Checked against ConsumeQueues and index at once: some 30 MB of columns."""


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """What was found in one part of one replica's log."""

    findings: tuple[Finding, ...] = ()
    queue_spans: tuple[QueueSpan, ...] = ()
    """Of each queue, for the seams to the parts before and behind: see queue_spans.seam_gaps."""
    records: int = 0
    bytes_read: int = 0
    """Of all files."""

    def to_json(self) -> dict[str, Any]:
        """Plain values by field name."""
        return {
            "findings": [finding.to_json() for finding in self.findings],
            "queue_spans": [span.to_json() for span in self.queue_spans],
            "records": self.records,
            "bytes_read": self.bytes_read,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """What `to_json` gave."""
        return cls(
            findings=tuple(Finding.from_json(finding) for finding in values["findings"]),
            queue_spans=tuple(QueueSpan.from_json(span) for span in values["queue_spans"]),
            records=values["records"],
            bytes_read=values["bytes_read"],
        )


def check_records(
    store: ReplicaStore, start: int, end: int, *, with_queues: bool = True, with_index: bool = True
) -> RecordCheck:
    """Checks every record that starts in [start, end); see log_walk for where to split a log.

    Raises ReplicaUnreadable. Findings of the same kind that adjoin are one, with the number of messages; no list is
    longer than a thousand and one, the last then saying how many more there are.
    """
    bytes_before = store.bytes_read
    report = DamageReport(store)
    queues = QueueCheck(store, report.damaged, with_entries=with_queues)
    index = IndexCheck(store, report.damaged, start=start, end=end) if with_index else None
    findings = FindingList()
    collector = RecordCollector()
    records = 0

    def check_window() -> None:
        columns = collector.take()
        findings.extend(queues.check(columns))
        if index is not None:
            findings.extend(index.check(columns))

    for piece in walk_log(store, start, end, in_batches=True):
        if not isinstance(piece, LogPiece):
            collector.add_batch(piece)
            report.pass_sound()
            records += len(piece)
        else:
            report.add(piece)
            if piece.kind is PieceKind.RECORD and piece.record is not None:
                collector.add_record(piece.record)
                records += 1
        if len(collector) >= WINDOW_RECORDS:
            check_window()
    check_window()
    if index is not None:
        findings.extend(index.chains())
    log_findings = FindingList()
    log_findings.extend(_long_files(store, start, end))
    log_findings.extend(report.findings())
    return RecordCheck(
        findings=(*log_findings.taken(), *findings.taken()),
        queue_spans=queues.spans,
        records=records,
        bytes_read=store.bytes_read - bytes_before,
    )


def _long_files(store: ReplicaStore, start: int, end: int) -> Iterator[Finding]:
    """Files of the range with more bytes than a CommitLog file has. Those with fewer are holes."""
    facts = store.facts
    for entry in store.files.list_folder("commitlog"):
        is_named = not entry.is_folder and entry.name.isdecimal()
        if is_named and start <= int(entry.name) < min(end, facts.end_offset) and entry.size > facts.segment_bytes:
            yield Finding(
                kind=FindingKind.SEGMENT_SIZE,
                group=facts.group,
                verdict=Verdict.OWN_EVIDENCE,
                detail=f"the file has {entry.size} bytes instead of {facts.segment_bytes}",
                broker_id=facts.broker_id,
                messages=0,
                file=f"commitlog/{entry.name}",
            )
