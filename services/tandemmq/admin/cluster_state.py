"""What a cluster looked like at one moment, and what of it an operator should care about.

Values only: `cluster_reader` fills them from the planes, the console and the CLI show them, and `diagnose` is the one
health model behind both and behind the exit code of `tandemmq status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final

from tandemmq.core.replication.mastership import PUT_BACK, UNREADABLE
from tandemmq.core.routing.values import MASTER_ID
from tandemmq.core.storage.put_result import THE_DISK_IS
from tandemmq.service.texts import bytes_text, counted

SILENT_MS_MAX: Final = 3_500
"""The two machines of a replication link hear from each other once in 2 s; one answer may be late."""
_KEPT_REPAIRS_TOLD_BYTES: Final = 1 << 30
_DISK_MARGINS: Final = 2.0


@dataclass(frozen=True, slots=True)
class NameServerState:
    """One NameServer as asked for its routes."""

    address: str
    # None when it answered.
    error: str | None
    # Grows with each change of its table; not comparable between NameServers.
    revision: int
    # Live brokers it knows, as `name:id`.
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlaveState:
    """A slave's replication connection, as its master sees it."""

    peer: str
    # -1 until the slave has had its log compared with the master's.
    broker_id: int
    acked_offset: int
    lag_bytes: int
    in_sync: bool
    verified: bool
    # Age of the oldest byte it has not reported; 0 if it holds all.
    lag_seconds: float = 0.0
    # Of this connection: how long it has lasted, and what was sent over it.
    connected_seconds: int = 0
    sent_bytes: int = 0
    # Since anything came from the slave's machine; None: not known.
    silent_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SlaveDeparture:
    """A replication connection that ended, as the master saw it."""

    peer: str
    # -1 if the slave never proved one.
    broker_id: int
    wall_clock_ms: int
    reason: str
    # How far it was behind.
    lag_bytes: int


@dataclass(frozen=True, slots=True)
class MasterLinkState:
    """A master, as its slave sees it."""

    address: str
    # connecting, verifying, transfer, resynchronising, waiting or refusing.
    state: str
    master_end_offset: int
    lag_bytes: int
    # Since anything came from the master's machine; None: not connected, or not known.
    silent_ms: int | None = None
    # Why the master that is there is not followed, and what to do; empty: it is, or may be.
    problem: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class StartWait:
    """Why a master that starts does not serve yet."""

    reason: str
    waited_seconds: int
    # Disks that may hold more than the best log in reach, as name:id of their brokers.
    missing: tuple[str, ...]
    # How much more they are known to hold; they may hold more than is known.
    lost_bytes: int
    # An operator may give up what it waits for.
    acceptable: bool
    # It will not end by itself.
    needs_operator: bool


@dataclass(frozen=True, slots=True)
class DiskState:
    """Room on the disk of a store. Ratios from 0 to 1."""

    path: str
    total_bytes: int
    free_bytes: int
    used_ratio: float
    # Above it sends are refused.
    warning_ratio: float
    # What the next file of the CommitLog takes; 0: not known.
    next_file_bytes: int = 0
    # What repairs have overwritten and kept: files, and bytes.
    kept_repairs_count: int = 0
    kept_repairs_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """A master refuses sends, or will when the file it writes is full."""
        return self.used_ratio > self.warning_ratio or self.free_bytes < self.next_file_bytes

    @property
    def room(self) -> str:
        """In words."""
        free = f"{bytes_text(self.free_bytes)} of {bytes_text(self.total_bytes)} free"
        return f"{self.used_ratio:.0%} used, {free} at {self.path}"

    @property
    def is_nearly_full(self) -> bool:
        """The room is less than twice what is kept free by refusing sends."""
        return not self.is_full and self.used_ratio >= 1.0 - _DISK_MARGINS * (1.0 - self.warning_ratio)


@dataclass(frozen=True, slots=True)
class LatencyCounts:
    """A histogram since the process started; the difference of two says what happened in between."""

    # Upper bounds of the buckets in seconds, rising.
    bounds_s: tuple[float, ...] = ()
    # One for each bucket, and one more for what is above the last bound.
    counts: tuple[int, ...] = ()
    sum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FailoverReplica:
    """A member of a group that fails over, and its disk."""

    broker_id: int
    disk_id: str


@dataclass(frozen=True, slots=True)
class ChangeOfMaster:
    """A change of master that a member's process took part in."""

    epoch: int
    # It became master; False: slave.
    is_master: bool
    reason: str
    # By its wall clock.
    time_ms: int
    # From the moment that it knew until it served.
    took_ms: int


@dataclass(frozen=True, slots=True)
class FailoverState:
    """What a member of a group that fails over knows of its group's record."""

    # 0: the group has no record, or it was not heard yet.
    epoch: int
    # None without a record.
    master: FailoverReplica | None
    # They hold all that is acknowledged.
    in_sync: Sequence[FailoverReplica]
    # Why this epoch began, and when by its master's wall clock; -1: not known.
    reason: str
    changed_ms: int
    # It is the master by the record, and its lease runs.
    acts: bool
    # It may claim without asking anybody.
    is_electable: bool
    # Why nothing can be done now; empty: nothing is wrong.
    problem: str
    # As it is configured.
    authority: str
    authority_away: bool = False
    lease_ms: int = 0
    # Of its process, newest last.
    changes: Sequence[ChangeOfMaster] = ()

    @property
    def in_sync_ids(self) -> tuple[int, ...]:
        """Their numbers in the group."""
        return tuple(replica.broker_id for replica in self.in_sync)


@dataclass(frozen=True, slots=True)
class DelayedState:
    """DELAY messages of a broker group, as one broker knows them."""

    # Neither delivered nor recalled.
    waiting_count: int = 0
    # None is due before, in ms since 1970; 0: none waits.
    next_due_ms: int = 0
    # How long the first that is due has not been delivered.
    overdue_ms: int = 0
    # Since the start of the process.
    delivered_count: int = 0
    recalled_count: int = 0


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker's own answer. Offsets are physical, in bytes; ranges are half-open."""

    role: str
    flush_disk_type: str
    version: str
    uptime_seconds: int
    min_offset: int
    end_offset: int
    flushed_offset: int
    dispatched_offset: int
    slaves: tuple[SlaveState, ...]
    master_link: MasterLinkState | None
    # Messages put since the start, by put status.
    put_counts: dict[str, int]
    # Replication connections refused since the start, by reason.
    refused_counts: dict[str, int]
    waiting_send_count: int
    resident_bytes: int
    client_count: int
    # Empty when it takes writes.
    write_refusal: str
    kept_tails: tuple[str, ...]
    # Slaves that must hold a message before its send is acknowledged.
    needed_slave_count: int
    # What the client plane's limits refused since the start, by limit; and "connections_accepted".
    client_plane_counts: dict[str, int]
    client_connection_count: int
    # Turns of the event loop above 20 ms since the start, and the longest of them.
    loop_stall_count: int
    longest_loop_stall_ms: int
    # None: not looked at yet.
    disk: DiskState | None = None
    # Messages and their bytes stored for clients, and messages given to them, since the start.
    messages_in_count: int = 0
    messages_out_count: int = 0
    bytes_in_count: int = 0
    # From append to acknowledgement by enough slaves; of masters.
    ack_latency: LatencyCounts = LatencyCounts()
    # From a send's arrival to its answer.
    send_latency: LatencyCounts = LatencyCounts()
    # Slaves that went away lately, newest last; of masters.
    slave_departures: tuple[SlaveDeparture, ...] = ()
    # With those of the system.
    topic_count: int = 0
    group_count: int = 0
    # Greatest epoch of its history, id of its disk, and the disk's starts.
    epoch: int = 0
    disk_id: str = ""
    run: int = 0
    # What a starting master waits for.
    start_wait: StartWait | None = None
    # What the broker itself says is to be mended, and how.
    problems: tuple[tuple[str, str], ...] = ()
    # Of a group that fails over.
    failover: FailoverState | None = None
    delayed: DelayedState = DelayedState()

    @property
    def role_in_words(self) -> str:
        """With what it is up to, if it is not at work."""
        if self.start_wait is not None:
            return f"{self.role}, waiting"
        if self.master_link is not None and self.master_link.state == "refusing":
            return f"{self.role}, refusing"
        return self.role

    @property
    def put_count(self) -> int:
        """Messages put since the start, whatever came of them."""
        return sum(self.put_counts.values())


@dataclass(frozen=True, slots=True)
class ExpectedBroker:
    """A broker that should be there, known from the cluster's own files rather than from a NameServer."""

    cluster: str
    broker_name: str
    broker_id: int
    client_endpoint: str
    metadata_endpoint: str
    ha_endpoint: str


@dataclass(frozen=True, slots=True)
class BrokerState(ExpectedBroker):
    """One broker: where it is, and its answer if it gave one."""

    # True when at least one NameServer knows it.
    registered: bool
    status: BrokerStatus | None
    # Why there is no status.
    error: str | None
    # Whether NameServers name it as its group's master. None: they know neither it nor a master of its group.
    named_master: bool | None = None

    @property
    def key(self) -> str:
        """`name:id`, unique in a cluster."""
        return f"{self.broker_name}:{self.broker_id}"

    @property
    def is_master(self) -> bool:
        """True for the group's master: as NameServers say, else as it says itself, else by its id."""
        if self.named_master is not None:
            return self.named_master
        return self.status.role != "SLAVE" if self.status is not None else self.broker_id == MASTER_ID


@dataclass(frozen=True, slots=True)
class ClusterState:
    name_servers: tuple[NameServerState, ...]
    # Ordered by broker name and id.
    brokers: tuple[BrokerState, ...]

    @property
    def registrations_known(self) -> bool:
        """False when no NameServer answers: then nobody can tell who is registered."""
        return any(server.error is None for server in self.name_servers)


class Severity(StrEnum):
    """How much a finding matters."""

    # Something does not work, or one more failure would lose service or data: the cluster is degraded.
    PROBLEM = "problem"
    # Worth knowing; the cluster is healthy.
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing an operator should know: who, what, and what to do."""

    severity: Severity
    subject: str
    problem: str
    remedy: str


def diagnose(state: ClusterState) -> list[Finding]:
    """Everything noteworthy about a cluster, problems first. Empty problems mean healthy."""
    findings = [
        *_name_server_findings(state),
        *_group_findings(state),
        *(finding for broker in state.brokers for finding in _broker_findings(broker, state.registrations_known)),
    ]
    return worst_first(findings)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Problems before notes, else in their order."""
    return sorted(findings, key=lambda finding: finding.severity is Severity.NOTE)


def is_healthy(findings: Sequence[Finding]) -> bool:
    """True when nothing is worse than a note."""
    return not any(finding.severity is Severity.PROBLEM for finding in findings)


def _problem(subject: str, problem: str, remedy: str) -> Finding:
    return Finding(Severity.PROBLEM, subject, problem, remedy)


def _name_server_findings(state: ClusterState) -> Iterator[Finding]:
    answering = [server for server in state.name_servers if server.error is None]
    known = {key for server in answering for key in server.brokers}
    for server in state.name_servers:
        if server.error is not None:
            yield _problem(
                f"NameServer {server.address}",
                f"does not answer ({server.error})",
                "start it, or take it out of every namesrvAddr; the others go on without it",
            )
        elif missing := sorted(known - set(server.brokers)):
            yield _problem(
                f"NameServer {server.address}",
                f"does not know {', '.join(missing)}, which another NameServer does",
                "wait for the next registration (seconds); if it stays, check that these brokers name this NameServer",
            )
    if state.name_servers and not answering:
        yield _problem(
            "cluster",
            "no NameServer answers: clients that start now find no broker, those that run keep the routes they have",
            "start a NameServer; brokers register with it by themselves",
        )
    if answering and not state.brokers:
        yield _problem(
            "cluster",
            "no broker is registered",
            "start the brokers, and check their namesrvAddr against the addresses here",
        )


def _group_findings(state: ClusterState) -> Iterator[Finding]:
    for name in sorted({broker.broker_name for broker in state.brokers}):
        members = [broker for broker in state.brokers if broker.broker_name == name]
        if any(broker.is_master and broker.status and broker.status.start_wait for broker in members):
            continue  # That says more.
        if not any(
            broker.is_master and broker.status and (broker.registered or not state.registrations_known)
            for broker in members
        ):
            yield _problem(
                f"broker group {name}", "has no working master: it takes no messages", _election(name, members)
            )
        yield from _failover_findings(name, members)
        yield from _more_than_master(members)


def _election(name: str, members: Sequence[BrokerState]) -> str:
    """What to do for a group without a master."""
    states = [broker.status.failover for broker in members if broker.status and broker.status.failover]
    newest = max(states, key=lambda state: state.epoch, default=None)
    if newest is None:
        return "restart its master; clients use the other groups meanwhile"
    if any(state.problem.endswith(PUT_BACK) for state in states):
        return _renaming(name, members)
    if away := [state for state in states if state.authority_away]:
        return _authority_back(name, away)
    if strangers := _on_other_disks(newest, members):
        return (
            f"{', '.join(strangers)} run on other disks than those of its in-sync set: stop them, and start them with "
            "their own; if these are gone for good, name a master by tandemmq failover "
            f"{name} --to {members[0].broker_id} --unclean"
        )
    if any(state.is_electable for state in states):
        return "wait some seconds: a member of its in-sync set becomes the master when the lease of the old one is over"
    answering = {broker.broker_id for broker in members if broker.status is not None}
    if newest.in_sync and answering.issuperset(newest.in_sync_ids):
        return "wait some seconds: a member of its in-sync set hears the others, and then becomes the master"
    return (
        f"start a member of its in-sync set, {_numbers(newest.in_sync_ids)}: no other holds all that is acknowledged"
        if newest.in_sync
        else "start its home master, which has brokerId 0: it writes the group's first record"
    )


def _authority_back(name: str, away: Sequence[FailoverState]) -> str:
    """What to do about an authority that members miss, or whose record they cannot read."""
    if any(state.problem.startswith(UNREADABLE) for state in away):
        return (
            f"put back a copy of the record of {name} at {away[0].authority}; if there is none, remove it, start all "
            f"members, and name the master: tandemmq failover {name} --to N --unclean"
        )
    return "bring the authority back, or the network to it; nothing else is to be done afterwards"


def _on_other_disks(newest: FailoverState, members: Sequence[BrokerState]) -> list[str]:
    """Members whose number is in the in-sync set, and whose disk is not; none where another one of the set is there."""
    disks = {replica.broker_id: replica.disk_id for replica in newest.in_sync}
    there = {broker.broker_id: broker.status.disk_id for broker in members if broker.status is not None}
    if any(there.get(broker_id, disk_id) == disk_id for broker_id, disk_id in disks.items()):
        return []
    return [broker.key for broker in members if broker.broker_id in disks]


def _renaming(name: str, members: Sequence[BrokerState]) -> str:
    """What to do for a group whose authority has lost its newest record: members believe no older one."""
    logs = [(one.status.epoch, one.status.end_offset, -one.broker_id) for one in members if one.status is not None]
    return (
        "give the authority its newest record back; if nobody has it, start all members, and name the one with the "
        f"longest log of the newest epoch: tandemmq failover {name} --to {-max(logs)[2]} --unclean"
    )


def _failover_findings(name: str, members: Sequence[BrokerState]) -> Iterator[Finding]:
    """Of a group that fails over: the authority, and who could take over."""
    states = [(broker, broker.status.failover) for broker in members if broker.status and broker.status.failover]
    if not states:
        return
    newest = max((state for _, state in states), key=lambda state: state.epoch)
    if away := [(broker.key, state.problem) for broker, state in states if state.authority_away]:
        keys, (_, why) = ", ".join(key for key, _ in away), away[0]
        cannot = "read the record of" if why.startswith(UNREADABLE) else "reach"
        yield _problem(
            f"broker group {name}",
            f"{keys} cannot {cannot} the authority {newest.authority}: the group keeps its master while its members "
            f"reach each other, and no other can be elected ({why})",
            _authority_back(name, [state for _, state in states if state.authority_away]),
        )
    for broker, state in states:
        if state.problem and not state.authority_away:
            yield _problem(broker.key, f"fails over to nobody: {state.problem}", _election(name, members))
    if any(state.acts for _, state in states) and len(members) > 1 and len(newest.in_sync) < 2:
        yield _problem(
            f"broker group {name}",
            f"its in-sync set is {_numbers(newest.in_sync_ids)} alone: nobody could take over from the master",
            "start its slaves, or wait until they have caught up: `tandemmq ha status`",
        )


def _numbers(broker_ids: Iterable[int]) -> str:
    return ", ".join(f"broker {broker_id}" for broker_id in sorted(broker_ids)) or "nobody"


def _more_than_master(members: Sequence[BrokerState]) -> Iterator[Finding]:
    """What a slave has and its master, which serves, has not: a log that fell back, topics and groups that went."""
    master = next((broker for broker in members if broker.is_master), None)
    if master is None or master.status is None or master.status.start_wait is not None:
        return
    theirs = master.status
    for broker in members:
        status = broker.status
        if broker.is_master or status is None:
            continue
        behind = status.end_offset - theirs.end_offset
        if behind > 0 and not _is_behind_only_in_time(status):
            yield _problem(
                master.key,
                f"ends at {theirs.end_offset:,}, {behind:,} bytes before its slave {broker.key}",
                "restart this master: it asks its slaves before it serves, and fetches what it lacks; do not clear the "
                "slave's disk",
            )
        for what, ours, count in (
            ("topics", status.topic_count, theirs.topic_count),
            ("consumer groups", status.group_count, theirs.group_count),
        ):
            if ours > count and not _is_behind_only_in_time(status):
                yield _problem(
                    master.key,
                    f"has {count} {what}, its slave {broker.key} has {ours}",
                    "compare the two with `tandemmq topic list`; a master that restarts takes over what its slave has",
                )


def _is_behind_only_in_time(slave: BrokerStatus) -> bool:
    """It follows: the two were read at different moments, and are the same a moment later."""
    return slave.master_link is not None and slave.master_link.state == "transfer"


def _broker_findings(broker: BrokerState, registrations_known: bool) -> Iterator[Finding]:
    if broker.status is None:
        yield _problem(
            broker.key,
            f"does not answer at {broker.metadata_endpoint} ({broker.error})",
            "see whether its process runs and what the end of its log says",
        )
        return
    status = broker.status
    if not broker.registered and registrations_known:
        yield _problem(
            broker.key, "is registered with no NameServer: clients do not find it", "check its namesrvAddr and its log"
        )
    refusal = status.write_refusal if broker.is_master else ""  # A slave refuses writes by its nature.
    for problem, remedy in status.problems:
        # For whom a full disk keeps files is said once.
        if problem != refusal:
            yield _problem(broker.key, problem, remedy)
    if status.start_wait is not None:
        # It serves nobody and has no slave yet, because it waits.
        yield _wait_finding(broker, status.start_wait)
        return
    no_room = disk_finding(broker)
    if refusal.startswith(THE_DISK_IS) and status.disk is not None and no_room is not None:
        yield _problem(broker.key, f"refuses writes: {refusal}; {status.disk.room}; reads go on", no_room.remedy)
    elif refusal:
        yield _problem(broker.key, f"refuses writes: {refusal}", "remove the cause named here; reads go on")
    elif no_room is not None and not _says_that_disk_is_full(status):
        yield no_room
    yield from _slaves_of(broker, status)
    if status.master_link is not None:
        yield from _master_link_findings(broker, status.master_link)
    if status.kept_tails:
        yield Finding(
            Severity.NOTE,
            broker.key,
            f"keeps {len(status.kept_tails)} cut-off CommitLog tail(s), newest {status.kept_tails[-1]}",
            "`tandemmq restore-kept-tail` says what of it is missing elsewhere, and brings that back",
        )
    if status.disk is not None and status.disk.kept_repairs_bytes >= _KEPT_REPAIRS_TOLD_BYTES:
        kept = status.disk
        yield Finding(
            Severity.NOTE,
            broker.key,
            f"keeps {bytes_text(kept.kept_repairs_bytes)} in {counted(kept.kept_repairs_count, 'file')} that repairs "
            "have overwritten, in kept-repairs",
            "docs/operations/consistency.md says when they can go, and how",
        )


def _says_that_disk_is_full(status: BrokerStatus) -> bool:
    """By its own words, which say more."""
    stopped = status.master_link is not None and status.master_link.state == "disk full"
    return stopped or any(problem.startswith(THE_DISK_IS) for problem, _ in status.problems)


def disk_finding(broker: BrokerState, disk: DiskState | None = None) -> Finding | None:
    """Too little room on the disk of its store, by `disk` or else by its status. None: enough, or not known."""
    status = broker.status
    disk = disk or (status.disk if status is not None else None)
    if disk is None or not (disk.is_full or disk.is_nearly_full):
        return None
    if disk.used_ratio > disk.warning_ratio or disk.is_nearly_full:
        what = "is full" if disk.is_full else "fills up"
        then = f"above {disk.warning_ratio:.0%} a master refuses sends"
    else:
        what = f"has no room for the CommitLog's next file of {bytes_text(disk.next_file_bytes)}"
        then = f"when its last file is full {'sends are refused' if broker.is_master else 'it stops following'}"
    return Finding(
        Severity.PROBLEM if disk.is_full else Severity.NOTE,
        broker.key,
        f"its disk {what}: {disk.room}; {then}",
        "make room on it or enlarge it, or lower fileReservedTime; see 'The disk fills up' in "
        "docs/operations/what-to-do-when.md",
    )


def _wait_finding(broker: BrokerState, wait: StartWait) -> Finding:
    known = f", {wait.lost_bytes:,} bytes are known to be missing" if wait.lost_bytes else ""
    waited = f" for {wait.waited_seconds:,} s" if wait.waited_seconds else ""
    if wait.acceptable:
        start = f"start {', '.join(wait.missing)} with the disk it had" if wait.missing else "start the other replicas"
        remedy = f"{start}; if that is gone for good: `tandemmq broker accept-loss {broker.broker_name}`"
    elif wait.needs_operator:
        remedy = "remove the cause named here"
    else:
        remedy = "wait some seconds: it begins by itself when it has heard whom it must hear"
    return _problem(broker.key, f"waits{waited}, and takes and gives no messages: {wait.reason}{known}", remedy)


def _slaves_of(broker: BrokerState, status: BrokerStatus) -> Iterator[Finding]:
    in_sync_count = sum(1 for slave in status.slaves if slave.in_sync)
    lacks_slaves = in_sync_count < status.needed_slave_count
    if lacks_slaves:
        behind = min((slave.lag_bytes for slave in status.slaves if not slave.in_sync), default=None)
        yield _problem(
            broker.key,
            f"has {in_sync_count} of {status.needed_slave_count} slaves in sync: "
            "sends are answered SLAVE_NOT_AVAILABLE"
            + (f" (the nearest is {behind:,} bytes behind)" if behind is not None else " (none is connected)"),
            "start the slave of this group" if behind is None else "wait until the slave has caught up; watch its lag",
        )
    for slave in status.slaves:
        if not slave.in_sync and not lacks_slaves:
            yield _problem(
                broker.key,
                f"slave {slave.peer} is {slave.lag_bytes:,} bytes behind",
                "wait; if the lag grows, compare the slave's disk and network with the send rate",
            )
        yield from _silence(broker, f"slave {slave.peer}", slave.silent_ms)


def _silence(broker: BrokerState, peer: str, silent_ms: int | None) -> Iterator[Finding]:
    if silent_ms is not None and silent_ms > SILENT_MS_MAX:
        yield _problem(
            broker.key,
            f"nothing came from {peer} for {silent_ms / 1_000:.0f} s",
            "see whether that machine runs and the network between the two is whole",
        )


def _master_link_findings(broker: BrokerState, link: MasterLinkState) -> Iterator[Finding]:
    if link.state == "transfer":
        yield from _silence(broker, f"its master at {link.address}", link.silent_ms)
        return
    if link.state == "resynchronising":
        yield _problem(
            broker.key,
            f"is copying what it lacks from {link.address}, {link.lag_bytes:,} bytes to go",
            "wait; it is not a full copy until this is over",
        )
    elif link.state == "refusing":
        yield _problem(
            broker.key,
            f"refuses to follow its master at {link.address}: {link.problem}",
            link.remedy or "see its log",
        )
    elif link.state == "disk full":
        yield _problem(
            broker.key,
            f"does not follow its master: its disk is full, {link.lag_bytes:,} bytes are missing",
            "make room on that disk or give it more; the slave goes on by itself",
        )
    else:
        yield _problem(
            broker.key,
            f"does not follow its master ({link.state}, master {link.address or 'unknown'})",
            "see whether the master runs and its haListenPort can be reached from here; the slave retries by itself",
        )


# How a group that fails over stands, made of what each of its members says.


@dataclass(frozen=True, slots=True)
class MemberStanding:
    """A member of a group that fails over."""

    # name:id
    broker: str
    # SYNC_MASTER or SLAVE: what it is now; empty when it does not answer.
    role: str
    in_sync: bool
    # Behind its master; None: not known.
    lag_bytes: int | None
    # It could become the master now, without asking anybody.
    electable: bool
    problem: str


@dataclass(frozen=True, slots=True)
class MasterChange:
    """When a member became the master."""

    epoch: int
    # name:id
    broker: str
    reason: str
    time_ms: int
    # From the moment that it knew until it served.
    took_ms: int


@dataclass(frozen=True, slots=True)
class GroupFailover:
    """Who is master of a group by its record."""

    epoch: int
    # name:id; empty without a record.
    master: str
    # It acts: it is the master by the record, and its lease runs.
    acts: bool
    authority: str
    # Members that cannot reach it.
    authority_away: Sequence[str]
    lease_ms: int
    # As name:id.
    in_sync: Sequence[str]
    reason: str
    # When its epoch began, by its wall clock; -1: not known.
    since_ms: int
    members: Sequence[MemberStanding]
    # Newest first, as far as the processes remember.
    changes: Sequence[MasterChange]


def failover_of(members: Sequence[BrokerState]) -> GroupFailover | None:
    """How a group stands, by what its members say; None: it does not fail over, or nobody answers."""
    states = {
        broker.key: broker.status.failover for broker in members if broker.status and broker.status.failover is not None
    }
    if not states:
        return None
    name = members[0].broker_name
    newest = max(states.values(), key=lambda state: (state.epoch, state.acts))
    in_sync = tuple(f"{name}:{broker_id}" for broker_id in newest.in_sync_ids)
    changes = [
        MasterChange(change.epoch, key, change.reason, change.time_ms, change.took_ms)
        for key, state in states.items()
        for change in state.changes
        if change.is_master
    ]
    return GroupFailover(
        epoch=newest.epoch,
        master=f"{name}:{newest.master.broker_id}" if newest.master is not None else "",
        acts=any(state.acts for state in states.values()),
        authority=newest.authority,
        authority_away=tuple(key for key, state in states.items() if state.authority_away),
        lease_ms=newest.lease_ms,
        in_sync=in_sync,
        reason=newest.reason,
        since_ms=newest.changed_ms,
        members=tuple(_standing(broker, newest) for broker in members),
        changes=tuple(sorted(changes, key=lambda change: (-change.epoch, -change.time_ms))),
    )


def failovers_of(state: ClusterState) -> Iterator[tuple[str, GroupFailover]]:
    """Of every group that fails over, by its name."""
    for name, members in groupby(state.brokers, key=lambda broker: broker.broker_name):
        if (group := failover_of(list(members))) is not None:
            yield name, group


def _standing(broker: BrokerState, newest: FailoverState) -> MemberStanding:
    status = broker.status
    state = status.failover if status is not None else None
    link = status.master_link if status is not None else None
    return MemberStanding(
        broker=broker.key,
        role=status.role_in_words if status is not None else "",
        in_sync=any(
            replica.broker_id == broker.broker_id
            and (broker.status is None or broker.status.disk_id in ("", replica.disk_id))
            for replica in newest.in_sync
        ),
        lag_bytes=link.lag_bytes if link is not None and link.state == "transfer" else None,
        electable=state is not None and state.is_electable,
        problem=state.problem if state is not None else "" if status is None else "failoverAuthority is not set here",
    )
