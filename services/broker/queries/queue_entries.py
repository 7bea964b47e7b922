"""Single entries of a ConsumeQueue, and by bisection where they turn."""

from __future__ import annotations

from collections.abc import Callable

from mqcore.storage.consume_queue import ConsumeQueue, QueueEntry

__all__ = ["entry_at", "first_at_physical", "first_without"]


def entry_at(queue: ConsumeQueue, offset: int) -> QueueEntry | None:
    """One entry; None if the queue has it no more: it may have been cut meanwhile."""
    entries = queue.read(offset, 1)
    return entries[0] if entries else None


def first_without(queue: ConsumeQueue, low: int, high: int, holds: Callable[[QueueEntry], bool]) -> int:
    """The first offset of [low, high) whose entry `holds` is not true of; `high` if there is none.

    `holds` must be true up to some entry and false from there on; of an entry that is gone it counts as false.
    """
    while low < high:
        middle = (low + high) // 2
        entry = entry_at(queue, middle)
        if entry is not None and holds(entry):
            low = middle + 1
        else:
            high = middle
    return low


def first_at_physical(queue: ConsumeQueue, physical_offset: int) -> int:
    """Offset of the queue's first entry that lies at `physical_offset` or behind it; its end if there is none."""
    start, end = int(queue.min_offset), int(queue.max_offset)
    return first_without(queue, start, end, lambda entry: entry.physical_offset < physical_offset)
