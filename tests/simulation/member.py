"""One member of the broker group over its lives: its disk stays, processes come and go.

At every crash it writes down which bytes of the log must be there at the next start, and looks for them then: a kill
loses nothing that was appended, a power loss nothing below the flushed offset.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from mqcore.storage import DiskError, MessageStore
from simulation.checkers import Violation, end_of_filler, last_boundary
from simulation.faulty_disk import FaultyDisk
from simulation.network import Network
from simulation.process import Journal, Machine, Process, ProcessFell
from simulation.virtual_time import US_PER_MS
from support.simulated_disk import SimulatedCrash

__all__ = ["BrokerNode", "Member"]

UNLIMITED_BYTES: Final = 1 << 40
RESTART_AFTER_FAILURE_MS: Final = 1_000


class BrokerNode(Protocol):
    """One run of a broker: SimMaster or SimSlave."""

    @property
    def store(self) -> MessageStore:
        """Its store."""

    @property
    def loaded(self) -> bool:
        """True once recovery of the store is over."""

    @property
    def ready(self) -> bool:
        """True once the role's work has begun: the master serves, the slave follows."""

    @property
    def whole_records_end(self) -> int:
        """End of the last record that is in the log whole."""

    @property
    def longest_end(self) -> int:
        """Where the log may be found to end at the most."""

    def start(self) -> None:
        """Recovers the store and begins to work."""


@dataclass(frozen=True, slots=True)
class _Promise:
    """Bytes of the log that must be there after a crash."""

    start_offset: int
    end_offset: int
    digest: bytes
    held_end: int
    """Where the log ended: nothing may be found beyond it."""


NO_PROMISE: Final = _Promise(0, 0, hashlib.sha256().digest(), 1 << 62)


class Member:
    """A machine, its disk and the node that runs on it, if any. `make_node` builds a node of the right role."""

    def __init__(
        self,
        name: str,
        broker_id: int,
        network: Network,
        rng: random.Random,
        journal: Journal,
        *,
        make_node: Callable[[Member, Process], BrokerNode],
        process_gone: Callable[[Process, bool], None],
        power_lost: Callable[[Member], None],
        may_lose_power: Callable[[Member], bool],
    ) -> None:
        self.name = name
        self.broker_id = broker_id
        self.machine = Machine(name, network, rng)
        self.disk = self._new_disk()
        self.process: Process | None = None
        self.node: BrokerNode | None = None
        self.down_since_us = 0
        self._rng = rng
        self._journal = journal
        self._make_node = make_node
        self._process_gone = process_gone
        self._power_lost = power_lost
        self._may_lose_power = may_lose_power
        self._starts_planned = 0
        self._after_kill = NO_PROMISE
        self._after_power_loss = NO_PROMISE

    @property
    def running(self) -> bool:
        """True while a process runs, also in recovery."""
        return self.process is not None

    @property
    def ready(self) -> bool:
        """True while the node does its role's work."""
        return self.node is not None and self.node.ready

    @property
    def doomed(self) -> bool:
        """True when its disk fails at the next sync; the machine will then be started again."""
        return self.disk.failing_syncs is not None

    def start(self) -> None:
        """Starts a process, unless one runs."""
        if self.process is not None:
            return
        self.process = process = Process(self.machine, failed=self._failed)
        self.node = self._make_node(self, process)
        self._journal.note(self.name, "starts")
        process.loop.call_soon(self._load, self.node)

    def _load(self, node: BrokerNode) -> None:
        try:
            node.start()
        except SimulatedCrash:
            return  # _crashed_in_disk has seen to it
        except DiskError as error:
            self._stop_for(error)
            return
        self._check_promise(node.store)

    def kill(self, *, restart_after_ms: int | None) -> None:
        """SIGKILL: the page cache stays."""
        if self.process is None:
            return
        self._write_promises(self.node)
        self._end_process(power_loss=False)
        self._plan_start(restart_after_ms)

    def lose_power(self, *, restart_after_ms: int | None) -> None:
        """The machine stops: of what was not synced, any sector may be gone."""
        self._write_promises(self.node)
        self._power_lost(self)
        self._end_process(power_loss=True)
        self._plan_start(restart_after_ms)

    def replace_disk(self, *, restart_after_ms: int | None) -> None:
        """The machine stops and comes back with an empty disk."""
        self._power_lost(self)
        self._end_process(power_loss=True)
        self.disk = self._new_disk()
        self._after_kill = self._after_power_loss = NO_PROMISE
        self._plan_start(restart_after_ms)

    def free_disk(self) -> None:
        """Somebody made room."""
        self.disk.capacity_bytes = UNLIMITED_BYTES

    def _new_disk(self) -> FaultyDisk:
        return FaultyDisk(
            self.machine.rng,
            wall_ms=lambda: self.machine.clock.wall_ms(),
            crashed=self._crashed_in_disk,
        )

    def _failed(self, process: Process, error: BaseException) -> None:
        if process is not self.process or is_crash(error):
            return
        if is_disk_failure(error):
            self._stop_for(error)
        else:
            self.machine.timeline.fail(error if isinstance(error, Violation) else ProcessFell(self.name, error))

    def disk_failed(self, process: Process, error: DiskError) -> None:
        """The process was told by its disk to stop."""
        if process is self.process:
            self._stop_for(error)

    def _stop_for(self, error: BaseException) -> None:
        """Fail-stop. After a failed sync only a restart of the machine tells what the disk really holds."""
        self._journal.note(self.name, f"stops: {error}")
        if self.doomed:
            self.lose_power(restart_after_ms=RESTART_AFTER_FAILURE_MS)
        else:
            self.kill(restart_after_ms=RESTART_AFTER_FAILURE_MS)

    def _crashed_in_disk(self) -> None:
        """The disk operation chosen by the fault was reached: nothing of the process runs on."""
        assert self.process is not None
        node, loaded = self.node, self.node is not None and self.node.loaded
        self._journal.note(self.name, f"dies in a disk operation{'' if loaded else ' of its recovery'}")
        self.process.stop()
        # The operation is still on the stack: the files change hands once it has unwound.
        self.machine.timeline.after(0, self._after_crash_in_disk, node)

    def _after_crash_in_disk(self, node: BrokerNode | None) -> None:
        if self.node is not node:
            return
        if self._rng.random() < 0.4 and self._may_lose_power(self):
            self.lose_power(restart_after_ms=RESTART_AFTER_FAILURE_MS)
        else:
            self.kill(restart_after_ms=RESTART_AFTER_FAILURE_MS)

    def _write_promises(self, node: BrokerNode | None) -> None:
        """Before a crash. A node that was still in recovery promises what its predecessor did."""
        if node is not None and node.loaded:
            store = node.store
            whole_end = min(node.whole_records_end, store.end_offset)
            held_end = max(node.longest_end, end_of_filler(store))
            self._after_kill = _promise(store, whole_end, held_end)
            # A flush may end within a record that was under way from the master; recovery ends before it.
            flushed_end = last_boundary(store, min(store.flushed_offset, whole_end))
            self._after_power_loss = _promise(store, flushed_end, held_end)

    def _end_process(self, *, power_loss: bool) -> None:
        process, self.process, self.node = self.process, None, None
        self.disk.crash(power_loss=power_loss)
        self.disk.failing_syncs = None
        if process is not None:
            self.down_since_us = self.machine.timeline.now_us
            process.stop()
            self._process_gone(process, power_loss)
        if power_loss:
            self._after_kill = self._after_power_loss
            self.machine.boot()

    def _plan_start(self, restart_after_ms: int | None) -> None:
        self._starts_planned += 1
        if restart_after_ms is not None:
            self.machine.timeline.after(restart_after_ms * US_PER_MS, self._planned_start, self._starts_planned)

    def _planned_start(self, number: int) -> None:
        """Only the newest plan counts."""
        if number == self._starts_planned:
            self.start()

    def _check_promise(self, store: MessageStore) -> None:
        promise = self._after_kill
        start = max(promise.start_offset, store.min_offset)
        self._journal.note(
            self.name, f"recovered [{store.min_offset}, {store.end_offset}), promised up to {promise.end_offset}"
        )
        if store.end_offset > promise.held_end:
            raise Violation(f"{self.name} recovered up to {store.end_offset}, but its log ended at {promise.held_end}")
        if promise.end_offset <= promise.start_offset:
            return
        if store.end_offset < promise.end_offset:
            raise Violation(
                f"{self.name} recovered up to {store.end_offset}, but its log was promised up to {promise.end_offset}"
            )
        if start == promise.start_offset and store.digest(start, promise.end_offset) != promise.digest:
            raise Violation(f"{self.name} recovered other bytes below {promise.end_offset} than it had before")


def _promise(store: MessageStore, end_offset: int, held_end: int) -> _Promise:
    start_offset = store.min_offset
    end_offset = max(start_offset, end_offset)
    return _Promise(start_offset, end_offset, store.digest(start_offset, end_offset), held_end)


def is_crash(error: BaseException) -> bool:
    """True for the end of a process the fault plan asked for."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_crash(child) for child in error.exceptions)
    return isinstance(error, SimulatedCrash)


def is_disk_failure(error: BaseException) -> bool:
    """True for the fail-stop of docs/adr/0005: the process ends, recovery decides."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_disk_failure(child) for child in error.exceptions)
    return isinstance(error, DiskError)
