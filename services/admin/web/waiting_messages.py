"""Delayed messages and half of transactions, as a store taken over from RocketMQ may hold them."""

from __future__ import annotations

from dataclasses import dataclass

from admin.operations.topic_names import DELAYED_TOPIC
from admin.operations.values import MessagePage, TopicDetail, Unseen
from admin.web.message_rows import MessageRow, message_rows
from admin.web.page_addresses import messages_address, topic_address

__all__ = ["WaitingKind", "waiting_kind"]


@dataclass(frozen=True, slots=True)
class WaitingKind:
    """One kind of them."""

    title: str
    topic: str
    address: str
    browse_address: str
    held: int
    # Delay level and how many wait in it; empty for half messages.
    levels: tuple[tuple[int, int], ...]
    rows: tuple[MessageRow, ...]
    none_text: str
    # Why nothing can be said.
    problem: str
    unseen: tuple[Unseen, ...]


def waiting_kind(topic: str, detail: TopicDetail | None, newest: MessagePage) -> WaitingKind:
    """`detail` is None where there is no such topic."""
    is_delayed = topic == DELAYED_TOPIC
    levels: dict[int, int] = {}
    for extent in detail.extents if detail is not None else ():
        # RocketMQ keeps each delay level in a queue of its own, the first in queue 0.
        levels[extent.queue_id + 1] = levels.get(extent.queue_id + 1, 0) + extent.held
    return WaitingKind(
        title="Delayed messages" if is_delayed else "Half messages",
        topic=topic,
        address=topic_address(topic),
        browse_address=messages_address(topic=topic),
        held=sum(levels.values()),
        levels=tuple((level, held) for level, held in sorted(levels.items()) if held) if is_delayed else (),
        rows=message_rows(newest.messages),
        none_text=f"{topic} holds nothing." if detail is not None else f"There is no topic {topic}.",
        problem="",
        unseen=tuple({each.subject: each for each in (*(detail.unseen if detail else ()), *newest.unseen)}.values()),
    )
