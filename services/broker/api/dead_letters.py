"""Moves messages to their group's dead letter queue: written there first, finished here afterwards."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

from broker.api.services import BrokerServices
from broker.api.status_codes import OK, PUT_OUTCOMES, Outcome
from broker.delivery_meter import DeliveryMeter
from mqcore.message.properties import decode_properties, encode_properties, index_terms
from mqcore.message.property_names import (
    PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID,
    PROPERTY_DEAD_LETTER_ORIGIN_TOPIC,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQUE_KEY,
)
from mqcore.message.record import MessageRecord, OutgoingMessage, offset_message_id, tags_code
from mqcore.message.record_layout import COMPRESSED, COMPRESSION_TYPE_MASK, MULTI_TAGS
from mqcore.storage.put_result import AppendResult

__all__ = ["DeadLetterQueues", "dead_letter_topic"]

_PREFIX: Final = "%DLQ%"
_QUEUE_COUNT: Final = 1
# Clients repeat a forward until it succeeds; a repetition comes within seconds. Bounds the memory of past ones.
_REMEMBERED: Final = 4_096
# How to read the body. The flags of hosts are the encoder's, those of transactions were the original's.
_KEPT_FLAGS: Final = COMPRESSED | COMPRESSION_TYPE_MASK | MULTI_TAGS

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
    properties = decode_properties(record.properties)
    message_id = properties.get(PROPERTY_UNIQUE_KEY) or offset_message_id(record.store_host, record.physical_offset)
    properties.setdefault(PROPERTY_RETRY_TOPIC, record.topic)
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message_id)
    properties[PROPERTY_DEAD_LETTER_ORIGIN_TOPIC] = record.topic
    properties[PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID] = message_id
    tag, index_keys = index_terms(properties)
    return OutgoingMessage(
        topic=topic,
        queue_id=0,
        body=record.body,
        properties=encode_properties(properties.items()),
        tags_code=tags_code(tag),
        index_keys=index_keys,
        tag=tag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
        flag=record.flag,
        sys_flag=record.sys_flag & _KEPT_FLAGS,
        reconsume_times=attempts,
    )
