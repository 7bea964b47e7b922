"""The form that finds messages: what somebody typed becomes a query, or a sentence beside the field that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from admin.moments import MomentUnreadable, read_moment
from admin.operations.values import MessageQuery, SearchOrder
from admin.web.message_rows import PREVIEW_BYTES
from admin.web.page_addresses import messages_address

__all__ = ["FIELDS", "SEARCH_LIMIT", "MessageSearch", "next_address", "read_search"]

SEARCH_LIMIT: Final = 50
FIELDS: Final = ("topic", "key", "tag", "from", "to", "order", "broker", "queue", "offset")
"""Names of the form's fields, which are those of its address."""

_OFFSET_DIGITS_MAX: Final = 18
_QUEUE_DIGITS_MAX: Final = 6


@dataclass(frozen=True, slots=True)
class MessageSearch:
    """The form as it was filled in."""

    # As typed, all of FIELDS.
    typed: Mapping[str, str]
    # By field.
    errors: Mapping[str, str]
    # None: nothing was asked for, or it cannot be.
    query: MessageQuery | None


def read_search(typed: Mapping[str, str], *, page_token: str = "", now_ms: int) -> MessageSearch:
    """Fields that are missing are empty."""
    fields = {name: typed.get(name, "").strip() for name in FIELDS}
    if not any(value for name, value in fields.items() if name != "order"):
        return MessageSearch(fields, {}, None)
    errors: dict[str, str] = {}
    if not fields["topic"]:
        errors["topic"] = "Name a topic: messages are kept by topic."
    start_ms = _moment(fields, "from", errors, now_ms)
    end_ms = _moment(fields, "to", errors, now_ms)
    if not errors and 0 <= end_ms <= start_ms:
        errors["to"] = "This is not after the beginning."
    queue_id = _number(fields, "queue", errors, digits_max=_QUEUE_DIGITS_MAX, missing=-1)
    start_offset = _number(fields, "offset", errors, digits_max=_OFFSET_DIGITS_MAX, missing=0)
    if queue_id >= 0 and not fields["broker"]:
        errors.setdefault("broker", "Each broker group has a queue of this number: name one.")
    if fields["offset"] and not fields["queue"]:
        errors.setdefault("queue", "An offset belongs to a queue: name it.")
    if fields["key"] and queue_id >= 0:
        errors.setdefault("key", "A key is looked for in all queues: leave out the key or the queue.")
    if errors:
        return MessageSearch(fields, errors, None)
    oldest_first = fields["order"] == SearchOrder.OLDEST.value
    query = MessageQuery(
        topic=fields["topic"],
        key=fields["key"],
        queue_id=queue_id,
        start_offset=start_offset,
        broker_name=fields["broker"],
        start_ms=start_ms,
        end_ms=end_ms,
        order=SearchOrder.OLDEST if oldest_first else SearchOrder.NEWEST,
        tags=tuple(tag for tag in fields["tag"].replace("||", " ").split() if tag != "*"),
        limit=SEARCH_LIMIT,
        body_bytes=PREVIEW_BYTES,
        page_token=page_token,
    )
    return MessageSearch(fields, {}, query)


def next_address(search: MessageSearch, next_page_token: str) -> str:
    """The page behind this one. Moments are written out: `10m ago` would be another moment there."""
    query = search.query
    if query is None or not next_page_token:
        return ""
    fields = dict(search.typed) | {
        "from": str(query.start_ms) if query.start_ms >= 0 else "",
        "to": str(query.end_ms) if query.end_ms >= 0 else "",
    }
    return messages_address(**fields, page_token=next_page_token)


def _moment(fields: Mapping[str, str], name: str, errors: dict[str, str], now_ms: int) -> int:
    if not fields[name]:
        return -1
    try:
        return read_moment(fields[name], now_ms=now_ms)
    except MomentUnreadable as error:
        errors[name] = str(error)
        return -1


def _number(fields: Mapping[str, str], name: str, errors: dict[str, str], *, digits_max: int, missing: int) -> int:
    written = fields[name].replace(",", "")
    if not written:
        return missing
    if not (written.isascii() and written.isdecimal() and len(written) <= digits_max):
        errors[name] = "Write a number, from 0."
        return missing
    return int(written)
