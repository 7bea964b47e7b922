"""Messages as lists show them: results of a search, the newest of a topic, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tandemmq.admin.console.frame import message_address, messages_address, topic_address
from tandemmq.admin.operations.bodies import body_preview
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import MessagePage, MessageQuery, MessageSummary
from tandemmq.core.clock import Clock
from tandemmq.service.texts import bytes_text

if TYPE_CHECKING:
    from tandemmq.admin.operations.operations import Operations

PREVIEW_BYTES: Final = 256
"""As much of each body is asked for."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    # Unique in the cluster.
    key: str
    address: str
    message_id: str
    topic: str
    topic_address: str
    store_ms: int
    tag: str
    # Each with a search for it.
    keys: tuple[tuple[str, str], ...]
    broker_name: str
    queue_id: int
    queue_offset: int
    size: str
    # Its beginning in one line; empty if it was not asked for, or there is none.
    preview: str
    has_body: bool
    # Stored after the moment the reader began to watch.
    is_new: bool


def message_rows(messages: Iterable[MessageSummary], *, new_from_ms: int = -1) -> tuple[MessageRow, ...]:
    """In the order given; with `new_from_ms` those stored then or later are marked."""
    return tuple(
        MessageRow(
            key=f"{message.broker_name}-{message.physical_offset}",
            address=message_address(message.broker_name, message.physical_offset),
            message_id=message.message_id,
            topic=message.topic,
            topic_address=topic_address(message.topic),
            store_ms=message.store_ms,
            tag=message.tag,
            keys=tuple((key, messages_address(topic=message.topic, key=key)) for key in message.keys),
            broker_name=message.broker_name,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            size=bytes_text(message.body_size),
            preview=body_preview(message.body[:PREVIEW_BYTES]),
            has_body=message.body_size > 0,
            is_new=0 <= new_from_ms <= message.store_ms,
        )
        for message in messages
    )


# The newest messages of a topic, asked for once however many look at them at the same time.

_SHOWN: Final = 50
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
                query = MessageQuery(topic, tags=(tag,) if tag else (), limit=_SHOWN, body_bytes=PREVIEW_BYTES)
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
                raise OperationFailed(
                    FailureKind.REFUSED,
                    f"{_WATCHED_MAX} topics are watched at this moment",
                    remedy="close another tail, or search for the newest messages",
                )
            watched = self._watched[topic, tag] = _Watched()
        watched.looked_ms = now_ms
        return watched
