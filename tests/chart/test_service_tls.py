"""Certificates between services: each pod has that of its role, and cert-manager is asked for what services accept."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from chart.rendering import CI_VALUES, environment, refusal, render
from tandemmq.cli.kube.certificate_secrets import CertificateSecrets
from tandemmq.core.access.identity import AdminLevel, Identity, Role, identity_of
from tandemmq.service.certificates import names_of
from tandemmq.service.kubernetes_api import KubernetesApi

ENFORCING = "security.serviceTlsMode=enforcing,security.existingSecretPrefix=own"
EVERYTHING = ("-f", str(CI_VALUES["everything-values"]))
FIELDS = {
    "metadata.labels['apps.kubernetes.io/pod-index']": "0",
    "metadata.name": "pod-0",
    "status.hostIP": "192.0.2.7",
    "status.podIP": "192.0.2.8",
    "spec.nodeName": "node-7",
}


def _secret(pod: dict[str, Any]) -> str:
    (volume,) = (each for each in pod["volumes"] if each["name"] == "service-tls")
    (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "service-tls")
    variables = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert mount["mountPath"] == variables["TANDEMMQ_SERVICE_TLS_PATH"]
    assert variables["TANDEMMQ_SERVICE_TLS_MODE"] == "enforcing"
    return str(volume["secret"]["secretName"])


def test_each_pod_has_the_secret_of_its_role() -> None:
    pods = render(*EVERYTHING, "--set", ENFORCING + ",security.certManager.issuerRef.name=").pod_templates()
    assert len(pods) > 8
    for name, template in pods.items():
        labels = template["metadata"]["labels"]
        component = labels["app.kubernetes.io/component"]
        if component == "trace-viewer":
            continue
        wanted = {
            "broker": f"own-broker-{labels.get('tandemmq.io/broker-group')}",
            "nameserver": "own-nameserver",
            "admin": "own-admin",
            "test": "own-admin",
            "rollout": "own-hook",
            "consistency": "own-consistency",
        }
        if component in wanted and "volume" not in name:
            assert _secret(template["spec"]) == wanted[component], name


def test_probes_go_to_the_port_that_takes_callers_without_a_certificate() -> None:
    rendered = render("--set", ENFORCING)
    for name in ("mq-broker-a-master", "mq-nameserver"):
        container = rendered.container("StatefulSet", name)
        port = environment(container, FIELDS)["TANDEMMQ_OPEN_LISTEN_PORT"]
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert str(container[kind]["grpc"]["port"]) == port


def test_nothing_of_it_is_there_when_it_is_disabled() -> None:
    rendered = render("--set", "security.serviceTlsMode=disabled")
    for template in rendered.pod_templates().values():
        spec = template["spec"]
        assert not [each for each in spec.get("volumes", []) if each["name"] == "service-tls"]
        assert not [
            each for each in spec["containers"][0].get("env", []) if each["name"].startswith("TANDEMMQ_SERVICE_TLS")
        ]
    assert not [each for each in rendered.objects if "certs" in each["metadata"]["name"]]
    assert not rendered.kind("Secret")


def test_a_first_install_is_closed_by_certificates_that_the_chart_makes() -> None:
    rendered = render(preset="2m-2s-sync")
    pods = rendered.pod_templates()
    mounted = {
        volume["secret"]["secretName"]
        for template in pods.values()
        for volume in template["spec"].get("volumes", [])
        if volume["name"] == "service-tls"
    }
    for name, template in pods.items():
        for each in template["spec"]["containers"][0].get("env", []):
            assert each["name"] != "TANDEMMQ_SERVICE_TLS_MODE" or each["value"] == "enforcing", name
    # Filled in by a job that may write these and make none: in the chart they are empty, so no upgrade touches them.
    assert set(rendered.kind("Secret")) == mounted | {"mq-service-ca"}
    assert not [each for each in rendered.kind("Secret").values() if {"data", "stringData"} & each.keys()]
    (rule,) = rendered.one("Role", "mq-certs")["rules"]
    assert set(rule["resourceNames"]) == set(rendered.kind("Secret"))
    assert rule["verbs"] == ["get", "update"]
    assert [name for name in pods if _mounts(pods[name], "mq-service-ca")] == []


def _mounts(template: dict[str, Any], secret: str) -> bool:
    volumes = template["spec"].get("volumes", [])
    return secret in [volume.get("secret", {}).get("secretName") for volume in volumes]


@pytest.mark.parametrize("preset", [None, "2m-2s-sync", "2m-noslave"])
def test_the_job_makes_what_pods_mount_under_the_names_they_mount(preset: str | None) -> None:
    rendered = render("--set", "clusterName=Orders_Prod-1", preset=preset)
    (name,) = (each for each in rendered.kind("Job") if each.startswith("mq-certs-"))
    command = rendered.container("Job", name)["command"]
    assert command == rendered.container("CronJob", "mq-certs")["command"]
    options = command.index("--cluster")
    cluster, prefix = command[options + 1], command[command.index("--secrets") + 1]
    secrets = CertificateSecrets(cast(KubernetesApi, None), prefix, now=lambda: datetime.now(UTC))
    made = {secrets.name_of(identity_of([f"spiffe://tandemmq/{cluster}/{each}"])) for each in command[3:options]}
    assert made | {"mq-service-ca"} == set(rendered.kind("Secret"))
    assert "--due" in command


def test_a_job_whose_work_changes_is_another_job() -> None:
    names = {
        name
        for arguments in ((), ("--set", "security.certificates.days=30"), ("--set", "image.tag=x"))
        for name in render(*arguments).kind("Job")
        if name.startswith("mq-certs-")
    }
    assert len(names) == 3


def test_a_name_that_no_certificate_can_have_leaves_a_release_open() -> None:
    assert not render("--set", "clusterName=a%b").kind("Secret")
    assert "cannot stand in a certificate" in refusal("--set", f"clusterName=a%b,{ENFORCING}")


@pytest.mark.parametrize("cluster", ["mq", "Orders_Prod-1"])
def test_cert_manager_is_asked_for_the_names_that_services_ask_for(cluster: str) -> None:
    rendered = render(
        "--set", "security.serviceTlsMode=enforcing,security.certManager.issuerRef.name=ca,consistency.enabled=true",
        "--set", f"clusterName={cluster}",
        "--set-json", 'brokerGroups=[{"name":"broker-a"},{"name":"broker-b"}]',
    )  # fmt: skip
    found = {}
    for certificate in rendered.kind("Certificate").values():
        spec = certificate["spec"]
        identity = identity_of(spec["uris"])
        assert tuple(spec.get("dnsNames", ())) == names_of(identity).dns
        assert ("server auth" in spec["usages"]) == bool(names_of(identity).dns)
        found[identity] = spec["secretName"]
    assert set(found) == {
        Identity(cluster, Role.NAME_SERVER),
        Identity(cluster, Role.ADMIN, level=AdminLevel.REPAIR),
        Identity(cluster, Role.HOOK),
        Identity(cluster, Role.CONSISTENCY),
        Identity(cluster, Role.BROKER, "broker-a"),
        Identity(cluster, Role.BROKER, "broker-b"),
    }
    broker = rendered.pod_templates()["StatefulSet/mq-broker-b-master"]["spec"]
    assert _secret(broker) == found[Identity(cluster, Role.BROKER, "broker-b")]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("security.serviceTlsMode=disabled,brokers.settings.haTlsMode=permissive", "haTlsMode: permissive"),
        (f"{ENFORCING},security.certManager.issuerRef.name=ca", "keep one of the two"),
        ("security.serviceTlsMode=disabled,security.serviceTlsCall=true", "nobody takes TLS yet"),
    ],
)
def test_what_cannot_work_is_refused(values: str, words: str) -> None:
    assert words in refusal("--set", values)
