"""What both models of a lease table share: two groups on a topic, their leases, and a journal that may be cut short."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from typing import ClassVar, Final, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.queue_memory import QueueMemory
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.subscription import EVERY_TAG, TagFilter

TOPIC: Final = "T"
FILTERS: Final = {"all": EVERY_TAG, "only-a": TagFilter.parse("a") or EVERY_TAG}
ATTEMPTS_MAX: Final = 3
GROUPS = st.sampled_from(sorted(FILTERS))
Place: TypeAlias = tuple[int, int]
"""Queue id and queue offset."""


@dataclass
class Kept:
    """An unfinished message: in somebody's hands until `deadline_ms`, before and after that it waits."""

    handle: str = ""
    deadline_ms: int = 0
    deliveries: int = 0
    attempt_id: str = ""


@dataclass
class GroupModel:
    """One consumer group's view of the topic."""

    next_offsets: dict[int, int]
    kept: dict[Place, Kept] = field(default_factory=dict)

    def committed(self, queue_id: int) -> int:
        kept = (offset for kept_queue, offset in self.kept if kept_queue == queue_id)
        return min(kept, default=self.next_offsets[queue_id])

    def ready(self, now_ms: int) -> list[Place]:
        return [place for place, kept in self.kept.items() if kept.deadline_ms <= now_ms]

    def running(self, handle: str, now_ms: int) -> Place | None:
        found = (place for place, kept in self.kept.items() if kept.handle == handle and kept.deadline_ms > now_ms)
        return next(found, None)

    def forget_attempts(self) -> None:
        for kept in self.kept.values():
            kept.attempt_id = ""


class LeaseMachine(RuleBasedStateMachine):
    """Two groups, one of them wants only tag a. Who subclasses it puts messages, receives them and crashes."""

    queue_ids: ClassVar[tuple[int, ...]]
    options: ClassVar[DeliveryOptions]
    change_takes_ms: ClassVar = 0
    """1 where of two leases of one moment nobody could say which is the later one."""

    def __init__(self) -> None:
        super().__init__()
        self.queues = QueueMemory()
        self.nonces = count(2**63)
        self.now_ms = 1_000_000
        self.table = self.new_table()
        self.groups: dict[str, GroupModel] = {}
        self.handles: list[tuple[str, str]] = []
        self.snapshot = b""
        self.frames: list[bytes] = []
        self.history = [deepcopy(self.groups)]

    def new_table(self) -> LeaseTable:
        return LeaseTable(self.queues, options=self.options, broker_name="b", nonce=lambda: next(self.nonces))

    def model_of(self, group: str) -> GroupModel:
        return self.groups.setdefault(group, GroupModel(dict.fromkeys(self.queue_ids, 0)))

    def write_journal(self) -> None:
        frame = self.table.take_journal()
        if frame:
            self.frames.append(frame)
            self.history.append(deepcopy(self.groups))

    def start_journal(self) -> None:
        self.snapshot = self.table.snapshot()
        self.table.take_journal()
        self.frames = []
        self.history = [deepcopy(self.groups)]

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        group, handle = data.draw(st.sampled_from(self.handles[-12:]))
        model = self.model_of(group)
        place = model.running(handle, self.now_ms)
        done = self.table.acknowledge(group=group, topic=TOPIC, handle=handle, now_ms=self.now_ms)
        assert done == (place is not None)
        if place is not None:
            del model.kept[place]
        self.write_journal()

    @rule()
    def acknowledge_everything(self) -> None:
        for group, model in self.groups.items():
            for place, kept in list(model.kept.items()):
                if kept.deadline_ms > self.now_ms:
                    assert self.table.acknowledge(group=group, topic=TOPIC, handle=kept.handle, now_ms=self.now_ms)
                    del model.kept[place]
        self.write_journal()

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), invisible_ms=st.sampled_from([0, 10, 1_000]))
    def change_invisible(self, data: st.DataObject, invisible_ms: int) -> None:
        self.now_ms += self.change_takes_ms
        group, handle = data.draw(st.sampled_from(self.handles[-12:]))
        model = self.model_of(group)
        place = model.running(handle, self.now_ms)
        changed = self.table.change_invisible(
            group=group, topic=TOPIC, handle=handle, invisible_ms=invisible_ms, now_ms=self.now_ms
        )
        assert (changed is None) == (place is None)
        if changed is not None and place is not None:
            assert changed != handle
            model.kept[place].handle, model.kept[place].deadline_ms = changed, self.now_ms + invisible_ms
            self.handles.append((group, changed))
        self.write_journal()

    @rule(unconfirmed_count=st.integers(0, 8))
    def hold_back(self, unconfirmed_count: int) -> None:
        self.queues.confirmed_count = max(0, len(self.queues.records) - unconfirmed_count)

    @rule(passed_ms=st.sampled_from([1, 10, 50, 2_000]))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @rule()
    def compact(self) -> None:
        self.write_journal()
        self.start_journal()

    @invariant()
    def commit_is_the_lowest_unfinished(self) -> None:
        for group, model in self.groups.items():
            for queue_id in self.queue_ids:
                committed = self.table.committed(group, TOPIC, queue_id)
                assert committed == model.committed(queue_id) or (committed is None and not model.kept)
