"""The brokers of a cluster as its NameServers know them. Here protobuf ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import grpc

from tandemmq.consistency.discovery import Discovery
from tandemmq.consistency.settings import NothingFound
from tandemmq.consistency.source_files.broker_files import CHANNEL_OPTIONS
from tandemmq.consistency.source_files.posix_files import SourceKind, SourceSpec
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as nameserver_pb
from tandemmq.proto.nameserver.v1.name_server_service_pb2_grpc import NameServerServiceStub

__all__ = ["registered_brokers"]

_TIMEOUT_S: Final = 3.0
_WAIT_FOR_READY_S: Final = 10.0
"""A NameServer pod that is being moved comes back within seconds, and the next run is an hour away."""


def registered_brokers(name_servers: Sequence[str], *, cluster: str) -> Discovery:
    """All live brokers that any of the NameServers knows, of one cluster if it is named. Raises NothingFound."""
    brokers: dict[tuple[str, str, int], nameserver_pb.RegisteredBroker] = {}
    notes = []
    for address in name_servers:
        try:
            found = _ask(address)
        except grpc.RpcError as error:
            notes.append(f"NameServer {address} does not answer: {error.code().name}")
            continue
        for broker in found:
            identity = broker.identity
            key = (identity.cluster, identity.broker_name, identity.broker_id)
            # A broker that moved is known at its new place by the NameServer it told first.
            if key not in brokers or broker.incarnation > brokers[key].incarnation:
                brokers[key] = broker
    if len(notes) == len(name_servers):
        raise NothingFound(f"{'; '.join(notes)}; check namesrvAddr")
    wanted = [broker for broker in brokers.values() if not cluster or broker.identity.cluster == cluster]
    names = sorted({broker.identity.cluster for broker in wanted})
    if len(names) > 1:
        raise NothingFound(f"the NameServers know the clusters {', '.join(names)}; choose one by clusterName")
    return Discovery(cluster=", ".join(names), replicas=tuple(_specs(wanted)), notes=tuple(notes))


def _ask(address: str) -> Iterable[nameserver_pb.RegisteredBroker]:
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_WAIT_FOR_READY_S)
        except grpc.FutureTimeoutError:
            pass  # The call itself says why.
        request = nameserver_pb.ListBrokersRequest()
        reply: nameserver_pb.ListBrokersResponse = NameServerServiceStub(channel).ListBrokers(
            request, timeout=_TIMEOUT_S
        )
        return reply.brokers


def _specs(brokers: Iterable[nameserver_pb.RegisteredBroker]) -> Iterable[SourceSpec]:
    for broker in brokers:
        identity = broker.identity
        yield SourceSpec(
            group=identity.broker_name,
            broker_id=identity.broker_id,
            kind=SourceKind.BROKER,
            location=broker.endpoints.metadata,
        )
