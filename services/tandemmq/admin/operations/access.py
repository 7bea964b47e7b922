"""Users and policies over all masters: each broker group keeps them for itself, and they should be the same on all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from tandemmq.admin.cluster_state import BrokerState
from tandemmq.admin.operations.questions import (
    NO_CHANGE,
    Answer,
    BrokerPlanes,
    Members,
    OperationFailed,
    Questions,
    invalid,
    not_found,
    refused,
    require_all,
    unseen_of,
    values_of,
)
from tandemmq.admin.operations.values import Acl, AclEntry, Change, ChangeResult, Unseen, User, UserChange
from tandemmq.core.access.users_and_policies import (
    InvalidAcl,
    InvalidUser,
    PolicyEntry,
    Resource,
    actions_of,
    check_said,
    check_secret,
    decision_of,
    policy_type_of,
    source_ips_in,
    user_of_subject,
    user_status_of,
    user_type_of,
)
from tandemmq.core.access.users_and_policies import User as CoreUser
from tandemmq.proto.admin.v1 import broker_access_service_pb2 as pb
from tandemmq.service.protobuf import as_message, as_value

_ViewT = TypeVar("_ViewT")
_GONE: Final = "deleted"


class AccessOperations:
    """Reads from masters; changes reach all of them or say which not. What is wrong is said before anybody is asked."""

    def __init__(self, members: Members, questions: Questions) -> None:
        self._members = members
        self._questions = questions

    # Users

    async def users(self, *, search: str = "") -> tuple[Sequence[User], Sequence[Unseen]]:
        """Users of the client API by name, without their secrets; `search` is a part of the name."""
        masters = self._members.masters()
        answers = await self._questions.brokers(masters.brokers, lambda planes: planes.access.users(search=search))
        held = _by_name(answers, lambda view: view.username)
        groups = [broker_name for broker_name, _ in values_of(answers)]
        users = [as_value(User, views[0][1], differs_on=_differing(groups, views)) for _, views in sorted(held.items())]
        return users, (*masters.unseen, *unseen_of(answers))

    async def create_user(self, change: UserChange, *, dry_run: bool = False) -> ChangeResult:
        """Makes a user on all masters. REFUSED: there is one of that name."""
        return await self._put_user(change, creates=True, dry_run=dry_run)

    async def update_user(self, change: UserChange, *, dry_run: bool = False) -> ChangeResult:
        """Changes what is given of a user; clients notice within a second."""
        return await self._put_user(change, creates=False, dry_run=dry_run)

    async def _put_user(self, change: UserChange, *, creates: bool, dry_run: bool) -> ChangeResult:
        _check_user(change, creates=creates)
        masters = self._members.masters_to_change()
        having = await self._having(masters, change.username)
        if creates and len(having) == len(masters):
            raise refused(f"there is a user {change.username}", remedy="`tandemmq user update` changes it")
        if not creates and not having:
            raise _no_user(change.username)
        if not creates and len(having) < len(masters) and not change.password:
            lacking = ", ".join(one.key for one in masters if one.broker_name not in having)
            raise refused(
                f"user {change.username} is not on all masters; nothing was changed",
                cause=f"it is missing on {lacking}",
                remedy="give its password as well, or copy it there: `tandemmq user copy`",
            )

        return await self._change(
            masters,
            lambda planes, dry: planes.access.put_user(as_message(pb.PutUserRequest, change, dry_run=dry)),
            what=lambda master: "changed" if master.broker_name in having else "created",
            problem=f"user {change.username} could not be {'created' if creates else 'changed'}",
            dry_run=dry_run,
        )

    async def delete_user(self, username: str, *, dry_run: bool = False) -> ChangeResult:
        """Removes a user with its policies from all masters."""
        masters = self._members.masters_to_change()
        if not await self._having(masters, username):
            raise _no_user(username)
        return await self._change(
            masters,
            lambda planes, dry: planes.access.delete_user(pb.DeleteUserRequest(username=username, dry_run=dry)),
            what=lambda _: _GONE,
            problem=f"user {username} could not be deleted",
            dry_run=dry_run,
        )

    # Policies

    async def acls(self, *, subject: str = "", resource: str = "") -> tuple[Sequence[Acl], Sequence[Unseen]]:
        """What users may do, by subject; both are parts of names."""
        masters = self._members.masters()
        answers = await self._questions.brokers(
            masters.brokers, lambda planes: planes.access.acls(subject=subject, resource=resource)
        )
        for view in (view for _, views in values_of(answers) for view in views):
            view.entries.sort(key=lambda entry: (entry.policy_type, entry.resource))
        held = _by_name(answers, lambda view: view.subject)
        groups = [broker_name for broker_name, _ in values_of(answers)]
        acls = []
        for _, views in sorted(held.items()):
            entries = [as_value(AclEntry, entry) for entry in views[0][1].entries]
            acls.append(Acl(views[0][1].subject, entries, _differing(groups, _untimed(views))))
        return acls, (*masters.unseen, *unseen_of(answers))

    async def put_acl(self, subject: str, entries: Sequence[AclEntry], *, dry_run: bool = False) -> ChangeResult:
        """Adds entries to a subject's policies, in place of those of the same type and resource."""
        _check_acl(subject, entries)
        masters = self._members.masters_to_change()

        messages = [as_message(pb.AclEntry, entry, changed_time=None) for entry in entries]
        return await self._change(
            masters,
            lambda planes, dry: planes.access.put_acl(pb.PutAclRequest(subject=subject, entries=messages, dry_run=dry)),
            what=lambda _: "changed",
            problem=f"policies of {subject} could not be changed",
            dry_run=dry_run,
        )

    async def delete_acl(
        self, subject: str, resources: Sequence[str] = (), *, policy_type: str = "", dry_run: bool = False
    ) -> ChangeResult:
        """Removes a subject's entries of some resources, or without any all of them."""
        with _refused("policies cannot be deleted so"):
            user_of_subject(subject)
            policy_type_of(policy_type)
            for resource in resources:
                Resource.parse(resource)
        masters = self._members.masters_to_change()
        return await self._change(
            masters,
            lambda planes, dry: planes.access.delete_acl(
                pb.DeleteAclRequest(subject=subject, resources=resources, policy_type=policy_type, dry_run=dry)
            ),
            what=lambda _: _GONE,
            problem=f"policies of {subject} could not be deleted",
            dry_run=dry_run,
            none=not_found(f"{subject} has no such policy", remedy="`tandemmq acl list` shows those there are"),
        )

    # From one group to another

    async def copy(
        self,
        from_broker_name: str,
        to_broker_name: str,
        usernames: Sequence[str] = (),
        *,
        only_users: bool = False,
        only_acls: bool = False,
        dry_run: bool = False,
    ) -> ChangeResult:
        """Copies users with their secrets, sealed as they are, and policies to another broker group, which has the
        same key file."""
        [source] = self._members.masters_to_change([from_broker_name])
        [target] = self._members.masters_to_change([to_broker_name])
        problem = f"nothing was copied from {source.key}"
        users = await self._questions.broker(
            source, lambda planes: planes.access.users(with_sealed_password=True), problem=problem
        )
        acls = await self._questions.broker(source, lambda planes: planes.access.acls(), problem=problem)
        held = {acl.subject: acl for acl in acls}
        chosen = [user for user in users if not usernames or user.username in usernames]
        if missing := set(usernames) - {user.username for user in chosen}:
            raise not_found(
                f"{source.key} has no user {', '.join(sorted(missing))}",
                remedy="`tandemmq user list` shows them; upper and lower case matter",
            )

        async def put(planes: BrokerPlanes, *, user: pb.UserView, entries: Sequence[pb.AclEntry]) -> bool:
            is_changed = False
            if not only_acls:
                request = pb.PutUserRequest(
                    username=user.username,
                    sealed_password=user.sealed_password,
                    user_type=user.user_type,
                    user_status=user.user_status,
                    dry_run=dry_run,
                )
                is_changed = await planes.access.put_user(request)
            if entries and not only_users and not (dry_run and is_changed):
                acl = pb.PutAclRequest(subject=f"User:{user.username}", entries=entries, dry_run=dry_run)
                is_changed |= await planes.access.put_acl(acl)
            return is_changed

        changes = []
        for user in chosen:
            acl = held.get(subject := f"User:{user.username}", pb.AclView())
            entries = [entry for entry in acl.entries if _may_be_said(subject, entry)]
            is_changed = await self._questions.broker(
                target, partial(put, user=user, entries=entries), problem=f"{target.key} does not take the copy"
            )
            what = "copied" if is_changed else NO_CHANGE
            if left_out := [entry.resource for entry in acl.entries if entry not in entries and not only_users]:
                what += f", but for what never counts: {', '.join(map(ascii, left_out))}"
            changes.append(Change(f"{user.username} on {target.key}", what))
        return ChangeResult(changes, dry_run)

    # Inside

    async def _having(self, masters: Sequence[BrokerState], username: str) -> set[str]:
        """Broker groups that have the user."""
        answers = await self._questions.brokers(masters, lambda planes: planes.access.users(search=username))
        require_all(answers, problem=f"user {username} cannot be looked up; nothing was changed")
        return {name for name, views in values_of(answers) if any(view.username == username for view in views)}

    async def _change(
        self,
        masters: Sequence[BrokerState],
        change: Callable[[BrokerPlanes, bool], Awaitable[bool]],
        *,
        what: Callable[[BrokerState], str],
        problem: str,
        dry_run: bool,
        none: OperationFailed | None = None,
    ) -> ChangeResult:
        """Asks all masters whether they would, then has them do it. `none` is raised if it changes nothing anywhere."""
        would = await self._questions.brokers(masters, lambda planes: change(planes, True))
        refused = [answer for answer in would if answer.failure is not None]
        if refused and refused[0].failure is not None:
            raise refused[0].failure.failed(refused[0].subject, f"{problem}; nothing was changed")
        found = require_all(would, problem=f"{problem}; nothing was changed")
        if none is not None and not any(found):
            raise none
        if not dry_run:
            require_all(await self._questions.brokers(masters, lambda planes: change(planes, False)), problem=problem)
        changes = [
            Change(master.key, what(master) if is_changed else NO_CHANGE)
            for master, is_changed in zip(masters, found, strict=True)
        ]
        return ChangeResult(changes, dry_run)


@contextmanager
def _refused(problem: str) -> Iterator[None]:
    """What the core does not take is an operation's failure."""
    try:
        yield
    except (InvalidUser, InvalidAcl) as error:
        raise invalid(problem, cause=str(error)) from error


def _check_user(change: UserChange, *, creates: bool) -> None:
    with _refused(f"user {change.username!r} is refused"):
        CoreUser(change.username, "sealed").check()
        if change.password or creates:
            check_secret(change.password)
        if change.user_type:
            user_type_of(change.user_type)
        if change.user_status:
            user_status_of(change.user_status)
        if not creates and not (change.password or change.user_type or change.user_status):
            raise InvalidUser("nothing is to be changed; give a password, a type or a status")


def _check_acl(subject: str, entries: Sequence[AclEntry]) -> None:
    with _refused(f"the policies of {subject!r} are refused"):
        check_said(subject, [_policy_entry(entry) for entry in entries])


def _policy_entry(entry: AclEntry | pb.AclEntry) -> PolicyEntry:
    """Raises InvalidAcl."""
    return PolicyEntry(
        Resource.parse(entry.resource),
        actions_of(",".join(entry.actions)),
        decision_of(entry.decision),
        source_ips_in(entry.source_ips),
        policy_type_of(entry.policy_type),
    )


def _may_be_said(subject: str, entry: pb.AclEntry) -> bool:
    """Brokers hold what could be said before, and take nothing of it any more."""
    try:
        check_said(subject, [_policy_entry(entry)])
    except InvalidAcl:
        return False
    return True


def _by_name(
    answers: Iterable[Answer[list[_ViewT]]], name: Callable[[_ViewT], str]
) -> dict[str, list[tuple[str, _ViewT]]]:
    """By name, who has it, and how."""
    held: dict[str, list[tuple[str, _ViewT]]] = {}
    for broker_name, views in values_of(answers):
        for view in views:
            held.setdefault(name(view), []).append((broker_name, view))
    return held


def _differing(groups: Sequence[str], views: Sequence[tuple[str, object]]) -> tuple[str, ...]:
    """Broker groups that have it otherwise than the first that has it."""
    same = {broker_name for broker_name, view in views if view == views[0][1]}
    return tuple(sorted(set(groups) - same))


def _untimed(views: Sequence[tuple[str, pb.AclView]]) -> list[tuple[str, object]]:
    """Without the times of changes: no two masters change at the same moment."""
    bare: list[tuple[str, object]] = []
    for broker_name, view in views:
        copy = pb.AclView()
        copy.CopyFrom(view)
        for entry in copy.entries:
            entry.ClearField("changed_time")
        bare.append((broker_name, copy))
    return bare


def _no_user(username: str) -> OperationFailed:
    return not_found(f"there is no user {username}", remedy="`tandemmq user list` shows those there are")
