"""One broker group with its NameServer and producers, in virtual time, with everything that can go wrong in reach."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar, cast

from simulation.checkers import (
    Violation,
    check_acknowledged,
    check_delivered,
    check_prefix,
    check_queues,
    check_tables,
    stored_progress,
    table_holds,
    walk_log,
)
from simulation.fault_budget import FaultBudget
from simulation.faults import NORMAL_FLUSH_MS, FaultInjector
from simulation.ledger import Answer, Ledger
from simulation.member import BrokerNode, Member
from simulation.network import Network
from simulation.process import Journal, Machine, Process, ProcessFell
from simulation.run_settings import MASTER, NAME_SERVER, TOPIC, RunSettings
from simulation.sim_authority import AUTHORITY, AuthorityHost, AuthorityState
from simulation.sim_broker import SimBroker
from simulation.sim_consumer import DeliveryRecord, SimConsumer
from simulation.sim_delivery import GROUP, DeliveredMessage
from simulation.sim_master import SimMaster
from simulation.sim_name_server import SimNameServer
from simulation.sim_operator import SimOperator
from simulation.sim_producer import SimProducer
from simulation.sim_slave import SimSlave
from simulation.virtual_time import US_PER_MS, Timeline
from support.simulated_disk import UNLIMITED_BYTES
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.replication.mastership import Replica
from tandemmq.core.storage.message_store import MessageStore

T = TypeVar("T")

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
REPLACED_LIMIT_MS: Final = 60_000
"""How long a master that was replaced, and perhaps paused or cut off, may go on to deliver."""
RETURN_LIMIT_MS: Final = 60_000
"""After the last fault somebody acts as master within this time, also of a group that looks for its members, and where
an operator has to give disks up. In all other cases `MASTER_LIMIT_MS` is."""
MASTER_LIMIT_MS: Final = 11_000
"""A lease and 5 s: so soon somebody acts as master once all is there that this takes; see `Cluster.lacks`."""
JUST_NOW_MS: Final = 10_000
MASTERLESS_MS: Final = 20_000
"""So long an operator lets a group be without a master."""
TABLES_WAIT_FOR_THE_SET: Final = True
"""Whether a topic or group is on the whole in-sync set before its creation is answered. The product does not wait: what
a master creates that is cut off from its slaves, while its lease runs, is lost with the change of master."""
FOR_EVER_US: Final = 1 << 62


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
        self._progress: dict[int, int] = {}
        """What the group's committed offsets may not fall below, by queue id."""
        self._is_progress_on_disks_only = False
        """The master lost its own, and has not been heard since: with another disk more of it may go."""
        self._unasked: dict[int, int] = {}
        """The first message of each queue that no consumer asked to have finished."""
        self._begin: dict[int, int] = {}
        """Where the group begins in each queue: what is before need not be delivered."""
        if settings.failover:
            names: tuple[str, ...] = tuple(f"broker-{number}" for number in range(1 + settings.slave_count))
        else:
            names = (MASTER, *(f"slave-{number}" for number in range(1, settings.slave_count + 1)))
        self.budget = FaultBudget(names, settings.in_sync_replicas, settings.sync_flush)
        self.members = [self._new_member(name, broker_id) for broker_id, name in enumerate(names)]
        self.second_masters: list[Member] = []
        """Further processes with the master's broker id, newest last: somebody's mistake."""
        self._acting_master = self.members[0]
        """The one that began to serve last: what only other masters' disks hold is not the group's any more."""
        self._is_acting = False
        """False while it has not begun to serve since the one before it ended."""
        self.authority = AuthorityState(now_us=lambda: self.timeline.now_us)
        self.authority.late_share = settings.authority_late_share
        self._authority_machine = Machine(AUTHORITY, self.network, self._rng(AUTHORITY))
        self._authority_process: Process | None = None
        self.removed: list[Member] = []
        """Members that were taken out of the group for good."""
        self._incarnations: dict[int, str] = {}
        """Who acknowledged in an epoch."""
        self._answers_at: dict[int, Answer] = {}
        """The last answer at each physical offset."""
        self._seen: dict[int, Answer] = {}
        """What consumers of a group that fails over saw since a disk last lost anything, by physical offset."""
        self._journal_lost_us: dict[str, int] = {}
        """When a member last lost what it had not synced."""
        self._masterless_since_us = 0
        self._claimable_since_us = 0
        """Since when nobody acts as master, although all is there that this takes."""
        self._claimants: tuple[Process, ...] = ()
        """Those who could become master when this was looked at last."""
        self.deliveries.lease_ms /= 1 + settings.clock_rate_spread
        self.faults = FaultInjector(self, self._rng("faults"))
        self.producers: list[SimProducer] = []
        self.operator: SimOperator | None = None
        self._name_server_machine = Machine(NAME_SERVER, self.network, self._rng(NAME_SERVER))
        self._name_server_process: Process | None = None
        self._name_server_folder: dict[str, str] | None = {} if settings.name_server_remembers else None
        self.name_server: SimNameServer | None = None

    @property
    def master(self) -> Member:
        return self._acting_master if self.settings.failover else self.members[0]

    @property
    def slaves(self) -> list[Member]:
        return [member for member in self.members if member is not self.master]

    # Life

    def start(self) -> None:
        """Starts the NameServer, all members and the clients, some of them late."""
        self.timeline.after(self.settings.name_server_late_ms * US_PER_MS, self.start_name_server)
        if self.settings.failover:
            self.start_authority()
        for member in self.members:
            late_ms = 0 if member is self.master else self.settings.slaves_late_ms
            self.timeline.after(late_ms * US_PER_MS, member.start)
        asked = self.members if self.settings.failover else self.members[:1]
        hosts = self._hosts = {member.broker_id: member.name for member in asked}
        process = Process(Machine("operator", self.network, self._rng("operator")), failed=self._client_failed)
        self.operator = SimOperator(
            process, self.network, self.ledger, self.settings, self._rng("operator choices"), hosts
        )
        self.operator.start()
        for number in range(self.settings.producer_count):
            self.add_producer(f"producer-{number}")
        for number in range(CONSUMER_COUNT):
            self._start_consumer(f"consumer-{number}")
        self.timeline.after(WATCH_INTERVAL_MS * US_PER_MS, self._watch)

    def start_second_master(self, image: dict[str, bytes] | None, *, of: Member | None = None) -> Member:
        """Somebody starts another process with the master's broker id, or that of a slave, on another machine."""
        name, broker_id = ("master", 0) if of is None else (f"copy-of-{of.name}", of.broker_id)
        second = self._new_member(f"{name}-{len(self.second_masters) + 2}", broker_id)
        if image is not None:
            second.disk.put_back(image)
        self.second_masters.append(second)
        self.deliveries.two_masters_until_us = FOR_EVER_US
        second.start()
        return second

    def end_copy(self, copy: Member, *, of: Member) -> None:
        """What it was counted for instead of the disk that it is a copy of, that one may lack."""
        if not copy.is_gone:
            with self._data_loss(of, f"end of {copy.name}", disk_lost=True):
                self.end_second_master(copy)

    def add_member(self) -> Member:
        """One more broker of a group that fails over, with an empty disk."""
        broker_id = len(self.members) + len(self.removed)
        member = self._new_member(f"broker-{broker_id}", broker_id)
        member.changed_settings = dict(self.members[-1].changed_settings)
        self._hosts[broker_id] = member.name
        self.members.append(member)
        self.budget.members = (*self.budget.members, member.name)
        member.start()
        return member

    def remove_member(self, member: Member) -> None:
        """A slave's machine is taken away, with its disk, and never comes back."""
        with self._data_loss(member, f"removal of {member.name}", disk_lost=True):
            member.take_away()
            self.members.remove(member)
        self.removed.append(member)

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
        """Starts a NameServer, unless one runs."""
        if self._name_server_process is not None:
            return
        process = Process(self._name_server_machine, failed=self._client_failed)
        self._name_server_process = process
        self.name_server = SimNameServer(process, self.network, folder=self._name_server_folder)
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

    def start_authority(self) -> None:
        """Starts the authority, unless it runs."""
        if self._authority_process is None:
            self._authority_process = process = Process(self._authority_machine, failed=self._client_failed)
            AuthorityHost(process, self.network, self.authority, self._rng(f"swaps {self.timeline.now_us}")).start()

    def stop_authority(self, *, for_ms: int) -> None:
        """It is away for a while; what it has written stays."""
        process, self._authority_process = self._authority_process, None
        if process is not None:
            process.stop()
            self.network.process_killed(process)
            self.timeline.after(for_ms * US_PER_MS, self.start_authority)

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
        for second in self.second_masters:
            self.end_second_master(second)
        self.start_name_server()
        self.authority.late_share, self.authority.takes_writes, self.authority.old_share = 0, True, 0
        if self.settings.failover:
            self.start_authority()
            self.seed_authority()
        for member in self.members:
            member.resume()
            member.disk.crash_at_operation(0)
            member.disk.failing_syncs = None
            member.power_loss_after_cut_ms = None
            member.free_disk()
            member.machine.blocking_ms = NORMAL_FLUSH_MS
            member.start()

    def settle(self) -> None:
        """Heals, stops the producers and waits until every slave has and has reported the whole log."""
        self.heal()
        for producer in self.producers:
            producer.stop()
        if self.operator is not None:
            self.operator.stop()
        if self.settings.failover:
            self.run_until(lambda: self._actor() is not None, limit_ms=RETURN_LIMIT_MS, what="nobody acts as master")
        self.run_until(self._converged, limit_ms=HEAL_LIMIT_MS, what="the slaves do not follow their master")
        if self.settings.failover:
            self.run_until(self._in_sync, limit_ms=HEAL_LIMIT_MS, what="not all members are in the in-sync set")
        self.run_until(
            self._tables_follow, limit_ms=HEAL_LIMIT_MS, what="the slaves' tables do not follow their master's"
        )
        self.run_until(
            # What an operator was just doing may still come while the consumers end.
            lambda: self._consumed() and self._converged() and self._tables_follow(),
            limit_ms=DELIVERY_LIMIT_MS,
            what="not everything was consumed, or the tables do not follow",
        )

    # Judgement

    def check(self) -> RunReport:
        """The checkers of every run, on a settled cluster."""
        log = walk_log(self.master.name, self._store_of(self.master))
        lost = check_acknowledged(log, self.ledger)
        check_delivered(log, self.deliveries.messages, self._begin)
        for member in self.members:
            store = self._store_of(member)
            check_tables(member.name, member.disk, self.ledger)
            if member is not self.master:
                check_prefix(member.name, store, log)
            check_queues(member.name, store, log)
        return RunReport(
            settings=self.settings,
            acknowledged=len(self.ledger.acknowledgements),
            lost_as_expected=lost,
            delivered=self.deliveries.deliveries,
            log_bytes=len(log.data),
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
        record = self.authority.record
        parts = [] if record is None else [f"record {record}"]
        for member in self.members:
            node = member.node
            if node is None or not node.loaded:
                parts.append(f"{member.name} {'down' if node is None else 'recovering'}")
            else:
                state = "ready" if node.ready else f"not ready ({node.problem})"
                parts.append(f"{member.name} {state} [{node.store.min_offset}, {node.store.end_offset})")
        return "; ".join(parts)

    def may_lose_power(self, member: Member) -> bool:
        """True when the settings survive a power loss of this machine now."""
        if any(other.doomed for other in self.members if other is not member):
            return False
        return self.budget.survives(member.name, disk_lost=False)

    def may_lose_disk(self, member: Member) -> bool:
        return self.budget.survives(member.name, disk_lost=True) and not any(
            other.doomed for other in self.members if other is not member
        )

    # Parts

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self.settings.seed} {name}")

    def _new_member(self, name: str, broker_id: int) -> Member:
        return Member(
            name,
            broker_id,
            self.network,
            self._rng(name),
            self.journal,
            make_node=self._make_node,
            process_gone=self._process_gone,
            data_loss=self._data_loss,
            may_lose_power=self.may_lose_power,
            segment_bytes=self.settings.commit_log_file_bytes,
            clock_rate=self._clock_rate(name),
        )

    def _judged(self, checker: Callable[[T], None]) -> Callable[[T], None]:
        """The same for whoever would take a violation for a failure of its own."""

        def judge(what: T) -> None:
            try:
                checker(what)
            except Violation as error:
                self.timeline.fail(error)
                raise

        return judge

    def _clock_rate(self, name: str) -> float:
        spread = self.settings.clock_rate_spread
        return 1.0 + self._rng(f"{name} clock").uniform(-spread, spread) if spread else 1.0

    def _make_node(self, member: Member, process: Process) -> BrokerNode:
        def settled(began_us: int) -> None:
            self.budget.flushed(member.name, began_us=began_us)

        if self.settings.failover:
            return SimBroker(
                member=member,
                process=process,
                network=self.network,
                settings=replace(self.settings, **member.changed_settings),
                journal=self.journal,
                answered=self._judged(partial(self._answered, member)),
                given=partial(self._given, member),
                group_began=self._judged(self._group_began),
                serves=self._judged(partial(self._epoch_begins, member)),
                settled=settled,
            )
        if member.broker_id == 0:
            return SimMaster(
                member=member,
                process=process,
                network=self.network,
                settings=self.settings,
                journal=self.journal,
                ledger=self.ledger,
                group_began=self._group_began,
                serves=lambda: self._master_serves(member),
                is_replaced=lambda: member is not self._acting_master,
                settled=settled,
            )
        return SimSlave(
            member=member,
            process=process,
            network=self.network,
            settings=self.settings,
            journal=self.journal,
            settled=settled,
        )

    def _process_gone(self, process: Process, power_loss: bool) -> None:
        if power_loss:
            self.network.machine_gone(process)
        else:
            self.network.process_killed(process)

    def end_second_master(self, second: Member) -> None:
        """Somebody sees the mistake: the process is gone for good, and its disk with it."""
        if second.is_gone:
            return
        second.take_away()
        self.deliveries.two_masters_until_us = self.timeline.now_us + REPLACED_LIMIT_MS * US_PER_MS
        if self._acting_master is second:
            self._change_master(self.master, cause=f"end of {second.name}")
            self._is_acting = False

    # A group that fails over

    def _actor(self) -> SimBroker | None:
        """Who acts as master."""
        nodes = [member.node for member in self.members]
        return next((node for node in nodes if isinstance(node, SimBroker) and node.loaded and node.acts), None)

    def _acts(self, member: Member) -> bool:
        process, node = member.process, member.node
        runs = process is not None and not process.loop.frozen
        return runs and isinstance(node, SimBroker) and node.loaded and node.acts

    def _answered(self, member: Member, answer: Answer) -> None:
        """A master acknowledges."""
        self._check_copies(member, answer)
        known = self._incarnations.setdefault(answer.epoch, answer.incarnation)
        if known != answer.incarnation:
            raise Violation(f"{known} and {answer.incarnation} both acknowledge in epoch {answer.epoch}")
        before = self._answers_at.get(answer.physical_offset)
        is_other = before is not None and before.message_id != answer.message_id
        if before is not None and is_other and (before.message_id, before.physical_offset) in self.ledger.answers:
            if before.waited and answer.waited:
                raise Violation(
                    f"{before.message_id} and {answer.message_id} were both acknowledged at offset "
                    f"{answer.physical_offset}, in epochs {before.epoch} and {answer.epoch}"
                )
            self._excuse(answer if before.waited else before)
        if not answer.waited and member is not self._acting_master:
            self._excuse(answer)
        if (answer.message_id, answer.physical_offset) not in self.ledger.lost:
            self._answers_at[answer.physical_offset] = answer
            self.ledger.answered(answer)

    def _check_copies(self, member: Member, answer: Answer) -> None:
        """It does so by the settings that it was started with, whoever else has others."""
        needed = cast("SimBroker", member.node).needed_copies
        since_us = self.timeline.now_us - JUST_NOW_MS * US_PER_MS
        # Who has lost its disk since it reported may have had it.
        holders = [
            other.name
            for other in (*self.members, *self.removed, *self.second_masters)
            if other.holds(answer) or self._journal_lost_us.get(other.name, -1) >= since_us
        ]
        if answer.waited and len(holders) < needed:
            raise Violation(
                f"{member.name} acknowledges {answer.message_id} at offset {answer.physical_offset}, which needs "
                f"{needed} copies, and {' and '.join(holders)} alone has it"
            )

    def _given(self, member: Member, messages: Sequence[DeliveredMessage]) -> None:
        """A master shows messages to a consumer."""
        store = cast("SimBroker", member.node).store
        for message in messages:
            offset = message.physical_offset
            if offset not in self._seen:
                size = int.from_bytes(store.read_log(offset, 4), "big")
                record = bytes(store.read_log(offset, size))
                self._seen[offset] = Answer(message.message_id, offset, record, True, self.timeline.now_us)

    def _excuse(self, answer: Answer) -> None:
        """Nobody but a master that is replaced had to agree."""
        key = (answer.message_id, answer.physical_offset)
        self.ledger.answers.pop(key, None)
        self.ledger.lost[key] = "a change of the master, and it did not wait"

    def _epoch_begins(self, member: Member, broker: SimBroker) -> None:
        """Whoever becomes master has all that was ever acknowledged, but for what no disk has any more, and whoever was
        it before acts no more."""
        epoch = broker.replica.history.last_epoch
        if before := next((other for other in self.members if other is not member and self._acts(other)), None):
            raise Violation(f"{member.name} becomes master of epoch {epoch}, and {before.name} acts as master")
        gone = self.ledger.take_stock(member.holds, cause=f"{member.name} became master of epoch {epoch}")
        if waited := next((answer for answer in gone if answer.waited), None):
            raise Violation(
                f"{member.name} becomes master of epoch {epoch} without {waited.message_id}, acknowledged in epoch "
                f"{waited.epoch} at {waited.at_us / 1e6:.3f} s at offset {waited.physical_offset}"
            )
        if unseen := next((seen for seen in self._seen.values() if not member.holds(seen)), None):
            raise Violation(
                f"{member.name} becomes master of epoch {epoch} without {unseen.message_id}, which a consumer got at "
                f"{unseen.at_us / 1e6:.3f} s from offset {unseen.physical_offset}"
            )
        if member is not self._acting_master:
            if not TABLES_WAIT_FOR_THE_SET:
                self.ledger.take_stock_of_tables(
                    lambda file, name: f'"{name}"' in broker.tables.by_file[MetadataFile(file)].to_json()
                )
            # Its copy of the leases is no more synced than a master's own.
            lost_us = self._journal_lost_us.get(member.name, -1)
            self.deliveries.journal_lost_us = max(self.deliveries.journal_lost_us, lost_us)
            self.deliveries.master_changed(now_us=self.timeline.now_us)
            # What its copies knew: they are some seconds old.
            self._progress = self._no_more_than(broker.tables.consumer_offsets.offsets_of(GROUP, TOPIC))
        # Beyond its log come other messages, which the group has not had.
        self._progress = {
            queue_id: min(offset, broker.store.queue_max_offset(TOPIC, queue_id))
            for queue_id, offset in self._progress.items()
        }
        self._acting_master, self._is_acting = member, True

    def seed_authority(self) -> None:
        """An operator sees that the authority was put back, and writes the newest record again."""
        if self.authority.is_put_back:
            record = self.authority.greatest()
            self.journal.note("OPERATOR", f"seeds the authority with epoch {record.epoch}")
            self.authority.write(record.to_text())

    def authority_was_put_back(self) -> None:
        """A slave of an older in-sync set may be elected that lacks what was finished since."""
        self._seen.clear()
        self.deliveries.journal_lost_us = self.timeline.now_us

    def _name_other_master(self) -> None:
        """An operator gives up an in-sync set of which no disk is in any machine: the best log is the group's."""
        record, now_us = self.authority.record, self.timeline.now_us
        if record is None or self._actor() is not None:
            self._masterless_since_us = now_us
            return
        nodes = [member.node for member in self.members if isinstance(member.node, SimBroker) and member.node.loaded]
        if now_us - self._masterless_since_us < MASTERLESS_MS * US_PER_MS or len(nodes) < len(self.members):
            return
        there = {node.replica.disk_id: node for node in nodes}
        if any(replica.disk_id in there for replica in record.in_sync):
            return
        best = max(nodes, key=lambda node: (node.replica.history.last_epoch, node.store.end_offset))
        replica = Replica(best.identity.broker_id, best.replica.disk_id)
        self._seen.clear()
        self.journal.note("OPERATOR", f"names {replica} instead of {sorted(record.in_sync)}")
        self.authority.write(
            replace(record, epoch=record.epoch + 1, master=replica, nonce="", in_sync=frozenset({replica})).to_text()
        )
        self._masterless_since_us = now_us

    def _check_mastership(self) -> None:
        """Somebody acts as master within the limit once all is there that this takes, and stays."""
        claimants = self._claimants_now()
        is_vacant = self._actor() is None and not self.lacks(claimants)
        processes = tuple(member.process for member in claimants if member.process is not None)
        if not is_vacant or processes != self._claimants:
            self._claimable_since_us, self._claimants = self.timeline.now_us, processes
        masterless_ms = (self.timeline.now_us - self._claimable_since_us) // US_PER_MS
        if masterless_ms > MASTER_LIMIT_MS:
            raise Violation(
                f"nobody acts as master for {masterless_ms} ms, although "
                f"{', '.join(member.name for member in claimants)} could: {self.describe()}"
            )

    def _claimants_now(self) -> list[Member]:
        """Members that may become master by the record, run undisturbed, and reach the authority."""
        record = self.authority.record
        in_sync = frozenset() if record is None else {replica.disk_id for replica in record.in_sync}
        return [member for member in self.members if member.disk_id in in_sync and self._is_undisturbed(member)]

    def lacks(self, claimants: list[Member]) -> str:
        """Why nobody has to be master now, in words; empty: all is there that this takes."""
        if self.authority.record is None:
            return "the group has no record: its home master looks for members first"
        if self._authority_process is None or self.authority.is_put_back:
            return "the authority is away, or was put back and nobody has seen to it"
        if not self.authority.takes_writes:
            return "the authority's disk is full"
        if self.authority.old_share:
            return "the authority gives old answers"
        if not claimants:
            return "no member of the in-sync set is up and reaches the authority; an operator may name another"
        nodes = [member.node for member in claimants]
        if any(isinstance(node, SimBroker) and node.failover.is_electable for node in nodes):
            return ""
        # It was started since: its group has to be heard.
        if not self.network.healthy or self._name_server_process is None:
            return "members or their NameServer do not reach each other"
        if not all(self._is_undisturbed(member) for member in self.members):
            return "a member is away that may hold more"
        return ""

    def _is_undisturbed(self, member: Member) -> bool:
        """Its process runs, its disk is quick and has room, and the authority hears and answers it."""
        process, disk = member.process, member.disk
        if process is None or process.loop.frozen or member.node is None or not member.node.loaded:
            return False
        if disk.failing_syncs is not None or disk.capacity_bytes < UNLIMITED_BYTES:
            return False
        if member.machine.blocking_ms != NORMAL_FLUSH_MS or self.network.is_slow:
            return False
        return not (self.network.is_cut(member.name, AUTHORITY) or self.network.is_cut(AUTHORITY, member.name))

    def _master_serves(self, member: Member) -> None:
        self._is_acting = True
        if member is not self._acting_master:
            self._change_master(member, cause=f"{member.name} in place of {self._acting_master.name}")

    def _change_master(self, member: Member, *, cause: str) -> None:
        """The disk of the one before counts no more."""
        with self._data_loss(self._acting_master, cause, disk_lost=True):
            self._acting_master = member
        # What the new one knew of the group before may be of messages that its log has no more: other masters served
        # meanwhile, and others are at their offsets now. A slave that stopped in order at the same end is not awaited.
        self._progress = self._stored_progress([holder for holder in self._in_reach_of(member) if holder is not member])

    @contextmanager
    def _data_loss(self, member: Member, cause: str, *, disk_lost: bool) -> Iterator[None]:
        """Something takes bytes from a disk. What no disk can give back afterwards is lost, and nothing else."""
        survives = self.budget.survives(member.name, disk_lost=disk_lost)
        self._seen.clear()
        self.budget.lost(member.name, at_us=self.timeline.now_us, disk_lost=disk_lost)
        yield
        is_master = member is self.master if self.settings.failover else member.broker_id == 0
        self._journal_lost_us[member.name] = self.timeline.now_us
        if is_master or (disk_lost and self.settings.failover):
            self.deliveries.journal_lost_us = self.timeline.now_us
        gone = self.ledger.take_stock(self._is_held, cause=cause)
        if survives and (waited := next((answer for answer in gone if answer.waited), None)):
            raise Violation(
                f"message {waited.message_id}, acknowledged at {waited.at_us / 1e6:.3f} s at physical offset "
                f"{waited.physical_offset}, is on no disk any more after the {cause}, which the settings survive"
            )
        self.ledger.take_stock_of_tables(
            lambda file, name: any(table_holds(holder.disk, file, name) for holder in self._holders)
        )
        if is_master:
            stored = self._stored_progress(self._newest_holders)
            self._progress = self._no_more_than(stored) if self.settings.failover else stored
            self._is_progress_on_disks_only = True
        elif self._is_progress_on_disks_only:
            self._progress = self._no_more_than(self._stored_progress(self._newest_holders))

    @property
    def _holders(self) -> list[Member]:
        """The members whose disks are the group's."""
        return self.members if self.settings.failover else [self._acting_master, *self.slaves]

    @property
    def _newest_holders(self) -> list[Member]:
        """Those in the latest epoch that any of them has: what others know of groups may be of other messages."""
        epochs = {member.name: member.history.last_epoch for member in self._holders}
        return [member for member in self._holders if epochs[member.name] == max(epochs.values())]

    def _is_held(self, answer: Answer) -> bool:
        return any(member.holds(answer) for member in self._holders)

    def _stored_progress(self, holders: list[Member]) -> dict[int, int]:
        progress: dict[int, int] = {}
        for member in holders:
            for queue_id, offset in stored_progress(member.disk, GROUP, TOPIC).items():
                progress[queue_id] = max(offset, progress.get(queue_id, 0))
        return progress

    def _no_more_than(self, stored: dict[int, int]) -> dict[int, int]:
        return {
            queue_id: min(offset, stored[queue_id]) for queue_id, offset in self._progress.items() if queue_id in stored
        }

    def _group_began(self, offsets: dict[int, int]) -> None:
        """The group starts in a lease table that knew nothing of it: the first time, or after a loss."""
        for queue_id, offset in offsets.items():
            stored = self._progress.get(queue_id)
            if stored is None:
                self._begin[queue_id] = max(offset, self._begin.get(queue_id, 0))
                self._unasked[queue_id] = max(offset, self._unasked.get(queue_id, 0))
            elif offset > (self._most_finished(queue_id) if self.settings.failover else stored):
                raise Violation(
                    f"the group starts at {offset} in queue {queue_id}, though a disk holds its offset {stored}"
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

    def _in_sync(self) -> bool:
        """The in-sync set is whole, but for disks that nobody has any more and that `inSyncReplicas` keeps in it."""
        record = self.authority.record
        disk_ids = set() if record is None else {replica.disk_id for replica in record.in_sync}
        return all(member.disk_id in disk_ids for member in self.members)

    def _tables_follow(self) -> bool:
        """All members have the master's topics and groups, in their files."""
        nodes = [member.node for member in self.members if isinstance(member.node, SimMaster | SimSlave | SimBroker)]
        versions = {(node.tables.topics.version, node.tables.groups.version) for node in nodes}
        return len(nodes) == len(self.members) and len(versions) == 1 and all(_is_written(node) for node in nodes)

    def _consumed(self) -> bool:
        node = self.master.node
        return isinstance(node, SimMaster | SimBroker) and all(
            node.committed.get(queue_id, 0) == node.store.queue_max_offset(TOPIC, queue_id)
            for queue_id in range(self.settings.queue_count)
        )

    def _watch(self) -> None:
        """Once a virtual second: what must hold also while things go wrong."""
        if not self.budget.settled and self._converged():
            self.budget.converged()
        self._give_up_lost_disks()
        if self.settings.failover:
            self._name_other_master()
            self._check_mastership()
        self._check_progress()
        self._check_route()
        self._check_followers()
        self.timeline.after(WATCH_INTERVAL_MS * US_PER_MS, self._watch)

    def _give_up_lost_disks(self) -> None:
        """An operator accepts the loss of disks that are in no machine any more, and of no others."""
        starting = self.members if self.settings.failover else [self.master, *self.second_masters]
        for master in starting:
            node = master.node
            if (
                not isinstance(node, SimMaster | SimBroker)
                or not node.loaded
                or node.waiting is None
                or not node.waiting.missing
            ):
                continue
            seconds = [second for second in self.second_masters if second.running]
            there = {member.disk_id for member in (*self.members, *seconds) if member is not master}
            missing = [memory.disk_id for memory in node.waiting.missing]
            if there.isdisjoint(missing) and not node.accept_loss(missing):
                self.journal.note("OPERATOR", f"accepts the loss of {', '.join(missing)} for {master.name}")
                self._progress = self._no_more_than(self._stored_progress(self._in_reach_of(master)))

    def _in_reach_of(self, master: Member) -> list[Member]:
        """Holders that a starting master can ask, and itself: with a loss accepted it waits for no others."""
        return [
            holder
            for holder in self._holders
            if holder is master
            or (
                holder.running
                and not self.network.is_cut(holder.name, master.name)
                and not self.network.is_cut(master.name, holder.name)
            )
        ]

    def _check_route(self) -> None:
        if self.name_server is None:
            return
        members = {member.name: member for member in (*self.members, *self.second_masters, *self.removed)}
        for host in self.name_server.routed_hosts(TOPIC):
            member = members[host]
            if member.process is not None:
                continue
            dead_ms = (self.timeline.now_us - member.down_since_us) // US_PER_MS
            if dead_ms > ROUTE_LIMIT_MS:
                raise Violation(f"the route still names {member.name}, dead for {dead_ms} ms")

    def _check_progress(self) -> None:
        """Consumer offsets never go back, nor below what a disk still held after a loss, but with the log's end."""
        node = self._acting_master.node
        if not self._is_acting or not isinstance(node, SimMaster | SimBroker) or not node.ready:
            return
        committed = node.committed
        for queue_id, offset in committed.items():
            least = min(self._progress.get(queue_id, 0), node.store.queue_max_offset(TOPIC, queue_id))
            if offset < least:
                raise Violation(f"the group's offset in queue {queue_id} went from {least} to {offset}")
            most = self._most_finished(queue_id)
            if offset > most:
                raise Violation(f"the group's offset in queue {queue_id} is {offset}, but {most} is not finished")
        if committed:
            self._progress, self._is_progress_on_disks_only = committed, False

    def _most_finished(self, queue_id: int) -> int:
        """Up to where consumers asked to have everything finished."""
        known = self._unasked.get(queue_id, self._begin.get(queue_id, 0))
        self._unasked[queue_id] = most = self.deliveries.first_unasked(queue_id, known)
        return most

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


def _is_written(node: SimMaster | SimSlave | SimBroker) -> bool:
    written: list[bool] = []
    node.tables.when_written(lambda: written.append(True))
    return bool(written)


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
