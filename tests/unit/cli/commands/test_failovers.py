"""What `tandemmq failover` says and does, and how `ha status` tells of groups that fail over."""

from __future__ import annotations

import json
from dataclasses import replace

from support.cli_cluster import FakeCluster, two_groups
from support.cluster_states import failover, master, slave, with_broker
from tandemmq.admin.cluster_state import ChangeOfMaster
from tandemmq.cli.failure import EXIT_REFUSED

_FAST = ("--interval", "0.1")


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
