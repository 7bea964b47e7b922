"""One broker: puts the parts together, starts them in order, and stops them in order.

Start: lock and recover the store, load metadata, open the metadata plane, (a master hears its whole group, and fetches
what another replica has more,) load leases, open the HA and client planes, register. Stop: deregister, refuse sends,
answer those that wait, flush, write metadata, close the store, which takes the abort file away.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import structlog

from tandemmq.broker.audit.replica_state import ReplicaState
from tandemmq.broker.audit.services import AuditServices
from tandemmq.broker.client_api.client_api import ClientApi
from tandemmq.broker.client_api.plane import ClientPlane
from tandemmq.broker.client_api.services import ApiOptions, Timers
from tandemmq.broker.client_api.sessions import ClientSessions
from tandemmq.broker.dead_letters import DeadLetterResend
from tandemmq.broker.departure import Departure
from tandemmq.broker.flush_worker import FlushWorker
from tandemmq.broker.group_changes import GroupChanges, GroupProgressView
from tandemmq.broker.group_members import GroupMembers
from tandemmq.broker.kept_tails import KeptTails
from tandemmq.broker.leases import LeaseCopy, LeaseStorage
from tandemmq.broker.master.group_recovery import (
    GroupRecovery,
    GroupView,
    cut_progress,
    recover_leases,
    recover_metadata,
)
from tandemmq.broker.master.ha_listener import HaListener
from tandemmq.broker.metadata_tables import MetadataTables, MetadataWrite
from tandemmq.broker.metrics import BrokerMetrics, LagAge
from tandemmq.broker.peer_api.admin import AdminServicer
from tandemmq.broker.peer_api.message_queries import MessageQueryServicer
from tandemmq.broker.peer_api.metadata import MetadataServicer
from tandemmq.broker.peer_api.operations import BrokerOperationsServicer
from tandemmq.broker.peer_api.plane import SERVICE_NAMES, MetadataPlane
from tandemmq.broker.peer_api.replica import ReplicaServicer
from tandemmq.broker.peer_api.traces import TraceServicer
from tandemmq.broker.peer_client import MemberLogs, PeerClient, PeerUnavailable
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.broker.queries.message_queries import MessageLookup, MessageQueries
from tandemmq.broker.queries.stored_records import CommitLogPages
from tandemmq.broker.queue_reader import DamagedEntries, StoreQueueReader
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.broker.replica_proof import ReplicaProof
from tandemmq.broker.report import BrokerReport
from tandemmq.broker.retention import MasterFloor, Retention, SlaveFloor
from tandemmq.broker.runtime_settings import RuntimeSettings, setting_appliers
from tandemmq.broker.settings import BrokerRole, BrokerSettings
from tandemmq.broker.slave.follower import Follower
from tandemmq.broker.slave.metadata_pull import MetadataPull
from tandemmq.broker.slave.traced_puts_pull import TracedPutsPull
from tandemmq.broker.tracing.observability import BrokerObservability
from tandemmq.broker.tracing.send_tracer import SendTracer
from tandemmq.broker.write_path import WritePath
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.message.record import Host
from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.metadata.subscription_group_table import (
    CreationLimit,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable, is_system_topic
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.routing.values import (
    BrokerEndpoints,
    BrokerIdentity,
    Registration,
    ReplicaMemory,
    TopicQueues,
    TopicRoute,
    host_port,
)
from tandemmq.core.storage.disk import DiskError
from tandemmq.core.storage.flush_jobs import FlushJob, NextSegmentJob
from tandemmq.core.storage.index_table import PagesAheadJob
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import FlushDiskType
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.service.grpc_server import PROBE_LIVE, PROBE_READY, PROBE_STARTED, GrpcServer
from tandemmq.service.logging import EventMemory, LevelSwitch
from tandemmq.service.loop_meter import LoopMeter
from tandemmq.service.metrics.metric_exports import MetricExports
from tandemmq.service.name_server_link import NameServerLinks

__all__ = ["Broker"]

log = structlog.get_logger(__name__)

LEASE_TICK_S: Final = 1.0
# The event names each; a disk that lost them all says so in as many lines.
DAMAGED_QUEUES_TOLD: Final = 100
# Topic, properties and fixed fields of a record beside its body.
RECORD_HEAD_ROOM_BYTES: Final = 64 << 10
_SLAVE_REFUSAL: Final = "this broker is a slave; its master takes and gives messages"


class Broker:
    """A master or a slave, by its settings. Implements `BrokerServices` for the client API's handlers.

    `run` returns the exit code: 0 after an orderly stop, 1 when the disk failed.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock,
        store_host: Host,
        loop_meter: LoopMeter | None = None,
        events: EventMemory | None = None,
        log_level: LevelSwitch | None = None,
        accepts_loss: bool = False,
    ) -> None:
        """`events` is where the process' log lines are remembered, `log_level` decides which are written. With
        `accepts_loss` a master does not wait for replicas that it cannot reach, whatever they hold."""
        self._events = events or EventMemory()
        self._loop_meter = loop_meter or LoopMeter()
        self._settings = settings
        self._clock = clock
        self._store_host = store_host
        self._incarnation = clock.wall_ms()
        self._identity = BrokerIdentity(settings.broker_cluster_name, settings.broker_name, settings.broker_id)
        self._observability = BrokerObservability(settings, identity=self._identity, clock=clock)
        self._disk = PosixDisk(Path(settings.store_path_root_dir))
        self._store = MessageStore(
            self._disk, clock, settings.store_options(), store_host=store_host, process_id=os.getpid()
        )
        self._member = ReplicaIdentity(self._disk, self._identity, new_disk_id=lambda: uuid.uuid4().hex)
        self._tables = MetadataTables(self._disk, clock, topics_changed=self._topics_changed)
        self._damaged_entries = DamagedEntries()
        self._leases = LeaseTable(
            StoreQueueReader(self._store, self._damaged_entries),
            options=settings.delivery_options(),
            broker_name=settings.broker_name,
            nonce=lambda: secrets.randbits(64),
            stored_offset=self._tables.consumer_offsets.offset,
        )
        self._lease_storage = LeaseStorage(self._disk, self._leases, clock)
        self._lease_copy = LeaseCopy(self._disk)
        self._sessions = ClientSessions(self._client_gone)
        self._options = ApiOptions(
            max_message_bytes=settings.max_message_size,
            auto_create_subscription_group=settings.auto_create_subscription_group,
        )
        self._client_api = ClientApi(self, self._observability.tracing)
        self._client_plane = ClientPlane(settings, self._client_api, clock=clock, turns=self._loop_meter.turns)
        self._replica = MasterReplica(self._store, settings.master_options())
        self._flusher = FlushWorker(
            "flush-log",
            take=self._store.log_flush_job,
            finished=self._log_flushed,
            failed=self._disk_failed,
            interval_ms=None if self._sync_flush else settings.flush_interval_commit_log,
        )
        self._queue_flusher = FlushWorker(
            "flush-queues",
            take=self._store.queue_flush_job,
            finished=self._queues_flushed,
            failed=self._disk_failed,
            interval_ms=settings.flush_interval_consume_queue,
        )
        self._preparer = FlushWorker[NextSegmentJob](
            "prepare",
            take=self._store.preparation_job,
            finished=self._store.preparation_finished,
            failed=self._disk_failed,
            interval_ms=200,
        )
        self._pages_bringer = FlushWorker[PagesAheadJob](
            "bring-pages",
            take=self._store.pages_ahead_job,
            finished=lambda _: None,
            failed=self._disk_failed,
            interval_ms=200,
        )
        self._metadata_writer = FlushWorker[MetadataWrite](
            "write-metadata",
            take=self._tables.take_write,
            finished=self._tables.write_finished,
            failed=self._disk_failed,
            waits_for_room=True,
        )
        self._group_creations = CreationLimit(
            per_second=settings.new_groups_per_second,
            per_client_per_second=settings.new_groups_per_client_per_second,
            count_max=settings.subscription_groups_max,
        )
        self._workers = (
            self._flusher,
            self._queue_flusher,
            self._preparer,
            self._pages_bringer,
            self._metadata_writer,
        )
        self._write_path = WritePath(
            store=self._store,
            replica=self._replica,
            clock=clock,
            flush_disk_type=settings.flush_disk_type,
            waits_for_slaves=settings.broker_role is BrokerRole.SYNC_MASTER,
            kick_flush=self._flusher.kick,
            appended=self._client_api.message_arrived,
            answered=self._client_plane.flush,
            refusal=lambda: self.refusal,
            failed=self._disk_failed,
            meter=self._observability.put_meter,
            tracer=self.send_tracer,
            turns=self._loop_meter.turns,
        )
        self._ha = HaListener(
            replica=self._replica,
            log_reader=self._store,
            clock=clock,
            after_input=self._write_path.collect,
            tracer=self.send_tracer,
        )
        self._write_path.attach(self._ha)
        self.put: Final = self._write_path.put
        """Without a step in between: every send goes this way."""
        self._members = GroupMembers(
            self._identity, view=lambda: self._links.view, stated_master=settings.ha_master_address
        )
        self._follower = Follower(
            store=self._store,
            clock=clock,
            options=settings.slave_options(),
            identity=self._identity,
            replica=self._member,
            metadata_endpoint=self._metadata_endpoint,
            master=self._members.master_address,
            reports_flushed_only=self._sync_flush,
            kick_flush=self._flusher.kick,
            flushes_paused=self._alone_with_store,
            tail_bytes=2 * (settings.max_message_size + RECORD_HEAD_ROOM_BYTES),
            failed=self._disk_failed,
            cut_progress=lambda: cut_progress(self._tables, self._lease_copy, self._store.queue_max_offset),
            timelines=self._observability.replica_timelines,
        )
        self._stopping = asyncio.Event()
        self._links: NameServerLinks = NameServerLinks(
            settings.name_servers,
            clock=clock,
            log=log,
            chance=random.Random(),
            registrant=self,
            heartbeat_interval_ms=settings.broker_heartbeat_interval,
            on_superseded=self._superseded,
        )
        self._recovery = GroupRecovery(
            store=self._store,
            replica=self._member,
            identity=self._identity,
            clock=clock,
            group=GroupView(
                name_servers=frozenset(settings.name_servers),
                own_endpoint=self._metadata_endpoint,
                members=self._members.registered,
                told=self._told_by_name_servers,
                forget=self._links.forget_replica,
            ),
            total_replicas=settings.total_replicas,
            recovery_timeout_ms=settings.master_recovery_timeout,
            accepts_loss=accepts_loss,
            alone_with_store=self._alone_with_store,
            fetch_metadata=self._fetch_metadata,
            cut_progress=lambda: cut_progress(self._tables, self._lease_storage, self._store.queue_max_offset),
            damaged_tables=lambda: {file.value: text for file, text in self._tables.damaged.items()},
            accept_damage=self._tables.accept_damage,
            connected_ids=lambda: {slave.broker_id for slave in self._replica.slaves() if slave.broker_id is not None},
            forgotten=lambda broker_id: self._master_floor.forget_replica(broker_id),
            given_up=lambda: self._stopping.is_set(),
            state_changed=self._recovery_changed,
            tail_bytes=2 * (settings.max_message_size + RECORD_HEAD_ROOM_BYTES),
        )
        self._metadata_pull = MetadataPull(
            tables=self._tables.by_file,
            master=self._members.master_metadata,
            applied=self._tables.applied_from_master,
            leases=self._lease_copy,
            accepted=lambda: self._follower.has_accepted_master,
        )
        self._master_floor: MasterFloor = MasterFloor(
            self._store,
            clock=clock,
            leases=self._leases,
            stored=self._tables.consumer_offsets,
            topics=self._tables.topics,
            is_system_topic=self._is_system_topic,
            slaves=self._replica.slaves,
            slave_count=settings.total_replicas - 1,
            absent_replicas=lambda: {memory.broker_id: memory.end_offset for memory in self._member.replicas},
        )
        self._retention = Retention(
            self._store,
            disk=self._disk,
            clock=clock,
            floor=self._master_floor if settings.is_master else SlaveFloor(self._members.master_address),
            is_master=settings.is_master,
        )
        self._departure = Departure(
            clock=clock,
            grace_ms=settings.drain_grace_period if settings.is_master else 0,
            default_limit_ms=settings.drain_grace_period + settings.shutdown_timeout,
            leave=self._leave,
            refuse=self._refuse_before_stop,
            waiting_count=lambda: self._write_path.waiting_count,
            slaves=self._replica.slaves,
            end_offset=lambda: self._store.end_offset,
        )
        self._lag_age = LagAge(end_offset=lambda: self._store.end_offset, clock=clock)
        self._report = BrokerReport(
            settings,
            identity=self._identity,
            clock=clock,
            store=self._store,
            disk=self._disk,
            replica=self._replica,
            follower=self._follower,
            write_path=self._write_path,
            leases=self._leases,
            sessions=self._sessions,
            client_plane=self._client_plane,
            links=self._links,
            loop_meter=self._loop_meter,
            ha=self._ha,
            lag_age=self._lag_age,
            puts=self._observability.put_meter,
            deliveries=self._client_api.delivery_meter,
            tables=self._tables,
            current_settings=self._current_settings,
            refusal=lambda: self.refusal,
            member=self._member,
            recovery=self._recovery,
            retention_problems=lambda: self._retention.problems,
            log_damage=lambda: self._log_damage,
        )
        self._queries = MessageQueries(
            store=self._store,
            topics=self._tables.topics,
            pages=CommitLogPages(
                Path(settings.store_path_root_dir) / "commitlog",
                file_bytes=settings.store_options().commit_log_file_bytes,
            ),
            clock=clock,
            is_indexed=settings.message_index_enable,
            damaged=self._damaged_entries,
        )
        self._group_changes = GroupChanges(
            store=self._store,
            tables=self._tables,
            leases=self._leases,
            sessions=self._sessions,
            find_offsets=self._queries.find_offsets,
            persist_leases=self._persist_leases_durably,
            consumes_anew=self._client_api.consumes_anew,
            wake=self._client_api.housekeep,
        )
        self._store_turn = asyncio.Lock()
        self._audit = AuditServices(
            settings,
            identity=self._identity,
            clock=clock,
            store=self._store,
            state=self._replica_state,
            member_metadata=self._members.member_metadata,
            flushes_paused=self._alone_with_store,
            failed=self._disk_failed,
            damaged=self._damaged_entries,
            read_from_replica=MemberLogs(self._members.other_endpoints, are_expected=settings.total_replicas > 1).read,
            mended=self._client_api.message_arrived,
        )
        self._runtime_settings = RuntimeSettings(
            settings,
            setting_appliers(
                store=self._store,
                leases=self._leases,
                api_options=self._options,
                observability=self._observability,
                audit_read_rate=lambda rate: self._audit.change(bytes_per_second=rate),
                log_level=log_level,
                is_master=settings.is_master,
            ),
            disk_used_ratio=lambda: self._disk.usage().used_ratio,
        )
        self._metadata_server = self._metadata_server_of(settings)
        self._metrics = self._metrics_of(settings)
        self._metric_exports = MetricExports(
            settings.metrics_options(), collect=self._metrics.collect, resource=self._observability.resource
        )
        self.refusal: str | None = "the broker is starting"
        """Why messages are neither taken nor given now; None when they are. An attribute: every send asks."""
        self._log_damage: str = ""
        """What was wrong with the log's tail when it was read at the start."""
        self._serving = False
        self._is_open = False
        self._failure: str | None = None
        self._ports = {"listenPort": 0, "grpcServerPort": 0, "haListenPort": 0}

    @property
    def _sync_flush(self) -> bool:
        return self._settings.flush_disk_type is FlushDiskType.SYNC_FLUSH

    def _current_settings(self) -> BrokerSettings:
        return self._runtime_settings.current

    # BrokerServices: what the client API's handlers need

    @property
    def identity(self) -> BrokerIdentity:
        """Who this broker is."""
        return self._identity

    @property
    def store_host(self) -> Host:
        """Address written into records."""
        return self._store_host

    @property
    def clock(self) -> Clock:
        """Time."""
        return self._clock

    @property
    def timers(self) -> Timers:
        """The event loop, and the ends of its turns."""
        return self._loop_meter.turns

    @property
    def options(self) -> ApiOptions:
        """Limits and switches of the client API."""
        return self._options

    @property
    def topics(self) -> TopicTable:
        """Topics of this broker group."""
        return self._tables.topics

    @property
    def groups(self) -> SubscriptionGroupTable:
        """Consumer groups of this broker group."""
        return self._tables.groups

    @property
    def leases(self) -> LeaseTable:
        """What is delivered and not yet acknowledged."""
        return self._leases

    @property
    def sessions(self) -> ClientSessions:
        """Clients heard of."""
        return self._sessions

    def route(self, topic: str) -> TopicRoute | None:
        """The cluster's route of a topic, as the NameServers last told it."""
        return self._links.route(topic)

    @property
    def send_tracer(self) -> SendTracer | None:
        """Makes traces of sends."""
        return self._observability.send_tracer

    def create_topic(self, topic: str, *, queue_count: int, done: Callable[[], object]) -> None:
        """Creates a topic, and calls `done` when it is durable."""
        self._tables.put_topic(TopicConfig(topic, queue_count, queue_count))
        self._tables.when_written(done)

    def create_group(self, group: str, *, client_id: str) -> str | None:
        """Creates a consumer group because a client named it; or says why not."""
        refusal = self._group_creations.refusal(
            client_id, count=len(self._tables.groups), now_ms=self._clock.monotonic_ms()
        )
        if refusal is None:
            self._tables.put_group(SubscriptionGroupConfig(group_name=group))
        return refusal

    def when_group_written(self, group: str, done: Callable[[], object]) -> None:
        """Calls `done` when the group is durable."""
        self._tables.when_group_written(group, done)

    def persist_leases(self) -> None:
        """Writes what changed in the lease table. A disk that refuses stops the broker."""
        try:
            self._lease_storage.persist()
        except DiskError as error:
            self._disk_failed(error)
            raise

    def _persist_leases_durably(self) -> None:
        """The same, so that it outlives a loss of power."""
        try:
            self._lease_storage.persist_durably()
        except DiskError as error:
            self._disk_failed(error)
            raise

    # Life

    async def run(self, stop: asyncio.Event) -> int:
        """Serves until `stop` is set or the disk fails. Raises what keeps the broker from starting."""
        asyncio.get_running_loop().set_exception_handler(self._callback_failed)
        # First of all, so that a long recovery is seen.
        await self._metric_exports.start()
        if self._metric_exports.port:
            self._ports["metricsPromExporterPort"] = self._metric_exports.port
        try:
            return await self._run(stop)
        finally:
            await self._end_exports()

    async def _run(self, stop: asyncio.Event) -> int:
        await self._recover()
        self._metrics.recovered()
        self._ports["listenPort"] = await self._metadata_server.start(service_names=SERVICE_NAMES)
        async with asyncio.TaskGroup() as background:
            tasks = self._start_background(background)
            waiter = background.create_task(self._wait_for_stop(stop))
            try:
                await self._start_role(background, tasks)
                if not self._stopping.is_set():
                    await self._serve()
                await self._stopping.wait()
            finally:
                waiter.cancel()
                await self._stop()
                for task in tasks:
                    task.cancel()
                for worker in self._workers:
                    await worker.close()
        return self._close_files()

    async def _serve(self) -> None:
        """Opens the doors; not if somebody has asked for a drain before it came to that."""
        if self._departure.has_begun:
            return
        self._ports |= await self._client_plane.start()
        self._is_open = True
        self._links.announce()
        self._links.registration_changed()
        self.refusal = None if self._settings.is_master else _SLAVE_REFUSAL
        await self._tell_readiness()
        log.info("broker_serving", role=str(self._settings.broker_role), **self._ports)

    async def _recover(self) -> None:
        await asyncio.to_thread(self._member.read)
        report = await asyncio.to_thread(self._store.load)
        await asyncio.to_thread(self._member.count_start)
        await asyncio.to_thread(self._audit.remove_leftover)
        log.info(
            "store_recovered",
            clean=report.clean,
            same_boot=report.same_boot,
            min_offset=self._store.min_offset,
            end_offset=report.end_offset,
            redispatched_records=report.redispatched_records,
            truncated_bytes=report.truncated_bytes,
            stop_reason=report.stop_reason,
            duration_ms=report.duration_ms,
        )
        self._log_damage = report.damage
        for topic, queue_id, queue_offset in report.damaged_queues[:DAMAGED_QUEUES_TOLD]:
            log.error("consume_queue_damaged", topic=topic, queue_id=queue_id, rebuilt_from=queue_offset)
        if report.damage:
            kept = report.kept_tail
            log.error("log_damaged", damage=report.damage, kept=kept.path if kept is not None else "")
        self._is_whole = not report.may_have_lost
        if not self._settings.is_master:
            self._store.set_writable(False, "a slave takes messages from its master only")
        self._tables.load(
            cluster=self._settings.broker_cluster_name,
            broker_name=self._settings.broker_name,
            auto_create_topic=self._settings.auto_create_topic_enable,
        )

    def _metadata_server_of(self, settings: BrokerSettings) -> GrpcServer:
        metadata_server = GrpcServer(
            settings.bind_address,
            settings.listen_port,
            clock=self._clock,
            probes={
                # The port opens when the store is recovered.
                PROBE_STARTED: lambda: True,
                PROBE_LIVE: lambda: self._failure is None,
                PROBE_READY: lambda: self._is_ready,
            },
        )
        MetadataPlane(
            metadata=MetadataServicer(
                tables=self._tables.by_file,
                changes=self._tables.changes,
                is_master=settings.is_master,
                damaged=self._tables.damaged.keys(),
                leases=self._lease_storage if settings.is_master else self._lease_copy,
            ),
            replica=ReplicaServicer(
                log=self._store,
                identity=self._identity,
                replica=self._member,
                proof=ReplicaProof(
                    log=self._store,
                    replica=self._member,
                    serving=lambda: self._serving,
                    verified=self._slave_verified,
                    superseded=self._superseded,
                    leave_master=self._follower.leave_master,
                ),
                serving=lambda: self._serving,
                recovery=self._recovery if settings.is_master else None,
                traced_puts=self.send_tracer.traced_puts if self.send_tracer is not None else None,
            ),
            reader=self._audit.reader,
            repair=self._audit.repair,
            admin=AdminServicer(
                status=self._report.status,
                topics=self._tables.topics,
                groups=self._tables.groups,
                queues=self._store,
                group_progress=GroupProgressView(
                    store=self._store,
                    topics=self._tables.topics,
                    leases=self._leases,
                    stored=self._tables.consumer_offsets,
                    sessions=self._sessions,
                    clock=self._clock,
                ),
                topic_deleted=self._group_changes.forget_topic,
                departure=self._departure,
                probe_peers=self._report.probe_peers,
                is_system_topic=self._is_system_topic,
                written=self._tables.written,
                topics_changed=self._tables.topics_edited,
                groups_changed=self._tables.groups_edited,
                is_master=settings.is_master,
                default_queue_count=lambda: self._current_settings().default_topic_queue_nums,
                clock=self._clock,
            ),
            operations=BrokerOperationsServicer(
                sessions=self._sessions,
                changes=self._group_changes,
                settings=self._runtime_settings,
                events=self._events,
                resend_dead_letters=DeadLetterResend(self, self._queries).resend,
                kept_tails=KeptTails(
                    disk=self._disk,
                    services=self,
                    queries=self._queries,
                    is_system_topic=self._is_system_topic,
                ),
                process_start_ms=self._incarnation,
                refusal=lambda: self.refusal,
                clock=self._clock,
            ),
            queries=MessageQueryServicer(self._queries),
            traces=TraceServicer(
                identity=self._identity,
                recent=self._observability.recent_spans,
                options=self._observability.trace_options,
                find_message=MessageLookup(
                    queries=self._queries,
                    flushed_offset=lambda: self._store.flushed_offset,
                    topics=self._tables.topics,
                    slaves=self._replica.slaves,
                ).find,
                min_offset=lambda: self._store.min_offset,
                is_indexed=settings.message_index_enable,
            ),
        ).serve_on(metadata_server)
        return metadata_server

    def _metrics_of(self, settings: BrokerSettings) -> BrokerMetrics:
        return BrokerMetrics(
            settings=settings,
            identity=self._identity,
            clock=self._clock,
            store=self._store,
            disk=self._disk,
            replica=self._replica,
            follower=self._follower,
            write_path=self._write_path,
            put_meter=self._observability.put_meter,
            client_api=self._client_api,
            client_plane=self._client_plane,
            leases=self._leases,
            sessions=self._sessions,
            topics=self._tables.topics,
            groups=self._tables.groups,
            links=self._links,
            loop_meter=self._loop_meter,
            lag_age=self._lag_age,
            current_settings=self._current_settings,
            flush_seconds={"log": self._flusher.durations_s, "queues": self._queue_flusher.durations_s},
            retention=self._retention,
            refusal=lambda: self.refusal,
            span_counts=self._observability.span_counts,
            epoch=lambda: self.epoch,
            start_waited_ms=lambda: self._recovery.waited_ms,
            is_log_damaged=lambda: bool(self._log_damage),
            problem_count=lambda: self._report.problem_count,
            damaged_entries=self._damaged_entries,
        )

    def _start_background(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        # The next files are made ahead from the start, not from the first pause of a second on.
        self._preparer.kick()
        self._tables.attach(self._metadata_writer.kick)
        for worker in self._workers:
            group.create_task(worker.run())
        tasks = [
            group.create_task(self._links.run()),
            group.create_task(self._retention.run()),
            group.create_task(self._departure.run()),
            group.create_task(self._report.run()),
            group.create_task(self._audit.mending.run()),
        ]
        if self.send_tracer is not None:
            tasks.append(group.create_task(self.send_tracer.run()))
        return tasks

    async def _start_role(self, group: asyncio.TaskGroup, tasks: list[asyncio.Task[None]]) -> None:
        """Takes up the master's or the slave's work."""
        if not self._settings.is_master:
            await asyncio.to_thread(self._store.trust_tail)
            tasks += [group.create_task(self._follower.run()), group.create_task(self._metadata_pull.run())]
            tasks += self._start_tracing_copies(group)
            self._serving = True
            return
        # Listed, in no route: operators see what it waits for, and its replicas that it is there.
        self._links.announce()
        if not await self._recovery.run(is_whole=self._is_whole):
            return  # The tail stays in doubt: the next start asks again.
        # Not before the log is whole: what lies beyond its end goes back to it.
        await asyncio.to_thread(self._lease_storage.load)
        # Only then: a tick beside it would find a half-filled table and no journal.
        tasks += [group.create_task(self._lease_ticks()), group.create_task(self._progress_ticks())]
        await asyncio.to_thread(self._store.trust_tail)
        self._ha.start(host=self._settings.bind_address, port=self._settings.ha_listen_port)
        self._ports["haListenPort"] = self._ha.port
        self._serving = True

    def _start_tracing_copies(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """The slave's part of the traces its master keeps."""
        tracing, timelines = self._observability.tracing, self._observability.replica_timelines
        if tracing is None or timelines is None:
            return []
        pull = TracedPutsPull(
            tracing=tracing,
            timelines=timelines,
            master=self._members.master_metadata,
            reports_flushed_only=self._sync_flush,
        )
        return [group.create_task(pull.run())]

    async def _wait_for_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stopping.set()

    # Readiness and departure

    @property
    def _is_ready(self) -> bool:
        """May work, or rely on us. Of a master: messages are taken, whatever its slaves do. Of a slave: it holds, or
        is about to hold, what its master has, and has its topics, groups and offsets; so a group whose slave is behind
        does not let its master be evicted.
        """
        if not self._is_open or self._departure.has_begun or self._stopping.is_set():
            return False
        if self._settings.is_master:
            return self.refusal is None and self._store.refusal is None
        # A Java master has no metadata plane to take them from.
        if not self._metadata_pull.has_all and self._members.master_metadata() is not None:
            return False
        return self._follower.is_following and self._follower.lag_bytes < self._settings.ha_max_gap_not_in_sync

    async def _tell_readiness(self) -> None:
        """To whoever asks the health service for a whole plane."""
        is_serving = self._is_open and not self._departure.has_begun
        await self._metadata_server.set_serving(is_serving)
        await self._client_plane.set_serving(is_serving)

    async def _leave(self) -> None:
        """The first step of a drain: nobody new is sent here."""
        await self._tell_readiness()
        await self._links.unregister()

    def _refuse_before_stop(self) -> None:
        """The last step of a drain. Sends in progress go on to their end."""
        if self._settings.is_master and not self._stopping.is_set():
            self.refusal = "the broker is draining: it will be restarted"
            self._client_api.drain()

    async def _stop(self) -> None:
        """Leaves the routes, ends what waits, then closes the planes; the store is still open."""
        limit_ms = self._settings.shutdown_timeout
        log.info("broker_stopping", failure=self._failure)
        self.refusal = "the broker is stopping"
        await self._links.unregister()
        if self._failure is not None:
            self._write_path.fail_all(PutStatus.SERVICE_NOT_AVAILABLE)
        deadline_ms = self._clock.monotonic_ms() + limit_ms // 2
        while self._write_path.waiting_count and self._clock.monotonic_ms() < deadline_ms:
            await asyncio.sleep(0.01)
        self._write_path.fail_all(PutStatus.SERVICE_NOT_AVAILABLE)
        self._client_api.drain()
        await self._client_plane.stop(limit_ms=500)
        await self._slaves_caught_up(deadline_ms)
        self._serving = False
        self._ha.stop()
        self._write_path.close()
        if self._failure is None:
            # Nothing is appended any more: this end is exact, and the next start of a master need not ask about it.
            await self._links.unregister(is_log_closed=True)
        await self._audit.close_helper()
        await self._metadata_server.stop(limit_ms=500)
        await self._audit.repairs_ended()
        await self._end_exports()

    async def _end_exports(self) -> None:
        """While the store is still open: the last figures are read, and the last sends become spans. Twice is fine."""
        async with asyncio.TaskGroup() as ends:
            ends.create_task(self._metric_exports.close())
            ends.create_task(self._observability.close())

    async def _slaves_caught_up(self, deadline_ms: int) -> None:
        """Gives connected slaves the end of the log, so that an orderly stop leaves equal replicas."""
        end_offset = self._store.end_offset
        while self._clock.monotonic_ms() < deadline_ms and self._failure is None:
            if all(slave.acked_offset >= end_offset for slave in self._replica.slaves()):
                return
            await asyncio.sleep(0.01)

    def _close_files(self) -> int:
        if self._failure is not None:
            # The abort file stays: recovery has to find out what the log really holds.
            return 1
        if self._settings.is_master:
            self._tables.collect_progress(self._leases)
        self._tables.persist_all()
        self._lease_storage.close()
        self._lease_copy.close()
        self._store.close()
        log.info("broker_stopped", end_offset=self._store.end_offset)
        return 0

    # Registration

    @property
    def incarnation(self) -> int:
        """Wall clock of the process start in ms."""
        return self._incarnation

    @property
    def data_version(self) -> DataVersion:
        """Version of the topic table."""
        return self._tables.topics.version

    @property
    def epoch(self) -> int:
        """Greatest epoch of its history."""
        return self._member.history.last_epoch

    @property
    def end_offset(self) -> int:
        """End of its log's last whole record."""
        return self._store.dispatched_offset

    def registration(self) -> Registration:
        """What NameServers are told."""
        settings = self._settings
        # While a master waits for its group these doors are closed; any port of theirs may not even be known yet.
        client_port, ha_port = self._ports["grpcServerPort"], self._ports["haListenPort"]
        client = host_port(settings.broker_ip1, settings.advertised_grpc_port or client_port) if client_port else ""
        ha = host_port(settings.ha_host, ha_port) if settings.is_master and ha_port else ""
        external_port = settings.external_advertised_port or settings.external_listen_port
        external = host_port(settings.external_advertised_host, external_port) if external_port else ""
        return Registration(
            identity=self._identity,
            endpoints=BrokerEndpoints(
                client=client,
                metadata=self._metadata_endpoint(),
                ha=ha,
                client_external=external,
            ),
            incarnation=self._incarnation,
            liveness_timeout_ms=settings.broker_not_active_timeout_millis,
            data_version=self.data_version,
            topics=tuple(
                TopicQueues(
                    topic=topic.topic_name,
                    read_queue_count=topic.read_queue_count,
                    write_queue_count=topic.write_queue_count,
                    permission=topic.perm,
                    topic_system_flag=topic.topic_sys_flag,
                    message_type=topic.message_type,
                )
                for topic in self._tables.topics
            ),
            disk_id=self._member.disk_id,
            run=self._member.run,
            epoch=self.epoch,
            end_offset=self.end_offset,
            known_replicas=self._member.replicas,
            recovering=self._recovering(),
        )

    def _metadata_endpoint(self) -> str:
        return host_port(self._settings.ha_host, self._ports["listenPort"])

    def _recovering(self) -> str:
        """What a starting master waits for; empty for one that serves, and for a slave."""
        if not self._settings.is_master or self._serving:
            return ""
        waiting = self._recovery.waiting
        return waiting.reason if waiting is not None else "it asks the replicas of its group"

    def _recovery_changed(self) -> None:
        self._links.registration_changed()

    async def _told_by_name_servers(self) -> Mapping[str, Sequence[ReplicaMemory] | None]:
        answers = await self._links.group_memory()
        return {address: None if answer is None else answer.replicas for address, answer in answers.items()}

    async def _fetch_metadata(self, endpoints: Sequence[str], is_behind: bool) -> None:
        """Takes over what the replicas know better than we do. PeerUnavailable: what is needed cannot be had yet."""
        has_leases = False
        for endpoint in endpoints:
            try:
                async with PeerClient(endpoint) as peer:
                    await recover_metadata(peer, self._tables, self._lease_storage)
            except PeerUnavailable as error:
                if is_behind or self._tables.damaged:
                    raise
                log.warning("metadata_not_compared", replica=endpoint, reason=str(error))
            try:
                async with PeerClient(endpoint) as peer:
                    has_leases = has_leases or await recover_leases(
                        peer, self._tables, self._lease_storage, replace=is_behind
                    )
            except PeerUnavailable as error:
                log.warning("leases_not_fetched", replica=endpoint, reason=str(error), effect="messages come again")

    def _topics_changed(self) -> None:
        self._links.registration_changed()

    # What happens meanwhile

    @asynccontextmanager
    async def _jobs_paused(self) -> AsyncIterator[None]:
        """No job is out that would vouch for, or add to, what is being cut or moved."""
        async with self._queue_flusher.paused(), self._preparer.paused():
            yield

    @asynccontextmanager
    async def _alone_with_store(self) -> AsyncIterator[None]:
        """The same, for one at a time: a repair syncs queue entries by a job of its own, and a slave that reconnects
        must not cut its log under it. What is inside may pause the jobs again, but not this."""
        async with self._store_turn, self._jobs_paused():
            yield

    def _log_flushed(self, job: FlushJob) -> None:
        self._store.flush_finished(job)
        if self._settings.is_master:
            self._write_path.flushed()
        else:
            self._follower.flushed()

    def _queues_flushed(self, job: FlushJob) -> None:
        self._store.flush_finished(job)
        if self._store.queue_flush_due:
            # A job is bounded so that it never holds the loop; the rest of the round follows at once.
            self._queue_flusher.kick()

    def _slave_verified(self, broker_id: int, end_offset: int, connection: str) -> None:
        self._replica.verified(broker_id, end_offset, peer=connection, now_ms=self._clock.monotonic_ms())

    def _superseded(self, reason: str) -> None:
        """Another master took our place. One that starts has to hear that, too, but it asks for itself."""
        if self._settings.is_master and self._serving:
            log.critical("master_superseded", reason=reason, remedy="none: this broker stops, and asks when it starts")
            self._stop_on(f"another master took our place: {reason}")

    def _disk_failed(self, error: DiskError) -> None:
        self._stop_on(f"the disk failed: {error}")

    def _stop_on(self, failure: str) -> None:
        """Ends the broker with exit code 1; nothing is acknowledged any more."""
        self._failure = self._failure or failure
        self.refusal = failure
        self._stopping.set()

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of the loop raised: an invariant is broken, and a crash is better than a wrong byte."""
        error = context.get("exception")
        if isinstance(error, BlockingIOError):
            return  # grpc.aio: its completion poller was woken and found nothing to read; harmless.
        log.critical("callback_failed", message=context.get("message"), exc_info=error)
        self._stop_on(f"callback failed: {error}")

    def _client_gone(self, client_id: str) -> None:
        self._leases.client_gone(client_id, now_ms=self._clock.monotonic_ms())

    def _is_system_topic(self, name: str) -> bool:
        return is_system_topic(name, cluster=self._settings.broker_cluster_name, broker_name=self._settings.broker_name)

    async def _lease_ticks(self) -> None:
        """Ends silent sessions and leases, and compacts the lease journal."""
        while True:
            await asyncio.sleep(LEASE_TICK_S)
            try:
                self._client_api.housekeep()
                for skipped in self._leases.take_new_skips():
                    log.warning(
                        "group_began_at_newest",
                        group=skipped.group,
                        topic=skipped.topic,
                        older_messages=skipped.message_count,
                        remedy="reset its offsets to earliest if it should have them; see consumeFromEarliest",
                    )
                self._lease_storage.persist()
                await self._lease_storage.compact_if_due()
            except DiskError as error:
                self._disk_failed(error)
                return

    async def _progress_ticks(self) -> None:
        """RocketMQ's flushConsumerOffsetInterval."""
        while True:
            await asyncio.sleep(self._settings.flush_consumer_offset_interval / 1000)
            self._tables.collect_progress(self._leases)

    def _replica_state(self) -> ReplicaState:
        store, is_master = self._store, self._settings.is_master
        end_offset = store.end_offset
        return ReplicaState(
            identity=self._identity,
            min_offset=store.min_offset,
            end_offset=end_offset,
            flushed_offset=store.flushed_offset,
            confirm_offset=min(
                (slave.acked_offset for slave in self._replica.slaves() if slave.in_sync), default=end_offset
            ),
            segment_bytes=store.segment_bytes,
            queues_offset=store.saved_offset,
            index_offset=store.saved_offset if self._settings.message_index_enable else store.min_offset,
            lag_bytes=0 if is_master else self._follower.lag_bytes,
            serving=self._serving and (is_master or self._follower.is_following),
        )
