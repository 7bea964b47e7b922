"""The newest messages of a topic, asked for once however many look at them at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.interface import Operations
from admin.operations.values import MessagePage, MessageQuery
from admin.web.message_rows import PREVIEW_BYTES
from mqcore.clock import Clock

__all__ = ["NewestMessages"]

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
