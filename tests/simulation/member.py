"""One member of the broker group over its lives: its disk stays, processes come and go.

At every end of a process it writes down which bytes of the log must be there at the next start, and looks for them
then: a kill and an orderly stop lose nothing that was appended, a power loss nothing below the flushed offset.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from simulation.checkers import Violation, end_of_filler, last_boundary, log_place, readable_end
from simulation.faulty_disk import FaultyDisk
from simulation.ledger import Answer
from simulation.network import Network
from simulation.process import Journal, Machine, Process, ProcessFell
from simulation.virtual_time import US_PER_MS
from support.simulated_disk import UNLIMITED_BYTES, SimulatedCrash
from tandemmq.core.replication.log_history import EPOCH_FILE, REPLICA_FILE, LogHistory, ReplicaRecord
from tandemmq.core.storage.disk import DiskError
from tandemmq.core.storage.flush_jobs import StoreCheckpoint
from tandemmq.core.storage.message_store import MessageStore

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
    def next_walk_start(self) -> int:
        """Where the next start begins to walk over the log."""

    @property
    def problem(self) -> str:
        """What keeps it from being ready, for people."""

    @property
    def whole_records_end(self) -> int:
        """End of the last record that is in the log whole."""

    @property
    def longest_end(self) -> int:
        """Where the log may be found to end at the most."""

    def start(self) -> None:
        """Recovers the store and begins to work."""

    async def stop(self) -> None:
        """Ends the role's work in order. The files are closed afterwards."""

    def close_files(self) -> None:
        """The last step of an orderly stop but for the goodbye."""

    async def say_goodbye(self) -> None:
        """Tells where the log ends for good."""


class DataLoss(Protocol):
    """Told around everything that takes bytes from a disk."""

    def __call__(self, member: Member, cause: str, *, disk_lost: bool) -> AbstractContextManager[None]:
        """The loss happens inside the block; `disk_lost`: flushed bytes go as well."""


@dataclass(frozen=True, slots=True)
class _Promise:
    """Bytes of the log that must be there after a crash."""

    start_offset: int
    end_offset: int
    digest: bytes
    held_end: int
    """Where the log ended: nothing may be found beyond it."""


NO_PROMISE: Final = _Promise(0, 0, hashlib.sha256().digest(), 1 << 62)


class SimLogEnd:
    """The mark of a store's end in memory that a kill leaves as it is; see `tandemmq.broker.replica_identity`."""

    noted_end = 0

    def note(self, end_offset: int) -> None:
        """The log is written up to here; 0: nobody keeps the mark."""
        self.noted_end = end_offset


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
        data_loss: DataLoss,
        may_lose_power: Callable[[Member], bool],
        segment_bytes: int,
        clock_rate: float = 1.0,
    ) -> None:
        self.name = name
        self.broker_id = broker_id
        self.machine = Machine(name, network, rng, clock_rate=clock_rate)
        self.disk = self._new_disk()
        self.log_end = SimLogEnd()
        self.process: Process | None = None
        self.node: BrokerNode | None = None
        self.is_gone = False
        """For good."""
        self.down_since_us = 0
        self._rng = rng
        self._journal = journal
        self._make_node = make_node
        self._process_gone = process_gone
        self._data_loss = data_loss
        self._may_lose_power = may_lose_power
        self._segment_bytes = segment_bytes
        self.clean_image: dict[str, bytes] | None = None
        """What was on the disk after the last orderly stop."""
        self.changed_settings: dict[str, Any] = {}
        """What its next starts have that the run's settings do not."""
        self.power_loss_after_cut_ms: int | None = None
        """How long after its next cut the machine is to lose power; None: it is not."""
        self._readable_end = 0
        self._walked_from = 0
        """Where the next start begins to walk over the log."""
        self._is_closing = False
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

    def holds(self, answer: Answer) -> bool:
        """Whether whoever runs on this disk next finds the message: its bytes, and every record before them."""
        end_offset = answer.physical_offset + len(answer.record)
        is_loaded = self.node is not None and self.node.loaded and not self._is_closing
        readable = self.node.store.end_offset if self.node is not None and is_loaded else self._readable_end
        return end_offset <= readable and self.disk.shows(
            *log_place(answer.physical_offset, self._segment_bytes), answer.record
        )

    def start(self) -> None:
        """Starts a process, unless one runs."""
        if self.process is not None or self.is_gone:
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

    def take_away(self) -> None:
        """Its process is killed, if one runs, and none is started any more."""
        self.is_gone = True
        self.kill(restart_after_ms=None)

    def lose_power(self, *, restart_after_ms: int | None) -> None:
        """The machine stops: of what was not synced, any sector may be gone."""
        self._write_promises(self.node)
        with self._data_loss(self, f"power loss of {self.name}", disk_lost=False):
            self._end_process(power_loss=True)
        self._plan_start(restart_after_ms)

    def replace_disk(self, *, restart_after_ms: int | None) -> None:
        """The machine stops and comes back with an empty disk."""
        with self._data_loss(self, f"{self.name} got an empty disk", disk_lost=True):
            self._end_process(power_loss=True)
            self.disk = self._new_disk()
            self.log_end.note(0)
            self._readable_end = self._walked_from = 0
            self._after_kill = self._after_power_loss = NO_PROMISE
        self._plan_start(restart_after_ms)

    def put_back_disk(self, image: dict[str, bytes], *, reboots: bool, restart_after_ms: int | None) -> None:
        """The process ends, and the next one finds what was on the disk when `image` was taken."""
        with self._data_loss(self, f"{self.name} got an old copy of its disk", disk_lost=True):
            self._end_process(power_loss=reboots)
            self.disk.put_back(image)
            self.log_end.note(0)
            self._readable_end = self._walked_from = readable_end(self.disk, 0, self._segment_bytes)
            self._after_kill = self._after_power_loss = NO_PROMISE
        self._plan_start(restart_after_ms)

    def damage_log(self, back_bytes: int, page: bytes) -> bool:
        """Bytes of a stopped member's log change, up to `back_bytes` before the end: to `page`, or by a bit if that is
        empty. Only where the next start walks over the log, and sees it.

        False: nothing was changed, since no walk would notice. A record's checksum is of its body alone.
        """
        assert self.process is None, "a disk rots under a running process, too, but nobody reads that part again"
        # A job that the dead process did not hear of may have vouched for more than it knew.
        vouched_offset = StoreCheckpoint.load(self.disk).logics_physical_offset
        offset = max(self._walked_from, vouched_offset, self._readable_end - back_bytes)
        path, start = log_place(offset, self._segment_bytes)
        before = self.disk.read_file(path)
        if before is None or offset >= self._readable_end:
            return False
        page = page[: self._readable_end - offset]
        self.disk.damage(path, start, page or bytes((before[start] ^ 0x10,)))
        end_offset = readable_end(self.disk, offset - start, self._segment_bytes)
        if end_offset > offset:
            self.disk.damage(path, 0, before)
            return False
        with self._data_loss(self, f"rot at {offset} on the disk of {self.name}", disk_lost=True):
            self._readable_end = end_offset
            self._after_kill = replace(self._after_kill, end_offset=self._after_kill.start_offset)
            self._after_power_loss = self._after_kill
        return True

    def damage_unseen(self, offset: int, data: bytes) -> None:
        """Bytes of a stopped member's log change where its next start does not walk over it."""
        self.disk.damage(*log_place(offset, self._segment_bytes), data)
        self._after_kill = self._after_power_loss = replace(self._after_kill, end_offset=self._after_kill.start_offset)

    def stop_in_order(self, *, limit_ms: int, restart_after_ms: int | None) -> None:
        """SIGTERM, and SIGKILL once `limit_ms` have passed."""
        process, node = self.process, self.node
        if process is None or node is None or not node.loaded or self._is_closing:
            return
        self._journal.note(self.name, "is told to stop")

        async def stop() -> None:
            await node.stop()
            if self.process is not process or not self._close_files(node):
                return
            await node.say_goodbye()
            if self.process is process:
                self._end_process(power_loss=False)
                self._plan_start(restart_after_ms)

        process.loop.spawn(stop(), name="stop")
        self.machine.timeline.after(limit_ms * US_PER_MS, self._kill_if, process, restart_after_ms)

    def _kill_if(self, process: Process, restart_after_ms: int | None) -> None:
        if self.process is process:
            self.kill(restart_after_ms=restart_after_ms)

    def _close_files(self, node: BrokerNode) -> bool:
        """Closed files cannot be read any more: what must be there is written down before. False: the disk failed."""
        self._write_promises(node)
        self._is_closing = True
        try:
            node.close_files()
        except DiskError as error:
            self._stop_for(error)
            return False
        self._after_power_loss = self._after_kill
        self.clean_image = self.disk.image()
        self._journal.note(self.name, f"stopped in order at {self._after_kill.end_offset}")
        return True

    def pause(self, duration_ms: int) -> None:
        """SIGSTOP, and SIGCONT later: nothing of the process runs, the kernel keeps what arrives."""
        if self.process is not None:
            loop = self.process.loop
            loop.freeze()
            self.machine.timeline.after(duration_ms * US_PER_MS, loop.thaw)

    def resume(self) -> None:
        """SIGCONT now."""
        if self.process is not None:
            self.process.loop.thaw()

    def free_disk(self) -> None:
        """Somebody made room."""
        self.disk.capacity_bytes = UNLIMITED_BYTES

    def _new_disk(self) -> FaultyDisk:
        return FaultyDisk(
            self.machine.rng,
            wall_ms=lambda: self.machine.clock.wall_ms(),
            boot_id=lambda: self.machine.boot_id,
            crashed=self._crashed_in_disk,
            tail_kept=self._tail_kept,
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

    def must_stop(self, process: Process) -> None:
        """The process has found out that it must not go on; somebody starts it again."""
        if process is self.process:
            # Not in the midst of what it does: the callback runs to its end.
            self.machine.timeline.after(0, self._kill_if, process, RESTART_AFTER_FAILURE_MS)

    def new_disk_id(self) -> str:
        return f"{self.machine.rng.getrandbits(128):032x}"

    @property
    def disk_id(self) -> str | None:
        """Of the disk that is in the machine now, as far as it has one."""
        data = self.disk.read_file(REPLICA_FILE)
        return None if data is None else ReplicaRecord.from_json(data.decode()).disk_id

    @property
    def history(self) -> LogHistory:
        """The epochs of which the disk has bytes, or may have."""
        data = self.disk.read_file(EPOCH_FILE)
        return LogHistory() if data is None else LogHistory.from_text(data.decode())

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

    def _tail_kept(self) -> None:
        """The log is cut once the caller goes on: power may be lost as soon as that is done."""
        delay_ms, self.power_loss_after_cut_ms = self.power_loss_after_cut_ms, None
        if delay_ms is not None and self.process is not None:
            self.machine.timeline.after(delay_ms * US_PER_MS, self._lose_power_if, self.process)

    def _lose_power_if(self, process: Process) -> None:
        if self.process is process:
            self._journal.note(self.name, "loses power after a cut of its log")
            self.lose_power(restart_after_ms=RESTART_AFTER_FAILURE_MS)

    def _after_crash_in_disk(self, node: BrokerNode | None) -> None:
        if self.node is not node:
            return
        if self._rng.random() < 0.4 and self._may_lose_power(self):
            self.lose_power(restart_after_ms=RESTART_AFTER_FAILURE_MS)
        else:
            self.kill(restart_after_ms=RESTART_AFTER_FAILURE_MS)

    def _write_promises(self, node: BrokerNode | None) -> None:
        """Before a crash. A node that was still in recovery promises what its predecessor did."""
        if node is not None and node.loaded and not self._is_closing:
            store = node.store
            whole_end = min(node.whole_records_end, store.end_offset)
            held_end = max(node.longest_end, end_of_filler(store))
            self._after_kill = _promise(store, whole_end, held_end)
            # A flush may end within a record that was under way from the master; recovery ends before it.
            flushed_end = last_boundary(store, min(store.flushed_offset, whole_end))
            self._after_power_loss = _promise(store, flushed_end, held_end)

    def _end_process(self, *, power_loss: bool) -> None:
        process, node = self.process, self.node
        is_loaded = node is not None and node.loaded
        walked_from = 0
        if node is not None and is_loaded:
            walked_from, self._walked_from = node.store.flushed_offset, node.next_walk_start
        self.process, self.node, self._is_closing = None, None, False
        self.disk.crash(power_loss=power_loss)
        self.disk.failing_syncs = None
        if power_loss or is_loaded:
            self._readable_end = readable_end(self.disk, walked_from, self._segment_bytes)
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
