"""Asks a broker process through its admin plane; for tests and benchmarks."""

from __future__ import annotations

import grpc
from tandemmq.admin.v1 import broker_admin_service_pb2 as pb
from tandemmq.admin.v1 import broker_admin_service_pb2_grpc

from support.cluster_processes import ServiceProcess


def _endpoint(process: ServiceProcess) -> str:
    return f"127.0.0.1:{process.ports['listenPort']}"


async def create_topic(process: ServiceProcess, topic: str, *, queues: int = 8, message_type: str = "NORMAL") -> None:
    """Creates a topic on one master."""
    async with grpc.aio.insecure_channel(_endpoint(process)) as channel:
        stub = broker_admin_service_pb2_grpc.BrokerAdminServiceStub(channel)
        request = pb.UpdateTopicRequest(
            topic=topic, read_queue_count=queues, write_queue_count=queues, message_type=message_type
        )
        await stub.UpdateTopic(request, timeout=10)


async def broker_status(process: ServiceProcess) -> pb.GetBrokerStatusResponse:
    """Offsets, slaves and counters of one broker."""
    async with grpc.aio.insecure_channel(_endpoint(process)) as channel:
        stub = broker_admin_service_pb2_grpc.BrokerAdminServiceStub(channel)
        status: pb.GetBrokerStatusResponse = await stub.GetBrokerStatus(pb.GetBrokerStatusRequest(), timeout=10)
        return status
