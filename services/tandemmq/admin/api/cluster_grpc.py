"""ClusterService and ConsistencyService: the newest reading of the cluster, once or as a stream, and the job's runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from tandemmq.admin.api.access import Access, Refusal, request_of
from tandemmq.admin.cluster_reader import CachedCluster, ClusterReading
from tandemmq.admin.cluster_state import BrokerState
from tandemmq.admin.consistency_runs import ConsistencyReading, ConsistencyRuns, remedy_of
from tandemmq.core.audit.run_summary import RunSummary
from tandemmq.core.clock import Clock
from tandemmq.http2.stream import Stream
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as broker_pb
from tandemmq.proto.admin.v1 import cluster_service_pb2 as pb
from tandemmq.proto.admin.v1 import consistency_service_pb2 as consistency_pb
from tandemmq.service.protobuf import as_message
from tandemmq.service.rpc import (
    BidiMethod,
    Call,
    MethodTable,
    ServerStreamMethod,
    StatusCode,
    StreamHandler,
    UnaryMethod,
)

# A reading of the cluster as protobuf messages. The edge: nothing deeper knows them.


def cluster_message(reading: ClusterReading, *, now_ms: int) -> pb.ClusterState:
    """The reading, its age as of `now_ms` on the monotonic clock."""
    return as_message(
        pb.ClusterState,
        reading,
        read_time=reading.read_at_wall_ms,
        age=reading.age_ms(now_ms),
        read_duration=reading.duration_ms,
        name_servers=reading.state.name_servers,
        brokers=[_broker(broker) for broker in reading.state.brokers],
    )


def _broker(broker: BrokerState) -> pb.BrokerState:
    status = broker.status
    if status is None:
        return as_message(pb.BrokerState, broker, master=broker.is_master)
    event_loop = broker_pb.EventLoopStatus(
        stall_count=status.loop_stall_count, longest_stall_ms=status.longest_loop_stall_ms
    )
    own_answer = as_message(
        broker_pb.GetBrokerStatusResponse,
        status,
        cluster=broker.cluster,
        broker_name=broker.broker_name,
        broker_id=broker.broker_id,
        event_loop=event_loop,
        problems=[broker_pb.BrokerProblem(problem=problem, remedy=remedy) for problem, remedy in status.problems],
    )
    return as_message(pb.BrokerState, broker, master=broker.is_master, status=own_answer)


_SERVICE_NAME: Final = "tandemmq.admin.v1.ClusterService"
# Every watch costs an encoding of the whole cluster for each reading.
_WATCHES_MAX: Final = 100


class ClusterServicer:
    """Answers from the cache; never asks the cluster."""

    def __init__(self, cluster: CachedCluster, *, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._watches: dict[Call, Callable[[], None]] = {}

    def method_table(self) -> MethodTable:
        return MethodTable(
            _SERVICE_NAME,
            {
                "GetClusterState": UnaryMethod(self._get, pb.GetClusterStateRequest),
                "WatchClusterState": ServerStreamMethod(self._watch, pb.WatchClusterStateRequest),
            },
            otherwise=f"{_SERVICE_NAME} has GetClusterState and WatchClusterState; topics and groups are asked for at "
            "the brokers' metadata ports",
        )

    def end_watches(self) -> None:
        """Ends every watch: the service stops."""
        watches, self._watches = self._watches, {}
        for call, forget in watches.items():
            forget()
            call.finish(StatusCode.UNAVAILABLE, "the admin service is stopping")

    def _get(self, request: pb.GetClusterStateRequest, call: Call) -> None:
        reading = self._cluster.latest
        if reading is None:
            call.finish(StatusCode.UNAVAILABLE, "the cluster has not been read yet; try again in a second")
            return
        call.send(pb.GetClusterStateResponse(state=cluster_message(reading, now_ms=self._clock.monotonic_ms())))
        call.finish()

    def _watch(self, request: pb.WatchClusterStateRequest, call: Call) -> None:
        if len(self._watches) >= _WATCHES_MAX:
            call.finish(StatusCode.RESOURCE_EXHAUSTED, f"{_WATCHES_MAX} watch already; poll GetClusterState instead")
            return
        self._watches[call] = self._cluster.on_reading(lambda reading: self._send(reading, call))
        call.on_cancel(lambda: self._forget(call))
        if self._cluster.latest is not None:
            self._send(self._cluster.latest, call)

    def _send(self, reading: ClusterReading, call: Call) -> None:
        if isinstance(call, Stream) and call.queued_bytes:
            # It still has one to read; it gets the newest when it has caught up, and none of those between.
            return
        call.send(pb.WatchClusterStateResponse(state=cluster_message(reading, now_ms=self._clock.monotonic_ms())))

    def _forget(self, call: Call) -> None:
        forget = self._watches.pop(call, None)
        if forget is not None:
            forget()


def guarded(table: MethodTable, access: Access) -> MethodTable:
    """The same methods, for callers that may read, and for all while no token is set."""

    def refusal(call: Call) -> Refusal | None:
        actor = access.actor_of(request_of(call, monitoring=True))
        return actor if isinstance(actor, Refusal) else None

    def guarded_handler(handler: Callable[[Any, Call], None]) -> Callable[[Any, Call], None]:
        def handle(request: Any, call: Call) -> None:
            reason = refusal(call)
            if reason is None:
                handler(request, call)
            else:
                call.finish(StatusCode.UNAUTHENTICATED, reason.value)

        return handle

    def guarded_stream(handler: Callable[[Call], StreamHandler[Any]]) -> Callable[[Call], StreamHandler[Any]]:
        def handle(call: Call) -> StreamHandler[Any]:
            reason = refusal(call)
            if reason is None:
                return handler(call)
            call.finish(StatusCode.UNAUTHENTICATED, reason.value)
            return _Refused()

        return handle

    methods: dict[str, Any] = {}
    for name, method in table.methods.items():
        if isinstance(method, BidiMethod):
            methods[name] = replace(method, handler=guarded_stream(method.handler))
        else:
            methods[name] = replace(method, handler=guarded_handler(method.handler))
    return replace(table, methods=methods)


class _Refused:
    """A stream that has been answered already."""

    def message(self, message: Any, /) -> None:
        """Nobody listens."""

    def half_closed(self) -> None:
        """The call is finished."""

    def cancelled(self) -> None:
        """Nothing is kept."""


# ConsistencyService: the runs of the consistency job as they were read last.

# Runs of the consistency job as protobuf messages. The edge: nothing deeper knows them.


def run_message(run: RunSummary) -> consistency_pb.ConsistencyRun:
    message = as_message(
        consistency_pb.ConsistencyRun,
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


def full_run_message(run: RunSummary) -> consistency_pb.GetConsistencyRunResponse:
    """The run with its groups and findings."""
    findings = [
        as_message(consistency_pb.ConsistencyFinding, finding, severity=finding.severity, remedy=remedy_of(finding))
        for finding in run.findings
    ]
    return as_message(
        consistency_pb.GetConsistencyRunResponse,
        run=run_message(run),
        groups=run.groups,
        findings=findings,
        notes=run.notes,
    )


_RUNS_SERVICE: Final = "tandemmq.admin.v1.ConsistencyService"


class ConsistencyServicer:
    """Answers from what was read; never asks anybody."""

    def __init__(self, consistency: ConsistencyRuns) -> None:
        self._consistency = consistency

    def method_table(self) -> MethodTable:
        return MethodTable(
            _RUNS_SERVICE,
            {
                "ListConsistencyRuns": UnaryMethod(self._list, consistency_pb.ListConsistencyRunsRequest),
                "GetConsistencyRun": UnaryMethod(self._get, consistency_pb.GetConsistencyRunRequest),
            },
            otherwise=f"{_RUNS_SERVICE} has ListConsistencyRuns and GetConsistencyRun; a run is started by its Job or "
            "`tandemmq verify`",
        )

    def _list(self, request: consistency_pb.ListConsistencyRunsRequest, call: Call) -> None:
        reading = self._reading(call)
        if reading is not None:
            call.send(consistency_pb.ListConsistencyRunsResponse(runs=[run_message(run) for run in reading.runs]))
            call.finish()

    def _get(self, request: consistency_pb.GetConsistencyRunRequest, call: Call) -> None:
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
