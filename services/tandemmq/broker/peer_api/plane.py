"""Every service of the metadata plane, which slaves, tools and the consistency job ask on `listenPort`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tandemmq.broker.peer_api.admin import AdminServicer
from tandemmq.broker.peer_api.message_queries import MessageQueryServicer
from tandemmq.broker.peer_api.metadata import MetadataServicer
from tandemmq.broker.peer_api.operations import BrokerOperationsServicer
from tandemmq.broker.peer_api.repairs import ReplicaRepairServicer
from tandemmq.broker.peer_api.replica import ReplicaServicer
from tandemmq.broker.peer_api.replica_reads import ReplicaReaderServicer
from tandemmq.broker.peer_api.traces import TraceServicer
from tandemmq.proto.admin.v1 import (
    broker_admin_service_pb2_grpc,
    broker_operations_service_pb2_grpc,
    message_query_service_pb2_grpc,
    trace_service_pb2_grpc,
)
from tandemmq.proto.broker.v1 import (
    metadata_service_pb2_grpc,
    replica_reader_service_pb2_grpc,
    replica_repair_service_pb2_grpc,
    replica_service_pb2_grpc,
)
from tandemmq.service.grpc_server import GrpcServer

__all__ = ["SERVICE_NAMES", "MetadataPlane"]

SERVICE_NAMES: Final = (
    "tandemmq.broker.v1.MetadataService",
    "tandemmq.broker.v1.ReplicaService",
    "tandemmq.broker.v1.ReplicaReaderService",
    "tandemmq.broker.v1.ReplicaRepairService",
    "tandemmq.admin.v1.BrokerAdminService",
    "tandemmq.admin.v1.BrokerOperationsService",
    "tandemmq.admin.v1.MessageQueryService",
    "tandemmq.admin.v1.TraceService",
)
"""As reflection and the health service name them."""


@dataclass(frozen=True, slots=True)
class MetadataPlane:
    """A broker's answers, by service."""

    metadata: MetadataServicer
    replica: ReplicaServicer
    reader: ReplicaReaderServicer
    repair: ReplicaRepairServicer
    admin: AdminServicer
    operations: BrokerOperationsServicer
    queries: MessageQueryServicer
    traces: TraceServicer

    def serve_on(self, server: GrpcServer) -> None:
        """Before the server's start."""
        aio_server = server.aio_server
        metadata_service_pb2_grpc.add_MetadataServiceServicer_to_server(self.metadata, aio_server)
        replica_service_pb2_grpc.add_ReplicaServiceServicer_to_server(self.replica, aio_server)
        replica_reader_service_pb2_grpc.add_ReplicaReaderServiceServicer_to_server(self.reader, aio_server)
        replica_repair_service_pb2_grpc.add_ReplicaRepairServiceServicer_to_server(self.repair, aio_server)
        broker_admin_service_pb2_grpc.add_BrokerAdminServiceServicer_to_server(self.admin, aio_server)
        broker_operations_service_pb2_grpc.add_BrokerOperationsServiceServicer_to_server(self.operations, aio_server)
        message_query_service_pb2_grpc.add_MessageQueryServiceServicer_to_server(self.queries, aio_server)
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self.traces, aio_server)
