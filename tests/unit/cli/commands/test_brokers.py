"""Brokers, replication, events and names to complete, at the command line, on a cluster in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import typer

from support.cli_cluster import FakeCluster, two_groups
from support.cluster_states import failover, master, slave, with_broker
from support.fake_cluster import WAITS
from tandemmq.admin.cluster_state import ChangeOfMaster, SlaveDeparture
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import LossWitness
from tandemmq.cli.cluster_address import ContextFile, Contexts
from tandemmq.cli.connection import ClusterChoice
from tandemmq.cli.ending import EXIT_REFUSED
from tandemmq.cli.options import complete_broker, complete_group, complete_topic

_FAST = ("--interval", "0.1")


def test_brokers_are_listed_with_those_that_are_away() -> None:
    cluster = FakeCluster()
    cluster.state = with_broker(cluster.state, replace(master(), status=None, error="UNAVAILABLE"))
    lines = cluster.run("broker", "list", *_FAST).splitlines()
    assert lines[1].split()[:4] == ["broker-a:0", "does", "not", "answer"]
    document = json.loads(cluster.run("broker", "list", *_FAST, "-o", "json"))
    assert document[0]["error"] == "UNAVAILABLE"
    assert document[1]["role"] == "SLAVE"


def test_settings_that_differ_come_first() -> None:
    cluster = FakeCluster()
    keys = [setting["key"] for setting in json.loads(cluster.run("broker", "config", "get", "broker-a", "-o", "json"))]
    assert keys.index("fileReservedTime") < keys.index("traceSampleRate")
    only = cluster.run("broker", "config", "get", "127.0.0.1:10911", "--key", "FILE", "--differs").splitlines()
    assert [line.split()[0] for line in only[1:]] == ["fileReservedTime"]


def test_settings_of_all_brokers_are_changed_once_all_agree() -> None:
    cluster = FakeCluster()
    planned = cluster.run("broker", "config", "set", "all", "fileReservedTime=24", "--dry-run")
    assert len(planned.splitlines()) == 1 + 4
    cluster.run("broker", "config", "set", "all", "fileReservedTime=24", "--yes")
    assert cluster.run("broker", "config", "set", "all", "fileReservedTime=24", "--yes") == "nothing changes\n"
    assert "x=VALUE" in cluster.failure("broker", "config", "set", "all", "x", "--yes").remedy
    assert cluster.failure("broker", "config", "set", "all", "nonsense=1", "--yes").exit_code == EXIT_REFUSED


def test_settings_are_not_changed_on_some_while_others_are_away() -> None:
    cluster = FakeCluster()
    cluster.state = with_broker(cluster.state, replace(master(), status=None, error="UNAVAILABLE"))
    failure = cluster.failure("broker", "config", "set", "all", "fileReservedTime=24", "--yes")
    assert failure.problem == "broker-a:0 does not answer; nothing was changed"


def test_unknown_broker_is_refused_with_those_there_are() -> None:
    failure = FakeCluster().failure("broker", "config", "get", "broker-z")
    assert "broker-b:1" in failure.cause


def test_write_permission_is_taken_and_given_back() -> None:
    cluster = FakeCluster()
    cluster.run("broker", "write-permission", "broker-a", "off", "--yes")
    assert not cluster.operations.cluster.writable["broker-a"]
    cluster.run("broker", "write-permission", "broker-a", "on", "--yes")
    assert cluster.operations.cluster.writable["broker-a"]


def test_a_loss_is_told_in_numbers_and_accepted_as_it_was_told() -> None:
    cluster = FakeCluster()
    assert "waits for nothing" in str(cluster.invoke("broker", "accept-loss", "broker-b", "--dry-run").exception)
    cluster.operations.cluster.waits["broker-b"] = WAITS
    shown = cluster.run("broker", "accept-loss", "broker-b", "--dry-run")
    assert "Known to be lost: 4,096 bytes" in shown
    assert "there may have been more" in shown
    witness = next(line for line in shown.splitlines() if "NameServer 10.0.0.2:9876" in line)
    assert witness.split()[2:] == ["broker-b:1", "d1", "2", "8,192", "4,096"]
    assert "broker-b:1" in shown
    assert cluster.failure("broker", "accept-loss", "broker-b").exit_code == EXIT_REFUSED, "nobody can be asked"
    assert cluster.operations.cluster.waits
    told = cluster.run("broker", "accept-loss", "broker-b", "--yes")
    assert "gave that up" in told
    assert not cluster.operations.cluster.waits


def test_a_loss_that_nobody_can_number_is_not_told_as_none() -> None:
    cluster = FakeCluster()
    heard = LossWitness("NameServer 10.0.0.2:9876", 0, "d0", 3, 4_096, 0)
    cluster.operations.cluster.waits["broker-b"] = replace(WAITS, lost_bytes=0, witnesses=(heard,))
    shown = cluster.run("broker", "accept-loss", "broker-b", "--dry-run")
    assert "Lost is what was written in epoch 3, which nobody in reach has heard of" in shown
    assert "not known how much" in shown
    assert " 0 bytes" not in shown
    cluster.operations.cluster.waits["broker-b"] = replace(WAITS, lost_bytes=0, witnesses=())
    assert "Nobody remembers more than that" in cluster.run("broker", "accept-loss", "broker-b", "--dry-run")


def test_a_master_that_serves_gives_nothing_up_and_forgets_who_is_away() -> None:
    cluster = FakeCluster()
    cluster.operations.cluster.waits["broker-b"] = replace(WAITS, serving=True, waits_for="", lost_bytes=0)
    shown = cluster.run("broker", "accept-loss", "broker-b", "--dry-run")
    assert "broker-b:0 serves, and waits for nothing. It keeps its log for members that are away:" in shown
    assert "nothing of it is given up" in shown
    assert "lost" not in shown
    told = cluster.run("broker", "accept-loss", "broker-b", "--yes")
    assert "broker-b:0 forgot them, and serves as before" in told
    assert "gave that up" not in told


def test_replication_shows_lag_and_who_left_and_why() -> None:
    gone = SlaveDeparture(peer="10.0.0.9:40000", broker_id=1, wall_clock_ms=0, reason="reset by peer", lag_bytes=4_096)
    cluster = FakeCluster(state=with_broker(two_groups(), master(slave_departures=(gone,))))
    output = cluster.run("ha", "status", *_FAST)
    assert any(line.split()[:5] == ["broker-a:1", "1,234,500", "67", "B", "0"] for line in output.splitlines())
    assert "reset by peer" in output
    document = json.loads(cluster.run("ha", "status", *_FAST, "--group", "broker-a", "-o", "json"))
    assert [group["broker_name"] for group in document] == ["broker-a"]
    assert document[0]["departures"][0]["lag_bytes"] == 4_096
    assert cluster.failure("ha", "status", *_FAST, "--group", "nobody").exit_code == EXIT_REFUSED


def test_group_without_its_master_is_told_as_that() -> None:
    cluster = FakeCluster()
    cluster.state = with_broker(cluster.state, replace(master(), status=None, error="UNAVAILABLE"))
    assert "its master does not answer: UNAVAILABLE" in cluster.run("ha", "status", *_FAST)


def test_events_can_be_narrowed() -> None:
    cluster = FakeCluster()
    found = json.loads(cluster.run("events", "--level", "warning", "-o", "json"))["events"]
    assert found
    assert {event["level"] for event in found} == {"warning"}
    assert cluster.run("events", "--source", "broker-b:0") == "nothing happened\n"


def test_events_of_a_source_that_is_none_are_refused_with_those_there_are() -> None:
    failure = FakeCluster().failure("events", "--source", "nope:0")
    assert (failure.problem, failure.exit_code) == ("there is no broker nope:0", EXIT_REFUSED)
    assert "broker-a:0" in failure.cause
    assert failure.remedy


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("clients", "--group", "nope"), "no group nope"),
        (("clients", "--topic", "nope"), "no topic nope"),
        (("transaction", "list", "--topic", "nope"), "no topic nope"),
        (("restore-kept-tail", "--broker", "nope:0"), "no broker nope:0"),
    ],
)
def test_a_filter_that_names_nothing_is_refused(words: tuple[str, ...], problem: str) -> None:
    assert problem in FakeCluster().failure(*words).problem


def _tab(cluster: FakeCluster) -> typer.Context:
    choice = ClusterChoice(connect=cluster.connect)
    return cast(typer.Context, SimpleNamespace(params={}, find_object=lambda _: choice))


def test_level_that_is_none_is_refused() -> None:
    assert FakeCluster().failure("events", "--level", "debug").remedy == "choose one of info, warning, error, critical"


def test_names_are_completed() -> None:
    ctx = _tab(FakeCluster())
    assert complete_topic(ctx, "or") == ["orders"]
    assert complete_group(ctx, "b") == ["billing"]
    assert complete_broker(ctx, "broker-b") == ["broker-b:0", "broker-b:1"]


def test_cluster_that_does_not_answer_completes_nothing_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster()
    cluster.operations.down = OperationFailed(FailureKind.UNAVAILABLE, "nobody answers")
    assert complete_topic(_tab(cluster), "") == []
    ContextFile().write(Contexts("gone", {}))
    assert (
        complete_topic(cast(typer.Context, SimpleNamespace(params={"context": "gone"}, find_object=lambda _: None)), "")
        == []
    )
    assert capfd.readouterr() == ("", "")


# What `tandemmq failover` says and does, and how `ha status` tells of groups that fail over.


def test_a_hand_over_says_from_whom_to_whom_and_asks() -> None:
    cluster = FakeCluster()
    planned = cluster.run("failover", "broker-a", "--dry-run")
    assert planned.strip() == "planned: broker-a:0, master in epoch 1, hands over to broker-a:1"
    assert cluster.failure("failover", "broker-a").exit_code == EXIT_REFUSED, "nobody can be asked"
    assert cluster.operations.cluster.masters["broker-a"] == (0, 1)
    told = cluster.run("failover", "broker-a", "--yes")
    assert "broker-a:0 handed over to broker-a:1, master in epoch 2" in told
    assert "took no sends for 90 ms at most" in told
    document = json.loads(cluster.run("failover", "broker-a", "--home", "--yes", "-o", "json"))
    assert (document["to_broker"], document["epoch"]) == ("broker-a:0", 3)
    assert "is the master already" in cluster.run("failover", "broker-a", "--home")


def test_home_and_a_number_exclude_each_other_and_a_wrong_number_is_told() -> None:
    cluster = FakeCluster()
    assert cluster.failure("failover", "broker-a", "--home", "--to", "1").exit_code == EXIT_REFUSED
    assert "choose one of 0, 1" in cluster.failure("failover", "broker-a", "--to", "7", "--yes").remedy


def test_an_unclean_change_names_its_master() -> None:
    assert FakeCluster().failure("failover", "broker-a", "--unclean", "--yes").problem == "--unclean needs --to"


def test_an_unclean_change_that_gives_nobody_up_is_no_hand_over() -> None:
    """Of the master that was, too: its authority has lost the record."""
    cluster = FakeCluster()
    planned = cluster.run("failover", "broker-a", "--to", "0", "--unclean", "--dry-run")
    assert planned.startswith("planned: broker-a:0 becomes the master; nobody is given up")
    told = cluster.run("failover", "broker-a", "--to", "0", "--unclean", "--yes")
    assert told.startswith("broker-a:0 becomes the master; nobody is given up")
    assert told.strip().endswith("it serves in epoch 1")


def test_two_groups_are_not_one() -> None:
    refusal = FakeCluster().failure("ha", "status", "broker-a", "--group", "broker-b")
    assert refusal.problem == "broker-a and --group broker-b are two groups"


def test_replication_shows_the_record_the_members_and_the_last_changes() -> None:
    change = ChangeOfMaster(2, True, "the master handed over", 1_700_000_000_000, 58)
    state = with_broker(two_groups(), master(failover=failover(acts=True, changes=(change,))))
    state = with_broker(state, slave(failover=replace(failover(is_electable=True), problem="it waits")))
    cluster = FakeCluster(state=state)
    words = [line.split() for line in cluster.run("ha", "status", "broker-a", *_FAST).splitlines()]
    assert ["broker-a", "2", "broker-a:0"] in [line[:3] for line in words]
    assert ["broker-a:0", "SYNC_MASTER", "in", "-", "is", "master"] in words
    assert ["broker-a:1", "SLAVE", "in", "67", "B", "yes", "it", "waits"] in words
    assert any("58 ms the master handed over" in " ".join(line) for line in words)
    [group] = json.loads(cluster.run("ha", "status", "broker-a", *_FAST, "-o", "json"))
    assert group["failover"]["in_sync"] == ["broker-a:0", "broker-a:1"]
    assert "broker-b" in cluster.run("ha", "status", "broker-b", *_FAST)


def test_status_names_master_epoch_and_set_of_a_group_that_fails_over() -> None:
    state = with_broker(two_groups(), master(failover=failover(acts=True)))
    words = [line.split() for line in FakeCluster(state=state).invoke("status").stdout.splitlines()]
    assert ["broker-a", "broker-a:0", "2", "broker-a:0", "broker-a:1"] in words
