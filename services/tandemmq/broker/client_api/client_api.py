"""RocketMQ's client API as this broker serves it: the method table, and what the broker tells its API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tandemmq.broker.client_api.client_commands import ClientCommands
from tandemmq.broker.client_api.lite import LiteHandler
from tandemmq.broker.client_api.offsets import OffsetHandler
from tandemmq.broker.client_api.quotas import ClientQuotas
from tandemmq.broker.client_api.receive import ReceiveHandler
from tandemmq.broker.client_api.send import RecallHandler, SendHandler
from tandemmq.broker.client_api.sent_message import SendRequest
from tandemmq.broker.client_api.services import BrokerServices
from tandemmq.broker.client_api.sessions import group_policy
from tandemmq.broker.client_api.settle import AckRequest, SettleHandler
from tandemmq.broker.client_api.telemetry import TelemetryHandler
from tandemmq.broker.client_api.transactions import Transactions
from tandemmq.broker.client_api.validation import Code, Outcome, check_client_id, check_topic
from tandemmq.broker.dead_letters import DeadLetterQueues
from tandemmq.broker.put import DeliveryMeter
from tandemmq.broker.tracing.receive_tracer import ReceiveTracer
from tandemmq.core.metadata.subscription_group_table import CreationLimit
from tandemmq.core.quotas import QuotaRules
from tandemmq.core.routing.route_table import external_route
from tandemmq.core.routing.values import TopicRoute
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.route_messages import AssignmentHandler, RouteQueryHandler
from tandemmq.service.rpc import (
    BidiMethod,
    Call,
    MethodTable,
    ServerStreamMethod,
    ShortRequests,
    UnaryMethod,
)

if TYPE_CHECKING:
    from tandemmq.broker.client_api.access import ClientAccess
    from tandemmq.broker.tracing.send_tracer import BrokerTracing

_REQUEST_BYTES_MAX: Final = 2 << 20
"""Of all but sends: 30,000 of the longest lite topics of one subscription, or every stack of a client."""
_ASK_AGAIN: Final = Outcome(Code.MESSAGE_NOT_FOUND, "nothing yet; users or policies have changed, ask again")
_STOPPING: Final = Outcome(Code.FORBIDDEN, "the broker is stopping", retryable=True)
_MASTER_CHANGES: Final = Outcome(Code.MESSAGE_NOT_FOUND, "nothing yet; the master of the group changes, ask again")
SERVICE_NAME: Final = "apache.rocketmq.v2.MessagingService"


class ClientApi:
    """All handlers of one broker. Event loop only.

    The broker calls `message_arrived` for each put that may be delivered, `housekeep` about once a second, and `drain`
    when it stops serving.
    """

    def __init__(
        self,
        services: BrokerServices,
        tracing: BrokerTracing | None = None,
        access: ClientAccess | None = None,
        *,
        source_of: Callable[[Call], str] | None = None,
    ) -> None:
        """`access` guards every method; None: whoever reaches the port may call them. `source_of` tells the address of
        a call that another broker passed on; None: nobody vouches for it."""
        self._services = services
        self._access = access
        self.delivery_meter: Final = DeliveryMeter()
        tracer = ReceiveTracer(tracing) if tracing is not None else None
        dead_letters = self._dead_letters = DeadLetterQueues(services, self.delivery_meter)
        self._telemetry = TelemetryHandler(services)
        self.commands: Final = ClientCommands(services, self._telemetry)
        self.transactions: Final = Transactions(services, self._telemetry.publishers)
        self.quotas: Final = ClientQuotas(
            clock=services.clock,
            timers=services.timers,
            leases=services.leases,
            user_of=None if access is None else access.user_of,
            source_of=source_of,
        )
        self._receive = ReceiveHandler(services, dead_letters, self.delivery_meter, tracer, self.quotas)
        # What the broker tells receives; called for every put.
        self.message_arrived: Final = self._receive.message_arrived
        self.message_held_back: Final = self._receive.message_held_back
        self.confirmed: Final = self._receive.confirmed
        self.passed_on_unread: Final = self._receive.passed_on_unread
        self.lite: Final = LiteHandler(services, self._telemetry, arrived=self._receive.message_arrived)
        self._receive.lite = self.lite
        self._send = SendHandler(services, self.transactions, self.lite, self.quotas)
        self.deduplication: Final = self._send.deduplication
        self._settle = SettleHandler(
            services,
            dead_letters,
            settled=self._receive.wake_visible,
            lite_settled=self.lite.settled,
            tracer=tracer,
        )
        self._recall = RecallHandler(services)
        self._offsets = OffsetHandler(services, self._receive, dead_letters)
        self._new_topics = NewTopics(services)

    def change_quotas(self, rules: QuotaRules) -> None:
        """From now on; without rules no call is looked at for their sake."""
        self.quotas.change(rules)
        self._send.is_limited = self.quotas.limits_sends
        self._receive.is_limited = self.quotas.limits_receives

    @property
    def waiting_receive_count(self) -> int:
        return self._receive.waiting_count

    def method_table(self) -> MethodTable:
        """What is served, for any front."""
        return self._method_table(self._services.route)

    def external_method_table(self) -> MethodTable:
        """The same for clients outside the cluster's network: routes name the brokers' external endpoints."""
        return self._method_table(self._external_route)

    def _external_route(self, topic: str) -> TopicRoute | None:
        route = self._services.route(topic)
        return external_route(route) if route is not None else None

    def _method_table(self, route: Callable[[str], TopicRoute | None]) -> MethodTable:
        table = MethodTable(
            SERVICE_NAME,
            {
                "QueryRoute": UnaryMethod(
                    partial(self._new_topics.query_route, RouteQueryHandler(route)), pb.QueryRouteRequest
                ),
                "Heartbeat": UnaryMethod(self._telemetry.heartbeat, pb.HeartbeatRequest),
                "SendMessage": UnaryMethod(self._send.send_message, SendRequest),
                "RecallMessage": UnaryMethod(self._recall.recall_message, pb.RecallMessageRequest),
                "QueryAssignment": UnaryMethod(
                    AssignmentHandler(route, is_ordered=self._is_ordered).query_assignment, pb.QueryAssignmentRequest
                ),
                "ReceiveMessage": ServerStreamMethod(self._receive.receive_message, pb.ReceiveMessageRequest),
                "AckMessage": UnaryMethod(self._settle.ack_message, AckRequest),
                "ChangeInvisibleDuration": UnaryMethod(
                    self._settle.change_invisible_duration, pb.ChangeInvisibleDurationRequest
                ),
                "ForwardMessageToDeadLetterQueue": UnaryMethod(
                    self._settle.forward_to_dead_letter_queue, pb.ForwardMessageToDeadLetterQueueRequest
                ),
                "EndTransaction": UnaryMethod(self.transactions.end_transaction, pb.EndTransactionRequest),
                "PullMessage": ServerStreamMethod(self._offsets.pull_message, pb.PullMessageRequest),
                "GetOffset": UnaryMethod(self._offsets.get_offset, pb.GetOffsetRequest),
                "UpdateOffset": UnaryMethod(self._offsets.update_offset, pb.UpdateOffsetRequest),
                "QueryOffset": UnaryMethod(self._offsets.query_offset, pb.QueryOffsetRequest),
                "SyncLiteSubscription": UnaryMethod(self.lite.sync_lite_subscription, pb.SyncLiteSubscriptionRequest),
                "Telemetry": BidiMethod(self._telemetry.telemetry, pb.TelemetryCommand),
                "NotifyClientTermination": UnaryMethod(
                    self._telemetry.notify_client_termination, pb.NotifyClientTerminationRequest
                ),
            },
            otherwise="this broker does not offer the method yet",
        )
        methods = {
            name: method
            if name == "SendMessage"
            else replace(method, request_type=ShortRequests(method.request_type, _REQUEST_BYTES_MAX))
            for name, method in table.methods.items()
        }
        table = replace(table, methods=methods)
        return table if self._access is None else self._access.guard(table)

    def _is_ordered(self, group: str) -> bool:
        return group_policy(self._services.groups, group).fifo

    def access_changed(self) -> None:
        """Users or policies are others: who waits for messages asks again, and is judged anew."""
        self._receive.end_polls(_ASK_AGAIN)

    def consumes_anew(self, group: str, topic: str) -> None:
        """An operator set the group back in the topic, or removed one of them; an empty name means all."""
        self._dead_letters.forget(group, topic)
        if not group or not topic:
            self.lite.forget(group, topic)
        if not group:
            self._services.lite_topics.forget_parent(topic)
            self.deduplication.forget(topic)
            # Whoever waits for its messages is told at the end of this turn, when the topic is gone.
            self._receive.message_arrived(topic)

    def role_begins(self) -> None:
        """This broker is about to load its group's leases, and served before perhaps. Since then clients called another
        broker, and operators acted there: what is remembered of both is old."""
        self._services.sessions.clear()
        self._dead_letters.forget("", "")
        self.lite.role_changed()

    def housekeep(self) -> None:
        """Forgets silent clients and ends leases whose time is over."""
        services = self._services
        self.quotas.housekeep()
        services.sessions.expire(now_ms=services.clock.monotonic_ms())
        services.leases.expire(services.clock.monotonic_ms())
        services.persist_leases()
        self._receive.wake_visible()
        self._receive.forget_shares()
        self.transactions.look()
        self.lite.housekeep()

    def give_no_more(self, *, is_stopping: bool) -> None:
        """Receives that wait end, without messages; later ones are refused, passed on or held back."""
        self._receive.end_polls(_STOPPING if is_stopping else _MASTER_CHANGES)

    def drain(self, *, is_stopping: bool = True) -> None:
        """Ends what would otherwise wait: long polls and Telemetry streams.

        New requests are refused by `refusal`; where this broker is not `is_stopping` they are passed on, or wait for
        the next master. Then receives find nothing and come again at once: official clients pause after a refusal, and
        tell their users of it.
        """
        self.transactions.stop()
        self._receive.end_polls(_STOPPING if is_stopping else _MASTER_CHANGES)
        self._telemetry.end_streams()


# Topics that come into being because a client asks for their route, where the settings say so.
#
# Clients ask for the route before they send. The master that is asked makes the topic, with as many queues as
# `defaultTopicQueueNums` says, and answers once it is durable and the NameServers route it. Retry and dead letter
# topics are never made so, and clients that name topics in a loop are stopped: a topic is kept for good.

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
            per_second=_PER_SECOND,
            per_client_per_second=_PER_CLIENT_PER_SECOND,
            count_max=_TOPICS_MAX,
            is_there=lambda topic: services.topics.get(topic) is not None,
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
            topic,
            services.client_id_of(call),
            services.whose(call),
            count=len(services.topics),
            now_ms=services.clock.monotonic_ms(),
        )
        return refusal is None

    def _answer(self, routes: RouteQueryHandler, request: pb.QueryRouteRequest, call: Call, until_ms: int) -> None:
        services = self._services
        if services.route(request.topic.name) is None and services.clock.monotonic_ms() < until_ms:
            look_again = partial(self._answer, routes, request, call, until_ms)
            services.timers.call_later(_LOOK_EVERY_MS / 1_000, look_again)
            return
        routes.query_route(request, call)
