"""The parts of the load generators' build that need no compiler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

from load.build import digest  # noqa: E402
from load.toolchains import build_environment, parse_version  # noqa: E402


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("go1.26.8 linux/amd64", (1, 26, 8)),
        ("go1.27 linux/arm64", (1, 27)),
        ("javac 17.0.15", (17, 0, 15)),
        ("javac 21", (21,)),
        ("not at all", ()),
    ],
)
def test_a_version_is_found_in_what_a_tool_says(said: str, version: tuple[int, ...]) -> None:
    assert parse_version(said) == version


def test_without_a_home_all_caches_are_below_the_build_folder(tmp_path: Path) -> None:
    environment = build_environment(tmp_path / "build", inherited={"PATH": "/bin", "HOME": str(tmp_path / "empty")})

    assert environment["GOPATH"] == str(tmp_path / "build" / "cache" / "go")
    assert environment["GOCACHE"] == str(tmp_path / "build" / "cache" / "go-build")
    assert environment["MAVEN_OPTS"] == f"-Dmaven.repo.local={tmp_path / 'build' / 'cache' / 'maven'}"
    assert "-modcacherw" in environment["GOFLAGS"]
    assert environment["PATH"] == "/bin"


def test_caches_that_exist_are_used(tmp_path: Path) -> None:
    for folder in ("go", ".cache/go-build", ".m2"):
        (tmp_path / folder).mkdir(parents=True)

    environment = build_environment(tmp_path / "build", inherited={"HOME": str(tmp_path)})

    assert environment.keys().isdisjoint({"GOPATH", "GOCACHE", "MAVEN_OPTS", "GOFLAGS"})


def test_a_digest_changes_with_names_contents_and_facts(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a")
    other.write_text("a")

    digests = {digest([one]), digest([other]), digest([one, other]), digest([one], "1.0"), digest([])}

    assert len(digests) == 5
    assert digest([one, other]) == digest([other, one])
    one.write_text("b")
    assert digest([one]) not in digests
