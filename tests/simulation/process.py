"""Machines and the processes on them: what a kill, a power loss and a failed disk do to each."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from simulation.virtual_time import US_PER_MS, ProcessLoop, Timeline, VirtualClock

if TYPE_CHECKING:
    from simulation.network import Network

JOURNAL_LINES: Final = 300
_NUMBERS: Final = itertools.count(1)


class ProcessFell(Exception):
    """A process ended by an exception no fault explains: a bug in the product or in the simulation."""

    def __init__(self, process: str, error: BaseException) -> None:
        super().__init__(f"{process} fell: {type(error).__name__}: {error}")


@dataclass(slots=True)
class Journal:
    """The last things that happened, for whoever reads a failure."""

    timeline: Timeline
    lines: list[str] = field(default_factory=list)
    keep: int = JOURNAL_LINES

    def note(self, who: str, what: str) -> None:
        """Writes one line: virtual seconds, who, what."""
        self.lines.append(f"{self.timeline.now_us / 1e6:10.3f} s  {who:<12} {what}")
        if len(self.lines) > 2 * self.keep:
            del self.lines[: -self.keep]

    def tail(self) -> list[str]:
        """The last lines, oldest first."""
        return self.lines[-self.keep :]


class Process:
    """One run of a program on a machine. Everything it schedules dies with it."""

    def __init__(self, machine: Machine, *, failed: Callable[[Process, BaseException], None]) -> None:
        self.machine = machine
        self.clock = machine.clock
        self.started_wall_ms = machine.clock.wall_ms()
        self.nonce = f"{machine.name}-{next(_NUMBERS)}"
        """Unlike that of any other process."""
        self.network = machine.network
        self.loop = ProcessLoop(  # type: ignore[abstract]
            machine.timeline,
            machine.rng,
            owner=self,
            blocking_us=machine.blocking_us,
            failed=lambda error: failed(self, error),
            rate=machine.clock.rate,
        )

    @property
    def host(self) -> str:
        """The machine's name in the network."""
        return self.machine.name

    @property
    def alive(self) -> bool:
        """False once it was killed or fell."""
        return not self.loop.dead

    def stop(self) -> None:
        """Ends it here and now, without clean-up."""
        self.loop.stop_for_ever()


class Machine:
    """A host with a clock and a pace of its disk. `blocking_ms` is the range a flush takes, drawn anew for each."""

    def __init__(self, name: str, network: Network, rng: random.Random, *, clock_rate: float = 1.0) -> None:
        self.name = name
        self.network = network
        self.timeline = timeline = network.timeline
        self.rng = rng
        self._boots = 1
        self.clock = VirtualClock(timeline, booted_at_us=0, wall_skew_ms=rng.randint(-2_000, 2_000), rate=clock_rate)
        self.blocking_ms: tuple[int, int] = (1, 10)

    def blocking_us(self) -> int:
        """How long the next job that waits for the disk takes."""
        low, high = self.blocking_ms
        return self.rng.randint(low * US_PER_MS, high * US_PER_MS)

    @property
    def wall_skew_ms(self) -> int:
        """How wrong its wall clock is; may be set at any time, and the clock of a process that runs jumps."""
        return self.clock.wall_skew_ms

    @wall_skew_ms.setter
    def wall_skew_ms(self, skew_ms: int) -> None:
        self.clock.wall_skew_ms = skew_ms

    @property
    def boot_id(self) -> str:
        """Another one after each start of the machine."""
        return f"{self.name}-{self._boots}"

    def boot(self) -> None:
        """The machine starts again: its monotonic clock begins anew, its wall clock may have jumped."""
        self._boots += 1
        self.clock = VirtualClock(
            self.timeline,
            booted_at_us=self.timeline.now_us,
            wall_skew_ms=self.rng.randint(-2_000, 2_000),
            rate=self.clock.rate,
        )


def running_process() -> Process:
    """The process whose code runs now."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop), "outside of every simulated process"
    assert isinstance(loop.owner, Process)
    return loop.owner
