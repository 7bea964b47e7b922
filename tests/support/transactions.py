"""Transactions of the client API against a `BrokerAssembly`: halves, their ends, and producers that are asked."""

from __future__ import annotations

from support.api_requests import call, message, send_request
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import BidiMethod, StreamHandler

TOPIC = "payments"


def half_message(body: bytes = b"hello", *, topic: str = TOPIC, recovery_ms: int | None = None) -> definition.Message:
    """A message of a transaction, as official clients make it."""
    sent = message(topic, body, tag="paid", keys=["order-1"])
    sent.system_properties.message_type = definition.TRANSACTION
    if recovery_ms is not None:
        sent.system_properties.orphaned_transaction_recovery_duration.FromMilliseconds(recovery_ms)
    return sent


def send_half(broker: BrokerAssembly, body: bytes = b"hello", *, recovery_ms: int | None = None) -> pb.SendResultEntry:
    sent = half_message(body, recovery_ms=recovery_ms)
    response = call(broker, "SendMessage", send_request(sent)).only(pb.SendMessageResponse)
    [entry] = response.entries
    return entry


def end(
    broker: BrokerAssembly,
    half: pb.SendResultEntry,
    resolution: definition.TransactionResolution,
    *,
    topic: str = TOPIC,
) -> definition.Status:
    """Commits or rolls back, as the half's producer does."""
    request = pb.EndTransactionRequest(
        topic=definition.Resource(name=topic),
        message_id=half.message_id,
        transaction_id=half.transaction_id,
        resolution=resolution,
        source=definition.SOURCE_CLIENT,
        trace_context="trace",
    )
    return call(broker, "EndTransaction", request).only(pb.EndTransactionResponse).status


def bodies_in(broker: BrokerAssembly, topic: str = TOPIC) -> list[bytes]:
    """Of all messages of a topic, in the order of the log."""
    found: list[tuple[int, bytes]] = []
    for queue in broker.store.queues:
        if queue.topic == topic:
            entries = queue.read(queue.min_offset, queue.max_offset - queue.min_offset)
            found += [(entry.physical_offset, broker.store.message_at(entry.physical_offset).body) for entry in entries]
    return [body for _, body in sorted(found)]


class Producer:
    """A connected producer with its Telemetry stream."""

    def __init__(self, broker: BrokerAssembly, *topics: str, client_id: str = "producer@1") -> None:
        self.call = FakeCall({"x-mq-client-id": client_id})
        method = broker.api.method_table().methods["Telemetry"]
        assert isinstance(method, BidiMethod)
        self.stream: StreamHandler[pb.TelemetryCommand] = method.handler(self.call)
        self.publish(*topics)

    def publish(self, *topics: str) -> None:
        """Says what it sends to."""
        publishing = definition.Publishing(topics=[definition.Resource(name=topic) for topic in topics])
        settings = definition.Settings(client_type=definition.PRODUCER, publishing=publishing)
        self.stream.message(pb.TelemetryCommand(settings=settings))

    @property
    def asked(self) -> list[pb.RecoverOrphanedTransactionCommand]:
        commands = [command for command in self.call.sent if isinstance(command, pb.TelemetryCommand)]
        return [
            command.recover_orphaned_transaction_command
            for command in commands
            if command.HasField("recover_orphaned_transaction_command")
        ]
