"""Groups, clients and dead letters over HTTP."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

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
    moment_of,
    operations_of,
)
from admin.api.rest.topic_documents import GroupDocument, OffsetResetDocument
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.interface import Operations
from admin.operations.values import (
    ChangeResult,
    Client,
    DeadLetterResult,
    GroupChange,
    GroupSummary,
    Page,
    PageRequest,
    ResetTarget,
)
from mqcore.clock import Clock

__all__ = ["GroupBody", "ResendBody", "ResetBody", "add_group_routes"]

_TAGS: Final[list[str | Enum]] = ["groups"]


class GroupBody(Body):
    """A group as it is to be. What is left out stays as it is, or is the default."""

    ordered: bool | None = Field(None, description="Deliver message groups in order.")
    retry_max_times: int = Field(0, ge=0, le=1_000, description="Deliveries before the dead letter queue; 0: as it is.")
    enabled: bool | None = Field(None, description="false: its consumers get nothing.")


class ResetBody(Body):
    """Where a group goes on in a topic; exactly one of `time`, `earliest` and `latest`."""

    topic: str = Field(max_length=127)
    time: str = Field("", max_length=64, description="The first message stored then: 2026-11-22T04:20Z, or 2h ago.")
    earliest: bool = Field(False, description="The oldest message still held.")
    latest: bool = Field(False, description="Past the newest message.")


class ResendBody(Body):
    """Dead letters of one broker group, by their offsets in the dead letter queue."""

    broker_name: str = Field(max_length=127)
    queue_offsets: list[Annotated[int, Field(ge=0, lt=1 << 63)]] = Field(min_length=1, max_length=100)


def add_group_routes(app: FastAPI, desk: OperationsDesk, *, clock: Clock) -> None:
    """Adds the routes."""
    acting = operations_of(desk)

    @app.get("/api/v1/groups", tags=_TAGS, responses=PROBLEMS)
    async def groups(
        search: Annotated[str, Query(max_length=127, description="A part of the name; case does not matter.")] = "",
        page: PageNumber = 1,
        page_size: PageSize = 50,
        operations: Operations = acting,
    ) -> Page[GroupSummary]:
        """Groups by name, with their lag."""
        return await operations.groups(search=search, page=PageRequest(page, page_size))

    @app.get("/api/v1/groups/{name}", tags=_TAGS, responses=PROBLEMS)
    async def group(name: str, operations: Operations = acting) -> GroupDocument:
        """A group with its lag by queue and its members."""
        return GroupDocument.of(await operations.group(name))

    @app.put("/api/v1/groups/{name}", tags=_TAGS, responses=CHANGE_PROBLEMS, dependencies=[OPERATOR_ONLY])
    async def put_group(
        name: str, body: GroupBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> ChangeResult:
        """Creates or changes a group."""
        change = GroupChange(
            name=name, ordered=body.ordered, retry_max_times=body.retry_max_times, enabled=body.enabled
        )
        return await operations.put_group(change, dry_run=dry_run)

    @app.delete("/api/v1/groups/{name}", tags=_TAGS, responses=CHANGE_PROBLEMS, dependencies=[OPERATOR_ONLY])
    async def delete_group(
        name: str,
        even_with_members: Annotated[bool, Query(description="Although consumers of it are connected.")] = False,
        dry_run: DryRun = False,
        operations: Operations = acting,
    ) -> ChangeResult:
        """Removes a group with its progress."""
        return await operations.delete_group(name, even_with_members=even_with_members, dry_run=dry_run)

    @app.post(
        "/api/v1/groups/{name}/offsets/reset", tags=_TAGS, responses=CHANGE_PROBLEMS, dependencies=[OPERATOR_ONLY]
    )
    async def reset_offsets(
        name: str, body: ResetBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> OffsetResetDocument:
        """Sets where a group goes on in a topic. Messages in clients' hands may be consumed twice."""
        target = _target(body, now_ms=clock.wall_ms())
        moves = await operations.reset_offsets(name, body.topic, target, dry_run=dry_run)
        return OffsetResetDocument(dry_run=dry_run, moves=moves)

    @app.post(
        "/api/v1/groups/{name}/dead-letters/resend", tags=_TAGS, responses=CHANGE_PROBLEMS, dependencies=[OPERATOR_ONLY]
    )
    async def resend_dead_letters(
        name: str, body: ResendBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> list[DeadLetterResult]:
        """Puts dead letters back into the topics they came from. To list them, search the topic %DLQ% + group."""
        return list(await operations.resend_dead_letters(name, body.broker_name, body.queue_offsets, dry_run=dry_run))

    @app.get("/api/v1/clients", tags=["clients"], responses=PROBLEMS)
    async def clients(
        group: Annotated[str, Query(max_length=127, description="Only consumers of this group.")] = "",
        topic: Annotated[str, Query(max_length=127, description="Only clients that use this topic.")] = "",
        limit: Annotated[int, Query(ge=1, le=1_000)] = 200,
        operations: Operations = acting,
    ) -> Page[Client]:
        """Connected clients of all brokers, the one heard of last first."""
        return await operations.clients(group=group, topic=topic, limit=limit)


def _target(body: ResetBody, *, now_ms: int) -> ResetTarget:
    if sum((bool(body.time), body.earliest, body.latest)) != 1:
        raise OperationFailed(
            FailureKind.INVALID,
            "exactly one of time, earliest and latest says where the group goes on",
            remedy='send for example {"topic": "orders", "time": "2h"}',
        )
    if body.time:
        return ResetTarget(time_ms=moment_of(body.time, field="time", now_ms=now_ms))
    return ResetTarget(earliest=body.earliest, latest=body.latest)
