"""What can be wrong with a message's bytes or its values."""

from __future__ import annotations

__all__ = ["InvalidProperty", "MalformedRecord", "MessageError"]


class MessageError(Exception):
    """Root of everything this package raises on purpose."""


class MalformedRecord(MessageError):
    """The bytes at `position` of a buffer are no valid record. The store, which knows the disk, says what follows."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"no valid record at position {position}: {reason}")
        self.position = position
        self.reason = reason


class InvalidProperty(MessageError):
    """A property cannot be stored: its name or value holds a separator (0x01, 0x02). The sender is at fault."""
