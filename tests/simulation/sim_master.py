"""The master: store, `GroupRecovery`, `MasterReplica` and the broker's own write path and listener in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from simulation.ledger import Answer, Ledger
from simulation.member import Member
from simulation.network import Network, PeerUnavailable
from simulation.process import Journal, Process
from simulation.run_settings import BROKER_NAME, CLUSTER_NAME, HA_PORT, NAME_SERVER, RunSettings
from simulation.running_store import RunningStore
from simulation.sim_delivery import DELIVERIES, SimDelivery
from simulation.sim_name_server import BrokerRegistration
from simulation.sim_operator import ADMIN
from simulation.sim_producer import SENDS
from simulation.sim_replica_service import REPLICAS, SimReplicaService
from tandemmq.broker.group_members import GroupMembers
from tandemmq.broker.leases import LeaseStorage
from tandemmq.broker.master.group_recovery import GroupRecovery, GroupView, LeasesAhead, MetadataSource, fetch_metadata
from tandemmq.broker.master.ha_listener import HaListener
from tandemmq.broker.metadata_tables import MetadataTables, cut_progress
from tandemmq.broker.replica_identity import ReplicaIdentity, missing_to_mark
from tandemmq.broker.write_path import WritePath
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import OutgoingMessage
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig
from tandemmq.core.metadata.topic_table import TopicConfig
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.replication.master_start import Wait
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.put_result import AppendResult, PutStatus

STOP_POLL_MS: Final = 10
STOP_LIMIT_MS: Final = 5_000
"""How long an orderly stop waits for sends in progress and for slaves."""


class SimMaster:
    """One run of broker id 0: recover, hear the group, fetch what another has more, listen, register, serve.

    What is done here in which order is that of `tandemmq.broker.master.role.MasterRole`, and of `Broker` around it.
    """

    def __init__(
        self,
        *,
        member: Member,
        process: Process,
        network: Network,
        settings: RunSettings,
        journal: Journal,
        ledger: Ledger,
        group_began: Callable[[dict[int, int]], None],
        serves: Callable[[], None],
        is_replaced: Callable[[], bool],
        settled: Callable[[int], None],
    ) -> None:
        self._member = member
        self._process = process
        self._network = network
        self._settings = settings
        self._journal = journal
        self._ledger = ledger
        self._serves = serves
        self._is_replaced = is_replaced
        self._refusal: str | None = None
        self._role: asyncio.Task[None] | None = None
        self._listener: HaListener | None = None
        self._write_path: WritePath | None = None
        self._replica: MasterReplica | None = None
        self._running_store = RunningStore(
            process=process,
            disk=member.disk,
            settings=settings,
            flushed=self._flushed,
            settled=settled,
            failed=lambda error: member.disk_failed(process, error),
        )
        clock = process.clock
        identity = BrokerIdentity(CLUSTER_NAME, BROKER_NAME, member.broker_id)
        self.tables = MetadataTables(member.disk, clock, topics_changed=self._topics_changed)
        self.replica = ReplicaIdentity(member.disk, identity, new_disk_id=member.new_disk_id, nonce=process.nonce)
        self._delivery = SimDelivery(
            process=process,
            disk=member.disk,
            store=self.store,
            tables=self.tables,
            settings=settings,
            group_began=group_began,
        )
        self._identity = identity
        self._registration = BrokerRegistration(
            process=process,
            network=network,
            identity=identity,
            tables=self.tables,
            replica=self.replica,
            store=self.store,
            recovering=self._recovering,
            superseded=self.superseded,
            is_master=lambda: True,
            is_listening=lambda: self.ready,
        )
        self._members = GroupMembers(identity, view=lambda: self._registration.view, stated_master="")
        self._ahead: Sequence[LeasesAhead] = ()
        self._recovery = GroupRecovery(
            store=self.store,
            replica=self.replica,
            identity=identity,
            clock=clock,
            group=GroupView(
                name_servers=frozenset({NAME_SERVER}),
                members=self._members.registered,
                told=self._registration.group_memory,
                forget=self._registration.forget_replica,
                own_endpoint=lambda: self._registration.metadata_endpoint,
            ),
            total_replicas=1 + settings.slave_count,
            recovery_timeout_ms=settings.master_recovery_timeout_ms,
            accepts_loss=False,
            damaged_tables=lambda: {file.value: text for file, text in self.tables.damaged.items()},
            accept_damage=self.tables.accept_damage,
            alone_with_store=self._running_store.jobs_paused,
            fetch_metadata=self._fetch_metadata,
            cut_progress=lambda: cut_progress(
                self.tables, self._delivery.storage, self.store.queues, self.store.queue_max_offset
            ),
            queues_go_on=lambda: self.tables.empty_queues_go_on(self.store),
            given_up=lambda: self._refusal is not None,
            state_changed=self._recovery_changed,
        )

    @property
    def store(self) -> MessageStore:
        return self._running_store.store

    @property
    def loaded(self) -> bool:
        return self._running_store.loaded

    @property
    def ready(self) -> bool:
        return self._write_path is not None

    @property
    def problem(self) -> str:
        return "" if self.waiting is None else self.waiting.reason

    @property
    def next_walk_start(self) -> int:
        return self._running_store.next_walk_start

    @property
    def longest_end(self) -> int:
        return self._running_store.longest_end

    @property
    def whole_records_end(self) -> int:
        return self.store.end_offset if self.ready else self.store.dispatched_offset

    @property
    def waiting_count(self) -> int:
        """Sends without an answer yet."""
        return 0 if self._write_path is None else self._write_path.waiting_count

    @property
    def committed(self) -> dict[int, int]:
        """The consumer group's first unfinished message by queue id."""
        return self._delivery.committed()

    # What members ask of its role; see `tandemmq.broker.master.role.MasterRole`.

    holds_copies: Final = False

    @property
    def is_serving(self) -> bool:
        return self.ready

    @property
    def leases(self) -> LeaseStorage:
        return self._delivery.storage

    @property
    def epoch_refusal(self) -> str | None:
        return "this broker is the master, and serves" if self.ready else None

    def verified(self, broker_id: int, disk_id: str, end_offset: int, connection: str) -> None:
        if self._replica is not None:
            self._replica.verified(broker_id, end_offset, peer=connection, now_ms=self._process.clock.monotonic_ms())

    def superseded(self, reason: str) -> None:
        if self.ready:
            self._journal.note(self._member.name, f"is superseded: {reason}")
            self._member.must_stop(self._process)

    async def leave_master(self) -> None:
        """It follows nobody."""

    @property
    def waiting(self) -> Wait | None:
        return self._recovery.waiting

    def accept_loss(self, disk_ids: Sequence[str]) -> str:
        """An operator gives disks up; why not, or empty."""
        return self._recovery.accept_loss(disk_ids)

    def start(self) -> None:
        self.replica.read()
        report = self._running_store.load()
        self.replica.count_start()
        self.tables.load(cluster=CLUSTER_NAME, broker_name=BROKER_NAME, auto_create_topic=False)
        self._running_store.start(self.tables)
        self._process.loop.spawn(self._registration.run(), name="registration")
        self._network.serve(
            self._process,
            REPLICAS,
            SimReplicaService(
                store=self.store,
                identity=self._identity,
                replica=self.replica,
                role=lambda: cast("Any", self),
                tables=self.tables,
            ),
        )
        is_whole = not report.may_have_lost and not missing_to_mark(report, self._member.log_end.noted_end)
        self._role = self._process.loop.spawn(self._run(is_whole=is_whole), name="master")

    async def stop(self) -> None:
        """See `tandemmq.broker.broker.Broker._stop` and `MasterRole.end`."""
        self._refusal = "the broker is stopping"
        await self._registration.unregister()
        if self._role is not None:
            await asyncio.wait((self._role,))
        clock, write_path = self._process.clock, self._write_path
        deadline_ms = clock.monotonic_ms() + STOP_LIMIT_MS
        while self.waiting_count and clock.monotonic_ms() < deadline_ms:
            await asyncio.sleep(STOP_POLL_MS / 1000)
        if write_path is not None and self._replica is not None and self._listener is not None:
            write_path.fail_all(PutStatus.SERVICE_NOT_AVAILABLE)
            while clock.monotonic_ms() < deadline_ms and any(
                slave.acked_offset < self.store.end_offset for slave in self._replica.slaves()
            ):
                await asyncio.sleep(STOP_POLL_MS / 1000)
            self._write_path = None
            self._listener.stop()
            write_path.close()
        self._network.stop_serving(self._process)
        await self._running_store.stop_workers()

    def close_files(self) -> None:
        if self._delivery.storage.is_open:
            self._delivery.close()
        self.tables.persist_all()
        self.store.close()

    async def say_goodbye(self) -> None:
        await self._registration.unregister(is_log_closed=True)

    async def send(self, message: OutgoingMessage) -> AppendResult:
        """The client API's SendMessage."""
        if self._write_path is None or self.tables.topics.get(message.topic) is None:
            raise PeerUnavailable(f"stopping, or no topic {message.topic}")
        answer: asyncio.Future[AppendResult] = self._process.loop.create_future()
        self._write_path.put([message], lambda results: answer.set_result(results[0]))
        result = await answer
        if result.status is PutStatus.PUT_OK:
            self._note_answer(message, result)
        return result

    async def create_topic(self, name: str, queue_count: int) -> None:
        """The admin API's CreateTopic."""
        self._refuse_if_stopping()
        self.tables.put_topic(TopicConfig(name, queue_count, queue_count))
        await self._tables_written()

    async def create_group(self, name: str) -> None:
        """The admin API's CreateSubscriptionGroup."""
        self._refuse_if_stopping()
        self.tables.put_group(SubscriptionGroupConfig(group_name=name))
        await self._tables_written()

    async def _tables_written(self) -> None:
        await self.tables.written()
        if self._is_replaced():
            # No slave had to agree, and it has not heard yet: its answer counts for nothing.
            raise PeerUnavailable("it had been replaced")

    def _refuse_if_stopping(self) -> None:
        if self._refusal is not None:
            raise PeerUnavailable(self._refusal)

    def _note_answer(self, message: OutgoingMessage, result: AppendResult) -> None:
        message_id = decode_properties(message.properties)["UNIQ_KEY"]
        if self._is_replaced() and not (self._settings.waits_for_slaves and message.wait_store_ok):
            # Nobody but itself had to agree, and it has not heard yet.
            self._ledger.lost[message_id, result.physical_offset] = "acknowledged by a master that had been replaced"
            return
        record = self.store.read_log(result.physical_offset, result.end_offset - result.physical_offset)
        self._ledger.answered(
            Answer(
                message_id=message_id,
                physical_offset=result.physical_offset,
                record=bytes(record),
                waited=message.wait_store_ok,
                at_us=self._process.machine.timeline.now_us,
            )
        )

    def _topics_changed(self) -> None:
        self._registration.changed()

    async def _run(self, *, is_whole: bool) -> None:
        self._registration.announce()
        if not await self._recovery.run(is_whole=is_whole):
            return  # The tail stays in doubt: the next start asks again.
        await asyncio.to_thread(self._delivery.load, self._ahead)
        if self.replica.replicas:
            self.tables.renew()
        await asyncio.to_thread(self.store.trust_tail)
        if self._refusal is None:
            self._serve()

    async def _fetch_metadata(self, sources: Sequence[MetadataSource], is_behind: bool) -> None:
        self._ahead = await fetch_metadata(sources, self.tables, self._delivery.storage, is_behind=is_behind)

    def _recovering(self) -> str:
        if self.ready:
            return ""
        waiting = self._recovery.waiting
        return waiting.reason if waiting is not None else "it asks the replicas of its group"

    def _recovery_changed(self) -> None:
        waiting = self._recovery.waiting
        if waiting is not None:
            self._journal.note(self._member.name, f"waits: {waiting.reason}")
        self._registration.changed()

    def _serve(self) -> None:
        clock = self._process.clock
        replica = MasterReplica(self.store, self._settings.master_options())
        write_path = WritePath(
            store=self.store,
            replica=replica,
            clock=clock,
            flush_disk_type=self._settings.flush_disk_type,
            waits_for_slaves=self._settings.waits_for_slaves,
            kick_flush=self._running_store.kick_flush,
            appended=lambda topic: None,
            answered=lambda: None,
            refusal=lambda: self._refusal,
            failed=lambda error: self._member.disk_failed(self._process, error),
            written=self._member.log_end.note,
        )
        self._member.log_end.note(self.store.end_offset)
        listener = HaListener(replica=replica, log_reader=self.store, clock=clock, after_input=write_path.collect)
        write_path.attach(listener)
        listener.start(host=self._process.host, port=HA_PORT)
        self._replica, self._write_path, self._listener = replica, write_path, listener
        self._network.serve(self._process, SENDS, self)
        self._network.serve(self._process, DELIVERIES, self._delivery)
        self._network.serve(self._process, ADMIN, self)
        self._delivery.start()
        self._registration.changed()
        self._serves()
        epoch = self.replica.history.last_epoch
        self._journal.note(
            self._member.name, f"serves [{self.store.min_offset}, {self.store.end_offset}) in epoch {epoch}"
        )

    def _flushed(self) -> None:
        if self._write_path is not None:
            self._write_path.flushed()
