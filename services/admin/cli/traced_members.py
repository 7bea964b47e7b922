"""What `tandemmq up --tracing` adds: traces of every message, metrics of every member, and the admin service for both.

What a file in DIR/conf or `--set` states is left as it is. The rest is for this run only: the files are not changed, so
the next `tandemmq up` without the option runs as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from admin.cli.cluster_folder import ClusterFolder, join_addresses
from admin.cli.conf_files import is_free, read_member
from admin.cli.member import METRICS_PORT_KEY, Member, MemberKind
from admin.cli.preset import admin_file

__all__ = ["Tracing", "scrape_configuration", "traced_members"]

# The admin service's and the exporter's defaults; a cluster beside it gets the next ones.
_HTTP_PORT: Final = 8_080
_METRICS_PORT: Final = 5_557
# Short enough to see a burst of a few seconds.
_SCRAPE_INTERVAL: Final = "5s"


@dataclass(frozen=True, slots=True)
class Tracing:
    """How a traced cluster differs."""

    # OTLP/gRPC receiver as host:port; empty: traces stay in the brokers' memory.
    target: str = ""


def traced_members(
    folder: ClusterFolder,
    members: Sequence[Member],
    overrides: dict[str, list[str]],
    tracing: Tracing,
    *,
    near: bool,
) -> list[Member]:
    """The members with tracing and metrics on, and the admin service after them; its file is laid out if it is missing.

    `near`: new ports begin above the members' own instead of at the defaults.
    """
    path = folder.conf / f"{MemberKind.ADMIN}.properties"
    if not path.exists():
        path.write_text(admin_file(), encoding="utf-8")
    admin = read_member(folder, MemberKind.ADMIN, overrides)
    taken = {port for member in (*members, admin) for port in member.ports.values()}
    first = max(taken) + 1 if near else 0
    metrics_ports = _spare(first or _METRICS_PORT, taken)
    name_servers = join_addresses(
        member.address("listenPort") for member in members if "listenPort" in member.ports and _is_name_server(member)
    )
    found = []
    for member in members:
        wanted = {"metricsExporterType": "PROM"}
        if METRICS_PORT_KEY not in member.settings:
            wanted[METRICS_PORT_KEY] = str(next(metrics_ports))
        if not _is_name_server(member):
            wanted |= {"traceEnable": "true", "traceSampleRate": "1.0", "traceExporterTarget": tracing.target}
        found.append(_with_defaults(member, wanted))
    http_port = str(next(_spare(first or _HTTP_PORT, taken)))
    return [*found, _with_defaults(admin, {"namesrvAddr": name_servers, "httpPort": http_port})]


def scrape_configuration(members: Sequence[Member], folder: ClusterFolder) -> str:
    """A file for Prometheus that scrapes all members that serve metrics; "" if none does."""
    targets: dict[MemberKind, list[str]] = {}
    for member in members:
        if member.kind is MemberKind.ADMIN:
            targets[member.kind] = [member.address("httpPort")]
        elif member.tells_metrics:
            targets.setdefault(member.kind, []).append(member.address(METRICS_PORT_KEY))
    if not targets:
        return ""
    lines = [
        f"# Written by `tandemmq up`: prometheus --config.file={folder.root}/prometheus.yml",
        "#   --enable-feature=exemplar-storage   also keeps which trace a slow send belongs to",
        f"global: {{scrape_interval: {_SCRAPE_INTERVAL}}}",
        "scrape_configs:",
    ]
    for kind, addresses in targets.items():
        lines += [f"  - job_name: {kind}", f"    static_configs: [{{targets: [{', '.join(addresses)}]}}]"]
    return "\n".join(lines) + "\n"


def _with_defaults(member: Member, values: Mapping[str, str]) -> Member:
    """With those of the values that the member does not state, and that are not empty."""
    new = {key: value for key, value in values.items() if value and key not in member.settings}
    overrides = (*(f"{key}={value}" for key, value in new.items()), *member.overrides)
    return replace(member, settings={**member.settings, **new}, overrides=overrides)


def _spare(first: int, taken: set[int]) -> Iterator[int]:
    """Ports from `first` on that neither a member nor anybody else has; each is taken when it is given."""
    for port in count(first):
        if port not in taken and is_free(port):
            taken.add(port)
            yield port


def _is_name_server(member: Member) -> bool:
    return member.kind is MemberKind.NAME_SERVER
