"""What one NameServer did since it started: plain counters, read when somebody asks."""

from __future__ import annotations

from collections import Counter

__all__ = ["Activity"]


class Activity:
    """Event loop only. Keys are those of the labels in `metrics_catalogue.py`."""

    def __init__(self) -> None:
        self.registrations: Counter[str] = Counter()
        self.heartbeats = 0
        self.brokers_lost: Counter[str] = Counter()
        self.route_queries: Counter[str] = Counter()
        # Open now.
        self.watchers = 0
