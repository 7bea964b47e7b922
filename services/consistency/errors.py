"""Why a run cannot be done at all. What is the matter with a replica is no error: it is a part of the report."""

from __future__ import annotations

__all__ = ["ConsistencyError", "NothingFound", "ResultsUnusable", "SparkUnusable", "TasksFailed"]


class ConsistencyError(Exception):
    """Root of this package's errors. The text is for the operator."""


class NothingFound(ConsistencyError):
    """There is nothing to compare: the operator named the wrong place, or nothing runs there."""


class ResultsUnusable(ConsistencyError):
    """The place of the results cannot be read or written: without it a run would neither be seen nor remembered."""


class SparkUnusable(ConsistencyError):
    """There is no Java or no PySpark, or Spark does not start; the text says what to install or set."""


class TasksFailed(ConsistencyError):
    """Tasks broke, not because of a replica: a bug, or no executor is left. What they would have told is unknown."""
