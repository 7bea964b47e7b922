"""Traces as JSON. Unlike the rest of the state these ask the brokers when somebody wants them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import JSONResponse

from admin.cluster_traces import TraceSource
from admin.trace_documents import findings_document, list_document
from admin.trace_findings import TraceFindings

__all__ = ["add_traces"]

_LISTED: Final = 50
_KEY_MAX: Final = 256
_NO_STORE: Final = {"cache-control": "no-store"}

_Key = Annotated[str, Query(max_length=_KEY_MAX)]


def add_traces(app: FastAPI, traces: TraceSource) -> None:
    """Adds the routes."""

    @app.get("/api/v1/traces", tags=["traces"])
    async def newest_traces(
        notable: bool = False, count: Annotated[int, Query(ge=1, le=200)] = _LISTED
    ) -> JSONResponse:
        """The newest traces that brokers remember, slow and failed ones first; with `notable` no others."""
        return JSONResponse(list_document(await traces.newest(count=count, notable_only=notable)), headers=_NO_STORE)

    @app.get("/api/v1/traces/{trace_id}", tags=["traces"], responses={404: {"description": "Not known."}})
    async def trace(trace_id: str) -> JSONResponse:
        """A trace by its id or a whole traceparent, with the slave's part and the deliveries of its message."""
        return _answer(await traces.find(_checked(trace_id)))

    @app.get("/api/v1/messages/{message_id}", tags=["traces"], responses={404: {"description": "Not known."}})
    async def message(message_id: str, topic: _Key = "") -> JSONResponse:
        """What is known of a message: its traces, where it lies, and which replicas hold it."""
        return _answer(await traces.find(_checked(message_id), topic=topic))


def _checked(key: str) -> str:
    if len(key) > _KEY_MAX:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "no id is as long as that")
    return key


def _answer(findings: TraceFindings) -> JSONResponse:
    document: dict[str, Any] = findings_document(findings)
    known = findings.spans or findings.copies
    return JSONResponse(document, HTTPStatus.OK if known else HTTPStatus.NOT_FOUND, headers=_NO_STORE)
