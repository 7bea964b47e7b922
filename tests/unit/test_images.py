"""What is in an image: the packages of its extra in uv.lock and no others, our sources and nothing that tools left."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, Final

import pytest

from support.running_time import run_program

ROOT: Final = Path(__file__).resolve().parents[2]
# Rooms of an image beside those that all have, and its extra.
IMAGES: Final = {
    "nameserver": ("nameserver",),
    "broker": ("broker",),
    "admin": ("admin", "cli"),
    "consistency": ("consistency",),
}
IMAGES_TOOL: Final = runpy.run_path(str(ROOT / "tools" / "images.py"))
STRIP_TOOL: Final = runpy.run_path(str(ROOT / "tools" / "image_strip.py"))
IMPORT_ALL: Final = """
import importlib, pkgutil, sys

rooms, absent = sys.argv[1].split(","), set(sys.argv[2].split(","))

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in absent:
            raise ModuleNotFoundError(f"No module named {name!r}: the image does not hold it", name=name)

sys.meta_path.insert(0, Absent())
for room in rooms:
    package = importlib.import_module(f"tandemmq.{room}")
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
"""


@pytest.mark.parametrize("image", IMAGES)
def test_every_module_of_an_image_imports_with_its_packages(image: str) -> None:
    held = _locked(image)
    absent = [name for name, owners in packages_distributions().items() if not held & {_plain(o) for o in owners}]
    done = run_program([sys.executable, "-c", IMPORT_ALL, ",".join(IMAGES[image]), ",".join(absent)])
    assert done.returncode == 0, done.stderr


# Packages whose names compiled modules use as values alone: the compiler takes them for anything.
VALUES_ALONE: Final = {"structlog"}


def test_what_compiled_modules_name_as_types_is_there_when_an_image_compiles_them() -> None:
    """A type of a package that is missing there compiles on every machine but in the image."""
    dockerfile = (ROOT / "services" / "Dockerfile").read_text()
    there = {_plain(name) for kept in re.findall(r"keep = /\^\(([^)]+)\)==/", dockerfile) for name in kept.split("|")}
    owners = packages_distributions()
    imported: set[str] = set()
    for module in runpy.run_path(str(ROOT / "tools" / "compile.py"))["MODULES"]:
        for node in ast.walk(ast.parse((ROOT / "services" / f"{module}.py").read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    others = imported - sys.stdlib_module_names - VALUES_ALONE - {"tandemmq"}
    assert "lark" in others
    missing = {name for name in others if not there & {_plain(owner) for owner in owners[name]}}
    assert missing == set()


SOURCES: Final = (
    *(
        "README.md",
        "LICENSE",
        "uv.lock",
        "proto/build_hook.py",
        "services/tandemmq/broker/put.py",
        "demo/requirements.txt",
    ),
    *("services/tandemmq/admin/console/static/app.css", "tools/compile.py", "tools/image_strip.py"),
)
LEFT_BEHIND: Final = (
    *(".mypy_cache/3.11/put.json", "services/.mypy_cache/3.11/put.json", "proto/.ruff_cache/a"),
    *(
        "services/tandemmq/.pytest_cache/a",
        "services/tandemmq/broker/__pycache__/put.cpython-311.pyc",
        "services/a.pyc",
    ),
    *("services/tandemmq/broker/put.cpython-311-x86_64-linux-gnu.so", "services/tandemmq.egg-info/PKG-INFO"),
    *("services/build/lib/put.c", "services/.coverage", "services/Dockerfile", "tests/unit/test_images.py"),
    *("build/compiled/put.py", ".venv/bin/python", "data/broker-a/commitlog/0", "demo/demo.py", "tools/images.py"),
)


def test_a_builder_is_given_sources_and_nothing_that_tools_left_behind(tmp_path: Path) -> None:
    shutil.copy(ROOT / ".dockerignore", tmp_path)
    for name in (*SOURCES, *LEFT_BEHIND):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert {str(path) for path in IMAGES_TOOL["context_files"](tmp_path)} == set(SOURCES)


def test_a_builder_is_given_all_that_the_dockerfiles_copy() -> None:
    given = {str(path) for path in IMAGES_TOOL["context_files"](ROOT)}
    wanted = set()
    for dockerfile in (IMAGES_TOOL["DOCKERFILE"], IMAGES_TOOL["CLIENT_DOCKERFILE"]):
        for line in dockerfile.read_text().splitlines():
            words = line.split()
            if words[:1] == ["COPY"] and not words[1].startswith("--from"):
                wanted |= set(words[1:-1])
    assert len(wanted) > 8
    missing = [name for name in wanted if not any(path == name or path.startswith(f"{name}/") for path in given)]
    assert missing == []


def test_a_long_build_tells_its_step_and_a_failed_one_its_last_lines(tmp_path: Path) -> None:
    seen, told = tmp_path / "seen", list[str]()

    def tell(line: str) -> None:
        told.append(line)
        if "STEP 2/3" in line:
            seen.touch()

    wait = f"while [ ! -e {shlex.quote(str(seen))} ]; do sleep 0.01; done"
    script = f"echo STEP 1/3: FROM base; echo chatter; echo STEP 2/3: RUN compile; {wait}; echo no room left; exit 3"
    with pytest.raises(IMAGES_TOOL["BuildFailed"], match="no room left"):
        IMAGES_TOOL["_run"](["sh", "-c", script], "broker", tell=tell, interval_s=0.02)
    assert told[-1].startswith("  broker: ")
    assert "chatter" not in "".join(told)


_DIGEST: Final = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("base", "told", "pinned"),
    [
        ("docker.io/library/python:3.11-slim", f"python@{_DIGEST}", f"python@{_DIGEST}"),
        ("python:3.11-slim", f"mirror:5000/python@{_DIGEST}\npython@{_DIGEST}", f"python@{_DIGEST}"),
        ("mirror:5000/python:3.11-slim", f"mirror:5000/python@{_DIGEST}", f"mirror:5000/python@{_DIGEST}"),
        (f"python@{_DIGEST}", f"python@{_DIGEST}", f"python@{_DIGEST}"),
        # Loaded from a file, or built here.
        ("docker.io/library/python:3.11-slim", "", "docker.io/library/python:3.11-slim"),
    ],
)
def test_a_base_is_built_on_by_the_digest_that_its_tag_has_now(
    base: str, told: str, pinned: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho '{told}'\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert IMAGES_TOOL["Docker"]().pinned(base) == pinned


def test_the_digest_of_a_base_is_recorded_beside_its_tag_and_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker, dockerfile = tmp_path / "docker", tmp_path / "Dockerfile"
    docker.write_text(f'#!/bin/sh\n[ "$1" = pull ] || echo python@{_DIGEST}\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    before = IMAGES_TOOL["DOCKERFILE"].read_text()
    tag = IMAGES_TOOL["BASE"].partition("@")[0]
    for recorded in (tag, f"{tag}@sha256:{'b' * 64}"):
        dockerfile.write_text(before.replace(f"ARG BASE={IMAGES_TOOL['BASE']}\n", f"ARG BASE={recorded}\n"))
        assert IMAGES_TOOL["recorded_base"](dockerfile) == f"{tag}@{_DIGEST}"
        assert dockerfile.read_text().count("ARG BASE=") == 1
        assert f"\nARG BASE={tag}@{_DIGEST}\nFROM ${{BASE}} AS base\n" in dockerfile.read_text()
    docker.write_text("#!/bin/sh\n")
    with pytest.raises(IMAGES_TOOL["BuildFailed"], match="no registry's digest"):
        IMAGES_TOOL["recorded_base"](dockerfile)


def test_a_release_stands_on_no_base_without_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nexit 0\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    done = run_program([sys.executable, str(ROOT / "tools" / "images.py"), "broker", "--release", "--base", "local:1"])
    assert done.returncode == 1
    assert "local:1 has no digest, and a release says what it stands on" in done.stderr


@pytest.mark.parametrize("package", ["lz4._version", "xxhash._xxhash", "zstandard.backend_c"])
def test_a_stripped_extension_is_smaller_and_loads(package: str, tmp_path: Path) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    before = Path(spec.origin)
    copy = tmp_path / before.name
    copy.write_bytes(before.read_bytes())
    (tmp_path / "no.so").write_text("a linker's script")
    saved = STRIP_TOOL["strip_folder"](tmp_path)
    assert saved == before.stat().st_size - copy.stat().st_size
    assert copy.stat().st_size < before.stat().st_size / 2
    assert (tmp_path / "no.so").read_text() == "a linker's script"
    # In a process of its own: here the extension is loaded already.
    load = (
        "import importlib.util as u, sys; s = u.spec_from_file_location(sys.argv[1], sys.argv[2]); "
        "m = u.module_from_spec(s); s.loader.exec_module(m); assert m.__file__ == sys.argv[2]; print(len(dir(m)))"
    )
    done = run_program([sys.executable, "-c", load, package, str(copy)])
    assert done.returncode == 0, done.stderr
    assert STRIP_TOOL["strip_folder"](tmp_path) == 0, "once is enough"


def test_what_is_no_shared_object_stays_as_it_is() -> None:
    for content in (b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(58), b"text" * 100):
        assert STRIP_TOOL["stripped"](content) == content


def _locked(extra: str) -> set[str]:
    """Names of what the Dockerfile's `uv export --extra` lists, without what it prunes, and of tandemmq."""
    exports = [line for line in IMAGES_TOOL["DOCKERFILE"].read_text().splitlines() if "$export" in line]
    of_extra = [line for line in exports if f"--extra {extra} " in line] or [
        line for line in exports if "common.txt" in line
    ]
    pruned = set(re.findall(r"--prune (\S+)", of_extra[0]))
    packages = {found["name"]: found for found in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    ours = packages["tandemmq"]
    held = {"tandemmq"}
    waiting: list[dict[str, Any]] = [*ours["dependencies"], *ours["optional-dependencies"].get(extra, [])]
    while waiting:
        wanted = waiting.pop()
        if wanted["name"] in pruned:
            continue
        package = packages[wanted["name"]]
        added = [need for name in wanted.get("extra", []) for need in package["optional-dependencies"][name]]
        if wanted["name"] not in held:
            added += package.get("dependencies", [])
        held.add(wanted["name"])
        waiting += added
    return held


def _plain(name: str) -> str:
    """As uv.lock spells it."""
    return name.lower().replace("_", "-").replace(".", "-")
