"""Drawn histories of transactions: nothing is seen before its commit, doubled, or lost after an OK.

A history sends halves, ends them, asks after them, loses acknowledgements, and changes its master: to a copy of the log
that holds all that was acknowledged and is cut at any record behind it, or in the same process.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from support.broker_assembly import BrokerAssembly
from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from support.transactions import TOPIC, Producer, bodies_in, end, send_half
from tandemmq.core.message.record import GIVEN_UP_TOPIC, RecordFound, scan_record
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

Code = definition.Code
COMMIT, ROLLBACK = definition.COMMIT, definition.ROLLBACK

_OPTIONS: Final = StoreOptions(
    commit_log_file_bytes=64 << 10, consume_queue_file_bytes=20_000, index_slot_count=100, index_entry_count=400
)


@dataclass
class _Known:
    """What a producer knows of its half."""

    entry: pb.SendResultEntry
    body: bytes
    tried: set[int] = field(default_factory=set)
    told_ok: int = 0
    """The resolution that was answered OK."""


class _History:
    """A group's log as it goes from master to master, and what its producers were told."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.time = ManualTime()
        self.halves: list[_Known] = []
        self._durable = 0
        """What lies below it in the log was acknowledged to somebody: no change of master takes it away."""
        self.broker = self._new(b"")

    def _new(self, log: bytes) -> BrokerAssembly:
        """A master whose log begins with these bytes."""
        disk = SimulatedDisk(random.Random(self._chance.random()), wall_ms=self.time.wall_ms)
        broker = BrokerAssembly(clock=self.time, timers=self.time, disk=disk, store_options=_OPTIONS)
        broker.add_topic(TOPIC, message_type="TRANSACTION", queue_count=2)
        broker.options.transaction_check_max = 3
        if log:
            broker.store.set_writable(False, "it follows")
            for start in range(0, len(log), _OPTIONS.commit_log_file_bytes):
                broker.store.append_raw(start, log[start : start + _OPTIONS.commit_log_file_bytes])
            while broker.store.dispatch():
                pass
            broker.store.set_writable(True)
        _begin(broker)
        return broker

    def send(self) -> None:
        body = f"payment {len(self.halves)}".encode()
        entry = send_half(self.broker, body)
        if entry.status.code == Code.OK:
            self.halves.append(_Known(entry, body))
            self._acknowledged()
        self.time.end_turn()

    def end(self, which: int, resolution: definition.TransactionResolution) -> None:
        if not self.halves:
            return
        known = self.halves[which % len(self.halves)]
        status = end(self.broker, known.entry, resolution)
        known.tried.add(resolution)
        if status.code == Code.OK:
            assert known.told_ok in (0, resolution), "a transaction has two ends"
            known.told_ok = resolution
            self._acknowledged()
        elif known.told_ok == resolution:
            assert self.broker.put_status is not None, f"an end that was OK is not OK any more: {status}"

    def pass_time(self, seconds: int) -> None:
        producer = Producer(self.broker, TOPIC) if seconds % 2 else None
        self.time.advance(seconds * 1_000)
        self.broker.api.transactions.look()
        self.time.advance(0)
        if producer is not None:
            producer.stream.cancelled()

    def lose_acknowledgements(self, lost: bool) -> None:
        """From now on slaves do not answer in time, or do again."""
        self.broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT if lost else None

    def change_master(self, share: float) -> None:
        """To a member that has all that was acknowledged, and of what comes behind it as much as was sent."""
        log = self._log()
        ends = [offset for offset in _record_ends(log) if offset >= self._durable] or [len(log)]
        cut = ends[min(len(ends) - 1, int(share * len(ends)))]
        broken, self.broker = self.broker, self._new(log[:cut])
        broken.close()
        self.check()

    def begin_again(self) -> None:
        """The role ends and begins in the same process."""
        self.broker.api.transactions.stop()
        _begin(self.broker)
        self.check()

    def _log(self) -> bytes:
        store = self.broker.store
        parts, offset = [], 0
        while offset < store.end_offset:
            part = bytes(store.read_log(offset, _OPTIONS.commit_log_file_bytes))
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def _acknowledged(self) -> None:
        self._durable = self.broker.store.end_offset

    def check(self) -> None:
        bodies = bodies_in(self.broker)
        given_up = bodies_in(self.broker, GIVEN_UP_TOPIC)
        assert len(bodies) == len(set(bodies)), "a message was committed twice"
        assert len(given_up) == len(set(given_up)), "a message was put aside twice"
        undecided = {half.message_id for half, _ in self.broker.api.transactions.undecided()}
        for known in self.halves:
            is_there = known.body in bodies
            if is_there:
                assert COMMIT in known.tried, "a message is seen that nobody committed"
            if known.told_ok == COMMIT:
                assert is_there, "a commit was answered OK, and its message is lost"
            if known.told_ok == ROLLBACK:
                assert not is_there, "a message is seen that was rolled back"
            assert not (is_there and known.body in given_up)
            if not known.tried and known.body not in given_up:
                assert known.entry.message_id in undecided, "a half is lost"
        assert self.broker.api.transactions.doubled_count == 0


def _begin(broker: BrokerAssembly) -> None:
    for _ in broker.api.transactions.recovery():
        pass
    for record in broker.api.transactions.take_missing():
        broker.store.put(record)


def _record_ends(log: bytes) -> list[int]:
    ends, offset = [], 0
    view = memoryview(log)
    while offset < len(log):
        file_end = min(len(log), (offset // _OPTIONS.commit_log_file_bytes + 1) * _OPTIONS.commit_log_file_bytes)
        found = scan_record(view[:file_end], offset, file_end, physical_offset=offset)
        offset = offset + found.size if isinstance(found, RecordFound) else file_end
        ends.append(offset)
    return ends


_STEPS: Final = st.one_of(
    st.tuples(st.just("send")),
    st.tuples(st.just("send")),
    st.tuples(st.just("end"), st.integers(0, 20), st.sampled_from([COMMIT, COMMIT, ROLLBACK])),
    st.tuples(st.just("end"), st.integers(0, 20), st.sampled_from([COMMIT, COMMIT, ROLLBACK])),
    st.tuples(st.just("pass_time"), st.integers(1, 40)),
    st.tuples(st.just("lose_acknowledgements"), st.booleans()),
    st.tuples(st.just("change_master"), st.floats(0, 1)),
    st.tuples(st.just("begin_again")),
)


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 1 << 30), steps=st.lists(_STEPS, max_size=40))
def test_what_producers_were_told_is_what_consumers_see(seed: int, steps: list[tuple[object, ...]]) -> None:
    history = _History(seed)
    for name, *arguments in steps:
        getattr(history, str(name))(*arguments)
        history.check()
    history.change_master(0.0)
    for which in range(len(history.halves)):
        known = history.halves[which]
        if not known.tried:
            history.end(which, COMMIT)
    history.check()
    history.broker.close()


def test_a_log_that_ends_between_a_message_and_its_end_commits_it_once() -> None:
    history = _History(1)
    for _ in range(3):
        history.send()
    history.lose_acknowledgements(True)
    history.end(1, COMMIT)
    assert history.halves[1].told_ok == 0
    # Cut off is the record that ends the half; its message stays.
    log = history._log()
    ends = _record_ends(log)
    history.broker.close()
    history.broker = history._new(log[: ends[-2]])
    assert bodies_in(history.broker) == [b"payment 1"]
    assert history.broker.api.transactions.undecided_count == 2
    assert end(history.broker, history.halves[1].entry, COMMIT).code == Code.OK
    assert end(history.broker, history.halves[1].entry, ROLLBACK).code == Code.INVALID_TRANSACTION_ID
    assert bodies_in(history.broker) == [b"payment 1"]
    history.broker.close()
