"""Makes this broker what its group's record says: reads the record, claims, renews, and changes the role.

`Mastership` in the core decides; here the authority is asked, roles begin and end, and other members are told. One task
for the whole life of the process. A role that begins may take long, and has a task of its own meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import structlog

from tandemmq.broker.failover.authority import Authority, AuthorityUnavailable, Held, RecordSpoilt, SwapLost
from tandemmq.broker.failover.turned_away import TurnedAway
from tandemmq.broker.leases import LeaseChange, LeasePosition
from tandemmq.broker.metadata_tables import NotSpread
from tandemmq.broker.peer_client import PeerClient, PeerUnavailable
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.core.clock import Clock
from tandemmq.core.histogram import Histogram
from tandemmq.core.replication.log_history import newest_memories
from tandemmq.core.replication.mastership import (
    NO_SUCCESSOR,
    UNREADABLE,
    Claim,
    FailoverOptions,
    FailoverStep,
    Follow,
    GroupRecord,
    Hold,
    Mastership,
    Recover,
    Replica,
    StepDown,
    Write,
)
from tandemmq.core.routing.values import BrokerIdentity, ReplicaMemory

if TYPE_CHECKING:
    from tandemmq.broker.failover.kubernetes_service import GroupService
    from tandemmq.broker.parts import Role

log = structlog.get_logger(__name__)

T = TypeVar("T")

_MASTER_TICK_S: Final = 0.25
_FIRST_TICK_S: Final = 0.25
_LOOKS_PER_LEASE: Final = 6
_HAND_OVER_LIMIT_S: Final = 3.0
_VERSION_LIMIT_S: Final = 0.3
"""Of a claim that comes a whole lease after the master was last heard of."""
_POLL_S: Final = 0.005
_ASKED_AGAIN_S: Final = 0.05
"""Between two calls to an authority that had no answer."""
_CHANGES_MAX: Final = 16
_SPREAD_LIMIT_MS: Final = 4_000
"""Longer than a member that is gone stays in the set."""
_SPREAD_PAUSE_S: Final = 0.1
_LEFT_TICK_S: Final = 0.1
_TOLD_EACH_MS: Final = 60_000
_CHANGE_MS: Final = 4_000
"""So much longer than the lease is a group without a master, when somebody can be."""
_AUTHORITY_AWAY: Final = (
    "{}; nobody can be named the master until it is back, and this one goes on meanwhile: mend the authority first"
)
CLAIM_REASONS: Final = ("handed_over", "lease_over", "heard_group", "master_ended")
_CLAIM_BOUNDS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class HandOverRefused(Exception):
    """The master stays where it is; the text says why, and what to do."""


class ClaimRefused(Exception):
    """This broker does not become master; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class UncleanClaim:
    """What an operator gives up by making a member master that may lack what was acknowledged."""

    missing: tuple[ReplicaMemory, ...]
    """Other members of the in-sync set, as they were last heard of; they may hold more than that."""
    end_offset: int
    """Of our log, which the group goes on with unless a member in reach has a better one."""
    lost_bytes: int
    """How much more than ours the missing are known to hold."""


class ChangeStep(NamedTuple):
    """A part of a change; the next one begins where it ends."""

    name: str
    took_ms: int


@dataclass(frozen=True, slots=True)
class ChangeOfMaster:
    """A change that this process took part in, for people. `at_wall_ms` is its end."""

    epoch: int
    is_master: bool
    reason: str
    at_wall_ms: int
    took_ms: int
    steps: tuple[ChangeStep, ...] = ()


class _Steps:
    """Times the parts of a change as they are done."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.started_ms: Final = now_ms()
        self._began_ms = self.started_ms
        self.done: list[ChangeStep] = []

    def did(self, name: str) -> None:
        """What was under way since the last call is over."""
        now_ms = self._now_ms()
        self.done.append(ChangeStep(name, now_ms - self._began_ms))
        self._began_ms = now_ms


class FailoverHost(Protocol):
    """The broker around the roles."""

    @property
    def identity(self) -> BrokerIdentity:
        """Who it is."""

    @property
    def member(self) -> ReplicaIdentity:
        """Its disk, and what that remembers."""

    @property
    def clock(self) -> Clock:
        """For what people read."""

    @property
    def is_home_master(self) -> bool:
        """Its settings say that it is the master."""

    @property
    def is_stopping(self) -> bool:
        """No role begins any more."""

    @property
    def role(self) -> Role:
        """The one that it has."""

    @property
    def raw_end_offset(self) -> int:
        """End of its log, whatever became of the last record."""

    def member_metadata(self, broker_id: int) -> str | None:
        """The metadata plane of a member; None: it is not registered."""

    async def remembered(self) -> Sequence[ReplicaMemory]:
        """What this disk, and every NameServer that answers, remembers of the group's replicas."""

    def caught_up(self) -> None:
        """Its log has all that it ever acknowledged, however the machine was stopped before."""

    def refuse(self, reason: str | None) -> None:
        """Takes and gives nothing for this reason from now on; None: as the role has it."""

    def turn_clients_away(self, *, is_on: bool) -> None:
        """Its clients are sent to another member's address; or are taken again."""

    def record_seen(self) -> None:
        """Its disk knows of another record than before: NameServers are told now."""

    def fail(self, failure: str) -> None:
        """Ends the process."""

    async def settle_answers(self) -> None:
        """Nothing is given any more. When this returns clients have read their answers, or the leases of the rest run
        out, and the journal says so."""

    async def end_role(self, reason: str) -> None:
        """The role that is has ended, its files are closed, and clients are refused, when this returns."""

    async def begin_master(self, seat: Failover, *, holds_all: bool, accepts_loss: bool = False) -> None:
        """A master's role is the broker's at once; returns when it serves, or has given up. See `MasterRole`."""

    async def begin_slave(self) -> None:
        """A slave's role is the broker's, and follows."""


def boot_time_ms() -> int:
    """Runs on while the machine sleeps, so that a lease does."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Failover:
    """One per broker of a group that fails over. A master has its seat here: it asks whether it may act, and who has to
    hold what it acknowledges. Event loop only."""

    def __init__(
        self,
        host: FailoverHost,
        *,
        authority: Authority,
        options: FailoverOptions,
        nonce: str,
        service: GroupService | None = None,
        trace: Callable[[ChangeOfMaster], None] | None = None,
        peer: Callable[[str], PeerClient] = PeerClient,
        now_ms: Callable[[], int] = boot_time_ms,
    ) -> None:
        """`nonce` is unlike that of any other process. `service` leads clients to the master, if there is one."""
        self._host = host
        self._nonce = nonce
        self._peer = peer
        self._authority = authority
        self._service = service
        self._trace = trace
        self._leading: asyncio.Task[None] | None = None
        self._begun: set[asyncio.Task[Any]] = set()
        """What operators asked for; see `_whoever_asked`."""
        self._options = options
        self._now_ms = now_ms
        self._held: Held | None = None
        self._mastership: Mastership | None = None
        self._starting: asyncio.Task[None] | None = None
        """A master's start that hears its group."""
        self._poked = asyncio.Event()
        self._turn = asyncio.Lock()
        """Of whoever changes the role or writes the record."""
        self._fence: asyncio.TimerHandle | None = None
        self._refusal: str | None = None
        self._master_listens: Callable[[], Awaitable[bool | None]] | None = None
        """Looks again where the master that has left was; see `master_left`."""
        self._turned_away = TurnedAway(host, lease_ms=options.lease_ms, now_ms=now_ms)
        self._stood_in_epoch = 0
        """In which the service was led here for a master that was silent."""
        self._is_unclean = False
        """An operator makes this broker master, whatever the in-sync set says; until it is, or gave up."""
        self.is_handing_over = False
        """On purpose, and now: the next master has copied the tables, or is about to."""
        self._changing_since_ms: int | None = None
        self._told_set: tuple[int, frozenset[Replica], frozenset[Replica]] | None = None
        self._told_set_ms = 0
        self.problem = ""
        """Why nothing can be done now, in words; empty: nothing is wrong."""
        self.is_authority_away = False
        """It did not answer when it was asked last."""
        self.claim_counts = dict.fromkeys(CLAIM_REASONS, 0)
        """How often this process became master, by reason."""
        self.claim_seconds = Histogram(_CLAIM_BOUNDS_S)
        """From the moment that it knew until it served."""
        self.last_changes: list[ChangeOfMaster] = []
        """Newest last."""

    # What the role asks

    @property
    def epoch(self) -> int:
        """In which this broker is master by the group's record; 0: it has to claim."""
        return self._member.epoch

    @property
    def required(self) -> frozenset[str]:
        """Disks that must hold a message before it is acknowledged."""
        return frozenset(replica.disk_id for replica in self._member.required)

    @property
    def in_sync_epoch(self) -> int:
        """Of the group's record, if it has this broker's disk in the in-sync set; 0: it has not."""
        record = self.record
        return record.epoch if record is not None and self._member.me in record.in_sync else 0

    @property
    def others_in_sync(self) -> Sequence[ReplicaMemory]:
        """The other members of that set; nothing is known of where their logs end."""
        record, me = self.record, self._member.me
        others = sorted(record.in_sync - {me}) if record is not None and me in record.in_sync else ()
        return [ReplicaMemory(replica.broker_id, replica.disk_id, master_epoch=0) for replica in others]

    @property
    def refusal(self) -> str | None:
        """Why this master takes and gives nothing now. By the clock: a process that stood still is asked before its
        timers run."""
        if self._refusal is None and self._mastership is not None and self._mastership.epoch and not self.acts:
            self._arm_fence()
        return self._refusal

    @property
    def record(self) -> GroupRecord | None:
        """The group's record as it was heard last; None: none was."""
        return None if self._mastership is None else self._mastership.record

    @property
    def acts(self) -> bool:
        """This broker is the master by the record, and its lease runs."""
        return self._mastership is not None and self._mastership.may_act(self._now_ms())

    @property
    def is_changing(self) -> bool:
        """Nobody takes and gives messages in this group now, and somebody will soon: this broker becomes master, hands
        over, or hears nothing of its master. Not for longer than a change takes."""
        now_ms = self._now_ms()
        if not self._is_between_masters:
            self._changing_since_ms = None
            return False
        if self._changing_since_ms is None:
            self._changing_since_ms = now_ms
        return now_ms - self._changing_since_ms < self._options.lease_ms + _CHANGE_MS

    @property
    def _is_between_masters(self) -> bool:
        role, record = self._host.role, self.record
        if role.is_master:
            return self.is_handing_over or not role.is_serving
        # Also where it is not in the in-sync set: who has just handed over is in none until it follows the next master.
        is_deaf = not role.hears_master and not self._turned_away.is_on
        return record is not None and (record.successor != NO_SUCCESSOR or is_deaf)

    @property
    def is_electable(self) -> bool:
        """It holds all that is acknowledged, and may claim without asking anybody."""
        member = self._mastership
        if member is None or member.epoch or not member.may_claim():
            return False
        return self._has_caught_up

    @property
    def _member(self) -> Mastership:
        assert self._mastership is not None, "run comes first"
        return self._mastership

    def superseded(self, reason: str) -> None:
        """Somebody follows a later master: nothing is given until the record says who it is. A record that names us
        still is an old one."""
        log.warning("master_superseded", reason=reason)
        if self._mastership is not None and self._mastership.epoch:
            self._mastership.heard_of(self._mastership.epoch + 1)
        self._refuse(f"another master may have taken our place: {reason}")
        self.poke()

    def slave_left(self, broker_id: int, disk_id: str) -> None:
        """The connection to a slave has ended. If it is in the set it may claim soon."""
        if self._mastership is not None and self._mastership.epoch:
            self._mastership.slave_left(Replica(broker_id, disk_id), now_ms=self._now_ms())
            self._arm_fence()
            self.poke()

    def master_left(self, epoch: int, listens: Callable[[], Awaitable[bool | None]]) -> None:
        """The master of `epoch`, whom we followed, ended the connection, and nobody listens there. `listens` looks
        again; None: no answer. It says nothing of a master that came after it."""
        if self._mastership is None or ((record := self.record) is not None and record.epoch > epoch):
            return
        self._master_listens = listens
        self._mastership.master_left(epoch, now_ms=self._now_ms())
        if self.is_electable and record is not None and record.epoch == epoch:
            self._lead(lambda service: service.stand_in(epoch))
        self.poke()

    def poke(self) -> None:
        """The record has changed, somebody says: it is read at once."""
        self._poked.set()

    def reads_begun(self) -> None:
        """The role gives messages from now on: what it sent away may come before the record is read again."""
        self._turned_away.take_again()
        self.poke()

    async def claim(self, epoch: int, seen: tuple[int, int]) -> int:
        """Makes this broker master, of `epoch` or a later one, which it returns; 0: somebody else is, or the authority
        has an older record than other members, who have `seen` one of this epoch and these renewals. Of a start that
        has heard its group and holds the best log in reach."""
        member = self._member
        async with self._turn:
            if not member.epoch:
                member.others_saw(seen)
                try:
                    await self._read()
                except AuthorityUnavailable as error:
                    self._note_away(error)
                    return 0
                if (member.may_claim() or self._is_unclean) and member.is_vacant(self._now_ms()):
                    await self._swap_claim(member.claim("its replicas were heard", epoch=epoch))
            return member.epoch

    # Life

    async def run(self) -> None:
        """Until it is cancelled; once the store is recovered and a slave's role is there."""
        host = self._host
        self._mastership = Mastership(
            Replica(host.identity.broker_id, host.member.disk_id),
            nonce=self._nonce,
            is_home_master=host.is_home_master,
            options=self._options,
            known=host.member.record_version,
        )
        try:
            while not host.is_stopping:
                # Before the look: a poke that comes while it lasts has another one follow at once.
                self._poked.clear()
                async with self._turn:
                    await self._tick()
                try:
                    async with asyncio.timeout(self._tick_s):
                        await self._poked.wait()
                except TimeoutError:
                    pass
        finally:
            if self._fence is not None:
                self._fence.cancel()
            for task in (self._starting, self._leading):
                if task is not None:
                    task.cancel()

    async def close(self) -> None:
        """Gives the connection to the authority back; after `leave`. What operators asked for and is not done ends."""
        for task in (begun := [*self._begun]):
            task.cancel()
        if begun:
            await asyncio.wait(begun)
        await self._authority.close()
        if self._service is not None:
            await self._service.close()

    @property
    def _tick_s(self) -> float:
        """A master looks at its slaves, a member at the record: the authority is asked about once a second."""
        if self._member.epoch:
            return _MASTER_TICK_S
        if self.record is None:
            return _FIRST_TICK_S
        if self._master_listens is not None or self.record.successor != NO_SUCCESSOR:
            return _LEFT_TICK_S
        return self._options.lease_ms / 1_000 / _LOOKS_PER_LEASE

    async def _tick(self) -> None:
        _ = self.is_changing  # Notes since when.
        try:
            if self._member.epoch:
                await self._master_tick()
            else:
                await self._member_tick()
        except AuthorityUnavailable as error:
            self._note_away(error)
            await self._ask_to_withhold()
        if self._member.epoch:
            self._turned_away.look_as_master()
        else:
            self._stand_in_for_silent()
            self._turned_away.look_as_member(
                self._host.role,
                version="" if self._held is None else self._held.version,
                is_authority_away=self.is_authority_away,
                is_lease_over=self._member.is_lease_over(self._now_ms()),
            )

    def _stand_in_for_silent(self) -> None:
        """A machine that is gone refuses nobody: a client that dials it waits for 20 s. Once an epoch; a master that is
        back looks whether the service leads to it."""
        record = self.record
        if record is None or self._stood_in_epoch == record.epoch or self.is_authority_away or not self.is_electable:
            return
        if not self._host.role.hears_master and self._member.is_master_overdue(self._now_ms()):
            self._stood_in_epoch = record.epoch
            self._lead(lambda service: service.stand_in(record.epoch))

    # As a member that is not master

    async def _member_tick(self) -> None:
        await self._read()
        member = self._member
        if self._is_unclean:
            return
        if self._has_caught_up:
            self._host.caught_up()
        if self._master_listens is not None and not member.has_master_left(self._now_ms()):
            self._forget_left()
        step = member.next_step(now_ms=self._now_ms(), is_electable=self._has_caught_up)
        if not isinstance(step, Hold):
            self._note_problem("")
        match step:
            case Hold(reason, is_alarm):
                self._note_problem(reason, is_alarm=is_alarm)
            case Follow():
                if self._host.role.is_master:
                    await self._become_slave("another broker is the master")
            case Recover(reason):
                if self._starting is None or self._starting.done():
                    await self._start_to_recover(reason)
            case Claim(record):
                await self._claim_at_once(record)
            case _:
                raise AssertionError(f"no step of a member: {step}")

    @property
    def _is_named(self) -> bool:
        record = self.record
        return record is not None and record.successor == self._member.me.broker_id

    @property
    def _has_caught_up(self) -> bool:
        record = self.record
        return record is not None and self._host.role.caught_up_epoch == record.epoch

    async def _claim_at_once(self, record: GroupRecord) -> None:
        """No byte may come from the old master, and no report go to it, once the record names us."""
        steps, is_named = _Steps(self._now_ms), self._is_named
        is_lease_over = self._member.is_lease_over(self._now_ms())
        if not is_named and not is_lease_over and self._master_listens is not None and await self._master_listens():
            log.info("master_is_back", reason="somebody listens there again")
            self._forget_left()
            return
        if not is_named:
            await self._hear_versions()
            if (newer := self._member.put_back_behind) is not None:
                await self._host.member.hold_to(newer)
            if not self._member.may_claim() or not self._has_caught_up:
                return
        await self._host.end_role("this broker becomes the master")
        steps.did("end the slave's role")
        # Meanwhile the master may have been promised a lease.
        if self._member.is_vacant(self._now_ms()) and await self._swap_claim(record):
            steps.did("write the record")
            self._turned_away.take_again()
            await self._host.begin_master(self, holds_all=True)
            steps.did("begin the master's role")
            self._lead_clients()
            self._forget_left()
            reason = "handed_over" if is_named else "lease_over" if is_lease_over else "master_ended"
            self._note_claim(record, reason, steps)
        else:
            await self._host.begin_slave()

    def _forget_left(self) -> None:
        self._member.master_is_back()
        self._master_listens = None

    async def _hear_versions(self) -> None:
        """Asks the other members which record they saw, and the NameServers which they heard of, and of logs of a later
        epoch: the authority may have been put back while we did not reach it. Who does not answer at once is as good as
        gone."""

        async def ask(other: Replica) -> None:
            endpoint = self._host.member_metadata(other.broker_id)
            if endpoint is None:
                return
            try:
                async with asyncio.timeout(_VERSION_LIMIT_S), self._peer(endpoint) as peer:
                    self._member.others_saw((await peer.log()).record_version)
            except (PeerUnavailable, TimeoutError) as error:
                log.debug("record_version_not_heard", replica=endpoint, reason=str(error))

        async def ask_name_servers() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_VERSION_LIMIT_S):
                    for memory in await self._host.remembered():
                        self._member.heard_of(memory.epoch)
                        self._member.others_saw(memory.record_version)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask_name_servers())
            for other in sorted(self._member.others):
                tasks.create_task(ask(other))

    async def _start_to_recover(self, reason: str) -> None:
        log.info("master_starts", reason=reason)
        self._turned_away.take_again()
        await self._host.end_role("this broker asks its group whether it may be the master")
        self._starting = asyncio.create_task(self._recover())
        # The role is the broker's before anybody looks again.
        await asyncio.sleep(0)

    async def _recover(self) -> None:
        steps = _Steps(self._now_ms)
        try:
            await self._host.begin_master(self, holds_all=False, accepts_loss=self._is_unclean)
        except Exception as error:
            log.exception("master_start_failed")
            self._host.fail(f"this broker could not become the master: {error}")
            return
        if self._host.role.is_serving and self.record is not None:
            steps.did("hear the group, and begin the master's role")
            self._note_claim(self.record, "heard_group", steps)
        self._is_unclean = False
        self.poke()

    async def _become_slave(self, reason: str) -> None:
        if not self._host.role.is_serving:
            self._host.role.give_up()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
            self._starting = None
        log.warning("master_steps_down", reason=reason)
        steps = _Steps(self._now_ms)
        await self._host.end_role(reason)
        steps.did("end the master's role")
        self._member.stepped_down(now_ms=self._now_ms())
        self._refusal = None
        await self._host.begin_slave()
        self._turned_away.take_again()
        steps.did("begin the slave's role")
        if self.record is not None:
            self._note_change(self.record, steps, is_master=False)

    async def _swap_claim(self, record: GroupRecord) -> bool:
        """Whether the record names us now.

        A swap without an answer may be there, and then nobody else is master: it is looked for, and sent again, while
        the lease runs that it would begin. Found later, it would be taken for that of an earlier process, which has to
        hear its group first.
        """
        member, host = self._member, self._host
        record = replace(record, changed_wall_ms=host.clock.wall_ms())
        sent_ms = self._now_ms()
        member.sent(record, now_ms=sent_ms)
        until_ms = sent_ms + self._options.lease_ms
        reason = await self._swap_until_known(record, lambda: self._now_ms() < until_ms and not host.is_stopping)
        if reason or self._held is None:
            log.info("claim_lost", epoch=record.epoch, reason=reason)
            return False
        await self._see(record)
        member.claimed(record, self._held.version, sent_ms=sent_ms, now_ms=self._now_ms())
        self._arm_fence()
        log.warning("master_claimed", epoch=record.epoch, reason=record.reason)
        return True

    async def _swap_until_known(self, record: GroupRecord, goes_on: Callable[[], bool]) -> str:
        """Why the record was not written; empty: it was. What has no answer may be there: it is looked for, and sent
        again, while `goes_on`. `_held` is what was seen last."""
        before, is_unknown = self._held, False
        while True:
            try:
                self._held = await self._authority.swap(before, record)
                return ""
            except AuthorityUnavailable as error:
                reason, is_unknown = str(error), True
            except SwapLost as error:
                reason = str(error)
            if not is_unknown or not await self._is_read_again(goes_on):
                return reason
            if self._held is not None and self._held.record == record:
                return ""
            if self._held != before:
                return reason

    async def _is_read_again(self, goes_on: Callable[[], bool]) -> bool:
        """Once the authority answers. False: it does not while `goes_on`."""
        while goes_on():
            await asyncio.sleep(_ASKED_AGAIN_S)
            try:
                self._held = await self._authority.read()
                return True
            except AuthorityUnavailable as error:
                log.info("swap_not_seen", reason=str(error))
        return False

    # As the master

    async def _master_tick(self) -> None:
        member, role = self._member, self._host.role
        assert role.is_master, "who has claimed has a master's role"
        acked = (
            {
                Replica(slave.broker_id, slave.disk_id): slave.acked_offset
                for slave in role.slaves()
                if slave.broker_id is not None
                and slave.disk_id
                and slave.holds_all
                and slave.disk_id not in role.lacking_progress
            }
            if role.is_serving
            else {}
        )
        step: FailoverStep | None = member.next_write(
            now_ms=self._now_ms(), end_offset=self._host.raw_end_offset, acked=acked
        )
        role.require()
        self._lead_clients()
        if isinstance(step, StepDown):
            await self._become_slave(step.reason)
        elif isinstance(step, Write):
            await self._write(step.record)

    async def _write(self, record: GroupRecord) -> None:
        """Renews, with another set perhaps. What it adds is waited for before anybody can read it."""
        member, before = self._member, self._member.record
        if before is not None:
            record = await self._without_those_who_lack_tables(record, before)
        if before is not None and record.in_sync != before.in_sync:
            self._tell_set(record.epoch, before.in_sync, record.in_sync)
            record = record.with_past(*self._host.member.history.epochs[-1])
        sent_ms = self._now_ms()
        member.sent(record, now_ms=sent_ms)
        self._host.role.require()
        try:
            self._held = await self._authority.swap(self._held, record)
        except SwapLost:
            await self._read()
        else:
            self.is_authority_away = False
            await self._see(record)
            member.written(record, self._held.version, sent_ms=sent_ms, now_ms=self._now_ms())
        self._host.role.require()
        self._note_problem("")
        self._arm_fence()

    def _tell_set(self, epoch: int, before: frozenset[Replica], after: frozenset[Replica]) -> None:
        """Once; where the authority is out of reach it is tried again and again."""
        told, now_ms = (epoch, before, after), self._now_ms()
        if told == self._told_set and now_ms - self._told_set_ms < _TOLD_EACH_MS:
            return
        self._told_set, self._told_set_ms = told, now_ms
        tell = log.info if before <= after else log.warning
        tell("in_sync_set_changes", epoch=epoch, before=_ids(before), after=_ids(after))

    async def _without_those_who_lack_tables(self, record: GroupRecord, before: GroupRecord) -> GroupRecord:
        """Who joins has the log. Topics and groups that were confirmed while it was away it has to copy first; later
        ones wait for it already."""
        joining = sorted(record.in_sync - before.in_sync)
        async with asyncio.TaskGroup() as tasks:
            copies = [tasks.create_task(self._have_copied(replica)) for replica in joining]
        lacking = {replica for replica, copy in zip(joining, copies, strict=True) if not copy.result()}
        return replace(record, in_sync=record.in_sync - lacking) if lacking else record

    async def _ask_to_withhold(self) -> None:
        """The authority is away: whoever could claim promises not to, so that this master goes on.

        Once its lease is over it first asks who would: where one is missing, the others are not kept from claiming.
        """
        member = self._member
        if not member.epoch:
            return
        if not member.may_act(self._now_ms()) and not await self._all_withhold(0):
            return
        sent_ms = self._now_ms()
        if await self._all_withhold(self._options.lease_ms):
            member.promised_by_all(sent_ms=sent_ms)
            self._arm_fence()

    async def _all_withhold(self, duration_ms: int) -> bool:
        """Whether every member that could claim promises not to for so long."""
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(self._withholds(other, duration_ms)) for other in sorted(self._member.others)]
        return all(task.result() for task in asked)

    async def _withholds(self, other: Replica, duration_ms: int) -> bool:
        endpoint = self._host.member_metadata(other.broker_id)
        if endpoint is None:
            return False
        try:
            async with self._peer(endpoint) as peer:
                return await peer.withhold_claim(self._host.identity, epoch=self._member.epoch, duration_ms=duration_ms)
        except PeerUnavailable as error:
            log.info("claim_not_withheld", replica=endpoint, reason=str(error))
            return False

    def withhold_claim(self, epoch: int, duration_ms: int) -> bool:
        """Our master asks; see `Mastership.promise`."""
        return self._mastership is not None and self._mastership.promise(epoch, duration_ms, now_ms=self._now_ms())

    # The lease

    def _arm_fence(self) -> None:
        """Takes and gives while the lease runs, and not a moment longer."""
        if self._fence is not None:
            self._fence.cancel()
        if not self._member.epoch:
            return  # It handed over, or is deposed: its lease is nobody's any more.
        left_ms = self._member.acts_until_ms - self._now_ms()
        if left_ms <= 0:
            self._refuse("the lease of this master is over, and the authority has not renewed it")
            margin_s = self._options.margin_ms / 1_000
            self._fence = asyncio.get_running_loop().call_later(margin_s, self._lease_is_over)
            return
        if self._refusal is not None:
            log.info("master_acts_again")
            self._refusal = None
            self._turned_away.take_again()
            if self._host.role.is_serving and not self._host.is_stopping:
                self._host.refuse(None)
        self._fence = asyncio.get_running_loop().call_later(left_ms / 1_000, self._arm_fence)

    def _lease_is_over(self) -> None:
        """For the others, too: one of the set may be master by now."""
        if self._member.epoch and self._refusal is not None and self._member.others:
            self._turned_away.turn_away("its lease is over, and another member may be the master")

    def _refuse(self, reason: str) -> None:
        if self._refusal is None:
            log.error("master_acts_no_more", reason=reason, remedy="see tandemmq ha status")
        self._refusal = reason
        if self._host.role.is_master and not self._host.is_stopping:
            self._host.refuse(reason)

    # On purpose

    async def hand_over(self, to: int | None = None) -> int:
        """Makes another member of the in-sync set master: broker `to`, or whoever is nearest. Returns who it is.

        Sends of that moment are answered first. HandOverRefused: this broker goes on as it is. Once begun it goes on to
        its end, also when the caller is cancelled.
        """
        return await self._whoever_asked(self._hand_over_in_turn(to))

    async def _whoever_asked(self, change: Coroutine[Any, Any, T]) -> T:
        """An operator's call ends with the operator's terminal. Left where that happened to be, a hand-over would
        refuse all sends from then on, with nobody to take them."""
        task = asyncio.create_task(change)
        self._begun.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._begun.discard(task)
        if not task.cancelled():
            task.exception()  # Told to whoever waits; nobody may.

    async def _hand_over_in_turn(self, to: int | None) -> int:
        async with self._turn:
            try:
                return await self._hand_over(to)
            finally:
                self.is_handing_over = False

    def successor(self, to: int | None = None) -> int:
        """Who would become master. HandOverRefused: nobody."""
        if self.is_authority_away:
            raise HandOverRefused(_AUTHORITY_AWAY.format(self.problem))
        return self._successor_of(to)[1].broker_id

    def _successor_of(self, to: int | None) -> tuple[Role, Replica]:
        role, record = self._host.role, self.record
        if not self.acts or record is None or not role.is_serving:
            raise HandOverRefused("this broker is not the master; ask the master")
        return role, self._successor(record, role, to)

    async def _hand_over(self, to: int | None) -> int:
        member, host, steps = self._member, self._host, _Steps(self._now_ms)
        self._successor_of(to)
        await self._renew_before_hand_over()
        role, successor = self._successor_of(to)
        log.warning("hand_over_begins", to=successor.broker_id)
        self.is_handing_over = True
        host.refuse(f"broker {successor.broker_id} becomes the master of this group")
        try:
            async with asyncio.timeout(_HAND_OVER_LIMIT_S):
                while role.waiting_count or not self._has_all(role, successor):
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            self.is_handing_over = False
            host.refuse(None)
            raise HandOverRefused(
                f"broker {successor.broker_id} did not reach the end of the log within {_HAND_OVER_LIMIT_S:g} s; "
                "look at its lag, and try again"
            ) from None
        steps.did("answer what waits")
        await host.settle_answers()
        steps.did("hear that answers were read")
        await self._have_copied(successor)
        steps.did("copy what was consumed")
        resignation = member.resignation(successor.broker_id)
        await host.end_role("the master hands over")
        steps.did("end the master's role")
        leased_until_ms = member.acts_until_ms
        member.stepped_down(now_ms=self._now_ms(), has_resigned=True)
        await self._write_resignation(resignation, leased_until_ms)
        steps.did("write the record")
        await self._tell(successor)
        await host.begin_slave()
        steps.did("begin the slave's role")
        self._note_change(resignation, steps, is_master=False)
        return successor.broker_id

    async def _write_resignation(self, resignation: GroupRecord, leased_until_ms: int) -> None:
        """Again and again while our lease runs: else an authority that is slow for a moment would cost all of it."""
        before = self._held
        reason = await self._swap_until_known(resignation, lambda: self._now_ms() < leased_until_ms)
        if not reason and self._held is not None:
            self._member.heard(resignation, self._held.version, now_ms=self._now_ms())
        elif self._held == before:  # Else who is named has claimed already.
            log.error("resignation_not_written", reason=reason, consequence="the successor waits for the lease")

    async def _renew_before_hand_over(self) -> None:
        """A record that cannot be written names no successor: this master would end, and nobody could begin. And the
        steps to come have a whole lease."""
        record = self.record
        assert record is not None, "a master has a record"
        try:
            await self._write(replace(record, renewals=record.renewals + 1, successor=NO_SUCCESSOR))
        except AuthorityUnavailable as error:
            self._note_away(error)
            raise HandOverRefused(_AUTHORITY_AWAY.format(self.problem)) from error

    def _successor(self, record: GroupRecord, role: Role, to: int | None) -> Replica:
        connected = {
            Replica(slave.broker_id, slave.disk_id): slave.acked_offset
            for slave in role.slaves()
            if slave.broker_id is not None and slave.disk_id
        }
        able = [replica for replica in sorted(record.in_sync - {record.master}) if replica in connected]
        if to is not None:
            able = [replica for replica in able if replica.broker_id == to]
        if not able:
            who = "no other member" if to is None else f"broker {to} is not"
            raise HandOverRefused(
                f"{who} in the in-sync set {_ids(record.in_sync)} and connected; "
                "start it, or wait until it has caught up"
            )
        return max(able, key=lambda replica: (connected[replica], -replica.broker_id))

    def _has_all(self, role: Role, successor: Replica) -> bool:
        end_offset = self._host.raw_end_offset
        return any(slave.disk_id == successor.disk_id and slave.acked_offset >= end_offset for slave in role.slaves())

    async def copy_progress(self) -> bool:
        """Our master hands over to us: what its groups have consumed is copied now. False: it could not be."""
        return await self._host.role.copy_progress()

    async def append_leases(self, change: LeaseChange) -> LeasePosition:
        """A master's journal; where our copy ends then. See `LeaseCopy.append`."""
        return await self._host.role.append_leases(change)

    async def spread(self) -> None:
        """Has every member of the in-sync set copy the tables: what an operator is told of must not go with this
        master. NotSpread: one that may be the next master has not, or this one may be master no more."""
        deadline_ms = self._now_ms() + _SPREAD_LIMIT_MS
        while True:
            role = self._host.role
            if not role.is_master or not role.is_serving:
                raise NotSpread("this broker is the master no more, and the next one may lack the change; ask that one")
            if await self._is_spread():
                return
            if self._now_ms() >= deadline_ms:
                raise NotSpread(
                    "the change is on this broker, and not on all members of the in-sync set: a change of master might "
                    "undo it; try again"
                )
            await asyncio.sleep(_SPREAD_PAUSE_S)

    async def _is_spread(self) -> bool:
        async with asyncio.TaskGroup() as tasks:
            copies = [tasks.create_task(self._have_copied(member)) for member in sorted(self._member.required)]
        # The lease says that nobody has claimed meanwhile without the change.
        return all(copy.result() for copy in copies) and self.acts

    async def _have_copied(self, member: Replica) -> bool:
        """Tables and leases. Before a hand-over: what was acknowledged in the last moments would come again."""
        endpoint = self._host.member_metadata(member.broker_id)
        if endpoint is None:
            log.info(
                "progress_not_copied", broker_id=member.broker_id, reason="it is not registered: nobody knows where"
            )
            return False
        try:
            async with self._peer(endpoint) as peer:
                is_copied = await peer.copy_progress(self._host.identity)
        except PeerUnavailable as error:
            log.info("progress_not_copied", replica=endpoint, reason=str(error))
            return False
        if not is_copied:
            log.info("progress_not_copied", replica=endpoint, reason="it does not follow us just now")
        return is_copied

    async def _tell(self, successor: Replica) -> None:
        endpoint = self._host.member_metadata(successor.broker_id)
        if endpoint is None:
            return
        try:
            async with self._peer(endpoint) as peer:
                await peer.record_changed(self._host.identity)
        except PeerUnavailable as error:
            log.info("successor_not_told", replica=endpoint, reason=str(error), consequence="it looks within a second")

    async def claim_unclean(self, *, dry_run: bool) -> UncleanClaim:
        """Makes this broker master although it may lack what was acknowledged: an operator knows that the others of the
        in-sync set are gone for good. Returns when it has begun, and the log says so. ClaimRefused: not now, or not
        needed. Once begun it goes on to its end, also when the caller is cancelled."""
        return await self._whoever_asked(self._claim_unclean_in_turn(dry_run=dry_run))

    async def _claim_unclean_in_turn(self, *, dry_run: bool) -> UncleanClaim:
        async with self._turn:
            try:
                await self._read()
            except AuthorityUnavailable as error:
                raise ClaimRefused(f"the authority is away: {error}") from error
            member, record = self._member, self.record
            if member.epoch or self._is_unclean:
                raise ClaimRefused("this broker is the master, or about to be")
            if not member.may_be_named(self._now_ms()):
                raise ClaimRefused(
                    "the group has a master whose lease runs, or this broker has not watched for a whole lease yet; "
                    "look at tandemmq ha status, and try again"
                )
            claim = await self._unclean_claim()
            if not dry_run:
                log.error(
                    "unclean_claim",
                    epoch=0 if record is None else record.epoch,
                    given_up=[memory.disk_id for memory in claim.missing],
                    lost_bytes=claim.lost_bytes,
                    end_offset=claim.end_offset,
                    reason="an operator made this broker master; what was acknowledged may be missing",
                )
                self._is_unclean = True
                await self._start_to_recover("an operator made this broker master")
            return claim

    async def _unclean_claim(self) -> UncleanClaim:
        record, me = self.record, self._member.me
        known = newest_memories(await self._host.remembered())
        if record is not None and self._member.is_set_known:
            missing = tuple(
                known.get(replica.disk_id) or ReplicaMemory(replica.broker_id, replica.disk_id)
                for replica in sorted(record.in_sync - {me})
            )
        else:
            # Nobody knows who held all that was acknowledged: it may be any member that does not answer.
            missing = tuple(
                memory
                for memory in sorted(known.values(), key=lambda one: (one.broker_id, one.disk_id))
                if memory.disk_id != me.disk_id and self._host.member_metadata(memory.broker_id) is None
            )
        end_offset = self._host.raw_end_offset
        lost_bytes = max((memory.end_offset - end_offset for memory in missing), default=0)
        return UncleanClaim(missing, end_offset, max(0, lost_bytes))

    async def leave(self) -> None:
        """The process ends in order: another member becomes master before, if one can."""
        if self._mastership is None or not self._mastership.epoch:
            return
        try:
            await self.hand_over()
        except HandOverRefused as error:
            log.info("nobody_takes_over", reason=str(error))

    # Inside

    async def _read(self) -> None:
        self._held = await self._authority.read()
        self.is_authority_away = False
        record = None if self._held is None else self._held.record
        version = None if self._held is None else self._held.version
        heard_ms = self._now_ms()
        if record is not None:
            await self._see(record)
        self._member.heard(record, version, now_ms=heard_ms)
        if (newer := self._member.put_back_behind) is not None:
            await self._host.member.hold_to(newer)

    async def _see(self, record: GroupRecord) -> None:
        """Another set or epoch is on our disk before anything follows from it, and NameServers hear of it at once: were
        the authority put back behind it and we gone, nobody else would know."""
        known = self._host.member.record_version
        await self._host.member.see_record(record)
        if self._host.member.record_version != known:
            self._host.record_seen()

    def _lead_clients(self) -> None:
        if self.acts and self._host.role.is_serving:
            self._lead(lambda service: service.lead_here(self.epoch, now_ms=self._now_ms()))

    def _lead(self, lead: Callable[[GroupService], Coroutine[Any, Any, None]]) -> None:
        """Beside everything else: nothing waits for it."""
        if self._service is not None and (self._leading is None or self._leading.done()):
            self._leading = asyncio.create_task(lead(self._service))

    def _note_problem(self, problem: str, *, is_alarm: bool = False) -> None:
        # One that lasts is told once, whatever else its text says.
        if problem and problem.partition(":")[0] != self.problem.partition(":")[0]:
            (log.error if is_alarm else log.info)("failover_waits", reason=problem)
        self.problem = problem

    def _note_away(self, error: AuthorityUnavailable) -> None:
        self.is_authority_away = True
        is_spoilt = isinstance(error, RecordSpoilt)
        self._note_problem(f"{UNREADABLE if is_spoilt else 'the authority is away'}: {error}", is_alarm=is_spoilt)

    def _note_claim(self, record: GroupRecord, reason: str, steps: _Steps) -> None:
        self._note_change(record, steps, is_master=True)
        self.claim_counts[reason] += 1
        self.claim_seconds.observe((self._now_ms() - steps.started_ms) / 1_000)

    def _note_change(self, record: GroupRecord, steps: _Steps, *, is_master: bool) -> None:
        change = ChangeOfMaster(
            epoch=record.epoch,
            is_master=is_master,
            reason=record.reason,
            at_wall_ms=self._host.clock.wall_ms(),
            took_ms=self._now_ms() - steps.started_ms,
            steps=tuple(steps.done),
        )
        self.last_changes = [*self.last_changes, change][-_CHANGES_MAX:]
        if self._trace is not None:
            self._trace(change)


def _ids(replicas: frozenset[Replica]) -> list[int]:
    return sorted(replica.broker_id for replica in replicas)
