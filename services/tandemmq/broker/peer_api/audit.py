"""ReplicaReaderService and ReplicaRepairService: this replica for those who prove replicas equal, and for `tandemmq
repair`. The edge: protobuf stops here.

Nothing here reads a file on the event loop: worker threads read single files, the helper process whole ranges.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc

from tandemmq.broker.audit.index_repair import IndexRepair
from tandemmq.broker.audit.jobs import (
    AuditHelper,
    CheckRecordsJob,
    DigestAlgorithm,
    DigestExtentsJob,
    HelperBusy,
    HelperGone,
    JobFailed,
    JobFailure,
)
from tandemmq.broker.audit.queue_repair import KeptEntries, QueueMending, QueueOrder, QueueRepair
from tandemmq.broker.audit.range_repair import OwnFile, RangeOrder, RangeRepair, TableRepair
from tandemmq.broker.audit.store_files import OpenFile, PathRefused, ReadPace, StoreFiles, commit_log_start, read_into
from tandemmq.broker.message_group_homes import MESSAGE_GROUP_HOMES_FILE
from tandemmq.broker.peer_client import MemberLogs, SourceLog
from tandemmq.core.audit.repair_plan import Refusal, RepairRefused
from tandemmq.core.audit.replica_store import ReplicaState
from tandemmq.core.clock import Clock
from tandemmq.core.replication.log_history import EPOCH_FILE, REPLICA_FILE, LogRange
from tandemmq.core.storage.consume_queue import QueueEntry
from tandemmq.core.storage.flush_jobs import CHECKPOINT_FILE
from tandemmq.proto.broker.v1 import replica_reader_service_pb2 as pb
from tandemmq.proto.broker.v1 import (
    replica_reader_service_pb2_grpc,
    replica_repair_service_pb2_grpc,
    replica_service_pb2,
)
from tandemmq.proto.broker.v1 import replica_repair_service_pb2 as repair_pb
from tandemmq.service.grpc_server import Invalid, Refused, refusing
from tandemmq.service.protobuf import as_message

if TYPE_CHECKING:
    from tandemmq.broker.parts import BrokerParts

# What went wrong while a replica was read or repaired, as a gRPC status: the one table of both services.

_FAILURES: Final = {
    JobFailure.GONE: grpc.StatusCode.OUT_OF_RANGE,
    JobFailure.UNREADABLE: grpc.StatusCode.INTERNAL,
    JobFailure.UNSOUND: grpc.StatusCode.FAILED_PRECONDITION,
    JobFailure.DEFECT: grpc.StatusCode.INTERNAL,
}

_REFUSALS: Final = {
    Refusal.DISABLED: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Refusal.OUT_OF_RANGE: grpc.StatusCode.OUT_OF_RANGE,
    Refusal.NOT_AS_EXPECTED: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Refusal.BUSY: grpc.StatusCode.ABORTED,
    Refusal.LOG_CHANGED: grpc.StatusCode.ABORTED,
    Refusal.SOURCE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Refusal.SOURCE_UNSOUND: grpc.StatusCode.DATA_LOSS,
    Refusal.NO_ROOM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Refusal.READ_BACK_DIFFERS: grpc.StatusCode.DATA_LOSS,
}


def status_of(error: Exception) -> tuple[grpc.StatusCode, str] | None:
    """Code and message; retryable are RESOURCE_EXHAUSTED and UNAVAILABLE."""
    if isinstance(error, JobFailed):
        return _FAILURES[error.failure], str(error)
    if isinstance(error, RepairRefused):
        return _REFUSALS[error.refusal], str(error)
    if isinstance(error, PathRefused):
        return grpc.StatusCode.INVALID_ARGUMENT, str(error)
    if isinstance(error, HelperBusy):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
    if isinstance(error, HelperGone):
        return grpc.StatusCode.UNAVAILABLE, str(error)
    return (grpc.StatusCode.INTERNAL, f"the disk refuses: {error}") if isinstance(error, OSError) else None


_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


PIECE_BYTES: Final = 1 << 20
READ_BYTES_MAX: Final = 256 << 20
EXTENT_BYTES_MIN: Final = 64 << 10
EXTENT_BYTES_MAX: Final = 64 << 20
"""An extent is read whole."""
_READS_AT_ONCE: Final = 4
"""Of single files, by worker threads that others need as well."""
_LISTINGS_AT_ONCE: Final = 2
"""By the same threads; no rate stands before them."""
_STALL_LIMIT_S: Final = 60.0
"""A caller that takes no answer for so long has gone, and others wait for its place."""

_ALGORITHMS: Final = {
    pb.DIGEST_ALGORITHM_XXH3_128: DigestAlgorithm.XXH3_128,
    pb.DIGEST_ALGORITHM_BLAKE3: DigestAlgorithm.BLAKE3,
}


@refusing(status_of)
class ReplicaReaderServicer(replica_reader_service_pb2_grpc.ReplicaReaderServiceServicer):
    """Answers from this broker's files. `bytes_per_second` 0: nothing is read."""

    def __init__(
        self,
        *,
        state: Callable[[], ReplicaState],
        files: StoreFiles,
        helper: AuditHelper,
        clock: Clock,
        bytes_per_second: int,
        repair_enabled: bool,
    ) -> None:
        self._state = state
        self._files = files
        self._helper = helper
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._repair_enabled = repair_enabled
        self._pace = ReadPace(max(1, bytes_per_second))
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)
        self._listings = asyncio.Semaphore(_LISTINGS_AT_ONCE)

    def change_read_rate(self, bytes_per_second: int) -> None:
        """Another pace, from the next piece on; with 0 what is being read is read to its end."""
        self._bytes_per_second = bytes_per_second
        if bytes_per_second:
            self._pace.change(bytes_per_second)

    async def DescribeReplica(
        self, request: pb.DescribeReplicaRequest, context: _Context
    ) -> pb.DescribeReplicaResponse:
        state = self._state()
        return as_message(
            pb.DescribeReplicaResponse,
            state,
            cluster=state.identity.cluster,
            broker_name=state.identity.broker_name,
            broker_id=state.identity.broker_id,
            audit_read_rate_bytes=self._bytes_per_second,
            repair_enabled=self._repair_enabled,
        )

    async def ListFolder(self, request: pb.ListFolderRequest, context: _Context) -> pb.ListFolderResponse:
        async with self._listings:
            entries = await asyncio.to_thread(self._files.list_folder, request.path)
        return pb.ListFolderResponse(
            entries=[pb.FolderEntry(name=entry.name, size_bytes=entry.size) for entry in entries]
        )

    async def ReadFile(self, request: pb.ReadFileRequest, context: _Context) -> None:
        self._refuse_if_off()
        if request.offset < 0 or not 0 <= request.length_bytes <= READ_BYTES_MAX:
            raise Invalid(
                f"offset {request.offset}, length_bytes {request.length_bytes}: "
                f"ask for 0 to {READ_BYTES_MAX} bytes from 0 on"
            )
        async with self._reads:
            file = await asyncio.to_thread(self._files.open, request.path)
            end = request.offset + request.length_bytes
            log_start = commit_log_start(request.path)
            if log_start is not None:
                end = min(end, self._state().end_offset - log_start)
            if file is not None:
                await self._send_file(file, request.offset, end, context)

    async def DigestExtents(self, request: pb.DigestExtentsRequest, context: _Context) -> None:
        state = self._checked(request.range)
        algorithm = _checked_digest(request.algorithm, request.extent_bytes)
        job = DigestExtentsJob(
            facts=state.facts(),
            start_offset=request.range.start_offset,
            end_offset=request.range.end_offset,
            extent_bytes=request.extent_bytes,
            algorithm=algorithm,
        )
        async with aclosing(self._helper.answers(job)) as frames:
            async for frame in frames:
                if "items" in frame:
                    await _write(
                        context,
                        pb.DigestExtentsResponse(
                            extents=[_extent(start, end, digest) for start, end, digest in frame["items"]]
                        ),
                    )

    async def CheckRecords(self, request: pb.CheckRecordsRequest, context: _Context) -> None:
        state = self._checked(request.range)
        algorithm = DigestAlgorithm.XXH3_128
        if request.digest_extent_bytes:
            algorithm = _checked_digest(request.algorithm, request.digest_extent_bytes)
        job = CheckRecordsJob(
            facts=state.facts(),
            start_offset=request.range.start_offset,
            end_offset=request.range.end_offset,
            with_queues=request.with_queues,
            with_index=request.with_index,
            extent_bytes=request.digest_extent_bytes,
            algorithm=algorithm,
        )
        async with aclosing(self._helper.answers(job)) as frames:
            async for frame in frames:
                for finding in frame.get("items", ()):
                    # What expired under the check is missed by nobody.
                    if (finding["end_offset"] or state.end_offset) > self._state().min_offset:
                        await _write(context, pb.CheckRecordsResponse(finding=_named(pb.RecordFinding, finding)))
                for span in frame.get("spans", ()):
                    await _write(context, pb.CheckRecordsResponse(queue_span=_named(pb.QueueSpan, span)))
                for start, end, digest in frame.get("extents", ()):
                    await _write(context, pb.CheckRecordsResponse(extent=_extent(start, end, digest)))
                if "done" in frame:
                    done = frame["done"]
                    totals = pb.RecordTotals(record_count=done["records"], read_bytes=done["bytes_read"])
                    await _write(context, pb.CheckRecordsResponse(totals=totals))

    async def _send_file(self, file: OpenFile, offset: int, end: int, context: _Context) -> None:
        while offset < end:
            piece = await asyncio.to_thread(_read, file, offset, min(PIECE_BYTES, end - offset))
            if not piece:
                return
            await _write(context, pb.ReadFileResponse(data=piece))
            offset += len(piece)
            await asyncio.sleep(self._pace.wait_s(len(piece), now_s=self._clock.monotonic_ms() / 1_000))

    def _checked(self, item: replica_service_pb2.LogRange) -> ReplicaState:
        self._refuse_if_off()
        state = self._state()
        if not state.min_offset <= item.start_offset <= item.end_offset <= state.end_offset:
            raise Refused(
                grpc.StatusCode.OUT_OF_RANGE,
                f"range: [{item.start_offset}, {item.end_offset}) leaves the log "
                f"[{state.min_offset}, {state.end_offset})",
            )
        return state

    def _refuse_if_off(self) -> None:
        if not self._bytes_per_second:
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION, "auditReadRate is 0: this broker reads nothing for others"
            )


def _checked_digest(algorithm: pb.DigestAlgorithm, extent_bytes: int) -> DigestAlgorithm:
    found = _ALGORITHMS.get(algorithm)
    if found is None:
        raise Invalid("algorithm: name one of the DIGEST_ALGORITHM_ values")
    if not EXTENT_BYTES_MIN <= extent_bytes <= EXTENT_BYTES_MAX:
        raise Invalid(f"extent_bytes: {extent_bytes} is not within {EXTENT_BYTES_MIN} and {EXTENT_BYTES_MAX}")
    return found


def _read(file: OpenFile, offset: int, length: int) -> bytes:
    buffer = bytearray(length)
    count = read_into(file.number, memoryview(buffer), offset)
    return bytes(memoryview(buffer)[:count])


async def _write(context: _Context, answer: object) -> None:
    """Sends one answer. A caller that does not take it is given up."""
    try:
        async with asyncio.timeout(_STALL_LIMIT_S):
            await context.write(answer)
    except TimeoutError as error:
        raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer was taken for {_STALL_LIMIT_S:g} s") from error


def _extent(start_offset: int, end_offset: int, digest: str) -> pb.ExtentDigest:
    extent = replica_service_pb2.LogRange(start_offset=start_offset, end_offset=end_offset)
    return pb.ExtentDigest(range=extent, digest=bytes.fromhex(digest))


def _named(message: Any, values: dict[str, Any]) -> Any:
    """A message whose fields have the names of the values; those that do not apply are left out."""
    names = message.DESCRIPTOR.fields_by_name
    return message(**{name: value for name, value in values.items() if name in names and value is not None})


# ReplicaRepairService: replaces damaged parts of this replica, on demand. The edge: protobuf stops here.

_DIGEST_BYTES: Final = 16


@refusing(status_of)
class ReplicaRepairServicer(replica_repair_service_pb2_grpc.ReplicaRepairServiceServicer):
    """One repair at a time; the second is refused, not queued: who plans repairs waits for each step's result.

    `refusal` is asked for each: why this broker repairs nothing, None if it does.
    """

    def __init__(
        self, *, ranges: RangeRepair, queues: QueueRepair, tables: TableRepair, refusal: Callable[[], str | None]
    ) -> None:
        self._ranges = ranges
        self._queues = queues
        self._tables = tables
        self._refusal = refusal
        self._turn = asyncio.Lock()

    async def RepairRange(
        self, request: repair_pb.RepairRangeRequest, context: _Context
    ) -> repair_pb.RepairRangeResponse:
        order = RangeOrder(
            range=LogRange(request.range.start_offset, request.range.end_offset),
            source_broker_id=request.source_broker_id,
            target_digest=request.target_digest,
            source_digest=request.source_digest,
            dry_run=request.dry_run,
        )
        async with self._in_turn():
            if {len(order.target_digest), len(order.source_digest)} != {_DIGEST_BYTES}:
                raise RepairRefused(Refusal.MALFORMED, f"target_digest, source_digest: {_DIGEST_BYTES} bytes each")
            repaired = await self._ranges.run(order)
        return repair_pb.RepairRangeResponse(
            changed_bytes=repaired.changed_bytes,
            changed_ranges=[
                replica_service_pb2.LogRange(start_offset=start, end_offset=end)
                for start, end in repaired.changed_ranges
            ],
            record_count=repaired.record_count,
        )

    async def RewriteQueueEntries(
        self, request: repair_pb.RewriteQueueEntriesRequest, context: _Context
    ) -> repair_pb.RewriteQueueEntriesResponse:
        order = QueueOrder(
            topic=request.topic,
            queue_id=request.queue_id,
            first_queue_offset=request.first_queue_offset,
            end_queue_offset=request.end_queue_offset,
            dry_run=request.dry_run,
            undo=request.undo,
        )
        async with self._in_turn():
            repaired = await self._queues.run(order)
        return repair_pb.RewriteQueueEntriesResponse(
            sound_count=repaired.sound_count,
            changed_count=repaired.changed_count,
            changes=[
                repair_pb.QueueEntryChange(
                    queue_offset=change.queue_offset, old_entry=_entry(change.old), new_entry=_entry(change.new)
                )
                for change in repaired.changes
            ],
        )

    async def RewriteTable(
        self, request: repair_pb.RewriteTableRequest, context: _Context
    ) -> repair_pb.RewriteTableResponse:
        async with self._in_turn():
            repaired = await self._tables.run(request.table, dry_run=request.dry_run, undo=request.undo)
        return repair_pb.RewriteTableResponse(changed=repaired.changed, kept_path=repaired.kept_path)

    async def idle(self) -> None:
        """Returns when no repair runs. Once the server takes no calls none begins any more: the store may be closed."""
        async with self._turn:
            return

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """Refuses all but the first."""
        refusal = self._refusal()
        if refusal is not None:
            raise RepairRefused(Refusal.DISABLED, refusal)
        if self._turn.locked():
            raise RepairRefused(Refusal.BUSY, "another repair is running here; wait for its end")
        async with self._turn:
            yield


def _entry(entry: QueueEntry) -> repair_pb.QueueEntry:
    return repair_pb.QueueEntry(physical_offset=entry.physical_offset, size_bytes=entry.size, tags_code=entry.tags_code)


# What the consistency job and `tandemmq repair` ask of one replica: both servicers and the parts they share.

_MENDING_BYTES_PER_SECOND: Final = 64 << 20
_REPAIR_END_LIMIT_S: Final = 5.0
"""Of a repair that syncs what it has written, when the broker stops."""


class AuditServices:
    """Reads and repairs one store, beside the broker that serves it."""

    def __init__(self, parts: BrokerParts) -> None:
        settings, store, members = parts.settings, parts.store, parts.members
        root = str(Path(settings.store_path_root_dir).absolute())
        files = StoreFiles(root)
        # No job is out inside that adds to the queues.
        alone_with_store = parts.workers.alone_with_store
        self._parts = parts
        self._read_rate = settings.audit_read_rate
        self._repair_enabled = settings.enable_repair
        self._helper = AuditHelper(root=root, bytes_per_second=settings.audit_read_rate)
        self._ranges = RangeRepair(
            root=root,
            store=store,
            state=self._state,
            files=files,
            helper=self._helper,
            read_source=SourceLog(parts.identity, endpoint=members.member_metadata).read,
            failed=parts.disk_failed,
        )
        store_options = settings.store_options()
        self.reader: Final = ReplicaReaderServicer(
            state=self._state,
            files=files,
            helper=self._helper,
            clock=parts.clock,
            bytes_per_second=settings.audit_read_rate,
            repair_enabled=settings.enable_repair,
        )

        def queue_repair(helper: AuditHelper) -> QueueRepair:
            return QueueRepair(
                kept=KeptEntries(root),
                store=store,
                state=self._state,
                files=files,
                helper=helper,
                file_bytes=store_options.consume_queue_file_bytes,
                delay_levels_ms=store_options.delay_levels_ms,
                flushes_paused=alone_with_store,
                failed=parts.disk_failed,
            )

        self.repair: Final = ReplicaRepairServicer(
            ranges=self._ranges,
            queues=queue_repair(self._helper),
            tables=TableRepair(
                root=root,
                tables=parts.tables,
                retake=lambda file, dry_run: parts.role.retake_table(file, dry_run=dry_run),
                own_files=self._own_files(),
                index=IndexRepair(
                    root=root,
                    store=store,
                    state=self._state,
                    helper=self._helper,
                    alone_with_store=alone_with_store,
                    failed=parts.disk_failed,
                ),
            ),
            refusal=self._repair_refusal,
        )
        # Consumers wait for it: no audit holds it up, and no setting turns it off.
        self._mending_helper = AuditHelper(root=root, bytes_per_second=_MENDING_BYTES_PER_SECOND)
        self.mending: Final = QueueMending(
            damaged=parts.damaged_entries,
            store=store,
            repair=queue_repair(self._mending_helper),
            read_from_replica=MemberLogs(members.other_endpoints, are_expected=settings.total_replicas > 1).read,
            mended=parts.client_api.message_arrived,
            failed=parts.disk_failed,
        )

    def change(self, *, bytes_per_second: int) -> None:
        """Another `auditReadRate`, from the next read on."""
        self._read_rate = bytes_per_second
        self.reader.change_read_rate(bytes_per_second)
        self._helper.change_pace(bytes_per_second)

    def remove_leftover(self) -> None:
        """Removes what a crash in the middle of a repair has left. Blocks; before anything is served."""
        self._ranges.remove_leftover()

    async def close_helper(self) -> None:
        """Ends what is read now, and with it all repairs that have not begun to write."""
        await self._helper.close()
        await self._mending_helper.close()

    async def repairs_ended(self) -> None:
        """Waits, 5 s at most, for a repair that syncs what it has written; after the server has stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_REPAIR_END_LIMIT_S):
                await self.repair.idle()

    def _state(self) -> ReplicaState:
        parts, store, role = self._parts, self._parts.store, self._parts.role
        end_offset = store.end_offset
        return ReplicaState(
            identity=parts.identity,
            min_offset=store.min_offset,
            end_offset=end_offset,
            flushed_offset=store.flushed_offset,
            confirm_offset=min((slave.acked_offset for slave in role.slaves() if slave.in_sync), default=end_offset),
            segment_bytes=store.segment_bytes,
            queues_offset=store.queued_offset,
            index_offset=store.saved_offset if parts.settings.message_index_enable else store.min_offset,
            lag_bytes=role.lag_bytes,
            serving=role.is_serving and role.has_master,
        )

    def _own_files(self) -> list[OwnFile]:
        """Small files that are written as a whole, for who repairs them."""
        parts, member, homes = self._parts, self._parts.member, self._parts.message_group_homes

        async def write_checkpoint(data: bytes | None) -> None:
            async with parts.workers.alone_with_store():
                known = parts.store.checkpoint.encode() if data is None else data
                await asyncio.to_thread(parts.disk.write_file, CHECKPOINT_FILE, known)

        return [
            *(
                OwnFile(path, partial(member.known_file, path), partial(member.write_file, path))
                for path in (REPLICA_FILE, EPOCH_FILE)
            ),
            OwnFile(MESSAGE_GROUP_HOMES_FILE, homes.known_file, homes.write_file),
            OwnFile(CHECKPOINT_FILE, lambda: parts.store.checkpoint.encode(), write_checkpoint),
        ]

    def _repair_refusal(self) -> str | None:
        if not self._repair_enabled:
            return "enableRepair is off here: stop the broker and repair its files"
        if not self._read_rate:
            return "auditReadRate is 0, and a repair has to read: set it"
        return None
