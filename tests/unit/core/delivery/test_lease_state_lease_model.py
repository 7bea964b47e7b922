"""The lease table against a naive model, through crashes.

The model knows for every message whether it is finished and else its last handle and deadline; its state is copied at
each journal frame, so that after a crash it goes on from the frame the journal was cut at.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.queue_progress import Delivery, LeasedRecord, RestoreReport
from unit.core.delivery.lease_machine import ATTEMPTS_MAX, FILTERS, GROUPS, TOPIC, GroupModel, Kept, LeaseMachine

QUEUE_IDS: Final = (0, 1, 2)
INFLIGHT_MAX: Final = 6
OPTIONS: Final = DeliveryOptions(
    consume_from_earliest=True, max_inflight_per_queue=INFLIGHT_MAX, compaction_floor_bytes=200
)


class Delivering(LeaseMachine):
    """Two groups on a topic of three queues, one of them wants only tag a."""

    queue_ids = QUEUE_IDS
    options = OPTIONS

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[int, list[str | None]] = {queue_id: [] for queue_id in QUEUE_IDS}

    @rule(queue_id=st.sampled_from(QUEUE_IDS), tags=st.lists(st.sampled_from(["a", "b", None, "filler"]), max_size=6))
    def put(self, queue_id: int, tags: list[str | None]) -> None:
        for tag in tags:
            if tag == "filler":
                self.queues.put_filler(TOPIC, queue_id)
            else:
                self.queues.put(TOPIC, queue_id, tag=tag)
            self.tags[queue_id].append(tag)

    @rule(group=GROUPS, batch_size=st.integers(1, 9), invisible_ms=st.sampled_from([10, 30, 100]))
    def receive(self, group: str, batch_size: int, invisible_ms: int) -> None:
        model = self.model_of(group)
        ready = model.ready(self.now_ms)
        available = {queue_id: self.deliverable(group, queue_id) for queue_id in QUEUE_IDS}
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
        )
        places = [(got.queue_id, got.queue_offset) for got in received.deliveries]
        dead_places = [(got.queue_id, got.queue_offset) for got in received.dead_letters]
        again = [place for place in places if place in model.kept]
        new = [place for place in places if place not in model.kept]
        assert len(set(places + dead_places)) == len(places + dead_places)
        assert set(again + dead_places) <= set(ready), "nothing is given twice while it is leased"
        assert len(again + dead_places) == min(batch_size, len(ready)), "redeliveries come first"
        assert places == again + new
        room = batch_size - len(again + dead_places)
        assert len(new) == min(room, sum(map(len, available.values())))
        for queue_id in QUEUE_IDS:
            given = [offset for new_queue, offset in new if new_queue == queue_id]
            assert given == available[queue_id][: len(given)], "new messages come in order and none is left out"
        for got in received.deliveries:
            self.take(model, got, invisible_ms, is_dead=False)
        for dead in received.dead_letters:
            self.take(model, dead, invisible_ms, is_dead=True)
        for state in self.table.progress():
            if state.group == group:
                self.check_passed_over(group, state.queue_id, model.next_offsets[state.queue_id], state.next_offset)
                model.next_offsets[state.queue_id] = state.next_offset
        self.handles += [(group, got.handle) for got in received.deliveries]
        self.handles += [(group, dead.handle) for dead in received.dead_letters]
        self.write_journal()

    def deliverable(self, group: str, queue_id: int) -> list[int]:
        """New messages the group may have of the queue."""
        model = self.groups[group]
        start = model.next_offsets[queue_id]
        end = self.queues.confirmed_end(TOPIC, queue_id, start, len(self.tags[queue_id]))
        wanted = [offset for offset in range(start, end) if self.is_wanted(group, queue_id, offset)]
        unfinished = sum(given_queue == queue_id for given_queue, _ in model.kept)
        return wanted[: max(0, INFLIGHT_MAX - unfinished)]

    def is_wanted(self, group: str, queue_id: int, offset: int) -> bool:
        tag = self.tags[queue_id][offset]
        return tag == "a" or (group == "all" and tag != "filler")

    def take(self, model: GroupModel, got: Delivery | LeasedRecord, invisible_ms: int, *, is_dead: bool) -> None:
        place = (got.queue_id, got.queue_offset)
        record = got.record
        assert (record.queue_id, record.queue_offset) == place
        before = model.kept[place].deliveries if place in model.kept else 0
        assert got.attempt == before + 1
        assert is_dead == (got.attempt > ATTEMPTS_MAX)
        deliveries = before if is_dead else before + 1
        model.kept[place] = Kept(got.handle, self.now_ms + invisible_ms, deliveries)

    def check_passed_over(self, group: str, queue_id: int, start: int, end: int) -> None:
        for offset in range(start, end):
            place = (queue_id, offset)
            assert place in self.groups[group].kept or not self.is_wanted(group, queue_id, offset), "a message is lost"

    @rule()
    def expire(self) -> None:
        self.table.expire(self.now_ms)
        deadline_ms = self.table.next_deadline_ms()
        running = [given for model in self.groups.values() for given in model.kept.values()]
        ends = [given.deadline_ms for given in running if given.deadline_ms > self.now_ms]
        if ends:
            assert deadline_ms is not None
            assert deadline_ms <= min(ends)

    @rule(lost_frames=st.integers(0, 3), torn_bytes=st.integers(0, 40))
    def crash(self, lost_frames: int, torn_bytes: int) -> None:
        whole = max(0, len(self.frames) - lost_frames)
        journal = b"".join(self.frames[:whole])
        # Less than the whole next frame, which would not be lost.
        torn = b"".join(self.frames[whole : whole + 1])[:-1][:torn_bytes]
        self.table = self.new_table()
        report = self.table.restore(self.snapshot, journal + torn, now_ms=self.now_ms)
        assert report == RestoreReport(snapshot_valid=True, journal_bytes=len(journal), torn_bytes=len(torn))
        self.groups = deepcopy(self.history[whole])
        self.start_journal()


TestDelivering = Delivering.TestCase
TestDelivering.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
