"""Keeps a slave's topics, groups and offsets equal to its master's: RocketMQ's schedule, and at once on change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from broker.api.peer_client import PeerClient, PeerUnavailable
from mqcore.metadata import DataVersion, MetadataFile
from mqcore.storage import DiskFull

__all__ = ["FollowedTable", "MetadataPull"]

log = structlog.get_logger(__name__)

# RocketMQ 4's period; a change is pulled at once, this only covers a lost notice.
PULL_INTERVAL_S: Final = 10.0
# RocketMQ 5's tick, here the pause after a failure.
RETRY_PAUSE_S: Final = 3.0


class FollowedTable(Protocol):
    """A table of the slave, replaced or merged by the master's."""

    @property
    def version(self) -> DataVersion:
        """Version held."""

    def apply_from_master(self, text: str, version: DataVersion) -> list[str]:
        """Takes the master's table; returns what an operator should know, one line each."""


class MetadataPull:
    """One task of a slave. `master` gives the metadata endpoint or None; `applied` persists after a change."""

    def __init__(
        self,
        *,
        tables: Mapping[MetadataFile, FollowedTable],
        master: Callable[[], str | None],
        applied: Callable[[MetadataFile], None],
    ) -> None:
        self._tables = tables
        self._master = master
        self._applied = applied
        self._changed = asyncio.Event()
        self._unsaved: set[MetadataFile] = set()
        """Applied, and the disk had no room for them."""

    async def run(self) -> None:
        """Pulls until cancelled."""
        while True:
            endpoint = self._master()
            if endpoint is None:
                await asyncio.sleep(0.2)
                continue
            try:
                await self._follow(endpoint)
            except* PeerUnavailable as group:
                log.info("metadata_pull_paused", master=endpoint, reason=str(group.exceptions[0]))
            await asyncio.sleep(RETRY_PAUSE_S if self._master() == endpoint else 0.2)

    async def _follow(self, endpoint: str) -> None:
        """Pulls from one master until it fails or another takes its place."""
        async with PeerClient(endpoint) as peer, asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch(peer))
            while self._master() == endpoint:
                await self._pull(peer)
                try:
                    async with asyncio.timeout(PULL_INTERVAL_S):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                self._changed.clear()
            watch.cancel()

    async def _watch(self, peer: PeerClient) -> None:
        async for _ in peer.metadata_changes():
            self._changed.set()

    async def _pull(self, peer: PeerClient) -> None:
        """Each table by itself: one that fails to parse must not hold up the others."""
        for file, table in self._tables.items():
            version, text = await peer.metadata_table(file, table.version)
            if text is None:
                if file in self._unsaved:
                    self._save(file)
                continue
            try:
                notices = table.apply_from_master(text, version)
            except ValueError as error:
                log.error("metadata_unreadable", table=file.value, error=str(error))
                continue
            for notice in notices:
                log.warning("metadata_kept", table=file.value, notice=notice)
            self._save(file)

    def _save(self, file: MetadataFile) -> None:
        """A full disk holds the old table, whole; the new one is tried again at the next pull."""
        try:
            self._applied(file)
        except DiskFull as error:
            if file not in self._unsaved:
                log.error(
                    "slave_disk_full",
                    reason=str(error),
                    table=file.value,
                    remedy="make room on that disk or give it more; this slave stays up and goes on by itself",
                )
            self._unsaved.add(file)
        else:
            self._unsaved.discard(file)
