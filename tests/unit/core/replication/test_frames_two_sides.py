"""Master and slaves joined by byte pipes: whatever the chunks and breaks, logs stay prefixes and acknowledgements true.

Each slave is a real `SlaveSession` over a log of its own; each pipe delivers any number of bytes at a time. A slave may
open a second connection while the master holds the first for alive, or lose the end of its log with a power failure.
Strangers report what they do not hold. What acknowledged a put is counted in logs that held it, not in connections.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.core.replication.frames import REPORT, AppendBytes, LinkClosed, MasterOptions, SlaveOptions
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.replication.put_gate import WaitingPut
from tandemmq.core.replication.sessions import SlaveSession
from tandemmq.core.storage.put_result import PutStatus

from .memory_log import MemoryLog

SEGMENT_BYTES = 100
SLAVES = 3


class PipedSlave:
    """A slave with its connection to the master. `log` is what it holds, `held_offset` the most it ever held."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.log = bytearray()
        self.held_offset = 0
        self.link: int | None = None
        self.session: SlaveSession | None = None
        self.to_slave = b""
        self.to_master = b""

    def connect(self, link: int, *, now_ms: int) -> None:
        self.link = link
        self.session = SlaveSession(end_offset=len(self.log), options=SlaveOptions(), now_ms=now_ms)
        self.to_slave, self.to_master = b"", self.session.data_to_send()

    def lose_connection(self) -> None:
        self.link = self.session = None

    def deliver(self, count: int, *, now_ms: int) -> None:
        """`count` bytes of the master arrive."""
        if self.session is None:
            return
        data, self.to_slave = self.to_slave[:count], self.to_slave[count:]
        for event in self.session.receive_data(data, now_ms=now_ms):
            if isinstance(event, AppendBytes):
                assert event.start_offset == len(self.log)
                self.log += event.data
        self.held_offset = max(self.held_offset, len(self.log))
        self.session.appended(len(self.log))
        self.to_master += self.session.data_to_send()


class Group:
    """A master and its slaves."""

    def __init__(self, *, needed_slaves: int, transfer_batch_bytes: int) -> None:
        self.now_ms = 0
        self.needed_slaves = needed_slaves
        self.log = MemoryLog(segment_bytes=SEGMENT_BYTES)
        self.replica = MasterReplica(
            self.log, MasterOptions(needed_slaves=needed_slaves, transfer_batch_bytes=transfer_batch_bytes)
        )
        self.slaves = [PipedSlave(broker_id) for broker_id in range(1, SLAVES + 1)]
        self.connection_count = 0
        self.waiting: set[WaitingPut] = set()
        self.acknowledged: list[WaitingPut] = []

    def put(self, length: int) -> None:
        start_offset, end_offset = self.log.grow(length)
        put = WaitingPut(start_offset, end_offset, needs_flush=False, needs_slaves=True)
        if self.replica.submit(put, self.now_ms) is None:
            self.waiting.add(put)

    def connect(self, slave: PipedSlave, *, proves: bool) -> None:
        """The slave opens a new connection; the master has not noticed yet that an old one is gone."""
        self.connection_count += 1
        peer = f"slave-{slave.broker_id}:{self.connection_count}"
        if proves:
            self.replica.verified(slave.broker_id, len(slave.log), peer=peer, now_ms=self.now_ms)
        slave.connect(self.replica.slave_connected(peer, now_ms=self.now_ms), now_ms=self.now_ms)

    def meet_stranger(self, reported_offset: int) -> None:
        """Somebody connects, reports an offset and holds nothing."""
        link = self.replica.slave_connected("stranger", now_ms=self.now_ms)
        self.replica.receive_data(link, REPORT.pack(reported_offset), now_ms=self.now_ms)

    def move(self, slave: PipedSlave, *, to_master: int, to_slave: int) -> None:
        """Some bytes arrive on either side."""
        if slave.link is None:
            return
        data, slave.to_master = slave.to_master[:to_master], slave.to_master[to_master:]
        self.replica.receive_data(slave.link, data, now_ms=self.now_ms)
        for transfer in self.replica.take_transfers(slave.link, budget_bytes=64, now_ms=self.now_ms):
            file_of_last_byte = (transfer.start_offset + max(transfer.length, 1) - 1) // SEGMENT_BYTES
            assert transfer.start_offset // SEGMENT_BYTES == file_of_last_byte, "a frame crosses a file's end"
            slave.to_slave += transfer.header + self.log.read(transfer.start_offset, transfer.length)
        slave.deliver(to_slave, now_ms=self.now_ms)
        self.check()

    def check(self) -> None:
        for slave in self.slaves:
            assert slave.log == self.log.read(0, len(slave.log)), "a slave's log is no prefix of its master's"
        for event in self.replica.take_events():
            if isinstance(event, WaitingPut):
                self.waiting.remove(event)
                if event.status is PutStatus.PUT_OK:
                    held = sum(slave.held_offset >= event.end_offset for slave in self.slaves)
                    assert held >= self.needed_slaves, f"acknowledged with {held} slaves: the put to {event.end_offset}"
                    self.acknowledged.append(event)
            elif isinstance(event, LinkClosed):
                for slave in self.slaves:
                    if slave.link == event.link:
                        slave.lose_connection()


slave_numbers = st.integers(0, SLAVES - 1)
all_bytes = st.just(1_000)
steps = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 60)),
    st.tuples(st.just("put"), st.integers(1, 60)),
    st.tuples(st.just("move"), slave_numbers, st.integers(0, 20), st.integers(0, 200)),
    st.tuples(st.just("move"), slave_numbers, all_bytes, all_bytes),
    st.tuples(st.just("move"), slave_numbers, all_bytes, all_bytes),
    st.tuples(st.just("reconnect"), slave_numbers, st.booleans()),
    st.tuples(st.just("acknowledge_and_return"), slave_numbers, st.booleans()),
    st.tuples(st.just("lose_tail"), slave_numbers, st.integers(1, 60)),
    st.tuples(st.just("stranger"), st.integers(0, 60)),
    st.tuples(st.just("wait"), st.integers(0, 3_000)),
)


@settings(deadline=None, max_examples=300)
@given(needed_slaves=st.integers(1, 3), batch_bytes=st.integers(1, 70), script=st.lists(steps, max_size=60))
def test_logs_stay_prefixes_and_every_acknowledged_put_is_held(
    needed_slaves: int, batch_bytes: int, script: list[tuple[str, *tuple[int, ...]]]
) -> None:
    group = Group(needed_slaves=needed_slaves, transfer_batch_bytes=batch_bytes)
    for slave in group.slaves:
        group.connect(slave, proves=False)
        group.move(slave, to_master=8, to_slave=0)
    for name, *numbers in script:
        match name, numbers:
            case "put", [length]:
                group.put(length)
            case "move", [number, to_master, to_slave]:
                group.move(group.slaves[number], to_master=to_master, to_slave=to_slave)
            case "reconnect", [number, proves]:
                group.connect(group.slaves[number], proves=bool(proves))
            case "acknowledge_and_return", [number, proves]:
                slave = group.slaves[number]
                group.move(slave, to_master=1_000, to_slave=1_000)
                group.move(slave, to_master=1_000, to_slave=0)
                group.connect(slave, proves=bool(proves))
                group.move(slave, to_master=1_000, to_slave=0)
            case "lose_tail", [number, length]:
                # Power failed: the end of the log is gone, and the master has not noticed.
                slave = group.slaves[number]
                del slave.log[max(0, len(slave.log) - length) :]
                slave.lose_connection()
            case "stranger", [back]:
                group.meet_stranger(max(0, group.log.end_offset - back))
            case "wait", [ms]:
                group.now_ms += ms
                group.replica.deadline_reached(now_ms=group.now_ms)
        group.check()


def test_everything_arrives_and_is_acknowledged_when_nothing_breaks() -> None:
    group = Group(needed_slaves=2, transfer_batch_bytes=7)
    for slave in group.slaves:
        group.connect(slave, proves=False)
        group.move(slave, to_master=8, to_slave=0)
    for _ in range(50):
        group.put(33)
    for _ in range(200):
        for slave in group.slaves:
            group.move(slave, to_master=5, to_slave=19)
    for _ in range(200):
        for slave in group.slaves:
            group.move(slave, to_master=64, to_slave=1_000)

    assert [len(slave.log) for slave in group.slaves] == [50 * 33] * SLAVES
    assert len(group.acknowledged) == 50
