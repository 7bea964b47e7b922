"""Who may change a cluster, and what they changed and tried to: a line of the log each, the newest kept to be shown.

Message bodies, property values and secrets are never in it: who writes an entry says what it is of, not all it holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from structlog.typing import FilteringBoundLogger

from tandemmq.admin.operations.values import EventLine
from tandemmq.core.clock import Clock

_REMEMBERED: Final = 500
"""Of what was done, and as many of what was refused or failed: whoever may change nothing pushes out none of it."""
# A line is for people; what is longer than this was no name.
_FIELD_LENGTH_MAX: Final = 300


class Role(StrEnum):
    """What somebody may do; every role may do what those before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks."""

    # As the audit log has it: `local`, `adminToken`, `viewerToken`, or the name a proxy has checked.
    name: str
    role: Role
    # Where from: an address without its port.
    address: str = ""

    @property
    def may_change(self) -> bool:
        return self.role is Role.OPERATOR


class AuditLog:
    """Written by one event loop."""

    def __init__(self, *, clock: Clock, log: FilteringBoundLogger) -> None:
        self._clock = clock
        self._log = log
        # By `level`, each line with its number.
        self._lines: dict[str, deque[tuple[int, EventLine]]] = {}
        self._count = 0

    def record(self, event: str, *, level: str = "info", fields: Mapping[str, str]) -> None:
        """Adds a line. `event` is a constant phrase, `level` info or warning."""
        kept = {key: _cut(value) for key, value in fields.items()}
        self._count += 1
        line = EventLine(self._clock.wall_ms(), "admin", level, event, kept)
        self._lines.setdefault(level, deque(maxlen=_REMEMBERED)).append((self._count, line))
        if level == "info":
            self._log.info(event, **kept)
        else:
            self._log.warning(event, **kept)

    def lines(self, *, limit: int = _REMEMBERED) -> Sequence[EventLine]:
        """The newest first."""
        held = sorted((each for lines in self._lines.values() for each in lines), key=_number_of, reverse=True)
        return tuple(line for _, line in held[:limit])


def _number_of(held: tuple[int, EventLine]) -> int:
    return held[0]


def _cut(value: str) -> str:
    # Half of a surrogate pair, which JSON can write, would break every page and answer that shows the line.
    value = value.encode(errors="replace").decode()
    return value if len(value) <= _FIELD_LENGTH_MAX else f"{value[:_FIELD_LENGTH_MAX]}… ({len(value)} characters)"
