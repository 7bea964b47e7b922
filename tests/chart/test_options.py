"""What an operator may turn on and change: each option does what its comment says."""

from __future__ import annotations

import json

import pytest
import yaml

from chart.rendering import CI_VALUES, environment, render

FIELDS = {
    "metadata.labels['apps.kubernetes.io/pod-index']": "1",
    "metadata.name": "mq-broker-b-slave-1",
    "status.hostIP": "192.0.2.7",
    "spec.nodeName": "node-7",
}


@pytest.mark.parametrize(
    ("broker", "broker_id", "port"),
    [
        ("mq-broker-a-master", "0", 31000),
        ("mq-broker-a-slave", "1", 31001),
        ("mq-broker-b-master", "0", 31010),
        ("mq-broker-b-slave", "2", 31012),
    ],
)
def test_a_broker_advertises_the_node_port_of_its_own_service(broker: str, broker_id: str, port: int) -> None:
    groups = '[{"name":"broker-a"},{"name":"broker-b","slaves":2}]'
    rendered = render("--set", "externalAccess.enabled=true", "--set-json", f"brokerGroups={groups}")
    fields = {**FIELDS, "metadata.labels['apps.kubernetes.io/pod-index']": broker_id}
    variables = environment(rendered.container("StatefulSet", broker), fields)
    assert variables["TANDEMMQ_EXTERNAL_ADVERTISED_HOST"] == "192.0.2.7"
    assert variables["TANDEMMQ_EXTERNAL_ADVERTISED_PORT"] == str(port)
    name = f"{broker}-external" if broker_id == "0" else f"{broker}-{broker_id}-external"
    service = rendered.one("Service", name)["spec"]
    assert service["type"] == "NodePort"
    assert service["ports"][0]["nodePort"] == port
    assert service["selector"]["statefulset.kubernetes.io/pod-name"] == f"{broker}-{broker_id}"
    assert rendered.settings("StatefulSet", broker)["externalListenPort"] == "8082"
    targets = {each["name"]: each["containerPort"] for each in rendered.container("StatefulSet", broker)["ports"]}
    assert targets[service["ports"][0]["targetPort"]] == 8082


def test_a_load_balancer_for_each_broker_has_a_name_of_its_own() -> None:
    rendered = render("-f", str(CI_VALUES["everything-values"]))
    service = rendered.one("Service", "orders-broker-a-slave-2-external")
    name = "orders-broker-a-slave-2.mq.example.com"
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["metadata"]["annotations"]["external-dns.alpha.kubernetes.io/hostname"] == name
    assert service["spec"]["loadBalancerSourceRanges"] == ["192.0.2.0/24"]


def test_nothing_is_listened_on_for_outside_unless_asked() -> None:
    rendered = render()
    assert not [name for name in rendered.kind("Service") if name.endswith("-external")]
    assert "externalListenPort" not in rendered.settings("StatefulSet", "mq-broker-a-master")


def test_tls_from_a_secret() -> None:
    rendered = render("--set", "tls.mode=enforcing,tls.existingSecret=mine")
    settings = rendered.settings("StatefulSet", "mq-broker-a-slave")
    assert settings["tlsMode"] == "enforcing"
    pod = rendered.pod_templates()["StatefulSet/mq-broker-a-slave"]["spec"]
    (secret,) = (each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == "tls")
    (mounted,) = (each["mountPath"] for each in pod["containers"][0]["volumeMounts"] if each["name"] == "tls")
    assert secret == "mine"
    assert (settings["tlsCertPath"], settings["tlsKeyPath"]) == (f"{mounted}/tls.crt", f"{mounted}/tls.key")
    assert not rendered.kind("Certificate")


def test_tls_from_cert_manager_names_every_broker() -> None:
    rendered = render("--set", "tls.mode=permissive,tls.certManager.issuerRef.name=ca")
    (certificate,) = rendered.kind("Certificate").values()
    names = certificate["spec"]["dnsNames"]
    assert "mq-broker.ns.svc.cluster.local" in names
    for broker in set(rendered.kind("StatefulSet")) - {"mq-nameserver"}:
        assert f"*.{broker}.ns.svc.cluster.local" in names
    pod = rendered.pod_templates()["StatefulSet/mq-broker-a-master"]["spec"]
    (secret,) = (each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == "tls")
    assert secret == certificate["spec"]["secretName"]


def test_metrics_are_scraped_where_they_are_and_with_the_token() -> None:
    rendered = render("--set", "monitoring.serviceMonitor.enabled=true,admin.token.existingSecret=token")
    (monitor,) = rendered.kind("ServiceMonitor").values()
    service = rendered.one("Service", "mq-admin")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["authorization"]["credentials"] == {"name": "token", "key": "token"}


def test_a_console_with_a_certificate_is_probed_and_scraped_by_https() -> None:
    certificate = "admin.settings.tlsCertPath=/tls/tls.crt,admin.settings.tlsKeyPath=/tls/tls.key"
    check = "monitoring.serviceMonitor.tlsConfig.serverName=console.example"
    for has_tls in (False, True):
        settings = ("--set", certificate) if has_tls else ()
        rendered = render("--set", "monitoring.serviceMonitor.enabled=true", "--set", check, *settings)
        (container,) = rendered.pod_templates()["Deployment/mq-admin"]["spec"]["containers"]
        probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
        assert [probe.get("scheme") for probe in probes] == ["HTTPS" if has_tls else None] * 3
        (monitor,) = rendered.kind("ServiceMonitor").values()
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint.get("scheme") == ("https" if has_tls else None)
        assert endpoint.get("tlsConfig") == ({"serverName": "console.example"} if has_tls else None)


def test_metrics_are_scraped_with_the_token_that_can_do_least() -> None:
    rendered = render(
        "--set", "monitoring.serviceMonitor.enabled=true",
        "--set", "admin.token.existingSecret=tokens,admin.viewerToken.existingSecret=tokens",
    )  # fmt: skip
    (monitor,) = rendered.kind("ServiceMonitor").values()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "tokens", "key": "viewerToken"}
    (container,) = rendered.pod_templates()["Deployment/mq-admin"]["spec"]["containers"]
    tokens = {
        each["name"]: each["valueFrom"]["secretKeyRef"]["key"] for each in container["env"] if "valueFrom" in each
    }
    assert (tokens["TANDEMMQ_ADMIN_TOKEN"], tokens["TANDEMMQ_VIEWER_TOKEN"]) == ("token", "viewerToken")


def test_brokers_and_name_servers_tell_metrics_on_the_port_that_is_scraped() -> None:
    rendered = render("--set", "monitoring.podMonitor.enabled=true,monitoring.podMonitor.labels.release=prometheus")
    for name, template in rendered.pod_templates().items():
        if not name.startswith("StatefulSet"):
            continue
        settings = rendered.settings(*name.split("/"))
        assert settings["metricsExporterType"] == "PROM", name
        ports = {each["name"]: each["containerPort"] for each in template["spec"]["containers"][0]["ports"]}
        matching = [
            each
            for each in rendered.kind("PodMonitor").values()
            if each["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        ]
        assert [each["metadata"]["labels"]["release"] for each in matching] == ["prometheus"], name
        (endpoint,) = matching[0]["spec"]["podMetricsEndpoints"]
        assert ports[endpoint["port"]] == int(settings["metricsPromExporterPort"]), name


def test_metrics_go_where_they_are_wanted() -> None:
    pushed = render("--set", "monitoring.metrics.enabled=false,monitoring.otlp.endpoint=collector:4317")
    settings = pushed.settings("StatefulSet", "mq-broker-a-slave")
    assert settings["metricsExporterType"] == "OTLP_GRPC"
    assert settings["metricsGrpcExporterTarget"] == "collector:4317"
    assert settings["metricsGrpcExporterIntervalInMills"] == "60000"
    assert "metricsPromExporterPort" not in settings
    both = render("--set", "monitoring.otlp.endpoint=collector:4317")
    assert both.settings("StatefulSet", "mq-nameserver")["metricsExporterType"] == "PROM;OTLP_GRPC"
    neither = render("--set", "monitoring.metrics.enabled=false")
    assert not [key for key in neither.settings("StatefulSet", "mq-broker-a-master") if key.startswith("metrics")]


def test_tracing_is_off_until_it_is_asked_for() -> None:
    rendered = render()
    assert not [key for key in rendered.settings("StatefulSet", "mq-broker-a-master") if key.startswith("trace")]
    assert not rendered.has("Deployment", "mq-trace-viewer")


def test_traces_go_to_the_endpoint_that_is_named() -> None:
    rendered = render("--set", "tracing.enabled=true,tracing.sampleRate=0.5,tracing.endpoint=collector.monitoring:4317")
    settings = rendered.settings("StatefulSet", "mq-broker-a-slave")
    assert {key: value for key, value in settings.items() if key.startswith("trace")} == {
        "traceEnable": "true",
        "traceSampleRate": "0.5",
        "traceSlowThreshold": "200",
        "traceExporterTarget": "collector.monitoring:4317",
    }


def test_the_trace_viewer_takes_what_brokers_send_and_shows_it_where_its_service_says() -> None:
    rendered = render("--set", "tracing.enabled=true,tracing.viewer.enabled=true,tracing.viewer.maxTraces=1000000")
    target = rendered.settings("StatefulSet", "mq-broker-b-master")["traceExporterTarget"]
    assert target == "mq-trace-viewer.ns.svc.cluster.local:4317"
    service = rendered.one("Service", "mq-trace-viewer")["spec"]
    pod = rendered.pod_templates()["Deployment/mq-trace-viewer"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    configuration = yaml.safe_load(pod["metadata"]["annotations"]["tandemmq.io/jaeger.yaml"])
    (receiver,) = configuration["receivers"]["otlp"]["protocols"].values()
    page = configuration["extensions"]["jaeger_query"]["http"]
    assert configuration["extensions"]["jaeger_storage"]["backends"]["newest"]["memory"]["max_traces"] == 1_000_000
    ports = {each["name"]: each["containerPort"] for each in pod["spec"]["containers"][0]["ports"]}
    assert {each["port"]: ports[each["targetPort"]] for each in service["ports"]} == {
        int(receiver["endpoint"].rpartition(":")[2]): 4317,
        int(page["endpoint"].rpartition(":")[2]): 16686,
    }


def test_options_of_a_pod_come_from_all_pods_then_its_kind_then_its_role_then_its_group() -> None:
    rendered = render(
        "--set",
        "pod.nodeSelector.a=all,pod.nodeSelector.b=all,pod.nodeSelector.c=all,pod.nodeSelector.d=all"
        ",brokers.pod.nodeSelector.b=kind,brokers.pod.nodeSelector.c=kind,brokers.pod.nodeSelector.d=kind"
        ",brokers.slave.pod.nodeSelector.c=role,brokers.slave.pod.nodeSelector.d=role",
        "--set-json",
        'brokerGroups=[{"name":"broker-a","pod":{"nodeSelector":{"d":"group"}}},{"name":"broker-b"}]',
    )
    chosen = {name: "".join(spec["spec"]["nodeSelector"].values()) for name, spec in rendered.pod_templates().items()}
    assert chosen["StatefulSet/mq-nameserver"] == "allallallall"
    assert chosen["StatefulSet/mq-broker-b-master"] == "allkindkindkind"
    assert chosen["StatefulSet/mq-broker-b-slave"] == "allkindrolerole"
    assert chosen["StatefulSet/mq-broker-a-slave"] == "allkindrolegroup"


def test_extras_reach_the_main_container_and_its_pod() -> None:
    pod = render("-f", str(CI_VALUES["everything-values"])).pod_templates()["StatefulSet/orders-broker-a-master"][
        "spec"
    ]
    container = pod["containers"][0]
    assert {"name": "TZ", "value": "UTC"} in container["env"]
    assert container["envFrom"] == [{"configMapRef": {"name": "more"}}]
    assert {"name": "more", "mountPath": "/more"} in container["volumeMounts"]
    assert {"name": "more", "configMap": {"name": "more"}} in pod["volumes"]
    assert [each["name"] for each in pod["containers"]] == ["broker", "beside"]
    assert [each["name"] for each in pod["initContainers"]] == ["before"]
    assert pod["imagePullSecrets"] == [{"name": "pull"}, {"name": "other"}]
    assert pod["dnsConfig"]["options"] == [{"name": "ndots", "value": "2"}]


def test_the_patch_of_a_template_joins_named_things_and_removes_what_is_null() -> None:
    patch = {
        "metadata": {"labels": {"more": "yes"}},
        "spec": {
            "terminationGracePeriodSeconds": 300,
            "securityContext": {"fsGroupChangePolicy": None},
            "containers": [
                {
                    "name": "broker",
                    "workingDir": "/tmp",
                    "env": [{"name": "LOG_LEVEL", "value": "DEBUG"}, {"name": "NEW", "value": "1"}],
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp", "subPath": "x"}],
                    "livenessProbe": None,
                },
                {"name": "beside", "image": "busybox"},
            ],
        },
    }
    rendered = render("--set-json", f"brokers.pod.template={json.dumps(patch)}")
    template = rendered.pod_templates()["StatefulSet/mq-broker-a-master"]
    before = render().pod_templates()["StatefulSet/mq-broker-a-master"]
    broker, beside = template["spec"]["containers"]
    assert beside == {"name": "beside", "image": "busybox"}
    assert broker["workingDir"] == "/tmp"
    assert "livenessProbe" not in broker
    assert broker["ports"] == before["spec"]["containers"][0]["ports"]
    assert broker["env"] == [
        {"name": "LOG_LEVEL", "value": "DEBUG"} if each["name"] == "LOG_LEVEL" else each
        for each in before["spec"]["containers"][0]["env"]
    ] + [{"name": "NEW", "value": "1"}]
    assert {"name": "tmp", "mountPath": "/tmp", "subPath": "x"} in broker["volumeMounts"]
    assert len(broker["volumeMounts"]) == len(before["spec"]["containers"][0]["volumeMounts"])
    assert template["spec"]["terminationGracePeriodSeconds"] == 300
    assert "fsGroupChangePolicy" not in template["spec"]["securityContext"]
    assert template["spec"]["securityContext"]["runAsUser"] == 10001
    assert template["metadata"]["labels"] == {**before["metadata"]["labels"], "more": "yes"}
    assert (
        rendered.pod_templates()["StatefulSet/mq-nameserver"] == render().pod_templates()["StatefulSet/mq-nameserver"]
    )


def test_diagnostic_mode_sleeps_without_probes_and_without_the_gate() -> None:
    rendered = render("--set", "diagnosticMode.enabled=true")
    for name, template in rendered.pod_templates().items():
        container = template["spec"]["containers"][0]
        assert container["command"] == ["sleep", "infinity"], name
        assert not {"args", "lifecycle", "startupProbe", "livenessProbe", "readinessProbe"} & container.keys(), name
    partition = rendered.one("StatefulSet", "mq-broker-a-master")["spec"]["updateStrategy"]["rollingUpdate"][
        "partition"
    ]
    assert partition == 0
    assert not rendered.kind("Job")
    # A sleeping pod waits for no Secret to be filled.
    for template in rendered.pod_templates().values():
        assert not [each for each in template["spec"]["volumes"] if "items" in each.get("secret", {})]


def test_names_labels_and_the_namespace_can_be_changed_everywhere() -> None:
    rendered = render("-f", str(CI_VALUES["everything-values"]))
    assert rendered.settings("Deployment", "orders-admin")["kubernetesNamespace"] == "messaging"
    for each in rendered.objects:
        metadata = each["metadata"]
        if metadata["name"] in ("more", "mq-more"):
            continue
        assert metadata["namespace"] == "messaging", metadata["name"]
        assert metadata["labels"]["team"] == "orders", metadata["name"]
        assert metadata["labels"]["app.kubernetes.io/name"] == "mq", metadata["name"]
        assert metadata["annotations"]["contact"] == "orders@example.com", metadata["name"]
        assert metadata["name"].startswith("orders") or metadata["name"] == "shared", metadata["name"]
    assert {"more", "mq-more"} <= set(rendered.kind("ConfigMap"))


def test_a_group_may_differ_in_volume_settings_and_resources() -> None:
    rendered = render("-f", str(CI_VALUES["everything-values"]))

    def size(name: str) -> str:
        (claim,) = rendered.one("StatefulSet", name)["spec"]["volumeClaimTemplates"]
        found: str = claim["spec"]["resources"]["requests"]["storage"]
        return found

    assert size("orders-broker-a-slave") == "100Gi"
    assert size("orders-broker-b-slave") == "32Gi"
    assert rendered.settings("StatefulSet", "orders-broker-a-slave")["fileReservedTime"] == "12"
    assert rendered.settings("StatefulSet", "orders-broker-a-slave")["diskMaxUsedSpaceRatio"] == "0.7"
    assert rendered.container("StatefulSet", "orders-broker-b-master")["resources"] == {"requests": {"cpu": "1"}}
    assert rendered.container("StatefulSet", "orders-broker-c-master")["resources"] == {"limits": {"memory": "4Gi"}}


@pytest.mark.parametrize(("class_", "expected"), [("fast", "fast"), ("-", "")])
def test_a_storage_class_by_name_or_none_at_all(class_: str, expected: str) -> None:
    rendered = render("--set", f"brokers.persistence.storageClass={class_}")
    (claim,) = rendered.one("StatefulSet", "mq-broker-a-master")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == expected


def test_without_persistence_the_store_is_an_empty_folder() -> None:
    rendered = render("--set", "replication=async,brokers.persistence.enabled=false")
    spec = rendered.one("StatefulSet", "mq-broker-a-master")["spec"]
    assert "volumeClaimTemplates" not in spec
    assert {"name": "store", "emptyDir": {}} in spec["template"]["spec"]["volumes"]


def test_whole_numbers_stay_whole_in_the_brokers_file() -> None:
    rendered = render(
        "--set-json", 'brokers.settings={"mappedFileSizeCommitLog":1073741824,"diskMaxUsedSpaceRatio":0.5}'
    )
    settings = rendered.settings("StatefulSet", "mq-broker-a-master")
    assert settings["mappedFileSizeCommitLog"] == "1073741824"
    assert settings["diskMaxUsedSpaceRatio"] == "0.5"
