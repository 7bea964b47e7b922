"""The master: store, `MasterReplica` and the broker's own write path, listener and recovery in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.master.ha_listener import HaListener
from broker.master.tail_recovery import TailRecovery
from broker.write_path import WritePath
from mqcore.message import OutgoingMessage
from mqcore.replication import MasterReplica, recovery_wait_ms
from mqcore.storage import AppendResult, MessageStore, RecoveryReport
from simulation.member import Member
from simulation.network import Network
from simulation.process import Journal, Process
from simulation.run_settings import HA_PORT, METADATA_PORT, RunSettings
from simulation.running_store import RunningStore
from simulation.sim_delivery import DELIVERIES, SimDelivery
from simulation.sim_name_server import BrokerRegistration
from simulation.sim_producer import SENDS
from simulation.sim_replica_service import REPLICAS, SimReplicaService

__all__ = ["SimMaster"]


class SimMaster:
    """One run of broker id 0: recover, fetch a lost tail, listen, register, serve."""

    def __init__(
        self,
        *,
        member: Member,
        process: Process,
        network: Network,
        settings: RunSettings,
        journal: Journal,
        settled: Callable[[int], None],
    ) -> None:
        self._member = member
        self._process = process
        self._network = network
        self._settings = settings
        self._journal = journal
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
        self._delivery = SimDelivery(
            process=process, disk=member.disk, store=self.store, queue_count=settings.queue_count
        )
        self._registration = BrokerRegistration(process, network, member.broker_id, settings.queue_count)

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

    def start(self) -> None:
        report = self._running_store.load()
        self._delivery.load()
        self._process.loop.spawn(self._registration.run(), name="registration")
        self._network.serve(
            self._process,
            REPLICAS,
            SimReplicaService(
                store=self.store,
                broker_id=self._member.broker_id,
                serving=lambda: self.ready,
                verified=self._verified,
            ),
        )
        self._process.loop.spawn(self._run(report), name="master")

    async def send(self, message: OutgoingMessage) -> AppendResult:
        """The client API's SendMessage."""
        assert self._write_path is not None
        answer: asyncio.Future[AppendResult] = self._process.loop.create_future()
        self._write_path.put([message], lambda results: answer.set_result(results[0]))
        return await answer

    async def _run(self, report: RecoveryReport) -> None:
        await self._recover_tail(report)
        await asyncio.to_thread(self.store.trust_tail)
        self._serve()

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
            refusal=lambda: None,
            failed=lambda error: self._member.disk_failed(self._process, error),
        )
        listener = HaListener(replica=replica, log_reader=self.store, clock=clock, after_input=write_path.collect)
        write_path.attach(listener)
        listener.start(host=self._process.host, port=HA_PORT)
        self._replica, self._write_path = replica, write_path
        self._network.serve(self._process, SENDS, self)
        self._network.serve(self._process, DELIVERIES, self._delivery)
        self._registration.announced = True
        self._journal.note(self._member.name, f"serves [{self.store.min_offset}, {self.store.end_offset})")

    def _flushed(self) -> None:
        if self._write_path is not None:
            self._write_path.flushed()

    def _verified(self, broker_id: int, end_offset: int, connection: str) -> None:
        if self._replica is not None:
            self._replica.verified(broker_id, end_offset, peer=connection, now_ms=self._process.clock.monotonic_ms())

    async def _recover_tail(self, report: RecoveryReport) -> None:
        wait_ms = recovery_wait_ms(
            log_is_empty=self.store.end_offset == self.store.min_offset,
            clean_stop=report.clean,
            same_boot=report.same_boot,
            needed_slaves=self._settings.in_sync_replicas - 1,
            recovery_timeout_ms=self._settings.master_recovery_timeout_ms,
        )
        if wait_ms == 0:
            return
        self._journal.note(self._member.name, f"asks its slaves for more than {self.store.end_offset}")
        await asyncio.to_thread(self.store.doubt_tail)
        recovery = TailRecovery(
            store=self.store,
            clock=self._process.clock,
            slave_count=self._settings.slave_count,
            slaves=self._slaves,
            flushes_paused=self._running_store.jobs_paused,
        )
        async with self._running_store.jobs_paused():
            heard_all = await recovery.run(wait_ms=wait_ms)
        if not heard_all:
            self._journal.note(self._member.name, "did not hear all of its slaves")

    def _slaves(self) -> dict[int, str]:
        return {
            broker_id: f"{host}:{METADATA_PORT}" for broker_id, host in self._registration.hosts.items() if broker_id
        }
