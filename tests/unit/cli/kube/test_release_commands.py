"""Arguments of the commands that know Kubernetes, and the help of all commands."""

from __future__ import annotations

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from support.kubernetes_release import FakeRelease
from tandemmq.cli.app import app
from tandemmq.cli.ending import CommandError
from tandemmq.cli.kube.release import find_release
from tandemmq.cli.mqadmin import MQADMIN_COMMANDS
from tandemmq.cli.options import parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7_200), ("250ms", 0.25), (" 5s ", 5)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "5x", "m", "-5s", "1h30m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="30m"):
        parse_duration_s(text)


def _commands() -> list[tuple[str, ...]]:
    def below(group: TyperGroup, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for name, command in group.commands.items():
            found += below(command, (*path, name)) if isinstance(command, TyperGroup) else [(*path, name)]
        return found

    root = get_command(app)
    assert isinstance(root, TyperGroup)
    return below(root, ())


@pytest.mark.parametrize("words", _commands(), ids=" ".join)
def test_every_command_gives_an_example(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0
    assert "Example" in shown.output
    called = f"{'mqadmin' if words[0] in MQADMIN_COMMANDS else 'tandemmq'} {' '.join(words)}"
    assert called in " ".join(shown.output.split("Usage: ")[-1].partition("\n")[2].split())


def test_access_point_without_a_port_is_refused() -> None:
    error = CliRunner().invoke(app, ["smoke", "--namesrv", "127.0.0.1:1", "--access-point", "broker"]).exception
    assert isinstance(error, CommandError)
    assert error.exit_code == 2


async def test_only_release_of_the_namespace_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEMMQ_RELEASE", raising=False)
    release = FakeRelease({"broker-a": 1})
    assert await find_release(release, None) == "mq"
    assert await find_release(release, "other") == "other"
    monkeypatch.setenv("TANDEMMQ_RELEASE", "third")
    assert await find_release(release, None) == "third"


async def test_two_releases_must_be_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEMMQ_RELEASE", raising=False)
    release = FakeRelease({"broker-a": 1})
    release.names = ["mq", "other"]
    with pytest.raises(CommandError) as failure:
        await find_release(release, None)
    assert failure.value.cause == "mq, other"
