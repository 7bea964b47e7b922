"""Types docs/first-hour.md: every command, in a fresh clone with an empty home, and looks for every line it promises.

    python tools/first_hour.py            # what `make first-hour` runs: build/first-hour

The clone has what is committed. A block titled "first terminal" is typed into a shell of its own, whose last command
goes on. Exit code 1 with the command, its output and the line that is missing when a promise is not kept.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENT: Final = ROOT / "docs" / "first-hour.md"
FOLDER: Final = ROOT / "build" / "first-hour"
# Of one command; setting up a clone takes the longest.
LIMIT_S: Final = 600.0
# What the document's cluster listens on.
PORTS: Final = (9876, 9877, 8080, 8081)
_BLOCK: Final = re.compile(r'```console(?: title="(?P<title>[^"]*)")?\n(?P<text>.*?)```', re.DOTALL)
_DONE: Final = "first-hour-command-ended-with"


@dataclass(frozen=True, slots=True)
class Command:
    """A command and the lines that are to come, in this order."""

    terminal: str
    line: str
    promises: tuple[str, ...]
    # The last of the first terminal: it is not waited for.
    stays: bool


def commands(document: str) -> list[Command]:
    """All of a document, in its order. ValueError for a block that does not begin with a command."""
    found: list[Command] = []
    for block in _BLOCK.finditer(document):
        terminal = block["title"] or "second terminal"
        parts: list[tuple[str, list[str]]] = []
        for line in block["text"].splitlines():
            if line.startswith("$ "):
                parts.append((line[2:], []))
            elif not parts:
                raise ValueError(f"a block begins with {line!r}, which is no command")
            elif line.strip() not in ("", "..."):
                parts[-1][1].append(line.strip())
        found += [
            Command(terminal, line, tuple(promises), terminal == "first terminal" and number == len(parts))
            for number, (line, promises) in enumerate(parts, 1)
        ]
    return found


def missing_promise(output: str, promises: tuple[str, ...]) -> str | None:
    """The first promise that no line keeps behind those of the promises before; None: all are kept."""
    lines = iter(" ".join(line.split()) for line in output.splitlines())
    for promise in promises:
        pattern = re.compile(r".*?".join(re.escape(" ".join(part.split())) for part in promise.split("...")))
        if not any(pattern.search(line) for line in lines):
            return promise
    return None


class Terminal:
    """A shell that keeps its folder and variables."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def type(self, command: Command) -> tuple[str, str]:
        """The output, and what is wrong; empty if nothing is."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        end = "" if command.stays else f'\nprintf "\\n{_DONE} %s\\n" $?'
        self._process.stdin.write(f"{command.line}{end}\n".encode())
        self._process.stdin.flush()
        output, until = "", time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            if self._selector.select(1.0):
                data = self._process.stdout.read()
                if not data:
                    return output, "the shell ended"
                output += data.decode(errors="replace")
            ended = re.search(rf"^{_DONE} (\d+)$", output, re.MULTILINE)
            missing = missing_promise(output, command.promises)
            if command.stays and missing is None:
                return output, ""
            if ended is not None:
                output = output[: ended.start()]
                if ended[1] != "0":
                    return output, f"exit code {ended[1]}"
                missing = missing_promise(output, command.promises)
                return output, "" if missing is None else f"this line did not come: {missing}"
        return output, f"it took more than {LIMIT_S:.0f} s"

    def close(self) -> None:
        """Ends it, and what still runs in it, in order first."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(20)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


def environment(home: Path) -> dict[str, str]:
    """What somebody has who has just logged in; how packages are fetched stays as it is on this machine."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV", "TANDEMMQ", "XDG_", "MAKE", "MFLAGS"))
    }
    path = ":".join(part for part in kept.get("PATH", "").split(":") if ".venv" not in part)
    return {**kept, "HOME": str(home), "PATH": path, "COLUMNS": "200"}


def _busy_ports() -> list[int]:
    busy = []
    for port in PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                busy.append(port)
    return busy


def main() -> int:
    """Exit code 0: every promise was kept."""
    if busy := _busy_ports():
        taken = ", ".join(map(str, busy))
        print(f"ports {taken} of 127.0.0.1 are taken; the document's cluster needs them: stop who has them")
        return 2
    shutil.rmtree(FOLDER, ignore_errors=True)
    home, clone = FOLDER / "home", FOLDER / "clone"
    home.mkdir(parents=True)
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    # The document as it is here, also before it is committed.
    wanted = commands(DOCUMENT.read_text(encoding="utf-8"))
    terminals: dict[str, Terminal] = {}
    began = time.monotonic()
    try:
        for command in wanted:
            if command.terminal not in terminals:
                terminals[command.terminal] = Terminal(clone, environment(home))
            before = time.monotonic()
            output, problem = terminals[command.terminal].type(command)
            print(f"{time.monotonic() - before:6.1f} s  {command.line}", flush=True)
            if problem:
                print(f"{output}\n{problem}")
                return 1
    finally:
        for terminal in reversed(terminals.values()):
            terminal.close()
    print(f"{len(wanted)} commands kept their promises, in {(time.monotonic() - began) / 60:.1f} min")
    return 0


if __name__ == "__main__":
    sys.exit(main())
