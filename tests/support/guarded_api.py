"""A broker whose client API is guarded, and what is asked of it."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import Message

from support.api_requests import ack_request, message, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from tandemmq.broker.access_changes import AccessChanges
from tandemmq.broker.client_api.access import ClientAccess, SignatureZones
from tandemmq.broker.client_api.client_api import ClientApi
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.core.access.sealed_secrets import SecretKeys
from tandemmq.core.access.signature import sign
from tandemmq.core.access.users_and_policies import (
    Decision,
    PolicyEntry,
    Resource,
    actions_of,
    source_ips_of,
)
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import BidiMethod

KEYS = SecretKeys([b"k" * 32])


UNAUTHORIZED = definition.UNAUTHORIZED


SECRET = "open sesame"


UTC_ALONE = SignatureZones((0,), with_local=False)


class GuardedBroker:
    """A broker whose client API is guarded; user ann has a secret and no policy."""

    def __init__(self, *, authorizes: bool = True, zones: SignatureZones = UTC_ALONE) -> None:
        self.time = ManualTime()
        self.broker = BrokerAssembly(clock=self.time, timers=self.time)
        self.tables = MetadataTables(SimulatedDisk(random.Random(1)), self.time, topics_changed=lambda: None)
        self.changes = AccessChanges(self.tables, keys=KEYS, clock=self.time)
        self.access = ClientAccess(
            users=self.tables.users,
            acls=self.tables.acls,
            keys=KEYS,
            authorizes=authorizes,
            zones=zones,
            clock=self.time,
            timers=self.time,
            revoked=lambda: self.api.access_changed(),
            has_room=self.broker.sessions.has_room,
        )
        self.broker.client_id_of = self.access.client_id_of
        self.broker.whose = self.access.user_of
        self.tables.access_changed = self.access.changed
        self.api = self.broker.api = ClientApi(self.broker, None, self.access, source_of=self.access.sources.source)
        self.methods = self.api.method_table().methods
        self.broker.add_topic("orders")
        self.changes.put_user("ann", secret=SECRET)

    def allow(
        self, resource: str, actions: str, *, ips: str = "", decision: Decision = Decision.ALLOW, user: str = "ann"
    ) -> None:
        entry = PolicyEntry(Resource.parse(resource), actions_of(actions), decision, source_ips_of(ips))
        self.changes.put_entries(f"User:{user}", [entry])
        self.time.end_turn()

    def headers(self, user: str = "ann", secret: str = SECRET, *, off_ms: int = 0) -> dict[str, str]:
        date = datetime.fromtimestamp((self.time.wall_ms() + off_ms) / 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")
        signature = sign(secret.encode(), date).hex()
        text = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
        return {"x-mq-client-id": "client@1", "authorization": text, "x-mq-date-time": date}

    def headers_of(self, user: str, client_id: str) -> dict[str, str]:
        return self.headers(user, SECRET if user == "ann" else f"sesame of {user}") | {"x-mq-client-id": client_id}

    def call(
        self,
        method: str,
        request: Message,
        headers: dict[str, str] | None = None,
        *,
        peer: str = "ipv4:127.0.0.1:50000",
    ) -> FakeCall:
        fake = FakeCall(metadata=self.headers() if headers is None else headers, peer=peer)
        fake.response_type = getattr(pb, f"{method}Response")
        entry: Any = self.methods[method]
        entry.handler(entry.request_type.FromString(request.SerializeToString()), fake)
        return fake

    def send_code(self, headers: dict[str, str] | None = None, *, peer: str = "ipv4:127.0.0.1:50000") -> int:
        answer = self.call("SendMessage", send_request(message()), headers, peer=peer)
        return answer.only(pb.SendMessageResponse).status.code


def open_stream(guarded: GuardedBroker, headers: dict[str, str] | None = None) -> tuple[FakeCall, Any]:
    fake = FakeCall(metadata=guarded.headers() if headers is None else headers)
    method = guarded.methods["Telemetry"]
    assert isinstance(method, BidiMethod)
    return fake, method.handler(fake)


def producer_settings(*topics: str) -> pb.TelemetryCommand:
    settings = definition.Settings(client_type=definition.PRODUCER)
    settings.publishing.topics.extend(definition.Resource(name=topic) for topic in topics)
    settings.publishing.SetInParent()
    return pb.TelemetryCommand(settings=settings)


def consumer_settings(group: str, *topics: str) -> pb.TelemetryCommand:
    settings = definition.Settings(client_type=definition.SIMPLE_CONSUMER)
    settings.subscription.group.name = group
    for topic in topics:
        every = definition.FilterExpression(type=definition.TAG, expression="*")
        settings.subscription.subscriptions.add(topic=definition.Resource(name=topic), expression=every)
    return pb.TelemetryCommand(settings=settings)


def bob(guarded: GuardedBroker, client_id: str = "client@1") -> dict[str, str]:
    return guarded.headers_of("bob", client_id)


def request_of(method: str, topic: str, group: str) -> Message:
    """As a client makes it."""
    named, of = definition.Resource(name=topic), definition.Resource(name=group)
    queue = definition.MessageQueue(topic=named)
    requests: dict[str, Message] = {
        "SendMessage": send_request(message(topic)),
        "QueryRoute": pb.QueryRouteRequest(topic=named),
        "QueryAssignment": pb.QueryAssignmentRequest(topic=named, group=of),
        "ReceiveMessage": receive_request(topic, group=group),
        "AckMessage": ack_request("handle", topic=topic, group=group),
        "ChangeInvisibleDuration": pb.ChangeInvisibleDurationRequest(topic=named, group=of),
        "ForwardMessageToDeadLetterQueue": pb.ForwardMessageToDeadLetterQueueRequest(topic=named, group=of),
        "EndTransaction": pb.EndTransactionRequest(topic=named),
        "RecallMessage": pb.RecallMessageRequest(topic=named),
        "PullMessage": pb.PullMessageRequest(message_queue=queue, group=of),
        "GetOffset": pb.GetOffsetRequest(message_queue=queue, group=of),
        "UpdateOffset": pb.UpdateOffsetRequest(message_queue=queue, group=of),
        "QueryOffset": pb.QueryOffsetRequest(message_queue=queue),
        "SyncLiteSubscription": pb.SyncLiteSubscriptionRequest(topic=named, group=of),
        "Heartbeat": pb.HeartbeatRequest(client_type=definition.PUSH_CONSUMER, group=of),
        "NotifyClientTermination": pb.NotifyClientTerminationRequest(group=of),
    }
    return requests[method]


WANTED: dict[str, tuple[set[str], set[str]]] = {
    # One of these on the topic, and one of these on the group; as docs/operations/users-and-policies.md has it.
    "SendMessage": ({"Pub"}, set()),
    "QueryRoute": ({"Pub", "Sub", "Get"}, set()),
    "QueryAssignment": ({"Sub"}, {"Sub"}),
    "ReceiveMessage": ({"Sub"}, {"Sub"}),
    "AckMessage": ({"Sub"}, {"Sub"}),
    "ChangeInvisibleDuration": ({"Sub"}, {"Sub"}),
    "ForwardMessageToDeadLetterQueue": ({"Sub"}, {"Sub"}),
    "EndTransaction": ({"Pub"}, set()),
    "RecallMessage": ({"Pub"}, set()),
    "PullMessage": ({"Sub"}, {"Sub"}),
    "GetOffset": ({"Sub", "Get"}, {"Sub", "Get"}),
    "UpdateOffset": ({"Sub", "Update"}, {"Sub", "Update"}),
    "QueryOffset": ({"Sub", "Get"}, set()),
    "SyncLiteSubscription": ({"Sub"}, {"Sub"}),
    "Heartbeat": (set(), {"Sub"}),
    "NotifyClientTermination": (set(), {"Sub"}),
}
