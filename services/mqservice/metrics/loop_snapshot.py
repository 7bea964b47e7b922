"""Metrics belong to the event loop; who wants them is on a thread. Between the two: one snapshot at a time, in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import TypeAlias

from mqservice.metrics.metric_samples import MetricFamily

__all__ = ["Collect", "LoopSnapshot", "SnapshotUnavailable"]

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
