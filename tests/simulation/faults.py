"""What goes wrong in a seeded run: one fault after the other, drawn and timed by the seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from simulation.network import NORMAL_DELAY_US
from simulation.run_settings import NAME_SERVER
from simulation.virtual_time import US_PER_MS

if TYPE_CHECKING:
    from simulation.cluster import Cluster
    from simulation.member import Member

__all__ = ["FaultInjector"]

SLOW_DELAY_US: Final = (20_000, 400_000)
NORMAL_FLUSH_MS: Final = (1, 10)
SLOW_FLUSH_MS: Final = (200, 2_500)
FREE_BYTES_WHEN_FULL: Final = 2_048
QUIET_AFTER_NEW_DISK_MS: Final = 12_000


class FaultInjector:
    """Draws a fault, does it, plans its end and the next one, until `stop`."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._stopped = False
        self._quiet_until_us = 0
        self.counts: Counter[str] = Counter()
        self._kinds = {
            self._kill: 6,
            self._lose_power: 5,
            self._kill_at_disk_operation: 3,
            self._lose_all_power: 1,
            self._fail_sync: 1,
            self._fill_disk: 1,
            self._replace_disk: 1,
            self._slow_disk: 2,
            self._partition: 5,
            self._cut_one_way: 4,
            self._drop_connections: 4,
            self._slow_network: 2,
            self._kill_name_server: 1,
        }

    def start(self) -> None:
        """Plans the first fault."""
        self._plan_next()

    def stop(self) -> None:
        """No more faults; those in force are ended by the cluster."""
        self._stopped = True

    def _plan_next(self) -> None:
        pause_ms = min(60_000, round(self._rng.expovariate(1 / self._cluster.settings.fault_pause_ms)))
        self._cluster.timeline.after(pause_ms * US_PER_MS, self._inject)

    def _inject(self) -> None:
        if self._stopped:
            return
        if self._cluster.timeline.now_us < self._quiet_until_us:
            self._plan_next()
            return
        fault = self._rng.choices(list(self._kinds), list(self._kinds.values()))[0]
        what = fault()
        if what is not None:
            self.counts[fault.__name__.strip("_")] += 1
            self._cluster.journal.note("FAULT", what)
        self._plan_next()

    # Each returns what it did, or None when it did not apply.

    def _kill(self) -> str | None:
        member = self._running_member()
        if member is None:
            return None
        member.kill(restart_after_ms=self._down_ms())
        return f"kill {member.name}"

    def _lose_power(self) -> str | None:
        member = self._rng.choice(self._cluster.members)
        if not self._cluster.may_lose_power(member):
            return None
        member.lose_power(restart_after_ms=self._down_ms())
        return f"power loss of {member.name}"

    def _kill_at_disk_operation(self) -> str | None:
        """A crash between two steps of one change: a truncation, a new file, a checkpoint."""
        member = self._rng.choice(self._cluster.members)
        count = self._rng.choice((1, 2, 3, 5, 8, 13, 21, 34))
        member.disk.crash_at_operation(count)
        return f"{member.name} will die at disk operation {count} from now"

    def _lose_all_power(self) -> str | None:
        """The whole rack. Only with SYNC_FLUSH does the product promise anything then."""
        if not self._cluster.settings.sync_flush:
            return None
        for member in self._cluster.members:
            member.lose_power(restart_after_ms=self._down_ms())
        return "power loss of all members"

    def _fail_sync(self) -> str | None:
        """The disk reports an error: the process stops (docs/adr/0005) and its machine is started again."""
        member = self._running_member()
        if member is None or not self._cluster.may_lose_power(member):
            return None
        member.disk.failing_syncs = self._rng.choice(("commitlog", "consumequeue", ""))
        return f"syncs of {member.name} fail below {member.disk.failing_syncs!r}"

    def _fill_disk(self) -> str | None:
        member = self._running_member()
        if member is None:
            return None
        member.disk.capacity_bytes = member.disk.usage().used_bytes + FREE_BYTES_WHEN_FULL
        self._later(self._rng.randint(1_000, 15_000), member.free_disk)
        return f"disk of {member.name} is full"

    def _replace_disk(self) -> str | None:
        """A machine comes back with an empty disk while the others hold everything and are within its reach.

        An empty SYNC_MASTER waits only some seconds for slaves, since it may be brand-new: whoever exchanges a disk
        has to see to it that they answer. Therefore nothing else goes wrong until it is filled again.
        """
        member = self._rng.choice(self._cluster.members)
        if not self._cluster.may_lose_disk(member) or self._cluster.name_server is None:
            return None
        member.replace_disk(restart_after_ms=self._rng.choice((50, 2_000)))
        self._quiet_until_us = self._cluster.timeline.now_us + QUIET_AFTER_NEW_DISK_MS * US_PER_MS
        return f"{member.name} gets a new, empty disk"

    def _slow_disk(self) -> str | None:
        machine = self._rng.choice(self._cluster.members).machine
        machine.blocking_ms = SLOW_FLUSH_MS

        def recover() -> None:
            machine.blocking_ms = NORMAL_FLUSH_MS

        self._later(self._rng.randint(1_000, 15_000), recover)
        return f"slow disk at {machine.name}"

    def _partition(self) -> str | None:
        first, second = self._two_hosts()
        self._cut(first, second, self._cut_ms())
        self._cut(second, first, self._cut_ms())
        return f"{first} and {second} are cut off from each other"

    def _cut_one_way(self) -> str | None:
        source, target = self._two_hosts()
        self._cut(source, target, self._cut_ms())
        return f"nothing from {source} reaches {target}"

    def _drop_connections(self) -> str | None:
        first, second = self._two_hosts()
        self._cluster.network.drop_connections(first, second)
        return f"connections between {first} and {second} are reset"

    def _slow_network(self) -> str | None:
        network = self._cluster.network
        network.delay_us_range = SLOW_DELAY_US

        def recover() -> None:
            network.delay_us_range = NORMAL_DELAY_US

        self._later(self._rng.randint(1_000, 10_000), recover)
        return "slow network"

    def _kill_name_server(self) -> str | None:
        self._cluster.restart_name_server(after_ms=self._down_ms())
        return "kill name server"

    # Choices

    def _running_member(self) -> Member | None:
        running = [member for member in self._cluster.members if member.running]
        return self._rng.choice(running) if running else None

    def _two_hosts(self) -> tuple[str, str]:
        names = [member.name for member in self._cluster.members]
        first, second = self._rng.sample([*names, NAME_SERVER], 2)
        return first, second

    def _down_ms(self) -> int:
        return self._rng.choice((50, 400, 2_000, 8_000, 20_000))

    def _cut_ms(self) -> int:
        return self._rng.choice((100, 1_000, 4_000, 12_000, 30_000))

    def _cut(self, source: str, target: str, cut_ms: int) -> None:
        self._cluster.network.cut(source, target)
        self._later(cut_ms, lambda: self._cluster.network.heal(source, target))

    def _later(self, delay_ms: int, end: Callable[[], None]) -> None:
        self._cluster.timeline.after(delay_ms * US_PER_MS, end)
