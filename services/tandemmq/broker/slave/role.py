"""A broker as a slave of its group: follows the master's log, copies its tables and leases, tells of traced
sends, and gives messages while there is no master."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from tandemmq.broker.client_api.services import READS_ONLY
from tandemmq.broker.leases import NO_LEASES, LeaseChange, LeaseCopy, LeasePosition, LeaseSource, LeaseStorage
from tandemmq.broker.metadata_tables import cut_progress
from tandemmq.broker.peer_client import PeerClient, PeerUnavailable
from tandemmq.broker.put import PutAnswer, PutDone, answer_of
from tandemmq.broker.retention import SlaveFloor
from tandemmq.broker.runtime_settings import Applier
from tandemmq.broker.slave.follower import DISPATCH_SLICE, Follower
from tandemmq.broker.slave.metadata_pull import FAILOVER_LEASES_INTERVAL_S, LEASES_INTERVAL_S, MetadataPull
from tandemmq.broker.tracing.send_tracer import BrokerTracing
from tandemmq.core.message.record import OutgoingMessage
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.replication.master_replica import SlaveView
from tandemmq.core.replication.mastership import MasterAbsence, ReadsStep, Sight
from tandemmq.core.routing.values import RegisteredBroker
from tandemmq.core.storage.disk import DiskError, RecordCorrupt
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.core.tracing import span_data as names
from tandemmq.core.tracing.send_spans import ReplicaTimelines, TracedPut, replica_spans
from tandemmq.core.tracing.span_data import AttributeValue
from tandemmq.service.event_loop import TurnLimit
from tandemmq.service.metrics import MetricSamples
from tandemmq.service.rpc import Call

if TYPE_CHECKING:
    from tandemmq.broker.parts import BrokerParts

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
            failed=parts.disk_failed,
            cut_progress=lambda: self._to_its_end(self._cut_progress()),
            begins=self._doubt_until_caught_up if parts.settings.failover_authority else None,
            master_left=parts.master_left,
            other_process=lambda: parts.members.other_process(
                parts.member.disk_id, run=parts.member.run, incarnation=parts.incarnation
            ),
            timelines=parts.observability.replica_timelines,
            tls=parts.ha_tls,
        )
        self._metadata_pull = MetadataPull(
            tables=parts.tables.by_file,
            master=parts.members.master_metadata,
            applied=parts.tables.applied_from_master,
            damaged=parts.tables.damaged,
            leases=self._copy,
            leases_interval_s=(FAILOVER_LEASES_INTERVAL_S if parts.settings.failover_authority else LEASES_INTERVAL_S),
            accepted=lambda: self.is_serving and self.follower.has_accepted_master and not self.serves_reads,
            to_its_end=self._to_its_end,
            gives_way=lambda: parts.member.heir_of_epoch == parts.member.history.last_epoch > 0,
            has_messages=self._has_messages,
            given_up=parts.tables.keep_aside,
        )
        self._reads = SlaveReads(
            parts, self._copy, has_link=lambda: self.follower.is_following, refusal=self.client_refusal
        )

    def _has_messages(self, topic: str) -> bool:
        """Its numbers have begun here, whether or not its messages have expired since."""
        store = self._parts.store
        return any(store.queue_max_offset(topic, queue_id) for queue_id in store.queues.ids_of(topic))

    async def _cut_progress(self) -> None:
        # What it knows better the master had its chance to take.
        self._reads.end("a master is followed")
        await cut_progress(self._parts.tables, self._copy, self._parts.store.queues, self._parts.queue_end)

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
    def is_fenced(self) -> bool:
        return self._reads.stood_still

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
        return self.follower.lag_bytes

    def slaves(self) -> Sequence[SlaveView]:
        """It has none."""
        return ()

    def setting_appliers(self) -> Mapping[str, Applier]:
        """None that a master has not as well."""
        return {}

    async def tell(self, samples: MetricSamples, turn: TurnLimit) -> None:
        samples.add("rocketmq_store_ha_slave_following", self.follower.is_following)
        samples.add("rocketmq_store_ha_slave_behind_bytes", self.follower.lag_bytes)
        samples.add("rocketmq_store_ha_slave_refusing", self.follower.is_refusing)
        samples.add("rocketmq_store_ha_slave_serving_reads", self.serves_reads)

    @property
    def caught_up_epoch(self) -> int:
        """See `Follower`. Without the tables it would lack topics that were confirmed, and without the progress of
        groups it would deliver again what was acknowledged long before."""
        pull = self._metadata_pull
        return self.follower.caught_up_epoch if pull.has_all and pull.has_progress else 0

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

    def note_end_of_leases(self) -> None:
        """What it gave while it served reads is doubted by the master that takes it."""

    def persist_leases_durably(self) -> None:
        """An operator's act; see `change_refusal`."""
        self.persist_leases()

    def when_progress_held(self, done: Callable[[bool], object]) -> None:
        """What consumers finish here no other member has, and the next master takes it from our files."""
        done(self.serves_reads and not self.is_fenced)

    # Life

    async def begin(self, tasks: asyncio.TaskGroup) -> None:
        parts = self._parts
        parts.store.set_writable(False, "a slave takes messages from its master only")
        # Its log may be cut, and is compared with the master's at each start.
        parts.log_end.note(0)
        if parts.is_whole or not parts.settings.failover_authority:
            await asyncio.to_thread(parts.store.trust_tail)
        self._tasks = [
            tasks.create_task(task) for task in (self.follower.run(), self._metadata_pull.run(), self._reads.run())
        ]
        if parts.settings.failover_authority:
            self._tasks.append(tasks.create_task(self._trust_when_caught_up()))
        self._tasks.append(tasks.create_task(self._follow_lite_topics()))
        pull = self._traced_puts_pull()
        if pull is not None:
            self._tasks.append(tasks.create_task(pull.run()))
        self.is_serving = True

    async def _doubt_until_caught_up(self) -> None:
        """A member of the in-sync set may come back with an older copy of its disk, and its master may die just when it
        has the log again, and not yet the tables: it must not claim, nor at its next start. A process that was master,
        or had caught up, runs on its own disk."""
        if not self._parts.member.is_proven:
            self._parts.is_whole = False
            await self._to_its_end(asyncio.to_thread(self._parts.store.doubt_tail))

    async def _trust_when_caught_up(self) -> None:
        """See `_doubt_until_caught_up`; the same for a disk that may have lost something, however orderly this process
        stops before."""
        while not self.caught_up_epoch:
            await asyncio.sleep(_LOOK_S)
        await self._parts.tables.written()
        self._parts.is_whole = True
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


# A slave's own spans of the sends its master traced: asks which those are, and tells when it had them.
#
# The master is asked once a second and knows nothing of the answer. A put that has not come yet is kept in mind: the
# span of a slave that was away is the one somebody will look for.

log = structlog.get_logger(__name__)

PULL_INTERVAL_S: Final = 1.0
# A master that is away, or one of another make that does not know the question.
RETRY_PAUSE_S: Final = 5.0
# Puts that are traced and not here yet, and how long they are waited for.
_PENDING_MAX: Final = 2_000
_PATIENCE_NS: Final = 300 * 1_000_000_000
# Of one turn of the loop, which is about 2 ms.
_BUILT_AT_ONCE: Final = 32


class TracedPutsPull:
    """One task of a slave. `master` gives the metadata endpoint or None."""

    def __init__(
        self,
        *,
        tracing: BrokerTracing,
        timelines: ReplicaTimelines,
        master: Callable[[], str | None],
        reports_flushed_only: bool,
    ) -> None:
        self._tracing = tracing
        self._timelines = timelines
        self._master = master
        self._reports_flushed_only = reports_flushed_only
        identity = tracing.identity
        self._broker: dict[str, AttributeValue] = {
            names.BROKER_GROUP: identity.broker_name,
            names.BROKER_ID: identity.broker_id,
            # As the master's events name it.
            names.SLAVE: str(identity.broker_id),
        }
        self._incarnation = 0
        self._sequence = 0
        self._has_failed = False
        self._pending: list[tuple[int, TracedPut]] = []

    async def run(self) -> None:
        """Asks until cancelled."""
        while True:
            endpoint = self._master()
            if endpoint is not None:
                try:
                    async with PeerClient(endpoint) as peer:
                        await self._follow(peer)
                except PeerUnavailable as error:
                    log.debug("traced_puts_unknown", master=endpoint, reason=str(error))
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _follow(self, peer: PeerClient) -> None:
        """Asks one master until it fails or another takes its place."""
        while self._master() == peer.endpoint:
            while await self.pull(peer):
                pass
            await asyncio.sleep(PULL_INTERVAL_S)

    async def pull(self, peer: PeerClient) -> bool:
        """Asks once and makes the spans that can be made; whether the master has more to tell."""
        page = await peer.traced_puts(incarnation=self._incarnation, after_sequence=self._sequence)
        if page.incarnation != self._incarnation:
            self._incarnation, self._sequence = page.incarnation, 0
        now_ns = self._tracing.clock.monotonic_ns()
        if page.puts:
            self._sequence = page.puts[-1].sequence
        puts = [*self._pending, *((now_ns + _PATIENCE_NS, put) for put in page.puts)]
        self._pending = []
        for start in range(0, len(puts), _BUILT_AT_ONCE):
            for give_up_ns, put in puts[start : start + _BUILT_AT_ONCE]:
                if not self._make(put) and give_up_ns > now_ns:
                    self._pending.append((give_up_ns, put))
            await asyncio.sleep(0)
        del self._pending[:-_PENDING_MAX]
        return bool(page.puts)

    def _make(self, put: TracedPut) -> bool:
        """Hands out a put's spans; False when it is not here yet. Never raises: a trace is not worth a slave."""
        try:
            spans = replica_spans(
                put,
                self._timelines,
                reports_flushed_only=self._reports_flushed_only,
                broker=self._broker,
                sampler=self._tracing.sampler,
                wall_offset_ns=self._tracing.wall_offset_ns(),
            )
            if spans:
                self._tracing.sink.add(spans)
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                log.exception("put_not_traced")
            return True
        return spans is not None


# A slave gives messages to consumers while its group has no master, and keeps their leases.
#
# `MasterAbsence` in the core decides when. The slave's copy of the leases becomes the table that it works with, as a
# master loads its own; topics and groups stay as they are, and nothing is put: neither a dead letter nor a new group.
# It gives what its log holds. Of that nothing is taken back: a master that has lost some of it fetches it from here
# before it serves (ADR 28), unless an operator says otherwise.
#
# What groups have finished here is in the files when the answer leaves, and a mark beside them says that they are more
# than a copy: a master that starts takes them into its own, once it has our promise (`LeaseTable.merge`).

GRACE_MS: Final = 3_000
"""Longer than a process takes that is only started again; in a group that fails over its lease comes on top."""
_TICK_S: Final = 1.0


class SlaveReads:
    """One task of a slave, and what it serves with. `has_link`: the master's log flows to us. `refusal`: why consumers
    are refused otherwise. Event loop only."""

    def __init__(self, parts: BrokerParts, copy: LeaseCopy, *, has_link: Callable[[], bool], refusal: str) -> None:
        self._parts = parts
        self._copy = copy
        self._has_link = has_link
        self._refusal = refusal
        settings = parts.settings
        lease_ms = settings.failover_options().lease_ms if settings.failover_authority else 0
        self._absence = MasterAbsence(GRACE_MS + lease_ms)
        self.storage: LeaseStorage | None = None
        """The files of the leases while it serves; None: it does not."""
        self._since_ms = 0

    @property
    def stood_still(self) -> bool:
        """See `MasterAbsence`."""
        return self._absence.stood_still(self._parts.clock.monotonic_ms())

    async def run(self) -> None:
        """Until it is cancelled; the caller ends the service."""
        parts = self._parts
        ticked_ms = collected_ms = 0
        while True:
            await asyncio.sleep(_LOOK_S)
            now_ms = parts.clock.monotonic_ms()
            reason = "this process stood still" if self._absence.stood_still(now_ms) else "another member serves"
            self._act(self._absence.look(self._sight(), rank=self._rank(), now_ms=now_ms), reason)
            storage = self.storage
            if storage is None or now_ms - ticked_ms < _TICK_S * 1_000:
                continue
            ticked_ms = now_ms
            parts.client_api.housekeep()
            if now_ms - collected_ms >= parts.settings.flush_consumer_offset_interval:
                collected_ms = now_ms
                parts.tables.collect_progress(parts.leases)
            try:
                await storage.compact_if_due()
            except DiskError as error:
                parts.disk_failed(error)

    def give_way(self) -> None:
        """A master that starts takes what groups have finished: nothing is given any more when this returns."""
        self._act(self._absence.promised(), "a master starts")

    def end(self, reason: str) -> None:
        """Gives nothing any more, and has written everything. Twice is fine."""
        self._absence.ended()
        storage, self.storage = self.storage, None
        if storage is None:
            return
        parts = self._parts
        if parts.refusal is READS_ONLY:
            parts.refusal = self._refusal
        # Who waits would find an empty table, and nobody to write down what it is given.
        parts.client_api.drain(is_stopping=parts.stopping.is_set())
        parts.tables.collect_progress(parts.leases)
        try:
            storage.close()
        except DiskError as error:
            parts.disk_failed(error)
        parts.leases.clear()
        self._copy.take_back()
        parts.links.registration_changed()
        log.warning("slave_reads_ended", reason=reason, served_ms=parts.clock.monotonic_ms() - self._since_ms)

    # Inside

    def _act(self, step: ReadsStep, reason: str) -> None:
        if step is ReadsStep.BEGIN:
            self._begin()
        elif step is ReadsStep.END:
            self.end(reason)

    def _begin(self) -> None:
        """On the loop on purpose: nobody may copy, cut or serve meanwhile, and a slave without master serves nobody."""
        parts = self._parts
        storage = LeaseStorage(parts.disk, parts.leases, parts.clock)
        try:
            self._copy.lend()
            parts.client_api.role_begins()
            storage.load()
        except DiskError as error:
            parts.disk_failed(error)
            return
        self.storage, self._since_ms = storage, parts.clock.monotonic_ms()
        if parts.refusal == self._refusal:
            parts.refusal = READS_ONLY
        parts.reads_begun()
        parts.links.registration_changed()
        log.warning(
            "slave_serves_reads",
            reason="the group has no master",
            end_offset=parts.store.dispatched_offset,
            remedy="start the master; in a group that fails over, if it is lost: tandemmq failover "
            f"{parts.identity.broker_name} --to {parts.identity.broker_id} --unclean",
        )

    def _sight(self) -> Sight:
        parts = self._parts
        if self._has_link():
            return Sight.MASTER
        others = self._others()
        masters = [broker for broker in others if broker.is_master]
        if any(not master.recovering for master in masters):
            return Sight.MASTER
        own_id = parts.identity.broker_id
        readers = [broker for broker in others if broker.endpoints.reads]
        # Of two that began at once the one with the smaller id goes on.
        if any(self.storage is None or reader.identity.broker_id < own_id for reader in readers):
            return Sight.READER
        if not any(link.is_watching for link in parts.links.links):
            return Sight.UNKNOWN
        return Sight.STARTING if masters else Sight.NOBODY

    def _rank(self) -> int:
        """Other slaves that hold more, or as much under a smaller id."""
        ours = (self._parts.store.dispatched_offset, -self._parts.identity.broker_id)
        return sum(
            1
            for broker in self._others()
            if not broker.is_master and (broker.end_offset, -broker.identity.broker_id) > ours
        )

    def _others(self) -> list[RegisteredBroker]:
        own = self._parts.identity
        return [broker for broker in self._parts.members.registered() if broker.identity != own]
