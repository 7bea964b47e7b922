"""A master takes what a slave's leases know better, after both have gone on from the same ones."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from support.queue_memory import QueueMemory
from tandemmq.core.delivery.journal import LeaseReplay
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.queue_progress import Delivery, QueueState
from tandemmq.core.delivery.subscription import EVERY_TAG
from tandemmq.core.offsets import PhysicalOffset

T0 = 1_700_000_000_000
LEASE_MS = 30_000
LATER_MS = T0 + 10 * LEASE_MS
"""Every lease that was given before is over."""
WHOLE = PhysicalOffset(0)
_NONCES = count(1)


class Side:
    """A master's table, or that of a slave with the first messages of its master's queue."""

    def __init__(self, queues: QueueMemory, snapshot: bytes = b"", *, stored: int | None = None) -> None:
        self.queues = queues
        self.table = LeaseTable(
            queues,
            options=DeliveryOptions(consume_from_earliest=True),
            broker_name="broker-a",
            nonce=lambda: next(_NONCES),
            stored_offset=lambda _group, _topic, _queue_id: stored,
        )
        self.table.restore(snapshot, b"", now_ms=T0)
        self.deliveries: list[Delivery] = []
        self.finished: set[int] = set()

    def receive(self, batch: int, now_ms: int = T0, *, auto_renew: bool = False) -> list[int]:
        received = self.table.receive(
            group="G",
            topic="T",
            queue_ids=(0,),
            tag_filter=EVERY_TAG,
            batch_size=batch,
            invisible_ms=LEASE_MS,
            now_ms=now_ms,
            max_attempts=1_000,
            auto_renew=auto_renew,
            client_id="client",
        )
        self.deliveries += received.deliveries
        return [delivery.queue_offset for delivery in received.deliveries]

    def acknowledge(self, number: int, now_ms: int = T0) -> None:
        if self.deliveries:
            delivery = self.deliveries[number % len(self.deliveries)]
            if self.table.acknowledge(group="G", topic="T", handle=delivery.handle, now_ms=now_ms):
                self.finished.add(delivery.queue_offset)

    def let_end(self, number: int) -> None:
        """The client gives a message up."""
        if self.deliveries:
            handle = self.deliveries[number % len(self.deliveries)].handle
            self.table.change_invisible(group="G", topic="T", handle=handle, invisible_ms=0, now_ms=T0)

    def replay(self) -> LeaseReplay:
        self.table.take_journal()
        return LeaseReplay.of_files(self.table.snapshot(), b"")

    def merge(self, other: Side, *, their_min_offset: PhysicalOffset = WHOLE) -> None:
        self.table.merge(other.replay(), now_ms=T0, their_min_offset=their_min_offset)

    def all_to_come(self) -> list[int]:
        """Everything that is delivered when all leases are over."""
        found: list[int] = []
        while batch := self.receive(32, LATER_MS):
            found += batch
        return sorted(found)

    @property
    def state(self) -> QueueState:
        (state,) = self.table.progress_of("G", "T")
        return state


def queue_of(messages: int) -> QueueMemory:
    queues = QueueMemory()
    for _ in range(messages):
        queues.put("T", 0)
    return queues


def test_what_a_slave_gave_last_runs_out_since_nobody_may_have_read_it() -> None:
    queues = queue_of(4)
    master, slave = Side(queues, stored=0), Side(queues, stored=0)
    assert slave.receive(1, T0 - 20_000, auto_renew=True) == [0]
    assert slave.receive(1, T0 - 15_000, auto_renew=True) == [1]
    assert slave.receive(1, T0, auto_renew=True) == [2]
    master.merge(slave)
    for now_ms in range(T0, T0 + 100_000, 10_000):
        master.table.client_seen("client")
        master.table.expire(now_ms)
    assert master.receive(4, T0 + 100_000) == [1, 2, 3]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("receive"), st.integers(1, 6)),
        st.tuples(st.just("acknowledge"), st.integers(0, 20)),
        st.tuples(st.just("let_end"), st.integers(0, 20)),
    ),
    max_size=14,
)


def take(side: Side, steps: list[tuple[str, int]]) -> None:
    for step, number in steps:
        getattr(side, step)(number)


@given(before=STEPS, here=STEPS, there=STEPS, messages=st.integers(0, 16), lacking=st.integers(0, 16))
def test_exactly_what_nobody_acknowledged_comes_again(
    before: list[tuple[str, int]],
    here: list[tuple[str, int]],
    there: list[tuple[str, int]],
    messages: int,
    lacking: int,
) -> None:
    start = Side(queue_of(messages))
    take(start, before)
    start.table.take_journal()
    snapshot = start.table.snapshot()
    master = Side(start.queues, snapshot, stored=0)
    slave = Side(queue_of(max(0, messages - lacking)), snapshot, stored=0)
    for side in (master, slave):
        side.deliveries = list(start.deliveries)
        side.finished = set(start.finished)
    take(master, here)
    take(slave, there)
    slave.receive(1)
    master.receive(1)
    committed = master.state.committed_offset
    master.merge(slave)
    finished = master.finished | slave.finished
    assert master.state.committed_offset >= committed
    once = master.state
    master.merge(slave)
    assert master.state == once
    # What the journal says of it comes to the same.
    again = Side(master.queues, master.table.snapshot(), stored=0)
    to_come = [offset for offset in range(messages) if offset not in finished]
    assert master.all_to_come() == to_come
    assert again.all_to_come() == to_come


def test_a_message_that_the_slave_holds_in_hand_is_acknowledged_with_its_handle() -> None:
    master = Side(queue_of(3), stored=0)
    slave = Side(queue_of(3), stored=0)
    slave.receive(2)
    master.merge(slave)
    assert master.receive(3) == [2]
    master.deliveries = slave.deliveries
    master.acknowledge(0)
    assert master.finished == {0}


def test_a_group_that_only_the_slave_knows_goes_on_where_it_was_there() -> None:
    master = Side(queue_of(4))
    slave = Side(queue_of(4), stored=0)
    slave.receive(2)
    slave.acknowledge(0)
    slave.acknowledge(1)
    master.merge(slave)
    assert master.state.committed_offset == 2
    assert master.all_to_come() == [2, 3]


def test_messages_that_the_slave_had_deleted_are_not_finished_by_it() -> None:
    master = Side(queue_of(6), stored=0)
    master.receive(1)
    slave = Side(queue_of(6), stored=0)
    slave.queues.expire("T", 0, 3)
    assert slave.receive(1) == [3]
    slave.acknowledge(0)
    master.merge(slave, their_min_offset=PhysicalOffset(3))
    assert master.all_to_come() == [0, 1, 2, 4, 5]


def test_a_slave_knows_a_group_by_its_leases_or_by_its_offsets() -> None:
    assert not Side(queue_of(1)).table.knows("G", "T", (0,))
    assert Side(queue_of(1), stored=0).table.knows("G", "T", (0,))
    side = Side(queue_of(1))
    side.receive(1)
    assert side.table.knows("G", "T", (0,))
