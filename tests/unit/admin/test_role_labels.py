"""Role labels: what brokers say against what their pods show."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest
import structlog

from support.admin_readings import cached
from support.cluster_states import healthy_cluster, master, slave
from support.running_time import PATIENCE_S, until
from tandemmq.admin.cluster_state import BrokerState, ClusterState
from tandemmq.admin.role_labels import KubernetesPods, Pod, RoleLabels, roles_by_pod
from tandemmq.service.kubernetes_api import GROUP_LABEL, ROLE_LABEL, KubernetesUnavailable


def _in_pod(broker: BrokerState, pod: str) -> BrokerState:
    return replace(broker, metadata_endpoint=f"{pod}.mq-headless.messaging.svc.cluster.local:10911")


_STATE = ClusterState(
    name_servers=(),
    brokers=(_in_pod(master(), "mq-broker-a-master-0"), _in_pod(slave(), "mq-broker-a-slave-1")),
)


@dataclass
class _FakePods:
    """Pods with labels; `failure` is raised instead of an answer."""

    labels: dict[str, dict[str, str]]
    patched: list[tuple[str, str]] = field(default_factory=list)
    failure: str = ""
    calls: int = 0

    def list_brokers(self) -> list[Pod]:
        self.calls += 1
        if self.failure:
            raise KubernetesUnavailable(self.failure)
        return [Pod(name, dict(labels)) for name, labels in self.labels.items()]

    def set_label(self, pod_name: str, key: str, value: str) -> None:
        assert key == ROLE_LABEL
        self.labels[pod_name][key] = value
        self.patched.append((pod_name, value))


def _labels(pods: _FakePods) -> RoleLabels:
    return RoleLabels(pods, log=structlog.get_logger())


def test_new_pods_are_labelled_once() -> None:
    pods = _FakePods({"mq-broker-a-master-0": {}, "mq-broker-a-slave-1": {}})
    assert _labels(pods).label(_STATE) == {"mq-broker-a-master-0": "master", "mq-broker-a-slave-1": "slave"}
    assert _labels(pods).label(_STATE) == {}
    assert len(pods.patched) == 2


def test_exchanged_roles_are_relabelled() -> None:
    pods = _FakePods({"mq-broker-a-master-0": {ROLE_LABEL: "slave"}, "mq-broker-a-slave-1": {ROLE_LABEL: "slave"}})
    assert _labels(pods).label(_STATE) == {"mq-broker-a-master-0": "master"}


def test_silent_broker_keeps_the_label_it_has() -> None:
    state = replace(_STATE, brokers=(replace(_STATE.brokers[0], status=None, error="UNAVAILABLE"), _STATE.brokers[1]))
    pods = _FakePods({"mq-broker-a-master-0": {ROLE_LABEL: "slave"}})
    assert _labels(pods).label(state) == {}


def test_silent_broker_is_no_master_once_another_of_its_group_is() -> None:
    new_master = replace(_STATE.brokers[1], status=_STATE.brokers[0].status)
    state = replace(_STATE, brokers=(replace(_STATE.brokers[0], status=None, error="UNAVAILABLE"), new_master))
    pods = _FakePods(
        {
            "mq-broker-a-master-0": {ROLE_LABEL: "master", GROUP_LABEL: "broker-a"},
            "mq-broker-a-slave-1": {ROLE_LABEL: "slave", GROUP_LABEL: "broker-a"},
            "mq-broker-b-master-0": {ROLE_LABEL: "master", GROUP_LABEL: "broker-b"},
        }
    )
    assert _labels(pods).label(state) == {"mq-broker-a-master-0": "slave", "mq-broker-a-slave-1": "master"}


def test_pods_that_are_no_broker_of_ours_are_left_alone() -> None:
    pods = _FakePods({"mq-broker-a-master-7": {}, "127": {}})
    assert _labels(pods).label(_STATE) == {}


def test_addresses_name_no_pod() -> None:
    assert roles_by_pod(healthy_cluster()) == {}
    six = replace(master(), metadata_endpoint="[fd00::7]:10911")
    assert roles_by_pod(ClusterState(name_servers=(), brokers=(six,))) == {}


async def test_failing_kubernetes_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.admin.role_labels._PAUSE_S", 0.001)
    cluster, _, _ = cached(_STATE)
    await cluster.read_once()
    pods = _FakePods({"mq-broker-a-master-0": {}}, failure="cannot list the pods: 403 Forbidden")
    keeping = asyncio.create_task(_labels(pods).keep(cluster))
    async with asyncio.timeout(PATIENCE_S):
        await until(lambda: pods.calls >= 2)
        pods.failure = ""
        await until(lambda: pods.patched)
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping


def test_outside_a_pod_it_says_so() -> None:
    with pytest.raises(KubernetesUnavailable, match="no usable configuration"):
        KubernetesPods(instance="mq", namespace="messaging").list_brokers()
