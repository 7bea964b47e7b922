"""ReceiveMessage: what is delivered, when a receive waits, and what happens to one that is cancelled."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.api_requests import Answer, ack_request, call, message, receive, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.http2_peer import unary_request
from support.manual_time import ManualTime
from tandemmq.broker.client_api.validation import NewFilters
from tandemmq.core.delivery import sql_filter
from tandemmq.core.delivery.queue_progress import Received
from tandemmq.core.delivery.sql_filter import (
    ENTRY_CHARACTERS,
    KNOWN_CHARACTERS_MAX,
    SqlFilter,
    known_sql,
    parse_sql,
)
from tandemmq.core.delivery.subscription import EVERY_TAG, TagFilter
from tandemmq.http2 import frames
from tandemmq.http2.connection import Connection
from tandemmq.http2.errors import Limits
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.http2_call import MethodIndex
from tandemmq.service.rpc import FORWARDED_HEADER, RECEIVE_HEADER, UNREAD, StatusCode

Code = definition.Code


def send(broker: BrokerAssembly, *bodies: bytes, topic: str = "orders", tag: str | None = None) -> None:
    for body in bodies:
        call(broker, "SendMessage", send_request(message(topic, body, tag=tag)))


def ack(broker: BrokerAssembly, *handles: str, topic: str = "orders") -> pb.AckMessageResponse:
    fake = call(broker, "AckMessage", ack_request(*handles, topic=topic))
    broker.end_turn()
    return fake.only(pb.AckMessageResponse)


def test_messages_of_all_queues_are_delivered(broker: BrokerAssembly) -> None:
    send(broker, b"a", b"b", b"c", b"d", b"e")
    answer = receive(broker, receive_request())
    assert answer.code == Code.OK
    assert sorted(answer.bodies) == [b"a", b"b", b"c", b"d", b"e"]


def test_batch_is_cut_to_32(broker: BrokerAssembly) -> None:
    send(broker, *(bytes([number]) for number in range(1, 41)))
    assert len(receive(broker, receive_request(batch_size=100)).messages) == 32
    assert len(receive(broker, receive_request(batch_size=0)).messages) == 8


def test_groups_are_independent(broker: BrokerAssembly) -> None:
    send(broker, b"a")
    assert receive(broker, receive_request(group="one")).bodies == [b"a"]
    assert receive(broker, receive_request(group="two")).bodies == [b"a"]


def test_only_wanted_tags_are_delivered(broker: BrokerAssembly) -> None:
    send(broker, b"1", tag="a")
    send(broker, b"2", tag="b")
    send(broker, b"3", tag="c")
    answer = receive(broker, receive_request(expression="a || c"))
    assert sorted(answer.bodies) == [b"1", b"3"]


def test_unacknowledged_message_comes_again_with_a_new_handle(broker: BrokerAssembly, time: ManualTime) -> None:
    send(broker, b"a")
    first = receive(broker, receive_request())
    time.advance(10_001)
    second = receive(broker, receive_request())
    assert second.bodies == [b"a"]
    assert second.messages[0].system_properties.delivery_attempt == 2
    assert second.handles != first.handles


# Waiting


def test_message_that_arrives_ends_the_wait(broker: BrokerAssembly, time: ManualTime) -> None:
    waiting = call(broker, "ReceiveMessage", receive_request())
    assert waiting.code is None
    send(broker, b"a")
    time.end_turn()
    assert Answer.of(waiting).bodies == [b"a"]


def test_messages_of_one_turn_are_delivered_in_one_batch(broker: BrokerAssembly, time: ManualTime) -> None:
    first, second = (call(broker, "ReceiveMessage", receive_request()) for _ in range(2))
    send(broker, b"a", b"b", b"c")
    time.end_turn()
    assert sorted(Answer.of(first).bodies) == [b"a", b"b", b"c"]
    assert second.code is None


def test_full_batch_wakes_the_next_waiting_receive(broker: BrokerAssembly, time: ManualTime) -> None:
    waiting = [call(broker, "ReceiveMessage", receive_request(batch_size=1)) for _ in range(3)]
    send(broker, b"a", b"b", b"c")
    time.end_turn()
    assert sorted(body for fake in waiting for body in Answer.of(fake).bodies) == [b"a", b"b", b"c"]


@pytest.mark.plain
@pytest.mark.parametrize("batch_size", [1, 32])
def test_of_many_waiting_receives_only_those_needed_look(
    broker: BrokerAssembly, time: ManualTime, batch_size: int
) -> None:
    waiting = [call(broker, "ReceiveMessage", receive_request(batch_size=batch_size)) for _ in range(200)]
    looks: list[str] = []
    receive_leases = broker.leases.receive

    def counted(**request: Any) -> Received:
        looks.append(request["group"])
        return receive_leases(**request)

    broker.leases.receive = counted  # type: ignore[method-assign]
    send(broker, b"a")
    time.end_turn()
    assert len(looks) == 1
    send(broker, *(bytes([number]) for number in range(1, 41)))
    time.end_turn()
    assert len(looks) == 1 + (40 if batch_size == 1 else 2)
    assert sum(fake.code is not None for fake in waiting) == len(looks)
    assert sum(len(Answer.of(fake).bodies) for fake in waiting if fake.code is not None) == 41


def test_dead_letters_that_fill_a_batch_do_not_hide_the_message_behind_them(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    broker.add_topic("one", queue_count=1)
    broker.add_group("group", retry_max_times=1)
    send(broker, b"a", topic="one")
    for _ in range(2):
        assert receive(broker, receive_request("one", batch_size=1)).bodies == [b"a"]
        time.advance(10_001)
    send(broker, b"b", topic="one")
    waiting = call(broker, "ReceiveMessage", receive_request("one", batch_size=1))
    time.end_turn()
    assert Answer.of(waiting).bodies == [b"b"]


def test_arrival_with_another_tag_leaves_the_receive_waiting(broker: BrokerAssembly, time: ManualTime) -> None:
    waiting = call(broker, "ReceiveMessage", receive_request(expression="a"))
    send(broker, b"1", tag="b")
    time.end_turn()
    assert waiting.code is None
    send(broker, b"2", tag="a")
    time.end_turn()
    assert Answer.of(waiting).bodies == [b"2"]


def test_empty_poll_ends_with_message_not_found(broker: BrokerAssembly, time: ManualTime) -> None:
    waiting = call(broker, "ReceiveMessage", receive_request(poll_ms=5_000))
    time.advance(4_999)
    assert waiting.code is None
    time.advance(2)
    assert Answer.of(waiting).code == Code.MESSAGE_NOT_FOUND


def test_lease_that_ends_is_delivered_to_a_waiting_receive(broker: BrokerAssembly, time: ManualTime) -> None:
    send(broker, b"a")
    receive(broker, receive_request(invisible_ms=10_000))
    waiting = call(broker, "ReceiveMessage", receive_request(poll_ms=20_000))
    time.advance(10_050)
    assert Answer.of(waiting).bodies == [b"a"]


def test_lease_taken_while_another_waits_also_wakes_it(broker: BrokerAssembly, time: ManualTime) -> None:
    waiting = [call(broker, "ReceiveMessage", receive_request(poll_ms=20_000, batch_size=1)) for _ in range(2)]
    send(broker, b"a")
    time.end_turn()
    assert Answer.of(waiting[0]).bodies == [b"a"]
    time.advance(10_050)
    assert Answer.of(waiting[1]).bodies == [b"a"]


def test_filter_that_passes_over_many_messages_goes_on_in_the_next_turn(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    broker.add_topic("single", queue_count=1)
    send(broker, *[b"x"] * 4_200, topic="single", tag="b")
    send(broker, b"wanted", topic="single", tag="a")
    waiting = call(broker, "ReceiveMessage", receive_request("single", expression="a"))
    assert waiting.code is None
    time.end_turn()
    assert Answer.of(waiting).bodies == [b"wanted"]


@pytest.mark.parametrize(
    ("deadline_ms", "poll_ms", "answered_after_ms"),
    [
        (23_000, 20_000, 20_000),
        (6_000, 20_000, 5_900),
        (4_950, 2_000, 2_000),
        (4_950, 20_000, 4_850),
        (30_000, 60_000, 20_000),
        (None, 1_000, 1_000),
        (None, 0, 1_000),
    ],
)
def test_wait_is_kept_within_its_limits_and_the_deadline(
    broker: BrokerAssembly, time: ManualTime, deadline_ms: int | None, poll_ms: int, answered_after_ms: int
) -> None:
    waiting = call(broker, "ReceiveMessage", receive_request(poll_ms=poll_ms), FakeCall(deadline_ms=deadline_ms))
    time.advance(answered_after_ms - 1)
    assert waiting.code is None
    time.advance(2)
    assert Answer.of(waiting).code == Code.MESSAGE_NOT_FOUND


def test_wait_not_said_follows_from_the_deadline(broker: BrokerAssembly, time: ManualTime) -> None:
    request = receive_request()
    request.ClearField("long_polling_timeout")
    waiting = call(broker, "ReceiveMessage", request, FakeCall(deadline_ms=13_000))
    time.advance(11_499)
    assert waiting.code is None
    time.advance(2)
    assert Answer.of(waiting).code == Code.MESSAGE_NOT_FOUND


@pytest.mark.parametrize(("is_stopping", "code"), [(True, Code.FORBIDDEN), (False, Code.MESSAGE_NOT_FOUND)])
def test_drain_answers_those_who_wait(broker: BrokerAssembly, is_stopping: bool, code: int) -> None:
    waiting = [call(broker, "ReceiveMessage", receive_request(poll_ms=poll_ms)) for poll_ms in (5_000, 9_000)]
    broker.api.drain(is_stopping=is_stopping)
    assert [Answer.of(fake).code for fake in waiting] == [code, code]
    assert broker.api.waiting_receive_count == 0


# Callers that go away


def test_cancelled_receive_frees_its_place_and_takes_nothing(broker: BrokerAssembly, time: ManualTime) -> None:
    waiting = call(broker, "ReceiveMessage", receive_request())
    waiting.cancel()
    assert broker.api.waiting_receive_count == 0
    send(broker, b"a")
    time.end_turn()
    assert not waiting.sent
    assert receive(broker, receive_request()).bodies == [b"a"]


def test_receive_cancelled_in_the_turn_of_an_arrival_leaves_it_to_the_next(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    first, second = (call(broker, "ReceiveMessage", receive_request()) for _ in range(2))
    send(broker, b"a")
    first.cancel()
    time.end_turn()
    assert Answer.of(second).bodies == [b"a"]


def test_answer_that_was_not_written_gives_the_messages_back_at_once(broker: BrokerAssembly) -> None:
    send(broker, b"a", b"b")
    lost = call(broker, "ReceiveMessage", receive_request())
    lost.cancel()
    again = receive(broker, receive_request())
    assert sorted(again.bodies) == [b"a", b"b"]


def test_messages_given_back_go_to_whoever_waits(broker: BrokerAssembly) -> None:
    send(broker, b"a")
    lost = call(broker, "ReceiveMessage", receive_request())
    waiting = call(broker, "ReceiveMessage", receive_request())
    lost.cancel()
    assert Answer.of(waiting).bodies == [b"a"]


class CrowdedOut(FakeCall):
    """The broker has no memory for its answer."""

    def send_all_encoded(self, messages: list[bytes]) -> None:
        self.is_crowded_out = True
        self.finish(StatusCode.RESOURCE_EXHAUSTED)
        self.cancel()


def test_a_message_that_a_broker_has_no_memory_to_give_loses_no_attempt(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    """It would be among the dead letters within a moment, and no consumer had seen it."""
    waiting = [call(broker, "ReceiveMessage", receive_request(poll_ms=60_000), CrowdedOut()) for _ in range(40)]
    send(broker, b"a")
    time.end_turn()
    assert [fake.code for fake in waiting].count(StatusCode.RESOURCE_EXHAUSTED) == 1
    for _ in range(20):
        time.advance(1_000)
    assert [fake.code for fake in waiting].count(StatusCode.RESOURCE_EXHAUSTED) >= 20
    broker.api.drain(is_stopping=False)
    time.advance(1_000)
    again = receive(broker, receive_request())
    assert again.bodies == [b"a"]
    assert again.messages[0].system_properties.delivery_attempt == 1


def test_of_more_than_a_connection_may_keep_nothing_is_a_dead_letter(broker: BrokerAssembly, time: ManualTime) -> None:
    """Many wait on one connection, as behind a proxy, and much arrives at once."""
    index, table, counters = MethodIndex(time), broker.api.method_table(), Counter[str]()
    index.add(table)
    limits = Limits(connection_buffer_bytes=4 << 20)
    connection = Connection(index, limits=limits, now=0.0, peer="ipv4:10.0.0.1:1", counters=counters)
    connection.receive(frames.PREFACE + frames.settings({}), 0.0)
    request = receive_request(batch_size=1, poll_ms=600_000).SerializeToString()
    headers = (":path", f"/{table.service_name}/ReceiveMessage"), ("x-mq-client-id", "client@1")
    for number in range(200):
        connection.receive(unary_request(1 + 2 * number, request, *headers), 0.0)
    assert broker.api.waiting_receive_count == 200
    send(broker, *[bytes([number]) * (1 << 20) for number in range(8)])
    for _ in range(100):
        time.end_turn()
    assert broker.api.waiting_receive_count == 192
    assert counters["buffers_full"] == 4
    assert not sum(broker.store.queue_max_offset("%DLQ%group", queue_id) for queue_id in range(4))
    connection.lost()


OF_A_BROKER = {"x-mq-client-id": "client@1", FORWARDED_HEADER: "2"}


def push_receive(topic: str) -> pb.ReceiveMessageRequest:
    request = receive_request(topic, batch_size=1)
    request.auto_renew = True
    return request


@pytest.mark.parametrize("is_ordered", [False, True])
def test_what_a_living_push_consumer_may_not_have_read_comes_again_after_its_minute(
    broker: BrokerAssembly, time: ManualTime, is_ordered: bool
) -> None:
    broker.add_topic("one", queue_count=1)
    broker.add_group("group", fifo=is_ordered)
    send(broker, b"a", topic="orders")
    send(broker, b"b", topic="one")
    read, unread = (call(broker, "ReceiveMessage", push_receive(topic)) for topic in ("orders", "one"))
    assert unread.unread is not None
    unread.unread()
    again = call(broker, "ReceiveMessage", push_receive("one"))
    for _ in range(8):
        time.advance(7_501)
        if again.code is not None and not Answer.of(again).bodies:
            again = call(broker, "ReceiveMessage", push_receive("one"))
    assert Answer.of(again).bodies == [b"b"]
    assert Answer.of(again).messages[0].system_properties.delivery_attempt == 2
    assert ack(broker, *Answer.of(unread).handles, topic="one").status.code == Code.INVALID_RECEIPT_HANDLE
    assert ack(broker, *Answer.of(read).handles).status.code == Code.OK, "its lease is renewed as ever"


@pytest.mark.parametrize("is_another_master", [False, True])
def test_what_a_broker_passed_on_and_may_be_unread_behind_it_comes_again_after_its_minute(
    broker: BrokerAssembly, time: ManualTime, is_another_master: bool
) -> None:
    broker.add_topic("one", queue_count=1)
    send(broker, b"a", b"b", b"c", topic="one")
    names = ("0123456789abcdef", "ffffffffffffffff", "no name of ours")
    passed_on = [
        call(broker, "ReceiveMessage", push_receive("one"), FakeCall(metadata=OF_A_BROKER | {RECEIVE_HEADER: name}))
        for name in names
    ]
    assert [Answer.of(fake).bodies for fake in passed_on] == [[b"a"], [b"b"], [b"c"]]
    if is_another_master:
        journal = broker.leases.snapshot() + broker.leases.end_journal()
        broker.leases.clear()
        broker.api.role_begins()
        now_ms = time.monotonic_ms()
        broker.leases.restore(b"", journal, now_ms=now_ms, clock_offset_ms=time.wall_ms() - now_ms)
    refused = FakeCall(metadata=OF_A_BROKER | {RECEIVE_HEADER: UNREAD + names[0]}, deadline_ms=5_000)
    broker.refusal = "another broker is the master"
    call(broker, "ReceiveMessage", push_receive("one"), refused)
    assert Answer.of(refused).code == Code.FORBIDDEN
    broker.refusal = None
    for name in (names[0], names[0], names[2], "eeeeeeeeeeeeeeee"):
        for client_id in ("client@1", "client@2"):
            metadata = OF_A_BROKER | {"x-mq-client-id": client_id, RECEIVE_HEADER: UNREAD + name}
            told = FakeCall(metadata=metadata, deadline_ms=5_000)
            call(broker, "ReceiveMessage", push_receive("one"), told)
            assert Answer.of(told).code == Code.MESSAGE_NOT_FOUND
    time.advance(60_001)
    call(broker, "Heartbeat", pb.HeartbeatRequest())
    assert receive(broker, receive_request("one")).bodies == [b"a"]


# Attempts


def test_message_delivered_too_often_goes_to_the_dead_letter_queue(broker: BrokerAssembly, time: ManualTime) -> None:
    broker.add_group("group", retry_max_times=1)
    send(broker, b"poison")
    for _ in range(2):
        assert receive(broker, receive_request()).bodies == [b"poison"]
        time.advance(10_001)
    third = call(broker, "ReceiveMessage", receive_request())
    assert third.code is None
    [dead] = receive(broker, receive_request("%DLQ%group", group="undertaker")).messages
    assert dead.body == b"poison"
    assert dead.system_properties.dead_letter_queue.topic == "orders"
    assert dead.system_properties.dead_letter_queue.message_id == dead.system_properties.message_id
    time.advance(10_001)
    assert Answer.of(third).code == Code.MESSAGE_NOT_FOUND


def test_dead_letter_that_could_not_be_written_stays_in_its_queue(broker: BrokerAssembly, time: ManualTime) -> None:
    broker.add_group("group", retry_max_times=0)
    send(broker, b"poison")
    receive(broker, receive_request())
    time.advance(10_001)
    broker.puts_held = True
    call(broker, "ReceiveMessage", receive_request(poll_ms=5_000))
    assert broker.leases.committed("group", "orders", 0) == 0
    broker.release_puts()
    assert broker.leases.committed("group", "orders", 0) == 1


@pytest.mark.parametrize("ended", ["handed back", "ran out", "its client is gone", "of another master"])
@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("retries", [0, 2])
def test_a_message_whose_last_attempt_ended_is_a_dead_letter_though_nobody_receives(
    broker: BrokerAssembly, time: ManualTime, retries: int, is_ordered: bool, ended: str
) -> None:
    broker.add_topic("one", queue_count=1, message_type="FIFO" if is_ordered else "NORMAL")
    broker.add_group("group", fifo=is_ordered, retry_max_times=retries)
    for number in range(100):
        message_group = "ab"[number % 2] if is_ordered else None
        call(broker, "SendMessage", send_request(message("one", b"%d" % number, message_group=message_group)))
    for attempt in range(1 + retries):
        batches = []
        for _ in range(1 if is_ordered else 4):
            request = receive_request("one")
            request.auto_renew = ended == "its client is gone"
            batches.append(receive(broker, request))
        given = [body for batch in batches for body in batch.bodies]
        assert len(given) == (32 if is_ordered else 100)
        is_last = attempt == retries
        if ended == "handed back" or not is_last:
            for handle in (handle for batch in batches for handle in batch.handles):
                given_back = pb.ChangeInvisibleDurationRequest(receipt_handle=handle)
                given_back.group.name, given_back.topic.name = "group", "one"
                given_back.invisible_duration.FromMilliseconds(0)
                call(broker, "ChangeInvisibleDuration", given_back)
                broker.end_turn()
        elif ended == "its client is gone":
            call(broker, "NotifyClientTermination", pb.NotifyClientTerminationRequest())
    if ended == "of another master":
        broker.leases.expire(time.monotonic_ms() + 60_000)
        snapshot = broker.leases.snapshot()
        broker.leases.clear()
        broker.api.role_begins()
        now_ms = time.monotonic_ms()
        broker.leases.restore(snapshot, b"", now_ms=now_ms, clock_offset_ms=time.wall_ms() - now_ms)
    for _ in range(30):
        time.advance(1_000)
        broker.api.housekeep()
        broker.end_turn()
    letters = receive_request("%DLQ%group", group="looks")
    dead = [body for _ in range((len(given) + 31) // 32) for body in receive(broker, letters).bodies]
    assert sorted(dead) == sorted(given)
    if is_ordered:
        for name in (0, 1):
            own = [int(body) for body in dead if int(body) % 2 == name]
            assert own == sorted(own)
    assert broker.leases.committed("group", "one", 0) == len(dead)


def test_what_used_its_attempts_up_stays_while_this_broker_writes_nothing(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    broker.add_group("group", retry_max_times=0)
    send(broker, b"a", b"b")
    receive(broker, receive_request())
    broker.refusal = "the master changes"
    time.advance(10_001)
    broker.api.housekeep()
    assert broker.topics.get("%DLQ%group") is None
    broker.refusal = None
    broker.puts_held = True
    broker.api.housekeep()
    assert sum(broker.leases.committed("group", "orders", queue_id) or 0 for queue_id in range(4)) == 0
    broker.release_puts()
    broker.api.housekeep()
    dead = receive(broker, receive_request("%DLQ%group", group="looks"))
    assert sorted(dead.bodies) == [b"a", b"b"]
    for _ in range(100):
        time.advance(1_000)
        broker.api.housekeep()
    assert broker.leases.bounds("%DLQ%group", 0) == (0, 2), "each is written once"


# Refusals


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (receive_request("a b"), Code.ILLEGAL_TOPIC),
        (receive_request("unknown"), Code.TOPIC_NOT_FOUND),
        (receive_request(group=""), Code.ILLEGAL_CONSUMER_GROUP),
        (receive_request(group="x" * 121), Code.ILLEGAL_CONSUMER_GROUP),
        (receive_request(invisible_ms=9_000), Code.ILLEGAL_INVISIBLE_TIME),
        (receive_request(expression="a | b"), Code.ILLEGAL_FILTER_EXPRESSION),
    ],
)
def test_request_that_is_not_well_formed_is_refused_at_once(
    broker: BrokerAssembly, request_: pb.ReceiveMessageRequest, code: int
) -> None:
    assert receive(broker, request_).code == code


def test_sql_filter_that_does_not_parse_is_refused_with_its_place(broker: BrokerAssembly) -> None:
    answer = receive(broker, sql_request("x > 3 AND"))
    assert answer.code == Code.ILLEGAL_FILTER_EXPRESSION
    assert "SQL92 filter 'x > 3 AND': at character 10" in answer.text


def test_deadline_too_short_for_a_poll_is_refused(broker: BrokerAssembly) -> None:
    fake = call(broker, "ReceiveMessage", receive_request(poll_ms=20_000), FakeCall(deadline_ms=2_000))
    assert Answer.of(fake).code == Code.ILLEGAL_POLLING_TIME


def test_a_receive_that_was_on_its_way_for_long_waits_for_what_is_left(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    passed_on = FakeCall(deadline_ms=2_000, metadata={"x-mq-client-id": "client@1", FORWARDED_HEADER: "1"})
    fake = call(broker, "ReceiveMessage", receive_request(poll_ms=20_000), passed_on)
    assert fake.code is None
    time.advance(2_000)
    assert Answer.of(fake).code == Code.MESSAGE_NOT_FOUND


def test_slave_refuses_at_once(broker: BrokerAssembly) -> None:
    broker.refusal = "this broker is a slave"
    assert receive(broker, receive_request()).code == Code.FORBIDDEN


def test_unknown_broker_name_means_this_one(broker: BrokerAssembly) -> None:
    send(broker, b"a")
    assert receive(broker, receive_request(broker_name="broker-z")).bodies == [b"a"]


def test_group_is_created_at_its_first_receive(broker: BrokerAssembly) -> None:
    call(broker, "ReceiveMessage", receive_request(group="newcomers"))
    assert broker.groups.get("newcomers") is not None


def test_who_names_too_many_new_groups_is_told_so_and_known_groups_go_on(broker: BrokerAssembly) -> None:
    send(broker, b"a")
    broker.add_group("known")
    broker.group_refusal = "clients name too many: create them beforehand"
    fake = call(broker, "ReceiveMessage", receive_request(group="newcomers"))
    assert Answer.of(fake).code == Code.TOO_MANY_REQUESTS
    assert broker.groups.get("newcomers") is None
    assert receive(broker, receive_request(group="known")).bodies == [b"a"]


def test_first_receive_of_a_group_is_answered_when_the_group_is_durable(broker: BrokerAssembly) -> None:
    send(broker, b"a")
    writes: list[Callable[[], object]] = []
    broker.group_writes = writes
    waiting, cancelled = (call(broker, "ReceiveMessage", receive_request(group="newcomers")) for _ in range(2))
    cancelled.cancel()
    assert not waiting.sent
    for written in writes:
        written()
    assert Answer.of(waiting).bodies == [b"a"]
    assert not cancelled.sent


def test_first_receive_of_a_group_ends_when_the_broker_stops_meanwhile(broker: BrokerAssembly) -> None:
    writes: list[Callable[[], object]] = []
    broker.group_writes = writes
    waiting = call(broker, "ReceiveMessage", receive_request(group="newcomers"))
    broker.refusal = "the broker is stopping"
    writes[0]()
    assert Answer.of(waiting).code == Code.FORBIDDEN


def test_disabled_group_is_refused(broker: BrokerAssembly) -> None:
    broker.add_group("group", enabled=False)
    assert receive(broker, receive_request()).code == Code.FORBIDDEN


def test_waiting_receives_get_nothing_once_their_group_was_removed_or_disabled(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    first, second = (call(broker, "ReceiveMessage", receive_request(group="going")) for _ in range(2))
    other = call(broker, "ReceiveMessage", receive_request(group="held"))
    broker.groups.remove("going", now_ms=1)
    broker.leases.forget_group("going")
    broker.add_group("held", enabled=False)
    send(broker, b"a")
    time.end_turn()
    assert [Answer.of(waiting).code for waiting in (first, second)] == [Code.CONSUMER_GROUP_NOT_FOUND] * 2
    assert Answer.of(other).code == Code.FORBIDDEN
    assert broker.leases.pairs() == [("held", "orders")]
    assert receive(broker, receive_request(group="going")).bodies == [b"a"], "the next receive makes the group anew"


def test_waiting_receives_end_once_their_topic_was_deleted(broker: BrokerAssembly, time: ManualTime) -> None:
    waiting = [call(broker, "ReceiveMessage", receive_request(group=group)) for group in ("a", "a", "b")]
    broker.leases.forget_topic("orders")
    broker.api.consumes_anew("", "orders")
    broker.topics.remove("orders", now_ms=1)
    time.end_turn()
    assert [Answer.of(one).code for one in waiting] == [Code.TOPIC_NOT_FOUND] * 3
    assert broker.leases.pairs() == []


def test_a_receive_that_waited_in_vain_is_told_that_its_group_was_removed(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    waiting = call(broker, "ReceiveMessage", receive_request(group="going"))
    broker.leases.forget_group("going")
    broker.groups.remove("going", now_ms=1)
    time.advance(5_000)
    assert Answer.of(waiting).code == Code.CONSUMER_GROUP_NOT_FOUND


def test_consumer_is_known_by_its_group_before_it_introduced_itself(broker: BrokerAssembly) -> None:
    call(broker, "ReceiveMessage", receive_request(group="readers"))
    assert [session.group for session in broker.sessions.all()] == ["readers"]


def test_ordered_group_gets_nothing_more_of_a_queue_until_the_batch_is_acknowledged(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    broker.add_group("group", fifo=True)
    broker.add_topic("single", queue_count=1)
    send(broker, b"a", b"b", topic="single")
    first = receive(broker, receive_request("single", batch_size=1))
    waiting = call(broker, "ReceiveMessage", receive_request("single", batch_size=1))
    assert waiting.code is None
    assert ack(broker, *first.handles, topic="single").status.code == Code.OK
    assert Answer.of(waiting).bodies == [b"b"]


def test_a_waiting_receive_gets_a_message_once_the_in_sync_set_holds_it(broker: BrokerAssembly) -> None:
    waiting = call(broker, "ReceiveMessage", receive_request())
    broker.confirmed_offset = broker.store.end_offset
    send(broker, b"a")
    broker.end_turn()
    assert waiting.code is None
    # It holds more, and not this yet.
    broker.confirmed_offset += 1
    broker.api.confirmed()
    broker.end_turn()
    assert waiting.code is None
    broker.confirmed_offset = broker.store.end_offset
    broker.api.confirmed()
    broker.end_turn()
    assert Answer.of(waiting).bodies == [b"a"]


def test_a_receive_that_comes_behind_the_message_waits_for_the_set_as_well(broker: BrokerAssembly) -> None:
    send(broker, b"a")
    broker.confirmed_offset = broker.store.end_offset
    send(broker, b"b", b"c")
    first, second = (call(broker, "ReceiveMessage", receive_request(batch_size=1)) for _ in range(2))
    assert Answer.of(first).bodies == [b"a"]
    broker.end_turn()
    assert second.code is None
    broker.confirmed_offset = broker.store.end_offset
    broker.api.confirmed()
    broker.end_turn()
    assert Answer.of(second).bodies in ([b"b"], [b"c"])


# SQL92


def sql_request(expression: str, *, group: str = "group") -> pb.ReceiveMessageRequest:
    request = receive_request(group=group, expression=expression)
    request.filter_expression.type = definition.SQL
    return request


@pytest.mark.parametrize("method", ["ReceiveMessage", "PullMessage"])
@pytest.mark.parametrize("length", [20, 4_000])
def test_who_names_ever_new_filters_does_not_keep_the_event_loop(
    broker: BrokerAssembly, time: ManualTime, method: str, length: int
) -> None:
    """The longest costs 20 ms, and fifty a second of one client were all that a broker did."""
    broker.add_group("group")

    def refused(number: int, *, host: str = "10.0.0.7") -> bool:
        text = f"x = {number} OR {'a' * (length - 20)} = 1" if length > 20 else f"x > {number}"
        request: Any = sql_request(text) if method == "ReceiveMessage" else pull_request(text)
        fake = call(broker, method, request, FakeCall(peer=f"ipv4:{host}:1"))
        fake.cancel()
        status: Any = fake.sent[0] if fake.sent else None
        return status is not None and status.status.code == definition.TOO_MANY_REQUESTS

    # What an earlier test has named is known.
    base, read = 10_000 * (length + len(method)), 0
    for number in range(4_000):
        read += not refused(base + number)
        time.advance(1)
    each = (length if length > 20 else len(f"x > {base}")) + 64
    assert read <= (8 + 4) * (16 << 10) // each + 2
    assert refused(base + 9_999)
    assert not refused(base), "one that is known costs nothing"
    assert not refused(base + 9_998, host="10.0.0.8"), "others are read"
    time.advance(9_000)
    assert not refused(base + 9_999), "and so is it, later"


def pull_request(expression: str) -> pb.PullMessageRequest:
    request = pb.PullMessageRequest(group=definition.Resource(name="group"))
    request.message_queue.topic.name = "orders"
    request.filter_expression.CopyFrom(definition.FilterExpression(type=definition.SQL, expression=expression))
    return request


def test_known_filters_are_those_asked_for_last_and_bounded() -> None:
    for number in range(800):
        text = f"a = '{number}{'x' * (number * 7 % 4_000)}'"
        assert isinstance(parse_sql(text), SqlFilter)
        assert known_sql("a = 'kept'" if number else text) is not None
        if not number:
            parse_sql("a = 'kept'")
    held = sum(len(text) + ENTRY_CHARACTERS for text in sql_filter._known)
    assert held == sql_filter._known_characters[0] <= KNOWN_CHARACTERS_MAX
    assert known_sql("a = '0'") is None


def send_with(broker: BrokerAssembly, body: bytes, *, tag: str | None = None, **properties: str) -> None:
    sent = message(body=body, tag=tag, keys=("k1", "k2"), message_id=f"id-{body.decode()}")
    sent.user_properties.update(properties)
    call(broker, "SendMessage", send_request(sent))


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("x > 3", [b"5"]),
        ("x > 3 OR region = 'hz'", [b"5", b"hz"]),
        ("region = 'hz' OR x > 3", [b"5", b"hz", b"none"]),
        ("x IS NULL", [b"hz", b"plain"]),
        ("TAGS = 'a' AND KEYS CONTAINS 'k2'", [b"1", b"5"]),
        ("UNIQ_KEY = 'id-5'", [b"5"]),
        ("NOT (x > 3)", [b"1"]),
    ],
)
def test_sql_filter_lets_pass_what_is_true(broker: BrokerAssembly, expression: str, wanted: list[bytes]) -> None:
    send_with(broker, b"1", x="1", tag="a")
    send_with(broker, b"5", x="5", tag="a")
    send_with(broker, b"none", x="none", region="hz")
    send_with(broker, b"hz", region="hz")
    send_with(broker, b"plain")
    assert sorted(receive(broker, sql_request(expression)).bodies) == sorted(wanted)
    states = broker.leases.progress_of("group", "orders")
    assert sum(state.inflight_count for state in states) == len(wanted)
    assert sum(state.next_offset for state in states) == 5, "what does not match is passed over for good"


@pytest.mark.plain
def test_filters_that_let_nothing_pass_take_a_bounded_part_of_each_turn(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    for number in range(1_500):
        send_with(broker, b"%d" % number, x="1")
    looks: list[list[tuple[str, int]]] = [[]]
    receive_leases = broker.leases.receive

    def counted(**request: Any) -> Received:
        received = receive_leases(**request)
        looks[-1].append((request["group"], received.scan_cost))
        return received

    broker.leases.receive = counted  # type: ignore[method-assign]
    groups = [f"g{number}" for number in range(6)]
    waiting = [call(broker, "ReceiveMessage", sql_request("x > 3", group=group)) for group in groups]
    while any(broker.leases.has_more(group=group, topic="orders") for group in groups):
        looks.append([])
        time.end_one_turn()
        assert len(looks) < 50
    assert max(sum(cost for _, cost in one) for one in looks) < 3 * 4_096
    assert len({group for one in looks[:6] for group, _ in one}) == 6, "all in their turn"
    broker.leases.receive = receive_leases  # type: ignore[method-assign]
    assert receive(broker, receive_request(group="unfiltered")).code == Code.OK
    assert all(fake.code is None for fake in waiting)
    committed = [state.committed_offset for group in groups for state in broker.leases.progress_of(group, "orders")]
    assert sum(committed) == 6 * 1_500
    send_with(broker, b"at last", x="4")
    time.end_turn()
    assert [Answer.of(fake).bodies for fake in waiting] == [[b"at last"]] * 6


# What waits, and what it keeps


def test_receives_that_wait_with_one_long_filter_share_it_and_new_ones_come_slowly(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    """Twenty thousand tags are megabytes, of each receive that waits."""
    broker.add_group("group")

    def waits(number: int, *, host: str = "10.0.0.7") -> bool:
        tags = f"{number}|| " + "||".join(f"{tag}" for tag in range(number, number + 7_500))
        request = receive_request(expression=tags)
        return call(broker, "ReceiveMessage", request, FakeCall(peer=f"ipv4:{host}:1")).code is None

    first = sum(waits(number) for number in range(100_000, 100_040))
    assert 1 <= first <= 4
    assert all(waits(100_000) for _ in range(40)), "one that is known costs nothing"
    assert waits(100_039, host="10.0.0.8"), "others are read"
    waiting = [one for one in gc.get_objects() if type(one).__name__ == "_Receive" and one.call.code is None]
    filters = [one.tag_filter for one in waiting if len(getattr(one.tag_filter, "tags", None) or ()) > 1_000]
    assert len(filters) >= 41
    assert len(set(map(id, filters))) <= first + 1


def test_long_filters_of_users_behind_one_address_are_each_read_once(broker: BrokerAssembly, time: ManualTime) -> None:
    broker.add_group("group")
    broker.whose = lambda call: call.header("x-user")

    def waits(number: int) -> bool:
        tags = "||".join(f"{number}-{tag:06}-of-a-shop" for tag in range(40))
        fake = FakeCall(metadata={"x-mq-client-id": f"c{number}", "x-user": f"user-{number // 100}"})
        is_waiting = call(broker, "ReceiveMessage", receive_request(expression=tags), fake).code is None
        fake.cancel()
        return is_waiting

    for _ in range(3):
        assert all(waits(number) for number in range(1_500)), "1.3 MB of filters, and each is known the next time"
        broker.new_filters._paid_until_ms.update({f"user-{user}": 1e12 for user in range(16)})
    assert not waits(1_500)


def test_known_long_filters_have_an_end() -> None:
    filters = NewFilters()
    for number in range(400):
        text = "||".join(map(str, range(number, number + 3_000)))
        filters.remember_tags(text, TagFilter.parse(text) or EVERY_TAG)
        assert filters.known_tags(text) is not None
        held = sum(len(text) + 300 * len(found.tags or ()) for text, found in filters._tags.items())
        assert held == filters._tags_bytes <= 64 << 20
    assert 50 < len(filters._tags) < 100


@pytest.mark.parametrize("method", ["ReceiveMessage", "PullMessage"])
def test_what_waits_keeps_nothing_else_of_its_request(broker: BrokerAssembly, method: str) -> None:
    """A part of a protobuf message keeps the memory of all of it, and whatever may stand in it."""
    broker.add_group("group")
    wanted: Any = receive_request() if method == "ReceiveMessage" else pull_request("a = 1")
    if method == "PullMessage":
        wanted.filter_expression.type = definition.TAG
        wanted.filter_expression.expression = "*"
        wanted.long_polling_timeout.FromSeconds(20)
    padding = (1 << 21) - 512
    # A field that nobody knows: number 1,000, bytes.
    encoded = wanted.SerializeToString() + b"\xc2\x3e" + b"\x80\xfc\x7f" + bytes(padding)

    def resident_bytes() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident_bytes()
    for _ in range(100):
        request = type(wanted).FromString(encoded)
        assert call(broker, method, request).code is None, "it waits"
        del request
    assert resident_bytes() - before < 40 * padding
    wanted.message_queue.topic.resource_namespace = "x" * 513
    refused = call(broker, method, wanted)
    assert refused.code is StatusCode.OK
    answer: Any = refused.sent[0]
    assert answer.status.code == definition.BAD_REQUEST
