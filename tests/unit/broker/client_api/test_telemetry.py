"""Settings, heartbeats, goodbyes and assignments."""

from __future__ import annotations

import pytest

from support.api_requests import ack_request, call, message, receive, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from tandemmq.broker.client_api import telemetry
from tandemmq.core.metadata.metadata_store import InvalidGroup, JavaValue
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import BidiMethod, StatusCode, StreamHandler

Code = definition.Code


def open_stream(broker: BrokerAssembly, fake: FakeCall) -> StreamHandler[pb.TelemetryCommand]:
    method = broker.api.method_table().methods["Telemetry"]
    assert isinstance(method, BidiMethod)
    return method.handler(fake)


def producer_settings(*topics: str) -> pb.TelemetryCommand:
    return pb.TelemetryCommand(
        settings=definition.Settings(
            client_type=definition.PRODUCER,
            publishing=definition.Publishing(topics=[definition.Resource(name=topic) for topic in topics]),
        )
    )


def consumer_settings(
    client_type: definition.ClientType, *, group: str = "group", language: definition.Language = definition.JAVA
) -> pb.TelemetryCommand:
    entry = definition.SubscriptionEntry(
        topic=definition.Resource(name="orders", resource_namespace="ns"),
        expression=definition.FilterExpression(type=definition.TAG, expression="a || b"),
    )
    return pb.TelemetryCommand(
        settings=definition.Settings(
            client_type=client_type,
            subscription=definition.Subscription(group=definition.Resource(name=group), subscriptions=[entry]),
            user_agent=definition.UA(language=language, version="5.0"),
        )
    )


def reply(broker: BrokerAssembly, command: pb.TelemetryCommand) -> definition.Settings:
    fake = FakeCall()
    open_stream(broker, fake).message(command)
    [answer] = fake.sent
    assert isinstance(answer, pb.TelemetryCommand)
    assert answer.status.code == Code.OK
    assert fake.code is None
    return answer.settings


def test_producer_gets_limits_and_an_exponential_policy(broker: BrokerAssembly) -> None:
    settings = reply(broker, producer_settings("orders"))
    assert settings.publishing.max_body_size == 4_194_304
    assert settings.publishing.validate_message_type
    assert [topic.name for topic in settings.publishing.topics] == ["orders"]
    assert settings.backoff_policy.max_attempts == 3
    assert settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"


def test_push_consumer_gets_batch_poll_time_and_a_customized_policy(broker: BrokerAssembly) -> None:
    settings = reply(broker, consumer_settings(definition.PUSH_CONSUMER))
    subscription = settings.subscription
    assert subscription.HasField("fifo")
    assert not subscription.fifo
    assert subscription.receive_batch_size == 32
    assert subscription.long_polling_timeout.seconds == 20
    assert subscription.subscriptions[0].topic.resource_namespace == "ns"
    assert settings.backoff_policy.max_attempts == 17
    delays = [delay.seconds for delay in settings.backoff_policy.customized_backoff.next]
    assert delays[:4] == [1, 5, 10, 30]
    assert (len(delays), delays[-1]) == (18, 7_200)


def test_group_configuration_decides_order_and_attempts(broker: BrokerAssembly) -> None:
    broker.add_group("group", fifo=True, retry_max_times=3)
    settings = reply(broker, consumer_settings(definition.PUSH_CONSUMER))
    assert settings.subscription.fifo
    assert settings.backoff_policy.max_attempts == 4


def test_node_push_consumer_gets_an_exponential_policy(broker: BrokerAssembly) -> None:
    settings = reply(broker, consumer_settings(definition.PUSH_CONSUMER, language=definition.NODE_JS))
    assert settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"


def test_simple_consumer_keeps_its_own_poll_time(broker: BrokerAssembly) -> None:
    command = consumer_settings(definition.SIMPLE_CONSUMER)
    command.settings.subscription.long_polling_timeout.seconds = 30
    assert reply(broker, command).subscription.long_polling_timeout.seconds == 30


def test_repeated_settings_get_identical_replies(broker: BrokerAssembly) -> None:
    fake = FakeCall()
    stream = open_stream(broker, fake)
    for _ in range(3):
        stream.message(consumer_settings(definition.PUSH_CONSUMER))
    assert len(fake.sent) == 3
    assert fake.sent[0] == fake.sent[1] == fake.sent[2]


def test_reply_sent_back_as_settings_is_answered_alike(broker: BrokerAssembly) -> None:
    first = reply(broker, consumer_settings(definition.PUSH_CONSUMER))
    assert reply(broker, pb.TelemetryCommand(settings=first)) == first


def test_settings_without_a_role_end_the_stream(broker: BrokerAssembly) -> None:
    fake = FakeCall()
    open_stream(broker, fake).message(pb.TelemetryCommand(settings=definition.Settings()))
    assert fake.code is StatusCode.INVALID_ARGUMENT


def test_bad_topic_ends_the_stream_with_its_reason(broker: BrokerAssembly) -> None:
    fake = FakeCall()
    open_stream(broker, fake).message(producer_settings("a b"))
    assert fake.code is StatusCode.INVALID_ARGUMENT
    assert "a b" in fake.detail


def test_a_group_with_delays_of_its_own_is_told_them(broker: BrokerAssembly) -> None:
    group = SubscriptionGroupConfig("group").with_retry_delays((2, 7, 60))
    broker.groups.put(group, now_ms=1)
    backoff = reply(broker, consumer_settings(definition.PUSH_CONSUMER)).backoff_policy.customized_backoff
    assert [delay.seconds for delay in backoff.next] == [2, 7, 60]


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        ({"type": "CUSTOMIZED"}, ()),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000, 90_000, 5]}}, (1, 90, 1)),
        (
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5_000, "max": 30_000, "multiplier": 2}},
            (5, 10, 20, 30, 30),
        ),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": None}, ()),
        ({"type": 5}, ()),
    ],
)
def test_a_policy_of_another_brokers_file_is_read(policy: dict[str, JavaValue], delays: tuple[int, ...]) -> None:
    config = SubscriptionGroupConfig("group", retry_max_times=4, retry_policy=policy)
    assert config.retry_delays_seconds == delays


@pytest.mark.parametrize("delays", [(), (0,), (1, 86_401), (1,) * 101])
def test_delays_that_cannot_be_are_refused(delays: tuple[int, ...]) -> None:
    with pytest.raises(InvalidGroup, match="retry delays"):
        SubscriptionGroupConfig("group").with_retry_delays(delays)


def with_filter(expression: str) -> pb.TelemetryCommand:
    command = consumer_settings(definition.PUSH_CONSUMER)
    (entry,) = command.settings.subscription.subscriptions
    entry.expression.CopyFrom(definition.FilterExpression(type=definition.SQL, expression=expression))
    return command


def test_bad_sql_ends_the_stream_with_its_place(broker: BrokerAssembly) -> None:
    fake = FakeCall()
    open_stream(broker, fake).message(with_filter("x > 3 AND (y ="))
    assert fake.code is StatusCode.INVALID_ARGUMENT
    assert "SQL92 filter 'x > 3 AND (y =': at character 15: the expression ends too early" in fake.detail
    # Node's client looks for nothing else.
    [told] = fake.sent
    assert isinstance(told, pb.TelemetryCommand)
    assert (told.status.code, told.WhichOneof("command")) == (Code.ILLEGAL_FILTER_EXPRESSION, None)
    assert "at character 15" in told.status.message


@pytest.mark.parametrize(
    ("client_type", "language"),
    [(definition.PUSH_CONSUMER, definition.PYTHON), (definition.SIMPLE_CONSUMER, definition.JAVA)],
)
def test_who_hears_of_bad_sql_at_its_receives_gets_its_settings(
    broker: BrokerAssembly, client_type: definition.ClientType, language: definition.Language
) -> None:
    fake = FakeCall()
    command = with_filter("x > 3 AND (y =")
    command.settings.client_type, command.settings.user_agent.language = client_type, language
    open_stream(broker, fake).message(command)
    [told] = fake.sent
    assert isinstance(told, pb.TelemetryCommand)
    assert (fake.code, told.status.code, told.WhichOneof("command")) == (None, Code.OK, "settings")
    # Names clients check by themselves.
    command.settings.subscription.group.name = "a b"
    open_stream(broker, refused := FakeCall()).message(command)
    assert refused.code is StatusCode.INVALID_ARGUMENT


def test_operators_see_which_filter_is_sql(broker: BrokerAssembly) -> None:
    open_stream(broker, FakeCall()).message(with_filter("x > 3"))
    (session,) = broker.sessions.all()
    assert list(session.subscriptions.values()) == ["SQL92: x > 3"]


def test_stream_without_a_client_id_gets_one_command_and_ends(broker: BrokerAssembly) -> None:
    fake = FakeCall(metadata={})
    open_stream(broker, fake)
    assert fake.only(pb.TelemetryCommand).status.code == Code.CLIENT_ID_REQUIRED


def test_half_closed_stream_ends_well(broker: BrokerAssembly) -> None:
    fake = FakeCall()
    open_stream(broker, fake).half_closed()
    assert fake.code is StatusCode.OK


def test_drain_ends_streams(broker: BrokerAssembly) -> None:
    fake = FakeCall()
    open_stream(broker, fake)
    broker.api.drain()
    assert fake.code is StatusCode.UNAVAILABLE


# Sessions


def heartbeat(broker: BrokerAssembly, client_type: definition.ClientType, group: str = "") -> int:
    request = pb.HeartbeatRequest(client_type=client_type, group=definition.Resource(name=group))
    return call(broker, "Heartbeat", request).only(pb.HeartbeatResponse).status.code


def test_settings_describe_the_session(broker: BrokerAssembly) -> None:
    reply(broker, consumer_settings(definition.PUSH_CONSUMER))
    [session] = broker.sessions.all()
    assert (session.client_id, session.client_type, session.group) == ("client@1", "PUSH_CONSUMER", "group")
    assert (session.language, session.version, session.subscriptions) == ("JAVA", "5.0", {"orders": "a || b"})


def test_heartbeat_without_a_session_is_accepted_and_makes_one(broker: BrokerAssembly) -> None:
    assert heartbeat(broker, definition.SIMPLE_CONSUMER, "group") == Code.OK
    assert len(broker.sessions) == 1


def test_heartbeats_that_make_no_sense_are_refused(broker: BrokerAssembly) -> None:
    assert heartbeat(broker, definition.PUSH_CONSUMER) == Code.ILLEGAL_CONSUMER_GROUP
    assert heartbeat(broker, definition.CLIENT_TYPE_UNSPECIFIED, "group") == Code.UNRECOGNIZED_CLIENT_TYPE


def test_silent_session_is_forgotten_after_two_minutes(broker: BrokerAssembly, time: ManualTime) -> None:
    heartbeat(broker, definition.PRODUCER)
    time.advance(119_999)
    broker.api.housekeep()
    assert len(broker.sessions) == 1
    time.advance(1)
    broker.api.housekeep()
    assert len(broker.sessions) == 0


def test_goodbye_ends_the_session_and_the_leases_renewed_for_it(broker: BrokerAssembly, time: ManualTime) -> None:
    call(broker, "SendMessage", send_request(message(body=b"a")))
    request = receive_request()
    request.auto_renew = True
    receive(broker, request)
    goodbye = call(broker, "NotifyClientTermination", pb.NotifyClientTerminationRequest())
    assert goodbye.only(pb.NotifyClientTerminationResponse).status.code == Code.OK
    assert len(broker.sessions) == 0
    time.advance(1_001)
    assert receive(broker, receive_request()).bodies == [b"a"]


def test_a_master_that_is_one_again_takes_no_client_for_gone_that_called_another_broker_meanwhile(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    call(broker, "SendMessage", send_request(message(body=b"a")))
    request = receive_request()
    request.auto_renew = True
    (handle,) = receive(broker, request).handles
    snapshot = broker.leases.snapshot()
    broker.leases.take_journal()
    journal = broker.leases.end_journal()
    broker.leases.clear()  # The role ends. Others serve for a while, who renew the lease.
    time.advance(200_000)
    broker.api.role_begins()
    now_ms = time.monotonic_ms()
    broker.leases.restore(snapshot, journal, now_ms=now_ms, clock_offset_ms=time.wall_ms() - now_ms)
    for _ in range(5):
        broker.api.housekeep()
        time.advance(1_000)
    acknowledged = call(broker, "AckMessage", ack_request(handle))
    broker.end_turn()
    assert acknowledged.only(pb.AckMessageResponse).status.code == Code.OK


# Assignments


def assignments(broker: BrokerAssembly, topic: str = "orders") -> pb.QueryAssignmentResponse:
    request = pb.QueryAssignmentRequest(topic=definition.Resource(name=topic), group=definition.Resource(name="group"))
    return call(broker, "QueryAssignment", request).only(pb.QueryAssignmentResponse)


def test_ordinary_group_polls_each_broker_as_one_queue(broker: BrokerAssembly) -> None:
    [assignment] = assignments(broker).assignments
    assert assignment.message_queue.id == -1
    assert assignment.message_queue.broker.name == "broker-a"
    assert assignment.message_queue.broker.endpoints.addresses[0].port == 8_081


def test_ordered_group_polls_every_queue(broker: BrokerAssembly) -> None:
    broker.add_group("group", fifo=True)
    assert [assignment.message_queue.id for assignment in assignments(broker).assignments] == [0, 1, 2, 3]


def test_topic_nobody_can_read_has_no_assignment(broker: BrokerAssembly) -> None:
    broker.add_topic("write-only", perm=2)
    assert assignments(broker, "write-only").status.code == Code.FORBIDDEN
    assert assignments(broker, "unknown").status.code == Code.TOPIC_NOT_FOUND


@pytest.mark.parametrize("language", [definition.JAVA, definition.GOLANG, definition.PYTHON, definition.NODE_JS])
def test_broker_that_stops_tells_clients_to_reconnect_but_none_that_would_die_of_it(
    broker: BrokerAssembly, language: definition.Language
) -> None:
    fake = FakeCall({"x-mq-client-id": "me"})
    open_stream(broker, fake).message(consumer_settings(definition.SIMPLE_CONSUMER, language=language))
    broker.api.drain()
    kinds = [command.WhichOneof("command") for command in fake.sent if isinstance(command, pb.TelemetryCommand)]
    assert kinds == ["settings"] + ["reconnect_endpoints_command"] * (language != definition.NODE_JS)
    assert fake.code is StatusCode.UNAVAILABLE


def test_what_producers_say_that_they_publish_is_bounded(
    broker: BrokerAssembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "_PUBLISHED_MAX", 1_000)

    def says(number: int, count: int) -> tuple[StreamHandler[pb.TelemetryCommand], FakeCall]:
        fake = FakeCall(metadata={"x-mq-client-id": f"client@{number}"})
        stream = open_stream(broker, fake)
        stream.message(producer_settings(*(f"topic-{place}" for place in range(count))))
        return stream, fake

    greedy = [says(number, 300) for number in range(20)]
    refused = [fake for _, fake in greedy if fake.code is not None]
    assert len(refused) == 17
    answer = refused[0].sent[0]
    assert isinstance(answer, pb.TelemetryCommand)
    assert answer.status.code == Code.TOO_MANY_REQUESTS
    others = [says(100 + number, 64) for number in range(5)]
    assert all(fake.code is None for _, fake in others), "usual producers are heard in any case"
    # Who says less, or ends, makes room; who says the same again needs none.
    greedy[0][0].message(producer_settings("topic-1"))
    for stream, _ in [greedy[1], *others]:
        stream.half_closed()
    greedy[2][0].message(producer_settings(*(f"topic-{place}" for place in range(300))))
    assert greedy[2][1].code is None
    last, fake = says(200, 300)
    assert fake.code is None
    for stream, _ in [*greedy, *others, (last, fake)]:
        stream.half_closed()
        stream.cancelled()
    assert broker.api._telemetry._published_count == 0
