"""The store of one broker: takes messages in, finds them again, and survives.

Life of a put: the record goes to the end of the CommitLog, its entry into its ConsumeQueue, its keys into the index,
all in memory the process's death cannot touch (the page cache) or that can be derived again. Flush jobs make it
durable; the caller of `put` decides what to wait for before it acknowledges.

Threads: everything runs on one thread (the event loop's), except the `run` of the jobs handed out here.

Failures: after a DiskError in a job, or while dispatching, nobody knows what is on the platter. The store then refuses
every put for the rest of its life and the broker must stop; recovery finds out what is there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from mypy_extensions import mypyc_attr

from tandemmq.core.clock import Clock
from tandemmq.core.message.properties import MAX_PROPERTIES_BYTES
from tandemmq.core.message.record import (
    SCHEDULE_TOPIC,
    Blank,
    Corrupt,
    Host,
    MessageRecord,
    OutgoingMessage,
    RecordEncoder,
    RecordFound,
    ScanResult,
    ScanStop,
    decode_record,
    delay_tags_code,
    scan_record,
)
from tandemmq.core.message.record_layout import MalformedRecord, enters_consume_queue, enters_index
from tandemmq.core.storage.commit_log import COMMIT_LOG_FOLDER, OTHER_FILES, CommitLog
from tandemmq.core.storage.consume_queue import ConsumeQueue, QueueRun
from tandemmq.core.storage.consume_queue_table import ConsumeQueueTable, StopKind
from tandemmq.core.storage.disk import (
    Disk,
    DiskError,
    DiskFull,
    DiskLock,
    DiskUsage,
    LogGap,
    RawWrite,
    RecordCorrupt,
    StorageError,
)
from tandemmq.core.storage.dispatch import BatchDone, Dispatcher, sound_end
from tandemmq.core.storage.flush_jobs import (
    FlushJob,
    LogFlushJob,
    NextSegmentJob,
    QueueFlush,
    QueueFlushJob,
    QueueFlushRound,
    StoreCheckpoint,
)
from tandemmq.core.storage.index_file import IndexFile
from tandemmq.core.storage.index_table import IndexTable, PagesAheadJob
from tandemmq.core.storage.kept_tail import KeptTail, keep_tail
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.put_result import THE_DISK_IS, AppendResult, PutStatus
from tandemmq.core.storage.recovery import (
    RecoveryProgress,
    RecoveryReport,
    clear_run_marks,
    read_stop_kind,
    recover,
    set_doubtful_run_marks,
    set_run_marks,
)
from tandemmq.core.storage.retention import (
    BelievedTime,
    ExpiryWish,
    Retention,
    RetentionFloor,
    RetentionJob,
    held_words,
)

_LOCK_PATH: Final = "lock"
_TOPIC_BYTES_MAX: Final = 255
_TOPIC_CHARACTERS_MAX: Final = _TOPIC_BYTES_MAX // 4
"""A topic of so many characters has no more bytes than allowed, whatever they are."""
_RECORD_HEAD_ROOM_BYTES: Final = 8
_RECORD_SIZE_BYTES: Final = 4
_DISK_FULL: Final = f"{THE_DISK_IS} full"
_INDEX_SECOND_MS: Final = 999
"""The index knows store times to the second, rounded down."""
_NS_PER_MS: Final = 1_000_000
_PUT_OK: Final = PutStatus.PUT_OK
"""Reading a member of an enum takes longer than making the result."""


_CHECKED_BYTES_MAX: Final = 1 << 20
"""Checked of a slave's log before one acknowledgement: some 200 us. What is farther behind is read in batches."""


def _has_room(piece: memoryview, position: int, file_end: int) -> bool:
    """Whether the record that begins at `position`, of which a part is there, can still end within its file, which ends
    at `file_end` of the piece."""
    if len(piece) - position < _RECORD_SIZE_BYTES:
        return len(piece) < file_end
    return position + int.from_bytes(piece[position : position + _RECORD_SIZE_BYTES]) <= file_end


def _reason(found: ScanResult) -> str:
    if isinstance(found, Corrupt):
        return found.reason
    if isinstance(found, Blank) or found is ScanStop.INCOMPLETE:
        return OTHER_FILES
    return str(found)


@mypyc_attr(allow_interpreted_subclasses=True)  # the simulator watches a store from a subclass
class MessageStore:
    """See the module's docstring. `load` first, `close` last. Offsets are bytes in the CommitLog, ranges half-open."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        options: StoreOptions,
        *,
        store_host: Host,
        process_id: int = 0,
    ) -> None:
        """`store_host` is stamped into each record; `process_id` goes into the abort file, for people to read."""
        self._disk: Final = disk
        self._clock: Final = clock
        self._options = options
        # As it is: asked for every put.
        self._wall_ns: Final = clock.wall_ns
        self._encoder: Final = RecordEncoder(store_host)
        self._process_id: Final = process_id
        self._log: Final = CommitLog(disk, file_bytes=options.commit_log_file_bytes)
        self.queues: Final = ConsumeQueueTable(disk, file_bytes=options.consume_queue_file_bytes)
        self._index: Final = (
            IndexTable(disk, slot_count=options.index_slot_count, entry_count=options.index_entry_count)
            if options.index_enabled
            else None
        )
        if self._index is not None:
            self.queues.index_start = self._index.start_offset
        self._retention: Final = Retention(disk, self._log, self.queues, self._index, options)
        self._dispatcher: Final = Dispatcher(
            self.queues,
            self._index,
            delay_levels_ms=options.delay_levels_ms,
            batch_bytes_min=options.dispatch_batch_bytes_min,
            walk_bytes_max=options.dispatch_walk_bytes_max,
        )
        self._lock: DiskLock | None = None
        self._queue_flush: Final = QueueFlush(
            disk, clock, options, log=self._log, queues=self.queues, index=self._index, on_failure=self._fail
        )
        self._record_bytes_max: Final = options.commit_log_file_bytes - _RECORD_HEAD_ROOM_BYTES
        self._dispatched_offset = 0
        self._checked_offset = 0
        self._last_record_offset = 0
        self._last_store_timestamp_ms = 0
        self._preparation_is_out = False
        # Why puts are refused. The first that is set counts; `_refusal` is their sum, read by every put.
        self._failure: DiskError | None = None
        self._unwritable_reason: str | None = "the store is not loaded"
        self._disk_is_full = False
        self._held_words: str | None = None
        self.refusal: str | None = self._unwritable_reason
        """Why puts are refused, in words; None if they are not."""
        self._tail_is_doubtful = False
        self._stop_kind: tuple[StopKind, bool] | None = None
        """As the first try to load found it: one that finds damage and then no room leaves a store in doubt."""
        self.recovery_progress: Final = RecoveryProgress()
        """Of `load`, for other threads."""

    # Life

    def load(self) -> RecoveryReport:
        """Locks the folder and recovers what is in it. Blocks. Puts are allowed when it returns.

        StoreLocked, SegmentSizeMismatch, LogGap and DiskError say why there is no start; nothing was changed then that
        a later start would miss. After a DiskFull it may be called again.
        """
        self.recovery_progress.begin(now_ms=self._clock.monotonic_ms())
        self._lock = self._disk.lock(_LOCK_PATH)
        try:
            return self._load()
        except StorageError:
            self._lock.release()
            self._lock = None
            raise

    def _load(self) -> RecoveryReport:
        if self._stop_kind is None:
            self._stop_kind = read_stop_kind(self._disk)
        stop, abort_is_gone = self._stop_kind
        recovered = recover(
            disk=self._disk,
            log=self._log,
            queues=self.queues,
            index=self._index,
            dispatcher=self._dispatcher,
            checkpoint=StoreCheckpoint.load(self._disk),
            stop=stop,
            progress=self.recovery_progress,
            wall_ms=self._clock.wall_ms(),
            doubt_tail=self.doubt_tail,
        )
        scan = recovered.scan
        self._queue_flush.checkpoint = recovered.checkpoint
        self._dispatched_offset = scan.end_offset
        self._last_record_offset = recovered.checkpoint.logics_physical_offset
        self._last_store_timestamp_ms = recovered.checkpoint.physic_message_timestamp_ms
        if scan.last_record is not None:
            self._last_record_offset = scan.last_record.physical_offset
            self._last_store_timestamp_ms = max(self._last_store_timestamp_ms, scan.last_record.store_timestamp_ms)
        self.queues.save_ends(recovered.checkpoint.logics_physical_offset)
        if stop is StopKind.POWER_LOST or recovered.damage:
            self.doubt_tail()
        else:
            self.trust_tail()
        self._stop_kind = None
        self.check_disk()
        self.set_writable(True)
        self.recovery_progress.end(now_ms=self._clock.monotonic_ms())
        return RecoveryReport(
            clean=stop is StopKind.CLEAN,
            same_boot=stop is StopKind.KILLED,
            start_offset=scan.start_offset,
            end_offset=scan.end_offset,
            redispatched_records=scan.record_count,
            truncated_bytes=recovered.truncated_bytes,
            damage=recovered.damage,
            damage_end=recovered.damage_end,
            damaged_queues=self.queues.damaged_themselves() if recovered.damage else tuple(self.queues.damaged),
            damaged_index_files=tuple(self._index.damaged) if self._index is not None else (),
            missing_index_files=recovered.missing_index_files,
            kept_tail=recovered.kept_tail,
            stop_reason=scan.stop_reason,
            duration_ms=self.recovery_progress.elapsed_ms(now_ms=self._clock.monotonic_ms()),
            checkpoint_is_lost=recovered.checkpoint_is_lost,
            abort_is_gone=abort_is_gone,
        )

    def doubt_tail(self) -> None:
        """Records may be missing at the end: until `trust_tail`, every next start reports that it may have lost some.

        `load` does so itself after a power loss, and where the log was damaged; the owner does before it fetches into
        an empty store. Blocks.
        """
        set_doubtful_run_marks(self._disk, process_id=self._process_id)
        self._tail_is_doubtful = True

    def trust_tail(self) -> None:
        """Nothing is missing, or nothing more can be had: a kill from now on loses nothing. Blocks."""
        set_run_marks(self._disk, process_id=self._process_id)
        self._tail_is_doubtful = False

    def close(self) -> None:
        """Makes everything durable and stops in order. No job may be running. Blocks.

        After a disk failure it only lets go: the next start must not believe in an orderly stop.
        """
        self.set_writable(False, "shutting down")
        if self._lock is None:
            return
        if self._failure is None:
            self._make_durable()
        self.queues.close()
        self._log.close()
        self._lock.release()
        self._lock = None

    def _make_durable(self) -> None:
        assert not self._queue_flush.is_out, "a flush job is still out"
        self._cut_half_record()
        # All queues at once: nobody waits for this thread any more.
        for next_job in (self.log_flush_job, lambda: self._next_queue_flush_job(cost_max=sys.maxsize)):
            while (job := next_job()) is not None:
                job.run()
                self.flush_finished(job)
                if isinstance(job, QueueFlushJob) and job.no_room:
                    break  # The next round would meet the same full disk.
        try:
            self._save_last_checkpoint()
        except DiskFull:
            pass  # The marks of this run stay: the next start reads again what no checkpoint vouches for.

    def _save_last_checkpoint(self) -> None:
        if self._index is not None:
            index_start = self._index.start_offset()
            self.queues.index_start = lambda: index_start  # It is closed when this is written down.
            checkpoint = self._queue_flush.checkpoint
            self._queue_flush.save(replace(checkpoint, index_message_timestamp_ms=self._index.close()))
        # Without room for the ConsumeQueues the next start has to make them again, and a doubtful tail it has to
        # doubt again: it must not think this one clean.
        if self._queue_flush.saved_offset == self._dispatched_offset and not self._tail_is_doubtful:
            self.queues.save_ends(self._queue_flush.checkpoint.logics_physical_offset)
            clear_run_marks(self._disk)

    def _cut_half_record(self) -> None:
        """A slave's log may end in the middle of a record. The master sends it again."""
        try:
            while self.dispatch():
                pass
        except RecordCorrupt:
            pass  # Cut off below, like a half one.
        if self._dispatched_offset < self._log.end_offset:
            self._log.set_end(self._dispatched_offset)

    # Extents

    @property
    def min_offset(self) -> int:
        """Oldest byte kept."""
        return self._log.min_offset

    @property
    def end_offset(self) -> int:
        """Where the next record goes. Everything below is in its file. DiskError: see `write_appended`."""
        self.write_appended()
        return self._log.end_offset

    @property
    def flushed_offset(self) -> int:
        """Everything below is durable."""
        return self._log.flushed_offset

    @property
    def dispatched_offset(self) -> int:
        """Every whole record below is in its ConsumeQueue. On a master the end; a slave's log may end in a half one."""
        self.write_appended()
        return self._dispatched_offset

    @property
    def walk_bytes_max(self) -> int:
        """Up to so much waiting log is dispatched record by record in compiled code; 0: none, see StoreOptions."""
        return self._dispatcher.walk_bytes_max

    @property
    def saved_offset(self) -> int:
        """Every record that starts below has its ConsumeQueue entry and its index entries in their files."""
        return max(self._queue_flush.saved_offset, self._log.min_offset)

    @property
    def queued_offset(self) -> int:
        """Every record that starts below has its ConsumeQueue entry in its file. Before the first flush that is what
        the checkpoint vouches for: an audit that begins with the broker checks it."""
        vouched = self._queue_flush.checkpoint.logics_physical_offset
        return max(self.saved_offset, vouched + 1 if vouched > 0 else 0)

    @property
    def segment_bytes(self) -> int:
        return self._log.file_bytes

    @property
    def checkpoint(self) -> StoreCheckpoint:
        """As last written."""
        return self._queue_flush.checkpoint

    # Writing, as a master

    def set_writable(self, writable: bool, reason: str = "") -> None:
        """Allows puts, or refuses them for `reason`: the role, a shutdown. A half record must be cut off before."""
        assert not writable or self._dispatched_offset == self._log.end_offset, (
            f"the log ends with a half record at {self._dispatched_offset}; truncate there before writing"
        )
        self._unwritable_reason = None if writable else reason or "not writable"
        self._judge_refusal()

    def put(self, message: OutgoingMessage) -> AppendResult:
        """Appends a message and makes it findable. It outlives the process after `write_appended`, which whoever
        acknowledges it has to call before, and the machine once `flushed_offset` is behind it.

        Every refusal is a status. DiskError: the message is in the log, its entry may not be; the broker must stop.
        """
        if self.refusal is not None or self._failure is not None:
            return AppendResult.refused(self._refused_status)
        status = self._judge(message)
        if status is not None:
            return AppendResult.refused(status)
        log = self._log
        store_timestamp_ms = self._wall_ns() // _NS_PER_MS
        if store_timestamp_ms < self._last_store_timestamp_ms:
            store_timestamp_ms = self._last_store_timestamp_ms
        topic, queue_id = message.topic, message.queue_id
        queue = self.queues.get_or_create(topic, queue_id)
        queue_offset = queue.max_offset if not message.sys_flag or enters_consume_queue(message.sys_flag) else 0
        physical_offset = log.end_offset
        assert physical_offset == self._dispatched_offset, "a put behind a half record"
        record = self._encoder.encode(message, queue_offset, physical_offset, store_timestamp_ms)
        if not log.append(record):
            status = self._roll_for(len(record))
            return self.put(message) if status is None else AppendResult.refused(status)
        end_offset = log.end_offset
        self._last_store_timestamp_ms = store_timestamp_ms
        self._enter(message, queue, queue_offset, physical_offset, end_offset, store_timestamp_ms)
        self._dispatched_offset = end_offset
        return AppendResult(_PUT_OK, physical_offset, end_offset, queue_offset, store_timestamp_ms)

    def put_batch(self, messages: Sequence[OutgoingMessage]) -> list[AppendResult]:
        """Appends messages one behind the other with one store timestamp: all of them, or none and the same refusal."""
        status = self._judge_batch(messages)
        if status is not None:
            return [AppendResult.refused(status) for _ in messages]
        log = self._log
        store_timestamp_ms = max(self._wall_ns() // _NS_PER_MS, self._last_store_timestamp_ms)
        encoder = self._encoder
        parts: list[bytes] = []
        runs: list[QueueRun] = []
        results: list[AppendResult] = []
        physical_offset = log.end_offset
        assert physical_offset == self._dispatched_offset, "a put behind a half record"
        for message in messages:
            sys_flag = message.sys_flag
            if not sys_flag or enters_consume_queue(sys_flag):
                run = self._run_for(message, runs)
                queue_offset = run.next_offset
                size = encoder.encode_to(parts, message, queue_offset, physical_offset, store_timestamp_ms)
                run.add(physical_offset, size, self._queue_tags_code(message, store_timestamp_ms))
            else:
                queue_offset = 0
                size = encoder.encode_to(parts, message, queue_offset, physical_offset, store_timestamp_ms)
            end_offset = physical_offset + size
            results.append(AppendResult(_PUT_OK, physical_offset, end_offset, queue_offset, store_timestamp_ms))
            physical_offset = end_offset
        if not log.append(b"".join(parts)):
            status = self._roll_for(physical_offset - log.end_offset)
            return self.put_batch(messages) if status is None else [AppendResult.refused(status) for _ in messages]
        self._last_store_timestamp_ms = store_timestamp_ms
        if results:
            self._last_record_offset = results[-1].physical_offset
        self._enter_batch(messages, runs, results)
        self._dispatched_offset = log.end_offset
        return results

    def write_appended(self) -> None:
        """Writes what was put since the last call, all of it at once: to be called when a turn's puts are appended.

        Reads and flushes see to it as well. DiskError: the broker must stop.
        """
        if self._log.has_gathered:
            try:
                self._log.write_gathered()
            except DiskError as error:
                self._fail(error)
                raise

    def _judge_batch(self, messages: Sequence[OutgoingMessage]) -> PutStatus | None:
        if self.refusal is not None or self._failure is not None:
            return self._refused_status
        for message in messages:
            status = self._judge(message)
            if status is not None:
                return status
        return None

    def _run_for(self, message: OutgoingMessage, runs: list[QueueRun]) -> QueueRun:
        """The last of `runs` if the message goes on with it, which is the usual case; a new last one otherwise."""
        if runs:
            run = runs[-1]
            if message.queue_id == run.queue.queue_id and message.topic == run.queue.topic:
                return run
        queue = self.queues.get_or_create(message.topic, message.queue_id)
        next_offset: int = queue.max_offset
        for run in runs:
            if run.queue is queue:
                next_offset = run.next_offset
        runs.append(QueueRun(queue, next_offset))
        return runs[-1]

    def _enter_batch(
        self, messages: Sequence[OutgoingMessage], runs: list[QueueRun], results: list[AppendResult]
    ) -> None:
        """`_enter` of all records of a batch: one without room keeps no other from being entered."""
        for run in runs:
            try:
                run.enter()
            except DiskFull:
                self._no_room()
            except DiskError as error:
                self._fail(error)
                raise
        index = self._index
        if index is None:
            return
        for number, message in enumerate(messages):
            if not message.sys_flag or enters_index(message.sys_flag):
                result = results[number]
                index.note(
                    message.topic, message.index_keys, message.tag, result.physical_offset, result.store_timestamp_ms
                )
        if index.has_many_waiting:
            self._enter_into_index()

    # Writing, as a slave

    def append_raw(self, start_offset: int, data: bytes | memoryview) -> None:
        """`append_replicated` of one part."""
        self.append_replicated(start_offset, (memoryview(data),))

    def append_replicated(self, start_offset: int, parts: Sequence[memoryview]) -> None:
        """Appends bytes of the master's log at the end, each part within one file; they need not end with a record.

        An empty store takes any file's start: its master no longer has what came before. LogGap: they do not follow.
        DiskFull: no room for the next file, what lies before it is there. StorageError: a part does not lie within one
        file; those before it are there.
        """
        log = self._log
        if start_offset != log.end_offset:
            if log.end_offset != log.min_offset or start_offset % log.file_bytes:
                raise LogGap(COMMIT_LOG_FOLDER, expected_offset=log.end_offset, found_offset=start_offset)
            self._restart_at(start_offset)
        log.append_parts(parts)
        if start_offset == self._checked_offset or start_offset == self._dispatched_offset:
            self._check_parts(start_offset, parts)

    def replicated_write(self, start_offset: int, parts: Sequence[memoryview]) -> RawWrite | None:
        """What does the work of `append_replicated` in a thread; None: that has to do it, for it is not mere writing.

        The bytes belong to the log once `replicated_write_finished` was told. Until then nothing else may be appended,
        nothing truncated, and this store not be closed; dispatch and flush jobs go on with what was there before.
        """
        log = self._log
        if start_offset != log.end_offset or log.end_offset == log.min_offset:
            return None
        return log.raw_write(parts)

    def replicated_write_finished(self, write: RawWrite) -> None:
        """The write's `run` returned."""
        self._log.written(write)

    def dispatch(self, *, max_records: int = 4096) -> int:
        """Enters whole records that were appended raw into ConsumeQueues and index; returns how many.

        Where many are waiting they are entered in batches, the last of which may bring more than `max_records`: it
        takes no longer. Stops at a half record; the rest of it has to arrive. RecordCorrupt: the master's bytes are no
        record, or got here damaged; the slave must truncate at `dispatched_offset` and begin again.
        """
        log = self._log
        done = 0
        self._dispatcher.checked_up_to(self._checked_offset)
        while done < max_records and self._dispatched_offset < log.end_offset:
            file_start = self._dispatched_offset - self._dispatched_offset % log.file_bytes
            piece = log.read(self._dispatched_offset, log.file_bytes)
            base = self._dispatched_offset
            position = 0
            found: ScanResult | None = None
            while done < max_records and position < len(piece):
                batch = self._dispatch_batch(piece, position, base + position)
                if batch is not None:
                    position = batch.end_offset - base
                    done += batch.record_count
                    found = None
                    continue
                found = scan_record(piece, position, len(piece), physical_offset=base + position)
                if not isinstance(found, RecordFound):
                    break
                self._dispatch(found)
                position += found.size
                done += 1
            self._dispatched_offset = base + position
            if position == len(piece) or found is None or isinstance(found, RecordFound):
                continue
            if isinstance(found, Blank) and found.size == file_start + log.file_bytes - self._dispatched_offset:
                if log.end_offset < self._dispatched_offset + found.size:
                    break
                self._dispatched_offset += found.size
            elif found is ScanStop.INCOMPLETE and _has_room(piece, position, file_start + log.file_bytes - base):
                break
            else:
                raise RecordCorrupt(self._dispatched_offset, _reason(found))
        return done

    @property
    def checked_offset(self) -> int:
        """Raw bytes below it are whole records whose parts add up and whose bodies have their CRC, or a file's rest."""
        return max(self._checked_offset, self._dispatched_offset)

    def check_appended(self, *, max_bytes: int = _CHECKED_BYTES_MAX) -> int:
        """Checks whole records that were appended raw, as `dispatch` will; returns the new `checked_offset`.

        In front of the acknowledgement of a copy, which must not be one of other bytes. Mostly `append_replicated` has
        done so already. No record is begun behind `max_bytes`. RecordCorrupt: as for `dispatch`; what was checked stays
        so.
        """
        log = self._log
        offset = self.checked_offset
        stop = offset + max_bytes
        while offset < log.end_offset and offset < stop:
            piece = log.read(offset, log.file_bytes)
            sound = sound_end(piece, 0, len(piece), offset, stop - offset)
            offset = self._checked_offset = offset + sound
            if sound == len(piece) or offset >= stop:
                continue
            found = scan_record(piece, sound, len(piece), physical_offset=offset)
            if isinstance(found, RecordFound):
                offset += found.size
            elif isinstance(found, Blank) and found.size == log.file_bytes - offset % log.file_bytes:
                if log.end_offset < offset + found.size:
                    break
                offset += found.size
            elif found is ScanStop.INCOMPLETE and _has_room(
                piece, sound, sound + log.file_bytes - offset % log.file_bytes
            ):
                break
            else:
                raise RecordCorrupt(offset, _reason(found))
            self._checked_offset = offset
        return offset

    def _check_parts(self, offset: int, parts: Sequence[memoryview]) -> None:
        """The same with what was just appended at `offset`, while the processor has it at hand."""
        for part in parts:
            size = len(part)
            sound = sound_end(part, 0, size, offset, _CHECKED_BYTES_MAX)
            self._checked_offset = offset = offset + sound
            if sound != size:
                break

    def truncate(self, end_offset: int, *, reason: str = "") -> KeptTail | None:
        """Cuts the log at a record's boundary and drops what was derived from the rest. None: nothing was behind it.

        The bytes are kept aside durably first, with the `reason` in words. A crash at any step leaves a log that ends
        at the new end, the old one, or a record's end in between, and agrees with what is derived from it. Blocks. No
        job of `queue_flush_job` or `preparation_job` may be out.
        """
        log = self._log
        self._assert_no_job_is_out()
        assert log.min_offset <= end_offset <= log.end_offset, f"{end_offset} is outside the log"
        if end_offset == log.end_offset:
            return None
        # Before the copy: where there is no room for it, each further try would leave one more.
        self._queue_flush.lower_checkpoint(end_offset)
        kept = keep_tail(
            self._disk,
            log,
            start_offset=end_offset,
            end_offset=log.end_offset,
            wall_ms=self._clock.wall_ms(),
            reason=reason,
        )
        self.queues.truncate(end_offset)
        if self._index is not None:
            self._index.truncate(end_offset, log.stored_ms)
        log.set_end(end_offset)
        self._dispatched_offset = min(self._dispatched_offset, end_offset)
        self._checked_offset = min(self._checked_offset, end_offset)
        self._last_record_offset = self._queue_flush.checkpoint.logics_physical_offset
        return kept

    # Reading

    def read_log(self, offset: int, max_bytes: int) -> memoryview:
        """Bytes of the log, no copy: within one file, not beyond the end, empty if out of range. Not to be kept."""
        return self._log.read(offset, max_bytes)

    def message_at(self, physical_offset: int, size: int | None = None) -> MessageRecord:
        """The record that starts at `physical_offset`; `size`, if the caller knows it, spares nothing but is checked.

        RecordCorrupt: there is none, because the offset is wrong, the file is gone, or the disk lied.
        """
        data = self._log.read(physical_offset, self._log.file_bytes if size is None else size)
        if not data:
            raise RecordCorrupt(physical_offset, f"the log is [{self.min_offset}, {self.end_offset})")
        try:
            record = decode_record(data)
        except MalformedRecord as error:
            raise RecordCorrupt(physical_offset, error.reason) from error
        if record.physical_offset != physical_offset or size not in (None, record.total_size):
            raise RecordCorrupt(physical_offset, "another record lies there")
        return record

    def written_after_ms(self, physical_offset: int) -> int | None:
        """How long after the record at this offset the last one was written, by store times; None: there is none."""
        try:
            first = self.message_at(physical_offset)
            last = self.message_at(self._last_record_offset)
        except RecordCorrupt:
            return None
        return last.store_timestamp_ms - first.store_timestamp_ms

    def index_walk(self, topic: str, key: str, *, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Where records with `key` may start, newest first, None in between: see `IndexTable.walk`. Whoever reads them
        compares key and time. Nothing at all when there is no index."""
        if self._index is None:
            return iter(())
        self._enter_into_index()
        return self._index.walk(topic, key, begin_ms=begin_ms - _INDEX_SECOND_MS, end_ms=end_ms)

    def consume_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, its min_offset up to date; None if it never had a message here."""
        self._retention.trim_queue(topic, queue_id)
        return self.queues.get(topic, queue_id)

    def queue_max_offset(self, topic: str, queue_id: int) -> int:
        """The next message's number; 0 for a queue without messages."""
        queue = self.queues.get(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def queue_min_offset(self, topic: str, queue_id: int) -> int:
        """The oldest message's number that is still kept; 0 for a queue without messages."""
        queue = self.consume_queue(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def digest(self, start_offset: int, end_offset: int) -> bytes:
        """SHA-256 of a range of the log. Blocks for about 0.6 ms per MiB."""
        return self._log.digest(start_offset, end_offset)

    # Repair: what is durable is damaged, and the owner has found out what should stand there

    @property
    def log_cuts(self) -> int:
        """Counts truncations: who works on a part of the log for a while asks whether it is still the same log."""
        return self._log.cuts

    def replace_log(self, offset: int, data: bytes) -> None:
        """Puts bytes in the place of durable ones, within one file. Readers see them at once. Not durable before
        `log_sync_job` has run. What was derived from the old bytes stays as it is."""
        self._log.replace(offset, data)

    def log_sync_job(self, start_offset: int, end_offset: int) -> FlushJob:
        """What makes the files of a range durable that already were so, after `replace_log`."""
        return LogFlushJob(
            segments=self._log.files.segments(start_offset, end_offset),
            end_offset=self._log.flushed_offset,
            cuts=self._log.cuts,
            on_failure=self._fail,
        )

    def rewrite_queue(self, topic: str, queue_id: int, entry_offset: int, entries: bytes) -> None:
        """Puts entries in the place of those that a queue has. Not durable before `queue_sync_job` has run.

        DiskFull: not all were; the call may be repeated.
        """
        queue = self.queues.get(topic, queue_id)
        assert queue is not None, f"there is no queue {queue_id} of {topic}"
        try:
            queue.rewrite(entry_offset, entries)
        except DiskFull:
            raise
        except DiskError as error:
            self._fail(error)
            raise

    def queue_sync_job(self) -> FlushJob:
        """What makes rewritten entries durable. No job of `queue_flush_job` may be out."""
        self._assert_no_job_is_out()
        return self._queue_flush.sync_job()

    # Jobs

    def log_flush_job(self) -> FlushJob | None:
        """What makes the log durable up to its end; None if it is. Several may be out; finish each that succeeded."""
        segments, end_offset = self._log.unflushed()
        if not segments:
            return None
        return LogFlushJob(segments=segments, end_offset=end_offset, cuts=self._log.cuts, on_failure=self._fail)

    def queue_flush_job(self) -> FlushJob | None:
        """What makes ConsumeQueues and checkpoint durable; None if they are, or one is out, or there is no room, or it
        is too soon: the more queues have something to write, the longer they wait for more of it.

        Many queues are a round of several jobs, see QueueFlush; each writes as much here as `queue_flush_cost_max`
        allows. See `queue_flush_due`.
        """
        if self._queue_flush.is_too_soon(self._dispatched_offset):
            return None
        return self._next_queue_flush_job(cost_max=self._options.queue_flush_cost_max)

    def _next_queue_flush_job(self, *, cost_max: int) -> FlushJob | None:
        now = QueueFlushRound(
            dispatched_offset=self._dispatched_offset,
            last_record_offset=self._last_record_offset,
            # Of that record: one that was cut off since may have been stored later, by another machine's clock.
            last_store_timestamp_ms=self._log.stored_ms(self._last_record_offset) or 0,
        )
        try:
            return self._queue_flush.next_job(now, cost_max=cost_max)
        except DiskFull:
            # Entries wait in memory and can be derived again: nothing is lost but the speed of the next recovery.
            self._no_room()
            return None
        except DiskError as error:
            self._fail(error)
            raise

    @property
    def queue_flush_due(self) -> bool:
        """Whether a job that finished has left a round unfinished: `queue_flush_job` is to be called again at once."""
        return self._queue_flush.is_due

    def flush_finished(self, job: FlushJob) -> None:
        """The job's `run` returned. Moves `flushed_offset`."""
        self._log.flushed(job.end_offset, cuts=job.cuts)
        if isinstance(job, QueueFlushJob):
            self._queue_flush.finished(job)
            if job.no_room:
                self._no_room()

    def preparation_job(self) -> NextSegmentJob | None:
        """What makes the next file of CommitLog or index, once the newest one is half full; None: nothing to do. To be
        asked a few times a second.
        """
        if self._preparation_is_out:
            return None
        job = self._next_log_file_job() or self._next_index_file_job()
        self._preparation_is_out = job is not None
        return job

    def _next_log_file_job(self) -> NextSegmentJob | None:
        next_file = self._log.next_file()
        if next_file is None:
            return None
        start_offset, make = next_file
        return NextSegmentJob(make, lambda segment: self._log.take_prepared(start_offset, segment))

    def _next_index_file_job(self) -> NextSegmentJob | None:
        make = self._index.next_file(wall_ms=self._clock.wall_ms()) if self._index is not None else None
        return NextSegmentJob(make, self._index.take_prepared) if self._index is not None and make is not None else None

    def preparation_finished(self, job: NextSegmentJob) -> None:
        """The job's `run` returned."""
        self._preparation_is_out = False
        if job.segment is not None:
            job.taken(job.segment)

    def pages_ahead_job(self) -> PagesAheadJob | None:
        """What brings the pages that the index comes to next; None: they are there. To be asked a few times a second,
        also while a file is made, which may take one.
        """
        return None if self._index is None else self._index.pages_ahead_job()

    # Retention

    def check_disk(self) -> None:
        """Allows or refuses puts by how full the disk is."""
        self._judge_disk(self._disk.usage())

    def _judge_disk(self, usage: DiskUsage) -> None:
        self._disk_is_full = usage.used_ratio > self._options.disk_warning_ratio
        self._judge_refusal()

    def change_options(self, options: StoreOptions) -> None:
        """From now on: how long files are kept, and how full the disk may be. The rest is not read."""
        self._options = replace(
            self._options,
            file_reserved_hours=options.file_reserved_hours,
            unread_reserved_hours=options.unread_reserved_hours,
            unreplicated_reserved_hours=options.unreplicated_reserved_hours,
            delete_unread_when_full=options.delete_unread_when_full,
            clock_jump_max_hours=options.clock_jump_max_hours,
            delete_when_hours=options.delete_when_hours,
            disk_max_used_ratio=options.disk_max_used_ratio,
            disk_clean_forcibly_ratio=options.disk_clean_forcibly_ratio,
            disk_warning_ratio=options.disk_warning_ratio,
        )
        self._retention.options = self._options
        self.check_disk()

    @property
    def clock_jump_max_ms(self) -> int:
        """How far the wall clock may jump and still be believed."""
        return self._options.clock_jump_max_ms

    def newest_file_ms(self) -> int:
        """When a file of the log was last changed, as the file system tells; 0 for an empty store. Blocks."""
        return max((entry.modified_ms for entry in self._disk.list_folder(COMMIT_LOG_FOLDER)), default=0)

    def expiry_wish(self, time: BelievedTime) -> ExpiryWish:
        """Which files should go by age and disk alone, see retention.py. To be called every 10 s, then `expire`."""
        usage = self._disk.usage()
        self._judge_disk(usage)
        return self._retention.wish(time, usage=usage, dispatched_offset=self._dispatched_offset)

    def expire(self, wish: ExpiryWish, floor: RetentionFloor) -> RetentionJob | None:
        """Gives up the oldest files, as many of the wish as `floor` lets go; the job removes them.

        Then call `trim_queues` until it has nothing left to do.
        """
        job = self._retention.expire(wish, floor, dispatched_offset=self._dispatched_offset)
        self._held_words = held_words(wish, floor, end_offset=self._log.end_offset, options=self._options)
        self._judge_refusal()
        return job

    @property
    def retention_problem(self) -> str | None:
        """For whom files are kept on a disk that is short of room, said before puts are refused; None: for nobody."""
        return self._held_words

    def trim_queues(self, *, max_queues: int = 32) -> bool:
        """Moves queues' min_offset behind files that expired and removes their own files; True if more are waiting."""
        return self._retention.trim_queues(max_queues=max_queues)

    # Inside

    def _judge(self, message: OutgoingMessage) -> PutStatus | None:
        topic = message.topic
        if not topic:
            return PutStatus.MESSAGE_ILLEGAL
        if len(message.properties) > MAX_PROPERTIES_BYTES:
            return PutStatus.PROPERTIES_SIZE_EXCEEDED
        if len(topic) > _TOPIC_CHARACTERS_MAX and len(topic.encode()) > _TOPIC_BYTES_MAX:
            return PutStatus.MESSAGE_ILLEGAL
        return None

    def _roll_for(self, size: int) -> PutStatus | None:
        """Goes on in the next file, as `size` bytes have no room in this one. A status: they have none in any."""
        if size > self._record_bytes_max:
            return PutStatus.MESSAGE_ILLEGAL
        try:
            self._log.roll()
        except DiskError:
            return PutStatus.CREATE_MAPPED_FILE_FAILED
        self._dispatched_offset = self._log.end_offset
        return None

    def _enter(
        self,
        message: OutgoingMessage,
        queue: ConsumeQueue,
        queue_offset: int,
        physical_offset: int,
        end_offset: int,
        store_timestamp_ms: int,
    ) -> None:
        """Makes a record that was just appended findable."""
        self._last_record_offset = physical_offset
        is_plain = not message.sys_flag  # The usual case, decided without two calls.
        try:
            if is_plain or enters_consume_queue(message.sys_flag):
                tags_code = self._queue_tags_code(message, store_timestamp_ms)
                queue.append(queue_offset, physical_offset, end_offset - physical_offset, tags_code)
            if self._index is not None and (is_plain or enters_index(message.sys_flag)):
                self._index.put_later(
                    message.topic, message.index_keys, message.tag, physical_offset, store_timestamp_ms
                )
        except DiskFull:
            # The record is in the log and its entries in memory; only what comes next has no room.
            self._no_room()
        except DiskError as error:
            self._fail(error)
            raise

    def _queue_tags_code(self, message: OutgoingMessage, store_timestamp_ms: int) -> int:
        """What the message's ConsumeQueue entry is filtered by; in the schedule topic, when it is due."""
        if message.topic != SCHEDULE_TOPIC:
            return message.tags_code
        return delay_tags_code(
            message.queue_id + 1,
            store_timestamp_ms=store_timestamp_ms,
            delay_levels_ms=self._options.delay_levels_ms,
        )

    @property
    def index_files(self) -> list[IndexFile]:
        """Oldest first, with all that waited to be entered; none without an index. For who repairs them."""
        if self._index is None:
            return []
        self._enter_into_index()
        return self._index.files

    def _enter_into_index(self) -> None:
        """Makes every record that is in the log findable by its keys."""
        assert self._index is not None, "there is no index"
        try:
            self._index.enter_waiting()
        except DiskFull:
            self._no_room()
        except DiskError as error:
            self._fail(error)
            raise

    def _no_room(self) -> None:
        self._disk_is_full = True
        self._judge_refusal()

    def _dispatch(self, record: RecordFound) -> None:
        self._last_record_offset = record.physical_offset
        self._last_store_timestamp_ms = max(self._last_store_timestamp_ms, record.store_timestamp_ms)
        try:
            self._dispatcher.dispatch(record)
        except DiskFull:
            self._no_room()
        except DiskError as error:
            self._fail(error)
            raise

    def _dispatch_batch(self, piece: memoryview, position: int, physical_offset: int) -> BatchDone | None:
        if len(piece) - position < self._dispatcher.batch_bytes_min:
            return None
        try:
            done = self._dispatcher.dispatch_batch(piece, position, len(piece), physical_offset=physical_offset)
        except DiskError as error:
            self._fail(error)
            raise
        if done is not None:
            self._last_record_offset = done.last_record_offset
            self._last_store_timestamp_ms = max(self._last_store_timestamp_ms, done.last_store_timestamp_ms)
            if done.no_room:
                self._no_room()
        return done

    def _restart_at(self, start_offset: int) -> None:
        """The empty log goes on somewhere else: what was derived from the old one goes, the checkpoint first."""
        self._assert_no_job_is_out()
        self._queue_flush.save(StoreCheckpoint())
        self.queues.remove_all()
        if self._index is not None:
            self._index.remove_all()
        self._log.restart_at(start_offset)
        self.queues.log_starts_at(start_offset)
        self._dispatched_offset = self._last_record_offset = self._checked_offset = start_offset
        self._queue_flush.give_up_round()

    @property
    def _refused_status(self) -> PutStatus:
        is_only_full = self._failure is None and self._unwritable_reason is None
        return PutStatus.DISK_FULL if is_only_full else PutStatus.SERVICE_NOT_AVAILABLE

    def _assert_no_job_is_out(self) -> None:
        assert not self._queue_flush.is_out, "a running flush would vouch for what is cut off"
        assert not self._preparation_is_out, "a file would be made behind the new end"

    def _fail(self, error: DiskError) -> None:
        """May be called in a job's thread: sets plain attributes only, and never unsets one."""
        self._failure = error
        self._judge_refusal()

    def _judge_refusal(self) -> None:
        if self._failure is not None:
            self.refusal = f"the disk failed: {self._failure}"
        elif self._unwritable_reason is not None:
            self.refusal = self._unwritable_reason
        elif self._disk_is_full:
            self.refusal = self._held_words or _DISK_FULL
        else:
            self.refusal = None
