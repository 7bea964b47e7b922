"""Messages for tests that do not care what is in them."""

from __future__ import annotations

from typing import Final

from tandemmq.core.message.properties import encode_properties, tags_code
from tandemmq.core.message.record import Host, OutgoingMessage

BORN_HOST: Final = Host.parse("192.0.2.7", 40_001)
STORE_HOST: Final = Host.parse("192.0.2.1", 10_911)


def outgoing_message(
    *,
    topic: str = "topic",
    queue_id: int = 0,
    body: bytes = b"body",
    tag: str | None = None,
    keys: tuple[str, ...] = (),
    born_timestamp_ms: int = 1_700_000_000_000,
) -> OutgoingMessage:
    """A message as a sender would put it, its properties in agreement with its tag and keys."""
    pairs = [("UNIQ_KEY", keys[0])] if keys else []
    if len(keys) > 1:
        pairs.append(("KEYS", " ".join(keys[1:])))
    if tag:
        pairs.append(("TAGS", tag))
    return OutgoingMessage(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=encode_properties(pairs),
        tags_code=tags_code(tag),
        index_keys=keys,
        tag=tag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=BORN_HOST,
    )


def changed(message: OutgoingMessage, **fields: object) -> OutgoingMessage:
    """The message itself, with other values in these fields."""
    for name, value in fields.items():
        setattr(message, name, value)
    return message
