"""Pods: what they are, how they start, stop and are watched, what they may do, and what of them never changes."""

from __future__ import annotations

import re

import pytest

from chart.rendering import PRESETS, render

BROKERS = ("mq-broker-a-master", "mq-broker-a-slave", "mq-broker-b-master", "mq-broker-b-slave")
# Of the `restricted` pod security standard.
RESTRICTED_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"),
}
each_preset = pytest.mark.parametrize("preset", list(PRESETS))
each_broker = pytest.mark.parametrize("broker", BROKERS)


@each_broker
def test_a_broker_is_an_ordinal_with_a_name_and_a_volume_that_stays(broker: str) -> None:
    spec = render().one("StatefulSet", broker)["spec"]
    assert spec["ordinals"]["start"] == (1 if broker.endswith("slave") else 0)
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "32Gi"
    service = render().one("Service", spec["serviceName"])["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert service["selector"] == spec["selector"]["matchLabels"]


def test_no_two_workloads_select_each_others_pods() -> None:
    rendered = render()
    selectors = {
        name: each["spec"]["selector"]["matchLabels"]
        for kind in ("StatefulSet", "Deployment")
        for name, each in rendered.kind(kind).items()
    }
    for name, template in rendered.pod_templates().items():
        labels = template["metadata"]["labels"].items()
        matching = [other for other, selector in selectors.items() if selector.items() <= labels]
        assert matching == [name.partition("/")[2]] * name.startswith(("StatefulSet", "Deployment")), name


@each_broker
def test_probes_mean_different_things_and_give_recovery_an_hour(broker: str) -> None:
    container = render().container("StatefulSet", broker)
    probes = {kind: container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: probe["grpc"] for kind, probe in probes.items()} == {
        "startup": {"port": 10913, "service": "tandemmq.probe.started"},
        "liveness": {"port": 10913, "service": "tandemmq.probe.live"},
        "readiness": {"port": 10913, "service": "tandemmq.probe.ready"},
    }
    startup = probes["startup"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 3_600


def test_a_name_server_is_probed_likewise() -> None:
    container = render().container("StatefulSet", "mq-nameserver")
    services = [container[f"{kind}Probe"]["grpc"]["service"] for kind in ("startup", "liveness", "readiness")]
    assert services == ["tandemmq.probe.started", "tandemmq.probe.live", "tandemmq.probe.ready"]


def test_a_name_server_remembers_in_a_volume_of_its_pod() -> None:
    rendered = render()
    folder = rendered.settings("StatefulSet", "mq-nameserver")["storePathRootDir"]
    container = rendered.container("StatefulSet", "mq-nameserver")
    (mount,) = (each for each in container["volumeMounts"] if folder.startswith(each["mountPath"] + "/"))
    volumes = rendered.pod_templates()["StatefulSet/mq-nameserver"]["spec"]["volumes"]
    assert {"name": mount["name"], "emptyDir": {}} in volumes


@each_broker
def test_a_broker_drains_before_it_stops_and_has_the_time_for_both(broker: str) -> None:
    rendered = render()
    container = rendered.container("StatefulSet", broker)
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:2] == ["mqbroker-drain", "--limit"]
    stop_ms = int(rendered.settings("StatefulSet", broker)["shutdownTimeout"])
    grace_s = rendered.pod_templates()[f"StatefulSet/{broker}"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s * 1_000 > int(command[2]) + stop_ms


@each_preset
def test_every_pod_is_unprivileged(preset: str) -> None:
    for name, template in render(preset=preset).pod_templates().items():
        pod = template["spec"]
        assert pod["enableServiceLinks"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["runAsUser"] == 10001, name
        assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch", name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            if not name.startswith("Executor"):  # Spark sets them by the job's settings
                assert container["resources"]["requests"].keys() == {"cpu", "memory"}, name
                assert "memory" in container["resources"]["limits"], name
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"], name


@each_preset
def test_every_pod_may_run_where_restricted_pod_security_is_enforced(preset: str) -> None:
    """Every rule of the standard's `restricted` level, and of `baseline` below it, for a pod that sets the field."""
    templates = render(preset=preset).pod_templates()
    assert len(templates) > 3
    for name, template in templates.items():
        pod, annotations = template["spec"], template["metadata"].get("annotations", {})
        security = pod["securityContext"]
        assert not [field for field in ("hostNetwork", "hostPID", "hostIPC", "hostUsers") if pod.get(field)], name
        assert not [key for key in annotations if key.startswith("container.apparmor.security.beta.kubernetes.io")], (
            name
        )
        assert not {"sysctls", "seLinuxOptions", "windowsOptions", "appArmorProfile"} & set(security), name
        for volume in pod.get("volumes", ()):
            assert set(volume) - {"name"} <= RESTRICTED_VOLUMES, (name, volume)
        containers = [*pod["containers"], *pod.get("initContainers", ()), *pod.get("ephemeralContainers", ())]
        for container in containers:
            # What a container says goes before what its pod says.
            own = container["securityContext"]
            in_force = security | own
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            assert not own.get("privileged"), name
            assert own.get("procMount", "Default") == "Default", name
            assert in_force["runAsNonRoot"] is True, name
            assert in_force.get("runAsUser") != 0, name
            assert in_force["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost"), name
            assert not [port for port in container.get("ports", ()) if port.get("hostPort")], name
            for action in container.get("lifecycle", {}).values():
                assert not action.get("httpGet", {}).get("host"), name


def test_only_who_asks_kubernetes_has_a_token() -> None:
    rendered = render(preset="2m-2s-sync")
    tokens = {
        name: template["spec"]["automountServiceAccountToken"] for name, template in rendered.pod_templates().items()
    }
    assert {_unhashed(name) for name, has in tokens.items() if has} == {
        "Deployment/mq-admin",
        "Job/mq-certs",
        "CronJob/mq-certs",
        "Job/mq-rollout",
        "CronJob/mq-consistency-quick",
        "CronJob/mq-consistency-deep",
        *(f"StatefulSet/{broker}" for broker in BROKERS),
    }
    assert all(each["automountServiceAccountToken"] is False for each in rendered.kind("ServiceAccount").values())


@pytest.mark.parametrize("name", ["StatefulSet/mq-nameserver", *(f"StatefulSet/{broker}" for broker in BROKERS)])
def test_a_setting_is_part_of_the_template_so_that_a_change_is_a_revision(name: str) -> None:
    """And a pod that is lost in the middle of a rollout comes back with the settings of its own revision."""
    pod = render().pod_templates()[name]
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "settings")
    (item,) = volume["downwardAPI"]["items"]
    key = item["fieldRef"]["fieldPath"].removeprefix("metadata.annotations['").removesuffix("']")
    assert key in pod["metadata"]["annotations"]
    assert pod["spec"]["containers"][0]["args"] == ["--config", f"/etc/tandemmq/{item['path']}"]


def test_a_change_of_one_group_renews_this_group_only() -> None:
    groups = '[{"name":"broker-a","settings":{"fileReservedTime":12}},{"name":"broker-b"}]'
    before, after = render().pod_templates(), render("--set-json", f"brokerGroups={groups}").pod_templates()
    assert {name for name in before if before[name] != after[name]} == {
        "StatefulSet/mq-broker-a-master",
        "StatefulSet/mq-broker-a-slave",
    }


def test_a_new_group_renews_nothing_that_runs() -> None:
    groups = '[{"name":"broker-a"},{"name":"broker-b"},{"name":"broker-c"}]'
    before, after = render(), render("--set-json", f"brokerGroups={groups}")
    templates = after.pod_templates()
    changed = {name for name, old in before.pod_templates().items() if old != templates.get(name)}
    # What makes the new group's certificate, and nothing else; a Job of another name, for none can be changed.
    assert {_unhashed(name) for name in changed} == {"Job/mq-certs", "CronJob/mq-certs"}
    assert not changed & templates.keys() - {"CronJob/mq-certs"}
    assert set(after.kind("StatefulSet")) - set(before.kind("StatefulSet")) == {
        "mq-broker-c-master",
        "mq-broker-c-slave",
    }


def test_what_the_api_server_lets_nobody_change_does_not_depend_on_values_that_change() -> None:
    arguments = ("--set", "commonLabels.team=a,commonAnnotations.contact=b,pod.labels.c=d,image.tag=x")
    before, after = render().kind("StatefulSet"), render(*arguments).kind("StatefulSet")
    for name, each in before.items():
        for key in ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates"):
            assert each["spec"].get(key) == after[name]["spec"].get(key), (name, key)


def test_brokers_wait_for_the_gate_and_a_hook_opens_it() -> None:
    rendered = render()
    for broker in BROKERS:
        strategy = rendered.one("StatefulSet", broker)["spec"]["updateStrategy"]
        assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"partition": 1_000_000}}
    job = rendered.one("Job", "mq-rollout")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-upgrade,post-rollback"
    command = rendered.container("Job", "mq-rollout")["command"]
    assert command == ["tandemmq", "rollout", "--release", "mq", "--namespace", "ns", "--timeout", "30m"]


def test_without_the_gate_kubernetes_renews_brokers_itself() -> None:
    rendered = render("--set", "brokers.rollout.gated=false")
    assert not rendered.has("Job", "mq-rollout")
    assert not rendered.has("Role", "mq-rollout")
    for broker in BROKERS:
        assert rendered.one("StatefulSet", broker)["spec"]["updateStrategy"]["rollingUpdate"]["partition"] == 0


def test_a_helm_test_sends_and_receives_through_the_access_point_and_leaves_nothing() -> None:
    pod = render().one("Pod", "mq-test")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert "hook-succeeded" in pod["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    command = pod["spec"]["containers"][0]["command"]
    assert command[:4] == ["tandemmq", "smoke", "--access-point", "mq-broker.ns.svc.cluster.local:8081"]


def test_the_toolbox_knows_the_cluster() -> None:
    environment = {each["name"]: each.get("value") for each in render().container("Deployment", "mq-admin")["env"]}
    assert environment["TANDEMMQ_NAMESRV_ADDR"] == ";".join(
        f"mq-nameserver-{i}.mq-nameserver.ns.svc.cluster.local:9876" for i in range(2)
    )


def test_an_image_is_named_by_registry_tag_and_digest() -> None:
    def images(*arguments: str) -> dict[str, str]:
        templates = render(*arguments).pod_templates()
        return {name.partition("/")[2]: each["spec"]["containers"][0]["image"] for name, each in templates.items()}

    assert images()["mq-broker-a-master"] == "tandemmq/broker:0.1.0"
    assert set(images("--set", "image.registry=localhost,image.tag=x").values()) == {
        "localhost/tandemmq/broker:x",
        "localhost/tandemmq/nameserver:x",
        "localhost/tandemmq/admin:x",
    }
    digest = f"sha256:{'0' * 64}"
    named = images("--set", f"global.imageRegistry=r.example.com,brokers.image.digest={digest},admin.image.tag=y")
    assert named["mq-broker-a-slave"] == f"r.example.com/tandemmq/broker@{digest}"
    assert named["mq-admin"] == named["mq-rollout"] == named["mq-test"] == "r.example.com/tandemmq/admin:y"


# Who may be the master of a group


@each_broker
def test_any_member_may_be_master_and_listens_as_one(broker: str) -> None:
    rendered = render()
    settings = rendered.settings("StatefulSet", broker)
    group = settings["brokerName"]
    assert settings["failoverAuthority"] == f"kubernetes:mq-{group}"
    assert (settings["failoverLease"], settings["inSyncReplicas"]) == ("6000", "1")
    assert rendered.has("Lease", f"mq-{group}")
    ports = {each["name"]: each["containerPort"] for each in rendered.container("StatefulSet", broker)["ports"]}
    names = {each["name"]: each["targetPort"] for each in rendered.one("Service", broker)["spec"]["ports"]}
    assert ports.items() >= {"grpc-client": 8081, "grpc-metadata": 10911, "ha": 10912}.items()
    assert names == {"grpc-client": "grpc-client", "grpc-metadata": "grpc-metadata", "ha": "ha"}


def test_the_access_point_is_whoever_may_be_master() -> None:
    def chosen(*arguments: str) -> set[str]:
        rendered = render(*arguments)
        selector = rendered.one("Service", "mq-broker")["spec"]["selector"].items()
        templates = rendered.pod_templates()
        return {name for name in BROKERS if selector <= templates[f"StatefulSet/{name}"]["metadata"]["labels"].items()}

    assert chosen() == set(BROKERS)
    assert chosen("--set", "failover.enabled=false") == {"mq-broker-a-master", "mq-broker-b-master"}


@each_broker
def test_the_address_of_a_group_is_a_service_that_brokers_fill(broker: str) -> None:
    rendered = render()
    settings = rendered.settings("StatefulSet", broker)
    name = f"mq-{settings['brokerName']}"
    assert settings["groupEndpoint"] == f"{name}.ns.svc.cluster.local:8081"
    service, slice_ = rendered.one("Service", name), rendered.one("EndpointSlice", name)
    # With a selector Kubernetes would fill it, too.
    assert "selector" not in service["spec"]
    assert slice_["metadata"]["labels"]["kubernetes.io/service-name"] == name
    assert [port["name"] for port in service["spec"]["ports"]] == [port["name"] for port in slice_["ports"]]
    assert slice_["endpoints"] == []


def test_a_group_whose_master_stays_has_no_address_of_its_own() -> None:
    rendered = render("--set", "failover.enabled=false")
    assert not rendered.kind("EndpointSlice")
    assert "groupEndpoint" not in rendered.settings("StatefulSet", "mq-broker-a-master")


def test_helm_writes_nothing_of_a_lease_that_brokers_write() -> None:
    """A merge leaves alone what no manifest had."""
    for lease in render().kind("Lease").values():
        assert lease.keys() == {"apiVersion", "kind", "metadata"}
        assert lease["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_a_lease_goes_when_the_volumes_do() -> None:
    """Volumes without their record, or a record of lost volumes, would wait for an operator."""
    leases = render("--set", "brokers.persistence.retention.whenDeleted=Delete").kind("Lease").values()
    assert [each["metadata"].get("annotations") for each in leases] == [None, None]


@pytest.mark.parametrize(
    "values", ["failover.enabled=false", "replication=async", "replication=none"], ids=lambda value: str(value)
)
def test_without_failover_there_is_nothing_of_it(values: str) -> None:
    rendered = render("--set", values)
    assert not rendered.kind("Lease")
    assert not rendered.has("Role", "mq-broker")
    assert not rendered.has("RoleBinding", "mq-broker")
    for broker in {*BROKERS} & {*rendered.kind("StatefulSet")}:
        assert not rendered.pod_templates()[f"StatefulSet/{broker}"]["spec"]["automountServiceAccountToken"]
        assert not {key for key in rendered.settings("StatefulSet", broker) if key.startswith("failover")}


def test_a_group_may_refuse_sends_while_a_member_is_away() -> None:
    settings = render("--set", "failover.minInSyncReplicas=2,failover.leaseMilliseconds=600000").settings
    for broker in BROKERS:
        assert settings("StatefulSet", broker)["inSyncReplicas"] == "2"
        assert settings("StatefulSet", broker)["failoverLease"] == "600000"


def _unhashed(name: str) -> str:
    """Without the end by which a Job that makes certificates differs from the one before."""
    return re.sub(r"^(Job/mq-certs)-[0-9a-f]{8}$", r"\1", name)
