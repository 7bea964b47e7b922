"""A slow machine decides no test: how long one waits for what has to come, and how long the machine ran meanwhile."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

PATIENCE_S: Final = 240.0
"""Of a call, a program or a wait that is not itself about its deadline: it ends what hangs."""
_TICK_S = 0.005
_TICK_MAX_S = 0.1
"""A tick that comes later than that came late with everything else."""


def run_program(
    command: Sequence[str | Path], *, limit_s: float = PATIENCE_S, **given: Any
) -> subprocess.CompletedProcess[str]:
    """A program that has run to its end, with what it printed; how it ended is for the caller to judge. `given` is
    what else `subprocess.run` takes."""
    return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, **given)


async def until(holds: Callable[[], object]) -> None:
    """Waits for what others on this event loop bring about. TimeoutError: they do not."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(_TICK_S)


@contextmanager
def running_time() -> Iterator[Callable[[], float]]:
    """Gives seconds since it was entered. A thread counts them, so that a loop that is held up is not excused."""
    passed_s, ended = 0.0, threading.Event()

    def count() -> None:
        nonlocal passed_s
        last = time.monotonic()
        while not ended.wait(_TICK_S):
            now = time.monotonic()
            passed_s += min(now - last, _TICK_MAX_S)
            last = now

    thread = threading.Thread(target=count, name="running time")
    thread.start()
    try:
        yield lambda: passed_s
    finally:
        ended.set()
        thread.join()
