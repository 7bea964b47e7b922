"""The page of users and policies: who may use the client API, and for what. A secret is typed in, and never shown."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import FastAPI, Request, Response

from tandemmq.admin.api.access import OPERATOR_ONLY
from tandemmq.admin.console.answers import Form, Name, Pages, change_flash, form_of
from tandemmq.admin.operations.operations import Operations
from tandemmq.admin.operations.questions import OperationFailed, invalid
from tandemmq.admin.operations.values import Acl, AclEntry, ChangeResult, User, UserChange

_OWN: Final = "/users"

_FIELDS: Final = ("what", "user", "resources", "actions", "sources", "decision", "policy_type")


@dataclass(frozen=True, slots=True)
class UserRow:
    user: User
    policies: Sequence[AclEntry]
    # Broker groups that have it, or its policies, otherwise.
    differs_on: str


def user_rows(users: Sequence[User], acls: Sequence[Acl]) -> tuple[UserRow, ...]:
    """By name."""
    held = {acl.subject: acl for acl in acls}
    nothing = Acl("", ())
    found = [(user, held.get(f"User:{user.username}", nothing)) for user in users]
    return tuple(
        UserRow(user, acl.entries, ", ".join(sorted({*user.differs_on, *acl.differs_on}))) for user, acl in found
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """A change of the page: what it does, in words, and how."""

    text: str
    button: str
    done: str
    danger: bool
    fields: tuple[tuple[str, str], ...]


def _step(form: Form) -> _Step:
    what, user = form.text("what"), form.text("user")
    fields = tuple((name, form.text(name)) for name in _FIELDS)
    if what == "delete":
        return _Step(f"Delete {user}", "Delete user", f"User {user} was deleted.", True, fields)
    if what in ("enable", "disable"):
        verb = what.capitalize()
        return _Step(f"{verb} {user}", f"{verb} user", f"User {user} was {what}d.", what == "disable", fields)
    if what == "forget":
        text = f"Delete a policy of {user}"
        return _Step(text, "Delete policy", f"A policy of {user} was deleted.", True, fields)
    text = f"{form.text('decision') or 'Allow'} {user} something"
    return _Step(text, "Change policies", f"Policies of {user} were changed.", form.text("decision") == "Deny", fields)


def _change(operations: Operations, form: Form, *, dry_run: bool) -> Awaitable[ChangeResult]:
    what, user = form.text("what"), form.text("user")
    resources = _parts(form.text("resources"))
    if what == "delete":
        return operations.delete_user(user, dry_run=dry_run)
    if what in ("enable", "disable"):
        return operations.update_user(UserChange(user, user_status=what), dry_run=dry_run)
    if what == "forget":
        policy_type = form.text("policy_type")
        return operations.delete_acl(f"User:{user}", resources, policy_type=policy_type, dry_run=dry_run)
    if what == "put":
        actions, sources = _parts(form.text("actions")), _parts(form.text("sources"))
        entries = [AclEntry(one, actions, form.text("decision") or "Allow", sources) for one in resources]
        return operations.put_acl(f"User:{user}", entries, dry_run=dry_run)
    raise invalid(f"what: {what[:50]!r} is nothing that is done here")


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.replace("\n", ",").split(",") if part.strip())


def add_user_pages(app: FastAPI, pages: Pages) -> None:
    async def show(
        request: Request, search: str = "", *, failure: OperationFailed | None = None, typed: str = ""
    ) -> Response:
        operations = pages.operations(request)
        users, unseen = await operations.users(search=search)
        acls, _ = await operations.acls()
        return pages.html(
            request,
            "users.html",
            rows=user_rows(users, acls),
            unseen=unseen,
            search=search,
            failure=failure,
            typed=typed,
        )

    @app.get(_OWN, include_in_schema=False)
    async def users(request: Request, search: Name = "") -> Response:
        return await show(request, search.strip())

    @app.post(f"{_OWN}/new", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def create(request: Request) -> Response:
        # In one step: a page between would have to hold the secret.
        form = await form_of(request)
        name = form.text("user")
        change = UserChange(name, form.raw("password"), "Super" if form.is_checked("is_super") else "Normal")
        try:
            result = await pages.operations(request).create_user(change)
        except OperationFailed as failure:
            return await show(request, failure=failure, typed=name)
        return pages.go_to(_OWN, change_flash(f"User {name} was created.", result))

    @app.post(f"{_OWN}/change", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def change(request: Request) -> Response:
        form = await form_of(request)
        step, is_sure = _step(form), form.is_checked("confirm")
        try:
            result = await _change(pages.operations(request), form, dry_run=not is_sure)
        except OperationFailed as failure:
            return await show(request, failure=failure)
        if is_sure:
            return pages.go_to(_OWN, change_flash(step.done, result))
        return pages.html(request, "users_change.html", step=step, review=result)
