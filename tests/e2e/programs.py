"""Programs beside a cluster: Prometheus, a collector, a trace viewer. Each is ended by its pid."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

ROOT: Final = Path(__file__).resolve().parents[2]
# A first build of the collector on a slow machine.
_TOOL_LIMIT_S: Final = 1_500
_START_LIMIT_S: Final = 180.0
_STOP_LIMIT_S: Final = 15.0
_ANSWER_LIMIT_S: Final = 10.0


class RunningProgram:
    """One foreign program with its log; a context manager that ends it."""

    def __init__(
        self, name: str, command: Sequence[str], *, folder: Path, ready_url: str, more: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._command = list(command)
        self._log = folder / f"{name}.log"
        self._ready_url = ready_url
        self._environment = {**os.environ, **(more or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts it; returns when it answers. AssertionError with its log when it does not."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._environment
            )
        deadline = time.monotonic() + _START_LIMIT_S
        while not _answers(self._ready_url):
            ended = self._process.poll()
            if ended is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"{self.name} does not serve ({ended}):\n{self.log_text()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """SIGTERM, SIGKILL after a limit."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log_text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


def tool(script: str, *arguments: str) -> str:
    """Path of a program that a script of tools/ finds or makes. AssertionError with what the script says."""
    done = subprocess.run(
        [str(ROOT / "tools" / script), *arguments], capture_output=True, text=True, timeout=_TOOL_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def fetch_json(url: str, *, data: bytes | None = None) -> Any:
    """The JSON that a GET, or a POST of `data`, answers; also that of an answer that tells an error."""
    try:
        with urllib.request.urlopen(url, data=data, timeout=_ANSWER_LIMIT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return json.load(error)


def free_port() -> int:
    """A port of loopback that nobody listens on now, for programs that cannot say which one they took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_LIMIT_S):
            return True
    except urllib.error.HTTPError as error:
        # It serves, if not this address: a collector's OTLP/HTTP knows only POST.
        error.close()
        return error.code < 500
    except OSError:
        return False
