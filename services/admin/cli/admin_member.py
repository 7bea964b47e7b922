"""The admin service beside a local cluster's members: the console that `tandemmq up` prints the link of.

What `conf/admin.properties` or `--set` states is left as it is; NameServers, port and where `tandemmq verify` leaves
its runs are told for this run only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from admin.cli.cluster_folder import ClusterFolder, join_addresses
from admin.cli.conf_files import is_free, read_member
from admin.cli.member import Member, MemberKind
from admin.cli.preset import admin_file

__all__ = ["admin_member", "spare_ports", "with_defaults"]

# The admin service's default; a cluster beside it gets the next one.
_HTTP_PORT: Final = 8_080


def admin_member(
    folder: ClusterFolder, members: Sequence[Member], overrides: dict[str, list[str]], *, near: bool
) -> Member:
    """The admin service of these members; its file is laid out if it is missing.

    `near`: a new port begins above the members' own instead of at the default.
    """
    path = folder.conf / f"{MemberKind.ADMIN}.properties"
    if not path.exists():
        path.write_text(admin_file(), encoding="utf-8")
    admin = read_member(folder, MemberKind.ADMIN, overrides)
    taken = {port for member in members for port in member.ports.values()}
    name_servers = join_addresses(
        member.address("listenPort") for member in members if member.kind is MemberKind.NAME_SERVER
    )
    http_port = str(next(spare_ports(max(taken) + 1 if near else _HTTP_PORT, taken)))
    results = str(folder.root / "consistency")
    return with_defaults(admin, {"namesrvAddr": name_servers, "httpPort": http_port, "consistencyResults": results})


def with_defaults(member: Member, values: Mapping[str, str]) -> Member:
    """With those of the values that the member does not state, and that are not empty."""
    new = {key: value for key, value in values.items() if value and key not in member.settings}
    overrides = (*(f"{key}={value}" for key, value in new.items()), *member.overrides)
    return replace(member, settings={**member.settings, **new}, overrides=overrides)


def spare_ports(first: int, taken: set[int]) -> Iterator[int]:
    """Ports from `first` on that neither a member nor anybody else has; each is taken when it is given."""
    for port in count(first):
        if port not in taken and is_free(port):
            taken.add(port)
            yield port
