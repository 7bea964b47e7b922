"""What an installation may lack: the parts that `pip install tandemmq` leaves to its extras.

The programs of the services start here, so that one whose extra is missing says so instead of showing a traceback.
"""

from __future__ import annotations

import importlib
import re
import signal
import sys
from collections.abc import Iterator
from typing import Final

# Those a user may install; the first that brings a package is the one named.
_EXTRAS: Final = ("broker", "admin", "consistency")
_REQUIREMENT: Final = re.compile(r"^\s*([A-Za-z0-9._-]+).*;.*extra\s*==\s*['\"]([a-z]+)['\"]")
# Packages whose module has another name.
_MODULES: Final = {"pyyaml": "yaml", "prometheus-client": "prometheus_client"}
_EXIT_REFUSED: Final = 2


def extra_of(error: ModuleNotFoundError) -> str:
    """The extra that would bring the missing module; empty if none does: then it is a bug of ours."""
    missing = (error.name or "").partition(".")[0]
    for extra in _EXTRAS:
        if missing in (_MODULES.get(package, package) for package in _packages(extra)):
            return extra
    return ""


def absent_packages(extra: str) -> list[str]:
    """Of an extra: those that are not installed."""
    return [package for package in _packages(extra) if not _is_installed(package)]


def absence_problems(extra: str) -> list[str]:
    """Those, for people to read: of a service that imports them when it serves."""
    return [
        f"{package} is not installed, which this program needs; {install_line(extra)}"
        for package in absent_packages(extra)
    ]


def install_line(*extras: str) -> str:
    """What to type."""
    return f"pip install 'tandemmq[{','.join(extras)}]'"


# Below, importlib.metadata is imported where it is asked for: to import it takes as long as to press Ctrl-C.


def _packages(extra: str) -> Iterator[str]:
    from importlib.metadata import requires

    for line in requires("tandemmq") or ():
        match = _REQUIREMENT.match(line)
        if match and match[2] == extra:
            yield match[1].lower()


def _is_installed(package: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _start(module: str) -> None:
    # While modules are imported, and wherever no event loop runs, Ctrl-C ends the process by itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        extra = extra_of(error)
        if not extra:
            raise
        sys.stderr.write(f"{error.name} is not installed, which this program needs; {install_line(extra)}\n")
        raise SystemExit(_EXIT_REFUSED) from None
    main()


def nameserver() -> None:
    _start("tandemmq.nameserver.__main__")


def broker() -> None:
    _start("tandemmq.broker.__main__")


def broker_drain() -> None:
    _start("tandemmq.broker.drain")


def admin() -> None:
    _start("tandemmq.admin.__main__")


def consistency() -> None:
    _start("tandemmq.consistency.__main__")
