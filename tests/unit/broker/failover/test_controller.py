"""What a broker that fails over confirms, and what becomes of an operator's change. Who becomes master, and when, is
the simulator's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import pytest
from structlog.testing import capture_logs

from support.group_records import RECORD
from support.running_time import until
from tandemmq.broker.failover import controller, turned_away
from tandemmq.broker.failover.authority import AuthorityUnavailable, Held, SwapLost
from tandemmq.broker.failover.controller import ClaimRefused, Failover, HandOverRefused, boot_time_ms
from tandemmq.broker.metadata_tables import NotSpread
from tandemmq.core.replication.log_history import Epoch, LogHistory
from tandemmq.core.replication.master_replica import SlaveView
from tandemmq.core.replication.mastership import FailoverOptions, GroupRecord, Replica
from tandemmq.core.routing.values import BrokerIdentity

END = 100
ME, OTHER = Replica(0, "M"), Replica(1, "S")
DEFAULTS = FailoverOptions()


@pytest.mark.parametrize(("is_master", "is_serving"), [(True, False), (False, True), (False, False)])
async def test_a_change_whose_write_outlasts_the_master_s_role_is_not_confirmed(
    is_master: bool, is_serving: bool
) -> None:
    """The next master has copied the tables, perhaps a moment before."""
    unused: Any = None
    host: Any = SimpleNamespace(role=SimpleNamespace(is_master=is_master, is_serving=is_serving))
    failover = Failover(host, authority=unused, options=FailoverOptions(), nonce="")
    with pytest.raises(NotSpread, match="master no more"):
        await failover.spread()


class SlowAuthority:
    """Has no answer to the first swaps, which may be applied all the same, and to some reads."""

    def __init__(self, *, unanswered: int, is_applied: bool, unread: int) -> None:
        self.held = Held(RECORD, "1")
        self.swaps = 0
        self._unanswered, self._is_applied, self._unread = unanswered, is_applied, unread

    async def read(self) -> Held:
        self._unread -= 1
        if self._unread >= 0:
            raise AuthorityUnavailable("silent")
        return self.held

    async def swap(self, before: Held, record: Any) -> Held:
        self.swaps += 1
        if before != self.held:
            raise SwapLost("another version")
        if self.swaps <= self._unanswered and not self._is_applied:
            raise AuthorityUnavailable("silent")
        self.held = Held(record, f"{before.version}+")
        if self.swaps <= self._unanswered:
            raise AuthorityUnavailable("silent")
        return self.held


@pytest.mark.parametrize("is_applied", [False, True])
@pytest.mark.parametrize("unread", [0, 2])
@pytest.mark.parametrize(("unanswered", "lease_ms"), [(0, 60_000), (1, 60_000), (3, 60_000), (1_000, 400)])
async def test_a_resignation_is_written_although_the_authority_is_slow_for_a_moment(
    unanswered: int, lease_ms: int, unread: int, is_applied: bool
) -> None:
    """The successor would wait for the lease. A swap without an answer is looked for, and not written twice."""
    authority: Any = SlowAuthority(unanswered=unanswered, is_applied=is_applied, unread=unread)

    async def see_record(record: Any) -> None:
        """It is on our disk."""

    host: Any = SimpleNamespace(member=SimpleNamespace(see_record=see_record, record_version=(1, 1)))
    heard = []
    member: Any = SimpleNamespace(
        heard=lambda record, version, now_ms: heard.append((record, version)), put_back_behind=None
    )
    failover = Failover(host, authority=authority, options=FailoverOptions(), nonce="")
    failover._mastership, failover._held = member, authority.held
    resignation = replace(RECORD, successor=1, renewals=RECORD.renewals + 1)
    await failover._write_resignation(resignation, boot_time_ms() + lease_ms)
    is_written = is_applied or unanswered < 1_000
    assert (authority.held.record == resignation) is is_written
    if is_written:
        assert heard[-1] == (resignation, authority.held.version)
        assert authority.swaps == (1 if is_applied else unanswered + 1)


async def test_a_hand_over_whose_caller_goes_away_goes_on_to_its_end() -> None:
    async with running_master() as (failover, host, _):
        host.role.waiting_count = 1
        asked = asyncio.create_task(failover.hand_over())
        await until(lambda: host.refusal is not None)
        asked.cancel()
        await asyncio.wait([asked])
        host.role.waiting_count = 0
        await until(lambda: not host.role.is_master)
        assert failover.record is not None
        assert failover.record.successor == OTHER.broker_id


async def test_a_hand_over_that_comes_to_nothing_while_its_caller_is_away_gives_the_master_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "_HAND_OVER_LIMIT_S", 0.05)
    async with running_master() as (failover, host, _):
        host.role.waiting_count = 1
        asked = asyncio.create_task(failover.hand_over())
        await until(lambda: host.refusal is not None)
        asked.cancel()
        await until(lambda: host.refusal is None)
        assert host.role.is_master


@pytest.mark.parametrize("reads", [True, False])
async def test_a_master_whose_authority_is_away_hands_over_to_nobody(*, reads: bool) -> None:
    """Nobody could be named: the group would have no master until the authority is back."""
    async with running_master() as (failover, host, authority):
        authority.writes, authority.reads = False, reads
        with pytest.raises(
            HandOverRefused, match=r"the authority is away: the disk is full; .*this one goes on meanwhile"
        ):
            await failover.hand_over()
        assert host.role.is_master
        assert host.refusal is None
        with pytest.raises(HandOverRefused, match="the authority is away"):
            failover.successor()
        authority.writes = authority.reads = True
        assert await failover.hand_over() == OTHER.broker_id


async def test_a_master_whose_lease_is_over_turns_its_clients_away_and_takes_them_again() -> None:
    """Refused, they would stay: the connection holds. Another member may be the master, and is at another address."""
    options = FailoverOptions(lease_ms=1_200, renew_ms=300, margin_ms=200, behind_ms=200)
    async with running_master(options, withholds=False) as (failover, host, authority):
        authority.reads = authority.writes = False
        await until(lambda: host.turns_away)
        assert host.refusal is not None
        authority.reads = authority.writes = True
        await until(lambda: not host.turns_away)
        assert failover.acts or not host.role.is_master


async def test_a_master_that_is_alone_in_the_set_keeps_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else can be the master, and it goes on."""
    options = FailoverOptions(lease_ms=1_200, renew_ms=300, margin_ms=200, behind_ms=200)
    async with running_master(options, withholds=False) as (failover, host, authority):
        monkeypatch.setattr(host.role, "slaves", list)
        await until(lambda: failover.record is not None and failover.record.in_sync == {ME})
        authority.reads = authority.writes = False
        await asyncio.sleep(1.6)  # Longer than the lease.
        assert host.refusal is None
        assert not host.turns_away


async def test_a_set_that_loses_a_member_is_a_warning_and_one_that_grows_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with capture_logs() as logs:
        async with running_master(DEFAULTS) as (failover, host, _authority):
            with monkeypatch.context() as patch:
                patch.setattr(host.role, "slaves", list)
                await until(lambda: failover.record is not None and failover.record.in_sync == {ME})
            await until(lambda: failover.record is not None and failover.record.in_sync == {ME, OTHER})
    levels = [(log["log_level"], len(log["after"])) for log in logs if log["event"] == "in_sync_set_changes"]
    assert levels == [("info", 2), ("warning", 1), ("info", 2)]


@pytest.mark.parametrize(
    ("renews", "reads", "gives", "expected"),
    [
        (True, True, False, True),
        (True, False, False, True),
        (False, False, False, True),
        (False, True, False, False),
        (True, True, True, False),
    ],
)
async def test_a_member_that_is_cut_off_turns_its_clients_away(
    monkeypatch: pytest.MonkeyPatch, *, renews: bool, reads: bool, gives: bool, expected: bool
) -> None:
    """From a master that goes on to renew, or from all: not where the master itself is away, and not while it gives
    messages without one."""
    monkeypatch.setattr(turned_away, "_DEAF_MS", 100)
    authority = MemoryAuthority()
    record = GroupRecord(1, ME, "there", frozenset({ME}), lease_ms=300)
    await authority.swap(None, record)
    options = FailoverOptions(lease_ms=300, renew_ms=75, margin_ms=50)
    async with running(Host(OTHER, is_home_master=False), authority, options) as (failover, host):
        await until(lambda: failover.record is not None)
        assert not host.turns_away
        host.role.hears_master, host.role.serves_reads = False, gives
        authority.reads = reads
        for renewals in range(1, 20):
            if renews:
                await authority.swap(authority.held, replace(record, renewals=renewals))
            await asyncio.sleep(0.04)
        assert host.turns_away is expected
        authority.reads = host.role.hears_master = True
        await until(lambda: not host.turns_away)


async def test_who_begins_to_give_messages_takes_the_clients_that_it_sent_away_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says that it gives, and who believes that comes before the record was read again."""
    monkeypatch.setattr(turned_away, "_DEAF_MS", 100)
    authority = MemoryAuthority()
    await authority.swap(None, GroupRecord(1, ME, "there", frozenset({ME}), lease_ms=300))
    options = FailoverOptions(lease_ms=300, renew_ms=75, margin_ms=50)
    async with running(Host(OTHER, is_home_master=False), authority, options) as (failover, host):
        await until(lambda: failover.record is not None)
        host.role.hears_master = authority.reads = False
        await until(lambda: host.turns_away)
        host.role.serves_reads = True
        failover.reads_begun()
        assert not host.turns_away


@pytest.mark.parametrize("hears", [True, False])
@pytest.mark.parametrize("renews", [True, False])
async def test_a_member_stands_in_for_a_master_that_is_silent_before_its_lease_is_over(
    *, renews: bool, hears: bool
) -> None:
    """Who dials a machine that is gone waits for 20 s."""
    stood_in: list[tuple[int, bool]] = []

    async def stand_in(epoch: int) -> None:
        stood_in.append((epoch, host.role.is_master))

    async def lead_here(epoch: int, *, now_ms: int) -> None:
        """Later."""

    authority = MemoryAuthority()
    record = GroupRecord(1, ME, "there", frozenset({ME, OTHER}), lease_ms=600)
    await authority.swap(None, record)
    options = FailoverOptions(lease_ms=600, renew_ms=150, margin_ms=100)
    async with running(Host(OTHER, is_home_master=False), authority, options) as (failover, host):
        service: Any = SimpleNamespace(stand_in=stand_in, lead_here=lead_here)
        failover._service = service
        await until(lambda: failover.record is not None)
        host.role.caught_up_epoch, host.role.hears_master = 1, hears
        for renewals in range(1, 30):
            if renews:
                await authority.swap(authority.held, replace(record, renewals=renewals))
            await asyncio.sleep(0.03)
    assert stood_in == ([] if renews or hears else [(1, False)])


async def test_an_unclean_claim_whose_caller_goes_away_goes_on_to_its_end() -> None:
    async with running_slave() as (failover, host, _):
        host.ends_slowly = True
        asked = asyncio.create_task(claim_when_the_lease_is_over(failover))
        await until(lambda: host.is_ending)
        asked.cancel()
        await asyncio.wait([asked])
        host.ends_slowly = False
        await until(lambda: host.role.is_master and host.role.is_serving)


async def test_an_operator_names_a_master_when_the_authority_has_lost_the_record() -> None:
    async with running_slave() as (failover, host, authority):
        authority.held = None
        await until(lambda: failover.problem)
        await claim_when_the_lease_is_over(failover)
        await until(lambda: host.role.is_master and host.role.is_serving)
        assert failover.record is not None
        assert failover.record.epoch == 2


async def claim_when_the_lease_is_over(failover: Failover) -> None:
    while True:
        try:
            await failover.claim_unclean(dry_run=False)
            return
        except ClaimRefused:
            await asyncio.sleep(0.01)


class MemoryAuthority:
    def __init__(self) -> None:
        self.held: Held | None = None
        self.reads = self.writes = True

    async def read(self) -> Held | None:
        if not self.reads:
            raise AuthorityUnavailable("the disk is full")
        return self.held

    async def swap(self, before: Held | None, record: GroupRecord) -> Held:
        if not self.writes:
            raise AuthorityUnavailable("the disk is full")
        if before != self.held:
            raise SwapLost("another version")
        count = 0 if before is None else int(before.version)
        self.held = Held(record, str(count + 1))
        return self.held

    async def close(self) -> None:
        pass


class Role:
    """A master's with a slave that has everything, or a slave's."""

    lacking_progress = ()
    caught_up_epoch = 0
    hears_master = True
    serves_reads = False

    def __init__(self, *, is_master: bool) -> None:
        self.is_master = is_master
        self.is_serving = not is_master
        self.waiting_count = 0

    def slaves(self) -> list[SlaveView]:
        view = SlaveView(1, "", OTHER.broker_id, END, 0, True, True, OTHER.disk_id, holds_all=True)
        return [view] if self.is_master else []

    def require(self) -> None:
        pass

    def give_up(self) -> None:
        pass


class Member:
    """The disk of the broker."""

    def __init__(self, disk_id: str) -> None:
        self.disk_id = disk_id
        self.record_version = (0, 0)
        self.history = LogHistory((Epoch(1, 0),))

    async def see_record(self, record: GroupRecord) -> None:
        self.record_version = record.epoch, record.renewals

    async def hold_to(self, version: tuple[int, int]) -> None:
        self.record_version = version


class Host:
    """A broker whose roles begin and end at once."""

    is_stopping = False
    raw_end_offset = END
    clock = SimpleNamespace(wall_ms=lambda: 0)

    def __init__(self, me: Replica, *, is_home_master: bool) -> None:
        self.identity = BrokerIdentity("C", "broker-a", me.broker_id)
        self.member = Member(me.disk_id)
        self.is_home_master = is_home_master
        self.role = Role(is_master=False)
        self.refusal: str | None = None
        self.ends_slowly = self.is_ending = self.turns_away = False

    def member_metadata(self, broker_id: int) -> str | None:
        return f"member-{broker_id}"

    async def remembered(self) -> list[Any]:
        return []

    def caught_up(self) -> None:
        pass

    def record_seen(self) -> None:
        pass

    def refuse(self, reason: str | None) -> None:
        self.refusal = reason

    def turn_clients_away(self, *, is_on: bool) -> None:
        self.turns_away = is_on

    def fail(self, failure: str) -> None:
        raise AssertionError(failure)

    async def settle_answers(self) -> None:
        pass

    async def end_role(self, reason: str) -> None:
        self.is_ending = True
        while self.ends_slowly:
            await asyncio.sleep(0.005)
        self.role.is_serving = False

    async def begin_master(self, seat: Failover, *, holds_all: bool, accepts_loss: bool = False) -> None:
        self.role = Role(is_master=True)
        await seat.claim(1, (0, 0))
        self.role.is_serving = True

    async def begin_slave(self) -> None:
        self.role = Role(is_master=False)


class Peer:
    """A member that does what it is asked."""

    def __init__(self, endpoint: str) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_failure: object) -> None:
        pass

    async def copy_progress(self, _asking: BrokerIdentity) -> bool:
        return True

    async def record_changed(self, _asking: BrokerIdentity) -> None:
        pass

    async def withhold_claim(self, _asking: BrokerIdentity, *, epoch: int, duration_ms: int) -> bool:
        return True


class DeafPeer(Peer):
    """The same, and it promises nothing."""

    async def withhold_claim(self, _asking: BrokerIdentity, *, epoch: int, duration_ms: int) -> bool:
        return False


@asynccontextmanager
async def running_master(
    options: FailoverOptions | None = None, *, withholds: bool = True
) -> AsyncIterator[tuple[Failover, Host, MemoryAuthority]]:
    authority = MemoryAuthority()
    peer: Any = Peer if withholds else DeafPeer
    async with running(Host(ME, is_home_master=True), authority, options, peer=peer) as (failover, host):
        await until(lambda: failover.acts and failover.record is not None and OTHER in failover.record.in_sync)
        yield failover, host, authority


@asynccontextmanager
async def running_slave() -> AsyncIterator[tuple[Failover, Host, MemoryAuthority]]:
    """Of a group whose master is gone, and was alone in the set."""
    authority = MemoryAuthority()
    await authority.swap(None, GroupRecord(1, ME, "gone", frozenset({ME}), lease_ms=50))
    options = FailoverOptions(lease_ms=300, renew_ms=75, margin_ms=50)
    async with running(Host(OTHER, is_home_master=False), authority, options) as (failover, host):
        await until(lambda: failover.record is not None)
        yield failover, host, authority


@asynccontextmanager
async def running(
    host: Any, authority: Any, options: FailoverOptions | None = None, *, peer: Any = Peer
) -> AsyncIterator[tuple[Failover, Any]]:
    options = options or DEFAULTS
    failover = Failover(host, authority=authority, options=options, nonce="N", peer=peer, now_ms=boot_time_ms)
    task = asyncio.create_task(failover.run())
    try:
        yield failover, host
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("is_applied", [False, True])
@pytest.mark.parametrize("unread", [0, 2])
@pytest.mark.parametrize(("unanswered", "lease_ms"), [(0, 60_000), (1, 60_000), (3, 60_000), (1_000, 400)])
async def test_a_claim_without_an_answer_is_looked_for(
    unanswered: int, lease_ms: int, unread: int, is_applied: bool, other: bool
) -> None:
    """Found later, it would be that of an earlier process, and wait for the master that has just been lost."""
    authority: Any = SlowAuthority(unanswered=unanswered, is_applied=is_applied, unread=unread)
    before = authority.held
    if other:
        authority.held = Held(replace(RECORD, renewals=RECORD.renewals + 1), "another")

    async def see_record(record: Any) -> None:
        """It is on our disk."""

    host: Any = SimpleNamespace(
        member=SimpleNamespace(see_record=see_record, record_version=(1, 1)),
        clock=SimpleNamespace(wall_ms=lambda: 1_700_000_000_000),
        is_stopping=False,
    )
    claimed = []
    member: Any = SimpleNamespace(
        sent=lambda record, now_ms: None,
        claimed=lambda record, version, sent_ms, now_ms: claimed.append((record, version)),
        epoch=0,
    )
    failover = Failover(host, authority=authority, options=FailoverOptions(lease_ms=lease_ms), nonce="")
    failover._mastership, failover._held = member, before
    record = replace(RECORD, epoch=RECORD.epoch + 1)
    is_ours = not other and (is_applied or unanswered < 1_000)
    assert await failover._swap_claim(record) is is_ours
    if is_ours:
        assert claimed == [(replace(record, changed_wall_ms=1_700_000_000_000), authority.held.version)]
        assert authority.swaps == (1 if is_applied else unanswered + 1)
    else:
        assert not claimed
