"""Makes an archive of the classes that Java loads for a run: `python -m consistency.class_archive FILE`.

Java loads and checks some nine thousand classes before the first task. With the archive (setting `classArchive`) it
finds them as they are when loaded: 2 s of CPU less of 5. It holds for the Java and the jars that it was made with, as
they lie there with their times; with others Java passes over it. A file that is cut off would make Java crash: it
appears whole or not at all.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pyspark import SparkContext

from consistency.discovery import discover
from consistency.errors import ConsistencyError, SparkUnusable
from consistency.settings import ConsistencySettings
from consistency.spark_runner import SparkRunner
from consistency.spark_session import running_spark
from consistency.tasks import DescribeTask
from mqservice.settings import load_settings

__all__ = ["main", "make_class_archive"]

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
