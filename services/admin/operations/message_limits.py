"""How much of messages one answer holds, and how large a test message may be. Brokers have the same limits."""

from __future__ import annotations

from typing import Final

__all__ = ["BODY_BYTES_MAX", "PAGE_BODY_BYTES_MAX", "PAGE_MESSAGES_MAX"]

BODY_BYTES_MAX: Final = 4 << 20
"""Of a message that is asked for alone, and of one that is sent."""
PAGE_MESSAGES_MAX: Final = 500
PAGE_BODY_BYTES_MAX: Final = 1 << 20
"""Of each message of a page; brokers end a page early when its bodies together are too many."""
