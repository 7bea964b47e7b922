"""The pages of messages: search, one message, a test message, and undecided transactions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import FastAPI, HTTPException, Query, Request, Response
from pydantic import TypeAdapter

from tandemmq.admin.api.access import OPERATOR_ONLY
from tandemmq.admin.cluster_state import DelayedState
from tandemmq.admin.console.answers import DownloadResponse, Form, Name, Pages, attempt, form_of
from tandemmq.admin.console.frame import (
    Flash,
    address,
    message_address,
    messages_address,
    place_address,
    topic_address,
)
from tandemmq.admin.operations.bodies import (
    BODY_BYTES_MAX,
    HEX_BYTES_MAX,
    PAGE_BODY_BYTES_MAX,
    PREVIEW_BYTES,
    BodyForm,
    BodyView,
    body_view,
)
from tandemmq.admin.operations.messages import message_again
from tandemmq.admin.operations.questions import FailureKind, OperationFailed, each_once, refused
from tandemmq.admin.operations.topics import CATEGORIES, DEAD_LETTER_PREFIX, RETRY_PREFIX
from tandemmq.admin.operations.values import (
    Message,
    MessageDetail,
    MessagePage,
    MessageQuery,
    MessageSummary,
    Page,
    PageRequest,
    ReplicaCopy,
    SearchOrder,
    TestMessage,
    TopicDetail,
    TransactionPage,
    Unseen,
)
from tandemmq.core.clock import Clock
from tandemmq.core.message import properties as names
from tandemmq.core.message.record import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from tandemmq.service.texts import FORMS, MomentUnreadable, bytes_text, count_text, read_moment

if TYPE_CHECKING:
    from tandemmq.admin.operations.operations import Operations

_FORM_NAMES: Final = {BodyForm.JSON: "JSON", BodyForm.TEXT: "Text", BodyForm.HEX: "Hex"}
BODY_BYTES: Final = 65_536
"""As much of a body is shown; a download has more."""

# What the system itself writes; the rest is the sender's.
_SYSTEM_PROPERTIES: Final = frozenset(
    value for name, value in vars(names).items() if name.startswith("PROPERTY_") and isinstance(value, str)
)
# Those that name a topic get its page.
_TOPIC_PROPERTIES: Final = frozenset(
    {names.PROPERTY_REAL_TOPIC, names.PROPERTY_RETRY_TOPIC, names.PROPERTY_DEAD_LETTER_ORIGIN_TOPIC}
)
_MESSAGE_PROPERTIES: Final = frozenset({names.PROPERTY_ORIGIN_MESSAGE_ID, names.PROPERTY_DEAD_LETTER_ORIGIN_MESSAGE_ID})


@dataclass(frozen=True, slots=True)
class Fact:
    """A line about a message; `address` may be empty."""

    label: str
    text: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A place in a queue, whether a message is there or not."""

    broker_name: str
    topic: str
    queue_id: int
    queue_offset: int

    @property
    def before_address(self) -> str:
        """The message before; empty at the queue's beginning."""
        if self.queue_offset == 0:
            return ""
        return place_address(self.broker_name, self.topic, self.queue_id, self.queue_offset - 1)


@dataclass(frozen=True, slots=True)
class MessageView:
    """What a message's page says besides what is in its detail."""

    message: Message
    detail: MessageDetail
    address: str
    facts: tuple[Fact, ...]
    body: BodyView | None
    # What is said of the body: its size, that it is cut or compressed.
    body_about: str
    # Form, address, whether it is the one shown.
    body_forms: tuple[tuple[str, str, bool], ...]
    own_properties: tuple[Fact, ...]
    system_properties: tuple[Fact, ...]
    # One sentence, ok / warning / bad.
    copies_verdict: str
    copies_tone: str
    previous_address: str
    # Group whose dead letter or retry it is.
    owner: str
    is_dead_letter: bool
    # Where it waits, if it is no usual message: not from here is it sent again.
    kind_note: str


def message_view(detail: MessageDetail, *, wanted: BodyForm | None = None) -> MessageView:
    message = detail.message
    body = None if message.body_problem else body_view(message.body, wanted=wanted)
    address = message_address(message.broker_name, message.physical_offset)
    verdict, tone = _copies_verdict(detail.copies)
    owner = _owner(message.topic)
    return MessageView(
        message=message,
        detail=detail,
        address=address,
        facts=tuple(_facts(message)),
        body=body,
        body_about=_body_about(message, body),
        body_forms=_body_forms(body, address),
        own_properties=_properties(message, system=False),
        system_properties=_properties(message, system=True),
        copies_verdict=verdict,
        copies_tone=tone,
        previous_address=_place(message).before_address,
        owner=owner,
        is_dead_letter=message.topic.startswith(DEAD_LETTER_PREFIX),
        kind_note=_kind_note(message, owner),
    )


def _facts(message: Message) -> Iterable[Fact]:
    place = f"{message.broker_name}, queue {message.queue_id}, offset {count_text(message.queue_offset)}"
    onward = messages_address(
        topic=message.topic, broker=message.broker_name, queue=message.queue_id, offset=message.queue_offset
    )
    yield Fact("place", place, onward)
    yield Fact("in the CommitLog", f"{count_text(message.physical_offset)}, {bytes_text(message.record_bytes)}")
    yield Fact("message id", message.message_id or "none")
    if message.offset_message_id and message.offset_message_id != message.message_id:
        yield Fact("id by address", message.offset_message_id)
    yield Fact("sent from", message.born_host or "not known")
    yield Fact("stored by", message.store_host or "not known")
    if message.reconsume_times:
        yield Fact("deliveries before", count_text(message.reconsume_times))
    yield Fact("body CRC-32", f"{message.body_crc:08x}")
    yield Fact("flags", f"system {message.sys_flag:#x}, sender's {message.flag:#x}")


def _place(message: Message) -> QueuePlace:
    return QueuePlace(message.broker_name, message.topic, message.queue_id, message.queue_offset)


def _body_about(message: Message, body: BodyView | None) -> str:
    stored = bytes_text(message.body_size)
    packed = f", compressed with {message.compression}" if message.compression else ""
    if body is None or message.body_size == 0:
        return f"{stored}{packed}"
    cut_by_reading = len(message.body) < message.body_size if not message.compression else False
    cut_by_limit = len(message.body) >= BODY_BYTES and (bool(message.compression) or cut_by_reading)
    if body.shown_bytes < len(message.body):
        return f"{stored}{packed}; the first {bytes_text(HEX_BYTES_MAX)} are shown"
    if cut_by_reading or cut_by_limit:
        return f"{stored}{packed}; the first {bytes_text(len(message.body))} are shown"
    unpacked = f", {bytes_text(len(message.body))} unpacked" if message.compression else ""
    return f"{stored}{packed}{unpacked}"


def _body_forms(body: BodyView | None, address: str) -> tuple[tuple[str, str, bool], ...]:
    if body is None:
        return ()
    return tuple((_FORM_NAMES[form], f"{address}&view={form.value}", form is body.form) for form in body.forms)


def _properties(message: Message, *, system: bool) -> tuple[Fact, ...]:
    return tuple(
        Fact(name, value, _property_address(name, value))
        for name, value in sorted(message.properties.items())
        if (name in _SYSTEM_PROPERTIES) == system
    )


def _property_address(name: str, value: str) -> str:
    if name in _TOPIC_PROPERTIES and value:
        return topic_address(value)
    if name in _MESSAGE_PROPERTIES and value:
        return messages_address(id=value).replace("/messages?", "/message?")
    return ""


def copy_state(copy: ReplicaCopy) -> tuple[str, str]:
    """One replica's copy: ok, warning or bad, and in words."""
    if not copy.held:
        return "warning", "not held"
    if copy.equal is False:
        return "bad", "different bytes"
    if copy.master:
        return "ok", "the master's"
    return ("ok", "same bytes") if copy.equal else ("warning", "not compared")


def _copies_verdict(copies: Iterable[ReplicaCopy]) -> tuple[str, str]:
    found = list(copies)
    held = [copy for copy in found if copy.held]
    if any(copy.equal is False for copy in held):
        return "The copies differ. Run the consistency job before anything else: it tells which one is right.", "bad"
    if not held:
        return "No replica that answered holds it.", "bad"
    others = [copy for copy in found if not copy.master]
    if not others:
        return "There is one copy: this broker group has no slave.", "ok"
    if len(held) == len(found) and all(copy.equal for copy in others):
        return f"All {len(found)} replicas hold the same bytes.", "ok"
    return f"{len(held)} of {len(found)} replicas hold it.", "warning"


def _owner(topic: str) -> str:
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return ""


def _kind_note(message: Message, owner: str) -> str:
    if message.topic.startswith(DEAD_LETTER_PREFIX):
        times = "once" if message.reconsume_times == 1 else f"{message.reconsume_times} times"
        return f"A dead letter of {owner}: it was delivered {times} without success."
    if owner:
        return f"Waits here for another delivery to {owner}."
    if message.topic == SCHEDULE_TOPIC:
        return (
            "A message with a delay level, of a store taken over from RocketMQ: this version has delivery times only."
        )
    if message.topic == TIMER_TOPIC:
        return "A delayed message. It waits here until its time; the record stays when it was delivered or recalled."
    if message.topic == HALF_TOPIC:
        return "A half message: its transaction is committed, rolled back or undecided, see Transactions."
    return ""


# The form that finds messages: what somebody typed becomes a query, or a sentence beside the field that is wrong.

SEARCH_LIMIT: Final = 50
FIELDS: Final = ("topic", "key", "tag", "text", "from", "to", "order", "broker", "queue", "offset")
"""Names of the form's fields, which are those of its address."""

_OFFSET_DIGITS_MAX: Final = 18
_QUEUE_DIGITS_MAX: Final = 6


@dataclass(frozen=True, slots=True)
class MessageSearch:
    """The form as it was filled in."""

    # As typed, all of FIELDS.
    typed: Mapping[str, str]
    # By field.
    errors: Mapping[str, str]
    # None: nothing was asked for, or it cannot be.
    query: MessageQuery | None


def read_search(typed: Mapping[str, str], *, page_token: str = "", now_ms: int) -> MessageSearch:
    """Fields that are missing are empty."""
    fields = {name: typed.get(name, "").strip() for name in FIELDS}
    if not any(value for name, value in fields.items() if name != "order"):
        return MessageSearch(fields, {}, None)
    errors: dict[str, str] = {}
    if not fields["topic"]:
        errors["topic"] = "Name a topic: messages are kept by topic."
    start_ms = _moment(fields, "from", errors, now_ms)
    end_ms = _moment(fields, "to", errors, now_ms)
    if not errors and 0 <= end_ms <= start_ms:
        errors["to"] = "This is not after the beginning."
    queue_id = _number(fields, "queue", errors, digits_max=_QUEUE_DIGITS_MAX, missing=-1)
    start_offset = _number(fields, "offset", errors, digits_max=_OFFSET_DIGITS_MAX, missing=0)
    if queue_id >= 0 and not fields["broker"]:
        errors.setdefault("broker", "Each broker group has a queue of this number: name one.")
    if fields["offset"] and not fields["queue"]:
        errors.setdefault("queue", "An offset belongs to a queue: name it.")
    if fields["key"] and queue_id >= 0:
        errors.setdefault("key", "A key is looked for in all queues: leave out the key or the queue.")
    if errors:
        return MessageSearch(fields, errors, None)
    oldest_first = fields["order"] == SearchOrder.OLDEST.value
    query = MessageQuery(
        topic=fields["topic"],
        key=fields["key"],
        queue_id=queue_id,
        start_offset=start_offset,
        broker_name=fields["broker"],
        start_ms=start_ms,
        end_ms=end_ms,
        order=SearchOrder.OLDEST if oldest_first else SearchOrder.NEWEST,
        tags=tuple(tag for tag in fields["tag"].replace("||", " ").split() if tag != "*"),
        text=fields["text"],
        limit=SEARCH_LIMIT,
        body_bytes=PREVIEW_BYTES,
        page_token=page_token,
    )
    return MessageSearch(fields, {}, query)


def next_address(search: MessageSearch, next_page_token: str) -> str:
    """The page behind this one."""
    return messages_address(**_asked(search), page_token=next_page_token) if search.query and next_page_token else ""


def download_address(search: MessageSearch) -> str:
    """All that is found, as lines; empty without a search."""
    return address("/messages/download", **_asked(search)) if search.query else ""


def _asked(search: MessageSearch) -> dict[str, str]:
    """The fields, with moments written out: `10m ago` would be another moment on the next page."""
    query = search.query
    assert query is not None
    return dict(search.typed) | {
        "from": str(query.start_ms) if query.start_ms >= 0 else "",
        "to": str(query.end_ms) if query.end_ms >= 0 else "",
    }


def _moment(fields: Mapping[str, str], name: str, errors: dict[str, str], now_ms: int) -> int:
    if not fields[name]:
        return -1
    try:
        return read_moment(fields[name], now_ms=now_ms)
    except MomentUnreadable as error:
        errors[name] = str(error)
        return -1


def _number(fields: Mapping[str, str], name: str, errors: dict[str, str], *, digits_max: int, missing: int) -> int:
    written = fields[name].replace(",", "")
    if not written:
        return missing
    if not (written.isascii() and written.isdecimal() and len(written) <= digits_max):
        errors[name] = "Write a number, from 0."
        return missing
    return int(written)


# Delayed messages and half of transactions, as a store taken over from RocketMQ may hold them.


@dataclass(frozen=True, slots=True)
class WaitingKind:
    title: str
    topic: str
    held: int
    # Delay level and how many wait in it; empty for half messages.
    levels: tuple[tuple[int, int], ...]
    newest: Sequence[MessageSummary]
    none_text: str
    # Why nothing can be said.
    problem: str
    unseen: tuple[Unseen, ...]


_WAITING_TOPICS: Final = {
    TIMER_TOPIC: "Delayed messages, delivered and recalled ones included",
    SCHEDULE_TOPIC: "Messages with a delay level",
    HALF_TOPIC: "Half messages",
}


def waiting_kind(topic: str, detail: TopicDetail | None, newest: MessagePage) -> WaitingKind:
    """`detail` is None where there is no such topic."""
    is_delayed = topic == SCHEDULE_TOPIC
    levels: dict[int, int] = {}
    for extent in detail.extents if detail is not None else ():
        # RocketMQ keeps each delay level in a queue of its own, the first in queue 0.
        levels[extent.queue_id + 1] = levels.get(extent.queue_id + 1, 0) + extent.held
    return WaitingKind(
        title=_WAITING_TOPICS[topic],
        topic=topic,
        held=sum(levels.values()),
        levels=tuple((level, held) for level, held in sorted(levels.items()) if held) if is_delayed else (),
        newest=newest.messages,
        none_text=f"{topic} holds nothing." if detail is not None else f"There is no topic {topic}.",
        problem="",
        unseen=each_once(detail.unseen if detail else (), newest.unseen),
    )


# The newest messages of a topic, asked for once however many look at them at the same time.

_NEWEST_SHOWN: Final = 50
# An open tail asks every two seconds; brokers are asked once a second for each topic at most.
_FRESH_MS: Final = 1_000
_WATCHED_MS: Final = 10_000
_WATCHED_MAX: Final = 20


@dataclass(slots=True)
class _Watched:
    """One topic, or one tag of it."""

    # Held by whoever asks; the others wait for that answer.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    looked_ms: int = 0
    asked_ms: int = 0
    page: MessagePage | None = None


class NewestMessages:
    """Shared by all open tails of the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By topic and tag.
        self._watched: dict[tuple[str, str], _Watched] = {}

    async def of(self, operations: Operations, topic: str, tag: str) -> MessagePage:
        """The newest of a topic, with `tag` only those; at most a second old. REFUSED: too many are watched."""
        watched = self._watched_of(topic, tag)
        async with watched.lock:
            if watched.page is None or self._clock.monotonic_ms() - watched.asked_ms >= _FRESH_MS:
                query = MessageQuery(topic, tags=(tag,) if tag else (), limit=_NEWEST_SHOWN, body_bytes=PREVIEW_BYTES)
                watched.page = await operations.search(query)
                watched.asked_ms = self._clock.monotonic_ms()
            return watched.page

    def _watched_of(self, topic: str, tag: str) -> _Watched:
        now_ms = self._clock.monotonic_ms()
        watched = self._watched.get((topic, tag))
        if watched is None:
            self._watched = {
                key: each
                for key, each in self._watched.items()
                if each.lock.locked() or now_ms - each.looked_ms < _WATCHED_MS
            }
            if len(self._watched) >= _WATCHED_MAX:
                raise refused(
                    f"{_WATCHED_MAX} topics are watched at this moment",
                    remedy="close another tail, or search for the newest messages",
                )
            watched = self._watched[topic, tag] = _Watched()
        watched.looked_ms = now_ms
        return watched


# Pages of messages: finding them, watching them come in, and one of them whole.

_TAIL_MS: Final = 2_000
_WAITING_SHOWN: Final = 20
_SUGGESTED: Final = 5
# Of more topics than that a browser's list is no help.
_PICKED_MAX: Final = 200
_DOWNLOAD_BYTES: Final = 4 << 20
# Of bodies of up to a megabyte.
_DOWNLOADED_AT_ONCE: Final = 20
_DOWNLOADED_MAX: Final = 10_000
_MESSAGE_JSON: Final = TypeAdapter(MessageSummary)
_NOTHING: Final = MessagePage((), "", 0)

Key = Annotated[str, Query(max_length=512)]
Token = Annotated[str, Query(max_length=2_048)]
Number = Annotated[int, Query(ge=0, le=(1 << 63) - 1)]


def add_message_pages(app: FastAPI, pages: Pages) -> None:
    _add_search(app, pages)
    _add_tail(app, pages)
    _add_waiting(app, pages)
    _add_message(app, pages)
    _add_sending_again(app, pages)


def _add_search(app: FastAPI, pages: Pages) -> None:
    @app.get("/messages", include_in_schema=False)
    async def messages(request: Request, page_token: Token = "") -> Response:
        typed = {name: request.query_params.get(name, "")[:512] for name in FIELDS}
        search = read_search(typed, page_token=page_token, now_ms=pages.clock.wall_ms())
        operations = pages.operations(request)
        page, failure = _NOTHING, None
        suggestions: Sequence[str] = ()
        if search.query is not None:
            page, failure = await attempt(operations.search(search.query), _NOTHING)
            if failure is not None and failure.kind is FailureKind.NOT_FOUND:
                suggestions = await _topic_names(operations, search.query.topic, count=_SUGGESTED)
        topics = await _topic_names(operations)
        return _search_page(pages, request, search, page, failure=failure, suggestions=suggestions, topics=topics)

    @app.get("/messages/download", include_in_schema=False)
    async def download(request: Request) -> Response:
        typed = {name: request.query_params.get(name, "")[:512] for name in FIELDS}
        search = read_search(typed, now_ms=pages.clock.wall_ms())
        if search.query is None:
            return pages.go_to(messages_address(**search.typed))
        name = f"messages-{search.query.topic}"
        answer, _ = await download_of(pages, request, search.query, name, most=_DOWNLOADED_MAX)
        return answer


async def download_of(
    pages: Pages, request: Request, query: MessageQuery, name: str, *, most: int = 0
) -> tuple[Response, MessagePage]:
    """What is found as lines of JSON, in a file of that name, and the first page of it; `most`: 0 is all.

    OperationFailed when the question is wrong, or there are enough downloads, before the answer begins.
    """
    operations = pages.operations(request)
    pages.downloads.admit()
    query = replace(query, limit=_DOWNLOADED_AT_ONCE, body_bytes=PAGE_BODY_BYTES_MAX)
    with pages.downloads.one_more():
        first = await operations.search(query)
    lines = _lines(operations, query, first, most=most)
    return DownloadResponse(lines, f"{name}.ndjson", pages.downloads), first


async def _lines(operations: Operations, query: MessageQuery, page: MessagePage, *, most: int) -> AsyncIterator[bytes]:
    """A line of JSON each message, whole, in the query's order; the last line says what is missing, if anything is."""
    missing = {each.subject: each.reason for each in page.unseen}
    count = 0
    try:
        while True:
            for message in page.messages:
                count += 1
                if len(message.body) < PAGE_BODY_BYTES_MAX:
                    yield _MESSAGE_JSON.dump_json(message) + b"\n"
                    continue
                place = message.broker_name, message.topic, message.queue_id, message.queue_offset
                detail = await operations.message_at(*place, body_bytes=BODY_BYTES_MAX)
                yield _MESSAGE_JSON.dump_json(replace(message, body=detail.message.body)) + b"\n"
            if not page.next_page_token:
                break
            if 0 < most <= count:
                missing["the rest"] = f"a download ends after {count:,} messages; name a later or an earlier time"
                break
            page = await operations.search(replace(query, page_token=page.next_page_token))
            missing |= {each.subject: each.reason for each in page.unseen}
    except OperationFailed as failure:
        missing["the rest"] = "; ".join(filter(None, (failure.problem, failure.cause)))
    if missing:
        yield json.dumps({"missing": missing}, ensure_ascii=False).encode() + b"\n"


def _add_tail(app: FastAPI, pages: Pages) -> None:
    newest = NewestMessages(pages.clock)

    @app.get("/messages/tail", include_in_schema=False)
    async def tail(
        request: Request, topic: Name = "", tag: Name = "", since: Number = 0, paused: bool = False
    ) -> Response:
        topic, tag = topic.strip(), tag.strip()
        if not topic:
            return pages.go_to("/messages")
        if not since:
            # The address keeps the moment, so that a renewed page marks what came after it was opened.
            since_ms = pages.clock.wall_ms()
            return pages.go_to(_tail_address(topic, tag, since_ms))
        page, failure = await attempt(newest.of(pages.operations(request), topic, tag), None)
        return pages.html(
            request,
            "messages_tail.html",
            live_ms=0 if paused or failure is not None else _TAIL_MS,
            topic=topic,
            tag=tag,
            paused=paused,
            since_ms=since,
            every_s=_TAIL_MS // 1_000,
            page=page,
            failure=failure,
        )


def _add_waiting(app: FastAPI, pages: Pages) -> None:
    @app.get("/messages/waiting", include_in_schema=False)
    async def waiting(request: Request) -> Response:
        operations = pages.operations(request)
        async with asyncio.TaskGroup() as group:
            kinds = [group.create_task(_waiting(operations, topic)) for topic in _WAITING_TOPICS]
        return pages.html(
            request,
            "messages_waiting.html",
            kinds=[kind.result() for kind in kinds],
            timers=_timers(pages),
        )


def _timers(pages: Pages) -> list[tuple[str, DelayedState]]:
    """What each master that answers knows of delivery times, by broker group."""
    state = pages.cluster.latest.state if pages.cluster.latest is not None else None
    return [
        (broker.broker_name, broker.status.delayed)
        for broker in (state.brokers if state is not None else ())
        if broker.is_master and broker.status is not None
    ]


def _add_message(app: FastAPI, pages: Pages) -> None:
    async def detail(request: Request, broker: str, offset: int) -> MessageDetail:
        return await pages.operations(request).message(broker, offset, body_bytes=BODY_BYTES)

    async def by_id(request: Request, message_id: str, topic: str) -> Response:
        """The message, if there is one; else a list of all that have this id."""
        operations = pages.operations(request)
        found = await operations.find_message(message_id, topic=topic)
        if len(found) == 1:
            return pages.go_to(message_address(found[0].broker_name, found[0].physical_offset))
        search = MessageSearch(dict.fromkeys(FIELDS, ""), {}, None)
        return _search_page(pages, request, search, MessagePage(found, "", 0), message_id=message_id, id_topic=topic)

    @app.get("/message", include_in_schema=False)
    async def message(
        request: Request,
        id: Key = "",  # noqa: A002 - the name in the address
        broker: Name = "",
        offset: Number | None = None,
        topic: Name = "",
        queue: Annotated[int, Query(ge=0, le=1 << 31)] = 0,
        queue_offset: Number | None = None,
        view: BodyForm | None = None,
        in_: Annotated[str, Query(alias="in", max_length=255)] = "",
    ) -> Response:
        if id.strip():
            return await by_id(request, id.strip(), in_.strip())
        if broker and offset is not None:
            found = await detail(request, broker, offset)
        elif broker and topic and queue_offset is not None:
            place = QueuePlace(broker, topic, queue, queue_offset)
            try:
                found = await pages.operations(request).message_at(
                    broker, topic, queue, queue_offset, body_bytes=BODY_BYTES
                )
            except OperationFailed as failure:
                if failure.kind is not FailureKind.NOT_FOUND:
                    raise
                return pages.html(request, "message_missing.html", place=place, failure=failure)
        else:
            return pages.go_to("/messages")
        return pages.html(request, "message.html", view=message_view(found, wanted=view), copy_state=copy_state)

    @app.get("/message/body", include_in_schema=False)
    async def body(request: Request, broker: Name, offset: Number) -> Response:
        found = await pages.operations(request).message(broker, offset, body_bytes=_DOWNLOAD_BYTES)
        if found.message.body_problem:
            raise HTTPException(HTTPStatus.CONFLICT, f"the body cannot be read: {found.message.body_problem}")
        data = found.message.body
        # Unpacked it may be longer than stored; of one that ends just there nobody can tell.
        is_cut = len(data) >= _DOWNLOAD_BYTES and (
            bool(found.message.compression) or found.message.body_size > len(data)
        )
        name = f"message-{offset}.first-{_DOWNLOAD_BYTES >> 20}-MiB.bin" if is_cut else f"message-{offset}.bin"
        headers = {
            "cache-control": "no-store",
            # Saved, never shown: what somebody sent is no page of ours.
            "content-disposition": f'attachment; filename="{name}"',
        }
        return Response(data, media_type="application/octet-stream", headers=headers)


def _add_sending_again(app: FastAPI, pages: Pages) -> None:
    async def shown(request: Request, broker: str, offset: int, failure: OperationFailed | None = None) -> Response:
        found = (await pages.operations(request).message(broker, offset, body_bytes=BODY_BYTES_MAX)).message
        try:
            again = message_again(found)
        except OperationFailed as refused:
            again, failure = None, failure or refused
        return pages.html(
            request,
            "message_again.html",
            message=found,
            again=again,
            size=bytes_text(len(found.body)),
            preview=body_view(found.body[:PREVIEW_BYTES]).text,
            own=message_address(broker, offset),
            failure=failure,
        )

    @app.get("/message/again", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def again(request: Request, broker: Name, offset: Number) -> Response:
        return await shown(request, broker, offset)

    @app.post("/message/again", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def send_again(request: Request) -> Response:
        form = await form_of(request)
        broker, written = form.text("broker"), form.text("offset")
        if not written.isdecimal():
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "offset: the form names no message")
        operations = pages.operations(request)
        found = (await operations.message(broker, int(written), body_bytes=BODY_BYTES_MAX)).message
        try:
            receipt = await operations.send(message_again(found))
        except OperationFailed as failure:
            return await shown(request, broker, int(written), failure)
        place = f"{receipt.broker_name}, queue {receipt.queue_id}, offset {receipt.queue_offset:,}"
        return pages.go_to(
            place_address(receipt.broker_name, found.topic, receipt.queue_id, receipt.queue_offset),
            Flash("ok", f"It was sent again, as a new message, and stored on {place}."),
        )


def _search_page(
    pages: Pages,
    request: Request,
    search: MessageSearch,
    page: MessagePage,
    *,
    message_id: str = "",
    id_topic: str = "",
    failure: OperationFailed | None = None,
    suggestions: Sequence[str] = (),
    topics: Sequence[str] = (),
) -> Response:
    typed: Mapping[str, str] = search.typed
    return pages.html(
        request,
        "messages.html",
        is_wrong=bool(search.errors),
        typed=typed,
        errors=search.errors,
        id=message_id,
        id_topic=id_topic,
        by_id=bool(message_id),
        searched=bool(message_id) or search.query is not None,
        page=page,
        next=next_address(search, page.next_page_token),
        download=download_address(search),
        failure=failure,
        suggestions=suggestions,
        topics=topics,
        moment_forms=FORMS,
    )


async def _topic_names(operations: Operations, search: str = "", *, count: int = _PICKED_MAX) -> Sequence[str]:
    """To pick from; a help, and the page is whole without it."""
    reading = operations.topics(search=search, categories=CATEGORIES, page=PageRequest(size=count))
    found, _ = await attempt(reading, Page((), 1, count, 0))
    return [topic.name for topic in found.items]


async def _waiting(operations: Operations, topic: str) -> WaitingKind:
    query = MessageQuery(topic, limit=_WAITING_SHOWN, body_bytes=PREVIEW_BYTES)
    try:
        return waiting_kind(topic, await operations.topic(topic), await operations.search(query))
    except OperationFailed as failure:
        if failure.kind is FailureKind.NOT_FOUND:
            return waiting_kind(topic, None, _NOTHING)
        return replace(waiting_kind(topic, None, _NOTHING), problem=f"It cannot be read: {failure.problem}.")


def _tail_address(topic: str, tag: str, since_ms: int) -> str:
    address = messages_address(topic=topic, tag=tag, since=since_ms)
    return address.replace("/messages?", "/messages/tail?")


# The form of a test message.

_PROPERTIES_MAX: Final = 64
_FIFO: Final = "FIFO"


@dataclass(frozen=True, slots=True)
class MessageForm:
    topic: str
    is_fifo: bool
    body: str = ""
    tag: str = ""
    keys: str = ""
    message_group: str = ""
    properties: str = ""
    # By field.
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def message(self) -> TestMessage:
        """What is to be sent; only of a form without errors."""
        return TestMessage(
            topic=self.topic,
            # Lines end as they were typed, not as HTML sends them.
            body=self.body.replace("\r\n", "\n").encode(),
            tag=self.tag,
            keys=tuple(self.keys.split()),
            properties=_typed_properties(self.properties),
            message_group=self.message_group,
        )


def blank_message(topic: str, message_type: str) -> MessageForm:
    """The form as it is shown first."""
    return MessageForm(topic, message_type == _FIFO)


def read_message_form(form: Form, *, topic: str, message_type: str) -> MessageForm:
    is_fifo = message_type == _FIFO
    errors = {}
    body = form.raw("body")
    if len(body.encode(errors="replace")) > BODY_BYTES_MAX:
        errors["body"] = "The body is longer than 4 MiB."
    if any(character.isspace() or character == "|" for character in form.text("tag")):
        errors["tag"] = "A tag holds neither blanks nor |."
    if is_fifo and not form.text("message_group"):
        errors["message_group"] = "This topic is FIFO: name a message group."
    if problem := _properties_problem(form.raw("properties")):
        errors["properties"] = problem
    return MessageForm(
        topic=topic,
        is_fifo=is_fifo,
        body=body,
        tag=form.text("tag"),
        keys=form.text("keys"),
        message_group=form.text("message_group"),
        properties=form.raw("properties"),
        errors=errors,
    )


def _typed_properties(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if line.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _properties_problem(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > _PROPERTIES_MAX:
        return f"At most {_PROPERTIES_MAX} properties."
    wrong = next((line for line in lines if not line.partition("=")[1] or not line.partition("=")[0].strip()), None)
    return f"“{wrong.strip()[:80]}” is no name=value." if wrong is not None else ""


# The page of undecided transactions, and ending one.

_OWN: Final = "/transactions"
_SHOWN: Final = 200


def add_transaction_pages(app: FastAPI, pages: Pages) -> None:
    @app.get(_OWN, include_in_schema=False)
    async def transactions(request: Request, search: Name = "") -> Response:
        topic = search.strip()
        nothing = TransactionPage((), 0, ())
        page, failure = await attempt(pages.operations(request).transactions(topic=topic, limit=_SHOWN), nothing)
        return pages.html(request, "transactions.html", page=page, topic=topic, failure=failure)

    @app.post(f"{_OWN}/resolve", include_in_schema=False, dependencies=[OPERATOR_ONLY])
    async def resolve(request: Request) -> Response:
        form = await form_of(request)
        transaction_id, end = form.text("transaction_id"), form.text("end")
        is_sure = form.is_checked("confirm")
        resolving = pages.operations(request).resolve_transaction(transaction_id, end, dry_run=not is_sure)
        row, failure = await attempt(resolving, None)
        if is_sure and row is not None:
            done = "committed" if end == "commit" else "rolled back"
            return pages.go_to(_OWN, Flash("ok", f"The transaction of message {row.message_id} was {done}."))
        return pages.html(request, "transactions_resolve.html", row=row, end=end, failure=failure)
