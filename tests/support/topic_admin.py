"""Asks a broker process through its admin plane; for tests and benchmarks."""

from __future__ import annotations

from support.cluster_processes import ServiceProcess
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as pb
from tandemmq.proto.admin.v1 import broker_admin_service_pb2_grpc
from tandemmq.proto.broker.v1 import replica_service_pb2 as replica_pb
from tandemmq.proto.broker.v1 import replica_service_pb2_grpc
from tandemmq.service.service_tls import aio_channel


def _endpoint(process: ServiceProcess) -> str:
    return f"{process.host}:{process.ports['listenPort']}"


async def create_topic(process: ServiceProcess, topic: str, *, queues: int = 8, message_type: str = "NORMAL") -> None:
    """Creates a topic on one master."""
    async with aio_channel(_endpoint(process), ()) as channel:
        stub = broker_admin_service_pb2_grpc.BrokerAdminServiceStub(channel)
        request = pb.UpdateTopicRequest(
            topic=topic, read_queue_count=queues, write_queue_count=queues, message_type=message_type
        )
        await stub.UpdateTopic(request, timeout=10)


async def create_group(process: ServiceProcess, group: str, *, ordered: bool = False) -> None:
    """Creates a consumer group on one master."""
    async with aio_channel(_endpoint(process), ()) as channel:
        stub = broker_admin_service_pb2_grpc.BrokerAdminServiceStub(channel)
        request = pb.UpdateSubscriptionGroupRequest(group=group, consume_message_orderly=ordered)
        await stub.UpdateSubscriptionGroup(request, timeout=10)


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
        answer: replica_pb.AcceptLossResponse = await stub.AcceptLoss(request, timeout=10, wait_for_ready=True)
        return answer


async def broker_status(process: ServiceProcess) -> pb.GetBrokerStatusResponse:
    """Offsets, slaves and counters of one broker."""
    async with aio_channel(_endpoint(process), ()) as channel:
        stub = broker_admin_service_pb2_grpc.BrokerAdminServiceStub(channel)
        status: pb.GetBrokerStatusResponse = await stub.GetBrokerStatus(pb.GetBrokerStatusRequest(), timeout=10)
        return status
