"""Which broker groups an ordered topic's message groups live in: a list that no death shortens.

Each broker keeps the list for the ordered topics of its own table. A broker group joins it when routes show the topic
writable there. It leaves it only by what an operator did: while it is alive and does not have the topic writable any
more, or when NameServers hold an order configuration of the topic (ORDER_TOPIC_CONFIG, "broker-a:4;broker-b:4"), which
is the list then, whatever was seen. A group that is dead stays: its message groups get errors until it is back, for
elsewhere they would overtake what waits in it. The file outlives a restart for the same reason.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from typing import Final

import structlog

from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable
from tandemmq.core.routing.queue_choice import home_of_message_group
from tandemmq.core.routing.values import PERMISSION_WRITE, TopicRoute
from tandemmq.core.storage.disk import Disk, DiskError

log = structlog.get_logger(__name__)

ORDERED_TYPES: Final = frozenset({"FIFO", "MIXED"})
"""Message types of topics whose messages may have a message group."""
_TYPES_WITH_HOMES: Final = ORDERED_TYPES | {"LITE"}
"""A lite topic lives in one broker group, too."""
MESSAGE_GROUP_HOMES_FILE: Final = "config/messageGroupHomes.json"


class MessageGroupHomes:
    """`route` is the cluster's route of a topic, `live` names the broker groups of which a member serves. Event loop
    only."""

    def __init__(
        self,
        disk: Disk,
        topics: TopicTable,
        *,
        own_name: str,
        route: Callable[[str], TopicRoute | None],
        live: Callable[[], Collection[str]],
    ) -> None:
        self._disk = disk
        self._topics = topics
        self._own_name = own_name
        self._route = route
        self._live = live
        # By topic, ascending.
        self._names: dict[str, list[str]] = {}
        self._written = ""
        self._writing: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Reads what an earlier run knew. Blocks."""
        try:
            data = json.loads(self._disk.read_file(MESSAGE_GROUP_HOMES_FILE) or b"{}")
            names = {str(topic): sorted({str(name) for name in found}) for topic, found in data.items()}
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            log.warning(
                "message_group_homes_unreadable",
                file=MESSAGE_GROUP_HOMES_FILE,
                error=str(error),
                consequence="as seen from now on",
            )
            return
        self._names, self._written = names, _text(names)

    def home_of(self, topic: str, message_group: str) -> str:
        names = self._names.get(topic)
        if names is None:
            names = self._learn(topic)
            self._write()
        return home_of_message_group(message_group, names) if len(names) > 1 else names[0]

    def routes_changed(self) -> None:
        """NameServers told something new."""
        for topic in [topic for topic in self._names if not _is_ordered(self._topics.get(topic))]:
            del self._names[topic]
        for config in self._topics:
            if _is_ordered(config):
                self._learn(config.topic_name)
        self._write()

    async def close(self) -> None:
        """Waits for the file."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def known_file(self) -> bytes:
        return _text(self._names).encode()

    async def write_file(self, data: bytes | None) -> None:
        """Writes the file again, with None as it is known, whatever it holds. DiskError."""
        await self.close()
        written = self.known_file() if data is None else data
        await asyncio.to_thread(self._disk.write_file, MESSAGE_GROUP_HOMES_FILE, written)

    def _learn(self, topic: str) -> list[str]:
        route = self._route(topic)
        stated = _stated(route.order_topic_conf) if route is not None else []
        if stated:
            names = stated
        else:
            rows = route.queues if route is not None else ()
            writable = {row.broker_name for row in rows if row.permission & PERMISSION_WRITE and row.write_queue_count}
            live = self._live()
            if self._own_name not in live:
                # NameServers have not heard of us yet.
                writable.add(self._own_name)
            kept = {name for name in self._names.get(topic, ()) if name not in live}
            names = sorted(writable | kept) or [self._own_name]
        if names != self._names.get(topic):
            log.info("message_group_homes", topic=topic, broker_names=names)
            self._names[topic] = names
        return names

    def _write(self) -> None:
        text = _text(self._names)
        if text != self._written and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._write_file())

    async def _write_file(self) -> None:
        while (text := _text(self._names)) != self._written:
            try:
                await asyncio.to_thread(self._disk.write_file, MESSAGE_GROUP_HOMES_FILE, text.encode())
            except DiskError as error:
                # The store finds out about the disk, too.
                log.warning("message_group_homes_not_written", error=str(error))
                return
            self._written = text


def _is_ordered(config: TopicConfig | None) -> bool:
    return config is not None and config.message_type in _TYPES_WITH_HOMES


def _stated(order_topic_conf: str) -> list[str]:
    """Broker groups of "broker-a:4;broker-b:4"."""
    return sorted({name for part in order_topic_conf.split(";") if (name := part.partition(":")[0].strip())})


def _text(names: dict[str, list[str]]) -> str:
    return json.dumps(dict(sorted(names.items())))
