"""Which cluster a command talks to. The first of these that is given:

1. --namesrv (RocketMQ's -n), 2. --data, 3. --context, 4. $TANDEMMQ_CONTEXT, 5. $TANDEMMQ_NAMESRV_ADDR or
$NAMESRV_ADDR, 6. the context that `tandemmq context use` chose, 7. the cluster that runs in ./data,
8. 127.0.0.1:9876.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandemmq.cli.ending import CommandError, Refused
from tandemmq.cli.local.folder import DEFAULT_FOLDER, ClusterFolder, data_option

if TYPE_CHECKING:
    from tandemmq.admin.cluster_state import ExpectedBroker


# Names for clusters: what `tandemmq context` keeps, so that a command need not be told where each time.
#
# $XDG_CONFIG_HOME/tandemmq/contexts.yaml, else ~/.config/tandemmq/contexts.yaml, readable by its owner only:
#
#     current: prod
#     contexts:
#       here:  {data: /home/me/data}
#       stage: {namesrv: 10.0.0.1:9876;10.0.0.2:9876}
#       prod:  {kubernetes: {context: prod-eu, namespace: mq, release: mq}}

_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._@/-]{0,62}$")
# A file of thousands of contexts is none that a person wrote.
_FILE_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class KubernetesPlace:
    """A release in Kubernetes. Empty: as kubectl would choose, and the only release of the namespace."""

    context: str = ""
    namespace: str = ""
    release: str = ""

    @property
    def named(self) -> dict[str, str]:
        """What is not empty."""
        return {what: name for what, name in asdict(self).items() if name}


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """A cluster by one of three ways: exactly one field is set."""

    data: str = ""
    # host:port;host:port
    namesrv: str = ""
    kubernetes: KubernetesPlace | None = None

    @property
    def kind(self) -> str:
        """data, namesrv or kubernetes."""
        return "kubernetes" if self.kubernetes else "namesrv" if self.namesrv else "data"

    @property
    def place(self) -> str:
        """Where it is, in words."""
        if self.kubernetes is None:
            return self.namesrv or self.data
        return ", ".join(f"{what} {name}" for what, name in self.kubernetes.named.items()) or "as kubectl chooses"


@dataclass(frozen=True, slots=True)
class Contexts:
    # Empty: none is in use.
    current: str = ""
    by_name: Mapping[str, ClusterContext] = field(default_factory=dict)

    def find(self, name: str) -> ClusterContext:
        """CommandError when there is none of that name."""
        if name in self.by_name:
            return self.by_name[name]
        raise Refused(
            f"there is no context {name}",
            cause=f"there are {', '.join(sorted(self.by_name))}" if self.by_name else "there are none",
            remedy=f"add it: tandemmq context add {name} --namesrv host:port, or --data DIR, or --kubernetes",
        )

    def adding(self, name: str, context: ClusterContext) -> Contexts:
        """With this one, which takes the place of another of its name. CommandError when the name cannot be one."""
        if not _NAME.match(name):
            raise Refused(
                f"{name!r} cannot be the name of a context",
                remedy="use letters, digits and . _ @ / -, 63 at most, a letter or digit first",
            )
        return replace(self, by_name={**self.by_name, name: context})

    def without(self, name: str) -> Contexts:
        """Without it; in use is then none. CommandError when there is none of that name."""
        self.find(name)
        rest = {each: context for each, context in self.by_name.items() if each != name}
        return Contexts("" if self.current == name else self.current, rest)


class ContextFile:
    def __init__(self, path: Path | None = None) -> None:
        self.path = path or _default_path()

    def read(self) -> Contexts:
        """What is in it; nothing when it is missing. CommandError when it cannot be understood."""
        import yaml

        try:
            with self.path.open("rb") as file:
                text = file.read(_FILE_BYTES_MAX)
        except (FileNotFoundError, NotADirectoryError):
            # The home of many a service's user is /dev/null.
            return Contexts()
        except OSError as error:
            raise self._unreadable(error.strerror or str(error)) from error
        try:
            return _contexts(yaml.safe_load(text))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise self._unreadable(str(error)) from error

    def write(self, contexts: Contexts) -> None:
        """Replaces the file as a whole. CommandError when it cannot be written."""
        import yaml

        if self.path.parts[0] == "~":
            raise CommandError("this user has no home folder to keep contexts in", remedy="set HOME or XDG_CONFIG_HOME")
        document = {
            "current": contexts.current,
            "contexts": {name: _document(context) for name, context in sorted(contexts.by_name.items())},
        }
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Made with 0600, and never seen half written.
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".contexts-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    yaml.safe_dump(document, file, sort_keys=False, allow_unicode=True)
                Path(name).replace(self.path)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(name).unlink()
                raise
        except OSError as error:
            raise CommandError(
                f"{self.path} cannot be written",
                cause=error.strerror or str(error),
                remedy="see the room and the rights of that folder, or set XDG_CONFIG_HOME",
            ) from error

    def _unreadable(self, cause: str) -> CommandError:
        return Refused(
            f"{self.path} cannot be read", cause=cause, remedy="mend it, or move it away and add the contexts again"
        )


def _default_path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    # "~" stays where the user has no home: a container may run as any number.
    return Path(home) / "tandemmq" / "contexts.yaml"


def _contexts(document: object) -> Contexts:
    """ValueError when it is not what `write` writes."""
    if document is None:
        return Contexts()
    entries = document.get("contexts") or {} if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(entries, dict):
        raise ValueError("it holds no contexts")  # noqa: TRY004
    by_name = {str(name): _context(str(name), entry) for name, entry in entries.items()}
    return Contexts(str(document.get("current") or ""), by_name)


def _context(name: str, entry: object) -> ClusterContext:
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ValueError(f"context {name} needs exactly one of data, namesrv and kubernetes")
    ((kind, value),) = entry.items()
    if kind == "kubernetes":
        place = value or {}
        keys = sorted(each.name for each in fields(KubernetesPlace))
        if not isinstance(place, dict) or not set(place) <= set(keys):
            raise ValueError(f"kubernetes of context {name} may have {', '.join(keys)}")
        return ClusterContext(kubernetes=KubernetesPlace(**{key: str(text) for key, text in place.items()}))
    if kind not in ("data", "namesrv") or not isinstance(value, str) or not value:
        raise ValueError(f"context {name} needs exactly one of data, namesrv and kubernetes")
    return ClusterContext(data=value) if kind == "data" else ClusterContext(namesrv=value)


def _document(context: ClusterContext) -> dict[str, object]:
    if context.kubernetes is None:
        return {context.kind: context.place}
    return {"kubernetes": context.kubernetes.named}


# Ours, then RocketMQ's own.
NAMESRV_VARIABLES: Final = ("TANDEMMQ_NAMESRV_ADDR", "NAMESRV_ADDR")
_CONTEXT_VARIABLE: Final = "TANDEMMQ_CONTEXT"
_LOCAL_NAMESRV: Final = "127.0.0.1:9876"
_HOST_PORT = re.compile(r"^\[?[^\s;,]+\]?:(\d{1,5})$")
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where the NameServers are, and what else is known of the cluster before asking them."""

    name_servers: tuple[str, ...]
    expected: tuple[ExpectedBroker, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """A cluster somebody means, and by what he means it."""

    # Addresses, or a release whose pods have to be found first.
    where: ClusterAddress | KubernetesPlace
    # What settled it: `--namesrv`, `context prod`, …
    chosen_by: str
    context: str = ""
    # Its data folder, if it is a local one.
    data: Path | None = None

    @property
    def title(self) -> str:
        """How to call it when something is to be confirmed."""
        if self.context:
            return f"context {self.context}"
        if isinstance(self.where, ClusterAddress):
            return f"the cluster at {';'.join(self.where.name_servers)}"
        return "the release in Kubernetes"


def find_target(namesrv: str | None, data: Path | None, context: str | None) -> ClusterTarget:
    """CommandError when an address is malformed, the folder has no running cluster, or there is no such context."""
    if namesrv is not None:
        return ClusterTarget(ClusterAddress(_addresses(namesrv, "--namesrv")), "--namesrv")
    if data is not None:
        return ClusterTarget(_running_in(data), "--data", data=data)
    if context is not None:
        return _by_context(context, "--context")
    if named := os.environ.get(_CONTEXT_VARIABLE):
        return _by_context(named, f"${_CONTEXT_VARIABLE}")
    for variable in NAMESRV_VARIABLES:
        if value := os.environ.get(variable):
            return ClusterTarget(ClusterAddress(_addresses(value, variable)), f"${variable}")
    if current := ContextFile().read().current:
        return _by_context(current, "tandemmq context use")
    record = ClusterFolder(DEFAULT_FOLDER).read_record()
    if record is not None and not record.is_over:
        where = ClusterAddress(record.name_servers, record.expected_brokers)
        return ClusterTarget(where, f"what runs in ./{DEFAULT_FOLDER}", data=DEFAULT_FOLDER)
    return ClusterTarget(ClusterAddress((_LOCAL_NAMESRV,)), "the default")


def find_address(namesrv: str | None, data: Path | None, context: str | None) -> ClusterAddress:
    """As `find_target`, for what dials addresses itself. CommandError for a release in Kubernetes, too."""
    target = find_target(namesrv, data, context)
    if isinstance(target.where, ClusterAddress):
        return target.where
    raise Refused(
        f"{target.title} is in Kubernetes, where this command cannot go from here",
        cause=f"chosen by {target.chosen_by}; it dials addresses that only pods have",
        remedy="run it in the admin pod: kubectl exec deploy/<release>-admin -- tandemmq …",
    )


def find_place(context: str | None) -> KubernetesPlace:
    """The release of --context, of $TANDEMMQ_CONTEXT or of the context in use; as kubectl chooses without any.

    CommandError when --context or the variable names one that is not in Kubernetes.
    """
    file = ContextFile().read()
    named = context or os.environ.get(_CONTEXT_VARIABLE)
    if not named:
        current = file.by_name.get(file.current)
        return current.kubernetes if current is not None and current.kubernetes is not None else KubernetesPlace()
    found = file.find(named)
    if found.kubernetes is None:
        raise Refused(
            f"context {named} is not in Kubernetes",
            cause=f"it is {found.kind} {found.place}",
            remedy="name another with --context, or say where with --kube-context, --namespace and --release",
        )
    return found.kubernetes


def _by_context(name: str, chosen_by: str) -> ClusterTarget:
    found = ContextFile().read().find(name)
    return ClusterTarget(_where(found, name), chosen_by, name, Path(found.data) if found.data else None)


def _where(context: ClusterContext, name: str) -> ClusterAddress | KubernetesPlace:
    if context.kubernetes is not None:
        return context.kubernetes
    if context.data:
        return _running_in(Path(context.data))
    return ClusterAddress(_addresses(context.namesrv, f"context {name}"))


def _running_in(data: Path) -> ClusterAddress:
    record = ClusterFolder(data).read_record()
    if record is None or record.is_over:
        raise Refused(
            f"no cluster runs in {data.absolute()}",
            cause="there is no cluster.json" if record is None else "it was killed: none of its processes is there",
            remedy=f"start one with `tandemmq up{data_option(data.absolute())}`, or name another cluster with "
            "--namesrv host:port",
        )
    return ClusterAddress(record.name_servers, record.expected_brokers)


def _addresses(text: str, source: str) -> tuple[str, ...]:
    addresses = tuple(part.strip() for part in text.split(";") if part.strip())
    wrong = [address for address in addresses if not _is_host_port(address)]
    if wrong or not addresses:
        raise Refused(
            f"{source} {text!r} names no NameServer",
            cause=f"{wrong[0]!r} is no host:port" if wrong else "it is empty",
            remedy="write host:port, several separated by ';' (in quotes, for the shell)",
        )
    return addresses


def _is_host_port(address: str) -> bool:
    # gRPC would take a port that is too large for another one.
    return (match := _HOST_PORT.match(address)) is not None and 0 < int(match[1]) <= _PORT_MAX
