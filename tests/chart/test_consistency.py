"""The consistency job: when it runs, what it is told, what its executors are, and that it is not there unasked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.rendering import CI_VALUES, Rendered, conform, environment, refusal, render
from tandemmq.consistency.settings import ConsistencySettings
from tandemmq.core.audit.run_summary import ExitCode
from tandemmq.service.settings import load_settings

TIERS = ("quick", "deep")
ON = ("--set", "consistency.enabled=true")
VOLUME = '{"group":"broker-a","brokerId":0,"claimName":"c"}'
FIELDS = {"status.podIP": "10.1.2.3", "metadata.name": "mq-consistency-quick-29-abcde"}
EVERYTHING = ("-f", str(CI_VALUES["everything-values"]))
each_tier = pytest.mark.parametrize("tier", TIERS)


def test_presets_with_slaves_compare_them_and_others_have_nothing_of_it() -> None:
    for preset in ("2m-2s-sync", "2m-2s-async"):
        jobs = {f"mq-consistency-{tier}" for tier in TIERS}
        assert set(render(preset=preset).kind("CronJob")) - {"mq-certs"} == jobs
    for rendered in (render(), render(preset="2m-noslave")):
        assert not [each["metadata"]["name"] for each in rendered.objects if "consistency" in each["metadata"]["name"]]


@each_tier
def test_runs_of_a_tier_never_overlap_and_what_a_run_found_is_never_tried_again(tier: str) -> None:
    spec = render(*ON).one("CronJob", f"mq-consistency-{tier}")["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    job = spec["jobTemplate"]["spec"]
    assert job["backoffLimit"] == 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    # In this order: a run that is evicted ends with 3, too.
    evicted, final = job["podFailurePolicy"]["rules"]
    assert (evicted["action"], evicted["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert final["action"] == "FailJob"
    assert set(final["onExitCodes"]["values"]) == {1, ExitCode.DIVERGED, ExitCode.INCOMPLETE}
    assert final["onExitCodes"]["containerName"] == job["template"]["spec"]["containers"][0]["name"]


@each_tier
def test_the_job_takes_what_it_is_given(tier: str, tmp_path: Path) -> None:
    rendered = render(*ON)
    settings = _settings(rendered, f"mq-consistency-{tier}", tmp_path)
    assert settings.tier == tier
    assert settings.name_servers == tuple(f"mq-nameserver-{i}.mq-nameserver.ns.svc.cluster.local:9876" for i in (0, 1))
    assert settings.kubernetes_results == "mq-consistency"
    assert rendered.has("ConfigMap", settings.kubernetes_results)
    assert settings.executor_instances == 2
    assert (settings.driver_host, settings.driver_pod_name) == (FIELDS["status.podIP"], FIELDS["metadata.name"])
    assert not settings.runs_locally
    assert settings.spark_properties["spark.authenticate"] == "true"
    limit_s = rendered.one("CronJob", f"mq-consistency-{tier}")["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"]
    assert 0 < settings.deadline < limit_s


def test_files_of_the_settings_are_where_the_container_mounts_them(tmp_path: Path) -> None:
    rendered = render(*ON)
    pod = rendered.pod_templates()["CronJob/mq-consistency-quick"]["spec"]
    (items,) = (each["downwardAPI"]["items"] for each in pod["volumes"] if each["name"] == "settings")
    container = pod["containers"][0]
    (mounted,) = (each["mountPath"] for each in container["volumeMounts"] if each["name"] == "settings")
    files = {f"{mounted}/{item['path']}" for item in items}
    settings = _settings(rendered, "mq-consistency-quick", tmp_path)
    assert files == {container["args"][1], settings.executor_pod_template}
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert settings.results in mounts


def test_an_executor_is_a_pod_of_its_own_entry_and_no_token() -> None:
    pod = render(*ON).pod_templates()["Executor/mq-consistency-quick"]
    container = pod["spec"]["containers"][0]
    assert container["command"] == ["mqconsistency-executor"]
    assert "args" not in container
    assert pod["spec"]["automountServiceAccountToken"] is False
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert conform(yaml.safe_dump(pod | {"metadata": {**pod["metadata"], "name": "executor"}})) == ""


def _toolbox(rendered: Rendered) -> dict[str, str | None]:
    return {each["name"]: each.get("value") for each in rendered.container("Deployment", "mq-admin")["env"]}


def test_the_admin_reads_what_the_job_writes() -> None:
    rendered = render(*ON)
    name = _lines(rendered, "mq-consistency-quick")["kubernetesResults"]
    assert _toolbox(rendered)["TANDEMMQ_CONSISTENCY_RESULTS"] == f"configmap:{name}"
    (rule,) = (rule for rule in rendered.one("Role", "mq-admin")["rules"] if "configmaps" in rule["resources"])
    assert (rule["verbs"], rule["resourceNames"]) == (["get"], [name])
    for off in (render(), render(*ON, "--set", "admin.kubernetes.access=false")):
        assert "TANDEMMQ_CONSISTENCY_RESULTS" not in _toolbox(off)


def test_every_image_of_a_run_is_the_same() -> None:
    rendered = render(*ON, "--set", f"consistency.image.digest=sha256:{'0' * 64},image.registry=r.example.com")
    image = f"r.example.com/tandemmq/consistency@sha256:{'0' * 64}"
    assert rendered.container("CronJob", "mq-consistency-quick")["image"] == image
    assert rendered.container("Executor", "mq-consistency-quick")["image"] == image
    assert _lines(rendered, "mq-consistency-quick")["executorImage"] == image


def test_without_executors_a_run_does_all_in_its_own_pod(tmp_path: Path) -> None:
    rendered = render(*ON, "--set", "consistency.executors.count=0")
    settings = _settings(rendered, "mq-consistency-quick", tmp_path)
    assert settings.runs_locally
    assert "pods" not in {
        resource for rule in rendered.one("Role", "mq-consistency")["rules"] for resource in rule["resources"]
    }
    assert not rendered.has("NetworkPolicy", "mq-consistency")
    assert "Executor/mq-consistency-quick" not in rendered.pod_templates()


def test_replicas_on_volumes_are_mounted_in_the_run_and_its_executors_to_be_read_only(tmp_path: Path) -> None:
    volumes = [
        {"group": "broker-a", "brokerId": 0, "claimName": "clone-0"},
        {"group": "broker-a", "brokerId": 1, "claimName": "clone-1", "path": "data"},
    ]
    rendered = render(*ON, "--set-json", f"consistency.deep.volumes={json.dumps(volumes)}")
    settings = _settings(rendered, "mq-consistency-deep", tmp_path)
    (folder,) = settings.paths
    assert not settings.name_servers
    for kind in ("CronJob", "Executor"):
        pod = rendered.pod_templates()[f"{kind}/mq-consistency-deep"]["spec"]
        mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
        for volume, path in zip(volumes, ("store", "data"), strict=True):
            mount = mounts[f"{folder}/{volume['group']}/{volume['brokerId']}"]
            assert (mount["readOnly"], mount["subPath"]) == (True, path)
            (claim,) = (each["persistentVolumeClaim"] for each in pod["volumes"] if each["name"] == mount["name"])
            assert claim == {"claimName": volume["claimName"], "readOnly": True}
    assert _settings(rendered, "mq-consistency-quick", tmp_path).name_servers


def test_results_are_on_a_volume_that_the_install_already_mounts() -> None:
    """A claim whose volume waits for its first pod would keep `helm install --wait` until the first run."""
    rendered = render(*ON)
    claims = [_claim(pod) for name, pod in rendered.pod_templates().items() if "consistency" in name and _claim(pod)]
    assert claims == ["mq-consistency"] * 3
    assert rendered.has("PersistentVolumeClaim", "mq-consistency")
    (before,) = (name for name in rendered.kind("Job") if name.startswith("mq-consistency-volume-"))
    # Its template cannot be changed, so another one has another name.
    (after,) = (name for name in render(*ON, "--set", "image.tag=x").kind("Job") if "volume" in name)
    assert before != after


@pytest.mark.parametrize(
    ("values", "claim", "results"),
    [
        ("existingClaim=mine", "mine", "/var/lib/tandemmq/results"),
        ("enabled=false", None, "/var/lib/tandemmq/results"),
    ],
)
def test_a_claim_of_ones_own_or_none(values: str, claim: str | None, results: str) -> None:
    rendered = render(*ON, "--set", f"consistency.results.persistence.{values}")
    assert not rendered.kind("PersistentVolumeClaim")
    assert not [name for name in rendered.kind("Job") if "volume" in name]
    assert _claim(rendered.pod_templates()["CronJob/mq-consistency-deep"]) == claim
    assert _lines(rendered, "mq-consistency-deep")["results"] == results


def test_results_in_an_object_store_need_no_volume() -> None:
    rendered = render(*ON, "--set", "consistency.results.uri=s3://bucket/mq")
    assert not rendered.kind("PersistentVolumeClaim")
    pod = rendered.pod_templates()["CronJob/mq-consistency-quick"]["spec"]
    assert [each["name"] for each in pod["volumes"]] == ["settings", "tmp", "service-tls"]
    assert "affinity" not in pod
    assert _lines(rendered, "mq-consistency-quick")["results"] == "s3://bucket/mq"


def test_both_tiers_share_a_node_if_their_volume_does() -> None:
    pod = render(*ON).pod_templates()["CronJob/mq-consistency-deep"]
    (term,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for tier in TIERS:
        labels = render(*ON).pod_templates()[f"CronJob/mq-consistency-{tier}"]["metadata"]["labels"]
        assert term["labelSelector"]["matchLabels"].items() <= labels.items()
    shared = render(*ON, "--set", "consistency.results.persistence.accessModes={ReadWriteMany}")
    assert "affinity" not in shared.pod_templates()["CronJob/mq-consistency-deep"]["spec"]


def test_a_tier_has_its_own_settings_over_those_of_both(tmp_path: Path) -> None:
    values = '{"enabled":true,"settings":{"scrubWindow":"14d","keepRuns":9},"deep":{"settings":{"keepRuns":1000000}}}'
    rendered = render("--set-json", f"consistency={values}")
    quick, deep = (_settings(rendered, f"mq-consistency-{tier}", tmp_path) for tier in TIERS)
    assert (quick.keep_runs, deep.keep_runs) == (9, 1_000_000)
    assert quick.scrub_window == deep.scrub_window == 14 * 86_400


def test_the_spark_operator_is_told_the_same_as_a_cron_job(tmp_path: Path) -> None:
    rendered = render(*ON, "--set", "consistency.deep.runner=ScheduledSparkApplication")
    assert set(rendered.kind("CronJob")) == {"mq-consistency-quick", "mq-certs"}
    spec = rendered.one("ScheduledSparkApplication", "mq-consistency-deep")["spec"]["template"]
    other = render(*ON).pod_templates()
    driver = spec["driver"]["template"]
    cron = other["CronJob/mq-consistency-deep"]
    assert driver["metadata"] == cron["metadata"]
    container, usual = driver["spec"]["containers"][0], dict(cron["spec"]["containers"][0])
    assert spec["arguments"] == usual.pop("args")
    assert container == usual | {"command": ["mqconsistency-executor"]}
    executor = spec["executor"]["template"]
    assert executor["spec"] == other["Executor/mq-consistency-deep"]["spec"]
    settings = _settings(render(*ON), "mq-consistency-deep", tmp_path)
    assert spec["sparkConf"] == settings.spark_properties
    assert spec["executor"]["memoryOverhead"] == settings.executor_memory_overhead


def test_every_option_at_once_is_taken(tmp_path: Path) -> None:
    rendered = render(*EVERYTHING)
    settings = _settings(rendered, "orders-consistency-quick", tmp_path)
    assert settings.max_lag_bytes == 64 << 20
    assert settings.spark_properties["spark.kubernetes.executor.limit.cores"] == "2"
    assert settings.spark_properties["spark.task.maxFailures"] == "8"
    executor = rendered.pod_templates()["Executor/orders-consistency-quick"]["spec"]
    assert executor["nodeSelector"] == {"spot": "yes"}
    assert executor["priorityClassName"] == "low"
    spec = rendered.one("CronJob", "orders-consistency-quick")["spec"]
    assert (spec["timeZone"], spec["suspend"], spec["schedule"]) == ("Europe/Zurich", True, "@hourly")


def test_nothing_starts_by_itself_in_diagnostic_mode() -> None:
    rendered = render(*ON, "--set", "diagnosticMode.enabled=true")
    assert all(each["spec"]["suspend"] for each in rendered.kind("CronJob").values())
    assert not rendered.kind("Job")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("quick.schedule=hourly", ("/consistency/quick/schedule",)),
        ("quick.deadlineSeconds=60", ("/consistency/quick/deadlineSeconds", "300")),
        (
            "settings.sparkMaster=local",
            ("/consistency/settings/sparkMaster", "left out", "consistency.executors.count"),
        ),
        ("deep.settings.tier=quick", ("/consistency/deep/settings/tier", "left out")),
        ("settings.scrubWindow=soon", ("/consistency/settings/scrubWindow",)),
        ("executors.heap=512m", ("/consistency/executors/heap",)),
        ("results.uri=results", ("/consistency/results/uri",)),
        ("sparkConf.master=local", ("/consistency/sparkConf",)),
        ("deep.runner=Operator", ("/consistency/deep/runner", "'CronJob'")),
    ],
)
def test_is_refused_in_words_that_help(values: str, words: tuple[str, ...]) -> None:
    message = refusal(*ON, "--set", f"consistency.{values}")
    assert not [word for word in words if word not in message], message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--set-json", 'consistency.deep.volumes=[{"group":"broker-x","brokerId":0,"claimName":"c"}]'),
            ("consistency.deep.volumes", "no broker group broker-x", "broker-a"),
        ),
        (("--set-json", f"consistency.deep.volumes=[{VOLUME},{VOLUME}]"), ("broker-a/0 is there twice",)),
        (
            ("--set", "consistency.executors.count=0,consistency.quick.runner=ScheduledSparkApplication"),
            ("consistency.quick.runner", "consistency.executors.count"),
        ),
        (("--set", "fullnameOverride=a-release-with-a-name-of-forty-letters"), ("consistency-quick", "52")),
    ],
)
def test_contradictions_are_refused(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    message = refusal(*ON, *arguments)
    assert not [word for word in words if word not in message], message


def _lines(rendered: Rendered, name: str) -> dict[str, str]:
    template = rendered.pod_templates()[f"CronJob/{name}"]
    text: str = template["metadata"]["annotations"]["tandemmq.io/consistency.conf"]
    return dict(line.split("=", 1) for line in text.splitlines())


def _settings(rendered: Rendered, name: str, folder: Path) -> ConsistencySettings:
    """What the program reads in the CronJob's pod: its file, then its variables."""
    path = folder / f"{name}.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in _lines(rendered, name).items()))
    container = {"env": rendered.container("CronJob", name)["env"]}
    return load_settings(ConsistencySettings, config_file=path, environ=environment(container, FIELDS))


def _claim(template: dict[str, Any]) -> str | None:
    """The claim of a pod's results."""
    volumes = (each for each in template["spec"]["volumes"] if each["name"] == "results")
    found: list[str | None] = [each.get("persistentVolumeClaim", {}).get("claimName") for each in volumes]
    return found[0] if found else None


def test_the_admin_may_start_runs_only_if_it_is_let(tmp_path: Path) -> None:
    let = ("--set", "admin.kubernetes.startConsistency=true")

    def rules(rendered: Rendered) -> list[dict[str, Any]]:
        return [rule for rule in rendered.one("Role", "mq-admin")["rules"] if rule["apiGroups"] == ["batch"]]

    assert rules(render(*ON)) == []
    cron_jobs, jobs = rules(render(*ON, *let))
    assert cron_jobs["verbs"] == ["get"]
    assert set(cron_jobs["resourceNames"]) == {f"mq-consistency-{tier}" for tier in TIERS}
    assert (jobs["resources"], set(jobs["verbs"])) == (["jobs"], {"get", "list", "create"})
    configured = render(*ON, *let).one("Deployment", "mq-admin")["spec"]["template"]["metadata"]["annotations"]
    assert "\nconsistencyCronJobs=mq-consistency" in configured["tandemmq.io/admin.conf"]
    assert "startConsistency" in refusal("--set", "consistency.enabled=false", *let)
