"""Finds a message in this replica by its id, and says how safe it is: what is known without any trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.queries.message_queries import MessageQueries
from broker.queries.values import QueriedMessage
from mqcore.message.record_decoder import RecordOutline
from mqcore.metadata.topic_table import TopicConfig
from mqcore.replication.master_replica import SlaveView

__all__ = ["FoundMessage", "Holding", "MessageLookup"]

_RECORDS_MAX: Final = 16


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

    record: RecordOutline
    properties: Mapping[str, str]
    flushed: bool
    slaves: tuple[Holding, ...]


class MessageLookup:
    """Looks through the key index. On the event loop, in small pieces."""

    def __init__(
        self,
        *,
        queries: MessageQueries,
        flushed_offset: Callable[[], int],
        topics: Iterable[TopicConfig],
        slaves: Callable[[], Sequence[SlaveView]],
    ) -> None:
        self._queries = queries
        self._flushed_offset = flushed_offset
        self._topics = topics
        self._slaves = slaves

    async def find(self, message_id: str, topic: str = "") -> list[FoundMessage]:
        """Records with that id, newest first; of one topic, or of all, which takes the longer the more there are.

        Raises QueriesBusy.
        """
        names = [topic] if topic else [config.topic_name for config in self._topics]
        found = await self._queries.with_key(message_id, names, limit=_RECORDS_MAX)
        return [self._found(message) for message in found]

    def _found(self, message: QueriedMessage) -> FoundMessage:
        record = message.outline
        end_offset = record.physical_offset + record.total_size
        return FoundMessage(
            record=record,
            properties=message.properties,
            flushed=end_offset <= self._flushed_offset(),
            slaves=tuple(
                Holding(
                    broker_id=-1 if slave.broker_id is None else slave.broker_id,
                    missing_bytes=max(0, end_offset - slave.acked_offset),
                )
                for slave in self._slaves()
            ),
        )
