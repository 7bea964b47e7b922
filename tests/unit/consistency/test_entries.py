"""Whatever starts a process of the job, gRPC's handlers of forks are off in it before gRPC's core is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import tandemmq.consistency

VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
START_LIMIT_S = 300
PACKAGE = Path(tandemmq.consistency.__file__).parent
# A script that tells what gRPC's core would read at the moment when it is loaded; the entry follows it.
TELL = f"""
import os, runpy, sys
from importlib.metadata import entry_points

def tell(event, arguments):
    if event == "import" and arguments[0] == "grpc._cython.cygrpc":
        print("core", os.environ.get("{VARIABLE}"), file=sys.stderr, flush=True)

sys.addaudithook(tell)
"""
SCRIPTS = [script.name for script in entry_points(group="console_scripts") if script.name.startswith("mqconsistency")]
PROGRAMS = [
    ".".join(file.relative_to(PACKAGE.parent.parent).with_suffix("").parts).removesuffix(".__main__")
    for file in sorted(PACKAGE.rglob("*.py"))
    if '__name__ == "__main__"' in file.read_text()
]


def start(entry: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Of a fresh process with nothing set that says how gRPC treats forks."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", f"{TELL}sys.argv = {['entry', *arguments]!r}\n{entry}"],
        env=environment | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
        check=False,
    )


def script(name: str) -> str:
    return f"[found] = entry_points(group='console_scripts', name={name!r})\nsys.exit(found.load()())"


def told(process: subprocess.CompletedProcess[str]) -> set[str]:
    """Python tells twice of a core: once for the module, once for its file."""
    return {line for line in process.stderr.splitlines() if line.startswith("core ")}


def test_there_are_entries() -> None:
    assert sorted(SCRIPTS) == ["mqconsistency", "mqconsistency-executor"]
    assert {"tandemmq.consistency", "tandemmq.consistency.local_runner"} <= set(PROGRAMS)


def test_the_core_of_grpc_is_seen_loading() -> None:
    assert told(start("import grpc")) == {"core None"}


def test_the_jobs_script() -> None:
    process = start(script("mqconsistency"), "--help")
    assert process.returncode == 0, process.stderr
    assert told(process) == {"core false"}


@pytest.mark.parametrize("module", [name for name in PROGRAMS if not name.endswith("executor_entry")])
def test_what_python_runs_as_a_program(module: str) -> None:
    """So the admin service starts runs, and a run the processes that read for it."""
    process = start(f"runpy.run_module({module!r}, run_name='__main__', alter_sys=False)", "--help")
    assert process.returncode == 0, process.stderr
    assert told(process) == {"core false"}


def test_a_file_of_the_package_that_spark_submit_is_given() -> None:
    process = start(f"runpy.run_path({str(PACKAGE / '__main__.py')!r}, run_name='__main__')", "--help")
    assert process.returncode == 0, process.stderr
    assert told(process) == {"core false"}


@pytest.mark.parametrize("module", ["source_files.broker_files", "data_sources", "spark_session"])
def test_what_sparks_workers_and_a_users_session_load(module: str) -> None:
    process = start(f"import tandemmq.consistency.{module}")
    assert process.returncode == 0, process.stderr
    assert told(process) == {"core false"}


def test_an_executor_leaves_it_to_the_java_that_it_becomes(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexec env\n")
    java.chmod(0o755)
    places = {"JAVA_HOME": str(tmp_path), "SPARK_HOME": str(tmp_path), "SPARK_LOCAL_DIRS": str(tmp_path)}
    names = "DRIVER_URL EXECUTOR_ID EXECUTOR_CORES EXECUTOR_MEMORY APPLICATION_ID EXECUTOR_POD_IP EXECUTOR_POD_NAME"
    spark = {f"SPARK_{name}": "1" for name in [*names.split(), "RESOURCE_PROFILE_ID"]}
    process = start(script("mqconsistency-executor"), "executor", **spark, **places)
    assert process.returncode == 0, process.stderr
    assert f"{VARIABLE}=false" in process.stdout.splitlines()


def test_whoever_sets_it_is_asked_first() -> None:
    assert told(start("import tandemmq.consistency.source_files.broker_files", **{VARIABLE: "true"})) == {"core true"}
