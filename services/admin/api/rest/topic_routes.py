"""Topics over HTTP."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final, Literal

from fastapi import FastAPI, Query
from pydantic import Field

from admin.api.acting_operations import OperationsDesk
from admin.api.actors import OPERATOR_ONLY
from admin.api.rest.request_parts import (
    CHANGE_PROBLEMS,
    PROBLEMS,
    Body,
    DryRun,
    PageNumber,
    PageSize,
    operations_of,
)
from admin.api.rest.topic_documents import TopicDocument
from admin.operations.interface import Operations
from admin.operations.values import ChangeResult, Page, PageRequest, Route, TopicChange, TopicSummary, Unseen

__all__ = ["TopicBody", "TopicRoutes", "add_topic_routes"]

_TAGS: Final[list[str | Enum]] = ["topics"]

Category = Literal["topic", "retry", "dead letter", "system"]


class TopicBody(Body):
    """A topic as it is to be. What is left out stays as it is, or is the brokers' default."""

    read_queue_count: int = Field(0, ge=0, le=1_024, description="Queues to receive from; 0: as it is.")
    write_queue_count: int = Field(0, ge=0, le=1_024, description="Queues to send to; 0: as it is.")
    permission: int = Field(0, ge=0, le=7, description="4 to receive, 2 to send, together 6; 0: as it is.")
    message_type: str = Field("", max_length=32, description="NORMAL or FIFO; empty: as it is.")
    broker_names: list[Annotated[str, Field(max_length=127)]] = Field(
        [], max_length=1_000, description="Only on these broker groups; empty: on all."
    )


class TopicRoutes(Body):
    """What each NameServer says."""

    routes: list[Route]
    unseen: list[Unseen]


def add_topic_routes(app: FastAPI, desk: OperationsDesk) -> None:
    """Adds the routes."""
    acting = operations_of(desk)

    @app.get("/api/v1/topics", tags=_TAGS, responses=PROBLEMS)
    async def topics(
        search: Annotated[str, Query(max_length=127, description="A part of the name; case does not matter.")] = "",
        category: Annotated[list[Category], Query(description="May be given more than once.")] = ["topic"],  # noqa: B006
        page: PageNumber = 1,
        page_size: PageSize = 50,
        operations: Operations = acting,
    ) -> Page[TopicSummary]:
        """Topics by name, with their counts."""
        return await operations.topics(search=search, categories=category, page=PageRequest(page, page_size))

    @app.get("/api/v1/topics/{name}", tags=_TAGS, responses=PROBLEMS)
    async def topic(name: str, operations: Operations = acting) -> TopicDocument:
        """A topic with its queues, what NameServers say of it, and the groups that read it."""
        return TopicDocument.of(await operations.topic(name))

    @app.get("/api/v1/topics/{name}/routes", tags=_TAGS, responses=PROBLEMS)
    async def topic_routes(name: str, operations: Operations = acting) -> TopicRoutes:
        """What each NameServer says of a topic."""
        routes, unseen = await operations.topic_routes(name)
        return TopicRoutes(routes=list(routes), unseen=list(unseen))

    @app.put("/api/v1/topics/{name}", tags=_TAGS, responses=CHANGE_PROBLEMS, dependencies=[OPERATOR_ONLY])
    async def put_topic(
        name: str, body: TopicBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> ChangeResult:
        """Creates or changes a topic, and waits until every NameServer routes to it."""
        change = TopicChange(
            name=name,
            read_queue_count=body.read_queue_count,
            write_queue_count=body.write_queue_count,
            permission=body.permission,
            message_type=body.message_type,
            broker_names=body.broker_names,
        )
        return await operations.put_topic(change, dry_run=dry_run)

    @app.delete("/api/v1/topics/{name}", tags=_TAGS, responses=CHANGE_PROBLEMS, dependencies=[OPERATOR_ONLY])
    async def delete_topic(name: str, dry_run: DryRun = False, operations: Operations = acting) -> ChangeResult:
        """Removes a topic from all masters. Nobody can consume its messages while there is no topic of that name.

        A topic made again under the name has them until they expire; groups begin in it as new ones do.
        """
        return await operations.delete_topic(name, dry_run=dry_run)
