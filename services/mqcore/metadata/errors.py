"""What can be wrong with metadata."""

from __future__ import annotations

__all__ = ["InvalidGroup", "InvalidTopic", "MetadataCorrupt", "MetadataError"]


class MetadataError(ValueError):
    """Root of everything this package raises on purpose."""


class MetadataCorrupt(MetadataError):
    """A table's text is not what RocketMQ or we write: a torn file or a broken peer.

    The loader falls back to the `.bak` file and refuses to start when that is no better: going on with an empty table
    would let every consumer group start at the tail. A slave keeps its copy.
    """


class InvalidTopic(MetadataError):
    """A topic cannot be made as asked; the message says why and what is allowed. The operator's or client's fault."""


class InvalidGroup(MetadataError):
    """A subscription group cannot be made as asked; the message says why. The operator's or client's fault."""
