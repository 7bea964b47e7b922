"""Asks a broker process through its admin plane, or a NameServer what it remembers; for tests and benchmarks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import grpc

from support.cluster_processes import ServiceProcess, wait_until
from support.running_time import PATIENCE_S
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as pb
from tandemmq.proto.admin.v1 import broker_admin_service_pb2_grpc
from tandemmq.proto.broker.v1 import replica_service_pb2 as replica_pb
from tandemmq.proto.broker.v1 import replica_service_pb2_grpc
from tandemmq.proto.nameserver.v1 import name_server_service_pb2 as name_server_pb
from tandemmq.proto.nameserver.v1 import name_server_service_pb2_grpc
from tandemmq.service.service_channels import aio_channel

# A member of the in-sync set that is slow to take a table over is waited for.
_TRIES: Final = 12


async def _until_taken(change: Callable[[], Awaitable[object]]) -> None:
    """Makes a change as an operator would: what the broker asks to try again is tried again."""
    for tries_left in range(_TRIES, -1, -1):
        try:
            await change()
            return
        except grpc.aio.AioRpcError as error:
            if tries_left == 0 or error.code() is not grpc.StatusCode.UNAVAILABLE or "try again" not in str(error):
                raise


def _endpoint(process: ServiceProcess) -> str:
    return f"{process.host}:{process.ports['listenPort']}"


async def create_topic(process: ServiceProcess, topic: str, *, queues: int = 8, message_type: str = "NORMAL") -> None:
    async with aio_channel(_endpoint(process), ()) as channel:
        stub = broker_admin_service_pb2_grpc.BrokerAdminServiceStub(channel)
        request = pb.UpdateTopicRequest(
            topic=topic, read_queue_count=queues, write_queue_count=queues, message_type=message_type
        )
        await _until_taken(lambda: stub.UpdateTopic(request, timeout=PATIENCE_S))


async def create_group(process: ServiceProcess, group: str, *, ordered: bool = False) -> None:
    """Creates a consumer group on one master."""
    async with aio_channel(_endpoint(process), ()) as channel:
        stub = broker_admin_service_pb2_grpc.BrokerAdminServiceStub(channel)
        request = pb.UpdateSubscriptionGroupRequest(group=group, consume_message_orderly=ordered)
        await _until_taken(lambda: stub.UpdateSubscriptionGroup(request, timeout=PATIENCE_S))


async def loss_to_accept(process: ServiceProcess) -> replica_pb.AcceptLossResponse:
    """What a starting master waits for; nothing is accepted."""
    return await _accept_loss(process, replica_pb.AcceptLossRequest(dry_run=True))


async def accept_loss(process: ServiceProcess) -> replica_pb.AcceptLossResponse:
    """Gives up every disk that a starting master waits for now."""
    waiting = await loss_to_accept(process)
    return await _accept_loss(
        process, replica_pb.AcceptLossRequest(disk_ids=[replica.disk_id for replica in waiting.missing])
    )


async def _accept_loss(process: ServiceProcess, request: replica_pb.AcceptLossRequest) -> replica_pb.AcceptLossResponse:
    async with aio_channel(_endpoint(process), ()) as channel:
        stub = replica_service_pb2_grpc.ReplicaServiceStub(channel)
        answer: replica_pb.AcceptLossResponse = await stub.AcceptLoss(request, timeout=PATIENCE_S, wait_for_ready=True)
        return answer


async def broker_status(process: ServiceProcess) -> pb.GetBrokerStatusResponse:
    """Offsets, slaves and counters of one broker."""
    async with aio_channel(_endpoint(process), ()) as channel:
        stub = broker_admin_service_pb2_grpc.BrokerAdminServiceStub(channel)
        status: pb.GetBrokerStatusResponse = await stub.GetBrokerStatus(pb.GetBrokerStatusRequest(), timeout=PATIENCE_S)
        return status


def wait_remembered(name_server: ServiceProcess, broker_name: str, end_offset: int) -> None:
    """Until a NameServer has heard that every log of the group ends there: after a heartbeat of each."""

    def is_remembered() -> bool:
        return asyncio.run(_remembered_ends(name_server, broker_name)) == {end_offset}

    wait_until(is_remembered, limit_s=120, what="the NameServer has heard of everything")


async def _remembered_ends(name_server: ServiceProcess, broker_name: str) -> set[int]:
    """Where the logs of a group end, as one NameServer remembers them."""
    async with aio_channel(_endpoint(name_server), ()) as channel:
        stub = name_server_service_pb2_grpc.NameServerServiceStub(channel)
        request = name_server_pb.GetGroupMemoryRequest(cluster="DefaultCluster", broker_name=broker_name)
        answer = await stub.GetGroupMemory(request, timeout=PATIENCE_S)
        return {replica.end_offset for replica in answer.replicas}
