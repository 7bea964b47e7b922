"""Half messages, their ends, and the questions to producers that forgot them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

import pytest

from support.api_requests import call, message, receive, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from support.transactions import TOPIC, Producer, bodies_in, end, half_message, send_half
from tandemmq.broker.queue_reader import StoreQueueReader
from tandemmq.core.delivery.half_messages import TransactionId
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC, MessageRecord
from tandemmq.core.message.record_layout import TRANSACTION_COMMIT
from tandemmq.core.storage.consume_queue import QueueEntry
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

Code = definition.Code
COMMIT, ROLLBACK = definition.COMMIT, definition.ROLLBACK
UNKNOWN = definition.TRANSACTION_RESOLUTION_UNSPECIFIED


@pytest.fixture
def broker(time: ManualTime) -> Iterator[BrokerAssembly]:
    """With one more topic, of the type TRANSACTION."""
    assembly = BrokerAssembly(clock=time, timers=time)
    assembly.add_topic("orders")
    assembly.add_topic("mixed", message_type="MIXED")
    assembly.add_topic(TOPIC, message_type="TRANSACTION")
    yield assembly
    assembly.close()


def pass_seconds(broker: BrokerAssembly, seconds: int) -> None:
    """Time passes, with a look each second as in a broker."""
    assert isinstance(broker.clock, ManualTime)
    for _ in range(seconds):
        broker.clock.advance(1_000)
        broker.api.transactions.look()
        broker.clock.advance(0)


def restarted(broker: BrokerAssembly, disk: SimulatedDisk, time: ManualTime, *, power_loss: bool) -> BrokerAssembly:
    """The same disk under a new process, after a kill."""
    disk.crash(power_loss=power_loss)
    again = BrokerAssembly(clock=time, timers=time, disk=disk)
    again.add_topic(TOPIC, message_type="TRANSACTION")
    return again


# Halves


def test_a_half_is_stored_as_rocketmq_does_and_not_delivered(broker: BrokerAssembly) -> None:
    half = send_half(broker, b"pay", recovery_ms=10_000)
    assert half.status.code == Code.OK
    record = broker.store.message_at(TransactionId.parse(half.transaction_id).physical_offset)
    properties = decode_properties(record.properties)
    assert (record.topic, record.queue_id, record.sys_flag, record.body) == (HALF_TOPIC, 0, 0, b"pay")
    assert properties["REAL_TOPIC"] == properties["PGROUP"] == TOPIC
    assert properties["REAL_QID"] in {"0", "1", "2", "3"}
    assert properties["TRAN_MSG"] == "true"
    assert properties["__transactionId__"] == properties["UNIQ_KEY"] == half.message_id
    assert properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "10"
    assert (properties["TAGS"], properties["KEYS"]) == ("paid", "order-1")
    assert bodies_in(broker) == []


def test_its_transaction_id_says_where_it_lies(broker: BrokerAssembly) -> None:
    send_half(broker)
    half = send_half(broker)
    wanted = TransactionId.parse(half.transaction_id)
    assert (wanted.broker_name, wanted.queue_offset, wanted.message_id) == ("broker-a", 1, half.message_id)
    assert half.offset == 1


@pytest.mark.parametrize("other", ["group", "delay"])
def test_a_transaction_is_nothing_else_besides(broker: BrokerAssembly, other: str) -> None:
    sent = half_message(topic="mixed")
    if other == "group":
        sent.system_properties.message_group = "g"
    else:
        sent.system_properties.delivery_timestamp.FromMilliseconds(broker.clock.wall_ms() + 5_000)
    response = call(broker, "SendMessage", send_request(sent)).only(pb.SendMessageResponse)
    assert response.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "transaction commits" in response.status.message
    assert broker.store.queue_max_offset(HALF_TOPIC, 0) == 0


def test_a_request_has_transactions_alone_or_none(broker: BrokerAssembly) -> None:
    response = call(broker, "SendMessage", send_request(half_message(topic="mixed"), message("mixed"))).only(
        pb.SendMessageResponse
    )
    assert response.status.code == Code.MESSAGE_CORRUPTED


def test_a_normal_topic_takes_no_transaction(broker: BrokerAssembly) -> None:
    response = call(broker, "SendMessage", send_request(half_message(topic="orders"))).only(pb.SendMessageResponse)
    assert response.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


def test_too_many_undecided_ones_refuse_the_next(broker: BrokerAssembly) -> None:
    broker.options.transactions_max = 2
    first = send_half(broker)
    send_half(broker)
    assert send_half(broker).status.code == Code.TOO_MANY_REQUESTS
    assert end(broker, first, ROLLBACK).code == Code.OK
    assert send_half(broker).status.code == Code.OK


def test_a_half_whose_sender_was_told_that_it_failed_ends_at_once(broker: BrokerAssembly, time: ManualTime) -> None:
    broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    failed = send_half(broker)
    assert failed.status.code == Code.SLAVE_PERSISTENCE_TIMEOUT
    assert not failed.transaction_id
    assert broker.api.transactions.undecided_count == 1
    time.end_turn()
    assert broker.api.transactions.undecided_count == 0


# Ends


def test_a_commit_delivers_the_message_once(broker: BrokerAssembly) -> None:
    half = send_half(broker, b"pay")
    assert end(broker, half, COMMIT).code == Code.OK
    answer = receive(broker, receive_request(TOPIC))
    assert answer.bodies == [b"pay"]
    system = answer.messages[0].system_properties
    assert (system.message_id, system.message_type) == (half.message_id, definition.TRANSACTION)
    assert (system.tag, list(system.keys)) == ("paid", ["order-1"])
    assert not answer.messages[0].user_properties
    queue = broker.store.consume_queue(TOPIC, system.queue_id)
    assert queue is not None
    record = broker.store.message_at(queue.entry(0).physical_offset)
    assert record.sys_flag == TRANSACTION_COMMIT
    assert record.prepared_transaction_offset == TransactionId.parse(half.transaction_id).physical_offset
    assert "REAL_TOPIC" not in decode_properties(record.properties)


def test_a_rollback_delivers_nothing(broker: BrokerAssembly) -> None:
    half = send_half(broker)
    assert end(broker, half, ROLLBACK).code == Code.OK
    assert bodies_in(broker) == []
    assert broker.api.transactions.undecided_count == 0


def test_the_same_end_again_is_ok_and_does_nothing(broker: BrokerAssembly) -> None:
    half = send_half(broker, b"pay")
    for _ in range(3):
        assert end(broker, half, COMMIT).code == Code.OK
    assert bodies_in(broker) == [b"pay"]
    assert broker.store.queue_max_offset(OP_TOPIC, 0) == 1


def test_the_contrary_end_is_refused_in_words(broker: BrokerAssembly) -> None:
    committed, rolled_back = send_half(broker, b"a"), send_half(broker, b"b")
    end(broker, committed, COMMIT)
    end(broker, rolled_back, ROLLBACK)
    status = end(broker, committed, ROLLBACK)
    assert (status.code, "was committed" in status.message) == (Code.INVALID_TRANSACTION_ID, True)
    status = end(broker, rolled_back, COMMIT)
    assert (status.code, "was rolled back" in status.message) == (Code.INVALID_TRANSACTION_ID, True)
    assert bodies_in(broker) == [b"a"]


def test_a_producer_that_does_not_know_yet_is_told_ok(broker: BrokerAssembly) -> None:
    half = send_half(broker)
    assert end(broker, half, UNKNOWN).code == Code.OK
    assert broker.api.transactions.undecided_count == 1


@pytest.mark.parametrize("transaction_id", ["", "  ", "no id", "bm8gaWQ=", "djIgYSAxIDEgeA=="])
def test_a_transaction_id_that_is_none_is_refused(broker: BrokerAssembly, transaction_id: str) -> None:
    half = send_half(broker)
    half.transaction_id = transaction_id
    assert end(broker, half, COMMIT).code == Code.INVALID_TRANSACTION_ID
    assert broker.api.transactions.undecided_count == 1


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("what", ["place", "offset", "message id", "topic"])
def test_an_id_of_something_else_ends_nothing(broker: BrokerAssembly, what: str, has_ended: bool) -> None:
    """Nor does it tell how something of another topic has ended, or has that written again."""
    half = send_half(broker, b"pay")
    if has_ended:
        assert end(broker, half, COMMIT).code == Code.OK
    log_end = broker.store.end_offset
    wanted = TransactionId.parse(half.transaction_id)
    wrong = {
        "place": TransactionId("broker-a", 7, wanted.physical_offset, half.message_id),
        "offset": TransactionId("broker-a", 0, wanted.physical_offset + 1, half.message_id),
        "message id": TransactionId("broker-a", 0, wanted.physical_offset, "other"),
        "topic": wanted,
    }[what]
    other = pb.SendResultEntry(message_id=wrong.message_id, transaction_id=wrong.encode())
    topic = "mixed" if what == "topic" else TOPIC
    assert end(broker, other, COMMIT, topic=topic).code == Code.INVALID_TRANSACTION_ID
    held = ([b"pay"], 0) if has_ended else ([], 1)
    assert (bodies_in(broker), broker.api.transactions.undecided_count, broker.store.end_offset) == (*held, log_end)


def test_a_commit_into_a_deleted_topic_says_so_and_may_be_repeated(broker: BrokerAssembly) -> None:
    half = send_half(broker, b"pay")
    broker.topics.remove(TOPIC, now_ms=broker.clock.wall_ms())
    assert end(broker, half, COMMIT).code == Code.TOPIC_NOT_FOUND
    broker.add_topic(TOPIC, message_type="TRANSACTION", queue_count=1)
    assert end(broker, half, COMMIT).code == Code.OK
    assert bodies_in(broker) == [b"pay"]


def test_an_end_waits_for_the_copies_that_a_send_waits_for(broker: BrokerAssembly) -> None:
    half = send_half(broker, b"pay")
    request = pb.EndTransactionRequest(
        topic=definition.Resource(name=TOPIC),
        message_id=half.message_id,
        transaction_id=half.transaction_id,
        resolution=COMMIT,
    )
    broker.puts_held = True
    first = call(broker, "EndTransaction", request)
    again = call(broker, "EndTransaction", request)
    assert (first.sent, again.sent) == ([], [])
    broker.release_puts()
    assert first.only(pb.EndTransactionResponse).status.code == Code.OK
    assert again.only(pb.EndTransactionResponse).status.code == Code.OK
    assert bodies_in(broker) == [b"pay"]


def test_an_end_that_too_few_hold_is_said_again_and_waited_for(broker: BrokerAssembly) -> None:
    half = send_half(broker, b"pay")
    broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    assert end(broker, half, COMMIT).code == Code.SLAVE_PERSISTENCE_TIMEOUT
    assert end(broker, half, COMMIT).code == Code.SLAVE_PERSISTENCE_TIMEOUT
    broker.put_status = None
    assert end(broker, half, COMMIT).code == Code.OK
    assert bodies_in(broker) == [b"pay"]
    assert broker.api.transactions.doubled_count == 0


def test_an_end_that_is_refused_leaves_it_undecided(broker: BrokerAssembly) -> None:
    half = send_half(broker, b"pay")
    broker.store.set_writable(False, "no")
    assert end(broker, half, COMMIT).code == Code.INTERNAL_SERVER_ERROR
    assert broker.api.transactions.undecided_count == 1
    broker.store.set_writable(True)
    assert end(broker, half, ROLLBACK).code == Code.OK


def test_a_broker_that_takes_nothing_ends_nothing(broker: BrokerAssembly) -> None:
    half = send_half(broker)
    broker.refusal = "it is a slave"
    assert end(broker, half, COMMIT).code == Code.FORBIDDEN


# Questions


def test_a_producer_is_asked_after_six_seconds_and_then_each_thirty(broker: BrokerAssembly) -> None:
    producer = Producer(broker, TOPIC)
    half = send_half(broker, b"pay")
    pass_seconds(broker, 5)
    assert producer.asked == []
    pass_seconds(broker, 1)
    [question] = producer.asked
    assert question.transaction_id == half.transaction_id
    told = question.message
    assert (told.topic.name, told.body, told.system_properties.message_id) == (TOPIC, b"pay", half.message_id)
    assert told.system_properties.body_encoding == definition.IDENTITY
    assert told.system_properties.message_type == definition.TRANSACTION
    assert told.system_properties.body_digest.checksum
    assert not told.system_properties.receipt_handle
    pass_seconds(broker, 29)
    assert len(producer.asked) == 1
    pass_seconds(broker, 1)
    assert len(producer.asked) == 2
    assert end(broker, half, COMMIT).code == Code.OK
    pass_seconds(broker, 60)
    assert len(producer.asked) == 2
    assert bodies_in(broker) == [b"pay"]


def test_a_half_may_ask_to_be_left_alone_for_longer(broker: BrokerAssembly) -> None:
    producer = Producer(broker, TOPIC)
    send_half(broker, recovery_ms=19_500)
    pass_seconds(broker, 19)
    assert producer.asked == []
    pass_seconds(broker, 1)
    assert len(producer.asked) == 1


def test_a_topic_has_its_own_times(broker: BrokerAssembly) -> None:
    config = broker.topics.get(TOPIC)
    assert config is not None
    own = {**config.attributes, "transaction.timeout": "2000", "transaction.check.interval": "3000"}
    broker.topics.put(replace(config, attributes=MappingProxyType(own)), now_ms=broker.clock.wall_ms())
    producer = Producer(broker, TOPIC)
    send_half(broker)
    pass_seconds(broker, 2)
    assert len(producer.asked) == 1
    pass_seconds(broker, 3)
    assert len(producer.asked) == 2


def test_rounds_without_a_producer_do_not_count(broker: BrokerAssembly) -> None:
    Producer(broker, "orders", client_id="another topic's")
    broker.options.transaction_check_max = 1
    send_half(broker)
    pass_seconds(broker, 6 + 5 * 30)
    assert broker.api.transactions.unasked_count == 6
    assert broker.api.transactions.undecided_count == 1
    producer = Producer(broker, TOPIC)
    pass_seconds(broker, 30)
    assert len(producer.asked) == 1


def test_a_producer_that_left_is_asked_no_more(broker: BrokerAssembly) -> None:
    first, second = Producer(broker, TOPIC), Producer(broker, TOPIC, client_id="producer@2")
    send_half(broker)
    first.stream.cancelled()
    pass_seconds(broker, 6)
    assert (len(first.asked), len(second.asked)) == (0, 1)
    second.publish("orders")
    pass_seconds(broker, 30)
    assert (len(second.asked), broker.api.transactions.unasked_count) == (1, 1)


def test_what_nobody_decides_is_put_aside_in_the_end(broker: BrokerAssembly) -> None:
    broker.options.transaction_check_max = 3
    producer = Producer(broker, TOPIC)
    half = send_half(broker, b"pay")
    pass_seconds(broker, 6 + 3 * 30)
    assert len(producer.asked) == 3
    assert broker.api.transactions.undecided_count == 0
    assert bodies_in(broker, GIVEN_UP_TOPIC) == [b"pay"]
    status = end(broker, half, COMMIT)
    assert (status.code, GIVEN_UP_TOPIC in status.message) == (Code.INVALID_TRANSACTION_ID, True)
    assert bodies_in(broker) == []


def test_a_producer_with_two_streams_is_asked_by_the_newest_alone(broker: BrokerAssembly) -> None:
    """Java's, with two addresses of one broker, has one for each, and may stand still if both ask at once."""
    older, newer = Producer(broker, TOPIC), Producer(broker, TOPIC)
    other = Producer(broker, TOPIC, client_id="producer@2")
    halves = [send_half(broker) for _ in range(40)]
    pass_seconds(broker, 8)
    assert not older.asked
    assert newer.asked
    assert other.asked
    asked = [command.transaction_id for command in (*newer.asked, *other.asked)]
    assert sorted(asked) == sorted(half.transaction_id for half in halves)


def test_many_are_asked_after_in_turns(broker: BrokerAssembly, time: ManualTime) -> None:
    producer = Producer(broker, TOPIC)
    for _ in range(100):
        send_half(broker)
    time.advance(6_000)
    broker.api.transactions.look()
    assert len(producer.asked) == 32
    time.advance(60)
    assert len(producer.asked) == 100


# Restarts


def test_a_restart_knows_what_is_undecided_and_what_has_ended(time: ManualTime) -> None:
    disk = SimulatedDisk(random.Random(1), wall_ms=time.wall_ms)
    broker = BrokerAssembly(clock=time, timers=time, disk=disk)
    broker.add_topic(TOPIC, message_type="TRANSACTION")
    committed, rolled_back, open_one = (send_half(broker, body) for body in (b"a", b"b", b"c"))
    end(broker, committed, COMMIT)
    end(broker, rolled_back, ROLLBACK)
    Producer(broker, TOPIC)
    pass_seconds(broker, 6)
    broker.store.write_appended()
    broker = restarted(broker, disk, time, power_loss=False)
    assert broker.api.transactions.undecided_count == 1
    [(half, transaction_id)] = broker.api.transactions.undecided()
    assert (transaction_id, half.check_count) == (open_one.transaction_id, 1)
    assert end(broker, committed, COMMIT).code == Code.OK
    assert end(broker, rolled_back, ROLLBACK).code == Code.OK
    assert end(broker, committed, ROLLBACK).code == Code.INVALID_TRANSACTION_ID
    assert bodies_in(broker) == [b"a"]
    producer = Producer(broker, TOPIC)
    pass_seconds(broker, 29)
    assert producer.asked == []
    pass_seconds(broker, 1)
    assert len(producer.asked) == 1
    assert end(broker, open_one, COMMIT).code == Code.OK
    assert bodies_in(broker) == [b"a", b"c"]
    broker.close()


def test_one_old_half_does_not_keep_what_has_ended_since(broker: BrokerAssembly) -> None:
    old = send_half(broker, b"old")
    for _ in range(2_000):
        end(broker, send_half(broker), ROLLBACK)
    table = broker.api.transactions._table
    assert len(table._order) < 1_200
    assert len(table._due) < 1_200
    producer = Producer(broker, TOPIC)
    pass_seconds(broker, 6)
    assert [question.transaction_id for question in producer.asked] == [old.transaction_id]


@pytest.mark.plain
def test_a_half_that_cannot_be_read_at_the_start_is_not_forgotten(time: ManualTime) -> None:
    disk = SimulatedDisk(random.Random(1), wall_ms=time.wall_ms)
    broker = BrokerAssembly(clock=time, timers=time, disk=disk)
    broker.add_topic(TOPIC, message_type="TRANSACTION")
    first, second = send_half(broker, b"a"), send_half(broker, b"b")
    transactions, queues = broker.api.transactions, broker.queues
    broker.queues = _Unreadable(queues, 0)
    for _ in transactions.recovery():
        pass
    assert transactions.undecided_count == 1
    assert end(broker, first, COMMIT).code == Code.INTERNAL_SERVER_ERROR
    assert end(broker, second, COMMIT).code == Code.OK
    broker.store.write_appended()
    broker = restarted(broker, disk, time, power_loss=False)
    assert end(broker, first, COMMIT).code == Code.OK
    assert bodies_in(broker) == [b"b", b"a"]
    broker.close()


class _Unreadable(StoreQueueReader):
    """Of whose half topic one record cannot be read."""

    def __init__(self, queues: StoreQueueReader, place: int) -> None:
        super().__init__(queues._store)
        self._place = place

    def record(self, topic: str, queue_id: int, place: int, entry: QueueEntry) -> MessageRecord | None:
        return None if (topic, place) == (HALF_TOPIC, self._place) else super().record(topic, queue_id, place, entry)
