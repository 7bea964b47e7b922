"""A process of which services are forked: the first of a kind has it import what they need, the others find it there.

`python -m support.process_template FD` reads orders from that socket, a JSON object a line, and answers each:

    {"module": ., "arguments": [.], "log": path, "environment": {.}, "folder": cwd}   -> {"pid": n}
    {"code_of": pid}                                                                -> {"code": n, null while it runs}

Integration tests and loss rounds use it (`share_imports`). A benchmark, and a test of how a program starts, takes a
process of its own. So does who is in another network namespace than the template.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from support.running_time import PATIENCE_S

# What each imports as it starts, and when it serves.
_IMPORTS: Final = {
    "tandemmq.broker": ("tandemmq.broker.__main__", "tandemmq.broker.broker"),
    "tandemmq.nameserver": ("tandemmq.nameserver.__main__", "tandemmq.nameserver.name_server"),
    "tandemmq.admin": ("tandemmq.admin.__main__", "tandemmq.admin.http_api"),
}
_POLL_S: Final = 0.02
# The first answer waits for the imports.


class ForkedProcess:
    """What the tests use of `subprocess.Popen`, for a child of the template."""

    def __init__(self, template: ProcessTemplate, pid: int) -> None:
        self.pid: Final = pid
        self.returncode: int | None = None
        self._template = template

    def poll(self) -> int | None:
        """The exit code, a signal's number below zero, or None while it runs."""
        if self.returncode is None:
            self.returncode = self._template.exit_code(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As `Popen.wait`: subprocess.TimeoutExpired when it runs on."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and timeout is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL_S)
        return code


class ProcessTemplate:
    """The template as a test process sees it. It ends when the test process does."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.process_template", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                cwd=Path(__file__).resolve().parent.parent,
            )
        ours.settimeout(PATIENCE_S)
        self._socket = ours
        self._answers = ours.makefile("r", encoding="utf-8")
        self._one_at_a_time = threading.Lock()
        self._network = _network_namespace()

    def close(self) -> None:
        """Ends the template; services that still run go on."""
        self._answers.close()
        self._socket.close()
        # It may still import: nothing has been asked of it then.
        self._process.kill()
        self._process.wait()

    @property
    def is_usable(self) -> bool:
        """A child is in the template's network namespace, so the caller has to be, too."""
        return _network_namespace() == self._network

    def start(self, module: str, arguments: Sequence[str], log: Path) -> ForkedProcess:
        """Forks a service whose output is appended to `log`."""
        order = {
            "module": module,
            "arguments": list(arguments),
            "log": str(log.resolve()),
            "environment": dict(os.environ),
            "folder": str(Path.cwd()),
        }
        return ForkedProcess(self, int(self._ask(order)["pid"]))

    def exit_code(self, pid: int) -> int | None:
        """Of a child that ended; None while it runs."""
        code = self._ask({"code_of": pid})["code"]
        return None if code is None else int(code)

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        with self._one_at_a_time:
            self._socket.sendall(json.dumps(order).encode() + b"\n")
            answer = self._answers.readline()
        assert answer, "the template has ended; its message is above"
        result: dict[str, Any] = json.loads(answer)
        return result


_shared: ProcessTemplate | None = None


@contextmanager
def share_imports() -> Iterator[None]:
    """While the block runs, services of this test process are forked."""
    global _shared
    _shared = ProcessTemplate()
    try:
        yield
    finally:
        _shared.close()
        _shared = None


def shared_template() -> ProcessTemplate | None:
    """The template, if services are to be forked here."""
    return _shared if _shared is not None and _shared.is_usable else None


def _network_namespace() -> str:
    return os.readlink("/proc/thread-self/ns/net")


def _serve(orders: socket.socket) -> None:
    codes: dict[int, int] = {}
    for line in orders.makefile("r", encoding="utf-8"):
        order = json.loads(line)
        if "code_of" in order:
            answer = {"code": _code_of(order["code_of"], codes)}
        else:
            _import(order["module"])
            pid = os.fork()
            if pid == 0:
                orders.close()
                _become(order)
            # The kernel gives numbers again: one that ended under this one is another.
            codes.pop(pid, None)
            answer = {"pid": pid}
        orders.sendall(json.dumps(answer).encode() + b"\n")


def _import(module: str) -> None:
    if f"{module}.__main__" not in sys.modules:
        for name in _IMPORTS[module]:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()


def _code_of(pid: int, codes: dict[int, int]) -> int | None:
    if pid not in codes:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == 0:
            return None
        codes[pid] = os.waitstatus_to_exitcode(status)
    return codes[pid]


def _become(order: Mapping[str, Any]) -> NoReturn:
    """In the child: the service, as if its program had been started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    name = f"{order['module']}.__main__"
    sys.argv = [name, *order["arguments"]]
    importlib.import_module(name).main()
    raise SystemExit(0)


if __name__ == "__main__":
    # The test process is told to stop by the terminal; its children are ended by it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(socket.socket(fileno=int(sys.argv[1])))
