"""Reads the state of a cluster through its NameServers and brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import grpc.aio
from tandemmq.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.nameserver.v1 import name_server_service_pb2 as nameserver_pb

from admin.cluster_state import (
    BrokerState,
    BrokerStatus,
    ClusterState,
    DiskState,
    ExpectedBroker,
    LatencyCounts,
    MasterLinkState,
    NameServerState,
    SlaveDeparture,
    SlaveState,
    StartWait,
)
from admin.rpc import BrokerAdminCalls, Channels, NameServerCalls, error_text

__all__ = ["ClusterReader"]

# Questions in flight at once: a cluster of hundreds of brokers is read in waves.
_ASKED_AT_ONCE: Final = 64


class ClusterReader:
    """Asks every NameServer who lives, then every broker how it is. Not for concurrent `read` calls."""

    def __init__(
        self, channels: Channels, name_servers: Sequence[str], expected: Sequence[ExpectedBroker] = ()
    ) -> None:
        self._channels = channels
        self._name_servers = tuple(name_servers)
        self._expected = tuple(expected)
        self._slots = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def read(self, remembered: Iterable[ExpectedBroker] = ()) -> ClusterState:
        """The state now. What does not answer is part of the result; nothing is raised.

        `remembered` are brokers to ask besides those expected and those registered; where both know a broker, the
        registration wins. Takes at most about 3 s for the NameServers and 3 s for each 64 brokers.
        """
        answers = await asyncio.gather(*(self._ask_name_server(address) for address in self._name_servers))
        found: dict[tuple[str, int], tuple[ExpectedBroker, bool]] = {
            (broker.broker_name, broker.broker_id): (broker, False) for broker in (*self._expected, *remembered)
        }
        for _, brokers in answers:
            found |= {(broker.broker_name, broker.broker_id): (broker, True) for broker in brokers}
        states = await asyncio.gather(
            *(self._ask_broker(broker, registered) for _, (broker, registered) in sorted(found.items()))
        )
        return ClusterState(name_servers=tuple(server for server, _ in answers), brokers=tuple(states))

    async def _ask_name_server(self, address: str) -> tuple[NameServerState, list[ExpectedBroker]]:
        try:
            snapshot = await NameServerCalls(self._channels, address).snapshot()
        except grpc.aio.AioRpcError as error:
            return NameServerState(address=address, error=error_text(error), revision=0, brokers=()), []
        except EOFError as error:
            return NameServerState(address=address, error=str(error), revision=0, brokers=()), []
        brokers = [_registered(broker) for broker in snapshot.brokers]
        keys = tuple(f"{broker.broker_name}:{broker.broker_id}" for broker in brokers)
        return NameServerState(address=address, error=None, revision=snapshot.revision, brokers=keys), brokers

    async def _ask_broker(self, broker: ExpectedBroker, registered: bool) -> BrokerState:
        status, failure = None, None
        try:
            async with self._slots:
                status = _status(await BrokerAdminCalls(self._channels, broker.metadata_endpoint).status())
        except grpc.aio.AioRpcError as error:
            failure = error_text(error)
        return BrokerState(
            cluster=broker.cluster,
            broker_name=broker.broker_name,
            broker_id=broker.broker_id,
            client_endpoint=broker.client_endpoint,
            metadata_endpoint=broker.metadata_endpoint,
            ha_endpoint=broker.ha_endpoint,
            registered=registered,
            status=status,
            error=failure,
        )


def _registered(broker: nameserver_pb.RegisteredBroker) -> ExpectedBroker:
    return ExpectedBroker(
        cluster=broker.identity.cluster,
        broker_name=broker.identity.broker_name,
        broker_id=broker.identity.broker_id,
        client_endpoint=broker.endpoints.client,
        metadata_endpoint=broker.endpoints.metadata,
        ha_endpoint=broker.endpoints.ha,
    )


def _status(reply: admin_pb.GetBrokerStatusResponse) -> BrokerStatus:
    link = reply.master_link
    return BrokerStatus(
        role=reply.role,
        flush_disk_type=reply.flush_disk_type,
        version=reply.version,
        uptime_seconds=reply.uptime_seconds,
        min_offset=reply.min_offset,
        end_offset=reply.end_offset,
        flushed_offset=reply.flushed_offset,
        dispatched_offset=reply.dispatched_offset,
        slaves=tuple(_slave(slave) for slave in reply.slaves),
        master_link=MasterLinkState(
            address=link.address,
            state=link.state,
            master_end_offset=link.master_end_offset,
            lag_bytes=link.lag_bytes,
            silent_ms=link.silent_ms if link.HasField("silent_ms") else None,
            problem=link.problem,
            remedy=link.remedy,
        )
        if reply.HasField("master_link")
        else None,
        put_counts=dict(reply.put_counts),
        refused_counts=dict(reply.refused_counts),
        waiting_send_count=reply.waiting_send_count,
        resident_bytes=reply.resident_bytes,
        client_count=reply.client_count,
        write_refusal=reply.write_refusal,
        kept_tails=tuple(reply.kept_tails),
        needed_slave_count=reply.needed_slave_count,
        client_plane_counts=dict(reply.client_plane_counts),
        client_connection_count=reply.client_connection_count,
        loop_stall_count=reply.event_loop.stall_count,
        longest_loop_stall_ms=reply.event_loop.longest_stall_ms,
        disk=_disk(reply.disk) if reply.HasField("disk") else None,
        messages_in_count=reply.messages_in_count,
        messages_out_count=reply.messages_out_count,
        bytes_in_count=reply.bytes_in_count,
        ack_latency=_latency(reply.ack_latency),
        send_latency=_latency(reply.send_latency),
        slave_departures=tuple(_departure(departure) for departure in reply.slave_departures),
        topic_count=reply.topic_count,
        group_count=reply.group_count,
        epoch=reply.epoch,
        disk_id=reply.disk_id,
        run=reply.run,
        start_wait=_start_wait(reply.start_wait) if reply.HasField("start_wait") else None,
        problems=tuple((problem.problem, problem.remedy) for problem in reply.problems),
    )


def _start_wait(wait: admin_pb.StartWait) -> StartWait:
    return StartWait(
        reason=wait.reason,
        waited_seconds=wait.waited_seconds,
        missing=tuple(wait.missing),
        lost_bytes=wait.lost_bytes,
        acceptable=wait.acceptable,
        needs_operator=wait.needs_operator,
    )


def _slave(slave: admin_pb.SlaveStatus) -> SlaveState:
    return SlaveState(
        peer=slave.peer,
        broker_id=slave.broker_id,
        acked_offset=slave.acked_offset,
        lag_bytes=slave.lag_bytes,
        in_sync=slave.in_sync,
        verified=slave.verified,
        lag_seconds=slave.lag_seconds,
        connected_seconds=slave.connected_seconds,
        sent_bytes=slave.sent_bytes,
        silent_ms=slave.silent_ms if slave.HasField("silent_ms") else None,
    )


def _departure(departure: admin_pb.SlaveDeparture) -> SlaveDeparture:
    return SlaveDeparture(
        peer=departure.peer,
        broker_id=departure.broker_id,
        wall_ms=departure.wall_clock_ms,
        reason=departure.reason,
        lag_bytes=departure.lag_bytes,
    )


def _disk(disk: admin_pb.DiskState) -> DiskState:
    return DiskState(
        path=disk.path,
        total_bytes=disk.total_bytes,
        free_bytes=disk.free_bytes,
        used_ratio=disk.used_ratio,
        warning_ratio=disk.warning_ratio,
    )


def _latency(latency: admin_pb.LatencyCounts) -> LatencyCounts:
    return LatencyCounts(tuple(latency.bounds_s), tuple(latency.counts), latency.sum_s)
