from __future__ import annotations

import json

import pytest

from tandemmq.broker.audit.jobs import (
    CheckRecordsJob,
    CheckStagedJob,
    DigestAlgorithm,
    DigestExtentsJob,
    DigestRangeJob,
    FindEntriesJob,
    Job,
    job_from_json,
    job_to_json,
    line_of,
)
from tandemmq.core.audit.replica_store import ReplicaFacts
from tandemmq.core.replication.log_history import LogRange

FACTS = ReplicaFacts("broker-a", 1, 0, 9_000, 4_096, True, 8_000, 7_000, holes=(LogRange(4_096, 8_192),))


@pytest.mark.parametrize(
    "job",
    [
        DigestExtentsJob(FACTS, 0, 9_000, 4_096, DigestAlgorithm.BLAKE3),
        DigestRangeJob(FACTS, 5, 9_000),
        CheckRecordsJob(FACTS, 0, 9_000, with_queues=True, with_index=False),
        CheckStagedJob(FACTS, 0, 9_000, staged_path="/store/repair.unfinished"),
        FindEntriesJob(FACTS, 0, 9_000, "Thema ü", 3, 10, 20, (1_000, 5_000)),
    ],
    ids=lambda job: job.kind,
)
def test_a_job_arrives_as_it_was_sent(job: Job) -> None:
    line = line_of(job_to_json(job, number=7))
    assert line.count(b"\n") == 1
    values = json.loads(line)
    assert values["job"] == 7
    assert job_from_json(values) == job
