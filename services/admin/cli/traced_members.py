"""What `tandemmq up --tracing` adds: traces of every message, and metrics of every member.

What a file in DIR/conf or `--set` states is left as it is. The rest is for this run only: the files are not changed, so
the next `tandemmq up` without the option runs as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from admin.cli.admin_member import spare_ports, with_defaults
from admin.cli.cluster_folder import ClusterFolder
from admin.cli.member import METRICS_PORT_KEY, Member, MemberKind

__all__ = ["Tracing", "scrape_configuration", "traced_members"]

# The exporter's default; a cluster beside it gets the next ones.
_METRICS_PORT: Final = 5_557
# Short enough to see a burst of a few seconds.
_SCRAPE_INTERVAL: Final = "5s"


@dataclass(frozen=True, slots=True)
class Tracing:
    """How a traced cluster differs."""

    # OTLP/gRPC receiver as host:port; empty: traces stay in the brokers' memory.
    target: str = ""


def traced_members(members: Sequence[Member], tracing: Tracing, *, near: bool) -> list[Member]:
    """The members with tracing and metrics on.

    `near`: new ports begin above the members' own instead of at the default.
    """
    taken = {port for member in members for port in member.ports.values()}
    metrics_ports = spare_ports(max(taken) + 1 if near else _METRICS_PORT, taken)
    found = []
    for member in members:
        if member.kind is MemberKind.ADMIN:
            found.append(member)
            continue
        wanted = {"metricsExporterType": "PROM"}
        if METRICS_PORT_KEY not in member.settings:
            wanted[METRICS_PORT_KEY] = str(next(metrics_ports))
        if member.kind is MemberKind.BROKER:
            wanted |= {"traceEnable": "true", "traceSampleRate": "1.0", "traceExporterTarget": tracing.target}
        found.append(with_defaults(member, wanted))
    return found


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
