"""The one way in which a command fails: what is wrong, why, and what to do about it."""

from __future__ import annotations

import unicodedata
from typing import Final

__all__ = ["EXIT_FAILED", "EXIT_REFUSED", "CommandError", "command_error_in", "one_line"]

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
