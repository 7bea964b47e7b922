"""Pages of messages: finding them, watching them come in, and one of them whole."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import FastAPI, HTTPException, Query, Request, Response

from admin.api.console import Pages
from admin.api.pages.change_answers import form_status
from admin.api.pages.newest_messages import NewestMessages
from admin.api.pages.page_answers import go_to, page_html
from admin.body_views import BodyForm
from admin.moments import FORMS
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.interface import Operations
from admin.operations.topic_names import CATEGORIES, DELAYED_TOPIC, HALF_TOPIC
from admin.operations.values import MessageDetail, MessagePage, MessageQuery, PageRequest
from admin.web.message_page import BODY_BYTES, QueuePlace, message_view
from admin.web.message_rows import PREVIEW_BYTES, message_rows
from admin.web.message_search import FIELDS, MessageSearch, next_address, read_search
from admin.web.page_addresses import message_address, messages_address, topic_address
from admin.web.waiting_messages import WaitingKind, waiting_kind

__all__ = ["add_message_pages"]

_ACTIVE: Final = "messages"
_TAIL_MS: Final = 2_000
_WAITING_SHOWN: Final = 20
_SUGGESTED: Final = 5
_DOWNLOAD_BYTES: Final = 4 << 20
_NOTHING: Final = MessagePage((), "", 0)

Name = Annotated[str, Query(max_length=255)]
Key = Annotated[str, Query(max_length=512)]
Token = Annotated[str, Query(max_length=2_048)]
Number = Annotated[int, Query(ge=0, le=(1 << 63) - 1)]


def add_message_pages(app: FastAPI, pages: Pages) -> None:
    """Adds the routes."""
    _add_search(app, pages)
    _add_tail(app, pages)
    _add_waiting(app, pages)
    _add_message(app, pages)


def _add_search(app: FastAPI, pages: Pages) -> None:
    @app.get("/messages", include_in_schema=False)
    async def messages(request: Request, page_token: Token = "") -> Response:
        typed = {name: request.query_params.get(name, "")[:512] for name in FIELDS}
        search = read_search(typed, page_token=page_token, now_ms=pages.clock.wall_ms())
        operations = pages.operations(request)
        page, failure = _NOTHING, None
        suggestions: Sequence[tuple[str, str]] = ()
        if search.query is not None:
            try:
                page = await operations.search(search.query)
            except OperationFailed as failed:
                failure = failed
                if failed.kind is FailureKind.NOT_FOUND:
                    suggestions = await _similar_topics(operations, search.query.topic)
        return _search_page(pages, request, search, page, failure=failure, suggestions=suggestions)


def _add_tail(app: FastAPI, pages: Pages) -> None:
    newest = NewestMessages(pages.clock)

    @app.get("/messages/tail", include_in_schema=False)
    async def tail(
        request: Request, topic: Name = "", tag: Name = "", since: Number = 0, paused: bool = False
    ) -> Response:
        topic, tag = topic.strip(), tag.strip()
        if not topic:
            return go_to(pages, "/messages")
        if not since:
            # The address keeps the moment, so that a renewed page marks what came after it was opened.
            since_ms = pages.clock.wall_ms()
            return go_to(pages, _tail_address(topic, tag, since_ms))
        page, failure = None, None
        try:
            page = await newest.of(pages.operations(request), topic, tag)
        except OperationFailed as failed:
            failure = failed
        return page_html(
            pages,
            request,
            "messages_tail.html",
            active=_ACTIVE,
            status=form_status(failure, is_wrong=False),
            live_ms=0 if paused or failure is not None else _TAIL_MS,
            topic=topic,
            topic_href=topic_address(topic),
            tag=tag,
            paused=paused,
            since_ms=since,
            every_s=_TAIL_MS // 1_000,
            page=page,
            rows=message_rows(page.messages, new_from_ms=since) if page is not None else (),
            failure=failure,
        )


def _add_waiting(app: FastAPI, pages: Pages) -> None:
    @app.get("/messages/waiting", include_in_schema=False)
    async def waiting(request: Request) -> Response:
        operations = pages.operations(request)
        async with asyncio.TaskGroup() as group:
            kinds = [group.create_task(_waiting(operations, topic)) for topic in (DELAYED_TOPIC, HALF_TOPIC)]
        return page_html(
            pages, request, "messages_waiting.html", active=_ACTIVE, kinds=[kind.result() for kind in kinds]
        )


def _add_message(app: FastAPI, pages: Pages) -> None:
    async def detail(request: Request, broker: str, offset: int) -> MessageDetail:
        return await pages.operations(request).message(broker, offset, body_bytes=BODY_BYTES)

    async def by_id(request: Request, message_id: str, topic: str) -> Response:
        """The message, if there is one; else a list of all that have this id."""
        operations = pages.operations(request)
        found = await operations.find_message(message_id, topic=topic)
        if len(found) == 1:
            return go_to(pages, message_address(found[0].broker_name, found[0].physical_offset))
        search = MessageSearch(dict.fromkeys(FIELDS, ""), {}, None)
        return _search_page(pages, request, search, MessagePage(found, "", 0), message_id=message_id, id_topic=topic)

    @app.get("/message", include_in_schema=False)
    async def message(
        request: Request,
        id: Key = "",  # noqa: A002 - the name in the address
        broker: Name = "",
        offset: Number | None = None,
        topic: Name = "",
        queue: Annotated[int, Query(ge=0, le=1 << 31)] = 0,
        queue_offset: Number | None = None,
        view: BodyForm | None = None,
        in_: Annotated[str, Query(alias="in", max_length=255)] = "",
    ) -> Response:
        if id.strip():
            return await by_id(request, id.strip(), in_.strip())
        if broker and offset is not None:
            found = await detail(request, broker, offset)
        elif broker and topic and queue_offset is not None:
            place = QueuePlace(broker, topic, queue, queue_offset)
            try:
                found = await pages.operations(request).message_at(
                    broker, topic, queue, queue_offset, body_bytes=BODY_BYTES
                )
            except OperationFailed as failure:
                if failure.kind is not FailureKind.NOT_FOUND:
                    raise
                return _no_message_page(pages, request, place, failure)
        else:
            return go_to(pages, "/messages")
        return page_html(pages, request, "message.html", active=_ACTIVE, view=message_view(found, wanted=view))

    @app.get("/message/body", include_in_schema=False)
    async def body(request: Request, broker: Name, offset: Number) -> Response:
        found = await pages.operations(request).message(broker, offset, body_bytes=_DOWNLOAD_BYTES)
        if found.message.body_problem:
            raise HTTPException(HTTPStatus.CONFLICT, f"the body cannot be read: {found.message.body_problem}")
        data = found.message.body
        # Unpacked it may be longer than stored; of one that ends just there nobody can tell.
        is_cut = len(data) >= _DOWNLOAD_BYTES and (
            bool(found.message.compression) or found.message.body_size > len(data)
        )
        name = f"message-{offset}.first-{_DOWNLOAD_BYTES >> 20}-MiB.bin" if is_cut else f"message-{offset}.bin"
        headers = {
            "cache-control": "no-store",
            # Saved, never shown: what somebody sent is no page of ours.
            "content-disposition": f'attachment; filename="{name}"',
        }
        return Response(data, media_type="application/octet-stream", headers=headers)


def _no_message_page(pages: Pages, request: Request, place: QueuePlace, failure: OperationFailed) -> Response:
    return page_html(
        pages,
        request,
        "message_missing.html",
        active=_ACTIVE,
        status=form_status(failure, is_wrong=False),
        place=place,
        failure=failure,
    )


def _search_page(
    pages: Pages,
    request: Request,
    search: MessageSearch,
    page: MessagePage,
    *,
    message_id: str = "",
    id_topic: str = "",
    failure: OperationFailed | None = None,
    suggestions: Sequence[tuple[str, str]] = (),
) -> Response:
    typed: Mapping[str, str] = search.typed
    return page_html(
        pages,
        request,
        "messages.html",
        active=_ACTIVE,
        status=form_status(failure, is_wrong=bool(search.errors)),
        typed=typed,
        errors=search.errors,
        id=message_id,
        id_topic=id_topic,
        by_id=bool(message_id),
        searched=bool(message_id) or search.query is not None,
        page=page,
        rows=message_rows(page.messages),
        next=next_address(search, page.next_page_token),
        failure=failure,
        suggestions=suggestions,
        moment_forms=FORMS,
    )


async def _similar_topics(operations: Operations, name: str) -> Sequence[tuple[str, str]]:
    try:
        found = await operations.topics(search=name, categories=CATEGORIES, page=PageRequest(size=_SUGGESTED))
    except OperationFailed:
        # The failure that made us look is told anyway.
        return ()
    return [(topic.name, messages_address(topic=topic.name)) for topic in found.items]


async def _waiting(operations: Operations, topic: str) -> WaitingKind:
    query = MessageQuery(topic, limit=_WAITING_SHOWN, body_bytes=PREVIEW_BYTES)
    try:
        return waiting_kind(topic, await operations.topic(topic), await operations.search(query))
    except OperationFailed as failure:
        if failure.kind is FailureKind.NOT_FOUND:
            return waiting_kind(topic, None, _NOTHING)
        return replace(waiting_kind(topic, None, _NOTHING), problem=f"It cannot be read: {failure.problem}.")


def _tail_address(topic: str, tag: str, since_ms: int) -> str:
    address = messages_address(topic=topic, tag=tag, since=since_ms)
    return address.replace("/messages?", "/messages/tail?")
