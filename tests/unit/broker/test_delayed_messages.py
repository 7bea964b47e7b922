"""DELAY messages: held, delivered once and not early, recalled; whatever becomes of broker and log."""

from __future__ import annotations

import asyncio
import base64
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.api_requests import call, message, send_request
from support.broker_assembly import BrokerAssembly, message_timers
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from support.stores import log_bytes, records_in
from tandemmq.broker.client_api.send import RecallHandle
from tandemmq.broker.queue_reader import DamagedEntries, StoreQueueReader
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import MessageRecord
from tandemmq.core.storage.consume_queue import ENTRY
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

Code = definition.Code
HOUR_MS = 3_600_000
TIMER_TOPIC = "rmq_sys_wheel_timer"


@pytest.fixture
async def broker() -> AsyncIterator[BrokerAssembly]:
    assembly = new_broker(SimulatedDisk(random.Random(0)), ManualTime())
    yield assembly
    assembly.close()


def new_broker(disk: SimulatedDisk, time: ManualTime) -> BrokerAssembly:
    """Topics `reminders` (DELAY), `mixed` and `orders` (NORMAL)."""
    assembly = BrokerAssembly(clock=time, timers=time, disk=disk)
    for topic, kind in (("reminders", "DELAY"), ("mixed", "MIXED"), ("orders", "NORMAL")):
        assembly.add_topic(topic, message_type=kind, queue_count=2)
    return assembly


def time_of(broker: BrokerAssembly) -> ManualTime:
    assert isinstance(broker.clock, ManualTime)
    return broker.clock


def send_later(
    broker: BrokerAssembly,
    delay_ms: int,
    *,
    topic: str = "reminders",
    message_id: str | None = None,
    own: str = "value",
) -> pb.SendResultEntry:
    sent = message(topic, message_id=message_id, tag="TagA", keys=("k1",))
    sent.user_properties["own"] = own
    sent.system_properties.message_type = definition.DELAY
    sent.system_properties.delivery_timestamp.FromMilliseconds(broker.clock.wall_ms() + delay_ms)
    [entry] = call(broker, "SendMessage", send_request(sent)).only(pb.SendMessageResponse).entries
    return entry


async def deliver(broker: BrokerAssembly) -> None:
    """All that is due now."""
    while await broker.delayed.deliver_due():
        pass


def all_records(broker: BrokerAssembly) -> list[MessageRecord]:
    """Of the whole log."""
    store = broker.store
    found = records_in(log_bytes(store), start_offset=0, file_bytes=store.segment_bytes)
    return [store.message_at(one.physical_offset) for one in found]


def delivered(broker: BrokerAssembly, topic: str = "reminders") -> list[MessageRecord]:
    records = []
    for queue_id in range(2):
        queue = broker.store.consume_queue(topic, queue_id)
        if queue is not None:
            records += [broker.store.message_at(entry.physical_offset) for entry in queue.read(0, 1_000)]
    return records


async def recall(
    broker: BrokerAssembly, handle: str, *, topic: str = "reminders", fake: FakeCall | None = None
) -> definition.Status:
    fake = fake or FakeCall()
    request = pb.RecallMessageRequest(topic=definition.Resource(name=topic), recall_handle=handle)
    call(broker, "RecallMessage", request, fake)
    for _ in range(100):
        if fake.code is not None:
            break
        await asyncio.sleep(0)
    [response] = fake.sent
    assert isinstance(response, pb.RecallMessageResponse)
    assert bool(response.message_id) == (response.status.code == Code.OK)
    return response.status


async def test_a_message_is_delivered_at_its_time_and_not_before(broker: BrokerAssembly) -> None:
    entry = send_later(broker, 5_000, message_id="ID-1")
    assert (entry.status.code, entry.message_id) == (Code.OK, "ID-1")
    await deliver(broker)
    time_of(broker).advance(4_999)
    await deliver(broker)
    assert delivered(broker) == []
    time_of(broker).advance(1)
    await deliver(broker)
    [record] = delivered(broker)
    assert (record.body, record.topic) == (b"hello", "reminders")
    properties = decode_properties(record.properties)
    assert {"UNIQ_KEY": "ID-1", "KEYS": "k1", "TAGS": "TagA", "own": "value"}.items() <= properties.items()
    assert properties["TIMER_DELIVER_MS"] == str(broker.clock.wall_ms())
    assert not {"REAL_TOPIC", "REAL_QID"} & properties.keys()
    await deliver(broker)
    assert (broker.delayed.waiting_count, broker.delayed.delivered_count, len(delivered(broker))) == (0, 1, 1)


async def test_the_held_record_is_that_of_rocketmq(broker: BrokerAssembly) -> None:
    send_later(broker, 5_000)
    [held] = [record for record in all_records(broker) if record.topic == TIMER_TOPIC]
    properties = decode_properties(held.properties)
    due_ms = broker.clock.wall_ms() + 5_000
    assert properties["TIMER_DELIVER_MS"] == str(due_ms)
    # A whole second is one precision earlier: brokers of RocketMQ deliver one later.
    assert properties["TIMER_OUT_MS"] == str(due_ms - 1_000)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("reminders", "0")


@pytest.mark.parametrize("delay_ms", [-300_000, 0])
async def test_a_time_that_has_passed_is_now(broker: BrokerAssembly, delay_ms: int) -> None:
    entry = send_later(broker, delay_ms)
    assert entry.recall_handle == ""
    [record] = delivered(broker)
    assert "TIMER_DELIVER_MS" in decode_properties(record.properties)
    assert broker.store.queue_max_offset(TIMER_TOPIC, 0) == 0


async def test_a_clock_that_is_set_back_delivers_nothing_early(broker: BrokerAssembly) -> None:
    send_later(broker, 5_000)
    time = time_of(broker)
    time._wall_at_start_ms -= HOUR_MS
    time.advance(5_000)
    await deliver(broker)
    assert delivered(broker) == []
    time._wall_at_start_ms += 2 * HOUR_MS
    await deliver(broker)
    assert len(delivered(broker)) == 1


async def test_what_is_refused_is_tried_again(broker: BrokerAssembly) -> None:
    send_later(broker, 1_000)
    time_of(broker).advance(1_000)
    broker.store.set_writable(False)
    await deliver(broker)
    assert broker.delayed.waiting_count == 1
    broker.store.set_writable(True)
    await deliver(broker)
    assert delivered(broker) == []
    time_of(broker).advance(1_000)
    await deliver(broker)
    assert len(delivered(broker)) == 1


async def test_a_delivery_that_slaves_did_not_confirm_in_time_is_not_repeated(broker: BrokerAssembly) -> None:
    send_later(broker, 1_000)
    time_of(broker).advance(1_000)
    broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    await deliver(broker)
    time_of(broker).advance(10_000)
    await deliver(broker)
    assert len(delivered(broker)) == 1


async def test_a_topic_that_lost_queues_gets_its_messages_all_the_same(broker: BrokerAssembly) -> None:
    send_later(broker, 1_000)
    send_later(broker, 1_000)
    broker.add_topic("reminders", queue_count=1, message_type="DELAY")
    time_of(broker).advance(1_000)
    await deliver(broker)
    assert broker.store.queue_max_offset("reminders", 0) == 2


async def test_a_recalled_message_is_never_delivered(broker: BrokerAssembly) -> None:
    handle = send_later(broker, 5_000, message_id="ID-1").recall_handle
    send_later(broker, 5_000, message_id="ID-2")
    assert (await recall(broker, handle)).code == Code.OK
    again = await recall(broker, handle)
    assert (again.code, again.message) == (Code.NOT_FOUND, "the message was recalled before; it is never delivered")
    time_of(broker).advance(10_000)
    await deliver(broker)
    assert [decode_properties(record.properties)["UNIQ_KEY"] for record in delivered(broker)] == ["ID-2"]
    assert broker.delayed.recalled_count == 1


async def test_a_handle_is_that_of_rocketmq(broker: BrokerAssembly) -> None:
    handle = send_later(broker, 5_000, message_id="ID-1").recall_handle
    due_ms = broker.clock.wall_ms() + 5_000
    assert base64.urlsafe_b64decode(handle) == f"v1 reminders broker-a {due_ms} ID-1".encode()


async def test_a_recall_that_comes_too_late_finds_nothing(broker: BrokerAssembly) -> None:
    handle = send_later(broker, 5_000).recall_handle
    time_of(broker).advance(5_000)
    assert (await recall(broker, handle)).code == Code.NOT_FOUND
    await deliver(broker)
    assert (await recall(broker, handle)).code == Code.NOT_FOUND
    assert len(delivered(broker)) == 1


async def test_a_recall_that_is_not_confirmed_is_no_success(broker: BrokerAssembly) -> None:
    handle = send_later(broker, 5_000).recall_handle
    broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    assert (await recall(broker, handle)).code == Code.SLAVE_PERSISTENCE_TIMEOUT


UNCONFIRMED = (PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE)


async def test_a_recall_that_was_not_confirmed_is_confirmed_when_it_is_asked_again(broker: BrokerAssembly) -> None:
    handle = send_later(broker, 5_000, message_id="ID-1").recall_handle
    other = send_later(broker, 5_000, message_id="ID-2").recall_handle
    for _ in range(2):
        broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
        assert (await recall(broker, handle)).code == Code.SLAVE_PERSISTENCE_TIMEOUT
    broker.put_status = PutStatus.PUT_OK
    # Its time is no reason: the log says that it was recalled before.
    time_of(broker).advance(10_000)
    assert (await recall(broker, handle)).code == Code.OK
    assert (await recall(broker, other)).code == Code.NOT_FOUND
    await deliver(broker)
    assert [decode_properties(record.properties)["UNIQ_KEY"] for record in delivered(broker)] == ["ID-2"]
    again = await recall(broker, other)
    assert "recalled before;" not in again.message
    assert broker.delayed.recalled_count == 1


async def test_recalls_at_once_are_one_and_have_one_answer(broker: BrokerAssembly) -> None:
    handle = send_later(broker, 5_000).recall_handle
    answers = await asyncio.gather(*[recall(broker, handle) for _ in range(5)])
    assert [answer.code for answer in answers] == [Code.OK] * 5
    assert broker.store.queue_max_offset(f"{TIMER_TOPIC}_op", 0) == 1
    assert broker.delayed.recalled_count == 1


async def test_what_is_sent_once_more_after_its_recall_is_another_message(broker: BrokerAssembly) -> None:
    due_ms = broker.clock.wall_ms() + 5_000
    handle = send_later(broker, 5_000, message_id="ID-1").recall_handle
    assert (await recall(broker, handle)).code == Code.OK
    assert send_later(broker, 5_000, message_id="ID-1").recall_handle == handle
    broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    assert (await recall(broker, handle)).code == Code.SLAVE_PERSISTENCE_TIMEOUT
    broker.put_status = PutStatus.PUT_OK
    assert (await recall(broker, handle)).code == Code.OK
    assert send_later(broker, 5_000, message_id="ID-1").recall_handle == handle
    time_of(broker).advance(due_ms - broker.clock.wall_ms())
    await deliver(broker)
    assert "recalled before;" not in (await recall(broker, handle)).message
    assert len(delivered(broker)) == 1


async def test_another_time_of_the_same_message_was_not_recalled(broker: BrokerAssembly) -> None:
    first = send_later(broker, 5_000, message_id="ID-1").recall_handle
    second = send_later(broker, 6_000, message_id="ID-1").recall_handle
    broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    await recall(broker, first)
    broker.put_status = PutStatus.PUT_OK
    time_of(broker).advance(6_000)
    await deliver(broker)
    assert (await recall(broker, second)).code == Code.NOT_FOUND
    assert (await recall(broker, first)).code == Code.OK
    assert len(delivered(broker)) == 1


STATUSES = st.sampled_from([PutStatus.PUT_OK, *UNCONFIRMED])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(STATUSES, st.booleans(), st.booleans()), min_size=2, max_size=6), st.booleans())
def test_whoever_repeats_a_recall_is_told_that_it_is_recalled_whoever_is_master(
    attempts: list[tuple[PutStatus, bool, bool]], is_sent_twice: bool
) -> None:
    """Each attempt: how its put ends, whether another process is master from then on, and whether the time passes."""

    async def play() -> None:
        disk, time = SimulatedDisk(random.Random(0)), ManualTime()
        broker = new_broker(disk, time)
        handle = send_later(broker, 5_000, message_id="ID-1").recall_handle
        if is_sent_twice:
            send_later(broker, 5_000, message_id="ID-1")
        is_confirmed_here = False
        for status, is_changed, is_late in attempts:
            broker.put_status = status
            answer = await recall(broker, handle)
            if is_confirmed_here:
                assert (answer.code, "recalled before;" in answer.message) == (Code.NOT_FOUND, True)
            else:
                assert (answer.code == Code.OK) == (status is PutStatus.PUT_OK)
                assert answer.code != Code.NOT_FOUND
                is_confirmed_here = status is PutStatus.PUT_OK
            if is_changed:
                broker.store.close()
                image, disk = disk.image(), SimulatedDisk(random.Random(0))
                disk.put_back(image)
                broker, is_confirmed_here = new_broker(disk, time), False
                await broker.message_timers.take_over()
            if is_late:
                time.advance(10_000)
                await deliver(broker)
        time.advance(10_000)
        await deliver(broker)
        assert delivered(broker) == []
        broker.store.close()

    asyncio.run(play())


async def test_a_refused_recall_leaves_the_message_waiting(broker: BrokerAssembly) -> None:
    handle = send_later(broker, 5_000).recall_handle
    await deliver(broker)
    broker.store.set_writable(False)
    assert (await recall(broker, handle)).code != Code.OK
    broker.store.set_writable(True)
    time_of(broker).advance(5_000)
    await deliver(broker)
    assert len(delivered(broker)) == 1


HANDLE = RecallHandle("reminders", "broker-a", 1_700_000_005_000, "ID").encode()


@pytest.mark.parametrize(
    ("handle", "topic", "code"),
    [
        ("", "reminders", Code.BAD_REQUEST),
        ("not base64!", "reminders", Code.BAD_REQUEST),
        (base64.urlsafe_b64encode(b"v1 reminders broker-a soon ID").decode(), "reminders", Code.BAD_REQUEST),
        (base64.urlsafe_b64encode(b"v2 reminders broker-a 1 ID").decode(), "reminders", Code.BAD_REQUEST),
        (HANDLE, "mixed", Code.BAD_REQUEST),
        (HANDLE, "a b", Code.ILLEGAL_TOPIC),
        (HANDLE, "reminders", Code.NOT_FOUND),
        (RecallHandle("orders", "broker-a", 1, "ID").encode(), "orders", Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (RecallHandle("unknown", "broker-a", 1, "ID").encode(), "unknown", Code.TOPIC_NOT_FOUND),
        # Nobody knows its master.
        (RecallHandle("reminders", "broker-z", 1, "ID").encode(), "reminders", Code.PROXY_TIMEOUT),
    ],
)
async def test_a_recall_that_cannot_be_is_refused_clearly(
    broker: BrokerAssembly, handle: str, topic: str, code: int
) -> None:
    assert (await recall(broker, handle, topic=topic)).code == code


async def test_a_message_with_as_many_properties_as_can_be_is_rolled_and_delivered(broker: BrokerAssembly) -> None:
    broker.options.max_delay_ms = 1_000 * HOUR_MS
    taken, codes = [], set()
    for length in range(16_767 - 400, 16_767, 3):
        entry = send_later(broker, 100 * HOUR_MS, own=16_000 * "x", message_id=length * "k")
        codes.add(entry.status.code)
        if entry.status.code == Code.OK:
            taken.append(length)
    assert codes == {Code.OK, Code.MESSAGE_PROPERTIES_TOO_LARGE}
    for hours in (50, 49, 1):
        time_of(broker).advance(hours * HOUR_MS)
        await deliver(broker)
    assert broker.delayed.rolled_count >= len(taken)
    assert sorted(len(decode_properties(record.properties)["UNIQ_KEY"]) for record in delivered(broker)) == taken


async def test_a_timer_of_an_old_record_is_put_again_and_delivered_once(broker: BrokerAssembly) -> None:
    broker.options.max_delay_ms = 1_000 * HOUR_MS
    handle = send_later(broker, 200 * HOUR_MS, message_id="ID-1").recall_handle
    send_later(broker, 200 * HOUR_MS, message_id="ID-2")
    for _ in range(4):
        time_of(broker).advance(40 * HOUR_MS)
        await deliver(broker)
        await deliver(broker)
    assert broker.store.queue_max_offset(TIMER_TOPIC, 0) == 6
    assert (broker.delayed.waiting_count, broker.delayed.rolled_count, delivered(broker)) == (2, 4, [])
    assert (await recall(broker, handle)).code == Code.OK
    time_of(broker).advance(40 * HOUR_MS)
    await deliver(broker)
    [record] = delivered(broker)
    assert decode_properties(record.properties)["UNIQ_KEY"] == "ID-2"


async def test_a_message_that_is_about_to_be_put_again_can_be_recalled(
    broker: BrokerAssembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.options.max_delay_ms = 1_000 * HOUR_MS
    handle = send_later(broker, 200 * HOUR_MS).recall_handle
    time_of(broker).advance(100 * HOUR_MS)
    timers, reads = broker.message_timers, 0
    read_records = timers.records

    async def records(offsets: Sequence[int]) -> list[MessageRecord | None]:
        nonlocal reads
        reads += 1
        if reads == 2:
            assert (await recall(broker, handle)).code == Code.OK
        return await read_records(offsets)

    monkeypatch.setattr(timers, "records", records)
    await deliver(broker)
    assert reads >= 2
    await deliver(broker)
    time_of(broker).advance(100 * HOUR_MS)
    await deliver(broker)
    assert delivered(broker) == []


# Changes of master. A log that is cut anywhere has lost its end, and with it nothing else: whoever becomes master
# delivers every message whose timer it has, and none twice.


async def history(broker: BrokerAssembly, steps: list[tuple[str, int]]) -> dict[str, int]:
    """Puts, recalls, deliveries and other messages in any order. Returns when each message is due."""
    due_ms: dict[str, int] = {}
    handles: list[str] = []
    for number, (step, value) in enumerate(steps):
        if step == "send":
            message_id = f"ID-{number}"
            handles.append(send_later(broker, value, message_id=message_id).recall_handle)
            due_ms[message_id] = broker.clock.wall_ms() + value
        elif step == "recall" and handles:
            await recall(broker, handles[value % len(handles)])
        elif step == "other":
            call(broker, "SendMessage", send_request(message("orders")))
        elif step == "deliver":
            time_of(broker).advance(value)
            await deliver(broker)
    return due_ms


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(min_value=1, max_value=50_000)),
    st.tuples(st.just("recall"), st.integers(min_value=0, max_value=10)),
    st.tuples(st.just("other"), st.just(0)),
    st.tuples(st.just("deliver"), st.integers(min_value=0, max_value=60_000)),
)


def facts_of(records: list[MessageRecord]) -> tuple[Counter[str], set[str], set[str]]:
    """By message id: how often it is in its topic, whether a timer is in the log, whether all of these were finished
    without a delivery."""
    counts: Counter[str] = Counter()
    held: dict[int, str] = {}
    finished: set[int] = set()
    for record in records:
        message_id = decode_properties(record.properties).get("UNIQ_KEY", "")
        if record.topic == "reminders":
            counts[message_id] += 1
        elif record.topic == TIMER_TOPIC:
            held[record.queue_offset] = message_id
        elif record.topic == f"{TIMER_TOPIC}_op":
            finished |= {int(offset) for offset in record.body.decode().split(",") if offset}
    waiting = {message_id for offset, message_id in held.items() if offset not in finished}
    return counts, set(held.values()), {one for one in held.values() if one not in waiting and not counts[one]}


async def cut_everywhere(steps: list[tuple[str, int]], roll_after_h: int = 72) -> None:
    disk = SimulatedDisk(random.Random(0))
    broker = new_broker(disk, ManualTime())
    broker.delayed._roll_after_ms = roll_after_h * HOUR_MS
    due_ms = await history(broker, steps)
    records = all_records(broker)
    broker.store.close()
    image, now_ms = disk.image(), broker.clock.monotonic_ms()
    for kept_count in range(len(records) + 1):
        end_offset = records[kept_count].physical_offset if kept_count < len(records) else broker.store.end_offset
        disk = SimulatedDisk(random.Random(0))
        disk.put_back(image)
        time = ManualTime()
        time.advance(now_ms)
        successor = new_broker(disk, time)
        successor.store.truncate(end_offset)
        before = facts_of(records[:kept_count])
        await successor.message_timers.take_over()
        for step_ms in (*[1_000] * 60, 400 * HOUR_MS, 1_000):
            time.advance(step_ms)
            await deliver(successor)
        after = all_records(successor)
        counts, held, recalled = facts_of(after)
        assert held == before[1]
        assert all(count == 1 for count in counts.values()), (kept_count, counts)
        assert counts.keys() | recalled == held, (kept_count, counts, recalled, held)
        assert recalled == before[2]
        for record in after:
            if record.topic == "reminders":
                assert record.store_timestamp_ms >= due_ms[decode_properties(record.properties)["UNIQ_KEY"]]
        successor.store.close()


@settings(max_examples=8, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=8))
def test_after_any_loss_of_the_log_s_end_each_message_is_delivered_once(steps: list[tuple[str, int]]) -> None:
    asyncio.run(cut_everywhere(steps))


async def test_a_batch_that_is_cut_in_the_middle_is_finished_by_the_next_master() -> None:
    steps = [("other", 0), *[("send", 1_000)] * 5, ("other", 0), ("deliver", 1_000)]
    await cut_everywhere(steps)


async def test_a_timer_that_was_half_rolled_is_delivered_once() -> None:
    await cut_everywhere([("other", 0), *[("send", 23 * HOUR_MS)] * 3, ("other", 0), ("deliver", 12 * HOUR_MS)], 10)


async def test_a_full_disk_keeps_a_new_master_neither_from_starting_nor_from_delivering_once() -> None:
    disk = SimulatedDisk(random.Random(0))
    broker = new_broker(disk, ManualTime())
    await history(broker, [("other", 0), ("send", 1_000), ("send", 1_000), ("deliver", 1_000)])
    op_record = all_records(broker)[-1]
    assert op_record.topic == f"{TIMER_TOPIC}_op"
    broker.store.truncate(op_record.physical_offset)
    broker.store.set_writable(False)
    successor = message_timers(broker.store, disk=disk, clock=broker.clock)
    await successor.take_over()
    assert successor.queue.take_due(broker.clock.wall_ms(), 10) == []
    successor.put_owed(broker.put)
    broker.store.set_writable(True)
    successor.put_owed(broker.put)
    await successor.follow()
    assert (successor.queue.waiting_count, len(delivered(broker))) == (0, 2)
    broker.store.close()


async def test_nothing_is_delivered_while_a_damaged_record_is_in_the_way(broker: BrokerAssembly) -> None:
    send_later(broker, 1_000)
    send_later(broker, 1_000)
    handle = send_later(broker, 60_000).recall_handle
    queue = broker.store.consume_queue(TIMER_TOPIC, 0)
    assert queue is not None
    sound = b"".join(ENTRY.pack(*entry) for entry in queue.read(1, 1))
    broker.store.rewrite_queue(TIMER_TOPIC, 0, 1, ENTRY.pack(0, 200, 0))
    time_of(broker).advance(1_000)
    reader = StoreQueueReader(broker.store, DamagedEntries())
    broker.message_timers._reader = reader
    await deliver(broker)
    assert delivered(broker) == []
    assert (await recall(broker, handle)).code not in (Code.OK, Code.NOT_FOUND)
    broker.store.rewrite_queue(TIMER_TOPIC, 0, 1, sound)
    await deliver(broker)
    assert len(delivered(broker)) == 2
    assert (await recall(broker, handle)).code == Code.OK


async def test_an_orderly_stop_leaves_its_state_and_a_kill_does_not(broker: BrokerAssembly) -> None:
    for number in range(10):
        send_later(broker, 1_000 * number + 1)
    time_of(broker).advance(3_001)
    await deliver(broker)
    disk = SimulatedDisk(random.Random(0))
    saved = message_timers(broker.store, disk=disk, clock=broker.clock)
    await saved.follow()
    saved.close()
    assert disk.read_file("config/rmq_sys_wheel_timer.state")
    for held in (
        message_timers(broker.store, disk=disk, clock=broker.clock),
        message_timers(broker.store, disk=SimulatedDisk(random.Random(0)), clock=broker.clock),
    ):
        await held.take_over()
        assert held.queue.waiting_count == 6
        assert held.queue.take_due(broker.clock.wall_ms() + 4_000, 10) == [4, 5, 6, 7]


async def test_a_master_that_ends_gives_back_what_it_had_taken(broker: BrokerAssembly) -> None:
    send_later(broker, 1_000)
    time_of(broker).advance(1_000)
    broker.puts_held = True
    running = asyncio.get_running_loop().create_task(broker.delayed.run())
    while not broker.message_timers.queue.out_count:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert broker.message_timers.queue.out_count == 0


@pytest.mark.parametrize("taken_for", ["recall", "roll"])
async def test_what_a_master_that_ends_had_taken_before_its_time_is_not_delivered_early(
    broker: BrokerAssembly, taken_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.options.max_delay_ms = 1_000 * HOUR_MS
    handle = send_later(broker, 200 * HOUR_MS).recall_handle
    await deliver(broker)
    timers, is_read, is_slow = broker.message_timers, asyncio.Event(), asyncio.Event()
    read_records = timers.records
    reads = 0

    async def records(offsets: Sequence[int]) -> list[MessageRecord | None]:
        nonlocal reads
        reads += 1
        if timers.queue.out_count or reads == 2:
            is_slow.set()
            await is_read.wait()  # The disk is slow.
        return await read_records(offsets)

    monkeypatch.setattr(timers, "records", records)
    if taken_for == "roll":
        time_of(broker).advance(100 * HOUR_MS)
    else:
        request = pb.RecallMessageRequest(topic=definition.Resource(name="reminders"), recall_handle=handle)
        call(broker, "RecallMessage", request)
    running = asyncio.get_running_loop().create_task(broker.delayed.run())
    await is_slow.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    broker.store.set_writable(False)
    is_read.set()
    for _ in range(10):
        await asyncio.sleep(0)
    broker.store.set_writable(True)
    await deliver(broker)
    assert delivered(broker) == []
