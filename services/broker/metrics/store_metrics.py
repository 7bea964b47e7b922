"""What the store holds, how far it is behind itself, and how full its disk is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from broker.metrics.store_time import read_stored_at_ms
from broker.queue_reader import DamagedEntries
from mqcore.clock import Clock
from mqcore.histogram import Histogram
from mqcore.storage.disk import Disk, DiskUsage
from mqcore.storage.kept_tail import kept_tails
from mqcore.storage.message_store import MessageStore
from mqservice.metrics.metric_samples import MetricSamples

__all__ = ["RetentionFigures", "StoreMetrics"]


class RetentionFigures(Protocol):
    """What `broker.retention.Retention` counts."""

    deleted_needed_bytes: int

    @property
    def clock_jumped_ms(self) -> int:
        """How far the wall clock is ahead (below 0: behind) while it is not believed, else 0."""


class StoreMetrics:
    """Tells of one store. `flush_seconds` are durations by what was flushed."""

    def __init__(
        self,
        *,
        store: MessageStore,
        disk: Disk,
        clock: Clock,
        flush_seconds: Mapping[str, Histogram],
        retention: RetentionFigures,
        disk_warning_ratio: Callable[[], float],
        damaged_entries: DamagedEntries,
    ) -> None:
        self._store = store
        self._disk = disk
        self._clock = clock
        self._flush_seconds = flush_seconds
        self._retention = retention
        self._disk_warning_ratio = disk_warning_ratio
        self._damaged_entries = damaged_entries

    def tell_recovery(self, samples: MetricSamples) -> None:
        """Adds what is known from the first moment on."""
        progress = self._store.recovery_progress
        elapsed_ms = progress.elapsed_ms(now_ms=self._clock.monotonic_ms())
        samples.add("rocketmq_store_recovery_progress_ratio", progress.ratio)
        samples.add("rocketmq_store_recovery_duration_seconds", elapsed_ms / 1_000)

    async def tell(self, samples: MetricSamples) -> None:
        """Adds the other samples, of a store that is recovered."""
        usage, tail_count = await asyncio.to_thread(self._ask_disk)
        store = self._store
        end_offset = store.end_offset
        samples.add("rocketmq_storage_size", end_offset - store.min_offset)
        samples.add("rocketmq_storage_flush_behind_bytes", max(0, end_offset - store.flushed_offset))
        samples.add("rocketmq_storage_dispatch_behind_bytes", max(0, end_offset - store.dispatched_offset))
        samples.add("rocketmq_storage_message_reserve_time", self._oldest_age_ms())
        samples.add("rocketmq_store_commitlog_min_offset", store.min_offset)
        samples.add("rocketmq_store_commitlog_end_offset", end_offset)
        damaged = self._damaged_entries
        samples.add("rocketmq_store_queue_entries_damaged_total", damaged.count)
        samples.add("rocketmq_store_queue_entries_mended_total", damaged.mended_count)
        samples.add("rocketmq_store_messages_unreadable_total", damaged.lost_count)
        samples.add("rocketmq_store_kept_tails", tail_count)
        for file, histogram in self._flush_seconds.items():
            samples.add_histogram("rocketmq_store_flush_seconds", histogram.reading(), file)
        samples.add("rocketmq_store_needed_bytes_deleted_total", self._retention.deleted_needed_bytes)
        samples.add("rocketmq_store_wall_clock_jump_seconds", self._retention.clock_jumped_ms / 1_000)
        samples.add("rocketmq_disk_used_ratio", usage.used_ratio)
        samples.add("rocketmq_disk_warning_ratio", self._disk_warning_ratio())

    def _ask_disk(self) -> tuple[DiskUsage, int]:
        return self._disk.usage(), len(kept_tails(self._disk))

    def _oldest_age_ms(self) -> int:
        oldest_ms = read_stored_at_ms(self._store, self._store.min_offset)
        return max(0, self._clock.wall_ms() - oldest_ms) if oldest_ms is not None else 0
