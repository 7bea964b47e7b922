"""What replication tells its shell: the shell acts, logs and counts; the core does none of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from mqcore.replication.put_gate import WaitingPut

__all__ = [
    "AppendBytes",
    "LinkClosed",
    "MasterEvent",
    "MasterHeartbeat",
    "ReportRefused",
    "SlaveEvent",
    "SlaveFellBehind",
    "SlaveInSync",
    "SlaveStarted",
]


@dataclass(frozen=True, slots=True)
class SlaveStarted:
    """A slave made its first report; transfer starts at `start_offset`. `broker_id` is known of a verified slave."""

    link: int
    peer: str
    start_offset: int
    broker_id: int | None


@dataclass(frozen=True, slots=True)
class SlaveInSync:
    """A slave's lag fell below the limit."""

    link: int


@dataclass(frozen=True, slots=True)
class SlaveFellBehind:
    """A slave's lag reached the limit."""

    link: int


@dataclass(frozen=True, slots=True)
class ReportRefused:
    """A slave reported an offset that cannot be true; a LinkClosed follows."""

    link: int
    peer: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """The shell has to close the link's connection. `counter` names the statistic that counts it."""

    link: int
    reason: str
    counter: str


MasterEvent: TypeAlias = WaitingPut | SlaveStarted | SlaveInSync | SlaveFellBehind | ReportRefused | LinkClosed


class AppendBytes(NamedTuple):
    """CommitLog bytes to append at `start_offset`, the end of the local log. `data` is valid until the next read."""

    start_offset: int
    data: memoryview


class MasterHeartbeat(NamedTuple):
    """The master has nothing to send; `offset` is where it would go on."""

    offset: int


SlaveEvent: TypeAlias = AppendBytes | MasterHeartbeat
