"""Topics that come into being because a client asks for their route, where the settings say so.

Clients ask for the route before they send. The master that is asked makes the topic, with as many queues as
`defaultTopicQueueNums` says, and answers once it is durable and the NameServers route it. Retry and dead letter topics
are never made so, and clients that name topics in a loop are stopped: a topic is kept for good.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tandemmq.broker.client_api.services import BrokerServices
from tandemmq.broker.client_api.validation import CLIENT_ID_HEADER, check_client_id, check_topic
from tandemmq.core.metadata.subscription_group_table import CreationLimit
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.route_messages import RouteQueryHandler
from tandemmq.service.rpc import Call

__all__ = ["NewTopics"]

_PER_SECOND: Final = 20
_PER_CLIENT_PER_SECOND: Final = 5
_TOPICS_MAX: Final = 10_000
# The NameServers route a topic a moment after the broker registered it. Clients wait 3 s for a route.
_LOOK_EVERY_MS: Final = 50
_ROUTED_WITHIN_MS: Final = 2_000
_MADE_BY_BROKERS: Final = ("%RETRY%", "%DLQ%")


class NewTopics:
    """Stands before QueryRoute. Event loop only."""

    def __init__(self, services: BrokerServices) -> None:
        self._services = services
        self._limit = CreationLimit(
            per_second=_PER_SECOND, per_client_per_second=_PER_CLIENT_PER_SECOND, count_max=_TOPICS_MAX
        )

    def query_route(self, routes: RouteQueryHandler, request: pb.QueryRouteRequest, call: Call) -> None:
        """The route, after the topic was made if it is to be."""
        services, topic = self._services, request.topic.name
        queue_count = services.options.auto_create_topic_queues
        if queue_count == 0 or not self._may_be_made(topic, call):
            routes.query_route(request, call)
            return
        until_ms = services.clock.monotonic_ms() + _ROUTED_WITHIN_MS
        services.create_topic(
            topic, queue_count=queue_count, done=partial(self._answer, routes, request, call, until_ms)
        )

    def _may_be_made(self, topic: str, call: Call) -> bool:
        services = self._services
        if services.refusal is not None or services.topics.get(topic) is not None or services.route(topic) is not None:
            return False
        if check_client_id(call) or check_topic(topic) or topic.startswith(_MADE_BY_BROKERS):
            return False
        refusal = self._limit.refusal(
            call.header(CLIENT_ID_HEADER), count=len(services.topics), now_ms=services.clock.monotonic_ms()
        )
        return refusal is None

    def _answer(self, routes: RouteQueryHandler, request: pb.QueryRouteRequest, call: Call, until_ms: int) -> None:
        services = self._services
        if services.route(request.topic.name) is None and services.clock.monotonic_ms() < until_ms:
            look_again = partial(self._answer, routes, request, call, until_ms)
            services.timers.call_later(_LOOK_EVERY_MS / 1_000, look_again)
            return
        routes.query_route(request, call)
