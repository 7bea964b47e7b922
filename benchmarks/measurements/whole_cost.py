"""What a message costs with all that comes after its answer: a broker writes ConsumeQueues and syncs files later, in
windows of its own choice, and what it has not written yet when nobody measures any more would be free.

So a pair is followed from its first send of a turn until it is quiet again, before anybody else is measured; and at the
end it is stopped in order, which writes what still waits in memory.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from load_generators import Window
from processes import MeasurementFailed, cpu_seconds, sum_of
from system_under_test import Member, TandemPair

QUIET_CORES: Final = 0.02
"""Of a CPU, master and slave together; idle, a pair with 80,000 queues takes half of it."""
LOOK_S: Final = 2.0
"""A process's CPU time is told in ticks of 10 ms."""
QUIET_LIMIT_S: Final = 60.0
SAVED_LIMIT_S: Final = 240.0
"""New queues: a minute until they are written, and as many seconds as the files of 80,000 take to make, twice."""


@dataclass
class WholeCost:
    """CPU of one pair for the messages that were sent to it, and for nothing else."""

    pair: TandemPair
    say: Callable[[str], None]
    cpu_s: float = field(default=0.0, init=False)
    messages: int = field(default=0, init=False)
    stop_cpu_s: float = field(default=0.0, init=False)
    """The part of it that the orderly stop took."""

    def turn(self, run: Callable[[], list[Window]]) -> list[Window]:
        """One run of a generator without a warm-up, and the time until the pair is quiet. Its first window, in which
        caches and connections get warm, counts here and is not among those returned."""
        before_s = self._spent_s()
        first, *windows = run()
        self.wait_quiet()
        self.cpu_s += self._spent_s() - before_s
        self.messages += sum(window.messages for window in (first, *windows))
        return windows

    def wait_saved(self) -> None:
        """Returns once every message has its ConsumeQueue entry in a file, on both sides, and the pair is quiet."""
        deadline = time.monotonic() + SAVED_LIMIT_S
        while not all(self.pair.is_saved(member) for member in Member):
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"{self.pair.label}: ConsumeQueues were not written in {SAVED_LIMIT_S:g} s")
            time.sleep(LOOK_S)
        self.wait_quiet()

    def wait_quiet(self) -> None:
        """Returns once master and slave have nothing to do; says so if that does not come."""
        deadline = time.monotonic() + QUIET_LIMIT_S
        cores = 1.0
        while cores > QUIET_CORES:
            if time.monotonic() > deadline:
                self.say(f"{self.pair.label} is not quiet after {QUIET_LIMIT_S:g} s: {cores:.2f} CPUs")
                return
            before_s, began = self._spent_s(), time.monotonic()
            time.sleep(LOOK_S)
            cores = (self._spent_s() - before_s) / (time.monotonic() - began)

    def stop(self) -> None:
        """Stops both brokers in order: what they had not written yet, they write now."""
        for member in Member:
            before_s = cpu_seconds(self.pair.pids()[member])
            ended_s = _cpu_of_ended_children()
            self.pair.stop(member)
            self.stop_cpu_s += _cpu_of_ended_children() - ended_s - before_s
        self.cpu_s += self.stop_cpu_s

    @property
    def us_per_message(self) -> float:
        """Microseconds of CPU, master and slave together."""
        return self._us(self.cpu_s)

    @property
    def stop_us_per_message(self) -> float:
        """Those of the orderly stop."""
        return self._us(self.stop_cpu_s)

    def _us(self, seconds: float) -> float:
        if not self.messages:
            raise MeasurementFailed(f"no turn of {self.pair.label} could be measured")
        return seconds * 1e6 / self.messages

    def _spent_s(self) -> float:
        return sum_of(cpu_seconds, self.pair.pids().values())


def _cpu_of_ended_children() -> float:
    """All that the processes which this one started, and which ended, have used in their life."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
