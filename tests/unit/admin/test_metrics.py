"""Metrics of a cluster, read back as Prometheus would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from admin.cluster_cache import CachedCluster
from admin.cluster_state import NameServerState, SlaveState
from admin.metrics import METRICS, ClusterMetrics
from support.admin_readings import cached
from support.cluster_states import healthy_cluster, master, slave, with_broker
from support.manual_time import ManualTime

_DOCUMENT = Path(__file__).parents[3] / "docs" / "operations" / "admin.md"


def _scraped(cluster: CachedCluster, clock: ManualTime) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in text_string_to_metric_families(ClusterMetrics(cluster, clock=clock).exposition().decode()):
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


async def test_lag_and_in_sync_are_told_by_group_and_slave() -> None:
    cluster, _, clock = cached()
    await cluster.read_once()
    clock.advance(500)
    found = _scraped(cluster, clock)
    group = {"cluster": "DefaultCluster", "broker_group": "broker-a"}
    assert found[_key("rocketmq_store_ha_replication_lag_bytes", **group, slave="1")] == 67
    assert found[_key("rocketmq_store_ha_slaves_in_sync", **group)] == 1
    assert found[_key("rocketmq_store_ha_slaves_needed", **group)] == 1
    assert found[_key("rocketmq_store_ha_slave_following", **group, slave="1")] == 1
    leader = {**group, "broker_id": "0"}
    assert found[_key("rocketmq_broker_messages_put_total", **leader, status="FLUSH_SLAVE_TIMEOUT")] == 10
    assert found[_key("rocketmq_storage_flush_behind_bytes", **leader)] == 567
    assert found[_key("rocketmq_admin_read_age_seconds")] == 0.5
    assert found[_key("rocketmq_cluster_healthy")] == 1


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


async def test_unproven_connections_share_one_series() -> None:
    unknown = tuple(
        SlaveState(peer=f"10.0.0.9:{port}", broker_id=-1, acked_offset=0, lag_bytes=lag, in_sync=False, verified=False)
        for port, lag in ((40_000, 5), (40_001, 9))
    )
    cluster, _, clock = cached(with_broker(healthy_cluster(), master(slaves=unknown)))
    await cluster.read_once()
    group = {"cluster": "DefaultCluster", "broker_group": "broker-a"}
    assert _scraped(cluster, clock)[_key("rocketmq_store_ha_replication_lag_bytes", **group, slave="unproven")] == 9


async def test_metrics_are_those_of_the_list_and_all_of_them_are_documented() -> None:
    cluster, _, clock = cached(with_broker(healthy_cluster(), master(refused_counts={"WRONG_VERSION": 1})))
    await cluster.read_once()
    told = {name for name, _ in _scraped(cluster, clock) if name.startswith("rocketmq_")}
    assert told == {metric.name for metric in METRICS}
    document = _DOCUMENT.read_text(encoding="utf-8")
    for metric in METRICS:
        labels = " ".join(f"`{label}`" for label in metric.labels)
        assert f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |" in document
