"""Metrics of a cluster, read back as Prometheus would."""

from __future__ import annotations

from dataclasses import replace

import structlog
from prometheus_client.parser import text_string_to_metric_families

from support.admin_readings import cached, consistency_of
from support.audit_summaries import diverged_run, equal_group, equal_run, run_of
from support.cluster_states import healthy_cluster, slave, with_broker
from support.manual_time import ManualTime
from tandemmq.admin.cluster_reader import CachedCluster
from tandemmq.admin.cluster_state import NameServerState
from tandemmq.admin.consistency_runs import ConsistencyRuns
from tandemmq.admin.metrics import METRICS, ClusterMetrics
from tandemmq.broker.metrics_catalogue import BROKER_METRICS
from tandemmq.consistency.cluster_report import run_registry
from tandemmq.core.audit.run_summary import Outcome, Tier
from tandemmq.nameserver.name_server import NAME_SERVER_METRICS


def _scraped(
    cluster: CachedCluster, clock: ManualTime, consistency: ConsistencyRuns | None = None
) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    consistency = consistency or ConsistencyRuns(None, clock=clock, log=structlog.get_logger(), overdue_after_ms=0)
    metrics = ClusterMetrics(cluster, consistency, clock=clock)
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def _key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


async def test_only_the_service_itself_is_told_before_the_first_reading() -> None:
    cluster, _, clock = cached()
    names = {name for name, _ in _scraped(cluster, clock) if name.startswith("rocketmq_")}
    assert names == {"rocketmq_admin_info", "rocketmq_admin_reads_total"}


async def test_a_healthy_cluster_is_told_by_its_members() -> None:
    cluster, _, clock = cached()
    await cluster.read_once()
    clock.advance(500)
    found = _scraped(cluster, clock)
    leader = {"cluster": "DefaultCluster", "broker_group": "broker-a", "broker_id": "0"}
    assert found[_key("rocketmq_broker_up", **leader)] == 1
    assert found[_key("rocketmq_broker_registered", **leader)] == 1
    assert found[_key("rocketmq_admin_read_age_seconds")] == 0.5
    assert found[_key("rocketmq_cluster_healthy")] == 1


def test_what_a_broker_or_name_server_tells_of_itself_is_not_told_again() -> None:
    assert {metric.name for metric in METRICS} & {
        metric.name for metric in (*BROKER_METRICS, *NAME_SERVER_METRICS)
    } == set()


async def test_lost_members_count_as_zero() -> None:
    silent = NameServerState(address="127.0.0.1:9877", error="UNAVAILABLE", revision=0, brokers=())
    partial = replace(healthy_cluster().name_servers[0], address="127.0.0.1:9878", brokers=("broker-a:0",))
    state = with_broker(healthy_cluster(), replace(slave(), status=None, error="UNAVAILABLE", registered=False))
    cluster, _, clock = cached(replace(state, name_servers=(state.name_servers[0], silent, partial)))
    await cluster.read_once()
    found = _scraped(cluster, clock)
    broker = {"cluster": "DefaultCluster", "broker_group": "broker-a", "broker_id": "1"}
    assert found[_key("rocketmq_broker_up", **broker)] == 0
    assert found[_key("rocketmq_broker_registered", **broker)] == 0
    assert found[_key("rocketmq_nameserver_up", nameserver="127.0.0.1:9877")] == 0
    assert found[_key("rocketmq_nameserver_agrees", nameserver="127.0.0.1:9876")] == 1
    assert found[_key("rocketmq_nameserver_agrees", nameserver="127.0.0.1:9878")] == 0
    assert found[_key("rocketmq_cluster_healthy")] == 0


def test_last_good_run_is_told_beside_the_last_one() -> None:
    cluster, _, clock = cached()
    good = equal_run(run_id="20231114T210000Z-0000", finished_at="2023-11-14T21:00:00Z")
    bad = diverged_run(run_id="20231114T220000Z-0000", finished_at="2023-11-14T22:00:00Z")
    found = _scraped(cluster, clock, consistency_of(good, bad, clock=clock)[0])
    tier = {"cluster": "DefaultCluster", "tier": "quick"}
    group = {"cluster": "DefaultCluster", "broker_group": "broker-a"}
    assert found[_key("tandemmq_consistency_last_run_timestamp_seconds", **tier)] == 1_699_999_200
    assert found[_key("tandemmq_consistency_last_success_timestamp_seconds", **tier)] == 1_699_995_600
    assert found[_key("tandemmq_consistency_outcome", **tier, outcome="diverged")] == 1
    assert found[_key("tandemmq_consistency_findings", **group, kind="body-crc")] == 1
    sound = {**group, "broker_group": "broker-b"}
    assert found[_key("tandemmq_consistency_findings", **sound, kind="")] == 0
    assert found[_key("tandemmq_consistency_watermark_offset", **sound)] == 3 << 30
    assert found[_key("tandemmq_consistency_overdue")] == 0


def test_missed_run_is_told() -> None:
    cluster, _, clock = cached()
    late = equal_run(finished_at="2023-11-14T20:00:00Z")
    assert _scraped(cluster, clock, consistency_of(late, clock=clock)[0])[_key("tandemmq_consistency_overdue")] == 1


def test_what_a_run_pushes_has_the_names_and_meanings_of_what_is_scraped() -> None:
    known = {metric.name: (metric.meaning, set(metric.labels) - {"cluster", "tier"}) for metric in METRICS}
    summary = run_of([equal_group(outcome=Outcome.EQUAL)], tier=Tier.DEEP)
    pushed = list(run_registry(summary).collect())
    assert len(pushed) == 8
    for family in pushed:
        meaning, labels = known[family.name]
        # The gateway adds cluster and tier; groups and tiers never meet in one metric.
        assert {frozenset(sample.labels) for sample in family.samples} == {frozenset(labels)}
        assert family.documentation == meaning


async def test_metrics_are_those_of_the_list() -> None:
    cluster, _, clock = cached()
    await cluster.read_once()
    consistency, _ = consistency_of(equal_run(), clock=clock)
    told = {name for name, _ in _scraped(cluster, clock, consistency) if name.startswith(("rocketmq_", "tandemmq_"))}
    assert told == {metric.name for metric in METRICS}
