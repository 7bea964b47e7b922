"""What one member does about its group's record. Whole groups are in tests/simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.core.replication.mastership import (
    STAGGER_MS,
    Claim,
    FailoverOptions,
    Follow,
    GroupRecord,
    Hold,
    MasterAbsence,
    Mastership,
    ReadsStep,
    RecordUnreadable,
    Recover,
    Replica,
    Sight,
    StepDown,
    Write,
)

OPTIONS = FailoverOptions()
A, B, C = (Replica(number, f"disk-{number}") for number in range(3))


def member(me: Replica = B, *, known: tuple[int, int] = (0, 0)) -> Mastership:
    return Mastership(me, nonce=f"nonce-{me.broker_id}", is_home_master=me == A, options=OPTIONS, known=known)


def record(*in_sync: Replica, master: Replica = A, epoch: int = 1, nonce: str = "nonce-0") -> GroupRecord:
    return GroupRecord(
        epoch=epoch, master=master, nonce=nonce, in_sync=frozenset({master, *in_sync}), lease_ms=OPTIONS.lease_ms
    )


def master_of(held: GroupRecord, *, me: Replica = A) -> Mastership:
    its = member(me)
    its.heard(None, None, now_ms=0)
    its.claimed(held, "1", sent_ms=0, now_ms=0)
    return its


# A member


def test_a_record_as_text_is_the_same_record() -> None:
    held = replace(record(B, C), successor=1, reason="why", changed_wall_ms=7).with_past(1, 0).with_past(2, 96)
    assert GroupRecord.from_text(held.to_text()) == held
    for text in ("", "{}", "[]", held.to_text().replace('"epoch": 1', '"epoch": 0')):
        with pytest.raises(RecordUnreadable):
            GroupRecord.from_text(text)


def test_who_heard_nothing_does_nothing() -> None:
    assert isinstance(member().next_step(now_ms=99_999, is_electable=True), Hold)


def test_the_first_record_is_written_by_the_home_master_after_it_heard_its_group() -> None:
    for me, step in ((A, Recover), (B, Hold)):
        one = member(me)
        one.heard(None, None, now_ms=0)
        assert isinstance(one.next_step(now_ms=99_999, is_electable=False), step)
        assert one.may_claim()


def test_a_member_of_the_set_claims_when_it_has_seen_one_version_for_a_whole_lease() -> None:
    one = member()
    one.heard(record(B), "1", now_ms=1_000)
    assert one.next_step(now_ms=6_999, is_electable=True) == Follow(A)
    one.heard(replace(record(B), renewals=1), "2", now_ms=6_999)
    assert one.next_step(now_ms=12_998, is_electable=True) == Follow(A)
    step = one.next_step(now_ms=12_999, is_electable=True)
    assert isinstance(step, Claim)
    assert (step.record.epoch, step.record.master, step.record.in_sync) == (2, B, frozenset({B}))


def test_a_successor_that_is_named_does_not_wait() -> None:
    one = member()
    one.heard(replace(record(B), successor=1), "1", now_ms=0)
    assert isinstance(one.next_step(now_ms=0, is_electable=True), Claim)
    other = member(C)
    other.heard(replace(record(B, C), successor=1), "1", now_ms=0)
    assert other.next_step(now_ms=0, is_electable=True) == Follow(A)


def test_who_is_not_in_the_set_never_claims() -> None:
    one = member(C)
    one.heard(record(B), "1", now_ms=0)
    assert one.next_step(now_ms=99_999, is_electable=True) == Follow(A)
    assert not one.may_claim()
    new_disk = member(Replica(1, "another disk"))
    new_disk.heard(record(B), "1", now_ms=0)
    assert new_disk.next_step(now_ms=99_999, is_electable=True) == Follow(A)


def test_who_did_not_reach_the_masters_end_hears_the_group_first() -> None:
    one = member()
    one.heard(record(B), "1", now_ms=0)
    assert isinstance(one.next_step(now_ms=6_000, is_electable=False), Recover)


def test_a_master_that_was_started_again_is_another_incarnation() -> None:
    one = member(A)
    one.heard(record(B, nonce="of the process before"), "1", now_ms=0)
    assert isinstance(one.next_step(now_ms=0, is_electable=False), Recover)
    assert one.claim("", epoch=0).epoch == 2


@pytest.mark.parametrize("now", [None, record(B, epoch=4), replace(record(B, epoch=5), renewals=2)])
def test_a_record_that_went_back_is_not_believed(now: GroupRecord | None) -> None:
    one = member(known=(5, 3))
    one.heard(now, "1", now_ms=0)
    step = one.next_step(now_ms=99_999, is_electable=True)
    assert isinstance(step, Hold)
    assert step.is_alarm
    assert one.put_back_behind == (5, 3)
    one.heard(replace(record(B, epoch=5), renewals=3), "2", now_ms=1)
    assert one.put_back_behind is None


@pytest.mark.parametrize("now", [None, record(B, epoch=4), replace(record(B, epoch=5), renewals=2)])
def test_an_operator_names_a_master_once_a_record_that_went_back_has_stood_still(now: GroupRecord | None) -> None:
    one = member(known=(5, 3))
    assert not one.may_be_named(99_999), "nothing was heard"
    one.heard(now, "1", now_ms=0)
    assert not one.may_be_named(OPTIONS.lease_ms - 1)
    assert one.may_be_named(OPTIONS.lease_ms)
    assert not one.is_set_known
    assert one.claim("", epoch=0).epoch == 6, "whoever has seen the lost record believes this one"
    assert one.promise(5, OPTIONS.lease_ms, now_ms=OPTIONS.lease_ms)
    assert not one.may_be_named(2 * OPTIONS.lease_ms - 1), "its master was promised so"
    assert one.may_be_named(2 * OPTIONS.lease_ms)


def test_nobody_is_named_in_a_group_that_never_had_a_record() -> None:
    one = member()
    one.heard(None, None, now_ms=0)
    assert not one.may_be_named(99_999)


def test_a_renewal_that_was_sent_twice_counts_from_the_first() -> None:
    its = master_of(record(B))
    renewal = replace(record(B), renewals=1)
    for sent_ms in (1_500, 9_000):
        its.sent(renewal, now_ms=sent_ms)
    its.heard(renewal, "2", now_ms=9_010)
    assert its.acts_until_ms == 1_500 + OPTIONS.lease_ms - OPTIONS.margin_ms


def test_a_promise_is_kept_and_ends() -> None:
    one = member()
    one.heard(record(B), "1", now_ms=0)
    assert one.promise(1, 6_000, now_ms=5_000)
    assert isinstance(one.next_step(now_ms=10_999, is_electable=True), Hold)
    assert isinstance(one.next_step(now_ms=11_000, is_electable=True), Claim)
    assert not one.promise(0, 6_000, now_ms=0), "of an earlier epoch"
    assert not one.promise(1, 6_001, now_ms=0), "for longer than a lease"
    one.sent(one.claim("", epoch=2), now_ms=11_000)
    assert not one.promise(1, 6_000, now_ms=11_000), "its claim is on its way"


def test_who_was_about_to_claim_does_not_when_the_master_is_back_meanwhile() -> None:
    one = member()
    one.heard(record(B), "1", now_ms=0)
    assert not one.is_vacant(5_999)
    assert one.is_vacant(6_000)
    one.heard(replace(record(B), renewals=1), "2", now_ms=6_100)
    assert not one.is_vacant(6_100), "it has renewed"
    assert one.is_vacant(12_100)
    assert one.promise(1, 6_000, now_ms=12_100)
    assert not one.is_vacant(12_100), "it cannot renew, and goes on"
    one.heard(replace(record(B), renewals=2, successor=1), "3", now_ms=12_200)
    assert one.is_vacant(12_200), "it names us"


# A master


def test_a_lease_is_counted_from_when_its_renewal_was_sent() -> None:
    its = master_of(record(B))
    assert its.may_act(4_999)
    assert not its.may_act(5_000)
    its.sent(replace(record(B), renewals=1), now_ms=3_000)
    its.written(replace(record(B), renewals=1), "2", sent_ms=3_000, now_ms=4_500)
    assert its.may_act(7_999)
    assert not its.may_act(8_000)


def test_a_renewal_that_nobody_answered_counts_when_it_is_read() -> None:
    its = master_of(record())
    renewed = replace(record(), renewals=1)
    its.sent(renewed, now_ms=4_000)
    its.heard(record(), "1", now_ms=4_500)
    assert not its.may_act(5_000)
    its.heard(renewed, "2", now_ms=5_500)
    assert its.may_act(8_999)


def test_an_acknowledgement_waits_for_old_set_and_new_set_until_no_outcome_is_open() -> None:
    its = master_of(record(B))
    its.sent(replace(record(C), renewals=1), now_ms=0)
    assert its.required == {B, C}
    its.heard(record(B), "1", now_ms=10)
    assert its.required == {B, C}, "the swap may still be applied: the version is the one it compares"
    its.heard(replace(record(B), renewals=2), "2", now_ms=20)
    assert its.required == {B}


def test_the_set_shrinks_by_who_stays_behind_and_never_below_its_minimum() -> None:
    its = master_of(record(B))
    assert its.next_write(now_ms=0, end_offset=100, acked={B: 100}) is None
    assert its.next_write(now_ms=1_499, end_offset=200, acked={}) is None
    step = its.next_write(now_ms=1_500, end_offset=200, acked={B: 99})
    assert isinstance(step, Write)
    assert step.record.in_sync == {A}
    strict = Mastership(A, nonce="nonce-0", is_home_master=True, options=replace(OPTIONS, min_in_sync=2))
    strict.heard(None, None, now_ms=0)
    strict.claimed(record(B), "1", sent_ms=0, now_ms=0)
    strict.next_write(now_ms=0, end_offset=100, acked={})
    step = strict.next_write(now_ms=9_000, end_offset=100, acked={})
    assert isinstance(step, Write)
    assert step.record.in_sync == {A, B}


def test_the_set_grows_by_who_has_what_the_log_held_when_it_began_to_be_waited_for() -> None:
    its = master_of(record())
    its.next_write(now_ms=0, end_offset=100, acked={B: 50})
    assert its.required == set(), "far behind"
    its.next_write(now_ms=100, end_offset=150, acked={B: 100})
    assert its.required == {B}, "near: waited for, and not written yet"
    assert its.record is not None
    assert its.record.in_sync == {A}
    step = its.next_write(now_ms=200, end_offset=160, acked={B: 150})
    assert isinstance(step, Write)
    assert step.record.in_sync == {A, B}


def test_who_joins_and_goes_away_is_not_waited_for_any_more() -> None:
    its = master_of(record())
    its.next_write(now_ms=0, end_offset=100, acked={B: 100})
    assert its.required == {B}
    its.next_write(now_ms=100, end_offset=200, acked={})
    assert its.required == set()


def test_a_master_steps_down_when_the_record_names_another() -> None:
    its = master_of(record(B))
    its.heard(record(master=B, epoch=2, nonce="nonce-1"), "2", now_ms=0)
    assert isinstance(its.next_write(now_ms=0, end_offset=0, acked={}), StepDown)


def test_who_has_resigned_gives_the_successor_a_lease_to_come() -> None:
    its = master_of(record(B))
    resignation = its.resignation(1)
    its.stepped_down(now_ms=100, has_resigned=True)
    its.heard(resignation, "2", now_ms=100)
    assert isinstance(its.next_step(now_ms=6_099, is_electable=True), Hold)
    assert isinstance(its.next_step(now_ms=6_100, is_electable=True), Recover)


@pytest.mark.parametrize("older", [record(), None])
def test_a_master_acknowledges_by_the_later_set_although_the_authority_was_put_back(older: GroupRecord | None) -> None:
    """It steps down a moment later. Who was in the later set may claim, and has to have what is acknowledged."""
    held = record(B)
    its = master_of(replace(held, renewals=3))
    its.heard(older, "0", now_ms=1_000)
    assert its.required == {B}
    assert isinstance(its.next_write(now_ms=1_000, end_offset=0, acked={}), StepDown)


# One end of the connection between a master and a member is gone


def test_a_member_whose_master_has_left_claims_when_the_record_stands_still() -> None:
    one = member()
    one.heard(record(B), "1", now_ms=0)
    one.master_left(1, now_ms=1_000)
    assert one.next_step(now_ms=2_999, is_electable=True) == Follow(A)
    assert not one.is_vacant(2_999)
    step = one.next_step(now_ms=3_000, is_electable=True)
    assert isinstance(step, Claim)
    assert step.record.reason == "the master's process has ended"
    assert one.is_vacant(3_000)


def test_a_master_that_renews_has_not_left() -> None:
    one = member()
    for number in range(100):
        now_ms = 500 * number
        one.heard(replace(record(B), renewals=number), f"{number}", now_ms=now_ms)
        if number == 3:
            one.master_left(1, now_ms=now_ms)
        assert one.next_step(now_ms=now_ms + 499, is_electable=True) == Follow(A)


def test_that_a_master_has_left_is_old_news_after_a_lease_and_in_another_epoch() -> None:
    one = member()
    one.heard(record(B), "1", now_ms=0)
    one.master_left(1, now_ms=0)
    one.heard(replace(record(B), renewals=1), "2", now_ms=5_000)
    assert one.next_step(now_ms=7_500, is_electable=True) == Follow(A)
    one.master_left(1, now_ms=8_000)
    one.heard(record(B, epoch=2), "3", now_ms=8_000)
    assert one.next_step(now_ms=10_500, is_electable=True) == Follow(A)
    # Whoever was followed before that closes its port now.
    one.master_left(1, now_ms=10_500)
    assert one.next_step(now_ms=12_500, is_electable=True) == Follow(A)
    one.master_left(2, now_ms=12_500)
    assert isinstance(one.next_step(now_ms=14_500, is_electable=True), Claim)


def test_who_has_promised_or_not_followed_to_the_end_waits_although_the_master_has_left() -> None:
    one = member()
    one.heard(record(B), "1", now_ms=0)
    one.master_left(1, now_ms=0)
    assert one.next_step(now_ms=2_000, is_electable=False) == Follow(A)
    assert one.promise(1, 4_000, now_ms=0)
    assert isinstance(one.next_step(now_ms=2_000, is_electable=True), Hold)
    assert not one.is_vacant(2_000)


def test_of_two_whose_master_has_left_one_claims_first() -> None:
    members = [member(B), member(C)]
    for one in members:
        one.heard(record(B, C), "1", now_ms=0)
        one.master_left(1, now_ms=0)
    steps = [one.next_step(now_ms=2_000, is_electable=True) for one in members]
    assert isinstance(steps[0], Claim)
    assert steps[1] == Follow(A)


@settings(max_examples=200)
@given(
    left_ms=st.integers(0, 3_000),
    seen_ms=st.integers(0, 3_000),
    renewed=st.lists(st.integers(0, 12_000), max_size=20),
    skew_ms=st.integers(0, 400),
)
def test_whoever_claims_because_the_master_has_left_finds_it_acting_no_more(
    left_ms: int, seen_ms: int, renewed: list[int], skew_ms: int
) -> None:
    """Both see the end of the connection; each renewal reaches the authority at once, and the member looks later."""
    master, one = master_of(record(B)), member(B)
    versions = {0: record(B), **{at: replace(record(B), renewals=n + 1) for n, at in enumerate(sorted(set(renewed)))}}
    for now_ms in range(0, 16_000, 100):
        due = [at for at in versions if now_ms - 100 < at <= now_ms]
        for at in due:
            if at and master.may_act(at):
                master.written(versions[at], f"{at}", sent_ms=at, now_ms=at)
            elif at:
                del versions[at]
        if now_ms <= left_ms + skew_ms < now_ms + 100:
            master.slave_left(B, now_ms=left_ms + skew_ms)
        if now_ms >= seen_ms:
            newest = max(at for at in versions if at <= now_ms)
            one.heard(versions[newest], f"{newest}", now_ms=now_ms)
        if now_ms <= left_ms < now_ms + 100 and one.record is not None:
            one.master_left(1, now_ms=left_ms)
        if isinstance(one.next_step(now_ms=now_ms, is_electable=True), Claim):
            assert not master.may_act(now_ms)
            return


def test_a_master_acts_as_before_once_the_slave_is_back_or_out_of_the_set() -> None:
    for acked, in_sync in (({B: 0}, record(B)), ({}, record())):
        its = master_of(record(B))
        its.slave_left(B, now_ms=0)
        assert its.acts_until_ms == 1_500
        its.written(replace(in_sync, renewals=1), "2", sent_ms=100, now_ms=100)
        its.next_write(now_ms=200, end_offset=0, acked=acked)
        assert its.acts_until_ms == 5_100


def test_a_master_renews_more_often_while_a_member_of_the_set_is_away() -> None:
    its = master_of(record(B))
    its.sent(record(B), now_ms=0)
    its.written(record(B), "2", sent_ms=0, now_ms=0)
    assert its.next_write(now_ms=600, end_offset=0, acked={B: 0}) is None
    its.slave_left(B, now_ms=600)
    assert isinstance(its.next_write(now_ms=600, end_offset=0, acked={}), Write)


def test_a_master_that_everybody_promised_acts_however_its_slave_left() -> None:
    its = master_of(record(B))
    its.slave_left(B, now_ms=0)
    its.promised_by_all(sent_ms=100)
    assert its.acts_until_ms == 5_100
    its.slave_left(C, now_ms=0)
    assert its.acts_until_ms == 5_100


# When a slave serves reads, by what it sees of its group.

GRACE_MS = 3_000


def after(sights: list[Sight], *, rank: int = 0) -> MasterAbsence:
    """One look a second."""
    reads = MasterAbsence(GRACE_MS)
    for second, sight in enumerate(sights):
        reads.look(sight, rank=rank, now_ms=second * 1_000)
    return reads


def test_it_serves_when_nobody_did_for_long_enough() -> None:
    assert not after([Sight.MASTER] + 3 * [Sight.NOBODY]).serves
    assert after([Sight.MASTER] + 4 * [Sight.NOBODY]).serves


def test_one_that_others_go_before_waits_longer() -> None:
    assert not after(4 * [Sight.NOBODY], rank=1).serves
    assert after(5 * [Sight.NOBODY], rank=1).serves
    assert STAGGER_MS == 1_000


def test_a_moment_of_a_master_begins_the_wait_anew() -> None:
    assert not after(3 * [Sight.NOBODY] + [Sight.MASTER] + 3 * [Sight.NOBODY]).serves


def test_a_master_that_waits_for_hours_does_not_keep_a_slave_from_serving() -> None:
    assert after(4 * [Sight.STARTING]).serves


@pytest.mark.parametrize("sight", [Sight.MASTER, Sight.READER])
def test_it_gives_way(sight: Sight) -> None:
    reads = after(4 * [Sight.NOBODY])
    assert reads.look(sight, rank=0, now_ms=4_000) is ReadsStep.END
    assert reads.look(sight, rank=0, now_ms=4_001) is ReadsStep.STAY


def test_no_name_server_begins_nothing_and_ends_nothing() -> None:
    assert not after(9 * [Sight.UNKNOWN]).serves
    assert not after(2 * [Sight.NOBODY] + 9 * [Sight.UNKNOWN]).serves
    assert after(4 * [Sight.NOBODY] + 9 * [Sight.UNKNOWN]).serves


def test_after_its_promise_it_gives_nothing_while_the_master_starts() -> None:
    reads = after(4 * [Sight.NOBODY])
    assert reads.promised() is ReadsStep.END
    for second in range(10, 100):
        assert reads.look(Sight.STARTING, rank=0, now_ms=second * 1_000) is ReadsStep.STAY
    assert not reads.serves


def test_a_master_that_dies_after_the_promise_does_not_silence_it_for_ever() -> None:
    reads = after(4 * [Sight.NOBODY])
    reads.promised()
    steps = [reads.look(Sight.NOBODY, rank=0, now_ms=10_000 + second * 1_000) for second in range(4)]
    assert steps == 3 * [ReadsStep.STAY] + [ReadsStep.BEGIN]


@given(st.sampled_from([Sight.NOBODY, Sight.STARTING, Sight.UNKNOWN]), st.integers(0, 3 * GRACE_MS))
def test_one_that_stood_still_gives_nothing_and_waits_anew(sight: Sight, still_ms: int) -> None:
    reads = after(4 * [Sight.NOBODY])
    woke_ms = 3_000 + still_ms
    is_late = still_ms >= GRACE_MS
    assert reads.stood_still(woke_ms) is is_late
    assert reads.look(sight, rank=0, now_ms=woke_ms) is (ReadsStep.END if is_late else ReadsStep.STAY)
    steps = [reads.look(Sight.NOBODY, rank=0, now_ms=woke_ms + second * 1_000) for second in range(1, 5)]
    assert steps == (3 * [ReadsStep.STAY] + [ReadsStep.BEGIN] if is_late else 4 * [ReadsStep.STAY])
    assert not reads.stood_still(woke_ms + 4_000)


@given(st.lists(st.one_of(st.sampled_from(Sight), st.none()), max_size=40))
def test_steps_and_state_agree(sights: list[Sight | None]) -> None:
    reads, serves = MasterAbsence(GRACE_MS), False
    for second, sight in enumerate(sights):
        step = reads.promised() if sight is None else reads.look(sight, rank=0, now_ms=second * 1_000)
        serves = step is ReadsStep.BEGIN or (serves and step is not ReadsStep.END)
        assert reads.serves is serves
        assert not (serves and sight in (Sight.MASTER, Sight.READER, None))
