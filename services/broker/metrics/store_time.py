"""When a message was stored, read from its record's head alone."""

from __future__ import annotations

from typing import Final

from mqcore.message.stored_message import read_store_timestamp_ms
from mqcore.storage.message_store import MessageStore

__all__ = ["read_stored_at_ms"]

_HEAD_BYTES: Final = 256
"""Of a record; more than its fixed fields take."""


def read_stored_at_ms(store: MessageStore, physical_offset: int) -> int | None:
    """Wall clock in ms; None if no record begins there. May read from the disk."""
    return read_store_timestamp_ms(store.read_log(physical_offset, _HEAD_BYTES), physical_offset)
