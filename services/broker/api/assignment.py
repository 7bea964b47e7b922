"""QueryAssignment: what the members of a push consumer group poll.

Every member gets the same answer, because members share messages and not queues: one row with queue id -1 for each
broker group, which stands for all its queues. Groups with ordered delivery get every queue by its id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from apache.rocketmq.v2 import service_pb2 as pb

from broker.api.consumer_groups import group_policy
from broker.api.services import BrokerServices
from broker.api.status_codes import Code, Outcome, ok_status, status_of
from broker.api.validation import check_client_id, check_group, check_topic
from mqcore.routing.route_table import QueueRow, queue_rows
from mqcore.routing.values import TopicRoute
from mqservice.route_query import message_queue
from mqservice.rpc import Call

__all__ = ["AssignmentHandler"]

_ANY_QUEUE: Final = -1


class AssignmentHandler:
    """Serves QueryAssignment by `route`. A slave answers too: the route is the cluster's, not its own."""

    def __init__(self, services: BrokerServices, route: Callable[[str], TopicRoute | None]) -> None:
        self._services = services
        self._route = route

    def query_assignment(self, request: pb.QueryAssignmentRequest, call: Call) -> None:
        """The readable queues of all masters that serve the topic now."""
        rows = self._readable_rows(request, call)
        if isinstance(rows, Outcome):
            call.send(pb.QueryAssignmentResponse(status=status_of(rows)))
            call.finish()
            return
        policy = group_policy(self._services.groups, request.group.name)
        response = pb.QueryAssignmentResponse(status=ok_status())
        for row in rows if policy.fifo else _one_for_each_broker(rows):
            queue = message_queue(row, request.topic)
            if not policy.fifo:
                queue.id = _ANY_QUEUE
            response.assignments.add(message_queue=queue)
        call.send(response)
        call.finish()

    def _readable_rows(self, request: pb.QueryAssignmentRequest, call: Call) -> list[QueueRow] | Outcome:
        topic = request.topic.name
        refused = check_client_id(call) or check_topic(topic) or check_group(request.group.name)
        if refused:
            return refused
        route = self._route(topic)
        rows = queue_rows(route) if route is not None else []
        if not rows:
            return Outcome(Code.TOPIC_NOT_FOUND, f"topic {topic}: no broker group serves it now")
        readable = [row for row in rows if row.permission.is_readable]
        return readable or Outcome(Code.FORBIDDEN, f"topic {topic} has no readable queue")


def _one_for_each_broker(rows: list[QueueRow]) -> list[QueueRow]:
    return list({row.broker_name: row for row in reversed(rows)}.values())[::-1]
