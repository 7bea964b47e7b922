"""Recovery: finds the end of the log after a stop, makes it the end for good, and derives what is missing.

The log is the truth; its end is the end of the last valid record. ConsumeQueues and index are derived from it and made
to agree with it. Steps, in an order that may be interrupted anywhere and begun again:

1. Find an *anchor*: a record boundary up to which log and ConsumeQueues are known to be durable. Our checkpoint names
   one exactly (logics_physical_offset), and then only what came after it is read. A Java broker's may not; then
   RocketMQ's own rules choose a file.
2. Load the ConsumeQueues, without what lies beyond the anchor if the stop was unclean, and the index.
3. Walk the log from the anchor to the first thing that is no record, and dispatch each record again (idempotent).
4. Drop ConsumeQueue and index entries beyond that end, durably.
5. Sync the records that were walked over and their entries, and say so in the checkpoint. Unless the stop was clean
   they are stored again first: after an fsync that failed, the kernel calls pages clean that never reached the disk,
   and a sync would vouch for them without writing any. Entries are written anew by the walk.
6. Cut the log: everything behind the end is cleared, durably; what is more than a torn record is kept aside before.
   Only then may anything be appended, or a stale record could come back under a torn new one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

from tandemmq.core.message.properties import decode_properties, index_terms
from tandemmq.core.message.record import RecordFound
from tandemmq.core.message.record_layout import enters_index
from tandemmq.core.offsets import PhysicalOffset
from tandemmq.core.storage.commit_log import CommitLog
from tandemmq.core.storage.consume_queue_table import QUEUE_ENDS_FILE, ConsumeQueueTable, QueueEnds, StopKind
from tandemmq.core.storage.disk import FROM_A_REPLICA, Disk, DiskFull, LogGap
from tandemmq.core.storage.dispatch import BatchDone, Dispatcher, LogScan, first_record, record_at, scan_log
from tandemmq.core.storage.flush_jobs import StoreCheckpoint
from tandemmq.core.storage.index_file import IndexFile, term_hashes
from tandemmq.core.storage.index_table import IndexTable
from tandemmq.core.storage.kept_tail import KeptTail, LogTail, describe_damage, is_cut_kept, keep_tail, read_log_tail

# How far a recovery has come, for those who wait for the broker.

_ALMOST: Final = 0.99
"""What is left when the log is read: syncing, and clearing what lies behind its end."""


class RecoveryProgress:
    """Written by the thread that recovers, read by any other: single attributes, each of them whole at any time."""

    def __init__(self) -> None:
        self.started_ms: int | None = None
        """Monotonic; None before it began."""
        self.duration_ms: int | None = None
        """None before it ended."""
        self.read_bytes = 0
        """Bytes of the log read by now."""
        self.bytes_to_read = 0
        """At most: where the log ends is what recovery finds out."""

    def begin(self, *, now_ms: int) -> None:
        self.started_ms = now_ms
        self.duration_ms = None
        self.read_bytes = self.bytes_to_read = 0

    def end(self, *, now_ms: int) -> None:
        assert self.started_ms is not None, "a recovery that never began"
        self.duration_ms = now_ms - self.started_ms

    def elapsed_ms(self, *, now_ms: int) -> int:
        """How long it took, or has taken by now."""
        if self.duration_ms is not None:
            return self.duration_ms
        return now_ms - self.started_ms if self.started_ms is not None else 0

    @property
    def ratio(self) -> float:
        """Share of the work that is done, at least: 1 when the recovery has ended, and not before."""
        if self.duration_ms is not None:
            return 1.0
        return _ALMOST * min(1.0, self.read_bytes / self.bytes_to_read) if self.bytes_to_read else 0.0


_INDEX_REBUILD_BYTES_MAX: Final = 2 << 30
"""How far back the index is entered again after a power loss: some ten seconds of start-up. RocketMQ enters no more
than what its recovery reads anyway."""


class MissingIndexFile(NamedTuple):
    """Records of [start_offset, end_offset) of the log are in no IndexFile, and were."""

    start_offset: int
    end_offset: int
    is_made_again: bool
    """False: they are too many, or there is no room; they are not found by their keys."""


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a start found; for the log line and for the decision whether this broker may lead."""

    clean: bool
    """The last run was ended in order."""
    same_boot: bool
    """Unclean, but the machine ran on: every byte the killed process had stored is there."""
    start_offset: int
    """Where the walk through the log began."""
    end_offset: int
    redispatched_records: int
    """Records walked over."""
    truncated_bytes: int
    """Distance from the end of the log to the end of what was behind it and is gone now."""
    damage: str
    """What was lost by something else than the stop, or by it though ConsumeQueues or index still tell of it (see
    kept_tail), in words with offsets; "" if nothing was. A log that ends early together with them is not told: only
    who knows how far it went can say so."""
    damage_end: int
    """Up to where the log went at least, which ends at `end_offset`; 0 without damage."""
    damaged_queues: tuple[tuple[str, int, int], ...]
    """ConsumeQueues whose files were damaged: topic, queue id, first entry that was made again from the log."""
    damaged_index_files: tuple[str, ...]
    """Names of IndexFiles that were damaged and are deleted."""
    missing_index_files: tuple[MissingIndexFile, ...]
    """Those that were deleted for their damage included."""
    kept_tail: KeptTail | None
    """What was cut, if it was more than a torn record."""
    stop_reason: str
    """Why the log ends where it does."""
    duration_ms: int
    checkpoint_is_lost: bool = False
    """It vouches for nothing, and a file that is written after it does."""
    abort_is_gone: bool = False
    """The file that says that the last run was not ended in order; others say so."""

    @property
    def may_have_lost(self) -> bool:
        """Whether records that were appended may be missing: not flushed before a power loss, or damaged."""
        return bool(self.damage) or (not self.clean and not self.same_boot)


_KEYLESS_MAX: Final = 10_000
"""Records without a key are rare: clients give each message one. So many are some 0.1 s."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state the store goes on with."""

    scan: LogScan
    checkpoint: StoreCheckpoint
    truncated_bytes: int
    damage: str
    damage_end: int
    kept_tail: KeptTail | None
    missing_index_files: tuple[MissingIndexFile, ...] = ()
    checkpoint_is_lost: bool = False


def recover(
    *,
    disk: Disk,
    log: CommitLog,
    queues: ConsumeQueueTable,
    index: IndexTable | None,
    dispatcher: Dispatcher,
    checkpoint: StoreCheckpoint,
    stop: StopKind,
    progress: RecoveryProgress,
    wall_ms: int,
    doubt_tail: Callable[[], None],
) -> Recovered:
    """Brings log, ConsumeQueues and index, none of which is loaded yet, to one consistent, durable end.

    `doubt_tail` makes every start from now on a doubtful one: called where the log is damaged, before the damage is out
    of sight. `wall_ms` names what is kept of it.
    """
    log.load()
    if not log.files.file_count:
        return _start_empty(disk, log, queues, index, checkpoint, stop=stop, doubt_tail=doubt_tail)
    vouched_offset = checkpoint.logics_physical_offset
    durable = _durable_record(log, checkpoint)
    told_end = 0

    def note_told(physical_offset: int, physical_end: int) -> None:
        """What was derived from the log tells of a record, and may be gone when the next start looks for it."""
        nonlocal told_end
        if physical_end > told_end:
            told_end = physical_end
            if record_at(log.files, physical_offset, file_bytes=log.file_bytes) is None:
                doubt_tail()

    written = QueueEnds.load(disk)
    checkpoint_is_lost = written is not None and written.durable_offset > 0 == vouched_offset
    if written is not None and not _counts(written, checkpoint, durable, stop):
        written = None
    if written is not None and written.log_start < log.files.first_offset:
        raise LogGap(
            log.files.folder,
            expected_offset=written.log_start,
            found_offset=log.files.first_offset,
            remedy=f"{FROM_A_REPLICA}; if it is gone for good or was deleted on purpose, remove {QUEUE_ENDS_FILE}",
        )
    queues.log_starts_at(log.files.first_offset)
    damaged_from = queues.load(
        stop,
        durable_offset=durable.physical_offset if durable is not None else 0,
        written=written,
        log_end=log.files.end_offset,
        farthest=lambda entry: note_told(entry.physical_offset, entry.physical_end),
    )
    if not len(queues):  # The log has files, so that at least one had entries.
        damaged_from = log.files.first_offset
    if written is not None and durable is not None and stop is not StopKind.CLEAN:
        if damaged_from is None:
            _make_again_behind_ends(log, queues, dispatcher.without_index(), written.durable_offset, durable)
        else:
            damaged_from = min(damaged_from, written.durable_offset)
    index_lost_from = None
    missing_index_files: list[MissingIndexFile] = []
    if index is not None:
        index_lost_from = index.load(stop, durable_timestamp_ms=checkpoint.index_message_timestamp_ms)
        if checkpoint.index_message_timestamp_ms != index.durable_timestamp_ms:
            checkpoint = replace(checkpoint, index_message_timestamp_ms=index.durable_timestamp_ms)
            checkpoint.save(disk)
    if durable is not None and queues.last_physical_end > durable.physical_offset:
        start_offset = durable.physical_offset
        dispatch_from = start_offset + durable.size
    else:
        start_offset = dispatch_from = _rocketmq_start(log, checkpoint, stop, queues.last_physical_end)
        if stop is not StopKind.CLEAN:
            # Nothing vouches for these entries. All of them are made again by the walk.
            queues.truncate(start_offset)
    if damaged_from is not None and damaged_from < dispatch_from:
        # A file's start is a record's start. What is there already is left alone.
        start_offset = dispatch_from = max(log.files.first_offset, log.files.file_start(damaged_from))
    if index is not None and stop is StopKind.KILLED:
        # Only here: after a power loss a part that was taken back may have come back.
        note_told(index.last_physical_offset, index.last_physical_offset + 1)
        # What a killed process was just entering may be there in part. The walk enters it anew.
        index.truncate(dispatch_from, log.stored_ms)
    progress.bytes_to_read = log.files.end_offset - start_offset
    if index is not None:
        index_start = -1 if written is None else written.index_start
        missing_index_files = _make_missing_index_files(log, dispatcher, index, progress, index_start=index_start)
        last = index.files[-1] if index.files else None
        if index_lost_from is None and last is not None and _has_keys_between(log, last, dispatch_from):
            # The newest is gone: what a checkpoint vouches for had been entered.
            index_lost_from = PhysicalOffset(last.end_physical_offset)
            is_made_again = dispatch_from - index_lost_from <= _INDEX_REBUILD_BYTES_MAX
            missing_index_files.append(MissingIndexFile(index_lost_from, dispatch_from, is_made_again))
    if index_lost_from is not None:
        _rebuild_index(log, dispatcher, index_lost_from, dispatch_from, progress)
    read_before = progress.read_bytes

    def dispatch(record: RecordFound) -> None:
        progress.read_bytes = read_before + record.physical_offset - start_offset
        if record.physical_offset >= dispatch_from:
            dispatcher.dispatch(record)

    def dispatch_many(view: memoryview, position: int, limit: int, physical_offset: int) -> BatchDone | None:
        progress.read_bytes = read_before + physical_offset - start_offset
        if physical_offset < dispatch_from:
            return None
        return _with_room(
            dispatcher.dispatch_batch(view, position, limit, physical_offset=physical_offset, with_zeros=False)
        )

    scan = scan_log(
        log.files,
        start_offset,
        file_bytes=log.file_bytes,
        limit_offset=log.files.end_offset,
        check_crc=True,
        on_record=dispatch,
        on_many=dispatch_many,
    )
    tail = read_log_tail(log.files, scan.end_offset, file_bytes=log.file_bytes)
    if tail.size and is_cut_kept(disk, log, start_offset=tail.start_offset, end_offset=tail.end_offset):
        tail = LogTail(tail.start_offset, tail.start_offset, is_torn_record=False)
    damage, damage_end = describe_damage(
        tail,
        stop,
        reason=scan.stop_reason,
        vouched_offset=vouched_offset,
        told_end=told_end,
    )
    if damage:
        doubt_tail()
    kept_tail = None
    if tail.size and (damage or not tail.is_torn_record):
        kept_tail = keep_tail(
            disk,
            log,
            start_offset=tail.start_offset,
            end_offset=tail.end_offset,
            wall_ms=wall_ms,
            reason=damage or scan.stop_reason,
        )
    queues.truncate(scan.end_offset)
    if index is not None:
        index.truncate(scan.end_offset, log.stored_ms)
    if stop is not StopKind.CLEAN:
        log.store_again(scan.start_offset, scan.end_offset)
    for segment in log.files.segments(scan.start_offset, scan.end_offset):
        segment.sync()
    is_cut = written is not None and written.durable_offset >= scan.end_offset
    queues.keep_numbers(told_from=written.durable_offset + 1 if written is not None and is_cut else 0)
    queues.write_out()
    queue_sync = queues.take_sync()
    if queue_sync is not None:
        queue_sync.run()
    checkpoint = _checkpoint_at(scan, checkpoint)
    checkpoint.save(disk)
    truncated_bytes = log.set_end(scan.end_offset)
    log.flushed_offset = scan.end_offset
    if log.min_offset:
        queues.correct_min_offsets(log.min_offset)
    return Recovered(
        scan,
        checkpoint,
        truncated_bytes,
        damage,
        damage_end,
        kept_tail,
        tuple(missing_index_files),
        checkpoint_is_lost,
    )


def _checkpoint_at(scan: LogScan, checkpoint: StoreCheckpoint) -> StoreCheckpoint:
    """Vouches for what was recovered, and for nothing behind its end: other records will lie there."""
    last = scan.last_record
    if last is not None:
        return replace(
            checkpoint,
            physic_message_timestamp_ms=last.store_timestamp_ms,
            logics_message_timestamp_ms=last.store_timestamp_ms,
            logics_physical_offset=last.physical_offset,
        )
    offset = checkpoint.logics_physical_offset
    return replace(checkpoint.vouching_for_nothing(), logics_physical_offset=offset if offset < scan.end_offset else 0)


def _start_empty(
    disk: Disk,
    log: CommitLog,
    queues: ConsumeQueueTable,
    index: IndexTable | None,
    checkpoint: StoreCheckpoint,
    *,
    stop: StopKind,
    doubt_tail: Callable[[], None],
) -> Recovered:
    """Without a log, whatever was derived from one is wrong."""
    scan = LogScan(0, 0, 0, None, "no files")
    nothing = LogTail(0, 0, is_torn_record=False)
    damage, damage_end = describe_damage(
        nothing, stop, reason=scan.stop_reason, vouched_offset=checkpoint.logics_physical_offset
    )
    if damage:
        doubt_tail()
    queues.remove_all()
    if index is not None:
        index.load(StopKind.CLEAN, durable_timestamp_ms=0)
        index.remove_all()
    if checkpoint != StoreCheckpoint():
        checkpoint = StoreCheckpoint()
        checkpoint.save(disk)
    log.set_end(0)
    return Recovered(scan, checkpoint, 0, damage, damage_end, None)


def _durable_record(log: CommitLog, checkpoint: StoreCheckpoint) -> RecordFound | None:
    """The record our checkpoint vouches for; None if it names none, or the log has none there (a Java broker ran)."""
    offset = checkpoint.logics_physical_offset
    return record_at(log.files, offset, file_bytes=log.file_bytes) if offset > 0 else None


def _counts(written: QueueEnds, checkpoint: StoreCheckpoint, durable: RecordFound | None, stop: StopKind) -> bool:
    """Whether that is where queues and log were; not if a Java broker ran since, which leaves the file as it is."""
    if stop is StopKind.CLEAN and written.durable_offset != checkpoint.logics_physical_offset:
        return False
    # Ours names the store time of the very record.
    return durable is None or checkpoint.physic_message_timestamp_ms <= durable.store_timestamp_ms


def _rocketmq_start(log: CommitLog, checkpoint: StoreCheckpoint, stop: StopKind, queues_end: int) -> int:
    """Start of the file from which RocketMQ would recover (CommitLog.recoverNormally, recoverAbnormally of 5.3.3)."""
    files = log.files
    last_start = files.end_offset - log.file_bytes
    if stop is StopKind.CLEAN:
        return max(files.first_offset, min(files.file_start(max(0, queues_end - 1)), last_start))
    file_start = last_start
    while file_start > files.first_offset:
        first = first_record(files, file_start, file_bytes=log.file_bytes)
        if first is not None and 0 < first.store_timestamp_ms <= checkpoint.min_timestamp_ms:
            break
        file_start -= log.file_bytes
    return file_start


def _with_room(done: BatchDone | None) -> BatchDone | None:
    """DiskFull: a store without room for what is derived does not start, as after a single record."""
    if done is not None and done.no_room:
        raise DiskFull("no room for the ConsumeQueues and the index")
    return done


def _make_again_behind_ends(
    log: CommitLog, queues: ConsumeQueueTable, dispatcher: Dispatcher, ends_offset: int, durable: RecordFound
) -> None:
    """The checkpoint vouches for entries of all records up to `durable`, and where queues ended was written down only
    at the record at `ends_offset`, some seconds before. A queue that lacks entries of records between is damaged, an
    older copy of its files perhaps: it gets them here, or the walk would fill the gap with nothing."""
    ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in queues}
    scan_log(
        log.files,
        max(log.files.first_offset, ends_offset),
        file_bytes=log.file_bytes,
        limit_offset=durable.physical_offset + durable.size,
        check_crc=False,
        on_record=dispatcher.dispatch,
        on_many=lambda view, position, limit, physical_offset: _with_room(
            dispatcher.dispatch_batch(view, position, limit, physical_offset=physical_offset, with_zeros=False)
        ),
    )
    queues.damaged.extend(
        (queue.topic, queue.queue_id, end)
        for queue in queues
        if queue.max_offset != (end := ends.get((queue.topic, queue.queue_id), 0))
    )


def _rebuild_index(
    log: CommitLog, dispatcher: Dispatcher, lost_from: int, end_offset: int, progress: RecoveryProgress
) -> None:
    """Enters the records of [lost_from, end_offset) into the index again, as far back as is worth the time."""
    oldest = max(log.files.first_offset, log.files.file_start(max(0, end_offset - _INDEX_REBUILD_BYTES_MAX)))
    start_offset = max(lost_from, oldest)
    progress.bytes_to_read += max(0, end_offset - start_offset)

    def enter_many(view: memoryview, position: int, limit: int, physical_offset: int) -> BatchDone | None:
        progress.read_bytes = physical_offset - start_offset
        return _with_room(
            dispatcher.dispatch_batch(
                view, position, limit, physical_offset=physical_offset, with_zeros=False, index_only=True
            )
        )

    scan_log(
        log.files,
        start_offset,
        file_bytes=log.file_bytes,
        limit_offset=end_offset,
        check_crc=False,
        on_record=dispatcher.dispatch_to_index,
        on_many=enter_many,
    )
    progress.read_bytes = max(0, end_offset - start_offset)


def _make_missing_index_files(
    log: CommitLog, dispatcher: Dispatcher, index: IndexTable, progress: RecoveryProgress, *, index_start: int
) -> list[MissingIndexFile]:
    """IndexFiles follow each other: where the log has keys between the last record of one and the first of the next,
    there was another one; and one before the oldest, if that began at `index_start`. Makes it again, with the same
    entries, unless that takes too long."""
    missing: list[MissingIndexFile] = []
    files = [None, *index.files] if index_start >= 0 else index.files
    for before, behind in pairwise(files):
        assert behind is not None, "only what is before the oldest is none"
        start = max(index_start if before is None else before.end_physical_offset, log.files.first_offset)
        end = behind.begin_physical_offset
        if not (_has_keys(log, start, end) if before is None else _has_keys_between(log, before, end)):
            continue
        is_made_again = end - start <= _INDEX_REBUILD_BYTES_MAX
        if is_made_again:
            index.open_gap(before)
            try:
                _rebuild_index(log, dispatcher, start, end, progress)
                _enter_first_part(log, index, behind)
                index.enter_waiting()
            except DiskFull:
                is_made_again = False
            finally:
                index.close_gap()
        missing.append(MissingIndexFile(start, end, is_made_again))
    return missing


def _has_keys_between(log: CommitLog, before: IndexFile, end: int) -> bool:
    """Whether a record between the last one of an IndexFile and `end` belongs into one; looks no farther than is usual
    for it."""
    offset = before.end_physical_offset
    if offset < log.files.first_offset:
        offset = log.files.first_offset
    elif (last := record_at(log.files, offset, file_bytes=log.file_bytes)) is not None:
        offset += last.size
    return _has_keys(log, offset, end)


def _has_keys(log: CommitLog, offset: int, end: int) -> bool:
    """Whether a record of [offset, end) belongs into an IndexFile. A record starts at `offset`, or lies before it."""
    for _ in range(_KEYLESS_MAX):
        if offset >= end:
            return False
        record = record_at(log.files, offset, file_bytes=log.file_bytes)
        if record is None:  # The rest of a file, most of the time.
            offset = log.files.file_start(offset) + log.file_bytes
        elif enters_index(record.sys_flag) and any(index_terms(decode_properties(record.properties))):
            return True
        else:
            offset += record.size
    return False


def _enter_first_part(log: CommitLog, index: IndexTable, behind: IndexFile) -> None:
    """Of the first record of a file the first entries may have stood in the file before."""
    record = record_at(log.files, behind.begin_physical_offset, file_bytes=log.file_bytes)
    if record is None:
        return
    tag, keys = index_terms(decode_properties(record.properties))
    hashes = term_hashes(record.topic, keys, tag)
    own = hashes[: len(hashes) - behind.first_record_entries]
    if own and own != hashes:
        index.put_hashes_later(own, record.physical_offset, record.store_timestamp_ms)


# How the last run ended. Two files tell: RocketMQ's `abort`, and our `boot`.
#
# | file  | content                       | written                      | removed                        |
# |-------|-------------------------------|------------------------------|--------------------------------|
# | abort | process id, decimal           | when the store begins to run | last step of an orderly stop   |
# | boot  | Disk.boot_id() of the machine | before `abort`               | before `abort`                 |
#
# So `boot` without `abort` is no orderly stop either: somebody has removed `abort`, perhaps a Java broker that ran
# after ours was killed, or the process died between the two.
#
# An `abort` file at start means that the last run was not ended in order. If `boot` names this very run of the machine,
# the kernel still has all that the killed process wrote. If it is missing (a Java broker ran) or names another run,
# pages may be lost.
#
# A store that may have lost pages has a `boot` that names no machine until its owner says that nothing is missing any
# more. The answer to "was anything lost?" must survive a kill, and an orderly stop, while what was lost is being
# fetched.

_ABORT_PATH: Final = "abort"
_BOOT_PATH: Final = "boot"
_NO_BOOT: Final = b"doubtful"


def read_stop_kind(disk: Disk) -> tuple[StopKind, bool]:
    """How the last run ended, and whether `abort` is gone though that was not in order."""
    boot, abort_is_there = disk.read_file(_BOOT_PATH), disk.read_file(_ABORT_PATH) is not None
    if boot is None and not abort_is_there:
        return StopKind.CLEAN, False
    return StopKind.KILLED if boot == disk.boot_id().encode() else StopKind.POWER_LOST, not abort_is_there


def set_run_marks(disk: Disk, *, process_id: int) -> None:
    """The store runs from now on. Only after a recovery is complete and durable: a crash in it must not look harmless.

    `boot` first. A crash between the two after an orderly stop finds a store nothing was added to; after a crash
    `abort` is still there, and what `boot` says is true by then.
    """
    disk.write_file(_BOOT_PATH, disk.boot_id().encode())
    disk.write_file(_ABORT_PATH, str(process_id).encode())


def set_doubtful_run_marks(disk: Disk, *, process_id: int) -> None:
    """The store runs, but pages that were lost before may be missing: the next start is to ask the same question."""
    disk.write_file(_BOOT_PATH, _NO_BOOT)
    disk.write_file(_ABORT_PATH, str(process_id).encode())


def clear_run_marks(disk: Disk) -> None:
    """The store has stopped in order; everything is durable."""
    disk.remove(_BOOT_PATH)
    disk.remove(_ABORT_PATH)
