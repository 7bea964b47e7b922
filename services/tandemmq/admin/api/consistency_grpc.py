"""ConsistencyService: the runs of the consistency job as they were read last."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from tandemmq.admin.consistency_runs import ConsistencyReading, ConsistencyRuns, remedy_of
from tandemmq.admin.protobuf import as_message
from tandemmq.core.audit.run_summary import RunSummary
from tandemmq.proto.admin.v1 import consistency_service_pb2 as pb
from tandemmq.service.rpc import Call, MethodTable, StatusCode, UnaryMethod

__all__ = ["ConsistencyServicer", "full_run_message", "run_message"]


# Runs of the consistency job as protobuf messages. The edge: nothing deeper knows them.


def run_message(run: RunSummary) -> pb.ConsistencyRun:
    """The run by its figures."""
    message = as_message(
        pb.ConsistencyRun,
        run,
        finding_count=run.findings_total,
        finding_counts=run.findings_by_kind,
        group_count=len(run.groups),
        read_bytes=run.bytes_read,
        duration=round(run.duration_seconds * 1_000),
    )
    for field, text in ((message.start_time, run.started_at), (message.end_time, run.finished_at)):
        try:
            field.FromDatetime(datetime.fromisoformat(text))
        except ValueError:
            # It stays absent.
            continue
    return message


def full_run_message(run: RunSummary) -> pb.GetConsistencyRunResponse:
    """The run with its groups and findings."""
    findings = [
        as_message(pb.ConsistencyFinding, finding, severity=finding.severity, remedy=remedy_of(finding))
        for finding in run.findings
    ]
    return as_message(
        pb.GetConsistencyRunResponse, run=run_message(run), groups=run.groups, findings=findings, notes=run.notes
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
