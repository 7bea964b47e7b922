"""What a member of a group that fails over tells of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tandemmq.broker.metrics import tell_failover
from tandemmq.broker.metrics_catalogue import BROKER_METRICS
from tandemmq.core.histogram import Histogram
from tandemmq.core.replication.mastership import GroupRecord, Replica
from tandemmq.service.metrics.exposition import MetricSamples

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
    tell_failover(samples, cast("Any", SimpleNamespace(**member | changes)))
    return {family.info.name.removeprefix("rocketmq_store_ha_"): family for family in samples.families()}


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
