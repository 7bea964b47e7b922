"""Every service of the metadata plane, which slaves, tools and the consistency job ask on `listenPort`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandemmq.broker.dead_letters import DeadLetterResend
from tandemmq.broker.departure import Departure
from tandemmq.broker.failover.controller import Failover
from tandemmq.broker.group_changes import GroupChanges
from tandemmq.broker.kept_tails import KeptTails
from tandemmq.broker.peer_api.admin import AdminServicer, BrokerAccessServicer
from tandemmq.broker.peer_api.lookups import MessageQueryServicer, TraceServicer
from tandemmq.broker.peer_api.members import FailoverServicer, MetadataServicer, ReplicaServicer
from tandemmq.broker.peer_api.operations import BrokerOperationsServicer
from tandemmq.broker.queries.message_queries import MessageQueries
from tandemmq.broker.replica_proof import ReplicaProof
from tandemmq.broker.runtime_settings import RuntimeSettings
from tandemmq.proto.admin.v1 import (
    broker_access_service_pb2_grpc,
    broker_admin_service_pb2_grpc,
    broker_operations_service_pb2_grpc,
    message_query_service_pb2_grpc,
    trace_service_pb2_grpc,
)
from tandemmq.proto.broker.v1 import (
    failover_service_pb2_grpc,
    metadata_service_pb2_grpc,
    replica_reader_service_pb2_grpc,
    replica_repair_service_pb2_grpc,
    replica_service_pb2_grpc,
)
from tandemmq.service.grpc_server import GrpcServer
from tandemmq.service.logging import EventMemory

if TYPE_CHECKING:
    from tandemmq.broker.parts import BrokerParts
    from tandemmq.broker.peer_api.audit import AuditServices
    from tandemmq.broker.report import BrokerReport

SERVICE_NAMES: Final = (
    "tandemmq.broker.v1.MetadataService",
    "tandemmq.broker.v1.ReplicaService",
    "tandemmq.broker.v1.ReplicaReaderService",
    "tandemmq.broker.v1.ReplicaRepairService",
    "tandemmq.broker.v1.FailoverService",
    "tandemmq.admin.v1.BrokerAdminService",
    "tandemmq.admin.v1.BrokerOperationsService",
    "tandemmq.admin.v1.BrokerAccessService",
    "tandemmq.admin.v1.MessageQueryService",
    "tandemmq.admin.v1.TraceService",
)
"""As reflection and the health service name them."""


def serve_metadata_plane(
    server: GrpcServer,
    parts: BrokerParts,
    *,
    report: BrokerReport,
    departure: Departure,
    changes: GroupChanges,
    settings: RuntimeSettings,
    queries: MessageQueries,
    audit: AuditServices,
    events: EventMemory,
    failover: Failover | None = None,
) -> None:
    """Before the server's start. Whatever depends on the role asks for it with each call."""
    aio_server = server.aio_server
    metadata_service_pb2_grpc.add_MetadataServiceServicer_to_server(
        MetadataServicer(
            tables=parts.tables.by_file,
            changes=parts.tables.changes,
            role=lambda: parts.role,
            damaged=parts.tables.damaged.keys(),
        ),
        aio_server,
    )
    replica_service_pb2_grpc.add_ReplicaServiceServicer_to_server(
        ReplicaServicer(
            log=parts.store,
            identity=parts.identity,
            replica=parts.member,
            proof=ReplicaProof(log=parts.store, replica=parts.member, role=lambda: parts.role),
            role=lambda: parts.role,
            traced_puts=parts.send_tracer.traced_puts if parts.send_tracer is not None else None,
            pages=parts.pages,
            ha_tls=parts.ha_tls is not None,
            bearers=parts.ha_bearers,
        ),
        aio_server,
    )
    replica_reader_service_pb2_grpc.add_ReplicaReaderServiceServicer_to_server(audit.reader, aio_server)
    replica_repair_service_pb2_grpc.add_ReplicaRepairServiceServicer_to_server(audit.repair, aio_server)
    broker_admin_service_pb2_grpc.add_BrokerAdminServiceServicer_to_server(
        AdminServicer(parts, report=report, departure=departure, changes=changes, settings=settings), aio_server
    )
    broker_operations_service_pb2_grpc.add_BrokerOperationsServiceServicer_to_server(
        BrokerOperationsServicer(
            parts,
            changes=changes,
            settings=settings,
            events=events,
            resend_dead_letters=DeadLetterResend(parts, queries).resend,
            kept_tails=KeptTails(
                disk=parts.disk, services=parts, queries=queries, is_system_topic=parts.is_system_topic
            ),
        ),
        aio_server,
    )
    broker_access_service_pb2_grpc.add_BrokerAccessServiceServicer_to_server(
        BrokerAccessServicer(parts.access_changes, refusal=lambda: parts.refusal), aio_server
    )
    message_query_service_pb2_grpc.add_MessageQueryServiceServicer_to_server(MessageQueryServicer(queries), aio_server)
    failover_service_pb2_grpc.add_FailoverServiceServicer_to_server(
        FailoverServicer(failover, identity=parts.identity, authority=parts.settings.failover_authority), aio_server
    )
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_traces_of(parts, queries), aio_server)


def _traces_of(parts: BrokerParts, queries: MessageQueries) -> TraceServicer:
    return TraceServicer(
        identity=parts.identity,
        recent=parts.observability.recent_spans,
        options=parts.observability.trace_options,
        find_message=lambda message_id, topic: queries.find_message(message_id, topic, slaves=parts.role.slaves()),
        min_offset=lambda: parts.store.min_offset,
        is_indexed=parts.settings.message_index_enable,
    )
