"""What `tandemmq doctor --kube` says of a release's objects."""

from __future__ import annotations

from dataclasses import replace

from support.cluster_states import healthy_cluster
from support.kubernetes_release import FakeRelease, pod, stateful_set
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.cli.doctor.checks import Check, Verdict
from tandemmq.cli.doctor.kubernetes import ReleaseLook, check_release, look_at_release, pod_of
from tandemmq.cli.kube.release import ClaimState, DisruptionBudgetState, PodState

_BUDGET = DisruptionBudgetState("mq-broker-a", {"tandemmq.io/broker-group": "broker-a"}, 1, 2, 2)
_CLAIM = ClaimState("store-mq-broker-a-master-0", "Bound", "10Gi", "fast")


def _look(**changes: object) -> ReleaseLook:
    look = ReleaseLook(
        name="mq",
        stateful_sets=[
            stateful_set("mq-broker-a-master"),
            stateful_set("mq-broker-a-slave", home_role="slave", first_ordinal=1),
        ],
        pods=[
            pod("mq-broker-a-master-0", role="master"),
            pod("mq-broker-a-slave-1", home_role="slave", role="slave", node="node1"),
        ],
        claims=[_CLAIM],
        budgets=[_BUDGET],
    )
    return replace(look, **changes)  # type: ignore[arg-type]


def _with_slave(**changes: object) -> ReleaseLook:
    look = _look()
    return replace(look, pods=[look.pods[0], replace(look.pods[1], **changes)])  # type: ignore[arg-type]


def _only(look: ReleaseLook, state: ClusterState | None = None) -> Check:
    found = [check for check in check_release(look, state) if check.verdict is not Verdict.OK]
    assert len(found) == 1, found
    assert found[0].remedy
    return found[0]


def test_healthy_release_is_fine() -> None:
    checks = check_release(_look(), None)
    assert {check.verdict for check in checks} == {Verdict.OK}
    assert {check.area for check in checks} == {"pods", "volumes", "placement", "budgets", "revisions"}


def test_pod_that_is_not_ready_is_a_problem_with_its_reason() -> None:
    check = _only(_with_slave(ready=False, not_ready_reason="Unschedulable: 0/3 nodes are available"))
    assert (check.subject, check.verdict) == ("mq-broker-a-slave-1", Verdict.PROBLEM)
    assert "no node may take it" in check.remedy


def test_missing_pod_is_a_problem() -> None:
    look = _look()
    found = [check for check in check_release(replace(look, pods=look.pods[:1]), None) if check.area == "pods"]
    assert found[0].fact == "mq-broker-a-slave-1 is not there"


def test_restarts_are_a_note_and_killed_for_memory_a_warning() -> None:
    assert _only(_with_slave(restart_count=2, last_end="Error (1)")).verdict is Verdict.NOTE
    assert _only(_with_slave(restart_count=2, last_end="OOMKilled")).verdict is Verdict.WARNING


def test_job_that_is_over_is_no_member() -> None:
    done = pod("mq-rollout-x", component="rollout", broker_group="", phase="Succeeded", ready=False, owner="mq-rollout")
    look = _look()
    assert all(check.verdict is Verdict.OK for check in check_release(replace(look, pods=[*look.pods, done]), None))


def test_unbound_claim_is_a_problem() -> None:
    check = _only(_look(claims=[_CLAIM, ClaimState("store-x", "Pending", "10Gi", "slow")]))
    assert (check.area, check.subject) == ("volumes", "store-x")


def test_group_on_one_node_is_a_problem() -> None:
    check = _only(_with_slave(node="node0"))
    assert (check.area, check.verdict) == ("placement", Verdict.PROBLEM)
    assert "node0: mq-broker-a-master-0, mq-broker-a-slave-1" in check.fact


def test_name_servers_on_one_node_are_a_warning() -> None:
    servers: list[PodState] = [
        pod(f"mq-nameserver-{index}", component="nameserver", broker_group="") for index in range(2)
    ]
    look = _look()
    assert _only(replace(look, pods=[*look.pods, *servers])).verdict is Verdict.WARNING


def test_group_without_budget_is_a_warning() -> None:
    assert _only(_look(budgets=[])).area == "budgets"


def test_budget_that_allows_nothing_while_all_is_well_is_a_warning() -> None:
    assert "allows no disruption" in _only(_look(budgets=[replace(_BUDGET, disruptions_allowed=0)])).fact


def test_group_that_waits_at_the_gate_is_told() -> None:
    look = _look()
    waiting = replace(look.stateful_sets[0], update_revision="v2")
    check = _only(replace(look, stateful_sets=[waiting, look.stateful_sets[1]]))
    assert (check.area, check.verdict) == ("revisions", Verdict.WARNING)
    assert "tandemmq rollout" in check.remedy


def test_role_label_that_lies_is_a_warning() -> None:
    state = healthy_cluster()
    hosts = ("mq-broker-a-master-0.mq-broker-a-master.mq.svc", "mq-broker-a-slave-1.mq-broker-a-slave.mq.svc")
    brokers = tuple(
        replace(broker, metadata_endpoint=f"{host}:10911") for broker, host in zip(state.brokers, hosts, strict=True)
    )
    state = replace(state, brokers=brokers)
    look = _look()
    assert pod_of(brokers[0], look.pods) is look.pods[0]
    assert all(check.verdict is Verdict.OK for check in check_release(look, state))
    check = _only(_with_slave(role="master"), state)
    assert check.fact == "label tandemmq.io/role is master, the broker is a slave"


def test_kind_that_may_not_be_listed_is_a_note_and_no_problem() -> None:
    look = _look(budgets=[], denied={"poddisruptionbudgets": "403: forbidden"})
    assert _only(look).subject == "poddisruptionbudgets"


def test_release_of_which_nothing_is_there_is_a_problem() -> None:
    check = _only(ReleaseLook("mq", [], [], [], []))
    assert "helm list" in check.remedy


async def test_missing_rights_are_part_of_the_look() -> None:
    release = FakeRelease({"broker-a": 1})
    assert len((await look_at_release(release, "mq")).pods) == 4
    release.denied = True
    assert set((await look_at_release(release, "mq")).denied) == {"statefulsets", "pods"}
