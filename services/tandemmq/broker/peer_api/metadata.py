"""MetadataService: tables for the other replicas of the group, in RocketMQ's JSON. The edge: protobuf stops here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any, Final, Protocol, TypeAlias

import grpc

from tandemmq.broker.leases import LeaseSource
from tandemmq.broker.metadata_tables import ChangeSignal, VersionedTable
from tandemmq.broker.peer_client import lease_position, lease_position_message
from tandemmq.core.metadata.metadata_store import DataVersion, MetadataFile
from tandemmq.proto.broker.v1 import metadata_service_pb2 as pb
from tandemmq.proto.broker.v1 import metadata_service_pb2_grpc

_FILES: Final = {
    pb.METADATA_TABLE_TOPICS: MetadataFile.TOPICS,
    pb.METADATA_TABLE_SUBSCRIPTION_GROUPS: MetadataFile.SUBSCRIPTION_GROUPS,
    pb.METADATA_TABLE_CONSUMER_OFFSETS: MetadataFile.CONSUMER_OFFSETS,
    pb.METADATA_TABLE_DELAY_OFFSETS: MetadataFile.DELAY_OFFSETS,
    pb.METADATA_TABLE_USERS: MetadataFile.USERS,
    pb.METADATA_TABLE_ACLS: MetadataFile.ACLS,
}

WATCH_PAUSE_S: Final = 0.2
"""Between two words of a change: each makes every slave pull the table whole."""
LEASES_BYTES_MAX: Final = 256 << 20
"""Some million leases; a slave holds them in memory while it takes them."""
_PIECE_BYTES: Final = 1 << 20

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

__all__ = ["MetadataServicer"]


class MetadataRole(Protocol):
    """What the broker is in its group, as far as its tables and leases go."""

    @property
    def holds_copies(self) -> bool:
        """They are copies of its master's."""

    @property
    def leases(self) -> LeaseSource:
        """The files of its leases."""


class MetadataServicer(metadata_service_pb2_grpc.MetadataServiceServicer):
    """Serves the tables of a master. A slave's are copies, and it gives them to who asks for copies: its master, before
    that serves. `damaged` names tables that this broker could not read itself."""

    def __init__(
        self,
        *,
        tables: Mapping[MetadataFile, VersionedTable],
        changes: ChangeSignal,
        role: Callable[[], MetadataRole],
        damaged: Collection[MetadataFile] = (),
    ) -> None:
        self._tables = tables
        self._damaged = damaged
        self._changes = changes
        self._role = role

    async def GetMetadataTable(  # noqa: N802
        self,
        request: pb.GetMetadataTableRequest,
        context: _Context,
    ) -> pb.GetMetadataTableResponse:
        if not request.accept_copy:
            await self._refuse_on_slave(context)
        if request.table not in _FILES:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "table: name one of the METADATA_TABLE_ values")
        file = _FILES[request.table]
        table = self._tables[file]
        answer = pb.GetMetadataTableResponse(
            version=_version(request.table, table.version),
            is_copy=self._role().holds_copies,
            is_damaged=file in self._damaged,
        )
        is_known = request.HasField("known_version") and _known(request.known_version) == table.version
        if not is_known and not answer.is_damaged:
            answer.json = await asyncio.to_thread(table.copied().to_json)
        return answer

    async def WatchMetadata(  # noqa: N802
        self,
        request: pb.WatchMetadataRequest,
        context: _Context,
    ) -> AsyncIterator[pb.WatchMetadataResponse]:
        await self._refuse_on_slave(context)
        while True:
            changed = self._changes.next()
            yield pb.WatchMetadataResponse(
                versions=[_version(kind, self._tables[file].version) for kind, file in _FILES.items()]
            )
            await asyncio.sleep(WATCH_PAUSE_S)
            await changed.wait()

    async def GetLeases(  # noqa: N802
        self,
        request: pb.GetLeasesRequest,
        context: _Context,
    ) -> AsyncIterator[pb.GetLeasesResponse]:
        if not request.accept_copy:
            await self._refuse_on_slave(context)
        leases = self._role().leases
        is_ahead = await asyncio.to_thread(lambda: leases.is_ahead)
        if request.only_ahead and not is_ahead:
            yield pb.GetLeasesResponse(position=request.known)
            return
        if not leases.is_open:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no leases are loaded here; ask again later")
            return
        change = await leases.changes_since(lease_position(request.known))
        if change is None:
            await context.abort(grpc.StatusCode.ABORTED, "a snapshot was made meanwhile; ask again")
            return
        snapshot = change.snapshot or b""
        if len(snapshot) + len(change.journal) > LEASES_BYTES_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"leases of more than {LEASES_BYTES_MAX} bytes")
        position = lease_position_message(change.position)
        yield pb.GetLeasesResponse(position=position, starts_anew=change.snapshot is not None, ahead=is_ahead)
        for start in range(0, len(snapshot), _PIECE_BYTES):
            yield pb.GetLeasesResponse(snapshot=snapshot[start : start + _PIECE_BYTES])
        for start in range(0, len(change.journal), _PIECE_BYTES):
            yield pb.GetLeasesResponse(journal=change.journal[start : start + _PIECE_BYTES])

    async def _refuse_on_slave(self, context: _Context) -> None:
        if self._role().holds_copies:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "this broker is a slave; ask its master, or set accept_copy"
            )


def _version(kind: pb.MetadataTable, version: DataVersion) -> pb.TableVersion:
    return pb.TableVersion(
        table=kind,
        state_version=version.state_version,
        timestamp_ms=version.timestamp_ms,
        counter=version.counter,
    )


def _known(version: pb.TableVersion) -> DataVersion:
    """Without the table's name, which a caller may leave out: the request names it already."""
    return DataVersion(version.state_version, version.timestamp_ms, version.counter)
