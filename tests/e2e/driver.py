"""A running scenario program: scenarios are started through its standard input, results read from its output."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

STOP_LIMIT_S = 20


class Driver:
    """One process of a scenario program; killed by pid at the end of the block.

    A program prints one JSON object a line: `{"scenario", "ok", "detail", "seconds"}` for a result, `{"scenario",
    "waits": true}` when a scenario waits for `resume`. These lines are kept beside the log, which has its other output.
    """

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], log_path: Path) -> None:
        self._command = command
        self._environment = environment
        self._log_path = log_path
        self._results: dict[str, dict[str, Any]] = {}
        self._waiting: set[str] = set()
        self._ended = False
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=self._environment
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            # A scenario that hangs has already failed its test; it must not hold up the others' end.
            self._process.wait(STOP_LIMIT_S if len(self._results) == self._started else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """Process id of the program."""
        return self._process.pid

    _started = 0

    def start(self, scenario: str) -> None:
        """Starts a scenario; several run at the same time."""
        self._started += 1
        self._write(scenario)

    def resume(self, scenario: str) -> None:
        """Lets a scenario that waits go on."""
        self._write(f"continue {scenario}")

    def wait_waiting(self, scenario: str, *, limit_s: float) -> None:
        """Returns when the scenario waits; AssertionError when it ends before."""
        self._wait(lambda: scenario in self._waiting or scenario in self._results, f"{scenario} waits", limit_s)
        assert scenario in self._waiting, self._results[scenario]["detail"]

    def passed(self, scenario: str, *, limit_s: float) -> dict[str, Any]:
        """The scenario's result; AssertionError with its detail when it failed or did not end."""
        self._wait(lambda: scenario in self._results, f"the end of {scenario}", limit_s)
        result = self._results[scenario]
        assert result["ok"], f"{scenario}: {result['detail']} (log: {self._log_path})"
        return result

    def refused(self, scenario: str, *, limit_s: float) -> str:
        """Why the scenario failed; AssertionError when it passed or did not end."""
        self._wait(lambda: scenario in self._results, f"the end of {scenario}", limit_s)
        result = self._results[scenario]
        assert not result["ok"], f"{scenario} passed (log: {self._log_path})"
        return str(result["detail"])

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def _wait(self, holds: Callable[[], bool], what: str, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        with self._changed:
            while not holds():
                left = deadline - time.monotonic()
                assert left > 0, f"not within {limit_s:g} s: {what} (log: {self._log_path})"
                assert not self._ended, f"the program ended before {what}:{os.linesep}{self._log_tail()}"
                self._changed.wait(left)

    def _log_tail(self) -> str:
        return self._log_path.read_bytes()[-4_000:].decode(errors="replace")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._log_path.with_suffix(".jsonl").open("ab") as results:
                results.write(line)
            try:
                found = json.loads(line)
            except ValueError:
                continue  # a client that logs to standard output
            with self._changed:
                if found.get("waits"):
                    self._waiting.add(found["scenario"])
                else:
                    self._results[found["scenario"]] = found
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
