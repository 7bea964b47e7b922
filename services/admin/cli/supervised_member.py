"""One child process: started, watched for health, restarted when it dies, stopped in order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import grpc.aio

from admin.cli.cluster_folder import ClusterFolder
from admin.cli.member import Member, MemberKind, member_environment
from admin.rpc import BrokerAdminCalls, Channels, serving

__all__ = ["MemberState", "SupervisedMember"]

# How often health is asked: often while a start is waited for, rarely afterwards.
_STARTING_POLL_S: Final = 0.2
_SERVING_POLL_S: Final = 1.0
# Pause before a restart: doubled with each death, forgotten after a minute of life.
_BACKOFF_FIRST_S: Final = 1.0
_BACKOFF_MAX_S: Final = 30.0
_BACKOFF_FORGOTTEN_S: Final = 60.0
_LOG_TAIL_LINES: Final = 8


class MemberState(StrEnum):
    """Where a member stands."""

    WAITING = "waiting"  # not started yet
    STARTING = "starting"
    HELD = "held"  # a master that waits for a replica, or for an operator: it is up, and serves nobody
    SERVING = "serving"
    UNREADY = "unready"  # runs, has served, does not at the moment
    DIED = "died"  # will be restarted unless that is switched off
    STOPPING = "stopping"
    STOPPED = "stopped"


class SupervisedMember:
    """Runs one member until `stop`. For one event loop; `run` once.

    A member that never served is not restarted: it would fail in the same way again, and its log says why.
    """

    def __init__(
        self,
        member: Member,
        folder: ClusterFolder,
        channels: Channels,
        *,
        restart: bool,
        announce: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self.member = member
        self.state = MemberState.WAITING
        self.pid = 0
        self.restart_count = 0
        # Of the last death: why, and the last lines of the log.
        self.last_exit = ""
        self.last_words: list[str] = []
        self._folder = folder
        self._channels = channels
        self._restart = restart
        self._announce = announce
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._has_served = False
        self._stop = asyncio.Event()
        self._finished = asyncio.Event()

    @property
    def failed_to_start(self) -> bool:
        """True when it died before it served once."""
        return self.state is MemberState.DIED and not self._has_served

    async def run(self) -> None:
        """Keeps the process alive until `stop` is called or it may not be restarted."""
        loop = asyncio.get_running_loop()
        backoff_s = _BACKOFF_FIRST_S
        try:
            while not self._stop.is_set():
                started_s = loop.time()
                log_start, exit_code = await self._run_once()
                if self._stop.is_set():
                    break
                self._note_death(exit_code, log_start)
                if not self._restart or not self._has_served:
                    return
                if loop.time() - started_s > _BACKOFF_FORGOTTEN_S:
                    backoff_s = _BACKOFF_FIRST_S
                self._announce(f"{self.member.name}: restarting in {backoff_s:.0f} s")
                await self._pause(backoff_s)
                backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)
                self.restart_count += 1
            self._enter(MemberState.STOPPED)
        finally:
            self._finished.set()

    async def stop(self, *, limit_s: float) -> None:
        """Asks the process to end, waits, and kills it by its pid when the limit has passed."""
        self._stop.set()
        if self.state is MemberState.WAITING:
            return
        process = self._process
        if process is not None:
            self._enter(MemberState.STOPPING)
            process.terminate()
        try:
            async with asyncio.timeout(limit_s):
                await self._finished.wait()
        except TimeoutError:
            self._announce(f"{self.member.name}: still running after {limit_s:.0f} s, killed")
            if self._process is not None:
                self._process.kill()
            await self._finished.wait()

    async def _run_once(self) -> tuple[int, int]:
        """One life of the process. Returns where its log begins and its exit code (minus the signal)."""
        with self._folder.log_path(self.member.name).open("ab") as log:
            log_start = log.seek(0, os.SEEK_END)
            process = await asyncio.create_subprocess_exec(
                *self.member.command(),
                cwd=self._folder.root,
                env=member_environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C in the terminal goes to the whole process group; members are stopped in order by us instead.
                start_new_session=True,
            )
        self._process, self.pid = process, process.pid
        self._enter(MemberState.STARTING)
        if self._stop.is_set():
            process.terminate()
        try:
            async with asyncio.TaskGroup() as tasks:
                health = tasks.create_task(self._watch_health())
                exit_code = await process.wait()
                health.cancel()
        finally:
            if process.returncode is None:
                process.kill()
            self._process, self.pid = None, 0
        return log_start, exit_code

    async def _watch_health(self) -> None:
        while True:
            healthy = await serving(self._channels, self.member.health_address)
            if healthy and self.state in (MemberState.STARTING, MemberState.HELD, MemberState.UNREADY):
                self._has_served = True
                self._enter(MemberState.SERVING)
            elif not healthy and self.state is MemberState.STARTING and await self._is_held():
                self._enter(MemberState.HELD)
            elif not healthy and self.state is MemberState.SERVING:
                self._enter(MemberState.UNREADY)
            await asyncio.sleep(_SERVING_POLL_S if self.state is MemberState.SERVING else _STARTING_POLL_S)

    async def _is_held(self) -> bool:
        if self.member.kind is not MemberKind.BROKER:
            return False
        try:
            status = await BrokerAdminCalls(self._channels, self.member.address("listenPort")).status()
        except grpc.aio.AioRpcError:
            return False
        return status.start_wait.needs_operator

    def _note_death(self, exit_code: int, log_start: int) -> None:
        self.last_exit = f"killed by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        self.last_words = self._folder.log_tail(self.member.name, lines=_LOG_TAIL_LINES, since=log_start)
        self._enter(MemberState.DIED)
        for line in self.last_words:
            self._announce(f"{self.member.name} | {line}")

    async def _pause(self, duration_s: float) -> None:
        try:
            async with asyncio.timeout(duration_s):
                await self._stop.wait()
        except TimeoutError:
            pass

    def _enter(self, state: MemberState) -> None:
        self.state = state
        detail = {
            MemberState.STARTING: f"pid {self.pid}",
            MemberState.SERVING: f"on {', '.join(f'{key} {port}' for key, port in self.member.ports.items())}",
            MemberState.DIED: self.last_exit,
        }.get(state, "")
        self._announce(f"{self.member.name}: {state}{', ' + detail if detail else ''}")
        self._changed()
