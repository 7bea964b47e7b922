"""What is written twice says the same: values, schema, README, settings of the services, what helm prints."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.rendering import CHART, CI_VALUES, PRESETS, ROOT, helm, render
from support.running_time import run_program
from tandemmq.broker.settings import BrokerSettings
from tandemmq.service.settings import SettingsError, load_settings

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
SCHEMA_TOOL = runpy.run_path(str(ROOT / "tools" / "chart_schema.py"))
README_TOOL = runpy.run_path(str(ROOT / "tools" / "chart_readme.py"))


@pytest.mark.parametrize("tool", ["chart_readme.py", "chart_schema.py", "dashboards.py", "settings_reference.py"])
def test_what_a_tool_writes_is_of_today(tool: str) -> None:
    done = run_program([sys.executable, str(ROOT / "tools" / tool), "--check"])
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_value_is_described() -> None:
    described = README_TOOL["descriptions"]((CHART / "values.yaml").read_text())
    assert [name for name, _, meaning in README_TOOL["rows"](VALUES, described) if not meaning] == []


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    assert _differences(VALUES, SCHEMA, "") == []


def test_the_schema_refuses_unknown_keys_at_every_level() -> None:
    def open_objects(schema: Any, path: str) -> list[str]:
        if not isinstance(schema, dict):
            return []
        here = [path] if "properties" in schema and schema.get("additionalProperties") is not False else []
        return here + [
            found
            for key, value in schema.get("properties", {}).items()
            for found in open_objects(value, f"{path}.{key}")
        ]

    assert open_objects(SCHEMA, "") == [".global", ".nameserver.updateStrategy", ".admin.updateStrategy"]
    # Settings: templates/validation.yaml refuses an unknown one, and names the one that was meant.
    assert [
        found for name, definition in SCHEMA["definitions"].items() for found in open_objects(definition, name)
    ] == ["brokerSettings", "nameserverSettings", "adminSettings", "consistencySettings"]


def test_ci_values_cover_every_branch_that_an_option_opens() -> None:
    """Every template renders something with some of them."""
    seen = set()
    for values in CI_VALUES.values():
        seen |= set(re.findall(r"# Source: tandemmq/templates/(\S+)", render("-f", str(values)).text))
    written = {
        str(path.relative_to(CHART / "templates"))
        for path in (CHART / "templates").rglob("*.yaml")
        if path.name != "validation.yaml"
    }
    assert written - seen == set()


@pytest.mark.parametrize("component", SCHEMA_TOOL["MODELS"])
def test_the_reference_has_every_setting_with_its_default_and_meaning(component: str) -> None:
    text = (ROOT / "docs" / "reference" / f"{component}-settings.md").read_text(encoding="utf-8")
    rows = {row.split("|")[1].strip(" `"): row for row in text.splitlines() if row.startswith("| `")}
    fields = SCHEMA_TOOL["MODELS"][component].model_fields
    assert rows.keys() == {field.alias for field in fields.values()}
    for name, field in fields.items():
        assert f"`TANDEMMQ_{name.upper()}`" in rows[field.alias]
        assert field.description, f"{field.alias} says nothing of itself"
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert f"`{field.default}`" in rows[field.alias], field.alias


@pytest.mark.parametrize("key", ["deleteWhen", "messageDelayLevel"])
def test_the_chart_takes_and_refuses_the_texts_that_a_broker_does(key: str) -> None:
    pattern, _ = SCHEMA_TOOL["FORMS"][key]
    texts = ["04", "4", "04;16", "04; 16", " 4", "24", "", ";", "04;", "4 5", "-1", "1s", "1s 2m", "1s  2h", "1x", "s"]
    for text in texts:
        try:
            load_settings(BrokerSettings, environ={}, overrides=[f"{key}={text}"])
        except SettingsError:
            assert not re.search(pattern, text), f"the chart takes {text!r}, a broker does not"
        else:
            assert re.search(pattern, text), f"a broker takes {text!r}, the chart does not"


def _notes(tmp_path: Path, *arguments: str) -> str:
    """NOTES.txt as helm prints it; without a cluster it prints none, so a copy of the chart has it as an object."""
    copy = shutil.copytree(CHART, tmp_path / "chart")
    text = (CHART / "templates" / "NOTES.txt").read_text()
    (copy / "templates" / "notes.yaml").write_text(
        f'{{{{ define "notes" }}}}{text}{{{{ end }}}}kind: Notes\ntext: {{{{ include "notes" . | toJson }}}}\n'
    )
    command = [helm(), "template", "mq", str(copy), "-n", "ns", "-s", "templates/notes.yaml", *arguments]
    done = run_program(command)
    assert done.returncode == 0, done.stderr
    notes: str = yaml.safe_load(done.stdout)["text"]
    return notes


@pytest.mark.parametrize("preset", list(PRESETS))
def test_notes_name_the_commands_to_type_next(preset: str, tmp_path: Path) -> None:
    notes = _notes(tmp_path, "-f", str(PRESETS[preset]))
    for words in (
        "mq-broker.ns.svc.cluster.local:8081",
        "port-forward -n ns svc/mq-admin 8080:8080",
        "helm test -n ns mq",
    ):
        assert words in notes
    assert "\n\n\n" not in notes
    assert ("Losing that disk" in notes) == (preset == "2m-noslave")
    assert ("--from=cronjob/mq-consistency-quick" in notes) == (preset != "2m-noslave")


def test_notes_warn_of_stores_that_are_not_kept(tmp_path: Path) -> None:
    notes = _notes(tmp_path, "--set", "replication=none,brokers.persistence.enabled=false")
    assert "WARNING: stores are lost with their pods" in notes


def test_notes_say_where_traces_are(tmp_path: Path) -> None:
    traced = _notes(tmp_path / "traced", "--set", "tracing.enabled=true")
    assert "tandemmq trace MESSAGE_ID" in traced
    viewed = _notes(tmp_path / "viewed", "--set", "tracing.enabled=true,tracing.viewer.enabled=true")
    assert "port-forward -n ns svc/mq-trace-viewer 16686:16686" in viewed
    assert "\n\n\n" not in traced + viewed


def test_every_template_file_is_named_for_its_kind() -> None:
    short = {"pdb": "PodDisruptionBudget"}
    for path in (CHART / "templates").glob("*.yaml"):
        kinds = set(re.findall(r"^kind: (\w+)$", path.read_text(), re.MULTILINE))
        if kinds:
            (kind,) = kinds
            ending = path.stem.rpartition("-")[2]
            assert short.get(ending, ending).lower() == kind.lower(), path.name


def _differences(values: Any, schema: dict[str, Any], path: str) -> list[str]:
    schema = _resolved(schema)
    if not isinstance(values, dict) or "properties" not in schema:
        return []
    known = schema["properties"]
    found = [f"{path}.{key}: not in the schema" for key in values.keys() - known.keys()]
    # A map that is empty by default is filled by the user; its keys are in the schema alone.
    if values:
        found += [f"{path}.{key}: not in values.yaml" for key in known.keys() - values.keys()]
    for key in values.keys() & known.keys():
        if key not in ("startupProbe", "livenessProbe", "readinessProbe", "resources"):
            found += _differences(values[key], known[key], f"{path}.{key}")
    return sorted(found)


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        definition: dict[str, Any] = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
        return definition
    return schema
