"""Looks at a cluster for `tandemmq doctor`: asks, resolves, dials. All at once, each with a limit; raises nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

import grpc.aio
from tandemmq.admin.v1 import broker_admin_service_pb2 as admin_pb

from admin.cli.cluster_address import ClusterAddress
from admin.cli.doctor_facts import BrokerLook, ClusterLook, Dial, DiskLook, Memory, PeerLook
from admin.cluster_reader import ClusterReader
from admin.cluster_state import BrokerState, ClusterState
from admin.rpc import BrokerAdminCalls, Channels, NameServerCalls, error_text
from mqcore.clock import Clock
from mqcore.routing.values import parse_address

__all__ = ["dial", "look_at_cluster"]

_DIAL_LIMIT_S: Final = 2.0
# Connections under way at once. A cluster has tens of addresses.
_DIALS_MAX: Final = 64

ResultT = TypeVar("ResultT")


async def look_at_cluster(
    channels: Channels, cluster: ClusterAddress, clock: Clock, *, dial_from_here: bool
) -> ClusterLook:
    """Takes about 15 s at most. Without `dial_from_here` only the brokers themselves dial their peers."""
    reader = ClusterReader(channels, cluster.name_servers, cluster.expected)
    memories = await _memories(channels, await reader.read())
    state = await reader.read()
    at_once = asyncio.Semaphore(_DIALS_MAX)
    name_servers = [("nameserver", server.address) for server in state.name_servers] if dial_from_here else []
    server_dials, brokers = await asyncio.gather(
        _dial_all(name_servers, at_once),
        _all(_look_at_broker(channels, broker, clock, at_once, dial_from_here) for broker in state.brokers),
    )
    return ClusterLook(state, server_dials, tuple(brokers), memories)


async def _memories(channels: Channels, state: ClusterState) -> tuple[Memory, ...]:
    """What each NameServer that answers remembers of each group; one of an older version remembers nothing."""
    groups = sorted({(broker.cluster, broker.broker_name) for broker in state.brokers})
    servers = [server.address for server in state.name_servers if server.error is None]
    slots = asyncio.Semaphore(_DIALS_MAX)

    async def ask(address: str, cluster: str, broker_name: str) -> list[Memory]:
        try:
            async with slots:
                reply = await NameServerCalls(channels, address).group_memory(cluster, broker_name)
        except grpc.aio.AioRpcError:
            return []
        return [
            Memory(address, broker_name, one.broker_id, one.disk_id, one.epoch, one.end_offset)
            for one in reply.replicas
        ]

    found = await _all(ask(address, *group) for address in servers for group in groups)
    return tuple(memory for memories in found for memory in memories)


async def dial(plane: str, address: str) -> Dial:
    """Resolves the name and connects to what it stands for first; the connection is closed at once."""
    ips: tuple[str, ...] = ()
    parsed = parse_address(address)
    if parsed is None:
        return Dial(plane, address, (), "this is no host:port")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_DIAL_LIMIT_S):
            infos = await loop.getaddrinfo(parsed.host, parsed.port, type=socket.SOCK_STREAM)
            ips = tuple(sorted({str(info[4][0]) for info in infos}))
            family, kind, protocol, _, where = infos[0]
            with socket.socket(family, kind, protocol) as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, where)
    except TimeoutError:
        return Dial(plane, address, ips, f"no answer within {_DIAL_LIMIT_S:g} s")
    except socket.gaierror as error:
        return Dial(plane, address, (), f"the name does not resolve: {error.strerror}")
    except OSError as error:
        return Dial(plane, address, ips, error.strerror or str(error), isinstance(error, ConnectionRefusedError))
    return Dial(plane, address, ips, "")


async def _look_at_broker(
    channels: Channels, broker: BrokerState, clock: Clock, at_once: asyncio.Semaphore, dial_from_here: bool
) -> BrokerLook:
    planes = [("client", broker.client_endpoint), ("metadata", broker.metadata_endpoint), ("ha", broker.ha_endpoint)]
    dials, (reply, failure, answered_ms) = await asyncio.gather(
        _dial_all(planes if dial_from_here else [], at_once), _probe(channels, broker, clock)
    )
    if reply is None:
        return BrokerLook(broker, dials, None, failure)
    return BrokerLook(
        broker,
        dials,
        peers=tuple(
            PeerLook(
                peer=probe.peer,
                plane=probe.plane,
                address=probe.address,
                resolved_ip=probe.resolved_ip,
                connect_ms=probe.connect_ms,
                error="" if probe.reachable else probe.error or "not reachable",
            )
            for probe in reply.probes
        ),
        # The broker reads its clock when it answers, so this is too small by the way of the answer: milliseconds.
        clock_offset_ms=reply.wall_clock_ms - answered_ms,
        disk=_disk(reply.disk) if reply.HasField("disk") else None,
        problems=tuple(reply.problems),
    )


async def _probe(
    channels: Channels, broker: BrokerState, clock: Clock
) -> tuple[admin_pb.ProbePeersResponse | None, str, int]:
    """The answer, or why there is none; and our wall clock at that moment."""
    if broker.status is None:
        return None, broker.error or "does not answer", 0
    try:
        reply = await BrokerAdminCalls(channels, broker.metadata_endpoint).probe_peers()
    except grpc.aio.AioRpcError as error:
        return None, error_text(error), 0
    return reply, "", clock.wall_ms()


async def _dial_all(targets: Iterable[tuple[str, str]], at_once: asyncio.Semaphore) -> tuple[Dial, ...]:
    async def one(plane: str, address: str) -> Dial:
        async with at_once:
            return await dial(plane, address)

    return tuple(await _all(one(plane, address) for plane, address in targets if address))


async def _all(calls: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(call) for call in calls]
    return [task.result() for task in started]


def _disk(disk: admin_pb.DiskState) -> DiskLook:
    return DiskLook(
        path=disk.path,
        total_bytes=disk.total_bytes,
        free_bytes=disk.free_bytes,
        used_ratio=disk.used_ratio,
        warning_ratio=disk.warning_ratio,
    )
