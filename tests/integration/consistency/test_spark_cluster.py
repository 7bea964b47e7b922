"""The job on a Spark cluster that stands alone: a master and two workers, processes of this machine."""

from __future__ import annotations

import json
import os
import random
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
import pytest

from support.audit_stores import copy_group
from support.cluster_processes import lasting_port, wait_until
from support.consistency_job import run_job
from support.store_damage import DAMAGES
from tandemmq.consistency.spark_session import prepared_environment
from tandemmq.core.audit.findings import FindingKind
from tandemmq.core.audit.run_summary import ExitCode, Outcome

HOST = "127.0.0.1"
LIMIT_S = 120


class SparkCluster:
    """`url` for the job, and what the master's page tells."""

    def __init__(self, url: str, page: str) -> None:
        self.url = url
        self._page = page

    def state(self) -> dict[str, Any]:
        """Workers and applications, those that have ended too; empty while nobody answers."""
        try:
            with urllib.request.urlopen(f"{self._page}/json/", timeout=5) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):  # ValueError: its page is not there yet.
            return {}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    """With two workers of one core each."""
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    port, page = lasting_port(), lasting_port()
    environ = {**os.environ, "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
    with ExitStack() as stack:
        stack.enter_context(prepared_environment(environ, runs_locally=True))

        def start(name: str, *arguments: str) -> None:
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            command = [str(spark_class), f"org.apache.spark.deploy.{arguments[0]}", *arguments[1:]]
            process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)

        cluster = SparkCluster(f"spark://{HOST}:{port}", f"http://{HOST}:{page}")
        start("master", "master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(page))
        for number in range(2):
            folder = tmp_path / f"worker-{number}"
            arguments = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(folder), cluster.url)
            start(f"worker-{number}", "worker.Worker", "--host", HOST, *arguments)
        wait_until(
            lambda: [worker["state"] for worker in cluster.state().get("workers", ())] == ["ALIVE"] * 2,
            limit_s=LIMIT_S,
            what="both workers are known to the master",
        )
        yield cluster


def test_two_workers_find_what_is_damaged(cluster: SparkCluster, equal_group: list[Path], tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    copy_group(equal_group[:2], groups / "sound")
    DAMAGES["flipped-body-bit"].apply(copy_group(equal_group, groups / "damaged"), random.Random(2))
    settings = {
        "path": str(groups),
        "tier": "deep",
        "secondLookPause": "0",
        "extentBytes": "64KiB",
        "chunkBytes": "256KiB",
        "sparkMaster": cluster.url,
        "driverHost": HOST,
        "executorCores": "1",
        "executorMemory": "512m",
    }

    run = run_job(tmp_path / "results", settings, log=tmp_path / "job.log")

    assert run.summary.exit_code is ExitCode.DIVERGED
    assert run.group("sound").outcome is Outcome.EQUAL
    assert [(finding.kind, finding.group) for finding in run.findings] == [(FindingKind.BODY_CRC, "damaged")]
    (application,) = cluster.state()["completedapps"]
    assert application["id"] == run.summary.spark_application_id
    assert application["cores"] == 2, "each worker has an executor"
