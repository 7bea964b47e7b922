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
import unicodedata
from collections.abc import Coroutine
from types import FrameType
from typing import Any, Final, TextIO, TypeVar

__all__ = [
    "EXIT_FAILED",
    "EXIT_REFUSED",
    "CommandError",
    "OutputClosed",
    "command_error_in",
    "die_by",
    "one_line",
    "run",
    "watch_output",
]


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


# The one way in which a command fails: what is wrong, why, and what to do about it.

# The command ran and its result is bad: a cluster is degraded, a line was not acknowledged.
EXIT_FAILED: Final = 1
# Nothing was done: the arguments or the configuration are wrong. Typer uses the same number for usage errors.
EXIT_REFUSED: Final = 2


class CommandError(Exception):
    """The command cannot go on. `main` prints it on stderr and exits; nothing else catches it."""

    def __init__(self, problem: str, *, cause: str = "", remedy: str = "", exit_code: int = EXIT_FAILED) -> None:
        super().__init__(problem)
        self.problem = problem
        self.cause = cause
        self.remedy = remedy
        self.exit_code = exit_code

    def lines(self) -> list[str]:
        """What the user reads: the problem, then cause and remedy where they are known."""
        lines = [f"problem: {self.problem}"]
        if self.cause:
            lines += _continued("cause:   ", self.cause)
        if self.remedy:
            lines += _continued("remedy:  ", self.remedy)
        return lines


def command_error_in(group: ExceptionGroup[Exception]) -> CommandError | None:
    """The first CommandError in what nested task groups raised, or None: then it is a bug of ours."""
    found: Exception | None = group.subgroup(CommandError)
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found if isinstance(found, CommandError) else None


def _continued(label: str, text: str) -> list[str]:
    first, *rest = text.splitlines()
    return [label + first, *(" " * len(label) + line for line in rest)]


# Text that a terminal may be given, whatever a client wrote into it.


def one_line(text: str) -> str:
    """Without line ends and what else moves a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(each) == "Cc" else each for each in text)
