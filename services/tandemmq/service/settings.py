"""Settings of a process: read from a properties file, the environment and the command line, judged all at once.

RocketMQ's operators bring `key=value` files with camelCase keys; pods bring environment variables; a test or a hurried
operator brings `--set`. The later source wins. Whatever is wrong is collected, and each problem is one line that names
the key, its value, where it was written, what is wrong and what would be right, so that one start shows all mistakes.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import errno
import json
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, NamedTuple, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

ENVIRONMENT_PREFIX: Final = "TANDEMMQ_"

# Kubernetes puts these into every pod for each Service of the namespace; a Service called tandemmq-... makes them
# look like ours.
_WORD: Final = re.compile(r"\w+")
_SERVICE_LINK: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP)(_\w+)?)$")
# Similar enough to be the same word with a slip: one or two letters of a dozen.
_SLIP_RATIO: Final = 0.85

SettingsT = TypeVar("SettingsT", bound=BaseModel)


class SettingsError(Exception):
    """The settings cannot be used. `problems` has a line for each mistake, for the operator to correct."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class FormerSetting(NamedTuple):
    """A setting of earlier releases. The one value that changes nothing is passed over."""

    harmless: str
    remedy: str


class ServiceSettings(BaseModel):
    """Base of every service's settings: immutable, closed, and filled by `load_settings` only.

    RocketMQ's key is the field's name in camelCase (`file_reserved_time`: `fileReservedTime`); the few that are spelled
    otherwise have an `alias`.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", populate_by_name=True, frozen=True, validate_default=True
    )
    former: ClassVar[Mapping[str, FormerSetting]] = MappingProxyType({})
    """By the Python name."""


# Kinds of values that settings of several services have.

_HOST_PORT: Final = re.compile(r"^\[?[^\s;,]+\]?:\d{1,5}$")


def parts_of(text: str, separator: str = ";") -> tuple[str, ...]:
    """What stands between separators, without blanks and empty parts."""
    return tuple(part.strip() for part in text.split(separator) if part.strip())


def is_host_port(text: str) -> bool:
    return _HOST_PORT.match(text) is not None


def _are_addresses(text: str) -> str:
    for part in parts_of(text):
        if not is_host_port(part):
            raise ValueError(f"'{part}' is no host:port; separate several by ';'")
    return text


Port = Annotated[int, Field(ge=0, le=65_535)]
Addresses = Annotated[str, AfterValidator(_are_addresses)]
"""Of the form host:port, separated by ';'."""


@dataclass(frozen=True, slots=True)
class _Value:
    """One assignment and where it stands."""

    text: str
    origin: str


def load_settings(
    model: type[SettingsT],
    *,
    config_file: Path | None = None,
    environ: Mapping[str, str],
    overrides: Sequence[str] = (),
) -> SettingsT:
    """`model` filled from the file, then TANDEMMQ_<FIELD> variables, then `key=value` overrides; the last one wins.

    Keys are RocketMQ's (the field's alias) or the Python name. Raises SettingsError with all problems found.
    """
    keys = _Keys(model)
    problems: list[str] = []
    values: dict[str, _Value] = {}
    for source in (
        _read_file(config_file, keys, problems) if config_file is not None else {},
        _read_environment(environ, keys, problems),
        _read_overrides(overrides, keys, problems),
    ):
        values.update(source)
    try:
        settings = model.model_validate({key: value.text for key, value in values.items()})
    except ValidationError as error:
        problems += _problems_of(model, error, values, keys)
    if problems:
        raise SettingsError(problems)
    return settings


def changed_settings(settings: SettingsT, values: Mapping[str, str]) -> SettingsT:
    """`settings` with other values, by RocketMQ's keys or Python names, and everything checked together again.

    Raises SettingsError with all problems found.
    """
    model = type(settings)
    keys = _Keys(model)
    wanted: dict[str, _Value] = {}
    problems: list[str] = []
    for name, text in values.items():
        _assign(f"{name}={text}", "wanted", keys, wanted, problems)
    if problems:
        raise SettingsError(problems)
    kept = {field.alias or name: getattr(settings, name) for name, field in model.model_fields.items()}
    try:
        return model.model_validate(kept | {key: value.text for key, value in wanted.items()})
    except ValidationError as error:
        raise SettingsError([line for detail in error.errors() for line in _lines(detail, wanted, keys)]) from error


def effective_settings(settings: BaseModel) -> dict[str, str]:
    """All settings by RocketMQ's key, for the log line at start. Secrets are masked."""
    return {
        field.alias or name: "***" if isinstance(value := getattr(settings, name), SecretStr) else str(value)
        for name, field in type(settings).model_fields.items()
    }


def secrets_in_arguments(model: type[BaseModel], overrides: Iterable[str]) -> list[str]:
    """A line for each secret among `key=value` of a command line, which every user of the machine may read."""
    keys = _Keys(model)
    variables = {key: variable for variable, key in keys.by_variable.items()}
    given = {keys.canonical(text.partition("=")[0].strip()) for text in overrides if text.partition("=")[2].strip()}
    return [
        f"{key} (--set): every user of this machine may see it in `ps`; use {variables[key]} or the file of --config"
        for key, field in keys.fields.items()
        if key in given and field.annotation is SecretStr
    ]


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """JSON schema of the settings by RocketMQ's keys. The chart's values are checked against it."""
    return model.model_json_schema(by_alias=True)


class Passing(str):
    """A problem of this machine that may end by itself: a port that a former process still has, a disk that is not
    mounted yet. Who restarts the service tries again; a problem that is none stays until somebody mends it."""

    __slots__ = ()


def check_ports_free(bind_address: str, ports: Mapping[str, int]) -> list[str]:
    """A problem for each port (by its key) that cannot be listened on now. 0 means any and is always free."""
    problems = []
    for key, port in ports.items():
        reason = _bind_failure(bind_address, port) if port else None
        if reason is not None:
            problems.append(type(reason)(f"{key}={port}: {reason}"))
    return problems


_FILES_WANTED: Final = 1 << 20


def use_all_files() -> None:
    """Opens as many files at a time as this process may: many systems begin with 1,024, which is a few hundred
    connections, and a service that finds no descriptor for a file of its own ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, _FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a container may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_within_files(wanted: int, *, part: float = 3 / 4) -> int:
    """`wanted`, or that part of the files that this process may have open: the others are for its own."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, int(soft * part)))


def service_connections_max() -> int:
    """How many connections one port between services takes: whoever opens more is closed at once, and takes neither the
    files nor the memory that the service needs itself. The cluster's own are some to each of its members."""
    return connections_within_files(_SERVICE_CONNECTIONS_MAX, part=1 / 16)


_SERVICE_CONNECTIONS_MAX: Final = 4_096


def check_folder_writable(key: str, folder: Path) -> list[str]:
    """A problem if the folder cannot be made or written. What is made to find out is removed again."""
    probe, made = folder / ".write-probe", list[Path]()
    try:
        for each in (*reversed(folder.parents), folder):
            if not each.exists():
                each.mkdir(exist_ok=True)
                made.append(each)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        text = f"{key}={folder}: cannot be written by user id {os.getuid()} ({error.strerror})"
        problem = f"{text}; {folder_remedy(error)}"
        return [problem if error.errno in _NO_FOLDER else Passing(problem)]
    finally:
        for each in reversed(made):
            with suppress(OSError):
                each.rmdir()
    return []


def folder_remedy(error: OSError) -> str:
    """What helps where a folder, or a file in it, cannot be made or written."""
    if error.errno in _NO_FOLDER:
        return "choose another folder"
    return _FOLDER_REMEDIES.get(error.errno or 0, "choose another folder or change its owner")


# The path is none of a folder, whatever is mounted there.
_NO_FOLDER: Final = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
_FOLDER_REMEDIES: Final = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "raise the quota of this user, or make room",
    errno.EROFS: "mount its disk for writing; the kernel's log says why it is not",
    errno.EIO: "look at its disk; the kernel's log says what failed",
}


class _Keys:
    """The names by which a model's fields may be set."""

    def __init__(self, model: type[BaseModel]) -> None:
        fields = model.model_fields
        self.fields: dict[str, FieldInfo] = {field.alias or name: field for name, field in fields.items()}
        self._canonical = {key: field.alias or name for name, field in fields.items() for key in (field.alias, name)}
        self.by_variable = {ENVIRONMENT_PREFIX + name.upper(): field.alias or name for name, field in fields.items()}
        former: Mapping[str, FormerSetting] = getattr(model, "former", {})
        self._former = {
            key: setting
            for name, setting in former.items()
            for key in (name, to_camel(name), ENVIRONMENT_PREFIX + name.upper())
        }

    def canonical(self, key: str) -> str | None:
        """RocketMQ's key for any accepted spelling; None if there is no such setting."""
        return self._canonical.get(key)

    def former(self, key: str, value: str, origin: str) -> list[str] | None:
        """What is wrong with a setting, or a variable, that there was once; None: there never was."""
        setting = self._former.get(key)
        if setting is None:
            return None
        return (
            []
            if value == setting.harmless
            else [f"{key} ({origin}): there is no such setting any more; {setting.remedy}"]
        )

    def suggestion(self, key: str) -> str:
        """A clause for an unknown key."""
        lowered = {known.lower(): known for known in self.fields}
        close = difflib.get_close_matches(key.lower().replace("_", ""), lowered, n=1, cutoff=0.6)
        return f"did you mean {lowered[close[0]]}?" if close else "remove it; the program's --schema prints all keys"


def _read_file(path: Path, keys: _Keys, problems: list[str]) -> dict[str, _Value]:
    """`key=value` lines; `#` and `!` start a comment line, as in Java. Of equal keys the last one counts."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        problems.append(f"--config {path}: cannot be read ({reason}); name a readable key=value file")
        return {}
    values: dict[str, _Value] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if line and line[0] not in "#!":
            _assign(line, f"{path}:{number}", keys, values, problems)
    return values


def _read_overrides(overrides: Iterable[str], keys: _Keys, problems: list[str]) -> dict[str, _Value]:
    values: dict[str, _Value] = {}
    for text in overrides:
        _assign(text, "--set", keys, values, problems)
    return values


def _assign(text: str, origin: str, keys: _Keys, values: dict[str, _Value], problems: list[str]) -> None:
    name, equals, value = (part.strip() for part in text.partition("="))
    key = keys.canonical(name)
    if not equals:
        # What comes behind its first word may be a secret's value.
        word = _WORD.match(name)
        problems.append(f"'{word[0] if word else '?'}' ({origin}): no assignment; write key=value")
    elif (former := keys.former(name, value, origin)) is not None:
        problems += former
    elif key is None:
        # Not its value: a secret's key with a slip of the pen, or another service's, is as unknown as any.
        problems.append(f"{name} ({origin}): unknown key; {keys.suggestion(name)}")
    else:
        values[key] = _Value(value, origin)


def _read_environment(environ: Mapping[str, str], keys: _Keys, problems: list[str]) -> dict[str, _Value]:
    """Known variables, and a problem for one that is a known variable with a slip of the pen.

    Other variables with our prefix pass: the container platform and other tools of ours may set them.
    """
    values = {}
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        key = keys.by_variable.get(variable)
        if key is not None:
            values[key] = _Value(value.strip(), variable)
        elif (former := keys.former(variable, value.strip(), "environment")) is not None:
            problems += former
        elif not _SERVICE_LINK.search(variable):
            close = difflib.get_close_matches(variable, keys.by_variable, n=1, cutoff=_SLIP_RATIO)
            problems += [f"{variable} (environment): unknown variable; did you mean {close[0]}?"] if close else []
    return values


def _problems_of(
    model: type[BaseModel], error: ValidationError, values: Mapping[str, _Value], keys: _Keys
) -> list[str]:
    """Lines for bad values, and for rules between the good ones.

    pydantic checks rules between fields only when every field is good. So that the operator sees those too, they are
    checked once more with the bad values left out; what then concerns a key already reported is not repeated.
    """
    details = error.errors()
    bad_keys = {str(detail["loc"][0]) for detail in details if detail["loc"]}
    problems = [line for detail in details for line in _lines(detail, values, keys)]
    if bad_keys:
        try:
            model.model_validate({key: value.text for key, value in values.items() if key not in bad_keys})
        except ValidationError as cross_error:
            lines = (line for detail in cross_error.errors() for line in _lines(detail, values, keys))
            problems += [line for line in lines if not any(re.search(rf"\b{key}\b", line) for key in bad_keys)]
    return problems


def _lines(detail: ErrorDetails, values: Mapping[str, _Value], keys: _Keys) -> list[str]:
    # A validator's own words, without pydantic's "Value error, " in front; it may report several problems as lines.
    raised = detail.get("ctx", {}).get("error")
    text = str(raised) if raised is not None else detail["msg"][:1].lower() + detail["msg"][1:]
    if not detail["loc"]:
        return text.splitlines()
    key = str(detail["loc"][0])
    field = keys.fields.get(key)
    if key not in values:
        return [f"{key}: {text}; set it. {field.description or '' if field else ''}".rstrip()]
    is_secret = field is not None and field.annotation is SecretStr
    shown = "***" if is_secret else values[key].text
    meaning = f" -- {field.description}" if field and field.description else ""
    return [f"{key}={shown} ({values[key].origin}): {text}{meaning}"]


def _bind_failure(bind_address: str, port: int) -> str | None:
    family = socket.AF_INET6 if ":" in bind_address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the real listeners do, so that connections of a former process in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bind_address, port))
            probe.listen(1)
        except OSError as error:
            return _bind_remedy(bind_address, error)
    return None


def _bind_remedy(bind_address: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return Passing(f"another process listens on this port of {bind_address}; stop it or choose another port")
    if error.errno in (errno.EACCES, errno.EPERM):
        return "this user may not listen on it; choose a port above 1023"
    return Passing(f"cannot listen on {bind_address} ({error.strerror}); set bindAddress to an address of this machine")


# The command line that all services share: where settings come from, and what to do with them instead of starting.


# The version this process was built as.

# One distribution holds all services, so one number names what runs (see pyproject.toml).
VERSION: Final = version("tandemmq")
# Somebody has to mend it first: a wrong setting, as argparse ends for a wrong command line. Units of systemd do not
# start such a service again; whoever mends a store by hand is not disturbed.
EXIT_REFUSED: Final = 2
# It may go the next time: EX_TEMPFAIL of sysexits.h. Apart from 1, as which Python ends for a bug.
EXIT_TRY_AGAIN: Final = 75


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

    `check` looks at the machine: ports, folders. Raises SystemExit where the process must not go on, with a line on
    standard error for each problem: 75 if all are `Passing`, else 2; 0 after --check found none, or after --schema or
    --version.
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
        refuse(error.problems)
    sys.stderr.write("".join(f"warning: {line}\n" for line in secrets_in_arguments(model, options.set)))
    problems = check(settings)
    if problems:
        refuse(problems)
    if options.check:
        raise SystemExit(0)
    return settings


def refuse(problems: Sequence[str]) -> NoReturn:
    """Ends a process that cannot start: a line for each problem, and an exit code that says whether to try again."""
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    raise SystemExit(EXIT_TRY_AGAIN if all(isinstance(problem, Passing) for problem in problems) else EXIT_REFUSED)


# Signals become an event that the process's main task waits for.

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def signals_end() -> Iterator[None]:
    """SIGTERM or SIGINT ends the process in order, exit code 0, while the block runs: for what a service imports before
    its loop, which would be held up by it. On the main thread."""

    def end(_number: int, _frame: object) -> None:
        sys.exit(0)

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


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
