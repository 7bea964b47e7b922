"""`tandemmq up` in a folder, used through the command line only."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from support.running_time import run_program

COMMAND_LIMIT_S: Final = 120.0
_START_LIMIT_S: Final = 600.0


class LocalCluster:
    """A cluster of processes; `process` is what started them and stops them."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._output = folder.with_suffix(".out")
        # Small files: space for four CommitLogs and their successors is reserved at once.
        words = ("up", "--free-ports", "--no-live", "--set", f"mappedFileSizeCommitLog={16 << 20}", *options)
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(self._command(*words), stdout=output, stderr=output)

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """One command against this cluster."""
        return run_program(self._command(*arguments), input=stdin, limit_s=COMMAND_LIMIT_S)

    def record(self) -> dict[str, Any]:
        """cluster.json: what `tandemmq up` says runs."""
        found: dict[str, Any] = json.loads((self.folder / "cluster.json").read_text())
        return found

    def member(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in self.record()["members"] if each["name"] == name)
        return found

    def until(self, condition: Callable[[], bool], limit_s: float = COMMAND_LIMIT_S) -> None:
        """Polls; fails with the cluster's own output when it ends, or the limit passes."""
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, self._output.read_text() + self.run("doctor").stdout
            assert self.process.poll() is None, self._output.read_text()
            time.sleep(0.1)

    def is_ready(self) -> bool:
        return (self.folder / "cluster.json").exists() and self.record()["state"] == "ready"

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "tandemmq.cli", *words, "--data", str(self.folder)]


@contextmanager
def local_cluster(folder: Path, *options: str) -> Iterator[LocalCluster]:
    """One whose members all serve, until the end of the block."""
    cluster = LocalCluster(folder, *options)
    try:
        cluster.until(cluster.is_ready, _START_LIMIT_S)
        yield cluster
    finally:
        try:
            cluster.run("down")
        finally:
            # What it started it stops, whatever became of the command.
            cluster.process.terminate()
            cluster.process.wait()
