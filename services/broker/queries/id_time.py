"""What a message id tells of the time it was made."""

from __future__ import annotations

from typing import Final

__all__ = ["earliest_store_ms"]

# Message ids of version 1: 34 hexadecimal digits, see MessageIdCodec; seconds since 2021 at digit 18.
_ID_DIGITS: Final = 34
_ID_VERSION: Final = "01"
_ID_SECONDS: Final = slice(18, 26)
_ID_EPOCH_S: Final = 1_609_459_200
_CLOCK_SLACK_MS: Final = 3_600_000
"""A client's clock may be wrong by that much before its message is looked for in vain."""


def earliest_store_ms(message_id: str) -> int:
    """Before that, by the id itself, the message was not stored: index files from before need no look."""
    if len(message_id) != _ID_DIGITS or not message_id.startswith(_ID_VERSION):
        return 0
    try:
        seconds = int(message_id[_ID_SECONDS], 16)
    except ValueError:
        return 0
    return max(0, (_ID_EPOCH_S + seconds) * 1_000 - _CLOCK_SLACK_MS)
