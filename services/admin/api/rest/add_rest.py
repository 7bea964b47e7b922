"""All routes together."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter

from admin.api.acting_operations import OperationsDesk
from admin.api.problems import Problem
from admin.api.rest.broker_routes import add_broker_routes
from admin.api.rest.group_routes import add_group_routes
from admin.api.rest.message_routes import add_message_routes
from admin.api.rest.topic_routes import add_topic_routes
from mqcore.clock import Clock

__all__ = ["add_rest"]


def add_rest(app: FastAPI, desk: OperationsDesk, *, clock: Clock) -> None:
    """Adds them. Before the routes of traces, whose address of a message would take in others."""
    add_topic_routes(app, desk)
    add_group_routes(app, desk, clock=clock)
    add_message_routes(app, desk, clock=clock)
    add_broker_routes(app, desk)
    _describe_problems(app)


def _describe_problems(app: FastAPI) -> None:
    """Adds to the API's description what its routes refer to."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        description = describe()
        description["components"]["schemas"].setdefault("Problem", TypeAdapter(Problem).json_schema())
        return description

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it
