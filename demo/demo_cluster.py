"""The demo's cluster: the product's own command line, in processes of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

_START_LIMIT_S: Final = 120.0
# `tandemmq up` stops its members in three waves of at most 20 s.
_STOP_LIMIT_S: Final = 75.0
# Each poll of the state starts a process; more often would take the machine from what is measured.
_POLL_S: Final = 1.0


class DemoCluster:
    """`tandemmq up` in a folder, and the other commands against it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "up.log"
        self._process: asyncio.subprocess.Process | None = None
        self._by_hand: list[asyncio.subprocess.Process] = []

    def stop_former(self) -> None:
        """Stops what an interrupted run left behind."""
        if (self.folder / "cluster.json").exists():
            subprocess.run(self._command("down"), check=True)

    async def start(self, preset: str) -> None:
        """Starts the preset on free ports; returns when every member serves. Who dies stays dead."""
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command("up", "--preset", preset, "--free-ports", "--no-live", "--no-restart"),
                stdout=log,
                stderr=log,
            )
        await until(self._is_ready, _START_LIMIT_S, "the cluster is ready")

    async def start_again(self, name: str) -> None:
        """Starts a broker that died, as an operator would."""
        authority = f"failoverAuthority=file:{self.folder}/authority"
        command = (
            sys.executable,
            "-P",
            "-m",
            "tandemmq.broker",
            "--config",
            f"conf/{name}.properties",
            "--set",
            authority,
        )
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self._by_hand.append(
                await asyncio.create_subprocess_exec(*command, cwd=self.folder, stdout=log, stderr=log)
            )

    async def stop(self) -> None:
        for process in self._by_hand:
            await stop_process(process, signal.SIGTERM, _STOP_LIMIT_S)
        if self._process is not None:
            await stop_process(self._process, signal.SIGTERM, _STOP_LIMIT_S)

    async def run(self, *arguments: str) -> None:
        """One command; what it says is shown."""
        process = await asyncio.create_subprocess_exec(*self._command(*arguments))
        if await process.wait() != 0:
            raise SystemExit(f"tandemmq {' '.join(arguments)} failed")

    async def status(self) -> dict[str, Any]:
        """`tandemmq status --json`. Its exit code does not matter: a dead master is part of the demo."""
        process = await asyncio.create_subprocess_exec(*self._command("status", "--json"), stdout=subprocess.PIPE)
        output, _ = await process.communicate()
        found: dict[str, Any] = json.loads(output)
        return found

    def record(self) -> dict[str, Any]:
        """cluster.json: what `tandemmq up` says runs."""
        found: dict[str, Any] = json.loads((self.folder / "cluster.json").read_text())
        return found

    def member(self, name: str) -> dict[str, Any]:
        """One member of cluster.json, as it is now."""
        found: dict[str, Any] = next(each for each in self.record()["members"] if each["name"] == name)
        return found

    async def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.returncode is not None:
            raise SystemExit(f"the cluster did not start:\n{self._log.read_text()}")
        return (self.folder / "cluster.json").exists() and self.record()["state"] == "ready"

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tandemmq.cli", *arguments, "--data", str(self.folder)]


async def until(condition: Callable[[], Awaitable[bool]], limit_s: float, what: str) -> None:
    """Polls until the condition holds; ends the demo when the limit passes."""
    deadline_s = time.monotonic() + limit_s
    while not await condition():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"not within {limit_s:.0f} s: {what}")
        await asyncio.sleep(_POLL_S)


async def stop_process(process: asyncio.subprocess.Process, number: signal.Signals, limit_s: float) -> None:
    """Ends a process of ours, by its pid; kills it after the limit."""
    if process.returncode is not None:
        return
    process.send_signal(number)
    try:
        async with asyncio.timeout(limit_s):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
