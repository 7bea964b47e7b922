"""Sends to a topic with a deduplication window: the second message with an id is answered and not stored."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from support.api_requests import call, message, send_request
from support.broker_assembly import BrokerAssembly
from support.manual_time import ManualTime
from tandemmq.core.metadata.topic_table import DEDUPLICATION_TOPIC, TopicConfig
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

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
