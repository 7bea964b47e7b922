"""What a store needs to know of the settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000

_ROCKETMQ_DELAY_LEVELS_MS = (
    1_000,
    5_000,
    10_000,
    30_000,
    *(minutes * _MINUTE_MS for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    1 * _HOUR_MS,
    2 * _HOUR_MS,
)


class FlushDiskType(StrEnum):
    """When a put waits for the disk (`flushDiskType`)."""

    SYNC_FLUSH = "SYNC_FLUSH"
    """A put is acknowledged only after fdatasync."""
    ASYNC_FLUSH = "ASYNC_FLUSH"
    """A put is acknowledged from the page cache; the disk follows within `flushIntervalCommitLog`."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Sizes, limits and habits of one store. The defaults are RocketMQ's."""

    commit_log_file_bytes: int = 1 << 30
    """`mappedFileSizeCommitLog`; the same in a whole broker group, fixed once the store exists."""
    consume_queue_file_bytes: int = 6_000_000
    """`mappedFileSizeConsumeQueue`; a multiple of 20."""
    index_slot_count: int = 5_000_000
    """`maxHashSlotNum`."""
    index_entry_count: int = 20_000_000
    """`maxIndexNum`."""
    index_enabled: bool = True
    """`messageIndexEnable`."""
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    queue_flush_cost_max: int = 256
    """How much of the ConsumeQueues one flush job writes on the event loop: a queue counts 1, or 8 if it begins a file.
    About 10 ms; 80,000 new queues at once were 45 s."""
    queue_flush_wait_max_ms: int = 600_000
    """Longest that entries of many queues wait in memory for more of their queue's; those of few queues do not wait.
    What bounds a start after a kill is not this but `queue_flush_wait_max_bytes`."""
    new_queue_flush_wait_max_ms: int = 60_000
    """The same while many queues are without a file: making it costs twenty times a write, and an orderly stop has to
    make all that are missing. RocketMQ's `flushConsumeQueueThoroughInterval`."""
    queue_flush_wait_max_bytes: int = 1 << 30
    """Most of the CommitLog whose entries may wait so: what a start after a kill reads again, in a second or two."""
    dispatch_batch_bytes_min: int = 64 << 10
    """From so many bytes of waiting log on records are dispatched in batches: some hundred calls of numpy are spread
    over them."""
    dispatch_walk_bytes_max: int | None = None
    """Up to so many bytes of it are read record by record in compiled code; None: as far as that costs less, which is
    nowhere in plain Python."""
    delay_levels_ms: tuple[int, ...] = _ROCKETMQ_DELAY_LEVELS_MS
    """`messageDelayLevel`: level 1 is first. The same in a whole broker group."""
    file_reserved_hours: int = 72
    """`fileReservedTime`: hours since a CommitLog file's last change before it expires."""
    unread_reserved_hours: int = 720
    """The same for a file that a consumer group has not read; 0: until it has."""
    unreplicated_reserved_hours: int = 0
    """The same for a file that a slave does not have; 0: until it has."""
    delete_unread_when_full: bool = False
    """Whether a disk above `disk_clean_forcibly_ratio` takes unread files before they expire, as RocketMQ's does."""
    clock_jump_max_hours: int = 0
    """A wall clock that jumps farther is not believed; 0: a third of `file_reserved_hours`."""
    delete_when_hours: tuple[int, ...] = (4,)
    """`deleteWhen`: UTC hours of the day in which expired files are deleted."""
    disk_max_used_ratio: float = 0.75
    """`diskMaxUsedSpaceRatio`: above it expired files are deleted at any hour."""
    disk_clean_forcibly_ratio: float = 0.85
    """`diskSpaceCleanForciblyRatio`: above it the oldest files are deleted before they expire, if they were read."""
    disk_warning_ratio: float = 0.90
    """`diskSpaceWarningLevelRatio`: above it puts are refused as well."""

    @property
    def clock_jump_max_ms(self) -> int:
        """What a wrong clock may take from the time files are kept."""
        return self.clock_jump_max_hours * _HOUR_MS or self.file_reserved_hours * _HOUR_MS // 3

    def __post_init__(self) -> None:
        assert self.commit_log_file_bytes > 8, "a CommitLog file must hold its closing blank"
        assert self.consume_queue_file_bytes % 20 == 0, "a ConsumeQueue file must hold whole entries of 20 bytes"
        assert 0 < self.disk_max_used_ratio <= self.disk_clean_forcibly_ratio <= self.disk_warning_ratio
