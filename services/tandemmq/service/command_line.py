"""The command line that all services share: where settings come from, and what to do with them instead of starting."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from pydantic_settings import BaseSettings

from tandemmq.service.settings import SettingsError, json_schema, load_settings

__all__ = ["EXIT_REFUSED", "VERSION", "settings_of_command_line", "stop_requested"]


# The version this process was built as.

# One distribution holds all services, so one number names what runs (see pyproject.toml).
VERSION: Final = version("tandemmq")
# Exit code for settings that cannot be used, as argparse ends for a command line that cannot.
EXIT_REFUSED: Final = 2

SettingsT = TypeVar("SettingsT", bound=BaseSettings)


def settings_of_command_line(
    model: type[SettingsT],
    *,
    program: str,
    description: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    check: Callable[[SettingsT], list[str]],
    parents: Sequence[argparse.ArgumentParser] = (),
) -> SettingsT:
    """The settings to start with. `parents` add what is said to one start and is no setting.

    `check` looks at the machine: ports, folders. Raises SystemExit where the process must not go on: 2 with a line on
    standard error for each problem, 0 after --check found none, or after --schema or --version.
    """
    parser = argparse.ArgumentParser(prog=program, description=description, parents=list(parents))
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="key=value lines, as RocketMQ reads them")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one setting; wins over FILE")
    parser.add_argument("--check", action="store_true", help="check the settings and this machine, start nothing")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of all settings")
    parser.add_argument("--version", action="version", version=f"{program} {VERSION}")
    options = parser.parse_args(arguments)
    if options.schema:
        sys.stdout.write(json.dumps(json_schema(model), indent=2) + "\n")
        raise SystemExit(0)
    try:
        settings = load_settings(model, config_file=options.config, environ=environ, overrides=options.set)
    except SettingsError as error:
        _refuse(error.problems)
    problems = check(settings)
    if problems:
        _refuse(problems)
    if options.check:
        raise SystemExit(0)
    return settings


def _refuse(problems: Sequence[str]) -> NoReturn:
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    raise SystemExit(EXIT_REFUSED)


# Signals become an event that the process's main task waits for.

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_requested() -> Iterator[asyncio.Event]:
    """An event that SIGTERM or SIGINT sets. A second signal acts as the operating system's default: the process ends.

    To be entered on the event loop's thread, which must be the main thread.
    """
    loop = asyncio.get_running_loop()
    requested = asyncio.Event()

    def request() -> None:
        requested.set()
        # Whoever signals twice does not want to wait for an orderly end.
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, request)
    try:
        yield requested
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if not requested.is_set():
                signal.signal(number, handler or signal.SIG_DFL)
