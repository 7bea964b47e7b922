"""One broker: puts the parts together, starts them in order, and stops them in order.

Start: lock and recover the store, load metadata, open the metadata plane, (a master hears its whole group, and fetches
what another replica has more,) load leases, open the HA and client planes, register. Stop: deregister, refuse sends,
answer those that wait, flush, write metadata, close the store, which takes the abort file away.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Final

import structlog

from tandemmq.broker.client_api.forwarding import SETTLING, CallForwarder
from tandemmq.broker.client_api.sessions import by_address
from tandemmq.broker.departure import Departure
from tandemmq.broker.failover.authority import open_authority
from tandemmq.broker.failover.controller import Failover
from tandemmq.broker.failover.kubernetes_service import service_of_pod
from tandemmq.broker.flush_worker import with_room
from tandemmq.broker.group_changes import GroupChanges
from tandemmq.broker.master.role import MasterRole
from tandemmq.broker.metrics import BrokerMetrics
from tandemmq.broker.parts import BrokerParts, Role
from tandemmq.broker.peer_api.audit import AuditServices
from tandemmq.broker.peer_api.plane import SERVICE_NAMES, serve_metadata_plane
from tandemmq.broker.queries.message_queries import MessageQueries
from tandemmq.broker.replica_identity import LogDamage, ReplicaIdentity, missing_to_mark
from tandemmq.broker.report import BrokerReport
from tandemmq.broker.retention import Retention
from tandemmq.broker.runtime_settings import RuntimeSettings, setting_appliers
from tandemmq.broker.settings import BrokerSettings
from tandemmq.broker.slave.role import SlaveRole
from tandemmq.broker.tracing.observability import ChangeTracer
from tandemmq.core.clock import Clock
from tandemmq.core.message.record import Host
from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.routing.values import (
    Address,
    BrokerEndpoints,
    BrokerIdentity,
    Registration,
    ReplicaMemory,
    TopicQueues,
    host_port,
    parse_address,
)
from tandemmq.core.storage.disk import DiskError, refuse_folders
from tandemmq.core.storage.flush_jobs import CHECKPOINT_FILE
from tandemmq.core.storage.recovery import RecoveryReport
from tandemmq.service.event_loop import LoopMeter
from tandemmq.service.grpc_server import PROBE_LIVE, PROBE_READY, PROBE_STARTED, GrpcServer
from tandemmq.service.logging import EventMemory, LevelSwitch
from tandemmq.service.metrics import MetricExports
from tandemmq.service.name_server_link import NameServerLinks

log = structlog.get_logger(__name__)

# The event names each; a disk that lost them all says so in as many lines.
DAMAGED_QUEUES_TOLD: Final = 100
ROLE_END_LIMIT_MS: Final = 200
"""So long a role that ends gives waiting sends, and slaves that lack the end of the log."""
_SETTLE_LIMIT_MS: Final = 300
"""What clients have to say that they read their answers."""
_SUCCESSOR_LIMIT_MS: Final = 2_000
_SUCCESSOR_LOOK_S: Final = 0.01


class Broker:
    """The life of one broker's process, a master's or a slave's by its settings.

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
        self._settings = settings
        self._clock = clock
        self._is_open = False
        self._awaits_successor = False
        self._links = NameServerLinks(
            settings.name_servers,
            clock=clock,
            log=log,
            chance=random.Random(),
            registrant=self,
            heartbeat_interval_ms=settings.broker_heartbeat_interval,
            on_superseded=lambda reason: self._parts.role.superseded(reason),
            on_routes_changed=lambda: self._parts.message_group_homes.routes_changed(),
        )
        parts = self._parts = BrokerParts(
            settings, clock=clock, store_host=store_host, links=self._links, loop_meter=loop_meter or LoopMeter()
        )
        self._accepts_loss = accepts_loss
        self._failover = self._new_failover() if settings.failover_authority else None
        is_master = settings.is_master and self._failover is None
        if self._failover is not None:
            parts.tables.spread = self._failover.spread
            parts.master_left = self._failover.master_left
            parts.reads_begun = self._failover.reads_begun
        parts.take_role(MasterRole(parts, accepts_loss=accepts_loss) if is_master else SlaveRole(parts))
        self._forwarder = CallForwarder(
            self._master_client,
            now_ms=clock.monotonic_ms,
            names=SETTLING if self._failover is None else None,
            vouch=parts.vouch,
            is_changing=self._is_changing,
            brokers=parts.broker_channels,
            whose=parts.access.known_user if parts.access is not None else by_address,
            unread_here=parts.client_api.passed_on_unread,
        )
        self._audit = AuditServices(parts)
        self._runtime_settings = self._new_runtime_settings(log_level)
        self._departure = Departure(
            clock=clock,
            role=lambda: parts.role,
            default_limit_ms=settings.drain_grace_period + settings.shutdown_timeout,
            leave=self._leave,
            refuse=self._refuse_before_stop,
            end_offset=lambda: parts.store.end_offset,
        )
        self._retention = Retention(
            parts.store,
            disk=parts.disk,
            clock=clock,
            floor=lambda: parts.role.floor,
            expired=lambda: parts.tables.note_queue_ends(parts.store),
        )
        self._report = BrokerReport(
            parts,
            settings=self._runtime_settings,
            retention_problems=lambda: self._retention.problems,
            failover=self._failover,
        )
        self._metadata_server = self._new_metadata_server(events or EventMemory())
        self._metrics = BrokerMetrics(
            parts,
            settings=self._runtime_settings,
            retention=self._retention,
            problem_count=lambda: self._report.problem_count,
            failover=self._failover,
            forwarder=self._forwarder,
            service_refusals=self._metadata_server.refused,
        )
        self._metric_exports = MetricExports(
            settings.metrics_options(), collect=self._metrics.collect, resource=parts.observability.resource
        )

    def _new_failover(self) -> Failover:
        settings = self._settings
        tracing = self._parts.observability.tracing
        has_service = bool(settings.group_endpoint) and settings.failover_authority.startswith("kubernetes:")
        return Failover(
            self,
            authority=open_authority(
                settings.failover_authority,
                cluster=settings.broker_cluster_name,
                broker_name=settings.broker_name,
                tls=settings.failover_authority_tls(),
            ),
            options=settings.failover_options(),
            nonce=self._parts.member.nonce,
            trace=None if tracing is None else ChangeTracer(tracing).note,
            service=service_of_pod(settings.group_endpoint, master=self._client_address()) if has_service else None,
        )

    def _is_changing(self) -> bool:
        """See `Failover.is_changing`. While reads are served, or this broker leaves, nothing is held back."""
        failover, parts = self._failover, self._parts
        if failover is None or parts.reads_only:
            return False
        is_leaving = parts.stopping.is_set() or self._departure.has_begun
        return failover.is_changing and (failover.is_handing_over or self._awaits_successor or not is_leaving)

    def _master_client(self) -> str | None:
        parts = self._parts
        return None if parts.reads_only or parts.role.is_master else parts.members.server_client()

    def _client_address(self) -> Address:
        """The client plane, in numbers."""
        address = parse_address(str(self._parts.store_host._replace(port=self._settings.grpc_server_port)))
        assert address is not None, "a Host prints as one"
        return address

    def _new_runtime_settings(self, log_level: LevelSwitch | None) -> RuntimeSettings:
        parts = self._parts
        appliers = setting_appliers(
            store=parts.store,
            observability=parts.observability,
            audit_read_rate=lambda rate: self._audit.change(bytes_per_second=rate),
            client_quotas=parts.client_api.change_quotas,
            send_room=parts.send_room,
            log_level=log_level,
        )
        return RuntimeSettings(
            self._settings,
            lambda: {**appliers, **parts.role.setting_appliers()},
            disk_used_ratio=lambda: parts.disk.usage().used_ratio,
        )

    def _new_metadata_server(self, events: EventMemory) -> GrpcServer:
        parts, settings = self._parts, self._settings
        server = GrpcServer(
            settings.bind_address,
            settings.listen_port,
            clock=self._clock,
            tls=parts.server_tls,
            open_port=settings.open_listen_port,
            records_changes=True,
            probes={
                # The port opens when the store is recovered.
                PROBE_STARTED: lambda: True,
                PROBE_LIVE: lambda: parts.failure is None,
                PROBE_READY: lambda: self._is_ready,
            },
        )
        queries = MessageQueries(
            store=parts.store,
            topics=parts.topics,
            pages=parts.pages,
            clock=self._clock,
            is_indexed=settings.message_index_enable,
            damaged=parts.damaged_entries,
        )
        serve_metadata_plane(
            server,
            parts,
            report=self._report,
            departure=self._departure,
            changes=GroupChanges(
                store=parts.store,
                tables=parts.tables,
                leases=parts.leases,
                sessions=parts.sessions,
                find_offsets=queries.find_offsets,
                persist_leases=lambda: parts.role.persist_leases_durably(),
                consumes_anew=parts.client_api.consumes_anew,
                wake=parts.client_api.housekeep,
            ),
            settings=self._runtime_settings,
            queries=queries,
            audit=self._audit,
            events=events,
            failover=self._failover,
        )
        return server

    # Life

    async def run(self, stop: asyncio.Event) -> int:
        """Serves until `stop` is set or the disk fails. Raises what keeps the broker from starting."""
        asyncio.get_running_loop().set_exception_handler(self._callback_failed)
        # First of all, so that a long recovery is seen.
        await self._metric_exports.start()
        if self._metric_exports.port:
            self._parts.ports["metricsPromExporterPort"] = self._metric_exports.port
        try:
            return await self._run(stop)
        finally:
            await self._end_exports()

    async def _run(self, stop: asyncio.Event) -> int:
        parts = self._parts
        await self._recover(stop)
        self._metrics.recovered()
        parts.ports["listenPort"] = await self._metadata_server.start(service_names=SERVICE_NAMES)
        async with asyncio.TaskGroup() as background:
            self._background = background
            parts.workers.start(background)
            tasks = [
                background.create_task(task)
                for task in (
                    self._links.run(),
                    self._retention.run(),
                    parts.message_timers.run(),
                    self._departure.run(),
                    self._report.run(),
                    self._audit.mending.run(),
                    parts.far_reads.run(),
                    self._wait_for_stop(stop),
                )
            ]
            try:
                await parts.role.begin(background)
                if not parts.stopping.is_set():
                    await self._serve()
                if not parts.role.is_master:
                    parts.client_plane.forward(self._forwarder)
                if self._failover is not None:
                    tasks.append(background.create_task(self._failover.run()))
                await parts.stopping.wait()
            finally:
                await self._stop()
                for task in tasks:
                    task.cancel()
                await parts.workers.close()
        return self._close_files()

    async def _serve(self) -> None:
        """Opens the doors; not if somebody has asked for a drain before it came to that."""
        if self._departure.has_begun:
            return
        parts = self._parts
        if parts.role.is_master:
            parts.take_seeds()
        parts.ports.update(await parts.client_plane.start())
        self._is_open = True
        self._links.announce()
        self._links.registration_changed()
        parts.refusal = parts.role.client_refusal
        await self._tell_readiness()
        log.info("broker_serving", role=parts.role_name, **parts.ports)

    # A change of the role; see `FailoverHost`.

    @property
    def member(self) -> ReplicaIdentity:
        return self._parts.member

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def is_home_master(self) -> bool:
        return self._settings.is_master

    @property
    def is_stopping(self) -> bool:
        return self._parts.stopping.is_set()

    @property
    def _ends_for_good(self) -> bool:
        """It stops, and no successor is awaited: who waits here is refused. Else there will be a master to ask."""
        return self.is_stopping and not self._awaits_successor

    @property
    def role(self) -> Role:
        return self._parts.role

    @property
    def raw_end_offset(self) -> int:
        return self._parts.store.end_offset

    def member_metadata(self, broker_id: int) -> str | None:
        return self._parts.members.member_metadata(broker_id)

    async def remembered(self) -> Sequence[ReplicaMemory]:
        answers = (await self._links.group_memory()).values()
        return [*self._parts.member.replicas, *(one for told in answers if told is not None for one in told.replicas)]

    def record_seen(self) -> None:
        self._links.registration_changed()

    def caught_up(self) -> None:
        self._parts.is_whole = True

    def refuse(self, reason: str | None) -> None:
        parts = self._parts
        if reason is not None or not self.is_stopping:
            # A hand-over that fails as the broker stops gives nothing back: no lease is watched from there on.
            parts.refusal = parts.role.client_refusal if reason is None else reason
        if self._is_changing():
            parts.client_plane.forward(self._forwarder)
        elif parts.role.is_master and reason is None:
            parts.client_plane.forward(None)
            self._forwarder.let_go()

    def turn_clients_away(self, *, is_on: bool) -> None:
        self._parts.client_plane.turn_away(is_on=is_on)

    def fail(self, failure: str) -> None:
        self._parts.fail(failure)

    async def settle_answers(self) -> None:
        parts = self._parts
        parts.client_api.give_no_more(is_stopping=self._ends_for_good)
        if parts.failure is not None:
            return
        try:
            await parts.client_plane.settle(limit_ms=_SETTLE_LIMIT_MS)
        except* DiskError as errors:
            # Whoever takes over doubts the last answers, as after a kill.
            log.error("answers_not_settled", reason=str(errors.exceptions[0]))
        else:
            parts.role.note_end_of_leases()

    async def end_role(self, reason: str) -> None:
        parts = self._parts
        parts.refusal = reason
        deadline_ms = self._clock.monotonic_ms() + ROLE_END_LIMIT_MS
        await parts.role.answer_sends(deadline_ms)
        parts.client_api.drain(is_stopping=self._ends_for_good)
        if parts.role.is_master:
            await self.settle_answers()
        await parts.role.end(deadline_ms)
        await parts.tables.settled()
        parts.role.close_files()

    async def begin_master(self, seat: Failover, *, holds_all: bool, accepts_loss: bool = False) -> None:
        role = MasterRole(
            self._parts,
            accepts_loss=accepts_loss or self._accepts_loss,
            seat=seat,
            holds_all=holds_all,
        )
        await self._begin_role(role)

    async def begin_slave(self) -> None:
        await self._begin_role(SlaveRole(self._parts))

    async def _begin_role(self, role: Role) -> None:
        parts = self._parts
        parts.take_role(role)
        parts.far_reads.forget()
        # While a master begins, calls wait.
        parts.client_plane.forward(self._forwarder)
        self._links.registration_changed()
        await role.begin(self._background)
        if role.is_serving and not parts.stopping.is_set():
            if role.is_master:
                parts.take_seeds()
            parts.refusal = role.client_refusal
            if role.is_master:
                parts.client_plane.forward(None)
                self._forwarder.let_go()
                await self._forwarder.close(is_stopping=False)
            self._links.registration_changed()
            await self._tell_readiness()
            log.info("role_begun", is_master=not role.holds_copies, **parts.ports)

    async def _recover(self, stop: asyncio.Event) -> None:
        """Waits for room where the disk is full, until it is to stop."""
        parts = self._parts
        await asyncio.to_thread(refuse_folders, parts.disk)
        await asyncio.to_thread(parts.member.read)
        report = await with_room(parts.store.load, stop=stop)
        await with_room(parts.member.count_start, stop=stop)
        await asyncio.to_thread(self._audit.remove_leftover)
        self._tell_recovery(report)
        noted_end = await with_room(parts.log_end.open, stop=stop)
        damage, parts.is_whole = report.damage, not report.may_have_lost
        if missing := missing_to_mark(report, noted_end):
            damage = damage or missing
            parts.is_whole = False
            log.error("log_damaged", damage=damage, kept="")
        if damage:
            reached = max(report.damage_end, noted_end if missing else 0)
            parts.log_damage = LogDamage(damage, reached, parts.member.history)
        parts.tables.load(
            cluster=self._settings.broker_cluster_name,
            broker_name=self._settings.broker_name,
            auto_create_topic=self._settings.auto_create_topic_enable,
            was_used=parts.member.was_used and report.end_offset > 0,
        )
        parts.tables.note_queue_ends(parts.store)
        await asyncio.to_thread(parts.message_group_homes.load)

    def _tell_recovery(self, report: RecoveryReport) -> None:
        log.info(
            "store_recovered",
            clean=report.clean,
            same_boot=report.same_boot,
            min_offset=self._parts.store.min_offset,
            end_offset=report.end_offset,
            redispatched_records=report.redispatched_records,
            truncated_bytes=report.truncated_bytes,
            stop_reason=report.stop_reason,
            duration_ms=report.duration_ms,
        )
        if report.abort_is_gone:
            log.warning("abort_missing", file="abort", effect="the last run counts as killed, as other files say")
        if report.checkpoint_is_lost:
            log.error("checkpoint_lost", file=CHECKPOINT_FILE, effect="more of the log was read; it is written again")
        for topic, queue_id, queue_offset in report.damaged_queues[:DAMAGED_QUEUES_TOLD]:
            log.error("consume_queue_damaged", topic=topic, queue_id=queue_id, rebuilt_from=queue_offset)
        for name in report.damaged_index_files[:DAMAGED_QUEUES_TOLD]:
            log.error("index_file_damaged", file=name)
        for missing in report.missing_index_files[:DAMAGED_QUEUES_TOLD]:
            log.error("index_file_missing", **missing._asdict())
        if report.damage:
            kept = report.kept_tail
            log.error("log_damaged", damage=report.damage, kept=kept.path if kept is not None else "")

    async def _wait_for_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._parts.stopping.set()

    # Readiness and departure

    @property
    def _is_ready(self) -> bool:
        """May work, or rely on us, as its role sees it."""
        if not self._is_open or self._departure.has_begun or self._parts.stopping.is_set():
            return False
        return self._parts.role.is_ready

    async def _tell_readiness(self) -> None:
        """To whoever asks the health service for a whole plane."""
        is_serving = self._is_open and not self._departure.has_begun
        await self._metadata_server.set_serving(is_serving)
        await self._parts.client_plane.set_serving(is_serving)

    async def _leave(self) -> None:
        """The first step of a drain: nobody new is sent here."""
        await self._tell_readiness()
        await self._hand_over_before_the_end()
        await self._links.unregister()

    async def _hand_over_before_the_end(self) -> None:
        """Another member becomes the master, if one can. What clients ask waits until it is known which, and is passed
        on: what this process refused in its last moments would be lost for some, and late for others."""
        failover = self._failover
        if failover is None or not (self._parts.role.is_master or failover.is_handing_over):
            return
        self._awaits_successor = True
        try:
            await failover.leave()
            until_ms = self._clock.monotonic_ms() + _SUCCESSOR_LIMIT_MS
            while not self._parts.role.is_master and self._clock.monotonic_ms() < until_ms:
                if self._master_client() is not None:
                    break
                await asyncio.sleep(_SUCCESSOR_LOOK_S)
        finally:
            self._awaits_successor = False

    def _refuse_before_stop(self) -> None:
        """The last step of a drain. Sends in progress go on to their end."""
        parts = self._parts
        if parts.role.client_refusal is None and not parts.stopping.is_set():
            parts.refusal = "the broker is draining: it will be restarted"
            parts.client_api.drain()

    async def _stop(self) -> None:
        """Leaves the routes, ends what waits, then closes the planes; the store is still open."""
        parts = self._parts
        log.info("broker_stopping", failure=parts.failure)
        if not parts.role.is_master or self._failover is None or parts.failure is not None:
            parts.refusal = "the broker is stopping"
        await self._hand_over_before_the_end()
        parts.refusal = "the broker is stopping"
        await self._links.unregister()
        deadline_ms = self._clock.monotonic_ms() + self._settings.shutdown_timeout // 2
        await parts.role.answer_sends(deadline_ms)
        parts.client_api.drain()
        await self.settle_answers()
        await parts.client_plane.stop(limit_ms=500)
        await parts.role.end(deadline_ms)
        if parts.failure is None:
            # Nothing is appended any more: this end is exact, and the next start of a master need not ask about it.
            await self._links.unregister(is_log_closed=True)
        await self._forwarder.close()
        await parts.group_calls.close()
        await parts.message_group_homes.close()
        if self._failover is not None:
            await self._failover.close()
        await self._audit.close_helper()
        await self._metadata_server.stop(limit_ms=500)
        await self._audit.repairs_ended()
        await self._end_exports()

    async def _end_exports(self) -> None:
        """While the store is still open: the last figures are read, and the last sends become spans. Twice is fine."""
        async with asyncio.TaskGroup() as ends:
            ends.create_task(self._metric_exports.close())
            ends.create_task(self._parts.observability.close())

    def _close_files(self) -> int:
        parts = self._parts
        if parts.failure is not None:
            # The abort file stays: recovery has to find out what the log really holds.
            return 1
        parts.role.close_files()
        parts.message_timers.close()
        parts.store.close()
        parts.log_end.close()
        log.info("broker_stopped", end_offset=parts.store.end_offset)
        return 0

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of the loop raised: an invariant is broken, and a crash is better than a wrong byte."""
        error = context.get("exception")
        if isinstance(error, BlockingIOError):
            return  # grpc.aio: its completion poller was woken and found nothing to read; harmless.
        log.critical("callback_failed", message=context.get("message"), exc_info=error)
        self._parts.fail(f"callback failed: {error}")

    # Registration

    @property
    def identity(self) -> BrokerIdentity:
        return self._parts.identity

    @property
    def incarnation(self) -> int:
        return self._parts.incarnation

    @property
    def data_version(self) -> DataVersion:
        """Version of the topic table."""
        return self._parts.topics.version

    @property
    def epoch(self) -> int:
        """Greatest epoch of its history."""
        return self._parts.member.history.last_epoch

    @property
    def end_offset(self) -> int:
        """End of its log's last whole record."""
        return self._parts.store.dispatched_offset

    @property
    def unproven(self) -> bool:
        return not self._parts.member.is_proven

    @property
    def record_version(self) -> tuple[int, int]:
        return self._parts.member.record_version

    def registration(self) -> Registration:
        """What NameServers are told."""
        parts, settings = self._parts, self._settings
        return Registration(
            identity=parts.identity,
            endpoints=self._endpoints(),
            incarnation=parts.incarnation,
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
                for topic in parts.topics
            ),
            disk_id=parts.member.disk_id,
            run=parts.member.run,
            epoch=self.epoch,
            end_offset=self.end_offset,
            known_replicas=parts.member.replicas,
            recovering=parts.role.waits_for,
            is_master=parts.role.is_master,
            unproven=self.unproven,
            record_version=self.record_version,
        )

    def _endpoints(self) -> BrokerEndpoints:
        parts, settings = self._parts, self._settings
        # While a master waits for its group these doors are closed; any port of theirs may not even be known yet.
        client_port, ha_port = parts.ports["grpcServerPort"], parts.ports["haListenPort"]
        external_port = settings.external_advertised_port or settings.external_listen_port
        return BrokerEndpoints(
            client=host_port(settings.broker_ip1, settings.advertised_grpc_port or client_port) if client_port else "",
            metadata=parts.metadata_endpoint(),
            ha=host_port(settings.ha_host, ha_port) if ha_port else "",
            reads=parts.role.serves_reads,
            forwards=self._failover is not None,
            client_group=settings.group_endpoint,
            client_external=host_port(settings.external_advertised_host, external_port) if external_port else "",
        )
