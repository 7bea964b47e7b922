"""A reading of the cluster as protobuf messages. The edge: nothing deeper knows them."""

from __future__ import annotations

from typing import Final

from tandemmq.admin.v1 import broker_admin_service_pb2 as broker_pb
from tandemmq.admin.v1 import cluster_service_pb2 as pb

from admin.cluster_cache import ClusterReading
from admin.cluster_state import BrokerState, BrokerStatus, Severity

__all__ = ["cluster_message"]

_SEVERITIES: Final = {
    Severity.PROBLEM: pb.SEVERITY_PROBLEM,
    Severity.NOTE: pb.SEVERITY_NOTE,
}


def cluster_message(reading: ClusterReading, *, now_ms: int) -> pb.ClusterState:
    """The reading, its age as of `now_ms` on the monotonic clock."""
    message = pb.ClusterState(
        healthy=reading.healthy,
        revision=reading.revision,
        findings=[
            pb.Finding(
                severity=_SEVERITIES[finding.severity],
                subject=finding.subject,
                problem=finding.problem,
                remedy=finding.remedy,
            )
            for finding in reading.findings
        ],
        name_servers=[
            pb.NameServerState(
                address=server.address, error=server.error or "", revision=server.revision, brokers=server.brokers
            )
            for server in reading.state.name_servers
        ],
        brokers=[_broker(broker) for broker in reading.state.brokers],
    )
    message.read_time.FromMilliseconds(reading.read_at_wall_ms)
    message.age.FromMilliseconds(reading.age_ms(now_ms))
    message.read_duration.FromMilliseconds(reading.duration_ms)
    return message


def _broker(broker: BrokerState) -> pb.BrokerState:
    return pb.BrokerState(
        cluster=broker.cluster,
        broker_name=broker.broker_name,
        broker_id=broker.broker_id,
        client_endpoint=broker.client_endpoint,
        metadata_endpoint=broker.metadata_endpoint,
        ha_endpoint=broker.ha_endpoint,
        registered=broker.registered,
        status=_status(broker, broker.status) if broker.status is not None else None,
        error=broker.error or "",
    )


def _status(broker: BrokerState, status: BrokerStatus) -> broker_pb.GetBrokerStatusResponse:
    link = status.master_link
    return broker_pb.GetBrokerStatusResponse(
        cluster=broker.cluster,
        broker_name=broker.broker_name,
        broker_id=broker.broker_id,
        role=status.role,
        flush_disk_type=status.flush_disk_type,
        version=status.version,
        uptime_seconds=status.uptime_seconds,
        min_offset=status.min_offset,
        end_offset=status.end_offset,
        flushed_offset=status.flushed_offset,
        dispatched_offset=status.dispatched_offset,
        slaves=[
            broker_pb.SlaveStatus(
                peer=slave.peer,
                broker_id=slave.broker_id,
                acked_offset=slave.acked_offset,
                lag_bytes=slave.lag_bytes,
                in_sync=slave.in_sync,
                verified=slave.verified,
                silent_ms=slave.silent_ms,
            )
            for slave in status.slaves
        ],
        master_link=broker_pb.MasterLinkStatus(
            address=link.address,
            state=link.state,
            master_end_offset=link.master_end_offset,
            lag_bytes=link.lag_bytes,
            silent_ms=link.silent_ms,
            problem=link.problem,
            remedy=link.remedy,
        )
        if link is not None
        else None,
        put_counts=status.put_counts,
        refused_counts=status.refused_counts,
        waiting_send_count=status.waiting_send_count,
        resident_bytes=status.resident_bytes,
        client_count=status.client_count,
        write_refusal=status.write_refusal,
        kept_tails=status.kept_tails,
        needed_slave_count=status.needed_slave_count,
        client_plane_counts=status.client_plane_counts,
        client_connection_count=status.client_connection_count,
        event_loop=broker_pb.EventLoopStatus(
            stall_count=status.loop_stall_count, longest_stall_ms=status.longest_loop_stall_ms
        ),
        epoch=status.epoch,
        disk_id=status.disk_id,
        run=status.run,
        start_wait=broker_pb.StartWait(
            reason=status.start_wait.reason,
            waited_seconds=status.start_wait.waited_seconds,
            missing=status.start_wait.missing,
            lost_bytes=status.start_wait.lost_bytes,
            acceptable=status.start_wait.acceptable,
            needs_operator=status.start_wait.needs_operator,
        )
        if status.start_wait is not None
        else None,
        problems=[broker_pb.BrokerProblem(problem=problem, remedy=remedy) for problem, remedy in status.problems],
    )
