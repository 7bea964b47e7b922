"""Each preset: what helm, the schemas and the services themselves say of it, and that it is what RocketMQ's is."""

from __future__ import annotations

from pathlib import Path

import pytest

from chart.rendering import CHART, CI_VALUES, PRESETS, ROOT, Rendered, conform, environment, helm, render
from support.running_time import run_program
from tandemmq.admin.settings import AdminSettings
from tandemmq.broker.settings import BrokerRole, BrokerSettings
from tandemmq.nameserver.settings import NameServerSettings
from tandemmq.service.settings import load_settings

OVERLAYS = sorted((ROOT / "deploy" / "helm" / "overlays").glob("*.yaml"))
MASTERS = {"mq-broker-a-master", "mq-broker-b-master"}
SLAVES = {"mq-broker-a-slave", "mq-broker-b-slave"}
each_preset = pytest.mark.parametrize("preset", list(PRESETS))


def test_the_presets_are_those_of_rocketmq() -> None:
    assert set(PRESETS) == {"2m-2s-sync", "2m-2s-async", "2m-noslave"}


@each_preset
def test_lint_has_nothing_to_say(preset: str) -> None:
    command = [
        helm(),
        "lint",
        "--strict",
        "--quiet",
        "--kube-version",
        "1.33.0",
        str(CHART),
        "-f",
        str(PRESETS[preset]),
    ]
    done = run_program(command)
    assert done.returncode == 0, done.stdout + done.stderr


@each_preset
def test_every_object_obeys_its_schema_also_with_each_overlay(preset: str) -> None:
    assert OVERLAYS
    with_overlays = (render("-f", str(overlay), preset=preset).text for overlay in OVERLAYS)
    assert conform(render(preset=preset).text, *with_overlays) == ""


def test_every_object_obeys_its_schema_with_values_of_ci() -> None:
    assert CI_VALUES
    assert conform(*(render("-f", str(values)).text for values in CI_VALUES.values())) == ""


def test_kubeconform_refuses_a_field_that_does_not_exist_wherever_it_stands() -> None:
    text = render().text
    wrong = text.replace("podManagementPolicy", "podManagmentPolicy")
    for texts in ((wrong, text), (text, wrong)):
        assert "podManagmentPolicy" in conform(*texts)


def test_sync_and_async_have_a_master_and_a_slave_in_each_of_two_groups() -> None:
    for preset in ("2m-2s-sync", "2m-2s-async"):
        sets = render(preset=preset).kind("StatefulSet")
        assert set(sets) == {"mq-nameserver", *MASTERS, *SLAVES}
        assert {name: each["spec"]["replicas"] for name, each in sets.items()} == {
            "mq-nameserver": 2,
            **dict.fromkeys(MASTERS | SLAVES, 1),
        }


def test_noslave_has_masters_only() -> None:
    assert set(render(preset="2m-noslave").kind("StatefulSet")) == {"mq-nameserver", *MASTERS}


@each_preset
def test_settings_are_those_of_rocketmqs_files(preset: str) -> None:
    rendered = render(preset=preset)
    for name in MASTERS | SLAVES & set(rendered.kind("StatefulSet")):
        settings = rendered.settings("StatefulSet", name)
        shared = {
            key: settings[key] for key in ("brokerClusterName", "deleteWhen", "fileReservedTime", "flushDiskType")
        }
        assert shared == {
            "brokerClusterName": "DefaultCluster",
            "deleteWhen": "04",
            "fileReservedTime": "48",
            "flushDiskType": "ASYNC_FLUSH",
        }
        assert settings["brokerName"] == name.removeprefix("mq-").rpartition("-")[0]


@pytest.mark.parametrize(
    ("preset", "role", "needed", "total"),
    [
        ("2m-2s-sync", BrokerRole.SYNC_MASTER, 1, 2),
        ("2m-2s-async", BrokerRole.ASYNC_MASTER, 1, 2),
        ("2m-noslave", BrokerRole.ASYNC_MASTER, 1, 1),
    ],
)
def test_a_broker_takes_what_a_master_is_given(
    preset: str, role: BrokerRole, needed: int, total: int, tmp_path: Path
) -> None:
    for name in MASTERS:
        settings = _broker(render(preset=preset), name, "0", tmp_path)
        assert settings.is_master
        assert settings.broker_role is role
        assert (settings.needed_replicas, settings.total_replicas) == (needed, total)
        assert settings.broker_ip1 == f"{name}-0.{name}.ns.svc.cluster.local"


@pytest.mark.parametrize("preset", ["2m-2s-sync", "2m-2s-async"])
def test_a_broker_takes_what_a_slave_is_given(preset: str, tmp_path: Path) -> None:
    for name in SLAVES:
        settings = _broker(render(preset=preset), name, "1", tmp_path)
        assert settings.broker_role is BrokerRole.SLAVE
        assert settings.broker_id == 1
        assert settings.may_be_master == (preset == "2m-2s-sync")
        assert settings.name_servers == tuple(
            f"mq-nameserver-{i}.mq-nameserver.ns.svc.cluster.local:9876" for i in range(2)
        )


@pytest.mark.parametrize(("failover", "needed"), [("auto", "1"), ("false", "2")])
def test_sync_states_how_many_copies_an_acknowledgement_needs(failover: str, needed: str) -> None:
    rendered = render("--set", f"failover.enabled={failover}", preset="2m-2s-sync")
    assert rendered.settings("StatefulSet", "mq-broker-a-master")["inSyncReplicas"] == needed


@each_preset
def test_the_other_services_take_what_they_are_given(preset: str, tmp_path: Path) -> None:
    rendered = render(preset=preset)
    for kind, name, model in (
        ("StatefulSet", "mq-nameserver", NameServerSettings),
        ("Deployment", "mq-admin", AdminSettings),
    ):
        load_settings(model, config_file=_file(rendered.settings(kind, name), tmp_path), environ={})


def test_services_take_what_every_option_at_once_gives_them(tmp_path: Path) -> None:
    rendered = render("-f", str(CI_VALUES["everything-values"]))
    master = _broker(rendered, "orders-broker-a-master", "0", tmp_path)
    assert master.external_advertised_host == "orders-broker-a-master-0.mq.example.com"
    assert master.external_advertised_port == 8081
    assert master.max_message_size == 8_388_608
    assert master.file_reserved_time == 12
    slave = _broker(rendered, "orders-broker-a-slave", "2", tmp_path)
    assert slave.broker_id == 2
    assert slave.total_replicas == 3
    assert slave.broker_ip1 == "orders-broker-a-slave-2.orders-broker-a-slave.messaging.svc.k8s.example"
    load_settings(
        NameServerSettings,
        config_file=_file(rendered.settings("StatefulSet", "orders-nameserver"), tmp_path),
        environ={},
    )
    load_settings(
        AdminSettings, config_file=_file(rendered.settings("Deployment", "orders-admin"), tmp_path), environ={}
    )


@each_preset
def test_a_preset_says_what_it_survives_and_fits_on_a_screen(preset: str) -> None:
    text = PRESETS[preset].read_text()
    assert "# Survives" in text
    assert "# May lose" in text or "# Does not survive" in text
    assert len(text.splitlines()) <= 30


def _broker(rendered: Rendered, name: str, broker_id: str, folder: Path) -> BrokerSettings:
    """What the program reads in pod `broker_id` of a StatefulSet: its file, then its variables."""
    fields = {
        "metadata.name": f"{name}-{broker_id}",
        "metadata.labels['apps.kubernetes.io/pod-index']": broker_id,
        "status.hostIP": "192.0.2.7",
        "spec.nodeName": "node-7",
    }
    variables = environment(rendered.container("StatefulSet", name), fields)
    return load_settings(
        BrokerSettings, config_file=_file(rendered.settings("StatefulSet", name), folder), environ=variables
    )


def _file(settings: dict[str, str], folder: Path) -> Path:
    path = folder / "settings.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


# Words that are text for whoever writes them, and a truth, a number or nothing for YAML.
_WORDS = ("yes", "1e3", "012")
_NAMES = (
    "nameOverride",
    "namespaceOverride",
    *(f"{part}.serviceAccount.name" for part in ("brokers", "nameserver", "admin", "consistency")),
    *(f"admin.{token}.{key}" for token in ("token", "viewerToken") for key in ("existingSecret", "key")),
)


@pytest.mark.parametrize("values", [None, *CI_VALUES.values()], ids=lambda path: path.stem if path else "default")
def test_a_name_is_text_whatever_yaml_takes_it_for(values: Path | None) -> None:
    texts = []
    for word in _WORDS:
        given = [part for name in _NAMES for part in ("--set-string", f"{name}={word}")]
        texts.append(render(*(("-f", str(values)) if values else ()), *given).text)
    assert conform(*texts) == ""


def test_the_name_of_a_broker_group_is_text_whatever_yaml_takes_it_for() -> None:
    words = ("yes", "null", "y")
    assert conform(*(render("--set-json", f'brokerGroups=[{{"name":"{word}"}}]').text for word in words)) == ""


@pytest.mark.parametrize("word", ["yes", "null"])
def test_the_name_of_a_release_is_text_whatever_yaml_takes_it_for(word: str) -> None:
    command = [helm(), "template", word, str(CHART), "-n", word, "--kube-version", "1.33.0", "-f"]
    texts = []
    for preset in PRESETS.values():
        done = run_program([*command, str(preset)], limit_s=60)
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert conform(*texts) == ""
