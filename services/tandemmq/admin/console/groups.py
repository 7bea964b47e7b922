"""The pages of consumer groups. Templates read the operations' values; here is what takes a rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI, Request, Response

from tandemmq.admin.api.access import OPERATOR_ONLY
from tandemmq.admin.console.answers import (
    ChangePage,
    Deletion,
    Form,
    Name,
    PageNumber,
    Pages,
    RangeName,
    add_deletion,
    change_flash,
    count_text_of,
    form_of,
    refuse_existing,
    usage_plots,
)
from tandemmq.admin.console.frame import Flash, group_address
from tandemmq.admin.console.plots import RANGES, time_range
from tandemmq.admin.operations.groups import GROUP_ATTRIBUTES
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.topics import RETRY_PREFIX, attributes_text, read_attributes
from tandemmq.admin.operations.values import (
    ChangeResult,
    GroupChange,
    GroupDetail,
    GroupSummary,
    OffsetReset,
    Page,
    PageRequest,
    Progress,
    ResetTarget,
)
from tandemmq.core.metadata.topic_table import group_name_problem
from tandemmq.service.texts import FORMS, MomentUnreadable, counted, read_moment, sentence

if TYPE_CHECKING:
    from tandemmq.admin.operations.operations import Operations


TOPICS_SHOWN: Final = 50
"""Topics on a group's page; where it has read more, those it lacks most in, or those that were searched."""
QUEUES_SHOWN: Final = 1_000
"""Rows of queues on a group's page, of all topics together."""
MOVES_SHOWN: Final = 256


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """What a group has read of a topic: all of it, and the queues that are shown."""

    topic: str
    progress: Sequence[Progress]
    queues: Sequence[Progress]

    @property
    def is_retry(self) -> bool:
        return self.topic.startswith(RETRY_PREFIX)

    @property
    def lag(self) -> int:
        return sum(one.lag for one in self.progress)

    @property
    def inflight(self) -> int:
        return sum(one.inflight for one in self.progress)

    @property
    def oldest_age_ms(self) -> int:
        return max((one.oldest_age_ms for one in self.progress), default=0)


@dataclass(frozen=True, slots=True)
class GroupView:
    detail: GroupDetail
    # Of all topics together.
    whole: TopicProgress
    # Message groups that wait for an earlier message of theirs.
    blocked: int
    # Sentences: disabled, or a lag that nobody works off.
    warnings: tuple[str, ...]
    topics: tuple[TopicProgress, ...]
    # Those it has read, and those of them that match the search.
    topic_total: int
    topic_matches: int
    member_total: int


@dataclass(frozen=True, slots=True)
class ResetView:
    moves: Sequence[OffsetReset]
    queue_total: int
    # Whole sentences; empty: nothing moves.
    effects: tuple[str, ...]


def group_view(detail: GroupDetail, *, topic_search: str = "") -> GroupView:
    """All of a group's page; `topic_search` is a part of the names of the topics it shows."""
    summary = detail.summary
    by_topic = _by_topic(detail.progress)
    matching = {topic: found for topic, found in by_topic.items() if topic_search.lower() in topic.lower()}
    whole = TopicProgress("", detail.progress, ())
    return GroupView(
        detail=detail,
        whole=whole,
        blocked=sum(progress.blocked_message_groups for progress in detail.progress),
        warnings=tuple(_warnings(detail, whole.lag)),
        topics=tuple(_shown(matching)),
        topic_total=len(by_topic),
        topic_matches=len(matching),
        member_total=max(len(detail.members), summary.member_count),
    )


def reset_view(moves: Sequence[OffsetReset]) -> ResetView:
    """A dry run, or what was done."""
    again = sum(max(0, move.from_offset - move.to_offset) for move in moves if move.from_offset >= 0)
    skipped = sum(max(0, move.to_offset - move.from_offset) for move in moves if move.from_offset >= 0)
    inflight = sum(move.inflight for move in moves)
    unread = sum(move.from_offset < 0 for move in moves)
    effects = []
    if again:
        effects.append(f"{counted(again, 'message')} will be delivered again.")
    if skipped:
        effects.append(f"{counted(skipped, 'message')} will be skipped.")
    if inflight:
        effects.append(f"{counted(inflight, 'message')} in clients' hands may be consumed twice.")
    if unread:
        effects.append(f"{unread} of {len(moves)} queues have never been read by this group; it starts there as shown.")
    return ResetView(moves[:MOVES_SHOWN], len(moves), tuple(effects))


def _warnings(detail: GroupDetail, lag: int) -> list[str]:
    found = []
    if not detail.summary.enabled:
        found.append("This group is disabled: its consumers receive nothing until it is enabled.")
    elif lag and not detail.members and not detail.unseen:
        found.append(f"{counted(lag, 'message')} behind, and no consumer of this group is connected.")
    return found


def _by_topic(progress: Iterable[Progress]) -> dict[str, list[Progress]]:
    topics: dict[str, list[Progress]] = {}
    for one in progress:
        topics.setdefault(one.topic, []).append(one)
    return dict(sorted(topics.items()))


def _shown(topics: Mapping[str, Sequence[Progress]]) -> Iterable[TopicProgress]:
    """By name as long as all have room; else those it lacks most in. Queues as long as there is room for them."""
    names = list(topics)
    if len(names) > TOPICS_SHOWN:
        names.sort(key=lambda name: -sum(one.lag for one in topics[name]))
    room = QUEUES_SHOWN
    for name in names[:TOPICS_SHOWN]:
        yield TopicProgress(name, topics[name], topics[name][:room])
        room = max(0, room - len(topics[name]))


def move_text(move: OffsetReset) -> str:
    """What a reset does in one queue: back 1,200; skips 3; stays."""
    by = move.to_offset - move.from_offset
    if move.from_offset < 0:
        return "starts here"
    if by == 0:
        return "stays"
    return f"back {-by:,}" if by < 0 else f"skips {by:,}"


# Forms of a consumer group: its settings, and where it goes on.

_RETRIES_MAX: Final = 1_000
_DEFAULT_RETRIES: Final = 16
_TOPICS_CHOSEN_FROM: Final = 200
_TARGETS: Final = {
    "time": "with the first message stored at",
    "earliest": "with the oldest message that is held",
    "latest": "behind the newest message",
}


@dataclass(frozen=True, slots=True)
class GroupForm:
    """The settings as they were filled in."""

    is_new: bool
    name: str
    retry_max_times: str
    ordered: bool
    enabled: bool
    # True: the button that enables or disables; nothing else changes.
    only_enabled: bool = False
    # NAME=VALUE pairs; empty: as they are.
    attributes: str = ""
    # By field: name, retry_max_times, attributes.
    errors: Mapping[str, str] = field(default_factory=dict)
    # What the change means, for its second step.
    notes: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """What the second step posts again: a check box that is not checked is not sent."""
        if self.only_enabled:
            return (("only", "enabled"), ("enabled", "true" if self.enabled else ""))
        return (
            ("retry_max_times", self.retry_max_times),
            ("ordered", "true" if self.ordered else ""),
            ("enabled", "true" if self.enabled else ""),
            ("attributes", self.attributes),
        )

    @property
    def change(self) -> GroupChange:
        """What is asked for; only of a form without errors."""
        if self.only_enabled:
            return GroupChange(self.name, enabled=self.enabled)
        return GroupChange(
            self.name,
            ordered=self.ordered,
            retry_max_times=int(self.retry_max_times or 0),
            enabled=self.enabled,
            attributes=_read_attributes(self.attributes),
        )


@dataclass(frozen=True, slots=True)
class ResetForm:
    """Where a group is to go on, as it was filled in."""

    group: str
    topic: str
    # Topics it has read: value and text; empty without any, or with too many to choose from.
    topics: tuple[tuple[str, str], ...]
    # time, earliest or latest.
    target: str
    # As typed, and as understood.
    time: str
    time_ms: int | None = None
    # By field: topic, target, time.
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def target_text(self) -> str:
        """In words; a moment follows."""
        return _TARGETS[self.target]

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """What the second step posts again; the moment written out, since `2h` ago moves on."""
        time = str(self.time_ms) if self.time_ms is not None else ""
        return (("topic", self.topic), ("target", self.target), ("time", time))

    @property
    def reset(self) -> ResetTarget:
        """What is asked for; only of a form without errors."""
        return ResetTarget(time_ms=self.time_ms, earliest=self.target == "earliest", latest=self.target == "latest")


def blank_group() -> GroupForm:
    return GroupForm(True, "", str(_DEFAULT_RETRIES), False, True)


def group_form_of(group: GroupSummary) -> GroupForm:
    return GroupForm(
        False,
        group.name,
        str(group.retry_max_times),
        group.ordered,
        group.enabled,
        attributes=attributes_text({name: group.attributes.get(name, "") for name in GROUP_ATTRIBUTES}),
    )


def _read_attributes(text: str) -> dict[str, str]:
    return read_attributes(filter(None, map(str.strip, text.split(","))))


def read_group_form(form: Form, *, before: GroupSummary | None = None) -> GroupForm:
    """A posted form; `before` of a group that is there."""
    enabled = form.text("enabled") == "true"
    if before is not None and form.text("only") == "enabled":
        only = replace(group_form_of(before), enabled=enabled, only_enabled=True)
        return replace(only, notes=tuple(_notes(only, before)))
    name = form.text("name") if before is None else before.name
    retries = form.text("retry_max_times")
    errors = {}
    if before is None and (problem := group_name_problem(name)) is not None:
        errors["name"] = sentence(problem)
    if not (retries.isascii() and retries.isdecimal() and len(retries) <= 6 and int(retries) <= _RETRIES_MAX):
        errors["retry_max_times"] = f"Write a number from 0 to {_RETRIES_MAX:,}."
    try:
        _read_attributes(form.text("attributes"))
    except ValueError as error:
        errors["attributes"] = sentence(str(error))
    filled = GroupForm(
        is_new=before is None,
        name=name,
        retry_max_times=retries,
        ordered=form.text("ordered") == "true",
        enabled=enabled,
        attributes=form.text("attributes"),
        errors=errors,
    )
    if errors or before is None:
        return filled
    return replace(filled, notes=tuple(_notes(filled, before)))


def blank_reset(group: str, topics: Sequence[str], topic: str = "") -> ResetForm:
    """The form as it is shown first."""
    return ResetForm(group, topic, _choices(topics), "time", "")


def read_reset_form(form: Form, *, group: str, topics: Sequence[str], now_ms: int) -> ResetForm:
    topic, target, time = form.text("topic"), form.text("target"), form.text("time")
    errors = {}
    time_ms = None
    if not topic:
        errors["topic"] = "Name a topic."
    if target not in _TARGETS:
        errors["target"] = "Choose one."
    elif target == "time":
        try:
            time_ms = read_moment(time, now_ms=now_ms)
        except MomentUnreadable as error:
            errors["time"] = str(error) if time else "Write a moment for this choice."
    return ResetForm(group, topic, _choices(topics), target, time, time_ms, errors)


def _choices(topics: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((topic, topic) for topic in topics) if len(topics) <= _TOPICS_CHOSEN_FROM else ()


def _notes(form: GroupForm, before: GroupSummary) -> Iterable[str]:
    if before.enabled and not form.enabled:
        members = f"Its {before.member_count} members receive" if before.member_count else "Its consumers receive"
        yield f"{members} nothing until it is enabled again. Its progress stays."
    if before.ordered != form.ordered:
        yield "Consumers that run may go on as before until they connect anew: restart them."
    if int(form.retry_max_times or 0) < before.retry_max_times:
        yield "Messages that were tried more often than the new limit become dead letters at their next failure."


# Pages of consumer groups: the list, one group, and what is done to it.

_PAGE_SIZE: Final = 50
# These pages ask the brokers at each renewal, unlike pages of the reading that all share.
_LIVE_MS: Final = 5_000
# Whoever wants the furthest behind first has all of them measured, not only those of the page: less often, and so many.
_ORDERED_MAX: Final = 1_000
_LIVE_ORDERED_MS: Final = 15_000
_BY_LAG: Final = "lag"
_ORDERS: Final = (("", "by name"), (_BY_LAG, "most lag first"))


def by_lag(found: Page[GroupSummary], part: PageRequest) -> Page[GroupSummary]:
    """A part of `found`, those that are furthest behind first; what is not known comes last."""
    ordered = sorted(found.items, key=lambda group: -group.lag)
    begin = (part.number - 1) * part.size
    return replace(found, items=ordered[begin : begin + part.size], number=part.number, size=part.size)


def add_group_pages(app: FastAPI, pages: Pages) -> None:
    _add_list(app, pages)
    _add_editing(app, pages)
    _add_deleting(app, pages)
    _add_resetting(app, pages)


def _add_list(app: FastAPI, pages: Pages) -> None:
    @app.get("/groups", include_in_schema=False)
    async def groups(
        request: Request,
        search: Name = "",
        order: Name = "",
        page: PageNumber = 1,
    ) -> Response:
        search, part = search.strip(), PageRequest(page, _PAGE_SIZE)
        order = order if order == _BY_LAG else ""
        asked = PageRequest(size=_ORDERED_MAX) if order else part
        found = await pages.operations(request).groups(search=search, page=asked)
        left_out = max(0, found.total - _ORDERED_MAX) if order else 0
        if order:
            # Of what was measured: a page that shows less than it counts would have no end.
            found = by_lag(replace(found, total=len(found.items)), part)
        return pages.html(
            request,
            "groups.html",
            live_ms=_LIVE_ORDERED_MS if order else _LIVE_MS,
            page=found,
            search=search,
            order=order,
            orders=_ORDERS,
            left_out=left_out,
        )

    @app.get("/groups/{name}", include_in_schema=False)
    async def group(
        request: Request,
        name: str,
        search: Name = "",
        range: RangeName = "",  # noqa: A002 - the name in the address
    ) -> Response:
        search = search.strip()
        chosen = time_range(range)
        return pages.html(
            request,
            "group.html",
            live_ms=_LIVE_MS,
            view=group_view(await pages.operations(request).group(name), topic_search=search),
            search=search,
            own=group_address(name),
            plots=usage_plots(
                pages,
                chosen,
                [
                    ("Lag", [("messages", pages.usage.lag(name))], count_text_of),
                    ("In flight", [("messages", pages.usage.inflight(name))], count_text_of),
                ],
            ),
            range=chosen,
            ranges=RANGES,
        )


def _add_editing(app: FastAPI, pages: Pages) -> None:
    editing = ChangePage[GroupForm](
        pages,
        "group_edit.html",
        lambda form: {"own": group_address(form.name) if form.name else "/groups"},
    )

    @app.get("/new-group", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def new_group(request: Request) -> Response:
        return editing.show(request, blank_group())

    @app.post("/new-group", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def create_group(request: Request) -> Response:
        operations = pages.operations(request)
        form = read_group_form(await form_of(request))

        async def create(_dry_run: bool) -> ChangeResult:
            await refuse_existing(f"group {form.name}", operations.group(form.name))
            return await operations.put_group(form.change)

        return await editing.carry_out(
            request,
            form,
            create,
            lambda made: pages.go_to(group_address(form.name), change_flash(f"Group {form.name} was created.", made)),
            is_confirmed=True,
        )

    @app.get("/groups/{name}/edit", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def edit_group(request: Request, name: str) -> Response:
        return editing.show(request, group_form_of((await pages.operations(request).group(name)).summary))

    @app.post("/groups/{name}/edit", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def change_group(request: Request, name: str) -> Response:
        operations = pages.operations(request)
        posted = await form_of(request)
        form = read_group_form(posted, before=(await operations.group(name)).summary)
        what = ("enabled" if form.enabled else "disabled") if form.only_enabled else "changed"
        return await editing.carry_out(
            request,
            form,
            lambda dry_run: operations.put_group(form.change, dry_run=dry_run),
            lambda result: pages.go_to(group_address(name), change_flash(f"Group {name} was {what}.", result)),
            is_confirmed=posted.is_checked("confirm"),
        )


def _add_deleting(app: FastAPI, pages: Pages) -> None:
    async def show(request: Request, name: str, deletion: Deletion) -> Response:
        operations = pages.operations(request)
        view = group_view(await operations.group(name))
        even_with_members = deletion.posted.is_checked("even_with_members")
        failure, members_error = deletion.failure, ""
        if failure is not None and failure.kind is FailureKind.REFUSED and not even_with_members:
            members_error = sentence(failure.problem)
            failure = None
        review, refused = None, None
        if failure is None:
            try:
                review, refused = await _deletion(operations, name)
            except OperationFailed as failed:
                failure = failed
        return pages.html(
            request,
            "group_delete.html",
            is_wrong=bool(deletion.error or members_error),
            view=view,
            own=group_address(name),
            review=review,
            refused=refused,
            failure=failure,
            typed=deletion.posted.text("typed"),
            error=deletion.error,
            even_with_members=even_with_members,
            members_error=members_error,
        )

    async def delete(request: Request, name: str, posted: Form) -> ChangeResult:
        even_with_members = posted.is_checked("even_with_members")
        return await pages.operations(request).delete_group(name, even_with_members=even_with_members)

    add_deletion(app, pages, "/groups", noun="Group", show=show, delete=delete)


async def _deletion(operations: Operations, name: str) -> tuple[ChangeResult, OperationFailed | None]:
    """What deleting does, and why it is refused as long as members are connected."""
    try:
        return await operations.delete_group(name, dry_run=True), None
    except OperationFailed as failure:
        if failure.kind is not FailureKind.REFUSED:
            raise
        return await operations.delete_group(name, even_with_members=True, dry_run=True), failure


def _add_resetting(app: FastAPI, pages: Pages) -> None:
    resetting = ChangePage[ResetForm](
        pages,
        "group_reset.html",
        lambda form: {"own": group_address(form.group), "moment_forms": FORMS, "move_text": move_text},
    )

    @app.get("/groups/{name}/reset", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def reset_form(request: Request, name: str, topic: Name = "") -> Response:
        detail = await pages.operations(request).group(name)
        return resetting.show(request, blank_reset(name, detail.summary.topics, topic))

    @app.post("/groups/{name}/reset", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def reset(request: Request, name: str) -> Response:
        operations = pages.operations(request)
        posted = await form_of(request)
        detail = await operations.group(name)
        form = read_reset_form(posted, group=name, topics=detail.summary.topics, now_ms=pages.clock.wall_ms())

        def done(moves: Sequence[OffsetReset]) -> Response:
            text = f"{name} goes on elsewhere in {form.topic}: {len(moves)} queues were set."
            return pages.go_to(group_address(name), Flash("ok", text))

        return await resetting.carry_out(
            request,
            form,
            lambda dry_run: operations.reset_offsets(name, form.topic, form.reset, dry_run=dry_run),
            done,
            is_confirmed=posted.is_checked("confirm"),
            review=reset_view,
        )
