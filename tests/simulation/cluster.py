"""One broker group with its NameServer and producers, in virtual time, with everything that can go wrong in reach."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from mqcore.storage import MessageStore
from simulation.checkers import (
    Violation,
    check_acknowledged,
    check_delivered,
    check_prefix,
    check_queues,
    read_whole_log,
)
from simulation.fault_budget import FaultBudget
from simulation.faults import NORMAL_FLUSH_MS, FaultInjector
from simulation.ledger import Ledger, LossWindow
from simulation.member import BrokerNode, Member
from simulation.network import Network
from simulation.process import Journal, Machine, Process, ProcessFell
from simulation.run_settings import MASTER, NAME_SERVER, TOPIC, RunSettings
from simulation.sim_consumer import DeliveryRecord, SimConsumer
from simulation.sim_master import SimMaster
from simulation.sim_name_server import SimNameServer
from simulation.sim_producer import SimProducer
from simulation.sim_slave import SimSlave
from simulation.virtual_time import US_PER_MS, Timeline

__all__ = ["Cluster", "RunReport", "run"]

WARM_UP_MS: Final = 3_000
HEAL_LIMIT_MS: Final = 180_000
"""After the last fault everything is as it should be within this time: timeouts of 20 s, retries of 5 s, and a log of a
few hundred kilobytes to send."""
DELIVERY_LIMIT_MS: Final = 60_000
"""Everything stored is delivered and acknowledged within some leases of 10 s."""
CONSUMER_COUNT: Final = 2
ROUTE_LIMIT_MS: Final = 20_000
"""How long a route may name a dead broker: liveness limit and scan interval."""
WATCH_INTERVAL_MS: Final = 1_000


@dataclass(slots=True)
class RunReport:
    """What a finished run did and held."""

    settings: RunSettings
    acknowledged: int = 0
    lost_as_expected: int = 0
    delivered: int = 0
    log_bytes: int = 0
    virtual_ms: int = 0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)


class Cluster:
    """Builds everything from the settings; tests and scenarios then let time pass, break things and check."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.timeline = Timeline()
        self.journal = Journal(self.timeline)
        self.network = Network(self.timeline, self._rng("network"))
        self.ledger = Ledger()
        self.deliveries = DeliveryRecord()
        self._committed: dict[int, int] = {}
        names = (MASTER, *(f"slave-{number}" for number in range(1, settings.slave_count + 1)))
        self.budget = FaultBudget(names, settings.power_losses_survived)
        self.members = [
            Member(
                name,
                broker_id,
                self.network,
                self._rng(name),
                self.journal,
                make_node=self._make_node,
                process_gone=self._process_gone,
                power_lost=self._power_lost,
                may_lose_power=self.may_lose_power,
            )
            for broker_id, name in enumerate(names)
        ]
        self.master, *self.slaves = self.members
        self.faults = FaultInjector(self, self._rng("faults"))
        self.producers: list[SimProducer] = []
        self._name_server_machine = Machine(NAME_SERVER, self.network, self._rng(NAME_SERVER))
        self._name_server_process: Process | None = None
        self.name_server: SimNameServer | None = None

    # Life

    def start(self) -> None:
        """Starts the NameServer, all members and the producers."""
        self.start_name_server()
        for member in self.members:
            member.start()
        for number in range(self.settings.producer_count):
            self.add_producer(f"producer-{number}")
        for number in range(CONSUMER_COUNT):
            self._start_consumer(f"consumer-{number}")
        self.timeline.after(WATCH_INTERVAL_MS * US_PER_MS, self._watch)

    def add_producer(self, name: str) -> SimProducer:
        """Starts one more producer."""
        process = Process(Machine(name, self.network, self._rng(name)), failed=self._client_failed)
        producer = SimProducer(process, self.network, self.ledger, self.settings, self._rng(f"{name} messages"))
        self.producers.append(producer)
        producer.start()
        return producer

    def _start_consumer(self, name: str) -> None:
        process = Process(Machine(name, self.network, self._rng(name)), failed=self._client_failed)
        SimConsumer(process, self.network, self.deliveries, self._rng(f"{name} choices")).start()

    def start_name_server(self) -> None:
        """Starts a NameServer that knows nothing yet."""
        process = Process(self._name_server_machine, failed=self._client_failed)
        self._name_server_process = process
        self.name_server = SimNameServer(process, self.network)
        self.name_server.start()

    def restart_name_server(self, *, after_ms: int) -> None:
        """Kills the NameServer and starts another after a while."""
        process, self._name_server_process = self._name_server_process, None
        if process is None:
            return
        self.name_server = None
        process.stop()
        self.network.process_killed(process)
        self.timeline.after(after_ms * US_PER_MS, self.start_name_server)

    def run_for(self, duration_ms: int) -> None:
        """Lets virtual time pass."""
        self.timeline.run(until_us=self.timeline.now_us + duration_ms * US_PER_MS)

    def run_until(self, condition: Callable[[], bool], *, limit_ms: int, what: str) -> None:
        """Lets time pass until `condition` holds; a Violation when it does not within `limit_ms`."""
        limit_us = self.timeline.now_us + limit_ms * US_PER_MS
        while not condition():
            if self.timeline.now_us >= limit_us:
                raise Violation(f"after {limit_ms} ms: {what}. {self.describe()}")
            self.run_for(100)

    def heal(self) -> None:
        """Ends all faults and starts whatever is down."""
        self.faults.stop()
        self.network.heal_all()
        for member in self.members:
            member.disk.crash_at_operation(0)
            member.disk.failing_syncs = None
            member.free_disk()
            member.machine.blocking_ms = NORMAL_FLUSH_MS
            member.start()

    def settle(self) -> None:
        """Heals, stops the producers and waits until every slave has and has reported the whole log."""
        self.heal()
        for producer in self.producers:
            producer.stop()
        self.run_until(self._converged, limit_ms=HEAL_LIMIT_MS, what="the slaves do not follow their master")
        self.run_until(
            lambda: self._consumed() and self._converged(),
            limit_ms=DELIVERY_LIMIT_MS,
            what="not everything was consumed",
        )

    # Judgement

    def check(self) -> RunReport:
        """The checkers of every run, on a settled cluster."""
        master = self._store_of(self.master)
        lost = check_acknowledged(master, self.ledger)
        check_delivered(master, self.deliveries.messages)
        for member in self.members:
            store = self._store_of(member)
            if member is not self.master:
                check_prefix(member.name, store, master)
            check_queues(member.name, store)
        return RunReport(
            settings=self.settings,
            acknowledged=len(self.ledger.acknowledgements),
            lost_as_expected=lost,
            delivered=self.deliveries.deliveries,
            log_bytes=len(read_whole_log(master)),
            virtual_ms=self.timeline.now_ms,
            events=self.timeline.events_done,
            faults=self.faults.counts,
            statuses=self.ledger.status_counts,
        )

    def check_still_serves(self) -> None:
        """A settled cluster acknowledges a new message."""
        before = len(self.ledger.acknowledgements)
        self.add_producer("late-producer")
        self.run_until(
            lambda: len(self.ledger.acknowledgements) > before + 3,
            limit_ms=30_000,
            what="no new message is acknowledged",
        )
        self.settle()

    def describe(self) -> str:
        """Where every member is."""
        parts = []
        for member in self.members:
            node = member.node
            if node is None or not node.loaded:
                parts.append(f"{member.name} {'down' if node is None else 'recovering'}")
            else:
                state = "ready" if node.ready else "not ready"
                parts.append(f"{member.name} {state} [{node.store.min_offset}, {node.store.end_offset})")
        return "; ".join(parts)

    def may_lose_power(self, member: Member) -> bool:
        """True when the settings survive a power loss of this machine now, or promise nothing anyway."""
        if not self.settings.waits_for_slaves and not self.settings.sync_flush:
            return True
        if any(other.doomed for other in self.members if other is not member):
            return False
        return self.budget.may_lose_power(member.name)

    def may_lose_disk(self, member: Member) -> bool:
        """True when every other machine holds all of this one's log on its disk, and the settings count on it."""
        if (
            not self.settings.waits_for_slaves
            or not self.budget.settled
            or not self._converged()
            or not self.network.healthy
        ):
            return False
        return not any(other.doomed for other in self.members) and all(
            self._store_of(other).flushed_offset == self._store_of(member).end_offset
            for other in self.members
            if other is not member
        )

    # Parts

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self.settings.seed} {name}")

    def _make_node(self, member: Member, process: Process) -> BrokerNode:
        if member is self.master:
            return SimMaster(
                member=member,
                process=process,
                network=self.network,
                settings=self.settings,
                journal=self.journal,
                settled=lambda began_us: self.budget.flushed(member.name, began_us=began_us),
            )
        return SimSlave(
            member=member,
            process=process,
            network=self.network,
            settings=self.settings,
            journal=self.journal,
            settled=lambda began_us: self.budget.flushed(member.name, began_us=began_us),
        )

    def _process_gone(self, process: Process, power_loss: bool) -> None:
        if power_loss:
            self.network.machine_gone(process)
        else:
            self.network.process_killed(process)

    def _power_lost(self, member: Member) -> None:
        """What the settings do not promise to survive is written down before it happens."""
        self.budget.lost_power(member.name, at_us=self.timeline.now_us)
        if member is self.master:
            self._committed = {}
            self.deliveries.journal_lost_us = self.timeline.now_us
            node = member.node
            durable_end = node.store.flushed_offset if node is not None and node.loaded else 0
            self.ledger.loss_windows.append(
                LossWindow(
                    at_us=self.timeline.now_us,
                    durable_end=durable_end,
                    only_unwaited=self.settings.waits_for_slaves or self.settings.sync_flush,
                    cause="power loss of the master",
                )
            )

    def _client_failed(self, process: Process, error: BaseException) -> None:
        self.timeline.fail(error if isinstance(error, Violation) else ProcessFell(process.host, error))

    def _store_of(self, member: Member) -> MessageStore:
        assert member.node is not None, f"{member.name} is down"
        return member.node.store

    def _converged(self) -> bool:
        if not all(member.ready for member in self.members):
            return False
        end = self._store_of(self.master).end_offset
        return all(
            self._store_of(member).end_offset == end and self._store_of(member).dispatched_offset == end
            for member in self.members
        )

    def _consumed(self) -> bool:
        node = self.master.node
        return isinstance(node, SimMaster) and all(
            node.committed.get(queue_id, 0) == node.store.queue_max_offset(TOPIC, queue_id)
            for queue_id in range(self.settings.queue_count)
        )

    def _watch(self) -> None:
        """Once a virtual second: what must hold also while things go wrong."""
        self._check_progress()
        self._check_route()
        self._check_followers()
        self.timeline.after(WATCH_INTERVAL_MS * US_PER_MS, self._watch)

    def _check_route(self) -> None:
        if self.name_server is None:
            return
        for broker_id in self.name_server.routed_broker_ids(TOPIC):
            member = self.members[broker_id]
            if member.process is not None:
                continue
            dead_ms = (self.timeline.now_us - member.down_since_us) // US_PER_MS
            if dead_ms > ROUTE_LIMIT_MS:
                raise Violation(f"the route still names {member.name}, dead for {dead_ms} ms")

    def _check_progress(self) -> None:
        """Consumer offsets never go back, but for what a power loss took from the journal or the log."""
        node = self.master.node
        if not isinstance(node, SimMaster) or not node.ready:
            return
        committed = node.committed
        for queue_id, offset in self._committed.items():
            if committed.get(queue_id, 0) < offset:
                raise Violation(f"the group's offset in queue {queue_id} went from {offset} to {committed[queue_id]}")
        self._committed = committed

    def _check_followers(self) -> None:
        """A slave whose bytes the master counts holds the master's bytes."""
        master, node = self.master.process, self.master.node
        if master is None or node is None or not node.ready:
            return
        for slave in self.slaves:
            if slave.process is None or slave.node is None or not slave.node.ready:
                continue
            if self.network.connected(slave.process, master):
                self._check_common_bytes(slave.name, slave.node.store, node.store)

    def _check_common_bytes(self, name: str, slave: MessageStore, master: MessageStore) -> None:
        start = max(slave.min_offset, master.min_offset)
        end = min(slave.end_offset, master.end_offset)
        start = max(start, end - end % master.segment_bytes - master.segment_bytes)
        if start < end and slave.digest(start, end) != master.digest(start, end):
            raise Violation(f"{name} follows its master with other bytes within [{start}, {end})")


def run(cluster: Cluster) -> RunReport:
    """One whole run: warm-up, faults, healing, judgement. Raises Violation or ProcessFell."""
    cluster.start()
    cluster.run_for(WARM_UP_MS)
    cluster.faults.start()
    cluster.run_for(cluster.settings.fault_time_ms)
    cluster.settle()
    cluster.check()
    cluster.check_still_serves()
    return cluster.check()
