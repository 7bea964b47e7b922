"""Names and configurations of all topics of a cluster, read again only when they changed.

Ten thousand topics take brokers and us some hundred milliseconds to tell; a page that renews itself would ask all the
time. NameServers know the version of each broker's topic table and are asked that instead, which costs next to nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tandemmq.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.nameserver.v1 import name_server_service_pb2 as nameserver_pb

from admin.operations.members import Members, Readers
from admin.operations.questions import Questions, unseen_of, values_of
from admin.operations.route_operations import RouteOperations
from admin.operations.short_memory import ShortMemory
from admin.operations.topic_messages import broker_topic
from admin.operations.topic_names import category_of, system_names
from admin.operations.values import TopicSummary, Unseen
from mqcore.clock import Clock

__all__ = ["TopicTable", "TopicTables"]

_AGE_MS: Final = 2_000
_UNCHANGED_AGE_MS: Final = 60_000
"""Then it is read again in any case."""
_NAMES_PER_TURN: Final = 500
"""Handled before the event loop gets a turn: 2 ms."""

# By NameServer and broker, its incarnation and the version of its topic table.
_Versions: TypeAlias = frozenset[tuple[str, str, bytes]]


@dataclass(frozen=True, slots=True)
class TopicTable:
    """All topics, without anything that has to be looked up for each of them."""

    # Ordered; with the name in lower case and the category.
    names: Sequence[tuple[str, str, str]]
    # Broker group and its configuration.
    by_name: dict[str, list[tuple[str, admin_pb.TopicStatus]]]
    unseen: Sequence[Unseen]

    def summary(self, name: str, category: str) -> TopicSummary:
        """One line of the list, nothing counted."""
        return TopicSummary(name, category, tuple(broker_topic(*pair) for pair in self.by_name[name]))


@dataclass(frozen=True, slots=True)
class _Reading:
    table: TopicTable
    # Who was read from.
    keys: tuple[str, ...]
    versions: _Versions
    read_at_ms: int


class TopicTables:
    """The table as it was at most 2 s ago. Event loop only."""

    def __init__(self, members: Members, questions: Questions, routes: RouteOperations, *, clock: Clock) -> None:
        self._members = members
        self._questions = questions
        self._routes = routes
        self._clock = clock
        self._newest = ShortMemory(self._current, max_age_ms=_AGE_MS, clock=clock)
        self._reading: _Reading | None = None

    async def get(self) -> TopicTable:
        """All topics. UNAVAILABLE when no broker answers."""
        return await self._newest.get()

    def forget(self) -> None:
        """A topic was changed from here."""
        self._newest.forget()
        self._reading = None

    async def _current(self) -> TopicTable:
        readers = self._members.readers()
        keys = tuple(broker.key for broker in readers.brokers)
        versions = await self._versions(keys)
        reading = self._reading
        if reading is not None and self._still_holds(reading, keys, versions):
            return replace(reading.table, unseen=tuple(readers.unseen))
        self._reading = None
        now_ms = self._clock.monotonic_ms()
        table = await self._read(readers)
        # What some did not tell is to be asked for again. The versions are older than the table, never newer.
        if versions and len(table.unseen) == len(readers.unseen):
            self._reading = _Reading(table, keys, versions, now_ms)
        return table

    def _still_holds(self, reading: _Reading, keys: tuple[str, ...], versions: _Versions) -> bool:
        age_ms = self._clock.monotonic_ms() - reading.read_at_ms
        return (reading.keys, reading.versions) == (keys, versions) and age_ms <= _UNCHANGED_AGE_MS

    async def _versions(self, keys: Sequence[str]) -> _Versions:
        """Empty when the NameServers do not know all of these brokers."""
        answers = await self._routes.brokers()
        versions = frozenset(
            (answer.subject, f"{broker.identity.broker_name}:{broker.identity.broker_id}", _version(broker))
            for answer in answers
            for broker in answer.value or ()
        )
        return versions if {key for _, key, _ in versions}.issuperset(keys) else frozenset()

    async def _read(self, readers: Readers) -> TopicTable:
        answers = await self._questions.brokers(
            readers.brokers, lambda broker: broker.admin.topics(include_system=True, without_queues=True)
        )
        by_name: dict[str, list[tuple[str, admin_pb.TopicStatus]]] = {}
        for broker_name, topics in values_of(answers):
            for number, topic in enumerate(topics):
                by_name.setdefault(topic.topic, []).append((broker_name, topic))
                if number % _NAMES_PER_TURN == 0:
                    await asyncio.sleep(0)
        own = system_names(clusters=self._members.clusters, broker_names=self._members.group_names)
        names = []
        for number, name in enumerate(sorted(by_name)):
            names.append((name, name.lower(), category_of(name, own)))
            if number % _NAMES_PER_TURN == 0:
                await asyncio.sleep(0)
        return TopicTable(names, by_name, (*readers.unseen, *unseen_of(answers)))


def _version(broker: nameserver_pb.RegisteredBroker) -> bytes:
    version: bytes = broker.data_version.SerializeToString(deterministic=True)
    return broker.incarnation.to_bytes(8, "big") + version
