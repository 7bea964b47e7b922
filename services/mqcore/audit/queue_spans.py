"""Which queue offsets occur in a part of the log, so that gaps between parts are found as well as those within one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from mqcore.audit.findings import Finding, FindingKind, Verdict
from mqcore.replication.log_extent import LogRange

__all__ = ["QueueSpan", "queue_gap", "seam_gaps"]


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """Of one queue: its first record and its last one in a part of the log."""

    topic: str
    queue_id: int
    first_queue_offset: int
    next_queue_offset: int
    """What the record behind the last one must have."""
    first_offset: int
    """Where the first record starts in the CommitLog."""
    last_offset: int
    """Where the last one starts."""

    def to_json(self) -> dict[str, Any]:
        """Plain values by field name."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """What `to_json` gave."""
        return cls(**values)


def queue_gap(
    group: str,
    broker_id: int,
    topic: str,
    queue_id: int,
    *,
    after: int,
    next_queue_offset: int,
    found: int,
    before: int,
) -> Finding:
    """Behind the record at `after` in the log `next_queue_offset` was due, and `found` lies at `before`."""
    return Finding(
        kind=FindingKind.QUEUE_GAP,
        group=group,
        verdict=Verdict.OWN_EVIDENCE,
        detail=f"queue offset {found} follows {next_queue_offset - 1}: {found - next_queue_offset} are in no record",
        broker_id=broker_id,
        start_offset=after,
        end_offset=before,
        topic=topic,
        queue_id=queue_id,
        queue_offset=next_queue_offset,
        messages=found - next_queue_offset,
    )


def seam_gaps(
    group: str, broker_id: int, parts: Iterable[Sequence[QueueSpan]], *, damaged: Sequence[LogRange]
) -> list[Finding]:
    """QUEUE_GAPs between parts of one replica's log, which are given in the order of the log.

    `damaged`: ranges of findings of this replica. What is missing may have been there: no gap is reported across one,
    nor before one, whose queue offset may be what was changed.
    """
    last: dict[tuple[str, int], QueueSpan] = {}
    findings = []
    for spans in parts:
        for span in spans:
            before = last.get((span.topic, span.queue_id))
            last[span.topic, span.queue_id] = span
            if before is None or span.first_queue_offset <= before.next_queue_offset:
                continue
            start, end = before.last_offset, span.first_offset
            if any(piece.start_offset <= end and start < piece.end_offset for piece in damaged):
                continue
            findings.append(
                queue_gap(
                    group,
                    broker_id,
                    span.topic,
                    span.queue_id,
                    after=start,
                    next_queue_offset=before.next_queue_offset,
                    found=span.first_queue_offset,
                    before=end,
                )
            )
    return findings
