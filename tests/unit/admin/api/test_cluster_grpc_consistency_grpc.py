"""ConsistencyService over a call in the test's hands."""

from __future__ import annotations

import structlog
from google.protobuf.message import Message

from support.admin_readings import consistency_of
from support.audit_summaries import diverged_run, equal_run
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from tandemmq.admin.api.cluster_grpc import ConsistencyServicer
from tandemmq.admin.consistency_runs import ConsistencyRuns
from tandemmq.core.audit.run_summary import Outcome
from tandemmq.proto.admin.v1 import consistency_service_pb2 as pb
from tandemmq.service.rpc import StatusCode, UnaryMethod


def _ask(consistency: ConsistencyRuns, name: str, request: Message) -> FakeCall:
    method = ConsistencyServicer(consistency).method_table().methods[name]
    assert isinstance(method, UnaryMethod)
    call = FakeCall()
    method.handler(request, call)
    return call


def test_runs_are_listed_newest_first() -> None:
    consistency, _ = consistency_of(equal_run(run_id="20200101T000000Z-0000"), diverged_run(), clock=ManualTime())
    call = _ask(consistency, "ListConsistencyRuns", pb.ListConsistencyRunsRequest())
    newest, older = call.only(pb.ListConsistencyRunsResponse).runs
    assert (newest.run_id, newest.outcome) == (diverged_run().run_id, pb.CONSISTENCY_OUTCOME_DIVERGED)
    assert (newest.finding_count, dict(newest.finding_counts)) == (1, {"body-crc": 1})
    assert (newest.end_time.ToJsonString(), newest.duration.ToMilliseconds()) == ("2026-11-21T22:00:42Z", 42_000)
    assert older.run_id == "20200101T000000Z-0000"


def test_run_has_its_groups_and_findings() -> None:
    consistency, _ = consistency_of(diverged_run(), clock=ManualTime())
    call = _ask(consistency, "GetConsistencyRun", pb.GetConsistencyRunRequest(run_id="latest"))
    answer = call.only(pb.GetConsistencyRunResponse)
    assert [(group.group, len(group.replicas)) for group in answer.groups] == [("broker-a", 2), ("broker-b", 2)]
    (found,) = answer.findings
    assert (found.kind, found.severity, found.verdict) == ("body-crc", "damage", "checksum")
    assert (found.broker_id, found.source_broker_id, found.queue_offset) == (1, 0, 12_345)
    assert found.HasField("source_broker_id")
    assert "repair" in found.remedy


def test_what_is_not_known_is_refused_with_the_reason() -> None:
    consistency, results = consistency_of(equal_run(), clock=ManualTime())
    request = pb.GetConsistencyRunRequest(run_id="other")
    assert _ask(consistency, "GetConsistencyRun", request).code is StatusCode.NOT_FOUND
    unwatched = ConsistencyRuns(None, clock=ManualTime(), log=structlog.get_logger(), overdue_after_ms=0)
    assert (
        _ask(unwatched, "ListConsistencyRuns", pb.ListConsistencyRunsRequest()).code is StatusCode.FAILED_PRECONDITION
    )
    unread = ConsistencyRuns(results, clock=ManualTime(), log=structlog.get_logger(), overdue_after_ms=0)
    assert _ask(unread, "ListConsistencyRuns", pb.ListConsistencyRunsRequest()).code is StatusCode.UNAVAILABLE
    results.error = "gone"
    unread.read_once()
    assert _ask(unread, "GetConsistencyRun", request).code is StatusCode.UNAVAILABLE


def test_every_outcome_has_a_value() -> None:
    for outcome in Outcome:
        consistency, _ = consistency_of(equal_run(outcome=outcome), clock=ManualTime())
        call = _ask(consistency, "ListConsistencyRuns", pb.ListConsistencyRunsRequest())
        told = call.only(pb.ListConsistencyRunsResponse).runs[0].outcome
        assert pb.ConsistencyOutcome.Name(told) == f"CONSISTENCY_OUTCOME_{outcome.name}"
