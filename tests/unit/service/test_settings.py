from __future__ import annotations

from pathlib import Path
from typing import Self

import pytest
from pydantic import Field, SecretStr, model_validator

from tandemmq.service.settings import (
    ServiceSettings,
    SettingsError,
    effective_settings,
    json_schema,
    load_settings,
)


class DepotSettings(ServiceSettings):
    depot_name: str = Field("north", alias="depotName", description="Name of the depot.")
    listen_port: int = Field(9_000, ge=0, le=65_535, alias="listenPort", description="TCP port.")
    heartbeat_interval: int = Field(1_000, alias="heartbeatInterval", description="Milliseconds.")
    liveness_limit: int = Field(5_000, alias="livenessLimit", description="Milliseconds.")
    token: SecretStr = Field(SecretStr(""), alias="token", description="Shared secret.")
    is_open: bool = Field(True, alias="isOpen", description="Takes goods.")

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        problems = []
        if self.heartbeat_interval >= self.liveness_limit:
            problems.append("heartbeatInterval: must be below livenessLimit")
        if self.listen_port == 22:
            problems.append("listenPort: 22 is for ssh")
        if problems:
            raise ValueError("\n".join(problems))
        return self


def problems(
    text: str = "", *, tmp_path: Path, env: dict[str, str] | None = None, sets: tuple[str, ...] = ()
) -> list[str]:
    file = tmp_path / "depot.conf"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        load_settings(DepotSettings, config_file=file, environ=env or {}, overrides=sets)
    return caught.value.problems


def test_file_then_environment_then_overrides(tmp_path: Path) -> None:
    file = tmp_path / "depot.conf"
    file.write_text("# comment\n! another\n\n depotName = south \nlistenPort=1\nlivenessLimit=9000\nisOpen=false\n")
    settings = load_settings(
        DepotSettings,
        config_file=file,
        environ={"TANDEMMQ_LISTEN_PORT": "2", "TANDEMMQ_LIVENESS_LIMIT": "8000", "listenPort": "7"},
        overrides=["livenessLimit=7000"],
    )
    assert (settings.depot_name, settings.listen_port, settings.liveness_limit) == ("south", 2, 7_000)
    assert not settings.is_open


def test_python_spelling_of_a_key_is_accepted(tmp_path: Path) -> None:
    settings = load_settings(DepotSettings, environ={}, overrides=["depot_name=west"])
    assert settings.depot_name == "west"


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    found = problems(
        "listenport=1\nlistenPort=many\nheartbeatInterval=6000\nnonsense\n",
        tmp_path=tmp_path,
        sets=("isOpen=perhaps",),
    )
    assert len(found) == 5
    assert found[0].startswith("listenport (")
    assert found[0].endswith("depot.conf:1): unknown key; did you mean listenPort?")
    assert "'nonsense'" in found[1]
    assert "write key=value" in found[1]
    assert found[2].startswith("listenPort=many (")
    assert "valid integer" in found[2]
    assert "TCP port." in found[2]
    assert found[3].startswith("isOpen=perhaps (--set): ")
    assert found[4] == "heartbeatInterval: must be below livenessLimit"


@pytest.mark.parametrize("line", ["adminToken: open-sesame", "adminToken open-sesame", "adminToken:open-sesame"])
def test_a_line_that_assigns_nothing_does_not_show_what_may_be_a_secret(tmp_path: Path, line: str) -> None:
    [found] = problems(f"{line}\n", tmp_path=tmp_path)
    assert found.startswith("'adminToken' (")
    assert "sesame" not in found


def test_rules_between_fields_are_separate_lines(tmp_path: Path) -> None:
    found = problems("listenPort=22\nlivenessLimit=1\n", tmp_path=tmp_path)
    assert found == ["heartbeatInterval: must be below livenessLimit", "listenPort: 22 is for ssh"]


def test_rule_about_a_bad_value_is_not_repeated(tmp_path: Path) -> None:
    found = problems("livenessLimit=soon\nheartbeatInterval=7000\n", tmp_path=tmp_path)
    assert len(found) == 1
    assert found[0].startswith("livenessLimit=soon")


def test_misspelt_variable_is_reported_and_foreign_ones_pass(tmp_path: Path) -> None:
    env = {
        "TANDEMMQ_LISTEN_PROT": "1",
        "TANDEMMQ_NAMESRV_SERVICE_HOST": "10.0.0.1",
        "TANDEMMQ_LISTEN_PORT_9876_TCP": "tcp://10.0.0.1:9876",
    }
    assert problems(tmp_path=tmp_path, env=env) == [
        "TANDEMMQ_LISTEN_PROT (environment): unknown variable; did you mean TANDEMMQ_LISTEN_PORT?"
    ]


def test_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(DepotSettings, config_file=tmp_path / "absent.conf", environ={})


def test_secrets_are_masked() -> None:
    settings = load_settings(DepotSettings, environ={}, overrides=["token=hunter2"])
    assert effective_settings(settings)["token"] == "***"
    assert effective_settings(settings)["depotName"] == "north"


def test_schema_names_rocketmq_keys_and_refuses_others() -> None:
    schema = json_schema(DepotSettings)
    assert "listenPort" in schema["properties"]
    assert schema["additionalProperties"] is False
