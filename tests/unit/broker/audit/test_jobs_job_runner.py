"""How the helper process tells what it found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.audit_stores import make_group
from support.replica_folders import open_replica
from tandemmq.broker.audit.jobs import (
    LINE_BYTES_MAX,
    CheckRecordsJob,
    DigestAlgorithm,
    DigestExtentsJob,
    JobFailure,
    JobRunner,
    line_of,
)
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


@pytest.mark.parametrize("lost", [None, 1])
def test_digests_of_a_check_are_those_of_a_digest_and_the_log_is_read_once(tmp_path: Path, lost: int | None) -> None:
    (folder,) = make_group(tmp_path, replicas=1)
    # As a broker that is running: it knows of no holes.
    facts = replace(open_replica(folder).facts, is_running=True)
    if lost is not None:
        sorted((folder / "commitlog").iterdir())[lost].unlink()
    extent_bytes, end = 64 << 10, facts.end_offset
    read: list[int] = []
    runner = JobRunner(str(folder), pause=read.append)

    digested = list(runner.run(DigestExtentsJob(facts, 0, end, extent_bytes, DigestAlgorithm.XXH3_128)))
    read.clear()
    job = CheckRecordsJob(
        facts,
        0,
        end,
        with_queues=False,
        with_index=False,
        extent_bytes=extent_bytes,
        algorithm=DigestAlgorithm.XXH3_128,
    )
    checked = list(runner.run(job))

    due = [item for frame in digested for item in frame.get("items", ())]
    assert [item for frame in checked for item in frame.get("extents", ())] == due
    assert any(not digest for _, _, digest in due) is (lost is not None)
    assert sum(read) <= end + (4 << 20), "what is read ahead of a record, and no second time"


def test_a_defect_ends_its_job_and_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def defective(*_: object, **__: object) -> RecordCheck:
        raise ModuleNotFoundError("No module named 'numpy.ma'")

    monkeypatch.setattr(record_check, "check_records", defective)
    facts = ReplicaFacts("broker-a", 0, 0, 1 << 30, 1 << 30, is_running=True, queues_offset=0, index_offset=0)
    job = CheckRecordsJob(facts, 0, 1 << 30, with_queues=True, with_index=True)

    [frame] = JobRunner(str(tmp_path), pause=lambda _: None).run(job)

    assert frame["failed"] == JobFailure.DEFECT
    assert "ModuleNotFoundError: No module named 'numpy.ma'" in frame["message"]
