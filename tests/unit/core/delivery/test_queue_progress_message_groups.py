"""Order by message group: against a naive model, through crashes and changes of master, and what it costs."""

from __future__ import annotations

from copy import deepcopy
from itertools import count
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from support.queue_memory import QueueMemory
from tandemmq.core.delivery.journal import LeaseReplay
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.queue_progress import Received, message_group_of
from tandemmq.core.delivery.subscription import EVERY_TAG
from tandemmq.core.message.properties import encode_properties
from tandemmq.core.offsets import PhysicalOffset
from unit.core.delivery.lease_machine import ATTEMPTS_MAX, FILTERS, GROUPS, TOPIC, GroupModel, Kept, LeaseMachine, Place

QUEUE_IDS: Final = (0, 1)
INFLIGHT_MAX: Final = 9
OPTIONS: Final = DeliveryOptions(consume_from_earliest=True, max_inflight_per_queue=INFLIGHT_MAX)
MESSAGE_GROUPS: Final = ("", "x", "y", "z")


class ConsumingInOrder(LeaseMachine):
    """Two groups consume two queues in order, one of them wants only tag a."""

    queue_ids = QUEUE_IDS
    options = OPTIONS
    change_takes_ms = 1

    def __init__(self) -> None:
        super().__init__()
        # Message group and tag by queue; None: a position without a message.
        self.messages: dict[int, list[tuple[str, str] | None]] = {queue_id: [] for queue_id in QUEUE_IDS}

    @rule(
        queue_id=st.sampled_from(QUEUE_IDS),
        messages=st.lists(st.tuples(st.sampled_from(MESSAGE_GROUPS), st.sampled_from("aab")) | st.none(), max_size=8),
    )
    def put(self, queue_id: int, messages: list[tuple[str, str] | None]) -> None:
        for message in messages:
            if message is None:
                self.queues.put_filler(TOPIC, queue_id)
            else:
                self.queues.put(TOPIC, queue_id, message_group=message[0], tag=message[1])
            self.messages[queue_id].append(message)

    @rule(
        group=GROUPS,
        batch_size=st.integers(1, 6),
        invisible_ms=st.sampled_from([10, 30, 100]),
        attempt_id=st.sampled_from(["", "1", "2"]),
    )
    def receive(self, group: str, batch_size: int, invisible_ms: int, attempt_id: str) -> None:
        # Of two leases of one moment nobody can say which is the later one.
        self.now_ms += 1
        model = self.model_of(group)
        again = [place for place, kept in sorted(model.kept.items()) if self.is_held(kept) and kept.attempt_id]
        again = [place for place in again if model.kept[place].attempt_id == attempt_id]
        expected = {queue_id: self.deliverable(group, queue_id) for queue_id in QUEUE_IDS}
        received = self.table.receive(
            group=group,
            topic=TOPIC,
            queue_ids=QUEUE_IDS,
            tag_filter=FILTERS[group],
            batch_size=batch_size,
            invisible_ms=invisible_ms,
            now_ms=self.now_ms,
            max_attempts=ATTEMPTS_MAX,
            auto_renew=False,
            client_id="c",
            ordered=True,
            attempt_id=attempt_id,
        )
        assert not received.more
        places = [(got.queue_id, got.queue_offset) for got in received.deliveries]
        if again:
            assert set(places) <= set(again)
            assert len(places) == min(batch_size, len(again))
            assert not received.dead_letters
            for place in set(again).difference(places):
                # There was no room for it: it waits as if this delivery had never been.
                model.kept[place] = Kept(deliveries=model.kept[place].deliveries - 1)
        else:
            self.check_new_batch(received, expected, batch_size)
        self.check_order(group, places, is_again=bool(again))
        self.note(group, received, invisible_ms, attempt_id, is_again=bool(again))
        self.write_journal()

    def check_new_batch(self, received: Received, expected: dict[int, list[int]], batch_size: int) -> None:
        given: dict[int, list[int]] = {queue_id: [] for queue_id in QUEUE_IDS}
        for delivery in received.deliveries:
            given[delivery.queue_id].append(delivery.queue_offset)
        for dead in received.dead_letters:
            given[dead.queue_id].append(dead.queue_offset)
        for queue_id in QUEUE_IDS:
            assert sorted(given[queue_id]) == expected[queue_id][: len(given[queue_id])], "none is left out"
        assert sum(map(len, given.values())) == min(batch_size, sum(map(len, expected.values())))

    def check_order(self, group: str, places: list[Place], *, is_again: bool) -> None:
        """What went before a message in its message group is finished, or in the same batch before it."""
        model = self.groups[group]
        for index, (queue_id, offset) in enumerate(places):
            name = self.message_group(queue_id, offset)
            for place, kept in model.kept.items():
                if place[0] != queue_id or self.message_group(*place) != name or place[1] == offset:
                    continue
                if place[1] < offset and not is_again:
                    assert place in places[:index], "an earlier message of the group is unfinished"
                if place not in places and not is_again:
                    assert not self.is_held(kept), "somebody else holds a message of the group"

    def note(self, group: str, received: Received, invisible_ms: int, attempt_id: str, *, is_again: bool) -> None:
        model = self.groups[group]
        taken = set()
        for delivery in received.deliveries:
            place = (delivery.queue_id, delivery.queue_offset)
            taken.add(place)
            before = model.kept.get(place, Kept()).deliveries
            assert delivery.attempt == (before if is_again else before + 1)
            assert delivery.attempt <= ATTEMPTS_MAX
            model.kept[place] = Kept(delivery.handle, self.now_ms + invisible_ms, delivery.attempt, attempt_id)
            self.handles.append((group, delivery.handle))
        for dead in received.dead_letters:
            place = (dead.queue_id, dead.queue_offset)
            taken.add(place)
            assert dead.attempt == ATTEMPTS_MAX + 1 == model.kept[place].deliveries + 1
            model.kept[place] = Kept(dead.handle, self.now_ms + invisible_ms, dead.attempt - 1)
            self.handles.append((group, dead.handle))
        for state in self.table.progress():
            if state.group == group:
                for offset in range(model.next_offsets[state.queue_id], state.next_offset):
                    place = (state.queue_id, offset)
                    if place not in taken and self.is_wanted(group, *place):
                        model.kept[place] = Kept()
                model.next_offsets[state.queue_id] = state.next_offset

    def deliverable(self, group: str, queue_id: int) -> list[int]:
        """What a receive without limit would get of the queue, dead letters included."""
        model = self.groups[group]
        kept = {offset: each for (kept_queue, offset), each in sorted(model.kept.items()) if kept_queue == queue_id}
        blocked = {self.message_group(queue_id, offset) for offset, each in kept.items() if self.is_held(each)}
        found: list[int] = []
        own: set[str] = set()
        for offset, each in kept.items():
            name = self.message_group(queue_id, offset)
            if name in blocked:
                continue
            if each.deliveries == ATTEMPTS_MAX:
                blocked.add(name)
                if name in own:
                    continue
            own.add(name)
            found.append(offset)
        start = model.next_offsets[queue_id]
        room = INFLIGHT_MAX - len(kept)
        for offset in range(start, self.queues.confirmed_end(TOPIC, queue_id, start, len(self.messages[queue_id]))):
            if room <= 0:
                break
            if self.is_wanted(group, queue_id, offset):
                room -= 1
                if self.message_group(queue_id, offset) not in blocked:
                    found.append(offset)
        return found

    def is_held(self, kept: Kept) -> bool:
        return kept.deadline_ms > self.now_ms

    def message_group(self, queue_id: int, offset: int) -> str:
        message = self.messages[queue_id][offset]
        assert message is not None
        return message[0]

    def is_wanted(self, group: str, queue_id: int, offset: int) -> bool:
        message = self.messages[queue_id][offset]
        return message is not None and (group == "all" or message[1] == "a")

    @rule()
    def expire(self) -> None:
        self.table.expire(self.now_ms)

    @rule(lost_frames=st.integers(0, 3))
    def crash(self, lost_frames: int) -> None:
        whole = max(0, len(self.frames) - lost_frames)
        self.table = self.new_table()
        self.table.restore(self.snapshot, b"".join(self.frames[:whole]), now_ms=self.now_ms)
        self.groups = deepcopy(self.history[whole])
        for model in self.groups.values():
            model.forget_attempts()
        self.start_journal()

    @rule(known_frames=st.integers(0, 4))
    def change_master(self, known_frames: int) -> None:
        """A member with an older copy of the journal becomes master, and takes what another one knows better."""
        self.write_journal()
        self.table = self.new_table()
        self.table.restore(self.snapshot, b"".join(self.frames[:known_frames]), now_ms=self.now_ms)
        theirs = LeaseReplay.of_files(self.snapshot, b"".join(self.frames))
        self.table.merge(theirs, now_ms=self.now_ms, their_min_offset=PhysicalOffset(0))
        for model in self.groups.values():
            model.forget_attempts()
        self.start_journal()

    @invariant()
    def counts_are_right(self) -> None:
        for state in self.table.progress():
            model = self.groups.get(state.group, GroupModel({}))
            kept_count = sum(queue_id == state.queue_id for queue_id, _ in model.kept)
            assert state.inflight_count + state.ready_count == kept_count


TestConsumingInOrder = ConsumingInOrder.TestCase
TestConsumingInOrder.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


class Broker:
    """One queue, one consumer group, a lease of a minute."""

    def __init__(self, *message_groups: str, inflight_max: int = 100_000) -> None:
        self.queues = QueueMemory()
        self.options = DeliveryOptions(consume_from_earliest=True, max_inflight_per_queue=inflight_max)
        self.nonces = count(1)
        self.table = self.new_table()
        self.put(*message_groups)

    def new_table(self) -> LeaseTable:
        return LeaseTable(self.queues, options=self.options, broker_name="b", nonce=lambda: next(self.nonces))

    def put(self, *message_groups: str) -> None:
        for message_group in message_groups:
            self.queues.put(TOPIC, 0, message_group=message_group)

    def receive(self, batch: int = 32, *, attempt_id: str = "", ordered: bool = True, now_ms: int = 0) -> Received:
        return self.table.receive(
            group="G",
            topic=TOPIC,
            queue_ids=(0,),
            tag_filter=EVERY_TAG,
            batch_size=batch,
            invisible_ms=60_000,
            now_ms=now_ms,
            max_attempts=16,
            auto_renew=False,
            client_id="c",
            ordered=ordered,
            attempt_id=attempt_id,
        )

    def offsets(self, batch: int = 32, *, attempt_id: str = "", now_ms: int = 0) -> list[int]:
        received = self.receive(batch, attempt_id=attempt_id, now_ms=now_ms)
        return [delivery.queue_offset for delivery in received.deliveries]

    def acknowledge(self, handle: str) -> None:
        assert self.table.acknowledge(group="G", topic=TOPIC, handle=handle, now_ms=0)

    def restart(self) -> None:
        snapshot = self.table.snapshot()
        self.table = self.new_table()
        self.table.restore(snapshot, b"", now_ms=0)


def test_a_message_group_that_is_held_keeps_back_no_other() -> None:
    broker = Broker("x", "x", "y", "x", "y", "")
    (first,) = broker.receive(1).deliveries
    assert broker.offsets(2) == [2, 4]
    assert broker.offsets() == [5]
    assert broker.offsets() == []
    assert broker.table.order_figures() == (1, 2)
    broker.acknowledge(first.handle)
    assert broker.table.take_visible() == [("G", TOPIC)]
    assert broker.offsets() == [1, 3]


def test_what_was_passed_over_is_not_forgotten_by_a_restart() -> None:
    broker = Broker("x", "x", "y")
    (first,) = broker.receive(1).deliveries
    assert broker.offsets() == [2]
    broker.restart()
    assert broker.offsets() == []
    broker.put("x", "z")
    assert broker.offsets() == [4]
    broker.acknowledge(first.handle)
    received = broker.receive()
    assert [(got.queue_offset, got.attempt) for got in received.deliveries] == [(1, 1), (3, 1)]


def test_messages_without_a_group_are_in_order_among_themselves() -> None:
    broker = Broker("", "x", "", "x")
    (first,) = broker.receive(1).deliveries
    assert broker.offsets() == [1, 3]
    broker.acknowledge(first.handle)
    assert broker.offsets() == [2]


def test_an_attempt_gets_its_own_batch_again_and_nothing_else() -> None:
    broker = Broker("x", "y", "x", "y", "z")
    _, second = broker.receive(2, attempt_id="1").deliveries
    assert broker.offsets(attempt_id="2") == [4]
    broker.acknowledge(second.handle)
    assert broker.offsets(attempt_id="1") == [0]
    assert broker.offsets(attempt_id="2") == [4]
    assert broker.offsets(attempt_id="3") == [3]


def test_at_its_bound_the_queue_gives_only_what_is_known_already() -> None:
    broker = Broker("x", "x", "x", "y", inflight_max=3)
    (first,) = broker.receive(1).deliveries
    assert broker.offsets() == []
    assert broker.offsets() == []
    broker.acknowledge(first.handle)
    assert broker.offsets(1) == [1]
    assert broker.offsets() == [3]


def test_a_group_that_stops_to_consume_in_order_gets_what_was_passed_over_and_may_begin_again() -> None:
    broker = Broker("x", "x", "y", "x")
    broker.receive(1)
    assert broker.offsets() == [2]
    received = broker.receive(1, ordered=False)
    assert [(got.queue_offset, got.attempt) for got in received.deliveries] == [(1, 1)]
    broker.put("y", "z")
    assert broker.offsets() == [5]


def test_a_master_that_serves_takes_progress_and_keeps_the_order() -> None:
    broker = Broker("x", "x", "y")
    (first,) = broker.receive(1).deliveries
    theirs = LeaseReplay.of_files(broker.table.snapshot(), b"")
    broker.acknowledge(first.handle)
    assert broker.offsets() == [1, 2]
    broker.table.merge(theirs, now_ms=0, their_min_offset=PhysicalOffset(0))
    broker.put("x", "z")
    assert broker.offsets() == [4]


def test_messages_that_retention_deleted_free_their_group() -> None:
    broker = Broker("x", "x", "x", "y")
    broker.receive(1)
    assert broker.offsets(1) == [3]
    broker.queues.expire(TOPIC, 0, 2)
    assert broker.offsets() == [2]


def test_a_log_that_lost_its_tail_is_looked_at_anew() -> None:
    broker = Broker("x", "x", "x", "y")
    broker.receive(1)
    assert broker.offsets(1) == [3]
    broker.queues.cut(TOPIC, 0, 2)
    assert broker.offsets() == []
    broker.put("z", "x")
    assert broker.offsets() == [2]


def test_a_queue_that_is_behind_a_blocked_group_is_looked_at_in_slices() -> None:
    broker = Broker(*["x"] * 3_000, "y")
    broker.receive(1)
    looks = 1
    while (received := broker.receive()).more and not received.deliveries:
        looks += 1
    assert [got.queue_offset for got in received.deliveries] == [3_000]
    assert looks > 3
    assert broker.table.order_figures() == (1, 2_999)


@pytest.mark.parametrize("pairs", [[("__SHARDINGKEY", "x")], [("KEYS", "k"), ("__SHARDINGKEY", "x"), ("TAGS", "t")]])
def test_the_message_group_is_read_from_the_properties(pairs: list[tuple[str, str]]) -> None:
    assert message_group_of(encode_properties(pairs)) == b"x"
    assert message_group_of(encode_properties([("a", "__SHARDINGKEY")])) == b""


def test_what_a_smaller_attempt_gave_back_does_not_stay_with_it_after_a_change_of_master() -> None:
    """The older copy has it under the lease of the first answer, which counts one attempt more."""
    broker = Broker("x", "x")
    older, journal = broker.table.snapshot(), b""
    broker.receive(2, attempt_id="1")
    journal += (first := broker.table.take_journal())
    (again,) = broker.receive(1, attempt_id="1").deliveries
    journal += broker.table.take_journal()
    broker.table = broker.new_table()
    broker.table.restore(older, first, now_ms=0)
    broker.table.merge(LeaseReplay.of_files(older, journal), now_ms=0, their_min_offset=PhysicalOffset(0))
    broker.acknowledge(again.handle)
    assert [(got.queue_offset, got.attempt) for got in broker.receive().deliveries] == [(1, 1)]
