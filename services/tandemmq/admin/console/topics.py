"""The pages of topics. Templates read the operations' values; here is what takes a rule."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fastapi import FastAPI, Request, Response

from tandemmq.admin.api.access import OPERATOR_ONLY, problem_of
from tandemmq.admin.console.answers import (
    ChangePage,
    Deletion,
    Form,
    Name,
    PageNumber,
    Pages,
    RangeName,
    add_deletion,
    attempt,
    change_flash,
    form_of,
    refuse_existing,
    usage_plots,
)
from tandemmq.admin.console.frame import (
    Flash,
    agreed,
    place_address,
    topic_address,
)
from tandemmq.admin.console.messages import MessageForm, blank_message, read_message_form
from tandemmq.admin.console.plots import RANGES, time_range
from tandemmq.admin.operations.bodies import PREVIEW_BYTES
from tandemmq.admin.operations.operations import Operations
from tandemmq.admin.operations.questions import each_once
from tandemmq.admin.operations.topics import (
    CATEGORIES,
    DEAD_LETTER,
    ORDINARY,
    RETRY,
    SYSTEM,
    attributes_text,
    read_attributes,
)
from tandemmq.admin.operations.values import (
    BrokerTopic,
    ChangeResult,
    Client,
    MessageQuery,
    MessageSummary,
    Page,
    PageRequest,
    QueueRoute,
    TestReceipt,
    TopicChange,
    TopicDetail,
    TopicSummary,
    Unseen,
)
from tandemmq.core.metadata.topic_table import MAX_QUEUE_COUNT, topic_name_problem
from tandemmq.service.texts import rate_text, sentence

CATEGORY_CHOICES: Final = (
    (ORDINARY, "topics"),
    (RETRY, "retry topics"),
    (DEAD_LETTER, "dead letter topics"),
    (SYSTEM, "system topics"),
    ("all", "all"),
)
"""Value and name of what a list of topics can be narrowed to."""

QUEUES_SHOWN: Final = 256
"""Rows of one topic's queues; a topic with more is browsed by message."""

READERS_SHOWN: Final = 200

REFUSED_TYPES: Final = ("DELAY", "TRANSACTION")
"""Types of messages that a test message cannot be."""

_WRITE: Final = 2


@dataclass(frozen=True, slots=True)
class TopicView:
    """What a topic's page says besides what is in its detail."""

    detail: TopicDetail
    # What all masters say.
    message_type: str
    # A sentence that warns, or empty: masters or NameServers disagree, nobody may write.
    warnings: tuple[str, ...]
    # Group whose retries or dead letters these are.
    owner: str
    # Whether clients may send to it: neither a system topic nor of a type that is refused.
    takes_messages: bool
    clients: Sequence[Client]
    client_total: int
    # Why the list of clients is missing.
    clients_problem: str
    unseen: tuple[Unseen, ...]


def topic_view(detail: TopicDetail, clients: Page[Client] | None, *, clients_problem: str = "") -> TopicView:
    """All of a topic's page but its newest messages."""
    summary = detail.summary
    message_type = agreed(broker.message_type for broker in summary.brokers)
    return TopicView(
        detail=detail,
        message_type=message_type,
        warnings=tuple(_warnings(detail)),
        owner=_owner(summary),
        takes_messages=summary.category != SYSTEM and message_type not in REFUSED_TYPES,
        clients=clients.items if clients is not None else (),
        client_total=clients.total if clients is not None else 0,
        clients_problem=clients_problem,
        unseen=each_once(detail.unseen, clients.unseen if clients is not None else ()),
    )


def queues_text(brokers: Sequence[BrokerTopic | QueueRoute]) -> str:
    """8 queues on each of 2 brokers: `2 × 8`; 16 to read and 8 to write on broker-a: `16 read/8 write`."""
    counts = {(broker.read_queue_count, broker.write_queue_count) for broker in brokers}
    if len(counts) == 1:
        read, write = counts.pop()
        count = str(read) if read == write else f"{read} read/{write} write"
        return count if len(brokers) == 1 else f"{len(brokers)} × {count}"
    return " + ".join(queues_text([broker]) for broker in brokers)


def _warnings(detail: TopicDetail) -> list[str]:
    brokers = detail.summary.brokers
    found = []
    if len({(one.read_queue_count, one.write_queue_count, one.permission, one.message_type) for one in brokers}) > 1:
        found.append("The masters have different settings for this topic. Edit it to make them equal.")
    if brokers and not any(one.permission & _WRITE for one in brokers):
        found.append("No master takes messages for this topic: it may not be written to.")
    if not detail.routes_agree:
        found.append(
            "NameServers give different routes for this topic: clients may not find all queues. A broker tells each "
            "NameServer of a change within 30 seconds; if this stays, see whether all brokers reach all NameServers."
        )
    elif detail.routes and not any(route.queues for route in detail.routes):
        found.append("No NameServer routes to this topic: clients cannot find it.")
    return found


def _owner(topic: TopicSummary) -> str:
    if topic.category not in (RETRY, DEAD_LETTER):
        return ""
    # %RETRY%group, %DLQ%group.
    return topic.name.split("%", 2)[2]


# The form of a topic: what was typed becomes a change, or a sentence beside the field that is wrong.

PERMISSIONS: Final = (("6", "read and write"), ("4", "read only"), ("2", "write only"))
_READ_WRITE: Final = "6"
_CREATED_TYPES: Final = (
    ("NORMAL", "NORMAL"),
    ("FIFO", "FIFO, in order"),
    ("DELAY", "DELAY"),
    ("TRANSACTION", "TRANSACTION"),
    ("MIXED", "MIXED, any of these"),
    ("PRIORITY", "PRIORITY, urgent ones first"),
    ("LITE", "LITE, many small queues"),
)


@dataclass(frozen=True, slots=True)
class TopicForm:
    is_new: bool
    name: str
    # Empty: the brokers' default, or as it is.
    read_queues: str
    write_queues: str
    # One of PERMISSIONS; empty: as it is.
    permission: str
    # Empty: as it is.
    message_type: str
    # NAME=VALUE pairs; empty: as they are.
    attributes: str
    # Each known broker group, and whether the topic is or is to be on it.
    brokers: tuple[tuple[str, bool], ...]
    # By field: name, read_queues, write_queues, brokers.
    errors: Mapping[str, str]
    # What the change means, for its second step.
    notes: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """What the second step posts again."""
        return (
            ("read_queues", self.read_queues),
            ("write_queues", self.write_queues),
            ("permission", self.permission),
            ("message_type", self.message_type),
            ("attributes", self.attributes),
            *(("broker", name) for name, checked in self.brokers if checked),
        )

    @property
    def change(self) -> TopicChange:
        """What is asked for; only of a form without errors."""
        chosen = tuple(name for name, checked in self.brokers if checked)
        return TopicChange(
            name=self.name,
            read_queue_count=int(self.read_queues or 0),
            write_queue_count=int(self.write_queues or 0),
            permission=int(self.permission or 0),
            message_type=self.message_type,
            attributes=read_attributes(filter(None, map(str.strip, self.attributes.split(",")))),
            broker_names=() if len(chosen) == len(self.brokers) else chosen,
        )


def blank_topic(broker_names: Sequence[str]) -> TopicForm:
    """The form of a new topic: on all broker groups."""
    return TopicForm(True, "", "", "", _READ_WRITE, "NORMAL", "", tuple((name, True) for name in broker_names), {})


def topic_form_of(topic: TopicSummary, broker_names: Sequence[str]) -> TopicForm:
    """The form of a topic as it is. Where its masters differ the field is empty, and leaves each as it is."""
    on = {broker.broker_name for broker in topic.brokers}
    return TopicForm(
        is_new=False,
        name=topic.name,
        read_queues=_common(str(broker.read_queue_count) for broker in topic.brokers),
        write_queues=_common(str(broker.write_queue_count) for broker in topic.brokers),
        permission=_common(str(broker.permission & 6) for broker in topic.brokers),
        message_type=_common(broker.message_type for broker in topic.brokers),
        attributes=_common(attributes_text(broker.attributes) for broker in topic.brokers),
        brokers=tuple((name, name in on) for name in sorted({*broker_names, *on})),
        errors={},
    )


def topic_types(form: TopicForm) -> tuple[tuple[str, str], ...]:
    """Choices of the type's field."""
    if form.is_new:
        return _CREATED_TYPES
    known = [value for value, _ in _CREATED_TYPES]
    others = ((form.message_type, form.message_type),) if form.message_type not in ("", *known) else ()
    return (("", "as it is"), *_CREATED_TYPES, *others)


def read_topic_form(
    form: Form, *, name: str = "", broker_names: Sequence[str], before: TopicSummary | None = None
) -> TopicForm:
    """A posted form; `name` and `before` of a topic that is there."""
    is_new = before is None
    name = form.text("name") if is_new else name
    chosen = set(form.all("broker"))
    on = {broker.broker_name for broker in before.brokers} if before is not None else set()
    known = sorted({*broker_names, *on})
    errors: dict[str, str] = {}
    if is_new and (problem := topic_name_problem(name)) is not None:
        errors["name"] = sentence(problem)
    for field in ("read_queues", "write_queues"):
        if problem := _count_problem(form.text(field)):
            errors[field] = problem
    try:
        read_attributes(filter(None, map(str.strip, form.text("attributes").split(","))))
    except ValueError as error:
        errors["attributes"] = sentence(str(error))
    if known and not chosen & set(known):
        errors["brokers"] = "Choose at least one."
    permission = form.text("permission")
    filled = TopicForm(
        is_new=is_new,
        name=name,
        read_queues=form.text("read_queues"),
        write_queues=form.text("write_queues"),
        permission=permission if permission in dict(PERMISSIONS) else "",
        message_type=form.text("message_type"),
        attributes=form.text("attributes"),
        brokers=tuple((each, each in chosen) for each in known),
        errors=errors,
    )
    if errors or before is None:
        return filled
    return replace(filled, notes=tuple(_notes(filled.change, before)))


def _notes(change: TopicChange, before: TopicSummary) -> Iterable[str]:
    """What a change of `before` means for its clients."""
    on = {broker.broker_name for broker in before.brokers}
    added = sorted(set(change.broker_names) - on)
    left_alone = sorted(on - set(change.broker_names)) if change.broker_names else []
    changed = [broker for broker in before.brokers if broker.broker_name not in left_alone]
    if change.read_queue_count and any(broker.read_queue_count > change.read_queue_count for broker in changed):
        yield "Queues of higher numbers are no longer read: what waits there waits until they are added again."
    if change.permission and change.permission & 2 == 0 and any(broker.permission & 2 for broker in changed):
        yield "Producers can no longer send to it."
    if change.permission and change.permission & 4 == 0 and any(broker.permission & 4 for broker in changed):
        yield "Consumers can no longer read it."
    if change.message_type and any(broker.message_type != change.message_type for broker in changed):
        yield "Producers that send another type are refused from then on."
    if added:
        yield f"It is made on {', '.join(added)}, too."
    if left_alone:
        yield f"It stays as it is on {', '.join(left_alone)}: a topic is taken away from all broker groups, or none."


def _count_problem(text: str) -> str:
    if not text:
        return ""
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and 1 <= int(text) <= MAX_QUEUE_COUNT):
        return f"Write a number from 1 to {MAX_QUEUE_COUNT:,}, or nothing."
    return ""


def _common(texts: Iterable[str]) -> str:
    different = set(texts)
    return different.pop() if len(different) == 1 else ""


# Pages of topics: the list, one topic, and what is done to it.

_LITE_SHOWN: Final = 200
_PAGE_SIZE: Final = 50
_CLIENTS_SHOWN: Final = 50
_NEWEST_SHOWN: Final = 5
# These pages ask the brokers at each renewal, unlike pages of the reading that all share.
_LIVE_MS: Final = 5_000
_ALL: Final = "all"


def add_topic_pages(app: FastAPI, pages: Pages) -> None:
    _add_list(app, pages)
    _add_lite_topics(app, pages)
    _add_editing(app, pages)
    _add_deleting(app, pages)
    _add_sending(app, pages)


def _add_list(app: FastAPI, pages: Pages) -> None:
    @app.get("/topics", include_in_schema=False)
    async def topics(request: Request, search: Name = "", category: Name = ORDINARY, page: PageNumber = 1) -> Response:
        wanted = (category,) if category in CATEGORIES else CATEGORIES
        found = await pages.operations(request).topics(
            search=search.strip(), categories=wanted, page=PageRequest(page, _PAGE_SIZE)
        )
        return pages.html(
            request,
            "topics.html",
            live_ms=_LIVE_MS,
            page=found,
            queues_text=queues_text,
            search=search.strip(),
            category=category if category in CATEGORIES else _ALL,
            categories=CATEGORY_CHOICES,
        )

    @app.get("/topics/{name}", include_in_schema=False)
    async def topic(
        request: Request,
        name: str,
        range: RangeName = "",  # noqa: A002 - the name in the address
    ) -> Response:
        operations = pages.operations(request)
        chosen = time_range(range)
        detail = await operations.topic(name)
        async with asyncio.TaskGroup() as group:
            viewing = group.create_task(_view(operations, detail))
            finding = group.create_task(_newest(operations, name))
        newest, newest_problem = finding.result()
        return pages.html(
            request,
            "topic.html",
            live_ms=_LIVE_MS,
            view=viewing.result(),
            queues_text=queues_text,
            queues_shown=QUEUES_SHOWN,
            readers_shown=READERS_SHOWN,
            newest=newest,
            newest_problem=newest_problem,
            own=topic_address(name),
            plots=usage_plots(pages, chosen, [("Messages stored", [("a second", pages.usage.rate(name))], rate_text)]),
            range=chosen,
            ranges=RANGES,
        )


def _add_lite_topics(app: FastAPI, pages: Pages) -> None:
    @app.get("/topics/{name}/lite", include_in_schema=False)
    async def lite_topics(request: Request, name: str, search: Name = "") -> Response:
        wanted = search.strip()
        page = await pages.operations(request).lite_topics(name, search=wanted, limit=_LITE_SHOWN)
        return pages.html(
            request,
            "topic_lite.html",
            live_ms=_LIVE_MS,
            name=name,
            own=topic_address(name),
            page=page,
            search=wanted,
        )


def _add_editing(app: FastAPI, pages: Pages) -> None:
    def context(form: TopicForm) -> Mapping[str, object]:
        return {
            "types": topic_types(form),
            "permissions": PERMISSIONS if form.permission else (("", "as it is"), *PERMISSIONS),
            "own": topic_address(form.name) if form.name else "/topics",
        }

    editing = ChangePage[TopicForm](pages, "topic_edit.html", context)

    @app.get("/new-topic", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def new_topic(request: Request) -> Response:
        return editing.show(request, blank_topic(_broker_names(pages)))

    @app.post("/new-topic", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def create_topic(request: Request) -> Response:
        operations = pages.operations(request)
        form = read_topic_form(await form_of(request), broker_names=_broker_names(pages))

        async def create(_dry_run: bool) -> ChangeResult:
            await refuse_existing(f"topic {form.name}", operations.topic(form.name))
            return await operations.put_topic(form.change)

        return await editing.carry_out(
            request,
            form,
            create,
            lambda made: pages.go_to(topic_address(form.name), change_flash(f"Topic {form.name} was created.", made)),
            is_confirmed=True,
        )

    @app.get("/topics/{name}/edit", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def edit_topic(request: Request, name: str) -> Response:
        detail = await pages.operations(request).topic(name)
        return editing.show(request, topic_form_of(detail.summary, _broker_names(pages)))

    @app.post("/topics/{name}/edit", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def change_topic(request: Request, name: str) -> Response:
        operations = pages.operations(request)
        posted = await form_of(request)
        detail = await operations.topic(name)
        form = read_topic_form(posted, name=name, broker_names=_broker_names(pages), before=detail.summary)

        return await editing.carry_out(
            request,
            form,
            lambda dry_run: operations.put_topic(form.change, dry_run=dry_run),
            lambda result: pages.go_to(topic_address(name), change_flash(f"Topic {name} was changed.", result)),
            is_confirmed=posted.is_checked("confirm"),
        )


def _add_deleting(app: FastAPI, pages: Pages) -> None:
    async def show(request: Request, name: str, deletion: Deletion) -> Response:
        operations = pages.operations(request)
        detail = await operations.topic(name)
        view = await _view(operations, detail)
        review, failure = None, deletion.failure
        if failure is None:
            review, failure = await attempt(operations.delete_topic(name, dry_run=True), None)
        return pages.html(
            request,
            "topic_delete.html",
            is_wrong=bool(deletion.error),
            name=name,
            own=topic_address(name),
            review=review,
            failure=failure,
            typed=deletion.posted.text("typed"),
            error=deletion.error,
            held=detail.summary.held,
            readers=detail.groups,
            clients=view.client_total,
        )

    async def delete(request: Request, name: str, _posted: Form) -> ChangeResult:
        return await pages.operations(request).delete_topic(name)

    add_deletion(app, pages, "/topics", noun="Topic", show=show, delete=delete)


def _add_sending(app: FastAPI, pages: Pages) -> None:
    sending = ChangePage[MessageForm](pages, "topic_send.html", lambda form: {"own": topic_address(form.topic)})

    async def message_type(request: Request, name: str) -> str:
        brokers = (await pages.operations(request).topic(name)).summary.brokers
        return brokers[0].message_type if brokers else ""

    @app.get("/topics/{name}/send", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def message_form(request: Request, name: str) -> Response:
        return sending.show(request, blank_message(name, await message_type(request, name)))

    @app.post("/topics/{name}/send", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def send(request: Request, name: str) -> Response:
        form = read_message_form(await form_of(request), topic=name, message_type=await message_type(request, name))

        def done(receipt: TestReceipt) -> Response:
            place = f"{receipt.broker_name}, queue {receipt.queue_id}, offset {receipt.queue_offset:,}"
            return pages.go_to(
                place_address(receipt.broker_name, name, receipt.queue_id, receipt.queue_offset),
                Flash("ok", f"The message was stored in {receipt.duration_ms:.1f} ms on {place}."),
            )

        return await sending.carry_out(
            request, form, lambda _dry_run: pages.operations(request).send(form.message), done, is_confirmed=True
        )


async def _view(operations: Operations, detail: TopicDetail) -> TopicView:
    clients, failure = await attempt(operations.clients(topic=detail.summary.name, limit=_CLIENTS_SHOWN), None)
    problem = f"Clients cannot be listed: {problem_of(failure).detail}." if failure is not None else ""
    return topic_view(detail, clients, clients_problem=problem)


async def _newest(operations: Operations, topic: str) -> tuple[Sequence[MessageSummary], str]:
    query = MessageQuery(topic, limit=_NEWEST_SHOWN, body_bytes=PREVIEW_BYTES)
    found, failure = await attempt(operations.search(query), None)
    problem = f"Messages cannot be read: {problem_of(failure).detail}." if failure is not None else ""
    return found.messages if found is not None else (), problem


def _broker_names(pages: Pages) -> tuple[str, ...]:
    reading = pages.cluster.latest
    brokers = reading.state.brokers if reading is not None else ()
    return tuple(sorted({broker.broker_name for broker in brokers}))
