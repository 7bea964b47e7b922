"""What the consistency job and `tandemmq repair` ask of one replica: both servicers and the parts they share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Final

from tandemmq.broker.audit.jobs import AuditHelper
from tandemmq.broker.audit.queue_mending import QueueMending, ReplicaRead
from tandemmq.broker.audit.queue_repair import KeptEntries, QueueRepair
from tandemmq.broker.audit.range_repair import RangeRepair
from tandemmq.broker.audit.replica_state import ReplicaState
from tandemmq.broker.audit.store_files import StoreFiles
from tandemmq.broker.audit.table_repair import OwnFile, TableRepair
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.broker.peer_api.repairs import ReplicaRepairServicer
from tandemmq.broker.peer_api.replica_reads import ReplicaReaderServicer
from tandemmq.broker.peer_client import SourceLog
from tandemmq.broker.queue_reader import DamagedEntries
from tandemmq.broker.settings import BrokerSettings
from tandemmq.core.clock import Clock
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.storage.disk import DiskError
from tandemmq.core.storage.message_store import MessageStore

__all__ = ["AuditServices"]

_MENDING_BYTES_PER_SECOND: Final = 64 << 20
_REPAIR_END_LIMIT_S: Final = 5.0
"""Of a repair that syncs what it has written, when the broker stops."""


class AuditServices:
    """Reads and repairs one store, beside the broker that serves it.

    `member_metadata` knows the metadata planes of the group's members by broker id; inside `flushes_paused` no job is
    out that adds to the queues.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        identity: BrokerIdentity,
        clock: Clock,
        store: MessageStore,
        state: Callable[[], ReplicaState],
        member_metadata: Callable[[int], str | None],
        flushes_paused: Callable[[], AbstractAsyncContextManager[None]],
        failed: Callable[[DiskError], None],
        damaged: DamagedEntries,
        read_from_replica: ReplicaRead,
        mended: Callable[[str], None],
        tables: MetadataTables,
        retake_table: Callable[[MetadataFile, bool], Awaitable[bool]],
        own_files: Sequence[OwnFile],
    ) -> None:
        root = str(Path(settings.store_path_root_dir).absolute())
        files = StoreFiles(root)
        self._read_rate = settings.audit_read_rate
        self._repair_enabled = settings.enable_repair
        self._helper = AuditHelper(root=root, bytes_per_second=settings.audit_read_rate)
        self._ranges = RangeRepair(
            root=root,
            store=store,
            state=state,
            files=files,
            helper=self._helper,
            read_source=SourceLog(identity, endpoint=member_metadata).read,
            failed=failed,
        )
        store_options = settings.store_options()
        self.reader: Final = ReplicaReaderServicer(
            state=state,
            files=files,
            helper=self._helper,
            clock=clock,
            bytes_per_second=settings.audit_read_rate,
            repair_enabled=settings.enable_repair,
        )

        def queue_repair(helper: AuditHelper) -> QueueRepair:
            return QueueRepair(
                kept=KeptEntries(root),
                store=store,
                state=state,
                files=files,
                helper=helper,
                file_bytes=store_options.consume_queue_file_bytes,
                delay_levels_ms=store_options.delay_levels_ms,
                flushes_paused=flushes_paused,
                failed=failed,
            )

        self.repair: Final = ReplicaRepairServicer(
            ranges=self._ranges,
            queues=queue_repair(self._helper),
            tables=TableRepair(root=root, tables=tables, retake=retake_table, own_files=own_files),
            refusal=self._repair_refusal,
        )
        # Consumers wait for it: no audit holds it up, and no setting turns it off.
        self._mending_helper = AuditHelper(root=root, bytes_per_second=_MENDING_BYTES_PER_SECOND)
        self.mending: Final = QueueMending(
            damaged=damaged,
            store=store,
            repair=queue_repair(self._mending_helper),
            read_from_replica=read_from_replica,
            mended=mended,
            failed=failed,
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

    def _repair_refusal(self) -> str | None:
        if not self._repair_enabled:
            return "enableRepair is off here: stop the broker and repair its files"
        if not self._read_rate:
            return "auditReadRate is 0, and a repair has to read: set it"
        return None
