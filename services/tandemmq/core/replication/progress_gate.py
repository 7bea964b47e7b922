"""Decides when an answer may leave that depends on what groups have finished: every required disk has it.

Theory of operation. A master's journal of leases grows, and each answer waits for the journal's end of its moment
(`add`). Members are handed the journal in order and say how far they have it (`held`). An answer is free when each
required disk has it as far, so the waits are a queue that is released from its front. Whoever is required is so for
answers that wait already, too; who is not required any more holds nobody up.

Nothing waits longer than the limit. Ends are bytes of the journal since this master began.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, NamedTuple, TypeVar

AnswerT = TypeVar("AnswerT")
_NOTHING: Final = -1


class _Wait(NamedTuple, Generic[AnswerT]):
    end: int
    deadline_ms: int
    answer: AnswerT


class ProgressGate(Generic[AnswerT]):
    """The waiting answers of one master. No clock: times are monotonic ms given by the caller."""

    def __init__(self, *, limit_ms: int) -> None:
        self._limit_ms = limit_ms
        self._required: frozenset[str] = frozenset()
        self._held: dict[str, int] = {}
        self._waits: deque[_Wait[AnswerT]] = deque()

    def __len__(self) -> int:
        return len(self._waits)

    def is_held(self, end: int) -> bool:
        """All required disks have the journal up to `end`."""
        return all(self._held.get(disk_id, _NOTHING) >= end for disk_id in self._required)

    def add(self, end: int, answer: AnswerT, *, now_ms: int) -> None:
        """Lets an answer wait until `end` is held; ends do not descend."""
        self._waits.append(_Wait(end, now_ms + self._limit_ms, answer))

    def lacking(self) -> list[str]:
        """Required disks that do not have all that is waited for."""
        if not self._waits:
            return []
        end = self._waits[-1].end
        return [disk_id for disk_id in sorted(self._required) if self._held.get(disk_id, _NOTHING) < end]

    def require(self, disk_ids: frozenset[str]) -> list[AnswerT]:
        """Answers wait for these disks from now on, and no more for others. Which of them are free by that."""
        self._required = disk_ids
        # Who comes back may have been restarted, or have followed another master meanwhile.
        self._held = {disk_id: end for disk_id, end in self._held.items() if disk_id in disk_ids}
        return self._take_free()

    def held(self, disk_id: str, end: int) -> list[AnswerT]:
        """A disk has said that it has the journal up to `end`; which answers are free by that."""
        if disk_id in self._required:
            self._held[disk_id] = end
        return self._take_free()

    def next_deadline_ms(self) -> int | None:
        """When the next limit passes; None while nothing waits."""
        return self._waits[0].deadline_ms if self._waits else None

    def take_overdue(self, *, now_ms: int) -> list[AnswerT]:
        """Answers whose limit has passed: it is not known whether a change of master would undo them."""
        overdue = []
        while self._waits and self._waits[0].deadline_ms <= now_ms:
            overdue.append(self._waits.popleft().answer)
        return overdue

    def give_up(self) -> list[AnswerT]:
        """All that wait; they wait no more."""
        answers = [wait.answer for wait in self._waits]
        self._waits.clear()
        return answers

    def _take_free(self) -> list[AnswerT]:
        free = []
        while self._waits and self.is_held(self._waits[0].end):
            free.append(self._waits.popleft().answer)
        return free
