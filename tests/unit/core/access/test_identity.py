"""What certificates may name, and what a bearer may claim."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf import descriptor_pool
from hypothesis import given
from hypothesis import strategies as st

from support.certificates import ADMIN, CALLERS, CLUSTER, CONSISTENCY, GROUP, HOOK, broker
from tandemmq.broker.peer_api.plane import SERVICE_NAMES
from tandemmq.core.access.identity import (
    METHODS,
    AdminLevel,
    Caller,
    Identity,
    IdentityUnusable,
    Role,
    identity_of,
    refusal,
)
from tandemmq.nameserver.name_server import SERVICE_NAME

names = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)
identities = st.one_of(
    st.builds(
        Identity,
        names,
        st.just(Role.BROKER),
        names,
        st.one_of(st.none(), st.integers(min_value=0, max_value=2**31 - 1)),
    ),
    st.builds(lambda cluster, level: Identity(cluster, Role.ADMIN, level=level), names, st.sampled_from(AdminLevel)),
    st.builds(Identity, names, st.sampled_from([Role.NAME_SERVER, Role.CONSISTENCY, Role.HOOK])),
)


@given(identities, st.lists(st.sampled_from(["https://example.org/x", "spiffe://other/broker/a"]), max_size=3))
def test_an_identity_is_read_as_it_was_written(identity: Identity, others: list[str]) -> None:
    assert identity_of([*others, str(identity)]) == identity


@given(st.lists(st.one_of(st.text(max_size=40), st.text(max_size=30).map("spiffe://tandemmq/".__add__)), max_size=4))
def test_any_other_name_is_refused_with_a_reason(uris: list[str]) -> None:
    try:
        identity = identity_of(uris)
    except IdentityUnusable as error:
        assert str(error)  # noqa: PT017 - both ends are right, neither may be another exception
    else:
        assert str(identity) in uris


@pytest.mark.parametrize(
    ("uris", "words"),
    [
        ([], "names no member of a cluster"),
        (["spiffe://tandemmq/c/nameserver", "spiffe://tandemmq/c/hook"], "names 2 identities"),
        (["spiffe://tandemmq/c"], "is no identity"),
        (["spiffe://tandemmq/c/broker/a b"], "is no identity"),
        (["spiffe://tandemmq/c/broker"], "names no role"),
        (["spiffe://tandemmq/c/broker/a/one"], "names no role"),
        (["spiffe://tandemmq/c/broker/a/01"], "names no role"),
        (["spiffe://tandemmq/c/admin/root"], "names no role"),
        (["spiffe://tandemmq/c/hook/x"], "names no role"),
        (["spiffe://tandemmq/" + "c" * 3_000 + "/hook"], "2048 are allowed"),
    ],
)
def test_each_wrong_name_has_its_own_message(uris: list[str], words: str) -> None:
    with pytest.raises(IdentityUnusable, match=words):
        identity_of(uris)


def test_a_broker_speaks_for_itself_alone() -> None:
    slave = Identity("c", Role.BROKER, "a", 1)
    assert slave.claim_problem("c", "a", 1) is None
    assert "a:1" in str(slave.claim_problem("c", "a", 0))
    assert "broker group a" in str(slave.claim_problem("c", "b", 1))
    assert "cluster c" in str(slave.claim_problem("d", "a", 1))
    assert "only a broker" in str(Identity("c", Role.HOOK).claim_problem("c", "a", 1))


def test_a_certificate_of_a_group_speaks_for_each_of_its_members() -> None:
    anyone = Identity("c", Role.BROKER, "a")
    assert anyone.claim_problem("c", "a", 0) is None
    assert anyone.claim_problem("c", "a", 7) is None
    assert anyone.claim_problem("c", "b", 0) is not None


# The table of permissions names every method of the service planes, and no other.

# As the two planes name what they serve; a new service is here by itself.
_SERVICES = (
    *SERVICE_NAMES,
    SERVICE_NAME,
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
)
_FOR_CLIENTS = {
    "/apache.rocketmq.v2.MessagingService/QueryRoute",
    "/apache.rocketmq.v2.MessagingService/QueryAssignment",
}


def _methods(service_name: str) -> Iterator[str]:
    service = descriptor_pool.Default().FindServiceByName(service_name)
    for method in service.methods:
        yield f"/{service.full_name}/{method.name}"


def test_every_method_has_an_entry_and_every_entry_a_method() -> None:
    there_are = {path for name in _SERVICES for path in _methods(name)} | _FOR_CLIENTS
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
