"""The helper process as its broker sees it: started when needed, one job at a time, replaced when it dies.

Whoever holds the turn alone reads the process's output, so there is no task that hands lines out. A caller that goes
away leaves lines behind; the next one passes over them by the job's number.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import structlog

from broker.audit.jobs import LINE_BYTES_MAX, Job, JobFailure, job_to_json, line_of

__all__ = ["AuditHelper", "HelperBusy", "HelperGone", "JobFailed"]

log = structlog.get_logger(__name__)

_WAITING_MAX: Final = 16
"""Calls that wait for their turn; more than a handful of readers at once is a mistake, and waiting costs memory."""
_END_LIMIT_S: Final = 2.0


class HelperBusy(Exception):
    """Too many wait already. The caller comes again later."""


class HelperGone(Exception):
    """The process ended under the job, or could not be started. The next call starts another."""


class JobFailed(Exception):
    """The job ended without a result, and why."""

    def __init__(self, failure: JobFailure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class AuditHelper:
    """Event loop only. `close` last; `root` is the store's folder, absolute."""

    def __init__(self, *, root: str, bytes_per_second: int) -> None:
        """No process yet. While it may read 0 bytes a second nothing may be asked of it."""
        self._root = root
        self._bytes_per_second = bytes_per_second
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._process: Process | None = None
        self._last_number = 0
        self._is_closed = False

    @property
    def process_id(self) -> int | None:
        """Of the process, if one is running."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def change_pace(self, bytes_per_second: int) -> None:
        """Another pace for what is read from now on, by a job that is out as well; with 0 that goes on as before."""
        self._bytes_per_second = bytes_per_second
        if bytes_per_second and self._process is not None and self._process.returncode is None:
            _send_nowait(self._process, {"bytes_per_second": bytes_per_second})

    async def answers(self, job: Job) -> AsyncGenerator[dict[str, Any], None]:
        """The job's frames, the last of which has `done`. Iterate to the end, or close it: the job is cancelled then.

        Raises HelperBusy, HelperGone, JobFailed.
        """
        async with self._in_turn():
            # It ends by itself when it had nothing to do, perhaps just as we come; so a job that was not begun is given
            # once more.
            for is_last in (False, True):
                process = await self._running_process()
                self._last_number += 1
                number = self._last_number
                has_begun = is_finished = False
                try:
                    await _send(process, job_to_json(job, number=number))
                    while (frame := await _next_frame(process, number)) is not None:
                        has_begun = True
                        is_finished = "done" in frame or "failed" in frame
                        if "failed" in frame:
                            raise JobFailed(JobFailure(frame["failed"]), frame["message"])
                        yield frame
                        if is_finished:
                            return
                finally:
                    if not is_finished:
                        _send_nowait(process, {"cancel": number})
                if has_begun or is_last:
                    raise HelperGone(f"the audit's helper process ended ({process.returncode})")

    async def close(self) -> None:
        """Ends the process; jobs that are out fail with HelperGone."""
        self._is_closed = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_END_LIMIT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        if self._waiting >= _WAITING_MAX:
            raise HelperBusy(f"{self._waiting} calls wait for the audit's helper process")
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turn.release()

    async def _running_process(self) -> Process:
        if self._is_closed:
            raise HelperGone("the broker stops")
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "broker.audit", self._root, str(self._bytes_per_second)),
                stdin=PIPE,
                stdout=PIPE,
                limit=LINE_BYTES_MAX,
            )
        except OSError as error:
            raise HelperGone(f"the audit's helper process could not be started: {error}") from error
        log.info("audit_helper_started", process_id=self._process.pid)
        return self._process


async def _next_frame(process: Process, number: int) -> dict[str, Any] | None:
    """The job's next frame; None when the process has ended."""
    assert process.stdout is not None
    while (line := await _next_line(process, process.stdout)).endswith(b"\n"):
        frame: dict[str, Any] = json.loads(line)
        if frame["job"] == number:
            return frame
    await process.wait()
    return None


async def _next_line(process: Process, output: asyncio.StreamReader) -> bytes:
    try:
        return await output.readline()
    except ValueError as error:
        # What follows would be read from the middle of a line.
        process.kill()
        await process.wait()
        raise HelperGone(f"the audit's helper process wrote a line beyond {LINE_BYTES_MAX} bytes") from error


async def _send(process: Process, frame: dict[str, Any]) -> None:
    assert process.stdin is not None
    with suppress(ConnectionError):  # It has ended: reading tells so as well.
        process.stdin.write(line_of(frame))
        await process.stdin.drain()


def _send_nowait(process: Process, frame: dict[str, Any]) -> None:
    assert process.stdin is not None
    if not process.stdin.is_closing():
        process.stdin.write(line_of(frame))
