"""Where things have their pages. Names may hold `%` and `|`, which an address has to quote."""

from __future__ import annotations

from urllib.parse import quote, urlencode

__all__ = [
    "dead_letters_address",
    "group_address",
    "message_address",
    "messages_address",
    "place_address",
    "topic_address",
    "trace_address",
]


def topic_address(name: str, part: str = "") -> str:
    """A topic's page, or with `part` one below it."""
    return _below("/topics", name, part)


def group_address(name: str, part: str = "") -> str:
    """A group's page, or with `part` one below it."""
    return _below("/groups", name, part)


def dead_letters_address(group: str, part: str = "") -> str:
    """A group's dead letters, or with `part` a page below them."""
    return _below("/dead-letters", group, part)


def message_address(broker_name: str, physical_offset: int) -> str:
    """A message's page."""
    return f"/message?{urlencode({'broker': broker_name, 'offset': physical_offset})}"


def place_address(broker_name: str, topic: str, queue_id: int, queue_offset: int) -> str:
    """A message's page by its place in a queue."""
    place = {"broker": broker_name, "topic": topic, "queue": queue_id, "queue_offset": queue_offset}
    return f"/message?{urlencode(place)}"


def messages_address(**fields: str | int) -> str:
    """A search for messages; empty fields are left out, `from_` and `to` are moments."""
    named = {name.rstrip("_"): value for name, value in fields.items() if value != ""}
    return f"/messages?{urlencode(named)}"


def trace_address(key: str) -> str:
    """Where the time of a message went."""
    return f"/traces?{urlencode({'id': key})}"


def _below(root: str, name: str, part: str) -> str:
    address = f"{root}/{quote(name, safe='')}"
    return f"{address}/{part}" if part else address
