"""A master, a member and a process on a copy of the member's disk, in drawn steps: who claims at once has all that was
acknowledged, whichever of the two reported when, and whatever the record said by then."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.replication.frames import REPORT, MasterOptions
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.replication.mastership import Claim, FailoverOptions, GroupRecord, Mastership, Replica, Write

from .memory_log import MemoryLog

OPTIONS = FailoverOptions()
MASTER = Replica(0, "disk-0", "zero")
TICK_MS = 100


@dataclass
class _Process:
    """On the member's disk, or on the copy of it."""

    life: str
    earlier: tuple[str, ...]
    end: int
    link: int | None = None
    has_caught_up: bool = False

    @property
    def replica(self) -> Replica:
        return Replica(1, "disk-1", self.life)


class _Group:
    def __init__(self, *, min_in_sync: int) -> None:
        self.now_ms = 0
        self.log = MemoryLog()
        self.log.grow(100)
        self.replica = MasterReplica(self.log, MasterOptions())
        self.record = GroupRecord(
            epoch=1,
            master=MASTER,
            nonce="zero",
            in_sync=frozenset({MASTER, Replica(1, "disk-1", "one")}),
            lease_ms=OPTIONS.lease_ms,
        )
        self.version = 1
        self.master = Mastership(
            MASTER, nonce="zero", is_home_master=True, options=FailoverOptions(min_in_sync=min_in_sync)
        )
        self.master.heard(None, None, now_ms=0)
        self.master.claimed(self.record, "1", sent_ms=0, now_ms=0)
        self.replica.require(self._required)
        self.processes = [_Process("one", (), 100), _Process("two", ("one",), 100)]
        self.connections = 0

    @property
    def _required(self) -> frozenset[str]:
        return frozenset(each.holder for each in self.master.required)

    def connect(self, process: _Process) -> None:
        self.disconnect(process)
        self.connections += 1
        peer = f"{process.life}:{self.connections}"
        self.replica.verified(1, process.end, peer=peer, now_ms=self.now_ms, disk_id="disk-1", life=process.life)
        process.link = self.replica.slave_connected(peer, now_ms=self.now_ms)
        self.report(process)

    def disconnect(self, process: _Process) -> None:
        if process.link is not None:
            self.replica.slave_disconnected(process.link, now_ms=self.now_ms)
            process.link = None

    def report(self, process: _Process) -> None:
        """What came over the link is on its disk, and is acknowledged."""
        if process.link is None:
            return
        for transfer in self.replica.take_transfers(process.link, budget_bytes=1 << 30, now_ms=self.now_ms):
            process.end = max(process.end, transfer.start_offset + transfer.length)
        self.replica.receive_data(process.link, REPORT.pack(process.end), now_ms=self.now_ms)
        is_connected = self.replica.acked_offset(process.link) >= 0
        if not is_connected:
            process.link = None
        process.has_caught_up = process.has_caught_up or (is_connected and process.end == self.log.end_offset)

    def tick(self, *, is_answered: bool) -> None:
        """The master looks, and writes perhaps; `is_answered`: it hears what became of that."""
        acked = {view.replica: view.acked_offset for view in self.replica.slaves() if view.replica and view.holds_all}
        step = self.master.next_write(now_ms=self.now_ms, end_offset=self.log.end_offset, acked=acked)
        self.replica.require(self._required)
        if isinstance(step, Write):
            self.master.sent(step.record, now_ms=self.now_ms)
            self.replica.require(self._required)
            self.record, self.version = step.record, self.version + 1
            if is_answered:
                self.master.written(self.record, str(self.version), sent_ms=self.now_ms, now_ms=self.now_ms)
            self.replica.require(self._required)
        if not is_answered:
            return
        self.master.heard(self.record, str(self.version), now_ms=self.now_ms)
        self.replica.require(self._required)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 9)),
        st.tuples(st.just("connect"), st.integers(0, 1)),
        st.tuples(st.just("disconnect"), st.integers(0, 1)),
        st.tuples(st.just("report"), st.integers(0, 1)),
        st.tuples(st.just("tick"), st.integers(0, 3)),
        # Silence: of a process that stands still, or whose machine is gone.
        st.tuples(st.just("wait"), st.sampled_from([10, 1_600, 8_000])),
    ),
    max_size=40,
)


@pytest.mark.parametrize("min_in_sync", [1, 2])
@given(steps=STEPS)
def test_who_claims_at_once_has_all_that_was_acknowledged(min_in_sync: int, steps: list[tuple[str, int]]) -> None:
    group = _Group(min_in_sync=min_in_sync)
    group.connect(group.processes[0])
    acknowledged = 0
    for kind, number in steps:
        if kind == "grow":
            group.log.grow(number)
        elif kind == "connect":
            group.connect(group.processes[number])
        elif kind == "disconnect":
            group.disconnect(group.processes[number])
        elif kind == "report":
            group.report(group.processes[number])
        elif kind == "tick":
            group.now_ms += TICK_MS
            group.tick(is_answered=number > 0)
        else:
            group.now_ms += number
        if group.replica.has_required:
            acknowledged = max(acknowledged, group.replica.confirmed_offset)
        else:
            # It acknowledges alone.
            acknowledged = group.log.end_offset
        # The master is lost now: each of the two would see the record as it is for a lease.
        for process in group.processes:
            heir = Mastership(
                process.replica, nonce="heir", is_home_master=False, options=OPTIONS, earlier_lives=process.earlier
            )
            heir.heard(group.record, "1", now_ms=0)
            step = heir.next_step(now_ms=OPTIONS.lease_ms, is_electable=process.has_caught_up)
            if isinstance(step, Claim):
                assert process.end >= acknowledged, (process.life, process.end, acknowledged)
