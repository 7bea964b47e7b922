"""What the pages of consumer groups show. Pure; templates only lay it out."""

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
    form_status,
    go_to,
    page_html,
    refuse_existing,
    usage_plots,
)
from tandemmq.admin.console.frame import Flash, dead_letters_address, group_address, messages_address, topic_address
from tandemmq.admin.console.plots import RANGES, time_range
from tandemmq.admin.operations.groups import GROUP_ATTRIBUTES
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.topics import RETRY_PREFIX, attributes_text, read_attributes
from tandemmq.admin.operations.values import (
    ChangeResult,
    Client,
    GroupChange,
    GroupDetail,
    GroupSummary,
    OffsetReset,
    Page,
    PageRequest,
    Progress,
    ResetTarget,
    Unseen,
)
from tandemmq.core.metadata.topic_table import group_name_problem
from tandemmq.service.texts import FORMS, MomentUnreadable, age_text, count_text, counted, duration_text, read_moment

if TYPE_CHECKING:
    from tandemmq.admin.operations.operations import Operations


# Connected clients as tables show them.


@dataclass(frozen=True, slots=True)
class ClientRow:
    """A client; what it has not said is named so."""

    client_id: str
    # simple consumer, producer …
    kind: str
    group: str
    group_address: str
    library: str
    address: str
    heard: str
    brokers: str
    # Topic, its page, and the filter where it reads with one.
    subscriptions: tuple[tuple[str, str, str], ...]


def client_rows(clients: Iterable[Client], *, shown_topic: str = "") -> tuple[ClientRow, ...]:
    """In the order given. With `shown_topic` only what a client says of that topic."""
    return tuple(_client_row(client, shown_topic) for client in clients)


def _client_row(client: Client, shown_topic: str) -> ClientRow:
    return ClientRow(
        client_id=client.client_id,
        kind=client.client_type.replace("_", " ").lower() or "has not said yet",
        group=client.group,
        group_address=group_address(client.group) if client.group else "",
        library=" ".join(part for part in (client.language, client.version) if part) or "not known",
        address=client.address,
        heard=age_text(client.silent_ms),
        brokers=", ".join(client.brokers),
        subscriptions=tuple(
            (topic, topic_address(topic), expression)
            for topic, expression in sorted(client.subscriptions.items())
            if shown_topic in ("", topic)
        ),
    )


TOPICS_SHOWN: Final = 50
"""Topics on a group's page; where it has read more, those it lacks most in, or those that were searched."""
QUEUES_SHOWN: Final = 1_000
"""Rows of queues on a group's page, of all topics together."""
MOVES_SHOWN: Final = 256
_TOPICS_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class GroupRow:
    name: str
    address: str
    members: int
    # Empty: not known.
    lag: str
    inflight: str
    is_behind: bool
    topics: tuple[tuple[str, str], ...]
    more_topics: int
    order: str
    retries: int
    enabled: bool


@dataclass(frozen=True, slots=True)
class QueueProgress:
    broker_name: str
    queue_id: int
    committed_offset: int
    max_offset: int
    lag: int
    inflight: int
    oldest_age: str
    # What it reads next; empty when it has read all.
    next_address: str


@dataclass(frozen=True, slots=True)
class TopicProgress:
    topic: str
    address: str
    is_retry: bool
    lag: int
    inflight: int
    oldest_age: str
    queues: tuple[QueueProgress, ...]
    queue_total: int


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group's page."""

    name: str
    ordered: bool
    retry_max_times: int
    enabled: bool
    lag: int
    inflight: int
    oldest_age: str
    dead_letters: int
    dead_letters_address: str
    # Message groups that wait for an earlier message of theirs.
    blocked: int
    # Sentences: disabled, or a lag that nobody works off.
    warnings: tuple[str, ...]
    topics: tuple[TopicProgress, ...]
    # Those it has read, and those of them that match the search.
    topic_total: int
    topic_matches: int
    members: tuple[ClientRow, ...]
    member_total: int
    unseen: tuple[Unseen, ...]


@dataclass(frozen=True, slots=True)
class MoveRow:
    """What a reset does in one queue."""

    broker_name: str
    queue_id: int
    from_text: str
    to_offset: int
    max_offset: int
    # back 1,200; skips 3; stays.
    effect: str
    inflight: int


@dataclass(frozen=True, slots=True)
class ResetView:
    rows: tuple[MoveRow, ...]
    queue_total: int
    # Whole sentences; empty: nothing moves.
    effects: tuple[str, ...]


def group_rows(page: Page[GroupSummary]) -> tuple[GroupRow, ...]:
    return tuple(_group_row(group, all_seen=not page.unseen) for group in page.items)


def group_view(detail: GroupDetail, *, topic_search: str = "") -> GroupView:
    """All of a group's page; `topic_search` is a part of the names of the topics it shows."""
    summary = detail.summary
    by_topic = _by_topic(detail.progress)
    matching = {topic: found for topic, found in by_topic.items() if topic_search.lower() in topic.lower()}
    lag = sum(progress.lag for progress in detail.progress)
    return GroupView(
        name=summary.name,
        ordered=summary.ordered,
        retry_max_times=summary.retry_max_times,
        enabled=summary.enabled,
        lag=lag,
        inflight=sum(progress.inflight for progress in detail.progress),
        oldest_age=_oldest_text(detail.progress),
        dead_letters=detail.dead_letters,
        dead_letters_address=dead_letters_address(summary.name),
        blocked=sum(progress.blocked_message_groups for progress in detail.progress),
        warnings=tuple(_warnings(detail, lag)),
        topics=tuple(_shown(matching)),
        topic_total=len(by_topic),
        topic_matches=len(matching),
        members=client_rows(detail.members),
        member_total=max(len(detail.members), summary.member_count),
        unseen=tuple(detail.unseen),
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
    return ResetView(tuple(_move_row(move) for move in moves[:MOVES_SHOWN]), len(moves), tuple(effects))


def _group_row(group: GroupSummary, *, all_seen: bool) -> GroupRow:
    return GroupRow(
        name=group.name,
        address=group_address(group.name),
        members=group.member_count,
        lag=count_text(group.lag) if group.lag >= 0 else "",
        inflight=count_text(group.inflight) if group.inflight >= 0 else "",
        is_behind=group.lag > 0 and group.member_count == 0 and all_seen,
        topics=tuple((topic, topic_address(topic)) for topic in group.topics[:_TOPICS_NAMED]),
        more_topics=max(0, len(group.topics) - _TOPICS_NAMED),
        order="in order" if group.ordered else "concurrent",
        retries=group.retry_max_times,
        enabled=group.enabled,
    )


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
        yield _topic_progress(name, topics[name], queues=topics[name][:room])
        room = max(0, room - len(topics[name]))


def _topic_progress(topic: str, progress: Sequence[Progress], *, queues: Sequence[Progress]) -> TopicProgress:
    return TopicProgress(
        topic=topic,
        address=topic_address(topic),
        is_retry=topic.startswith(RETRY_PREFIX),
        lag=sum(one.lag for one in progress),
        inflight=sum(one.inflight for one in progress),
        oldest_age=_oldest_text(progress),
        queues=tuple(_queue_progress(one) for one in queues),
        queue_total=len(progress),
    )


def _queue_progress(progress: Progress) -> QueueProgress:
    return QueueProgress(
        broker_name=progress.broker_name,
        queue_id=progress.queue_id,
        committed_offset=progress.committed_offset,
        max_offset=progress.max_offset,
        lag=progress.lag,
        inflight=progress.inflight,
        oldest_age=_oldest_text([progress]),
        next_address=messages_address(
            topic=progress.topic,
            broker=progress.broker_name,
            queue=progress.queue_id,
            offset=progress.committed_offset,
        )
        if progress.lag
        else "",
    )


def _oldest_text(progress: Iterable[Progress]) -> str:
    oldest_ms = max((one.oldest_age_ms for one in progress), default=0)
    return duration_text(oldest_ms / 1_000) if oldest_ms > 0 else ""


def _move_row(move: OffsetReset) -> MoveRow:
    by = move.to_offset - move.from_offset
    if move.from_offset < 0:
        effect = "starts here"
    elif by == 0:
        effect = "stays"
    else:
        effect = f"back {-by:,}" if by < 0 else f"skips {by:,}"
    return MoveRow(
        broker_name=move.broker_name,
        queue_id=move.queue_id,
        from_text=count_text(move.from_offset) if move.from_offset >= 0 else "never read",
        to_offset=move.to_offset,
        max_offset=move.max_offset,
        effect=effect,
        inflight=move.inflight,
    )


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
        errors["name"] = f"{problem[0].upper()}{problem[1:]}."
    if not (retries.isascii() and retries.isdecimal() and len(retries) <= 6 and int(retries) <= _RETRIES_MAX):
        errors["retry_max_times"] = f"Write a number from 0 to {_RETRIES_MAX:,}."
    try:
        _read_attributes(form.text("attributes"))
    except ValueError as error:
        errors["attributes"] = f"{str(error).capitalize()}."
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

_ACTIVE: Final = "groups"
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
        return page_html(
            pages,
            request,
            "groups.html",
            active=_ACTIVE,
            live_ms=_LIVE_ORDERED_MS if order else _LIVE_MS,
            page=found,
            rows=group_rows(found),
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
        return page_html(
            pages,
            request,
            "group.html",
            active=_ACTIVE,
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
        _ACTIVE,
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

        def done(result: ChangeResult) -> Response:
            return go_to(pages, group_address(form.name), flash=change_flash(f"Group {form.name} was created.", result))

        return await editing.carry_out(request, form, create, done, is_confirmed=True)

    @app.get("/groups/{name}/edit", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def edit_group(request: Request, name: str) -> Response:
        return editing.show(request, group_form_of((await pages.operations(request).group(name)).summary))

    @app.post("/groups/{name}/edit", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def change_group(request: Request, name: str) -> Response:
        operations = pages.operations(request)
        posted = await form_of(request)
        form = read_group_form(posted, before=(await operations.group(name)).summary)

        def done(result: ChangeResult) -> Response:
            what = ("enabled" if form.enabled else "disabled") if form.only_enabled else "changed"
            return go_to(pages, group_address(name), flash=change_flash(f"Group {name} was {what}.", result))

        return await editing.carry_out(
            request,
            form,
            lambda dry_run: operations.put_group(form.change, dry_run=dry_run),
            done,
            is_confirmed=posted.is_checked("confirm"),
        )


def _add_deleting(app: FastAPI, pages: Pages) -> None:
    async def show(request: Request, name: str, deletion: Deletion) -> Response:
        operations = pages.operations(request)
        view = group_view(await operations.group(name))
        even_with_members = deletion.posted.is_checked("even_with_members")
        failure, members_error = deletion.failure, ""
        if failure is not None and failure.kind is FailureKind.REFUSED and not even_with_members:
            members_error = f"{failure.problem[0].upper()}{failure.problem[1:]}."
            failure = None
        review, refused = None, None
        if failure is None:
            try:
                review, refused = await _deletion(operations, name)
            except OperationFailed as failed:
                failure = failed
        return page_html(
            pages,
            request,
            "group_delete.html",
            active=_ACTIVE,
            status=form_status(failure, is_wrong=bool(deletion.error or members_error)),
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
        _ACTIVE,
        lambda form: {"own": group_address(form.group), "moment_forms": FORMS},
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
            return go_to(pages, group_address(name), flash=Flash("ok", text))

        return await resetting.carry_out(
            request,
            form,
            lambda dry_run: operations.reset_offsets(name, form.topic, form.reset, dry_run=dry_run),
            done,
            is_confirmed=posted.is_checked("confirm"),
            review=reset_view,
        )
