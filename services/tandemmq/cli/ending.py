"""How a command ends that is stopped, or whose output nobody reads any more: without a word, and as its caller expects.

- Ctrl-C: the process dies by SIGINT (130 in a shell). What it does on an event loop is cancelled first, so that it puts
  away what it made; a second Ctrl-C does not wait for that.
- A reader that has enough, such as `head`: it dies by SIGPIPE (141 in a shell), after the same.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TextIO, TypeVar

__all__ = ["OutputClosed", "die_by", "run", "watch_output"]

ResultT = TypeVar("ResultT")


class OutputClosed(Exception):
    """Nobody reads our output any more.

    No OSError: neither typer nor rich take it for theirs, and a socket that was closed is told apart.
    """


class _Watched(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise OutputClosed from None


def watch_output() -> None:
    """From now on, what is printed to a closed pipe raises OutputClosed."""
    sys.stdout = _watched(sys.stdout)
    sys.stderr = _watched(sys.stderr)


def _watched(stream: TextIO) -> TextIO:
    # The old one is kept alive by sys.__stdout__; it has nothing to write.
    if stream is None:  # It was closed when we started.
        return stream
    buffered = io.BufferedWriter(_Watched(stream.fileno(), "wb", closefd=False))
    return io.TextIOWrapper(
        buffered, encoding=stream.encoding, errors=stream.errors, line_buffering=stream.isatty() or stream is sys.stderr
    )


def die_by(number: signal.Signals) -> None:
    """Ends the process as the signal does by itself, so that a shell's loop ends with it."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def run(action: Coroutine[Any, Any, ResultT]) -> ResultT:
    """asyncio.run. KeyboardInterrupt when Ctrl-C ended it."""
    import asyncio  # Not for `--help`, which comes here too.

    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(action)
    interrupted = False

    async def interruptible() -> ResultT:
        nonlocal interrupted
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def interrupt(_number: int, _frame: FrameType | None) -> None:
            nonlocal interrupted
            interrupted = True
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            loop.call_soon_threadsafe(task.cancel)

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            return await action
        finally:
            signal.signal(signal.SIGINT, before)

    try:
        return asyncio.run(interruptible())
    except BaseException:
        if interrupted:
            # Whatever the cancelled parts said is no news.
            raise KeyboardInterrupt from None
        raise
