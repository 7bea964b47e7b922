"""Builds the scenario programs of tests/e2e with the official clients, each into build/clients/<language>.

    python tools/official_clients.py [java] [go] [node] [rust]

Everything a build downloads or caches stays below build/clients, but for Rust's packages: an empty home folder is
enough. Versions and hashes are pinned beside the programs; packages come from whatever registry the toolchains are set
up for. A toolchain that is missing is installed with apt-get when that is possible, and named when it is not. Nothing
is built twice.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CLIENTS: Final = ROOT / "build" / "clients"
PROGRAMS: Final = ROOT / "tests" / "e2e"

# The Go client's own go.mod asks for it.
_GO_VERSION_MIN: Final = (1, 24)


class ToolchainMissing(Exception):
    """A toolchain is neither there nor to be had; the text says what to install."""


def build(language: str) -> list[str]:
    """Builds the program of one language if anything changed; returns the command that runs it."""
    make, sources = LANGUAGES[language]
    folder = CLIENTS / language
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    for name in sources:
        digest.update((PROGRAMS / f"official_{language}" / name).read_bytes())
    stamp = folder / ".built"
    fresh = not stamp.exists() or stamp.read_text() != digest.hexdigest()
    command = make(PROGRAMS / f"official_{language}", folder, fresh)
    stamp.write_text(digest.hexdigest())
    return command


def driver_environment(language: str) -> dict[str, str]:
    """Environment in which a program runs; the clients write their logs below the home folder."""
    home = CLIENTS / "home" / language
    home.mkdir(parents=True, exist_ok=True)
    # The Go client reads the folder of its log from a variable, the others use the home folder.
    return {**os.environ, "HOME": str(home)}


def _java(programs: Path, folder: Path, fresh: bool) -> list[str]:
    maven, javac, java = (_program(name, "maven default-jdk-headless") for name in ("mvn", "javac", "java"))
    library, classes = folder / "lib", folder / "classes"
    if fresh:
        shutil.rmtree(library, ignore_errors=True)
        shutil.rmtree(classes, ignore_errors=True)
        _run(
            *(
                maven,
                "-B",
                "-q",
                "-Dstyle.color=never",
                f"-Dmaven.repo.local={CLIENTS / 'maven'}",
                "-f",
                str(programs / "pom.xml"),
            ),
            *("dependency:copy-dependencies", f"-DoutputDirectory={library}"),
        )
        sources = [str(programs / name) for name in LANGUAGES["java"][1] if name.endswith(".java")]
        _run(javac, "-cp", f"{library}/*", "-d", str(classes), *sources)
    home = driver_environment("java")["HOME"]
    # The two first options make the virtual machine start sooner and compile less: the scenarios are short.
    return [
        *(java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={home}"),
        *("-cp", f"{classes}:{library}/*", "OfficialScenarios"),
    ]


def _go(programs: Path, folder: Path, fresh: bool) -> list[str]:
    program = folder / "scenarios"
    if fresh or not program.exists():
        go = _program("go", "golang", Path("/usr/local/go/bin"))
        environment = {
            "GOPATH": str(folder / "path"),
            "GOMODCACHE": str(folder / "modules"),
            "GOCACHE": str(folder / "cache"),
            "GOTOOLCHAIN": "local",
            # Without it the cache is read-only and `make clean` cannot remove it.
            "GOFLAGS": "-modcacherw -mod=readonly",
            "CGO_ENABLED": "0",
        }
        answer = subprocess.run([go, "version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"go(\d+)\.(\d+)", answer)
        if found is None or (int(found[1]), int(found[2])) < _GO_VERSION_MIN:
            raise ToolchainMissing(f"the Go client needs Go {_version(_GO_VERSION_MIN)} or newer; {go} says: {answer}")
        _run(go, "build", "-ldflags=-s -w", "-o", str(program), ".", folder=programs, more=environment)
    return [str(program)]


def _node(programs: Path, folder: Path, fresh: bool) -> list[str]:
    node, npm = _program("node", "nodejs npm"), _program("npm", "nodejs npm")
    if fresh:
        for name in LANGUAGES["node"][1]:
            shutil.copyfile(programs / name, folder / name)
        _run(
            *(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"),
            folder=folder,
            more={"npm_config_cache": str(CLIENTS / "npm"), "npm_config_update_notifier": "false"},
        )
    return [node, str(folder / "scenarios.js")]


def _rust(programs: Path, folder: Path, fresh: bool) -> list[str]:
    program = folder / "target" / "debug" / "official-rust-scenarios"
    if fresh or not program.exists():
        cargo = _program("cargo", "cargo", Path.home() / ".cargo" / "bin")
        # Its registry is set up below the home folder, so what it downloads goes there, too.
        _run(cargo, "build", "--locked", "--quiet", folder=programs, more={"CARGO_TARGET_DIR": str(folder / "target")})
    return [str(program)]


def _program(name: str, packages: str, *more_folders: Path) -> str:
    """Path of a toolchain's program, installed if it must be. Raises ToolchainMissing."""

    def find() -> str | None:
        return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, more_folders)]))

    found = find()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {packages}", flush=True)
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        _run("apt-get", "update", "-qq", more=quiet)
        _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages.split(), more=quiet)
        found = find()
    if found is None:
        raise ToolchainMissing(f"'{name}' is missing; install {packages}, or run as root where apt-get works")
    return found


def _run(*command: str, folder: Path = ROOT, more: Mapping[str, str] | None = None) -> None:
    subprocess.run(command, cwd=folder, env={**os.environ, **(more or {})}, stdout=sys.stderr, check=True)


def _version(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


# How each is built, and the files that decide whether it must be built again.
LANGUAGES: Final[Mapping[str, tuple[Callable[[Path, Path, bool], list[str]], tuple[str, ...]]]] = {
    "java": (_java, ("pom.xml", "OfficialScenarios.java", "TransactionLoad.java")),
    "go": (_go, ("go.mod", "go.sum", "main.go", "scenarios.go", "load.go")),
    "rust": (_rust, ("Cargo.toml", "Cargo.lock", "src/main.rs")),
    "node": (_node, ("package.json", "package-lock.json", "scenarios.js", "load.js")),
}


def main() -> int:
    """Builds what is named, else all; exit code 1 when a toolchain is missing."""
    for language in sys.argv[1:] or LANGUAGES:
        started = time.monotonic()
        try:
            command = build(language)
        except ToolchainMissing as error:
            print(f"{language}: {error}", file=sys.stderr)
            return 1
        print(f"{language}: {time.monotonic() - started:.1f} s: {' '.join(command)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
