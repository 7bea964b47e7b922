"""Messages as lists show them: results of a search, the newest of a topic, dead letters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from admin.body_views import body_preview
from admin.operations.values import MessageSummary
from admin.quantities import bytes_text
from admin.web.page_addresses import message_address, messages_address, topic_address

__all__ = ["PREVIEW_BYTES", "MessageRow", "message_rows"]

PREVIEW_BYTES: Final = 256
"""As much of each body is asked for."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message in a list."""

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
