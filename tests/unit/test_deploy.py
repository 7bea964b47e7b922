"""What deploy/ brings for plain machines can be used: settings are known and fit together, units are whole."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from support.running_time import run_program
from tandemmq.admin.settings import AdminSettings
from tandemmq.broker.settings import BrokerSettings
from tandemmq.nameserver.settings import NameServerSettings
from tandemmq.service.settings import EXIT_REFUSED, load_settings

_DEPLOY = Path(__file__).parents[2] / "deploy"
_UNITS = sorted((_DEPLOY / "systemd").glob("*.service"))
_EXAMPLES = sorted((_DEPLOY / "systemd" / "examples").glob("*.properties"))
_TOKEN = "correct-horse-battery"


def _model(name: str) -> type[BaseModel]:
    if "admin" in name:
        return AdminSettings
    return NameServerSettings if "name" in name else BrokerSettings


@pytest.mark.parametrize("example", _EXAMPLES, ids=lambda path: path.stem)
def test_settings_of_units_are_known_and_fit_together(example: Path) -> None:
    load_settings(_model(example.stem), config_file=example, environ={})


@pytest.mark.parametrize("example", [path for path in _EXAMPLES if "broker" in path.stem], ids=lambda path: path.stem)
def test_a_new_group_begins_with_what_is_there(example: Path) -> None:
    """As in all presets and in the compose file: who consumes what he has just sent gets it."""
    settings = load_settings(BrokerSettings, config_file=example, environ={})
    assert settings.consume_from_earliest


def _services() -> dict[str, Any]:
    composed = yaml.safe_load((_DEPLOY / "compose" / "compose.yaml").read_text())
    services: dict[str, Any] = composed["services"]
    named = {volume.split(":")[0] for each in services.values() for volume in each.get("volumes", ())}
    assert named == set(composed["volumes"])
    return services


@pytest.mark.parametrize("name", [name for name in _services() if name != "folders"])
def test_settings_of_the_compose_file_are_known_and_fit_together(name: str) -> None:
    service = _services()[name]
    environ = {key: re.sub(r"^\$\{.*\}$", _TOKEN, value) for key, value in service["environment"].items()}
    model = _model(service["image"])
    settings = load_settings(model, environ=environ)
    if isinstance(settings, BrokerSettings):
        [published] = service["ports"]
        _, outside, inside = published.split(":")
        assert int(inside) == settings.external_listen_port
        assert int(outside) == settings.external_advertised_port
        assert settings.consume_from_earliest
        assert settings.broker_ip1 == name, "the name that other containers reach it by"


@pytest.mark.parametrize("unit", _UNITS, ids=lambda path: path.stem)
def test_a_service_with_wrong_settings_is_not_started_again_and_again(unit: Path) -> None:
    """RestartPreventExitStatus looks at the main process alone: what refuses before it is tried for ever."""
    lines = unit.read_text().splitlines()
    assert not any(line.startswith("ExecStartPre=") for line in lines)
    assert f"RestartPreventExitStatus={EXIT_REFUSED}" in lines


@pytest.mark.parametrize("unit", _UNITS, ids=lambda path: path.stem)
def test_what_may_pass_is_tried_for_ever(unit: Path) -> None:
    lines = unit.read_text().splitlines()
    assert {"Restart=always", "Restart=on-failure"} & set(lines)
    assert "StartLimitIntervalSec=0" in lines
    assert "RequiresMountsFor=/var/lib/tandemmq" in lines


@pytest.mark.parametrize("name", [name for name in _services() if name != "folders"])
def test_containers_come_back_after_the_machine_was_started_anew(name: str) -> None:
    """`on-failure` does not: the daemon ended them in order."""
    assert _services()[name]["restart"] == "unless-stopped"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
@pytest.mark.parametrize("unit", _UNITS, ids=lambda path: path.stem)
def test_units_are_whole(unit: Path, tmp_path: Path) -> None:
    """As systemd reads them, with programs that there are."""
    instance = tmp_path / unit.name.replace("@.", "@broker-a.")
    instance.write_text(re.sub(r"/opt/tandemmq/bin/\w+", "/bin/true", unit.read_text()))
    told = run_program(["systemd-analyze", "verify", "--man=no", str(instance)])
    mine = [line for line in told.stderr.splitlines() if unit.name.split(".")[0].split("@")[0] in line]
    assert (told.returncode, mine) == (0, [])


@pytest.mark.parametrize("unit", _UNITS, ids=lambda path: path.stem)
def test_nobody_else_on_the_machine_reads_what_a_unit_stores(unit: Path) -> None:
    lines = unit.read_text().splitlines()
    assert "UMask=0027" in lines
    assert "StateDirectoryMode=0750" in lines


@pytest.mark.parametrize("unit", _UNITS, ids=lambda path: path.stem)
def test_a_unit_has_no_more_of_the_machine_than_it_needs(unit: Path) -> None:
    lines = unit.read_text().splitlines()
    assert {"CapabilityBoundingSet=", "PrivateDevices=yes", "RestrictNamespaces=yes"} <= set(lines)
    # A call beyond @system-service ended a broker that was tried with it.
    assert not any(line.startswith("SystemCallFilter=") for line in lines)
