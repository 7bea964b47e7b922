"""Who keeps the group's record: a host of its own with compare-and-swap, and the members' way to it.

A swap may be late: applied when its caller has long stopped to wait. An answer that is lost is the network's to lose.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from simulation.network import Network, PeerUnavailable, ServiceKey
from simulation.process import Process
from tandemmq.broker.failover.authority import CALL_LIMIT_S, AuthorityUnavailable, Held, SwapLost
from tandemmq.core.replication.mastership import GroupRecord

AUTHORITY: Final = "authority"
LATE_MS: Final = (200, 9_000)
"""Also after the call's second, and after a lease."""

OLD_BY: Final = (1, 1, 2, 5, 30)
"""Versions: up to most of a minute."""

AnswerT = TypeVar("AnswerT")


class Written(NamedTuple):
    """One version of the record."""

    version: str
    text: str


class AuthorityService(Protocol):
    """What members ask."""

    async def read(self) -> Written | None:
        """The newest version."""

    async def swap(self, before: str, text: str) -> str:
        """The new version; empty when `before` is not the newest."""


AUTHORITY_PLANE: Final = ServiceKey[AuthorityService]("authority")


class AuthorityState:
    """What outlives the authority's process: every version that there ever was, and which one is in force."""

    def __init__(self, *, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self.changed_us = 0
        """When the record was another one last: renewals are the same."""
        self._versions: list[Written] = []
        self._count = 0
        self.newest: Written | None = None
        self.restores = 0
        """How often a backup was put back."""
        self.late_share = 0.0
        """Of swaps: applied, or lost, long after they were sent."""
        self.takes_writes = True
        """False: it answers who asks, and its disk is full."""
        self.old_share = 0.0
        """Of reads: answered with a version that is not the newest any more, as by a replica that has not heard yet."""
        self.when_grown: Callable[[GroupRecord], None] | None = None
        """Is told once of an in-sync set that has grown, before anybody else is."""

    @property
    def record(self) -> GroupRecord | None:
        return None if self.newest is None else GroupRecord.from_text(self.newest.text)

    @property
    def is_put_back(self) -> bool:
        """An older version is in force than the greatest that members have seen."""
        if self.newest is None or not self._versions:
            return False
        return _progress(self.newest) < max(map(_progress, self._versions))

    @property
    def version_count(self) -> int:
        """Of all that ever were written."""
        return len(self._versions)

    def write(self, text: str) -> str:
        """A new version, whatever was there."""
        before, after = self.record, GroupRecord.from_text(text)
        if before is None or (before.epoch, before.in_sync) != (after.epoch, after.in_sync):
            self.changed_us = self._now_us()
        if self.when_grown is not None and before is not None and before.in_sync < after.in_sync:
            told, self.when_grown = self.when_grown, None
            told(after)
        self._count += 1
        self.newest = Written(f"{self._count}", text)
        self._versions.append(self.newest)
        return self.newest.version

    def put_back(self, versions: int) -> bool:
        """Somebody restores a backup that is so many versions old. False: there is none."""
        if len(self._versions) <= versions:
            return False
        self.newest = self._versions[-1 - versions]
        self.restores += 1
        return True

    def older(self, versions: int) -> Written | None:
        """What was in force so many versions ago; None: nothing was yet."""
        return self._versions[-1 - versions] if len(self._versions) > versions else None

    def greatest(self) -> GroupRecord:
        """Of all that ever were: what an operator seeds a restored authority from."""
        return GroupRecord.from_text(max(self._versions, key=_progress).text)


def _progress(written: Written) -> tuple[int, int]:
    record = GroupRecord.from_text(written.text)
    return record.epoch, record.renewals


class AuthorityHost:
    def __init__(self, process: Process, network: Network, state: AuthorityState, rng: random.Random) -> None:
        self._process = process
        self._network = network
        self._state = state
        self._rng = rng

    def start(self) -> None:
        self._network.serve(self._process, AUTHORITY_PLANE, self)

    async def read(self) -> Written | None:
        if self._state.old_share and self._rng.random() < self._state.old_share:
            return self._state.older(self._rng.choice(OLD_BY))
        return self._state.newest

    async def swap(self, before: str, text: str) -> str:
        if self._rng.random() < self._state.late_share:
            restores = self._state.restores
            await asyncio.sleep(self._rng.randint(*LATE_MS) / 1000)
            if restores != self._state.restores:
                return ""  # What is on its way does not outlive that: it is another process afterwards.
        if not self._state.takes_writes:
            await asyncio.Event().wait()  # Until its caller has waited long enough.
        newest = self._state.newest
        if before != ("" if newest is None else newest.version):
            return ""
        return self._state.write(text)


class SimAuthority:
    """A member's view. See `tandemmq.broker.failover.authority.Authority`."""

    def __init__(self, process: Process, network: Network) -> None:
        self._process = process
        self._network = network

    async def read(self) -> Held | None:
        written = await self._ask(lambda plane: plane.read())
        return None if written is None else Held(GroupRecord.from_text(written.text), written.version)

    async def swap(self, before: Held | None, record: GroupRecord) -> Held:
        known, text = "" if before is None else before.version, record.to_text()
        version = await self._ask(lambda plane: plane.swap(known, text))
        if not version:
            raise SwapLost("another version is there")
        return Held(record, version)

    async def close(self) -> None:
        """See `Authority`."""

    async def _ask(self, ask: Callable[[AuthorityService], Awaitable[AnswerT]]) -> AnswerT:
        try:
            return await self._network.call(
                self._process, AUTHORITY, AUTHORITY_PLANE, ask, timeout_ms=round(1_000 * CALL_LIMIT_S)
            )
        except PeerUnavailable as error:
            raise AuthorityUnavailable(str(error)) from error
