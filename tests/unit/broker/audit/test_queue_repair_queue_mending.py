"""Damage planted into ConsumeQueue files, of each kind and anywhere: every group gets every message all the same."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from support.messages import outgoing_message
from support.running_time import PATIENCE_S
from support.stores import ManualClock, flush_all, new_store, with_options
from tandemmq.broker.audit import store_files
from tandemmq.broker.audit.jobs import AuditHelper, Job, JobFailed, JobFailure, JobRunner
from tandemmq.broker.audit.queue_repair import (
    _TRIES_MAX,
    KeptEntries,
    QueueMending,
    QueueOrder,
    QueueRepair,
    QueueRepaired,
    ReplicaRead,
)
from tandemmq.broker.audit.store_files import OpenFile, StoreFiles
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.broker.queue_reader import DamagedEntries, StoreQueueReader
from tandemmq.core.audit.repair_plan import RepairRefused
from tandemmq.core.audit.replica_store import ReplicaState
from tandemmq.core.delivery.lease_table import LeaseTable
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.delivery.subscription import TagFilter
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.storage.consume_queue import ENTRY
from tandemmq.core.storage.disk import DiskError
from tandemmq.core.storage.message_store import MessageStore

QUEUES = 3
TAGS = (None, "A", "B")
OPTIONS = with_options(commit_log_file_bytes=64 << 10, consume_queue_file_bytes=2000, index_enabled=False)
KINDS = ("zeros", "flip", "elsewhere", "size", "tags code", "other queue", "filler", "page", "junk")


class _InlineHelper(AuditHelper):
    """Does the jobs here."""

    def __init__(self, root: str) -> None:
        super().__init__(root=root, bytes_per_second=1 << 40)
        self._runner = JobRunner(root, pause=lambda _: None)

    async def answers(self, job: Job) -> AsyncGenerator[dict[str, Any], None]:
        for frame in self._runner.run(job):
            if "failed" in frame:
                raise JobFailed(JobFailure(frame["failed"]), frame["message"])
            yield frame


class _Shelf:
    """A master with messages in its files, none of which anybody has received."""

    def __init__(self, folder: Path, seed: int, *, count: int = 300) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.store = self._open()
        self.sent: dict[tuple[int, int], tuple[bytes, str | None]] = {}
        for number in range(count):
            body = b"%d:" % number + self.chance.randbytes(self.chance.randint(0, 60))
            tag, queue_id = self.chance.choice(TAGS), self.chance.randrange(QUEUES)
            result = self.store.put(outgoing_message(queue_id=queue_id, tag=tag, body=body, keys=(f"u{number}",)))
            self.sent[queue_id, result.queue_offset] = (body, tag)
        flush_all(self.store)
        self.log = bytes(self.store.read_log(0, 1 << 20))
        self.replica: bytes | None = None
        self.failures: list[DiskError] = []

    def _open(self) -> MessageStore:
        store = new_store(PosixDisk(self.folder), ManualClock(), OPTIONS)
        store.load()
        return store

    def restart(self, stop: str = "clean") -> None:
        """What was in memory is read from the files from now on."""
        if stop == "killed":
            marks = {name: (self.folder / name).read_bytes() for name in ("abort", "boot", "checkpoint")}
        self.store.close()
        if stop == "killed":
            for name, data in marks.items():
                (self.folder / name).write_bytes(data)
        self.store = self._open()

    def write(self, queue_id: int, position: int, data: bytes) -> None:
        """Into a queue's files, behind the store's back."""
        for at, byte in enumerate(data, position):
            path = self.folder / f"consumequeue/topic/{queue_id}/{at - at % 2000:020d}"
            with path.open("r+b") as file:
                file.seek(at % 2000)
                file.write(bytes([byte]))

    def entry_bytes(self, queue_id: int, place: int) -> bytes:
        queue = self.store.consume_queue("topic", queue_id)
        assert queue is not None
        return ENTRY.pack(*queue.entry(place))

    def plant(self, kind: str, stop: str = "clean") -> None:
        """One damage of a kind, anywhere."""
        chance = self.chance
        queue_id, place = chance.choice(list(self.sent))
        if kind in REST:
            self.plant_in_files(kind, queue_id, stop)
            return
        entry = bytearray(self.entry_bytes(queue_id, place))
        if kind == "zeros":
            entry[:] = bytes(20)
        elif kind == "flip":
            entry[chance.randrange(20)] ^= 1 << chance.randrange(8)
        elif kind == "elsewhere":
            entry[:8] = chance.randrange(len(self.log)).to_bytes(8, "big")
        elif kind == "size":
            entry[8:12] = chance.randrange(1 << 31).to_bytes(4, "big")
        elif kind == "tags code":
            entry[12:] = chance.randrange(1 << 10).to_bytes(8, "big")
        elif kind == "other queue":
            entry[:] = self.entry_bytes(*chance.choice(list(self.sent)))
        elif kind == "filler":
            entry[8:] = (0x7FFFFFFF).to_bytes(4, "big") + bytes(8)
        elif kind == "page":
            last = max(n for q, n in self.sent if q == queue_id)
            entry[:] = bytes(20 * max(1, min(chance.randint(2, 80), last + (stop == "clean") - place)))
        else:
            entry[:] = chance.randbytes(20)
        self.write(queue_id, place * 20, bytes(entry))

    def plant_in_files(self, kind: str, queue_id: int, stop: str) -> None:
        """The same of a queue's files as such."""
        folder = self.folder / f"consumequeue/topic/{queue_id}"
        names = sorted(os.listdir(folder))
        if kind == "behind the end":
            end = max(n for q, n in self.sent if q == queue_id) + 1
            if 0 < end % 100 < 90:
                self.write(queue_id, (end + self.chance.randint(0, 3)) * 20, self.chance.randbytes(20))
        elif len(names) > 2:
            # Only an orderly stop knows where the last file was.
            path = folder / self.chance.choice(names if stop == "clean" else names[1:-1])
            if kind == "file gone":
                path.unlink()
            else:
                os.truncate(path, self.chance.randrange(1, 2000))

    async def read_from_replica(self, wanted: LogRange) -> bytes | None:
        return None if self.replica is None else self.replica[wanted.start_offset : wanted.end_offset]

    def queue_repair(self) -> QueueRepair:
        @asynccontextmanager
        async def alone() -> AsyncIterator[None]:
            yield

        return QueueRepair(
            kept=KeptEntries(str(self.folder)),
            store=self.store,
            state=lambda: _state(self.store),
            files=StoreFiles(str(self.folder)),
            helper=_InlineHelper(str(self.folder)),
            file_bytes=2000,
            delay_levels_ms=OPTIONS.delay_levels_ms,
            flushes_paused=alone,
            failed=self.failures.append,
        )

    async def received(self, expression: str) -> dict[tuple[int, int], bytes]:
        """All a group gets that wants these tags, while what is damaged is mended."""
        store = self.store
        damaged = DamagedEntries()
        tag_filter = TagFilter.parse(expression)
        assert tag_filter is not None
        table = LeaseTable(
            StoreQueueReader(store, damaged),
            options=DeliveryOptions(consume_from_earliest=True),
            broker_name="b",
            nonce=lambda: 7,
        )
        woken = asyncio.Event()
        self.damaged = damaged

        repair = self.queue_repair()
        mending = QueueMending(
            damaged=damaged,
            store=store,
            repair=repair,
            read_from_replica=self.read_from_replica,
            mended=lambda _: woken.set(),
            failed=self.failures.append,
            pause_s=0,
        )
        worker = asyncio.create_task(mending.run())
        found: dict[tuple[int, int], bytes] = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    woken.clear()
                    got = table.receive(
                        group="g",
                        topic="topic",
                        queue_ids=range(QUEUES),
                        tag_filter=tag_filter,
                        batch_size=32,
                        invisible_ms=60_000,
                        now_ms=0,
                        max_attempts=16,
                        auto_renew=False,
                        client_id="c",
                    )
                    for delivery in got.deliveries:
                        found[delivery.queue_id, delivery.queue_offset] = bytes(delivery.record.body)
                        assert table.acknowledge(group="g", topic="topic", handle=delivery.handle, now_ms=0)
                    if not got.deliveries and not got.more:
                        if not damaged.has_some.is_set():
                            break
                        await woken.wait()
        finally:
            worker.cancel()
            await asyncio.wait({worker})
        assert not self.failures
        return found

    def wanted(self, expression: str) -> dict[tuple[int, int], bytes]:
        tags = None if expression == "*" else set(expression.split("||"))
        return {place: body for place, (body, tag) in self.sent.items() if tags is None or tag in tags}


def _state(store: MessageStore) -> ReplicaState:
    return ReplicaState(
        identity=BrokerIdentity("c", "b", 0),
        min_offset=store.min_offset,
        end_offset=store.end_offset,
        flushed_offset=store.flushed_offset,
        confirm_offset=store.end_offset,
        segment_bytes=store.segment_bytes,
        queues_offset=store.saved_offset,
        index_offset=store.min_offset,
        lag_bytes=0,
        serving=True,
    )


@pytest.mark.parametrize("expression", ["*", "A||B"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
async def test_damage_that_comes_while_the_broker_runs_hides_no_message(
    tmp_path: Path, kind: str, seed: int, expression: str
) -> None:
    shelf = _Shelf(tmp_path, seed)
    shelf.restart()
    for _ in range(shelf.chance.randint(1, 4)):
        shelf.plant(kind)
    assert await shelf.received(expression) == shelf.wanted(expression)
    assert await shelf.received(expression) == shelf.wanted(expression)
    assert shelf.damaged.count == shelf.damaged.lost_count == 0, "the first group's reads have mended it"


REST = ("file gone", "file cut", "behind the end")


@pytest.mark.parametrize("stop", ["clean", "killed"])
@pytest.mark.parametrize("kind", [*KINDS, *REST])
@pytest.mark.parametrize("seed", range(3))
async def test_damage_that_comes_while_the_broker_is_down_hides_no_message(
    tmp_path: Path, kind: str, seed: int, stop: str
) -> None:
    shelf = _Shelf(tmp_path, seed, count=1_000)
    for _ in range(shelf.chance.randint(1, 3)):
        shelf.plant(kind, stop)
    shelf.restart(stop)
    # What is sent from now on must not take the places of what was there.
    for number in range(20):
        queue_id, body = number % QUEUES, b"new %d" % number
        result = shelf.store.put(outgoing_message(queue_id=queue_id, body=body))
        assert (queue_id, result.queue_offset) not in shelf.sent
        shelf.sent[queue_id, result.queue_offset] = (body, None)
    flush_all(shelf.store)
    shelf.restart("clean")
    assert await shelf.received("*") == shelf.wanted("*")


@pytest.mark.parametrize("seed", range(10))
async def test_damage_hides_no_message_when_older_ones_expire(tmp_path: Path, seed: int) -> None:
    shelf = _Shelf(tmp_path, seed)
    shelf.restart()
    for _ in range(3):
        shelf.plant(shelf.chance.choice(KINDS))
    log_min = 16 << 10
    for queue in shelf.store.queues:
        queue.correct_min_offset(log_min)
        queue.remove_expired_files(log_min)
        kept = [
            n for (q, n), (body, _) in shelf.sent.items() if q == queue.queue_id and shelf.log.index(body) > log_min
        ]
        assert queue.min_offset <= min(kept)


@pytest.mark.parametrize("has_replica", [True, False])
@pytest.mark.parametrize("seed", range(8))
async def test_a_damaged_record_comes_from_a_replica_or_is_told(tmp_path: Path, seed: int, has_replica: bool) -> None:
    shelf = _Shelf(tmp_path, seed)
    shelf.restart()
    (queue_id, place), (body, _) = shelf.chance.choice(list(shelf.sent.items()))
    at = shelf.log.index(body) + shelf.chance.randrange(len(body))
    with (tmp_path / f"commitlog/{0:020d}").open("r+b") as file:
        file.seek(at)
        file.write(bytes([shelf.log[at] ^ 1]))
    if shelf.chance.random() < 0.5:
        shelf.write(queue_id, place * 20, bytes(20))
    wanted = shelf.wanted("*")
    if has_replica:
        shelf.replica = shelf.log
        assert await shelf.received("*") == wanted
        assert bytes(shelf.store.read_log(0, 1 << 20)) == shelf.log
        assert os.path.getsize(tmp_path / f"commitlog/{0:020d}") == 64 << 10
        (kept,) = (tmp_path / "kept-repairs").glob("0*")
        start, end = map(int, kept.name.split("-")[:2])
        damaged = bytearray(shelf.log[start:end])
        damaged[at - start] ^= 1
        assert kept.read_bytes() == damaged
    else:
        del wanted[queue_id, place]
        assert await shelf.received("*") == wanted
        assert shelf.damaged.lost_count == 1


def _damage_record(shelf: _Shelf, number: int) -> tuple[int, int, int]:
    """A byte of a body in the log. Queue, place in it, and where the record begins."""
    (queue_id, place), (body, _) = list(shelf.sent.items())[number]
    at = shelf.log.index(body)
    with (shelf.folder / f"commitlog/{0:020d}").open("r+b") as file:
        file.seek(at)
        file.write(bytes([shelf.log[at] ^ 1]))
    queue = shelf.store.consume_queue("topic", queue_id)
    assert queue is not None
    return queue_id, place, queue.entry(place).physical_offset


async def _mend(shelf: _Shelf, place: tuple[int, int], read: ReplicaRead) -> DamagedEntries:
    """Until nobody waits for a place any more."""
    damaged = DamagedEntries()
    mending = QueueMending(
        damaged=damaged,
        store=shelf.store,
        repair=shelf.queue_repair(),
        read_from_replica=read,
        mended=lambda _: None,
        failed=shelf.failures.append,
        pause_s=0,
    )
    damaged.note("topic", *place, "it is damaged")
    worker = asyncio.create_task(mending.run())
    async with asyncio.timeout(PATIENCE_S):
        while damaged.has_some.is_set():
            await asyncio.sleep(0.001)
    worker.cancel()
    await asyncio.wait({worker})
    assert not shelf.failures
    return damaged


@pytest.mark.parametrize("what", ["entry", "record"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_on_a_full_disk_nothing_is_given_up(
    tmp_path: Path, what: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is overwritten is kept first. An operator makes room: until then the group waits, and nothing is lost."""
    shelf = _Shelf(tmp_path, 1, count=60)
    shelf.restart()
    (queue_id, place), (body, _) = shelf.chance.choice(list(shelf.sent.items()))
    shelf.replica = shelf.log
    if what == "record":
        at = shelf.log.index(body)
        with (tmp_path / f"commitlog/{0:020d}").open("r+b") as file:
            file.seek(at)
            file.write(bytes([shelf.log[at] ^ 1]))
    else:
        shelf.write(queue_id, place * 20, bytes(20))
    tries, write_all = itertools.count(), store_files.write_all

    def full(file: OpenFile, data: bytes) -> None:
        if next(tries) < 2 * _TRIES_MAX:
            raise OSError(code, os.strerror(code))
        write_all(file, data)

    monkeypatch.setattr(store_files, "write_all", full)
    with capture_logs() as lines:
        assert await shelf.received("*") == shelf.wanted("*")
    assert shelf.damaged.lost_count == 0
    # One line, and not one for each try.
    assert [line["event"] for line in lines].count("queue_entry_not_mended") == 1


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_put_back_into_a_log_that_was_cut_while_another_replica_was_asked(
    tmp_path: Path, seed: int
) -> None:
    """As by a new master: what it wrote there is the only copy, or all replicas have it."""
    shelf = _Shelf(tmp_path, seed)
    shelf.restart()
    queue_id, place, start = _damage_record(shelf, 200)
    after: list[bytes] = []

    async def read(wanted: LogRange) -> bytes:
        if not after:
            shelf.store.truncate(start - shelf.chance.randrange(2) * _size_before(shelf, start), reason="test")
            for number in range(150):
                body = b"new %d" % number + shelf.chance.randbytes(number % 7)
                shelf.store.put(outgoing_message(queue_id=number % QUEUES, body=body))
            flush_all(shelf.store)
            after.append(bytes(shelf.store.read_log(0, 1 << 20)))
        return shelf.log[wanted.start_offset : wanted.end_offset]

    await _mend(shelf, (queue_id, place), read)
    assert bytes(shelf.store.read_log(0, 1 << 20)) == after[0]


def _size_before(shelf: _Shelf, offset: int) -> int:
    """Of the record that ends there."""
    entries = (queue.entry(place) for queue in shelf.store.queues for place in range(queue.max_offset))
    return next(entry.size for entry in entries if entry.physical_end == offset)


async def test_no_longer_record_of_another_replica_is_put_over_sound_ones(tmp_path: Path) -> None:
    """Its log went another way, and nobody has noticed yet."""
    shelf = _Shelf(tmp_path / "own", 1)
    shelf.restart()
    queue_id, place, start = _damage_record(shelf, 200)
    before = bytes(shelf.store.read_log(0, 1 << 20))
    other = new_store(PosixDisk(tmp_path / "other"), ManualClock(), OPTIONS)
    other.load()
    other.append_raw(0, shelf.log[:start])
    while other.dispatch():
        pass
    other.put(outgoing_message(queue_id=queue_id, body=bytes(700)))
    theirs = bytes(other.read_log(0, 1 << 20))
    other.close()

    async def read(wanted: LogRange) -> bytes:
        return theirs[wanted.start_offset : wanted.end_offset]

    damaged = await _mend(shelf, (queue_id, place), read)
    assert damaged.lost_count == 1
    assert bytes(shelf.store.read_log(0, 1 << 20)) == before


async def test_bytes_behind_a_queues_end_become_zeros_and_come_back(tmp_path: Path) -> None:
    scene = _Shelf(tmp_path, 4, count=100)
    queue = scene.store.consume_queue("topic", 0)
    assert queue is not None
    end = int(queue.max_offset)
    assert 0 < end % 100 < 80, "the last file has room"
    sound = (tmp_path / queue_path(end)).read_bytes()
    scene.write(0, (end + 2) * 20, b"\x11" * 45)
    damaged = (tmp_path / queue_path(end)).read_bytes()

    async def run(**more: bool) -> QueueRepaired:
        values = {"dry_run": False} | more
        return await scene.queue_repair().run(QueueOrder("topic", 0, end + 1, end + 6, **values))

    assert (await run(dry_run=True)).changed_count == 3
    assert (tmp_path / queue_path(end)).read_bytes() == damaged
    assert (await run()).changed_count == 3
    assert (tmp_path / queue_path(end)).read_bytes() == sound
    assert (await run()).changed_count == 0
    assert (await run(undo=True)).changed_count == 3
    assert (tmp_path / queue_path(end)).read_bytes() == damaged
    await run()
    # What is an entry meanwhile stays one, whatever is kept of its place.
    while queue.max_offset < end + 6:
        scene.store.put(outgoing_message(queue_id=0, tag=None, body=b"more", keys=()))
    flush_all(scene.store)
    entries = [queue.entry(place) for place in range(end, end + 6)]
    assert (await run(undo=False)).changed_count == 0
    with pytest.raises(RepairRefused):
        await run(undo=True)
    assert [queue.entry(place) for place in range(end, end + 6)] == entries
    scene.store.close()


def queue_path(place: int) -> str:
    return f"consumequeue/topic/0/{place * 20 - place * 20 % 2000:020d}"
