"""Stores with messages in them, and the queries of operators over them, without files."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from support.messages import STORE_HOST, outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock
from tandemmq.broker.queries.message_queries import MessageQueries
from tandemmq.broker.queries.stored_records import LogRange
from tandemmq.broker.queries.values import MessagePage, WantedMessages
from tandemmq.broker.queue_reader import DamagedEntries
from tandemmq.core.message.record_layout import COMPRESSED
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.put_result import AppendResult

_OPTIONS = StoreOptions(
    commit_log_file_bytes=64 << 10,
    consume_queue_file_bytes=2_000,
    index_slot_count=1_000,
    index_entry_count=20_000,
)


@dataclass
class RememberedPages:
    """Keeps what was fetched, each time in `takes_ms`, while `meanwhile` happens."""

    clock: ManualClock
    takes_ms: int = 0
    meanwhile: Callable[[], object] | None = None
    fetched: list[LogRange] = field(default_factory=list)

    async def fetch(self, ranges: Sequence[LogRange]) -> None:
        self.clock.now_ms += self.takes_ms
        if self.meanwhile is not None:
            self.meanwhile()
        self.fetched += ranges


class QueryStore:
    """A loaded store, a clock and `MessageQueries` over both."""

    def __init__(
        self,
        *,
        topics: Sequence[str] = ("orders",),
        queues: int = 4,
        indexed: bool = True,
        damaged: DamagedEntries | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.store = MessageStore(
            SimulatedDisk(random.Random(1), wall_ms=self.clock.wall_ms), self.clock, _OPTIONS, store_host=STORE_HOST
        )
        self.store.load()
        self.topics = TopicTable()
        for topic in topics:
            self.topics.put(TopicConfig(topic, queues, queues), now_ms=0)
        self.pages = RememberedPages(self.clock)
        self.queries = MessageQueries(
            store=self.store,
            topics=self.topics,
            pages=self.pages,
            clock=self.clock,
            is_indexed=indexed,
            damaged=damaged,
        )

    def put(
        self,
        body: bytes = b"body",
        *,
        topic: str = "orders",
        queue_id: int = 0,
        tag: str | None = None,
        keys: tuple[str, ...] = (),
        sys_flag: int = 0,
        after_ms: int = 0,
    ) -> AppendResult:
        """Stores a message, `after_ms` later than the one before."""
        self.clock.now_ms += after_ms
        message = outgoing_message(topic=topic, queue_id=queue_id, body=body, tag=tag, keys=keys)
        message.sys_flag = sys_flag
        result = self.store.put(message)
        assert result.status.stored
        return result

    def put_zipped(self, body: bytes) -> AppendResult:
        return self.put(zlib.compress(body), sys_flag=COMPRESSED)

    async def all_pages(self, wanted: WantedMessages) -> list[MessagePage]:
        """Every page, to the last."""
        pages = [await self.queries.messages(wanted)]
        while pages[-1].next_page_token:
            pages.append(await self.queries.messages(wanted, pages[-1].next_page_token))
        return pages
