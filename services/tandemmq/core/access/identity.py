"""Who is at the other end of a service link: what a certificate's URI name says, and what may be concluded from it.

    spiffe://tandemmq/<cluster>/broker/<group>[/<brokerId>]   one member of a broker group; without an id: any of it
    spiffe://tandemmq/<cluster>/nameserver
    spiffe://tandemmq/<cluster>/admin/<viewer|operator|repair>
    spiffe://tandemmq/<cluster>/consistency                   the job that proves replicas equal
    spiffe://tandemmq/<cluster>/hook                          rollout, drain and failover run by a release's hooks

The form is SPIFFE's (spiffe.io, SPIFFE-ID 2.2, 2.3): a scheme, a trust domain, and a path of letters, digits, ".", "-"
and "_". Names of clusters and groups with other characters cannot have a certificate.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["AdminLevel", "Identity", "IdentityUnusable", "Role", "group_server_name", "identity_of", "server_name"]

_TRUST_DOMAIN: Final = "spiffe://tandemmq/"
_SEGMENT: Final = re.compile(r"[A-Za-z0-9._-]+")
# As SPIFFE has it: what a name's bytes may be.
_URI_BYTES_MAX: Final = 2_048
_FORM: Final = "spiffe://tandemmq/<cluster>/<role>[/...]"


class IdentityUnusable(ValueError):
    """The names of a certificate are not those of one member of a cluster. Whoever made the certificate is at fault."""


class Role(StrEnum):
    """What a process is to a cluster."""

    BROKER = "broker"
    NAME_SERVER = "nameserver"
    ADMIN = "admin"
    CONSISTENCY = "consistency"
    HOOK = "hook"


class AdminLevel(StrEnum):
    """What an administrator's certificate allows; each includes the one before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True)
class Identity:
    """The bearer of a certificate."""

    cluster: str
    role: Role
    group: str = ""
    """A broker's; empty for other roles."""
    broker_id: int | None = None
    """A broker's; None: the certificate serves every member of the group."""
    level: AdminLevel | None = None
    """An administrator's."""

    def __str__(self) -> str:
        """Its URI."""
        parts = [self.cluster, str(self.role)]
        if self.role is Role.BROKER:
            parts += [self.group] if self.broker_id is None else [self.group, str(self.broker_id)]
        elif self.level is not None:
            parts.append(str(self.level))
        return _TRUST_DOMAIN + "/".join(parts)

    def is_member_of(self, cluster: str, group: str) -> bool:
        """A broker of that group."""
        return self.role is Role.BROKER and (self.cluster, self.group) == (cluster, group)

    def claim_problem(self, cluster: str, group: str, broker_id: int) -> str | None:
        """Why its bearer may not speak as that broker, in words; None: it may."""
        if self.role is not Role.BROKER:
            return f"the certificate is one of {self.role}, and only a broker speaks for itself"
        if self.cluster != cluster:
            return f"the certificate is of cluster {self.cluster}, the call speaks for {cluster}"
        if self.group != group:
            return f"the certificate is of broker group {self.group}, the call speaks for {group}"
        if self.broker_id is not None and self.broker_id != broker_id:
            return f"the certificate is of {group}:{self.broker_id}, the call speaks for {group}:{broker_id}"
        return None


def identity_of(uris: Sequence[str]) -> Identity:
    """The identity among a certificate's URI names, which may have others beside it. Raises IdentityUnusable."""
    ours = [uri for uri in uris if uri.startswith(_TRUST_DOMAIN)]
    if not ours:
        raise IdentityUnusable(f"the certificate names no member of a cluster: it needs a URI name {_FORM}")
    if len(ours) > 1:
        raise IdentityUnusable(f"the certificate names {len(ours)} identities, {ours[0]} and {ours[1]}: give it one")
    return _parsed(ours[0])


def server_name(cluster: str) -> str:
    """The DNS name that the certificate of each server of a cluster has, and that its callers ask for."""
    return f"{cluster}.tandemmq".lower()


def group_server_name(cluster: str, group: str) -> str:
    """The DNS name that each member of a broker group has besides."""
    return f"{group}.{server_name(cluster)}".lower()


def _parsed(uri: str) -> Identity:
    if len(uri) > _URI_BYTES_MAX:
        raise IdentityUnusable(f"the certificate's URI name has {len(uri)} characters; {_URI_BYTES_MAX} are allowed")
    parts = uri.removeprefix(_TRUST_DOMAIN).split("/")
    if len(parts) < 2 or not all(_SEGMENT.fullmatch(part) for part in parts):
        raise IdentityUnusable(f"{uri!r} is no identity: write it {_FORM}, of letters, digits, '.', '-' and '_'")
    cluster, role, *rest = parts
    match role, rest:
        case Role.BROKER, [group]:
            return Identity(cluster, Role.BROKER, group)
        case Role.BROKER, [group, broker_id] if broker_id.isdecimal() and str(int(broker_id)) == broker_id:
            return Identity(cluster, Role.BROKER, group, int(broker_id))
        case Role.ADMIN, [level] if level in {each.value for each in AdminLevel}:
            return Identity(cluster, Role.ADMIN, level=AdminLevel(level))
        case ((Role.NAME_SERVER | Role.CONSISTENCY | Role.HOOK), []):
            return Identity(cluster, Role(role))
    roles = "broker/<group>[/<brokerId>], nameserver, admin/<viewer|operator|repair>, consistency or hook"
    raise IdentityUnusable(f"{uri!r} names no role: after the cluster comes {roles}")
