"""What makes a task that was told to stop do so, although a gRPC call was in its way.

A cancellation reaches a task through what it waits for. A call of grpc.aio that is just failing takes it for the end of
the call and raises `AioRpcError` in its place: the task survives, takes the failure for one to be tried again, and who
waits for its end waits for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["cancellation_wins"]


@contextmanager
def cancellation_wins() -> Iterator[None]:
    """Around gRPC calls of the current task whose failure is caught: a cancellation that came meanwhile is raised
    instead of the failure. One from before is not: who cleans up after it still wants to know what failed."""
    task = asyncio.current_task()
    assert task is not None, "only tasks are cancelled"
    cancelled_before = task.cancelling()
    try:
        yield
    except Exception as failure:
        if task.cancelling() > cancelled_before:
            raise asyncio.CancelledError from failure
        raise
