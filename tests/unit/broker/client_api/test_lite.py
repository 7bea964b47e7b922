"""Lite topics through the client API: sent, subscribed to, received in order, acknowledged, and their ends."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from types import MappingProxyType
from typing import Any

import pytest

from support.api_requests import Answer, call, message, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from support.messages import outgoing_message
from support.query_stores import RememberedPages
from support.simulated_disk import SimulatedDisk
from support.stores import SMALL_OPTIONS, ManualClock, flush_all
from tandemmq.broker.client_api.lite import SILENCE_MAX_MS
from tandemmq.broker.dead_letters import DeadLetterResend
from tandemmq.broker.queries.message_queries import MessageQueries
from tandemmq.broker.queue_reader import StoreQueueReader
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.lite_topics import lmq_name
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.stored_message import StoredMessage
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig
from tandemmq.core.metadata.topic_table import TopicConfig
from tandemmq.core.storage.disk import DiskUsage
from tandemmq.core.storage.retention import ExpiryWish, RetentionFloor
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import CLIENT_ID_HEADER, BidiMethod

Code = definition.Code
MINUTE_MS = 60_000


@pytest.fixture
def lite(broker: BrokerAssembly) -> BrokerAssembly:
    broker.add_topic("sessions", message_type="LITE")
    return broker


def client(client_id: str) -> FakeCall:
    return FakeCall(metadata={CLIENT_ID_HEADER: client_id})


def lite_message(lite_topic: str, body: bytes, *, topic: str = "sessions") -> definition.Message:
    sent = message(topic, body)
    sent.system_properties.message_type = definition.LITE
    sent.system_properties.lite_topic = lite_topic
    return sent


def send(broker: BrokerAssembly, lite_topic: str, *bodies: bytes) -> list[int]:
    offsets = []
    for body in bodies:
        answer = call(broker, "SendMessage", send_request(lite_message(lite_topic, body))).only(pb.SendMessageResponse)
        assert answer.status.code == Code.OK, answer.status.message
        offsets.append(answer.entries[0].offset)
    return offsets


def refusal_of(broker: BrokerAssembly, *messages: definition.Message) -> tuple[int, str]:
    answer = call(broker, "SendMessage", send_request(*messages)).only(pb.SendMessageResponse)
    return answer.status.code, answer.status.message


def sync(
    broker: BrokerAssembly,
    *lite_topics: str,
    action: definition.LiteSubscriptionAction = definition.PARTIAL_ADD,
    client_id: str = "c1",
    group: str = "group",
    topic: str = "sessions",
    version: int = 0,
    option: definition.OffsetOption | None = None,
) -> int:
    request = pb.SyncLiteSubscriptionRequest(
        action=action,
        topic=definition.Resource(name=topic),
        group=definition.Resource(name=group),
        lite_topic_set=lite_topics,
        version=version,
    )
    if option is not None:
        request.offset_option.CopyFrom(option)
    return (
        call(broker, "SyncLiteSubscription", request, client(client_id))
        .only(pb.SyncLiteSubscriptionResponse)
        .status.code
    )


def receive(
    broker: BrokerAssembly, *, client_id: str = "c1", group: str = "group", batch_size: int = 32, attempt_id: str = ""
) -> FakeCall:
    """A receive that may wait."""
    request = receive_request("sessions", group=group, batch_size=batch_size)
    request.attempt_id = attempt_id
    return call(broker, "ReceiveMessage", request, client(client_id))


def received(broker: BrokerAssembly, **options: object) -> Answer:
    return Answer.of(receive(broker, **options))  # type: ignore[arg-type]


def to_dead_letters(message: definition.Message) -> pb.ForwardMessageToDeadLetterQueueRequest:
    """Of a message of lite topic `a`."""
    return pb.ForwardMessageToDeadLetterQueueRequest(
        group=definition.Resource(name="group"),
        topic=definition.Resource(name="sessions"),
        receipt_handle=message.system_properties.receipt_handle,
        message_id=message.system_properties.message_id,
        lite_topic="a",
    )


def ack(broker: BrokerAssembly, answer: Answer, *, group: str = "group") -> list[int]:
    request = pb.AckMessageRequest(
        group=definition.Resource(name=group),
        topic=definition.Resource(name="sessions"),
        entries=[
            pb.AckMessageEntry(
                message_id=one.system_properties.message_id,
                receipt_handle=one.system_properties.receipt_handle,
                lite_topic=one.system_properties.lite_topic,
            )
            for one in answer.messages
        ],
    )
    fake = call(broker, "AckMessage", request)
    broker.end_turn()
    return [entry.status.code for entry in fake.only(pb.AckMessageResponse).entries]


def waits(fake: FakeCall) -> bool:
    return fake.code is None


def test_client_gets_what_comes_to_its_lite_topics_alone(lite: BrokerAssembly) -> None:
    assert sync(lite, "a", "b") == Code.OK
    send(lite, "a", b"1")
    send(lite, "other", b"2")
    send(lite, "b", b"3")
    answer = received(lite)
    assert sorted(answer.bodies) == [b"1", b"3"]
    system = answer.messages[0].system_properties
    assert (system.lite_topic, system.message_type, system.delivery_attempt) == ("a", definition.LITE, 1)
    assert answer.messages[0].topic.name == "sessions"
    assert ack(lite, answer) == [Code.OK, Code.OK]
    assert waits(receive(lite))


def test_messages_are_stored_as_rocketmq_stores_them(lite: BrokerAssembly) -> None:
    send(lite, "a", b"1", b"2")
    found = [
        decode_properties(record.properties)
        for queue_id in range(4)
        for offset in range(lite.store.queue_max_offset("sessions", queue_id))
        for record in [lite.store.message_at(*lite.store.queues.get("sessions", queue_id).entry(offset)[:2])]  # type: ignore[union-attr]
    ]
    assert [(one["__LITE_TOPIC"], one["INNER_MULTI_DISPATCH"], one["INNER_MULTI_QUEUE_OFFSET"]) for one in found] == [
        ("a", "%LMQ%$sessions$a", "0"),
        ("a", "%LMQ%$sessions$a", "1"),
    ]


def test_one_lite_topic_in_somebodys_hands_keeps_back_no_other(lite: BrokerAssembly) -> None:
    sync(lite, "a", "b")
    send(lite, "a", b"a1", b"a2")
    first = received(lite, batch_size=1)
    assert first.bodies == [b"a1"]
    assert waits(receive(lite))
    waiting = receive(lite)
    send(lite, "b", b"b1")
    lite.end_turn()
    answers = [fake for fake in (waiting,) if not waits(fake)]
    # The receive before it waited longer, and has it.
    assert not answers
    ack(lite, first)
    lite.end_turn()
    assert Answer.of(waiting).bodies == [b"a2"]


def test_messages_of_a_lite_topic_come_in_their_order_over_failures(lite: BrokerAssembly, time: ManualTime) -> None:
    sync(lite, "a")
    bodies = [bytes([number]) for number in range(1, 81)]
    send(lite, "a", *bodies)
    seen: list[bytes] = []
    for round_number in range(8):
        answer = received(lite, batch_size=16)
        if round_number in (1, 4):
            time.advance(10_001)  # Nobody acknowledges it.
            continue
        seen += answer.bodies
        ack(lite, answer)
        if len(seen) == len(bodies):
            break
    assert seen == bodies


def test_group_begins_where_it_subscribed(lite: BrokerAssembly) -> None:
    assert sync(lite, "a", group="g1", client_id="c1") == Code.OK
    send(lite, "a", b"1")
    assert received(lite, group="g1").bodies == [b"1"]


@pytest.mark.parametrize(
    ("option", "bodies"),
    [
        (definition.OffsetOption(policy=definition.OffsetOption.MIN), [b"0", b"1", b"2"]),
        (definition.OffsetOption(policy=definition.OffsetOption.MAX), []),
        (definition.OffsetOption(offset=1), [b"1", b"2"]),
        (definition.OffsetOption(offset=99), []),
        (definition.OffsetOption(tail_n=1), [b"2"]),
        (definition.OffsetOption(timestamp=0), [b"0", b"1", b"2"]),
    ],
)
def test_subscription_says_where_to_begin(
    lite: BrokerAssembly, option: definition.OffsetOption, bodies: Sequence[bytes]
) -> None:
    send(lite, "a", b"0", b"1", b"2")
    assert sync(lite, "a", option=option) == Code.OK
    fake = receive(lite)
    assert ([] if waits(fake) else Answer.of(fake).bodies) == bodies


def test_repeated_subscription_changes_nothing(lite: BrokerAssembly) -> None:
    option = definition.OffsetOption(policy=definition.OffsetOption.MIN)
    sync(lite, "a", option=option)
    send(lite, "a", b"1")
    ack(lite, received(lite))
    assert sync(lite, "a", option=option) == Code.OK
    assert sync(lite, "a", action=definition.COMPLETE_ADD, option=option) == Code.OK
    assert waits(receive(lite))


def test_sets_are_added_to_taken_from_and_replaced(lite: BrokerAssembly) -> None:
    def held() -> set[str]:
        subscriber = lite.api.lite.subscriber("c1", "group", "sessions")
        return set() if subscriber is None else {name.rpartition("$")[2] for name in subscriber.lmqs}

    sync(lite, "a", "b", version=5)
    assert held() == {"a", "b"}
    sync(lite, "b", action=definition.PARTIAL_REMOVE)
    assert held() == {"a"}
    sync(lite, "c", "d", action=definition.COMPLETE_ADD, version=7)
    assert held() == {"c", "d"}
    sync(lite, "a", action=definition.COMPLETE_ADD, version=6)  # Overtaken on its way.
    assert held() == {"c", "d"}
    assert lite.api.lite.subscription_count == 2
    sync(lite, action=definition.COMPLETE_REMOVE)
    assert held() == set()
    assert lite.api.lite.subscription_count == 0


def test_who_leaves_a_lite_topic_gets_nothing_more_of_it(lite: BrokerAssembly) -> None:
    sync(lite, "a")
    send(lite, "a", b"1")
    sync(lite, "a", action=definition.PARTIAL_REMOVE)
    assert waits(receive(lite))
    # Nothing is lost: it is there for who comes next.
    sync(lite, "a", client_id="c2")
    assert received(lite, client_id="c2").bodies == [b"1"]


def test_lost_answer_is_given_again_to_the_same_attempt(lite: BrokerAssembly) -> None:
    sync(lite, "a", "b")
    send(lite, "a", b"1", b"2")
    send(lite, "b", b"3")
    first = received(lite, attempt_id="one")
    again = received(lite, attempt_id="one")
    assert again.bodies == first.bodies
    assert ack(lite, again) == [Code.OK] * 3
    assert waits(receive(lite, attempt_id="one"))


def test_receive_that_waits_is_woken_by_a_message_and_by_a_subscription(lite: BrokerAssembly) -> None:
    sync(lite, "a")
    waiting = receive(lite)
    send(lite, "a", b"1")
    lite.end_turn()
    assert Answer.of(waiting).bodies == [b"1"]
    send(lite, "b", b"2")
    waiting = receive(lite, client_id="c2")
    sync(lite, "b", client_id="c2", option=definition.OffsetOption(policy=definition.OffsetOption.MIN))
    lite.end_turn()
    assert Answer.of(waiting).bodies == [b"2"]


def test_message_that_is_not_confirmed_is_given_when_it_is(lite: BrokerAssembly) -> None:
    sync(lite, "a")
    lite.confirmed_offset = lite.store.end_offset
    send(lite, "a", b"1")
    waiting = receive(lite)
    lite.end_turn()
    assert waits(waiting)
    lite.confirmed_offset = 1 << 62
    lite.api.confirmed()
    lite.end_turn()
    assert Answer.of(waiting).bodies == [b"1"]


def test_answer_that_was_not_written_gives_its_messages_back(lite: BrokerAssembly) -> None:
    sync(lite, "a")
    send(lite, "a", b"1")
    fake = receive(lite)
    fake.cancel()
    lite.end_turn()
    assert received(lite).messages[0].system_properties.delivery_attempt == 2


def test_suspended_message_keeps_its_attempt(lite: BrokerAssembly) -> None:
    sync(lite, "a")
    send(lite, "a", b"1")
    (one,) = received(lite).messages
    request = pb.ChangeInvisibleDurationRequest(
        group=definition.Resource(name="group"),
        topic=definition.Resource(name="sessions"),
        receipt_handle=one.system_properties.receipt_handle,
        lite_topic="a",
        suspend=True,
    )
    answer = call(lite, "ChangeInvisibleDuration", request).only(pb.ChangeInvisibleDurationResponse)
    assert answer.status.code == Code.OK
    assert received(lite).messages[0].system_properties.delivery_attempt == 1


def test_message_that_fails_too_often_is_a_dead_letter_and_the_next_one_comes(
    lite: BrokerAssembly, time: ManualTime
) -> None:
    lite.add_group("group", retry_max_times=1)
    sync(lite, "a")
    send(lite, "a", b"1", b"2")
    for attempt in (1, 2):
        answer = received(lite, batch_size=1)
        assert answer.bodies == [b"1"]
        assert answer.messages[0].system_properties.delivery_attempt == attempt
        time.advance(10_001)
    waiting = receive(lite)
    lite.end_turn()
    assert Answer.of(waiting).bodies == [b"2"]
    assert lite.store.queue_max_offset("%DLQ%group", 0) == 1


def test_forwarded_message_is_a_dead_letter_once(lite: BrokerAssembly) -> None:
    sync(lite, "a")
    send(lite, "a", b"1")
    (one,) = received(lite).messages
    request = to_dead_letters(one)
    for _ in range(2):
        answer = call(lite, "ForwardMessageToDeadLetterQueue", request)
        assert answer.only(pb.ForwardMessageToDeadLetterQueueResponse).status.code == Code.OK
    assert lite.store.queue_max_offset("%DLQ%group", 0) == 1


def test_acknowledgement_without_its_lite_topic_is_refused(lite: BrokerAssembly) -> None:
    sync(lite, "a")
    send(lite, "a", b"1")
    answer = received(lite)
    for one in answer.messages:
        one.system_properties.lite_topic = ""
    assert ack(lite, answer) == [Code.INVALID_RECEIPT_HANDLE]


# What is refused


def test_lite_topics_beyond_the_quota_are_refused(lite: BrokerAssembly) -> None:
    lite.options.lite_topics_max = 2
    send(lite, "a", b"1")
    send(lite, "b", b"1")
    assert refusal_of(lite, lite_message("c", b"1"))[0] == Code.LITE_TOPIC_QUOTA_EXCEEDED
    send(lite, "a", b"2")


def test_subscriptions_beyond_the_quotas_are_refused_and_change_nothing(lite: BrokerAssembly) -> None:
    attributes = MappingProxyType({"lite.sub.client.quota": "2"})
    lite.groups.put(SubscriptionGroupConfig("group", attributes=attributes), now_ms=1)
    assert sync(lite, "a", "b") == Code.OK
    assert sync(lite, "c") == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert sync(lite, "c", "d", "e", action=definition.COMPLETE_ADD) == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert lite.api.lite.subscription_count == 2
    lite.options.lite_subscriptions_max = 3
    assert sync(lite, "c", client_id="c2") == Code.OK
    assert sync(lite, "d", client_id="c2") == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED


@pytest.mark.parametrize("lite_topic", ["", "a,b", "x" * 65])
def test_bad_lite_topics_are_refused(lite: BrokerAssembly, lite_topic: str) -> None:
    assert refusal_of(lite, lite_message(lite_topic, b"1"))[0] == Code.ILLEGAL_LITE_TOPIC
    assert sync(lite, lite_topic) == Code.ILLEGAL_LITE_TOPIC


def test_messages_of_other_kinds_are_refused(lite: BrokerAssembly) -> None:
    conflict = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert refusal_of(lite, message("sessions"))[0] == conflict
    assert refusal_of(lite, lite_message("a", b"1", topic="orders"))[0] == conflict
    undeclared = lite_message("a", b"1", topic="orders")
    undeclared.system_properties.message_type = definition.NORMAL
    assert refusal_of(lite, undeclared)[0] == conflict
    grouped = lite_message("a", b"1")
    grouped.system_properties.message_group = "g"
    assert refusal_of(lite, grouped)[0] == conflict
    delayed = lite_message("a", b"1")
    delayed.system_properties.delivery_timestamp.FromMilliseconds(lite.clock.wall_ms() + 5_000)
    assert refusal_of(lite, delayed)[0] == conflict


def test_messages_of_one_request_have_one_lite_topic(lite: BrokerAssembly) -> None:
    assert refusal_of(lite, lite_message("a", b"1"), lite_message("b", b"2"))[0] == Code.MESSAGE_CORRUPTED
    sync(lite, "a")
    assert refusal_of(lite, lite_message("a", b"1"), lite_message("a", b"2"))[0] == Code.OK
    assert received(lite).bodies == [b"1", b"2"]


def test_subscription_to_a_topic_of_another_type_is_refused(lite: BrokerAssembly) -> None:
    assert sync(lite, "a", topic="orders") == Code.ILLEGAL_TOPIC
    assert sync(lite, "a", topic="unknown") == Code.TOPIC_NOT_FOUND


def test_group_bound_to_another_topic_is_refused(lite: BrokerAssembly) -> None:
    attributes = MappingProxyType({"lite.bind.topic": "elsewhere"})
    lite.groups.put(SubscriptionGroupConfig("group", attributes=attributes), now_ms=1)
    assert sync(lite, "a") == Code.ILLEGAL_CONSUMER_GROUP
    assert received(lite).code == Code.ILLEGAL_CONSUMER_GROUP


def test_lite_topic_that_lives_in_another_broker_group_is_passed_on(lite: BrokerAssembly) -> None:
    lite.message_group_home = "broker-b"
    # Nobody answers there, and nothing is stored here.
    assert refusal_of(lite, lite_message("a", b"1"))[0] != Code.OK
    assert all(lite.store.queue_max_offset("sessions", queue_id) == 0 for queue_id in range(4))


# Clients that come and go


def test_new_client_of_an_exclusive_group_takes_the_lite_topic_over(lite: BrokerAssembly) -> None:
    attributes = MappingProxyType({"lite.sub.model": "Exclusive"})
    lite.groups.put(SubscriptionGroupConfig("group", attributes=attributes), now_ms=1)
    entry = lite.api.method_table().methods["Telemetry"]
    assert isinstance(entry, BidiMethod)
    stream = client("c1")
    entry.handler(stream)
    sync(lite, "a", "b", client_id="c1")
    assert sync(lite, "a", client_id="c2") == Code.OK
    told = [
        one.notify_unsubscribe_lite_command.lite_topic for one in stream.sent if isinstance(one, pb.TelemetryCommand)
    ]
    assert told == ["a"]
    send(lite, "a", b"1")
    send(lite, "b", b"2")
    assert received(lite, client_id="c1").bodies == [b"2"]
    assert received(lite, client_id="c2").bodies == [b"1"]


def test_clients_of_a_group_share_a_lite_topic(lite: BrokerAssembly) -> None:
    sync(lite, "a", client_id="c1")
    sync(lite, "a", client_id="c2")
    send(lite, "a", b"1")
    answer = received(lite, client_id="c2")
    assert answer.bodies == [b"1"]
    assert waits(receive(lite, client_id="c1"))
    ack(lite, answer)


def test_client_that_is_silent_or_leaves_is_forgotten(lite: BrokerAssembly, time: ManualTime) -> None:
    sync(lite, "a")
    time.advance(SILENCE_MAX_MS - 1)
    lite.api.housekeep()
    sync(lite, "b", client_id="c2")
    assert lite.api.lite.subscription_count == 1  # Its session ended before.
    lite.sessions.terminate("c2")
    assert lite.api.lite.subscription_count == 0


# Their end


def give_expiration(broker: BrokerAssembly, minutes: int) -> None:
    config = broker.topics.get("sessions")
    assert config is not None
    attributes = MappingProxyType({**config.attributes, "lite.topic.expiration": str(minutes)})
    broker.topics.put(replace(config, attributes=attributes), now_ms=1)


def housekeep_through_an_expiry(broker: BrokerAssembly, time: ManualTime) -> None:
    time.advance(121_000)
    for _ in range(3):
        broker.api.housekeep()


def test_lite_topic_without_messages_ends_and_a_new_one_of_its_name_loses_nothing(
    lite: BrokerAssembly, time: ManualTime
) -> None:
    give_expiration(lite, 15)
    sync(lite, "a")
    send(lite, "a", b"1", b"2", b"3")
    ack(lite, received(lite))
    time.advance(15 * MINUTE_MS)
    housekeep_through_an_expiry(lite, time)
    assert lite.lite_topics.count == 0
    assert lite.leases.progress_of("group", lmq_name("sessions", "a")) == []
    sync(lite, "a")
    send(lite, "a", b"4")
    assert received(lite).bodies == [b"4"]


def test_lite_topic_in_which_a_group_lags_does_not_end(lite: BrokerAssembly, time: ManualTime) -> None:
    give_expiration(lite, 15)
    sync(lite, "a")
    send(lite, "a", b"1")
    time.advance(16 * MINUTE_MS)
    housekeep_through_an_expiry(lite, time)
    assert lite.lite_topics.count == 1
    sync(lite, "a")
    assert received(lite).bodies == [b"1"]


def test_nothing_comes_to_a_lite_topic_while_it_ends(lite: BrokerAssembly, time: ManualTime) -> None:
    give_expiration(lite, 15)
    sync(lite, "a")
    send(lite, "a", b"1")
    ack(lite, received(lite))
    time.advance(16 * MINUTE_MS)
    lite.progress_waits = []
    housekeep_through_an_expiry(lite, time)
    assert refusal_of(lite, lite_message("a", b"2"))[0] == Code.TOO_MANY_REQUESTS
    assert sync(lite, "a") == Code.TOO_MANY_REQUESTS
    for done in lite.progress_waits:
        done(True)
    lite.progress_waits = None
    assert sync(lite, "a") == Code.OK
    send(lite, "a", b"2")
    assert received(lite).bodies == [b"2"]


def test_end_that_may_be_undone_by_a_change_of_master_does_not_happen(lite: BrokerAssembly, time: ManualTime) -> None:
    give_expiration(lite, 15)
    send(lite, "a", b"1")
    time.advance(16 * MINUTE_MS)
    lite.progress_waits = []
    housekeep_through_an_expiry(lite, time)
    for done in lite.progress_waits:
        done(False)
    assert lite.lite_topics.count == 1


def test_subscription_is_answered_when_its_begin_outlives_a_change_of_master(lite: BrokerAssembly) -> None:
    lite.progress_waits = []
    request = pb.SyncLiteSubscriptionRequest(
        topic=definition.Resource(name="sessions"), group=definition.Resource(name="group"), lite_topic_set=["a"]
    )
    fake = call(lite, "SyncLiteSubscription", request)
    assert waits(fake)
    for done in lite.progress_waits:
        done(True)
    assert fake.only(pb.SyncLiteSubscriptionResponse).status.code == Code.OK


def test_slave_that_serves_reads_gives_no_lite_topics(lite: BrokerAssembly) -> None:
    lite.become_reads_only()
    assert received(lite).code == Code.FORBIDDEN
    assert sync(lite, "a") == Code.FORBIDDEN


def test_topic_config_of_another_type_is_never_followed(lite: BrokerAssembly) -> None:
    attributes = MappingProxyType({"message.type": "FIFO"})
    lite.topics.put(TopicConfig("fifo", 1, 1, attributes=attributes), now_ms=1)
    sent = message("fifo", b"1", message_group="g")
    sent.system_properties.lite_topic = "a"
    assert refusal_of(lite, sent)[0] == Code.OK
    assert lite.lite_topics.count == 0


def test_a_master_that_is_one_again_knows_no_subscriptions_of_before(lite: BrokerAssembly) -> None:
    sync(lite, "a", action=definition.COMPLETE_ADD, version=1)
    send(lite, "a", b"1", b"2")
    first = received(lite, batch_size=1)
    assert waits(receive(lite)), "the second one comes behind the first"
    lite.api.drain(is_stopping=False)
    # Another master takes over, whom the client tells that it has finished, and that it wants the same still.
    (handle,) = first.handles
    now_ms = lite.clock.monotonic_ms()
    assert lite.leases.acknowledge(group="group", topic=lmq_name("sessions", "a"), handle=handle, now_ms=now_ms)
    snapshot = lite.leases.snapshot()
    lite.leases.clear()
    lite.api.role_begins()
    lite.leases.restore(snapshot, b"", now_ms=now_ms)
    waiting = receive(lite)
    assert sync(lite, "a", action=definition.COMPLETE_ADD, version=2) == Code.OK
    lite.end_turn()
    assert Answer.of(waiting).bodies == [b"2"]


def test_a_client_that_begins_anew_under_its_id_is_heard_after_three_minutes(
    lite: BrokerAssembly, time: ManualTime
) -> None:
    sync(lite, "a", action=definition.COMPLETE_ADD, version=100)
    for version in range(1, 9):
        time.advance(30_000)
        sync(lite, "b", action=definition.COMPLETE_ADD, version=version)
        lite.api.housekeep()
    send(lite, "b", b"1")
    assert received(lite).bodies == [b"1"]


@pytest.mark.plain
def test_a_message_behind_a_damaged_entry_comes_when_that_is_mended(
    lite: BrokerAssembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync(lite, "a")
    with monkeypatch.context() as damage:
        send(lite, "a", b"1")
        damage.setattr(lite.lite_topics, "messages", lambda *_: [])
        assert waits(receive(lite))
    lite.api.drain(is_stopping=False)
    assert received(lite).bodies == [b"1"]


@pytest.mark.plain
async def test_what_is_put_again_takes_no_number_of_a_message_behind_a_damaged_entry(
    lite: BrokerAssembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two messages of one number: the later one would stand for all from there on, once the entry is mended."""
    lite.add_group("group", retry_max_times=1)
    sync(lite, "a")
    send(lite, "a", b"buried")
    (one,) = received(lite).messages
    request = to_dead_letters(one)
    call(lite, "ForwardMessageToDeadLetterQueue", request)
    send(lite, "a", b"1", b"2", b"3")
    queries = MessageQueries(
        store=lite.store,
        topics=lite.topics,
        pages=RememberedPages(ManualClock()),
        clock=lite.clock,
        is_indexed=True,
    )
    resend, read = DeadLetterResend(lite, queries), StoreQueueReader.messages

    def before_the_damage(*asked: Any) -> list[StoredMessage | None]:
        return list(takewhile(lambda found: found is None or bytes(found.body) != b"2", read(*asked)))

    with monkeypatch.context() as damage:
        lite.lite_topics.clear()
        damage.setattr(StoreQueueReader, "messages", before_the_damage)
        (letter,) = await resend.resend("group", [0], dry_run=False)
    assert (letter.new_queue_offset, "a damaged entry, which is being mended" in letter.problem) == (-1, True)
    await resend.resend("group", [0], dry_run=False)
    lite.api.housekeep()
    bodies = []
    for _ in range(4):
        answer = received(lite, batch_size=1)
        bodies += answer.bodies
        ack(lite, answer)
    assert bodies == [b"1", b"2", b"3", b"buried"]


def test_lost_answer_that_is_asked_for_in_smaller_parts_comes_in_parts(lite: BrokerAssembly) -> None:
    sync(lite, "a", "b")
    send(lite, "a", b"1", b"2")
    send(lite, "b", b"3")
    assert len(received(lite, attempt_id="lost").bodies) == 3
    parts = [received(lite, attempt_id="lost", batch_size=1)]
    for number in range(2):
        ack(lite, parts[-1])
        parts.append(received(lite, attempt_id=f"next {number}", batch_size=1))
    assert sorted(body for part in parts for body in part.bodies) == [b"1", b"2", b"3"]


def test_a_request_names_only_so_many_lite_topics(lite: BrokerAssembly) -> None:
    """Before each is looked at, and whatever is done with them."""
    named = [f"{number:x}" for number in range(30_001)]
    for action in definition.LiteSubscriptionAction.values():
        assert sync(lite, *named, action=action) == definition.BAD_REQUEST  # type: ignore[arg-type]
    assert sync(lite, *named[:-1]) == definition.LITE_SUBSCRIPTION_QUOTA_EXCEEDED


def shrunk(broker: BrokerAssembly, queue_count: int) -> None:
    """Its number of queues, for reading and for writing."""
    config = broker.topics.get("sessions")
    assert config is not None
    broker.topics.put(replace(config, read_queue_count=queue_count, write_queue_count=queue_count), now_ms=1)


def test_a_start_finds_lite_topics_in_queues_that_their_topic_has_no_more(lite: BrokerAssembly) -> None:
    names = [f"{number}" for number in range(16)]
    sync(lite, *names)
    for name in names:
        send(lite, name, b"1", b"2")
    ack(lite, received(lite, batch_size=16))
    shrunk(lite, 1)
    for name in names:
        send(lite, name, b"3")
    lite.lite_topics.clear()
    assert lite.lite_topics.follow("sessions")
    found: dict[str, list[bytes]] = {name: [] for name in names}
    for _ in names:
        answer = received(lite)
        for one in answer.messages:
            found[one.system_properties.lite_topic].append(one.body)
        ack(lite, answer)
        if sum(map(len, found.values())) == 2 * 16:
            break
    assert sum(map(len, found.values())) == 2 * 16, found
    assert all(bodies == sorted(bodies) for bodies in found.values()), found


@pytest.mark.parametrize("deleted", ["group", "topic"])
def test_who_stays_subscribed_while_its_group_or_its_topic_is_made_again_misses_nothing_from_then_on(
    time: ManualTime, deleted: str
) -> None:
    broker = BrokerAssembly(clock=time, timers=time, delivery=DeliveryOptions())
    broker.add_topic("sessions", message_type="LITE")
    sync(broker, "a", action=definition.COMPLETE_ADD, version=1)
    send(broker, "a", b"1")
    ack(broker, received(broker))
    if deleted == "group":
        broker.leases.forget_group("group")
        broker.groups.remove("group", now_ms=1)
        broker.api.consumes_anew("group", "")
    else:
        broker.leases.forget_topic(lmq_name("sessions", "a"))
        broker.api.consumes_anew("", "sessions")
        broker.topics.remove("sessions", now_ms=1)
        broker.end_turn()
        broker.add_topic("sessions", message_type="LITE")
    # As every client does twice a minute.
    assert sync(broker, "a", action=definition.COMPLETE_ADD, version=2) == Code.OK
    send(broker, "a", b"2")
    assert received(broker).bodies == [b"2"]
    broker.close()


def test_a_lite_topic_whose_messages_have_expired_goes_on_after_a_start(time: ManualTime) -> None:
    """Begun again at 0, its messages would be passed over by each replica that knows how far its groups were."""
    disk = SimulatedDisk(random.Random(1), wall_ms=time.wall_ms)
    broker = BrokerAssembly(clock=time, timers=time, disk=disk, store_options=SMALL_OPTIONS)
    broker.add_topic("sessions", message_type="LITE", queue_count=1)
    broker.add_topic("orders")
    sync(broker, "a")
    assert send(broker, "a", b"1", b"2", b"3") == [0, 1, 2]
    ack(broker, received(broker))
    for _ in range(8):
        broker.store.put(outgoing_message(topic="orders", body=bytes(1_000)))
    flush_all(broker.store)
    wish = ExpiryWish(DiskUsage(90, 100), 0, 4096, 4096, 4096, 4096, is_short=True)
    job = broker.store.expire(wish, RetentionFloor())
    assert job is not None
    job.run()
    while broker.store.trim_queues():
        pass
    assert broker.store.queue_min_offset("sessions", 0) == 3
    snapshot = broker.leases.snapshot()
    broker.lite_topics.clear()
    assert broker.lite_topics.follow("sessions")
    broker.leases.clear()
    broker.api.role_begins()
    broker.leases.restore(snapshot, b"", now_ms=time.monotonic_ms())
    assert sync(broker, "a") == Code.OK
    assert waits(receive(broker))
    broker.api.drain(is_stopping=False)
    send(broker, "a", b"4", b"5")
    # The next master is one that was away.
    broker.leases.clear()
    broker.api.role_begins()
    broker.leases.restore(snapshot, b"", now_ms=time.monotonic_ms())
    sync(broker, "a")
    assert received(broker).bodies == [b"4", b"5"]
    broker.close()
