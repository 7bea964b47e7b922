"""The master's delivery: lease table, its journal and the groups' progress on disk, a consumer's two calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from simulation.network import PeerUnavailable, ServiceKey
from simulation.process import Process
from simulation.run_settings import BROKER_NAME, TOPIC, RunSettings
from tandemmq.broker.leases import LeaseStorage
from tandemmq.broker.master.group_recovery import LeasesAhead, merge_leases
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.broker.queue_reader import StoreQueueReader
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.queue_progress import Delivery
from tandemmq.core.delivery.subscription import EVERY_TAG
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.storage.disk import Disk
from tandemmq.core.storage.message_store import MessageStore

GROUP: Final = "billing"
INVISIBLE_MS: Final = 10_000
BATCH_SIZE: Final = 16
COMPACTION_FLOOR_BYTES: Final = 4 << 10
"""Small, so that a run compacts its journal often."""
TICK_MS: Final = 1_000
PROGRESS_TICK_MS: Final = 5_000
"""RocketMQ's flushConsumerOffsetInterval."""
# Nobody fails here, so an attempt more is a lost answer; none of them may end as a dead letter.
MAX_ATTEMPTS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class DeliveredMessage:
    """One message as a consumer gets it."""

    message_id: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    handle: str


class DeliveryService(Protocol):
    """ReceiveMessage and AckMessage of the client API."""

    async def receive(self, client_id: str) -> list[DeliveredMessage]:
        """Leases some messages."""

    async def acknowledge(self, handles: list[str]) -> list[bool]:
        """Finishes messages; False for a handle whose lease is over."""


DELIVERIES: Final = ServiceKey[DeliveryService]("delivery")


def new_lease_table(
    process: Process,
    store: MessageStore,
    tables: MetadataTables,
    settings: RunSettings,
    *,
    confirmed_offset: Callable[[], int] | None = None,
) -> LeaseTable:
    """An empty one over a store."""
    return LeaseTable(
        StoreQueueReader(store, confirmed_offset=confirmed_offset),
        options=DeliveryOptions(
            consume_from_earliest=settings.consume_from_earliest, compaction_floor_bytes=COMPACTION_FLOOR_BYTES
        ),
        broker_name=BROKER_NAME,
        nonce=lambda: process.machine.rng.getrandbits(64),
        stored_offset=tables.consumer_offsets.offset,
    )


class SimDeliveryDoor:
    """A consumer's two calls, on the lease table of whoever is master."""

    def __init__(
        self,
        *,
        process: Process,
        tables: MetadataTables,
        table: LeaseTable,
        persist: Callable[[], None],
        refusal: Callable[[], str | None],
        group_began: Callable[[dict[int, int]], None],
        queue_count: int,
        when_held: Callable[[Callable[[bool], object]], object] = lambda done: done(True),
        given: Callable[[Sequence[DeliveredMessage]], object] = lambda messages: None,
    ) -> None:
        """`group_began` is told where the group starts, by queue id, when the lease table did not know it before.
        `given` is told what a consumer is about to see."""
        self._process = process
        self._tables = tables
        self._table = table
        self._persist = persist
        self._refusal = refusal
        self._when_held = when_held
        self._group_began = group_began
        self._given = given
        self._queue_ids = range(queue_count)

    def committed(self) -> dict[int, int]:
        """First unfinished message by queue id, where the group has begun."""
        offsets = {queue_id: self._table.committed(GROUP, TOPIC, queue_id) for queue_id in self._queue_ids}
        return {queue_id: int(offset) for queue_id, offset in offsets.items() if offset is not None}

    async def receive(self, client_id: str) -> list[DeliveredMessage]:
        self._check()
        if self._tables.groups.get(GROUP) is None or self._tables.topics.get(TOPIC) is None:
            raise PeerUnavailable(f"there is no group {GROUP}, or no topic {TOPIC}")
        is_known = bool(self.committed())
        received = self._table.receive(
            group=GROUP,
            topic=TOPIC,
            queue_ids=self._queue_ids,
            tag_filter=EVERY_TAG,
            batch_size=BATCH_SIZE,
            invisible_ms=INVISIBLE_MS,
            now_ms=self._process.clock.monotonic_ms(),
            max_attempts=MAX_ATTEMPTS,
            auto_renew=False,
            client_id=client_id,
        )
        self._persist()
        if self._table.take_begun_at_newest():
            self._when_held(lambda _is_held: None)
        if not is_known:
            self._group_began(self.committed())
        messages = [_delivered(delivery) for delivery in received.deliveries]
        self._given(messages)
        return messages

    async def acknowledge(self, handles: list[str]) -> list[bool]:
        self._check()
        now_ms = self._process.clock.monotonic_ms()
        finished = [
            self._table.acknowledge(group=GROUP, topic=TOPIC, handle=handle, now_ms=now_ms) for handle in handles
        ]
        self._persist()
        answers: list[bool] = []
        is_answered = asyncio.Event()

        def answer(is_held: bool) -> None:
            answers.append(is_held)
            is_answered.set()

        self._when_held(answer)
        await is_answered.wait()
        if not answers[0]:
            raise PeerUnavailable("too few slaves have it in time")
        return finished

    def _check(self) -> None:
        if (reason := self._refusal()) is not None:
            raise PeerUnavailable(reason)


class SimDelivery(SimDeliveryDoor):
    """Owned by one run of the master. See `tandemmq.broker.master.role.MasterRole` for the order of its steps."""

    def __init__(
        self,
        *,
        process: Process,
        disk: Disk,
        store: MessageStore,
        tables: MetadataTables,
        settings: RunSettings,
        group_began: Callable[[dict[int, int]], None],
    ) -> None:
        table = new_lease_table(process, store, tables, settings)
        self.storage = LeaseStorage(disk, table, process.clock)
        super().__init__(
            process=process,
            tables=tables,
            table=table,
            persist=self.storage.persist,
            refusal=lambda: None,
            group_began=group_began,
            queue_count=settings.queue_count,
        )

    def load(self, ahead: Sequence[LeasesAhead]) -> None:
        """Restores the leases; the store is recovered by now."""
        self.storage.load()
        if merge_leases(ahead, self._table, now_ms=self._process.clock.monotonic_ms()):
            self.storage.persist_durably()
            self._tables.collect_progress(self._table)

    def start(self) -> None:
        """The broker begins its work; see `tandemmq.broker.master.role.MasterRole.begin`."""
        self._process.loop.spawn(self._ticks(), name="leases")
        self._process.loop.spawn(self._progress_ticks(), name="progress")

    def close(self) -> None:
        """An orderly stop writes everything."""
        self._tables.collect_progress(self._table)
        self._tables.persist_all()
        self.storage.close()

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self._table.expire(self._process.clock.monotonic_ms())
            self.storage.persist()
            await self.storage.compact_if_due()

    async def _progress_ticks(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_TICK_MS / 1000)
            self._tables.collect_progress(self._table)


def _delivered(delivery: Delivery) -> DeliveredMessage:
    return DeliveredMessage(
        message_id=decode_properties(delivery.record.properties)["UNIQ_KEY"],
        queue_id=delivery.queue_id,
        queue_offset=delivery.queue_offset,
        physical_offset=delivery.record.physical_offset,
        handle=delivery.handle,
    )
