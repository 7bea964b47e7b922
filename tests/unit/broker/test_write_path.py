"""What the write path measures of a put, and what it leaves alone. How puts wait and end is the simulator's."""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from support.fake_call import FakeCall
from support.simulated_disk import SimulatedDisk
from support.stores import SMALL_OPTIONS, ManualClock, new_store
from tandemmq.broker.put import PutDone, PutMeter, TopicPuts
from tandemmq.broker.send_room import IN_A_TURN_MAX
from tandemmq.broker.tracing.send_tracer import BrokerTracing, SendTracer
from tandemmq.broker.write_path import WritePath
from tandemmq.core.message.record import Host, OutgoingMessage
from tandemmq.core.replication.frames import MasterOptions
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.storage.disk import DiskError, MappedSegment
from tandemmq.core.storage.options import FlushDiskType
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.core.tracing.send_spans import AckPolicy, ResolvedSend, send_spans
from tandemmq.core.tracing.span_data import HeadSampler, SpanData, TraceOptions

READ_NS = 5_000_000
TRACED = ["00-000000000000000000000000000000aa-00000000000000bb-01"]


class Links:
    """Notes what was there when the slaves were sent what is new."""

    def __init__(self, look: Callable[[], int]) -> None:
        self.seen: list[int] = []
        self._look = look

    def pump(self) -> None:
        self.seen.append(self._look())

    def close_link(self, link: int, reason: str) -> None:
        raise AssertionError(reason)

    def tell(self, write: Callable[..., object], event: str, link_id: int | None, **values: object) -> None:
        write(event, link=link_id, **values)


class Rig:
    """A SYNC_MASTER whose slave reports when the test says so; the clock counts ms."""

    def __init__(self, *, is_traced: bool, needed_slaves: int = 1) -> None:
        self.clock = ManualClock(6)
        self.disk = SimulatedDisk(random.Random(1), wall_ms=self.clock.wall_ms)
        self.store = new_store(self.disk, self.clock)
        self.store.load()
        self.replica = MasterReplica(self.store, MasterOptions(needed_slaves=needed_slaves))
        self.meter = PutMeter()
        self.spans: list[SpanData] = []
        self.failures: list[DiskError] = []
        ids = itertools.count(1)
        tracing = BrokerTracing(
            identity=BrokerIdentity("DefaultCluster", "broker-a", 0),
            clock=self.clock,
            options=TraceOptions(sample_rate=0.0, slow_ms=0),
            sampler=HeadSampler(0.0, chance=lambda: 0.5, bits=lambda _: next(ids)),
            sink=self,
        )
        policy = AckPolicy(needed_slaves=needed_slaves, waits_for_slaves=needed_slaves > 0, sync_flush=False)
        self.tracer = SendTracer(tracing, self.meter, policy=policy) if is_traced else None
        self.refusal: str | None = None
        self.may_answer = True
        self.path = WritePath(
            store=self.store,
            replica=self.replica,
            clock=self.clock,
            flush_disk_type=FlushDiskType.ASYNC_FLUSH,
            waits_for_slaves=needed_slaves > 0,
            kick_flush=lambda: None,
            appended=lambda topic: None,
            # Writing answers takes a while here.
            answered=lambda: self.advance(1),
            refusal=lambda: self.refusal,
            failed=self.failures.append,
            may_answer=lambda: self.may_answer,
            meter=self.meter,
            tracer=self.tracer,
        )
        self._link = self.replica.slave_connected("10.0.0.1:4000", now_ms=self.clock.now_ms)
        if self.tracer is not None:
            self.tracer.slave_connected(self._link, "10.0.0.1:4000")
        self.report(0)

    def add(self, spans: Sequence[SpanData]) -> None:
        """`SpanSink`'s."""
        self.spans += spans

    def add_sends(self, sends: Sequence[ResolvedSend]) -> None:
        """`SpanSink`'s."""
        for send in sends:
            self.add(send_spans(send))

    def advance(self, duration_ms: int) -> None:
        self.clock.now_ms += duration_ms

    def stored_bytes(self) -> int:
        """Of the log, without the zeros behind it: what would be there if this process were killed now."""
        segment = self.disk.map_segment(f"commitlog/{0:020}", SMALL_OPTIONS.commit_log_file_bytes, create=False)
        return len(bytes(segment.view).rstrip(b"\0"))

    def break_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No write of the log succeeds any more."""

        def refuse(segment: MappedSegment, start: int, parts: object) -> None:
            raise DiskError(f"{segment.path}: Input/output error")

        segment = self.disk.map_segment(f"commitlog/{0:020}", SMALL_OPTIONS.commit_log_file_bytes, create=False)
        monkeypatch.setattr(type(segment), "write_parts", refuse)

    def put(self, *, call: FakeCall | None, traceparents: Sequence[str] = ()) -> list[AppendResult]:
        """The results, once they are there."""
        answers: list[AppendResult] = []
        self.put_for(answers.extend, call, traceparents)
        return answers

    def put_for(self, done: PutDone, call: FakeCall | None = None, traceparents: Sequence[str] = ()) -> None:
        """Tells `done` the results."""
        # With a property, so that the record does not end with a zero.
        host = Host.parse("10.0.0.7", 50_000)
        message = OutgoingMessage("orders", 0, b"body", b"a\1b\2", 0, ("id-1",), None, 0, host)
        self.path.put([message], done, call, traceparents)

    def report(self, offset: int) -> None:
        """The slave has all below it."""
        self.replica.take_transfers(self._link, budget_bytes=1 << 20, now_ms=self.clock.now_ms)
        self.replica.receive_data(self._link, struct.pack(">q", offset), now_ms=self.clock.now_ms)
        if self.tracer is not None:
            self.tracer.acknowledged(self._link, self.replica.acked_offset(self._link), self.clock.monotonic_ns())
        self.path.collect()

    def times(self) -> dict[str, tuple[int, int]]:
        """Of all spans, in ms."""
        assert self.tracer is not None
        self.tracer.build_all()
        return {
            span.name.rpartition("/")[2]: (span.start_ns // 1_000_000, span.end_ns // 1_000_000) for span in self.spans
        }

    def close(self) -> None:
        self.path.close()
        self.store.close()


async def test_counts_what_was_stored_and_how_long_its_sender_waited() -> None:
    rig = Rig(is_traced=False)
    answers = rig.put(call=FakeCall(received_ns=READ_NS))
    assert rig.meter.topics == {"orders": TopicPuts(1, rig.store.end_offset)}
    rig.advance(24)
    rig.report(rig.store.end_offset)
    assert [answer.status for answer in answers] == [PutStatus.PUT_OK]
    assert abs(rig.meter.send_to_ack_s[PutStatus.PUT_OK].reading().total - 0.025) < 1e-9
    assert abs(rig.meter.ack_latency_s.reading().total - 0.024) < 1e-9
    rig.close()


def _record_bytes() -> int:
    """Of each record that the rig puts."""
    rig = Rig(is_traced=False)
    rig.put(call=None)
    size = rig.store.end_offset
    rig.close()
    return size


async def test_sends_that_are_too_many_for_the_log_go_on_as_the_slave_confirms() -> None:
    rig = Rig(is_traced=False)
    room = rig.path.room
    answers: list[AppendResult] = []
    in_log = 64
    room.weight_max = in_log * (16_384 + _record_bytes())
    for _ in range(2 * in_log):
        if not (room.is_full and room.holds("ipv4:10.0.0.7:1", 1, 100, lambda: rig.put_for(answers.extend))):
            rig.put_for(answers.extend)
    # One more of its address than there is room for: it had taken nothing while there was none.
    assert (rig.path.waiting_count, room.held_count) == (in_log + 1, in_log - 1)
    rig.report(rig.store.end_offset)
    assert (len(answers), rig.path.waiting_count) == (in_log + 1, in_log - 1)
    rig.report(rig.store.end_offset)
    assert {answer.status for answer in answers} == {PutStatus.PUT_OK}
    assert (len(answers), rig.path.waiting_count, room.is_full) == (2 * in_log, 0, False)
    rig.close()


async def test_sends_that_are_refused_after_they_waited_leave_turns_to_others() -> None:
    """Nothing is confirmed for them: the next turn goes on by itself."""
    rig = Rig(is_traced=False)
    room = rig.path.room
    refused: list[int] = []
    room.weight_max = 16_384
    rig.put(call=None)
    for number in range(1_001):
        room.holds("ipv4:10.0.0.7:1", 1, 100, partial(refused.append, number))
    rig.report(rig.store.end_offset)
    in_turns = [len(refused)]
    while room.held_count:
        await asyncio.sleep(0)
        in_turns.append(len(refused) - sum(in_turns))
    assert refused == list(range(1, 1_001))
    assert max(in_turns) == IN_A_TURN_MAX
    assert not room.is_full
    rig.close()


async def test_a_broker_that_stops_between_two_such_turns_refuses_all() -> None:
    rig = Rig(is_traced=False)
    room = rig.path.room
    answers: list[AppendResult] = []
    room.weight_max = 1_000 * 16_384
    rig.put(call=None)
    room.is_full = True
    for _ in range(201):
        room.holds("ipv4:10.0.0.7:1", 1, 100, lambda: rig.put_for(answers.extend))
    rig.report(rig.store.end_offset)
    assert (room.held_count, room.is_full) == (200 - IN_A_TURN_MAX, True)
    rig.refusal = "the broker stops"
    rig.path.fail_all(PutStatus.SERVICE_NOT_AVAILABLE)
    rig.path.close()
    assert [answer.status for answer in answers] == [PutStatus.SERVICE_NOT_AVAILABLE] * 200
    for _ in range(3):
        await asyncio.sleep(0)
    assert (room.held_count, room.is_full, rig.path.waiting_count) == (0, False, 0)
    rig.close()


async def test_large_messages_fill_the_log_by_their_bytes() -> None:
    rig = Rig(is_traced=False)
    rig.path.room.weight_max = 2 * 16_384 + _record_bytes() + 1
    rig.put(call=None)
    assert not rig.path.room.is_full
    rig.put(call=None)
    assert rig.path.room.is_full
    rig.report(rig.store.end_offset)
    assert not rig.path.room.is_full
    rig.close()


async def test_sends_that_wait_for_nobody_are_as_many_as_they_like() -> None:
    rig = Rig(is_traced=False, needed_slaves=0)
    for _ in range(200):
        rig.put(call=None)
    assert not rig.path.room.is_full
    await asyncio.sleep(0)
    rig.close()


async def test_a_broker_that_stops_leaves_no_send_waiting_for_its_turn() -> None:
    rig = Rig(is_traced=False)
    room = rig.path.room
    answers: list[AppendResult] = []
    room.is_full = True
    room.holds("ipv4:10.0.0.7:1", 1, 100, lambda: None)
    assert room.holds("ipv4:10.0.0.7:1", 1, 100, lambda: rig.put_for(answers.extend))
    rig.refusal = "the broker stops"
    rig.path.fail_all(PutStatus.SERVICE_NOT_AVAILABLE)
    assert [answer.status for answer in answers] == [PutStatus.SERVICE_NOT_AVAILABLE]
    assert (room.held_count, room.is_full) == (0, False)
    rig.close()


async def test_a_put_of_the_broker_itself_has_no_sender_that_waits() -> None:
    rig = Rig(is_traced=True)
    rig.put(call=None)
    rig.report(rig.store.end_offset)
    assert sum(rig.meter.send_to_ack_s[PutStatus.PUT_OK].reading().counts) == 0
    assert rig.times() == {}
    rig.close()


async def test_a_refused_put_is_counted_by_its_status() -> None:
    rig = Rig(is_traced=True)
    rig.refusal = "the broker stops"
    rig.put(call=FakeCall(received_ns=READ_NS))
    assert sum(rig.meter.send_to_ack_s[PutStatus.SERVICE_NOT_AVAILABLE].reading().counts) == 1
    assert rig.meter.topics == {}
    rig.advance(50)
    rig.refusal = None
    rig.put(call=FakeCall(received_ns=READ_NS))
    rig.report(rig.store.end_offset)
    assert rig.times() == {"SendMessage": (5, 6), "commitlog append": (6, 6)}
    rig.close()


async def test_a_traced_put_has_the_times_of_its_way() -> None:
    rig = Rig(is_traced=True)
    rig.put(call=FakeCall(received_ns=READ_NS), traceparents=TRACED)
    rig.advance(3)
    rig.report(rig.store.end_offset)
    assert rig.times() == {
        "SendMessage": (5, 10),
        "commitlog append": (6, 6),
        "replicate wait": (6, 9),
        "reply": (9, 10),
    }
    rig.close()


async def test_those_who_wait_at_the_end_are_answered_and_traced() -> None:
    rig = Rig(is_traced=True)
    answers = rig.put(call=FakeCall(received_ns=READ_NS))
    rig.path.fail_all(PutStatus.SERVICE_NOT_AVAILABLE)
    assert [answer.status for answer in answers] == [PutStatus.SERVICE_NOT_AVAILABLE]
    assert "SendMessage" in rig.times()
    rig.close()


async def test_puts_of_a_turn_are_written_together_before_slaves_are_sent_them() -> None:
    rig = Rig(is_traced=False)
    links = Links(rig.stored_bytes)
    rig.path.attach(links)
    for _ in range(3):
        rig.put(call=None)
    assert rig.stored_bytes() == 0
    await asyncio.sleep(0)
    assert links.seen == [rig.stored_bytes()]
    assert rig.stored_bytes() == rig.store.end_offset
    rig.close()


async def test_answer_that_waits_for_nobody_comes_after_the_write() -> None:
    rig = Rig(is_traced=False, needed_slaves=0)
    answers: list[tuple[PutStatus, int, int]] = []
    for _ in range(2):
        rig.put_for(
            lambda results: answers.extend((item.status, item.end_offset, rig.stored_bytes()) for item in results)
        )
    await asyncio.sleep(0)
    assert [status for status, _, _ in answers] == [PutStatus.PUT_OK] * 2
    assert all(end_offset <= stored_bytes for _, end_offset, stored_bytes in answers)
    rig.close()


async def test_a_master_that_stood_still_acknowledges_nothing_once_its_lease_is_over() -> None:
    """An operator may have made another one master meanwhile, and was told what is given up."""
    rig = Rig(is_traced=False, needed_slaves=0)
    answers = rig.put(call=None)
    rig.may_answer = False
    await asyncio.sleep(0)
    assert [answer.status for answer in answers] == [PutStatus.SERVICE_NOT_AVAILABLE]
    assert rig.path.waiting_count == 0
    rig.close()


@pytest.mark.parametrize("needed_slaves", [0, 1])
async def test_put_that_cannot_be_written_is_not_acknowledged_nor_sent(
    needed_slaves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(is_traced=False, needed_slaves=needed_slaves)
    links = Links(rig.stored_bytes)
    rig.path.attach(links)
    rig.put(call=None)
    await asyncio.sleep(0)
    links.seen.clear()
    rig.break_disk(monkeypatch)
    answers = rig.put(call=None)
    await asyncio.sleep(0)
    rig.path.fail_all(PutStatus.SERVICE_NOT_AVAILABLE)
    assert [answer.status for answer in answers] == [PutStatus.SERVICE_NOT_AVAILABLE]
    assert rig.failures
    assert links.seen == []
    rig.close()
