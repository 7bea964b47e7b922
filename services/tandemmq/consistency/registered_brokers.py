"""The brokers of a cluster as its NameServers know them. Here protobuf ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import grpc

from tandemmq.consistency.discovery import Discovery
from tandemmq.consistency.settings import NothingFound
from tandemmq.consistency.source_files.broker_files import CHANNEL_OPTIONS
from tandemmq.consistency.source_files.posix_files import SourceKind, SourceSpec
from tandemmq.core.routing.route_table import merge_snapshots
from tandemmq.core.routing.values import RegisteredBroker, RouteSnapshot
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as nameserver_pb
from tandemmq.proto.nameserver.v1.name_server_service_pb2_grpc import NameServerServiceStub
from tandemmq.service.route_messages import broker_value
from tandemmq.service.service_tls import sync_channel

__all__ = ["registered_brokers"]

_TIMEOUT_S: Final = 3.0
_WAIT_FOR_READY_S: Final = 10.0
"""A NameServer pod that is being moved comes back within seconds, and the next run is an hour away."""


def registered_brokers(name_servers: Sequence[str], *, cluster: str) -> Discovery:
    """All live brokers that any of the NameServers knows, of one cluster if it is named. Raises NothingFound."""
    answers = []
    notes = []
    for address in name_servers:
        try:
            answers.append(RouteSnapshot(0, {}, _ask(address)))
        except grpc.RpcError as error:
            notes.append(f"NameServer {address} does not answer: {error.code().name}")
    if len(notes) == len(name_servers):
        raise NothingFound(f"{'; '.join(notes)}; check namesrvAddr")
    brokers = merge_snapshots(answers, revision=0).brokers
    wanted = [broker for broker in brokers if not cluster or broker.identity.cluster == cluster]
    names = sorted({broker.identity.cluster for broker in wanted})
    if len(names) > 1:
        raise NothingFound(f"the NameServers know the clusters {', '.join(names)}; choose one by clusterName")
    return Discovery(cluster=", ".join(names), replicas=tuple(_specs(wanted)), notes=tuple(notes))


def _ask(address: str) -> tuple[RegisteredBroker, ...]:
    with sync_channel(address, CHANNEL_OPTIONS) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_WAIT_FOR_READY_S)
        except grpc.FutureTimeoutError:
            pass  # The call itself says why.
        request = nameserver_pb.ListBrokersRequest()
        reply: nameserver_pb.ListBrokersResponse = NameServerServiceStub(channel).ListBrokers(
            request, timeout=_TIMEOUT_S
        )
        return tuple(broker_value(broker) for broker in reply.brokers)


def _specs(brokers: Iterable[RegisteredBroker]) -> Iterable[SourceSpec]:
    for broker in brokers:
        identity = broker.identity
        yield SourceSpec(
            group=identity.broker_name,
            broker_id=identity.broker_id,
            kind=SourceKind.BROKER,
            location=broker.endpoints.metadata,
            is_master=broker.is_master,
        )
