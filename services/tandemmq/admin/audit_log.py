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
from tandemmq.core.quotas import counted_host
from tandemmq.service.logging import LineRoom

_REMEMBERED: Final = 500
"""Of what was done, of what failed, and of what was refused, each: whoever may change nothing pushes out none of it."""
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
        # By `level`, and those that were refused; each line with its number.
        self._lines: dict[str, deque[tuple[int, EventLine]]] = {}
        self._count = 0
        self._refusals = LineRoom()

    def record(self, event: str, *, level: str = "info", fields: Mapping[str, str]) -> None:
        """Adds a line. `event` is a constant phrase, `level` info or warning."""
        self._add(event, level, {key: _cut(value) for key, value in fields.items()}, kept_among=level)

    def refused(self, event: str, *, fields: Mapping[str, str]) -> None:
        """Of what anybody can cause as often as it likes: one line of a kind in ten seconds, a hundred kinds at most, a
        quarter of them of one `address` (of IPv6 its /64). What is left out is counted: `not_told` of the same kind,
        `others_not_told` of all others, also of addresses that never came again."""
        kept = {key: _cut(value) for key, value in fields.items()}
        whose = counted_host(kept["address"])
        kind = (event, whose, *(value for key, value in kept.items() if key != "address"))
        not_told = self._refusals.take(kind, whose, self._clock.monotonic_ms())
        if not_told is not None:
            kept |= {name: str(count) for name, count in not_told.fields().items()}
            self._add(event, "warning", kept, kept_among="refused")

    def _add(self, event: str, level: str, kept: Mapping[str, str], *, kept_among: str) -> None:
        self._count += 1
        line = EventLine(self._clock.wall_ms(), "admin", level, event, kept)
        self._lines.setdefault(kept_among, deque(maxlen=_REMEMBERED)).append((self._count, line))
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
