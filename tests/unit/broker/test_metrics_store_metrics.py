"""What is told of a store."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, cast

from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, flush_all, new_store
from tandemmq.broker.far_reads import FarReads
from tandemmq.broker.metrics import tell_recovery, tell_store
from tandemmq.broker.metrics_catalogue import BROKER_METRICS
from tandemmq.broker.queue_reader import DamagedEntries
from tandemmq.core.histogram import Histogram
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.service.metrics import MetricSamples


class Figures:
    """Of the retention task."""

    deleted_needed_bytes = 17
    clock_jumped_ms = -5_500


class NoPages:
    """Nothing is far behind here."""

    async def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        raise AssertionError(ranges)

    def are_resident(self, ranges: Sequence[tuple[int, int]]) -> bool:
        raise AssertionError(ranges)


def far_reads(store: MessageStore) -> FarReads:
    return FarReads(store, cast("Any", NoPages()), near_bytes=1 << 40, now_ms=lambda: 0, arrived=lambda _topic: None)


class Store:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = SimulatedDisk(random.Random(1))
        self.store = new_store(self.disk, self.clock)

    def samples(self) -> MetricSamples:
        return MetricSamples(BROKER_METRICS, base=("c", "broker", "a", "0"))

    async def told(self) -> dict[str, float]:
        samples = self.samples()
        tell_recovery(samples, self.store, self.clock)
        await tell_store(
            samples,
            self.store,
            disk=self.disk,
            clock=self.clock,
            flush_seconds={"log": Histogram((0.1,))},
            retention=cast("Any", Figures()),
            disk_warning_ratio=0.9,
            damaged=DamagedEntries(),
            far_reads=far_reads(self.store),
        )
        return {
            family.info.name.removeprefix("rocketmq_"): value
            for family in samples.families()
            for _, value in family.samples
            if isinstance(value, int | float)
        }


async def test_a_new_store_is_empty_and_recovered() -> None:
    store = Store()
    store.store.load()
    told = await store.told()
    assert told["storage_size"] == told["storage_message_reserve_time"] == 0
    assert told["store_recovery_progress_ratio"] == 1
    assert told["disk_warning_ratio"] == 0.9
    assert told["store_needed_bytes_deleted_total"] == 17
    assert told["store_wall_clock_jump_seconds"] == -5.5


async def test_what_is_not_flushed_and_how_old_the_oldest_message_is() -> None:
    store = Store()
    store.store.load()
    store.store.put(outgoing_message())
    flush_all(store.store)
    store.clock.now_ms += 7_000
    size = store.store.end_offset
    store.store.put(outgoing_message())
    told = await store.told()
    assert told["storage_flush_behind_bytes"] == told["store_commitlog_end_offset"] - size == size
    assert told["storage_dispatch_behind_bytes"] == 0
    assert told["storage_message_reserve_time"] == 7_000


def test_before_it_is_loaded_only_the_recovery_is_told_of() -> None:
    store = Store()
    samples = store.samples()
    tell_recovery(samples, store.store, store.clock)
    assert [family.samples[0][1] for family in samples.families()] == [0.0, 0.0]
