"""Hands each member of the in-sync set what groups have finished, before the answers that say so leave.

Of a group that fails over. The journal of the leases is copied as it is written: grants, acknowledgements, moved ends
of leases, in their order. As long as answers wait, each member that lacks something gets one call at a time with all
that is new: the first at once, the next `_PAUSE_S` after the last began. A member whose copy does not go on where ours
does takes a whole one first. `ProgressGate` decides which answers are free.

A member that cannot take it for a while leaves the set as one does that cannot take the log (`lacking`), and holds
nobody up from then on. What waits longer than the limit is answered as not known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from tandemmq.broker.leases import NO_LEASES, LeaseChange, LeaseStorage
from tandemmq.broker.peer_client import PeerClient, PeerUnavailable
from tandemmq.core.clock import Clock
from tandemmq.core.replication.progress_gate import ProgressGate
from tandemmq.core.routing.values import BrokerIdentity

log = structlog.get_logger(__name__)

_PAUSE_S: Final = 0.005
"""A call costs either side up to a millisecond of CPU, so a fifth of a core at most, however many acknowledge. Half of
this is what an answer waits longer while others come all the time."""
_RETRY_PAUSE_S: Final = 0.1
_LIMIT_MS: Final = 2_800
"""Longer than a member that is gone stays in the set, shorter than the 3 s after which official clients give up."""

ProgressDone = Callable[[bool], object]


class _Link:
    """One member's copy."""

    def __init__(self) -> None:
        self.known = NO_LEASES
        """Where its copy ends, as it said last."""
        self.peer: PeerClient | None = None
        self.task: asyncio.Task[None] | None = None
        self.next_s = 0.0

    async def close(self) -> None:
        peer, self.peer = self.peer, None
        if peer is not None:
            await peer.close()


class ProgressCopies:
    """The pump of one master. Event loop only. `endpoint` knows the metadata plane of a disk that is connected now, and
    `tasks` begins tasks."""

    def __init__(
        self,
        *,
        leases: LeaseStorage,
        clock: Clock,
        identity: BrokerIdentity,
        endpoint: Callable[[str], str | None],
    ) -> None:
        self._leases = leases
        self._clock = clock
        self._identity = identity
        self._endpoint = endpoint
        self._gate: ProgressGate[ProgressDone] = ProgressGate(limit_ms=_LIMIT_MS)
        self._links: dict[str, _Link] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.lacking: Final[set[str]] = set()
        """Disks that could not take it when they were asked last."""

    @property
    def waiting_count(self) -> int:
        """Turns whose answers wait."""
        return len(self._gate)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._leases.keep_tail()

    def when_held(self, done: ProgressDone) -> None:
        """Calls `done` with True once a change of master keeps what was persisted so far, at once if it does already;
        with False when that is not known within the limit, or this master ends."""
        end = self._leases.written_bytes
        if not self._gate and self._gate.is_held(end):
            done(True)
            return
        self._gate.add(end, done, now_ms=self._clock.monotonic_ms())
        self._arm_timer()
        self._copy_to(self._gate.lacking())

    def require(self, disk_ids: frozenset[str]) -> None:
        """Answers wait for these disks from now on. To be called again and again: who could not take it is asked again
        by that."""
        _tell(self._gate.require(disk_ids), True)
        for disk_id in [disk_id for disk_id in self.lacking if self._endpoint(disk_id) is None]:
            self.lacking.discard(disk_id)  # It is not connected: that is reason enough.
        self._copy_to({*self._gate.lacking(), *self.lacking})

    def give_up(self) -> None:
        """This master ends: what waits is answered as not known."""
        _tell(self._gate.give_up(), False)

    async def close(self) -> None:
        """After `give_up`; nothing begins any more."""
        self._tasks = None
        if self._timer is not None:
            self._timer.cancel()
        links, self._links = list(self._links.values()), {}
        running = [link.task for link in links if link.task is not None]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        for link in links:
            await link.close()

    # Inside

    def _copy_to(self, disk_ids: Iterable[str]) -> None:
        for disk_id in disk_ids:
            link = self._links.setdefault(disk_id, _Link())
            if self._tasks is not None and (link.task is None or link.task.done()):
                link.task = self._tasks.create_task(self._copy(disk_id, link))

    async def _copy(self, disk_id: str, link: _Link) -> None:
        """Until the member has what is waited for; one that is not required is asked once."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(0.0, link.next_s - loop.time()))
            link.next_s = loop.time() + _PAUSE_S
            held = await self._held_after_call(disk_id, link)
            if held is None:
                self.lacking.add(disk_id)
                link.next_s = loop.time() + _RETRY_PAUSE_S
                await link.close()
            else:
                self.lacking.discard(disk_id)
                _tell(self._gate.held(disk_id, held), True)
            if disk_id not in self._gate.lacking():
                return

    async def _held_after_call(self, disk_id: str, link: _Link) -> int | None:
        """How far of the journal the member has after a call with what is new; None: it cannot take it now."""
        endpoint = self._endpoint(disk_id)
        if endpoint is None:
            return None
        if link.peer is None or link.peer.endpoint != endpoint:
            await link.close()
            link.peer = PeerClient(endpoint)
        peer, leases = link.peer, self._leases
        try:
            # With nothing it only says where its copy ends.
            change = leases.change_after(link.known) or LeaseChange(link.known, None, b"")
            link.known = await peer.append_leases(self._identity, change)
            if not leases.goes_on_from(link.known) and await peer.copy_progress(self._identity):
                link.known = await peer.append_leases(self._identity, LeaseChange(link.known, None, b""))
        except PeerUnavailable as error:
            if disk_id not in self.lacking:
                log.info("progress_not_copied", replica=endpoint, reason=str(error))
            return None
        return leases.bytes_at(link.known)

    def _arm_timer(self) -> None:
        deadline_ms = self._gate.next_deadline_ms()
        if self._timer is None and deadline_ms is not None:
            delay_s = max(1, deadline_ms - self._clock.monotonic_ms()) / 1_000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        _tell(self._gate.take_overdue(now_ms=self._clock.monotonic_ms()), False)
        self._arm_timer()


def _tell(waiting: list[ProgressDone], is_held: bool) -> None:
    for done in waiting:
        done(is_held)
