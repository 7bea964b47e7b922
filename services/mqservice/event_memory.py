"""What happened to a process lately: its own log lines, kept for those who ask over the network and not in a pod's log.

Bounded in lines and in the length of each, so that a broker in trouble does not fill its memory with it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from structlog.typing import EventDict

__all__ = ["EventMemory", "RememberedEvent"]

_LINES_MAX: Final = 2_000
_FIELDS_MAX: Final = 24
_TEXT_MAX: Final = 400
# Told elsewhere of a remembered event, or the same on each line of the process.
_LEFT_OUT: Final = frozenset(
    {"timestamp", "level", "event", "service", "cluster", "broker_name", "broker_id", "role", "settings", "exc_info"}
)
_LEVELS: Final = frozenset({"info", "warning", "error", "critical"})


@dataclass(frozen=True, slots=True)
class RememberedEvent:
    """One line."""

    # From 1, without gaps.
    sequence: int
    wall_ms: int
    # info, warning, error or critical.
    level: str
    event: str
    fields: Mapping[str, str]


class EventMemory:
    """The last lines. Any thread may add one."""

    def __init__(self, *, lines_max: int = _LINES_MAX) -> None:
        self._events: deque[RememberedEvent] = deque(maxlen=lines_max)
        self._lock = threading.Lock()
        self._last_sequence = 0

    @property
    def last_sequence(self) -> int:
        """Number of the newest line; 0 without any."""
        return self._last_sequence

    def note(self, line: EventDict) -> None:
        """A line as structlog has it, with `timestamp` (ISO 8601), `level` and `event`. Debug lines are left out."""
        level = str(line.get("level", ""))
        if level not in _LEVELS:
            return
        fields = {
            str(key): _short(value)
            for key, value in islice(line.items(), _FIELDS_MAX)
            if key not in _LEFT_OUT and not str(key).startswith("_")
        }
        wall_ms = round(datetime.fromisoformat(str(line["timestamp"])).timestamp() * 1_000)
        with self._lock:
            self._last_sequence += 1
            event = RememberedEvent(self._last_sequence, wall_ms, level, _short(line.get("event", "")), fields)
            self._events.append(event)

    def events_after(self, sequence: int, limit: int) -> list[RememberedEvent]:
        """Lines after this number, oldest first; if they are more than `limit`, the newest of them."""
        with self._lock:
            newest_first = list(islice(reversed(self._events), max(0, limit)))
        return [event for event in reversed(newest_first) if event.sequence > sequence]


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
