"""What can happen to the processes and disks of a broker group: a table of faults, each played on a `BrokerGroup`.

A fault begins with a healthy group under load, and has started everything again when it returns. Afterwards nothing
that was acknowledged may be missing: `BrokerGroup.judge`.
"""

from __future__ import annotations

import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import grpc

from support.cluster_processes import ServiceProcess, wait_until
from support.group_under_fault import BrokerGroup, Verdict
from tandemmq.core.message.record import RecordFound, scan_record

PAGE_BYTES: Final = 4096
# Of a body in a record of a host with an IPv4 address.
BODY_START: Final = 88
# A disk or NameServer that is late comes this much later, and a very late one so much.
LATE_S, VERY_LATE_S = 6.0, 20.0
SWAP_LIMIT_S: Final = 60.0
HEARTBEATS_S: Final = 2.5
# How long two masters go on side by side, and how long one without anybody to ask is watched.
BESIDE_S: Final = 4.0
ALONE_S: Final = 12.0
# A master with everything on its own disk has this long to find that out.
START_ALONE_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table."""

    name: str
    play: Callable[[BrokerGroup, random.Random], None] = field(repr=False)
    sync: bool = True
    slaves: int = 1
    name_servers: int = 1
    name_servers_have_disks: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    # False: too long for a test; `make loss-rounds` plays it.
    is_short: bool = True
    # True: the next round needs other processes than this one leaves behind.
    wears_out: bool = False

    @property
    def kind(self) -> object:
        """Equal for faults that the same group can go through one after the other."""
        processes = (self.slaves, self.name_servers, self.name_servers_have_disks, not self.sync)
        return (*processes, *sorted(self.settings.items()))

    def group(self, folder: Path) -> BrokerGroup:
        """A new group to play it on."""
        return BrokerGroup(
            folder,
            sync=self.sync,
            slaves=self.slaves,
            name_servers=self.name_servers,
            name_servers_have_disks=self.name_servers_have_disks,
            settings=self.settings,
        )


def play_round(fault: Fault, group: BrokerGroup, *, seed: int, messages: int = 200) -> Verdict:
    """Traffic, the fault, and what is then the case."""
    group.begin(messages=messages)
    try:
        fault.play(group, random.Random(seed))
    except (AssertionError, grpc.RpcError, OSError) as error:
        group.problems.append(f"{fault.name}: {error}")
    return group.judge()


# A master that comes back with an empty disk


def _master_empty(
    group: BrokerGroup, _: random.Random, *, slave_late_s: float | None = None, name_servers_late: int = 0
) -> None:
    group.rest()
    late_servers = group.cluster.name_servers[:name_servers_late]
    group.kill(group.master, *late_servers, *(group.slaves if slave_late_s is not None else ()))
    group.wipe(group.master)
    group.master.start(wait=False)
    _come_late(group, slave_late_s, late_servers)


def _come_late(group: BrokerGroup, slave_late_s: float | None, servers: list[ServiceProcess]) -> None:
    # Late is what comes so long after the master has looked at its disk, however busy the machine is.
    _wait_recovered(group.master)
    if servers:
        time.sleep(LATE_S)
        for server in servers:
            server.start()
    if slave_late_s is not None:
        time.sleep(slave_late_s)
        for slave in group.slaves:
            slave.start()


def _wait_recovered(member: ServiceProcess) -> None:
    def recovered() -> bool:
        has_ended = member.process is not None and member.process.poll() is not None
        return has_ended or _has_said(member, "store_recovered")

    wait_until(recovered, limit_s=member.start_limit_s, what=f"{member.name} has recovered its store")


def _master_alone(group: BrokerGroup, _: random.Random) -> None:
    """Nobody in reach but a NameServer that remembers: it has to wait, and to say so, and not to serve."""
    group.rest()
    group.kill(group.master, *group.slaves)
    group.wipe(group.master)
    _waits_alone(group)


def _older_copy_alone(group: BrokerGroup, _: random.Random) -> None:
    copy = group.copy_of(group.master)
    _grow_older(group)
    group.rest()
    group.kill(group.master, *group.slaves)
    group.put_back(copy, group.master)
    _waits_alone(group)


def _waits_alone(group: BrokerGroup) -> None:
    group.stop_sending()
    group.master.start(wait=False)
    _wait_recovered(group.master)
    deadline = time.monotonic() + ALONE_S
    while time.monotonic() < deadline:
        if group.is_ready(group.master):
            group.problems.append("a master that lacks something was ready with nobody in reach")
            break
        time.sleep(0.2)
    said = {event.get("event") for event in group.master.events()}
    if not {"master_waits", "name_server_registered"} <= said:
        group.problems.append("it did not say that it waits, or the NameServer does not know")
    for slave in group.slaves:
        slave.start()


def _killed_while_it_recovers(group: BrokerGroup, chance: random.Random, *, slave_too: bool) -> None:
    """Killed again at some step of its recovery, and with it perhaps the slave that it fetches from."""
    group.rest()
    group.kill(group.master)
    group.wipe(group.master)
    group.master.start(wait=False)
    step = chance.choice(("fetching_log", "log_fetched", "metadata_recovered", "epoch_begun"))
    wait_until(partial(_has_said, group.master, step), limit_s=group.master.start_limit_s, what=f"{step}")
    group.kill(group.master)
    if slave_too:
        group.kill(*group.slaves)
        for slave in group.slaves:
            slave.start(wait=False)
    group.master.start(wait=False)


def _has_said(member: ServiceProcess, name: str) -> bool:
    return any(event.get("event") == name for event in member.events())


def _name_servers_anew(group: BrokerGroup, _: random.Random) -> None:
    """The NameServers are started again as well, and only their files know that there was a group."""
    group.rest()
    group.kill(group.master, *group.slaves, *group.cluster.name_servers)
    group.wipe(group.master)
    for server in group.cluster.name_servers:
        server.start()
    group.master.start(wait=False)
    _come_late(group, VERY_LATE_S, [])


def _slave_empty(group: BrokerGroup, _: random.Random, *, then_master: bool = False) -> None:
    slave = group.slaves[0]
    group.kill(slave)
    group.wipe(slave)
    slave.start()
    if then_master:
        # One member after the other, as an operator replaces machines.
        group.stop_sending()
        group.wait_settled()
        group.kill(group.master)
        group.wipe(group.master)
        group.master.start(wait=False)


def _slave_empty_both_killed(group: BrokerGroup, _: random.Random) -> None:
    slave = group.slaves[0]
    group.kill(group.master, slave)
    group.wipe(slave)
    for member in (slave, group.master):
        member.start(wait=False)


# A master whose disk was rolled back


def _grow_older(group: BrokerGroup) -> None:
    """What NameServers remember of a disk is as old as its last heartbeat: a copy younger than that looks like it."""
    group.wait_acknowledged(100)
    time.sleep(HEARTBEATS_S)


def _older_copy(group: BrokerGroup, _: random.Random, *, live: bool, slave_late_s: float | None) -> None:
    if live:
        copy = group.copy_of(group.master)
    else:
        group.master.stop()
        copy = group.copy_of(group.master)
        group.master.start()
    _grow_older(group)
    group.rest()
    if live:
        group.kill(group.master)
    else:
        group.master.stop()
    if slave_late_s is not None:
        group.kill(*group.slaves)
    group.put_back(copy, group.master)
    group.master.start(wait=False)
    _come_late(group, slave_late_s, [])


# Damage below the end of a killed master's log


def _damaged_tail(
    group: BrokerGroup, chance: random.Random, *, damage: Callable[[Path, int], None], slave_late_s: float | None
) -> None:
    group.kill(group.master, *(group.slaves if slave_late_s is not None else ()))
    folder = group.store(group.master) / "commitlog"
    records = list(_records(folder))
    # One of the last forty that were acknowledged.
    acknowledged = [place for place in records if place.message_id in group.acknowledged]
    place = chance.choice(acknowledged[-40:])
    # Its size, magic number, checksum or body: what a record's checksum tells. The rest is the audit's to find.
    damage(folder / place.file, place.start + chance.choice((*range(12), *range(BODY_START, BODY_START + 300))))
    group.master.start(wait=False)
    _come_late(group, slave_late_s, [])


def _flip_byte(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x5A]))


def _zero_page(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position - position % PAGE_BYTES)
        file.write(bytes(PAGE_BYTES))


@dataclass(frozen=True, slots=True)
class _Place:
    file: str
    # Within the file.
    start: int
    size: int
    message_id: str


def _records(folder: Path) -> Iterator[_Place]:
    for path in sorted(path for path in folder.iterdir() if path.name.isdigit()):
        data, position = path.read_bytes(), 0
        while isinstance(
            found := scan_record(data, position, len(data), physical_offset=int(path.name) + position), RecordFound
        ):
            properties = bytes(found.properties).decode(errors="replace")
            message_id = properties.partition("UNIQ_KEY\x01")[2].partition("\x02")[0]
            yield _Place(path.name, position, found.size, message_id)
            position += found.size


def _lose_pages(store: Path, offset: int) -> None:
    """What a power cut leaves: the log ends at `offset`, and the machine has been started anew."""
    for path in sorted((store / "commitlog").iterdir()):
        start, size = int(path.name), path.stat().st_size
        if start + size > offset:
            kept = max(0, offset - start)
            with path.open("r+b") as file:
                file.truncate(kept)
                file.truncate(size)
    (store / "boot").write_bytes(b"the machine before")


def _power_lost(group: BrokerGroup, chance: random.Random, *, shorter_first: bool) -> None:
    """Two slaves, of which one has been away for a while; then the master's machine loses power, and its tail."""
    shorter, longer = group.slaves
    if chance.random() < 0.5:
        shorter, longer = longer, shorter
    shorter_late, longer_late = (0.0, LATE_S) if shorter_first else (LATE_S, 0.0)
    group.kill(shorter)
    held = _end(group.store(shorter))
    group.wait_acknowledged(100)
    group.kill(group.master, longer)
    end = _end(group.store(group.master))
    assert end > held, "the slave that stayed has more"
    _lose_pages(group.store(group.master), chance.randrange(held, end))
    group.master.start(wait=False)
    _wait_recovered(group.master)
    for slave, late_s in sorted(((shorter, shorter_late), (longer, longer_late)), key=lambda pair: pair[1]):
        time.sleep(late_s)
        slave.start()


def _end(store: Path) -> int:
    """End of a log that nobody writes."""
    last = max(_records(store / "commitlog"), key=lambda place: (place.file, place.start))
    return int(last.file) + last.start + last.size


# Two processes with one number


def _two_masters(group: BrokerGroup, _: random.Random, *, copied: bool, first_stays: bool) -> None:
    copy = group.copy_of(group.master) if copied else None
    group.wait_acknowledged(100)
    first, second = group.master, group.second_master(copy)
    second.start(wait=False)
    _wait_recovered(second)
    deadline = time.monotonic() + BESIDE_S
    sender = None
    while time.monotonic() < deadline:
        if sender is None and _has_said(second, "broker_serving"):
            second.wait_serving()
            sender = group.start_sending(second)
        time.sleep(0.1)
    if not group.is_sync:
        # What one of two ASYNC_MASTERs acknowledges is nowhere else at the moment of its end.
        group.rest()
    if first_stays:
        second.kill()
        return
    group.kill(first)
    group.members[0] = second
    if second.process is not None and second.process.poll() is not None:
        # It has refused to run beside the other; the operator starts it again.
        second.start(wait=False)
    second.wait_serving()
    if sender is None:
        group.start_sending(second)


# Everybody at once, and disks that operators touched


def _both_killed(group: BrokerGroup, _: random.Random, *, master_first: bool, late_s: float = 2.0) -> None:
    group.kill(group.master, *group.slaves)
    order = [group.master, *group.slaves]
    for place, member in enumerate(order if master_first else order[::-1]):
        time.sleep(late_s if place else 0)
        member.start(wait=False)
    for member in order:
        member.wait_serving()


def _one_killed(group: BrokerGroup, _: random.Random, *, broker_id: int) -> None:
    killed = group.members[broker_id]
    group.kill(killed)
    if killed is group.master:
        # The bytes a dead master had handed to the kernel reach its slave soon; nobody else could bring them now.
        at_death = group.acknowledged
        with suppress(AssertionError):
            wait_until(lambda: not at_death - group.logged(group.slaves[0]), limit_s=3, what="the slave has it all")
        if missing := len(at_death - group.logged(group.slaves[0])):
            group.problems.append(f"{missing} acknowledged messages were on no other disk when the master died")
    killed.start()


def _killed_alone(group: BrokerGroup, _: random.Random) -> None:
    """A master whose log is whole, its slave away: nobody can have more, and there is nothing to wait for."""
    group.rest()
    group.kill(*group.slaves, group.master)
    group.master.start()
    wait_until(lambda: group.is_ready(group.master), limit_s=START_ALONE_LIMIT_S, what="it serves without its slave")
    for slave in group.slaves:
        slave.start()


def _swapped(group: BrokerGroup, _: random.Random) -> None:
    """The master's folder given to the slave and the other way round; put right again if they refuse to run so."""
    master, [slave] = group.master, group.slaves
    group.rest()
    group.kill(master, slave)
    _swap(group)
    for member in (master, slave):
        member.start(wait=False)
    try:
        wait_until(lambda: group.is_settled() or not _both_run(group), limit_s=SWAP_LIMIT_S, what="they run, or refuse")
    except AssertionError:
        group.problems.append("swapped disks: neither settled nor refused")
    if not _both_run(group):
        group.kill(master, slave)
        _swap(group)
        for member in (master, slave):
            member.start(wait=False)


def _both_run(group: BrokerGroup) -> bool:
    return all(member.process is not None and member.process.poll() is None for member in group.members.values())


def _swap(group: BrokerGroup) -> None:
    one, other = group.store(group.members[0]), group.store(group.members[1])
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def _config_damaged(group: BrokerGroup, _: random.Random, *, names: tuple[str, ...], remove: bool) -> None:
    """Files of the master's configuration with nothing in them, or not there, and their copies likewise."""
    group.rest()
    group.kill(group.master)
    for name, end in itertools.product(names, ("", ".bak")):
        path = group.store(group.master) / "config" / f"{name}{end}"
        if remove:
            path.unlink(missing_ok=True)
        elif path.exists():
            path.write_bytes(b"")
    group.master.start(wait=False)


def _config_folder_gone(group: BrokerGroup, _: random.Random) -> None:
    group.rest()
    group.kill(group.master)
    shutil.rmtree(group.store(group.master) / "config")
    group.master.start(wait=False)


_TABLES: Final = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")


def _faults() -> Iterator[Fault]:
    for sync in (True, False):
        mode = "sync" if sync else "async"
        alike = partial(Fault, sync=sync)
        yield alike(f"{mode}: master's disk empty", _master_empty)
        yield alike(f"{mode}: master's disk empty, slave 6 s late", partial(_master_empty, slave_late_s=LATE_S))
        yield alike(
            f"{mode}: master's disk empty, slave 20 s late",
            partial(_master_empty, slave_late_s=VERY_LATE_S),
            is_short=False,
        )
        for count, words in ((1, "one of two NameServers"), (2, "both NameServers")):
            yield alike(
                f"{mode}: master's disk empty, {words} 6 s late",
                partial(_master_empty, name_servers_late=count),
                name_servers=2,
            )
        for slave_too, words in ((False, "killed again"), (True, "both killed")):
            yield alike(
                f"{mode}: master's disk empty, {words} while it recovers",
                partial(_killed_while_it_recovers, slave_too=slave_too),
            )
        yield alike(f"{mode}: master's disk empty, nobody in reach", _master_alone)
        yield alike(f"{mode}: a live copy of the master's disk, nobody in reach", _older_copy_alone)
        yield alike(f"{mode}: master killed, slave away", _killed_alone)
        for live, words in ((False, "an older copy after a clean stop"), (True, "a live copy")):
            for late_s, when in ((None, ""), (LATE_S, ", slave 6 s late")):
                yield alike(
                    f"{mode}: {words} of the master's disk{when}", partial(_older_copy, live=live, slave_late_s=late_s)
                )
        for master_first, words in ((True, "master"), (False, "slave")):
            yield alike(f"{mode}: both killed at once, {words} first", partial(_both_killed, master_first=master_first))
        yield alike(f"{mode}: disks swapped", _swapped)
        for copied, disk in ((False, "an empty disk"), (True, "an older copy")):
            yield alike(
                f"{mode}: a second master with {disk}, first one stays",
                partial(_two_masters, copied=copied, first_stays=True),
            )
            yield alike(
                f"{mode}: a second master with {disk}, first one goes",
                partial(_two_masters, copied=copied, first_stays=False),
                wears_out=True,
            )
    for damage, words in ((_flip_byte, "a flipped byte"), (_zero_page, "a zero page")):
        for late_s, when in ((None, ""), (LATE_S, ", slave 6 s late")):
            yield Fault(
                f"sync: {words} in the master's tail{when}",
                partial(_damaged_tail, damage=damage, slave_late_s=late_s),
                # A start walks over what no checkpoint vouches for; damage before it is the audit's to find.
                settings={"flushIntervalConsumeQueue": "60000"},
            )
    for shorter_first, words in ((True, "shorter"), (False, "longer")):
        yield Fault(
            f"sync: two slaves, master's power lost, {words} slave first",
            partial(_power_lost, shorter_first=shorter_first),
            slaves=2,
            # Unflushed until a flush is due.
            settings={"totalReplicas": "2", "flushIntervalCommitLog": "60000"},
        )
    yield Fault(
        "sync: master's disk empty, NameServers started anew, slave 20 s late",
        _name_servers_anew,
        name_servers=2,
        name_servers_have_disks=True,
        is_short=False,
    )
    yield Fault("sync: slave's disk empty", _slave_empty)
    yield Fault("sync: slave's disk empty, then the master's", partial(_slave_empty, then_master=True))
    yield Fault("sync: slave's disk empty, both killed", _slave_empty_both_killed)
    yield Fault("sync: master's tables of zero length", partial(_config_damaged, names=_TABLES, remove=False))
    yield Fault("sync: master's topics.json gone", partial(_config_damaged, names=("topics.json",), remove=True))
    yield Fault("sync: master's config folder gone", _config_folder_gone)
    yield Fault("sync: master killed", partial(_one_killed, broker_id=0))
    yield Fault("sync: slave killed", partial(_one_killed, broker_id=1))


FAULTS: Final = tuple(_faults())
