"""Routes, broker liveness and queue choice."""

from mqcore.routing.address import Address, AddressScheme, connection_end, host_port, parse_address
from mqcore.routing.queue_rows import QueuePermission, QueueRow, accepted_message_types, external_route, queue_rows
from mqcore.routing.route_table import (
    ORDER_TOPIC_NAMESPACE,
    HeartbeatAnswer,
    HeartbeatStatus,
    Registered,
    RegistrationRefused,
    RouteTable,
)
from mqcore.routing.values import (
    MASTER_ID,
    PERMISSION_READ,
    PERMISSION_WRITE,
    BrokerData,
    BrokerEndpoints,
    BrokerIdentity,
    QueueData,
    RegisteredBroker,
    Registration,
    ReplicaMemory,
    RouteSnapshot,
    TopicQueues,
    TopicRoute,
)

__all__ = [
    "MASTER_ID",
    "ORDER_TOPIC_NAMESPACE",
    "PERMISSION_READ",
    "PERMISSION_WRITE",
    "Address",
    "AddressScheme",
    "BrokerData",
    "BrokerEndpoints",
    "BrokerIdentity",
    "HeartbeatAnswer",
    "HeartbeatStatus",
    "QueueData",
    "QueuePermission",
    "QueueRow",
    "Registered",
    "RegisteredBroker",
    "Registration",
    "RegistrationRefused",
    "ReplicaMemory",
    "RouteSnapshot",
    "RouteTable",
    "TopicQueues",
    "TopicRoute",
    "accepted_message_types",
    "connection_end",
    "external_route",
    "host_port",
    "parse_address",
    "queue_rows",
]
