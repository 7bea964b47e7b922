"""Lite topics: many small queues inside one topic of the type LITE, as RocketMQ 5.5 has them (RIP-83).

A message of lite topic L lies in an ordinary queue of its parent P, with three properties more: `__LITE_TOPIC` = L,
`INNER_MULTI_DISPATCH` = `%LMQ%$P$L`, the name of the logical queue, and `INNER_MULTI_QUEUE_OFFSET`, its place there.
RocketMQ makes a file or a RocksDB range of each logical queue. Here `LiteTopics` keeps in memory where the messages of
each lie in the parent's queues, and nothing else is stored: it follows from the parent's ConsumeQueues and the log, on
a master and on a slave alike, so it survives what they survive.

To delivery each is a queue 0 of a topic named by its logical queue: `LiteTopics` is a `QueueReader` of these.

Costs: about 300 bytes for a lite topic, and 8 for each message that is kept. One thread only.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from tandemmq.core.message.properties import (
    PROPERTY_LITE_TOPIC,
    PROPERTY_MULTI_DISPATCH,
    PROPERTY_MULTI_QUEUE_OFFSET,
    decode_properties,
    encode_properties,
    java_map_order,
    raw_property,
)
from tandemmq.core.message.record import MessageRecord, OutgoingMessage
from tandemmq.core.message.stored_message import StoredMessage
from tandemmq.core.metadata.topic_table import ATTRIBUTE_LITE_EXPIRATION, TopicConfig, TopicTable
from tandemmq.core.storage.consume_queue import FILLER_SIZE, QueueEntry, first_false

if TYPE_CHECKING:
    from tandemmq.core.delivery.queue_reader import QueueReader

LMQ_PREFIX: Final = "%LMQ%$"
_SEPARATOR: Final = "$"
_MULTI_DISPATCH: Final = PROPERTY_MULTI_DISPATCH.encode()
_MULTI_QUEUE_OFFSET: Final = PROPERTY_MULTI_QUEUE_OFFSET.encode()
_OFFSET_DIGITS_MAX: Final = 18
_JAVA_MAP_CAPACITY: Final = 128
"""Of the broker's own HashMap, from which 5.5 writes the property string."""
_CHUNK: Final = 256
"""Entries read at once."""
_OFFSET_BITS: Final = 44
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1
"""A place in a parent: its queue's number above so many bits of the offset there."""
_NO_PLACE: Final = -1
"""Of a message that is lost."""
_GAP_MAX: Final = 1 << 16
_FILLER: Final = QueueEntry(0, FILLER_SIZE, 0)
_MINUTE_MS: Final = 60_000
_EXPIRED_AT_ONCE: Final = 4_096
TTL_MINUTES_MIN: Final = 15
"""RocketMQ's minLiteTTl: a shorter one counts as this."""


def lmq_name(parent: str, lite_topic: str) -> str:
    """The logical queue of a lite topic."""
    return f"{LMQ_PREFIX}{parent}{_SEPARATOR}{lite_topic}"


def split_lmq_name(name: str) -> tuple[str, str]:
    """Parent and lite topic of a logical queue's name. No parent's name has the separator."""
    parent, _, lite_topic = name[len(LMQ_PREFIX) :].partition(_SEPARATOR)
    return parent, lite_topic


def waits_on(client_id: str, parent: str) -> str:
    """Where the receives of one client wait; no topic has such a name."""
    return f"{LMQ_PREFIX}{parent} {client_id}"


def parent_of_lmq(name: str) -> str | None:
    """The parent of a logical queue; None for any other topic."""
    return split_lmq_name(name)[0] if name.startswith(LMQ_PREFIX) else None


def lite_message(message: OutgoingMessage, lite_topic: str, offset: int) -> OutgoingMessage:
    """The same message as one of a lite topic, at its `offset` there. Its properties stand in RocketMQ's order."""
    properties = decode_properties(message.properties)
    properties[PROPERTY_LITE_TOPIC] = lite_topic
    properties[PROPERTY_MULTI_DISPATCH] = lmq_name(message.topic, lite_topic)
    properties[PROPERTY_MULTI_QUEUE_OFFSET] = str(offset)
    names = java_map_order(properties, capacity=_JAVA_MAP_CAPACITY)
    message.properties = encode_properties([(name, properties[name]) for name in names])
    return message


def expiration_ms(config: TopicConfig) -> int | None:
    """How long a lite topic of the parent lives without a new message; None: for ever."""
    text = config.attributes.get(ATTRIBUTE_LITE_EXPIRATION, "-1")
    minutes = int(text) if text.isascii() and text.isdigit() else -1
    return max(minutes, TTL_MINUTES_MIN) * _MINUTE_MS if minutes > 0 else None


class LiteView(NamedTuple):
    lite_topic: str
    min_offset: int
    max_offset: int
    last_stored_ms: int
    """Wall clock of its newest message."""


class _Lite:
    """One logical queue: the messages [first, first + len(places))."""

    __slots__ = ("first", "last_ms", "places")

    def __init__(self, first: int) -> None:
        self.first = first
        self.last_ms = 0
        self.places: array[int] = array("q")


class _Parent:
    __slots__ = ("followed", "lites")

    def __init__(self) -> None:
        self.lites: dict[str, _Lite] = {}
        self.followed: dict[int, int] = {}
        """Up to where each queue of the parent is known."""


class LiteTopics:
    """The lite topics of one broker, and their `QueueReader`; see the module's docstring."""

    def __init__(self, queues: QueueReader, topics: TopicTable, *, log_cuts: Callable[[], int]) -> None:
        """`queues` reads the parents' queues. `log_cuts` counts truncations of the log: after one all is read anew."""
        self._queues = queues
        self._topics = topics
        self._log_cuts = log_cuts
        self._cuts = log_cuts()
        self._parents: dict[str, _Parent] = {}
        self.count = 0
        """Lite topics of all parents."""
        self.followed_count = 0
        """Messages that were looked at."""
        self.arrived: Callable[[str, str], object] = lambda _parent, _lite_topic: None
        """Told of each message that was found, by parent and lite topic."""
        self.reached: Callable[[str], int] = lambda _name: 0
        """How far any group has come in a logical queue of which no message is left: that one goes on there. Numbers
        that were given before would be passed over by whoever knows a group to be further."""

    # Following the parents' queues

    def parents(self) -> list[str]:
        """Topics of the type LITE. What was known of others is forgotten."""
        found = [config.topic_name for config in self._topics if config.message_type == "LITE"]
        for gone in [parent for parent in self._parents if parent not in found]:
            self.forget_parent(gone)
        return found

    def follow(self, parent: str, limit: int = 1 << 62) -> bool:
        """Learns of up to about `limit` messages that came into a parent's queues; True: it knows all of them.

        Messages are taken in the order of the log: where a parent's number of queues changed, a lite topic lies in two.
        False without more to read: an entry is damaged, and is being mended.
        """
        if self._cuts != (cuts := self._log_cuts()):
            self.clear()
            self._cuts = cuts
        known = self._parents.get(parent)
        if known is None:
            known = self._parents[parent] = _Parent()
        behind = self._behind(parent, known)
        while behind and limit > 0:
            taken = self._take(parent, self._parents[parent], behind, min(limit, _CHUNK))
            if not taken:
                return False
            limit -= taken
            self.followed_count += taken
            behind = self._behind(parent, self._parents[parent])
        return not behind

    def _behind(self, parent: str, known: _Parent) -> list[int]:
        """Queues of the parent with messages that are not known, of all that it ever had."""
        queues, followed = self._queues, known.followed
        behind = []
        for queue_id in queues.queue_ids(parent):
            end = queues.max_offset(parent, queue_id)
            at = followed.get(queue_id, 0)
            if at > end:
                # Another topic of the name.
                self.forget_parent(parent)
                known = self._parents[parent] = _Parent()
                return self._behind(parent, known)
            if at < end:
                at = followed[queue_id] = max(at, queues.min_offset(parent, queue_id))
                if at < end:
                    behind.append(queue_id)
        return behind

    def _take(self, parent: str, known: _Parent, behind: list[int], limit: int) -> int:
        """Learns of the next messages in the log's order; how many it went over. 0: an entry is damaged."""
        chunks = [self._chunk(parent, queue_id, known.followed[queue_id]) for queue_id in behind]
        # What lies behind the first chunk that ends may belong before what other queues have.
        whole = min((chunk[-1][0] for chunk in chunks if len(chunk) == _CHUNK), default=None)
        taken = 0
        for physical_offset, queue_id, offset, entry in islice(merge(*chunks), limit):
            if whole is not None and physical_offset > whole:
                break
            found = self._queues.messages(parent, queue_id, (offset,), (entry,))
            if not found:
                return taken
            known.followed[queue_id] = offset + 1
            taken += 1
            if found[0] is not None:
                self._learn(parent, known, queue_id, offset, found[0])
        return taken

    def _chunk(self, parent: str, queue_id: int, offset: int) -> list[tuple[int, int, int, QueueEntry]]:
        entries = self._queues.entries(parent, queue_id, offset, _CHUNK)
        return [(entry.physical_offset, queue_id, offset + index, entry) for index, entry in enumerate(entries)]

    def _learn(self, parent: str, known: _Parent, queue_id: int, offset: int, message: StoredMessage) -> None:
        name = raw_property(message.properties, _MULTI_DISPATCH).decode(errors="replace")
        text = raw_property(message.properties, _MULTI_QUEUE_OFFSET)
        if not name.startswith(LMQ_PREFIX) or not text.isdigit() or len(text) > _OFFSET_DIGITS_MAX:
            return  # Sent by a broker that has no lite topics, or while the parent was of another type.
        lmq_parent, lite_topic = split_lmq_name(name)
        if lmq_parent != parent:
            return
        lmq_offset = int(text)
        lite = known.lites.get(lite_topic)
        if lite is None:
            lite = known.lites[lite_topic] = _Lite(lmq_offset)
            self.count += 1
        elif lmq_offset < lite.first + len(lite.places):
            # It expired, and began anew.
            lite.first, lite.places = lmq_offset, array("q")
        elif 0 < (gap := lmq_offset - lite.first - len(lite.places)) <= _GAP_MAX:
            # What lay between cannot be read any more.
            lite.places.extend([_NO_PLACE] * gap)
        lite.places.append(queue_id << _OFFSET_BITS | offset)
        lite.last_ms = message.store_timestamp_ms
        self.arrived(parent, lite_topic)

    def clear(self) -> None:
        """Forgets all; `follow` reads it anew."""
        self._parents = {}
        self.count = 0

    # What is there

    def has(self, parent: str, lite_topic: str) -> bool:
        known = self._parents.get(parent)
        return known is not None and lite_topic in known.lites

    def next_offset(self, parent: str, lite_topic: str) -> int:
        """Of the next message of a lite topic. Only right when `follow` knows all."""
        lite = self._lite(parent, lite_topic)
        return self.reached(lmq_name(parent, lite_topic)) if lite is None else lite.first + len(lite.places)

    def followed_offset(self, parent: str, queue_id: int) -> int:
        """The first message of a parent's queue that is not known."""
        known = self._parents.get(parent)
        return 0 if known is None else known.followed.get(queue_id, 0)

    def addressed(self, message: OutgoingMessage) -> OutgoingMessage:
        """A message that was in a LITE topic before and is put there again, at its lite topic's end. It must be in the
        log before the next one is asked for."""
        config = self._topics.get(message.topic)
        lite_topic = raw_property(message.properties, PROPERTY_LITE_TOPIC.encode()).decode(errors="replace")
        if config is None or config.message_type != "LITE" or not lite_topic:
            return message
        self.follow(message.topic)
        return lite_message(message, lite_topic, self.next_offset(message.topic, lite_topic))

    def names(self, parent: str) -> list[str]:
        known = self._parents.get(parent)
        return [] if known is None else list(known.lites)

    def view(self, parent: str, lite_topic: str) -> LiteView | None:
        """One of them; None: there is none of the name."""
        lite = self._lite(parent, lite_topic)
        if lite is None:
            return None
        self._trim(parent, lite)
        return LiteView(lite_topic, lite.first, lite.first + len(lite.places), lite.last_ms)

    def place(self, name: str, offset: int) -> tuple[int, int] | None:
        """Queue of the parent and offset there of a logical queue's message, or of the first one that is kept; None
        behind its end."""
        lite = self._lite(*split_lmq_name(name))
        if lite is None:
            return None
        for index in range(max(0, offset - lite.first), len(lite.places)):
            place = lite.places[index]
            if place != _NO_PLACE:
                return place >> _OFFSET_BITS, place & _OFFSET_MASK
        return None

    def expired(self, now_wall_ms: int) -> Iterator[list[str]]:
        """Logical queues whose last message is older than their parent lets them live, some for every few thousand that
        were looked at: others may have their turn between two lists."""
        for parent in self.parents():
            config = self._topics.get(parent)
            ttl_ms = None if config is None else expiration_ms(config)
            if ttl_ms is None:
                continue
            names = self.names(parent)
            for start in range(0, len(names), _EXPIRED_AT_ONCE):
                found = []
                for lite_topic in names[start : start + _EXPIRED_AT_ONCE]:
                    lite = self._lite(parent, lite_topic)
                    if lite is not None and lite.last_ms + ttl_ms <= now_wall_ms:
                        found.append(lmq_name(parent, lite_topic))
                yield found

    def remove(self, name: str) -> None:
        """Forgets a logical queue. Groups have to forget it first: a later one of its name begins at 0."""
        parent, lite_topic = split_lmq_name(name)
        known = self._parents.get(parent)
        if known is not None and known.lites.pop(lite_topic, None) is not None:
            self.count -= 1

    def forget_parent(self, parent: str) -> None:
        known = self._parents.pop(parent, None)
        if known is not None:
            self.count -= len(known.lites)

    def _lite(self, parent: str, lite_topic: str) -> _Lite | None:
        known = self._parents.get(parent)
        return None if known is None else known.lites.get(lite_topic)

    def _trim(self, parent: str, lite: _Lite) -> None:
        """Lets go of what the parent's queues do not hold any more."""
        queues, places = self._queues, lite.places
        gone = 0
        for place in places:
            if place != _NO_PLACE and place & _OFFSET_MASK >= queues.min_offset(parent, place >> _OFFSET_BITS):
                break
            gone += 1
        if gone:
            del places[:gone]
            lite.first += gone

    # A QueueReader of logical queues; `topic` is their name, and `queue_id` 0

    def queue_ids(self, topic: str) -> Sequence[int]:
        return (0,)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First message still held."""
        parent, lite_topic = split_lmq_name(topic)
        lite = self._lite(parent, lite_topic)
        if lite is None:
            return self.reached(topic)
        self._trim(parent, lite)
        return lite.first

    def max_offset(self, topic: str, queue_id: int) -> int:
        """One past the last message."""
        return self.next_offset(*split_lmq_name(topic))

    def knows_end(self, topic: str) -> bool:
        """Not while messages of its parent lie behind a damaged entry, which is being mended."""
        parent, _ = split_lmq_name(topic)
        return self._cuts == self._log_cuts() and not self._behind(parent, self._parents.get(parent) or _Parent())

    def confirmed_end(self, topic: str, queue_id: int, start: int, end: int) -> int:
        parent, lite_topic = split_lmq_name(topic)
        lite = self._lite(parent, lite_topic)
        if lite is None:
            return end
        places, first = lite.places, lite.first

        def is_confirmed(offset: int) -> bool:
            place = places[offset - first]
            lies_at = place & _OFFSET_MASK
            if place == _NO_PLACE:
                return True
            return self._queues.confirmed_end(parent, place >> _OFFSET_BITS, lies_at, lies_at + 1) > lies_at

        return end if end <= start or is_confirmed(end - 1) else first_false(start, end, is_confirmed)

    def entries(self, topic: str, queue_id: int, start: int, count: int) -> Sequence[QueueEntry]:
        parent, lite_topic = split_lmq_name(topic)
        lite = self._lite(parent, lite_topic)
        if lite is None or start < lite.first:
            return ()
        found: list[QueueEntry] = []
        for place in lite.places[start - lite.first : start - lite.first + count]:
            if place == _NO_PLACE:
                found.append(_FILLER)
                continue
            entries = self._queues.entries(parent, place >> _OFFSET_BITS, place & _OFFSET_MASK, 1)
            if not entries:
                break
            found.append(entries[0])
        return found

    def has_proven_tags(self, topic: str, queue_id: int, start: int) -> bool:
        """Nobody filters lite topics by tags."""
        return False

    def messages(
        self, topic: str, queue_id: int, places: Sequence[int], entries: Sequence[QueueEntry]
    ) -> list[StoredMessage | None]:
        parent, _ = split_lmq_name(topic)
        found: list[StoredMessage | None] = []
        for offset, entry in zip(places, entries):
            if entry.size == FILLER_SIZE and entry.physical_offset == 0:
                found.append(None)
                continue
            place = self.place(topic, offset)
            if place is None:
                break
            message = self._queues.messages(parent, place[0], (place[1],), (entry,))
            if not message:
                break
            found += message
        return found

    def wrong_tag(self, topic: str, queue_id: int, place: int) -> None:
        """Nobody filters lite topics by tags."""

    def record(self, topic: str, queue_id: int, place: int, entry: QueueEntry) -> MessageRecord | None:
        parent, _ = split_lmq_name(topic)
        lies_at = self.place(topic, place)
        return None if lies_at is None else self._queues.record(parent, lies_at[0], lies_at[1], entry)
