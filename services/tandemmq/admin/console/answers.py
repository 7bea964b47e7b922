"""How pages answer: a page in its frame, a redirect that says what was done, or a page that says what went wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Protocol, TypeAlias, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from tandemmq.admin.api.access import (
    OPERATOR_ONLY,
    SESSION_COOKIE,
    Problem,
    Receive,
    Scope,
    Send,
    current_actor,
    problem_of,
)
from tandemmq.admin.audit_log import Actor
from tandemmq.admin.cluster_reader import CachedCluster
from tandemmq.admin.consistency_runs import ConsistencyRuns
from tandemmq.admin.console.frame import Flash, Flashes, Frame, PageTemplates, entry_of, frame_of
from tandemmq.admin.console.plots import Plot, TimeRange, plot
from tandemmq.admin.history import USAGE_INTERVAL_MS, ClusterHistory, Samples, UsageHistory
from tandemmq.admin.operations.questions import FailureKind, OperationFailed, refused, unavailable
from tandemmq.admin.operations.values import ChangeResult, Page
from tandemmq.admin.trace_reader import ClusterTraces
from tandemmq.core.clock import Clock
from tandemmq.service.texts import count_text

if TYPE_CHECKING:
    from tandemmq.admin.operations.operations import Operations, OperationsDesk


DOWNLOADS_MAX: Final = 8
"""Each keeps twenty messages, of up to a megabyte or one of more, until its browser has read them."""


class Downloads:
    """How many files of messages are on their way."""

    def __init__(self) -> None:
        self._count = 0

    def admit(self) -> None:
        """Raises OperationFailed if there are enough."""
        if self._count >= DOWNLOADS_MAX:
            raise unavailable(
                f"{DOWNLOADS_MAX} downloads are under way already", remedy="wait until one has ended, then ask again"
            )

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """While it lasts."""
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


class DownloadResponse(StreamingResponse):
    """A file of lines of JSON, one of `downloads` until it is read, or nobody reads on."""

    def __init__(self, lines: AsyncIterator[bytes], file_name: str, downloads: Downloads) -> None:
        headers = {
            "content-disposition": f"attachment; filename*=UTF-8''{quote(file_name, safe='')}",
            "cache-control": "no-store",
        }
        super().__init__(lines, media_type="application/x-ndjson", headers=headers)
        self._downloads = downloads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._downloads.one_more():
            await super().__call__(scope, receive, send)


# What every page of the console is given, and how pages are added to the HTTP side.
#
#     def add_topic_pages(app: FastAPI, pages: Pages) -> None:
#         @app.get("/topics", include_in_schema=False)
#         async def topics(request: Request, search: str = "") -> Response:
#             found = await pages.operations(request).topics(search=search)
#             ...
#
#         @app.post("/topics", include_in_schema=False, dependencies=[OPERATOR_ONLY])
#         async def put_topic(request: Request) -> Response:
#             fields = await form_of(request)
#             ...
#
# A page that raises `OperationFailed` is answered with a page that says so; one that can show the problem beside the
# field it comes from catches it. `OperationFailed` of a viewer's change and every change are recorded by the
# operations.


@dataclass(frozen=True, slots=True)
class Pages:
    templates: PageTemplates
    desk: OperationsDesk
    cluster: CachedCluster
    consistency: ConsistencyRuns
    traces: ClusterTraces
    clock: Clock
    # How often an open page renews itself.
    refresh_ms: int
    # The last day, for plots.
    history: ClusterHistory = field(default_factory=ClusterHistory)
    usage: UsageHistory = field(default_factory=UsageHistory)
    # What the page after a change says of it.
    flashes: Flashes = field(default_factory=Flashes)
    downloads: Downloads = field(default_factory=Downloads)

    def operations(self, request: Request) -> Operations:
        """The cluster's operations in the name of who sent the request."""
        return self.desk.acting_as(current_actor(request))

    def html(
        self,
        request: Request,
        template: str,
        *,
        status: HTTPStatus = HTTPStatus.OK,
        failure: OperationFailed | None = None,
        is_wrong: bool = False,
        live_ms: int = 0,
        **context: object,
    ) -> Response:
        """A page. What failed decides on its status, then whether a field of its form is wrong; with `live_ms` an open
        page renews itself so often."""
        if failure is not None:
            status = HTTPStatus(problem_of(failure).status)
        elif is_wrong:
            status = HTTPStatus.UNPROCESSABLE_ENTITY
        frame = _frame(self, request)
        html = self.templates.get(template).render(frame=frame, live_ms=live_ms, failure=failure, **context)
        return Response(html, status, media_type="text/html", headers=_NO_STORE)

    def go_to(self, path: str, flash: Flash | None = None) -> Response:
        """Sends the browser on after a change, so that reloading does not do it again. `path` is one of our own."""
        assert path[0] == "/" != path[1:2], "only pages of this service"
        if flash is not None:
            code = self.flashes.put(flash, now_ms=self.clock.monotonic_ms())
            path += f"{'&' if urlsplit(path).query else '?'}{_FLASH_FIELD}={code}"
        return RedirectResponse(path, HTTPStatus.SEE_OTHER, headers=_NO_STORE)


_ItemT = TypeVar("_ItemT")
AddPages: TypeAlias = Callable[[FastAPI, Pages], None]
"""Adds the routes of some pages."""
# The query's field that names a flash.
_FLASH_FIELD: Final = "said"
_NO_STORE: Final = {"cache-control": "no-store"}

RangeName = Annotated[str, Query(max_length=16)]
"""How far back plots go, as an address has it: of `RANGES`."""
Name = Annotated[str, Query(max_length=255)]
"""Of a topic, a group, a user or a broker, or a part of one."""
PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]


def usage_plots(
    pages: Pages, chosen: TimeRange, wanted: Sequence[tuple[str, Sequence[tuple[str, Samples]], Callable[[float], str]]]
) -> list[Plot]:
    """Plots of a topic or a group, each by title, lines and how a value reads; none of what is not sampled."""
    now_ms = pages.clock.wall_ms()
    return [
        plot(
            title,
            series,
            unit=unit,
            from_ms=now_ms - chosen.duration_ms,
            to_ms=now_ms,
            least_top=2.0,
            gap_ms=USAGE_INTERVAL_MS * 6,
        )
        for title, series, unit in wanted
        if any(samples.times_ms for _, samples in series)
    ]


def part_of(found: Sequence[_ItemT], number: int, size: int) -> Page[_ItemT]:
    """Part of a list that is known whole; the last one for a number behind it."""
    number = min(max(1, number), max(1, -(-len(found) // size)))
    return Page(found[(number - 1) * size : number * size], number, size, len(found))


def count_text_of(value: float) -> str:
    """A number of messages on a plot."""
    return count_text(round(value))


def problem_page(pages: Pages, request: Request, problem: Problem) -> Response:
    entry = entry_of(request.url.path)
    back = entry if entry is not None and entry.href != request.url.path else None
    return pages.html(request, "problem.html", status=HTTPStatus(problem.status), problem=problem, back=back)


def _frame(pages: Pages, request: Request) -> Frame:
    now_ms = pages.clock.monotonic_ms()
    actor = getattr(request.state, "actor", None)
    entry = entry_of(request.url.path)
    return frame_of(
        pages.cluster.latest,
        active=entry.name if entry is not None else "",
        actor=actor if isinstance(actor, Actor) else None,
        flash=pages.flashes.get(request.query_params.get(_FLASH_FIELD, ""), now_ms=now_ms),
        now_ms=now_ms,
        now_wall_ms=pages.clock.wall_ms(),
        has_session=SESSION_COOKIE in request.cookies,
    )


# Fields of a posted form. Bounded: the body by the guard before it is read, the number of fields here.

_MEDIA_TYPE: Final = "application/x-www-form-urlencoded"
_FIELDS_MAX: Final = 1_000


class Form:
    """What a browser sent. A field that is not there is empty, as an empty one is."""

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """The field's first value, without blanks around it."""
        return self.raw(name).strip()

    def raw(self, name: str) -> str:
        """The same as it was typed. Lines end as HTML sends them, in CR LF."""
        return self._fields.get(name, [""])[0]

    def all(self, name: str) -> list[str]:
        """All values: of check boxes of one name."""
        return self._fields.get(name, [])

    def is_checked(self, name: str) -> bool:
        """Whether a check box was."""
        return name in self._fields


async def form_of(request: Request) -> Form:
    """The form of a request. 415 when it is of another kind (so are files), 422 when it cannot be read."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _MEDIA_TYPE:
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send the form as {_MEDIA_TYPE}")
    try:
        text = (await request.body()).decode("ascii")
        return Form(parse_qs(text, keep_blank_values=True, max_num_fields=_FIELDS_MAX, errors="strict"))
    except ValueError as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"this is no form: {error}") from error


# Pages that change something. They all go the same way: a form is filled in, a dry run shows what it would do, and it
# is carried out once that was confirmed; then the browser goes on to a page that says what was done where.


class ChangeForm(Protocol):
    @property
    def errors(self) -> Mapping[str, str]: ...


_FormT = TypeVar("_FormT", bound=ChangeForm)
_ResultT = TypeVar("_ResultT")
_OtherT = TypeVar("_OtherT")


# Without slots: Python 3.11 cannot make a frozen generic class with them by `ChangePage[SomeForm](...)`.
@dataclass(frozen=True)
class ChangePage(Generic[_FormT]):
    """The page of such a form: the form, its review, or what went wrong."""

    pages: Pages
    template: str
    # What the template shows beside the form: the page it goes back to, choices of its fields.
    context: Callable[[_FormT], Mapping[str, Any]]

    def show(
        self, request: Request, form: _FormT, *, review: object = None, failure: OperationFailed | None = None
    ) -> Response:
        """`review`: what confirming it would do."""
        return self.pages.html(
            request,
            self.template,
            failure=failure,
            is_wrong=bool(form.errors),
            form=form,
            review=review,
            **self.context(form),
        )

    async def carry_out(
        self,
        request: Request,
        form: _FormT,
        change: Callable[[bool], Awaitable[_ResultT]],
        done: Callable[[_ResultT], Response],
        *,
        is_confirmed: bool,
        review: Callable[[_ResultT], object] = lambda result: result,
    ) -> Response:
        """Does `change(dry_run)`; `done` answers for good, `review` is what its dry run shows."""
        if form.errors:
            return self.show(request, form)
        try:
            result = await change(not is_confirmed)
        except OperationFailed as failure:
            return self.show(request, form, failure=failure)
        return done(result) if is_confirmed else self.show(request, form, review=review(result))


async def attempt(
    reading: Awaitable[_ResultT], otherwise: _OtherT
) -> tuple[_ResultT | _OtherT, OperationFailed | None]:
    """What it gives; else `otherwise`, and why."""
    try:
        return await reading, None
    except OperationFailed as failure:
        return otherwise, failure


async def refuse_existing(what: str, reading: Awaitable[object]) -> None:
    """Raises OperationFailed if `reading` finds it: what is there is edited where it can be seen, not changed by a form
    that shows defaults.
    """
    try:
        await reading
    except OperationFailed as failure:
        if failure.kind is FailureKind.NOT_FOUND:
            return
        raise
    raise refused(f"there is a {what} already", remedy="edit it, or choose another name")


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion that is not done yet."""

    # What was filled in; nothing at first.
    posted: Form
    # What is wrong with the name that was typed.
    error: str = ""
    failure: OperationFailed | None = None


def add_deletion(
    app: FastAPI,
    pages: Pages,
    path: str,
    *,
    noun: str,
    show: Callable[[Request, str, Deletion], Awaitable[Response]],
    delete: Callable[[Request, str, Form], Awaitable[ChangeResult]],
) -> None:
    """Adds `<path>/{name}/delete`. Who deletes something sees on the page of `show` what comes of it, and types its
    name.
    """
    address = f"{path}/{{name}}/delete"

    @app.get(address, include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def ask(request: Request, name: str) -> Response:
        return await show(request, name, Deletion(Form({})))

    @app.post(address, include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def carry_out(request: Request, name: str) -> Response:
        posted = await form_of(request)
        if posted.text("typed") != name:
            return await show(request, name, Deletion(posted, error=f"Type {name} to delete it."))
        try:
            result = await delete(request, name, posted)
        except OperationFailed as failure:
            return await show(request, name, Deletion(posted, failure=failure))
        return pages.go_to(path, change_flash(f"{noun} {name} was deleted.", result))


def change_flash(text: str, result: ChangeResult) -> Flash:
    """`text`, and what was done where."""
    lines = [f"{change.subject}: {change.what}" for change in result.changes]
    return Flash("warning" if result.warnings else "ok", text, (*lines, *result.warnings))
