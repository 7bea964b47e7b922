"""What goes wrong in a seeded run: one fault after the other, drawn and timed by the seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from simulation.checkers import last_boundary
from simulation.network import NORMAL_DELAY_US
from simulation.run_settings import NAME_SERVER
from simulation.sim_authority import AUTHORITY
from simulation.sim_broker import SimBroker
from simulation.virtual_time import US_PER_MS
from tandemmq.core.replication.mastership import GroupRecord
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import FlushDiskType

if TYPE_CHECKING:
    from simulation.cluster import Cluster
    from simulation.member import Member

SLOW_DELAY_US: Final = (20_000, 400_000)
NORMAL_FLUSH_MS: Final = (1, 10)
SLOW_FLUSH_MS: Final = (200, 2_500)
FREE_BYTES_WHEN_FULL: Final = 2_048
HOUR_MS: Final = 3_600_000
PAGE_BYTES: Final = 4_096
HEARD_MS: Final = 1_000
"""After so long NameServers have heard which record a member saw."""
STOP_LIMIT_MS: Final = 30_000
ROT_ATTEMPTS: Final = 5
MEMBERS_MAX: Final = 4
WITHIN_RECORD_LOOKS: Final = 2_000
OTHERS: Final = "others"
"""In a run's weights: of all faults that it does not name."""


class FaultInjector:
    """Draws a fault, does it, plans its end and the next one, until `stop`.

    Some faults are drawn within what the settings survive, others whatever that costs: what no disk holds any more is
    then lost, message by message, and everything else is not.
    """

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._stopped = False
        self.counts: Counter[str] = Counter()
        kinds = {
            self._kill: 6,
            self._lose_power: 5,
            self._lose_more_power: 2,
            self._kill_at_disk_operation: 3,
            self._lose_all_power: 1,
            self._fail_sync: 1,
            self._fill_disk: 1,
            self._replace_slave_disk: 1,
            self._replace_master_disk: 1,
            self._replace_any_disk: 1,
            self._put_back_slave_disk: 1,
            self._put_back_master_disk: 2,
            self._rot_slave: 1,
            self._rot_master: 1,
            self._slow_disk: 2,
            self._stop_in_order: 2,
            self._restart_all: 1,
            self._pause: 3,
            self._jump_clock: 2,
            self._partition: 5,
            self._cut_one_way: 4,
            self._drop_connections: 4,
            self._slow_network: 2,
            self._kill_name_server: 1,
            self._start_late: 1,
            self._start_second_master: 1,
            # Stories of several steps: only where a run asks for them.
            self._give_up_slaves: 0,
            self._replace_silent_master: 0,
            self._lose_power_after_cut: 0,
            self._lose_master_disk_within_record: 0,
            self._put_back_slave_disk_alone: 0,
        }
        if cluster.settings.failover:
            # Somebody else with a member's very disk is no failure of a machine, but of whoever started it.
            kinds[self._start_second_master] = 0
            kinds.update({
                self._hand_over: 5,
                self._cut_authority: 5,
                self._stop_authority: 2,
                self._fill_authority: 2,
                self._put_back_authority: 1,
                self._pause_master: 3,
                self._kill_master: 4,
                self._isolate_master: 3,
                self._isolate_after_growth: 1,
                self._lose_lonely_master: 2,
                self._put_back_authority_of_lonely_master: 1,
                self._lose_master_beside_forgetful_slave: 2,
                self._clog: 2,
                self._cut_master_from_authority: 2,
                self._forge_end_of_master: 0,
                self._change_settings: 0,
                self._exchange_member: 0,
                self._put_back_authority_in_hand_over: 0,
                self._start_copy_of_slave: 0,
            })  # fmt: skip
        if "age_authority" in dict(cluster.settings.fault_weights) and cluster.settings.failover:
            kinds[self._age_authority] = 0
        if cluster.settings.few_faults:
            kinds = _some_of(kinds, random.Random(f"few kinds {cluster.settings.seed}"))
        weights = dict(cluster.settings.fault_weights)
        others = weights.get(OTHERS)
        self._kinds = {
            kind: weights.get(kind.__name__.strip("_"), weight if others is None else others)
            for kind, weight in kinds.items()
        }

    def start(self) -> None:
        """Plans the first fault."""
        self._plan_next()

    def stop(self) -> None:
        """No more faults; those in force are ended by the cluster."""
        self._stopped = True

    def _plan_next(self) -> None:
        pause_ms = min(60_000, round(self._rng.expovariate(1 / self._cluster.settings.fault_pause_ms)))
        self._cluster.timeline.after(pause_ms * US_PER_MS, self._inject)

    def _inject(self) -> None:
        if self._stopped:
            return
        fault = self._rng.choices(list(self._kinds), list(self._kinds.values()))[0]
        what = fault()
        if what is not None:
            self.counts[fault.__name__.strip("_")] += 1
            self._cluster.journal.note("FAULT", what)
        self._plan_next()

    # Each returns what it did, or None when it did not apply.

    def _kill(self) -> str | None:
        member = self._running_member()
        if member is None:
            return None
        member.kill(restart_after_ms=self._down_ms())
        return f"kill {member.name}"

    def _lose_power(self) -> str | None:
        member = self._rng.choice(self._cluster.members)
        if not self._cluster.may_lose_power(member):
            return None
        member.lose_power(restart_after_ms=self._down_ms())
        return f"power loss of {member.name}"

    def _kill_at_disk_operation(self) -> str | None:
        """A crash between two steps of one change: a truncation, a new file, a checkpoint."""
        member = self._rng.choice(self._cluster.members)
        count = self._rng.choice((1, 2, 3, 5, 8, 13, 21, 34))
        member.disk.crash_at_operation(count)
        return f"{member.name} will die at disk operation {count} from now"

    def _lose_all_power(self) -> str | None:
        """The whole rack. Nothing that waited is lost with SYNC_FLUSH."""
        if not self._cluster.budget.sync_flush:
            return None
        for member in self._cluster.members:
            member.lose_power(restart_after_ms=self._down_ms())
        return "power loss of all members"

    def _fail_sync(self) -> str | None:
        """The disk reports an error: the process stops (docs/adr/0005) and its machine is started again."""
        member = self._running_member()
        if member is None or not self._cluster.may_lose_power(member):
            return None
        member.disk.failing_syncs = self._rng.choice(("commitlog", "consumequeue", ""))
        return f"syncs of {member.name} fail below {member.disk.failing_syncs!r}"

    def _fill_disk(self) -> str | None:
        member = self._running_member()
        if member is None:
            return None
        member.disk.capacity_bytes = member.disk.usage().used_bytes + FREE_BYTES_WHEN_FULL
        self._later(self._rng.randint(1_000, 15_000), member.free_disk)
        return f"disk of {member.name} is full"

    def _lose_more_power(self) -> str | None:
        """Any machines, whatever the settings promise."""
        count = self._rng.choice((1, 1, 2, 3))
        members = self._rng.sample(self._cluster.members, min(count, len(self._cluster.members)))
        for member in members:
            member.lose_power(restart_after_ms=self._down_ms())
        return f"power loss of {', '.join(member.name for member in members)}"

    def _replace_slave_disk(self) -> str | None:
        return self._replace_disk(self._rng.choice(self._cluster.slaves))

    def _replace_master_disk(self) -> str | None:
        return self._replace_disk(self._cluster.master)

    def _replace_disk(self, member: Member) -> str | None:
        """A machine comes back with an empty disk, which the settings survive."""
        if not self._cluster.may_lose_disk(member):
            return None
        member.replace_disk(restart_after_ms=self._down_ms())
        return f"{member.name} gets a new, empty disk"

    def _replace_any_disk(self) -> str | None:
        """Whatever the settings promise."""
        member = self._rng.choice(self._cluster.members)
        member.replace_disk(restart_after_ms=self._down_ms())
        return f"{member.name} gets a new, empty disk, with whatever it alone held"

    def _put_back_slave_disk(self) -> str | None:
        return self._put_back_disk(self._rng.choice(self._cluster.slaves))

    def _put_back_master_disk(self) -> str | None:
        return self._put_back_disk(self._cluster.master)

    def _put_back_disk(self, member: Member) -> str | None:
        """A copy of a disk, taken while its process ran or after an orderly stop, takes the disk's place later on."""
        image = member.clean_image if self._rng.random() < 0.5 else None
        is_clean = image is not None
        image = image or member.disk.image()

        def put_back() -> None:
            if not self._stopped:
                self._cluster.journal.note("FAULT", f"{member.name} gets its old disk back")
                member.put_back_disk(image, reboots=self._rng.random() < 0.5, restart_after_ms=self._down_ms())

        self._later(self._rng.randint(1_000, 30_000), put_back)
        return (
            f"the disk of {member.name} {'as it was at its last stop' if is_clean else 'as it is now'} will be put back"
        )

    def _put_back_slave_disk_alone(self) -> str | None:
        """An older copy of a slave's disk takes the disk's place, and nobody else is there."""
        slave = self._rng.choice(self._cluster.slaves)
        image = slave.disk.image()

        def put_back() -> None:
            if self._stopped or self._cluster.master is slave:
                return
            self._cluster.journal.note("FAULT", f"{slave.name} gets its old disk back, the others are killed")
            for member in self._cluster.members:
                if member is not slave:
                    member.kill(restart_after_ms=25_000)
            slave.put_back_disk(image, reboots=self._rng.random() < 0.5, restart_after_ms=50)

        self._later(self._rng.randint(1_500, 6_000), put_back)
        return f"the disk of {slave.name} as it is now will be put back, with all others away"

    def _rot_slave(self) -> str | None:
        return self._rot(self._rng.choice(self._cluster.slaves))

    def _rot_master(self) -> str | None:
        return self._rot(self._cluster.master)

    def _rot(self, member: Member) -> str | None:
        """A process is killed, and its log's tail comes back with a flipped bit, or a page of zeros."""
        member.kill(restart_after_ms=self._down_ms())
        is_flipped = self._rng.random() < 0.5
        for _ in range(ROT_ATTEMPTS):
            back_bytes = self._rng.randint(1, 2 * PAGE_BYTES)
            if member.damage_log(back_bytes, b"" if is_flipped else bytes(min(back_bytes, PAGE_BYTES))):
                kind = "a flipped bit" if is_flipped else "a page of zeros"
                return f"{member.name} is killed and finds {kind} in its log, {back_bytes} bytes before the end"
        return f"kill {member.name}"

    def _stop_in_order(self) -> str | None:
        member = self._running_member()
        if member is None:
            return None
        member.stop_in_order(limit_ms=STOP_LIMIT_MS, restart_after_ms=self._down_ms())
        return f"{member.name} is told to stop"

    def _restart_all(self) -> str | None:
        """Somebody updates everything at once."""
        for member in self._cluster.members:
            if self._rng.random() < 0.5:
                member.kill(restart_after_ms=self._down_ms())
            else:
                member.stop_in_order(limit_ms=STOP_LIMIT_MS, restart_after_ms=self._down_ms())
        return "all members are restarted"

    def _pause(self) -> str | None:
        member = self._running_member()
        if member is None:
            return None
        duration_ms = self._rng.choice((300, 3_000, 9_000, 15_000, 40_000))
        member.pause(duration_ms)
        return f"{member.name} is paused for {duration_ms} ms"

    def _jump_clock(self) -> str | None:
        """A wall clock goes wrong, or right again, under a running process."""
        machine = self._rng.choice(self._cluster.members).machine
        machine.wall_skew_ms = self._rng.choice(
            (0, 0, 2_000, -60_000, HOUR_MS, -HOUR_MS, 100 * HOUR_MS, -100 * HOUR_MS)
        )
        return f"the wall clock of {machine.name} is {machine.wall_skew_ms} ms off now"

    def _start_second_master(self) -> str | None:
        """With an empty disk, or with a copy of the real one."""
        if any(second.running for second in self._cluster.second_masters):
            return None
        image = self._cluster.master.disk.image() if self._rng.random() < 0.5 else None
        self._later(self._rng.choice((10, 5_000, 20_000)), lambda: self._second_master(image, (2_000, 15_000, 40_000)))
        return f"a second master with {'an empty disk' if image is None else 'a copy of the disk'} will be started"

    def _second_master(self, image: dict[str, bytes] | None, lasts_ms: tuple[int, ...]) -> None:
        if not self._stopped:
            second = self._cluster.start_second_master(image)
            self._later(self._rng.choice(lasts_ms), lambda: self._cluster.end_second_master(second))

    def _replace_silent_master(self) -> str | None:
        """Another master takes over while the first one is paused; then the first goes on, and has to hear of it."""
        if not self._cluster.master.running or any(second.running for second in self._cluster.second_masters):
            return None
        silent_ms = self._rng.choice((20_000, 40_000))
        self._cluster.master.pause(silent_ms)
        self._later(self._rng.randint(0, 10_000), lambda: self._second_master(None, (silent_ms,)))
        return f"the master is paused for {silent_ms} ms, and another one will be started"

    def _give_up_slaves(self) -> str | None:
        """The master's disk is rolled back, and the slaves' are away for so long that somebody gives them up."""
        image = self._cluster.master.disk.image()

        def lose() -> None:
            if self._stopped:
                return
            self._cluster.journal.note("FAULT", "the master gets its old disk back, the slaves get empty ones")
            images = [(slave, slave.disk.image()) for slave in self._cluster.slaves]
            for slave in self._cluster.slaves:
                slave.replace_disk(restart_after_ms=self._down_ms())
            self._cluster.master.put_back_disk(image, reboots=True, restart_after_ms=50)
            self._later(self._rng.randint(8_000, 20_000), lambda: put_back(images))

        def put_back(images: list[tuple[Member, dict[str, bytes]]]) -> None:
            if not self._stopped:
                self._cluster.journal.note("FAULT", "the slaves get back the disks that were given up")
                for slave, old in images:
                    slave.put_back_disk(old, reboots=True, restart_after_ms=50)

        self._later(self._rng.randint(500, 5_000), lose)
        return "the master's disk of now will be put back, and the slaves' disks will be away"

    def _lose_power_after_cut(self) -> str | None:
        for member in self._cluster.members:
            member.power_loss_after_cut_ms = self._rng.choice((0, 1, 5, 50, 300))
        return "every machine will lose power after the next cut of its log"

    def _lose_master_disk_within_record(self) -> str | None:
        """The master's disk goes when the longest log that is left ends within a record."""
        self._lose_master_disk_soon(WITHIN_RECORD_LOOKS)
        return "the master will lose its disk when a slave has a part of a record"

    def _lose_master_disk_soon(self, looks_left: int) -> None:
        if self._stopped or not looks_left:
            return
        nodes = [slave.node for slave in self._cluster.slaves if slave.node is not None and slave.node.loaded]
        longest = max((node.store for node in nodes), key=lambda store: store.end_offset, default=None)
        # Another slave's disk may hold more and be down.
        if len(nodes) == len(self._cluster.slaves) and longest is not None and _ends_within_record(longest):
            self._cluster.journal.note("FAULT", f"the master gets an empty disk; a slave ends at {longest.end_offset}")
            for slave in self._cluster.slaves:
                # The rest may have arrived and not have been read yet.
                self._cluster.network.drop_connections(self._cluster.master.name, slave.name)
            self._cluster.master.replace_disk(restart_after_ms=50)
            return
        self._later(1, lambda: self._lose_master_disk_soon(looks_left - 1))

    def _hand_over(self) -> str | None:
        """A planned change."""
        node = self._cluster.master.node
        if not isinstance(node, SimBroker) or not node.acts:
            return None
        to = self._rng.choice((None, *(member.broker_id for member in self._cluster.slaves)))
        process = self._cluster.master.process
        assert process is not None
        asked = process.loop.spawn(node.hand_over(to), name="hand over")
        what = f"{self._cluster.master.name} is to hand over to {'anybody' if to is None else to}"
        # Not all operators wait for the answer.
        patience_ms = self._rng.choice((None, None, 1, 20, 100, 1_000))
        if patience_ms is None:
            return what
        process.loop.call_later(patience_ms / 1_000, asked.cancel)
        return f"{what}, within {patience_ms} ms"

    def _change_settings(self) -> str | None:
        """Somebody changes what an acknowledgement takes, and starts members again, one after the other: all of them,
        or fewer, as where a change was left half done."""
        members = self._cluster.members
        copies, flush = self._rng.randint(1, min(3, len(members))), self._rng.choice(tuple(FlushDiskType))
        changed = {"in_sync_replicas": copies, "flush_disk_type": flush}
        chosen = self._rng.sample(members, self._rng.choice((1, len(members), len(members))))
        self._cluster.budget.promises_less(copies=copies, sync_flush=flush is FlushDiskType.SYNC_FLUSH)
        pause_ms = self._rng.choice((50, 2_000, 8_000))

        def renew(member: Member) -> None:
            if not self._stopped and member in members:
                member.changed_settings = changed
                if self._rng.random() < 0.5:
                    member.stop_in_order(limit_ms=STOP_LIMIT_MS, restart_after_ms=50)
                else:
                    member.kill(restart_after_ms=50)

        for number, member in enumerate(chosen):
            self._later(number * pause_ms, partial(renew, member))
        return f"{', '.join(member.name for member in chosen)} will be started again with {changed}"

    def _exchange_member(self) -> str | None:
        """A slave is taken out of the group for good, and a broker with a new id comes; or one of the two."""
        cluster, what = self._cluster, []
        if len(cluster.members) < MEMBERS_MAX and self._rng.random() < 0.7:
            what.append(f"{cluster.add_member().name} is a new member")
        slave = self._rng.choice(cluster.slaves)
        needed = max(
            cluster.settings.in_sync_replicas,
            *(member.changed_settings.get("in_sync_replicas", 1) for member in cluster.members),
        )
        is_bare = not cluster.may_lose_disk(slave) or not all(member.running for member in cluster.members)
        if len(cluster.members) > max(2, needed) and not is_bare and self._rng.random() < 0.7:
            cluster.remove_member(slave)
            what.append(f"{slave.name} is taken away for good")
        return ", ".join(what) or None

    def _put_back_authority_in_hand_over(self) -> str | None:
        """A backup of seconds ago is restored while one master makes way for the next, who then goes perhaps."""
        what = self._hand_over()
        if what is None:
            return None
        authority, count = self._cluster.authority, self._cluster.authority.version_count

        def put_back() -> None:
            versions = authority.version_count - count + self._rng.choice((0, 0, 1, 2))
            if not self._stopped and versions and authority.put_back(versions):
                self._cluster.authority_was_put_back()
                self._cluster.journal.note("FAULT", f"the authority is put back to {authority.record}")
                self._later(self._rng.choice((3_000, 15_000, 40_000)), self._cluster.seed_authority)
                if self._rng.random() < 0.5:
                    self._later(self._rng.choice((50, 1_000, 3_000)), lose)

        def lose() -> None:
            if not self._stopped:
                self._cluster.journal.note("FAULT", f"kill {self._cluster.master.name}, the master")
                self._cluster.master.kill(restart_after_ms=self._rng.choice((8_000, 20_000)))

        self._later(self._rng.choice((5, 50, 150, 400, 1_000)), put_back)
        return f"{what}, and the authority will be put back"

    def _start_copy_of_slave(self) -> str | None:
        """Somebody starts another process on a copy of a slave's disk, older or not, beside the slave; then the machine
        of the copy goes, perhaps with the master, and nobody has its disk any more. Not before the slave has heard of
        it: here NameServers are asked once a second, and do not tell by themselves."""
        cluster = self._cluster
        if any(second.running for second in cluster.second_masters) or not all(each.ready for each in cluster.members):
            return None
        slave = self._rng.choice(cluster.slaves)
        image, is_with_master = slave.disk.image(), self._rng.random() < 0.7

        def start() -> None:
            if self._stopped or slave is cluster.master or any(each.running for each in cluster.second_masters):
                return
            cluster.journal.note("FAULT", f"a process starts on a copy of the disk of {slave.name}")
            copy = cluster.start_second_master(image, of=slave)
            self._later(self._rng.choice((3_000, 5_000, 8_000)), lambda: end(copy))

        def end(copy: Member) -> None:
            if is_with_master and not self._stopped:
                cluster.journal.note("FAULT", f"kill {cluster.master.name}, the master, with the copy")
                cluster.master.kill(restart_after_ms=self._rng.choice((8_000, 20_000)))
            cluster.end_copy(copy, of=slave)

        self._later(self._rng.choice((10, 2_000, 10_000)), start)
        return f"a process will be started on a copy of the disk of {slave.name}"

    def _cut_authority(self) -> str | None:
        """A member alone, or all of them, asks in vain, or gets no answer."""
        names = [member.name for member in self._cluster.members]
        chosen = names if self._rng.random() < 0.3 else [self._rng.choice(names)]
        ways = self._rng.choice(("both", "there", "back"))
        cut_ms = self._cut_ms()
        for name in chosen:
            if ways != "back":
                self._cut(name, AUTHORITY, cut_ms)
            if ways != "there":
                self._cut(AUTHORITY, name, cut_ms)
        return f"{', '.join(chosen)} and the authority are cut off ({ways}) for {cut_ms} ms"

    def _cut_master_from_authority(self) -> str | None:
        name, cut_ms = self._cluster.master.name, self._rng.choice((4_000, 12_000, 30_000))
        self._cut(name, AUTHORITY, cut_ms)
        self._cut(AUTHORITY, name, cut_ms)
        return f"{name}, the master, and the authority are cut off from each other for {cut_ms} ms"

    def _forge_end_of_master(self) -> str | None:
        """Slaves are told that it is gone, which is not so; it hears the same of them, and the authority nothing."""
        master, cut_ms = self._cluster.master.name, self._rng.choice((4_000, 12_000, 30_000))
        network = self._cluster.network
        for slave in self._cluster.slaves:
            network.refuse(slave.name, master)
            self._later(cut_ms, partial(network.admit, slave.name, master))
        self._isolate(master, cut_ms)
        return f"a firewall says that {master}, the master, is gone, and keeps it from the authority for {cut_ms} ms"

    def _isolate_master(self) -> str | None:
        """It is cut from the authority and from its slaves; clients reach it. Both ends of its streams may know."""
        master = self._cluster.master.name
        cut_ms = self._rng.choice((4_000, 8_000, 12_000, 30_000))
        is_reset = self._rng.random() < 0.5
        if is_reset:
            for slave in self._cluster.slaves:
                self._cluster.network.drop_connections(master, slave.name)
        self._isolate(master, cut_ms)
        streams = "with its streams reset" if is_reset else "with its streams open"
        return f"{master}, the master, is cut off from the group and the authority for {cut_ms} ms, {streams}"

    def _lose_lonely_master(self) -> str | None:
        """The link to all slaves goes, the master goes on alone, and then goes as well: nobody else has its last."""
        master = self._lose_master_cut_from_slaves(lambda: None)
        return f"{master.name}, the master, and its slaves are cut off from each other, and it will be killed"

    def _put_back_authority_of_lonely_master(self) -> str | None:
        """The same, and as it goes somebody restores a backup of before, in which the slaves have all there is. Not in
        the second in which the record has changed: nobody but the master and the authority knows of that yet."""
        authority, version_count = self._cluster.authority, self._cluster.authority.version_count

        def put_back() -> None:
            is_known = self._cluster.timeline.now_us - authority.changed_us > HEARD_MS * US_PER_MS
            if is_known and authority.put_back(authority.version_count - version_count):
                self._cluster.authority_was_put_back()
                self._cluster.journal.note("FAULT", f"the authority is put back to {authority.record}")
                self._later(self._rng.choice((15_000, 40_000)), self._cluster.seed_authority)

        master = self._lose_master_cut_from_slaves(put_back)
        return f"{master.name}, the master, will go on alone, be killed, and the authority be put back to now"

    def _lose_master_cut_from_slaves(self, then: Callable[[], None]) -> Member:
        master = self._cluster.master
        cut_ms = self._rng.choice((12_000, 30_000))
        for slave in self._cluster.slaves:
            self._cut(master.name, slave.name, cut_ms)
            self._cut(slave.name, master.name, cut_ms)

        def lose() -> None:
            if not self._stopped:
                self._cluster.journal.note("FAULT", f"kill {master.name}")
                master.kill(restart_after_ms=self._rng.choice((8_000, 20_000)))
                then()

        self._later(self._rng.randint(2_000, 8_000), lose)
        return master

    def _lose_master_beside_forgetful_slave(self) -> str | None:
        """A slave loses what it had not synced, and before the master can send it again that is gone for a while."""
        slave = self._rng.choice(self._cluster.slaves)
        if not self._cluster.may_lose_power(slave):
            return None
        slave.lose_power(restart_after_ms=50)
        master = self._cluster.master
        if self._rng.random() < 0.5:
            master.kill(restart_after_ms=20_000)
        else:
            self._isolate(master.name, 20_000)
        return f"power loss of {slave.name}, and {master.name}, the master, is away for 20000 ms"

    def _clog(self) -> str | None:
        """Packets of full size are dropped on one way."""
        source, target = self._rng.sample([member.name for member in self._cluster.members], 2)
        clog_ms = self._cut_ms()
        self._clog_for(source, target, clog_ms)
        return f"streams from {source} to {target} stand still for {clog_ms} ms"

    def _clog_for(self, source: str, target: str, clog_ms: int) -> None:
        self._cluster.network.clog(source, target)
        self._later(clog_ms, lambda: self._cluster.network.unclog(source, target))

    def _isolate_after_growth(self) -> str | None:
        """The same at the moment at which the in-sync set has grown, and its master has not heard so. Who joins may
        have been reached by calls alone for a while."""
        slave = self._rng.choice(self._cluster.slaves)
        slave.kill(restart_after_ms=3_000)
        if self._rng.random() < 0.5:
            self._clog_for(self._cluster.master.name, slave.name, 8_000)

        def grown(record: GroupRecord) -> None:
            if not self._stopped:
                name = next(each.name for each in self._cluster.members if each.broker_id == record.master.broker_id)
                self._cluster.journal.note("FAULT", f"{name}, the master, is cut off as its set has grown")
                self._isolate(name, 12_000)

        self._cluster.authority.when_grown = grown
        return "the master will be cut off when the in-sync set grows"

    def _isolate(self, name: str, cut_ms: int) -> None:
        for other in (AUTHORITY, *(member.name for member in self._cluster.members if member.name != name)):
            self._cut(name, other, cut_ms)
            self._cut(other, name, cut_ms)

    def _stop_authority(self) -> str | None:
        away_ms = self._rng.choice((1_000, 10_000, 60_000))
        self._cluster.stop_authority(for_ms=away_ms)
        return f"the authority is away for {away_ms} ms"

    def _fill_authority(self) -> str | None:
        """Its disk is full: who asks is answered, and nothing is written."""
        authority, full_ms = self._cluster.authority, self._rng.choice((1_000, 10_000, 30_000))
        authority.takes_writes = False

        def make_room() -> None:
            authority.takes_writes = True

        self._later(full_ms, make_room)
        return f"the disk of the authority is full for {full_ms} ms"

    def _age_authority(self) -> str | None:
        """Some of its answers are of a while ago; what is written is compared with what there is."""
        authority, aged_ms = self._cluster.authority, self._rng.choice((3_000, 10_000, 30_000))
        authority.old_share = self._rng.choice((0.1, 0.5, 0.9))

        def hear_all() -> None:
            authority.old_share = 0.0

        self._later(aged_ms, hear_all)
        return f"the authority gives old answers for {aged_ms} ms"

    def _put_back_authority(self) -> str | None:
        """A backup is restored; some time later an operator sees the alarm."""
        if not self._cluster.authority.put_back(self._rng.choice((1, 2, 5, 20))):
            return None
        self._cluster.authority_was_put_back()
        self._later(self._rng.choice((3_000, 15_000, 40_000)), self._cluster.seed_authority)
        return f"the authority is put back to {self._cluster.authority.record}"

    def _pause_master(self) -> str | None:
        member = self._cluster.master
        duration_ms = self._rng.choice((2_000, 5_000, 5_600, 6_500, 9_000, 20_000))
        member.pause(duration_ms)
        return f"{member.name}, the master, is paused for {duration_ms} ms"

    def _kill_master(self) -> str | None:
        member = self._cluster.master
        if not member.running:
            return None
        member.kill(restart_after_ms=self._down_ms())
        return f"kill {member.name}, the master"

    def _slow_disk(self) -> str | None:
        machine = self._rng.choice(self._cluster.members).machine
        machine.blocking_ms = SLOW_FLUSH_MS

        def recover() -> None:
            machine.blocking_ms = NORMAL_FLUSH_MS

        self._later(self._rng.randint(1_000, 15_000), recover)
        return f"slow disk at {machine.name}"

    def _partition(self) -> str | None:
        first, second = self._two_hosts()
        self._cut(first, second, self._cut_ms())
        self._cut(second, first, self._cut_ms())
        return f"{first} and {second} are cut off from each other"

    def _cut_one_way(self) -> str | None:
        source, target = self._two_hosts()
        self._cut(source, target, self._cut_ms())
        return f"nothing from {source} reaches {target}"

    def _drop_connections(self) -> str | None:
        first, second = self._two_hosts()
        self._cluster.network.drop_connections(first, second)
        return f"connections between {first} and {second} are reset"

    def _slow_network(self) -> str | None:
        network = self._cluster.network
        network.delay_us_range = SLOW_DELAY_US

        def recover() -> None:
            network.delay_us_range = NORMAL_DELAY_US

        self._later(self._rng.randint(1_000, 10_000), recover)
        return "slow network"

    def _kill_name_server(self) -> str | None:
        self._cluster.restart_name_server(after_ms=self._down_ms())
        return "kill name server"

    def _start_late(self) -> str | None:
        """Somebody is away for long: a slave or the NameServer."""
        away_ms = self._rng.choice((30_000, 60_000, 90_000))
        if self._rng.random() < 0.5:
            self._cluster.restart_name_server(after_ms=away_ms)
            return f"no name server for {away_ms} ms"
        slave = self._rng.choice(self._cluster.members if self._cluster.settings.failover else self._cluster.slaves)
        slave.kill(restart_after_ms=away_ms)
        return f"{slave.name} is away for {away_ms} ms"

    # Choices

    def _running_member(self) -> Member | None:
        running = [member for member in self._cluster.members if member.running]
        return self._rng.choice(running) if running else None

    def _two_hosts(self) -> tuple[str, str]:
        names = [member.name for member in self._cluster.members]
        others = [NAME_SERVER, AUTHORITY] if self._cluster.settings.failover else [NAME_SERVER]
        first, second = self._rng.sample([*names, *others], 2)
        return first, second

    def _down_ms(self) -> int:
        return self._rng.choice((50, 400, 2_000, 8_000, 20_000))

    def _cut_ms(self) -> int:
        return self._rng.choice((100, 1_000, 4_000, 12_000, 30_000))

    def _cut(self, source: str, target: str, cut_ms: int) -> None:
        self._cluster.network.cut(source, target)
        self._later(cut_ms, lambda: self._cluster.network.heal(source, target))

    def _later(self, delay_ms: int, end: Callable[[], None]) -> None:
        self._cluster.timeline.after(delay_ms * US_PER_MS, end)


def _ends_within_record(store: MessageStore) -> bool:
    end_offset = store.end_offset
    return store.dispatched_offset < end_offset and last_boundary(store, end_offset) < end_offset


_Kinds: TypeAlias = dict[Callable[[], str | None], int]


def _some_of(kinds: _Kinds, rng: random.Random) -> _Kinds:
    """Some that come often, and in half of the runs nothing else does."""
    often = rng.sample([kind for kind, weight in kinds.items() if weight], rng.choice((2, 3, 4, 6, 8)))
    others = dict.fromkeys(kinds, 0) if rng.random() < 0.5 else kinds
    return others | {kind: rng.choice((20, 60, 200)) for kind in often}
