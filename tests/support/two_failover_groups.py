"""Two broker groups of a master and a slave each that fail over, in processes; as `2m-2s-sync` in Kubernetes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc

from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.running_time import PATIENCE_S
from tandemmq.proto.broker.v1 import failover_service_pb2 as pb
from tandemmq.proto.broker.v1 import failover_service_pb2_grpc

GROUPS: Final = ("broker-a", "broker-b")
_REPLICAS: Final = 2
_LEASE_MS: Final = 3_000


class TwoFailoverGroups:
    """A running cluster."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster = cluster

    def members(self, group: str) -> list[ServiceProcess]:
        return [self.cluster.brokers[f"{group}-{broker_id}"] for broker_id in range(_REPLICAS)]

    @property
    def endpoints(self) -> str:
        """The client plane of each member, as official clients take several."""
        return ";".join(client_endpoint(broker) for broker in self.cluster.brokers.values())

    def master(self, group: str) -> ServiceProcess | None:
        """The member that acts."""
        for broker in self.members(group):
            state = _state(broker)
            if state is not None and state.acts:
                return broker
        return None

    def wait_master(self, group: str, *, in_sync: int) -> ServiceProcess:
        """Returns the member that acts, once its in-sync set has so many."""

        def is_so() -> bool:
            master = self.master(group)
            state = None if master is None else _state(master)
            return state is not None and state.acts and len(state.in_sync) == in_sync

        wait_until(is_so, limit_s=PATIENCE_S, what=f"{group} has a master and {in_sync} in sync")
        master = self.master(group)
        assert master is not None
        return master

    def kill_master(self, group: str) -> ServiceProcess:
        """SIGKILL; returns whom it hit."""
        master = self.master(group)
        assert master is not None, f"{group} has no master"
        master.kill()
        return master


def client_endpoint(broker: ServiceProcess) -> str:
    return f"{broker.host}:{broker.ports['grpcServerPort']}"


@contextmanager
def two_failover_groups(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[TwoFailoverGroups]:
    """Yields the cluster when every member is in sync."""
    with ProcessCluster(folder) as cluster:
        cluster.add_name_server(with_disk=True)
        for group in GROUPS:
            authority = folder / f"authority-{group}"
            authority.mkdir(parents=True)
            for broker_id in range(_REPLICAS):
                cluster.add_broker(
                    group,
                    broker_id=broker_id,
                    settings={
                        "failoverAuthority": f"file:{authority}",
                        "failoverLease": str(_LEASE_MS),
                        "totalReplicas": str(_REPLICAS),
                        "consumeFromEarliest": "true",
                        **(settings or {}),
                    },
                )
        groups = TwoFailoverGroups(cluster)
        for group in GROUPS:
            groups.wait_master(group, in_sync=_REPLICAS)
        yield groups


def _state(broker: ServiceProcess) -> pb.GetFailoverStateResponse | None:
    """What a member knows; None: it does not answer."""

    async def ask() -> pb.GetFailoverStateResponse:
        async with grpc.aio.insecure_channel(f"{broker.host}:{broker.ports['listenPort']}") as channel:
            stub = failover_service_pb2_grpc.FailoverServiceStub(channel)
            state: pb.GetFailoverStateResponse = await stub.GetFailoverState(pb.GetFailoverStateRequest(), timeout=1.0)
            return state

    try:
        return asyncio.run(ask())
    except grpc.aio.AioRpcError:
        return None
