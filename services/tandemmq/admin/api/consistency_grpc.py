"""ConsistencyService: the runs of the consistency job as they were read last."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from tandemmq.admin.consistency_runs import ConsistencyReading, ConsistencyRuns, remedy_of
from tandemmq.core.audit.findings import Finding
from tandemmq.core.audit.run_summary import GroupSummary, Outcome, RunSummary
from tandemmq.proto.admin.v1 import consistency_service_pb2 as pb
from tandemmq.service.rpc import Call, MethodTable, StatusCode, UnaryMethod

__all__ = ["ConsistencyServicer", "full_run_message", "run_message"]


# Runs of the consistency job as protobuf messages. The edge: nothing deeper knows them.

_OUTCOMES: Final = {
    Outcome.EQUAL: pb.CONSISTENCY_OUTCOME_EQUAL,
    Outcome.DIVERGED: pb.CONSISTENCY_OUTCOME_DIVERGED,
    Outcome.INCOMPLETE: pb.CONSISTENCY_OUTCOME_INCOMPLETE,
    Outcome.SKIPPED: pb.CONSISTENCY_OUTCOME_SKIPPED,
}


def run_message(run: RunSummary) -> pb.ConsistencyRun:
    """The run by its figures."""
    message = pb.ConsistencyRun(
        run_id=run.run_id,
        tier=run.tier.value,
        cluster=run.cluster,
        outcome=_OUTCOMES[run.outcome],
        finding_count=run.findings_total,
        finding_counts=run.findings_by_kind,
        group_count=len(run.groups),
        read_bytes=run.bytes_read,
    )
    for field, text in ((message.start_time, run.started_at), (message.end_time, run.finished_at)):
        try:
            field.FromDatetime(datetime.fromisoformat(text))
        except ValueError:
            # It stays absent.
            continue
    message.duration.FromMilliseconds(round(run.duration_seconds * 1_000))
    return message


def full_run_message(run: RunSummary) -> pb.GetConsistencyRunResponse:
    """The run with its groups and findings."""
    return pb.GetConsistencyRunResponse(
        run=run_message(run),
        groups=[_group(group) for group in run.groups],
        findings=[_finding(finding) for finding in run.findings],
        notes=run.notes,
    )


def _group(group: GroupSummary) -> pb.ConsistencyGroup:
    return pb.ConsistencyGroup(
        group=group.group,
        outcome=_OUTCOMES[group.outcome],
        problem=group.problem,
        replicas=[
            pb.ConsistencyReplica(
                broker_id=replica.broker_id,
                source=replica.source,
                outcome=_OUTCOMES[replica.outcome],
                problem=replica.problem,
                min_offset=replica.min_offset,
                end_offset=replica.end_offset,
                finding_count=replica.findings,
            )
            for replica in group.replicas
        ],
        start_offset=group.start_offset,
        end_offset=group.end_offset,
        new_bytes=group.new_bytes,
        scrubbed_bytes=group.scrubbed_bytes,
        watermark=group.watermark,
        finding_count=group.findings,
    )


def _finding(finding: Finding) -> pb.ConsistencyFinding:
    return pb.ConsistencyFinding(
        kind=finding.kind.value,
        severity=finding.severity.value,
        verdict=finding.verdict.value,
        group=finding.group,
        broker_id=finding.broker_id,
        source_broker_id=finding.source_broker_id,
        detail=finding.detail,
        start_offset=finding.start_offset,
        end_offset=finding.end_offset,
        topic=finding.topic or "",
        queue_id=finding.queue_id,
        queue_offset=finding.queue_offset,
        message_id=finding.message_id or "",
        message_count=finding.messages,
        remedy=remedy_of(finding),
    )


_SERVICE_NAME: Final = "tandemmq.admin.v1.ConsistencyService"


class ConsistencyServicer:
    """Answers from what was read; never asks anybody."""

    def __init__(self, consistency: ConsistencyRuns) -> None:
        self._consistency = consistency

    def method_table(self) -> MethodTable:
        """Both methods."""
        return MethodTable(
            _SERVICE_NAME,
            {
                "ListConsistencyRuns": UnaryMethod(self._list, pb.ListConsistencyRunsRequest),
                "GetConsistencyRun": UnaryMethod(self._get, pb.GetConsistencyRunRequest),
            },
            otherwise=f"{_SERVICE_NAME} has ListConsistencyRuns and GetConsistencyRun; a run is started by its Job or "
            "`tandemmq verify`",
        )

    def _list(self, request: pb.ListConsistencyRunsRequest, call: Call) -> None:
        reading = self._reading(call)
        if reading is not None:
            call.send(pb.ListConsistencyRunsResponse(runs=[run_message(run) for run in reading.runs]))
            call.finish()

    def _get(self, request: pb.GetConsistencyRunRequest, call: Call) -> None:
        reading = self._reading(call)
        if reading is None:
            return
        run = reading.find(request.run_id)
        if run is None:
            call.finish(StatusCode.NOT_FOUND, f"no run {request.run_id!r} is known here")
            return
        call.send(full_run_message(run))
        call.finish()

    def _reading(self, call: Call) -> ConsistencyReading | None:
        """None after the call was refused."""
        reading = self._consistency.latest
        if not self._consistency.is_watched:
            call.finish(StatusCode.FAILED_PRECONDITION, "consistencyResults is not set")
            return None
        if reading is None or (reading.error and not reading.runs):
            reason = reading.error if reading is not None else "try again in a second"
            call.finish(StatusCode.UNAVAILABLE, f"the runs have not been read yet: {reason}")
            return None
        return reading
