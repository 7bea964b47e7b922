"""What readers may see of a group that fails over, against what each disk has provably held."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from tandemmq.core.replication.frames import REPORT, MasterOptions
from tandemmq.core.replication.master_replica import MasterReplica

from .memory_log import MemoryLog

DISKS = ("b", "c")
SETS = [frozenset(disks) for disks in ((), ("b",), ("c",), ("b", "c"))]


class _Master:
    """A master with up to two slaves that report what they are told to."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.replica = MasterReplica(self.log, MasterOptions())
        self.links: dict[str, int] = {}
        self.required: frozenset[str] = frozenset()
        self.replica.require(self.required)
        self.log.grow(100)

    def connect(self, disk_id: str, end_offset: int) -> None:
        self.disconnect(disk_id)
        number = 1 + DISKS.index(disk_id)
        self.replica.verified(number, end_offset, peer=f"{disk_id}:1", now_ms=0, disk_id=disk_id)
        self.links[disk_id] = self.replica.slave_connected(f"{disk_id}:1", now_ms=0)
        self.report(disk_id, end_offset)

    def disconnect(self, disk_id: str) -> None:
        link = self.links.pop(disk_id, None)
        if link is not None:
            self.replica.slave_disconnected(link, now_ms=0)

    def report(self, disk_id: str, end_offset: int) -> None:
        if (link := self.links.get(disk_id)) is not None:
            self.replica.take_transfers(link, budget_bytes=1 << 30, now_ms=0)
            self.replica.receive_data(link, REPORT.pack(end_offset), now_ms=0)

    def acked(self, disk_id: str) -> int:
        return self.replica.acked_offset(self.links[disk_id]) if disk_id in self.links else 0

    def require(self, disk_ids: frozenset[str]) -> None:
        self.required = disk_ids
        self.replica.require(disk_ids)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 50)),
        st.tuples(st.just("connect"), st.sampled_from(DISKS), st.integers(1, 120)),
        st.tuples(st.just("report"), st.sampled_from(DISKS), st.integers(1, 300)),
        st.tuples(st.just("disconnect"), st.sampled_from(DISKS)),
        st.tuples(st.just("require"), st.sampled_from(SETS)),
        st.tuples(st.just("read")),
    ),
    max_size=40,
)


@given(STEPS)
@example([("connect", "b", 100), ("require", SETS[1]), ("grow", 9), ("report", "b", 109), ("disconnect", "b")])
@example([("connect", "b", 50), ("require", SETS[1])])
def test_readers_see_what_every_required_disk_held_at_once_and_never_less_again(
    steps: Sequence[tuple[str, object]],
) -> None:
    master = _Master()
    held, shown = master.log.end_offset, 0
    for name, *arguments in steps:
        if name == "read":
            shown = max(shown, min(master.replica.confirmed_offset, master.log.end_offset))
        elif name == "grow":
            master.log.grow(*arguments)  # type: ignore[arg-type]
        elif name != "report" or arguments[1] <= master.log.end_offset:  # type: ignore[operator]
            getattr(master, name)(*arguments)
        alone = not master.required
        held = max(held, master.log.end_offset if alone else min(map(master.acked, master.required)))
        confirmed_offset = min(master.replica.confirmed_offset, master.log.end_offset)
        assert shown <= confirmed_offset, "what was shown stays"
        assert confirmed_offset == held


def test_a_slave_that_was_sent_only_the_end_of_the_log_confirms_nothing() -> None:
    master = _Master()
    master.require(frozenset({"b"}))
    master.log.grow(10)
    master.replica.verified(1, 0, peer="b:1", now_ms=0, disk_id="b")
    link = master.links["b"] = master.replica.slave_connected("b:1", now_ms=0)
    master.log.min_offset = 50
    master.replica.receive_data(link, REPORT.pack(0), now_ms=0)
    master.log.min_offset = 20  # As if it had begun behind our first byte.
    master.report("b", 110)
    assert master.replica.confirmed_offset == 100


def test_without_a_set_everything_may_be_read() -> None:
    log = MemoryLog(end_offset=100)
    assert MasterReplica(log, MasterOptions()).confirmed_offset > log.end_offset
