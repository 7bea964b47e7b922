"""Receives that wait for messages: who waits, who is woken next, who has waited long enough.

A receive that finds nothing is added in the same turn of the event loop, so that no arrival falls between. An arrival
wakes one receive of each group, the one that waits longest: the others would find the message taken. Whoever is woken
and leaves something behind - its batch was full, or its call was cancelled before it could look - wakes the next with
`message_visible`. One that found nothing took all there was, wakes nobody and is added again.

Every operation is O(1) or O(log waiting), except that an arrival visits each waiting group of its topic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

TokenT = TypeVar("TokenT", bound=Hashable)

_PRUNE_FLOOR: Final = 64
"""So many deadlines of receives that are gone are no reason to rebuild the heap."""


@dataclass(slots=True, eq=False)
class _GroupQueue(Generic[TokenT]):
    """Waiting receives of one group on one topic, longest waiting first."""

    topic: str
    group: str
    waiting: OrderedDict[TokenT, int]
    """Token to its number in the order of arrival."""


class PollTable(Generic[TokenT]):
    """Tokens are whatever the caller knows a waiting receive by; each may be in the table once."""

    def __init__(self, *, max_waiting: int = 20_000) -> None:
        """`max_waiting` bounds memory: each costs a call held open and about a kilobyte."""
        self.max_waiting: Final = max_waiting
        self._topics: dict[str, dict[str, _GroupQueue[TokenT]]] = {}
        self._places: dict[TokenT, _GroupQueue[TokenT]] = {}
        self._deadlines: list[tuple[int, int, TokenT]] = []
        self._next_number = 1

    def __len__(self) -> int:
        return len(self._places)

    def waiting(self) -> list[TokenT]:
        """All of them, the ones that were added last at the end."""
        return list(self._places)

    def add(self, topic: str, group: str, deadline_ms: int, token: TokenT) -> bool:
        """Waits until woken or `deadline_ms`; False when the table is full, and the receive has to be refused."""
        if len(self._places) >= self.max_waiting:
            return False
        assert token not in self._places, "a token waits in one place"
        groups = self._topics.setdefault(topic, {})
        queue = groups.get(group)
        if queue is None:
            queue = groups[group] = _GroupQueue(topic, group, OrderedDict())
        number = self._next_number
        self._next_number += 1
        queue.waiting[token] = number
        self._places[token] = queue
        if len(self._deadlines) > 2 * len(self._places) + _PRUNE_FLOOR:
            self._prune_deadlines()
        heappush(self._deadlines, (deadline_ms, number, token))
        return True

    def cancel(self, token: TokenT) -> bool:
        """The receive does not wait any more; False when it did not, and then a wake it got has to be passed on."""
        queue = self._places.pop(token, None)
        if queue is None:
            return False
        self._leave(queue, token)
        return True

    def message_arrived(self, topic: str) -> list[TokenT]:
        """Takes one waiting receive of each group out of the table. Each must look for messages now."""
        groups = self._topics.get(topic)
        if not groups:
            return []
        return [self._wake_first(queue) for queue in list(groups.values())]

    def message_visible(self, topic: str, group: str) -> list[TokenT]:
        """As `message_arrived`, when only one group has something: a lease ended, or a full batch left some behind."""
        queue = self._topics.get(topic, {}).get(group)
        return [] if queue is None else [self._wake_first(queue)]

    def is_waited_for(self, topic: str, group: str) -> bool:
        groups = self._topics.get(topic)
        return groups is not None and group in groups

    def next_deadline_ms(self) -> int | None:
        """When the next receive has waited long enough."""
        while self._deadlines and not self._is_waiting(self._deadlines[0]):
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expire(self, now_ms: int) -> list[TokenT]:
        """Takes those that have waited long enough out of the table. Each answers that there is no message."""
        expired: list[TokenT] = []
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            token = heappop(self._deadlines)[2]
            self.cancel(token)
            expired.append(token)
        return expired

    def _wake_first(self, queue: _GroupQueue[TokenT]) -> TokenT:
        token = next(iter(queue.waiting))
        del self._places[token]
        self._leave(queue, token)
        return token

    def _leave(self, queue: _GroupQueue[TokenT], token: TokenT) -> None:
        del queue.waiting[token]
        if queue.waiting:
            return
        groups = self._topics[queue.topic]
        del groups[queue.group]
        if not groups:
            del self._topics[queue.topic]

    def _is_waiting(self, deadline: tuple[int, int, TokenT]) -> bool:
        """False for a receive that is gone, and for an earlier stay of one that was added again."""
        _, number, token = deadline
        queue = self._places.get(token)
        return queue is not None and queue.waiting[token] == number

    def _prune_deadlines(self) -> None:
        self._deadlines = [deadline for deadline in self._deadlines if self._is_waiting(deadline)]
        heapify(self._deadlines)
