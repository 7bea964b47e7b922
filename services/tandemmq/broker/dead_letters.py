"""Moves messages to their group's dead letter queue: written there first, finished here afterwards."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from tandemmq.broker.client_api.validation import OK, PUT_OUTCOMES, Outcome
from tandemmq.broker.put import DeliveryMeter
from tandemmq.broker.queries.values import QueryError
from tandemmq.core.message.properties import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_CRC32,
    PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID,
    PROPERTY_DEAD_LETTER_ORIGIN_TOPIC,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_PRIORITY,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_DEQUEUE_MS,
    PROPERTY_TIMER_ENQUEUE_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
    decode_properties,
    encode_properties,
)
from tandemmq.core.message.record import MessageRecord, OutgoingMessage, copy_of_record, message_id_of
from tandemmq.core.metadata.topic_table import MESSAGE_TYPES
from tandemmq.core.routing.queue_choice import QueueRotation, queue_of_message_group, queue_of_priority
from tandemmq.core.storage.put_result import AppendResult
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb

if TYPE_CHECKING:
    from tandemmq.broker.client_api.services import BrokerServices
    from tandemmq.broker.queries.message_queries import MessageQueries

_PREFIX: Final = "%DLQ%"
_QUEUE_COUNT: Final = 1
# Clients repeat a forward until it succeeds; a repetition comes within seconds. Bounds the memory of past ones.
_REMEMBERED: Final = 4_096
_DISPENSABLE: Final = (
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID,
    PROPERTY_DEAD_LETTER_ORIGIN_TOPIC,
    PROPERTY_RETRY_TOPIC,
)
"""What a letter says of its origin, the first to be left out where the message's own properties leave no room. The id
is among those anyway. A letter that could never be written would come up for ever."""

Done = Callable[[Outcome], None]


def dead_letter_topic(group: str) -> str:
    """Where the group's undeliverable messages are kept."""
    return _PREFIX + group


class DeadLetterQueues:
    """Writes dead letters. Event loop only.

    A message moved by one call is not written again by another: while the first write is under way the second waits
    for it, and afterwards it is told that all is done. After a restart of the broker that memory is gone, and a
    repeated forward may store a second copy.
    """

    def __init__(self, services: BrokerServices, meter: DeliveryMeter) -> None:
        self._services = services
        self._meter = meter
        self._under_way: dict[tuple[str, str, int, int], list[Done]] = {}
        self._moved: OrderedDict[tuple[str, str, int, int], None] = OrderedDict()
        self._void: set[tuple[str, str, int, int]] = set()
        """Under way, and not to be remembered."""

    def was_moved(self, group: str, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether the message has been written already."""
        return (group, topic, queue_id, queue_offset) in self._moved

    def forget(self, group: str, topic: str) -> None:
        """An operator lets the group consume the topic anew: what it fails at then is a dead letter of its own.

        An empty group is all groups, an empty topic all topics. A dead letter topic that is deleted counts too: its
        letters are gone, and to take a message for one of them would lose it.
        """

        def is_meant(key: tuple[str, str, int, int]) -> bool:
            return group in ("", key[0]) and topic in ("", key[1], dead_letter_topic(key[0]))

        self._void |= set(filter(is_meant, self._under_way))
        for key in list(filter(is_meant, self._moved)):
            del self._moved[key]

    def move(self, record: MessageRecord, *, group: str, attempts: int, done: Done) -> None:
        """Writes `record`, delivered `attempts` times, and calls `done`: with OK when the original may be finished."""
        key = (group, record.topic, record.queue_id, record.queue_offset)
        if key in self._moved:
            done(OK)
            return
        if key in self._under_way:
            self._under_way[key].append(done)
            return
        self._under_way[key] = [done]
        topic = dead_letter_topic(group)
        letter = _dead_letter(record, topic=topic, attempts=attempts)
        if self._services.topics.get(topic) is None:
            self._services.create_topic(topic, queue_count=_QUEUE_COUNT, done=partial(self._put, letter, key))
        else:
            self._put(letter, key)

    def _put(self, letter: OutgoingMessage, key: tuple[str, str, int, int]) -> None:
        self._services.put([letter], partial(self._written, key))

    def _written(self, key: tuple[str, str, int, int], results: list[AppendResult]) -> None:
        outcome = PUT_OUTCOMES[results[0].status]
        if outcome is OK:
            if key not in self._void:
                self._moved[key] = None
            group, topic, _, _ = key
            self._meter.of(topic, group).dead_letters += 1
            if len(self._moved) > _REMEMBERED:
                self._moved.popitem(last=False)
        self._void.discard(key)
        for done in self._under_way.pop(key):
            done(outcome)


def _dead_letter(record: MessageRecord, *, topic: str, attempts: int) -> OutgoingMessage:
    """The message as it was, under its group's topic, with where it came from (RocketMQ's sendMessageBack)."""
    own = decode_properties(record.properties)
    properties = dict(own)
    message_id = message_id_of(record, own)
    properties.setdefault(PROPERTY_RETRY_TOPIC, record.topic)
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message_id)
    properties[PROPERTY_DEAD_LETTER_ORIGIN_TOPIC] = record.topic
    properties[PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID] = message_id
    encoded = encode_properties(properties.items())
    for name in _DISPENSABLE:
        if len(encoded) <= MAX_PROPERTIES_BYTES:
            break
        if name in own:
            properties[name] = own[name]
        else:
            del properties[name]
        encoded = encode_properties(properties.items())
    return copy_of_record(record, topic, 0, properties, encoded=encoded, reconsume_times=attempts)


# Puts dead letters back into the topics they came from. The edge: protobuf stops here.
#
# A letter becomes a new message with the body, the tag, the keys and the properties it had, its message id too:
# whoever looks for that id finds the first message, the dead letter and the new one, and a consumer that knows what it
# has done by ids does it once, however often the letter is sent. All groups of the topic get it, as they got the first
# one.

log = structlog.get_logger(__name__)

_QUEUE_ID: Final = 0
"""Dead letter topics have one queue."""
_LETTERS_AT_ONCE: Final = 8
"""Read and put before their outcomes are waited for: as many bodies are in memory."""
PUT_LIMIT_S: Final = 8.0
"""For all; callers wait for 10."""
_INTERNAL_TOPICS: Final = ("%RETRY%", "%DLQ%")

_LEFT_BEHIND: Final = frozenset(
    {
        PROPERTY_RETRY_TOPIC,
        PROPERTY_DEAD_LETTER_ORIGIN_TOPIC,
        PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID,
        PROPERTY_RECONSUME_TIME,
        PROPERTY_MAX_RECONSUME_TIMES,
        PROPERTY_WAIT,
        PROPERTY_DELAY_LEVEL,
        PROPERTY_REAL_TOPIC,
        PROPERTY_REAL_QUEUE_ID,
        PROPERTY_TIMER_DELAY_S,
        PROPERTY_TIMER_DELAY_MS,
        PROPERTY_TIMER_DELIVER_MS,
        PROPERTY_TIMER_OUT_MS,
        PROPERTY_TIMER_ENQUEUE_MS,
        PROPERTY_TIMER_DEQUEUE_MS,
        PROPERTY_TIMER_ROLL_TIMES,
        PROPERTY_TRANSACTION_PREPARED,
        PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
        PROPERTY_TRANSACTION_CHECK_TIMES,
        PROPERTY_CRC32,
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
    }
)
"""Properties that tell how the first message was to be delivered, and was."""


class DeadLetterResend:
    """Event loop only. The caller has made sure that this broker is a master that takes messages."""

    def __init__(self, services: BrokerServices, queries: MessageQueries) -> None:
        self._services = services
        self._queries = queries
        self._rotation = QueueRotation()

    async def resend(self, group: str, queue_offsets: Sequence[int], dry_run: bool) -> list[pb.ResentDeadLetter]:
        """What came of each letter, in their order. `dry_run`: nothing is put; `problem` says what would prevent it."""
        letters: list[pb.ResentDeadLetter] = []
        seen: set[int] = set()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + PUT_LIMIT_S
        for start in range(0, len(queue_offsets), _LETTERS_AT_ONCE):
            puts: list[tuple[pb.ResentDeadLetter, asyncio.Future[AppendResult]]] = []
            for queue_offset in queue_offsets[start : start + _LETTERS_AT_ONCE]:
                letter = pb.ResentDeadLetter(queue_offset=queue_offset, new_queue_offset=-1)
                letters.append(letter)
                if queue_offset in seen:
                    letter.problem = "it is named twice"
                    continue
                seen.add(queue_offset)
                message = await self._message(group, letter)
                if message is None or dry_run:
                    continue
                if loop.time() >= deadline_s:
                    # The caller is gone, and would send again what was stored behind its back.
                    letter.problem = "not sent: those before it took all the time there was"
                else:
                    letter.queue_id = message.queue_id
                    puts.append((letter, put_again(self._services, message)))
            await wait_for_puts(puts, deadline_s)
        if not dry_run:
            failed = sum(letter.new_queue_offset < 0 for letter in letters)
            log.info("dead_letters_resent", by="operator", group=group, sent=len(letters) - failed, failed=failed)
        return letters

    async def _message(self, group: str, letter: pb.ResentDeadLetter) -> OutgoingMessage | None:
        """What is to be put; None, and the letter says why not."""
        try:
            record = await self._queries.record_in_queue(dead_letter_topic(group), _QUEUE_ID, letter.queue_offset)
        except QueryError as error:
            letter.problem = str(error)
            return None
        properties = decode_properties(record.properties)
        letter.message_id = message_id_of(record, properties)
        # Brokers of RocketMQ deliver again from a topic of the group's own, and then only this names the first one.
        letter.topic = properties.get(PROPERTY_RETRY_TOPIC) or properties.get(PROPERTY_DEAD_LETTER_ORIGIN_TOPIC, "")
        letter.problem = self._problem(letter.topic)
        return None if letter.problem else self._outgoing(record, properties, letter)

    def _problem(self, topic: str) -> str:
        """Why nothing can be sent there; empty: it can."""
        if not topic:
            return "it does not say which topic it came from"
        if topic.startswith(_INTERNAL_TOPICS):
            return f"it says it came from {topic}, which takes no new messages"
        return topic_problem(self._services, topic)

    def _outgoing(
        self, record: MessageRecord, properties: dict[str, str], letter: pb.ResentDeadLetter
    ) -> OutgoingMessage:
        kept = {name: value for name, value in properties.items() if name not in _LEFT_BEHIND}
        kept.setdefault(PROPERTY_UNIQUE_KEY, letter.message_id)
        origin_id = kept.get(PROPERTY_ORIGIN_MESSAGE_ID, letter.message_id)
        encoded = encode_properties((kept | {PROPERTY_ORIGIN_MESSAGE_ID: origin_id}).items())
        if len(encoded) > MAX_PROPERTIES_BYTES:
            encoded = encode_properties(kept.items())
        return copy_of_record(record, letter.topic, self._queue(letter.topic, kept), kept, encoded=encoded)

    def _queue(self, topic: str, properties: Mapping[str, str]) -> int:
        config = self._services.topics.get(topic)
        assert config is not None, f"{topic} was there a moment ago"
        message_group = properties.get(PROPERTY_SHARDING_KEY, "")
        priority = properties.get(PROPERTY_PRIORITY, "")
        if message_group:
            return queue_of_message_group(message_group, config.write_queue_count)
        if config.message_type == "PRIORITY" and priority.isascii() and priority.isdigit():
            return queue_of_priority(int(priority), config.write_queue_count)
        return self._rotation.next_queue(topic, config.write_queue_count)


class StoredAgain(Protocol):
    """What is told of a message that is stored again: a field of each name."""

    problem: str
    new_queue_offset: int


def topic_problem(services: BrokerServices, topic: str) -> str:
    """Why nothing can be stored in a topic; empty: it can."""
    config = services.topics.get(topic)
    if config is None:
        return f"topic {topic}, where it came from, does not exist on this broker: create it again first"
    if not config.writable or config.write_queue_count < 1:
        return f"topic {topic} has no writable queue on this broker"
    if config.message_type not in MESSAGE_TYPES:
        return f"topic {topic} takes {config.message_type} messages, which this version does not store"
    if config.message_type == "LITE" and not services.lite_topics.follow(topic):
        # Its number would be that of a message behind the entry.
        return f"a queue of topic {topic} has a damaged entry, which is being mended: try again"
    return ""


def put_again(services: BrokerServices, message: OutgoingMessage) -> asyncio.Future[AppendResult]:
    """Its final result. It lies in the log when this returns, unless it was refused."""
    settled: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    services.put([services.lite_topics.addressed(message)], partial(_settle, settled))
    return settled


def _settle(settled: asyncio.Future[AppendResult], results: list[AppendResult]) -> None:
    if not settled.done():
        settled.set_result(results[0])


async def wait_for_puts(puts: Sequence[tuple[StoredAgain, asyncio.Future[AppendResult]]], deadline_s: float) -> None:
    """Writes the outcomes into the letters."""
    for letter, settled in puts:
        try:
            async with asyncio.timeout_at(deadline_s):
                result = await settled
        except TimeoutError:
            letter.problem = "whether it was stored is not known in time: look for its message id in the topic"
            continue
        outcome = PUT_OUTCOMES[result.status]
        if outcome is not OK:
            letter.problem = outcome.text
        if result.status.stored:
            letter.new_queue_offset = result.queue_offset
