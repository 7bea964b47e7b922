"""Kubernetes objects, as `kubectl get -o json` prints them, become the facts that matter."""

from __future__ import annotations

from typing import Any

from tandemmq.cli.kube.release import claim_state, disruption_budget_state, pod_state, stateful_set_state

_SET: dict[str, Any] = {
    "metadata": {"name": "mq-broker-a-slave", "generation": 3, "labels": {"app.kubernetes.io/component": "broker"}},
    "spec": {
        "replicas": 2,
        "ordinals": {"start": 1},
        "template": {
            "metadata": {"labels": {"tandemmq.io/broker-group": "broker-a", "tandemmq.io/home-role": "slave"}}
        },
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1000000}},
    },
    "status": {
        "observedGeneration": 3,
        "currentRevision": "mq-broker-a-slave-1",
        "updateRevision": "mq-broker-a-slave-2",
        "readyReplicas": 2,
    },
}


def _pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "mq-broker-a-slave-1",
            "labels": {
                "app.kubernetes.io/component": "broker",
                "tandemmq.io/broker-group": "broker-a",
                "tandemmq.io/role": "slave",
                "controller-revision-hash": "mq-broker-a-slave-2",
            },
            "ownerReferences": [{"kind": "StatefulSet", "name": "mq-broker-a-slave", "controller": True}],
        },
        "spec": {
            "nodeName": "node1",
            "containers": [{"name": "broker", "ports": [{"name": "grpc-metadata", "containerPort": 10911}]}],
        },
        "status": {"phase": "Running", "podIP": "10.1.2.3", **status},
    }


def _container(**changes: Any) -> dict[str, Any]:
    return {"name": "broker", "restartCount": 4, "started": False, "state": {"running": {}}, **changes}


def test_stateful_set_names_its_pods_from_its_first_ordinal() -> None:
    state = stateful_set_state(_SET)
    assert (state.broker_group, state.home_role, state.component) == ("broker-a", "slave", "broker")
    assert [state.pod_name(index) for index in range(state.replicas)] == ["mq-broker-a-slave-1", "mq-broker-a-slave-2"]
    assert state.partition == 1_000_000
    assert state.observed


def test_change_the_controller_has_not_seen_is_told() -> None:
    assert not stateful_set_state({**_SET, "metadata": {**_SET["metadata"], "generation": 4}}).observed


def test_ready_pod() -> None:
    state = pod_state(
        _pod(
            conditions=[{"type": "Ready", "status": "True"}],
            containerStatuses=[_container(started=True, restartCount=1)],
        )
    )
    assert (state.ready, state.started, state.broken, state.not_ready_reason) == (True, True, False, "")
    assert (state.owner, state.revision, state.node, state.role) == (
        "mq-broker-a-slave",
        "mq-broker-a-slave-2",
        "node1",
        "slave",
    )
    assert state.ports == {"grpc-metadata": 10911}


def test_pod_that_crashes_in_a_loop_says_how_it_ends() -> None:
    state = pod_state(
        _pod(
            conditions=[{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
            containerStatuses=[
                _container(
                    state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                    lastState={"terminated": {"reason": "Error", "exitCode": 2}},
                )
            ],
        )
    )
    assert state.broken
    assert state.not_ready_reason == "broker: CrashLoopBackOff back-off 40s; it ended with Error (2)"
    assert state.restart_count == 4


def test_pod_no_node_may_take_is_broken() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.",
    }
    state = pod_state(_pod(phase="Pending", conditions=[condition]))
    assert state.broken
    assert "anti-affinity" in state.not_ready_reason


def test_pod_whose_probe_fails_is_not_broken() -> None:
    condition = {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "unready: [broker]"}
    state = pod_state(_pod(conditions=[condition], containerStatuses=[_container(started=True)]))
    assert not state.broken
    assert state.started
    assert state.not_ready_reason == "unready: [broker]"


def test_pod_killed_for_its_memory_says_so() -> None:
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    assert pod_state(_pod(containerStatuses=[_container(lastState=ended)])).last_end == "OOMKilled"


def test_new_pod_without_a_status_is_not_ready() -> None:
    state = pod_state({"metadata": {"name": "mq-admin-1"}})
    assert not state.ready
    assert not state.broken
    assert state.not_ready_reason


def test_claim_and_budget() -> None:
    claim = {
        "metadata": {"name": "store-mq-broker-a-master-0"},
        "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "10Gi"}}},
    }
    assert claim_state(claim).phase == "Pending"
    assert claim_state({**claim, "status": {"phase": "Bound", "capacity": {"storage": "12Gi"}}}).size == "12Gi"
    budget = disruption_budget_state(
        {
            "metadata": {"name": "mq-broker-a"},
            "spec": {"selector": {"matchLabels": {"tandemmq.io/broker-group": "broker-a"}}},
            "status": {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2},
        }
    )
    assert budget.disruptions_allowed == 1
    assert budget.match_labels == {"tandemmq.io/broker-group": "broker-a"}
