"""How the helper process tells what it found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.broker.audit.jobs import LINE_BYTES_MAX, CheckRecordsJob, JobRunner, line_of
from tandemmq.core.audit import record_check
from tandemmq.core.audit.queue_check import QueueSpan
from tandemmq.core.audit.record_check import RecordCheck
from tandemmq.core.audit.replica_store import ReplicaFacts


def test_spans_of_tens_of_thousands_of_queues_come_in_lines_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = tuple(QueueSpan("t" * 60, queue_id, 0, 1, 1 << 40, 1 << 40) for queue_id in range(30_000))
    found = RecordCheck(queue_spans=spans, records=30_000)
    monkeypatch.setattr(record_check, "check_records", lambda *_, **__: found)
    facts = ReplicaFacts("broker-a", 0, 0, 1 << 30, 1 << 30, is_running=True, queues_offset=0, index_offset=0)
    job = CheckRecordsJob(facts, 0, 1 << 30, with_queues=True, with_index=True)

    frames = list(JobRunner(str(tmp_path), pause=lambda _: None).run(job))

    assert max(len(line_of(frame)) for frame in frames) < LINE_BYTES_MAX // 4
    assert [QueueSpan.from_json(span) for frame in frames for span in frame.get("spans", ())] == list(spans)
    assert frames[-1]["done"]["records"] == 30_000
