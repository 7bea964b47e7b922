"""Drawn histories of messages of every kind over changes of master: after each one every kind keeps its contract.

The next master has all of the log that was acknowledged to anybody or given to anybody, and of what comes behind it as
much as was sent; of the leases' journal all that an answered call of a consumer waited for, and as much of the rest.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from support.api_requests import Answer, ack_request, call, message, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from support.stores import log_bytes, records_in
from support.transactions import end
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

Code = definition.Code
_FILE_BYTES: Final = 64 << 10
_OPTIONS: Final = StoreOptions(
    commit_log_file_bytes=_FILE_BYTES, consume_queue_file_bytes=20_000, index_slot_count=100, index_entry_count=400
)
_KINDS: Final = {
    "plain": definition.NORMAL,
    "fifo": definition.FIFO,
    "delayed": definition.DELAY,
    "half": definition.TRANSACTION,
    "priority": definition.PRIORITY,
}
_TOPIC_TYPES: Final = {
    "plain": "NORMAL",
    "fifo": "FIFO",
    "delayed": "DELAY",
    "half": "TRANSACTION",
    "priority": "PRIORITY",
}
_GROUPS: Final = ("all", "some")
"""One has every message, one those of its SQL filter."""
_INVISIBLE_MS: Final = 10_000


@dataclass(eq=False)
class _Sent:
    """A message, and what was told of it."""

    kind: str
    body: bytes
    number: int
    is_even: bool
    entry: pb.SendResultEntry
    is_promised: bool
    """The send, or the commit of a half, was answered OK."""
    message_group: str = ""
    due_ms: int = 0
    tried: set[int] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    """Groups that have seen it."""
    finished: set[str] = field(default_factory=set)
    """Groups that were answered OK."""
    dead: set[str] = field(default_factory=set)
    """Groups that were told it is a dead letter."""


class _History:
    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.time = ManualTime()
        self.sent: dict[bytes, _Sent] = {}
        self._in_hand: list[tuple[str, _Sent, str]] = []
        self._durable = 0
        """What lies below it in the log was acknowledged, or seen."""
        self._journal: list[bytes] = []
        self._settled = 0
        """So many of its frames were waited for."""
        self.broker = self._new(b"", b"")

    def _new(self, log: bytes, journal: bytes) -> BrokerAssembly:
        disk = SimulatedDisk(random.Random(self._chance.random()), wall_ms=self.time.wall_ms)
        broker = _Assembly(self, disk)
        if log:
            broker.store.set_writable(False, "it follows")
            for start in range(0, len(log), _FILE_BYTES):
                broker.store.append_raw(start, log[start : start + _FILE_BYTES])
            while broker.store.dispatch():
                pass
            broker.store.set_writable(True)
        broker.leases.restore(
            b"",
            journal,
            now_ms=self.time.monotonic_ms(),
            clock_offset_ms=self.time.wall_ms() - self.time.monotonic_ms(),
        )
        for kind, of_type in _TOPIC_TYPES.items():
            broker.add_topic(kind, message_type=of_type, queue_count=2)
        for group in _GROUPS:
            broker.add_group(group, fifo=False, retry_max_times=200)
            broker.add_group(f"{group}-fifo", fifo=True, retry_max_times=200)
        for _ in broker.api.transactions.recovery():
            pass
        for record in broker.api.transactions.take_missing():
            broker.store.put(record)
        return broker

    def persisted(self, frame: bytes) -> None:
        if frame:
            self._journal.append(frame)

    # Steps

    async def send(self, kind: str, number: int) -> None:
        body = f"{kind} {len(self.sent)}".encode()
        sent = message(kind, body, message_group=f"group-{number % 2}" if kind == "fifo" else None)
        sent.system_properties.message_type = _KINDS[kind]
        sent.user_properties["number"] = f"{number}"
        known = _Sent(kind, body, number, number % 2 == 0, pb.SendResultEntry(), False)
        if kind == "delayed":
            known.due_ms = self.time.wall_ms() + 3_000 * number
            sent.system_properties.delivery_timestamp.FromMilliseconds(known.due_ms)
        elif kind == "priority":
            sent.system_properties.priority = number % 3
        elif kind == "fifo":
            known.message_group = f"group-{number % 2}"
        [known.entry] = call(self.broker, "SendMessage", send_request(sent)).only(pb.SendMessageResponse).entries
        self.time.end_turn()
        self.sent[body] = known
        if known.entry.status.code == Code.OK:
            known.is_promised = kind != "half"
            self._durable = self.broker.store.end_offset

    async def end(self, which: int, resolution: definition.TransactionResolution) -> None:
        halves = [each for each in self.sent.values() if each.kind == "half" and each.entry.status.code == Code.OK]
        if halves:
            half = halves[which % len(halves)]
            if half.tried <= {resolution}:
                half.tried.add(resolution)
                if end(self.broker, half.entry, resolution, topic="half").code == Code.OK:
                    half.is_promised = resolution == definition.COMMIT
                    self._durable = self.broker.store.end_offset
            self.time.end_turn()

    async def pass_time(self, seconds: int) -> None:
        self.time.advance(1_000 * seconds)
        while await self.broker.delayed.deliver_due():
            pass
        self.time.advance(0)

    async def lose_acknowledgements(self, lost: bool) -> None:
        """Slaves do not answer in time, or do again."""
        self.broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT if lost else None

    async def consume(self, kind: str, group: str) -> None:
        name = f"{group}-fifo" if kind == "fifo" else group
        request = receive_request(kind, group=name, batch_size=4, poll_ms=0, invisible_ms=_INVISIBLE_MS)
        if group == "some":
            request.filter_expression.type = definition.SQL
            request.filter_expression.expression = "number IN ('0', '2', '4', '6')"
        # Only what every member of the in-sync set has is given.
        lost = self.broker.put_status is not None
        self.broker.confirmed_offset = self._durable if lost else 1 << 62
        fake = call(self.broker, "ReceiveMessage", request)
        self.time.end_turn()
        while fake.code is None:
            self.time.advance(1_000)
        answer = Answer.of(fake)
        if not lost:
            self._durable = self.broker.store.end_offset
        for given_one in answer.messages:
            known = self.sent[given_one.body]
            self._judge(known, group)
            known.given.add(group)
            self._in_hand.append((group, known, given_one.system_properties.receipt_handle))

    def _judge(self, known: _Sent, group: str) -> None:
        assert group not in known.finished, f"{known.body!r} was finished, and comes again"
        assert group == "all" or known.is_even, f"{known.body!r} is not what the filter of {group} wants"
        assert self.time.wall_ms() >= known.due_ms, f"{known.body!r} comes early"
        if known.kind == "half":
            assert definition.COMMIT in known.tried, f"{known.body!r} is seen, and nobody committed it"
        if known.kind == "fifo":
            for before in self.sent.values():
                if before is known:
                    break
                if (
                    before.message_group == known.message_group
                    and before.is_promised
                    and self._is_wanted(before, group)
                ):
                    assert group in before.given, f"{known.body!r} comes before {before.body!r}"

    def _is_wanted(self, known: _Sent, group: str) -> bool:
        return group == "all" or known.is_even

    async def settle(self, which: int, how: str) -> None:
        if not self._in_hand:
            return
        group, known, handle = self._in_hand.pop(which % len(self._in_hand))
        name = f"{group}-fifo" if known.kind == "fifo" else group
        if how == "forward":
            request = pb.ForwardMessageToDeadLetterQueueRequest(
                group=definition.Resource(name=name), topic=definition.Resource(name=known.kind), receipt_handle=handle
            )
            fake = call(self.broker, "ForwardMessageToDeadLetterQueue", request)
            self.time.end_turn()
            code = fake.only(pb.ForwardMessageToDeadLetterQueueResponse).status.code
        else:
            fake = call(self.broker, "AckMessage", ack_request(handle, topic=known.kind, group=name))
            self.time.end_turn()
            code = fake.only(pb.AckMessageResponse).status.code
        if code == Code.OK:
            known.finished.add(group)
            if how == "forward":
                known.dead.add(group)
                self._durable = self.broker.store.end_offset
            self._settled = len(self._journal)

    async def change_master(self, share: float, in_order: bool) -> None:
        log = log_bytes(self.broker.store)
        ends = [0] + [
            found.physical_offset + found.size for found in records_in(log, start_offset=0, file_bytes=_FILE_BYTES)
        ]
        ends = [offset for offset in ends if offset >= self._durable] or [len(log)]
        cut = len(log) if in_order else ends[min(len(ends) - 1, int(share * len(ends)))]
        if in_order:
            self.persisted(self.broker.leases.end_journal())
            self._settled = len(self._journal)
        kept = self._settled + int(share * (len(self._journal) - self._settled + 1))
        del self._journal[kept:]
        broken, self.broker = self.broker, self._new(log[:cut], b"".join(self._journal))
        self._durable = min(self._durable, cut)
        broken.close()
        await self.broker.message_timers.take_over()

    async def finish(self) -> None:
        """All ends well: everything promised comes, and then nothing any more."""
        await self.lose_acknowledgements(False)
        for _ in range(12):
            await self.pass_time(20)
            for kind in _KINDS:
                for group in _GROUPS:
                    await self.consume(kind, group)
            while self._in_hand:
                await self.settle(0, "acknowledge")
        came: dict[str, list[bytes]] = defaultdict(list)
        for known in self.sent.values():
            for group in _GROUPS:
                if known.is_promised and self._is_wanted(known, group):
                    assert group in known.finished, f"{known.body!r} was acknowledged, and did not come to {group}"
                if group in known.dead:
                    came[f"%DLQ%{group}-fifo" if known.kind == "fifo" else f"%DLQ%{group}"].append(known.body)
        for topic, bodies in came.items():
            assert set(bodies) <= set(self._bodies_in(topic)), "a dead letter is lost"

    def _bodies_in(self, topic: str) -> list[bytes]:
        store = self.broker.store
        return [
            store.message_at(entry.physical_offset).body
            for queue in store.queues
            if queue.topic == topic
            for entry in queue.read(queue.min_offset, queue.max_offset - queue.min_offset)
        ]


class _Assembly(BrokerAssembly):
    """Keeps the journal of its leases."""

    def __init__(self, history: _History, disk: SimulatedDisk) -> None:
        self._history = history
        super().__init__(clock=history.time, timers=history.time, disk=disk, store_options=_OPTIONS)

    def persist_leases(self) -> None:
        self._history.persisted(self.leases.take_journal())


_KIND: Final = st.sampled_from(tuple(_KINDS))
_GROUP: Final = st.sampled_from(_GROUPS)
_SEND: Final = st.tuples(st.just("send"), _KIND, st.integers(0, 6))
_CONSUME: Final = st.tuples(st.just("consume"), _KIND, _GROUP)
_SETTLE: Final = st.tuples(
    st.just("settle"), st.integers(0, 9), st.sampled_from(["acknowledge", "acknowledge", "forward"])
)
_STEPS: Final = st.one_of(
    _SEND,
    _SEND,
    _SEND,
    _CONSUME,
    _CONSUME,
    _SETTLE,
    _SETTLE,
    st.tuples(st.just("end"), st.integers(0, 9), st.sampled_from([definition.COMMIT, definition.ROLLBACK])),
    st.tuples(st.just("pass_time"), st.integers(1, 15)),
    st.tuples(st.just("lose_acknowledgements"), st.booleans()),
    st.tuples(st.just("change_master"), st.floats(0, 1), st.booleans()),
)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), steps=st.lists(_STEPS, max_size=40))
def test_every_kind_of_message_keeps_its_contract_over_changes_of_master(
    seed: int, steps: list[tuple[object, ...]]
) -> None:
    async def play() -> None:
        history = _History(seed)
        for name, *arguments in steps:
            await getattr(history, str(name))(*arguments)
        await history.change_master(0.0, False)
        await history.finish()
        history.broker.close()

    asyncio.run(play())
