"""Why a job in the helper process ends without a result."""

from __future__ import annotations

__all__ = ["FileGone", "JobCancelled", "LogUnsound"]


class JobCancelled(Exception):
    """Nobody waits for the result any more."""


class FileGone(Exception):
    """A CommitLog file that was there when the job was given has expired. The caller asks for what is left."""


class LogUnsound(Exception):
    """The log is damaged between the records that are looked for: it has to be repaired first."""
