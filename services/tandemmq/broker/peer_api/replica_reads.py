"""ReplicaReaderService: this replica for those who prove replicas equal. The edge: protobuf stops here.

Nothing here reads a file on the event loop: worker threads read single files, the helper process whole ranges.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final, NoReturn, TypeAlias

import grpc

from tandemmq.broker.audit.jobs import (
    AuditHelper,
    CheckRecordsJob,
    DigestAlgorithm,
    DigestExtentsJob,
    HelperBusy,
    HelperGone,
    Job,
    JobFailed,
    JobFailure,
)
from tandemmq.broker.audit.replica_state import ReplicaState
from tandemmq.broker.audit.store_files import OpenFile, PathRefused, ReadPace, StoreFiles, commit_log_start, read_into
from tandemmq.core.audit.repair_plan import Refusal, RepairRefused
from tandemmq.core.clock import Clock
from tandemmq.proto.broker.v1 import replica_reader_service_pb2 as pb
from tandemmq.proto.broker.v1 import replica_reader_service_pb2_grpc, replica_service_pb2

__all__ = ["AUDIT_ERRORS", "ReplicaReaderServicer", "status_of"]


# What went wrong while a replica was read or repaired, as a gRPC status: the one table of both services.

AUDIT_ERRORS: Final = (PathRefused, HelperBusy, HelperGone, JobFailed, RepairRefused, OSError)

_FAILURES: Final = {
    JobFailure.GONE: grpc.StatusCode.OUT_OF_RANGE,
    JobFailure.UNREADABLE: grpc.StatusCode.INTERNAL,
    JobFailure.UNSOUND: grpc.StatusCode.FAILED_PRECONDITION,
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


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
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
    return grpc.StatusCode.INTERNAL, f"the disk refuses: {error}"


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

    async def DescribeReplica(  # noqa: N802
        self,
        request: pb.DescribeReplicaRequest,
        context: _Context,
    ) -> pb.DescribeReplicaResponse:
        state = self._state()
        return pb.DescribeReplicaResponse(
            cluster=state.identity.cluster,
            broker_name=state.identity.broker_name,
            broker_id=state.identity.broker_id,
            min_offset=state.min_offset,
            end_offset=state.end_offset,
            flushed_offset=state.flushed_offset,
            confirm_offset=state.confirm_offset,
            segment_bytes=state.segment_bytes,
            queues_offset=state.queues_offset,
            index_offset=state.index_offset,
            lag_bytes=state.lag_bytes,
            serving=state.serving,
            audit_read_rate_bytes=self._bytes_per_second,
            repair_enabled=self._repair_enabled,
        )

    async def ListFolder(self, request: pb.ListFolderRequest, context: _Context) -> pb.ListFolderResponse:  # noqa: N802
        try:
            async with self._listings:
                entries = await asyncio.to_thread(self._files.list_folder, request.path)
        except AUDIT_ERRORS as error:
            await _abort(context, error)
        return pb.ListFolderResponse(
            entries=[pb.FolderEntry(name=entry.name, size_bytes=entry.size) for entry in entries]
        )

    async def ReadFile(self, request: pb.ReadFileRequest, context: _Context) -> None:  # noqa: N802
        await self._refuse_if_off(context)
        if request.offset < 0 or not 0 <= request.length_bytes <= READ_BYTES_MAX:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"offset {request.offset}, length_bytes {request.length_bytes}: "
                f"ask for 0 to {READ_BYTES_MAX} bytes from 0 on",
            )
        try:
            async with self._reads:
                file = await asyncio.to_thread(self._files.open, request.path)
                end = request.offset + request.length_bytes
                log_start = commit_log_start(request.path)
                if log_start is not None:
                    end = min(end, self._state().end_offset - log_start)
                if file is not None:
                    await self._send_file(file, request.offset, end, context)
        except AUDIT_ERRORS as error:
            await _abort(context, error)

    async def DigestExtents(self, request: pb.DigestExtentsRequest, context: _Context) -> None:  # noqa: N802
        state = await self._checked(request.range, context)
        algorithm = await _checked_digest(request.algorithm, request.extent_bytes, context)
        job = DigestExtentsJob(
            facts=state.facts(),
            start_offset=request.range.start_offset,
            end_offset=request.range.end_offset,
            extent_bytes=request.extent_bytes,
            algorithm=algorithm,
        )
        async with aclosing(self._answers(job, context)) as frames:
            async for frame in frames:
                if "items" in frame:
                    await _write(
                        context,
                        pb.DigestExtentsResponse(
                            extents=[_extent(start, end, digest) for start, end, digest in frame["items"]]
                        ),
                    )

    async def CheckRecords(self, request: pb.CheckRecordsRequest, context: _Context) -> None:  # noqa: N802
        state = await self._checked(request.range, context)
        algorithm = DigestAlgorithm.XXH3_128
        if request.digest_extent_bytes:
            algorithm = await _checked_digest(request.algorithm, request.digest_extent_bytes, context)
        job = CheckRecordsJob(
            facts=state.facts(),
            start_offset=request.range.start_offset,
            end_offset=request.range.end_offset,
            with_queues=request.with_queues,
            with_index=request.with_index,
            extent_bytes=request.digest_extent_bytes,
            algorithm=algorithm,
        )
        async with aclosing(self._answers(job, context)) as frames:
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

    async def _answers(self, job: Job, context: _Context) -> AsyncGenerator[dict[str, Any], None]:
        """The helper's frames; what goes wrong ends the call."""
        try:
            async with aclosing(self._helper.answers(job)) as frames:
                async for frame in frames:
                    yield frame
        except AUDIT_ERRORS as error:
            await _abort(context, error)

    async def _checked(self, item: replica_service_pb2.LogRange, context: _Context) -> ReplicaState:
        await self._refuse_if_off(context)
        state = self._state()
        if not state.min_offset <= item.start_offset <= item.end_offset <= state.end_offset:
            await context.abort(
                grpc.StatusCode.OUT_OF_RANGE,
                f"range: [{item.start_offset}, {item.end_offset}) leaves the log "
                f"[{state.min_offset}, {state.end_offset})",
            )
        return state

    async def _refuse_if_off(self, context: _Context) -> None:
        if not self._bytes_per_second:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "auditReadRate is 0: this broker reads nothing for others"
            )


async def _checked_digest(algorithm: pb.DigestAlgorithm, extent_bytes: int, context: _Context) -> DigestAlgorithm:
    found = _ALGORITHMS.get(algorithm)
    if found is None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "algorithm: name one of the DIGEST_ALGORITHM_ values")
    if not EXTENT_BYTES_MIN <= extent_bytes <= EXTENT_BYTES_MAX:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"extent_bytes: {extent_bytes} is not within {EXTENT_BYTES_MIN} and {EXTENT_BYTES_MAX}",
        )
    assert found is not None
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
    except TimeoutError:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer was taken for {_STALL_LIMIT_S:g} s")


async def _abort(context: _Context, error: Exception) -> NoReturn:
    code, message = status_of(error)
    await context.abort(code, message)
    raise AssertionError("abort raises")


def _extent(start_offset: int, end_offset: int, digest: str) -> pb.ExtentDigest:
    extent = replica_service_pb2.LogRange(start_offset=start_offset, end_offset=end_offset)
    return pb.ExtentDigest(range=extent, digest=bytes.fromhex(digest))


def _named(message: Any, values: dict[str, Any]) -> Any:
    """A message whose fields have the names of the values; those that do not apply are left out."""
    names = message.DESCRIPTOR.fields_by_name
    return message(**{name: value for name, value in values.items() if name in names and value is not None})
