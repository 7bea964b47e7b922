"""Messages that wait until they are released: what is derived from the log, and what is given out."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.messages import STORE_HOST
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, new_store
from tandemmq.broker.queue_reader import StoreQueueReader
from tandemmq.core.delivery.timer_queue import (
    OP_TAG,
    RecallKey,
    TimerQueue,
    op_body,
    op_offsets,
    recall_key,
    recall_properties,
)
from tandemmq.core.message.properties import encode_properties, raw_property, tags_code
from tandemmq.core.message.record import OutgoingMessage
from tandemmq.core.storage.options import StoreOptions

T0 = 1_700_000_000_000
HELD, OP = "rmq_sys_wheel_timer", "rmq_sys_wheel_timer_op"
OPTIONS = StoreOptions(
    commit_log_file_bytes=1 << 16, consume_queue_file_bytes=4000, index_slot_count=16, index_entry_count=60
)


def timer(due_ms: int, message_id: str = "id") -> OutgoingMessage:
    pairs = [("UNIQ_KEY", message_id), ("TIMER_DELIVER_MS", str(due_ms)), ("REAL_TOPIC", "reminders")]
    return OutgoingMessage(HELD, 0, b"body", encode_properties(pairs), 0, (message_id,), None, T0, STORE_HOST)


def op(offsets: list[int], recalled: RecallKey | None = None) -> OutgoingMessage:
    properties = encode_properties([("TAGS", OP_TAG), *([] if recalled is None else recall_properties(recalled))])
    return OutgoingMessage(OP, 0, op_body(offsets), properties, tags_code(OP_TAG), (), OP_TAG, T0, STORE_HOST)


def new_queue() -> TimerQueue:
    return TimerQueue()


class Log:
    """A store with a reader, and a queue that follows it."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(random.Random(0))
        self.clock = ManualClock(T0)
        self.store = new_store(self.disk, self.clock, OPTIONS)
        self.store.load()
        self.reader = StoreQueueReader(self.store)
        self.queue = new_queue()

    def put(self, *messages: OutgoingMessage) -> list[int]:
        return [result.queue_offset for result in self.store.put_batch(messages)]

    def follow(self, queue: TimerQueue | None = None, *, max_records: int = 512) -> TimerQueue:
        queue = queue or self.queue
        if queue.is_cut(self.reader, cuts=self.store.log_cuts):
            queue.clear()
            assert not queue.is_cut(self.reader, cuts=self.store.log_cuts)
        while queue.follow(self.reader, max_records=max_records):
            pass
        return queue


def waiting(queue: TimerQueue) -> set[int]:
    return {offset for offset in range(queue.timer_next) if queue.is_waiting(offset)}


def test_entries_are_given_out_in_order_of_their_time_and_never_early() -> None:
    log = Log()
    due = [T0 + 5_000, T0 + 1, T0 + 200_000, T0 + 5_000, T0 - 7, T0 + 65_536]
    log.put(*[timer(due_ms) for due_ms in due])
    queue = log.follow()
    assert (queue.next_due_ms or 0) <= T0 - 7
    assert queue.take_due(T0, 10) == [4]
    assert queue.take_due(T0 + 1, 10) == [1]
    assert queue.take_due(T0 + 4_999, 10) == []
    assert queue.take_due(T0 + 5_000, 1) == [0]
    assert queue.take_due(T0 + 5_000, 10) == [3]
    assert queue.take_due(T0 + 65_535, 10) == []
    assert queue.take_due(T0 + 300_000, 10) == [5, 2]
    assert (queue.waiting_count, queue.out_count) == (6, 6)


def test_an_op_record_finishes_what_it_names_also_what_is_given_out() -> None:
    log = Log()
    log.put(timer(T0), timer(T0 + 1), timer(T0 + 10_000))
    queue = log.follow()
    assert queue.take_due(T0, 10) == [0]
    log.put(op([0, 2, 77]))
    log.follow()
    assert (waiting(queue), queue.out_count, queue.lowest_offset) == ({1}, 0, 1)
    queue.put_back(0, T0)
    assert queue.take_due(T0 + 20_000, 10) == [1]


def test_what_is_put_back_waits_until_its_new_time_and_is_given_out_once() -> None:
    log = Log()
    log.put(timer(T0))
    queue = log.follow()
    assert queue.take_due(T0, 10) == [0]
    queue.put_back(0, T0 + 6_000)
    assert queue.take_due(T0 + 5_999, 10) == []
    assert queue.take_due(T0 + 6_000, 10) == [0]
    queue.put_back(0, T0 + 6_000)
    assert queue.take_due(T0 + 6_000, 10) == [0]
    assert queue.take_due(T0 + 6_000, 10) == []


def test_an_entry_that_was_taken_is_not_due_for_anybody_else() -> None:
    log = Log()
    log.put(timer(T0))
    queue = log.follow()
    assert queue.take(0)
    assert not queue.take(0)
    assert queue.take_due(T0, 10) == []
    queue.put_back(0, T0)
    assert queue.take_due(T0, 10) == [0]


def test_a_message_is_found_by_its_time_and_id() -> None:
    log = Log()
    log.put(timer(T0 + 100_000, "a"), timer(T0 + 100_000, "b"), timer(T0 + 100_001, "a"), timer(T0 + 5, "c"))
    queue = log.follow()
    assert queue.find(T0 + 100_000, "a") == [0]
    assert queue.find(T0 + 100_000, "c") == []
    queue.take_due(T0, 1)
    assert queue.find(T0 + 5, "c") == [3]
    assert queue.take_due(T0 + 5, 1) == [3]
    assert queue.find(T0 + 5, "c") == []


def test_a_clock_that_is_set_back_makes_nothing_early() -> None:
    log = Log()
    log.put(timer(T0 + 600_000))
    queue = log.follow()
    assert queue.take_due(T0 + 599_999, 10) == []
    assert queue.take_due(T0, 10) == []
    assert queue.take_due(T0 + 600_000, 10) == [0]


def test_records_that_expired_are_waited_for_no_more() -> None:
    log = Log()
    log.put(*[timer(T0 + number) for number in range(10)])
    queue = log.follow()
    log.store.queues.get(HELD, 0).min_offset = 4  # type: ignore[union-attr]
    log.put(timer(T0))
    log.follow()
    assert (queue.expired_count, waiting(queue)) == (4, {4, 5, 6, 7, 8, 9, 10})


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:40] + b"x" + data[41:], lambda _: b""])
def test_a_damaged_state_is_none(damage: Callable[[bytes], bytes]) -> None:
    log = Log()
    log.put(timer(T0), timer(T0 + 1))
    data = log.follow().state().to_bytes()
    queue = new_queue()
    assert queue.load(data)
    assert waiting(queue) == {0, 1}
    assert not queue.load(damage(data))
    assert (queue.waiting_count, queue.timer_next) == (0, 0)


def test_a_state_of_another_log_is_found_out_even_if_that_is_longer() -> None:
    log, other = Log(), Log()
    log.put(timer(T0), timer(T0 + 1))
    other.put(timer(T0), timer(T0 + 2), timer(T0 + 3))
    queue = new_queue()
    queue.load(log.follow().state().to_bytes())
    assert queue.is_cut(other.reader, cuts=other.store.log_cuts)


@given(st.lists(st.integers(min_value=0, max_value=1 << 40)))
def test_bodies_of_op_records_are_read_as_written(offsets: list[int]) -> None:
    assert op_offsets(op_body(offsets)) == offsets


def test_an_op_record_of_rocketmq_4_names_one_offset_without_a_comma() -> None:
    assert op_offsets(b"12") == [12]
    assert op_offsets(b"x,3,") == [3]


@given(st.dictionaries(st.text("abc", min_size=1), st.text("xyz", min_size=1), max_size=5), st.text("abc", min_size=1))
def test_a_raw_property_is_that_of_the_decoded_string(pairs: dict[str, str], name: str) -> None:
    data = encode_properties(pairs.items())
    for stored in (data, data[:-1]):
        assert raw_property(stored, name.encode()).decode() == pairs.get(name, "")


class LogHistories(RuleBasedStateMachine):
    """Puts, op records, cuts and saved states in any order: what waits follows from the log alone, at any pace."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.now_ms = T0
        # Each step of the log: where it ended, and what waited then.
        self.ends: list[tuple[int, dict[int, int]]] = [(0, {})]
        self.saved: bytes | None = None

    @property
    def expected(self) -> dict[int, int]:
        return self.ends[-1][1]

    @rule(delays=st.lists(st.integers(min_value=-10, max_value=200_000), min_size=1, max_size=5))
    def put(self, delays: list[int]) -> None:
        offsets = self.log.put(*[timer(self.now_ms + delay, str(delay)) for delay in delays])
        now = self.expected | {offset: self.now_ms + delay for offset, delay in zip(offsets, delays)}
        self.ends.append((self.log.store.end_offset, now))

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(sorted(self.expected)), min_size=1, max_size=3))
        self.log.put(op(names))
        left = {offset: due_ms for offset, due_ms in self.expected.items() if offset not in names}
        self.ends.append((self.log.store.end_offset, left))

    @rule()
    def follow(self) -> None:
        self.log.follow()

    @rule(max_records=st.integers(min_value=1, max_value=3))
    def follow_slowly(self, max_records: int) -> None:
        self.log.follow(max_records=max_records)

    @precondition(lambda self: len(self.ends) > 1)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        kept = data.draw(st.integers(min_value=1, max_value=len(self.ends)))
        del self.ends[kept:]
        self.log.store.write_appended()
        self.log.store.truncate(self.ends[-1][0])
        # Whoever goes on there does so later.
        self.log.clock.now_ms += 1

    @rule()
    def save(self) -> None:
        self.saved = self.log.follow().state().to_bytes()

    @precondition(lambda self: self.saved is not None)
    @rule()
    def restart(self) -> None:
        assert self.saved is not None
        self.log.queue = new_queue()
        assert self.log.queue.load(self.saved)

    @rule(elapsed_ms=st.integers(min_value=0, max_value=100_000), limit=st.integers(min_value=1, max_value=4))
    def time_passes(self, elapsed_ms: int, limit: int) -> None:
        self.now_ms += elapsed_ms
        queue = self.log.follow()
        out = set(queue._out)
        taken = queue.take_due(self.now_ms, limit)
        due = sorted((due_ms, offset) for offset, due_ms in self.expected.items() if due_ms <= self.now_ms)
        assert taken == [offset for _, offset in due if offset not in out][:limit]

    @rule()
    def give_back(self) -> None:
        queue = self.log.follow()
        for offset in list(queue._out):
            queue.put_back(offset, self.expected[offset])

    @invariant()
    def waits_what_the_log_says(self) -> None:
        fresh = self.log.follow(new_queue())
        assert {offset: fresh.due_ms(offset) for offset in waiting(fresh)} == self.expected

    @rule()
    def follows_through_cuts(self) -> None:
        followed = self.log.follow()
        assert waiting(followed) == set(self.expected)
        assert followed.waiting_count == len(self.expected)
        assert followed.lowest_offset == min(self.expected, default=None)
        for offset, due_ms in self.expected.items():
            if offset not in followed._out:
                assert (followed.next_due_ms or 0) <= due_ms


TestLogHistories = LogHistories.TestCase


# Recalls


def test_the_newest_recalls_are_remembered() -> None:
    log = Log()
    queue = TimerQueue(recalls_max=3)
    keys = [recall_key("reminders", T0 + number, f"id-{number}") for number in range(5)]
    for number, key in enumerate(keys):
        [offset] = log.put(timer(T0 + number, f"id-{number}"))
        log.put(op([offset], key))
    log.put(op([], keys[2]))
    log.follow(queue)
    assert [queue.is_recalled(key) for key in keys] == [False, False, True, True, True]
    log.put(timer(T0 + 9, "id-9"), op([5], recall_key("reminders", T0 + 9, "id-9")))
    log.follow(queue)
    assert [queue.is_recalled(key) for key in keys] == [False, False, True, False, True]


@given(st.lists(st.sampled_from(["send", "recall", "deliver", "read"]), max_size=12), st.integers(1, 4))
def test_a_message_is_recalled_until_it_is_sent_once_more_however_much_is_read_at_once(
    steps: list[str], max_records: int
) -> None:
    log, key = Log(), recall_key("reminders", T0 + 1, "id")
    waiting_offsets: list[int] = []
    is_recalled = False
    for step in steps:
        if step == "send":
            waiting_offsets += log.put(timer(T0 + 1))
            is_recalled = False
        elif step == "deliver":
            log.put(op(waiting_offsets))
            waiting_offsets = []
        elif step == "recall" and (waiting_offsets or is_recalled):
            log.put(op(waiting_offsets, key))
            waiting_offsets, is_recalled = [], True
        elif step == "read":
            assert log.follow(max_records=max_records).is_recalled(key) == is_recalled
    assert log.follow(max_records=max_records).is_recalled(key) == is_recalled
    assert not log.queue.is_recalled(recall_key("reminders", T0 + 2, "id"))
    assert not log.queue.is_recalled(recall_key("others", T0 + 1, "id"))


def test_a_cut_log_s_recall_is_forgotten() -> None:
    log = Log()
    key = recall_key("reminders", T0 + 1, "id")
    log.put(timer(T0 + 1))
    end_offset = log.store.end_offset
    log.put(op([0], key))
    assert log.follow().is_recalled(key)
    log.store.truncate(end_offset)
    assert not log.follow().is_recalled(key)
    assert waiting(log.queue) == {0}
