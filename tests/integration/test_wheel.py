"""The wheel, installed with nothing beside it but what it asks for: the command line runs, and an extra that is missing
is named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support.running_time import PATIENCE_S, run_program

_ROOT = Path(__file__).parents[2]
_EXTRAS = ("admin", "broker", "consistency")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A copy: a build makes the stubs anew, and others read them.
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(_ROOT / name, source)
    for name in ("proto", "services"):
        shutil.copytree(_ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"],
        cwd=source,
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    (built,) = (source / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def bare(wheel: Path, metadata: Message, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the wheel and the packages that it requires without any extra."""
    root = tmp_path_factory.mktemp("bare")
    venv.create(root, symlinks=True)
    (site,) = root.glob("lib/python3.*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for package in sorted(_closure(Requirement(line) for line in metadata.get_all("Requires-Dist") or ())):
        _link(package, site)
    return root / "bin" / "python"


def _closure(requirements: Iterator[Requirement]) -> set[str]:
    """Names of the packages they mean, and of those these mean."""
    found: set[str] = set()
    waiting = [(requirement, "") for requirement in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name in found:
            continue
        try:
            further = distribution(requirement.name).requires or ()
        except PackageNotFoundError:
            pytest.fail(f"{requirement} is required and not installed here")
        found.add(requirement.name)
        waiting += [(Requirement(line), extra) for line in further for extra in ("", *requirement.extras)]
    return found


def _link(package: str, site: Path) -> None:
    for file in distribution(package).files or ():
        if ".." in file.parts or file.suffix == ".pyc":
            continue
        link = site / file
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(file.locate())


def _run(bare: Path, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return run_program([bare, *words], cwd=folder, env=environment)


def test_wheel_says_what_it_is(metadata: Message) -> None:
    assert set(metadata.get_all("Provides-Extra") or ()) >= set(_EXTRAS)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "# TandemMQ" in str(metadata.get_payload())
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    assert [line for line in classifiers if line.startswith("Programming Language :: Python :: 3.")]


def test_every_package_is_typed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packages = {name.split("/")[1] for name in names if name.startswith("tandemmq/") and name.endswith(".py")}
    assert {"cli", "client", "core", "proto"} <= packages
    typed = {name.split("/")[1] for name in names if name.endswith("/py.typed")}
    assert packages == typed


def test_console_programs_are_there(wheel: Path, bare: Path, tmp_path: Path) -> None:
    script = """
import importlib
from importlib.metadata import distribution
for point in distribution("tandemmq").entry_points:
    print(point.name, callable(point.load()) if not point.name.endswith("-executor") else True)
"""
    shown = _run(bare, "-c", script, folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert {"tandemmq True", "mqadmin True", "mqbroker True"} <= set(shown.stdout.splitlines())
    assert "False" not in shown.stdout


@pytest.mark.parametrize("words", ["--help", "--version", "context list"])
def test_bare_install_runs_the_command_line(bare: Path, tmp_path: Path, words: str) -> None:
    shown = _run(bare, "-m", "tandemmq.cli", *words.split(), folder=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, ""), shown.stderr
    assert shown.stdout


def test_bare_install_loads_every_command(bare: Path, tmp_path: Path) -> None:
    script = """
from typer.main import get_command
from tandemmq.cli.app import app
print(len([command for command in get_command(app).commands.values()]))
"""
    shown = _run(bare, "-c", script, folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert int(shown.stdout) > 50


@pytest.mark.parametrize(
    "words", ["topic list", "produce orders", "consume orders --group readers", "send orders text", "status"]
)
def test_bare_install_gets_as_far_as_the_cluster(bare: Path, tmp_path: Path, words: str) -> None:
    shown = _run(bare, "-m", "tandemmq.cli", *words.split(), "--namesrv", "127.0.0.1:1", folder=tmp_path)
    assert shown.returncode == 1
    assert "127.0.0.1:1" in shown.stdout + shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("-m", "tandemmq.cli", "up"), "broker,admin"),
        (("-m", "tandemmq.cli", "up", "--no-admin"), "broker"),
        (("-m", "tandemmq.cli", "rollout"), "admin"),
        (("-c", "from tandemmq.service.extras import admin; admin()"), "admin"),
        (("-c", "from tandemmq.service.extras import broker; broker()", "--check"), "broker"),
        (("-c", "from tandemmq.service.extras import consistency; consistency()"), "consistency"),
    ],
)
def test_missing_extra_is_named(bare: Path, tmp_path: Path, words: tuple[str, ...], extra: str) -> None:
    shown = _run(bare, *words, folder=tmp_path)
    assert shown.returncode == 2, shown.stderr
    assert f"pip install 'tandemmq[{extra}]'" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert not (tmp_path / "data").exists()
