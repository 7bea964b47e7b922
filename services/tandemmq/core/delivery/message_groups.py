"""Which messages of an ordered queue may go out: those of message groups that nobody holds.

A message that is unfinished is *held*, in somebody's hands, or it *waits*: its lease ended, or it was passed over when
its group was held. What has no message group is one group of its own.

    a group nobody holds     its waiting messages may go out, lowest offset first
    a group somebody holds   nothing of it goes out, until all that is held is finished or its lease ended

So the messages of a group are in one client's hands at a time, in the order of their offsets, and a group that is held
keeps back no other. Costs depend on what is asked for, not on how many groups or messages wait.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from tandemmq.core.message.properties import PROPERTY_SHARDING_KEY

__all__ = ["MessageGroups", "message_group_of"]

_FIRST_KEY: Final = f"{PROPERTY_SHARDING_KEY}\x01".encode()
_LATER_KEY: Final = b"\x02" + _FIRST_KEY
_PAIR_END: Final = b"\x02"


def message_group_of(properties: bytes) -> bytes:
    """The message group in a record's property string; empty without one. Does not decode the other properties."""
    if properties.startswith(_FIRST_KEY):
        begin = len(_FIRST_KEY)
    else:
        found = properties.find(_LATER_KEY)
        if found < 0:
            return b""
        begin = found + len(_LATER_KEY)
    end = properties.find(_PAIR_END, begin)
    return properties[begin:] if end < 0 else properties[begin:end]


class _Group:
    __slots__ = ("held_count", "name", "waiting", "waiting_count")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.held_count = 0
        self.waiting: list[int] = []
        """Heap of offsets. Those that are gone stay in it until they surface."""
        self.waiting_count = 0


class MessageGroups:
    """The unfinished messages of one ordered queue by message group."""

    __slots__ = ("_attempts", "_batches", "_free", "_group_of", "_groups", "waiting_count")

    def __init__(self) -> None:
        self._groups: dict[bytes, _Group] = {}
        self._group_of: dict[int, _Group] = {}
        """By the offset of each unfinished message."""
        self._free: list[int] = []
        """Heap with the lowest waiting offset of each group that nobody holds; void where the message is finished, or
        the group held."""
        self._attempts: dict[int, str] = {}
        """Attempt id of the receive that a held message went to, if it had one."""
        self._batches: dict[str, set[int]] = {}
        """The same by attempt id."""
        self.waiting_count = 0
        """Messages in nobody's hands."""

    # Questions

    def next_free(self) -> int:
        """The lowest offset that may go out; -1: none."""
        free = self._free
        while free:
            offset = free[0]
            group = self._group_of.get(offset)
            if group is not None and not group.held_count:
                return offset
            heappop(free)
        return -1

    def next_waiting(self, name: bytes) -> int:
        """The lowest offset of the group that waits, whoever holds the group; -1: none."""
        group = self._groups.get(name)
        return -1 if group is None else self._lowest(group)

    def name_of(self, offset: int) -> bytes:
        """The message group of an unfinished message."""
        return self._group_of[offset].name

    def admits(self, name: bytes, *, is_own: bool) -> bool:
        """A message behind all others may go out. `is_own`: whoever asks holds all that is held of the group."""
        group = self._groups.get(name)
        return group is None or (not group.waiting_count and (is_own or not group.held_count))

    def batch(self, attempt_id: str) -> list[int]:
        """What the receive with that attempt id holds, ascending."""
        return sorted(self._batches.get(attempt_id, ()))

    @property
    def blocked_count(self) -> int:
        """Groups with messages that wait for somebody to finish."""
        return sum(1 for group in self._groups.values() if group.held_count and group.waiting_count)

    # Changes

    def hold(self, offset: int, name: bytes, attempt_id: str) -> None:
        """A message goes out: the lowest of its group that waits, or a new one."""
        group = self._group_of.get(offset)
        if group is None:
            group = self._join(offset, name)
        else:
            assert self._lowest(group) == offset, f"{offset} is not the next one of its message group"
            heappop(group.waiting)
            group.waiting_count -= 1
            self.waiting_count -= 1
        group.held_count += 1
        if attempt_id:
            self._attempts[offset] = attempt_id
            batch = self._batches.get(attempt_id)
            if batch is None:
                self._batches[attempt_id] = {offset}
            else:
                batch.add(offset)

    def wait(self, offset: int, name: bytes) -> None:
        """A message that was in nobody's hands is unfinished."""
        self._wait(self._join(offset, name), offset)

    def ended(self, offset: int) -> None:
        """The lease of a held message ended."""
        group = self._group_of[offset]
        group.held_count -= 1
        self._leave_batch(offset)
        self._wait(group, offset)

    def gone(self, offset: int, *, is_waiting: bool) -> None:
        """A message is finished."""
        group = self._group_of.pop(offset)
        if is_waiting:
            group.waiting_count -= 1
            self.waiting_count -= 1
        else:
            group.held_count -= 1
            self._leave_batch(offset)
        if group.held_count:
            return
        if group.waiting_count:
            heappush(self._free, self._lowest(group))
        else:
            del self._groups[group.name]

    def _join(self, offset: int, name: bytes) -> _Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group(name)
        self._group_of[offset] = group
        return group

    def _wait(self, group: _Group, offset: int) -> None:
        heappush(group.waiting, offset)
        group.waiting_count += 1
        self.waiting_count += 1
        if not group.held_count:
            heappush(self._free, self._lowest(group))

    def _lowest(self, group: _Group) -> int:
        waiting = group.waiting
        while waiting:
            if self._group_of.get(waiting[0]) is group:
                return waiting[0]
            heappop(waiting)
        return -1

    def _leave_batch(self, offset: int) -> None:
        attempt_id = self._attempts.pop(offset, None)
        if attempt_id is not None:
            batch = self._batches[attempt_id]
            batch.discard(offset)
            if not batch:
                del self._batches[attempt_id]
