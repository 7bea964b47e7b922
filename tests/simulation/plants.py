"""Bugs planted on purpose: each must be found by the checkers within a bounded number of seeds."""

from __future__ import annotations

from enum import Enum

__all__ = ["Plant"]


class Plant(Enum):
    """A planted bug."""

    ACK_BEFORE_REPORT = "ack-before-report"
