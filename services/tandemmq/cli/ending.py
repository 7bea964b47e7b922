"""How a command ends that is stopped, or whose output nobody reads any more: without a word, and as its caller expects.

- Ctrl-C: the process dies by SIGINT (130 in a shell). What it does on an event loop is cancelled first, so that it puts
  away what it made; a second Ctrl-C does not wait for that.
- A reader that has enough, such as `head`: it dies by SIGPIPE (141 in a shell), after the same.
- Output that cannot be written, on a full disk say, is a failure like any other.
"""

from __future__ import annotations

import errno
import io
import os
import select
import signal
import sys
import threading
import unicodedata
from collections.abc import Coroutine
from types import FrameType
from typing import Any, Final, TextIO, TypeVar

ResultT = TypeVar("ResultT")
ErrorT = TypeVar("ErrorT", bound=Exception)


class OutputClosed(Exception):
    """Our output goes nowhere any more. `reason` is empty when it is a pipe that nobody reads.

    No OSError: neither typer nor rich take it for theirs, and a socket that was closed is told apart.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class _Watched(io.FileIO):
    def __init__(self, fd: int, *, is_result: bool) -> None:
        super().__init__(fd, "wb", closefd=False)
        # Standard error may be lost: what the command did is in its exit code.
        self._is_result = is_result
        self._failed = False

    def write(self, data: Any, /) -> int:
        if self._failed:
            # What buffers still hold, as the process ends.
            return len(data)
        try:
            # None from a pipe that is full and that somebody else has made non-blocking.
            while (written := super().write(data)) is None:
                select.select((), (self,), ())
        except BrokenPipeError:
            raise OutputClosed from None
        except OSError as error:
            self._failed = True
            if self._is_result:
                raise OutputClosed(error.strerror or str(error)) from error
            return len(data)
        return written


class _Closed(io.RawIOBase):
    """In the place of a standard output that was closed when we started: its descriptor may be a socket's by now."""

    def __init__(self) -> None:
        self._is_told = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if not self._is_told:
            self._is_told = True
            raise OutputClosed(os.strerror(errno.EBADF))
        return len(data)


def watch_output() -> None:
    """From now on, what is printed and cannot be written raises OutputClosed."""
    sys.stdout = _watched(sys.stdout, is_result=True)
    sys.stderr = _watched(sys.stderr, is_result=False)


def _watched(stream: TextIO | None, *, is_result: bool) -> TextIO:
    if stream is None:
        return (
            io.TextIOWrapper(io.BufferedWriter(_Closed()), write_through=True) if is_result else open(os.devnull, "w")
        )
    # The old one is kept alive by sys.__stdout__; it has nothing to write.
    buffered = io.BufferedWriter(_Watched(stream.fileno(), is_result=is_result))
    # A terminal that knows no UTF-8 shows ? for what it has no character for, and the rest.
    errors = "replace" if stream.errors == "strict" else stream.errors
    return io.TextIOWrapper(
        buffered, encoding=stream.encoding, errors=errors, line_buffering=stream.isatty() or not is_result
    )


def die_by(number: signal.Signals) -> None:
    """Ends the process as the signal does by itself, so that a shell's loop ends with it."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def signals_to_end() -> list[signal.Signals]:
    """Ctrl-C, `kill`, and the terminal that is closed, unless `nohup` or its like wants that one ignored."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in numbers if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


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
        """What the user reads: the problem, then cause and remedy where they are known; a path in them may hold
        anything."""
        lines = [f"problem: {one_line(self.problem)}"]
        if self.cause:
            lines += _continued("cause:   ", self.cause)
        if self.remedy:
            lines += _continued("remedy:  ", self.remedy)
        return lines


class Refused(CommandError):
    """What was asked for makes no sense, or may not be done: nothing was."""

    def __init__(self, problem: str, *, cause: str = "", remedy: str = "") -> None:
        super().__init__(problem, cause=cause, remedy=remedy, exit_code=EXIT_REFUSED)


def command_error_in(group: ExceptionGroup[Exception]) -> CommandError | None:
    """The first CommandError in what nested task groups raised, or None: then it is a bug of ours."""
    return _first_in(group, CommandError)


def output_closed_in(group: ExceptionGroup[Exception]) -> OutputClosed | None:
    """The first OutputClosed in what nested task groups raised."""
    return _first_in(group, OutputClosed)


def output_error(closed: OutputClosed) -> CommandError:
    """What to say of output that cannot be written although somebody wants it."""
    return CommandError(
        "the output cannot be written",
        cause=closed.reason,
        remedy="make room, or write it elsewhere; what the command changes is done all the same",
    )


def _first_in(group: ExceptionGroup[Exception], kind: type[ErrorT]) -> ErrorT | None:
    found: Exception | None = group.subgroup(kind)
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found if isinstance(found, kind) else None


def _continued(label: str, text: str) -> list[str]:
    first, *rest = map(one_line, text.splitlines())
    return [label + first, *(" " * len(label) + line for line in rest)]


# Text that a terminal may be given, whatever a client wrote into it.


def one_line(text: str) -> str:
    """Without line ends and what else moves a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(each) == "Cc" else each for each in text)
