"""Groups that consume from a real store on a simulated disk, and what operators do to them; without a network."""

from __future__ import annotations

import itertools
import random

from support.messages import outgoing_message
from support.query_stores import RememberedPages
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, new_store
from tandemmq.broker.client_api.sessions import ClientSessions
from tandemmq.broker.group_changes import GroupChanges, GroupProgressView
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.broker.queries.message_queries import MessageQueries
from tandemmq.broker.queue_reader import StoreQueueReader
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.queue_progress import Delivery
from tandemmq.core.delivery.subscription import EVERY_TAG
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig
from tandemmq.core.metadata.topic_table import TopicConfig


class ConsumedBroker:
    """Topic `T` of two queues, group `G`. The clock moves by a second with each message put."""

    def __init__(self, *, consume_from_earliest: bool = True) -> None:
        self.clock = ManualClock()
        disk = SimulatedDisk(random.Random(1))
        self.store = new_store(disk, self.clock)
        self.store.load()
        self.tables = MetadataTables(disk, self.clock, topics_changed=lambda: None)
        nonces = itertools.count(1)
        self.leases = LeaseTable(
            StoreQueueReader(self.store),
            options=DeliveryOptions(consume_from_earliest=consume_from_earliest),
            broker_name="broker-a",
            nonce=lambda: next(nonces),
            stored_offset=self.tables.consumer_offsets.offset,
        )
        self.sessions = ClientSessions(lambda _client_id: None)
        # Bytes of the lease journal, as a disk would have them.
        self.journal = b""
        self.wakes = 0
        # Group and topic of what operators let begin anew; empty for all.
        self.begun_anew: list[tuple[str, str]] = []
        queries = MessageQueries(
            store=self.store,
            topics=self.tables.topics,
            pages=RememberedPages(self.clock),
            clock=self.clock,
            is_indexed=True,
        )
        self.changes = GroupChanges(
            store=self.store,
            tables=self.tables,
            leases=self.leases,
            sessions=self.sessions,
            find_offsets=queries.find_offsets,
            persist_leases=self._persist,
            consumes_anew=lambda group, topic: self.begun_anew.append((group, topic)),
            wake=self._wake,
        )
        self.progress = GroupProgressView(
            store=self.store,
            topics=self.tables.topics,
            leases=self.leases,
            stored=self.tables.consumer_offsets,
            sessions=self.sessions,
            clock=self.clock,
        )
        self.tables.put_topic(TopicConfig("T", 2, 2))
        self.tables.put_group(SubscriptionGroupConfig("G"))

    def put(self, count: int, *, topic: str = "T", queue_id: int = 0) -> list[int]:
        """Puts messages; when each was stored."""
        stored_ms = []
        for _ in range(count):
            assert self.store.put(outgoing_message(topic=topic, queue_id=queue_id)).status.stored
            stored_ms.append(self.clock.wall_ms())
            self.clock.now_ms += 1_000
        return stored_ms

    def receive(self, count: int = 32, *, group: str = "G", topic: str = "T") -> list[Delivery]:
        """Leases messages."""
        return self.leases.receive(
            group=group,
            topic=topic,
            queue_ids=[0, 1],
            tag_filter=EVERY_TAG,
            batch_size=count,
            invisible_ms=60_000,
            now_ms=self.clock.monotonic_ms(),
            max_attempts=17,
            auto_renew=False,
            client_id="client",
        ).deliveries

    def acknowledge(self, deliveries: list[Delivery], *, group: str = "G", topic: str = "T") -> list[bool] | None:
        """Finishes what was leased."""
        handles = [delivery.handle for delivery in deliveries]
        return self.leases.acknowledge_all(group=group, topic=topic, handles=handles, now_ms=self.clock.monotonic_ms())

    def collect(self) -> None:
        """What a broker does every few seconds."""
        self.tables.collect_progress(self.leases)

    def _persist(self) -> None:
        self.journal += self.leases.take_journal()

    def _wake(self) -> None:
        self.wakes += 1
