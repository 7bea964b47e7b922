"""What the pages of topics show: values in words, each with its address. Pure; templates only lay it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from admin.operations.topic_names import DEAD_LETTER, ORDINARY, RETRY, SYSTEM
from admin.operations.values import (
    BrokerTopic,
    Client,
    Extent,
    Page,
    Progress,
    QueueRoute,
    Route,
    TopicDetail,
    TopicSummary,
    Unseen,
)
from admin.quantities import count_text, duration_text
from admin.web.client_rows import ClientRow, client_rows
from admin.web.page_addresses import (
    dead_letters_address,
    group_address,
    messages_address,
    place_address,
    topic_address,
)

__all__ = [
    "CATEGORY_CHOICES",
    "QUEUES_SHOWN",
    "REFUSED_TYPES",
    "TopicRow",
    "TopicView",
    "permission_text",
    "topic_rows",
    "topic_view",
]

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
"""Types of messages this version does not store."""

_READ: Final = 4
_WRITE: Final = 2
_MIXED: Final = "differs"


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic of the list."""

    name: str
    address: str
    category: str
    message_type: str
    # 8 queues on each of 2 brokers; 16 to read and 8 to write on broker-a.
    queues: str
    brokers: str
    permission: str
    # Empty: not known.
    held: str
    stored: str


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue on one master."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    held: int
    oldest_ms: int
    newest_ms: int
    # Messages from the oldest on, and the newest one; empty in an empty queue.
    browse_address: str
    newest_address: str


@dataclass(frozen=True, slots=True)
class RouteRow:
    """What one NameServer says."""

    name_server: str
    # Of each broker group, in words; empty: it knows no such topic.
    queues: tuple[str, ...]
    endpoints: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """A group that reads the topic."""

    group: str
    address: str
    lag: int
    inflight: int
    oldest_age: str


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic's page."""

    name: str
    category: str
    message_type: str
    held: str
    stored: str
    # A sentence that warns, or empty: masters or NameServers disagree, nobody may write.
    warnings: tuple[str, ...]
    configurations: tuple[tuple[BrokerTopic, str], ...]
    queues: tuple[QueueRow, ...]
    queue_total: int
    routes: tuple[RouteRow, ...]
    routes_agree: bool
    readers: tuple[ReaderRow, ...]
    reader_total: int
    clients: tuple[ClientRow, ...]
    client_total: int
    # Why the list of clients is missing.
    clients_problem: str
    unseen: tuple[Unseen, ...]
    # Whether clients may send to it: neither a system topic nor of a type that is refused.
    takes_messages: bool
    changeable: bool
    # Group whose retries or dead letters these are, with its page and that of its dead letters.
    owner: str
    owner_address: str
    dead_letters_address: str
    browse_address: str
    tail_address: str


def topic_rows(page: Page[TopicSummary]) -> tuple[TopicRow, ...]:
    """The rows of a list."""
    return tuple(_topic_row(topic) for topic in page.items)


def topic_view(detail: TopicDetail, clients: Page[Client] | None, *, clients_problem: str = "") -> TopicView:
    """All of a topic's page but its newest messages."""
    summary = detail.summary
    owner = _owner(summary)
    message_type = _one_of([broker.message_type for broker in summary.brokers])
    return TopicView(
        name=summary.name,
        category=summary.category,
        message_type=message_type,
        held=_known_count(summary.held),
        stored=_known_count(summary.stored),
        warnings=tuple(_warnings(detail)),
        configurations=tuple((broker, permission_text(broker.permission)) for broker in summary.brokers),
        queues=tuple(_queue_row(summary.name, extent) for extent in detail.extents[:QUEUES_SHOWN]),
        queue_total=len(detail.extents),
        routes=tuple(_route_row(route) for route in detail.routes),
        routes_agree=detail.routes_agree,
        readers=tuple(_reader_row(progress) for progress in detail.groups[:READERS_SHOWN]),
        reader_total=len(detail.groups),
        clients=client_rows(clients.items if clients is not None else (), shown_topic=summary.name),
        client_total=clients.total if clients is not None else 0,
        clients_problem=clients_problem,
        unseen=_together(detail.unseen, clients.unseen if clients is not None else ()),
        takes_messages=summary.category != SYSTEM and message_type not in REFUSED_TYPES,
        changeable=summary.category != SYSTEM,
        owner=owner,
        owner_address=group_address(owner) if owner else "",
        dead_letters_address=dead_letters_address(owner) if owner and summary.category == DEAD_LETTER else "",
        browse_address=messages_address(topic=summary.name),
        tail_address=messages_address(topic=summary.name).replace("/messages?", "/messages/tail?"),
    )


def permission_text(permission: int) -> str:
    """RocketMQ's bits in words."""
    words = [word for bit, word in ((_READ, "read"), (_WRITE, "write")) if permission & bit]
    return " and ".join(words) if len(words) == 2 else f"{words[0]} only" if words else "none"


def _topic_row(topic: TopicSummary) -> TopicRow:
    names = [broker.broker_name for broker in topic.brokers]
    return TopicRow(
        name=topic.name,
        address=topic_address(topic.name),
        category=topic.category,
        message_type=_one_of([broker.message_type for broker in topic.brokers]),
        queues=_queues_text(topic.brokers),
        brokers=", ".join(names) if len(names) <= 2 else f"{len(names)} broker groups",
        permission=_one_of([permission_text(broker.permission) for broker in topic.brokers]),
        held=_known_count(topic.held),
        stored=_known_count(topic.stored),
    )


def _queues_text(brokers: Sequence[BrokerTopic]) -> str:
    counts = {(broker.read_queue_count, broker.write_queue_count) for broker in brokers}
    if len(counts) == 1:
        count = _counts_text(*counts.pop())
        return count if len(brokers) == 1 else f"{len(brokers)} × {count}"
    return " + ".join(_counts_text(broker.read_queue_count, broker.write_queue_count) for broker in brokers)


def _counts_text(read: int, write: int) -> str:
    return str(read) if read == write else f"{read} read/{write} write"


def _one_of(texts: Sequence[str]) -> str:
    different = set(texts)
    return different.pop() if len(different) == 1 else _MIXED if different else "not known"


def _known_count(value: int) -> str:
    return count_text(value) if value >= 0 else ""


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


def _queue_row(topic: str, extent: Extent) -> QueueRow:
    place = extent.broker_name, topic, extent.queue_id
    return QueueRow(
        broker_name=extent.broker_name,
        queue_id=extent.queue_id,
        min_offset=extent.min_offset,
        max_offset=extent.max_offset,
        held=extent.held,
        oldest_ms=extent.oldest_store_ms,
        newest_ms=extent.newest_store_ms,
        browse_address=messages_address(
            topic=topic, broker=extent.broker_name, queue=extent.queue_id, offset=extent.min_offset
        )
        if extent.held
        else "",
        newest_address=place_address(*place, extent.max_offset - 1) if extent.held else "",
    )


def _route_row(route: Route) -> RouteRow:
    return RouteRow(
        name_server=route.name_server,
        queues=tuple(_route_text(queues) for queues in route.queues),
        endpoints=tuple(sorted(route.brokers.items())),
    )


def _route_text(route: QueueRoute) -> str:
    counts = _counts_text(route.read_queue_count, route.write_queue_count)
    return f"{route.broker_name}: {counts} queues, {permission_text(route.permission)}"


def _reader_row(progress: Progress) -> ReaderRow:
    return ReaderRow(
        group=progress.group,
        address=group_address(progress.group),
        lag=progress.lag,
        inflight=progress.inflight,
        oldest_age=duration_text(progress.oldest_age_ms / 1_000) if progress.oldest_age_ms > 0 else "",
    )


def _owner(topic: TopicSummary) -> str:
    if topic.category not in (RETRY, DEAD_LETTER):
        return ""
    # %RETRY%group, %DLQ%group.
    return topic.name.split("%", 2)[2]


def _together(*lists: Sequence[Unseen]) -> tuple[Unseen, ...]:
    return tuple({unseen.subject: unseen for unseens in lists for unseen in unseens}.values())
