"""Drawn histories of messages of every kind over changes of master: after each one every kind keeps its contract.

The next master has all of the log that was acknowledged to anybody or given to anybody, and of what comes behind it as
much as was sent; of the leases' journal all that an answered call of a consumer waited for, and as much of the rest.

Meanwhile operators change numbers of queues and delete groups, wall clocks jump, and files grow old.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from support.api_requests import Answer, call, message, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from support.stores import flush_all, log_bytes, records_in
from support.transactions import end
from tandemmq.broker.delayed_messages import RecallRefusal
from tandemmq.broker.put import PutAnswer, PutDone, answer_of
from tandemmq.broker.retention import MasterFloor
from tandemmq.core.message.record import Host, OutgoingMessage
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable
from tandemmq.core.metadata.topic_table import is_system_topic
from tandemmq.core.storage.disk import DiskUsage
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.core.storage.retention import ExpiryWish
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import CLIENT_ID_HEADER, Call

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
    "lite": definition.LITE,
}
_TOPIC_TYPES: Final = {
    "plain": "NORMAL",
    "fifo": "FIFO",
    "delayed": "DELAY",
    "half": "TRANSACTION",
    "priority": "PRIORITY",
    "lite": "LITE",
}
_IN_ORDER: Final = ("fifo", "lite")
_GROUPS: Final = {"all": 201, "some": 201, "few": 2}
"""How often a message is given. One has every message, one those of its SQL filter, one is given them seldom."""
_INVISIBLE_MS: Final = 10_000
_QUEUES_MAX: Final = 3
_FILLER: Final = "filler"
_HOUR_MS: Final = 3_600_000


class _Time(ManualTime):
    """With a wall clock that may be wrong."""

    wrong_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.wrong_ms


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
    place: str = ""
    """Message group, or lite topic."""
    due_ms: int = 0
    tried: set[int] = field(default_factory=set)
    is_recalled: bool = False
    """The recall was answered OK."""
    given: Counter[str] = field(default_factory=Counter)
    """How often each group has seen it."""
    finished: set[str] = field(default_factory=set)
    """Groups that were answered OK."""
    forwarded: set[str] = field(default_factory=set)
    """Groups that asked to make it a dead letter, whatever the answer was."""
    dead: set[str] = field(default_factory=set)
    """Groups that were told it is a dead letter."""
    letters: dict[str, int] = field(default_factory=dict)
    """How many dead letters there were when the group finished it: from then on none is made."""
    hidden: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Until when, by the monotonic clock, the group has it in hand, and where in the journal that stands."""


class _History:
    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.time = _Time()
        self._has_clock_jumped = False
        self._queue_counts = dict.fromkeys(_KINDS, 2)
        self.sent: dict[bytes, _Sent] = {}
        self._in_hand: list[tuple[str, _Sent, str]] = []
        self._durable = 0
        """What lies below it in the log was acknowledged, or seen."""
        self._journal: list[bytes] = []
        self._settled = 0
        """So many of its frames were waited for."""
        self.broker = self._new(0, b"", b"")

    def _new(self, begin: int, log: bytes, journal: bytes, before: MessageStore | None = None) -> BrokerAssembly:
        """A master whose log begins there."""
        disk = SimulatedDisk(random.Random(self._chance.random()), wall_ms=self.time.wall_ms)
        broker = _Assembly(self, disk)
        for kind, of_type in _TOPIC_TYPES.items():
            broker.add_topic(kind, message_type=of_type, queue_count=self._queue_counts[kind])
        broker.add_topic(_FILLER, queue_count=1)
        if log:
            broker.store.set_writable(False, "it follows")
            for start in range(0, len(log), _FILE_BYTES):
                broker.store.append_raw(begin + start, log[start : start + _FILE_BYTES])
            while broker.store.dispatch():
                pass
            broker.store.set_writable(True)
        for queue in () if before is None else before.queues:
            if not broker.store.queues.has_records(queue.topic, queue.queue_id):
                broker.store.queues.go_on_at(queue.topic, queue.queue_id, queue.min_offset)
        assert broker.lite_topics.follow("lite")
        broker.leases.restore(
            b"",
            journal,
            now_ms=self.time.monotonic_ms(),
            clock_offset_ms=self.time.wall_ms() - self.time.monotonic_ms(),
        )
        for group, attempts in _GROUPS.items():
            broker.add_group(group, fifo=False, retry_max_times=attempts - 1)
            broker.add_group(f"{group}-fifo", fifo=True, retry_max_times=attempts - 1)
        for _ in broker.api.transactions.recovery():
            pass
        for record in broker.api.transactions.take_missing():
            broker.store.put(record)
        return broker

    def acknowledged(self, end_offset: int) -> None:
        """To a client, or to who puts something for it."""
        self._durable = max(self._durable, end_offset)

    def persisted(self, frame: bytes) -> None:
        if frame:
            self._journal.append(frame)

    # Steps

    async def send(self, kind: str, number: int) -> None:
        body = f"{kind} {len(self.sent)}".encode()
        # Two message groups in each of the two queues.
        place = f"{kind}-{number % 4}" if kind in _IN_ORDER else ""
        sent = message(kind, body, message_group=place if kind == "fifo" else None)
        sent.system_properties.message_type = _KINDS[kind]
        sent.user_properties["number"] = f"{number}"
        known = _Sent(kind, body, number, number % 2 == 0, pb.SendResultEntry(), False, place)
        if kind == "delayed":
            known.due_ms = self.time.wall_ms() + 3_000 * number
            sent.system_properties.delivery_timestamp.FromMilliseconds(known.due_ms)
        elif kind == "priority":
            sent.system_properties.priority = number % 3
        elif kind == "lite":
            sent.system_properties.lite_topic = place
        [known.entry] = call(self.broker, "SendMessage", send_request(sent)).only(pb.SendMessageResponse).entries
        self.time.end_turn()
        self.sent[body] = known
        if known.entry.status.code == Code.OK:
            known.is_promised = kind != "half"

    async def end(self, which: int, resolution: definition.TransactionResolution) -> None:
        halves = [each for each in self.sent.values() if each.kind == "half" and each.entry.status.code == Code.OK]
        if halves:
            half = halves[which % len(halves)]
            if half.tried <= {resolution}:
                half.tried.add(resolution)
                if end(self.broker, half.entry, resolution, topic="half").code == Code.OK:
                    half.is_promised = resolution == definition.COMMIT
            self.time.end_turn()

    async def recall(self, which: int) -> None:
        delayed = [each for each in self.sent.values() if each.entry.recall_handle]
        if not delayed:
            return
        known = delayed[which % len(delayed)]
        request = pb.RecallMessageRequest(
            topic=definition.Resource(name=known.kind), recall_handle=known.entry.recall_handle
        )
        fake = call(self.broker, "RecallMessage", request)
        while fake.code is None:
            await asyncio.sleep(0)
        status = fake.only(pb.RecallMessageResponse).status
        if status.code == Code.OK or status.message == RecallRefusal.RECALLED_BEFORE:
            assert not known.given, f"{known.body!r} was seen, and is recalled"
            known.is_recalled, known.is_promised = True, False
        elif status.code != Code.NOT_FOUND:
            known.is_promised = False  # It may have been stored.
        else:
            assert not known.is_recalled, f"{known.body!r} was recalled, and that is not known any more"
            is_over = not known.is_promised or known.given or self.time.wall_ms() >= known.due_ms
            assert is_over, f"{known.body!r} waits, and is not found"

    async def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.time.advance(1_000)
            self.broker.api.housekeep()
        while await self.broker.delayed.deliver_due():
            pass
        self.time.advance(0)

    async def resize(self, kind: str, queue_count: int) -> None:
        """Of a topic in order it would move message groups past each other."""
        if kind != "fifo":
            self._queue_counts[kind] = queue_count
            self.broker.add_topic(kind, message_type=_TOPIC_TYPES[kind], queue_count=queue_count)

    async def delete_group(self, group: str) -> None:
        """Though somebody consumes: it is made again at once. One with dead letters is kept."""
        if any(group in known.forwarded or self._letter_count(known, group) for known in self.sent.values()):
            return
        self.broker.leases.forget_group(group)
        self.broker.persist_leases()
        self.broker.api.consumes_anew(group, "")
        self._settled = len(self._journal)
        for known in self.sent.values():
            if _name_of(known.kind, group) == group:
                known.finished.discard(group)
                known.hidden.pop(group, None)
                if group in known.given:
                    known.given[group] = 0

    async def set_clock(self, hours: int) -> None:
        self._has_clock_jumped |= self.time.wrong_ms != hours * _HOUR_MS
        self.time.wrong_ms = hours * _HOUR_MS

    async def expire(self) -> None:
        """All that is there grows old, once each group has begun in each topic and all slaves have the log."""
        if self.broker.put_status is not None or any(
            known.dead or self._letter_count(known, group) for known in self.sent.values() for group in _GROUPS
        ):
            return
        broker, store = self.broker, self.broker.store
        for group in _GROUPS:
            self._subscribe(group)
            for kind, queue_count in self._queue_counts.items():
                if kind != "lite":
                    broker.leases.open(_name_of(kind, group), kind, range(queue_count))
        broker.persist_leases()
        self._settled = len(self._journal)
        for _ in range(3):
            store.put(_filler())
        flush_all(store)
        self._durable = store.end_offset
        floor = MasterFloor(
            store,
            clock=self.time,
            leases=broker.leases,
            stored=ConsumerOffsetTable(),
            topics=broker.topics,
            is_system_topic=lambda name: is_system_topic(name, cluster="DefaultCluster", broker_name="broker-a"),
            slaves=list,
            slave_count=0,
            transactions=broker.api.transactions.hold,
            timers=broker.message_timers.queue,
            lite=broker.lite_topics,
        )
        end = store.end_offset
        wish = ExpiryWish(DiskUsage(50, 100), store.min_offset, end, 0, 0, 0, is_short=False)
        job = store.expire(wish, await floor.floor(wish))
        if job is not None:
            job.run()
        while store.trim_queues():
            pass

    async def lose_acknowledgements(self, lost: bool) -> None:
        """Slaves do not answer in time, or do again."""
        self.broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT if lost else None

    def _subscribe(self, group: str) -> None:
        """As clients repeat it: nobody keeps their lite topics for them."""
        request = pb.SyncLiteSubscriptionRequest(
            action=definition.COMPLETE_ADD,
            topic=definition.Resource(name="lite"),
            group=definition.Resource(name=group),
            lite_topic_set=[f"lite-{number}" for number in range(4)],
        )
        fake = call(self.broker, "SyncLiteSubscription", request, _client_of(group))
        assert fake.only(pb.SyncLiteSubscriptionResponse).status.code == Code.OK
        self._settled = len(self._journal)

    async def consume(self, kind: str, group: str) -> None:
        request = receive_request(
            kind, group=_name_of(kind, group), batch_size=4, poll_ms=0, invisible_ms=_INVISIBLE_MS
        )
        if group == "some":
            request.filter_expression.type = definition.SQL
            request.filter_expression.expression = "number IN ('0', '2', '4', '6')"
        # Only what every member of the in-sync set has is given.
        lost = self.broker.put_status is not None
        self.broker.confirmed_offset = self._durable if lost else 1 << 62
        if not lost:
            self.broker.api.confirmed()
        if kind == "lite":
            self._subscribe(group)
        fake = call(self.broker, "ReceiveMessage", request, _client_of(group))
        self.time.end_turn()
        while fake.code is None:
            self.time.advance(1_000)
        answer = Answer.of(fake)
        if not lost:
            self._durable = self.broker.store.end_offset
        batch: list[_Sent] = []
        for given_one in answer.messages:
            known = self.sent[given_one.body]
            self._judge(known, group, batch)
            assert given_one.system_properties.delivery_attempt <= min(_GROUPS[group], known.given[group] + 1)
            known.given[group] += 1
            known.hidden[group] = self.time.monotonic_ms() + _INVISIBLE_MS, len(self._journal)
            batch.append(known)
            self._in_hand.append((group, known, given_one.system_properties.receipt_handle))

    def _judge(self, known: _Sent, group: str, batch: Sequence[_Sent]) -> None:
        assert group not in known.finished, f"{known.body!r} was finished, and comes again"
        assert group != "some" or known.is_even, f"{known.body!r} is not what the filter of {group} wants"
        assert self.time.wall_ms() >= known.due_ms, f"{known.body!r} comes early"
        assert not known.is_recalled, f"{known.body!r} was recalled, and comes"
        hidden_ms, _ = known.hidden.get(group, (0, 0))
        assert self.time.monotonic_ms() >= hidden_ms, f"{known.body!r} is in hand until {hidden_ms}, and comes"
        if known.kind == "half":
            assert definition.COMMIT in known.tried, f"{known.body!r} is seen, and nobody committed it"
        if known.kind in _IN_ORDER:
            for before in self.sent.values():
                if before is known:
                    break
                if (
                    (before.kind, before.place) == (known.kind, known.place)
                    and before.is_promised
                    and self._is_wanted(before, group)
                ):
                    is_over = group in before.finished or before in batch or self._letter_count(before, group)
                    assert is_over, f"{known.body!r} comes before {before.body!r}"

    def _is_wanted(self, known: _Sent, group: str) -> bool:
        return group != "some" or known.is_even

    async def settle(self, which: int, how: str) -> None:
        if not self._in_hand:
            return
        group, known, handle = self._in_hand.pop(which % len(self._in_hand))
        lite_topic = known.place if known.kind == "lite" else ""
        whose, topic = definition.Resource(name=_name_of(known.kind, group)), definition.Resource(name=known.kind)
        if how == "forward":
            known.forwarded.add(group)
            forward = pb.ForwardMessageToDeadLetterQueueRequest(
                group=whose, topic=topic, receipt_handle=handle, lite_topic=lite_topic, delivery_attempt=1
            )
            fake = call(self.broker, "ForwardMessageToDeadLetterQueue", forward)
            self.time.end_turn()
            code = fake.only(pb.ForwardMessageToDeadLetterQueueResponse).status.code
        elif how == "acknowledge":
            entry = pb.AckMessageEntry(message_id="id", receipt_handle=handle, lite_topic=lite_topic)
            fake = call(self.broker, "AckMessage", pb.AckMessageRequest(group=whose, topic=topic, entries=[entry]))
            self.time.end_turn()
            code = fake.only(pb.AckMessageResponse).status.code
        else:
            seconds = int(how)
            change = pb.ChangeInvisibleDurationRequest(
                group=whose, topic=topic, receipt_handle=handle, lite_topic=lite_topic
            )
            change.invisible_duration.FromSeconds(seconds)
            fake = call(self.broker, "ChangeInvisibleDuration", change)
            self.time.end_turn()
            answer = fake.only(pb.ChangeInvisibleDurationResponse)
            if answer.status.code == Code.OK:
                known.hidden[group] = self.time.monotonic_ms() + 1_000 * seconds, len(self._journal)
                self._in_hand.append((group, known, answer.receipt_handle))
                self._settled = len(self._journal)
            return
        if code == Code.OK:
            known.finished.add(group)
            if how == "forward":
                known.dead.add(group)
            known.letters[group] = self._letter_count(known, group)
            self._settled = len(self._journal)

    async def change_master(self, share: float, in_order: bool) -> None:
        store = self.broker.store
        begin, log = store.min_offset, log_bytes(store)
        ends = [begin] + [
            found.physical_offset + found.size for found in records_in(log, start_offset=begin, file_bytes=_FILE_BYTES)
        ]
        ends = [offset for offset in ends if offset >= self._durable] or [store.end_offset]
        cut = store.end_offset if in_order else ends[min(len(ends) - 1, int(share * len(ends)))]
        if in_order:
            self.persisted(self.broker.leases.end_journal())
            self._settled = len(self._journal)
        kept = self._settled + int(share * (len(self._journal) - self._settled + 1))
        del self._journal[kept:]
        broken, self.broker = (
            self.broker,
            self._new(begin, log[: cut - begin], b"".join(self._journal), store),
        )
        self._durable = min(self._durable, cut)
        broken.close()
        for known in self.sent.values():
            # Another master counts the rest of a lease by its own wall clock.
            is_known = not self._has_clock_jumped
            known.hidden = {group: hidden for group, hidden in known.hidden.items() if is_known and hidden[1] <= kept}
        self._has_clock_jumped = False
        await self.broker.message_timers.take_over()

    async def finish(self) -> None:
        """All ends well: everything promised comes, and then nothing any more."""
        await self.lose_acknowledgements(False)
        await self.set_clock(2)
        for kind in _KINDS:
            if kind != "lite":  # What is in queues that are not read comes when they are; clients see no lite topic's.
                await self.resize(kind, _QUEUES_MAX)
        for _ in range(12):
            await self.pass_time(20)
            for kind in _KINDS:
                for group in _GROUPS:
                    await self.consume(kind, group)
                    while self._in_hand:
                        await self.settle(0, "acknowledge")
        for known in self.sent.values():
            for group, attempts in _GROUPS.items():
                letters = self._letter_count(known, group)
                if known.is_promised and self._is_wanted(known, group):
                    is_there = group in known.finished or (letters and known.given[group] >= attempts)
                    assert is_there, f"{known.body!r} was acknowledged, and did not come to {group}"
                assert letters or group not in known.dead, f"{known.body!r} was made a dead letter, which is lost"
                assert letters <= known.letters.get(group, letters), f"{known.body!r} was finished, and died"
                assert not letters or group in known.forwarded or known.given[group] >= attempts, (
                    f"{known.body!r} is a dead letter of {group} before its time"
                )

    def _letter_count(self, known: _Sent, group: str) -> int:
        """In the dead letter topic of a group."""
        store = self.broker.store
        return sum(
            store.message_at(entry.physical_offset).body == known.body
            for queue in store.queues
            if queue.topic == f"%DLQ%{_name_of(known.kind, group)}"
            for entry in queue.read(queue.min_offset, queue.max_offset - queue.min_offset)
        )


def _name_of(kind: str, group: str) -> str:
    """Of the consumer group, as the broker knows it."""
    return f"{group}-fifo" if kind == "fifo" else group


def _filler() -> OutgoingMessage:
    host = Host.parse("127.0.0.1", 1)
    return OutgoingMessage(_FILLER, 0, bytes(_FILE_BYTES // 2 + 1_000), b"", 0, (), None, 0, host)


def _client_of(group: str) -> FakeCall:
    return FakeCall(metadata={CLIENT_ID_HEADER: group})


class _Assembly(BrokerAssembly):
    """Keeps the journal of its leases."""

    def __init__(self, history: _History, disk: SimulatedDisk) -> None:
        self._history = history
        super().__init__(clock=history.time, timers=history.time, disk=disk, store_options=_OPTIONS)

    def put(
        self,
        messages: Sequence[OutgoingMessage],
        done: PutAnswer | PutDone,
        call: Call | None = None,
        traceparents: Sequence[str] = (),
    ) -> None:
        def told(results: list[AppendResult]) -> None:
            if results[-1].status is PutStatus.PUT_OK:
                self._history.acknowledged(results[-1].end_offset)
            answer_of(done).answer(results)

        super().put(messages, told, call, traceparents)

    def persist_leases(self) -> None:
        self._history.persisted(self.leases.take_journal())


_KIND: Final = st.sampled_from(tuple(_KINDS))
_GROUP: Final = st.sampled_from(tuple(_GROUPS))
_SEND: Final = st.tuples(st.just("send"), _KIND, st.integers(0, 6))
_CONSUME: Final = st.tuples(st.just("consume"), _KIND, _GROUP)
_SETTLE: Final = st.tuples(
    st.just("settle"), st.integers(0, 9), st.sampled_from(["acknowledge", "acknowledge", "forward", "0", "2", "15"])
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
    st.tuples(st.just("recall"), st.integers(0, 9)),
    st.tuples(st.just("pass_time"), st.integers(1, 15)),
    st.tuples(st.just("lose_acknowledgements"), st.booleans()),
    st.tuples(st.just("change_master"), st.floats(0, 1), st.booleans()),
    st.tuples(st.just("resize"), _KIND, st.integers(1, _QUEUES_MAX)),
    st.tuples(st.just("delete_group"), _GROUP),
    st.tuples(st.just("set_clock"), st.integers(-1, 1)),
    st.tuples(st.just("expire")),
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
