"""`/settings`: what brokers have set otherwise than by default, and how this console shows times to its reader."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, HTTPException, Request, Response

from tandemmq.admin.console.answers import Pages, form_of
from tandemmq.admin.console.frame import ZONE_COOKIE, Flash, zone_name, zone_names
from tandemmq.admin.operations.operations import Operations
from tandemmq.admin.operations.questions import OperationFailed
from tandemmq.admin.operations.values import Setting, Unseen

# Each is asked for all of its settings; beyond that a broker's own page tells.
_BROKERS_MAX: Final = 40
_ASKED_AT_ONCE: Final = 8
_YEAR_S: Final = 365 * 86_400
# What names a broker or its place is another one on each by its nature: its own page has it.
_OWN: Final = re.compile(r"broker(Id|Name|Role|IP\d)|.*(Port|Address|Endpoint)|storePath.*")


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting that some broker has otherwise than by default."""

    key: str
    # Value, where it comes from, and the brokers that have it.
    values: Sequence[tuple[str, str, Sequence[str]]]
    default_value: str
    description: str
    # Brokers differ in it.
    disagrees: bool


def setting_rows(settings: Mapping[str, Iterable[Setting]]) -> list[SettingRow]:
    """Those that are not the default somewhere, but for names and places: first in which brokers disagree, by name."""
    by_key: dict[str, dict[str, Setting]] = {}
    for broker, found in settings.items():
        for each in found:
            by_key.setdefault(each.key, {})[broker] = each
    rows = []
    for key, by_broker in by_key.items():
        if _OWN.fullmatch(key) or not any(each.differs for each in by_broker.values()):
            continue
        values: dict[tuple[str, str], list[str]] = {}
        for broker, each in sorted(by_broker.items()):
            values.setdefault((each.value, each.origin), []).append(broker)
        first = next(iter(by_broker.values()))
        rows.append(
            SettingRow(
                key=key,
                values=tuple((value, origin, tuple(brokers)) for (value, origin), brokers in values.items()),
                default_value=first.default_value,
                description=first.description,
                disagrees=len({value for value, _ in values}) > 1,
            )
        )
    return sorted(rows, key=lambda row: (not row.disagrees, row.key.lower()))


def add_settings_pages(app: FastAPI, pages: Pages) -> None:
    @app.get("/settings", include_in_schema=False)
    async def settings(request: Request) -> Response:
        reading = pages.cluster.latest
        brokers = [broker for broker in reading.state.brokers if broker.status is not None] if reading else []
        keys = [broker.key for broker in brokers]
        found, unseen = await _settings_of(pages.operations(request), keys[:_BROKERS_MAX])
        return pages.html(
            request,
            "settings.html",
            brokers=keys,
            asked=len(keys[:_BROKERS_MAX]),
            rows=setting_rows(found),
            unseen=unseen,
            zones=[(name, name) for name in zone_names()],
            current_zone=zone_name(),
        )

    @app.post("/settings/zone", include_in_schema=False)
    async def choose_zone(request: Request) -> Response:
        name = (await form_of(request)).text("zone")
        if name not in zone_names():
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"zone: {name[:80]!r} is none that is known here")
        response = pages.go_to("/settings", Flash("ok", f"Times are shown in {name} in this browser."))
        response.set_cookie(ZONE_COOKIE, name, max_age=_YEAR_S, httponly=True, samesite="lax")
        return response


async def _settings_of(
    operations: Operations, keys: Sequence[str]
) -> tuple[dict[str, Sequence[Setting]], list[Unseen]]:
    at_once = asyncio.Semaphore(_ASKED_AT_ONCE)
    found: dict[str, Sequence[Setting]] = {}
    unseen: list[Unseen] = []

    async def ask(key: str) -> None:
        async with at_once:
            try:
                found[key] = (await operations.broker_settings(key)).settings
            except OperationFailed as failure:
                unseen.append(Unseen(key, failure.cause or failure.problem))

    async with asyncio.TaskGroup() as tasks:
        for key in keys:
            tasks.create_task(ask(key))
    return found, unseen
