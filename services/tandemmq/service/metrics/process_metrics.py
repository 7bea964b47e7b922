"""What the kernel says of this process, under the names every Prometheus client library gives it."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Final, TypeAlias

from tandemmq.service.metrics.exposition import MetricFamily, MetricInfo, MetricKind, MetricSamples

__all__ = ["PROCESS_METRICS", "Collect", "LoopSnapshot", "SnapshotUnavailable", "process_families"]

PROCESS_METRICS: Final = (
    MetricInfo(
        "process_cpu_seconds_total", MetricKind.COUNTER, "s", "Processor time of the process, in user and kernel mode."
    ),
    MetricInfo(
        "process_resident_memory_bytes",
        MetricKind.GAUGE,
        "By",
        "Resident memory; pages of mapped files count while they are in memory.",
    ),
    MetricInfo("process_virtual_memory_bytes", MetricKind.GAUGE, "By", "Address space; mapped files count in whole."),
    MetricInfo(
        "process_start_time_seconds", MetricKind.GAUGE, "s", "When the process started, in seconds since the epoch."
    ),
    MetricInfo("process_open_fds", MetricKind.GAUGE, "{file}", "Open file descriptors."),
    MetricInfo("process_max_fds", MetricKind.GAUGE, "{file}", "How many there may be."),
)

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/self/stat as counted from the one after the command, which may hold spaces; see proc(5).
_UTIME, _STIME, _STARTTIME, _VSIZE, _RSS = 11, 12, 19, 20, 21


def process_families() -> list[MetricFamily]:
    """As of now; nothing where /proc is missing. Any thread."""
    samples = MetricSamples(PROCESS_METRICS)
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        machine = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        open_files = len(os.listdir("/proc/self/fd"))
    except OSError:
        return []
    booted_s = next(int(line.split()[1]) for line in machine if line.startswith("btime "))
    samples.add("process_cpu_seconds_total", (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS)
    samples.add("process_resident_memory_bytes", int(fields[_RSS]) * _PAGE_BYTES)
    samples.add("process_virtual_memory_bytes", int(fields[_VSIZE]))
    samples.add("process_start_time_seconds", booted_s + int(fields[_STARTTIME]) / _TICKS)
    samples.add("process_open_fds", open_files)
    samples.add("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return samples.families()


# Metrics belong to the event loop, and who asks for them is on a thread. Between them: one snapshot at a time, in time.

Collect: TypeAlias = Callable[[], Awaitable[list[MetricFamily]]]
"""Reads all metrics, on the event loop; lets it go on meanwhile where that takes long."""


class SnapshotUnavailable(Exception):
    """The loop did not answer in time, or has ended. Nobody's fault who asks: try again later."""


class LoopSnapshot:
    """Takes snapshots of what `collect` reads, from any thread but the loop's."""

    def __init__(self, collect: Collect, *, loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
        self._collect = collect
        self._loop = loop
        self._limit_s = limit_s
        self._turn = threading.Lock()
        self._collecting: asyncio.Task[list[MetricFamily]] | None = None
        self._is_closed = False

    def take(self) -> list[MetricFamily]:
        """As of now. Waits for others who ask at the same time. Raises SnapshotUnavailable."""
        if not self._turn.acquire(timeout=self._limit_s):
            raise SnapshotUnavailable("others are being answered")
        try:
            return self._take()
        finally:
            self._turn.release()

    async def close(self) -> None:
        """Ends a snapshot in progress and refuses further ones: what is read may go away after that. On the loop."""
        self._is_closed = True
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.wait((self._collecting,))

    def _take(self) -> list[MetricFamily]:
        collecting = self._collected()
        try:
            future = asyncio.run_coroutine_threadsafe(collecting, self._loop)
        except RuntimeError as error:
            collecting.close()
            raise SnapshotUnavailable("the process is ending") from error
        try:
            return future.result(self._limit_s)
        except TimeoutError as error:
            future.cancel()
            raise SnapshotUnavailable(f"the event loop did not answer within {self._limit_s:g} s") from error
        except CancelledError as error:
            raise SnapshotUnavailable("the process is ending") from error

    async def _collected(self) -> list[MetricFamily]:
        if self._is_closed:
            raise SnapshotUnavailable("the process is ending")
        self._collecting = asyncio.current_task()
        try:
            return await self._collect()
        finally:
            self._collecting = None
