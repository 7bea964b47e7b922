"""A cluster of real processes as an operator starts one: `tandemmq up --tracing`, its commands, a member's death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from e2e.programs import fetch_json
from support.cluster_processes import wait_until
from support.running_time import PATIENCE_S

METRICS_PORT: Final = "metricsPromExporterPort"
_START_LIMIT_S: Final = 300.0
# `tandemmq up` stops its members in waves of at most 20 s.
_COMMAND_LIMIT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class _Process:
    """What is needed to start a process of another's again, as it was."""

    command: tuple[str, ...]
    environment: dict[str, str]
    folder: str


class LiveCluster:
    """`tandemmq up --tracing` in a folder; a context manager. `more`: its options. A member that dies stays dead.

    `trace_target`: OTLP/gRPC receiver of spans as host:port; none: they stay in the cluster.
    """

    def __init__(self, folder: Path, *, preset: str, trace_target: str = "", more: Sequence[str] = ()) -> None:
        self.folder = folder
        self._log = folder.with_name(f"{folder.name}-up.log")
        options = ["--preset", preset, "--free-ports", "--no-live", "--no-restart", "--tracing"]
        target = ["--trace-target", trace_target] if trace_target else []
        self._up = self._command("up", *options, *target, *more)
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: dict[str, _Process] = {}
        self._started_again: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._up, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            wait_until(self._is_ready, limit_s=_START_LIMIT_S, what="the cluster is ready")
        except AssertionError as error:
            self._stop()
            raise AssertionError(f"{error}\n{self._log.read_text(errors='replace')}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def client_endpoints(self) -> tuple[str, ...]:
        """Where clients begin, as host:port."""
        return tuple(self.record()["client_endpoints"])

    @property
    def namesrv_addr(self) -> str:
        """All NameServers as RocketMQ writes them."""
        return ";".join(self.record()["name_servers"])

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.member('admin')['ports']['httpPort']}"

    def record(self) -> dict[str, Any]:
        """cluster.json: what `tandemmq up` says runs."""
        found: dict[str, Any] = json.loads((self.folder / "cluster.json").read_text())
        return found

    def members(self, kind: str) -> list[dict[str, Any]]:
        """Members of one kind: nameserver, broker or admin."""
        return [member for member in self.record()["members"] if member["kind"] == kind]

    def member(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in self.record()["members"] if each["name"] == name)
        return found

    def run(self, *arguments: str, may_fail: bool = False) -> str:
        """What a `tandemmq` command prints. AssertionError with its words when it fails."""
        done = subprocess.run(
            self._command(*arguments),
            capture_output=True,
            text=True,
            timeout=_COMMAND_LIMIT_S,
            check=False,
            # A pipe is 80 columns wide otherwise.
            env={**os.environ, "COLUMNS": "140"},
        )
        assert may_fail or done.returncode == 0, f"tandemmq {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def status(self) -> dict[str, Any]:
        """What the admin service knows of the cluster."""
        found: dict[str, Any] = fetch_json(f"{self.admin_url}/api/v1/cluster")
        return found

    def kill(self, name: str) -> None:
        """SIGKILL to a member, by its pid; returns when it is gone."""
        again = self._started_again.get(name)
        pid = int(self.member(name)["pid"]) if again is None else again.pid
        process = Path(f"/proc/{pid}")
        environment = (each.partition("=") for each in process.joinpath("environ").read_text().split("\0") if each)
        self._killed[name] = _Process(
            tuple(process.joinpath("cmdline").read_text().split("\0")[:-1]),
            {key: value for key, _, value in environment},
            os.readlink(process / "cwd"),
        )
        os.kill(pid, signal.SIGKILL)
        if again is not None:
            again.wait()
            return
        wait_until(lambda: self.member(name)["pid"] == 0, limit_s=PATIENCE_S, what=f"{name} is dead")

    def start_again(self, name: str) -> None:
        """Starts a killed member as it was; returns at once."""
        former = self._killed.pop(name)
        with Path(self.member(name)["log"]).open("ab") as log:
            self._started_again[name] = subprocess.Popen(
                former.command,
                cwd=former.folder,
                env=former.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _stop(self) -> None:
        assert self._process is not None
        for process in (self._process, *self._started_again.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_S
        for process in (self._process, *self._started_again.values()):
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "tandemmq up ended"
        return (self.folder / "cluster.json").exists() and self.record()["state"] == "ready"

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tandemmq.cli", *arguments, "--data", str(self.folder)]
