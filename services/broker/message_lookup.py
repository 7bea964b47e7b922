"""Finds a message in this replica by its id, and says how safe it is: what is known without any trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from mqcore.clock import Clock
from mqcore.message import MessageRecord, decode_properties
from mqcore.metadata import TopicConfig
from mqcore.replication import SlaveView

__all__ = ["FoundMessage", "Holding", "MessageLookup", "SearchableStore", "earliest_store_ms"]

_RECORDS_MAX: Final = 16
_TOPICS_PER_TURN: Final = 8
"""Topics looked into before the event loop gets a turn: each costs 10 us per index file, or a read of a cold page."""

# Message ids of version 1: 34 hexadecimal digits, see MessageIdCodec; seconds since 2021 at digit 18.
_ID_DIGITS: Final = 34
_ID_VERSION: Final = "01"
_ID_SECONDS: Final = slice(18, 26)
_ID_EPOCH_S: Final = 1_609_459_200
_CLOCK_SLACK_MS: Final = 3_600_000
"""A client's clock may be wrong by that much before its message is looked for in vain."""


class SearchableStore(Protocol):
    """The part of the store that is looked into."""

    @property
    def flushed_offset(self) -> int:
        """One past the last byte on disk."""

    def messages_by_key(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, max_count: int = 64
    ) -> list[MessageRecord]:
        """Messages of a topic with a key, newest first."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Whether a slave holds a record."""

    # -1: it has not proven what it holds.
    broker_id: int
    # Bytes it has yet to acknowledge until it does.
    missing_bytes: int


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A record, and where it is safe."""

    record: MessageRecord
    properties: Mapping[str, str]
    flushed: bool
    slaves: tuple[Holding, ...]


class MessageLookup:
    """Looks through the key index. On the event loop, in small pieces."""

    def __init__(
        self,
        *,
        store: SearchableStore,
        topics: Iterable[TopicConfig],
        slaves: Callable[[], Sequence[SlaveView]],
        clock: Clock,
    ) -> None:
        self._store = store
        self._topics = topics
        self._slaves = slaves
        self._clock = clock

    async def find(self, message_id: str, topic: str = "") -> list[FoundMessage]:
        """Records with that id, newest first; of one topic, or of all, which takes the longer the more there are."""
        names = [topic] if topic else [config.topic_name for config in self._topics]
        begin_ms = earliest_store_ms(message_id)
        end_ms = self._clock.wall_ms() + _CLOCK_SLACK_MS
        records: list[MessageRecord] = []
        for number, name in enumerate(names, 1):
            records += self._store.messages_by_key(
                name, message_id, begin_ms=begin_ms, end_ms=end_ms, max_count=_RECORDS_MAX
            )
            if number % _TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        records.sort(key=lambda record: record.physical_offset, reverse=True)
        return [self._found(record) for record in records[:_RECORDS_MAX]]

    def _found(self, record: MessageRecord) -> FoundMessage:
        end_offset = record.physical_offset + record.total_size
        return FoundMessage(
            record=record,
            properties=decode_properties(record.properties),
            flushed=end_offset <= self._store.flushed_offset,
            slaves=tuple(
                Holding(
                    broker_id=-1 if slave.broker_id is None else slave.broker_id,
                    missing_bytes=max(0, end_offset - slave.acked_offset),
                )
                for slave in self._slaves()
            ),
        )


def earliest_store_ms(message_id: str) -> int:
    """Before that, by the id itself, the message was not stored: index files from before need no look."""
    if len(message_id) != _ID_DIGITS or not message_id.startswith(_ID_VERSION):
        return 0
    try:
        seconds = int(message_id[_ID_SECONDS], 16)
    except ValueError:
        return 0
    return max(0, (_ID_EPOCH_S + seconds) * 1_000 - _CLOCK_SLACK_MS)
