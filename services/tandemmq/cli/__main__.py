"""`tandemmq`, `mqadmin` and `python -m tandemmq.cli`."""

from __future__ import annotations

import sys
from typing import NoReturn

from tandemmq.cli.app import app
from tandemmq.cli.failure import CommandError, command_error_in

__all__ = ["main"]


def main() -> None:
    """Runs the command line and exits. The one place that prints a CommandError."""
    try:
        app()
    except CommandError as error:
        _fail(error)
    except ExceptionGroup as group:
        found = command_error_in(group)
        if found is None:
            raise
        _fail(found)


def _fail(error: CommandError) -> NoReturn:
    sys.stderr.write("\n".join(error.lines()) + "\n")
    raise SystemExit(error.exit_code)


if __name__ == "__main__":
    main()
