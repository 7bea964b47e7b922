"""The archive of classes, made and used by a Java of its own each; and the image's check of Spark."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tandemmq.consistency.settings import ConsistencySettings
from tandemmq.consistency.spark_session import prepared_environment, spark_properties
from tandemmq.service.settings import load_settings

# Two starts of Spark, and what Java takes to write nine thousand classes down.
pytestmark = pytest.mark.timeout(300)

ROOT: Final = Path(__file__).resolve().parents[3]


def _run_job(replicas: list[Path], results: Path, archive: Path) -> str:
    """What the job and its Java print."""
    command = [
        sys.executable,
        "-m",
        "tandemmq.consistency",
        "--set",
        f"results={results}",
        "--set",
        f"classArchive={archive}",
    ]
    command += [
        "--set",
        f"path={';'.join(map(str, replicas))}",
        "--set",
        "sparkMaster=local[1]",
        "--set",
        "engine=spark",
    ]
    options = spark_properties(
        load_settings(ConsistencySettings, environ={}, overrides=[f"path={replicas[0]}", f"classArchive={archive}"])
    )["spark.driver.extraJavaOptions"]
    command += ["--set", f"sparkConf=spark.driver.extraJavaOptions={options} -Xlog:class+load:file={results}.classes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_spark_takes_its_classes_from_an_archive_once_there_is_one(tmp_path: Path, equal_group: list[Path]) -> None:
    archive = tmp_path / "archives" / "classes.jsa"
    subprocess.run([sys.executable, "-m", "tandemmq.consistency.spark_session", archive], check=True)
    assert list(archive.parent.iterdir()) == [archive]

    printed = _run_job(equal_group, tmp_path / "results", archive)

    assert json.loads(printed.splitlines()[-1])["outcome"] == "equal"
    lines = (tmp_path / "results.classes").read_text().splitlines()
    # What Scala makes of a lambda is made anew in each Java.
    loaded = [line for line in lines if "org.apache.spark." in line and "Lambda" not in line]
    shared = [line for line in loaded if "shared objects file (top)" in line]
    assert len(shared) > 0.95 * len(loaded) > 500


def test_what_is_asked_of_the_image_needs_nothing_that_it_does_not_hold() -> None:
    """A check that no image can pass is found where images are built, which is not here; pandas is not here either."""
    check = runpy.run_path(str(ROOT / "tools" / "images.py"))["SPARK_CHECK"]
    assert importlib.util.find_spec("pandas") is None

    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with prepared_environment(environment, runs_locally=True):
        done = subprocess.run(["/bin/sh", "-ec", check], env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
