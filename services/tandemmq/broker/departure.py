"""Leaving on purpose, so that a planned stop costs nobody anything.

    Drain --> leave the NameServers, not ready --> grace: serve who has not noticed yet
          --> refuse sends --> wait until those that wait are answered and the slaves hold the end of the log

It comes before SIGTERM (a pod's preStop) and takes nothing from what SIGTERM does. There is no way back: a broker that
was told to leave waits to be stopped, and its next process registers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from tandemmq.core.clock import Clock
from tandemmq.core.replication.master_replica import SlaveView

if TYPE_CHECKING:
    from tandemmq.broker.parts import Role

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Drained:
    """How one call of `Departure.drain` ended."""

    # No send waits, and every slave that was in sync since the drain began holds the end of the log.
    slaves_hold_everything: bool
    end_offset: int
    waited_ms: int


class Departure:
    """One per broker. `run` it in the broker's task group; event loop only.

    `leave` tells NameServers and probes; `refuse` ends the taking of messages.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        role: Callable[[], Role],
        default_limit_ms: int,
        leave: Callable[[], Awaitable[None]],
        refuse: Callable[[], None],
        end_offset: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._role = role
        self._default_limit_ms = default_limit_ms
        self._leave = leave
        self._refuse = refuse
        self._end_offset = end_offset
        self._sleep = sleep
        self._begun = asyncio.Event()
        self._refuse_at_ms = 0
        self._has_refused = False
        # By slave, what it reported last: of each that was in sync at some time since the beginning.
        self._held: dict[int | str, int] = {}

    @property
    def has_begun(self) -> bool:
        """True from the first call of `drain` on."""
        return self._begun.is_set()

    async def run(self) -> None:
        """Takes the steps once somebody asks for them; then nothing is left to do."""
        await self._begun.wait()
        log.info("broker_draining", end_offset=self._end_offset())
        await self._leave()
        remaining_ms = self._refuse_at_ms - self._clock.monotonic_ms()
        if remaining_ms > 0:
            await self._sleep(remaining_ms / 1_000)
        self._refuse()
        self._has_refused = True

    async def drain(self, limit_ms: int) -> Drained:
        """Begins the departure if nobody has, and waits for its end for at most `limit_ms` (0: the default).

        The grace is at most half of the first caller's limit: the slaves need the rest more.
        """
        limit_ms = limit_ms or self._default_limit_ms
        started_ms = self._clock.monotonic_ms()
        if not self._begun.is_set():
            self._refuse_at_ms = started_ms + min(self._role().drain_grace_ms, limit_ms // 2)
            self._begun.set()
        self._note_slaves()
        while not self._is_over() and self._clock.monotonic_ms() - started_ms < limit_ms:
            await self._sleep(_POLL_S)
            self._note_slaves()
        end_offset = self._end_offset()
        drained = Drained(
            self._is_over() and all(held >= end_offset for held in self._held.values()),
            end_offset,
            self._clock.monotonic_ms() - started_ms,
        )
        log.info(
            "broker_drained",
            slaves_hold_everything=drained.slaves_hold_everything,
            end_offset=end_offset,
            waited_ms=drained.waited_ms,
            slaves={str(slave): held for slave, held in self._held.items()},
        )
        return drained

    def _is_over(self) -> bool:
        """Nothing that could still be waited for. A slave that went away, as all do at an uninstallation, is not."""
        if not self._has_refused or self._role().waiting_count:
            return False
        end_offset = self._end_offset()
        return all(slave.acked_offset >= end_offset for slave in self._role().slaves() if _key(slave) in self._held)

    def _note_slaves(self) -> None:
        for slave in self._role().slaves():
            key = _key(slave)
            if slave.in_sync or key in self._held:
                self._held[key] = max(slave.acked_offset, self._held.get(key, 0))


def _key(slave: SlaveView) -> int | str:
    """The same slave's after a new connection, where it said who it is."""
    return slave.peer if slave.broker_id is None else slave.broker_id
