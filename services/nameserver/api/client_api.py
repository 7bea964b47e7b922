"""What an official client asks of its access point when that is a NameServer: where a topic is.

Everything else it asks of the brokers that the answer names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service

from mqcore.metadata.topic_table import group_name_problem
from mqcore.routing.values import TopicRoute
from mqservice.route_query import RouteQueryHandler, client_id_problem, message_queue, rows_or_problem
from mqservice.rpc import Call, MethodTable, UnaryMethod

__all__ = ["client_api"]

_Code = definition.Code

# In an assignment: any queue of that broker.
_ANY_QUEUE: Final = -1


def client_api(route: Callable[[str], TopicRoute | None]) -> MethodTable:
    """The part of MessagingService that needs nothing but routes."""
    return MethodTable(
        "apache.rocketmq.v2.MessagingService",
        {
            "QueryRoute": UnaryMethod(RouteQueryHandler(route).query_route, service.QueryRouteRequest),
            "QueryAssignment": UnaryMethod(AssignmentHandler(route).query_assignment, service.QueryAssignmentRequest),
        },
        otherwise="a NameServer answers QueryRoute and QueryAssignment only; send this call to a broker of the "
        "route, or use a broker's client port as access point",
    )


class AssignmentHandler:
    """QueryAssignment without knowledge of consumer groups: every group gets the answer for an ordinary one.

    A NameServer cannot tell groups with ordered delivery apart. They are served in order all the same, as the broker
    decides what "any queue" gives out; only the spreading over queues is left to it.
    """

    def __init__(self, route: Callable[[str], TopicRoute | None]) -> None:
        self._route = route

    def query_assignment(self, request: service.QueryAssignmentRequest, call: Call) -> None:
        """One row for each broker group that has a readable queue; the same for every member of the group."""
        call.send(self._answer(request, call.metadata))
        call.finish()

    def _answer(
        self, request: service.QueryAssignmentRequest, metadata: Mapping[str, str]
    ) -> service.QueryAssignmentResponse:
        rows = client_id_problem(metadata) or rows_or_problem(self._route, request.topic.name)
        if isinstance(rows, definition.Status):
            return service.QueryAssignmentResponse(status=rows)
        group_problem = group_name_problem(request.group.name)
        if group_problem is not None:
            return _refusal(_Code.ILLEGAL_CONSUMER_GROUP, group_problem)
        first_readable = {row.broker_name: row for row in reversed(rows) if row.permission.is_readable}
        if not first_readable:
            return _refusal(_Code.FORBIDDEN, f"topic {request.topic.name} permits no reading")
        response = service.QueryAssignmentResponse(status=definition.Status(code=_Code.OK, message="OK"))
        for broker_name in sorted(first_readable):
            queue = message_queue(first_readable[broker_name], request.topic)
            queue.id = _ANY_QUEUE
            response.assignments.add(message_queue=queue)
        return response


def _refusal(code: definition.Code, message: str) -> service.QueryAssignmentResponse:
    return service.QueryAssignmentResponse(status=definition.Status(code=code, message=message))
