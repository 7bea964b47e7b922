"""Scenarios 1 to 8: who asks, where queues are, what clients are told about themselves."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from contract.client_api.conftest import Endpoint
from contract.client_api.raw_client import RawClient
from support.api_requests import message, receive_request
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

Code = definition.Code


@pytest.mark.parametrize(
    ("method", "request_", "response"),
    [
        ("QueryRoute", pb.QueryRouteRequest(), pb.QueryRouteResponse),
        ("Heartbeat", pb.HeartbeatRequest(), pb.HeartbeatResponse),
        ("SendMessage", pb.SendMessageRequest(), pb.SendMessageResponse),
        ("QueryAssignment", pb.QueryAssignmentRequest(), pb.QueryAssignmentResponse),
        ("AckMessage", pb.AckMessageRequest(), pb.AckMessageResponse),
        (
            "ForwardMessageToDeadLetterQueue",
            pb.ForwardMessageToDeadLetterQueueRequest(),
            pb.ForwardMessageToDeadLetterQueueResponse,
        ),
        ("ChangeInvisibleDuration", pb.ChangeInvisibleDurationRequest(), pb.ChangeInvisibleDurationResponse),
        ("NotifyClientTermination", pb.NotifyClientTerminationRequest(), pb.NotifyClientTerminationResponse),
    ],
)
async def test_01_unary_call_without_client_id(
    client: RawClient, method: str, request_: Message, response: type[pb.HeartbeatResponse]
) -> None:
    answer = await client.unary(method, request_, response, client_id=None)
    assert answer.status.code == Code.CLIENT_ID_REQUIRED


async def test_01_receive_without_client_id(client: RawClient) -> None:
    elements = [element async for element in client.start_receive(pb.ReceiveMessageRequest(), client_id=None)]
    assert elements[0].status.code == Code.CLIENT_ID_REQUIRED


async def test_01_telemetry_without_client_id(client: RawClient) -> None:
    async with client.telemetry(client_id=None) as stream:
        [command] = [command async for command in stream]
        assert command.status.code == Code.CLIENT_ID_REQUIRED
        assert await stream.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("topic", "code"),
    [("unknown", Code.TOPIC_NOT_FOUND), ("a b", Code.ILLEGAL_TOPIC), ("x" * 128, Code.ILLEGAL_TOPIC)],
)
async def test_02_route_of_a_topic_that_is_none(client: RawClient, topic: str, code: int) -> None:
    assert (await client.query_route(topic)).status.code == code


async def test_03_route_has_a_row_for_each_queue(client: RawClient, endpoint: Endpoint) -> None:
    rows = (await client.query_route("orders")).message_queues
    assert [row.id for row in rows] == list(range(8))
    for row in rows:
        assert row.permission == definition.READ_WRITE
        assert (row.broker.name, row.broker.id) == ("broker-a", 0)
        assert row.broker.endpoints.scheme == definition.IPv4
        [address] = row.broker.endpoints.addresses
        assert f"{address.host}:{address.port}" == endpoint.address
        assert list(row.accept_message_types) == [definition.NORMAL]


async def test_04_route_without_change_is_identical(client: RawClient) -> None:
    first, second = [await client.query_route("mixed") for _ in range(2)]
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


def producer() -> pb.TelemetryCommand:
    return pb.TelemetryCommand(
        settings=definition.Settings(
            client_type=definition.PRODUCER,
            publishing=definition.Publishing(topics=[definition.Resource(name="orders")]),
        )
    )


async def next_command(stream: grpc.aio.StreamStreamCall[pb.TelemetryCommand, pb.TelemetryCommand]) -> Message:
    command = await stream.read()
    assert isinstance(command, pb.TelemetryCommand)
    return command


async def test_05_settings_of_a_producer(client: RawClient) -> None:
    async with client.telemetry() as stream:
        await stream.write(producer())
        command = await next_command(stream)
        assert isinstance(command, pb.TelemetryCommand)
        assert command.status.code == Code.OK
        assert command.settings.publishing.max_body_size == 4_194_304
        assert command.settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"


async def test_06_settings_of_a_push_consumer(client: RawClient) -> None:
    entry = definition.SubscriptionEntry(
        topic=definition.Resource(name="orders"),
        expression=definition.FilterExpression(type=definition.TAG, expression="*"),
    )
    settings = definition.Settings(
        client_type=definition.PUSH_CONSUMER,
        subscription=definition.Subscription(group=definition.Resource(name="group"), subscriptions=[entry]),
    )
    async with client.telemetry() as stream:
        await stream.write(pb.TelemetryCommand(settings=settings))
        command = await next_command(stream)
        assert isinstance(command, pb.TelemetryCommand)
        subscription = command.settings.subscription
        assert subscription.HasField("fifo")
        assert subscription.receive_batch_size == 32
        assert subscription.long_polling_timeout.seconds == 20
        assert list(subscription.subscriptions) == [entry]
        policy = command.settings.backoff_policy
        assert (policy.WhichOneof("strategy"), policy.max_attempts) == ("customized_backoff", 17)


async def test_07_settings_without_a_role_end_the_stream(client: RawClient) -> None:
    async with client.telemetry() as stream:
        await stream.write(pb.TelemetryCommand(settings=definition.Settings()))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_08_every_settings_message_has_a_reply(client: RawClient) -> None:
    async with client.telemetry() as stream:
        for _ in range(3):
            await stream.write(producer())
        replies = [await next_command(stream) for _ in range(3)]
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF  # type: ignore[attr-defined]  # grpc-stubs lacks it
    assert replies[0] == replies[1] == replies[2]


async def test_every_method_of_the_service_answers(client: RawClient) -> None:
    """A request without content is refused by a status of its own, and one that nobody knows by gRPC's."""
    service = pb.DESCRIPTOR.services_by_name["MessagingService"]
    for method in service.methods:
        if method.client_streaming or method.server_streaming:
            continue
        answer_type = getattr(pb, method.output_type.name)
        answer = await client.unary(method.name, getattr(pb, method.input_type.name)(), answer_type)
        assert answer.status.code not in (Code.CODE_UNSPECIFIED, Code.NOT_IMPLEMENTED), method.name
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.unary("SendMessages", pb.HeartbeatRequest(), pb.HeartbeatResponse)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_lite_consumers_are_told_their_limits(client: RawClient) -> None:
    for role in (definition.LITE_PUSH_CONSUMER, definition.LITE_SIMPLE_CONSUMER):
        beat = pb.HeartbeatRequest(group=definition.Resource(name="group"), client_type=role)
        assert (await client.unary("Heartbeat", beat, pb.HeartbeatResponse)).status.code == Code.OK
        settings = definition.Settings(client_type=role)
        settings.subscription.group.name = "group"
        async with client.telemetry() as stream:
            await stream.write(pb.TelemetryCommand(settings=settings))
            reply = await stream.read()
        assert isinstance(reply, pb.TelemetryCommand)
        subscription = reply.settings.subscription
        assert subscription.fifo
        assert (subscription.lite_subscription_quota, subscription.max_lite_topic_size) == (2_000, 64)
        assert subscription.receive_batch_size == (32 if role == definition.LITE_PUSH_CONSUMER else 0)


async def test_lite_topics_are_sent_subscribed_to_received_and_acknowledged(
    endpoint: Endpoint, client: RawClient
) -> None:
    endpoint.broker.add_topic("sessions", message_type="LITE")
    route = await client.query_route("sessions")
    assert all(list(row.accept_message_types) == [definition.LITE] for row in route.message_queues)
    subscribe = pb.SyncLiteSubscriptionRequest(
        topic=definition.Resource(name="sessions"),
        group=definition.Resource(name="group"),
        lite_topic_set=["a", "b"],
        action=definition.PARTIAL_ADD,
    )
    answer = await client.unary("SyncLiteSubscription", subscribe, pb.SyncLiteSubscriptionResponse)
    assert answer.status.code == Code.OK
    for lite_topic, body in (("a", b"1"), ("c", b"2"), ("b", b"3"), ("a", b"4")):
        sent = message("sessions", body)
        sent.system_properties.message_type = definition.LITE
        sent.system_properties.lite_topic = lite_topic
        assert (await client.send(sent)).status.code == Code.OK
    received = await client.receive(receive_request("sessions"))
    got = [(one.system_properties.lite_topic, one.body) for one in received.messages]
    assert sorted(got) == [("a", b"1"), ("a", b"4"), ("b", b"3")]
    assert got.index(("a", b"1")) < got.index(("a", b"4"))
    ack = pb.AckMessageRequest(group=subscribe.group, topic=subscribe.topic)
    for one in received.messages:
        system = one.system_properties
        ack.entries.add(
            message_id=system.message_id, receipt_handle=system.receipt_handle, lite_topic=system.lite_topic
        )
    acknowledged = await client.unary("AckMessage", ack, pb.AckMessageResponse)
    assert [entry.status.code for entry in acknowledged.entries] == [Code.OK] * 3
    nothing = await client.receive(receive_request("sessions", poll_ms=1_000))
    assert nothing.code == Code.MESSAGE_NOT_FOUND


_LONG = "x" * (3 << 20)


@pytest.mark.parametrize(
    "method",
    sorted(set(pb.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name) - {"SendMessage", "Telemetry"}),
)
async def test_a_request_that_is_too_long_is_refused_before_it_is_decoded(client: RawClient, method: str) -> None:
    request = getattr(pb, f"{method}Request")()
    request.MergeFromString(definition.Resource(resource_namespace=_LONG).SerializeToString())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.unary(method, request, pb.QueryRouteResponse)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "bytes; this method takes 2,097,152" in (caught.value.details() or "")


async def test_settings_that_are_too_long_end_the_stream(client: RawClient) -> None:
    async with client.telemetry() as stream:
        settings = definition.Settings(
            client_type=definition.PRODUCER,
            publishing=definition.Publishing(topics=[definition.Resource(name="orders")] * 300_000),
        )
        await stream.write(pb.TelemetryCommand(settings=settings))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
