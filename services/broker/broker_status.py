"""What a broker tells tools about itself, from its parts. The edge of the admin plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tandemmq.admin.v1 import broker_admin_service_pb2 as pb

from broker.peer_probe import PeerProbe
from broker.slave.follower import Follower
from mqcore.replication import SlaveView
from mqcore.routing import BrokerIdentity
from mqcore.storage import DiskUsage, MessageStore
from mqservice.loop_meter import LoopMeter
from mqservice.memory import resident_bytes
from mqservice.version import VERSION

__all__ = ["broker_status", "probe_response"]


def broker_status(
    *,
    identity: BrokerIdentity,
    role: str,
    flush_disk_type: str,
    uptime_ms: int,
    store: MessageStore,
    slaves: Sequence[SlaveView],
    follower: Follower | None,
    put_counts: Mapping[str, int],
    refused_counts: Mapping[str, int],
    waiting_send_count: int,
    client_count: int,
    write_refusal: str,
    kept_tails: Sequence[str],
    needed_slave_count: int,
    client_plane_counts: Mapping[str, int],
    client_connection_count: int,
    loop_meter: LoopMeter,
) -> pb.GetBrokerStatusResponse:
    """The answer of GetBrokerStatus. `follower` is given by a slave, `slaves` by a master."""
    status = pb.GetBrokerStatusResponse(
        cluster=identity.cluster,
        broker_name=identity.broker_name,
        broker_id=identity.broker_id,
        role=role,
        flush_disk_type=flush_disk_type,
        version=VERSION,
        uptime_seconds=uptime_ms // 1000,
        min_offset=store.min_offset,
        end_offset=store.end_offset,
        flushed_offset=store.flushed_offset,
        dispatched_offset=store.dispatched_offset,
        put_counts=put_counts,
        refused_counts=refused_counts,
        waiting_send_count=waiting_send_count,
        resident_bytes=resident_bytes(),
        client_count=client_count,
        write_refusal=write_refusal,
        kept_tails=kept_tails,
        needed_slave_count=needed_slave_count,
        client_plane_counts=client_plane_counts,
        client_connection_count=client_connection_count,
        event_loop=pb.EventLoopStatus(
            stall_count=loop_meter.stall_count,
            stalled_ms=round(loop_meter.stalled_s * 1_000),
            longest_stall_ms=round(loop_meter.longest_stall_s * 1_000),
        ),
    )
    for slave in slaves:
        status.slaves.add(
            peer=slave.peer,
            broker_id=-1 if slave.broker_id is None else slave.broker_id,
            acked_offset=slave.acked_offset,
            lag_bytes=slave.lag_bytes,
            in_sync=slave.in_sync,
            verified=slave.verified,
        )
    if follower is not None:
        link = status.master_link
        link.address = follower.master_address
        link.state = follower.state
        link.lag_bytes = follower.lag_bytes
        link.master_end_offset = store.end_offset + follower.lag_bytes
    return status


def probe_response(
    probes: Sequence[PeerProbe],
    *,
    wall_clock_ms: int,
    disk_path: str,
    usage: DiskUsage,
    disk_warning_ratio: float,
    problems: Sequence[str],
) -> pb.ProbePeersResponse:
    """The answer of ProbePeers."""
    return pb.ProbePeersResponse(
        probes=[
            pb.PeerProbe(
                peer=probe.target.peer,
                plane=probe.target.plane,
                address=probe.target.address,
                resolved_ip=probe.resolved_ip,
                reachable=not probe.error,
                connect_ms=probe.connect_ms,
                error=probe.error,
            )
            for probe in probes
        ],
        wall_clock_ms=wall_clock_ms,
        disk=pb.DiskState(
            path=disk_path,
            total_bytes=usage.total_bytes,
            free_bytes=usage.total_bytes - usage.used_bytes,
            used_ratio=usage.used_ratio,
            warning_ratio=disk_warning_ratio,
        ),
        problems=problems,
    )
