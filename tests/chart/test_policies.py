"""Where pods go, how many may be away, who may reach what, and who may ask Kubernetes for what."""

from __future__ import annotations

from typing import Any

import pytest

from chart.rendering import Rendered, render

GROUPS = ("broker-a", "broker-b")


@pytest.mark.parametrize("group", GROUPS)
def test_members_of_a_group_never_share_a_node(group: str) -> None:
    for role in ("master", "slave"):
        pod = render().pod_templates()[f"StatefulSet/mq-{group}-{role}"]["spec"]
        (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"]["matchLabels"]["tandemmq.io/broker-group"] == group
        zone, host = (
            wish["podAffinityTerm"]
            for wish in pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        )
        assert zone["topologyKey"] == "topology.kubernetes.io/zone"
        assert zone["labelSelector"] == term["labelSelector"]
        # Few brokers of whatever group on one node.
        assert host["topologyKey"] == "kubernetes.io/hostname"
        assert "tandemmq.io/broker-group" not in host["labelSelector"]["matchLabels"]
        # One key that every node has: a node that lacks one of several is not scored at all.
        (node,) = pod["topologySpreadConstraints"]
        assert node["topologyKey"] == "kubernetes.io/hostname"
        assert node["whenUnsatisfiable"] == "ScheduleAnyway"
        assert node["labelSelector"]["matchLabels"]["tandemmq.io/home-role"] == role


@pytest.mark.parametrize(("rule", "key"), [("soft", "preferredDuringSchedulingIgnoredDuringExecution"), ("none", None)])
def test_a_group_may_share_a_node_if_asked(rule: str, key: str | None) -> None:
    pod = render("--set", f"brokers.antiAffinity={rule}").pod_templates()["StatefulSet/mq-broker-a-slave"]["spec"]
    assert list(pod.get("affinity", {}).get("podAntiAffinity", {})) == ([key] if key else [])


def test_one_member_of_a_group_may_be_away_master_or_slave() -> None:
    budgets = render().kind("PodDisruptionBudget")
    assert set(budgets) == {"mq-nameserver", *(f"mq-{group}" for group in GROUPS)}
    for group in GROUPS:
        spec = budgets[f"mq-{group}"]["spec"]
        assert spec["maxUnavailable"] == 1
        matching = {
            name
            for name, template in render().pod_templates().items()
            if spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        }
        assert matching == {f"StatefulSet/mq-{group}-master", f"StatefulSet/mq-{group}-slave"}


# Who is listened to on a plane: pods of the release by name, "others" for pods it does not know.
_PEERS = {
    "NameServer": "StatefulSet/mq-nameserver",
    "master a": "StatefulSet/mq-broker-a-master",
    "slave a": "StatefulSet/mq-broker-a-slave",
    "slave b": "StatefulSet/mq-broker-b-slave",
    "admin": "Deployment/mq-admin",
    "rollout": "Job/mq-rollout",
    "test": "Pod/mq-test",
    "run": "CronJob/mq-consistency-quick",
    "executor": "Executor/mq-consistency-quick",
    "viewer": "Deployment/mq-trace-viewer",
}


_TRACED = ("--set", "tracing.enabled=true,tracing.viewer.enabled=true")


@pytest.mark.parametrize(
    ("to", "port", "welcome"),
    [
        ("master a", 8081, {*_PEERS, "others"}),
        ("master a", 10911, {"master a", "slave a", "slave b", "admin", "rollout", "test", "run", "executor"}),
        ("master a", 10912, {"master a", "slave a", "admin"}),
        ("slave a", 8081, {*_PEERS, "others"}),
        ("slave a", 10911, {"master a", "slave a", "slave b", "admin", "rollout", "test", "run", "executor"}),
        ("slave a", 10912, {"master a", "slave a", "admin"}),
        ("slave b", 10912, {"slave b", "admin"}),
        ("NameServer", 9876, {"master a", "slave a", "slave b", "admin", "rollout", "test", "run", "executor"}),
        ("admin", 8080, set()),
        ("master a", 5557, set()),
        ("viewer", 4317, {"master a", "slave a", "slave b"}),
        ("viewer", 16686, set()),
        ("NameServer", 5557, set()),
        ("run", 7078, {"executor"}),
        ("run", 7079, {"executor"}),
        ("executor", 7079, {"run", "executor"}),
        ("executor", 7078, set()),
    ],
)
def test_a_plane_lets_in_whom_it_serves(to: str, port: int, welcome: set[str]) -> None:
    rendered = render(*_TRACED, preset="2m-2s-sync")
    assert {peer for peer in (*_PEERS, "others") if _may(rendered, peer, to, port)} == welcome


def test_planes_open_for_those_who_are_named() -> None:
    rendered = render(
        "--set-json",
        'networkPolicy.client.from=[{"podSelector":{"matchLabels":{"who":"stranger"}}}]',
        "--set-json",
        'networkPolicy.metrics.from=[{"podSelector":{"matchLabels":{"who":"prometheus"}}}]',
    )
    assert not _may(rendered, "others", "master a", 8081)
    assert _may(rendered, "stranger", "master a", 8081)
    assert _may(rendered, "test", "master a", 8081)
    # Who passes a call on to the master.
    assert _may(rendered, "slave a", "master a", 8081)
    assert _may(rendered, "master a", "slave a", 8081)
    for to, port in (("admin", 8080), ("master a", 5557), ("slave b", 5557), ("NameServer", 5557)):
        assert _may(rendered, "prometheus", to, port), to
        assert not _may(rendered, "stranger", to, port), to
    assert not _may(rendered, "prometheus", "master a", 10911)


def test_the_trace_viewer_is_seen_by_whom_is_named() -> None:
    looker = '[{"podSelector":{"matchLabels":{"who":"looker"}}}]'
    rendered = render(*_TRACED, "--set-json", f"networkPolicy.traceViewer.from={looker}")
    assert _may(rendered, "looker", "viewer", 16686)
    assert not _may(rendered, "looker", "viewer", 4317)


def test_outside_clients_get_in_by_the_external_listener_only_if_there_is_one() -> None:
    assert not _may(render(), "others", "master a", 8082)
    assert _may(render("--set", "externalAccess.enabled=true"), "others", "master a", 8082)


def test_without_policies_there_are_none() -> None:
    assert not render("--set", "networkPolicy.enabled=false").kind("NetworkPolicy")


def test_rights_are_in_the_namespace_and_as_few_as_can_be() -> None:
    rendered = render(preset="2m-2s-sync")
    assert not [each["kind"] for each in rendered.objects if each["kind"].startswith("Cluster")]
    assert _rights(rendered, "mq-admin") == {
        "get pods",
        "list pods",
        "watch pods",
        "patch pods",
        "get persistentvolumeclaims",
        "list persistentvolumeclaims",
        "get statefulsets",
        "list statefulsets",
        "get poddisruptionbudgets",
        "list poddisruptionbudgets",
        "get named configmaps",
    }
    assert _rights(rendered, "mq-rollout") == {
        "get pods",
        "list pods",
        "list statefulsets",
        "get named statefulsets",
        "patch named statefulsets",
    }
    assert _rights(rendered, "mq-broker") == {
        *(f"{verb} named {objects}" for verb in ("get", "update") for objects in ("leases", "endpointslices"))
    }
    assert _rights(rendered, "mq-consistency") == {
        *(f"{verb} pods" for verb in ("create", "get", "list", "watch", "delete", "deletecollection")),
        "get named configmaps",
        "patch named configmaps",
        "create events",
        "list statefulsets",
    }


def test_the_hook_may_change_the_brokers_sets_and_no_others() -> None:
    rules = render().one("Role", "mq-rollout")["rules"]
    (named,) = (rule["resourceNames"] for rule in rules if "patch" in rule["verbs"])
    assert set(named) == set(render().kind("StatefulSet")) - {"mq-nameserver"}


def test_brokers_may_change_what_belongs_to_their_groups_and_nothing_else() -> None:
    rendered = render()
    leases, slices = rendered.one("Role", "mq-broker")["rules"]
    assert set(leases["resourceNames"]) == set(rendered.kind("Lease")) == {"mq-broker-a", "mq-broker-b"}
    assert set(slices["resourceNames"]) == set(rendered.kind("EndpointSlice")) == {"mq-broker-a", "mq-broker-b"}


def test_a_binding_names_the_account_its_pod_runs_as() -> None:
    rendered = render(preset="2m-2s-sync")
    for name, pod in (
        ("mq-admin", "Deployment/mq-admin"),
        ("mq-rollout", "Job/mq-rollout"),
        ("mq-consistency", "CronJob/mq-consistency-quick"),
        ("mq-broker", "StatefulSet/mq-broker-a-slave"),
    ):
        (subject,) = rendered.one("RoleBinding", name)["subjects"]
        account = rendered.pod_templates()[pod]["spec"]["serviceAccountName"]
        assert (subject["name"], subject["namespace"]) == (account, "ns")
        assert rendered.has("ServiceAccount", account)


def test_an_admin_without_kubernetes_has_no_rights() -> None:
    rendered = render("--set", "admin.kubernetes.access=false")
    assert not rendered.has("Role", "mq-admin")
    assert rendered.pod_templates()["Deployment/mq-admin"]["spec"]["automountServiceAccountToken"] is False
    assert rendered.settings("Deployment", "mq-admin")["kubernetesRoleLabels"] == "false"


def _rights(rendered: Rendered, role: str) -> set[str]:
    return {
        f"{verb} {'named ' if 'resourceNames' in rule else ''}{resource}"
        for rule in rendered.one("Role", role)["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


def _may(rendered: Rendered, peer: str, to: str, port: int) -> bool:
    """What a network plugin would decide; a pod that no policy selects is open."""
    target = rendered.pod_templates()[_PEERS[to]]
    policies = [
        each["spec"]
        for each in rendered.kind("NetworkPolicy").values()
        if _selects(each["spec"]["podSelector"], target["metadata"]["labels"])
    ]
    labels = rendered.pod_templates()[_PEERS[peer]]["metadata"]["labels"] if peer in _PEERS else {"who": peer}
    ports = target["spec"]["containers"][0].get("ports", [])
    names = {each["name"]: each["containerPort"] for each in ports}
    return not policies or any(
        any(names.get(each["port"], each["port"]) == port for each in rule["ports"])
        and ("from" not in rule or any(_selects(each["podSelector"], labels) for each in rule["from"]))
        for policy in policies
        for rule in policy["ingress"]
    )


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", [])
    )
