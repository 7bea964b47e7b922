"""Messages as JSON: a body is bytes, so it comes as base64, and as text beside it where it is one."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from admin.operations.values import Message, MessageDetail, MessagePage, MessageSummary, ReplicaCopy, Unseen

__all__ = ["MessageDetailDocument", "MessageDocument", "MessagePageDocument", "MessageSummaryDocument"]


@dataclass(frozen=True)
class MessageSummaryDocument:
    """A message in a list. Times are milliseconds since 1970, -1 where unknown."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    record_bytes: int
    message_id: str
    offset_message_id: str
    tag: str
    keys: Sequence[str]
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    reconsume_times: int
    # Whole length of the body.
    body_size: int
    # As much of the body as was asked for, unpacked.
    body_base64: str
    # The same if it is UTF-8, perhaps without the part of a character at its end; else null.
    body_text: str | None

    @staticmethod
    def of(message: MessageSummary) -> MessageSummaryDocument:
        """Of its value."""
        return MessageSummaryDocument(
            topic=message.topic,
            broker_name=message.broker_name,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            physical_offset=message.physical_offset,
            record_bytes=message.record_bytes,
            message_id=message.message_id,
            offset_message_id=message.offset_message_id,
            tag=message.tag,
            keys=message.keys,
            born_ms=message.born_ms,
            born_host=message.born_host,
            store_ms=message.store_ms,
            store_host=message.store_host,
            reconsume_times=message.reconsume_times,
            body_size=message.body_size,
            body_base64=base64.b64encode(message.body).decode("ascii"),
            body_text=_text(message.body),
        )


@dataclass(frozen=True)
class MessageDocument:
    """A message whole."""

    summary: MessageSummaryDocument
    properties: Mapping[str, str]
    sys_flag: int
    flag: int
    body_crc: int
    compression: str
    # Why the body cannot be shown; empty if it can.
    body_problem: str

    @staticmethod
    def of(message: Message) -> MessageDocument:
        """Of its value."""
        return MessageDocument(
            summary=MessageSummaryDocument.of(message),
            properties=message.properties,
            sys_flag=message.sys_flag,
            flag=message.flag,
            body_crc=message.body_crc,
            compression=message.compression,
            body_problem=message.body_problem,
        )


@dataclass(frozen=True)
class MessagePageDocument:
    """Messages found."""

    messages: Sequence[MessageSummaryDocument]
    # To go on; empty: this was all.
    next_page_token: str
    # Messages looked at.
    scanned: int
    unseen: Sequence[Unseen]

    @staticmethod
    def of(page: MessagePage) -> MessagePageDocument:
        """Of its value."""
        return MessagePageDocument(
            messages=[MessageSummaryDocument.of(message) for message in page.messages],
            next_page_token=page.next_page_token,
            scanned=page.scanned,
            unseen=page.unseen,
        )


@dataclass(frozen=True)
class MessageDetailDocument:
    """A message, its copies on the replicas, and what groups did with it."""

    message: MessageDocument
    copies: Sequence[ReplicaCopy]
    consumption: Mapping[str, str]
    unseen: Sequence[Unseen]

    @staticmethod
    def of(detail: MessageDetail) -> MessageDetailDocument:
        """Of its value."""
        return MessageDetailDocument(
            message=MessageDocument.of(detail.message),
            copies=detail.copies,
            consumption=detail.consumption,
            unseen=detail.unseen,
        )


def _text(body: bytes) -> str | None:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        # A body that was cut may end within a character of up to four bytes.
        if error.reason == "unexpected end of data" and error.start >= len(body) - 3:
            return body[: error.start].decode("utf-8")
        return None
