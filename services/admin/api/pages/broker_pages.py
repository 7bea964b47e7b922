"""`/brokers`: all members, one of them, its settings, and its group's write permission."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import FastAPI, Query, Request, Response

from admin.api.actors import OPERATOR_ONLY
from admin.api.console import Pages
from admin.api.forms import form_of
from admin.api.pages.change_answers import change_flash, form_status
from admin.api.pages.page_answers import go_to, page_html
from admin.cluster_state import BrokerState, ClusterState
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.values import ChangeResult, ConfigChange, Setting
from admin.web.broker_page import broker_view, brokers_page
from admin.web.frame import Flash
from admin.web.page_templates import segment
from admin.web.time_range import RANGES, time_range

__all__ = ["add_broker_pages"]

_ACTIVE: Final = "brokers"
_Text = Annotated[str, Query(max_length=255)]


def add_broker_pages(app: FastAPI, pages: Pages) -> None:
    """Adds the routes."""
    _add_state(app, pages)
    _add_settings(app, pages)
    _add_setting(app, pages)
    _add_write_permission(app, pages)


def _add_state(app: FastAPI, pages: Pages) -> None:
    @app.get("/brokers", include_in_schema=False)
    async def brokers(request: Request, search: _Text = "", page: Annotated[int, Query(ge=1)] = 1) -> Response:
        reading = pages.cluster.latest
        state = reading.state if reading is not None else ClusterState(name_servers=(), brokers=())
        return page_html(
            pages,
            request,
            "brokers.html",
            active=_ACTIVE,
            live_ms=pages.refresh_ms,
            is_read=reading is not None,
            page=brokers_page(state, pages.history, search=search.strip(), number=page),
            search=search,
        )

    @app.get("/brokers/{key}", include_in_schema=False)
    async def broker(request: Request, key: str, range: _Text = "") -> Response:  # noqa: A002 - the name in the address
        found = _broker(pages, key)
        chosen = time_range(range)
        findings = pages.cluster.latest.findings if pages.cluster.latest is not None else ()
        return page_html(
            pages,
            request,
            "broker.html",
            active=_ACTIVE,
            live_ms=pages.refresh_ms,
            tab="state",
            broker=found,
            findings=[finding for finding in findings if finding.subject == found.key],
            view=broker_view(found, pages.history, now_wall_ms=pages.clock.wall_ms(), range_ms=chosen.duration_ms),
            range=chosen,
            ranges=RANGES,
        )


def _add_settings(app: FastAPI, pages: Pages) -> None:
    @app.get("/brokers/{key}/settings", include_in_schema=False)
    async def settings(request: Request, key: str, search: _Text = "") -> Response:
        found = _broker(pages, key)
        failed: OperationFailed | None = None
        known: list[Setting] = []
        try:
            known = list((await pages.operations(request).broker_settings(found.key)).settings)
        except OperationFailed as failure:
            failed = failure
        wanted = search.strip().lower()
        shown = [each for each in known if wanted in each.key.lower() or wanted in each.description.lower()]
        return page_html(
            pages,
            request,
            "broker_settings.html",
            active=_ACTIVE,
            status=form_status(failed, is_wrong=False),
            tab="settings",
            broker=found,
            failed=failed,
            search=search,
            total=len(known),
            # What somebody changed while it runs belongs to the top even if it is the default again.
            differing=[each for each in shown if each.differs or each.origin == "changed"],
            others=[each for each in shown if not each.differs and each.origin != "changed"],
        )


def _add_setting(app: FastAPI, pages: Pages) -> None:
    def form(
        request: Request,
        broker: BrokerState,
        setting: Setting,
        *,
        value: str,
        failed: OperationFailed | None = None,
        changes: list[ConfigChange] | None = None,
    ) -> Response:
        is_wrong = failed is not None and failed.kind is FailureKind.INVALID
        return page_html(
            pages,
            request,
            "broker_setting.html",
            active=_ACTIVE,
            status=form_status(failed, is_wrong=is_wrong),
            tab="settings",
            broker=broker,
            setting=setting,
            value=value,
            changes=changes,
            failed=None if is_wrong else failed,
            error=_sentence(failed) if failed is not None and is_wrong else "",
        )

    @app.get("/brokers/{key}/settings/{name}", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def setting(request: Request, key: str, name: str) -> Response:
        broker = _broker(pages, key)
        found = await _setting(pages, request, broker, name)
        return form(request, broker, found, value=found.value)

    @app.post("/brokers/{key}/settings/{name}", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def change_setting(request: Request, key: str, name: str) -> Response:
        broker = _broker(pages, key)
        fields = await form_of(request)
        value, is_confirmed = fields.text("value"), fields.is_checked("confirm")
        found = await _setting(pages, request, broker, name)
        try:
            changes = await pages.operations(request).update_settings(
                broker.key, {name: value}, dry_run=not is_confirmed
            )
        except OperationFailed as failure:
            return form(request, broker, found, value=value, failed=failure)
        if not is_confirmed:
            return form(request, broker, found, value=value, changes=list(changes))
        lines = [f"{change.key}: {change.from_value} → {change.to_value}" for change in changes]
        flash = Flash("ok", f"{broker.key} works with the new value until its next start.", lines)
        return go_to(pages, f"/brokers/{segment(broker.key)}/settings", flash=flash)


def _add_write_permission(app: FastAPI, pages: Pages) -> None:
    @app.post("/brokers/{key}/write-permission", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def write_permission(request: Request, key: str) -> Response:
        broker = _broker(pages, key)
        fields = await form_of(request)
        writable, is_confirmed = fields.text("writable") == "true", fields.is_checked("confirm")
        failed: OperationFailed | None = None
        result: ChangeResult | None = None
        try:
            result = await pages.operations(request).set_write_permission(
                broker.broker_name, writable=writable, dry_run=not is_confirmed
            )
        except OperationFailed as failure:
            failed = failure
        if result is not None and is_confirmed:
            text = f"{broker.broker_name} {'has its write permission back' if writable else 'takes no new messages'}."
            return go_to(pages, f"/brokers/{segment(broker.key)}", flash=change_flash(text, result))
        return page_html(
            pages,
            request,
            "broker_permission.html",
            active=_ACTIVE,
            status=form_status(failed, is_wrong=False),
            tab="state",
            broker=broker,
            writable=writable,
            result=result,
            failed=failed,
        )


def _broker(pages: Pages, key: str) -> BrokerState:
    reading = pages.cluster.latest
    if reading is None:
        raise OperationFailed(
            FailureKind.UNAVAILABLE, "the cluster has not been read yet", remedy="try again in a second"
        )
    found = next((broker for broker in reading.state.brokers if broker.key == key), None)
    if found is None:
        raise OperationFailed(
            FailureKind.NOT_FOUND,
            f"no broker {key} is known",
            cause="no NameServer knows it, and it has not been seen lately",
            remedy="see the list on the page Brokers",
        )
    return found


async def _setting(pages: Pages, request: Request, broker: BrokerState, name: str) -> Setting:
    settings = (await pages.operations(request).broker_settings(broker.key)).settings
    found = next((setting for setting in settings if setting.key == name), None)
    if found is None:
        raise OperationFailed(FailureKind.NOT_FOUND, f"{broker.key} has no setting {name}")
    if not found.changeable:
        raise OperationFailed(
            FailureKind.REFUSED,
            f"{name} cannot be changed while {broker.key} runs",
            remedy="change it in the broker's configuration and restart the broker",
        )
    return found


def _sentence(failure: OperationFailed) -> str:
    return "; ".join(part for part in (failure.problem, failure.cause, failure.remedy) if part)
