"""Which cluster a command talks to. The first of these that is given:

1. --namesrv (RocketMQ's -n), 2. --data, 3. --context, 4. $TANDEMMQ_CONTEXT, 5. $TANDEMMQ_NAMESRV_ADDR or
$NAMESRV_ADDR, 6. the context that `tandemmq context use` chose, 7. the cluster that runs in ./data,
8. 127.0.0.1:9876.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from admin.cli.cluster_folder import DEFAULT_FOLDER, ClusterFolder
from admin.cli.contexts import ClusterContext, ContextFile, KubernetesPlace
from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.cluster_state import ExpectedBroker

__all__ = ["NAMESRV_VARIABLES", "ClusterAddress", "ClusterTarget", "find_address", "find_place", "find_target"]

# Ours, then RocketMQ's own.
NAMESRV_VARIABLES: Final = ("TANDEMMQ_NAMESRV_ADDR", "NAMESRV_ADDR")
_CONTEXT_VARIABLE: Final = "TANDEMMQ_CONTEXT"
_LOCAL_NAMESRV: Final = "127.0.0.1:9876"
_HOST_PORT = re.compile(r"^\[?[^\s;,]+\]?:\d{1,5}$")


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
    if namesrv:
        return ClusterTarget(ClusterAddress(_addresses(namesrv, "--namesrv")), "--namesrv")
    if data is not None:
        return ClusterTarget(_running_in(data), "--data", data=data)
    if context:
        return _by_context(context, "--context")
    if named := os.environ.get(_CONTEXT_VARIABLE):
        return _by_context(named, f"${_CONTEXT_VARIABLE}")
    for variable in NAMESRV_VARIABLES:
        if value := os.environ.get(variable):
            return ClusterTarget(ClusterAddress(_addresses(value, variable)), f"${variable}")
    if current := ContextFile().read().current:
        return _by_context(current, "tandemmq context use")
    record = ClusterFolder(DEFAULT_FOLDER).read_record()
    if record is not None:
        where = ClusterAddress(record.name_servers, record.expected_brokers)
        return ClusterTarget(where, f"what runs in ./{DEFAULT_FOLDER}", data=DEFAULT_FOLDER)
    return ClusterTarget(ClusterAddress((_LOCAL_NAMESRV,)), "the default")


def find_address(namesrv: str | None, data: Path | None, context: str | None) -> ClusterAddress:
    """As `find_target`, for what dials addresses itself. CommandError for a release in Kubernetes, too."""
    target = find_target(namesrv, data, context)
    if isinstance(target.where, ClusterAddress):
        return target.where
    raise CommandError(
        f"{target.title} is in Kubernetes, where this command cannot go from here",
        cause=f"chosen by {target.chosen_by}; it dials addresses that only pods have",
        remedy="run it in the admin pod: kubectl exec deploy/<release>-admin -- tandemmq …",
        exit_code=EXIT_REFUSED,
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
        raise CommandError(
            f"context {named} is not in Kubernetes",
            cause=f"it is {found.kind} {found.place}",
            remedy="name another with --context, or say where with --kube-context, --namespace and --release",
            exit_code=EXIT_REFUSED,
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
    if record is None:
        raise CommandError(
            f"no cluster runs in {data.absolute()}",
            cause="there is no cluster.json",
            remedy=f"start one with `tandemmq up --data {data}`, or name another cluster with --namesrv host:port",
            exit_code=EXIT_REFUSED,
        )
    return ClusterAddress(record.name_servers, record.expected_brokers)


def _addresses(text: str, source: str) -> tuple[str, ...]:
    addresses = tuple(part.strip() for part in text.split(";") if part.strip())
    wrong = [address for address in addresses if not _HOST_PORT.match(address)]
    if wrong or not addresses:
        raise CommandError(
            f"{source} {text!r} names no NameServer",
            cause=f"{wrong[0]!r} is no host:port" if wrong else "it is empty",
            remedy="write host:port, several separated by ';' (in quotes, for the shell)",
            exit_code=EXIT_REFUSED,
        )
    return addresses
