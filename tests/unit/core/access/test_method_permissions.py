"""The table of permissions names every method of the service planes, and no other."""

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from support.certificates import ADMIN, CALLERS, CLUSTER, CONSISTENCY, GROUP, HOOK, broker
from tandemmq.core.access.identity import AdminLevel
from tandemmq.core.access.method_permissions import METHODS, Caller, refusal
from tandemmq.proto.admin.v1 import (
    broker_admin_service_pb2,
    broker_operations_service_pb2,
    message_query_service_pb2,
    trace_service_pb2,
)
from tandemmq.proto.broker.v1 import (
    failover_service_pb2,
    metadata_service_pb2,
    replica_reader_service_pb2,
    replica_repair_service_pb2,
    replica_service_pb2,
)
from tandemmq.proto.nameserver.v1 import name_server_service_pb2

_FILES = (
    health_pb2,
    reflection_pb2,
    broker_admin_service_pb2,
    broker_operations_service_pb2,
    message_query_service_pb2,
    trace_service_pb2,
    failover_service_pb2,
    metadata_service_pb2,
    replica_reader_service_pb2,
    replica_repair_service_pb2,
    replica_service_pb2,
    name_server_service_pb2,
)
_FOR_CLIENTS = {
    "/apache.rocketmq.v2.MessagingService/QueryRoute",
    "/apache.rocketmq.v2.MessagingService/QueryAssignment",
}


def _methods(file: FileDescriptor) -> Iterator[str]:
    for service in file.services_by_name.values():
        for method in service.methods:
            yield f"/{service.full_name}/{method.name}"


def test_every_method_has_an_entry_and_every_entry_a_method() -> None:
    there_are = {path for module in _FILES for path in _methods(module.DESCRIPTOR)} | _FOR_CLIENTS
    assert there_are - set(METHODS) == set()
    # Of later versions of the health service than ours.
    assert set(METHODS) - there_are <= {"/grpc.health.v1.Health/List"}


def _refusal(path: str, name: str) -> str | None:
    return refusal(path, CALLERS[name], cluster=CLUSTER, group=GROUP)


def test_a_method_without_an_entry_is_refused_to_everybody() -> None:
    for identity in (None, *CALLERS.values()):
        told = refusal("/tandemmq.broker.v1.ReplicaService/New", identity, cluster=CLUSTER, group=GROUP)
        assert told is not None
        assert "has no entry" in told


@pytest.mark.parametrize("path", METHODS)
def test_nobody_without_a_certificate_gets_further_than_probes_and_routes(path: str) -> None:
    told = refusal(path, None, cluster=CLUSTER, group=GROUP)
    assert (told is None) == (path in _FOR_CLIENTS or path.startswith("/grpc.health.v1.Health/"))


@pytest.mark.parametrize("path", METHODS)
def test_nobody_of_another_cluster_gets_further_either(path: str) -> None:
    for name in ("member, other cluster", "admin repair, other cluster"):
        assert (_refusal(path, name) is None) == (METHODS[path] == {Caller.ANYBODY})


@pytest.mark.parametrize("path", [path for path in METHODS if "broker.v1" in path or "admin.v1" in path])
def test_a_broker_of_another_group_may_call_nothing_of_a_broker(path: str) -> None:
    assert _refusal(path, "broker of another group") is not None


@pytest.mark.parametrize("path", METHODS)
def test_a_higher_level_of_administrator_may_what_a_lower_one_may(path: str) -> None:
    may = [refusal(path, ADMIN[level], cluster=CLUSTER, group=GROUP) is None for level in AdminLevel]
    assert may == sorted(may)


def test_who_may_write_a_replica_and_who_may_read_it() -> None:
    writes = "/tandemmq.broker.v1.ReplicaRepairService/RepairRange"
    reads = "/tandemmq.broker.v1.ReplicaReaderService/ReadFile"
    assert {name for name in CALLERS if _refusal(writes, name) is None} == {"admin repair"}
    assert {name for name in CALLERS if _refusal(reads, name) is None} == {
        "admin repair",
        "consistency",
        "member of the group",
    }


def test_a_member_proves_its_log_and_pulls_tables_and_an_administrator_does_not() -> None:
    for path in ("/tandemmq.broker.v1.ReplicaService/VerifyReplica", "/tandemmq.broker.v1.MetadataService/GetLeases"):
        assert {name for name in CALLERS if _refusal(path, name) is None} == {"member of the group"}


def test_each_refusal_says_what_is_wrong() -> None:
    path = "/tandemmq.broker.v1.ReplicaService/VerifyReplica"
    told = {
        identity: str(refusal(path, identity, cluster=CLUSTER, group=GROUP))
        for identity in (None, broker(1, group="broker-b"), broker(1, cluster="X"), CONSISTENCY, HOOK)
    }
    words = ("without one", "is of broker group broker-b", "is of cluster X", "consistency", "hook")
    for reason, word in zip(told.values(), words, strict=True):
        assert word in reason
    assert len(set(told.values())) == len(told)
