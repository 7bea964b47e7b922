"""Who is master of a group, made of what its members say; and what an operator is told to do about it."""

from __future__ import annotations

from dataclasses import replace

from support.cluster_states import failover, healthy_cluster, master, slave, with_broker
from tandemmq.admin.cluster_state import BrokerState, ChangeOfMaster, Finding, diagnose
from tandemmq.admin.group_failover import failover_of

_ACTS = failover(acts=True)
_FOLLOWS = failover(is_electable=True)


def _findings(*brokers: BrokerState) -> list[Finding]:
    state = healthy_cluster()
    for broker in brokers:
        state = with_broker(state, broker)
    return diagnose(state)


def test_the_newest_record_tells_and_changes_are_those_that_made_a_master() -> None:
    became = ChangeOfMaster(2, True, "the master's lease is over", 5_000, 60)
    older = failover(
        epoch=1, master_id=1, changes=(ChangeOfMaster(1, False, "another broker is the master", 4_000, 0),)
    )
    group = failover_of([master(failover=replace(_ACTS, changes=(became,))), slave(failover=older)])
    assert group is not None
    assert (group.epoch, group.master, group.acts) == (2, "broker-a:0", True)
    assert group.in_sync == ("broker-a:0", "broker-a:1")
    assert [(change.broker, change.epoch) for change in group.changes] == [("broker-a:0", 2)]
    assert failover_of([master(), slave()]) is None


def test_a_group_that_fails_over_well_has_no_finding() -> None:
    assert _findings(master(failover=_ACTS), slave(failover=_FOLLOWS)) == []


def test_an_authority_that_is_away_is_a_problem_and_says_who_misses_it() -> None:
    away = replace(_FOLLOWS, authority_away=True, problem="the authority is away: no answer")
    [finding] = _findings(master(failover=_ACTS), slave(failover=away))
    assert finding.problem.startswith("broker-a:1 cannot reach the authority etcd:10.0.0.5:2379")
    assert "bring the authority back" in finding.remedy


def test_a_group_that_could_elect_nobody_says_whom_to_start() -> None:
    gone = replace(master(failover=_ACTS), status=None, error="UNAVAILABLE")
    outside = failover(in_sync=(0,))
    remedies = [finding.remedy for finding in _findings(gone, slave(failover=outside))]
    assert any("start a member of its in-sync set, broker 0" in remedy for remedy in remedies)


def test_a_group_that_elects_by_itself_is_waited_for() -> None:
    gone = replace(master(failover=_ACTS), status=None, error="UNAVAILABLE")
    remedies = [finding.remedy for finding in _findings(gone, slave(failover=_FOLLOWS))]
    assert any(remedy.startswith("wait some seconds") for remedy in remedies)


def test_a_set_of_one_is_a_problem() -> None:
    [finding] = _findings(master(failover=failover(acts=True, in_sync=(0,))), slave(failover=failover(in_sync=(0,))))
    assert "nobody could take over" in finding.problem
