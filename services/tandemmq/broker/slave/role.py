"""A broker as a slave of its group: follows the master's log, and copies its tables and leases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from tandemmq.broker.leases import NO_LEASES, LeaseChange, LeaseCopy, LeasePosition, LeaseSource
from tandemmq.broker.metadata_tables import cut_progress
from tandemmq.broker.metrics import SlaveMetrics
from tandemmq.broker.parts import BrokerParts
from tandemmq.broker.put import PutAnswer, PutDone, answer_of
from tandemmq.broker.retention import SlaveFloor
from tandemmq.broker.runtime_settings import Applier
from tandemmq.broker.slave.follower import DISPATCH_SLICE, Follower
from tandemmq.broker.slave.metadata_pull import FAILOVER_LEASES_INTERVAL_S, LEASES_INTERVAL_S, MetadataPull
from tandemmq.broker.slave.reads import SlaveReads
from tandemmq.broker.slave.traced_puts_pull import TracedPutsPull
from tandemmq.core.message.record import OutgoingMessage
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.replication.master_replica import SlaveView
from tandemmq.core.storage.disk import DiskError, RecordCorrupt
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.service.loop_meter import TurnLimit
from tandemmq.service.metrics.exposition import MetricSamples
from tandemmq.service.rpc import Call

__all__ = ["SlaveRole"]

_LITE_S: Final = 1.0
_SILENT_MS: Final = 3_500
_LOOK_S: Final = 0.25
_WRITES_LIMIT_S: Final = 5.0
"""A write that waits for room on a full disk keeps no other role from beginning."""


class SlaveRole:
    """See `tandemmq.broker.parts.Role`."""

    client_refusal: Final = "this broker is a slave; its master takes and gives messages"
    change_refusal: Final = "this broker is a slave; make the change on its master"
    is_master: Final = False
    holds_copies: Final = True
    recovery: Final = None
    waits_for: Final = ""
    epoch_refusal: Final = None
    waiting_count: Final = 0
    lacking_progress: Final[Collection[str]] = ()
    drain_grace_ms: Final = 0

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._tasks: list[asyncio.Task[None]] = []
        self._writes: set[asyncio.Future[None]] = set()
        """Of tables and leases, that have begun: the next role has the same files."""
        self.is_serving = False
        self._copy: Final = LeaseCopy(parts.disk)
        self.floor: Final = SlaveFloor(parts.members.master_address)
        self.follower: Final = Follower(
            store=parts.store,
            clock=parts.clock,
            options=parts.settings.slave_options(),
            identity=parts.identity,
            replica=parts.member,
            metadata_endpoint=parts.metadata_endpoint,
            master=parts.members.master_address,
            reports_flushed_only=parts.is_sync_flush,
            kick_flush=parts.workers.log.kick,
            flushes_paused=parts.workers.alone_with_store,
            tail_bytes=parts.proof_bytes,
            failed=parts.disk_failed,
            cut_progress=lambda: self._to_its_end(self._cut_progress()),
            master_left=parts.master_left,
            timelines=parts.observability.replica_timelines,
            tls=parts.ha_tls,
        )
        self._metadata_pull = MetadataPull(
            tables=parts.tables.by_file,
            master=parts.members.master_metadata,
            applied=parts.tables.applied_from_master,
            leases=self._copy,
            leases_interval_s=(FAILOVER_LEASES_INTERVAL_S if parts.settings.failover_authority else LEASES_INTERVAL_S),
            accepted=lambda: self.is_serving and self.follower.has_accepted_master and not self.serves_reads,
            to_its_end=self._to_its_end,
        )
        self._reads = SlaveReads(
            parts, self._copy, has_link=lambda: self.follower.is_following, refusal=self.client_refusal
        )
        self._metrics = SlaveMetrics(self.follower, serves_reads=lambda: self.serves_reads)

    async def _cut_progress(self) -> None:
        # What it knows better the master had its chance to take.
        self._reads.end("a master is followed")
        await cut_progress(self._parts.tables, self._copy, self._parts.queue_end)

    # What it tells

    @property
    def leases(self) -> LeaseSource:
        """Its copy; while it serves reads what it works with."""
        return self._reads.storage or self._copy

    @property
    def confirmed_offset(self) -> int:
        """All that it holds: no master is elected who lacks it, but for an operator's word."""
        return self._parts.store.end_offset if self.serves_reads else 0

    @property
    def serves_reads(self) -> bool:
        """See `SlaveReads`."""
        return self._reads.storage is not None

    def put(
        self,
        messages: Sequence[OutgoingMessage],
        done: PutAnswer | PutDone,
        call: Call | None = None,
        traceparents: Sequence[str] = (),
    ) -> None:
        """Takes none, as `client_refusal` says before anybody tries."""
        answer_of(done).answer([AppendResult.refused(PutStatus.SERVICE_NOT_AVAILABLE) for _ in messages])

    @property
    def is_ready(self) -> bool:
        """It holds, or is about to hold, what its master has, and has its topics, groups and offsets."""
        parts, follower = self._parts, self.follower
        # A Java master has no metadata plane to take them from.
        if not self._metadata_pull.has_all and parts.members.master_metadata() is not None:
            return False
        return follower.is_following and follower.lag_bytes < parts.settings.ha_max_gap_not_in_sync

    @property
    def has_master(self) -> bool:
        """The master's log flows to us."""
        return self.follower.is_following

    @property
    def hears_master(self) -> bool:
        """See `Role`. Where nothing is to be said, the kernel asks each second after two of silence."""
        return self.follower.is_following and (self.follower.silent_ms or 0) < _SILENT_MS

    @property
    def lag_bytes(self) -> int:
        """How far the master's log is ahead of ours."""
        return self.follower.lag_bytes

    def slaves(self) -> Sequence[SlaveView]:
        """It has none."""
        return ()

    def setting_appliers(self) -> Mapping[str, Applier]:
        """None that a master has not as well."""
        return {}

    async def tell(self, samples: MetricSamples, turn: TurnLimit) -> None:
        """Adds the metrics of a slave."""
        self._metrics.tell(samples)

    @property
    def caught_up_epoch(self) -> int:
        """See `Follower`. Without the progress of groups it would deliver again what was acknowledged long before."""
        return self.follower.caught_up_epoch if self._metadata_pull.has_progress else 0

    # What it is told

    def require(self) -> None:
        """It acknowledges nothing to clients."""

    def give_up(self) -> None:
        """It does not start as a master."""

    async def copy_progress(self) -> bool:
        """See `MetadataPull.copy_now`. What was copied is on our disk when this returns."""
        is_copied = await self._metadata_pull.copy_now()
        await self._parts.tables.written()
        return is_copied

    async def retake_table(self, file: MetadataFile, *, dry_run: bool) -> bool:
        """See `MetadataPull.retake`."""
        return await self._metadata_pull.retake(file, dry_run=dry_run)

    async def append_leases(self, change: LeaseChange) -> LeasePosition:
        """See `MetadataPull.append_leases`. Nothing once it has ended: whoever is master then has read the files."""
        return await self._metadata_pull.append_leases(change) if self.is_serving else NO_LEASES

    def flushed(self) -> None:
        """A slave that promises its disk reports now."""
        self.follower.flushed()

    def second_passed(self) -> None:
        """Nothing depends on it."""

    def verified(self, broker_id: int, disk_id: str, end_offset: int, connection: str) -> None:
        """It proves its own log and takes no proof."""

    def superseded(self, reason: str) -> None:
        """It holds no place that another could take."""

    async def leave_master(self) -> None:
        """Drops the master that is followed; when it returns no byte of it comes any more, and nothing is given."""
        self._reads.give_way()
        await self.follower.leave_master()

    def persist_leases(self) -> None:
        """Those of consumers that it serves. A disk that refuses stops the broker."""
        if (storage := self._reads.storage) is not None:
            try:
                storage.persist()
            except DiskError as error:
                self._parts.disk_failed(error)
                raise

    def persist_leases_durably(self) -> None:
        """An operator's act; see `change_refusal`."""
        self.persist_leases()

    def when_progress_held(self, done: Callable[[bool], object]) -> None:
        """What consumers finish here no other member has, and the next master takes it from our files."""
        done(self.serves_reads)

    # Life

    async def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Follows from now on."""
        parts = self._parts
        parts.store.set_writable(False, "a slave takes messages from its master only")
        # Its log may be cut, and is compared with the master's at each start.
        parts.log_end.note(0)
        is_trusted = parts.is_whole or not parts.settings.failover_authority
        if is_trusted:
            await asyncio.to_thread(parts.store.trust_tail)
        self._tasks = [
            tasks.create_task(task) for task in (self.follower.run(), self._metadata_pull.run(), self._reads.run())
        ]
        if not is_trusted:
            self._tasks.append(tasks.create_task(self._trust_tail_when_caught_up()))
        self._tasks.append(tasks.create_task(self._follow_lite_topics()))
        pull = self._traced_puts_pull()
        if pull is not None:
            self._tasks.append(tasks.create_task(pull.run()))
        self.is_serving = True

    async def _trust_tail_when_caught_up(self) -> None:
        """A member of the in-sync set that may have lost something must not become master at its next start, however
        orderly this process stops before it has all that its master has."""
        while not self.follower.caught_up_epoch:
            await asyncio.sleep(_LOOK_S)
        await self._to_its_end(asyncio.to_thread(self._parts.store.trust_tail))

    async def _follow_lite_topics(self) -> None:
        """So that it need not read them all when it becomes master."""
        while True:
            await self._parts.follow_lite_topics()
            await asyncio.sleep(_LITE_S)

    def _traced_puts_pull(self) -> TracedPutsPull | None:
        """The slave's part of the traces its master keeps."""
        observability = self._parts.observability
        if observability.tracing is None or observability.replica_timelines is None:
            return None
        return TracedPutsPull(
            tracing=observability.tracing,
            timelines=observability.replica_timelines,
            master=self._parts.members.master_metadata,
            reports_flushed_only=self._parts.is_sync_flush,
        )

    async def answer_sends(self, deadline_ms: int) -> None:
        """None wait."""

    async def end(self, deadline_ms: int) -> None:
        """Follows no more, and knows exactly where its log ends."""
        self.is_serving = False
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._writes:
            await asyncio.wait(self._writes, timeout=_WRITES_LIMIT_S)
        self._reads.end("this broker is a slave no more, or stops")
        await self._dispatch_rest()

    async def _to_its_end(self, write: Awaitable[None]) -> None:
        """Carries a write out, also when whoever waits for it is cancelled: a thread goes on all the same."""
        writing = asyncio.ensure_future(write)
        self._writes.add(writing)
        writing.add_done_callback(self._written)
        await asyncio.shield(writing)

    def _written(self, writing: asyncio.Future[None]) -> None:
        self._writes.discard(writing)
        if not writing.cancelled():
            writing.exception()  # Told to whoever waits; nobody may.

    async def _dispatch_rest(self) -> None:
        """What came last was acknowledged and gathers for a batch. Told an end without it, a master that has lost it
        would not wait for us."""
        parts = self._parts
        try:
            while parts.failure is None and parts.store.dispatch(max_records=DISPATCH_SLICE):
                await asyncio.sleep(0)
        except RecordCorrupt:
            pass  # Nothing from there on was acknowledged; the next start cuts it off.
        except DiskError as error:
            parts.disk_failed(error)

    def close_files(self) -> None:
        """The copies of tables and leases."""
        self._parts.tables.persist_all()
        self._copy.close()
