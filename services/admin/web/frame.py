"""What frames every page: where the reader is, who they are, how the cluster is, and what has just been done."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from admin.cluster_cache import ClusterReading
from admin.cluster_state import Severity
from admin.quantities import counted

__all__ = ["NAVIGATION", "UNFRAMED", "Actor", "Flash", "Flashes", "Frame", "NavigationEntry", "frame_of"]

# Long enough for a slow redirect and a few renewals; whoever keeps the address longer sees the page without it.
_FLASH_MS: Final = 120_000
_FLASHES_MAX: Final = 500
_CODE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """A link to a page."""

    name: str
    label: str
    href: str


NAVIGATION: Final[Sequence[tuple[str, Sequence[NavigationEntry]]]] = (
    (
        "Cluster",
        (
            NavigationEntry("overview", "Overview", "/"),
            NavigationEntry("replication", "Replication", "/replication"),
            NavigationEntry("brokers", "Brokers", "/brokers"),
            NavigationEntry("consistency", "Consistency", "/consistency"),
            NavigationEntry("events", "Events", "/events"),
        ),
    ),
    (
        "Data",
        (
            NavigationEntry("topics", "Topics", "/topics"),
            NavigationEntry("groups", "Groups", "/groups"),
            NavigationEntry("messages", "Messages", "/messages"),
            NavigationEntry("dead-letters", "Dead letters", "/dead-letters"),
            NavigationEntry("traces", "Traces", "/traces"),
        ),
    ),
)


class Actor(Protocol):
    """Who asks."""

    @property
    def name(self) -> str:
        """As the audit log has it."""

    @property
    def role(self) -> str:
        """viewer or operator."""

    @property
    def may_change(self) -> bool:
        """True for operators."""


@dataclass(frozen=True, slots=True)
class Flash:
    """What has just been done, for the next page."""

    # ok, warning or bad.
    tone: str
    text: str
    lines: Sequence[str] = ()


class Flashes:
    """Flashes between a change and the page after it. The address carries a code, never the text."""

    def __init__(self) -> None:
        # By code, oldest first, with the time it was put (monotonic).
        self._kept: OrderedDict[str, tuple[int, Flash]] = OrderedDict()

    def put(self, flash: Flash, *, now_ms: int) -> str:
        """Keeps it and gives its code."""
        code = secrets.token_urlsafe(_CODE_BYTES)
        self._kept[code] = (now_ms, flash)
        while len(self._kept) > _FLASHES_MAX:
            self._kept.popitem(last=False)
        return code

    def get(self, code: str, *, now_ms: int) -> Flash | None:
        """The flash, as long as it is new; it stays, because a page that renews itself asks again."""
        put_ms, flash = self._kept.get(code, (0, None))
        return flash if flash is not None and now_ms - put_ms <= _FLASH_MS else None


@dataclass(frozen=True, slots=True)
class Frame:
    """One page's frame."""

    # Name of the navigation's entry; empty: none.
    active: str = ""
    cluster: str = ""
    # ok, bad or waiting, and the same in words.
    tone: str = "waiting"
    verdict: str = "reading"
    # None: not read yet.
    read_age_ms: int | None = None
    now_wall_ms: int = 0
    actor: Actor | None = None
    flash: Flash | None = None
    # True: somebody who logged in, and can log out.
    has_session: bool = False

    @property
    def may_change(self) -> bool:
        """False for viewers."""
        return self.actor is not None and self.actor.may_change


UNFRAMED: Final = Frame()


def frame_of(
    reading: ClusterReading | None,
    *,
    active: str,
    actor: Actor | None,
    flash: Flash | None,
    now_ms: int,
    now_wall_ms: int,
    has_session: bool = False,
) -> Frame:
    """The frame for a reading of the cluster; `now_ms` on the monotonic clock, `now_wall_ms` on the wall clock."""
    if reading is None:
        return Frame(active=active, actor=actor, flash=flash, now_wall_ms=now_wall_ms, has_session=has_session)
    problems = sum(finding.severity is Severity.PROBLEM for finding in reading.findings)
    verdict = "healthy" if reading.healthy else counted(problems, "problem")
    return Frame(
        active=active,
        cluster=", ".join(sorted({broker.cluster for broker in reading.state.brokers})),
        tone="ok" if reading.healthy else "bad",
        verdict=verdict,
        read_age_ms=reading.age_ms(now_ms),
        now_wall_ms=now_wall_ms,
        actor=actor,
        flash=flash,
        has_session=has_session,
    )
