"""Pages of topics: the list, one topic, and what is done to it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request, Response

from admin.api.actors import OPERATOR_ONLY
from admin.api.console import Pages
from admin.api.forms import form_of
from admin.api.pages.change_answers import change_flash, form_status
from admin.api.pages.message_form import MessageForm, blank_message, read_message_form
from admin.api.pages.page_answers import go_to, page_html
from admin.api.pages.topic_form import (
    PERMISSIONS,
    TopicForm,
    blank_topic,
    read_topic_form,
    topic_form_of,
    topic_types,
)
from admin.api.problems import problem_of
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.interface import Operations
from admin.operations.topic_names import CATEGORIES, ORDINARY
from admin.operations.values import ChangeResult, Client, MessageQuery, Page, PageRequest, TopicDetail
from admin.web.frame import Flash
from admin.web.message_rows import PREVIEW_BYTES, MessageRow, message_rows
from admin.web.page_addresses import place_address, topic_address
from admin.web.topic_page import CATEGORY_CHOICES, TopicView, topic_rows, topic_view

__all__ = ["add_topic_pages"]

_ACTIVE: Final = "topics"
_PAGE_SIZE: Final = 50
_CLIENTS_SHOWN: Final = 50
_NEWEST_SHOWN: Final = 5
# These pages ask the brokers at each renewal, unlike pages of the reading that all share.
_LIVE_MS: Final = 5_000
_ALL: Final = "all"

Name = Annotated[str, Query(max_length=255)]
PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]


def add_topic_pages(app: FastAPI, pages: Pages) -> None:
    """Adds the routes."""
    _add_list(app, pages)
    _add_editing(app, pages)
    _add_deleting(app, pages)
    _add_sending(app, pages)


def _add_list(app: FastAPI, pages: Pages) -> None:
    @app.get("/topics", include_in_schema=False)
    async def topics(request: Request, search: Name = "", category: Name = ORDINARY, page: PageNumber = 1) -> Response:
        wanted = (category,) if category in CATEGORIES else CATEGORIES
        found = await pages.operations(request).topics(
            search=search.strip(), categories=wanted, page=PageRequest(page, _PAGE_SIZE)
        )
        return page_html(
            pages,
            request,
            "topics.html",
            active=_ACTIVE,
            live_ms=_LIVE_MS,
            page=found,
            rows=topic_rows(found),
            search=search.strip(),
            category=category if category in CATEGORIES else _ALL,
            categories=CATEGORY_CHOICES,
        )

    @app.get("/topics/{name}", include_in_schema=False)
    async def topic(request: Request, name: str) -> Response:
        operations = pages.operations(request)
        detail = await operations.topic(name)
        async with asyncio.TaskGroup() as group:
            viewing = group.create_task(_view(operations, detail))
            finding = group.create_task(_newest(operations, name))
        newest, newest_problem = finding.result()
        return page_html(
            pages,
            request,
            "topic.html",
            active=_ACTIVE,
            live_ms=_LIVE_MS,
            view=viewing.result(),
            newest=newest,
            newest_problem=newest_problem,
            own=topic_address(name),
        )


def _add_editing(app: FastAPI, pages: Pages) -> None:
    def answer(
        request: Request,
        form: TopicForm,
        *,
        review: ChangeResult | None = None,
        failure: OperationFailed | None = None,
    ) -> Response:
        return page_html(
            pages,
            request,
            "topic_edit.html",
            active=_ACTIVE,
            status=form_status(failure, is_wrong=bool(form.errors)),
            form=form,
            review=review,
            failure=failure,
            types=topic_types(form),
            permissions=PERMISSIONS if form.permission else (("", "as it is"), *PERMISSIONS),
            own=topic_address(form.name) if form.name else "/topics",
        )

    @app.get("/new-topic", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def new_topic(request: Request) -> Response:
        return answer(request, blank_topic(_broker_names(pages)))

    @app.post("/new-topic", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def create_topic(request: Request) -> Response:
        operations = pages.operations(request)
        form = read_topic_form(await form_of(request), broker_names=_broker_names(pages))
        if form.errors:
            return answer(request, form)
        try:
            if await _exists(operations, form.name):
                # What is there is edited where it can be seen, not changed by a form that shows defaults.
                raise OperationFailed(
                    FailureKind.REFUSED,
                    f"there is a topic {form.name} already",
                    remedy="edit it, or choose another name",
                )
            result = await operations.put_topic(form.change)
        except OperationFailed as failure:
            return answer(request, form, failure=failure)
        return go_to(pages, topic_address(form.name), flash=change_flash(f"Topic {form.name} was created.", result))

    @app.get("/topics/{name}/edit", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def edit_topic(request: Request, name: str) -> Response:
        detail = await pages.operations(request).topic(name)
        return answer(request, topic_form_of(detail.summary, _broker_names(pages)))

    @app.post("/topics/{name}/edit", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def change_topic(request: Request, name: str) -> Response:
        operations = pages.operations(request)
        posted = await form_of(request)
        detail = await operations.topic(name)
        form = read_topic_form(posted, name=name, broker_names=_broker_names(pages), before=detail.summary)
        if form.errors:
            return answer(request, form)
        confirmed = posted.is_checked("confirm")
        try:
            result = await operations.put_topic(form.change, dry_run=not confirmed)
        except OperationFailed as failure:
            return answer(request, form, failure=failure)
        if not confirmed:
            return answer(request, form, review=result)
        return go_to(pages, topic_address(name), flash=change_flash(f"Topic {name} was changed.", result))


def _add_deleting(app: FastAPI, pages: Pages) -> None:
    async def answer(
        request: Request, name: str, *, typed: str = "", error: str = "", failure: OperationFailed | None = None
    ) -> Response:
        operations = pages.operations(request)
        detail = await operations.topic(name)
        view = await _view(operations, detail)
        review = None
        if failure is None:
            try:
                review = await operations.delete_topic(name, dry_run=True)
            except OperationFailed as refused:
                failure = refused
        return page_html(
            pages,
            request,
            "topic_delete.html",
            active=_ACTIVE,
            status=form_status(failure, is_wrong=bool(error)),
            name=name,
            own=topic_address(name),
            review=review,
            failure=failure,
            typed=typed,
            error=error,
            held=view.held if detail.summary.held else "",
            readers=view.readers,
            reader_total=view.reader_total,
            clients=view.client_total,
        )

    @app.get("/topics/{name}/delete", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def ask(request: Request, name: str) -> Response:
        return await answer(request, name)

    @app.post("/topics/{name}/delete", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def delete_topic(request: Request, name: str) -> Response:
        typed = (await form_of(request)).text("typed")
        if typed != name:
            return await answer(request, name, typed=typed, error=f"Type {name} to delete it.")
        try:
            result = await pages.operations(request).delete_topic(name)
        except OperationFailed as failure:
            return await answer(request, name, failure=failure)
        return go_to(pages, "/topics", flash=change_flash(f"Topic {name} was deleted.", result))


def _add_sending(app: FastAPI, pages: Pages) -> None:
    def answer(request: Request, form: MessageForm, failure: OperationFailed | None = None) -> Response:
        return page_html(
            pages,
            request,
            "topic_send.html",
            active=_ACTIVE,
            status=form_status(failure, is_wrong=bool(form.errors)),
            form=form,
            failure=failure,
            own=topic_address(form.topic),
        )

    async def message_type(request: Request, name: str) -> str:
        brokers = (await pages.operations(request).topic(name)).summary.brokers
        return brokers[0].message_type if brokers else ""

    @app.get("/topics/{name}/send", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def message_form(request: Request, name: str) -> Response:
        return answer(request, blank_message(name, await message_type(request, name)))

    @app.post("/topics/{name}/send", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def send(request: Request, name: str) -> Response:
        form = read_message_form(await form_of(request), topic=name, message_type=await message_type(request, name))
        if form.errors:
            return answer(request, form)
        try:
            receipt = await pages.operations(request).send(form.message)
        except OperationFailed as failure:
            return answer(request, form, failure)
        place = f"{receipt.broker_name}, queue {receipt.queue_id}, offset {receipt.queue_offset:,}"
        return go_to(
            pages,
            place_address(receipt.broker_name, name, receipt.queue_id, receipt.queue_offset),
            flash=Flash("ok", f"The message was stored in {receipt.duration_ms:.1f} ms on {place}."),
        )


async def _view(operations: Operations, detail: TopicDetail) -> TopicView:
    clients: Page[Client] | None = None
    problem = ""
    try:
        clients = await operations.clients(topic=detail.summary.name, limit=_CLIENTS_SHOWN)
    except OperationFailed as failure:
        problem = f"Clients cannot be listed: {problem_of(failure).detail}."
    return topic_view(detail, clients, clients_problem=problem)


async def _newest(operations: Operations, topic: str) -> tuple[tuple[MessageRow, ...], str]:
    try:
        found = await operations.search(MessageQuery(topic, limit=_NEWEST_SHOWN, body_bytes=PREVIEW_BYTES))
    except OperationFailed as failure:
        return (), f"Messages cannot be read: {problem_of(failure).detail}."
    return message_rows(found.messages), ""


async def _exists(operations: Operations, topic: str) -> bool:
    try:
        await operations.topic(topic)
    except OperationFailed as failure:
        if failure.kind is FailureKind.NOT_FOUND:
            return False
        raise
    return True


def _broker_names(pages: Pages) -> tuple[str, ...]:
    reading = pages.cluster.latest
    brokers = reading.state.brokers if reading is not None else ()
    return tuple(sorted({broker.broker_name for broker in brokers}))
