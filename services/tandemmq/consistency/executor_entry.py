"""What Spark's pods of this image run: an executor, or the driver when another program submits the job.

Spark's scheduler for Kubernetes starts a pod with the argument `executor`, puts all it has to say into variables, and
expects the image to make a command line of them; the script that does so is not in Spark's distribution for pip. So
this is it: `mqconsistency-executor executor`. With `driver …` (spark-submit in cluster mode, as the Spark operator
does it) the rest goes to spark-submit as a client. The job itself, run by a CronJob, needs neither: its pod is the
driver in client mode.

Mirrors resource-managers/kubernetes/docker/src/main/dockerfiles/spark/entrypoint.sh of Spark 4.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
# Options of the backend by the variable that Spark fills in.
_OPTIONS: Final = {
    "SPARK_DRIVER_URL": "--driver-url",
    "SPARK_EXECUTOR_ID": "--executor-id",
    "SPARK_EXECUTOR_CORES": "--cores",
    "SPARK_APPLICATION_ID": "--app-id",
    "SPARK_EXECUTOR_POD_IP": "--hostname",
    "SPARK_RESOURCE_PROFILE_ID": "--resourceProfileId",
    "SPARK_EXECUTOR_POD_NAME": "--podName",
}
_IMAGE: Final = ("JAVA_HOME", "SPARK_HOME")
# Options for Java, numbered in their order.
_JAVA_OPTION: Final = re.compile(r"SPARK_JAVA_OPT_(\d+)")


class EntryRefused(Exception):
    """The pod was not made as Spark makes them; the text says what is missing. The pod's maker is at fault."""


def executor_command(variables: Mapping[str, str]) -> list[str]:
    """The command line of an executor. Raises EntryRefused."""
    missing = [name for name in (*_IMAGE, *_OPTIONS, "SPARK_EXECUTOR_MEMORY") if not variables.get(name)]
    if missing:
        raise EntryRefused(f"not in the environment: {', '.join(missing)}; only Spark starts an executor")
    options = [part for name, option in _OPTIONS.items() for part in (option, variables[name])]
    # The heap is not claimed at once: what matters here is Python's memory beside it.
    return [
        f"{variables['JAVA_HOME']}/bin/java",
        *_java_options(variables),
        f"-Xmx{variables['SPARK_EXECUTOR_MEMORY']}",
        "-cp",
        _class_path(variables),
        _BACKEND,
        *options,
    ]


def driver_command(variables: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """The command line of a driver that was submitted in cluster mode. Raises EntryRefused."""
    missing = [name for name in (*_IMAGE, "SPARK_DRIVER_BIND_ADDRESS") if not variables.get(name)]
    if missing:
        raise EntryRefused(f"not in the environment: {', '.join(missing)}; only Spark starts a driver like this")
    bind = f"spark.driver.bindAddress={variables['SPARK_DRIVER_BIND_ADDRESS']}"
    return [f"{variables['SPARK_HOME']}/bin/spark-submit", "--conf", bind, "--deploy-mode", "client", *arguments]


def main() -> int:
    """Becomes what the first argument says; returns only a refusal, 1."""
    try:
        match sys.argv[1:]:
            case ["executor"]:
                command = executor_command(os.environ)
            case ["driver", *rest]:
                command = driver_command(os.environ, rest)
            case _:
                raise EntryRefused("the argument is executor or driver; the job is mqconsistency")
    except EntryRefused as refused:
        sys.stderr.write(f"mqconsistency-executor: {refused}\n")
        return 1
    # What Spark unpacks for a task goes to the folder it was started in; the image's is read-only.
    os.chdir(_work_folder(os.environ))
    return os.execv(command[0], command)


def _java_options(variables: Mapping[str, str]) -> list[str]:
    numbered = ((_JAVA_OPTION.fullmatch(name), option) for name, option in variables.items())
    return [option for _, option in sorted((int(found[1]), option) for found, option in numbered if found)]


def _class_path(variables: Mapping[str, str]) -> str:
    """Settings before jars, so that a log4j2.properties in them is found first. As spark-submit gives it to a driver:
    an archive of classes is for one class path.
    """
    home = variables["SPARK_HOME"]
    jars = Path(home, "jars")
    parts = [
        variables.get("SPARK_CONF_DIR") or f"{home}/conf/",
        variables.get("SPARK_CLASSPATH", ""),
        *map(str, sorted(jars.glob("slf4j-api-*.jar"))),
        f"{jars}/*",
        variables.get("SPARK_EXTRA_CLASSPATH", ""),
    ]
    return ":".join(part for part in parts if part)


def _work_folder(variables: Mapping[str, str]) -> str:
    return (variables.get("SPARK_LOCAL_DIRS") or "/tmp").split(",")[0]


if __name__ == "__main__":
    raise SystemExit(main())
