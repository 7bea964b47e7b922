"""The gate of rolling upgrades: who is restarted, when, and what it waits for."""

from __future__ import annotations

import pytest

from support.kubernetes_release import CLOSED, FakeRelease, pod, stateful_set
from support.manual_time import ManualTime
from tandemmq.cli.ending import CommandError
from tandemmq.cli.kube.rollout import CopyState, GroupState, MasterCopies, Rollout


class Run:
    """One rollout over a made-up release; a sleep of a second is a turn of it."""

    def __init__(
        self, release: FakeRelease, *, limit_s: int = 600, settle_s: int = 0, release_name: str = "mq"
    ) -> None:
        self.release = release
        self.lines: list[str] = []
        self._time = ManualTime()
        self.rollout = Rollout(
            release,
            release_name,
            release,
            clock=self._time,
            sleep=self._sleep,
            say=self.lines.append,
            limit_ms=limit_s * 1_000,
            settle_ms=settle_s * 1_000,
        )

    async def _sleep(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self._time.advance(1_000)
            self.release.turn()


async def test_slave_goes_first_and_master_only_with_its_slave_in_sync() -> None:
    release = FakeRelease({"broker-a": 1, "broker-b": 1})
    release.upgrade("v2")
    assert await Run(release).rollout.run() == ["broker-a", "broker-b"]
    assert [event for event in release.events if "nameserver" not in event] == [
        "gate mq-broker-a-slave 0",
        "delete mq-broker-a-slave-1 [mq-broker-a-slave-1]",
        "gate mq-broker-a-master 0",
        "delete mq-broker-a-master-0 [mq-broker-a-slave-1]",
        "gate mq-broker-a-slave closed",
        "gate mq-broker-a-master closed",
        "gate mq-broker-b-slave 0",
        "delete mq-broker-b-slave-1 [mq-broker-b-slave-1]",
        "gate mq-broker-b-master 0",
        "delete mq-broker-b-master-0 [mq-broker-b-slave-1]",
        "gate mq-broker-b-slave closed",
        "gate mq-broker-b-master closed",
    ]
    assert set(release.revisions().values()) == {"v2"}


async def test_name_servers_are_renewed_before_any_broker() -> None:
    release = FakeRelease({"broker-a": 1}, name_servers=3)
    release.upgrade("v2")
    await Run(release).rollout.run()
    kinds = ["nameserver" in event for event in release.events]
    assert kinds == sorted(kinds, reverse=True)
    assert sum(kinds) == 3


async def test_slaves_are_renewed_one_by_one_each_in_sync_before_the_next() -> None:
    release = FakeRelease({"broker-a": 2})
    release.upgrade("v2")
    await Run(release).rollout.run()
    assert [event for event in release.events if event.startswith("delete mq-broker")] == [
        "delete mq-broker-a-slave-2 [mq-broker-a-slave-1,mq-broker-a-slave-2]",
        "delete mq-broker-a-slave-1 [mq-broker-a-slave-1,mq-broker-a-slave-2]",
        "delete mq-broker-a-master-0 [mq-broker-a-slave-1,mq-broker-a-slave-2]",
    ]


async def test_master_that_hands_over_is_last_wherever_it_is() -> None:
    release = FakeRelease({"broker-a": 1}, fails_over=True)
    for revision, order in (("v2", ["slave-1", "master-0"]), ("v3", ["master-0", "slave-1"])):
        release.events.clear()
        release.upgrade(revision)
        assert await Run(release).rollout.plan() == [
            f"broker-a: renew mq-broker-a-{pod_name} ({pod_name.partition('-')[0]})" for pod_name in order
        ]
        assert await Run(release).rollout.run() == ["broker-a"]
        # Whoever is deleted, a slave is in sync.
        assert [event for event in release.events if event.startswith("delete mq-broker")] == [
            f"delete mq-broker-a-{order[0]} [mq-broker-a-{order[0]}]",
            f"delete mq-broker-a-{order[1]} [mq-broker-a-{order[0]}]",
        ]
        assert set(release.revisions().values()) == {revision}


async def test_master_among_two_slaves_hands_over_only_to_one_in_sync() -> None:
    release = FakeRelease({"broker-a": 2}, fails_over=True)
    release.masters["broker-a"] = "mq-broker-a-slave-2"
    release.upgrade("v2")
    await Run(release).rollout.run()
    deleted = [event for event in release.events if event.startswith("delete mq-broker")]
    assert deleted == [
        "delete mq-broker-a-master-0 [mq-broker-a-master-0,mq-broker-a-slave-1]",
        "delete mq-broker-a-slave-2 [mq-broker-a-master-0,mq-broker-a-slave-1]",
        "delete mq-broker-a-slave-1 [mq-broker-a-slave-1,mq-broker-a-slave-2]",
    ]


async def test_home_master_that_lags_keeps_the_master_from_being_restarted() -> None:
    release = FakeRelease({"broker-a": 1}, fails_over=True)
    release.masters["broker-a"] = "mq-broker-a-slave-1"
    release.lagging.add("mq-broker-a-master-0")
    release.upgrade("v2")
    with pytest.raises(CommandError) as failure:
        await Run(release, limit_s=60).rollout.run()
    assert "mq-broker-a-master-0 is not in sync" in failure.value.cause
    assert set(release.revisions().values()) == {"v1"}


async def test_group_of_which_nobody_is_master_is_not_touched() -> None:
    release = FakeRelease({"broker-a": 1}, fails_over=True)
    release.masters["broker-a"] = ""
    release.upgrade("v2")
    with pytest.raises(CommandError) as failure:
        await Run(release, limit_s=60).rollout.run()
    assert "no member of broker-a is its master" in failure.value.cause


async def test_group_of_the_newest_revision_is_left_alone() -> None:
    release = FakeRelease({"broker-a": 1})
    run = Run(release)
    assert await run.rollout.run() == []
    assert release.events == []
    assert run.lines == ["broker-a: up to date"]


async def test_group_without_slaves_is_renewed() -> None:
    release = FakeRelease({"broker-a": 0})
    release.upgrade("v2")
    assert await Run(release).rollout.run() == ["broker-a"]


async def test_slave_that_never_catches_up_keeps_its_master_from_being_restarted() -> None:
    release = FakeRelease({"broker-a": 1})
    release.upgrade("v2")
    release.lagging.add("mq-broker-a-slave-1")
    with pytest.raises(CommandError) as failure:
        await Run(release, limit_s=60).rollout.run()
    assert "mq-broker-a-slave-1 is not in sync, 5,000 bytes behind" in failure.value.cause
    assert "nothing was forced" in failure.value.problem
    assert failure.value.remedy
    assert set(release.revisions().values()) == {"v1"}
    assert not any(event.startswith("gate") for event in release.events)


async def test_bad_revision_stops_at_the_first_slave() -> None:
    release = FakeRelease({"broker-a": 1, "broker-b": 1})
    release.upgrade("v2")
    release.bad_revisions.add("v2")
    release.sets["mq-nameserver"].update = "v1"
    with pytest.raises(CommandError) as failure:
        await Run(release, limit_s=60).rollout.run()
    assert "CrashLoopBackOff" in failure.value.cause
    assert "helm rollback" in failure.value.remedy
    assert [name for name, revision in release.revisions().items() if revision == "v2"] == ["mq-broker-a-slave-1"]


async def test_way_back_from_a_bad_revision_does_not_wait_for_what_it_broke() -> None:
    release = FakeRelease({"broker-a": 1, "broker-b": 1})
    release.upgrade("v2")
    release.bad_revisions.add("v2")
    release.sets["mq-nameserver"].update = "v1"
    with pytest.raises(CommandError):
        await Run(release, limit_s=60).rollout.run()
    release.upgrade("v1")
    assert await Run(release).rollout.run() == ["broker-a"]
    assert set(release.revisions().values()) == {"v1"}


async def test_broken_master_is_renewed_before_its_slave_and_its_group_before_others() -> None:
    release = FakeRelease({"broker-a": 1, "broker-b": 1})
    release.bad_revisions.add("v2")
    master = release.sets["mq-broker-b-master"]
    assert master.pods[0] is not None
    master.pods[0].revision = master.current = "v2"
    release.upgrade("v3")
    assert await Run(release).rollout.run() == ["broker-b", "broker-a"]
    deleted = [event.split()[1] for event in release.events if event.startswith("delete mq-broker")]
    assert deleted == [
        "mq-broker-b-master-0",
        "mq-broker-b-slave-1",
        "mq-broker-a-slave-1",
        "mq-broker-a-master-0",
    ]


async def test_outdated_pod_that_runs_unready_is_waited_for_and_then_renewed() -> None:
    release = FakeRelease({"broker-a": 1})
    release.upgrade("v2")
    release.unready.add("mq-broker-a-slave-1")
    run = Run(release, limit_s=180)
    with pytest.raises(CommandError) as failure:
        await run.rollout.run()
    # It was renewed after two minutes; the new one, not ready either, keeps the master as it is.
    assert "mq-broker-a-slave-1 is not ready" in failure.value.cause
    assert release.revisions() == {"mq-broker-a-master-0": "v1", "mq-broker-a-slave-1": "v2"}


async def test_api_server_may_be_away_for_a_while() -> None:
    release = FakeRelease({"broker-a": 1})
    release.upgrade("v2")
    release.failures_left = 7
    run = Run(release)
    assert await run.rollout.run() == ["broker-a"]
    assert any("API server does not answer" in line for line in run.lines)


async def test_missing_right_ends_it_at_once() -> None:
    release = FakeRelease({"broker-a": 1})
    release.denied = True
    with pytest.raises(CommandError) as failure:
        await Run(release).rollout.run()
    assert failure.value.exit_code == 2
    assert "service account" in failure.value.remedy


async def test_unknown_release_is_refused() -> None:
    with pytest.raises(CommandError) as failure:
        await Run(FakeRelease({"broker-a": 1}), release_name="other").rollout.run()
    assert failure.value.exit_code == 2


async def test_plan_names_the_steps_and_changes_nothing() -> None:
    release = FakeRelease({"broker-a": 2, "broker-b": 1})
    release.upgrade("v2")
    assert await Run(release).rollout.plan() == [
        "broker-a: renew mq-broker-a-slave-2, mq-broker-a-slave-1 (slave)",
        "broker-a: renew mq-broker-a-master-0 (master)",
        "broker-b: renew mq-broker-b-slave-1 (slave)",
        "broker-b: renew mq-broker-b-master-0 (master)",
    ]
    assert release.events == []


async def test_clients_are_given_time_between_groups_and_not_after_the_last() -> None:
    release = FakeRelease({"broker-a": 1, "broker-b": 1})
    release.upgrade("v2")
    run = Run(release, settle_s=30)
    await run.rollout.run()
    assert sum("for clients to find its master again" in line for line in run.lines) == 1


async def test_long_wait_is_spoken_of_every_five_seconds() -> None:
    release = FakeRelease({"broker-a": 1})
    release.upgrade("v2")
    release.lagging.add("mq-broker-a-slave-1")
    run = Run(release, limit_s=61)
    with pytest.raises(CommandError):
        await run.rollout.run()
    assert sum("can spare a member" in line for line in run.lines) in range(10, 14)


async def test_gate_that_was_open_stays_open() -> None:
    release = FakeRelease({"broker-a": 0})
    release.upgrade("v2")
    release.sets["mq-broker-a-master"].partition = 0
    await Run(release).rollout.run()
    assert "gate mq-broker-a-master closed" not in release.events
    assert CLOSED not in {each.partition for each in release.sets.values()}


def _group() -> GroupState:
    master = stateful_set("mq-broker-a-master")
    slaves = stateful_set("mq-broker-a-slave", home_role="slave", first_ordinal=1)
    pods = [pod("mq-broker-a-master-0"), pod("mq-broker-a-slave-1")]
    return GroupState("broker-a", master, slaves, {each.name: each for each in pods})


def test_slave_must_hold_the_log_up_to_the_mark() -> None:
    copies = MasterCopies(error="", end_offset=500, slaves=(CopyState(1, 400, 100, in_sync=True),))
    assert _group().slaves_missing(copies, 400) == ""
    assert "holds 400 of 401 bytes" in _group().slaves_missing(copies, 401)


def test_slave_without_a_name_counts_once() -> None:
    nameless = CopyState(-1, 400, 100, in_sync=True)
    assert _group().slaves_missing(MasterCopies(error="", slaves=(nameless,)), 0) == ""
    assert "not connected" in _group().slaves_missing(MasterCopies(error=""), 0)


def test_master_that_refuses_writes_does_not_serve() -> None:
    assert "disk is full" in _group().master_missing(MasterCopies(error="", write_refusal="disk is full"))
