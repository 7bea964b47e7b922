"""Builds the images of services/Dockerfile and the test client's, looks into each, and reports their sizes.

    python tools/images.py                                # nameserver, broker, admin, client
    python tools/images.py broker --tag 0.1.0-rc1         # some; `consistency` (Spark, 1.1 GB) only when named
    python tools/images.py --load                         # and puts them on the nodes of the local test cluster
    python tools/images.py broker --plain                 # no C extensions of the busiest modules: builds faster
    python tools/images.py broker --twice                 # two times without cache: the same bytes?

Builds with docker when a daemon answers, else with buildah through $KUBE_SCRIPTS/bud.sh (default ../shared/kube), which
needs neither daemon nor registry. Names are tandemmq/<service>:<tag>; buildah puts `localhost/` in front, which is the
chart's image.registry then. Files get a fixed time, so that equal sources give equal layers (with docker: buildx).

Each image is started as its user, 10001, who may write nothing outside /tmp and the state's folder: the program must
say its version, byte code must be there; compilers, uv and other packages' tests must not. Report: build/images.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

ROOT: Final = Path(__file__).resolve().parent.parent
REPORT: Final = ROOT / "build" / "images.json"
DOCKERFILE: Final = ROOT / "services" / "Dockerfile"
CLIENT_DOCKERFILE: Final = ROOT / "tests" / "e2e" / "kubernetes" / "Dockerfile"
BASE: Final = "docker.io/library/python:3.11-slim"
KUBE_SCRIPTS: Final = Path(os.environ.get("KUBE_SCRIPTS", ROOT.parent / "shared" / "kube"))
# 2020-01-01, as hatchling dates the files of a wheel.
EPOCH_S: Final = "1577836800"
BYTES_PER_MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Image:
    """What is built, how it is seen to work, and how much may lie on top of the base image."""

    name: str
    # Shell commands, each of which must succeed inside.
    checks: tuple[str, ...]
    # Above python:3.11-slim. Room for growth, not for another copy of something big.
    own_mb_max: int
    target: str | None = None
    # C extensions for the broker's busiest modules; the other images take no notice.
    compiled: bool = True

    @property
    def repository(self) -> str:
        return f"tandemmq/{self.name}"

    @property
    def arguments(self) -> list[str]:
        """Dockerfile, target and build arguments, as docker and buildah both take them."""
        if self.target is None:
            return ["-f", str(CLIENT_DOCKERFILE)]
        return ["-f", str(DOCKERFILE), "--target", self.target, "--build-arg", f"COMPILED={int(self.compiled)}"]


# Byte code is there and trusted unchecked: flags 1 in its header.
_BYTE_CODE: Final = """python -c '
import importlib.util
with open(importlib.util.find_spec("google.protobuf").cached, "rb") as byte_code:
    raise SystemExit(byte_code.read(8)[4:] != (1).to_bytes(4, "little"))
'"""


def _absent(*programs: str) -> str:
    """A check: none of these is on the PATH."""
    return f"for name in {' '.join(programs)}; do ! command -v $name || exit 1; done"


_EVERYWHERE: Final = (
    'test "$(id -u):$(id -g)" = 10001:10001',
    _absent("cc", "gcc", "make", "uv"),
    "! touch /opt/written 2> /dev/null",
    'test -z "$(find /opt -type d -name tests -not -path "*/site-packages/tests")"',
    'test -z "$(find /opt -name "*.pyi")"',
    _BYTE_CODE,
)
# Java starts, executors are Python, Arrow goes there and back.
_SPARK: Final = (
    "SPARK_LOCAL_HOSTNAME=localhost SPARK_LOCAL_IP=127.0.0.1 python -c '"
    "from pyspark.sql import SparkSession; "
    's = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate(); '
    'parts = s.range(1000).mapInArrow(lambda parts: parts, "id long"); '
    "assert sum(row.id for row in parts.collect()) == 499500; s.stop()'"
)
# The archive of Java's classes fits: Java takes Spark's own from it, and ends where it does not (-Xshare:on).
_CLASS_ARCHIVE: Final = (
    '"$JAVA_HOME/bin/java" -XX:SharedArchiveFile="$TANDEMMQ_CLASS_ARCHIVE" -Xshare:on -Xlog:class+load:stdout '
    '-XX:+UseSerialGC -cp "$SPARK_HOME/conf/:$(echo "$SPARK_HOME"/jars/slf4j-api-*.jar):$SPARK_HOME/jars/*" '
    "org.apache.spark.deploy.SparkSubmit --version 2>&1 "
    "| grep -q 'org.apache.spark.deploy.SparkSubmit source: shared objects file (top)'"
)
IMAGES: Final = (
    Image("nameserver", ("mqnamesrv --version", _absent("mqbroker", "mqadmin")), 60, "nameserver"),
    Image(
        "broker",
        ("mqbroker --version", "mqbroker-drain --help > /dev/null", _absent("mqnamesrv", "mqadmin")),
        130,
        "broker",
    ),
    Image(
        "admin",
        ("mqadminservice --version", "tandemmq --help > /dev/null", "python -c 'import kubernetes.client'"),
        180,
        "admin",
    ),
    Image(
        "consistency",
        (
            "mqconsistency --help > /dev/null",
            "! mqconsistency-executor && ! mqconsistency-executor executor",
            _CLASS_ARCHIVE,
            _absent("mqbroker", "mqnamesrv", "mqadmin"),
            _SPARK,
        ),
        880,
        "consistency",
    ),
    Image("e2e-client", ("python -c 'import rocketmq'",), 80),
)
BY_NAME: Final = {image.name: image for image in IMAGES} | {"client": IMAGES[-1]}
DEFAULT: Final = ("nameserver", "broker", "admin", "client")


class BuildFailed(Exception):
    """No builder, a failed build or an image that is not as it must be; the text says which."""


class Builder(Protocol):
    """docker or buildah."""

    name: str

    def build(self, image: Image, tag: str, *, fresh: bool) -> str:
        """Builds; returns the image's full name. `fresh` uses no cache."""

    def size_bytes(self, reference: str) -> int:
        """Uncompressed size of all layers."""

    def layers(self, reference: str) -> str:
        """Digests of the layers: equal if and only if the files are."""

    def run(self, reference: str, command: str) -> subprocess.CompletedProcess[str]:
        """Runs a shell command inside, as the image's user."""


class Docker:
    """The docker command with a daemon that answers."""

    name = "docker"

    def build(self, image: Image, tag: str, *, fresh: bool) -> str:
        reference = f"{image.repository}:{tag}"
        options = ["--no-cache"] if fresh else []
        command = ["docker", "build", *options, "-t", reference, *image.arguments, str(ROOT)]
        _run(command, {"DOCKER_BUILDKIT": "1", "SOURCE_DATE_EPOCH": EPOCH_S})
        return reference

    def size_bytes(self, reference: str) -> int:
        return int(_output(["docker", "image", "inspect", "-f", "{{.Size}}", reference]))

    def layers(self, reference: str) -> str:
        return _output(["docker", "image", "inspect", "-f", "{{json .RootFS.Layers}}", reference])

    def run(self, reference: str, command: str) -> subprocess.CompletedProcess[str]:
        arguments = ["--rm", "--read-only", "--tmpfs", "/tmp", "--network", "none", "--cap-drop", "ALL"]
        return _try(["docker", "run", *arguments, "--entrypoint", "/bin/sh", reference, "-ec", command])


class Buildah:
    """buildah by the cluster scripts' bud.sh, with the storage that they keep."""

    name = "buildah"

    def __init__(self, scripts: Path) -> None:
        self._bud = scripts / "bud.sh"
        home = Path(_output(["bash", "-c", f'. "{scripts}/env.sh"; echo "$K"']))
        storage = home / "var" / "buildah"
        (home / "run").mkdir(parents=True, exist_ok=True)
        self._buildah = [
            *("buildah", "--root", str(storage / "root"), "--runroot", str(storage / "run")),
            *("--storage-driver", "overlay"),
        ]
        if not _output([*self._buildah, "images", "-q", "--filter", f"reference={BASE}"]):
            raise BuildFailed(f"{BASE} is not in the local storage; {scripts}/up.sh puts a stand-in there")

    def build(self, image: Image, tag: str, *, fresh: bool) -> str:
        reference = f"localhost/{image.repository}:{tag}"
        # Without --layers nothing is kept, and each target would build all stages before it again.
        options = ["--layers", "--no-cache"] if fresh else ["--layers"]
        _run([str(self._bud), str(ROOT), reference, *image.arguments, *options, "--timestamp", EPOCH_S])
        return reference

    def size_bytes(self, reference: str) -> int:
        return sum(layer["size"] for layer in self._manifest(reference)["layers"])

    def layers(self, reference: str) -> str:
        return " ".join(layer["digest"] for layer in self._manifest(reference)["layers"])

    def run(self, reference: str, command: str) -> subprocess.CompletedProcess[str]:
        container = _output([*self._buildah, "from", "--pull-never", reference])
        try:
            return _try([*self._buildah, "run", "--isolation", "chroot", container, "--", "/bin/sh", "-ec", command])
        finally:
            _output([*self._buildah, "rm", container])

    def _manifest(self, reference: str) -> dict[str, Any]:
        text = _output([*self._buildah, "inspect", "--type", "image", "--format", "{{.Manifest}}", reference])
        manifest: dict[str, Any] = json.loads(text)
        return manifest


def main() -> int:
    """Returns 0, or 1 with the cause on stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", metavar="IMAGE", help=f"of {', '.join(BY_NAME)}; default: {DEFAULT}")
    parser.add_argument("--tag", default=_version(), help="default: the version in pyproject.toml")
    parser.add_argument("--plain", action="store_true", help="do not compile the modules every message passes through")
    parser.add_argument("--load", action="store_true", help="put the images on every node of the local test cluster")
    parser.add_argument("--twice", action="store_true", help="build two times without cache and compare the layers")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.images) - set(BY_NAME))
    if unknown:
        parser.error(f"no such image: {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    try:
        builder = _builder()
        rows: list[dict[str, object]] = []
        for image in dict.fromkeys(BY_NAME[name] for name in arguments.images or DEFAULT):
            wanted = replace(image, compiled=not arguments.plain)
            rows += _made(builder, wanted, arguments.tag, twice=arguments.twice, load=arguments.load)
    except BuildFailed as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if all(row["holds"] for row in rows) else 1


def _made(builder: Builder, image: Image, tag: str, *, twice: bool, load: bool) -> list[dict[str, object]]:
    """Builds, checks and measures one image; the rows of its report. Raises BuildFailed."""
    started = time.monotonic()
    reference = builder.build(image, tag, fresh=twice)
    seconds = time.monotonic() - started
    for command in (*_EVERYWHERE, *image.checks):
        done = builder.run(reference, command)
        if done.returncode:
            output = (done.stdout + done.stderr).strip()[-2000:]
            raise BuildFailed(f"{reference}: this must succeed in it and does not: {command}\n{output}")
    total_bytes = builder.size_bytes(reference)
    own_mb = (total_bytes - builder.size_bytes(BASE)) / BYTES_PER_MB
    name = image.name.replace("-", "_")
    rows = [
        _row(f"image_{name}_size", round(total_bytes / BYTES_PER_MB, 1), "MB"),
        _row(f"image_{name}_above_base", round(own_mb, 1), "MB", f"<= {image.own_mb_max}", own_mb <= image.own_mb_max),
        _row(f"image_{name}_build_time", round(seconds, 1), "s"),
    ]
    note = ""
    if twice:
        first = builder.layers(reference)
        same = builder.layers(builder.build(image, tag, fresh=True)) == first
        rows.append(_row(f"image_{name}_layers_reproduced", int(same), "boolean", "1", same))
        note = ", built twice: the same bytes" if same else ", BUILT TWICE: OTHER BYTES"
    if load:
        _run([str(KUBE_SCRIPTS / "load.sh"), reference])
        note += ", on every node"
    print(
        f"{reference}: {total_bytes / BYTES_PER_MB:.0f} MB, of these {own_mb:.0f} MB above {BASE.rpartition('/')[2]}; "
        f"checked{note}; {seconds:.0f} s",
        flush=True,
    )
    if own_mb > image.own_mb_max:
        print(f"  more than the {image.own_mb_max} MB it may have; what grew? see {Path(__file__).name}", flush=True)
    return rows


def _row(name: str, value: float, unit: str, target: str | None = None, holds: bool = True) -> dict[str, object]:
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": holds}


def _builder() -> Builder:
    """docker if its daemon answers, else buildah. Raises BuildFailed."""
    if shutil.which("docker") and not subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        return Docker()
    if (KUBE_SCRIPTS / "bud.sh").exists() and shutil.which("buildah"):
        return Buildah(KUBE_SCRIPTS)
    raise BuildFailed(
        "no docker daemon answers, and there is no buildah with the cluster's scripts; start docker, or set "
        "KUBE_SCRIPTS to the folder that has bud.sh"
    )


def _version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


def _run(command: Sequence[str], more: Mapping[str, str] | None = None) -> None:
    """Runs a builder; its many lines are shown only if it fails. Raises BuildFailed."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(more or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)}\n{done.stdout[-4000:]}")


def _output(command: Sequence[str]) -> str:
    done = _try(command)
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return done.stdout.strip()


def _try(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
