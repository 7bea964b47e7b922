"""A store that crashes again and again, at any moment and in both ways, against a model that never does.

After each crash: the log is a prefix of what was appended and holds everything that was flushed; a killed process lost
nothing; ConsumeQueues and index are what the log says. Failures name the seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from support.messages import outgoing_message
from support.simulated_disk import SimulatedCrash, SimulatedDisk
from support.stores import (
    ManualClock,
    derived_queues,
    keys_in,
    log_bytes,
    messages_by_key,
    new_store,
    queue_contents,
    records_in,
    with_options,
)
from tandemmq.core.message.record import RecordFound
from tandemmq.core.storage.flush_jobs import FlushJob
from tandemmq.core.storage.message_store import MessageStore

CRASHES = 6
STEPS_MAX = 40


@dataclass
class _Model:
    """What the log must and may hold."""

    appended: bytes = b""
    """Everything ever appended and not truncated."""
    flushed_end: int = 0
    """Up to here it must be there after a power loss."""
    cut_to: int | None = None
    """A truncation to here was begun: the log may end anywhere from here on."""


class _Machine:
    """One seed's disk, clock, store and model."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        # Also flushes that take several jobs, of one queue each or of two or three.
        self.options = with_options(queue_flush_cost_max=(256, 1, 10)[seed % 3])
        self.clock = ManualClock()
        self.disk = SimulatedDisk(self.chance, wall_ms=self.clock.wall_ms)
        self.model = _Model()
        self.serial = 0
        self.store = self._started()

    def live(self) -> None:
        """Random work until it ends in a crash or in an orderly stop; then a start and a look at everything."""
        power_loss = self.chance.random() < 0.6
        if self.chance.random() < 0.7:
            self.disk.crash_at_operation(self.chance.randint(1, 60))
        try:
            for _ in range(self.chance.randint(0, STEPS_MAX)):
                self._step()
            if self.chance.random() < 0.15:
                self.store.close()
                self.model.flushed_end = len(self.model.appended)
        except SimulatedCrash:
            pass
        self.disk.crash(power_loss=power_loss)
        self._start_again(power_loss=power_loss)

    def _step(self) -> None:
        self.clock.now_ms += self.chance.choice((0, 1, 700, -300, 20_000))
        choice = self.chance.random()
        if choice < 0.55:
            self._put(1)
        elif choice < 0.7:
            self._put(self.chance.randint(2, 5))
        elif choice < 0.8:
            self._flush(self.store.log_flush_job())
        elif choice < 0.88:
            self._flush(self.store.queue_flush_job())
        elif choice < 0.92:
            self.disk.write_back_some()
        elif choice < 0.96:
            job = self.store.preparation_job()
            if job is not None:
                job.run()
                self.store.preparation_finished(job)
        elif choice < 0.97:
            self._truncate()
        else:
            self._follow()

    def _put(self, count: int) -> None:
        messages = []
        topic = self.chance.choice(("a", "b"))
        for _ in range(count):
            self.serial += 1
            messages.append(
                outgoing_message(
                    topic=topic,
                    queue_id=self.chance.randint(0, 2),
                    body=self.chance.randbytes(self.chance.randint(0, 700)),
                    tag=self.chance.choice((None, "x")),
                    keys=(f"u{self.serial}", f"k{self.serial % 5}"),
                )
            )
        before = self.store.end_offset
        try:
            results = [self.store.put(messages[0])] if count == 1 else self.store.put_batch(messages)
            assert all(result.status.stored for result in results)
        finally:  # A crash in the middle leaves bytes, too.
            self.model.appended += log_bytes(self.store, before)

    def _flush(self, job: FlushJob | None) -> None:
        if job is not None:
            job.run()
            self.store.flush_finished(job)
            self.model.flushed_end = self.store.flushed_offset

    def _truncate(self) -> None:
        boundaries = [0, *(record.physical_offset for record in self._records())]
        end = self.chance.choice(boundaries)
        kept_from = self.model.appended[end:]
        self.model.cut_to = end
        kept = self.store.truncate(end)
        if kept is not None:
            assert self.disk.read_file(kept.path) == kept_from
        self.model = _Model(appended=self.model.appended[:end], flushed_end=min(end, self.model.flushed_end))

    def _follow(self) -> None:
        """As a slave of a master whose clock is behind ours: cuts, and takes over what that one wrote instead."""
        self._truncate()
        if self.chance.random() < 0.5:
            self._flush(self.store.queue_flush_job())
        disk = SimulatedDisk(random.Random(self.chance.random()))
        master = new_store(disk, ManualClock(self.clock.now_ms - 1_000_000), self.options)
        master.load()
        _append(master, self.model.appended)
        start = master.end_offset
        for _ in range(self.chance.randint(1, 20)):
            master.put(outgoing_message(topic="a", body=self.chance.randbytes(self.chance.randint(0, 700))))
        before = self.store.end_offset
        try:
            _append(self.store, log_bytes(master, start))
        finally:
            self.model.appended += log_bytes(self.store, before)

    def _records(self) -> list[RecordFound]:
        return records_in(self.model.appended, start_offset=0, file_bytes=self.store.segment_bytes)

    def _started(self) -> MessageStore:
        store = new_store(self.disk, self.clock, self.options)
        store.load()
        return store

    def _start_again(self, *, power_loss: bool) -> None:
        # Starts may crash as well, before one of them gets through.
        while self.chance.random() < 0.3:
            self.disk.crash_at_operation(self.chance.randint(1, 12))
            power_loss_now = self.chance.random() < 0.5
            try:
                self._started()
            except SimulatedCrash:
                pass
            power_loss = power_loss or power_loss_now
            self.disk.crash(power_loss=power_loss_now)
        self.store = self._started()
        self._check(power_loss=power_loss)
        end = self.store.end_offset
        self.model = _Model(appended=self.model.appended[:end], flushed_end=end)

    def _check(self, *, power_loss: bool) -> None:
        store, model = self.store, self.model
        found = log_bytes(store)
        assert found == model.appended[: len(found)], "the log is no prefix of what was appended"
        must_end = model.flushed_end if power_loss else len(model.appended)
        if model.cut_to is not None:
            must_end = min(must_end, model.cut_to)
        assert store.end_offset >= must_end, f"ends at {store.end_offset}, must reach {must_end}"
        assert store.flushed_offset == store.dispatched_offset == store.end_offset
        assert queue_contents(store) == derived_queues(store)
        for topic, key, offset in keys_in(store):
            records = messages_by_key(store, topic, key, begin_ms=0, end_ms=1 << 62, max_count=10_000)
            assert offset in [record.physical_offset for record in records], f"{key} at {offset} is not found"


def _append(store: MessageStore, data: bytes) -> None:
    """As a slave, in pieces that end where they happen to."""
    while data:
        room = store.segment_bytes - store.end_offset % store.segment_bytes
        store.append_replicated(store.end_offset, [memoryview(data[: min(room, 1_000)])])
        data = data[min(room, 1_000) :]
        store.dispatch()


@pytest.mark.parametrize("seed", [*range(40), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(40, 400))])
def test_nothing_flushed_is_lost_and_nothing_stale_comes_back(seed: int) -> None:
    machine = _Machine(seed)
    for _ in range(CRASHES):
        machine.live()
