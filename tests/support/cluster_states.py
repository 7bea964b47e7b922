"""States of a small cluster as the admin tools see them, for tests of diagnosis and views."""

from __future__ import annotations

from dataclasses import replace

from tandemmq.admin.cluster_state import (
    BrokerState,
    BrokerStatus,
    ClusterState,
    FailoverReplica,
    FailoverState,
    MasterLinkState,
    NameServerState,
    SlaveState,
)

_STATUS = BrokerStatus(
    role="SYNC_MASTER",
    flush_disk_type="ASYNC_FLUSH",
    version="0.1.0",
    uptime_seconds=60,
    min_offset=0,
    end_offset=1_234_567,
    flushed_offset=1_234_000,
    dispatched_offset=1_234_567,
    slaves=(
        SlaveState(
            peer="127.0.0.1:40000", broker_id=1, acked_offset=1_234_500, lag_bytes=67, in_sync=True, verified=True
        ),
    ),
    master_link=None,
    put_counts={"PUT_OK": 90, "FLUSH_SLAVE_TIMEOUT": 10},
    refused_counts={},
    waiting_send_count=0,
    resident_bytes=50 << 20,
    client_count=1,
    write_refusal="",
    needed_slave_count=1,
    client_plane_counts={"connections_accepted": 3},
    client_connection_count=2,
    loop_stall_count=0,
    longest_loop_stall_ms=0,
    kept_tails=(),
)


def master(name: str = "broker-a", **changes: object) -> BrokerState:
    """A healthy SYNC_MASTER with one slave in sync; `changes` replace fields of its status."""
    return _broker(name, 0, replace(_STATUS, **changes))  # type: ignore[arg-type]


def slave(name: str = "broker-a", **changes: object) -> BrokerState:
    """A healthy SLAVE; `changes` replace fields of its status."""
    link = MasterLinkState(address="127.0.0.1:10912", state="transfer", master_end_offset=1_234_567, lag_bytes=67)
    status = replace(
        _STATUS, role="SLAVE", end_offset=1_234_500, slaves=(), master_link=link, put_counts={}, needed_slave_count=0
    )
    return _broker(name, 1, replace(status, **changes))  # type: ignore[arg-type]


def failover(*, master_id: int = 0, in_sync: tuple[int, ...] = (0, 1), **changes: object) -> FailoverState:
    """What a member of a group that fails over knows in epoch 2; `changes` replace fields."""
    state = FailoverState(
        epoch=2,
        master=FailoverReplica(master_id, f"d{master_id}"),
        in_sync=tuple(FailoverReplica(broker_id, f"d{broker_id}") for broker_id in in_sync),
        reason="the master's lease is over",
        changed_ms=1_700_000_000_000,
        acts=False,
        is_electable=False,
        problem="",
        authority="etcd:10.0.0.5:2379",
        lease_ms=6_000,
    )
    return replace(state, **changes)  # type: ignore[arg-type]


def healthy_cluster() -> ClusterState:
    """Two NameServers and one broker group with its slave."""
    servers = tuple(
        NameServerState(address=f"127.0.0.1:{port}", error=None, revision=7, brokers=("broker-a:0", "broker-a:1"))
        for port in (9876, 9877)
    )
    return ClusterState(name_servers=servers, brokers=(master(), slave()))


def with_broker(state: ClusterState, broker: BrokerState) -> ClusterState:
    """The same cluster with this broker in place of the one of its key."""
    others = tuple(other for other in state.brokers if other.key != broker.key)
    return replace(state, brokers=tuple(sorted((*others, broker), key=lambda each: each.key)))


def _broker(name: str, broker_id: int, status: BrokerStatus) -> BrokerState:
    return BrokerState(
        cluster="DefaultCluster",
        broker_name=name,
        broker_id=broker_id,
        client_endpoint=f"127.0.0.1:{8081 + broker_id}",
        metadata_endpoint=f"127.0.0.1:{10911 + broker_id * 20}",
        ha_endpoint="" if broker_id else "127.0.0.1:10912",
        registered=True,
        status=status,
        error=None,
        named_master=broker_id == 0,
    )
