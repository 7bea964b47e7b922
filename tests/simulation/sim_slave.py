"""A slave: store and the broker's own `Follower` in one simulated process."""

from __future__ import annotations

from collections.abc import Callable

from broker.slave.follower import Follower, MasterAddress
from mqcore.storage import MessageStore
from simulation.member import Member
from simulation.network import Network
from simulation.process import Journal, Process
from simulation.run_settings import HA_PORT, MASTER, METADATA_PORT, RunSettings
from simulation.running_store import RunningStore
from simulation.sim_name_server import BrokerRegistration
from simulation.sim_replica_service import REPLICAS, SimReplicaService

__all__ = ["SimSlave"]


class SimSlave:
    """One run of a slave: recover, register, follow for ever."""

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
        self._follower: Follower | None = None
        self._running_store = RunningStore(
            process=process,
            disk=member.disk,
            settings=settings,
            flushed=self._flushed,
            settled=settled,
            failed=lambda error: member.disk_failed(process, error),
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
        return self.following

    @property
    def following(self) -> bool:
        """True while a connection to the master is open, as far as this side knows."""
        return self._follower is not None and self._follower.state == "transfer"

    @property
    def longest_end(self) -> int:
        return self._running_store.longest_end

    @property
    def whole_records_end(self) -> int:
        return self.store.dispatched_offset

    def start(self) -> None:
        self._running_store.load()
        self.store.trust_tail()
        self._network.serve(
            self._process,
            REPLICAS,
            SimReplicaService(
                store=self.store,
                broker_id=self._member.broker_id,
                serving=lambda: True,
                verified=lambda broker_id, end_offset, connection: None,
            ),
        )
        self._follower = Follower(
            store=self.store,
            clock=self._process.clock,
            options=self._settings.slave_options(),
            broker_id=self._member.broker_id,
            master=self._master,
            reports_flushed_only=self._settings.sync_flush,
            kick_flush=self._running_store.kick_flush,
            flushes_paused=self._running_store.jobs_paused,
            failed=lambda error: self._member.disk_failed(self._process, error),
        )
        self._registration.announced = True
        self._process.loop.spawn(self._registration.run(), name="registration")
        self._process.loop.spawn(self._follower.run(), name="follower")

    def _master(self) -> MasterAddress | None:
        if self._registration.hosts.get(0) is None:
            return None
        return MasterAddress(ha=f"{MASTER}:{HA_PORT}", metadata=f"{MASTER}:{METADATA_PORT}")

    def _flushed(self) -> None:
        if self._follower is not None:
            self._follower.flushed()
