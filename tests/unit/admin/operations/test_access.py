"""Users and policies over several masters: all of them, or none; and who has something otherwise."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from support.certificates import CALLERS
from support.cluster_states import master
from support.fake_brokers import FakeQuestions, rpc_error
from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.operations.access import AccessOperations
from tandemmq.admin.operations.questions import FailureKind, Members, OperationFailed
from tandemmq.admin.operations.values import AclEntry, UserChange
from tandemmq.broker.access_changes import AccessChanges
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.broker.peer_api.admin import BrokerAccessServicer
from tandemmq.core.access.identity import AdminLevel, Identity, refusal
from tandemmq.core.access.sealed_secrets import SecretKeys
from tandemmq.core.access.users_and_policies import Decision, PolicyEntry, Resource, actions_of
from tandemmq.proto.admin.v1 import broker_access_service_pb2 as pb

SECRET = "open sesame"


class _Context:
    def __init__(self, identity: Identity | None = None) -> None:
        self._identity = identity

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        if self._identity is None:
            return {}
        return {"x509_pem_cert": [b"..."], "peer_uri": [str(self._identity).encode()]}

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise rpc_error(code, details)


class _Broker:
    """The real servicer and tables of one master, without a network."""

    def __init__(self, key: bytes = b"k") -> None:
        self.refusal: str | None = None
        self.tables = MetadataTables(SimulatedDisk(random.Random(1)), ManualTime(), topics_changed=lambda: None)
        self.changes = AccessChanges(self.tables, keys=SecretKeys([key * 32]), clock=ManualTime())
        self._servicer = BrokerAccessServicer(self.changes, refusal=lambda: self.refusal)
        self._context: Any = _Context()

    async def users(self, *, search: str = "", with_sealed_password: bool = False) -> list[pb.UserView]:
        request = pb.ListUsersRequest(search=search, with_sealed_password=with_sealed_password)
        return list((await self._servicer.ListUsers(request, self._context)).users)

    async def put_user(self, request: pb.PutUserRequest) -> bool:
        return (await self._servicer.PutUser(request, self._context)).changed

    async def delete_user(self, request: pb.DeleteUserRequest) -> bool:
        return (await self._servicer.DeleteUser(request, self._context)).existed

    async def acls(self, *, subject: str = "", resource: str = "") -> list[pb.AclView]:
        request = pb.ListAclsRequest(subject=subject, resource=resource)
        return list((await self._servicer.ListAcls(request, self._context)).acls)

    async def put_acl(self, request: pb.PutAclRequest) -> bool:
        return (await self._servicer.PutAcl(request, self._context)).changed

    async def delete_acl(self, request: pb.DeleteAclRequest) -> bool:
        return (await self._servicer.DeleteAcl(request, self._context)).existed


class _Cluster:
    """Two broker groups, with the same key file unless `other_key` says otherwise."""

    def __init__(self, *, other_key: bytes = b"k") -> None:
        self.a, self.b = _Broker(), _Broker(other_key)
        states = (master("broker-a"), master("broker-b"))
        planes = {
            state.key: SimpleNamespace(access=broker) for state, broker in zip(states, (self.a, self.b), strict=True)
        }
        members = Members(lambda: ClusterState(name_servers=(), brokers=states))
        self.access = AccessOperations(members, FakeQuestions(planes))

    async def with_ann(self) -> AccessOperations:
        await self.access.create_user(UserChange("ann", SECRET), dry_run=False)
        return self.access


@pytest.mark.parametrize("identity", CALLERS.values(), ids=str)
async def test_sealed_secrets_are_shown_to_whoever_may_copy_users_alone(identity: Identity) -> None:
    cluster = _Cluster()
    await cluster.with_ann()
    cluster.a._context = _Context(identity)
    if refusal("/tandemmq.admin.v1.BrokerAccessService/ListUsers", identity, cluster=identity.cluster, group="g"):
        return  # comes no further
    [ann] = await cluster.a.users()
    assert (ann.username, ann.sealed_password) == ("ann", "")
    if identity.level in (AdminLevel.OPERATOR, AdminLevel.REPAIR):
        [ann] = await cluster.a.users(with_sealed_password=True)
        assert ann.sealed_password
    else:
        with pytest.raises(grpc.aio.AioRpcError, match="operator"):
            await cluster.a.users(with_sealed_password=True)


async def test_a_user_is_made_on_all_masters_and_no_answer_has_its_secret() -> None:
    cluster = _Cluster()
    planned = await cluster.access.create_user(UserChange("ann", SECRET), dry_run=True)
    assert [change.what for change in planned.changes] == ["created", "created"]
    assert cluster.a.changes.user("ann") is None
    await cluster.with_ann()
    users, unseen = await cluster.access.users(search="")
    assert [(user.username, user.user_type, user.user_status, user.differs_on) for user in users] == [
        ("ann", "Normal", "enable", ())
    ]
    assert unseen == ()
    assert SECRET not in str(users) + str(await cluster.a.users(with_sealed_password=True))
    with pytest.raises(OperationFailed) as failed:
        await cluster.access.create_user(UserChange("ann", SECRET), dry_run=False)
    assert failed.value.kind is FailureKind.REFUSED


async def test_a_change_that_one_master_refuses_is_made_on_none() -> None:
    cluster = _Cluster()
    cluster.b.refusal = "this broker is stopping"
    with pytest.raises(OperationFailed, match="nothing was changed") as failed:
        await cluster.with_ann()
    assert failed.value.kind is FailureKind.REFUSED
    assert cluster.a.changes.user("ann") is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (UserChange("a b", SECRET), "username"),
        (UserChange("ann", "short"), "password"),
        (UserChange("ann", SECRET, user_type="Root"), "userType"),
        (UserChange("ann", SECRET, user_status="maybe"), "userStatus"),
    ],
)
async def test_what_is_wrong_is_said_before_anybody_is_asked(change: UserChange, field: str) -> None:
    with pytest.raises(OperationFailed) as failed:
        await _Cluster().access.create_user(change, dry_run=False)
    assert failed.value.kind is FailureKind.INVALID
    assert field in failed.value.cause
    assert SECRET not in failed.value.cause


async def test_who_has_it_otherwise_is_named_and_a_copy_makes_it_the_same() -> None:
    cluster = _Cluster()
    access = await cluster.with_ann()
    await access.put_acl("User:ann", [AclEntry("Topic:orders", ("Pub",))], dry_run=False)
    cluster.b.changes.delete_user("ann")
    assert [user.differs_on for user in (await access.users(search=""))[0]] == [("broker-b",)]
    assert [acl.differs_on for acl in (await access.acls(subject="", resource=""))[0]] == [("broker-b",)]
    with pytest.raises(OperationFailed, match="not on all masters"):
        await access.update_user(UserChange("ann", user_status="disable"), dry_run=False)
    planned = await access.copy("broker-a", "broker-b", (), only_users=False, only_acls=False, dry_run=True)
    assert [change.what for change in planned.changes] == ["copied"]
    await access.copy("broker-a", "broker-b", ["ann"], only_users=False, only_acls=False, dry_run=False)
    assert [user.differs_on for user in (await access.users(search=""))[0]] == [()]
    assert [acl.differs_on for acl in (await access.acls(subject="", resource=""))[0]] == [()]
    again = await access.copy("broker-a", "broker-b", ["ann"], only_users=False, only_acls=False, dry_run=False)
    assert [change.what for change in again.changes] == ["no change"]


async def test_what_could_be_said_of_a_user_before_and_never_counts_keeps_nothing_from_being_copied() -> None:
    cluster = _Cluster()
    access = await cluster.with_ann()
    await access.create_user(UserChange("bob", SECRET), dry_run=False)
    await access.put_acl("User:ann", [AclEntry("Topic:orders", ("Pub",))], dry_run=False)
    for subject in ("User:ann", "User:bob"):
        entry = PolicyEntry(Resource.parse("Topic:orders.*"), actions_of("Pub"), Decision.DENY)
        cluster.a.changes._put_entries(subject, [entry])
    for name in ("ann", "bob"):
        cluster.b.changes.delete_user(name)
    copied = await access.copy("broker-a", "broker-b")
    assert [change.what for change in copied.changes] == ["copied, but for what never counts: 'Topic:orders.*'"] * 2
    assert {user.username for user in cluster.b.changes.users()} == {"ann", "bob"}
    held = {acl.subject: [entry.resource.key for entry in acl.entries] for acl in cluster.b.changes.acls()}
    assert held == {"User:ann": ["Topic:orders"]}


async def test_a_secret_is_not_copied_to_a_broker_with_another_key() -> None:
    cluster = _Cluster(other_key=b"z")
    access = await cluster.with_ann()
    cluster.b.changes.delete_user("ann")
    with pytest.raises(OperationFailed) as failed:
        await access.copy("broker-a", "broker-b", (), only_users=False, only_acls=False, dry_run=False)
    assert "the same key file" in failed.value.cause


async def test_policies_are_added_replaced_and_removed() -> None:
    cluster = _Cluster()
    access = await cluster.with_ann()
    entries = [AclEntry("Topic:orders", ("Pub",)), AclEntry("Group:billing", ("Sub",), source_ips=("10.0.0.0/8",))]
    await access.put_acl("User:ann", entries, dry_run=False)
    repeated = await access.put_acl("User:ann", entries, dry_run=False)
    assert [change.what for change in repeated.changes] == ["no change"] * 2
    await access.put_acl("User:ann", [AclEntry("Topic:orders", ("Pub", "Sub"), "Deny")], dry_run=False)
    [acl], _ = await access.acls(subject="ann", resource="Topic")
    assert [(one.resource, tuple(one.actions), one.decision) for one in acl.entries] == [
        ("Topic:orders", ("Pub", "Sub"), "Deny")
    ]
    await access.delete_acl("User:ann", ["Topic:orders"], policy_type="", dry_run=False)
    [acl], _ = await access.acls(subject="", resource="")
    assert [one.resource for one in acl.entries] == ["Group:billing"]
    await access.delete_acl("User:ann", [], policy_type="", dry_run=False)
    assert await access.acls(subject="", resource="") == ([], ())
    with pytest.raises(OperationFailed, match="no such policy"):
        await access.delete_acl("User:ann", [], policy_type="", dry_run=False)


async def test_what_would_count_for_nobody_or_for_everybody_is_refused_before_anybody_is_asked() -> None:
    access = await _Cluster().with_ann()
    for wrong, remedy in (
        (AclEntry("Topic:orders", ("Pub",), source_ips=("",)), "leave it out for all"),
        (AclEntry("Topic:%RETRY%billing", ("Sub",), "Deny"), "name Group:billing"),
    ):
        with pytest.raises(OperationFailed) as failed:
            await access.put_acl("User:ann", [AclEntry("Topic:orders", ("Pub",)), wrong], dry_run=False)
        assert (failed.value.kind, remedy in failed.value.cause) == (FailureKind.INVALID, True)
    assert await access.acls(subject="", resource="") == ([], ())


async def test_policies_need_their_user_and_go_with_it() -> None:
    cluster = _Cluster()
    with pytest.raises(OperationFailed) as failed:
        await cluster.access.put_acl("User:ann", [AclEntry("*", ("All",))], dry_run=False)
    assert "make it first" in failed.value.cause
    access = await cluster.with_ann()
    await access.put_acl("User:ann", [AclEntry("*", ("All",))], dry_run=False)
    await access.delete_user("ann", dry_run=False)
    assert await access.acls(subject="", resource="") == ([], ())
    with pytest.raises(OperationFailed, match="there is no user ann"):
        await access.delete_user("ann", dry_run=False)
