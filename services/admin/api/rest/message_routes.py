"""Messages over HTTP: search, one whole, a live tail, a test message."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from enum import Enum
from typing import Annotated, Final

from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.types import Receive, Scope, Send

from admin.api.acting_operations import OperationsDesk
from admin.api.actors import OPERATOR_ONLY
from admin.api.bounded_tail import BoundedTail
from admin.api.rest.message_documents import MessageDetailDocument, MessagePageDocument, MessageSummaryDocument
from admin.api.rest.request_parts import CHANGE_PROBLEMS, PROBLEMS, Body, moment_of, operations_of
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.interface import Operations
from admin.operations.message_limits import BODY_BYTES_MAX, PAGE_BODY_BYTES_MAX
from admin.operations.values import MessageQuery, SearchOrder, TestMessage, TestReceipt
from mqcore.clock import Clock

__all__ = ["SendBody", "add_message_routes"]

_TAGS: Final[list[str | Enum]] = ["messages"]
_TAIL_S_MAX: Final = 600

_Name = Annotated[str, Query(max_length=127)]
_QueueIdPath = Annotated[int, Path(ge=0, lt=1 << 31)]
_OffsetPath = Annotated[int, Path(ge=0, lt=1 << 63)]
_Offset = Annotated[int, Query(ge=0, lt=1 << 63)]
_BodyBytes = Annotated[int, Query(ge=0, le=BODY_BYTES_MAX, description="Bytes of the body that are wanted.")]
_ListBodyBytes = Annotated[int, Query(ge=0, le=PAGE_BODY_BYTES_MAX, description="Bytes of each body that are wanted.")]
_Tags = Annotated[list[str], Query(max_length=100, description="Only these tags; may be given more than once.")]


class SendBody(Body):
    """A message to send; its body as text or as base64."""

    body_text: str = Field("", max_length=BODY_BYTES_MAX)
    body_base64: str = Field("", max_length=BODY_BYTES_MAX * 4 // 3 + 4)
    tag: str = Field("", max_length=127)
    keys: list[Annotated[str, Field(max_length=200)]] = Field([], max_length=64)
    properties: dict[Annotated[str, Field(max_length=127)], Annotated[str, Field(max_length=32_767)]] = Field(
        {}, max_length=200
    )
    message_group: str = Field("", max_length=200, description="FIFO topics need one.")


def add_message_routes(app: FastAPI, desk: OperationsDesk, *, clock: Clock) -> None:
    """Adds the routes."""
    acting = operations_of(desk)

    @app.get("/api/v1/topics/{topic}/messages", tags=_TAGS, responses=PROBLEMS)
    async def search(
        topic: str,
        key: Annotated[str, Query(max_length=200, description="Only messages with this key.")] = "",
        broker_name: _Name = "",
        queue_id: Annotated[int, Query(ge=-1, lt=1 << 31, description="Needs broker_name; -1: all queues.")] = -1,
        start_offset: _Offset = 0,
        start: Annotated[str, Query(max_length=64, description="2026-11-22T04:20Z, or 2h ago.")] = "",
        end: Annotated[str, Query(max_length=64, description="Likewise.")] = "",
        order: SearchOrder = SearchOrder.NEWEST,
        tag: _Tags = [],  # noqa: B006
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        body_bytes: _ListBodyBytes = 0,
        page_token: Annotated[str, Query(max_length=4_000, description="As the page before gave it.")] = "",
        operations: Operations = acting,
    ) -> MessagePageDocument:
        """Messages of a topic: the newest, of a time range, with a key, or of one queue from an offset on."""
        now_ms = clock.wall_ms()
        query = MessageQuery(
            topic=topic,
            key=key,
            queue_id=queue_id,
            start_offset=start_offset,
            broker_name=broker_name,
            start_ms=moment_of(start, field="start", now_ms=now_ms),
            end_ms=moment_of(end, field="end", now_ms=now_ms),
            order=order,
            tags=tag,
            limit=limit,
            body_bytes=body_bytes,
            page_token=page_token,
        )
        return MessagePageDocument.of(await operations.search(query))

    @app.post("/api/v1/topics/{topic}/messages", tags=_TAGS, responses=CHANGE_PROBLEMS, dependencies=[OPERATOR_ONLY])
    async def send(topic: str, body: SendBody, operations: Operations = acting) -> TestReceipt:
        """Sends a message as a client would. 409 says what the broker said."""
        message = TestMessage(
            topic=topic,
            body=_body_of(body),
            tag=body.tag,
            keys=body.keys,
            properties=body.properties,
            message_group=body.message_group,
        )
        return await operations.send(message)

    @app.get("/api/v1/topics/{topic}/tail", tags=_TAGS, responses=PROBLEMS, response_class=StreamingResponse)
    async def tail(
        request: Request,
        topic: str,
        tag: _Tags = [],  # noqa: B006
        seconds: Annotated[int, Query(ge=1, le=_TAIL_S_MAX, description="The tail ends then.")] = 60,
        limit: Annotated[int, Query(ge=1, le=100_000, description="Or after so many messages.")] = 1_000,
        body_bytes: _ListBodyBytes = 4_096,
        operations: Operations = acting,
    ) -> StreamingResponse:
        """Messages as they come in, from now on: a line of JSON each. Ends by itself, or when you go."""
        found = BoundedTail(
            operations.tail(topic, tags=tag, body_bytes=body_bytes),
            limit=limit,
            limit_ms=seconds * 1_000,
            is_gone=request.is_disconnected,
            clock=clock,
        )
        # What is wrong with the question shows before the answer begins.
        await found.open()

        async def lines() -> AsyncIterator[str]:
            async for message in found:
                yield json.dumps(asdict(MessageSummaryDocument.of(message)), ensure_ascii=False) + "\n"

        return _TailResponse(found, lines())

    @app.get("/api/v1/topics/{topic}/messages/{broker_name}/{queue_id}/{queue_offset}", tags=_TAGS, responses=PROBLEMS)
    async def message_at(
        topic: str,
        broker_name: str,
        queue_id: _QueueIdPath,
        queue_offset: _OffsetPath,
        body_bytes: _BodyBytes = 65_536,
        operations: Operations = acting,
    ) -> MessageDetailDocument:
        """A message whole, by its place in a queue, with its copies compared byte by byte."""
        found = await operations.message_at(broker_name, topic, queue_id, queue_offset, body_bytes=body_bytes)
        return MessageDetailDocument.of(found)

    @app.get("/api/v1/broker-groups/{broker_name}/messages/{physical_offset}", tags=_TAGS, responses=PROBLEMS)
    async def message(
        broker_name: str, physical_offset: _OffsetPath, body_bytes: _BodyBytes = 65_536, operations: Operations = acting
    ) -> MessageDetailDocument:
        """A message whole, by its place in the CommitLog, with its copies compared byte by byte."""
        return MessageDetailDocument.of(await operations.message(broker_name, physical_offset, body_bytes=body_bytes))

    @app.get("/api/v1/messages", tags=_TAGS, responses=PROBLEMS)
    async def find_message(
        id: Annotated[str, Query(min_length=1, max_length=256)],  # noqa: A002 - the name in the address
        topic: _Name = "",
        operations: Operations = acting,
    ) -> list[MessageSummaryDocument]:
        """Messages by the id a client gave them, or by an id of address and offset; newest first."""
        return [MessageSummaryDocument.of(found) for found in await operations.find_message(id, topic=topic)]


class _TailResponse(StreamingResponse):
    """Ends its tail, also when nobody is left to read the first line."""

    def __init__(self, tail: BoundedTail, lines: AsyncIterator[str]) -> None:
        super().__init__(lines, media_type="application/x-ndjson", headers={"cache-control": "no-store"})
        self._tail = tail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._tail.close()


def _body_of(body: SendBody) -> bytes:
    if body.body_text and body.body_base64:
        raise OperationFailed(FailureKind.INVALID, "send one of body_text and body_base64")
    if not body.body_base64:
        return body.body_text.encode()
    try:
        return base64.b64decode(body.body_base64, validate=True)
    except binascii.Error as error:
        raise OperationFailed(FailureKind.INVALID, f"body_base64: {error}") from error
