"""`tandemmq`, `mqadmin` and `python -m tandemmq.cli`."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandemmq.cli.ending import CommandError


def main() -> None:
    """Runs the command line and ends the process. The one place that prints a CommandError."""
    # While modules are imported, and wherever no event loop runs, Ctrl-C ends the process by itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # After that line, for Ctrl-C while they are imported.
    from tandemmq.cli.ending import OutputClosed, die_by, output_closed_in, output_error, watch_output

    watch_output()
    try:
        try:
            code = _run()
        except ExceptionGroup as group:
            if (closed := output_closed_in(group)) is None:
                raise
            raise closed from None
        sys.stdout.flush()
    except OutputClosed as closed:
        if not closed.reason:
            die_by(signal.SIGPIPE)
        code = _tell(output_error(closed))
    if code == _INTERRUPTED:
        die_by(signal.SIGINT)
    raise SystemExit(code)


# What typer makes of KeyboardInterrupt.
_INTERRUPTED = 130


def _run() -> int:
    """The exit code."""
    # gRPC's own lines, before it is imported: what a user needs of them is in our errors.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from tandemmq.cli.app import app
    from tandemmq.cli.ending import CommandError, Refused, command_error_in

    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except CommandError as error:
        return _tell(error)
    except ExceptionGroup as group:
        found = command_error_in(group)
        if found is None:
            raise
        return _tell(found)
    except ModuleNotFoundError as missing:
        from tandemmq.service.extras import extra_of, install_line

        extra = extra_of(missing)
        if not extra:
            raise
        return _tell(
            Refused(
                f"this command needs {missing.name}, which is not installed",
                cause=f"it comes with the extra [{extra}]",
                remedy=install_line(extra),
            )
        )
    except OSError as error:
        # Whatever a command reads or writes it was told to; what is more to be said of it the command says itself.
        if error.filename is None:
            raise
        return _tell(
            CommandError(
                f"{os.fsdecode(error.filename)} cannot be read or written",
                cause=error.strerror or str(error),
                remedy="name another file or folder, or give this user the right to it",
            )
        )
    return 0


def _tell(error: CommandError) -> int:
    sys.stderr.write("\n".join(error.lines()) + "\n")
    return error.exit_code


if __name__ == "__main__":
    main()
