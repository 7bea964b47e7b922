"""What counts as degraded, and what the operator is told to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.cluster_states import failover, healthy_cluster, master, slave, with_broker
from tandemmq.admin.cluster_state import (
    BrokerState,
    ChangeOfMaster,
    ClusterState,
    DiskState,
    Finding,
    MasterLinkState,
    NameServerState,
    Severity,
    SlaveState,
    StartWait,
    diagnose,
    failover_of,
)
from tandemmq.core.replication.mastership import PUT_BACK, UNREADABLE

_HEALTHY = healthy_cluster()


def _only(state: ClusterState) -> Finding:
    findings = diagnose(state)
    assert len(findings) == 1, findings
    assert findings[0].remedy
    return findings[0]


def test_nothing_is_found_in_a_healthy_cluster() -> None:
    assert diagnose(_HEALTHY) == []


def test_silent_name_server_is_a_problem() -> None:
    silent = NameServerState(address="127.0.0.1:9877", error="UNAVAILABLE: refused", revision=0, brokers=())
    finding = _only(replace(_HEALTHY, name_servers=(_HEALTHY.name_servers[0], silent)))
    assert finding.subject == "NameServer 127.0.0.1:9877"
    assert "UNAVAILABLE: refused" in finding.problem


def test_name_servers_that_disagree_are_a_problem() -> None:
    partial = replace(_HEALTHY.name_servers[1], brokers=("broker-a:0",))
    finding = _only(replace(_HEALTHY, name_servers=(_HEALTHY.name_servers[0], partial)))
    assert "does not know broker-a:1" in finding.problem


def test_cluster_without_brokers_is_a_problem() -> None:
    servers = tuple(replace(server, brokers=()) for server in _HEALTHY.name_servers)
    assert _only(ClusterState(name_servers=servers, brokers=())).problem == "no broker is registered"


def test_what_a_broker_says_of_itself_is_a_problem() -> None:
    healthy = master()
    assert healthy.status is not None
    status = replace(healthy.status, problems=(("cannot read its config/topics.json", "start its slave"),))
    finding = _only(with_broker(_HEALTHY, replace(healthy, status=status)))
    assert finding == Finding(Severity.PROBLEM, "broker-a:0", "cannot read its config/topics.json", "start its slave")


_DISK = DiskState("/data", 100 << 30, 50 << 30, used_ratio=0.5, warning_ratio=0.9, next_file_bytes=1 << 30)


def _with_disk(key: str, used_ratio: float, free_bytes: int = 20 << 30, **changes: Any) -> ClusterState:
    disk = replace(_DISK, used_ratio=used_ratio, free_bytes=free_bytes)
    broker = slave(disk=disk, **changes) if key == "broker-a:1" else master(disk=disk, **changes)
    return with_broker(_HEALTHY, broker)


def test_disk_with_room_is_no_finding() -> None:
    for used_ratio in (0.0, 0.79):
        assert diagnose(_with_disk("broker-a:0", used_ratio)) == []


@pytest.mark.parametrize("key", ["broker-a:0", "broker-a:1"])
def test_disk_that_fills_up_is_told_before_sends_are_refused(key: str) -> None:
    finding = _only(_with_disk(key, 0.85))
    assert (finding.severity, finding.subject) == (Severity.NOTE, key)
    assert finding.problem.startswith("its disk fills up: 85% used, 20.0 GiB of 100.0 GiB free at /data; above 90%")


@pytest.mark.parametrize("key", ["broker-a:0", "broker-a:1"])
def test_full_disk_is_a_problem_though_nothing_was_sent_yet(key: str) -> None:
    finding = _only(_with_disk(key, 0.91, free_bytes=9 << 30))
    assert (finding.severity, finding.subject) == (Severity.PROBLEM, key)
    assert "its disk is full: 91% used, 9.0 GiB" in finding.problem
    assert "fileReservedTime" in finding.remedy


@pytest.mark.parametrize(("key", "then"), [("broker-a:0", "sends are refused"), ("broker-a:1", "it stops following")])
def test_disk_without_room_for_the_next_file_is_a_problem_at_any_ratio(key: str, then: str) -> None:
    assert diagnose(_with_disk(key, 0.6, free_bytes=1 << 30)) == []
    finding = _only(_with_disk(key, 0.6, free_bytes=(1 << 30) - 1))
    assert finding.severity is Severity.PROBLEM
    assert "no room for the CommitLog's next file of 1.0 GiB" in finding.problem
    assert finding.problem.endswith(then)


def test_refusal_for_want_of_room_is_one_finding_with_the_room() -> None:
    held = "the disk is 96% full; 3.0 GiB of the log are kept for group g: start its consumers"
    for refusal in ("the disk is full", held):
        told = ((held, "see who reads behind"),) if refusal == held else ()
        finding = _only(_with_disk("broker-a:0", 0.96, write_refusal=refusal, problems=told))
        assert finding.problem.startswith(f"refuses writes: {refusal}; 96% used, 20.0 GiB of 100.0 GiB free")
        assert "make room" in finding.remedy


def test_who_keeps_the_files_of_a_full_disk_is_told_instead_of_the_disk() -> None:
    held = "the disk is 87% full; 3.0 GiB of the log are kept for group g: start its consumers"
    assert _only(_with_disk("broker-a:0", 0.87, problems=((held, "see who reads behind"),))).problem == held
    link = MasterLinkState(address="127.0.0.1:10912", state="disk full", master_end_offset=9, lag_bytes=5)
    assert (
        "does not follow its master: its disk is full"
        in _only(_with_disk("broker-a:1", 0.99, master_link=link)).problem
    )


def test_dead_master_leaves_its_group_without_one() -> None:
    dead = replace(master(), status=None, error="UNAVAILABLE", registered=False)
    subjects = [finding.subject for finding in diagnose(with_broker(_HEALTHY, dead))]
    assert subjects == ["broker group broker-a", "broker-a:0"]


def test_sync_master_without_slave_says_what_producers_get() -> None:
    finding = _only(with_broker(_HEALTHY, master(slaves=())))
    assert "SLAVE_NOT_AVAILABLE" in finding.problem
    assert finding.remedy == "start the slave of this group"


def test_sync_master_with_a_slave_far_behind_names_the_lag() -> None:
    behind = SlaveState(
        peer="127.0.0.1:40000", broker_id=1, acked_offset=0, lag_bytes=300_000_000, in_sync=False, verified=True
    )
    assert "300,000,000 bytes behind" in _only(with_broker(_HEALTHY, master(slaves=(behind,)))).problem


def test_async_master_without_slave_is_healthy() -> None:
    assert diagnose(with_broker(_HEALTHY, master(role="ASYNC_MASTER", slaves=(), needed_slave_count=0))) == []


def test_slave_that_does_not_follow_is_a_problem() -> None:
    link = MasterLinkState(address="", state="connecting", master_end_offset=0, lag_bytes=0)
    assert "connecting, master unknown" in _only(with_broker(_HEALTHY, slave(master_link=link))).problem


def test_a_peer_that_is_silent_for_longer_than_its_kernel_ever_is_is_a_problem() -> None:
    [one] = master().status.slaves  # type: ignore[union-attr]
    state = with_broker(_HEALTHY, master(slaves=(replace(one, silent_ms=3_900),)))
    assert "nothing came from slave 127.0.0.1:40000 for 4 s" in _only(state).problem
    assert diagnose(with_broker(_HEALTHY, master(slaves=(replace(one, silent_ms=3_100),)))) == []
    link = MasterLinkState("10.0.0.1:10912", "transfer", master_end_offset=0, lag_bytes=0, silent_ms=4_000)
    assert "from its master at 10.0.0.1:10912" in _only(with_broker(_HEALTHY, slave(master_link=link))).problem


def test_a_master_that_waits_is_one_problem_with_its_numbers_and_what_ends_it() -> None:
    wait = StartWait("a replica may hold more", 90, ("broker-a:1",), 4_096, acceptable=True, needs_operator=True)
    waiting = master(start_wait=wait, slaves=(), write_refusal="the broker is starting")
    finding = _only(with_broker(_HEALTHY, waiting))
    assert (finding.severity, finding.subject) == (Severity.PROBLEM, "broker-a:0")
    assert "waits for 90 s" in finding.problem
    assert "4,096 bytes are known to be missing" in finding.problem
    assert "start broker-a:1" in finding.remedy
    assert "`tandemmq broker accept-loss broker-a`" in finding.remedy
    rival = replace(wait, reason="another process is broker 0", missing=(), lost_bytes=0, acceptable=False)
    assert "accept-loss" not in _only(with_broker(_HEALTHY, master(start_wait=rival))).remedy


def test_a_slave_that_refuses_its_master_says_why_and_what_helps() -> None:
    link = MasterLinkState(
        "10.0.0.1:10912", "refusing", master_end_offset=0, lag_bytes=0, problem="it is shorter", remedy="restart it"
    )
    finding = _only(with_broker(_HEALTHY, slave(master_link=link)))
    assert "refuses to follow its master at 10.0.0.1:10912: it is shorter" in finding.problem
    assert finding.remedy == "restart it"


def test_what_a_broker_says_is_wrong_is_a_problem() -> None:
    state = with_broker(_HEALTHY, slave(problems=(("topics.json keeps what its master lacks", "make them again"),)))
    assert _only(state).problem == "topics.json keeps what its master lacks"


def test_a_master_with_less_than_a_slave_that_does_not_follow_is_a_problem() -> None:
    link = MasterLinkState("10.0.0.1:10912", "waiting", master_end_offset=0, lag_bytes=0)
    ahead = slave(master_link=link, end_offset=2_000_000, topic_count=3, group_count=1)
    problems = [each.problem for each in diagnose(with_broker(_HEALTHY, ahead)) if each.subject == "broker-a:0"]
    assert len(problems) == 3
    assert "765,433 bytes before its slave broker-a:1" in problems[0]
    assert "has 0 topics, its slave broker-a:1 has 3" in problems[1]


def test_no_remedy_says_that_a_tail_be_deleted() -> None:
    finding = _only(with_broker(_HEALTHY, slave(kept_tails=("kept-tails/0-9-1.log",))))
    assert "tandemmq restore-kept-tail" in finding.remedy
    assert "delete" not in finding.remedy


@pytest.mark.parametrize(("kept_bytes", "is_told"), [((1 << 30) - 1, False), (3 << 30, True)])
def test_what_repairs_have_kept_is_a_note_when_it_is_much(kept_bytes: int, *, is_told: bool) -> None:
    disk = replace(_DISK, kept_repairs_count=2, kept_repairs_bytes=kept_bytes)
    found = diagnose(with_broker(_HEALTHY, master(disk=disk)))
    assert [own.severity for own in found] == [Severity.NOTE] * is_told
    assert not is_told or "keeps 3.0 GiB in 2 files" in found[0].problem


def test_a_slave_whose_disk_is_full_says_that() -> None:
    link = MasterLinkState(address="10.0.0.1:10912", state="disk full", master_end_offset=9, lag_bytes=4_096)
    assert "its disk is full, 4,096 bytes" in _only(with_broker(_HEALTHY, slave(master_link=link))).problem


def test_write_refusal_is_shown_with_its_reason() -> None:
    assert "disk is full" in _only(with_broker(_HEALTHY, master(write_refusal="disk is full"))).problem


def test_slave_refuses_writes_by_its_nature() -> None:
    assert diagnose(with_broker(_HEALTHY, slave(write_refusal="this broker is a slave"))) == []


def test_kept_tail_is_a_note_and_comes_last() -> None:
    state = with_broker(_HEALTHY, master(kept_tails=("kept-tails/0-9-1.log",), write_refusal="disk is full"))
    assert [finding.severity for finding in diagnose(state)] == [Severity.PROBLEM, Severity.NOTE]


def test_without_any_name_server_nobody_is_called_unregistered() -> None:
    state = healthy_cluster()
    servers = tuple(replace(server, error="refused", brokers=()) for server in state.name_servers)
    brokers = tuple(replace(broker, registered=False) for broker in state.brokers)
    findings = diagnose(ClusterState(name_servers=servers, brokers=brokers))
    assert [finding.subject for finding in findings] == [*(f"NameServer {each.address}" for each in servers), "cluster"]
    assert "no NameServer answers" in findings[-1].problem


def test_master_is_who_registered_as_it_then_who_says_so_then_who_has_id_0() -> None:
    known = replace(slave(), named_master=True)
    assert known.is_master
    assert not replace(master(), named_master=False).is_master
    unknown = replace(slave(), named_master=None)
    assert unknown.status is not None
    assert not unknown.is_master
    assert replace(unknown, status=replace(unknown.status, role="ASYNC_MASTER")).is_master
    assert not replace(unknown, status=None).is_master
    assert replace(master(), named_master=None, status=None).is_master


# Who is master of a group, made of what its members say; and what an operator is told to do about it.

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
    assert finding.problem.endswith("(the authority is away: no answer)")
    assert "bring the authority back" in finding.remedy


def test_a_group_whose_authority_was_put_back_is_told_whom_to_name() -> None:
    """Its home master runs, and cannot write a first record: members know of a later one."""
    lost = failover(in_sync=(), problem=f"the authority has no record, and this broker knows of more: {PUT_BACK}")
    findings = _findings(
        replace(master(role="SLAVE", failover=lost, end_offset=500), named_master=False),
        slave(failover=lost, end_offset=600),
    )
    what = [finding.problem for finding in findings]
    assert any("fails over to nobody" in problem for problem in what)
    remedies = {
        finding.remedy
        for finding in findings
        if "fails over to nobody" in finding.problem or "no working master" in finding.problem
    }
    assert len(remedies) == 1, "what a group without a master is told to do is no other thing"
    assert remedies.pop().endswith("tandemmq failover broker-a --to 1 --unclean")


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        ("the authority is away: no answer", "bring the authority back"),
        (f"{UNREADABLE}: no JSON", "put back a copy of the record of broker-a at etcd:10.0.0.5:2379"),
    ],
)
def test_a_group_without_a_master_and_without_its_authority_is_told_to_bring_that_back(
    problem: str, remedy: str
) -> None:
    away = failover(in_sync=(), authority_away=True, problem=problem)
    findings = _findings(
        replace(master(role="SLAVE", failover=away), named_master=False),
        slave(failover=away),
    )
    told = [one for one in findings if "no working master" in one.problem or "the authority" in one.problem]
    assert len(told) == 2
    assert all(finding.remedy.startswith(remedy) for finding in told)


def test_a_group_whose_members_are_all_there_is_not_told_to_start_them() -> None:
    hears = failover()
    findings = _findings(
        replace(master(role="SLAVE", disk_id="d0", failover=hears), named_master=False),
        slave(disk_id="d1", failover=hears),
    )
    [remedy] = [finding.remedy for finding in findings if "no working master" in finding.problem]
    assert remedy.startswith("wait some seconds: a member of its in-sync set hears the others")


def test_a_group_that_could_elect_nobody_says_whom_to_start() -> None:
    gone = replace(master(failover=_ACTS), status=None, error="UNAVAILABLE")
    outside = failover(in_sync=(0,))
    remedies = [finding.remedy for finding in _findings(gone, slave(failover=outside))]
    assert any("start a member of its in-sync set, broker 0" in remedy for remedy in remedies)


def test_members_on_other_disks_than_those_of_the_set_are_told_as_that() -> None:
    """All of them run, and nobody may be elected."""
    outside = failover(problem="")
    brokers = [
        replace(master(role="SLAVE", disk_id="new0", failover=outside), named_master=False),
        slave(disk_id="new1", failover=outside),
    ]
    remedies = [finding.remedy for finding in _findings(*brokers)]
    assert any("broker-a:0, broker-a:1 run on other disks than those of its in-sync set" in text for text in remedies)
    assert not any("start a member of its in-sync set" in text for text in remedies)
    group = failover_of(brokers)
    assert group is not None
    assert not any(one.in_sync for one in group.members)
    group = failover_of([brokers[0], slave(disk_id="d1", failover=outside)])
    assert group is not None
    assert [one.in_sync for one in group.members] == [False, True]


def test_a_group_that_elects_by_itself_is_waited_for() -> None:
    gone = replace(master(failover=_ACTS), status=None, error="UNAVAILABLE")
    remedies = [finding.remedy for finding in _findings(gone, slave(failover=_FOLLOWS))]
    assert any(remedy.startswith("wait some seconds") for remedy in remedies)


def test_a_set_of_one_is_a_problem() -> None:
    [finding] = _findings(master(failover=failover(acts=True, in_sync=(0,))), slave(failover=failover(in_sync=(0,))))
    assert "nobody could take over" in finding.problem
