"""The master's delivery: lease table, its journal on the simulated disk, and the two calls a consumer makes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from broker.lease_storage import LeaseStorage
from broker.queue_reader import StoreQueueReader
from mqcore.delivery import Delivery, DeliveryOptions, LeaseTable, TagFilter
from mqcore.message import decode_properties
from mqcore.storage import Disk, MessageStore
from simulation.network import ServiceKey
from simulation.process import Process
from simulation.run_settings import BROKER_NAME, TOPIC

__all__ = ["DELIVERIES", "GROUP", "INVISIBLE_MS", "DeliveredMessage", "DeliveryService", "SimDelivery"]

GROUP: Final = "billing"
INVISIBLE_MS: Final = 10_000
BATCH_SIZE: Final = 16
COMPACTION_FLOOR_BYTES: Final = 4 << 10
"""Small, so that a run compacts its journal often."""
TICK_MS: Final = 1_000
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


class SimDelivery:
    """Owned by one run of the master. See `broker.broker.Broker` for the order of its steps."""

    def __init__(self, *, process: Process, disk: Disk, store: MessageStore, queue_count: int) -> None:
        self._process = process
        self._queue_ids = range(queue_count)
        self._table = LeaseTable(
            StoreQueueReader(store),
            options=DeliveryOptions(consume_from_earliest=True, compaction_floor_bytes=COMPACTION_FLOOR_BYTES),
            broker_name=BROKER_NAME,
            nonce=lambda: process.machine.rng.getrandbits(64),
        )
        self._storage = LeaseStorage(disk, self._table, process.clock)

    def load(self) -> None:
        """Restores the leases; the store is recovered by now."""
        self._storage.load()
        self._process.loop.spawn(self._ticks(), name="leases")

    def committed(self) -> dict[int, int]:
        """First unfinished message by queue id, where the group has begun."""
        offsets = {queue_id: self._table.committed(GROUP, TOPIC, queue_id) for queue_id in self._queue_ids}
        return {queue_id: int(offset) for queue_id, offset in offsets.items() if offset is not None}

    async def receive(self, client_id: str) -> list[DeliveredMessage]:
        received = self._table.receive(
            group=GROUP,
            topic=TOPIC,
            queue_ids=self._queue_ids,
            tag_filter=TagFilter.ALL,
            batch_size=BATCH_SIZE,
            invisible_ms=INVISIBLE_MS,
            now_ms=self._process.clock.monotonic_ms(),
            max_attempts=MAX_ATTEMPTS,
            auto_renew=False,
            client_id=client_id,
        )
        self._storage.persist()
        return [_delivered(delivery) for delivery in received.deliveries]

    async def acknowledge(self, handles: list[str]) -> list[bool]:
        now_ms = self._process.clock.monotonic_ms()
        finished = [
            self._table.acknowledge(group=GROUP, topic=TOPIC, handle=handle, now_ms=now_ms) for handle in handles
        ]
        self._storage.persist()
        return finished

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self._table.expire(self._process.clock.monotonic_ms())
            self._storage.persist()
            await self._storage.compact_if_due()


def _delivered(delivery: Delivery) -> DeliveredMessage:
    return DeliveredMessage(
        message_id=decode_properties(delivery.record.properties)["UNIQ_KEY"],
        queue_id=delivery.queue_id,
        queue_offset=delivery.queue_offset,
        physical_offset=delivery.record.physical_offset,
        handle=delivery.handle,
    )
