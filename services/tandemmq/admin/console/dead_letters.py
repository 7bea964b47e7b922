"""The pages of dead letters: who has some, what they are, and sending them again."""

from __future__ import annotations

import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request, Response

from tandemmq.admin.api.access import OPERATOR_ONLY
from tandemmq.admin.console.answers import Name, PageNumber, Pages, form_of
from tandemmq.admin.console.frame import (
    Flash,
    address,
    dead_letters_address,
)
from tandemmq.admin.console.messages import download_of
from tandemmq.admin.operations.bodies import PREVIEW_BYTES
from tandemmq.admin.operations.operations import Operations, refuse_unknown_group
from tandemmq.admin.operations.questions import OperationFailed
from tandemmq.admin.operations.topics import DEAD_LETTER, dead_letter_topic
from tandemmq.admin.operations.values import (
    DeadLetterResult,
    MessagePage,
    MessageQuery,
    PageRequest,
)

_LINES_MAX: Final = 20


def was_sent(result: DeadLetterResult) -> bool:
    """True for a letter that lies in its topic anew; it may have a problem, too: not all replicas hold it yet."""
    return result.new_queue_offset >= 0 or not result.problem


def resend_lines(results: Sequence[DeadLetterResult]) -> tuple[str, ...]:
    """What was done, failures first; at most twenty of them."""
    wrong = [
        f"{one.broker_name}, {one.queue_offset:,}: {'sent, but' if was_sent(one) else 'not sent'}: {one.problem}"
        for one in results
        if one.problem
    ]
    by_topic = Counter(one.topic for one in results if was_sent(one))
    sent = [f"{count:,} sent to {topic}" for topic, count in sorted(by_topic.items())]
    more = len(wrong) - _LINES_MAX
    return (*wrong[:_LINES_MAX], *((f"and {more} more such letters",) if more > 0 else ()), *sent)


# Pages of dead letters: who has some, what they are, and sending them again.

_PAGE_SIZE: Final = 50
# A broker takes so many at once.
_RESENT_MAX: Final = 100
_CODES_MAX: Final = 1_000
_LETTER: Final = re.compile(r"(.{1,255})/(\d{1,18})")

Token = Annotated[str, Query(max_length=2_048)]


def add_dead_letter_pages(app: FastAPI, pages: Pages) -> None:
    _add_lists(app, pages)
    _add_resending(app, pages)


def _add_lists(app: FastAPI, pages: Pages) -> None:
    @app.get("/dead-letters", include_in_schema=False)
    async def groups(request: Request, search: Name = "", page: PageNumber = 1) -> Response:
        search = search.strip()
        found = await pages.operations(request).topics(
            search=search, categories=(DEAD_LETTER,), page=PageRequest(page, _PAGE_SIZE)
        )
        return pages.html(request, "dead_letters.html", page=found, search=search)

    @app.get("/dead-letters/{group}", include_in_schema=False)
    async def letters(request: Request, group: str, page_token: Token = "") -> Response:
        return await _letters_page(pages, request, group, page_token=page_token)

    @app.get("/dead-letters/{group}/download", include_in_schema=False)
    async def download(request: Request, group: str) -> Response:
        operations = pages.operations(request)
        query = MessageQuery(dead_letter_topic(group))
        answer, first = await download_of(pages, request, query, f"dead-letters-{group}")
        if not (first.messages or first.unseen):
            await refuse_unknown_group(operations, group)
        return answer


def _add_resending(app: FastAPI, pages: Pages) -> None:
    codes = _OnceCodes()

    @app.post("/dead-letters/{group}/resend", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def resend(request: Request, group: str) -> Response:
        operations = pages.operations(request)
        form = await form_of(request)
        chosen = _by_broker(form.all("shown") if form.text("which") == "shown" else form.all("letter"))
        count = sum(map(len, chosen.values()))
        if not 1 <= count <= _RESENT_MAX:
            error = f"Select at most {_RESENT_MAX} letters." if count else "Select the letters to resend."
            return await _letters_page(pages, request, group, error=error)
        if not form.is_checked("confirm"):
            results = [
                result
                for broker, offsets in chosen.items()
                for result in await operations.resend_dead_letters(group, broker, offsets, dry_run=True)
            ]
            sendable = [f"{one.broker_name}/{one.queue_offset}" for one in results if not one.problem]
            return pages.html(
                request,
                "dead_letters_resend.html",
                group=group,
                topic=dead_letter_topic(group),
                own=dead_letters_address(group),
                results=results,
                sendable=len(sendable),
                fields=(("code", codes.new()), *(("letter", letter) for letter in sendable)),
            )
        if not codes.use(form.text("code")):
            text = "This was done already: nothing was sent a second time. Select the letters anew to send them again."
            return pages.go_to(dead_letters_address(group), Flash("warning", text))
        results = await _resent(operations, group, chosen)
        sent = sum(map(was_sent, results))
        is_whole = not any(result.problem for result in results)
        tone = "ok" if is_whole else "warning" if sent else "bad"
        text = f"{sent} of {len(results)} dead letters were sent again."
        return pages.go_to(dead_letters_address(group), Flash(tone, text, resend_lines(results)))


async def _letters_page(
    pages: Pages, request: Request, group: str, *, page_token: str = "", error: str = ""
) -> Response:
    topic = dead_letter_topic(group)
    page: MessagePage | None = None
    failure = None
    query = MessageQuery(topic, limit=_PAGE_SIZE, body_bytes=PREVIEW_BYTES, page_token=page_token)
    try:
        page = await pages.operations(request).search(query)
    except OperationFailed as failed:
        failure = failed
    if page is not None and not (page.messages or page.unseen or page_token):
        await refuse_unknown_group(pages.operations(request), group)
    token = page.next_page_token if page is not None else ""
    return pages.html(
        request,
        "dead_letters_group.html",
        is_wrong=bool(error),
        group=group,
        topic=topic,
        own=dead_letters_address(group),
        page=page,
        next=address(dead_letters_address(group), page_token=token) if token else "",
        error=error,
        failure=failure,
    )


async def _resent(operations: Operations, group: str, chosen: dict[str, list[int]]) -> list[DeadLetterResult]:
    """All brokers' results. Where one fails the others still go on, and each letter has its line."""
    results: list[DeadLetterResult] = []
    for broker, offsets in chosen.items():
        try:
            results += await operations.resend_dead_letters(group, broker, offsets)
        except OperationFailed as failure:
            problem = f"{failure.problem}: {failure.cause}" if failure.cause else failure.problem
            results += [DeadLetterResult(broker, offset, "", -1, "", problem) for offset in offsets]
    return results


def _by_broker(letters: Iterable[str]) -> dict[str, list[int]]:
    """`broker/offset` of each, without those that are written otherwise; each once."""
    found: dict[str, list[int]] = {}
    for letter in dict.fromkeys(letters):
        if (match := _LETTER.fullmatch(letter)) is not None:
            found.setdefault(match[1], []).append(int(match[2]))
    return found


class _OnceCodes:
    """Codes of forms that do something each time they are sent: whoever sends one twice did not mean it."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, None] = OrderedDict()

    def new(self) -> str:
        code = secrets.token_urlsafe(16)
        self._open[code] = None
        while len(self._open) > _CODES_MAX:
            self._open.popitem(last=False)
        return code

    def use(self, code: str) -> bool:
        """False when it was used before, or is none of ours."""
        if code not in self._open:
            return False
        del self._open[code]
        return True
