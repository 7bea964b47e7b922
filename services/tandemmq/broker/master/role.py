"""A broker as its group's master: takes messages, gives them, and ships its log to the slaves.

Begin: be listed, hear the whole group and fetch what another replica has more (`GroupRecovery`), load the leases, open
the HA plane. In a group that fails over its record has to name this master first (`Failover`). End: fail the sends
that nobody confirmed in time, let the slaves have the end of the log, close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from tandemmq.broker.leases import NO_LEASES, LeaseChange, LeasePosition, LeaseStorage
from tandemmq.broker.master.group_recovery import (
    GroupRecovery,
    GroupView,
    LeasesAhead,
    MetadataSource,
    fetch_metadata,
    merge_leases,
)
from tandemmq.broker.master.ha_listener import HaListener
from tandemmq.broker.master.progress_copies import ProgressCopies
from tandemmq.broker.metadata_tables import cut_progress
from tandemmq.broker.metrics import LagAge, MasterRoleMetrics
from tandemmq.broker.retention import MasterFloor
from tandemmq.broker.runtime_settings import Applier, master_setting_appliers
from tandemmq.broker.write_path import WritePath
from tandemmq.core.delivery.half_messages import TRANSACTION_GROUP
from tandemmq.core.message.record import HALF_TOPIC
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.replication.master_replica import MasterReplica, SlaveView
from tandemmq.core.routing.values import ReplicaMemory
from tandemmq.core.storage.disk import DiskError
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.service.event_loop import TurnLimit
from tandemmq.service.metrics import MetricSamples

if TYPE_CHECKING:
    from tandemmq.broker.failover.controller import Failover
    from tandemmq.broker.parts import BrokerParts

log = structlog.get_logger(__name__)

_LEASE_TICK_S: Final = 1.0
_POLL_S: Final = 0.01


class MasterRole:
    """See `tandemmq.broker.parts.Role`. With `accepts_loss` it waits for no replica that it cannot reach, whatever that
    holds. `seat` is of a group that fails over; with `holds_all` it begins the seat's epoch and asks nobody."""

    is_master: Final = True
    holds_copies: Final = False
    serves_reads: Final = False
    has_master: Final = True
    hears_master: Final = True
    caught_up_epoch: Final = 0
    lag_bytes: Final = 0

    def __init__(
        self,
        parts: BrokerParts,
        *,
        accepts_loss: bool = False,
        seat: Failover | None = None,
        holds_all: bool = False,
    ) -> None:
        self._parts = parts
        self._seat = seat
        self._holds_all = holds_all
        self._is_given_up = False
        self._ahead: list[LeasesAhead] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.is_serving = False
        self.drain_grace_ms: Final = parts.settings.drain_grace_period
        self.leases: Final = LeaseStorage(parts.disk, parts.leases, parts.clock)
        self.replica: Final = MasterReplica(parts.store, parts.settings.master_options())
        self.progress: Final = None if seat is None else self._new_progress_copies()
        self.write_path: Final = self._new_write_path()
        self.ha: Final = HaListener(
            replica=self.replica,
            log_reader=parts.store,
            clock=parts.clock,
            after_input=self.write_path.collect if seat is None else self._reported,
            tracer=parts.send_tracer,
            slave_left=self._slave_left,
            tls=parts.ha_tls,
            takes_plain=parts.settings.master_options().is_stock,
            bearers=parts.ha_bearers,
        )
        self.write_path.attach(self.ha)
        self.put: Final = self.write_path.put
        self.floor: Final = MasterFloor(
            parts.store,
            clock=parts.clock,
            leases=parts.leases,
            stored=parts.tables.consumer_offsets,
            topics=parts.topics,
            is_system_topic=parts.is_system_topic,
            slaves=self.replica.slaves,
            slave_count=parts.settings.total_replicas - 1,
            begins_behind=lambda: None if self.is_serving else self.recovery.gone_before,
            transactions=parts.client_api.transactions.hold,
            timers=parts.message_timers.queue,
            lite=parts.lite_topics,
            absent_replicas=lambda: {memory.broker_id: memory.end_offset for memory in parts.member.replicas},
        )
        self.recovery: Final = self._new_recovery(accepts_loss=accepts_loss)
        self.lag_age: Final = LagAge(end_offset=lambda: parts.store.end_offset, clock=parts.clock)
        self._metrics = MasterRoleMetrics(parts, self)

    def _new_progress_copies(self) -> ProgressCopies:
        parts = self._parts
        return ProgressCopies(
            leases=self.leases, clock=parts.clock, identity=parts.identity, endpoint=self._metadata_of_slave
        )

    def _metadata_of_slave(self, disk_id: str) -> str | None:
        for slave in self.slaves():
            if slave.disk_id == disk_id and slave.broker_id is not None:
                return self._parts.members.member_metadata(slave.broker_id)
        return None

    def _new_write_path(self) -> WritePath:
        parts = self._parts
        return WritePath(
            store=parts.store,
            replica=self.replica,
            clock=parts.clock,
            flush_disk_type=parts.settings.flush_disk_type,
            waits_for_slaves=parts.settings.waits_for_slaves,
            kick_flush=parts.workers.log.kick,
            appended=parts.client_api.message_arrived if self._seat is None else self._appended,
            answered=parts.client_plane.flush,
            refusal=lambda: parts.refusal,
            may_answer=None if self._seat is None else lambda: self.client_refusal is None,
            failed=parts.disk_failed,
            meter=parts.observability.put_meter,
            tracer=parts.send_tracer,
            turns=parts.loop_meter.turns,
            written=parts.log_end.note,
            room=parts.send_room,
        )

    def _new_recovery(self, *, accepts_loss: bool) -> GroupRecovery:
        parts = self._parts
        return GroupRecovery(
            store=parts.store,
            replica=parts.member,
            identity=parts.identity,
            clock=parts.clock,
            group=GroupView(
                name_servers=frozenset(parts.settings.name_servers),
                own_endpoint=parts.metadata_endpoint,
                members=parts.members.registered,
                told=self._told_by_name_servers,
                forget=parts.links.forget_replica,
            ),
            total_replicas=parts.settings.total_replicas,
            recovery_timeout_ms=parts.settings.master_recovery_timeout,
            accepts_loss=accepts_loss,
            alone_with_store=parts.workers.alone_with_store,
            fetch_metadata=self._fetch_metadata,
            cut_progress=lambda: cut_progress(parts.tables, self.leases, parts.store.queues, parts.queue_end),
            queues_go_on=lambda: parts.tables.empty_queues_go_on(parts.store),
            damaged_tables=lambda: {file.value: text for file, text in parts.tables.damaged.items()},
            accept_damage=parts.tables.accept_damage,
            connected_ids=lambda: {slave.broker_id for slave in self.slaves() if slave.broker_id is not None},
            forgotten=self.floor.forget_replica,
            claim=None if self._seat is None else self._seat.claim,
            in_sync_epoch=lambda: 0 if self._seat is None else self._seat.in_sync_epoch,
            others_in_sync=lambda: () if self._seat is None else self._seat.others_in_sync,
            given_up=lambda: self._is_given_up or parts.stopping.is_set(),
            state_changed=parts.links.registration_changed,
        )

    async def _told_by_name_servers(self) -> Mapping[str, Sequence[ReplicaMemory] | None]:
        answers = await self._parts.links.group_memory()
        return {address: None if answer is None else answer.replicas for address, answer in answers.items()}

    async def _fetch_metadata(self, sources: Sequence[MetadataSource], is_behind: bool) -> None:
        parts = self._parts
        self._ahead = await fetch_metadata(
            sources, parts.tables, self.leases, is_behind=is_behind, is_whole=parts.is_whole
        )

    def _merge_progress(self) -> None:
        """What replicas know better: before anything is given here."""
        parts = self._parts
        if merge_leases(self._ahead, parts.leases, now_ms=parts.clock.monotonic_ms()):
            self.leases.persist_durably()
            parts.tables.collect_progress(parts.leases)
            parts.client_api.role_begins()  # Groups may have come.
        self._ahead = []

    # What it tells

    @property
    def is_ready(self) -> bool:
        """Messages are taken, whatever the slaves do: a group whose slave is behind does not let its master be
        evicted."""
        return self._parts.refusal is None and self._parts.store.refusal is None

    @property
    def waits_for(self) -> str:
        if self.is_serving:
            return ""
        waiting = self.recovery.waiting
        return waiting.reason if waiting is not None else "it asks the replicas of its group"

    @property
    def waiting_count(self) -> int:
        return self.write_path.waiting_count + (0 if self.progress is None else self.progress.waiting_count)

    @property
    def client_refusal(self) -> str | None:
        """Why it takes and gives nothing: others may have become masters."""
        return None if self._seat is None else self._seat.refusal

    @property
    def is_fenced(self) -> bool:
        return self.client_refusal is not None

    @property
    def change_refusal(self) -> str | None:
        """Where another may be master, or become it, nobody would hear of the change."""
        if self._seat is None:
            return None
        if not self.is_serving or not self._seat.acts:
            return "this broker is not the master yet, or no more; ask again"
        if self._seat.is_handing_over:
            return "this broker hands over to the next master of its group; ask again"
        return self._seat.refusal

    @property
    def epoch_refusal(self) -> str | None:
        """While it serves it is the master."""
        return "this broker is the master, and serves" if self.is_serving else None

    @property
    def confirmed_offset(self) -> int:
        return self.replica.confirmed_offset

    def slaves(self) -> Sequence[SlaveView]:
        return self.replica.slaves()

    def setting_appliers(self) -> Mapping[str, Applier]:
        """What only a master's clients would notice."""
        parts = self._parts
        return master_setting_appliers(store=parts.store, leases=parts.leases, options=parts.options)

    async def tell(self, samples: MetricSamples, turn: TurnLimit) -> None:
        await self._metrics.tell(samples, turn)

    # What it is told

    def flushed(self) -> None:
        """Sends that waited for the disk may be answered."""
        self.write_path.flushed()

    def second_passed(self) -> None:
        """Notes where the log ends now, to know later how old a slave's lag is."""
        self.lag_age.tick()

    def verified(self, broker_id: int, disk_id: str, end_offset: int, connection: str) -> None:
        """The slave behind `connection` has proven its log."""
        now_ms = self._parts.clock.monotonic_ms()
        self.replica.verified(broker_id, end_offset, peer=connection, now_ms=now_ms, disk_id=disk_id)

    def require(self) -> None:
        """Acknowledges what the in-sync set holds, as the group's record has it now."""
        if self._seat is not None:
            self.replica.require(self._seat.required)
            self._reported()
        if self._seat is not None and self.progress is not None:
            self.progress.require(self._seat.required)

    def _appended(self, topic: str) -> None:
        """Of a group that fails over: who waits is woken when the message may be given."""
        if self.replica.has_required:
            self._parts.client_api.message_held_back(topic)
        else:
            self._parts.client_api.message_arrived(topic)

    def _slave_left(self, slave: SlaveView) -> None:
        if self._seat is not None and slave.broker_id is not None and slave.disk_id:
            self._seat.slave_left(slave.broker_id, slave.disk_id)

    def _reported(self) -> None:
        self.write_path.collect()
        self._parts.client_api.confirmed()

    def superseded(self, reason: str) -> None:
        """Another master took our place. One that starts has to hear that, too, but it asks for itself."""
        if self.is_serving and self._seat is not None:
            self._seat.superseded(reason)
        elif self.is_serving:
            log.critical("master_superseded", reason=reason, remedy="none: this broker stops, and asks when it starts")
            self._parts.fail(f"another master took our place: {reason}")

    async def leave_master(self) -> None:
        """It follows nobody."""

    def persist_leases(self) -> None:
        try:
            self.leases.persist()
        except DiskError as error:
            self._parts.disk_failed(error)
            raise

    def persist_leases_durably(self) -> None:
        try:
            self.leases.persist_durably()
        except DiskError as error:
            self._parts.disk_failed(error)
            raise

    def note_end_of_leases(self) -> None:
        """Nothing is given any more, and what clients may not have read runs out: whoever takes over with a copy that
        says so doubts nothing."""
        try:
            if self.leases.is_open:
                self.leases.note_end()
        except DiskError as error:
            self._parts.disk_failed(error)

    def when_progress_held(self, done: Callable[[bool], object]) -> None:
        """See `ProgressCopies.when_held`. Where nobody else becomes master it outlives what this disk does."""
        if self.progress is None:
            done(True)
        else:
            self.progress.when_held(done)

    @property
    def lacking_progress(self) -> Collection[str]:
        """See `ProgressCopies.lacking`."""
        return () if self.progress is None else self.progress.lacking

    # Life

    async def append_leases(self, change: LeaseChange) -> LeasePosition:
        """There is nobody whose leases it copies."""
        return NO_LEASES

    async def copy_progress(self) -> bool:
        """There is nobody to copy from."""
        return False

    async def retake_table(self, file: MetadataFile, *, dry_run: bool) -> bool:
        """Its own is the group's."""
        return False

    def give_up(self) -> None:
        """Somebody else became master while this one starts: `begin` returns soon, and it does not serve."""
        self._is_given_up = True
        # It may have cut or fetched: what it lacks comes from the master that there is.
        self._parts.is_whole = self._parts.is_whole and self.recovery.is_whole

    async def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Serves slaves from its end on, unless the broker is to stop before."""
        parts = self._parts
        if parts.send_tracer is not None:
            self._tasks.append(tasks.create_task(parts.send_tracer.run()))
        # Listed, in no route: operators see what it waits for, and its replicas that it is there.
        parts.links.announce()
        if self._seat is not None and self._holds_all:
            await self.recovery.begin_claimed(self._seat.epoch)
        elif not await self.recovery.run(is_whole=parts.is_whole):
            parts.is_whole = self.recovery.is_whole
            return  # The tail stays in doubt: the next start asks again.
        # Not before the log is whole: what lies beyond its end goes back to it.
        if await parts.follow_lite_topics():
            await cut_progress(parts.tables, self.leases, parts.store.queues, parts.lite_queue_end)
        parts.tables.settle_cuts(parts.lite_queue_end)
        # It has no master any more that could lack something.
        parts.tables.kept.clear()
        parts.client_api.role_begins()
        await asyncio.to_thread(self.leases.load)
        self._merge_progress()
        if parts.member.replicas:
            parts.tables.renew()
        # Only then: a tick beside it would find a half-filled table and no journal.
        self._tasks += [tasks.create_task(self._lease_ticks()), tasks.create_task(self._progress_ticks())]
        await asyncio.to_thread(parts.store.trust_tail)
        parts.log_end.note(parts.store.end_offset)
        parts.store.set_writable(True)
        await self._recover_transactions()
        await self._read_deduplication_windows()
        await parts.message_timers.take_over()
        parts.log_end.note(parts.store.end_offset)
        if self.progress is not None:
            self.progress.start(tasks)
        self.require()
        self._tasks.append(tasks.create_task(parts.delayed.run()))
        self.ha.start(host=parts.settings.bind_address, port=parts.settings.ha_listen_port)
        parts.ports["haListenPort"] = self.ha.port
        self.is_serving = True

    async def _recover_transactions(self) -> None:
        """Before anything else is appended: behind another record a commit without its end would not be found."""
        parts, transactions = self._parts, self._parts.client_api.transactions
        from_offset = parts.tables.consumer_offsets.offset(TRANSACTION_GROUP, HALF_TOPIC, 0)
        for _ in transactions.recovery(from_offset=from_offset or 0):
            await asyncio.sleep(0)
        for record in transactions.take_missing():
            parts.store.put(record)

    async def _read_deduplication_windows(self) -> None:
        parts = self._parts
        for _ in parts.client_api.deduplication.restore(
            parts.queues, now_ms=parts.clock.wall_ms(), ids_max=parts.options.deduplication_ids_max
        ):
            await asyncio.sleep(0)

    async def answer_sends(self, deadline_ms: int) -> None:
        """Answers what slaves and disk still confirm until the deadline, and fails the rest; after a failure all."""
        parts = self._parts
        if parts.failure is not None:
            self._fail_all()
        while self.waiting_count and parts.clock.monotonic_ms() < deadline_ms:
            await asyncio.sleep(_POLL_S)
        self._fail_all()

    def _fail_all(self) -> None:
        self.write_path.fail_all(PutStatus.SERVICE_NOT_AVAILABLE)
        if self.progress is not None:
            self.progress.give_up()

    async def end(self, deadline_ms: int) -> None:
        """Leaves equal replicas, if the slaves are quick enough."""
        await self._slaves_caught_up(deadline_ms)
        self.is_serving = False
        self.ha.stop()
        self.write_path.close()
        if self.progress is not None:
            self.progress.give_up()
            await self.progress.close()
        self._parts.ports["haListenPort"] = 0
        self._parts.store.set_writable(False, "this broker is master no more")
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _slaves_caught_up(self, deadline_ms: int) -> None:
        parts = self._parts
        end_offset = parts.store.end_offset
        while parts.clock.monotonic_ms() < deadline_ms and parts.failure is None:
            if all(slave.acked_offset >= end_offset for slave in self.slaves()):
                return
            await asyncio.sleep(_POLL_S)

    def close_files(self) -> None:
        """What groups have consumed goes into the tables, which slaves copy, and the leases into their files."""
        parts = self._parts
        parts.tables.collect_progress(parts.leases)
        parts.tables.persist_all()
        self.leases.close()
        # Another master's are read into it, if this broker is master again.
        parts.leases.clear()

    async def _lease_ticks(self) -> None:
        """Ends silent sessions and leases, and compacts the lease journal."""
        parts = self._parts
        while True:
            await asyncio.sleep(_LEASE_TICK_S)
            try:
                parts.client_api.housekeep()
                for skipped in parts.leases.take_new_skips():
                    log.warning(
                        "group_began_at_newest",
                        group=skipped.group,
                        topic=skipped.topic,
                        older_messages=skipped.message_count,
                        remedy="reset its offsets to earliest if it should have them; see consumeFromEarliest",
                    )
                self.leases.persist()
                await self.leases.compact_if_due()
            except DiskError as error:
                parts.disk_failed(error)
                return

    async def _progress_ticks(self) -> None:
        """RocketMQ's flushConsumerOffsetInterval."""
        while True:
            await asyncio.sleep(self._parts.settings.flush_consumer_offset_interval / 1000)
            self._parts.tables.collect_progress(self._parts.leases)
