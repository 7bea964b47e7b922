"""Settings of brokers, write permission and events over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request
from pydantic import Field

from admin.api.acting_operations import OperationsDesk
from admin.api.actors import OPERATOR_ONLY, Actor, current_actor
from admin.api.rest.request_parts import CHANGE_PROBLEMS, PROBLEMS, Body, DryRun, operations_of
from admin.operations.interface import Operations
from admin.operations.values import (
    AcceptedLoss,
    BrokerSettings,
    ChangeResult,
    ConfigChange,
    EventLine,
    KeptTail,
    Setting,
    TailResult,
    Unseen,
)

__all__ = ["EventsDocument", "SettingsDocument", "add_broker_routes"]

_TAGS: Final[list[str | Enum]] = ["brokers"]


class SettingsBody(Body):
    """Settings to change, all or none, until the broker's next start."""

    values: dict[Annotated[str, Field(max_length=100)], Annotated[str, Field(max_length=4_000)]] = Field(
        min_length=1, max_length=200
    )


class WritePermissionBody(Body):
    """Whether producers get the queues of a broker group."""

    writable: bool


class AcceptLossBody(Body):
    """What is given up: all that a dry run told."""

    names: list[Annotated[str, Field(max_length=200)]] = Field(
        default_factory=list, max_length=200, description="Ids of disks, and files of tables."
    )


class RestoreBody(Body):
    """Where to begin."""

    page_token: str = Field(default="", max_length=2_000, description="Of the answer before; empty: at its start.")


@dataclass(frozen=True)
class KeptTailsDocument:
    """What was cut off, by broker and place."""

    tails: Sequence[KeptTail]
    unseen: Sequence[Unseen]


@dataclass(frozen=True)
class SettingDocument:
    """A setting of one broker. Secrets are masked."""

    key: str
    value: str
    default_value: str
    # True when it is not the default.
    differs: bool
    # default, configured or changed.
    origin: str
    changeable: bool
    description: str

    @staticmethod
    def of(setting: Setting) -> SettingDocument:
        """Of its value."""
        return SettingDocument(
            key=setting.key,
            value=setting.value,
            default_value=setting.default_value,
            differs=setting.differs,
            origin=setting.origin,
            changeable=setting.changeable,
            description=setting.description,
        )


@dataclass(frozen=True)
class SettingsDocument:
    """A broker's settings."""

    broker: str
    settings: Sequence[SettingDocument]

    @staticmethod
    def of(settings: BrokerSettings) -> SettingsDocument:
        """Of its value."""
        return SettingsDocument(settings.broker, [SettingDocument.of(setting) for setting in settings.settings])


@dataclass(frozen=True)
class EventsDocument:
    """What happened lately, newest first."""

    events: Sequence[EventLine]
    unseen: Sequence[Unseen]


def add_broker_routes(app: FastAPI, desk: OperationsDesk) -> None:
    """Adds the routes."""
    acting = operations_of(desk)

    @app.get("/api/v1/brokers/{broker}/settings", tags=_TAGS, responses=PROBLEMS)
    async def settings(broker: str, operations: Operations = acting) -> SettingsDocument:
        """Settings of a broker, named as in `broker-a:0`."""
        return SettingsDocument.of(await operations.broker_settings(broker))

    @app.patch("/api/v1/brokers/{broker}/settings", tags=_TAGS, responses=CHANGE_PROBLEMS, dependencies=[OPERATOR_ONLY])
    async def update_settings(
        broker: str, body: SettingsBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> list[ConfigChange]:
        """Changes settings of a broker until its next start."""
        return list(await operations.update_settings(broker, body.values, dry_run=dry_run))

    @app.put(
        "/api/v1/broker-groups/{broker_name}/write-permission",
        tags=_TAGS,
        responses=CHANGE_PROBLEMS,
        dependencies=[OPERATOR_ONLY],
    )
    async def set_write_permission(
        broker_name: str, body: WritePermissionBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> ChangeResult:
        """Takes a broker group out of producers' routes at every NameServer, or puts it back."""
        return await operations.set_write_permission(broker_name, writable=body.writable, dry_run=dry_run)

    @app.post(
        "/api/v1/broker-groups/{broker_name}/accept-loss",
        tags=_TAGS,
        responses=CHANGE_PROBLEMS,
        dependencies=[OPERATOR_ONLY],
    )
    async def accept_loss(
        broker_name: str, body: AcceptLossBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> AcceptedLoss:
        """Has a master that waits at its start serve without what it waits for. What only the missing disks hold is
        lost: with `dry_run` it tells in numbers what that is, and `names` says all of it again."""
        return await operations.accept_loss(broker_name, names=body.names, dry_run=dry_run)

    @app.get("/api/v1/kept-tails", tags=_TAGS, responses=PROBLEMS)
    async def kept_tails(operations: Operations = acting) -> KeptTailsDocument:
        """What was cut off the logs of all brokers, and kept."""
        tails, unseen = await operations.kept_tails()
        return KeptTailsDocument(tails, unseen)

    @app.post(
        "/api/v1/brokers/{broker}/kept-tails/{name}/restore",
        tags=_TAGS,
        responses=CHANGE_PROBLEMS,
        dependencies=[OPERATOR_ONLY],
    )
    async def restore_kept_tail(
        broker: str, name: str, body: RestoreBody, dry_run: DryRun = False, operations: Operations = acting
    ) -> TailResult:
        """Stores again what is missing of a kept tail, some 4 MiB of it at a time, under the ids it had. Messages that
        some broker group holds are left alone, so repeating it is safe."""
        return await operations.restore_kept_tail(broker, name, page_token=body.page_token, dry_run=dry_run)

    @app.get("/api/v1/events", tags=["events"], responses=PROBLEMS)
    async def events(
        limit: Annotated[int, Query(ge=1, le=1_000)] = 200, operations: Operations = acting
    ) -> EventsDocument:
        """What happened lately on all brokers, and what operators did through this service, newest first."""
        lines, unseen = await operations.events(limit=limit)
        return EventsDocument(lines, unseen)

    @app.get("/api/v1/caller", tags=["events"], responses={401: PROBLEMS[401]})
    async def caller(request: Request) -> Actor:
        """Who you are to this service, and what you may do."""
        return current_actor(request)
