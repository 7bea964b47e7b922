"""Before a master serves: what it takes from its replicas beside the log. Nothing of it says that a log is whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from broker.api.peer_client import PeerClient
from broker.lease_copy import LeaseCopy, LeaseFiles, LeasePosition
from broker.lease_storage import LeaseStorage
from broker.metadata_tables import MetadataTables
from mqcore.metadata.metadata_store import MetadataCorrupt, MetadataFile
from mqcore.metadata.offset_tables import ConsumerOffsetTable, OperatorActs, OperatorMarks

__all__ = ["cut_progress", "recover_leases", "recover_metadata"]

log = structlog.get_logger(__name__)


async def recover_metadata(peer: PeerClient, tables: MetadataTables, storage: LeaseStorage) -> list[str]:
    """Fetches the tables of one replica into a starting master's, durably; one line for each entry that came of it.
    What operators did, and this disk does not know of, is done in its leases as well.

    To be called for each replica that answered. PeerUnavailable when it went away meanwhile: ask it again, what came
    stays.
    """
    came: list[str] = []
    for file in tables.by_file:
        _, text = await peer.metadata_table(file, None, accept_copy=True)
        if text is None:
            log.warning("metadata_damaged_at_replica", table=file.value, replica=peer.endpoint)
            continue
        try:
            if file is MetadataFile.CONSUMER_OFFSETS:
                acts = _acts_in(text, tables.consumer_offsets.marks)
                # First: once the table knows of an act, nobody asks for it any more.
                await asyncio.to_thread(storage.obey, acts)
            lines = tables.merge_replica(file, text)
        except MetadataCorrupt as error:
            log.error("metadata_unreadable", table=file.value, replica=peer.endpoint, error=str(error))
            continue
        if lines:
            log.warning("metadata_recovered", table=file.value, replica=peer.endpoint, entries=len(lines))
        came += lines
    return came


async def cut_progress(tables: MetadataTables, leases: LeaseFiles, queue_end: Callable[[str, int], int]) -> None:
    """Progress of groups beyond a queue's end goes back to it, durably: before a starting master's `load`, and before a
    slave follows a later epoch.

    No operator did it, and no mark says so: where a replica knows that a group came further, that counts.
    """
    in_tables = tables.cut_progress(queue_end)
    in_leases = await asyncio.to_thread(leases.cut, queue_end)
    await tables.written()
    if in_tables or in_leases:
        log.warning("progress_cut", reason="it lay beyond the log's end", queues=max(in_tables, in_leases))


def _acts_in(text: str, marks: OperatorMarks) -> OperatorActs:
    """What operators did as a replica's table says, and one with these marks does not know."""
    theirs = ConsumerOffsetTable()
    theirs.load_json(text)
    return theirs.acts_since(marks)


async def recover_leases(peer: PeerClient, tables: MetadataTables, storage: LeaseStorage, *, replace: bool) -> bool:
    """Before a starting master's `load`: takes a replica's copy of the leases in place of files that hold nothing, or
    with `replace`, because the disk is older than the replica, of any. True when it did. What operators did as `tables`
    say, and the replica's own do not, is done in them.

    PeerUnavailable when the replica has none, or went away: leases may be forgotten, their messages come again.
    """
    if not replace and not await asyncio.to_thread(lambda: storage.is_blank):
        return False
    theirs = ConsumerOffsetTable()
    # Before its leases: of what it is told meanwhile they may know more, and never less.
    _, text = await peer.metadata_table(MetadataFile.CONSUMER_OFFSETS, None, accept_copy=True)
    with suppress(MetadataCorrupt):
        theirs.load_json(text or "{}")
    change = await peer.leases(LeasePosition(0, 0, 0), accept_copy=True)
    change = change.obeying(tables.consumer_offsets.acts_since(theirs.marks))
    copy = LeaseCopy(storage.disk)
    await asyncio.to_thread(copy.take, change)
    await asyncio.to_thread(copy.close)
    log.warning(
        "leases_fetched",
        replica=peer.endpoint,
        snapshot_bytes=len(change.snapshot or b""),
        journal_bytes=len(change.journal),
    )
    return True
