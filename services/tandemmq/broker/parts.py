"""What a broker is made of whatever its role, and what it asks of the role that it has.

A role can end and another begin while the process lives: `MasterRole` in `master/role.py`, `SlaveRole` in
`slave/role.py`. Each builds what only it needs. What outlives it is here, and whoever outlives it asks
`BrokerParts.role` each time instead of keeping a role.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tandemmq.broker.access_changes import AccessChanges, read_keys, read_seeds
from tandemmq.broker.client_api.access import CallSources, ClientAccess, SignatureZones
from tandemmq.broker.client_api.client_api import ClientApi
from tandemmq.broker.client_api.forward_tls import broker_channels_of
from tandemmq.broker.client_api.forwarding import GroupCalls
from tandemmq.broker.client_api.plane import ClientPlane
from tandemmq.broker.client_api.services import READS_ONLY, Timers
from tandemmq.broker.client_api.sessions import ClientSessions, by_address, client_id_of
from tandemmq.broker.client_api.validation import NewFilters
from tandemmq.broker.delayed_messages import DelayedMessages
from tandemmq.broker.far_reads import FarReads, SlaveLogs, memory_bytes
from tandemmq.broker.flush_worker import FlushWorker
from tandemmq.broker.group_members import GroupMembers
from tandemmq.broker.ha_transport import ConnectionBearers, HaTls
from tandemmq.broker.leases import LeaseChange, LeasePosition, LeaseSource
from tandemmq.broker.master.group_recovery import GroupRecovery
from tandemmq.broker.message_group_homes import MessageGroupHomes
from tandemmq.broker.message_timers import MessageTimers
from tandemmq.broker.metadata_tables import MetadataTables, MetadataWrite, NotSpread
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.broker.put import PutMessages
from tandemmq.broker.queries.stored_records import CommitLogPages
from tandemmq.broker.queue_reader import DamagedEntries, StoreQueueReader
from tandemmq.broker.replica_identity import LogDamage, LogEndMark, ReplicaIdentity
from tandemmq.broker.runtime_settings import api_options
from tandemmq.broker.send_room import HELD_BYTES_MAX, SendRoom
from tandemmq.broker.settings import BrokerRole, BrokerSettings
from tandemmq.broker.slave.follower import MasterLeft
from tandemmq.broker.tracing.observability import BrokerObservability
from tandemmq.broker.tracing.send_tracer import SendTracer
from tandemmq.core.access.sealed_secrets import SecretKeys
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lite_topics import LMQ_PREFIX, LiteTopics, split_lmq_name
from tandemmq.core.delivery.queue_reader import QueueReader
from tandemmq.core.message.record import Host
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.metadata.subscription_group_table import (
    CreationLimit,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable, is_system_topic
from tandemmq.core.replication.master_replica import SlaveView
from tandemmq.core.routing.values import BrokerIdentity, TopicRoute, host_port
from tandemmq.core.storage.commit_log import COMMIT_LOG_FOLDER
from tandemmq.core.storage.disk import DiskError
from tandemmq.core.storage.flush_jobs import FlushJob, NextSegmentJob
from tandemmq.core.storage.index_table import PagesAheadJob
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import FlushDiskType
from tandemmq.http2.errors import TlsMode
from tandemmq.service.event_loop import LoopMeter
from tandemmq.service.metrics import MetricSamples
from tandemmq.service.name_server_link import NameServerLinks
from tandemmq.service.service_tls import ServerTls, server_tls_of

if TYPE_CHECKING:
    # Both are built on this module.
    from tandemmq.broker.retention import Floor
    from tandemmq.broker.runtime_settings import Applier
    from tandemmq.service.event_loop import TurnLimit
    from tandemmq.service.rpc import Call

LITE_FOLLOWED_AT_ONCE: Final = 256
UNKNOWN_END: Final = 1 << 62


class Role(Protocol):
    """A master's or a slave's part in its group, from `begin` to `end`; once only. Event loop only.

    What it tells may be asked from the start on, and after the end.
    """

    # What clients and operators are told

    @property
    def put(self) -> PutMessages: ...

    @property
    def client_refusal(self) -> str | None:
        """Why it neither takes nor gives messages while it serves; None: it does."""

    @property
    def is_fenced(self) -> bool:
        """Another may serve consumers by now, and nothing was refused here yet, perhaps: this process stood still."""

    @property
    def change_refusal(self) -> str | None:
        """Why it does not change topics for operators; None: it does."""

    @property
    def confirmed_offset(self) -> int:
        """What lies below it in the log may be given: a change of master does not take it away."""

    def setting_appliers(self) -> Mapping[str, Applier]:
        """What follows settings in this role alone, by RocketMQ's key."""

    # What the group is told

    @property
    def is_serving(self) -> bool:
        """It has begun and has not ended."""

    @property
    def is_ready(self) -> bool:
        """A serving broker of this role may work, or its group may rely on it."""

    @property
    def waits_for(self) -> str:
        """What it waits for before it serves; empty when it does not."""

    @property
    def hears_master(self) -> bool:
        """The master's log flows to us, and its machine answers. True of a master."""

    @property
    def has_master(self) -> bool:
        """It is its group's master, or follows it now."""

    @property
    def lag_bytes(self) -> int:
        """How far the master's log is ahead of ours."""

    @property
    def is_master(self) -> bool:
        """It is its group's master, or is about to be; else it follows."""

    @property
    def serves_reads(self) -> bool:
        """It is a slave that gives messages, since its group has no master."""

    @property
    def holds_copies(self) -> bool:
        """Its tables and leases are copies of its master's."""

    @property
    def leases(self) -> LeaseSource:
        """The files of its leases."""

    @property
    def recovery(self) -> GroupRecovery | None:
        """A master's start, which an operator may have to help."""

    @property
    def epoch_refusal(self) -> str | None:
        """Why no other member may begin an epoch now; None: it may."""

    @property
    def caught_up_epoch(self) -> int:
        """Of a slave: the epoch in which it last had all that its master had; 0: it never had, or is a master."""

    def require(self) -> None:
        """A master of a group that fails over acknowledges what the in-sync set holds, as it is now."""

    async def copy_progress(self) -> bool:
        """A slave takes topics, groups, offsets and leases as its master has them now. False: it could not."""

    async def retake_table(self, file: MetadataFile, *, dry_run: bool) -> bool:
        """A slave takes a table of its master again, whatever versions say; whether that changed, or would change,
        anything. OSError: there is no master to take it from."""

    async def append_leases(self, change: LeaseChange) -> LeasePosition:
        """A slave takes what its master's leases go on with; where its copy ends then."""

    @property
    def lacking_progress(self) -> Collection[str]:
        """Of a master: disks that cannot take now what groups have finished. They are as good as not connected."""

    def give_up(self) -> None:
        """A master that starts does not come to serve any more: its `begin` returns soon."""

    async def leave_master(self) -> None:
        """Another member begins an epoch. Drops the master that is followed; when it returns no byte of it comes any
        more, and a slave that served reads gives nothing."""

    def verified(self, broker_id: int, disk_id: str, end_offset: int, connection: str) -> None:
        """A member has proven that its log is ours up to `end_offset`."""

    def superseded(self, reason: str) -> None:
        """Another master took the group over."""

    # What the process needs

    @property
    def floor(self) -> Floor:
        """Who needs what of the log."""

    @property
    def drain_grace_ms(self) -> int:
        """How long it serves those who have not heard yet that it leaves."""

    @property
    def waiting_count(self) -> int:
        """Sends, and turns with acknowledgements, without an answer yet."""

    def slaves(self) -> Sequence[SlaveView]: ...

    def flushed(self) -> None: ...

    def second_passed(self) -> None:
        """Called once a second, from before `begin` on."""

    def persist_leases(self) -> None:
        """Writes what changed in the lease table. A disk that refuses stops the broker."""

    def note_end_of_leases(self) -> None:
        """Nothing is given any more, and what clients may not have read runs out."""

    def persist_leases_durably(self) -> None:
        """The same, so that it outlives a loss of power."""

    def when_progress_held(self, done: Callable[[bool], object]) -> None:
        """Calls `done` with True once what was persisted outlives a change of master, with False if that stays
        unknown."""

    async def tell(self, samples: MetricSamples, turn: TurnLimit) -> None: ...

    # Life

    async def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Takes up its work, in tasks of `tasks` that `end` ends. It may take as long as its group keeps it waiting."""

    async def answer_sends(self, deadline_ms: int) -> None:
        """Nothing is taken any more: gives the sends that wait until the deadline, then fails them."""

    async def end(self, deadline_ms: int) -> None:
        """Gives up its work, after a `begin` that was given up, too. Slaves have until the deadline to follow."""

    def close_files(self) -> None:
        """Writes what the store does not. Blocks; after `end`."""


class StoreWorkers:
    """The threads that write, and prepare, what one store and its tables have made ready."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        store: MessageStore,
        tables: MetadataTables,
        log_flushed: Callable[[], None],
        failed: Callable[[DiskError], None],
    ) -> None:
        """`log_flushed` is called after each flush of the log."""
        self._store = store
        self._tables = tables
        self._log_flushed = log_flushed
        is_sync = settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.log: Final = FlushWorker(
            "flush-log",
            take=store.log_flush_job,
            finished=self._log_job_finished,
            failed=failed,
            interval_ms=None if is_sync else settings.flush_interval_commit_log,
        )
        self.queues: Final = FlushWorker(
            "flush-queues",
            take=store.queue_flush_job,
            finished=self._queue_job_finished,
            failed=failed,
            interval_ms=settings.flush_interval_consume_queue,
        )
        self._preparer = FlushWorker[NextSegmentJob](
            "prepare",
            take=store.preparation_job,
            finished=store.preparation_finished,
            failed=failed,
            interval_ms=200,
        )
        self._pages_bringer = FlushWorker[PagesAheadJob](
            "bring-pages", take=store.pages_ahead_job, finished=lambda _: None, failed=failed, interval_ms=200
        )
        self._metadata_writer = FlushWorker[MetadataWrite](
            "write-metadata",
            take=tables.take_write,
            finished=tables.write_finished,
            failed=failed,
            waits_for_room=True,
        )
        self._store_turn = asyncio.Lock()

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Once the store is recovered."""
        # The next files are made ahead from the start, not from the first pause of a second on.
        self._preparer.kick()
        self._tables.attach(self._metadata_writer.kick)
        for worker in (self.log, self.queues, self._preparer, self._pages_bringer, self._metadata_writer):
            tasks.create_task(worker.run())

    async def close(self) -> None:
        """Lets running jobs finish and ends all threads."""
        for worker in (self.log, self.queues, self._preparer, self._pages_bringer, self._metadata_writer):
            await worker.close()

    @asynccontextmanager
    async def alone_with_store(self) -> AsyncIterator[None]:
        """No job is out that would vouch for, or add to, what is being cut or moved; for one at a time: a repair syncs
        queue entries by a job of its own, and a slave that reconnects must not cut its log under it. What is inside may
        pause the jobs again, but not this."""
        async with self._store_turn, self.queues.paused(), self._preparer.paused():
            yield

    def _log_job_finished(self, job: FlushJob) -> None:
        self._store.flush_finished(job)
        self._log_flushed()

    def _queue_job_finished(self, job: FlushJob) -> None:
        self._store.flush_finished(job)
        if self._store.queue_flush_due:
            # A job is bounded so that it never holds the loop; the rest of the round follows at once.
            self.queues.kick()


class BrokerParts:
    """The parts of one broker that live as long as its process. Implements `BrokerServices` for the client API's
    handlers. Event loop only; `take_role` comes before anything runs.
    """

    role: Role
    put: PutMessages
    """The role's own, without a step in between: every send goes this way."""
    persist_leases: Callable[[], None]
    """Likewise: every receive does."""
    when_progress_held: Callable[[Callable[[bool], object]], None]
    """Likewise, for acknowledgements."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock,
        store_host: Host,
        links: NameServerLinks,
        loop_meter: LoopMeter,
    ) -> None:
        self.settings: Final = settings
        self.clock: Final = clock
        self.store_host: Final = store_host
        self.links: Final = links
        self.loop_meter: Final = loop_meter
        self.timers: Final[Timers] = loop_meter.turns
        self.send_room: Final = SendRoom(
            loop_meter.turns.call_later,
            messages_max=settings.unacknowledged_sends_max,
            # They are there twice, as they came and as they were read.
            held_bytes_max=min(HELD_BYTES_MAX, max(64 << 20, memory_bytes() // 16)),
        )
        self.incarnation: Final = clock.wall_ms()
        """Of the process: its start."""
        self.identity: Final = BrokerIdentity(settings.broker_cluster_name, settings.broker_name, settings.broker_id)
        self.observability: Final = BrokerObservability(settings, identity=self.identity, clock=clock)
        self.send_tracer: Final[SendTracer | None] = self.observability.send_tracer
        self.refusal: str | None = "the broker is starting"
        """Why messages are neither taken nor given now; None when they are. An attribute: every send asks."""
        self.master_left: MasterLeft = lambda epoch, listens: None
        """Of a slave in a group that fails over; see `Follower`."""
        self.reads_begun: Callable[[], None] = lambda: None
        """The same: it gives messages from now on. It may have sent its clients to others; see `TurnedAway`."""
        self.failure: str | None = None
        """Why the broker stops with exit code 1."""
        self.stopping: Final = asyncio.Event()
        self._spreading: Final[set[asyncio.Task[None]]] = set()
        self.ports: Final = {"listenPort": 0, "grpcServerPort": 0, "haListenPort": 0}
        """Those that are open, by setting; 0 before."""
        self.server_tls: Final = server_tls_of(settings, clock=clock, group=settings.broker_name)
        self.ha_tls: Final = _ha_tls(settings, self.server_tls)
        self.ha_bearers: Final = (
            None if self.server_tls is None else ConnectionBearers(self.server_tls.folder.caller_problem)
        )
        self.is_whole: bool = False
        """The last run of this disk lost nothing that its log held, as far as the disk knows."""
        self.log_damage: LogDamage | None = None
        self.log_made_good_ms: int | None = None
        """Monotonic: since when another replica's bytes are in the place of what was lost."""
        self._build_store()
        self._build_client_api()

    def _build_store(self) -> None:
        settings, clock = self.settings, self.clock
        self.disk = PosixDisk(Path(settings.store_path_root_dir))
        self.log_end = LogEndMark(Path(settings.store_path_root_dir))
        self.store = MessageStore(
            self.disk, clock, settings.store_options(), store_host=self.store_host, process_id=os.getpid()
        )
        self.member = ReplicaIdentity(
            self.disk,
            self.identity,
            new_disk_id=lambda: uuid.uuid4().hex,
            nonce=secrets.token_hex(8),
            keeps_disks_apart=bool(settings.failover_authority),
        )
        self.members = GroupMembers(
            self.identity, view=lambda: self.links.view, stated_master=settings.ha_master_address
        )
        self.tables = MetadataTables(self.disk, clock, topics_changed=self.links.registration_changed)
        self.topics: TopicTable = self.tables.topics
        self.groups: SubscriptionGroupTable = self.tables.groups
        self.message_group_homes = MessageGroupHomes(
            self.disk,
            self.topics,
            own_name=settings.broker_name,
            route=self.links.route,
            live=self.members.serving_groups,
        )
        self.damaged_entries = DamagedEntries()
        queues = StoreQueueReader(
            self.store,
            self.damaged_entries,
            confirmed_offset=(lambda: self.role.confirmed_offset) if settings.failover_authority else None,
        )
        self.pages = CommitLogPages(
            Path(settings.store_path_root_dir) / COMMIT_LOG_FOLDER, file_bytes=self.store.segment_bytes
        )
        self.far_reads = FarReads(
            self.store,
            self.pages,
            near_bytes=memory_bytes() * settings.access_message_in_memory_max_ratio // 100,
            now_ms=clock.monotonic_ms,
            arrived=lambda topic: self.client_api.message_arrived(topic),
            slaves=SlaveLogs(lambda: self.role.slaves(), self.members.member_metadata)
            if settings.slave_read_enable
            else None,
        )
        self.queues: QueueReader = queues
        self.lite_topics = LiteTopics(queues, self.topics, log_cuts=lambda: self.store.log_cuts)
        handed_out = StoreQueueReader(
            self.store,
            self.damaged_entries,
            confirmed_offset=(lambda: self.role.confirmed_offset) if settings.failover_authority else None,
            far=self.far_reads,
        )
        queues.lite = handed_out.lite = self.lite_topics
        self.leases = LeaseTable(
            self.queues,
            handed_out=handed_out,
            options=settings.delivery_options(),
            broker_name=settings.broker_name,
            nonce=lambda: secrets.randbits(64),
            stored_offset=self.tables.consumer_offsets.offset,
        )
        self.message_timers = MessageTimers(
            store=self.store,
            reader=self.queues,
            disk=self.disk,
            pages=self.pages,
            clock=clock,
            store_host=self.store_host,
        )
        self.delayed = DelayedMessages(
            self.message_timers,
            clock=clock,
            topics=self.topics,
            put=lambda messages, done, call=None, traceparents=(): self.put(messages, done, call, traceparents),
            roll_after_ms=settings.file_reserved_time * 3_600_000,
            batch_bytes_max=settings.mapped_file_size_commit_log // 4,
        )
        self.workers = StoreWorkers(
            settings,
            store=self.store,
            tables=self.tables,
            log_flushed=lambda: self.role.flushed(),
            failed=self.disk_failed,
        )

    def _build_client_api(self) -> None:
        settings = self.settings
        self.sessions = ClientSessions(self._client_gone, whose=lambda call: self.whose(call))
        self.new_filters = NewFilters()
        self.options = api_options(settings)
        self._group_creations = CreationLimit(
            per_second=settings.new_groups_per_second,
            per_client_per_second=settings.new_groups_per_client_per_second,
            count_max=settings.subscription_groups_max,
            is_there=lambda group: self.groups.get(group) is not None,
        )
        keys = read_keys(settings.auth_key_path)
        self.access_changes = AccessChanges(self.tables, keys=keys, clock=self.clock)
        self._seeds = read_seeds(settings.auth_seed_path)
        self.access = self._client_access(keys) if settings.authentication_enabled and keys is not None else None
        """Who may call the client API; None: whoever reaches it."""
        self.client_id_of = client_id_of if self.access is None else self.access.client_id_of
        """Of a call to the client API."""
        self.whose = by_address if self.access is None else self.access.user_of
        """Of whose share a call to the client API takes: its user's, or its address's where nobody signs in."""
        sources = CallSources(keys, self.clock) if keys is not None else None
        self.vouch = None if sources is None else sources.vouch
        """What tells another broker where a call came from; None: it could not know whether to believe it."""
        self.broker_channels = broker_channels_of(settings, clock=self.clock)
        self.group_calls = GroupCalls(
            self.members.client_of_group,
            now_ms=self.clock.monotonic_ms,
            vouch=self.vouch,
            brokers=self.broker_channels,
            whose=self.whose,
        )
        self.client_api = ClientApi(
            self, self.observability.tracing, self.access, source_of=None if sources is None else sources.source
        )
        self.client_api.change_quotas(settings.quota_rules())
        self.client_plane = ClientPlane(settings, self.client_api, clock=self.clock, turns=self.loop_meter.turns)

    def _client_access(self, keys: SecretKeys) -> ClientAccess:
        access = ClientAccess(
            users=self.tables.users,
            acls=self.tables.acls,
            keys=keys,
            authorizes=self.settings.authorization_enabled,
            zones=SignatureZones(*self.settings.signature_zones()),
            clock=self.clock,
            timers=self.timers,
            revoked=lambda: self.client_api.access_changed(),
            has_room=lambda client_id: self.sessions.has_room(client_id),
        )
        self.tables.access_changed = access.changed
        return access

    def take_seeds(self) -> None:
        """A master makes its first users, before it serves."""
        self.access_changes.sow(self._seeds)

    def take_role(self, role: Role) -> None:
        self.role, self.put = role, role.put
        self.persist_leases, self.when_progress_held = role.persist_leases, role.when_progress_held

    # What several ask

    @property
    def is_sync_flush(self) -> bool:
        """An answer waits for the disk."""
        return self.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def role_name(self) -> str:
        """SYNC_MASTER, ASYNC_MASTER or SLAVE: what it is now, whatever its settings say."""
        if not self.role.is_master:
            return str(BrokerRole.SLAVE)
        return str(self.settings.broker_role if self.settings.is_master else BrokerRole.SYNC_MASTER)

    def metadata_endpoint(self) -> str:
        """Our metadata plane as it is registered."""
        return host_port(self.settings.ha_host, self.ports["listenPort"])

    def is_system_topic(self, name: str) -> bool:
        return is_system_topic(name, cluster=self.identity.cluster, broker_name=self.identity.broker_name)

    # What the client API's handlers need beside

    def read_far_from(self, broker_id: int) -> None:
        """See `BrokerServices`. Only a master has slaves."""
        self.far_reads.slave_id = broker_id if self.role.is_master else 0

    @property
    def read_refusal(self) -> str | None:
        """Why messages are not given now; None when they are."""
        return None if self.refusal is READS_ONLY else self.refusal

    @property
    def is_fenced(self) -> bool:
        return self.role.is_fenced

    @property
    def reads_only(self) -> bool:
        """Messages are given, and nothing is taken or made."""
        return self.refusal is READS_ONLY

    def route(self, topic: str) -> TopicRoute | None:
        """The cluster's route of a topic, as the NameServers last told it."""
        return self.links.route(topic)

    def home_of(self, topic: str, message_group: str) -> str:
        return self.message_group_homes.home_of(topic, message_group)

    def create_topic(self, topic: str, *, queue_count: int, done: Callable[[], object]) -> None:
        """Creates a topic, and calls `done` when it is durable."""
        self.tables.put_topic(TopicConfig(topic, queue_count, queue_count))
        if self.tables.spread is None:
            self.tables.when_written(done)
        else:
            spreading = asyncio.get_running_loop().create_task(self._spread())
            self._spreading.add(spreading)
            spreading.add_done_callback(self._spreading.discard)
            spreading.add_done_callback(lambda _: done())

    async def _spread(self) -> None:
        # Nobody was told of it: who needs the topic makes it again.
        with suppress(NotSpread):
            await self.tables.confirmed()

    def when_resets_spread(self, done: Callable[[bool], object]) -> None:
        self.role.persist_leases_durably()
        self.tables.collect_progress(self.leases)
        spreading = asyncio.get_running_loop().create_task(self._resets_spread(done))
        self._spreading.add(spreading)
        spreading.add_done_callback(self._spreading.discard)

    async def _resets_spread(self, done: Callable[[bool], object]) -> None:
        try:
            await self.tables.confirmed()
        except NotSpread:
            done(False)
        else:
            done(True)

    def progress_pairs(self) -> Sequence[tuple[str, str]]:
        return [*self.leases.pairs(), *self.tables.consumer_offsets.pairs()]

    def forget_progress(self, pairs: Sequence[tuple[str, str]], done: Callable[[bool], object]) -> None:
        for group, topic in pairs:
            self.leases.forget_pair(group, topic)
        self.tables.forget_progress(pairs)
        self.when_resets_spread(lambda is_spread: self.when_progress_held(done) if is_spread else done(False))

    def queue_end(self, topic: str, queue_id: int) -> int:
        """Where a queue ends for who cuts progress that lies beyond. Logical queues are not known before they are
        followed; see `follow_lite_topics`."""
        return UNKNOWN_END if topic.startswith(LMQ_PREFIX) else self.store.queue_max_offset(topic, queue_id)

    def lite_queue_end(self, topic: str, queue_id: int) -> int:
        """The same once they are, but for those whose messages lie behind a damaged entry, or are all gone."""
        if topic.startswith(LMQ_PREFIX) and not self.lite_topics.has(*split_lmq_name(topic)):
            return UNKNOWN_END
        return self.queues.max_offset(topic, queue_id) if self.queues.knows_end(topic) else UNKNOWN_END

    async def follow_lite_topics(self) -> bool:
        """Learns what lies in the lite topics, in turns; whether there are any topics of that type. A damaged entry
        ends the reading of its topic until it is mended."""
        parents = self.lite_topics.parents()
        for parent in parents:
            before = -1
            while not self.lite_topics.follow(parent, LITE_FOLLOWED_AT_ONCE):
                if before == (before := self.lite_topics.followed_count):
                    break
                await asyncio.sleep(0)
        return bool(parents)

    def create_group(self, group: str, call: Call) -> str | None:
        """Creates a consumer group because a client named it; or says why not."""
        refusal = self._group_creations.refusal(
            group,
            self.client_id_of(call),
            self.whose(call),
            count=len(self.groups),
            now_ms=self.clock.monotonic_ms(),
        )
        if refusal is None:
            self.tables.put_group(SubscriptionGroupConfig(group_name=group))
        return refusal

    def when_group_written(self, group: str, done: Callable[[], object]) -> None:
        self.tables.when_group_written(group, done)

    def _client_gone(self, client_id: str) -> None:
        self.leases.client_gone(client_id, now_ms=self.clock.monotonic_ms())
        self.client_api.lite.client_gone(client_id)

    # Failures

    def disk_failed(self, error: DiskError) -> None:
        """Ends the broker: what the disk holds is not known any more."""
        self.fail(f"the disk failed: {error}")

    def fail(self, failure: str) -> None:
        """Ends the broker with exit code 1; nothing is acknowledged any more."""
        self.failure = self.failure or failure
        self.refusal = failure
        self.stopping.set()


def _ha_tls(settings: BrokerSettings, server_tls: ServerTls | None) -> HaTls | None:
    if settings.ha_tls_mode is TlsMode.DISABLED:
        return None
    assert server_tls is not None, "the settings say so: haTlsMode needs serviceTlsMode"
    return HaTls(settings.ha_tls_mode, server_tls.folder)
