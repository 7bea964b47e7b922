"""Sends to a topic with a deduplication window: the second message with an id is answered and not stored."""

from __future__ import annotations

import asyncio
import random
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.api_requests import call, message, send_request
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from support.transactions import end
from tandemmq.core.delivery.half_messages import TransactionId
from tandemmq.core.message.record import DEDUPLICATION_TOPIC, HALF_TOPIC, TIMER_TOPIC
from tandemmq.core.metadata.topic_table import TopicConfig
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import StatusCode

Code = definition.Code


@pytest.fixture
def once(broker: BrokerAssembly) -> BrokerAssembly:
    attributes = MappingProxyType({"deduplication.window": "60"})
    broker.topics.put(TopicConfig("once", 4, 4, attributes=attributes), now_ms=1)
    return broker


def send(broker: BrokerAssembly, *message_ids: str, topic: str = "once") -> pb.SendMessageResponse:
    request = send_request(*(message(topic, message_id=message_id) for message_id in message_ids))
    return call(broker, "SendMessage", request).only(pb.SendMessageResponse)


def stored(broker: BrokerAssembly, topic: str = "once") -> int:
    return sum(broker.store.queue_max_offset(topic, queue_id) for queue_id in range(4))


def test_second_message_is_answered_as_the_first_and_not_stored(once: BrokerAssembly) -> None:
    for message_id in ("x", "y"):
        first = send(once, message_id)
        again = send(once, message_id)
        assert first == again
        assert again.status.code == Code.OK
    assert stored(once) == 2
    assert once.api.deduplication.duplicate_count == 2
    assert once.store.queue_max_offset(DEDUPLICATION_TOPIC, 0) == 0


def test_topic_without_a_window_stores_each(once: BrokerAssembly) -> None:
    send(once, "x", topic="orders")
    send(once, "x", topic="orders")
    assert stored(once, "orders") == 2


def test_window_ends(once: BrokerAssembly, time: ManualTime) -> None:
    send(once, "x")
    time.advance(60_000)
    send(once, "x")
    assert stored(once) == 1
    time.advance(70_000)
    send(once, "x")
    assert stored(once) == 2


def test_duplicate_of_a_message_on_its_way_is_answered_with_it(once: BrokerAssembly) -> None:
    once.puts_held = True
    first = call(once, "SendMessage", send_request(message("once", message_id="x")))
    again = call(once, "SendMessage", send_request(message("once", message_id="x")))
    assert first.code is None
    assert again.code is None
    once.puts_held = False
    once.release_puts()
    assert first.only(pb.SendMessageResponse) == again.only(pb.SendMessageResponse)
    assert stored(once) == 1


def test_a_duplicate_that_fails_keeps_the_answer_from_no_other(once: BrokerAssembly) -> None:
    class Failing(FakeCall):
        def finish(self, code: StatusCode = StatusCode.OK, detail: str = "") -> None:
            raise ZeroDivisionError

    once.puts_held = True
    request = send_request(message("once", message_id="x"))
    calls = [FakeCall(), FakeCall(), Failing(), FakeCall(), FakeCall()]
    for fake in calls:
        call(once, "SendMessage", request, fake)
    with pytest.raises(ZeroDivisionError):
        once.release_puts()
    once.end_turn()
    answers = [fake.only(pb.SendMessageResponse) for fake in calls if not isinstance(fake, Failing)]
    assert [answer.status.code for answer in answers] == [Code.OK] * 4
    assert stored(once) == 1


def test_duplicates_of_a_message_on_its_way_are_bounded_in_bytes(once: BrokerAssembly) -> None:
    """While no slave answers, one message with an id of its own, sent again and again, would fill the memory."""
    once.puts_held = True
    request = send_request(message("once", message_id="x", body=b"x" * (4 << 20)))
    calls = [call(once, "SendMessage", request) for _ in range(30)]
    waiting = [fake for fake in calls if fake.code is None]
    assert 2 <= len(waiting) <= 9
    refused = [fake.only(pb.SendMessageResponse) for fake in calls if fake not in waiting]
    assert {answer.status.code for answer in refused} == {Code.TOO_MANY_REQUESTS}
    once.puts_held = False
    once.release_puts()
    assert {fake.only(pb.SendMessageResponse).status.code for fake in waiting} == {Code.OK}
    assert stored(once) == 1
    # What has been answered takes no room any more.
    once.puts_held = True
    request = send_request(message("once", message_id="y", body=b"y" * (4 << 20)))
    assert [call(once, "SendMessage", request).code for _ in range(len(waiting))] == [None] * len(waiting)


def test_duplicate_of_a_message_that_no_slave_confirmed_is_ok_once_a_record_behind_it_is(once: BrokerAssembly) -> None:
    once.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    first = send(once, "x")
    assert first.status.code == Code.SLAVE_PERSISTENCE_TIMEOUT
    assert send(once, "x").status.code == Code.SLAVE_PERSISTENCE_TIMEOUT
    once.put_status = None
    again = send(once, "x")
    assert again.status.code == Code.OK
    assert again.entries[0].offset == first.entries[0].offset
    assert stored(once) == 1
    marks = once.store.queue_max_offset(DEDUPLICATION_TOPIC, 0)
    send(once, "x")
    assert once.store.queue_max_offset(DEDUPLICATION_TOPIC, 0) == marks


def test_message_that_was_not_stored_is_stored_when_it_comes_again(once: BrokerAssembly) -> None:
    once.store.set_writable(False, "a test")
    assert send(once, "x").status.code == Code.INTERNAL_SERVER_ERROR
    once.store.set_writable(True)
    assert send(once, "x").status.code == Code.OK
    assert stored(once) == 1


def test_new_master_reads_the_window_from_its_log_and_makes_sure(once: BrokerAssembly) -> None:
    first = send(once, "x")
    steps = once.api.deduplication.restore(once.queues, now_ms=once.clock.wall_ms(), ids_max=1_000)
    for _ in steps:
        pass
    again = send(once, "x")
    assert again == first
    assert stored(once) == 1
    assert once.store.queue_max_offset(DEDUPLICATION_TOPIC, 0) == 1


def test_request_of_several_is_a_duplicate_as_a_whole_or_refused(once: BrokerAssembly) -> None:
    first = send(once, "a", "b")
    assert send(once, "a", "b") == first
    assert send(once, "b", "c").status.code == Code.BAD_REQUEST
    assert stored(once) == 2


def test_request_with_an_id_twice_is_stored_and_then_known(once: BrokerAssembly) -> None:
    assert send(once, "a", "a").status.code == Code.OK
    assert send(once, "a").status.code == Code.OK
    assert stored(once) == 2


def test_ids_are_bounded(once: BrokerAssembly, time: ManualTime) -> None:
    once.options.deduplication_ids_max = 10
    for number in range(40):
        send(once, f"id-{number}")
        time.advance(1_000)
    assert once.api.deduplication.count <= 10
    send(once, "id-39")
    assert stored(once) == 40


def test_long_ids_take_no_more_memory_than_short_ones(once: BrokerAssembly, time: ManualTime) -> None:
    long_ids = [f"{number}".rjust(20_000, "x") for number in range(20)]
    for message_id in long_ids * 2:
        assert send(once, message_id).status.code == Code.OK
    assert stored(once) == len(long_ids)
    config = once.topics.get("once")
    assert config is not None
    window = once.api.deduplication.window(config)
    assert window is not None
    assert sum(len(message_id) for ids in window._slices.values() for message_id in ids) <= 128 * len(long_ids)
    # One that no slave has confirmed, and what a new master reads from its log.
    for _ in once.api.deduplication.restore(once.queues, now_ms=time.wall_ms(), ids_max=1_000):
        pass
    for message_id in long_ids * 2:
        assert send(once, message_id).status.code == Code.OK
    assert stored(once) == len(long_ids)
    assert once.store.queue_max_offset(DEDUPLICATION_TOPIC, 0) == len(long_ids)


def test_fifo_message_is_stored_once(broker: BrokerAssembly) -> None:
    attributes = MappingProxyType({"deduplication.window": "60", "message.type": "FIFO"})
    broker.topics.put(TopicConfig("once", 4, 4, attributes=attributes), now_ms=1)
    request = send_request(message("once", message_id="x", message_group="g"))
    answers = [call(broker, "SendMessage", request).only(pb.SendMessageResponse) for _ in range(2)]
    assert answers[0] == answers[1]
    assert stored(broker) == 1


def test_lite_message_that_waited_for_another_gets_its_place_when_it_is_put(broker: BrokerAssembly) -> None:
    attributes = MappingProxyType({"deduplication.window": "60", "message.type": "LITE"})
    broker.topics.put(TopicConfig("once", 4, 4, attributes=attributes), now_ms=1)

    def lite(message_id: str) -> definition.Message:
        sent = message("once", message_id=message_id)
        sent.system_properties.message_type, sent.system_properties.lite_topic = definition.LITE, "a"
        return sent

    broker.puts_held = True
    calls = [call(broker, "SendMessage", send_request(lite(message_id))) for message_id in ("x", "x", "y")]
    broker.puts_held = False
    broker.release_puts()
    assert [fake.only(pb.SendMessageResponse).status.code for fake in calls] == [Code.OK] * 3
    assert broker.lite_topics.next_offset("once", "a") == 2
    assert stored(broker) == 2


# Messages that are held before they are in their topic


MIXED = TopicConfig("once", 4, 4, attributes=MappingProxyType({"deduplication.window": "60", "message.type": "MIXED"}))


@pytest.fixture
def mixed(broker: BrokerAssembly) -> BrokerAssembly:
    broker.topics.put(MIXED, now_ms=1)
    return broker


def send_kind(broker: BrokerAssembly, kind: str, message_id: str, *, due_ms: int = 0) -> pb.SendMessageResponse:
    sent = message("once", message_id.encode(), message_id=message_id)
    if kind == "TRANSACTION":
        sent.system_properties.message_type = definition.TRANSACTION
    elif kind == "DELAY":
        sent.system_properties.message_type = definition.DELAY
        sent.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
    return call(broker, "SendMessage", send_request(sent)).only(pb.SendMessageResponse)


def deliver_due(broker: BrokerAssembly) -> None:
    async def run() -> None:
        while await broker.delayed.deliver_due():
            pass

    asyncio.run(run())


def master_again(broker: BrokerAssembly, disk: SimulatedDisk, time: ManualTime) -> BrokerAssembly:
    """Another process on the same disk, which has read its windows."""
    broker.store.write_appended()
    disk.crash(power_loss=False)
    again = BrokerAssembly(clock=time, timers=time, disk=disk)
    again.topics.put(MIXED, now_ms=1)
    for _ in again.api.deduplication.restore(again.queues, now_ms=time.wall_ms(), ids_max=1_000):
        pass
    asyncio.run(again.message_timers.take_over())
    return again


def bodies(broker: BrokerAssembly) -> list[bytes]:
    found = []
    for queue in broker.store.queues:
        if queue.topic == "once":
            entries = queue.read(queue.min_offset, queue.max_offset - queue.min_offset)
            found += [broker.store.message_at(entry.physical_offset).body for entry in entries]
    return sorted(found)


@pytest.mark.parametrize("is_new_master", [False, True])
def test_delayed_message_waits_once_and_comes_once(time: ManualTime, is_new_master: bool) -> None:
    disk = SimulatedDisk(random.Random(1), wall_ms=time.wall_ms)
    broker = BrokerAssembly(clock=time, timers=time, disk=disk)
    broker.topics.put(MIXED, now_ms=1)
    due_ms = time.wall_ms() + 5_000
    first = send_kind(broker, "DELAY", "x", due_ms=due_ms)
    if is_new_master:
        broker = master_again(broker, disk, time)
    again = send_kind(broker, "DELAY", "x", due_ms=due_ms)
    assert again == first
    assert again.entries[0].recall_handle
    assert broker.store.queue_max_offset(TIMER_TOPIC, 0) == 1
    time.advance(6_000)
    deliver_due(broker)
    # The repetition comes when the message has been delivered: it is due at once.
    assert send_kind(broker, "DELAY", "x", due_ms=due_ms).status.code == Code.OK
    if is_new_master:
        broker = master_again(broker, disk, time)
        assert send_kind(broker, "DELAY", "x", due_ms=due_ms).status.code == Code.OK
    deliver_due(broker)
    assert bodies(broker) == [b"x"]
    broker.close()


def test_what_became_of_held_messages_is_not_taken_for_messages_that_were_sent(time: ManualTime) -> None:
    """Else a start would know more than the master before it."""
    disk = SimulatedDisk(random.Random(1), wall_ms=time.wall_ms)
    broker = BrokerAssembly(clock=time, timers=time, disk=disk)
    broker.topics.put(MIXED, now_ms=1)
    send_kind(broker, "DELAY", "x", due_ms=time.wall_ms() + 1_000)
    half = send_kind(broker, "TRANSACTION", "y").entries[0]
    assert end(broker, half, definition.COMMIT, topic="once").code == Code.OK
    time.advance(2_000)
    deliver_due(broker)
    broker = master_again(broker, disk, time)
    for message_id in ("x", "y"):
        assert send_kind(broker, "NORMAL", message_id).status.code == Code.OK
    assert bodies(broker) == [b"x", b"x", b"y", b"y"]
    broker.close()


def test_delayed_message_that_was_due_when_it_came_comes_once(mixed: BrokerAssembly, time: ManualTime) -> None:
    due_ms = time.wall_ms() - 1_000
    answers = [send_kind(mixed, "DELAY", "x", due_ms=due_ms) for _ in range(2)]
    assert [answer.status.code for answer in answers] == [Code.OK, Code.OK]
    assert bodies(mixed) == [b"x"]


def test_half_that_comes_again_is_named_as_the_first_one_until_it_is_rolled_back(mixed: BrokerAssembly) -> None:
    first = send_kind(mixed, "TRANSACTION", "x")
    again = send_kind(mixed, "TRANSACTION", "x")
    assert again == first
    for answer in (first, again):
        assert end(mixed, answer.entries[0], definition.COMMIT, topic="once").code == Code.OK
    committed = send_kind(mixed, "TRANSACTION", "x")
    assert committed == first
    assert end(mixed, committed.entries[0], definition.COMMIT, topic="once").code == Code.OK
    assert bodies(mixed) == [b"x"]
    rolled_back = send_kind(mixed, "TRANSACTION", "y")
    assert end(mixed, rolled_back.entries[0], definition.ROLLBACK, topic="once").code == Code.OK
    anew = send_kind(mixed, "TRANSACTION", "y")
    assert anew.entries[0].transaction_id != rolled_back.entries[0].transaction_id
    assert end(mixed, anew.entries[0], definition.COMMIT, topic="once").code == Code.OK
    assert bodies(mixed) == [b"x", b"y"]


def test_half_whose_sender_was_told_of_a_failure_is_stored_anew(mixed: BrokerAssembly, time: ManualTime) -> None:
    mixed.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    assert send_kind(mixed, "TRANSACTION", "x").status.code == Code.SLAVE_PERSISTENCE_TIMEOUT
    mixed.put_status = None
    time.advance(0)
    again = send_kind(mixed, "TRANSACTION", "x").entries[0]
    assert TransactionId.parse(again.transaction_id).queue_offset == 1
    assert end(mixed, again, definition.COMMIT, topic="once").code == Code.OK
    assert bodies(mixed) == [b"x"]


def test_half_is_not_rolled_back_by_a_repetition_that_nobody_makes_sure_of(time: ManualTime) -> None:
    """The first sender knows it by name, and may commit."""
    disk = SimulatedDisk(random.Random(1), wall_ms=time.wall_ms)
    broker = BrokerAssembly(clock=time, timers=time, disk=disk)
    broker.topics.put(MIXED, now_ms=1)
    first = send_kind(broker, "TRANSACTION", "x").entries[0]
    broker = master_again(broker, disk, time)
    broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    again = send_kind(broker, "TRANSACTION", "x")
    assert again.status.code == Code.SLAVE_PERSISTENCE_TIMEOUT
    broker.put_status = None
    time.advance(10)
    assert end(broker, first, definition.COMMIT, topic="once").code == Code.OK
    assert bodies(broker) == [b"x"]
    broker.close()


def test_repeated_halves_on_their_way_are_one(mixed: BrokerAssembly) -> None:
    mixed.puts_held = True
    sent = message("once", message_id="x")
    sent.system_properties.message_type = definition.TRANSACTION
    calls = [call(mixed, "SendMessage", send_request(sent)) for _ in range(3)]
    mixed.puts_held = False
    mixed.release_puts()
    answers = [each.only(pb.SendMessageResponse) for each in calls]
    assert answers[0].status.code == Code.OK
    assert answers[1:] == [answers[0], answers[0]]
    assert mixed.store.queue_max_offset(HALF_TOPIC, 0) == 1


STEP = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(["NORMAL", "DELAY", "TRANSACTION"]), st.integers(0, 3)),
    st.tuples(st.just("commit"), st.just(""), st.integers(0, 3)),
    st.tuples(st.just("pass"), st.just(""), st.integers(0, 5)),
    st.tuples(st.just("restart"), st.just(""), st.just(0)),
)


@settings(max_examples=60)
@given(st.lists(STEP, max_size=25))
def test_no_id_of_a_kind_is_there_twice_whatever_happens_within_the_window(steps: list[tuple[str, str, int]]) -> None:
    """All of a history lies within the window: up to 25 steps of a second at most."""
    time = ManualTime()
    disk = SimulatedDisk(random.Random(1), wall_ms=time.wall_ms)
    broker = BrokerAssembly(clock=time, timers=time, disk=disk)
    broker.topics.put(MIXED, now_ms=1)
    halves: dict[str, pb.SendResultEntry] = {}
    dues_ms: dict[str, int] = {}
    promised: set[bytes] = set()
    for what, kind, number in steps:
        message_id = f"{kind}-{number}"
        if what == "send":
            due_ms = dues_ms.setdefault(message_id, time.wall_ms() + 1_000 * number)
            answer = send_kind(broker, kind, message_id, due_ms=due_ms)
            assert answer.status.code == Code.OK
            if kind == "TRANSACTION":
                known = halves.setdefault(message_id, answer.entries[0])
                assert known.transaction_id == answer.entries[0].transaction_id
            else:
                promised.add(message_id.encode())
        elif what == "commit" and (half := halves.get(f"TRANSACTION-{number}")) is not None:
            assert end(broker, half, definition.COMMIT, topic="once").code == Code.OK
            promised.add(f"TRANSACTION-{number}".encode())
        elif what == "pass":
            time.advance(200 * number)
            deliver_due(broker)
        elif what == "restart":
            broker = master_again(broker, disk, time)
    time.advance(5_000)
    deliver_due(broker)
    assert bodies(broker) == sorted(promised)
    broker.close()
