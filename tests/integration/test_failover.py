"""A group of real processes changes its master, and loses nothing that it acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cluster_processes import wait_until
from support.failover_group import KINDS, FailoverGroup


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_acknowledged_is_lost(tmp_path: Path, kind: str) -> None:
    with FailoverGroup(tmp_path) as group:
        first = group.change(kind)
        again = group.change(kind)
        assert again.epoch >= first.epoch
        _check(group)


def test_three_replicas_change_twice(tmp_path: Path) -> None:
    with FailoverGroup(tmp_path, replicas=3) as group:
        assert group.hand_over(2) == 2
        wait_until(lambda: group.master() == 2, limit_s=10, what="broker 2 is the master")
        group.wait_whole()
        group.change("kill, left dead")
        _check(group)


def _check(group: FailoverGroup) -> None:
    group.stop_senders()
    assert len(group.acknowledged()) > 100
    wait_until(group.are_equal, limit_s=30, what="the replicas are equal")
    assert group.lost() == []


def test_an_operator_makes_a_member_master_that_lacks_something(tmp_path: Path) -> None:
    with FailoverGroup(tmp_path) as group:
        group.brokers[1].kill()
        group.wait_in_sync(1)
        group.stop_senders()
        group.brokers[0].kill()
        group.brokers[1].start()
        refused = group.claim_unclean(1, dry_run=True)
        assert isinstance(refused, str), "the lease of the old master may run"
        wait_until(
            lambda: not isinstance(group.claim_unclean(1, dry_run=True), str), limit_s=30, what="the lease is over"
        )
        claim = group.claim_unclean(1, dry_run=False)
        assert not isinstance(claim, str)
        assert [replica.broker_id for replica in claim.missing] == [0]
        assert claim.lost_bytes > 0
        wait_until(lambda: group.master() == 1, limit_s=30, what="broker 1 is the master")
        group.brokers[0].start()
        group.wait_whole()
        wait_until(group.are_equal, limit_s=30, what="the replicas are equal")
