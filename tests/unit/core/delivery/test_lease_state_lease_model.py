"""The lease table against a naive model, through crashes.

The model knows for every message whether it is finished and else its last handle and deadline; its state is copied at
each journal frame, so that after a crash it goes on from the frame the journal was cut at.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.queue_memory import QueueMemory
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.queue_progress import Delivery, LeasedRecord, RestoreReport
from tandemmq.core.delivery.subscription import EVERY_TAG, TagFilter

TOPIC: Final = "T"
QUEUE_IDS: Final = (0, 1, 2)
FILTERS: Final = {"all": EVERY_TAG, "only-a": TagFilter.parse("a") or EVERY_TAG}
INFLIGHT_MAX: Final = 6
ATTEMPTS_MAX: Final = 3
OPTIONS: Final = DeliveryOptions(
    consume_from_earliest=True, max_inflight_per_queue=INFLIGHT_MAX, compaction_floor_bytes=200
)

GROUPS = st.sampled_from(sorted(FILTERS))
Place = tuple[int, int]


@dataclass
class Given:
    """A message in somebody's hands, or on its way back."""

    handle: str
    deadline_ms: int
    deliveries: int


@dataclass
class GroupModel:
    """One group's view of the topic."""

    next_offsets: dict[int, int] = field(default_factory=lambda: dict.fromkeys(QUEUE_IDS, 0))
    given: dict[Place, Given] = field(default_factory=dict)

    def committed(self, queue_id: int) -> int:
        unfinished = (offset for given_queue, offset in self.given if given_queue == queue_id)
        return min(unfinished, default=self.next_offsets[queue_id])

    def ready(self, now_ms: int) -> list[Place]:
        return [place for place, given in self.given.items() if given.deadline_ms <= now_ms]

    def running(self, handle: str, now_ms: int) -> Place | None:
        found = (place for place, given in self.given.items() if given.handle == handle and given.deadline_ms > now_ms)
        return next(found, None)


class Delivering(RuleBasedStateMachine):
    """Two groups on a topic of three queues, one of them wants only tag a."""

    def __init__(self) -> None:
        super().__init__()
        self.queues = QueueMemory()
        self.tags: dict[int, list[str | None]] = {queue_id: [] for queue_id in QUEUE_IDS}
        self.nonces = count(2**63)
        self.now_ms = 1_000_000
        self.table = self.new_table()
        self.groups: dict[str, GroupModel] = {}
        self.handles: list[tuple[str, str]] = []
        self.snapshot = b""
        self.frames: list[bytes] = []
        self.history = [deepcopy(self.groups)]

    def new_table(self) -> LeaseTable:
        return LeaseTable(self.queues, options=OPTIONS, broker_name="b", nonce=lambda: next(self.nonces))

    def write_journal(self) -> None:
        frame = self.table.take_journal()
        if frame:
            self.frames.append(frame)
            self.history.append(deepcopy(self.groups))

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
        model = self.groups.setdefault(group, GroupModel())
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
        again = [place for place in places if place in model.given]
        new = [place for place in places if place not in model.given]
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
        unfinished = sum(given_queue == queue_id for given_queue, _ in model.given)
        return wanted[: max(0, INFLIGHT_MAX - unfinished)]

    def is_wanted(self, group: str, queue_id: int, offset: int) -> bool:
        tag = self.tags[queue_id][offset]
        return tag == "a" or (group == "all" and tag != "filler")

    def take(self, model: GroupModel, got: Delivery | LeasedRecord, invisible_ms: int, *, is_dead: bool) -> None:
        place = (got.queue_id, got.queue_offset)
        record = got.record
        assert (record.queue_id, record.queue_offset) == place
        before = model.given[place].deliveries if place in model.given else 0
        assert got.attempt == before + 1
        assert is_dead == (got.attempt > ATTEMPTS_MAX)
        deliveries = before if is_dead else before + 1
        model.given[place] = Given(got.handle, self.now_ms + invisible_ms, deliveries)

    def check_passed_over(self, group: str, queue_id: int, start: int, end: int) -> None:
        for offset in range(start, end):
            place = (queue_id, offset)
            assert place in self.groups[group].given or not self.is_wanted(group, queue_id, offset), "a message is lost"

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        group, handle = data.draw(st.sampled_from(self.handles[-12:]))
        model = self.groups.setdefault(group, GroupModel())
        place = model.running(handle, self.now_ms)
        done = self.table.acknowledge(group=group, topic=TOPIC, handle=handle, now_ms=self.now_ms)
        assert done == (place is not None)
        if place is not None:
            del model.given[place]
        self.write_journal()

    @rule()
    def acknowledge_everything(self) -> None:
        for group, model in self.groups.items():
            for place, given in list(model.given.items()):
                if given.deadline_ms > self.now_ms:
                    assert self.table.acknowledge(group=group, topic=TOPIC, handle=given.handle, now_ms=self.now_ms)
                    del model.given[place]
        self.write_journal()

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), invisible_ms=st.sampled_from([0, 10, 1_000]))
    def change_invisible(self, data: st.DataObject, invisible_ms: int) -> None:
        group, handle = data.draw(st.sampled_from(self.handles[-12:]))
        model = self.groups.setdefault(group, GroupModel())
        place = model.running(handle, self.now_ms)
        changed = self.table.change_invisible(
            group=group, topic=TOPIC, handle=handle, invisible_ms=invisible_ms, now_ms=self.now_ms
        )
        assert (changed is None) == (place is None)
        if changed is not None and place is not None:
            assert changed != handle
            model.given[place] = Given(changed, self.now_ms + invisible_ms, model.given[place].deliveries)
            self.handles.append((group, changed))
        self.write_journal()

    @rule(unconfirmed_count=st.integers(0, 8))
    def hold_back(self, unconfirmed_count: int) -> None:
        self.queues.confirmed_count = max(0, len(self.queues.records) - unconfirmed_count)

    @rule(passed_ms=st.sampled_from([1, 10, 50, 2_000]))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @rule()
    def expire(self) -> None:
        self.table.expire(self.now_ms)
        deadline_ms = self.table.next_deadline_ms()
        running = [given for model in self.groups.values() for given in model.given.values()]
        ends = [given.deadline_ms for given in running if given.deadline_ms > self.now_ms]
        if ends:
            assert deadline_ms is not None
            assert deadline_ms <= min(ends)

    @rule()
    def compact(self) -> None:
        self.write_journal()
        self.snapshot = self.table.snapshot()
        self.frames = []
        self.history = [deepcopy(self.groups)]

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
        self.snapshot = self.table.snapshot()
        self.table.take_journal()
        self.frames = []
        self.history = [deepcopy(self.groups)]

    @invariant()
    def commit_is_the_lowest_unfinished(self) -> None:
        for group, model in self.groups.items():
            for queue_id in QUEUE_IDS:
                committed = self.table.committed(group, TOPIC, queue_id)
                assert committed == model.committed(queue_id) or (committed is None and not model.given)


TestDelivering = Delivering.TestCase
TestDelivering.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
