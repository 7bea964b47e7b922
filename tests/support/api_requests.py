"""Requests of the client API, and answers to them taken from a `BrokerAssembly` without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from google.protobuf.message import Message

from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import ServerStreamMethod, StatusCode, UnaryMethod

_message_ids = count(1)


def message(
    topic: str = "orders",
    body: bytes = b"hello",
    *,
    tag: str | None = None,
    keys: Sequence[str] = (),
    message_id: str | None = None,
    message_group: str | None = None,
    priority: int | None = None,
) -> definition.Message:
    """A message as official clients make it."""
    system = definition.SystemProperties(
        message_id=f"01{next(_message_ids):032X}" if message_id is None else message_id,
        keys=keys,
        message_type=definition.NORMAL if message_group is None else definition.FIFO,
        body_encoding=definition.IDENTITY,
        born_host="client-host",
    )
    system.born_timestamp.FromMilliseconds(1_700_000_000_000)
    if tag is not None:
        system.tag = tag
    if message_group is not None:
        system.message_group = message_group
    if priority is not None:
        system.priority, system.message_type = priority, definition.PRIORITY
    return definition.Message(topic=definition.Resource(name=topic), system_properties=system, body=body)


def send_request(*messages: definition.Message) -> pb.SendMessageRequest:
    return pb.SendMessageRequest(messages=messages)


def receive_request(
    topic: str = "orders",
    *,
    group: str = "group",
    batch_size: int = 32,
    invisible_ms: int = 10_000,
    poll_ms: int = 5_000,
    expression: str = "*",
    broker_name: str = "",
) -> pb.ReceiveMessageRequest:
    """A receive of a simple consumer."""
    request = pb.ReceiveMessageRequest(
        group=definition.Resource(name=group),
        message_queue=definition.MessageQueue(
            topic=definition.Resource(name=topic), broker=definition.Broker(name=broker_name)
        ),
        filter_expression=definition.FilterExpression(type=definition.TAG, expression=expression),
        batch_size=batch_size,
    )
    request.invisible_duration.FromMilliseconds(invisible_ms)
    request.long_polling_timeout.FromMilliseconds(poll_ms)
    return request


def ack_request(*handles: str, topic: str = "orders", group: str = "group") -> pb.AckMessageRequest:
    """Acknowledges deliveries by their handles."""
    return pb.AckMessageRequest(
        group=definition.Resource(name=group),
        topic=definition.Resource(name=topic),
        entries=[pb.AckMessageEntry(message_id=f"id-{handle}", receipt_handle=handle) for handle in handles],
    )


def call(broker: BrokerAssembly, method: str, request: Message, fake: FakeCall | None = None) -> FakeCall:
    """Calls a unary or server-streaming method by its name; the answer may come later."""
    fake = fake or FakeCall()
    fake.response_type = getattr(pb, f"{method}Response")
    entry = broker.api.method_table().methods[method]
    assert isinstance(entry, UnaryMethod | ServerStreamMethod)
    fake.request_data = request.SerializeToString()
    entry.handler(entry.request_type.FromString(fake.request_data), fake)
    if not fake.keeps_request:
        fake.request_data = b""  # As a front does.
    return fake


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished receive: one status, messages, one delivery timestamp, in this order."""

    code: int
    text: str
    messages: list[definition.Message]

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def handles(self) -> list[str]:
        return [message.system_properties.receipt_handle for message in self.messages]

    @classmethod
    def of(cls, fake: FakeCall) -> Answer:
        """Reads the stream, and checks its shape."""
        assert fake.code is StatusCode.OK, f"the receive has not ended well: {fake.code}"
        elements = [element for element in fake.sent if isinstance(element, pb.ReceiveMessageResponse)]
        kinds = [element.WhichOneof("content") for element in elements]
        assert kinds == ["status", *["message"] * (len(kinds) - 2), "delivery_timestamp"]
        return cls(elements[0].status.code, elements[0].status.message, [element.message for element in elements[1:-1]])


def receive(broker: BrokerAssembly, request: pb.ReceiveMessageRequest) -> Answer:
    """A receive that finds something, or is refused, at once."""
    return Answer.of(call(broker, "ReceiveMessage", request))
