"""Who may call which method of the service planes: 10911 of a broker and 9876 of a NameServer.

One table. A method that is not in it is refused, whoever asks, so that a new one is closed until somebody has thought
about it. What a method is told is judged where its request is read: a broker speaks for itself alone (`claim_problem`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from tandemmq.core.access.identity import AdminLevel, Identity, Role

__all__ = ["METHODS", "Caller", "callers_of", "refusal"]


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
