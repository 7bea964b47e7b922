"""Pages of consumer groups: the list, one group, and what is done to it."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import FastAPI, Query, Request, Response

from admin.api.actors import OPERATOR_ONLY
from admin.api.console import Pages
from admin.api.forms import form_of
from admin.api.pages.change_answers import change_flash, form_status
from admin.api.pages.group_form import (
    GroupForm,
    ResetForm,
    blank_group,
    blank_reset,
    group_form_of,
    read_group_form,
    read_reset_form,
)
from admin.api.pages.page_answers import go_to, page_html
from admin.moments import FORMS
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.interface import Operations
from admin.operations.values import ChangeResult, PageRequest
from admin.web.frame import Flash
from admin.web.group_page import ResetView, group_rows, group_view, reset_view
from admin.web.page_addresses import group_address

__all__ = ["add_group_pages"]

_ACTIVE: Final = "groups"
_PAGE_SIZE: Final = 50
# These pages ask the brokers at each renewal, unlike pages of the reading that all share.
_LIVE_MS: Final = 5_000

Name = Annotated[str, Query(max_length=255)]
PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]


def add_group_pages(app: FastAPI, pages: Pages) -> None:
    """Adds the routes."""
    _add_list(app, pages)
    _add_editing(app, pages)
    _add_deleting(app, pages)
    _add_resetting(app, pages)


def _add_list(app: FastAPI, pages: Pages) -> None:
    @app.get("/groups", include_in_schema=False)
    async def groups(request: Request, search: Name = "", page: PageNumber = 1) -> Response:
        search = search.strip()
        found = await pages.operations(request).groups(search=search, page=PageRequest(page, _PAGE_SIZE))
        return page_html(
            pages,
            request,
            "groups.html",
            active=_ACTIVE,
            live_ms=_LIVE_MS,
            page=found,
            rows=group_rows(found),
            search=search,
        )

    @app.get("/groups/{name}", include_in_schema=False)
    async def group(request: Request, name: str, search: Name = "") -> Response:
        search = search.strip()
        return page_html(
            pages,
            request,
            "group.html",
            active=_ACTIVE,
            live_ms=_LIVE_MS,
            view=group_view(await pages.operations(request).group(name), topic_search=search),
            search=search,
            own=group_address(name),
        )


def _add_editing(app: FastAPI, pages: Pages) -> None:
    def answer(
        request: Request,
        form: GroupForm,
        *,
        review: ChangeResult | None = None,
        failure: OperationFailed | None = None,
    ) -> Response:
        return page_html(
            pages,
            request,
            "group_edit.html",
            active=_ACTIVE,
            status=form_status(failure, is_wrong=bool(form.errors)),
            form=form,
            review=review,
            failure=failure,
            own=group_address(form.name) if form.name else "/groups",
        )

    @app.get("/new-group", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def new_group(request: Request) -> Response:
        return answer(request, blank_group())

    @app.post("/new-group", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def create_group(request: Request) -> Response:
        operations = pages.operations(request)
        form = read_group_form(await form_of(request))
        if form.errors:
            return answer(request, form)
        try:
            if await _exists(operations, form.name):
                raise OperationFailed(
                    FailureKind.REFUSED,
                    f"there is a group {form.name} already",
                    remedy="edit it, or choose another name",
                )
            result = await operations.put_group(form.change)
        except OperationFailed as failure:
            return answer(request, form, failure=failure)
        return go_to(pages, group_address(form.name), flash=change_flash(f"Group {form.name} was created.", result))

    @app.get("/groups/{name}/edit", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def edit_group(request: Request, name: str) -> Response:
        return answer(request, group_form_of((await pages.operations(request).group(name)).summary))

    @app.post("/groups/{name}/edit", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def change_group(request: Request, name: str) -> Response:
        operations = pages.operations(request)
        posted = await form_of(request)
        form = read_group_form(posted, before=(await operations.group(name)).summary)
        if form.errors:
            return answer(request, form)
        confirmed = posted.is_checked("confirm")
        try:
            result = await operations.put_group(form.change, dry_run=not confirmed)
        except OperationFailed as failure:
            return answer(request, form, failure=failure)
        if not confirmed:
            return answer(request, form, review=result)
        done = ("enabled" if form.enabled else "disabled") if form.only_enabled else "changed"
        return go_to(pages, group_address(name), flash=change_flash(f"Group {name} was {done}.", result))


def _add_deleting(app: FastAPI, pages: Pages) -> None:
    async def answer(
        request: Request,
        name: str,
        *,
        typed: str = "",
        even_with_members: bool = False,
        error: str = "",
        members_error: str = "",
        failure: OperationFailed | None = None,
    ) -> Response:
        operations = pages.operations(request)
        view = group_view(await operations.group(name))
        review, refused = None, None
        if failure is None:
            try:
                review, refused = await _deletion(operations, name)
            except OperationFailed as failed:
                failure = failed
        return page_html(
            pages,
            request,
            "group_delete.html",
            active=_ACTIVE,
            status=form_status(failure, is_wrong=bool(error or members_error)),
            view=view,
            own=group_address(name),
            review=review,
            refused=refused,
            failure=failure,
            typed=typed,
            error=error,
            even_with_members=even_with_members,
            members_error=members_error,
        )

    @app.get("/groups/{name}/delete", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def ask(request: Request, name: str) -> Response:
        return await answer(request, name)

    @app.post("/groups/{name}/delete", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def delete_group(request: Request, name: str) -> Response:
        posted = await form_of(request)
        typed, even_with_members = posted.text("typed"), posted.is_checked("even_with_members")
        if typed != name:
            error = f"Type {name} to delete it."
            return await answer(request, name, typed=typed, even_with_members=even_with_members, error=error)
        try:
            result = await pages.operations(request).delete_group(name, even_with_members=even_with_members)
        except OperationFailed as failure:
            if failure.kind is FailureKind.REFUSED and not even_with_members:
                problem = f"{failure.problem[0].upper()}{failure.problem[1:]}."
                return await answer(request, name, typed=typed, members_error=problem)
            return await answer(request, name, failure=failure)
        return go_to(pages, "/groups", flash=change_flash(f"Group {name} was deleted.", result))


def _add_resetting(app: FastAPI, pages: Pages) -> None:
    def answer(
        request: Request, form: ResetForm, *, review: ResetView | None = None, failure: OperationFailed | None = None
    ) -> Response:
        return page_html(
            pages,
            request,
            "group_reset.html",
            active=_ACTIVE,
            status=form_status(failure, is_wrong=bool(form.errors)),
            form=form,
            review=review,
            failure=failure,
            moment_forms=FORMS,
            own=group_address(form.group),
        )

    @app.get("/groups/{name}/reset", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def reset_form(request: Request, name: str, topic: Name = "") -> Response:
        detail = await pages.operations(request).group(name)
        return answer(request, blank_reset(name, detail.summary.topics, topic))

    @app.post("/groups/{name}/reset", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def reset(request: Request, name: str) -> Response:
        operations = pages.operations(request)
        posted = await form_of(request)
        detail = await operations.group(name)
        form = read_reset_form(posted, group=name, topics=detail.summary.topics, now_ms=pages.clock.wall_ms())
        if form.errors:
            return answer(request, form)
        confirmed = posted.is_checked("confirm")
        try:
            moves = await operations.reset_offsets(name, form.topic, form.reset, dry_run=not confirmed)
        except OperationFailed as failure:
            return answer(request, form, failure=failure)
        view = reset_view(moves)
        if not confirmed:
            return answer(request, form, review=view)
        text = f"{name} goes on elsewhere in {form.topic}: {len(moves)} queues were set."
        return go_to(pages, group_address(name), flash=Flash("ok", text))


async def _deletion(operations: Operations, name: str) -> tuple[ChangeResult, OperationFailed | None]:
    """What deleting does, and why it is refused as long as members are connected."""
    try:
        return await operations.delete_group(name, dry_run=True), None
    except OperationFailed as failure:
        if failure.kind is not FailureKind.REFUSED:
            raise
        return await operations.delete_group(name, even_with_members=True, dry_run=True), failure


async def _exists(operations: Operations, group: str) -> bool:
    try:
        await operations.group(group)
    except OperationFailed as failure:
        if failure.kind is FailureKind.NOT_FOUND:
            return False
        raise
    return True
