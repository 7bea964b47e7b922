"""Which CommitLog files may go, and when puts must stop. ADR 29 says why.

| disk used | expired files                    | younger files                     | puts    |
|-----------|----------------------------------|-----------------------------------|---------|
| ≤ 75 %    | go in the hours of `deleteWhen`  | stay                              | allowed |
| > 75 %    | go at any hour                   | stay                              | allowed |
| > 85 %    | go                               | the oldest go, as many as needed  | allowed |
| > 90 %    | go                               | the oldest go, as many as needed  | refused |

The file being written never goes, and nothing goes that somebody still needs, however full the disk is: what a known
slave does not have, or a consumer group has not read. So a disk may get full of what may not go; puts are then refused
with words that say who holds it. Such a file goes when it is older than the settings for just that allow, and a file
that was never read by anybody goes when it expires and not before. A slave deletes what its master has deleted.

RocketMQ's CleanCommitLogService knows neither: it deletes ten files at 85 %, whoever needs them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tandemmq.core.storage.commit_log import COMMIT_LOG_FOLDER, CommitLog, file_name
from tandemmq.core.storage.consume_queue import ConsumeQueue
from tandemmq.core.storage.consume_queue_table import ConsumeQueueTable
from tandemmq.core.storage.disk import Disk, DiskUsage, FolderEntry, MappedSegment
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.put_result import THE_DISK_IS

if TYPE_CHECKING:
    from tandemmq.core.storage.index_table import IndexTable


# Believed time: the clock by which files grow old. A wall clock that is four days ahead would make every file old
# enough to go. So believed time follows the wall clock only while that is near. When it is not, believed time goes on
# with the monotonic clock, as if nothing had jumped, until the clock agrees again or an operator says that it is right
# (a larger `jump_max_ms`). It is saved, and goes on across runs of the broker within one run of the machine.
#
# Across a reboot nobody counted the time in between. The wall clock must then be near the time that was saved, or near
# the time at which the newest file was written. Only the operator can tell a machine that was off for longer than
# `jump_max_ms` from a wrong clock; until then files are kept for as much longer.
#
# A file's age counts from when it was seen complete. What the file system says, by whichever wall clock there was, is
# asked only for files from before this run; where it was wrong, the next run is told.

_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class SavedTime:
    """What one run of the broker leaves the next one."""

    boot_id: str
    believed_ms: int
    """Believed time when the monotonic clock was at `monotonic_ms`."""
    monotonic_ms: int
    misdated: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Files by name with the time of their last change, as the file system tells it and as it is believed."""

    def to_json(self) -> bytes:
        fields = {"bootId": self.boot_id, "believedMs": self.believed_ms, "monotonicMs": self.monotonic_ms}
        return json.dumps(fields | {"misdated": self.misdated}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> SavedTime | None:
        """None for a text that is not one of these: nothing was saved then."""
        try:
            fields = json.loads(text)
            misdated = {str(name): (int(told), int(believed)) for name, (told, believed) in fields["misdated"].items()}
            return cls(str(fields["bootId"]), int(fields["believedMs"]), int(fields["monotonicMs"]), misdated)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None


class BelievedTime:
    """See the module's docstring. All times are milliseconds."""

    def __init__(
        self,
        *,
        boot_id: str,
        saved: SavedTime | None,
        newest_ms: int,
        wall_ms: int,
        monotonic_ms: int,
        jump_max_ms: int,
    ) -> None:
        """`newest_ms`: when the newest file was changed, as the file system tells; 0 for an empty store."""
        self._boot_id: Final = boot_id
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms
        # By name of a complete file: the time the file system tells, and the believed one.
        self._changed: dict[str, tuple[int, int]] = {} if saved is None else dict(saved.misdated)
        self._has_aged = False
        self.now_ms = newest_ms or wall_ms
        """What may be believed, as of the last `look`."""
        self.jumped_ms = 0
        """How far the wall clock is ahead (below 0: behind) while it is not believed, else 0."""
        if saved is not None:
            self.now_ms = saved.believed_ms
            if saved.boot_id == boot_id:
                self.now_ms += max(0, monotonic_ms - saved.monotonic_ms)
        self.look(wall_ms=wall_ms, monotonic_ms=monotonic_ms, jump_max_ms=jump_max_ms)

    def look(self, *, wall_ms: int, monotonic_ms: int, jump_max_ms: int) -> None:
        """Some time has passed. To be called often: small jumps are believed, each."""
        self.now_ms += monotonic_ms - self._monotonic_ms
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms
        ahead_ms = wall_ms - self.now_ms
        if abs(ahead_ms) <= jump_max_ms:
            self.now_ms, self.jumped_ms = wall_ms, 0
        else:
            self.jumped_ms = ahead_ms

    def ages_ms(self, files: Sequence[FolderEntry]) -> list[int]:
        """How long ago each of all complete files was changed last, oldest first. To be asked after each `look`."""
        # A clock that is behind has stamped files too early, those of this time at least.
        behind_ms = max(0, self.now_ms - self._wall_ms)
        changed: dict[str, tuple[int, int]] = {}
        latest_ms = 0
        for file in files:
            known = self._changed.get(file.name)
            if known is not None and known[0] == file.modified_ms:
                believed_ms = known[1]
            elif self._has_aged:
                believed_ms = self.now_ms
            else:
                # Files are written one after the other: one that seems older than that before it is not.
                believed_ms = max(latest_ms, file.modified_ms + behind_ms)
            # A time in the future counts as now: that file must grow old, too.
            believed_ms = min(believed_ms, self.now_ms)
            latest_ms = max(latest_ms, believed_ms)
            changed[file.name] = file.modified_ms, believed_ms
        self._changed, self._has_aged = changed, True
        return [self.now_ms - believed_ms for _, believed_ms in changed.values()]

    def to_save(self) -> SavedTime:
        """As of the last look."""
        misdated = {
            name: (told_ms, believed_ms)
            for name, (told_ms, believed_ms) in self._changed.items()
            if abs(told_ms - believed_ms) > _HOUR_MS
        }
        return SavedTime(self._boot_id, self.now_ms, self._monotonic_ms, misdated)

    @property
    def problem(self) -> str | None:
        """What is wrong with the wall clock, and what to do; None when it is believed."""
        if not self.jumped_ms:
            return None
        hours = -(-abs(self.jumped_ms) // _HOUR_MS)
        where = "ahead of" if self.jumped_ms > 0 else "behind"
        return (
            f"the wall clock is {abs(self.jumped_ms) / _HOUR_MS:.1f} h {where} the time this broker counted; files do "
            "not grow old by it. Set the clock right; or, if it is right (the machine was off or asleep), "
            f"run tandemmq broker config set all clockJumpMax={hours + 1}"
        )


_FILES_PER_RUN_MAX: Final = 10
"""`deleteFileBatchMax`: removing a gigabyte file keeps the disk busy for a while."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Somebody needs the log from `offset` on."""

    offset: int
    holder: str
    """With what it waits for, in words: `slave 1, which does not have it`."""
    remedy: str


@dataclass(frozen=True, slots=True)
class RetentionFloor:
    """Who needs how much of the log; of each kind the one that needs most. None: nobody of that kind needs anything."""

    master: Hold | None = None
    """Of a slave: it keeps what its master has not deleted, whatever its own disk and clock say. Of a master that
    begins: all is kept."""
    replica: Hold | None = None
    """Set on a master only: the slave that needs most."""
    reader: Hold | None = None
    """A consumer group that has read a part."""
    unread: Hold | None = None
    """What no group has ever read from: it is kept until it expires, and no longer."""


@dataclass(frozen=True, slots=True)
class ExpiryWish:
    """What may go by age and use of the disk alone: files that end at or below an offset, for each reason."""

    usage: DiskUsage
    start_offset: int
    """The log's start; an end at it means that no file goes."""
    expired_end: int
    unread_end: int
    """Old enough to go though a group has not read them."""
    unreplicated_end: int
    """Old enough to go though a slave does not have them."""
    needed_end: int
    """Their room is needed, however young they are."""
    is_short: bool
    """The disk is used above `disk_clean_forcibly_ratio`."""

    @property
    def is_empty(self) -> bool:
        """Whether it does not matter who needs what."""
        return max(self.expired_end, self.needed_end) <= self.start_offset and not self.is_short


class RetentionJob:
    """Removes files the store has given up already; oldest first, so that a crash leaves no gap."""

    def __init__(self, disk: Disk, segments: Sequence[MappedSegment], *, lost: Sequence[tuple[Hold, int]] = ()) -> None:
        """`segments` are the last references to the files: unmapping a gigabyte takes a while as well."""
        self._disk: Final = disk
        self._segments: Final = deque(segments)
        self.paths: Final = [segment.path for segment in segments]
        self.lost: Final = lost
        """Who still needed a part of them, and how many bytes: a setting allowed it."""

    def run(self) -> None:
        """Blocks; may run in a thread."""
        while self._segments:
            path = self._segments.popleft().path
            self._disk.remove(path)


class Retention:
    """Gives up the store's oldest files, and trims the queues afterwards, a few at a time or when one is asked for."""

    def __init__(
        self, disk: Disk, log: CommitLog, queues: ConsumeQueueTable, index: IndexTable | None, options: StoreOptions
    ) -> None:
        self._disk: Final = disk
        self._log: Final = log
        self._queues: Final = queues
        self._index: Final = index
        self.options = options
        """May change."""
        self._untrimmed: dict[tuple[str, int], ConsumeQueue] = {}

    def wish(self, time: BelievedTime, *, usage: DiskUsage, dispatched_offset: int) -> ExpiryWish:
        """What should go, if nobody needed it."""
        log = self._log
        first = log.min_offset
        listed = {entry.name: entry for entry in self._disk.list_folder(COMMIT_LOG_FOLDER)}
        files = [
            listed[file_name(first + number * log.file_bytes)] for number in range(self._complete(dispatched_offset))
        ]
        return expiry_wish(
            time.ages_ms(files),
            start_offset=first,
            file_bytes=log.file_bytes,
            usage=usage,
            options=self.options,
            now_ms=time.now_ms,
        )

    def expire(self, wish: ExpiryWish, floor: RetentionFloor, *, dispatched_offset: int) -> RetentionJob | None:
        """Drops the CommitLog files that may go; the job removes them. None: nothing may."""
        log = self._log
        first = log.min_offset
        end = expiry_end(wish, floor, options=self.options)
        count = min((end - first) // log.file_bytes, self._complete(dispatched_offset), _FILES_PER_RUN_MAX)
        if count <= 0:
            return None
        self._queues.forget_ends()
        given_up = log.forget_first(count)
        self._queues.log_starts_at(log.min_offset)
        lost = [
            (hold, log.min_offset - max(first, hold.offset))
            for hold in (floor.replica, floor.reader)
            if hold is not None and hold.offset < log.min_offset
        ]
        self._untrimmed = {(queue.topic, queue.queue_id): queue for queue in self._queues}
        if self._index is not None:
            given_up += self._index.forget_expired_files(log.min_offset)
        return RetentionJob(self._disk, given_up, lost=lost)

    def _complete(self, dispatched_offset: int) -> int:
        """How many files are neither written nor read by the store itself any more."""
        log = self._log
        complete_end = min(log.flushed_offset, dispatched_offset, log.end_offset - 1)
        return max(0, complete_end - log.min_offset) // log.file_bytes

    def trim_queues(self, *, max_queues: int) -> bool:
        """Trims queues that wait for it, but no other after one whose file went; True if more are waiting."""
        while self._untrimmed and max_queues:
            removed = self._trim(self._untrimmed.popitem()[1])
            # Each removal waits for the disk, some milliseconds, on the event loop: one a turn.
            max_queues = max_queues - 1 if not removed else 0
        return bool(self._untrimmed)

    def trim_queue(self, topic: str, queue_id: int) -> None:
        """Trims one queue at once, if it waits for it."""
        if self._untrimmed:
            queue = self._untrimmed.pop((topic, queue_id), None)
            if queue is not None:
                self._trim(queue)

    def _trim(self, queue: ConsumeQueue) -> int:
        """Returns how many files went."""
        queue.correct_min_offset(self._log.min_offset)
        return queue.remove_expired_files(self._log.min_offset)


def expiry_wish(
    ages_ms: Sequence[int], *, start_offset: int, file_bytes: int, usage: DiskUsage, options: StoreOptions, now_ms: int
) -> ExpiryWish:
    """What should go. `ages_ms`: of each file that may go at all, oldest first; `now_ms` tells the hour."""
    is_time = usage.used_ratio > options.disk_max_used_ratio or now_ms // _HOUR_MS % 24 in options.delete_when_hours

    def end(hours: int) -> int:
        count = 0
        while is_time and hours and count < len(ages_ms) and ages_ms[count] >= hours * _HOUR_MS:
            count += 1
        return start_offset + count * file_bytes

    reserved = options.file_reserved_hours
    is_short = usage.used_ratio > options.disk_clean_forcibly_ratio
    surplus_bytes = usage.used_bytes - int(options.disk_clean_forcibly_ratio * usage.total_bytes)
    needed = min(-(-surplus_bytes // file_bytes), len(ages_ms)) if is_short else 0
    return ExpiryWish(
        usage=usage,
        start_offset=start_offset,
        expired_end=end(reserved),
        unread_end=end(max(reserved, options.unread_reserved_hours) if options.unread_reserved_hours else 0),
        unreplicated_end=end(
            max(reserved, options.unreplicated_reserved_hours) if options.unreplicated_reserved_hours else 0
        ),
        needed_end=start_offset + needed * file_bytes,
        is_short=is_short,
    )


def expiry_end(wish: ExpiryWish, floor: RetentionFloor, *, options: StoreOptions) -> int:
    """Files that end at or below it go."""
    by_age = [end for end, hold in _limits(wish, floor) if hold is not floor.unread]
    by_need = [end for end, _ in _limits(wish, _when_short(floor, options))]
    return max(min([wish.expired_end, *by_age]), min([wish.needed_end, *by_need]))


def held_words(wish: ExpiryWish, floor: RetentionFloor, *, end_offset: int, options: StoreOptions) -> str | None:
    """Why a disk that is short of room stays so: who holds how much of the log that ends at `end_offset`, and the
    remedy. None: old files are going, or it is not short."""
    if not wish.is_short:
        return None
    full = f"{THE_DISK_IS} {wish.usage.used_ratio:.0%} full"
    if wish.needed_end <= wish.start_offset:
        return f"{full}, and not of complete CommitLog files: make room on it, or take a larger one"
    if expiry_end(wish, floor, options=options) >= wish.needed_end:
        return None
    limit, hold = min(_limits(wish, _when_short(floor, options)), key=lambda limit: limit[0])
    return f"{full}; {_size(end_offset - limit)} of the log are kept for {hold.holder}: {hold.remedy}"


def _when_short(floor: RetentionFloor, options: StoreOptions) -> RetentionFloor:
    """Who is asked when files go for want of room."""
    return replace(floor, reader=None, unread=None) if options.delete_unread_when_full else floor


def _limits(wish: ExpiryWish, floor: RetentionFloor) -> list[tuple[int, Hold]]:
    """Up to where each lets go."""
    holds = (
        (floor.master, wish.start_offset),
        (floor.replica, wish.unreplicated_end),
        (floor.reader, wish.unread_end),
        (floor.unread, wish.start_offset),
    )
    return [(max(hold.offset, overdue_end), hold) for hold, overdue_end in holds if hold is not None]


def _size(count: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"
