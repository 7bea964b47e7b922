"""What a member of a group that fails over tells of it."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tandemmq.broker.client_api.forwarding import HeldOutcome
from tandemmq.broker.metrics import tell_failover
from tandemmq.broker.metrics_catalogue import BROKER_METRICS
from tandemmq.core.histogram import Histogram
from tandemmq.core.replication.mastership import GroupRecord, Replica
from tandemmq.service.metrics import MetricSamples

_RECORD = GroupRecord(
    epoch=7,
    master=Replica(0, "d0"),
    nonce="n",
    in_sync=frozenset({Replica(0, "d0"), Replica(1, "d1")}),
    lease_ms=6_000,
)
_BASE = ("c", "broker", "broker-a", "0")


def _told(**changes: object) -> dict[str, Any]:
    seconds = Histogram((0.1, 1.0))
    seconds.observe(0.5)
    member = {
        "record": _RECORD,
        "acts": True,
        "is_authority_away": False,
        "claim_counts": {"handed_over": 2, "lease_over": 0, "heard_group": 1},
        "claim_seconds": seconds,
    }
    samples = MetricSamples(BROKER_METRICS, base=_BASE)
    forwarder = SimpleNamespace(held_count=3, held_counts=dict.fromkeys(HeldOutcome, 0) | {HeldOutcome.TAKEN: 5})
    tell_failover(samples, cast("Any", SimpleNamespace(**member | changes)), cast("Any", forwarder))
    return {re.sub("^rocketmq_(store_ha|broker)_", "", family.info.name): family for family in samples.families()}


def _values(family: Any) -> list[float]:
    return [value for _, value in family.samples]


def test_the_master_tells_epoch_and_set_and_how_often_it_came() -> None:
    told = _told()
    assert _values(told["failover_epoch"]) == [7]
    assert _values(told["failover_acting"]) == [1]
    assert _values(told["in_sync_replicas"]) == [2]
    assert sorted(_values(told["failovers_total"])) == [0, 1, 2]
    assert "failover_duration_seconds" in told


@pytest.mark.parametrize("record", [_RECORD, None])
def test_another_member_tells_no_set(record: GroupRecord | None) -> None:
    told = _told(acts=False, is_authority_away=True, record=record)
    assert "in_sync_replicas" not in told
    assert _values(told["failover_authority_away"]) == [1]


@pytest.mark.parametrize("acts", [True, False])
def test_each_member_tells_the_calls_that_it_holds_and_how_they_end_from_the_first_moment(acts: bool) -> None:
    told = _told(acts=acts)
    assert _values(told["held_calls"]) == [3]
    ended = {labels[-1]: value for labels, value in told["held_calls_ended_total"].samples}
    assert ended == {"taken": 5, "no_master": 0, "caller_gone": 0, "no_room": 0}
