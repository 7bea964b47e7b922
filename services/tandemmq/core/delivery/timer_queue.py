"""MessageTimers: delayed messages that wait in a system queue until they are due.

A *timer* record is put into queue 0 of `TIMER_TOPIC`; an *op* record in queue 0 of `TIMER_OP_TOPIC` names timers that
are finished, by their queue offsets: body `12,15,`, tag `d`, as RocketMQ writes them for half messages. What waits is a
function of these two queues alone, so every replica derives the same from the same log, and a new master goes on where
the old one was.

A message is released by *one* put: its copy for the real topic and, directly behind it, the op record. Where that is in
the log, the message is delivered and finished; a log that is cut between the two is found out by whoever becomes master
(`tandemmq.broker.message_timers`). So nothing is delivered twice, and what is refused is given out again.

Life of an entry: `follow` reads its record and adds it; `take_due` gives it out once its time has come, and from then
on it is in the hands of its owner; an op record in the log ends it (`follow` again), or `put_back` has it wait until
another time. For a timer that time is when it is due. For a half message it is that of its next check: the owner asks
the producer, and puts it back; when the client decides, `take` gives it out at once, a commit is the copy and the op
record in one put, a rollback the op record alone.

The op record of a recall also names the message that it takes back (`recall_properties`, RocketMQ's names in its delete
messages), so every replica that follows can tell who asks again: the newest recalls are remembered, until the process
ends or the log is cut.

Memory: an entry costs some 30 bytes while it is far, 80 in the two minutes before its time. Offsets are those of the
timer queue; times are milliseconds of the wall clock, which is an argument.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, TypeAlias
from zlib import crc32

from tandemmq.core.message.properties import (
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_DELIVER_MS,
    raw_property,
)
from tandemmq.core.message.record import TIMER_OP_TOPIC, TIMER_TOPIC
from tandemmq.core.message.stored_message import StoredMessage

if TYPE_CHECKING:
    from tandemmq.core.delivery.queue_reader import QueueReader

OP_TAG: Final = "d"
"""Of every op record (RocketMQ's TransactionalMessageUtil.REMOVE_TAG)."""
_QUEUE_ID: Final = 0
_UNIQUE_KEY: Final = b"UNIQ_KEY"
_REAL_TOPIC: Final = PROPERTY_REAL_TOPIC.encode()
_DELIVER_MS: Final = PROPERTY_TIMER_DELIVER_MS.encode()
_RECALLED: Final = PROPERTY_TIMER_DEL_UNIQKEY.encode()
_RECALLS_MAX: Final = 10_000
"""Remembered, in some 3 MB."""

_RUN_BITS: Final = 12
_RUN_PLACES: Final = 1 << _RUN_BITS
_WINDOW_BITS: Final = 16
"""A window of due times is 65.5 s long."""
_OFFSET_BITS: Final = 40
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1
_PULLED_AT_ONCE: Final = 4_096
"""Entries that are ordered in one call: some 4 ms."""
_FINISHED: Final = -1
_CHECKED_BYTES: Final = 256
"""Of a body; the log itself is compared elsewhere."""

_MAGIC: Final = b"TMQTIME1"
_HEAD: Final = struct.Struct("<qqqqIqqIq")
"""timer_next, op_next; of the last timer and of the last op record: place, store time, check; number of runs."""
_RUN_HEAD: Final = struct.Struct("<qI")


def op_body(offsets: Iterable[int]) -> bytes:
    """The body of an op record that finishes these."""
    return "".join([f"{offset}," for offset in offsets]).encode()


def op_offsets(body: bytes) -> list[int]:
    """What an op record finishes; RocketMQ 4 writes one number without a comma. Anything else in it is passed over."""
    return [int(text) for text in body.split(b",") if text.isdigit()]


def key_of(message_id: str) -> int:
    """By which `find` looks for a message: 32 bits, to be compared with the record."""
    return crc32(message_id.encode())


RecallKey: TypeAlias = tuple[bytes, bytes]
"""A message that can be recalled: `topic+message id`, and when it is due, in digits."""


def recall_key(topic: str, deliver_ms: int, message_id: str) -> RecallKey:
    """Of the message that a handle names."""
    return f"{topic}+{message_id}".encode(), b"%d" % deliver_ms


def recall_properties(key: RecallKey) -> list[tuple[str, str]]:
    """What the op record of its recall says besides."""
    name, deliver_ms = key
    return [(PROPERTY_TIMER_DEL_UNIQKEY, name.decode()), (PROPERTY_TIMER_DELIVER_MS, deliver_ms.decode())]


def timer_due_ms(message: StoredMessage) -> int:
    """When a timer record is due: TIMER_DELIVER_MS, to the millisecond, else what RocketMQ has rounded (TIMER_OUT_MS,
    for a request by delay). One that says neither is due at once."""
    for name in (b"TIMER_DELIVER_MS", b"TIMER_OUT_MS"):
        text = raw_property(message.properties, name)
        if text.isdigit():
            return int(text)
    return 0


class TimerQueueState:
    """What one moment of a TimerQueue leaves the next start: `to_bytes` may run in a thread."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    def to_bytes(self) -> bytes:
        """The whole file, its CRC last."""
        body = b"".join(self._parts)
        return body + crc32(body).to_bytes(4, "little")


class _Mark:
    """The record that was read last: another log has another one there."""

    __slots__ = ("check", "place", "store_timestamp_ms")

    def __init__(self, place: int, store_timestamp_ms: int, check: int) -> None:
        self.place = place
        self.store_timestamp_ms = store_timestamp_ms
        self.check = check

    def is_of(self, message: StoredMessage) -> bool:
        return (
            self.place == message.physical_offset
            and self.store_timestamp_ms == message.store_timestamp_ms
            and self.check == _check(message)
        )


_NO_MARK: Final = _Mark(-1, 0, 0)


class _Run:
    """Waiting entries with neighbouring offsets, in their order; finished ones until half of them are."""

    __slots__ = ("due_ms", "keys", "places", "waiting_count")

    def __init__(self) -> None:
        self.places: array[int] = array("H")
        self.due_ms: array[int] = array("q")
        self.keys: array[int] = array("I")
        self.waiting_count = 0

    def add(self, place: int, due_ms: int, key: int) -> None:
        self.places.append(place)
        self.due_ms.append(due_ms)
        self.keys.append(key)
        self.waiting_count += 1

    def index(self, place: int) -> int:
        """-1: it does not wait here."""
        index = bisect_left(self.places, place)
        if index < len(self.places) and self.places[index] == place and self.due_ms[index] != _FINISHED:
            return index
        return -1

    def finish(self, index: int) -> None:
        self.due_ms[index] = _FINISHED
        self.waiting_count -= 1
        if self.waiting_count * 2 < len(self.places):
            self.compact()

    def compact(self) -> None:
        kept = [index for index, due_ms in enumerate(self.due_ms) if due_ms != _FINISHED]
        self.places = array("H", [self.places[index] for index in kept])
        self.due_ms = array("q", [self.due_ms[index] for index in kept])
        self.keys = array("I", [self.keys[index] for index in kept])

    def first_place(self) -> int:
        for index, due_ms in enumerate(self.due_ms):
            if due_ms != _FINISHED:
                return self.places[index]
        raise AssertionError("an empty run is kept")


class _Bucket:
    """Entries whose time lies in one window, as they came; finished ones stay until it has passed."""

    __slots__ = ("keys", "offsets", "pulled_count")

    def __init__(self) -> None:
        self.offsets: array[int] = array("q")
        self.keys: array[int] = array("I")
        self.pulled_count = 0
        """As many are in the near heap, or were."""


class TimerQueue:
    """See the module's docstring. One thread only.

    Nothing is given out before the owner has called `follow` until there is nothing left to read.
    """

    def __init__(self, *, recalls_max: int = _RECALLS_MAX) -> None:
        self._recalls_max = recalls_max
        self.clear()

    def clear(self) -> None:
        """Knows nothing any more: `follow` begins at the queues' first records."""
        self.timer_next = 0
        """The first timer record that was not read."""
        self.op_next = 0
        self._timer_mark = _NO_MARK
        self._op_mark = _NO_MARK
        self._cuts = -1
        self._first_offset = 0
        self._runs: dict[int, _Run] = {}
        self._buckets: dict[int, _Bucket] = {}
        self._windows: list[int] = []
        """Heap of the windows whose buckets are not all pulled."""
        self._pulled_windows: list[int] = []
        """Heap of those that are, and are kept for `find`."""
        self._near: list[int] = []
        """Heap of due time << 40 | offset. A pair that is not the entry's own any more is passed over."""
        self._out: set[int] = set()
        self._recalled: dict[RecallKey, None] = {}
        """The newest at the end. A message that was sent once more since is not among them."""
        self.waiting_count = 0
        """Those that are given out count, too."""
        self.expired_count = 0
        """Entries whose records were deleted while they waited."""

    # From the log

    def is_cut(self, queues: QueueReader, *, cuts: int) -> bool:
        """Whether the log has lost, or replaced, what was read of it: `clear`, or `load` an older state.

        `cuts` counts the log's truncations: while it stays the same the records themselves are not looked at.
        """
        timer_end = queues.max_offset(TIMER_TOPIC, _QUEUE_ID)
        op_end = queues.max_offset(TIMER_OP_TOPIC, _QUEUE_ID)
        if timer_end < self.timer_next or op_end < self.op_next:
            return True
        if cuts == self._cuts:
            return False
        if not (
            _is_there(queues, TIMER_TOPIC, self.timer_next, self._timer_mark)
            and _is_there(queues, TIMER_OP_TOPIC, self.op_next, self._op_mark)
        ):
            return True
        self._cuts = cuts
        return False

    def follow(self, queues: QueueReader, *, max_records: int = 512) -> int:
        """Reads on in both queues, up to `max_records` of each; returns how many records. 0: there is nothing more, or
        a damaged entry is in the way. To be called after `is_cut` said no.

        A record takes some 5 us, and the disk if it is cold: see `next_range`.
        """
        self._expire(queues)
        timers = self._read(queues, TIMER_TOPIC, self.timer_next, max_records)
        for message in timers:
            if message is not None:
                if self._recalled:
                    self._recalled.pop(_recall_key_of(message.properties), None)
                self._add(message.queue_offset, timer_due_ms(message), _key(message.properties))
                self._timer_mark = _mark(message)
        self.timer_next += len(timers)
        has_all_timers = self.timer_next >= queues.max_offset(TIMER_TOPIC, _QUEUE_ID)
        count = len(timers)
        for message in self._read(queues, TIMER_OP_TOPIC, self.op_next, max_records):
            if message is not None:
                # Behind a timer record that was not read it may finish just that.
                if not has_all_timers and message.physical_offset > self._timer_mark.place:
                    break
                for offset in op_offsets(bytes(message.body)):
                    self._finish(offset)
                if name := raw_property(message.properties, _RECALLED):
                    self._note_recalled(bytes(name), bytes(raw_property(message.properties, _DELIVER_MS)))
                self._op_mark = _mark(message)
            self.op_next += 1
            count += 1
        return count

    def ends(self, queues: QueueReader) -> tuple[int, int]:
        """What both queues hold now, for `has_read`."""
        return queues.max_offset(TIMER_TOPIC, _QUEUE_ID), queues.max_offset(TIMER_OP_TOPIC, _QUEUE_ID)

    def has_read(self, ends: tuple[int, int]) -> bool:
        """Whether it knows all that was there at these ends."""
        return self.timer_next >= ends[0] and self.op_next >= ends[1]

    def next_range(self, queues: QueueReader, *, max_records: int = 512) -> list[tuple[int, int]]:
        """The bytes of the log that the next `follow` reads, [start, end) each, to be brought into memory before."""
        ranges = []
        for topic, start in ((TIMER_TOPIC, self.timer_next), (TIMER_OP_TOPIC, self.op_next)):
            start = max(start, queues.min_offset(topic, _QUEUE_ID))
            for physical_offset, size, _ in queues.entries(topic, _QUEUE_ID, start, max_records):
                ranges.append((physical_offset, physical_offset + size))
        return ranges

    def _expire(self, queues: QueueReader) -> None:
        """Records that are gone are not waited for."""
        first_offset = queues.min_offset(TIMER_TOPIC, _QUEUE_ID)
        if first_offset > self._first_offset:
            self._first_offset = first_offset
            self.timer_next = max(self.timer_next, first_offset)
            for number in sorted(self._runs):
                start = number << _RUN_BITS
                if start >= first_offset:
                    break
                for place in list(self._runs[number].places):
                    if start + place < first_offset and self.is_waiting(start + place):
                        self._finish(start + place)
                        self.expired_count += 1
        self.op_next = max(self.op_next, queues.min_offset(TIMER_OP_TOPIC, _QUEUE_ID))

    def _read(self, queues: QueueReader, topic: str, start: int, count: int) -> list[StoredMessage | None]:
        entries = queues.entries(topic, _QUEUE_ID, start, count)
        if not entries:
            return []
        return queues.messages(topic, _QUEUE_ID, range(start, start + len(entries)), entries)

    def _add(self, offset: int, due_ms: int, key: int) -> None:
        due_ms = max(0, due_ms)
        number = offset >> _RUN_BITS
        run = self._runs.get(number)
        if run is None:
            run = self._runs[number] = _Run()
        run.add(offset & (_RUN_PLACES - 1), due_ms, key)
        self.waiting_count += 1
        self._await(offset, due_ms, key)

    def _await(self, offset: int, due_ms: int, key: int) -> None:
        """It is given out at that time."""
        window = due_ms >> _WINDOW_BITS
        bucket = self._buckets.get(window)
        if bucket is None:
            bucket = self._buckets[window] = _Bucket()
            heappush(self._windows, window)
        elif bucket.pulled_count == len(bucket.offsets):
            heappush(self._near, due_ms << _OFFSET_BITS | offset)
            bucket.pulled_count += 1
        bucket.offsets.append(offset)
        bucket.keys.append(key)

    def _finish(self, offset: int) -> None:
        number = offset >> _RUN_BITS
        run = self._runs.get(number)
        index = -1 if run is None else run.index(offset & (_RUN_PLACES - 1))
        if run is None or index < 0:
            return
        run.finish(index)
        self.waiting_count -= 1
        self._out.discard(offset)
        if not run.waiting_count:
            del self._runs[number]

    def _note_recalled(self, name: bytes, deliver_ms: bytes) -> None:
        message_id = name.partition(b"+")[2]
        if not deliver_ms.isdigit() or self._find(int(deliver_ms), crc32(message_id)):
            return  # Sent once more: timers are read ahead of op records.
        recalled = self._recalled
        recalled.pop((name, deliver_ms), None)
        recalled[name, deliver_ms] = None
        if len(recalled) > self._recalls_max:
            del recalled[next(iter(recalled))]

    # What waits

    def is_recalled(self, key: RecallKey) -> bool:
        """Whether the log says that it was recalled, and it was not sent since. False also if that is forgotten."""
        return key in self._recalled

    @property
    def out_count(self) -> int:
        """Entries that were given out, and are neither finished nor put back."""
        return len(self._out)

    @property
    def lowest_offset(self) -> int | None:
        """The oldest entry that waits: the log has to keep its record. None: nothing waits. Looks at all runs."""
        if not self._runs:
            return None
        number = min(self._runs)
        return number << _RUN_BITS | self._runs[number].first_place()

    def lowest_offsets(self, count: int) -> list[int]:
        """The oldest entries that wait and are not given out, those to be rolled first."""
        found: list[int] = []
        for number in sorted(self._runs):
            run = self._runs[number]
            for place, due_ms in zip(run.places, run.due_ms):
                offset = number << _RUN_BITS | place
                if due_ms != _FINISHED and offset not in self._out:
                    found.append(offset)
                    if len(found) == count:
                        return found
        return found

    def is_waiting(self, offset: int) -> bool:
        """Whether the entry is not finished; given out or not."""
        return self.due_ms(offset) is not None

    def due_ms(self, offset: int) -> int | None:
        """When the entry is given out, or was; None: it does not wait."""
        run = self._runs.get(offset >> _RUN_BITS)
        index = -1 if run is None else run.index(offset & (_RUN_PLACES - 1))
        return None if run is None or index < 0 else run.due_ms[index]

    @property
    def next_due_ms(self) -> int | None:
        """No entry is due before; None: none waits. It may be early, by a window at most."""
        near = self._near[0] >> _OFFSET_BITS if self._near else None
        far = self._windows[0] << _WINDOW_BITS if self._windows else None
        if near is None or far is None:
            return far if near is None else near
        return min(near, far)

    def find(self, due_ms: int, message_id: str) -> list[int]:
        """Entries due at that time that may be the message, which their records tell; none of them is given out."""
        return [offset for offset in self._find(due_ms, key_of(message_id)) if offset not in self._out]

    def _find(self, due_ms: int, key: int) -> list[int]:
        bucket = self._buckets.get(due_ms >> _WINDOW_BITS)
        if bucket is None:
            return []
        found: list[int] = []
        index = -1
        while True:
            try:
                index = bucket.keys.index(key, index + 1)
            except ValueError:
                return found
            offset = bucket.offsets[index]
            if self.due_ms(offset) == due_ms:
                found.append(offset)

    # Giving out

    def take_due(self, now_ms: int, limit: int) -> list[int]:
        """Up to `limit` entries whose time has come, the earliest first. They are their owner's until an op record
        finishes them or `put_back`.

        Windows are put in order from a window ahead on, some thousand entries a call: call it a few times a second.
        """
        self._pull((now_ms >> _WINDOW_BITS) + 1)
        near, out = self._near, self._out
        taken: list[int] = []
        while near and len(taken) < limit:
            due_ms = near[0] >> _OFFSET_BITS
            if due_ms > now_ms:
                break
            offset = heappop(near) & _OFFSET_MASK
            if offset not in out and self.due_ms(offset) == due_ms:
                out.add(offset)
                taken.append(offset)
        return taken

    def take(self, offset: int) -> bool:
        """Gives out one entry whatever its time; False: it does not wait, or is given out."""
        if offset in self._out or not self.is_waiting(offset):
            return False
        self._out.add(offset)
        return True

    def put_back(self, offset: int, due_ms: int) -> None:
        """An entry that was given out waits until another time, or its own; nothing if it is finished by now."""
        if offset not in self._out:
            return
        self._out.discard(offset)
        run = self._runs[offset >> _RUN_BITS]
        index = run.index(offset & (_RUN_PLACES - 1))
        run.due_ms[index] = due_ms
        self._await(offset, due_ms, run.keys[index])

    def put_back_all(self) -> None:
        """Whoever had entries gives them up: this broker is master no more. Each keeps its time, which may be far: some
        are given out to be put again, or for a recall."""
        for offset in list(self._out):
            run = self._runs[offset >> _RUN_BITS]
            self.put_back(offset, run.due_ms[run.index(offset & (_RUN_PLACES - 1))])

    def _pull(self, horizon: int) -> None:
        pulled = 0
        while self._windows and self._windows[0] <= horizon and pulled < _PULLED_AT_ONCE:
            window = self._windows[0]
            bucket = self._buckets[window]
            start = bucket.pulled_count
            bucket.pulled_count = end = min(len(bucket.offsets), start + _PULLED_AT_ONCE - pulled)
            pulled += end - start
            for offset in bucket.offsets[start:end]:
                due_ms = self.due_ms(offset)
                if due_ms is not None and due_ms >> _WINDOW_BITS == window and offset not in self._out:
                    heappush(self._near, due_ms << _OFFSET_BITS | offset)
            if end == len(bucket.offsets):
                heappop(self._windows)
                heappush(self._pulled_windows, window)
        while self._pulled_windows and self._pulled_windows[0] < horizon - 1:
            del self._buckets[heappop(self._pulled_windows)]

    # A state that outlives the process

    def state(self) -> TimerQueueState:
        """As it is now; copies some 14 bytes an entry."""
        timer, op = self._timer_mark, self._op_mark
        parts = [
            _MAGIC,
            sys.byteorder[:1].encode(),
            _HEAD.pack(
                self.timer_next,
                self.op_next,
                timer.place,
                timer.store_timestamp_ms,
                timer.check,
                op.place,
                op.store_timestamp_ms,
                op.check,
                len(self._runs),
            ),
        ]
        for number, run in self._runs.items():
            parts += [
                _RUN_HEAD.pack(number, len(run.places)),
                run.places.tobytes(),
                run.due_ms.tobytes(),
                run.keys.tobytes(),
            ]
        return TimerQueueState(parts)

    def load(self, data: bytes) -> bool:
        """Takes a saved state, in place of what it knows; False, and it knows nothing, if the bytes are none.

        Whether the log still is the one it was saved of, `is_cut` tells: to be asked before anything else.
        """
        self.clear()
        try:
            is_read = self._load(memoryview(data))
        except (struct.error, ValueError):
            is_read = False
        if not is_read:
            self.clear()
        return is_read

    def _load(self, data: memoryview) -> bool:
        start = len(_MAGIC) + 1
        end = len(data) - 4
        if end < start + _HEAD.size or data[:start] != _MAGIC + sys.byteorder[:1].encode():
            return False
        if crc32(data[:end]) != int.from_bytes(data[end:], "little"):
            return False
        timer_next, op_next, place, stored_ms, check, op_place, op_stored_ms, op_check, run_count = _HEAD.unpack_from(
            data, start
        )
        self.timer_next, self.op_next = timer_next, op_next
        self._timer_mark = _Mark(place, stored_ms, check)
        self._op_mark = _Mark(op_place, op_stored_ms, op_check)
        position = start + _HEAD.size
        for _ in range(run_count):
            number, count = _RUN_HEAD.unpack_from(data, position)
            position += _RUN_HEAD.size
            run = self._runs[number] = _Run()
            for column in (run.places, run.due_ms, run.keys):
                size = count * column.itemsize
                column.frombytes(data[position : position + size])
                position += size
            run.compact()
            run.waiting_count = len(run.places)
            self.waiting_count += run.waiting_count
            for place_in_run, due_ms, key in zip(run.places, run.due_ms, run.keys):
                self._await(number << _RUN_BITS | place_in_run, due_ms, key)
        return position == end


def _key(properties: bytes) -> int:
    return crc32(raw_property(properties, _UNIQUE_KEY))


def _recall_key_of(properties: bytes) -> RecallKey:
    topic, message_id = raw_property(properties, _REAL_TOPIC), raw_property(properties, _UNIQUE_KEY)
    return b"%b+%b" % (topic, message_id), bytes(raw_property(properties, _DELIVER_MS))


def _mark(message: StoredMessage) -> _Mark:
    return _Mark(message.physical_offset, message.store_timestamp_ms, _check(message))


def _check(message: StoredMessage) -> int:
    return crc32(message.body[:_CHECKED_BYTES], crc32(message.properties))


def _is_there(queues: QueueReader, topic: str, next_offset: int, mark: _Mark) -> bool:
    """Whether the record before `next_offset` is the one that was read last. One that expired lies below every cut."""
    last = next_offset - 1
    if mark is _NO_MARK or mark.place < 0 or last < queues.min_offset(topic, _QUEUE_ID):
        return True
    entries = queues.entries(topic, _QUEUE_ID, last, 1)
    messages = queues.messages(topic, _QUEUE_ID, (last,), entries) if entries else []
    return bool(messages) and (messages[0] is None or mark.is_of(messages[0]))
