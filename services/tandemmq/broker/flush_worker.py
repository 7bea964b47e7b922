"""Runs the store's blocking jobs off the event loop, one at a time, and fails the broker when the disk does.

A job is made on the loop (it is a snapshot of what to write), run on one named thread that does nothing but wait for
the kernel, and finished on the loop. After a failed fsync the state of the page cache is unknown: retrying could turn
lost pages into an OK, so the only safe answer is to stop (docs/adr/0005-fail-stop-on-fsync.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, Generic, Protocol, TypeVar

import structlog

from tandemmq.broker.put import LATENCY_BOUNDS_S
from tandemmq.core.histogram import Histogram
from tandemmq.core.storage.disk import DiskError, DiskFull

JobT = TypeVar("JobT", bound="BlockingJob")

log = structlog.get_logger(__name__)

# Room comes by an operator's hand or by files that expire.
ROOM_PAUSE_S: Final = 1.0
ROOM_TOLD_EVERY_S: Final = 60.0
ROOM_REMEDY: Final = "make room on that disk or give it more; this broker stays up and goes on by itself"


ResultT = TypeVar("ResultT")


async def with_room(step: Callable[[], ResultT], *, stop: asyncio.Event) -> ResultT:
    """Runs it on a thread, and again as long as it finds the disk full: only what may be called again then. DiskFull:
    there was no room until `stop` was set."""
    loop = asyncio.get_running_loop()
    told_s: float | None = None
    while True:
        began_s = loop.time()
        try:
            return await asyncio.to_thread(step)
        except DiskFull as error:
            if told_s is None or loop.time() - told_s >= ROOM_TOLD_EVERY_S:
                told_s = loop.time()
                log.error("disk_full", worker="start", reason=str(error), remedy=ROOM_REMEDY)
            try:
                # What takes long is not done all the time.
                async with asyncio.timeout(max(ROOM_PAUSE_S, loop.time() - began_s)):
                    await stop.wait()
            except TimeoutError:
                continue
            raise


class BlockingJob(Protocol):
    """Something that waits for the disk."""

    def run(self) -> None:
        """Blocks; DiskError when the disk refuses."""


class FlushWorker(Generic[JobT]):
    """One thread for one kind of job: `take` makes the next job or returns None, `finished` is told of each success.

    `kick` asks for a run; kicks during a run are remembered and answered by one more run (group commit). With
    `waits_for_room` a job that finds the disk full runs again until there is room: only for jobs that then have changed
    nothing, since whoever waits for one waits longer.
    """

    def __init__(
        self,
        name: str,
        *,
        take: Callable[[], JobT | None],
        finished: Callable[[JobT], None],
        failed: Callable[[DiskError], None],
        interval_ms: int | None = None,
        waits_for_room: bool = False,
    ) -> None:
        self._name = name
        self._take = take
        self._finished = finished
        self._failed = failed
        self._interval_ms = interval_ms
        self._waits_for_room = waits_for_room
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._kicked = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._pauses = 0
        self._closing = False
        self.durations_s = Histogram(LATENCY_BOUNDS_S)
        """Of finished jobs, as whoever waits for one sees it: from its start to the loop's hearing of its end."""

    def kick(self) -> None:
        """Something is to be written; on the event loop only."""
        self._kicked.set()

    async def run(self) -> None:
        """Works until `close`. Without an interval it sleeps until kicked; with one it also wakes by itself.

        Not to be cancelled: a job that is out could not be finished on the loop any more.
        """
        loop = asyncio.get_running_loop()
        timeout = None if self._interval_ms is None else self._interval_ms / 1000
        while not self._closing:
            try:
                async with asyncio.timeout(timeout):
                    await self._kicked.wait()
            except TimeoutError:
                pass
            self._kicked.clear()
            if self._pauses or self._closing:
                continue
            self._idle.clear()
            try:
                job = self._take()
                if job is None:
                    continue
                started_s = loop.time()
                await self._done(job)
                self.durations_s.observe(loop.time() - started_s)
                self._finished(job)
            except DiskError as error:
                log.critical("disk_failed", worker=self._name, error=str(error))
                self._failed(error)
                return
            finally:
                self._idle.set()

    async def _done(self, job: JobT) -> None:
        """Runs it. DiskFull: it does not wait for room, or no longer."""
        loop = asyncio.get_running_loop()
        told_s: float | None = None
        while True:
            try:
                await loop.run_in_executor(self._executor, job.run)
                return
            except DiskFull as error:
                if not self._waits_for_room or self._closing:
                    raise
                if told_s is None or loop.time() - told_s >= ROOM_TOLD_EVERY_S:
                    told_s = loop.time()
                    log.error("disk_full", worker=self._name, reason=str(error), remedy=ROOM_REMEDY)
            await asyncio.sleep(ROOM_PAUSE_S)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """No job is out and none is made inside the block; what was kicked meanwhile runs afterwards."""
        self._pauses += 1
        try:
            await self._idle.wait()
            yield
        finally:
            self._pauses -= 1
            self._kicked.set()

    async def close(self) -> None:
        """Lets a running job finish, takes no other, ends `run` and the thread."""
        self._closing = True
        self._kicked.set()
        await self._idle.wait()
        self._executor.shutdown(wait=True)
