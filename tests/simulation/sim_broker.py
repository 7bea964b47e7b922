"""A member of a group that fails over: the broker's own `Failover` and roles in one simulated process.

What is around them is done here as `tandemmq.broker.broker.Broker` does it, and what they are made of stands in
`_Parts` under the names of `tandemmq.broker.parts.BrokerParts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Final, cast

from simulation.ledger import Answer
from simulation.member import Member
from simulation.network import Network, PeerUnavailable
from simulation.process import Journal, Process
from simulation.run_settings import BROKER_NAME, CLUSTER_NAME, HA_PORT, NAME_SERVER, RunSettings
from simulation.running_store import STORE_HOST, RunningStore
from simulation.sim_authority import SimAuthority
from simulation.sim_delivery import DELIVERIES, DeliveredMessage, SimDeliveryDoor, new_lease_table
from simulation.sim_name_server import BrokerRegistration
from simulation.sim_operator import ADMIN
from simulation.sim_peer_client import SimPeerClient
from simulation.sim_producer import SENDS
from simulation.sim_replica_service import REPLICAS, SimReplicaService
from tandemmq.broker.client_api.services import ApiOptions, BrokerServices
from tandemmq.broker.client_api.transactions import Transactions
from tandemmq.broker.delayed_messages import DelayedMessages
from tandemmq.broker.failover.controller import Failover, HandOverRefused
from tandemmq.broker.group_members import GroupMembers
from tandemmq.broker.master.role import MasterRole
from tandemmq.broker.message_timers import MessageTimers
from tandemmq.broker.metadata_tables import MetadataTables, NotSpread
from tandemmq.broker.parts import BrokerParts, Role
from tandemmq.broker.peer_client import PeerClient
from tandemmq.broker.put import DeliveryMeter, PutAnswer, PutDone, PutMeter
from tandemmq.broker.queries.stored_records import LogRange
from tandemmq.broker.queue_reader import StoreQueueReader
from tandemmq.broker.replica_identity import ReplicaIdentity, missing_to_mark
from tandemmq.broker.send_room import SendRoom
from tandemmq.broker.slave.follower import MasterLeft
from tandemmq.broker.slave.role import SlaveRole
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.deduplication import Deduplication
from tandemmq.core.delivery.lite_topics import LiteTopics
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import OutgoingMessage
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig
from tandemmq.core.metadata.topic_table import TopicConfig
from tandemmq.core.replication.master_start import Wait
from tandemmq.core.routing.values import BrokerIdentity, ReplicaMemory
from tandemmq.core.storage.disk import DiskError
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.service.event_loop import LoopTurns
from tandemmq.service.rpc import Call

ROLE_END_LIMIT_MS: Final = 200
STOP_LIMIT_MS: Final = 5_000
ROLL_AFTER_MS: Final = 72 * 3_600_000
FAILED_STOP_LIMIT_MS: Final = 20_000
"""A broker whose disk failed stops in order as far as it can; then somebody kills it."""


class _WarmPages:
    """A simulated disk has all of its pages in memory."""

    async def fetch(self, ranges: Sequence[LogRange]) -> None:
        pass


class _Parts:
    """See `tandemmq.broker.parts.BrokerParts`: what the roles take of it."""

    send_tracer: Final = None
    ha_tls: Final = None
    ha_bearers: Final = None

    def __init__(
        self, member: Member, process: Process, settings: RunSettings, running_store: RunningStore, nonce: str
    ) -> None:
        self.role: Role
        self.clock: Final[Clock] = process.clock
        self.incarnation: Final = process.started_wall_ms
        self.identity: Final = BrokerIdentity(CLUSTER_NAME, BROKER_NAME, member.broker_id)
        self.disk: Final = member.disk
        self.store: Final = running_store.store
        self.member: Final = ReplicaIdentity(member.disk, self.identity, new_disk_id=member.new_disk_id, nonce=nonce)
        self.is_sync_flush: Final = settings.sync_flush
        self.refusal: str | None = "the broker is starting"
        self.master_left: MasterLeft
        self.reads_begun: Callable[[], None]
        self.failure: str | None = None
        self.stopping: Final = asyncio.Event()
        self.is_whole = False
        self.log_end: Final = member.log_end
        self.ports: Final = {"haListenPort": 0}
        self.settings: Final = SimpleNamespace(
            drain_grace_period=0,
            master_options=settings.master_options,
            slave_options=settings.slave_options,
            flush_disk_type=settings.flush_disk_type,
            waits_for_slaves=settings.waits_for_slaves,
            failover_authority="simulated",
            failover_options=settings.failover_options,
            name_servers=(NAME_SERVER,),
            total_replicas=1 + settings.slave_count,
            master_recovery_timeout=settings.master_recovery_timeout_ms,
            bind_address=process.host,
            ha_listen_port=HA_PORT,
            ha_max_gap_not_in_sync=256 << 20,
            flush_consumer_offset_interval=5_000,
            metrics_series_max=10,
            needed_replicas=settings.in_sync_replicas,
            broker_role="SYNC_MASTER",
        )
        self.workers: Final = SimpleNamespace(
            log=SimpleNamespace(kick=running_store.kick_flush), alone_with_store=running_store.jobs_paused
        )
        self.observability: Final = SimpleNamespace(put_meter=PutMeter(), replica_timelines=None, tracing=None)
        self.loop_meter: Final = SimpleNamespace(turns=LoopTurns())
        self.send_room: Final = SendRoom(self.loop_meter.turns.call_later)
        self.tables: Final = MetadataTables(member.disk, process.clock, topics_changed=self._topics_changed)
        self.topics: Final = self.tables.topics
        self.leases: Final = new_lease_table(
            process, self.store, self.tables, settings, confirmed_offset=lambda: self.role.confirmed_offset
        )
        self.registration: Final = BrokerRegistration(
            process=process,
            network=process.network,
            identity=self.identity,
            tables=self.tables,
            replica=self.member,
            store=self.store,
            recovering=lambda: self.role.waits_for,
            superseded=lambda reason: self.role.superseded(reason),
            is_master=lambda: self.role.is_master,
            is_listening=lambda: bool(self.ports["haListenPort"]),
        )
        self.members: Final = GroupMembers(self.identity, view=lambda: self.registration.view, stated_master="")
        self.links: Final = SimpleNamespace(
            announce=self.registration.announce,
            group_memory=self._group_memory,
            forget_replica=self.registration.forget_replica,
            # Nobody says that the master is gone, so that no slave serves reads: the consumers here ask masters alone.
            links=(),
            registration_changed=self.registration.changed,
        )
        queues = StoreQueueReader(self.store, confirmed_offset=lambda: self.role.confirmed_offset)
        self.queues: Final = queues
        self.lite_topics: Final = LiteTopics(queues, self.topics, log_cuts=lambda: self.store.log_cuts)
        self.options: Final = ApiOptions()
        self.message_timers: Final = MessageTimers(
            store=self.store,
            reader=queues,
            disk=self.disk,
            pages=_WarmPages(),
            clock=self.clock,
            store_host=STORE_HOST,
        )
        self.delayed: Final = DelayedMessages(
            self.message_timers, clock=self.clock, topics=self.topics, put=self._put, roll_after_ms=ROLL_AFTER_MS
        )
        transaction_services = SimpleNamespace(
            queues=queues,
            topics=self.topics,
            identity=self.identity,
            options=self.options,
            clock=self.clock,
            store_host=STORE_HOST,
            put=self._put,
        )
        self.client_api: Final = SimpleNamespace(
            transactions=Transactions(cast("BrokerServices", transaction_services), lambda topic: ()),
            message_arrived=lambda topic: None,
            message_held_back=lambda topic: None,
            confirmed=lambda: None,
            drain=lambda: None,
            housekeep=lambda: self.leases.expire(self.clock.monotonic_ms()),
            delivery_meter=DeliveryMeter(),
            role_begins=lambda: None,
            deduplication=Deduplication(self.topics),
        )
        self.client_plane: Final = SimpleNamespace(flush=lambda: None)

    def take_role(self, role: Role) -> None:
        self.role = role

    def queue_end(self, topic: str, queue_id: int) -> int:
        return self.store.queue_max_offset(topic, queue_id)

    lite_queue_end = queue_end

    async def follow_lite_topics(self) -> bool:
        """No topic here is of the type LITE."""
        return False

    def _put(
        self,
        messages: Sequence[OutgoingMessage],
        done: PutAnswer | PutDone,
        call: Call | None = None,
        traceparents: Sequence[str] = (),
    ) -> None:
        self.role.put(messages, done, call, traceparents)

    def metadata_endpoint(self) -> str:
        return self.registration.metadata_endpoint

    def is_system_topic(self, name: str) -> bool:
        return False

    def disk_failed(self, error: DiskError) -> None:
        self.fail(f"the disk failed: {error}")

    def fail(self, failure: str) -> None:
        self.failure = self.failure or failure
        self.refusal = failure
        self.stopping.set()

    def _topics_changed(self) -> None:
        self.registration.changed()

    async def _group_memory(self) -> dict[str, SimpleNamespace | None]:
        told = await self.registration.group_memory()
        return {
            address: None if replicas is None else SimpleNamespace(replicas=replicas)
            for address, replicas in told.items()
        }


class SimBroker:
    """One run of a member. Implements `FailoverHost`, and a member's `BrokerNode`."""

    def __init__(
        self,
        *,
        member: Member,
        process: Process,
        network: Network,
        settings: RunSettings,
        journal: Journal,
        answered: Callable[[Answer], None],
        given: Callable[[Sequence[DeliveredMessage]], None],
        group_began: Callable[[dict[int, int]], None],
        serves: Callable[[SimBroker], None],
        settled: Callable[[int], None],
    ) -> None:
        self._sim_member = member
        self._process = process
        self._network = network
        self._settings = settings
        self._journal = journal
        self._answered = answered
        self._serves = serves
        self._ended = asyncio.Event()
        self.needed_copies = settings.in_sync_replicas
        self.nonce: Final = f"{member.machine.rng.getrandbits(64):016x}"
        self._running_store = RunningStore(
            process=process,
            disk=member.disk,
            settings=settings,
            flushed=self._flushed,
            settled=settled,
            failed=self._disk_failed,
        )
        self.parts: Final = _Parts(member, process, settings, self._running_store, self.nonce)
        self.failover: Final = Failover(
            self,
            authority=SimAuthority(process, network),
            options=settings.failover_options(),
            nonce=self.nonce,
            peer=cast("Callable[[str], PeerClient]", SimPeerClient),
            now_ms=process.clock.monotonic_ms,
        )
        self.parts.tables.spread = self.failover.spread
        self.parts.master_left = self.failover.master_left
        self.parts.reads_begun = self.failover.reads_begun
        self.parts.take_role(SlaveRole(self._roles_parts))
        self._door = SimDeliveryDoor(
            process=process,
            tables=self.parts.tables,
            table=self.parts.leases,
            persist=lambda: self._master.persist_leases(),
            when_held=lambda done: self._master.when_progress_held(done),
            refusal=lambda: self.parts.refusal,
            group_began=group_began,
            given=given,
            queue_count=settings.queue_count,
        )

    @property
    def _roles_parts(self) -> BrokerParts:
        return cast("BrokerParts", self.parts)

    @property
    def _master(self) -> Role:
        return self.parts.role

    # As a member's node

    @property
    def store(self) -> MessageStore:
        return self._running_store.store

    @property
    def tables(self) -> MetadataTables:
        return self.parts.tables

    @property
    def replica(self) -> ReplicaIdentity:
        return self.parts.member

    @property
    def loaded(self) -> bool:
        return self._running_store.loaded

    @property
    def acts(self) -> bool:
        """It is the master, serves, and its lease runs."""
        return self.parts.role.is_master and self.parts.role.is_serving and self.parts.refusal is None

    @property
    def ready(self) -> bool:
        role = self.parts.role
        return self.acts if role.is_master else role.is_serving and role.has_master

    @property
    def problem(self) -> str:
        role = self.parts.role
        if role.is_master:
            text = f"master: {role.waits_for or self.parts.refusal}"
        else:
            follower = cast("SlaveRole", role).follower
            text = f"slave: {follower.problem or follower.state}"
        return f"{text}; {self.failover.problem}"

    @property
    def next_walk_start(self) -> int:
        return self._running_store.next_walk_start

    @property
    def longest_end(self) -> int:
        return self._running_store.longest_end

    @property
    def whole_records_end(self) -> int:
        role = self.parts.role
        return self.store.end_offset if role.is_master and role.is_serving else self.store.dispatched_offset

    @property
    def committed(self) -> dict[int, int]:
        """The consumer group's first unfinished message by queue id."""
        return self._door.committed()

    @property
    def waiting(self) -> Wait | None:
        """What a master's start waits for."""
        recovery = self.parts.role.recovery
        return None if recovery is None else recovery.waiting

    def accept_loss(self, disk_ids: Sequence[str]) -> str:
        """An operator gives disks up; why not, or empty."""
        recovery = self.parts.role.recovery
        return "it is a slave" if recovery is None else recovery.accept_loss(disk_ids)

    def start(self) -> None:
        parts = self.parts
        parts.member.read()
        report = self._running_store.load()
        parts.member.count_start()
        parts.is_whole = not report.may_have_lost and not missing_to_mark(report, parts.log_end.noted_end)
        parts.tables.load(
            cluster=CLUSTER_NAME,
            broker_name=BROKER_NAME,
            auto_create_topic=False,
            was_used=parts.member.run > 1 and report.end_offset > 0,
        )
        self._running_store.start(parts.tables)
        self._process.loop.spawn(parts.registration.run(), name="registration")
        self._network.serve(
            self._process,
            REPLICAS,
            SimReplicaService(
                store=self.store,
                identity=parts.identity,
                replica=parts.member,
                role=lambda: parts.role,
                tables=parts.tables,
                failover=self.failover,
            ),
        )
        self._process.loop.spawn(self._run(), name="broker")

    async def stop(self) -> None:
        """See `tandemmq.broker.broker.Broker._stop`."""
        self.parts.stopping.set()
        await self._ended.wait()

    def close_files(self) -> None:
        self.parts.role.close_files()
        self.store.close()

    async def say_goodbye(self) -> None:
        await self.parts.registration.unregister(is_log_closed=True)

    async def hand_over(self, to: int | None) -> None:
        """An operator's wish."""
        try:
            successor = await self.failover.hand_over(to)
        except HandOverRefused as error:
            self._journal.note(self._process.host, f"does not hand over: {error}")
        else:
            self._journal.note(self._process.host, f"has handed over to broker {successor}")

    # As the roles' broker; see `Broker`

    async def _run(self) -> None:
        parts = self.parts
        await parts.role.begin(self._background)
        self._open_doors()
        running = self._process.loop.spawn(self.failover.run(), name="failover")
        await parts.stopping.wait()
        await self._stop()
        running.cancel()
        self._ended.set()
        if parts.failure is not None:
            self._sim_member.disk_failed(self._process, DiskError(parts.failure))

    def _open_doors(self) -> None:
        self._network.serve(self._process, SENDS, self)
        self._network.serve(self._process, ADMIN, self)
        self._network.serve(self._process, DELIVERIES, self._door)
        self.parts.registration.announce()
        self.parts.registration.changed()
        self.parts.refusal = self.parts.role.client_refusal

    @property
    def _background(self) -> asyncio.TaskGroup:
        """What fails there is the process' failure."""
        create_task = partial(self._process.loop.spawn, name="of a role")
        return cast("asyncio.TaskGroup", SimpleNamespace(create_task=create_task))

    async def _stop(self) -> None:
        parts = self.parts
        parts.refusal = "the broker is stopping"
        await self.failover.leave()
        await parts.registration.unregister()
        deadline_ms = parts.clock.monotonic_ms() + STOP_LIMIT_MS
        await parts.role.answer_sends(deadline_ms)
        await parts.role.end(deadline_ms)
        self._network.stop_serving(self._process)
        await self._running_store.stop_workers()

    @property
    def identity(self) -> BrokerIdentity:
        return self.parts.identity

    @property
    def member(self) -> ReplicaIdentity:
        return self.parts.member

    @property
    def clock(self) -> Clock:
        return self.parts.clock

    @property
    def is_home_master(self) -> bool:
        return self.identity.broker_id == 0

    @property
    def is_stopping(self) -> bool:
        return self.parts.stopping.is_set()

    @property
    def role(self) -> Role:
        return self.parts.role

    @property
    def raw_end_offset(self) -> int:
        return self.store.end_offset

    def member_metadata(self, broker_id: int) -> str | None:
        return self.parts.members.member_metadata(broker_id)

    async def remembered(self) -> Sequence[ReplicaMemory]:
        told = await self.parts.registration.group_memory()
        return [*self.parts.member.replicas, *(one for each in told.values() if each is not None for one in each)]

    def record_seen(self) -> None:
        self.parts.registration.changed()

    def caught_up(self) -> None:
        self.parts.is_whole = True

    def refuse(self, reason: str | None) -> None:
        if reason is not None or not self.is_stopping:
            self.parts.refusal = self.parts.role.client_refusal if reason is None else reason

    def turn_clients_away(self, *, is_on: bool) -> None:
        """Its clients ask for routes."""

    def fail(self, failure: str) -> None:
        self.parts.fail(failure)

    async def settle_answers(self) -> None:
        """Its consumers read at once."""

    async def end_role(self, reason: str) -> None:
        parts = self.parts
        self._journal.note(self._process.host, f"ends its role: {reason}")
        parts.refusal = reason
        deadline_ms = parts.clock.monotonic_ms() + ROLE_END_LIMIT_MS
        await parts.role.answer_sends(deadline_ms)
        await parts.role.end(deadline_ms)
        await parts.tables.settled()
        parts.role.close_files()

    async def begin_master(self, seat: Failover, *, holds_all: bool, accepts_loss: bool = False) -> None:
        role = MasterRole(
            self._roles_parts,
            seat=seat,
            holds_all=holds_all,
            accepts_loss=accepts_loss,
        )
        await self._begin_role(role)

    async def begin_slave(self) -> None:
        await self._begin_role(SlaveRole(self._roles_parts))

    async def _begin_role(self, role: Role) -> None:
        parts = self.parts
        parts.take_role(role)
        parts.registration.changed()
        await role.begin(self._background)
        if role.is_serving and not parts.stopping.is_set():
            parts.refusal = role.client_refusal
            parts.registration.changed()
            if role.is_master:
                self._serves(self)
                self._journal.note(
                    self._process.host,
                    f"serves [{self.store.min_offset}, {self.store.end_offset}) in epoch "
                    f"{parts.member.history.last_epoch}",
                )

    def _flushed(self) -> None:
        self.parts.role.flushed()

    def _disk_failed(self, error: DiskError) -> None:
        self.parts.disk_failed(error)
        self._process.loop.call_later(
            FAILED_STOP_LIMIT_MS / 1000, lambda: self._sim_member.disk_failed(self._process, error)
        )

    # Clients

    async def send(self, message: OutgoingMessage) -> AppendResult:
        """The client API's SendMessage."""
        if self.parts.refusal is not None or self.tables.topics.get(message.topic) is None:
            raise PeerUnavailable(self.parts.refusal or f"no topic {message.topic}")
        answer: asyncio.Future[AppendResult] = self._process.loop.create_future()
        role = self.parts.role
        role.put([message], lambda results: self._answer(answer, message, results[0], role))
        return await answer

    def _answer(
        self, answer: asyncio.Future[AppendResult], message: OutgoingMessage, result: AppendResult, role: Role
    ) -> None:
        # At the very moment: a role may end before who waits goes on.
        if result.status is PutStatus.PUT_OK:
            self._note_answer(message, result)
        if not answer.done():
            answer.set_result(result)

    def _note_answer(self, message: OutgoingMessage, result: AppendResult) -> None:
        record = self.store.read_log(result.physical_offset, result.end_offset - result.physical_offset)
        self._answered(
            Answer(
                message_id=decode_properties(message.properties)["UNIQ_KEY"],
                physical_offset=result.physical_offset,
                record=bytes(record),
                waited=message.wait_store_ok and self._settings.waits_for_slaves,
                at_us=self._process.machine.timeline.now_us,
                epoch=self.replica.history.last_epoch,
                incarnation=f"{self._process.host} {self.nonce}",
            )
        )

    async def create_topic(self, name: str, queue_count: int) -> None:
        """The admin API's CreateTopic."""
        self._refuse_on_slave()
        self.tables.put_topic(TopicConfig(name, queue_count, queue_count))
        await self._written()

    async def create_group(self, name: str) -> None:
        """The admin API's CreateSubscriptionGroup."""
        self._refuse_on_slave()
        self.tables.put_group(SubscriptionGroupConfig(group_name=name))
        await self._written()

    async def _written(self) -> None:
        try:
            await self.tables.confirmed()
        except NotSpread as error:
            raise PeerUnavailable(str(error)) from error

    def _refuse_on_slave(self) -> None:
        if (reason := self.parts.role.change_refusal) is not None:
            raise PeerUnavailable(reason)
