"""A broker as a slave of its group: follows the master's log, and copies its tables and leases."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from tandemmq.broker.leases import LeaseCopy
from tandemmq.broker.metadata_tables import cut_progress
from tandemmq.broker.metrics import SlaveMetrics, TurnLimit
from tandemmq.broker.parts import BrokerParts
from tandemmq.broker.put import PutAnswer, PutDone, answer_of
from tandemmq.broker.retention import SlaveFloor
from tandemmq.broker.runtime_settings import Applier
from tandemmq.broker.slave.follower import DISPATCH_SLICE, Follower
from tandemmq.broker.slave.metadata_pull import FAILOVER_LEASES_INTERVAL_S, LEASES_INTERVAL_S, MetadataPull
from tandemmq.broker.slave.traced_puts_pull import TracedPutsPull
from tandemmq.core.message.record import OutgoingMessage
from tandemmq.core.replication.master_replica import SlaveView
from tandemmq.core.storage.disk import DiskError, RecordCorrupt
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.service.metrics.exposition import MetricSamples
from tandemmq.service.rpc import Call

__all__ = ["SlaveRole"]


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
    drain_grace_ms: Final = 0

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._tasks: list[asyncio.Task[None]] = []
        self.is_serving = False
        self.leases: Final = LeaseCopy(parts.disk)
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
            cut_progress=lambda: cut_progress(parts.tables, self.leases, parts.store.queue_max_offset),
            timelines=parts.observability.replica_timelines,
        )
        self._metadata_pull = MetadataPull(
            tables=parts.tables.by_file,
            master=parts.members.master_metadata,
            applied=parts.tables.applied_from_master,
            leases=self.leases,
            leases_interval_s=(FAILOVER_LEASES_INTERVAL_S if parts.settings.failover_authority else LEASES_INTERVAL_S),
            accepted=lambda: self.follower.has_accepted_master,
        )
        self._metrics = SlaveMetrics(self.follower)

    # What it tells

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
        """Drops the master that is followed; when it returns no byte of it comes any more."""
        await self.follower.leave_master()

    def persist_leases(self) -> None:
        """It has none of its own."""

    def persist_leases_durably(self) -> None:
        """It has none of its own."""

    # Life

    async def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Follows from now on."""
        parts = self._parts
        parts.store.set_writable(False, "a slave takes messages from its master only")
        # Its log may be cut, and is compared with the master's at each start.
        parts.log_end.note(0)
        await asyncio.to_thread(parts.store.trust_tail)
        self._tasks = [tasks.create_task(self.follower.run()), tasks.create_task(self._metadata_pull.run())]
        pull = self._traced_puts_pull()
        if pull is not None:
            self._tasks.append(tasks.create_task(pull.run()))
        self.is_serving = True

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
        await self._dispatch_rest()

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
        self.leases.close()
