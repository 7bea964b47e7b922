"""Builds the load generators into build/load/; does nothing for what is built already.

    python benchmarks/load/build.py                          # all
    python benchmarks/load/build.py rawload ghz              # without Java
    python benchmarks/load/build.py --classpath remoting     # prints the class path; builds first what it needs

| part     | made of                             | result                       |
|----------|-------------------------------------|------------------------------|
| rawload  | rawload/ and types made from proto/ | build/load/rawload           |
| ghz      | its Go module, at a fixed version   | build/load/ghz               |
| official | java/, the official client's jar    | build/load/classes/official  |
| remoting | java/, the jars of the peer         | build/load/classes/remoting  |
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

from load.toolchains import ToolMissing, build_environment, find_go, require_java, require_maven, run
from peer.installation import install as install_peer
from processes import MeasurementFailed

BUILD: Final = ROOT / "build" / "load"
PROTOS: Final = ("apache/rocketmq/v2/definition.proto", "apache/rocketmq/v2/service.proto")
STUBS_MODULE: Final = "tandemmq.local/rocketmqv2"
PROTOC_PLUGIN: Final = "google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12"
GHZ: Final = "github.com/bojand/ghz/cmd/ghz@v0.120.0"
COPY_GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
SHARED_CLASSES: Final = ("Options", "Histogram", "CpuReading", "Meter")


def digest(inputs: Iterable[Path], *facts: str) -> str:
    """Hash of files' names and contents and of further facts: equal when a result need not be built again."""
    found = hashlib.sha256(repr(facts).encode())
    for path in sorted(inputs):
        found.update(repr((path.name, path.read_bytes())).encode())
    return found.hexdigest()


def build_once(part: str, *, result: Path, inputs: str, make: Callable[[], None]) -> None:
    """Runs `make` unless `result` was made from the same inputs before."""
    stamp = BUILD / "stamps" / part
    if result.exists() and stamp.exists() and stamp.read_text() == inputs:
        return
    print(f"load generators: building {part}", file=sys.stderr)
    stamp.unlink(missing_ok=True)
    make()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(inputs)


def build_stubs(go: Path, environment: Mapping[str, str]) -> None:
    """Go types of the client API's messages, as a module that rawload's go.mod points to."""
    stubs, programs = BUILD / "stubs", BUILD / "bin"
    run([go, "install", PROTOC_PLUGIN], environment={**environment, "GOBIN": str(programs)})
    shutil.rmtree(stubs, ignore_errors=True)
    stubs.mkdir(parents=True)
    options = ",".join([f"module={STUBS_MODULE}", *(f"M{proto}={STUBS_MODULE}" for proto in PROTOS)])
    run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}"),
            *(f"--plugin={programs / 'protoc-gen-go'}", f"--go_out={stubs}", f"--go_opt={options}"),
            *PROTOS,
        ]
    )
    go_mod = (HERE / "rawload" / "go.mod").read_text()
    go_line = next(line for line in go_mod.splitlines() if line.startswith("go "))
    (stubs / "go.mod").write_text(f"module {STUBS_MODULE}\n\n{go_line}\n")


def build_rawload() -> None:
    """The Go generator, tested first."""

    def make() -> None:
        go, environment = find_go(BUILD), build_environment(BUILD)
        build_stubs(go, environment)
        for command in (["test", "."], ["build", "-o", BUILD / "rawload", "."]):
            run([go, *command], environment=environment, folder=HERE / "rawload")

    sources = [*(HERE / "rawload").iterdir(), *(ROOT / "proto" / proto for proto in PROTOS)]
    build_once("rawload", result=BUILD / "rawload", inputs=digest(sources, PROTOC_PLUGIN), make=make)


def build_ghz() -> None:
    """The gRPC load tester of that name."""

    def make() -> None:
        environment = {**build_environment(BUILD), "GOBIN": str(BUILD)}
        run([find_go(BUILD), "install", GHZ], environment=environment)

    build_once("ghz", result=BUILD / "ghz", inputs=digest((), GHZ), make=make)


def compile_java(part: str, main: str, jars: Path) -> None:
    """One main class with what both share."""

    def make() -> None:
        require_java()
        target = BUILD / "classes" / part
        shutil.rmtree(target, ignore_errors=True)
        run(["javac", "-nowarn", "-d", target, "-cp", f"{jars}/*", *sources])

    sources = [HERE / "java" / f"{name}.java" for name in (*SHARED_CLASSES, main)]
    build_once(part, result=BUILD / "classes" / part, inputs=digest(sources, str(jars)), make=make)


def official_jars() -> Path:
    """Folder of the official Java client's jars, fetched by Maven."""
    folder, pom = BUILD / "official", HERE / "java" / "pom.xml"

    def make() -> None:
        require_java()
        require_maven()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(pom, folder)  # Maven puts a target folder beside the pom
        run(
            ["mvn", "-q", "-B", COPY_GOAL, f"-DoutputDirectory={folder / 'lib'}", "-DincludeScope=runtime"],
            environment=build_environment(BUILD),
            folder=folder,
        )

    build_once("official-jars", result=folder / "lib", inputs=digest([pom]), make=make)
    return folder / "lib"


def peer_jars() -> Path:
    """Folder of RocketMQ's own jars: those that the peer runs from."""
    require_java()
    require_maven()
    return install_peer(ROOT / "build" / "peer").folder / "lib"


def build_official() -> str:
    """Load by the official Java client; returns its class path."""
    jars = official_jars()
    compile_java("official", "OfficialLoad", jars)
    return f"{BUILD / 'classes' / 'official'}:{jars}/*"


def build_remoting() -> str:
    """Load by RocketMQ's remoting client; returns its class path."""
    jars = peer_jars()
    compile_java("remoting", "RemotingLoad", jars)
    return f"{BUILD / 'classes' / 'remoting'}:{jars}/*"


JAVA_PARTS: Final = {"official": build_official, "remoting": build_remoting}
PARTS: Final[Mapping[str, Callable[[], object]]] = {"rawload": build_rawload, "ghz": build_ghz, **JAVA_PARTS}


def main() -> int:
    """Builds the parts that were named; 1 with a reason and a remedy when one cannot be built."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; all without")
    parser.add_argument("--classpath", choices=sorted(JAVA_PARTS), help="print the class path of one Java generator")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    try:
        if arguments.classpath:
            print(JAVA_PARTS[arguments.classpath]())
            return 0
        for part in arguments.parts or PARTS:
            PARTS[part]()
    except (ToolMissing, MeasurementFailed) as error:
        print(f"load generators: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
