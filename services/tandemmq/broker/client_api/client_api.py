"""RocketMQ's client API as this broker serves it: the method table, and what the broker tells its API."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tandemmq.broker.client_api.access import ClientAccess
from tandemmq.broker.client_api.client_commands import ClientCommands
from tandemmq.broker.client_api.lite import LiteHandler
from tandemmq.broker.client_api.new_topics import NewTopics
from tandemmq.broker.client_api.offsets import OffsetHandler
from tandemmq.broker.client_api.quotas import ClientQuotas
from tandemmq.broker.client_api.recall import RecallHandler
from tandemmq.broker.client_api.receive import ReceiveHandler
from tandemmq.broker.client_api.send import SendHandler
from tandemmq.broker.client_api.sent_message import SendRequest
from tandemmq.broker.client_api.services import BrokerServices
from tandemmq.broker.client_api.settle import AckRequest, SettleHandler
from tandemmq.broker.client_api.telemetry import AssignmentHandler, TelemetryHandler
from tandemmq.broker.client_api.transactions import Transactions
from tandemmq.broker.client_api.validation import Code, Outcome
from tandemmq.broker.dead_letters import DeadLetterQueues
from tandemmq.broker.put import DeliveryMeter
from tandemmq.broker.tracing.receive_tracer import ReceiveTracer
from tandemmq.broker.tracing.send_tracer import BrokerTracing
from tandemmq.core.quotas import QuotaRules
from tandemmq.core.routing.route_table import external_route
from tandemmq.core.routing.values import TopicRoute
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.route_messages import RouteQueryHandler
from tandemmq.service.rpc import BidiMethod, MethodTable, ServerStreamMethod, UnaryMethod

__all__ = ["SERVICE_NAME", "ClientApi"]

_ASK_AGAIN: Final = Outcome(Code.MESSAGE_NOT_FOUND, "nothing yet; users or policies have changed, ask again")
SERVICE_NAME: Final = "apache.rocketmq.v2.MessagingService"


class ClientApi:
    """All handlers of one broker. Event loop only.

    The broker calls `message_arrived` for each put that may be delivered, `housekeep` about once a second, and `drain`
    when it stops serving.
    """

    def __init__(
        self, services: BrokerServices, tracing: BrokerTracing | None = None, access: ClientAccess | None = None
    ) -> None:
        """`access` guards every method; None: whoever reaches the port may call them."""
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
        )
        self._receive = ReceiveHandler(services, dead_letters, self.delivery_meter, tracer, self.quotas)
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
        """Long polls held open now."""
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
                    AssignmentHandler(self._services, route).query_assignment, pb.QueryAssignmentRequest
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
        return table if self._access is None else self._access.guard(table)

    def access_changed(self) -> None:
        """Users or policies are others: who waits for messages asks again, and is judged anew."""
        self._receive.end_polls(_ASK_AGAIN)

    def message_arrived(self, topic: str) -> None:
        """A message of the topic may be delivered now."""
        self._receive.message_arrived(topic)

    def message_held_back(self, topic: str) -> None:
        """A message of the topic may be delivered once the in-sync set holds it."""
        self._receive.message_held_back(topic)

    def confirmed(self) -> None:
        """The in-sync set holds more of the log, or is another."""
        self._receive.confirmed()

    def consumes_anew(self, group: str, topic: str) -> None:
        """An operator set the group back in the topic, or removed one of them; an empty name means all."""
        self._dead_letters.forget(group, topic)
        if not group:
            self._services.lite_topics.forget_parent(topic)
            self.deduplication.forget(topic)

    def housekeep(self) -> None:
        """Forgets silent clients and ends leases whose time is over."""
        services = self._services
        self.quotas.housekeep()
        services.sessions.expire(now_ms=services.clock.monotonic_ms())
        services.leases.expire(services.clock.monotonic_ms())
        services.persist_leases()
        self._receive.wake_visible()
        self.transactions.look()
        self.lite.housekeep()

    def drain(self) -> None:
        """Ends what would otherwise wait: long polls and Telemetry streams. New requests are refused by `refusal`."""
        self.transactions.stop()
        self._receive.end_polls()
        self._telemetry.end_streams()
