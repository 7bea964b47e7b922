"""The page of undecided transactions, and ending one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request, Response

from tandemmq.admin.api.actors import OPERATOR_ONLY
from tandemmq.admin.console.answers import Pages, form_of, form_status, go_to, page_html
from tandemmq.admin.console.frame import Flash, topic_address
from tandemmq.admin.operations.questions import OperationFailed
from tandemmq.admin.operations.values import Transaction
from tandemmq.service.texts import age_text, bytes_text, count_text

__all__ = ["TransactionRow", "add_transaction_pages", "transaction_row"]

_ACTIVE: Final = "transactions"
_OWN: Final = "/transactions"
_SHOWN: Final = 200

Name = Annotated[str, Query(max_length=255)]


@dataclass(frozen=True, slots=True)
class TransactionRow:
    """A transaction as it is shown."""

    transaction_id: str
    message_id: str
    topic: str
    topic_address: str
    age: str
    checks: str
    producer: str
    broker_name: str
    size: str


def transaction_row(one: Transaction, *, now_ms: int) -> TransactionRow:
    """The row."""
    return TransactionRow(
        transaction_id=one.transaction_id,
        message_id=one.message_id,
        topic=one.topic or "it has ended before",
        topic_address=topic_address(one.topic) if one.topic else "",
        age=age_text(max(0, now_ms - one.store_ms)) if one.store_ms > 0 else "",
        checks=count_text(one.checks),
        producer=one.producer or "not known",
        broker_name=one.broker_name,
        size=bytes_text(one.body_bytes),
    )


def add_transaction_pages(app: FastAPI, pages: Pages) -> None:
    """Adds the routes."""

    @app.get(_OWN, include_in_schema=False)
    async def transactions(request: Request, search: Name = "") -> Response:
        topic = search.strip()
        page = await pages.operations(request).transactions(topic=topic, limit=_SHOWN)
        now_ms = pages.clock.wall_ms()
        rows = tuple(transaction_row(one, now_ms=now_ms) for one in page.transactions)
        return page_html(pages, request, "transactions.html", active=_ACTIVE, page=page, rows=rows, topic=topic)

    @app.post(f"{_OWN}/resolve", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def resolve(request: Request) -> Response:
        form = await form_of(request)
        transaction_id, end = form.text("transaction_id"), form.text("end")
        is_sure = form.is_checked("confirm")
        row: TransactionRow | None = None
        failure = None
        try:
            found = await pages.operations(request).resolve_transaction(transaction_id, end, dry_run=not is_sure)
            row = transaction_row(found, now_ms=pages.clock.wall_ms())
        except OperationFailed as failed:
            failure = failed
        if is_sure and row is not None:
            done = "committed" if end == "commit" else "rolled back"
            return go_to(pages, _OWN, flash=Flash("ok", f"The transaction of message {row.message_id} was {done}."))
        return page_html(
            pages,
            request,
            "transactions_resolve.html",
            active=_ACTIVE,
            status=form_status(failure, is_wrong=False),
            row=row,
            end=end,
            failure=failure,
        )
