"""Which messages of a topic were stored a short time ago, by message id: what its deduplication window remembers.

A sender that lost an answer sends again. In a topic with a window the second message is not stored: its sender is told
what became of the first. What the window knows follows from the log, so a new master reads the end of each queue, back
to where the window begins, and knows the same. Of what it read it does not know whether it outlives a failure: that is
*unsure* until somebody made sure of it (`confirm`).

Messages that are held before they are in their topic have a window of their own, by the system topic that holds them:
DELAY messages wait as timers, halves of transactions for their end. An id counts from when it was sent: what is put
into the topic later is a copy, and is passed over here.

Ids are kept in slices of time, and leave with their slice. Beyond `ids_max` of all topics together the oldest slice of
the topic with the most ids goes before its time: memory is bounded, and the window of that topic is shorter then.
About 200 bytes for each id: of a long one its digest is kept. One thread only; times are of the wall clock, as records
have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from tandemmq.core.delivery.queue_reader import QueueReader
from tandemmq.core.message.properties import (
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    raw_property,
)
from tandemmq.core.message.record import HALF_TOPIC, TIMER_TOPIC
from tandemmq.core.message.stored_message import StoredMessage
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable, deduplication_window_ms
from tandemmq.core.storage.consume_queue import first_false

_SLICES: Final = 8
_ID_CHARACTERS_MAX: Final = 128
_READ_AT_ONCE: Final = 64
_UNIQUE_KEY: Final = PROPERTY_UNIQUE_KEY.encode()
_REAL_TOPIC: Final = PROPERTY_REAL_TOPIC.encode()
_TIMER_DELIVER: Final = PROPERTY_TIMER_DELIVER_MS.encode()
_TIMER_OUT: Final = PROPERTY_TIMER_OUT_MS.encode()
_TIMER_ROLLED: Final = PROPERTY_TIMER_ROLL_TIMES.encode()
_HALF: Final = PROPERTY_TRANSACTION_PREPARED.encode()
_HOLDING_TOPICS: Final = (TIMER_TOPIC, HALF_TOPIC)


class Window:
    """The ids of one topic. A value is the first message's queue offset, negative where it is unsure: -1 - offset."""

    __slots__ = ("_slice_ms", "_slices", "count", "window_ms")

    def __init__(self, window_ms: int) -> None:
        self.window_ms: Final = window_ms
        self._slice_ms: Final = max(1, window_ms // _SLICES)
        # By when each began, the newest last. One more than the window has: the oldest is only partly in it.
        self._slices: dict[int, dict[str, int]] = {}
        self.count = 0

    def find(self, message_id: str, now_ms: int) -> int | None:
        """The value of an id; None: no message of the id was stored within the window."""
        self.let_go(now_ms)
        message_id = _kept(message_id)
        for ids in reversed(self._slices.values()):
            value = ids.get(message_id)
            if value is not None:
                return value
        return None

    def remember(self, message_id: str, value: int, stored_ms: int) -> None:
        begin = stored_ms - stored_ms % self._slice_ms
        ids = self._slices.get(begin)
        if ids is None:
            ids = self._slices[begin] = {}
            if len(self._slices) > 1 and next(reversed(self._slices)) != max(self._slices):
                self._slices = dict(sorted(self._slices.items()))
        message_id = _kept(message_id)
        if message_id not in ids:
            self.count += 1
        ids[message_id] = value

    def confirm(self, message_id: str, queue_offset: int) -> None:
        """The first message with the id outlives a failure."""
        message_id = _kept(message_id)
        for ids in self._slices.values():
            if ids.get(message_id) == -1 - queue_offset:
                ids[message_id] = queue_offset

    def let_go(self, now_ms: int) -> None:
        """Forgets what is older than the window."""
        while self._slices:
            begin = next(iter(self._slices))
            if begin + self._slice_ms + self.window_ms > now_ms:
                return
            self.forget_oldest()

    def forget_oldest(self) -> None:
        begin = next(iter(self._slices))
        self.count -= len(self._slices.pop(begin))


def _kept(message_id: str) -> str:
    """Ids are a sender's own, of up to 32 KiB: a million of them would be as many gigabytes."""
    if len(message_id) <= _ID_CHARACTERS_MAX:
        return message_id
    return sha256(message_id.encode("utf-8", "surrogatepass")).hexdigest()


class Deduplication:
    """The windows of all topics that have one; see the module's docstring."""

    def __init__(self, topics: TopicTable) -> None:
        self._topics = topics
        # By topic, and by the system topic that holds the messages first; that is empty where none does.
        self._windows: dict[tuple[str, str], Window] = {}
        self.duplicate_count = 0
        """Messages that were not stored again."""
        self.cut_short_count = 0
        """Slices that went before their time."""

    @property
    def count(self) -> int:
        return sum(window.count for window in self._windows.values())

    def window(self, config: TopicConfig, held_in: str = "") -> Window | None:
        """Of a topic; None: it has none. A topic that gets another length begins anew. `held_in`: of its messages that
        are held there first."""
        window_ms = deduplication_window_ms(config)
        key = (config.topic_name, held_in)
        known = self._windows.get(key)
        if window_ms <= 0:
            if known is not None:
                del self._windows[key]
            return None
        if known is None or known.window_ms != window_ms:
            known = self._windows[key] = Window(window_ms)
        return known

    def keep_within(self, ids_max: int) -> None:
        """Forgets the oldest of those with the most ids until there are no more than that."""
        while self.count > ids_max:
            fullest = max(self._windows.values(), key=lambda window: window.count)
            fullest.forget_oldest()
            self.cut_short_count += 1

    def forget(self, topic: str) -> None:
        for held_in in ("", *_HOLDING_TOPICS):
            self._windows.pop((topic, held_in), None)

    def restore(self, queues: QueueReader, *, now_ms: int, ids_max: int) -> Iterator[None]:
        """Reads the ends of all queues of topics with a window, as a master that begins; some records for each step."""
        self._windows = {}
        configs = {config.topic_name: config for config in self._topics if self.window(config) is not None}
        for config in configs.values():
            from_ms = now_ms - deduplication_window_ms(config)
            for queue_id in queues.queue_ids(config.topic_name):
                for message in self._end_of(queues, config.topic_name, queue_id, from_ms):
                    if message is None:
                        yield
                    elif (held_in := _sent_as(message)) is not None:
                        self._remember(message, config, held_in)
                self.keep_within(ids_max)
        if not configs:
            return
        longest_ms = max(map(deduplication_window_ms, configs.values()))
        for held_in in _HOLDING_TOPICS:
            for message in self._end_of(queues, held_in, 0, now_ms - longest_ms):
                if message is None:
                    yield
                elif not raw_property(message.properties, _TIMER_ROLLED):
                    topic = raw_property(message.properties, _REAL_TOPIC).decode(errors="replace")
                    if topic in configs:
                        self._remember(message, configs[topic], held_in)
            self.keep_within(ids_max)

    def _remember(self, message: StoredMessage, config: TopicConfig, held_in: str) -> None:
        window = self.window(config, held_in)
        message_id = raw_property(message.properties, _UNIQUE_KEY)
        if window is not None and message_id:
            offset = message.queue_offset
            window.remember(message_id.decode(errors="replace"), -1 - offset, message.store_timestamp_ms)

    @staticmethod
    def _end_of(queues: QueueReader, topic: str, queue_id: int, from_ms: int) -> Iterator[StoredMessage | None]:
        """The messages of a queue that were stored since then; None: time for others."""
        begin, end = queues.min_offset(topic, queue_id), queues.max_offset(topic, queue_id)

        def is_before(offset: int) -> bool:
            """What cannot be read is as old as what lies before it."""
            entries = queues.entries(topic, queue_id, offset, 1)
            found = queues.messages(topic, queue_id, (offset,), entries) if entries else []
            return not found or found[0] is None or found[0].store_timestamp_ms < from_ms

        offset = first_false(begin, end, is_before)
        while offset < end:
            entries = queues.entries(topic, queue_id, offset, min(_READ_AT_ONCE, end - offset))
            found = queues.messages(topic, queue_id, range(offset, offset + len(entries)), entries)
            for message in found:
                if message is not None:
                    yield message
            # Behind an entry that is damaged, and is being mended.
            offset += len(found) or 1
            yield None


def _sent_as(message: StoredMessage) -> str | None:
    """Where a message of a topic would have been held, empty for none; None: it was, and this is what came of it."""
    properties = message.properties
    if raw_property(properties, _TIMER_OUT) or raw_property(properties, _HALF):
        return None
    # It was due when it came.
    return TIMER_TOPIC if raw_property(properties, _TIMER_DELIVER) else ""
