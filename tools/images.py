"""Builds the images of services/Dockerfile and the test client's, looks into each, and reports their sizes.

    python tools/images.py                                # nameserver, broker, admin, client
    python tools/images.py broker --tag 0.1.0-rc1         # some; `consistency` (Spark, 1.1 GB) only when named
    python tools/images.py --load                         # and puts them on the nodes of the local test cluster
    python tools/images.py broker --plain                 # no C extensions of the busiest modules: builds faster
    python tools/images.py broker --twice                 # two times without cache: the same bytes?
    python tools/images.py --base python@sha256:…         # on this base: a tag moves, a digest does not
    python tools/images.py --record-base                  # writes what the base's tag means now into the Dockerfile
    python tools/images.py --release                      # refuses a base without a digest
    python tools/images.py --context                      # only lists the files that a builder would be given

All images of a run stand on one base, which services/Dockerfile names. Once its digest is recorded there, a commit says
what its images stand on, and a newer base is a change that is reviewed. Without one the tag is looked up once, and what
it means at this moment is built on by its digest, printed and written into the bills of materials: --base with that
digest builds on the same again. Only a base that came from no registry, such as the test cluster's stand-in, has no
digest to name; that is said.

Builds with docker when a daemon answers, else with buildah through $KUBE_SCRIPTS/bud.sh (default ../shared/kube), which
needs neither daemon nor registry. Names are tandemmq/<service>:<tag>; buildah puts `localhost/` in front, which is the
chart's image.registry then. While a builder works it is told every 15 s at which step it is. Files get a fixed time, so
that equal sources give equal layers (with docker: buildx).

Beside the images go bills of materials of their packages, build/sbom/<image>.cdx.json (CycloneDX).

Each image is started as its user, 10001, who may write nothing outside /tmp and the state's folder: the program must
say its version, byte code must be there; compilers, uv and other packages' tests must not. Report: build/images.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

ROOT: Final = Path(__file__).resolve().parent.parent
REPORT: Final = ROOT / "build" / "images.json"
SBOMS: Final = ROOT / "build" / "sbom"
DOCKERFILE: Final = ROOT / "services" / "Dockerfile"
CLIENT_DOCKERFILE: Final = ROOT / "tests" / "e2e" / "kubernetes" / "Dockerfile"
_BASE_LINE: Final = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)
BASE: Final = _BASE_LINE.findall(DOCKERFILE.read_text(encoding="utf-8"))[0]
KUBE_SCRIPTS: Final = Path(os.environ.get("KUBE_SCRIPTS", ROOT.parent / "shared" / "kube"))
# 2020-01-01, as hatchling dates the files of a wheel.
EPOCH_S: Final = "1577836800"
BYTES_PER_MB: Final = 1_000_000
# Sources, the lock and the protos are six megabytes; more means that something else got in.
CONTEXT_MB_MAX: Final = 15
PROGRESS_INTERVAL_S: Final = 15.0
_LINES_KEPT: Final = 100
# "STEP 5/12: RUN …" of buildah, "#12 [broker-packages 1/1] RUN …" of docker.
_STEP: Final = re.compile(r"^(?:\[\d+/\d+\] )?(STEP \d+(?:/\d+)?: .+|#\d+ \[[^\]]+\] .+)$")


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

    def arguments(self, base: str) -> list[str]:
        """Dockerfile, target and build arguments, as docker and buildah both take them."""
        on_base = ["--build-arg", f"BASE={base}"]
        if self.target is None:
            return ["-f", str(CLIENT_DOCKERFILE), *on_base]
        compiled = ["--build-arg", f"COMPILED={int(self.compiled)}"]
        return ["-f", str(DOCKERFILE), "--target", self.target, *on_base, *compiled]


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
    'test -z "$(find /opt -name ".*_cache")"',
    _BYTE_CODE,
)
# Java starts, executors are Python, tasks go there and answers back as those of the job do (spark_session.py): without
# pandas, which the image does not hold.
SPARK_CHECK: Final = (
    "SPARK_LOCAL_HOSTNAME=localhost SPARK_LOCAL_IP=127.0.0.1 python -c '"
    "from pyspark.sql import SparkSession; "
    's = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate(); '
    "parts = s.sparkContext.parallelize(range(1000), 2).mapPartitions(lambda part: [sum(part)]); "
    "assert sum(parts.collect()) == 499500; s.stop()'"
)
# The archive of Java's classes fits: Java takes Spark's own from it, and ends where it does not (-Xshare:on).
_CLASS_ARCHIVE: Final = (
    '"$JAVA_HOME/bin/java" -XX:SharedArchiveFile="$TANDEMMQ_CLASS_ARCHIVE" -Xshare:on -Xlog:class+load:stdout '
    '-XX:+UseSerialGC -cp "$SPARK_HOME/conf/:$(echo "$SPARK_HOME"/jars/slf4j-api-*.jar):$SPARK_HOME/jars/*" '
    "org.apache.spark.deploy.SparkSubmit --version 2>&1 "
    "| grep -q 'org.apache.spark.deploy.SparkSubmit source: shared objects file (top)'"
)
_BROKER_IMPORTS: Final = """python -c '
import importlib, pkgutil
for room in ("core", "service", "http2", "broker"):
    package = importlib.import_module("tandemmq." + room)
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
import lz4.frame, numpy, xxhash, zstandard
assert zstandard.backend == "cext"
assert zstandard.decompress(zstandard.compress(b"body")) == lz4.frame.decompress(lz4.frame.compress(b"body")) == b"body"
assert (numpy.eye(8) @ numpy.eye(8)).trace() == 8 and xxhash.xxh3_64(b"body").intdigest()
assert numpy.unique(numpy.arange(8)).size == 8
'"""
IMAGES: Final = (
    Image("nameserver", ("mqnamesrv --version", _absent("mqbroker", "mqadmin")), 60, "nameserver"),
    Image(
        "broker",
        # What was taken from the packages is not missed: every module imports, and the codecs work.
        ("mqbroker --version", "mqbroker-drain --help > /dev/null", _BROKER_IMPORTS, _absent("mqnamesrv", "mqadmin")),
        # 19 of it are grpcio, 13 cryptography. numpy's wheel would bring 28 of OpenBLAS (image_install.sh).
        100,
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
            SPARK_CHECK,
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

    def pinned(self, base: str) -> str:
        """`base` by the digest under which a registry gave it; as it is, if none did."""

    def build(self, image: Image, tag: str, *, base: str, fresh: bool) -> str:
        """Builds on `base`; returns the image's full name. `fresh` uses no cache."""

    def size_bytes(self, reference: str) -> int:
        """Uncompressed size of all layers."""

    def layers(self, reference: str) -> str:
        """Digests of the layers: equal if and only if the files are."""

    def run(self, reference: str, command: str) -> subprocess.CompletedProcess[str]:
        """Runs a shell command inside, as the image's user."""


class Docker:
    """The docker command with a daemon that answers."""

    name = "docker"

    def pinned(self, base: str) -> str:
        digests = _output(["docker", "image", "inspect", "-f", '{{join .RepoDigests "\\n"}}', base]).splitlines()
        name = _repository(base)
        return next((digest for digest in digests if _repository(digest) == name), base)

    def build(self, image: Image, tag: str, *, base: str, fresh: bool) -> str:
        reference = f"{image.repository}:{tag}"
        options = ["--no-cache"] if fresh else []
        command = [
            "docker",
            "build",
            *options,
            "--progress",
            "plain",
            "-t",
            reference,
            *image.arguments(base),
            str(ROOT),
        ]
        _run(command, image.name, {"DOCKER_BUILDKIT": "1", "SOURCE_DATE_EPOCH": EPOCH_S})
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

    def __init__(self, scripts: Path, base: str) -> None:
        self._bud = scripts / "bud.sh"
        home = Path(_output(["bash", "-c", f'. "{scripts}/env.sh"; echo "$K"']))
        storage = home / "var" / "buildah"
        (home / "run").mkdir(parents=True, exist_ok=True)
        self._buildah = [
            *("buildah", "--root", str(storage / "root"), "--runroot", str(storage / "run")),
            *("--storage-driver", "overlay"),
        ]
        base = self.pinned(base)
        if not _output([*self._buildah, "images", "-q", "--filter", f"reference={base}"]):
            raise BuildFailed(f"{base} is not in the local storage; {scripts}/up.sh puts a stand-in there")

    def pinned(self, base: str) -> str:
        # What stands in for the recorded one came from no registry. Another digest than that was meant.
        return base.partition("@")[0] if base == BASE else base

    def build(self, image: Image, tag: str, *, base: str, fresh: bool) -> str:
        reference = f"localhost/{image.repository}:{tag}"
        # Without --layers nothing is kept, and each target would build all stages before it again.
        options = ["--layers", "--no-cache"] if fresh else ["--layers"]
        command = [str(self._bud), str(ROOT), reference, *image.arguments(base), *options, "--timestamp", EPOCH_S]
        _run(command, image.name)
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
    parser.add_argument("--base", default=BASE, help="image to build on, best with its digest; default: %(default)s")
    parser.add_argument("--record-base", action="store_true", help="write what the base's tag means now, and stop")
    parser.add_argument("--release", action="store_true", help="refuse a base that is not known by its digest")
    parser.add_argument("--context", action="store_true", help="list the files that a builder is given, and stop")
    arguments = parser.parse_args()
    if arguments.context:
        print("\n".join(str(path) for path in context_files(ROOT)))
        return 0
    unknown = sorted(set(arguments.images) - set(BY_NAME))
    if unknown:
        parser.error(f"no such image: {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    try:
        if arguments.record_base:
            print(f"images: {DOCKERFILE.relative_to(ROOT)} has {recorded_base(DOCKERFILE)} now; commit that")
            return 0
        _check_context()
        builder = _builder(arguments.base)
        base = builder.pinned(arguments.base)
        if "@sha256:" not in base and arguments.release:
            raise BuildFailed(
                f"{base} has no digest, and a release says what it stands on: `make images RECORD_BASE=1` where "
                "docker reaches a registry, and commit that"
            )
        if "@sha256:" not in base:
            print(f"images: {base} is a tag without a registry's digest: nobody else can build on the same", flush=True)
        elif base != arguments.base:
            print(f"images: {arguments.base} is {base} now; --base with that builds on the same again", flush=True)
        rows: list[dict[str, object]] = []
        for image in dict.fromkeys(BY_NAME[name] for name in arguments.images or DEFAULT):
            wanted = replace(image, compiled=not arguments.plain)
            rows += made(builder, wanted, arguments.tag, base=base, twice=arguments.twice, load=arguments.load)
    except BuildFailed as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if all(row["holds"] for row in rows) else 1


def recorded_base(dockerfile: Path) -> str:
    """Writes the digest that the tag of the Dockerfile's base has in its registry now. Raises BuildFailed."""
    text = dockerfile.read_text(encoding="utf-8")
    tag = _BASE_LINE.findall(text)[0].partition("@")[0]
    _run(["docker", "pull", tag], tag)
    _, _, digest = Docker().pinned(tag).partition("@")
    if not digest:
        raise BuildFailed(f"docker knows {tag} by no registry's digest")
    dockerfile.write_text(_BASE_LINE.sub(f"ARG BASE={tag}@{digest}", text), encoding="utf-8")
    return f"{tag}@{digest}"


def context_files(root: Path) -> list[Path]:
    """What a builder is given of `root`, as paths from there, by .dockerignore: its last pattern that fits counts."""
    patterns = list(_ignore_patterns((root / ".dockerignore").read_text(encoding="utf-8")))
    found = []
    for folder, subfolders, names in os.walk(root):
        place = Path(folder).relative_to(root)
        # No pattern brings back what is in one of these, and they are large.
        subfolders[:] = sorted(name for name in subfolders if name not in (".git", ".venv", ".tools"))
        found += [place / name for name in sorted(names) if not _is_ignored(place / name, patterns)]
    return found


def _ignore_patterns(text: str) -> Iterator[tuple[re.Pattern[str], bool]]:
    """Expression of a path, and whether such a path is left out."""
    for line in (each.strip() for each in text.splitlines()):
        if line and not line.startswith("#"):
            pieces = re.split(r"(\*\*/|\*\*|\*|\?)", line.removeprefix("!").strip("/"))
            wild = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
            yield re.compile("".join(wild.get(piece, re.escape(piece)) for piece in pieces)), not line.startswith("!")


def _is_ignored(path: Path, patterns: Sequence[tuple[re.Pattern[str], bool]]) -> bool:
    """A pattern that fits a folder fits what is in it."""
    names = [path.as_posix(), *(parent.as_posix() for parent in path.parents if parent.name)]
    ignored = False
    for pattern, leaves_out in patterns:
        if any(pattern.fullmatch(name) for name in names):
            ignored = leaves_out
    return ignored


def _check_context() -> None:
    """Raises BuildFailed if there is more than sources: it would be in the images, and change their layers."""
    sizes = {path: (ROOT / path).stat().st_size for path in context_files(ROOT)}
    total_mb = sum(sizes.values()) / BYTES_PER_MB
    print(f"images: {len(sizes)} files, {total_mb:.1f} MB, go to the builder", flush=True)
    if total_mb > CONTEXT_MB_MAX:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:5]
        raise BuildFailed(
            f"that is more than {CONTEXT_MB_MAX} MB; remove what is no source, or name it in .dockerignore. Largest: "
            + ", ".join(f"{path} ({sizes[path] / BYTES_PER_MB:.1f} MB)" for path in largest)
        )


def made(
    builder: Builder, image: Image, tag: str, *, base: str, twice: bool = False, load: bool = False
) -> list[dict[str, object]]:
    """Builds, checks and measures one image; the rows of its report. Raises BuildFailed."""
    started = time.monotonic()
    reference = builder.build(image, tag, base=base, fresh=twice)
    seconds = time.monotonic() - started
    for command in (*_EVERYWHERE, *image.checks):
        done = builder.run(reference, command)
        if done.returncode:
            output = (done.stdout + done.stderr).strip()[-2000:]
            raise BuildFailed(f"{reference}: this must succeed in it and does not: {command}\n{output}")
    total_bytes = builder.size_bytes(reference)
    own_mb = (total_bytes - builder.size_bytes(base)) / BYTES_PER_MB
    name = image.name.replace("-", "_")
    rows = [
        _row(f"image_{name}_size", round(total_bytes / BYTES_PER_MB, 1), "MB"),
        _row(f"image_{name}_above_base", round(own_mb, 1), "MB", f"<= {image.own_mb_max}", own_mb <= image.own_mb_max),
        _row(f"image_{name}_build_time", round(seconds, 1), "s"),
    ]
    note = ""
    if twice:
        first = builder.layers(reference)
        same = builder.layers(builder.build(image, tag, base=base, fresh=True)) == first
        rows.append(_row(f"image_{name}_layers_reproduced", int(same), "boolean", "1", same))
        note = ", built twice: the same bytes" if same else ", BUILT TWICE: OTHER BYTES"
    if image.target is not None:
        _write_bill(image, tag, base=base, layers=builder.layers(reference))
    if load:
        _run([str(KUBE_SCRIPTS / "load.sh"), reference], f"{image.name} to the nodes")
        note += ", on every node"
    print(
        f"{reference}: {total_bytes / BYTES_PER_MB:.0f} MB, of these {own_mb:.0f} MB above {base.rpartition('/')[2]}; "
        f"checked{note}; {seconds:.0f} s",
        flush=True,
    )
    if own_mb > image.own_mb_max:
        print(f"  more than the {image.own_mb_max} MB it may have; what grew? see {Path(__file__).name}", flush=True)
    return rows


def _write_bill(image: Image, tag: str, *, base: str, layers: str) -> None:
    """What the image holds of others' packages, and which image that is. Raises BuildFailed."""
    try:
        bill: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "supply_chain.py"))["sbom"](image.name)
    except RuntimeError as error:
        raise BuildFailed(str(error)) from error
    bill["metadata"]["component"] |= {"version": tag, "type": "container"}
    bill["metadata"]["properties"] = [
        {"name": "tandemmq:image:base", "value": base},
        {"name": "tandemmq:image:layers", "value": layers},
    ]
    SBOMS.mkdir(parents=True, exist_ok=True)
    (SBOMS / f"{image.name}.cdx.json").write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")


def _row(name: str, value: float, unit: str, target: str | None = None, holds: bool = True) -> dict[str, object]:
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": holds}


def _repository(reference: str) -> str:
    """As docker writes it beside a digest: without tag, digest, and its own registry's name."""
    name = reference.partition("@")[0]
    head, slash, last = name.rpartition("/")
    name = head + slash + last.partition(":")[0]
    return name.removeprefix("docker.io/").removeprefix("library/")


def _builder(base: str) -> Builder:
    """docker if its daemon answers, else buildah. Raises BuildFailed."""
    if shutil.which("docker") and not subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        if subprocess.run(["docker", "image", "inspect", base], capture_output=True, check=False).returncode:
            _run(["docker", "pull", base], base)
        return Docker()
    if (KUBE_SCRIPTS / "bud.sh").exists() and shutil.which("buildah"):
        return Buildah(KUBE_SCRIPTS, base)
    raise BuildFailed(
        "no docker daemon answers, and there is no buildah with the cluster's scripts; start docker, or set "
        "KUBE_SCRIPTS to the folder that has bud.sh"
    )


def _version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


def _run(
    command: Sequence[str],
    name: str,
    more: Mapping[str, str] | None = None,
    *,
    tell: Callable[[str], None] | None = None,
    interval_s: float = PROGRESS_INTERVAL_S,
) -> None:
    """Runs a builder and tells every `interval_s` at which step it is; its last lines are shown if it fails.

    Raises BuildFailed.
    """
    tell = tell or (lambda line: print(line, flush=True))
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **(more or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    kept: deque[str] = deque(maxlen=_LINES_KEPT)
    steps: deque[str] = deque(["begun"], maxlen=1)
    reader = threading.Thread(target=_read_lines, args=(process.stdout, kept, steps), name="builder's lines")
    reader.start()
    while reader.is_alive():
        reader.join(timeout=interval_s)
        if reader.is_alive():
            tell(f"  {name}: {time.monotonic() - started:.0f} s, {steps[-1]}")
    process.stdout.close()
    if process.wait():
        raise BuildFailed(f"{' '.join(command)}\n" + "".join(kept)[-4000:])


def _read_lines(lines: Iterator[str], kept: deque[str], steps: deque[str]) -> None:
    for line in lines:
        kept.append(line)
        if step := _STEP.match(line.rstrip()):
            steps.append(step[1][:110])


def _output(command: Sequence[str]) -> str:
    done = _try(command)
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return done.stdout.strip()


def _try(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
