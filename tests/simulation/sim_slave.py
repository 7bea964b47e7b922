"""A slave: store and the broker's own `Follower` in one simulated process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from simulation.member import Member
from simulation.network import Network
from simulation.process import Journal, Process
from simulation.run_settings import BROKER_NAME, CLUSTER_NAME, RunSettings
from simulation.running_store import RunningStore
from simulation.sim_name_server import BrokerRegistration
from simulation.sim_replica_service import REPLICAS, SimReplicaService
from tandemmq.broker.group_members import GroupMembers
from tandemmq.broker.leases import LeaseCopy
from tandemmq.broker.metadata_tables import MetadataTables, cut_progress
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.broker.slave.follower import Follower
from tandemmq.broker.slave.metadata_pull import MetadataPull
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.storage.message_store import MessageStore


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
        self._roles: list[asyncio.Task[None]] = []
        self._running_store = RunningStore(
            process=process,
            disk=member.disk,
            settings=settings,
            flushed=self._flushed,
            settled=settled,
            failed=lambda error: member.disk_failed(process, error),
        )
        self.tables = MetadataTables(member.disk, process.clock, topics_changed=self._topics_changed)
        self._identity = identity = BrokerIdentity(CLUSTER_NAME, BROKER_NAME, member.broker_id)
        self.replica = ReplicaIdentity(member.disk, identity, new_disk_id=member.new_disk_id, nonce=process.nonce)
        self.leases = LeaseCopy(member.disk)
        self._registration = BrokerRegistration(
            process=process,
            network=network,
            identity=identity,
            tables=self.tables,
            replica=self.replica,
            store=self.store,
            recovering=lambda: "",
            superseded=lambda reason: None,
            is_master=lambda: False,
            is_listening=lambda: False,
        )
        self._members = GroupMembers(identity, view=lambda: self._registration.view, stated_master="")

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

    # What members ask of its role; see `tandemmq.broker.slave.role.SlaveRole`.

    holds_copies: Final = True
    is_serving: Final = True
    epoch_refusal: Final = None

    def verified(self, broker_id: int, disk_id: str, end_offset: int, connection: str) -> None:
        """It takes no proof."""

    def superseded(self, reason: str) -> None:
        """It holds no place."""

    async def leave_master(self) -> None:
        if self._follower is not None:
            await self._follower.leave_master()

    @property
    def problem(self) -> str:
        return "" if self._follower is None else self._follower.problem or self._follower.state

    @property
    def next_walk_start(self) -> int:
        return self._running_store.next_walk_start

    @property
    def longest_end(self) -> int:
        return self._running_store.longest_end

    @property
    def whole_records_end(self) -> int:
        return self.store.dispatched_offset

    def start(self) -> None:
        self.replica.read()
        self._running_store.load()
        self.replica.count_start()
        self.tables.load(cluster=CLUSTER_NAME, broker_name=BROKER_NAME, auto_create_topic=False)
        self.store.trust_tail()
        self._running_store.start(self.tables)
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
        self._follower = Follower(
            store=self.store,
            clock=self._process.clock,
            options=self._settings.slave_options(),
            identity=self._identity,
            replica=self.replica,
            metadata_endpoint=lambda: self._registration.metadata_endpoint,
            master=self._members.master_address,
            reports_flushed_only=self._settings.sync_flush,
            kick_flush=self._running_store.kick_flush,
            flushes_paused=self._running_store.jobs_paused,
            failed=lambda error: self._member.disk_failed(self._process, error),
            cut_progress=lambda: cut_progress(self.tables, self.leases, self.store.queues, self.store.queue_max_offset),
        )
        self._registration.announce()
        self._process.loop.spawn(self._registration.run(), name="registration")
        pull = MetadataPull(
            tables=self.tables.by_file,
            master=self._members.master_metadata,
            applied=self.tables.applied_from_master,
            leases=self.leases,
            accepted=lambda: self._follower is not None and self._follower.has_accepted_master,
        )
        self._roles = [
            self._process.loop.spawn(self._follower.run(), name="follower"),
            self._process.loop.spawn(pull.run(), name="metadata pull"),
        ]

    async def stop(self) -> None:
        """See `tandemmq.broker.broker.Broker._stop`."""
        await self._registration.unregister()
        for role in self._roles:
            role.cancel()
        await asyncio.wait(self._roles)
        self._network.stop_serving(self._process)
        await self._running_store.stop_workers()

    async def say_goodbye(self) -> None:
        await self._registration.unregister(is_log_closed=True)

    def close_files(self) -> None:
        self.leases.close()
        self.tables.persist_all()
        self.store.close()

    def _topics_changed(self) -> None:
        self._registration.changed()

    def _flushed(self) -> None:
        if self._follower is not None:
            self._follower.flushed()
