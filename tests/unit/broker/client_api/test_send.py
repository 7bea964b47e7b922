"""SendMessage."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from google.protobuf.message import Message

from support.api_requests import ack_request, call, message, receive, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_OP_TOPIC, TIMER_TOPIC
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig
from tandemmq.core.metadata.topic_table import system_topics, topic_name_problem
from tandemmq.core.routing.queue_choice import queue_of_message_group
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import StatusCode

Code = definition.Code


def send(broker: BrokerAssembly, *messages: definition.Message, fake: FakeCall | None = None) -> pb.SendMessageResponse:
    return call(broker, "SendMessage", send_request(*messages), fake).only(pb.SendMessageResponse)


def test_sends_are_dealt_to_all_queues_in_turn(broker: BrokerAssembly) -> None:
    for _ in range(8):
        assert send(broker, message()).status.code == Code.OK
    assert [broker.store.queue_max_offset("orders", queue_id) for queue_id in range(4)] == [2, 2, 2, 2]


def test_answer_names_message_and_queue_offset(broker: BrokerAssembly) -> None:
    broker.add_topic("single", queue_count=1)
    send(broker, message("single"))
    response = send(broker, message("single", message_id="my-id"))
    [entry] = response.entries
    assert (entry.status.code, entry.message_id, entry.offset) == (Code.OK, "my-id", 1)


def test_messages_of_one_request_are_consecutive_in_one_queue(broker: BrokerAssembly) -> None:
    response = send(broker, *(message(body=bytes([number])) for number in range(1, 6)))
    assert response.status.code == Code.OK
    assert [entry.offset for entry in response.entries] == [0, 1, 2, 3, 4]
    assert broker.store.queue_max_offset("orders", 0) == 5


def test_advice_on_the_queue_is_ignored(broker: BrokerAssembly) -> None:
    advised = message()
    advised.system_properties.queue_id = 3
    send(broker, advised)
    assert broker.store.queue_max_offset("orders", 3) == 0


def test_fifo_message_goes_to_the_queue_of_its_group(broker: BrokerAssembly) -> None:
    for _ in range(3):
        assert send(broker, message("mixed", message_group="account-7")).status.code == Code.OK
    queue_id = queue_of_message_group("account-7", 4)
    assert broker.store.queue_max_offset("mixed", queue_id) == 3
    queue = broker.store.consume_queue("mixed", queue_id)
    assert queue is not None
    [entry] = queue.read(0, 1)
    record = broker.store.message_at(entry.physical_offset, entry.size)
    assert decode_properties(record.properties)["__SHARDINGKEY"] == "account-7"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutStatus.FLUSH_DISK_TIMEOUT, Code.MASTER_PERSISTENCE_TIMEOUT),
        (PutStatus.FLUSH_SLAVE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT),
        (PutStatus.SLAVE_NOT_AVAILABLE, Code.HA_NOT_AVAILABLE),
        (PutStatus.SERVICE_NOT_AVAILABLE, Code.INTERNAL_SERVER_ERROR),
        (PutStatus.DISK_FULL, Code.INTERNAL_SERVER_ERROR),
        (PutStatus.OS_PAGE_CACHE_BUSY, Code.TOO_MANY_REQUESTS),
    ],
)
def test_what_became_of_the_put_is_told_overall_and_in_the_entry(
    broker: BrokerAssembly, status: PutStatus, code: int
) -> None:
    broker.put_status = status
    response = send(broker, message())
    assert (response.status.code, response.entries[0].status.code) == (code, code)


def test_nothing_is_answered_before_the_put_is_settled(broker: BrokerAssembly) -> None:
    broker.puts_held = True
    fake = call(broker, "SendMessage", send_request(message()))
    assert fake.code is None
    assert not fake.sent
    broker.release_puts()
    assert fake.only(pb.SendMessageResponse).status.code == Code.OK


def refused(broker: BrokerAssembly, *messages: definition.Message) -> int:
    """The code of a refusal, which every entry repeats, and which stored nothing."""
    end_offset = broker.store.end_offset
    response = send(broker, *messages)
    assert response.status.code != Code.OK
    assert [entry.status.code for entry in response.entries] == [response.status.code] * len(messages)
    assert broker.store.end_offset == end_offset
    return response.status.code


def test_request_that_names_no_client_is_refused(broker: BrokerAssembly) -> None:
    response = send(broker, message(), fake=FakeCall(metadata={"x-mq-client-id": " "}))
    assert response.status.code == Code.CLIENT_ID_REQUIRED


@pytest.mark.parametrize("seconds", [1 << 60, -(1 << 60)])
def test_message_born_outside_all_years_is_refused(broker: BrokerAssembly, seconds: int) -> None:
    odd = message()
    odd.system_properties.born_timestamp.seconds = seconds
    response = send(broker, odd)
    assert response.status.code == Code.BAD_REQUEST
    assert "born_timestamp" in response.status.message


def test_slave_refuses_at_once(broker: BrokerAssembly) -> None:
    broker.refusal = "this broker is a slave"
    assert refused(broker, message()) == Code.FORBIDDEN


def test_request_without_a_message_is_refused(broker: BrokerAssembly) -> None:
    assert refused(broker) == Code.MESSAGE_CORRUPTED


def test_a_request_has_1024_messages_at_most(broker: BrokerAssembly) -> None:
    many = [message(body=b"x") for _ in range(1_025)]
    assert send(broker, *many[1:]).status.code == Code.OK
    assert broker.store.queue_max_offset("orders", 0) == 1_024
    refused = send(broker, *many)
    assert (refused.status.code, refused.status.message.partition(":")[0]) == (Code.PAYLOAD_TOO_LARGE, "messages")
    assert broker.store.queue_max_offset("orders", 1) == 0


def test_two_topics_in_one_request_are_refused(broker: BrokerAssembly) -> None:
    assert refused(broker, message("orders"), message("mixed")) == Code.MESSAGE_CORRUPTED


def test_two_message_groups_in_one_request_are_refused(broker: BrokerAssembly) -> None:
    assert refused(broker, *(message("mixed", message_group=group) for group in "ab")) == Code.MESSAGE_CORRUPTED


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("a b", Code.ILLEGAL_TOPIC),
        ("x" * 128, Code.ILLEGAL_TOPIC),
        ("SCHEDULE_TOPIC_XXXX", Code.ILLEGAL_TOPIC),
        ("unknown", Code.TOPIC_NOT_FOUND),
    ],
)
def test_topic_that_cannot_be_sent_to_is_refused(broker: BrokerAssembly, topic: str, code: int) -> None:
    assert refused(broker, message(topic)) == code


def test_topic_without_write_permission_is_refused(broker: BrokerAssembly) -> None:
    broker.add_topic("read-only", perm=4)
    assert refused(broker, message("read-only")) == Code.FORBIDDEN


def test_fifo_message_to_a_normal_topic_conflicts_with_its_type(broker: BrokerAssembly) -> None:
    assert refused(broker, message(message_group="g")) == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


def test_one_bad_message_refuses_its_companions(broker: BrokerAssembly) -> None:
    assert refused(broker, message(), message(body=b""), message()) == Code.MESSAGE_BODY_EMPTY


def test_separator_in_the_trace_context_is_refused(broker: BrokerAssembly) -> None:
    sent = message()
    sent.system_properties.trace_context = "a\x02REAL_TOPIC\x01b"
    assert refused(broker, sent) == Code.ILLEGAL_MESSAGE_PROPERTY_KEY


def test_a_message_group_of_another_broker_group_is_not_stored_here(broker: BrokerAssembly) -> None:
    broker.add_topic("ordered", message_type="FIFO")
    broker.message_group_home = "broker-b"
    sent = call(broker, "SendMessage", send_request(message("ordered", message_group="g")))
    response = sent.only(pb.SendMessageResponse)
    assert response.status.code == response.entries[0].status.code == definition.PROXY_TIMEOUT
    assert "broker-b" in response.status.message
    assert not any(broker.store.queue_max_offset("ordered", queue_id) for queue_id in range(4))


def test_a_message_group_has_one_queue_and_a_request_without_group_stays_here(broker: BrokerAssembly) -> None:
    broker.add_topic("ordered", message_type="MIXED")
    for _ in range(3):
        call(broker, "SendMessage", send_request(message("ordered", message_group="g")))
    assert sorted(broker.store.queue_max_offset("ordered", queue_id) for queue_id in range(4)) == [0, 0, 0, 3]
    broker.message_group_home = "broker-b"
    sent = call(broker, "SendMessage", send_request(message("ordered")))
    assert sent.only(pb.SendMessageResponse).status.code == definition.OK


def test_a_priority_chooses_the_queue_and_comes_with_the_message(broker: BrokerAssembly) -> None:
    broker.add_topic("alarms", message_type="PRIORITY")
    for priority in (0, (1 << 31) - 1, 2, 1):
        body = b"%d" % priority
        sent = call(broker, "SendMessage", send_request(message("alarms", body, priority=priority)))
        assert sent.only(pb.SendMessageResponse).status.code == definition.OK
    messages = receive(broker, receive_request("alarms")).messages
    got = [(one.system_properties.queue_id, one.system_properties.priority) for one in messages]
    assert got == [(3, (1 << 31) - 1), (2, 2), (1, 1), (0, 0)]
    assert {one.system_properties.message_type for one in messages} == {definition.PRIORITY}


def test_a_priority_needs_a_topic_for_it_and_is_not_negative(broker: BrokerAssembly) -> None:
    broker.add_topic("alarms", message_type="PRIORITY")
    codes = []
    for topic, priority in (("orders", 1), ("alarms", None), ("alarms", -1)):
        sent = call(broker, "SendMessage", send_request(message(topic, priority=priority)))
        codes.append(sent.only(pb.SendMessageResponse).status.code)
    conflict = definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert codes == [conflict, conflict, definition.BAD_REQUEST]
    mixed = send_request(message("alarms", priority=1), message("alarms", priority=2))
    response = call(broker, "SendMessage", mixed).only(pb.SendMessageResponse)
    assert response.status.code == definition.MESSAGE_CORRUPTED


def test_only_the_priority_factor_of_the_receives_go_by_priority(broker: BrokerAssembly) -> None:
    broker.add_topic("alarms", message_type="PRIORITY")
    attributes = MappingProxyType({"priority.factor": "75"})
    broker.groups.put(SubscriptionGroupConfig("group", attributes=attributes), now_ms=1)
    for priority in range(4):
        for _ in range(100):
            call(broker, "SendMessage", send_request(message("alarms", priority=priority)))
    got = [receive(broker, receive_request("alarms", batch_size=1)).messages[0] for _ in range(100)]
    urgent = sum(one.system_properties.priority == 3 for one in got)
    assert urgent >= 75
    assert {one.system_properties.priority for one in got} == {0, 1, 2, 3}


def test_a_send_that_waited_is_judged_when_its_turn_comes(broker: BrokerAssembly) -> None:
    broker.add_topic("leaving")
    broker.send_room.is_full = True
    assert send(broker, message("leaving")).status.code == Code.OK, "its address has taken nothing yet"
    held = call(broker, "SendMessage", send_request(message("leaving")))
    other = call(broker, "SendMessage", send_request(message()))
    assert (held.code, other.code, broker.send_room.held_count) == (None, None, 2)
    broker.topics.remove("leaving", now_ms=0)
    broker.send_room.made()
    assert held.only(pb.SendMessageResponse).status.code == Code.TOPIC_NOT_FOUND
    assert other.only(pb.SendMessageResponse).status.code == Code.OK


def test_a_handler_that_fails_after_a_wait_fails_its_caller_alone(
    broker: BrokerAssembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.send_room.is_full = True
    send(broker, message())
    held = call(broker, "SendMessage", send_request(message()))
    other = call(broker, "SendMessage", send_request(message()))
    puts = iter([ZeroDivisionError()])
    put = broker.put

    def fail_once(*arguments: object) -> None:
        for error in puts:
            raise error
        put(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(broker, "put", fail_once)
    broker.send_room.made()
    assert held.code is StatusCode.UNKNOWN
    assert other.only(pb.SendMessageResponse).status.code == Code.OK


@pytest.mark.parametrize(("seconds", "nanos"), [(1, -5), (1, 2_000_000_000), (1 << 40, 0), (-(1 << 60), 0)])
def test_a_delivery_time_that_is_none_is_refused(broker: BrokerAssembly, seconds: int, nanos: int) -> None:
    delayed = message()
    delayed.system_properties.delivery_timestamp.seconds = seconds
    delayed.system_properties.delivery_timestamp.nanos = nanos
    response = send(broker, delayed)
    assert response.status.code == Code.ILLEGAL_DELIVERY_TIME
    assert "delivery_timestamp" in response.status.message


_ACCESS_POINT = definition.Endpoints(
    scheme=definition.IPv4, addresses=[definition.Address(host="127.0.0.1", port=8081)]
)


def _of_topic(name: str) -> list[tuple[str, Message]]:
    """A request of each method that names a topic."""
    topic, group = definition.Resource(name=name), definition.Resource(name="group")
    queue = definition.MessageQueue(topic=topic)
    return [
        ("SendMessage", send_request(message(name))),
        ("SendMessage", send_request(message(name, tag="d", body=b"0,1,2"))),
        ("QueryRoute", pb.QueryRouteRequest(topic=topic, endpoints=_ACCESS_POINT)),
        ("QueryAssignment", pb.QueryAssignmentRequest(topic=topic, group=group)),
        ("ReceiveMessage", receive_request(name)),
        ("AckMessage", ack_request("handle", topic=name)),
        ("ChangeInvisibleDuration", pb.ChangeInvisibleDurationRequest(topic=topic, group=group)),
        ("ForwardMessageToDeadLetterQueue", pb.ForwardMessageToDeadLetterQueueRequest(topic=topic, group=group)),
        ("EndTransaction", pb.EndTransactionRequest(topic=topic)),
        ("RecallMessage", pb.RecallMessageRequest(topic=topic)),
        ("PullMessage", pb.PullMessageRequest(message_queue=queue, group=group)),
        ("GetOffset", pb.GetOffsetRequest(message_queue=queue, group=group)),
        ("UpdateOffset", pb.UpdateOffsetRequest(message_queue=queue, group=group)),
        ("QueryOffset", pb.QueryOffsetRequest(message_queue=queue)),
        ("SyncLiteSubscription", pb.SyncLiteSubscriptionRequest(topic=topic, group=group)),
    ]


def test_no_method_reaches_a_topic_that_is_the_brokers_own(broker: BrokerAssembly) -> None:
    """They lie in the topic table as others do, and what is in them decides over messages of others: a record of
    RMQ_SYS_TRANS_OP_HALF_TOPIC ends a transaction, one of rmq_sys_wheel_timer_op a delayed message."""
    own = system_topics(cluster="DefaultCluster", broker_name="broker-a", auto_create_topic=True)
    broker.topics.add_system(own)
    begun_at = broker.store.end_offset
    reserved = [topic.topic_name for topic in own if topic_name_problem(topic.topic_name)]
    assert {HALF_TOPIC, OP_TOPIC, TIMER_TOPIC, TIMER_OP_TOPIC, SCHEDULE_TOPIC} <= set(reserved)
    for name in reserved:
        for method, request in _of_topic(name):
            answer = call(broker, method, request).sent[0]
            assert answer.status.code == Code.ILLEGAL_TOPIC, (method, name)  # type: ignore[attr-defined]
    assert broker.store.end_offset == begun_at


_LONG = "x" * 900


@pytest.mark.parametrize(
    "long", [message(body=_LONG.encode()), message(tag=_LONG), message(keys=[_LONG])], ids=["body", "tag", "key"]
)
def test_what_waits_before_the_log_is_refused_beyond_its_bound(
    broker: BrokerAssembly, time: ManualTime, long: definition.Message
) -> None:
    """Whatever of a request is long."""
    broker.send_room._held_bytes_max = 1_000
    broker.send_room.is_full = True
    request = send_request(long)
    calls = [call(broker, "SendMessage", request) for _ in range(4)]
    # The first of an address does not wait.
    assert [each.code for each in calls[:2]] == [StatusCode.OK, None]
    broker.send_room.made()
    answers = [each.only(pb.SendMessageResponse).status.code for each in calls[:2]]
    assert answers == [Code.OK] * 2
    time.advance(1_000)
    assert [each.only(pb.SendMessageResponse).status.code for each in calls[2:]] == [Code.TOO_MANY_REQUESTS] * 2
