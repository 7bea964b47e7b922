"""QueryRoute of RocketMQ's client API, served by NameServer and broker: either may be a client's access point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service

from mqcore.metadata.topic_table import topic_name_problem
from mqcore.routing.route_table import QueuePermission, QueueRow, queue_rows
from mqcore.routing.values import AddressScheme, TopicRoute
from mqservice.rpc import Call

__all__ = ["CLIENT_ID_HEADER", "RouteQueryHandler", "client_id_problem", "message_queue", "rows_or_problem"]

CLIENT_ID_HEADER: Final = "x-mq-client-id"

_Code = definition.Code

_PERMISSIONS: Final[Mapping[QueuePermission, definition.Permission]] = MappingProxyType(
    {
        QueuePermission.READ: definition.READ,
        QueuePermission.WRITE: definition.WRITE,
        QueuePermission.READ_WRITE: definition.READ_WRITE,
    }
)
_SCHEMES: Final[Mapping[AddressScheme, definition.AddressScheme]] = MappingProxyType(
    {
        AddressScheme.IPV4: definition.IPv4,
        AddressScheme.IPV6: definition.IPv6,
        AddressScheme.DOMAIN_NAME: definition.DOMAIN_NAME,
    }
)


class RouteQueryHandler:
    """Serves QueryRoute over whatever knows the routes. Stateless; answers in place."""

    def __init__(self, route: Callable[[str], TopicRoute | None]) -> None:
        self._route = route

    def query_route(self, request: service.QueryRouteRequest, call: Call) -> None:
        """One row per queue that can be used now. Never OK without a row: Rust divides by their number."""
        call.send(self._answer(request, call.metadata))
        call.finish()

    def _answer(self, request: service.QueryRouteRequest, metadata: Mapping[str, str]) -> service.QueryRouteResponse:
        rows = (
            client_id_problem(metadata)
            or _endpoints_problem(request.endpoints)
            or rows_or_problem(self._route, request.topic.name)
        )
        if isinstance(rows, definition.Status):
            return service.QueryRouteResponse(status=rows)
        return service.QueryRouteResponse(
            status=definition.Status(code=_Code.OK, message="OK"),
            message_queues=[message_queue(row, request.topic) for row in rows],
        )


def client_id_problem(metadata: Mapping[str, str]) -> definition.Status | None:
    """Every client names itself; the id is opaque."""
    if metadata.get(CLIENT_ID_HEADER, "").strip():
        return None
    return definition.Status(code=_Code.CLIENT_ID_REQUIRED, message=f"the request has no {CLIENT_ID_HEADER} header")


def rows_or_problem(route: Callable[[str], TopicRoute | None], topic: str) -> list[QueueRow] | definition.Status:
    """Rows of a topic, at least one; or why there are none."""
    problem = topic_name_problem(topic)
    if problem is not None:
        return definition.Status(code=_Code.ILLEGAL_TOPIC, message=problem)
    found = route(topic)
    if found is None:
        return definition.Status(code=_Code.TOPIC_NOT_FOUND, message=f"no live broker has topic {topic}")
    rows = queue_rows(found)
    if not rows:
        # The two causes have different remedies, so the text tells them apart; the code is the same for clients.
        has_master = any(0 in group.endpoints for group in found.brokers)
        reason = "permits neither reading nor writing" if has_master else "has no live master"
        return definition.Status(code=_Code.TOPIC_NOT_FOUND, message=f"topic {topic} {reason}")
    return rows


def message_queue(row: QueueRow, topic: definition.Resource) -> definition.MessageQueue:
    """A row as clients read it. `topic` is echoed as requested, namespace included: clients match by it."""
    endpoints = definition.Endpoints(
        scheme=_SCHEMES[row.address.scheme],
        addresses=[definition.Address(host=row.address.host, port=row.address.port)],
    )
    return definition.MessageQueue(
        topic=topic,
        id=row.queue_id,
        permission=_PERMISSIONS[row.permission],
        broker=definition.Broker(name=row.broker_name, id=row.broker_id, endpoints=endpoints),
        accept_message_types=row.accept_types,
    )


def _endpoints_problem(endpoints: definition.Endpoints) -> definition.Status | None:
    """The access point as the client wrote it. Only its form matters: the answer depends on the topic alone."""
    if endpoints.scheme not in _SCHEMES.values():
        reason = "the access point has no address scheme"
    elif not endpoints.addresses:
        reason = "the access point has no address"
    elif any(not address.host.strip() or not 0 < address.port < 65_536 for address in endpoints.addresses):
        reason = "an address of the access point has no host or no port from 1 to 65535"
    else:
        return None
    return definition.Status(code=_Code.ILLEGAL_ACCESS_POINT, message=reason)
