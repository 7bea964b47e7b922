"""Who is at the other end of a service link: what a certificate's URI name says, and what it may call.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

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


# Who may call which method of the service planes: 10911 of a broker and 9876 of a NameServer.
#
# One table. A method that is not in it is refused, whoever asks, so that a new one is closed until somebody has thought
# about it. What a method is told is judged where its request is read: a broker speaks for itself alone
# (`claim_problem`).


class Caller(StrEnum):
    """A kind of caller; an identity may be of several."""

    ANYBODY = "anybody"
    """Without a certificate, too, where a port takes such callers."""
    MEMBER = "member"
    """A broker of the very group that is asked."""
    BROKER = "broker"
    """Any broker of the cluster."""
    VIEWER = "viewer"
    """An administrator, of whatever level."""
    OPERATOR = "operator"
    REPAIR = "repair"
    CONSISTENCY = "consistency"
    HOOK = "hook"


_ANYBODY: Final = frozenset({Caller.ANYBODY})
_MEMBER: Final = frozenset({Caller.MEMBER})
_READ: Final = frozenset({Caller.VIEWER, Caller.HOOK})
_CHANGE: Final = frozenset({Caller.OPERATOR})
# What a release's hooks do while pods are replaced.
_ROLL: Final = frozenset({Caller.OPERATOR, Caller.HOOK})
# Another member reads what it mends itself with; everybody else's reading is the consistency job's.
_REPLICA: Final = frozenset({Caller.CONSISTENCY, Caller.REPAIR, Caller.MEMBER})
_ROUTES: Final = frozenset({Caller.BROKER, Caller.VIEWER, Caller.CONSISTENCY, Caller.HOOK})


def _service(name: str, methods: Mapping[str, frozenset[Caller]]) -> dict[str, frozenset[Caller]]:
    return {f"/{name}/{method}": callers for method, callers in methods.items()}


METHODS: Final[Mapping[str, frozenset[Caller]]] = MappingProxyType(
    _service("grpc.health.v1.Health", {"Check": _ANYBODY, "Watch": _ANYBODY, "List": _ANYBODY})
    | _service("grpc.reflection.v1alpha.ServerReflection", {"ServerReflectionInfo": _READ | {Caller.CONSISTENCY}})
    # A NameServer's part of it: official clients ask for routes before anybody knows them.
    | _service("apache.rocketmq.v2.MessagingService", {"QueryRoute": _ANYBODY, "QueryAssignment": _ANYBODY})
    | _service(
        "tandemmq.nameserver.v1.NameServerService",
        {
            "RegisterBroker": frozenset({Caller.BROKER}),
            "UnregisterBroker": frozenset({Caller.BROKER}),
            "Heartbeat": frozenset({Caller.BROKER}),
            "GetTopicRoute": _ROUTES,
            "WatchRoutes": _ROUTES,
            "ListBrokers": _ROUTES,
            "WipeWritePermission": _ROLL,
            "AddWritePermission": _ROLL,
            "PutKvConfig": _CHANGE,
            "GetKvConfig": _READ,
            "DeleteKvConfig": _CHANGE,
            "ListKvConfigs": _READ,
            "GetGroupMemory": _ROUTES,
            "ForgetReplicas": _CHANGE | {Caller.BROKER},
        },
    )
    | _service(
        "tandemmq.broker.v1.MetadataService",
        {"GetMetadataTable": _MEMBER, "WatchMetadata": _MEMBER, "GetLeases": _MEMBER},
    )
    | _service(
        "tandemmq.broker.v1.ReplicaService",
        {
            "GetLogExtent": _MEMBER | _READ | {Caller.CONSISTENCY},
            "GetRangeDigests": _MEMBER,
            "VerifyReplica": _MEMBER,
            "ReadLog": _MEMBER,
            "PromiseEpoch": _MEMBER,
            "AcceptLoss": _CHANGE,
            "ListTracedPuts": _MEMBER,
        },
    )
    | _service(
        "tandemmq.broker.v1.ReplicaReaderService",
        {
            "DescribeReplica": _REPLICA | _READ,
            "ListFolder": _REPLICA,
            "ReadFile": _REPLICA,
            "DigestExtents": _REPLICA,
            "CheckRecords": _REPLICA,
        },
    )
    | _service(
        "tandemmq.broker.v1.ReplicaRepairService",
        {method: frozenset({Caller.REPAIR}) for method in ("RepairRange", "RewriteQueueEntries", "RewriteTable")},
    )
    | _service(
        "tandemmq.broker.v1.FailoverService",
        {
            "GetFailoverState": _MEMBER | _READ,
            "WithholdClaim": _MEMBER,
            "NoteRecordChange": _MEMBER,
            "CopyProgress": _MEMBER,
            "AppendLeases": _MEMBER,
            "HandOver": _ROLL,
            "ClaimUnclean": _CHANGE,
        },
    )
    | _service(
        "tandemmq.admin.v1.BrokerAdminService",
        {
            "GetBrokerStatus": _READ,
            "UpdateTopic": _CHANGE,
            "DeleteTopic": _CHANGE,
            "ListTopics": _READ,
            "UpdateSubscriptionGroup": _CHANGE,
            "ListSubscriptionGroups": _READ,
            # A pod's preStop has the broker's own certificate.
            "Drain": _ROLL | _MEMBER,
            "ProbePeers": _READ,
        },
    )
    | _service(
        "tandemmq.admin.v1.BrokerOperationsService",
        {
            "ListClients": _READ,
            "DeleteSubscriptionGroup": _CHANGE,
            "ResetOffsets": _CHANGE,
            "ResendDeadLetters": _CHANGE,
            "GetConfig": _READ,
            "UpdateConfig": _CHANGE,
            "ListEvents": _READ,
            "ListKeptTails": _READ,
            "ReadKeptTail": _READ,
            "CheckMessages": _READ,
            "RestoreMessages": _CHANGE,
            "ListTransactions": _READ,
            "ListLiteTopics": _READ,
            "ResolveTransaction": _CHANGE,
            "CommandClient": _CHANGE,
        },
    )
    | _service(
        "tandemmq.admin.v1.BrokerAccessService",
        {
            "ListUsers": _READ,
            "PutUser": _CHANGE,
            "DeleteUser": _CHANGE,
            "ListAcls": _READ,
            "PutAcl": _CHANGE,
            "DeleteAcl": _CHANGE,
        },
    )
    | _service(
        "tandemmq.admin.v1.MessageQueryService",
        {"ListQueues": _READ, "QueryMessages": _READ, "GetMessage": _READ, "DigestRecord": _READ, "FindOffsets": _READ},
    )
    | _service("tandemmq.admin.v1.TraceService", {"FindTraces": _READ, "ListTraces": _READ, "FindMessage": _READ})
)
"""Callers by path, `/package.Service/Method`."""

_ADMINS: Final = {
    AdminLevel.VIEWER: frozenset({Caller.VIEWER}),
    AdminLevel.OPERATOR: frozenset({Caller.VIEWER, Caller.OPERATOR}),
    AdminLevel.REPAIR: frozenset({Caller.VIEWER, Caller.OPERATOR, Caller.REPAIR}),
}
_WORDS: Final = {
    Caller.MEMBER: "a broker of this group",
    Caller.BROKER: "a broker",
    Caller.VIEWER: "an administrator",
    Caller.OPERATOR: "an administrator of level operator or repair",
    Caller.REPAIR: "an administrator of level repair",
    Caller.CONSISTENCY: "the consistency job",
    Caller.HOOK: "a release's hook",
}


def callers_of(identity: Identity, *, group: str) -> frozenset[Caller]:
    """What the bearer is to a server of `group` and of its own cluster; a NameServer is of no group."""
    match identity.role:
        case Role.BROKER:
            found = frozenset({Caller.BROKER})
            return found | {Caller.MEMBER} if group and identity.group == group else found
        case Role.ADMIN:
            assert identity.level is not None, "an administrator has a level"
            return _ADMINS[identity.level]
        case Role.CONSISTENCY:
            return frozenset({Caller.CONSISTENCY})
        case Role.HOOK:
            return frozenset({Caller.HOOK})
    return frozenset()


def refusal(path: str, identity: Identity | None, *, cluster: str, group: str) -> str | None:
    """Why this caller may not call the method, in words; None: it may. `cluster` and `group` are the server's own; an
    empty cluster is any: a NameServer that serves several."""
    permitted = METHODS.get(path)
    if permitted is None:
        return f"{path} has no entry in the table of permissions: nobody may call it"
    if Caller.ANYBODY in permitted:
        return None
    if identity is None:
        return f"{path} needs a certificate, and the call came without one"
    if cluster and identity.cluster != cluster:
        return f"the certificate {identity} is of cluster {identity.cluster}, and this is {cluster}"
    if permitted & callers_of(identity, group=group):
        return None
    if permitted == _MEMBER and identity.role is Role.BROKER:
        return f"the certificate {identity} is of broker group {identity.group}, and {path} is for members of {group}"
    wanted = " or ".join(_WORDS[caller] for caller in Caller if caller in permitted)
    return f"the certificate {identity} may not call {path}: it takes {wanted}"
