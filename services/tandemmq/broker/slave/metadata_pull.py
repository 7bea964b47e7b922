"""Keeps a slave's topics, groups and offsets equal to its master's: RocketMQ's schedule, and at once on change.

And a copy of the leases, some seconds old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, NoReturn

import structlog

from tandemmq.broker.leases import NO_LEASES, LeaseChange, LeaseCopy, LeasePosition
from tandemmq.broker.metadata_tables import KeptTable
from tandemmq.broker.peer_client import PeerClient, PeerUnavailable
from tandemmq.core.metadata.metadata_store import DataVersion, MetadataFile
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable, OperatorActs
from tandemmq.core.metadata.replica_merge import NamedTable
from tandemmq.core.storage.disk import DiskError
from tandemmq.service.rpc import cancellation_wins

log = structlog.get_logger(__name__)

# RocketMQ 4's period; a change is pulled at once, this only covers a lost notice.
PULL_INTERVAL_S: Final = 10.0
# RocketMQ 5's tick, here the pause after a failure.
RETRY_PAUSE_S: Final = 3.0
# What a message that is in flight may lose of its lease when the master's disk is lost.
LEASES_INTERVAL_S: Final = 2.0
# And where another master follows within seconds: what was acknowledged since comes again.
FAILOVER_LEASES_INTERVAL_S: Final = 0.25
_COPIES_MAX: Final = 8
_PROGRESS: Final = (MetadataFile.CONSUMER_OFFSETS, MetadataFile.DELAY_OFFSETS)
# Until there is a master to pull from.
NOT_ACCEPTED_PAUSE_S: Final = 0.2
# In one line of the log.
NOTICES_MAX: Final = 20


class _MasterLeft(Exception):
    """This slave no longer follows that master.

    It is raised, so that the task group ends its tasks itself. Where a group's block just ends, and one of its tasks
    fails after that, asyncio before Python 3.13 cancels the waiting task and never takes the cancellation back
    (python/cpython#116720): the next timeout of that task would end it.
    """


class MetadataPull:
    """One task of a slave. `master` gives the metadata endpoint or None; `applied` persists after a change, and is told
    what was kept although the master lacks it.

    Nothing is taken unless `accepted` says that the slave follows the log of that master: one with an older history, or
    a new disk, has nothing to say about topics and offsets either. `to_its_end` carries a write out, also when whoever
    waits for it is cancelled.
    """

    def __init__(
        self,
        *,
        tables: Mapping[MetadataFile, KeptTable],
        master: Callable[[], str | None],
        applied: Callable[[MetadataFile, list[str]], None],
        accepted: Callable[[], bool] = lambda: True,
        damaged: Collection[MetadataFile] = (),
        leases: LeaseCopy | None = None,
        leases_interval_s: float = LEASES_INTERVAL_S,
        to_its_end: Callable[[Awaitable[None]], Awaitable[None]] = lambda write: write,
        gives_way: Callable[[], bool] = lambda: False,
        has_messages: Callable[[str], bool] = lambda topic: True,
        given_up: Callable[[MetadataFile], None] = lambda file: None,
    ) -> None:
        """`gives_way`: what the master's tables lack was confirmed to nobody. A topic that `has_messages` stays all the
        same. `given_up`: the table's file is kept aside as it is."""
        self._gives_way = gives_way
        self._given_up = given_up
        self._has_messages = has_messages
        self._leases = leases
        self._leases_interval_s = leases_interval_s
        self._tables = tables
        self._damaged = damaged
        self._accepted = accepted
        self._master = master
        self._applied = applied
        self._to_its_end = to_its_end
        self._changed = asyncio.Event()
        self._taken_counts: dict[MetadataFile, int] = {}
        # What was told last, by table.
        self._kept: dict[MetadataFile, list[str]] = {}
        self.has_all = False
        """Every table was taken from a master since the process started, or was the same already."""
        self.has_progress = False
        """So were the leases."""

    async def run(self) -> None:
        """Pulls until cancelled."""
        while True:
            endpoint = self._master()
            if endpoint is None or not self._accepted():
                await asyncio.sleep(NOT_ACCEPTED_PAUSE_S)
                continue
            try:
                # A failure of the same moment, in any task of the group, must not hide a cancellation.
                with cancellation_wins():
                    await self._follow(endpoint)
            except* _MasterLeft:
                pass
            except* PeerUnavailable as group:
                log.info("metadata_pull_paused", master=endpoint, reason=str(group.exceptions[0]))
            await asyncio.sleep(RETRY_PAUSE_S if self._follows(endpoint) else NOT_ACCEPTED_PAUSE_S)

    def _follows(self, endpoint: str) -> bool:
        return self._master() == endpoint and self._accepted()

    async def _follow(self, endpoint: str) -> NoReturn:
        """Pulls from one master until it fails or another takes its place."""
        async with PeerClient(endpoint) as peer, asyncio.TaskGroup() as group:
            group.create_task(self._watch(peer))
            if self._leases is not None:
                group.create_task(self._copy_leases(peer, self._leases))
            while self._follows(endpoint):
                started_s = asyncio.get_running_loop().time()
                await self.pull(peer)
                # A table of many thousand entries takes a while to take: a tenth of the time at most.
                took_s = asyncio.get_running_loop().time() - started_s
                await asyncio.sleep(min(9 * took_s, PULL_INTERVAL_S))
                try:
                    async with asyncio.timeout(PULL_INTERVAL_S):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                self._changed.clear()
            raise _MasterLeft

    async def _watch(self, peer: PeerClient) -> None:
        async for _ in peer.metadata_changes():
            self._changed.set()

    async def _copy_leases(self, peer: PeerClient, leases: LeaseCopy) -> None:
        """A master of an older version has none to give, and one that compacts has none just now."""
        is_told = False
        # At once: this slave may be the next master, and what its copy lacks is delivered again.
        pause_s = 0.0
        while True:
            await asyncio.sleep(pause_s)
            pause_s = self._leases_interval_s
            acts_count, known = leases.acts_count, leases.known
            try:
                change = await peer.leases(known)
            except PeerUnavailable as error:
                if not is_told:
                    log.info("leases_not_copied", master=peer.endpoint, reason=str(error))
                is_told = True
                continue
            is_told = False
            if not self._accepted():
                continue
            if not change.is_empty:
                try:
                    await self._take(leases, change, acts_count, known)
                except DiskError as error:
                    log.error("leases_not_stored", error=str(error))
                    continue
            self.has_progress = True

    async def copy_now(self) -> bool:
        """Tables and leases as the master has them at this moment. False: it is not followed, or does not answer."""
        endpoint, leases = self._master(), self._leases
        if endpoint is None or leases is None or not self._accepted():
            return False
        try:
            async with PeerClient(endpoint) as peer:
                await self.pull(peer)
                for _ in range(_COPIES_MAX):
                    acts_count, known = leases.acts_count, leases.known
                    change = await peer.leases(known)
                    if not self._accepted():
                        return False
                    if not change.is_empty:
                        await self._take(leases, change, acts_count, known)
                    if leases.known == change.position:
                        return True
        except (PeerUnavailable, DiskError) as error:
            log.info("progress_not_copied", master=endpoint, reason=str(error))
        return False

    async def retake(self, file: MetadataFile, *, dry_run: bool) -> bool:
        """Takes one table of the master, whatever versions say, and keeps nothing that the master lacks: who asks has
        kept what is here. Whether that changed, or would change, anything.

        OSError: there is no master that is followed, or it does not answer.
        """
        endpoint = self._master()
        if endpoint is None or not self._accepted():
            raise OSError("this slave follows no master now")
        table = self._tables[file]
        try:
            async with PeerClient(endpoint) as peer:
                version, text = await peer.metadata_table(file, None)
        except PeerUnavailable as error:
            raise OSError(f"its master {endpoint} does not answer: {error}") from error
        if text is None or not self._accepted():
            raise OSError(f"its master {endpoint} gave no {file.value}")
        before = table.to_json()
        if dry_run:
            probe = type(table)()
            probe.load_json(before)
            _take_whole(file, probe, text, version)
            # The master goes on: progress differs at any moment, and is on its way.
            return file not in _PROGRESS and probe.to_json() != before
        notices = _take_whole(file, table, text, version)
        self._applied(file, notices)
        return table.to_json() != before

    async def _take(self, leases: LeaseCopy, change: LeaseChange, acts_count: int, asked_from: LeasePosition) -> None:
        taken = asyncio.to_thread(leases.take, change, acts_count=acts_count, asked_from=asked_from)
        await self._to_its_end(taken)

    async def append_leases(self, change: LeaseChange) -> LeasePosition:
        """Takes what the master has written since; see `LeaseCopy.append`. A master that is not followed has another
        position, and gets ours."""
        if self._leases is None:
            return NO_LEASES
        try:
            if self._leases.is_busy:
                return await asyncio.to_thread(self._leases.append, change)
            # A write without a sync, as a master's own: a thread would cost more than that.
            return self._leases.append(change)
        except DiskError as error:
            log.error("leases_not_stored", error=str(error))
            return NO_LEASES

    async def _follow_operator(self, acts: OperatorActs) -> None:
        if self._leases is None or acts.are_none:
            return
        try:
            await self._to_its_end(self._leases.follow_operator(acts))
        except DiskError as error:
            log.error("leases_not_stored", error=str(error))

    async def pull(self, peer: PeerClient) -> None:
        """Once. Each table by itself: one that fails to parse must not hold up the others."""
        is_whole = True
        for file, table in self._tables.items():
            # What is damaged here may have the version of a table that nobody ever changed.
            known = None if file in self._damaged else table.version
            taken_count = self._taken_counts.get(file, 0)
            version, text = await peer.metadata_table(file, known)
            if not self._accepted():
                return
            if not text:
                continue
            marks = table.marks if isinstance(table, ConsumerOffsetTable) else None
            try:
                # Another copy of a later moment may have been taken meanwhile.
                is_newest = taken_count == self._taken_counts.get(file, 0)
                if is_newest and self._gives_way() and (given_up := self._give_way(file, table, text)):
                    log.warning(
                        "metadata_unconfirmed",
                        table=file.value,
                        changes=given_up[:NOTICES_MAX],
                        count=len(given_up),
                        reason="the master that made them was lost before anybody was told that they are made",
                    )
                    self._given_up(file)
                notices = table.apply_from_master(text, version)
            except ValueError as error:
                log.error("metadata_unreadable", table=file.value, error=str(error))
                is_whole = False
                continue
            self._taken_counts[file] = self._taken_counts.get(file, 0) + 1
            if isinstance(table, ConsumerOffsetTable) and marks is not None:
                # Before the table's file is written: of both after a crash, the leases must not be the older.
                await self._follow_operator(table.acts_since(marks))
            is_told, self._kept[file] = notices == self._kept.get(file), notices
            if notices and not is_told:
                # The offsets' are many and harmless; a topic or group that the master lacks is neither.
                level = log.warning if file is MetadataFile.CONSUMER_OFFSETS else log.error
                level("metadata_kept", table=file.value, notices=notices[:NOTICES_MAX], count=len(notices))
            self._applied(file, notices)
        self.has_all = self.has_all or is_whole

    def _give_way(self, file: MetadataFile, table: KeptTable, text: str) -> list[str]:
        if isinstance(table, ConsumerOffsetTable):
            return table.give_way(text)
        if isinstance(table, NamedTable):
            return table.give_way(text, is_needed=self._has_messages if file is MetadataFile.TOPICS else _never)
        return []


def _never(name: str) -> bool:
    return False


def _take_whole(file: MetadataFile, table: KeptTable, text: str, version: DataVersion) -> list[str]:
    """Progress only goes forward, whoever asks."""
    if file in _PROGRESS:
        return table.apply_from_master(text, version)
    table.load_json(text)
    return []
