"""BrokerAccessService: users and policies of this broker, for operators. The edge: protobuf stops here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import grpc
import structlog

from tandemmq.broker.access_changes import AccessChanges
from tandemmq.broker.metadata_tables import NotSpread
from tandemmq.core.access.users_and_policies import (
    Acl,
    InvalidAcl,
    InvalidUser,
    PolicyEntry,
    Resource,
    actions_of,
    decision_of,
    policy_type_of,
    source_ips_of,
    user_status_of,
    user_type_of,
)
from tandemmq.proto.admin.v1 import broker_access_service_pb2 as pb
from tandemmq.proto.admin.v1 import broker_access_service_pb2_grpc

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

__all__ = ["BrokerAccessServicer"]

log = structlog.get_logger(__name__)


class BrokerAccessServicer(broker_access_service_pb2_grpc.BrokerAccessServiceServicer):
    """Answers for one broker. `refusal` says why it is not its group's master now; None: it is, and serves."""

    def __init__(self, changes: AccessChanges, *, refusal: Callable[[], str | None]) -> None:
        self._changes = changes
        self._refusal = refusal

    async def ListUsers(self, request: pb.ListUsersRequest, context: _Context) -> pb.ListUsersResponse:  # noqa: N802
        return pb.ListUsersResponse(
            users=[
                pb.UserView(
                    username=user.username,
                    user_type=user.user_type.value,
                    user_status=user.status.value,
                    sealed_password=user.sealed_secret if request.with_sealed_password else "",
                )
                for user in self._changes.users(request.search)
            ]
        )

    async def PutUser(self, request: pb.PutUserRequest, context: _Context) -> pb.PutUserResponse:  # noqa: N802
        await self._masters_only(context)
        is_changed = await self._carry_out(
            context,
            lambda: self._changes.put_user(
                request.username,
                secret=request.password,
                sealed_secret=request.sealed_password,
                user_type=user_type_of(request.user_type) if request.user_type else None,
                status=user_status_of(request.user_status) if request.user_status else None,
                dry_run=request.dry_run,
            ),
        )
        if is_changed and not request.dry_run:
            has_new_secret = bool(request.password or request.sealed_password)
            log.info("user_changed", by="operator", user=request.username, new_secret=has_new_secret)
        return pb.PutUserResponse(changed=is_changed)

    async def DeleteUser(self, request: pb.DeleteUserRequest, context: _Context) -> pb.DeleteUserResponse:  # noqa: N802
        await self._masters_only(context)
        existed = await self._carry_out(
            context, lambda: self._changes.delete_user(request.username, dry_run=request.dry_run)
        )
        if existed and not request.dry_run:
            log.info("user_deleted", by="operator", user=request.username)
        return pb.DeleteUserResponse(existed=existed)

    async def ListAcls(self, request: pb.ListAclsRequest, context: _Context) -> pb.ListAclsResponse:  # noqa: N802
        found = self._changes.acls(subject_part=request.subject, resource_part=request.resource)
        return pb.ListAclsResponse(acls=[_acl_view(acl) for acl in found])

    async def PutAcl(self, request: pb.PutAclRequest, context: _Context) -> pb.PutAclResponse:  # noqa: N802
        await self._masters_only(context)
        is_changed = await self._carry_out(
            context,
            lambda: self._changes.put_entries(
                request.subject, [_entry(one) for one in request.entries], dry_run=request.dry_run
            ),
        )
        if is_changed and not request.dry_run:
            resources = [one.resource for one in request.entries]
            log.info("acl_changed", by="operator", subject=request.subject, resources=resources)
        return pb.PutAclResponse(changed=is_changed)

    async def DeleteAcl(self, request: pb.DeleteAclRequest, context: _Context) -> pb.DeleteAclResponse:  # noqa: N802
        await self._masters_only(context)
        existed = await self._carry_out(
            context,
            lambda: self._changes.delete_entries(
                request.subject,
                [Resource.parse(one) for one in request.resources],
                policy_type_of(request.policy_type),
                dry_run=request.dry_run,
            ),
        )
        if existed and not request.dry_run:
            log.info("acl_deleted", by="operator", subject=request.subject, resources=list(request.resources))
        return pb.DeleteAclResponse(existed=existed)

    async def _carry_out(self, context: _Context, change: Callable[[], bool]) -> bool:
        """What it says, once it is durable."""
        is_changed = False
        try:
            is_changed = change()
            await self._changes.written()
        except (InvalidUser, InvalidAcl) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except NotSpread as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return is_changed

    async def _masters_only(self, context: _Context) -> None:
        refusal = self._refusal()
        if refusal is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{refusal}; make the change on a serving master")


def _entry(one: pb.AclEntry) -> PolicyEntry:
    return PolicyEntry(
        Resource.parse(one.resource),
        actions_of(",".join(one.actions)),
        decision_of(one.decision),
        source_ips_of(",".join(one.source_ips)),
        policy_type_of(one.policy_type),
    )


def _acl_view(acl: Acl) -> pb.AclView:
    view = pb.AclView(subject=acl.subject)
    for entry in acl.entries:
        fields = entry.to_fields()
        one = view.entries.add(
            resource=entry.resource.key,
            actions=str(fields["actions"]).split(","),
            source_ips=entry.source_ips,
            decision=entry.decision.value,
            policy_type=entry.policy_type.value,
        )
        one.changed_time.FromMilliseconds(entry.changed_ms)
    return view
