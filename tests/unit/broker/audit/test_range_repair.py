"""What ends a repair in the middle: a log that is cut, a caller that goes away, a source that gives too much."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
import xxhash

from tandemmq.broker.audit.jobs import CheckStagedJob, Job, to_its_end
from tandemmq.broker.audit.range_repair import RangeOrder, RangeRepair
from tandemmq.broker.audit.store_files import StoreFiles
from tandemmq.core.audit.repair_plan import Refusal, RepairRefused
from tandemmq.core.audit.replica_store import ReplicaState
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.storage.flush_jobs import FlushJob

LOG_BYTES = 3 << 20
SOUND = bytes(range(256)) * (LOG_BYTES // 256)
RANGE = LogRange(0, LOG_BYTES)


@dataclass
class SyncJob:
    """Counts what is made durable."""

    store: Store
    end_offset: int = LOG_BYTES
    cuts: int = 0

    def run(self) -> None:
        self.store.durable = bytes(self.store.data)


@dataclass
class Store:
    """A log of one file in memory; the test says what happens at each write."""

    data: bytearray
    durable: bytes = b""
    log_cuts: int = 0
    written: Callable[[], None] = field(default=lambda: None)

    def read_log(self, offset: int, max_bytes: int) -> memoryview:
        return memoryview(bytes(self.data[offset : offset + max_bytes]))

    def replace_log(self, offset: int, data: bytes) -> None:
        self.data[offset : offset + len(data)] = data
        self.written()

    def log_sync_job(self, start_offset: int, end_offset: int) -> FlushJob:
        return SyncJob(self)  # type: ignore[return-value]

    def flush_finished(self, job: FlushJob) -> None:
        pass


@dataclass
class Helper:
    """Digests the log in memory and finds every staged file sound."""

    store: Store

    async def answers(self, job: Job) -> AsyncGenerator[dict[str, Any], None]:
        if isinstance(job, CheckStagedJob):
            yield {"done": {"records": 1}}
        else:
            yield {"done": {"digest": xxhash.xxh3_128(self.store.data).hexdigest()}}


@dataclass
class Parts:
    """A repair and what it works on: a byte in the first megabyte and one in the last are wrong."""

    root: Path
    gift: bytes = b""
    """What the source gives behind what was asked for."""

    def __post_init__(self) -> None:
        damaged = bytearray(SOUND)
        damaged[5_000] ^= 1
        damaged[-5_000] ^= 1
        self.store = Store(damaged)
        (self.root / "commitlog").mkdir()
        (self.root / "commitlog" / f"{0:020d}").write_bytes(bytes(LOG_BYTES))
        self.repair = RangeRepair(
            root=str(self.root),
            store=cast("Any", self.store),
            state=lambda: ReplicaState(
                identity=BrokerIdentity("cluster", "broker-a", 1),
                min_offset=0,
                end_offset=LOG_BYTES,
                flushed_offset=LOG_BYTES,
                confirm_offset=LOG_BYTES,
                segment_bytes=LOG_BYTES,
                queues_offset=LOG_BYTES,
                index_offset=LOG_BYTES,
                lag_bytes=0,
                serving=True,
            ),
            files=StoreFiles(str(self.root)),
            helper=Helper(self.store),  # type: ignore[arg-type]
            read_source=self.source,
            failed=lambda error: None,
        )
        self.order = RangeOrder(
            range=RANGE,
            source_broker_id=0,
            target_digest=xxhash.xxh3_128(damaged).digest(),
            source_digest=xxhash.xxh3_128(SOUND).digest(),
            dry_run=False,
        )

    async def source(self, source_broker_id: int, wanted: LogRange) -> AsyncGenerator[bytes, None]:
        yield SOUND
        if self.gift:
            yield self.gift


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_both_wrong_bytes_are_replaced_and_durable(parts: Parts) -> None:
    repaired = asyncio.run(parts.repair.run(parts.order))
    assert repaired.changed_bytes == 2
    assert parts.store.durable == SOUND
    assert {path.name for path in parts.root.iterdir()} == {"commitlog", "kept-repairs"}


def test_what_is_overwritten_is_kept_and_can_be_put_back(parts: Parts) -> None:
    before = bytes(parts.store.data)
    asyncio.run(parts.repair.run(replace(parts.order, dry_run=True)))
    assert not (parts.root / "kept-repairs").exists()
    asyncio.run(parts.repair.run(parts.order))
    (kept,) = (parts.root / "kept-repairs").iterdir()
    assert kept.read_bytes() == before
    undo = replace(
        parts.order,
        source_broker_id=1,
        target_digest=parts.order.source_digest,
        source_digest=parts.order.target_digest,
    )
    asyncio.run(parts.repair.run(undo))
    assert parts.store.durable == before
    asyncio.run(parts.repair.run(parts.order))
    assert parts.store.durable == SOUND


def test_what_was_never_overwritten_cannot_be_put_back(parts: Parts) -> None:
    with pytest.raises(RepairRefused) as refused:
        asyncio.run(parts.repair.run(replace(parts.order, source_broker_id=1)))
    assert refused.value.refusal is Refusal.NOT_AS_EXPECTED


def test_what_was_written_before_the_log_was_cut_is_durable(parts: Parts) -> None:
    def cut() -> None:
        parts.store.log_cuts += 1

    parts.store.written = cut
    with pytest.raises(RepairRefused) as refused:
        asyncio.run(parts.repair.run(parts.order))
    assert refused.value.refusal is Refusal.LOG_CHANGED
    assert parts.store.data[5_000] == SOUND[5_000]
    assert parts.store.data[-5_000] != SOUND[-5_000]
    assert parts.store.durable == parts.store.data


def test_a_source_that_gives_too_much_is_not_followed(tmp_path: Path) -> None:
    parts = Parts(tmp_path, gift=b"more")
    before = bytes(parts.store.data)
    with pytest.raises(RepairRefused) as refused:
        asyncio.run(parts.repair.run(parts.order))
    assert refused.value.refusal is Refusal.SOURCE_UNSOUND
    assert parts.store.data == before


def test_what_a_crash_left_beside_the_log_goes(parts: Parts) -> None:
    (parts.root / "repair.unfinished").write_bytes(b"half")
    kept = parts.root / "kept-repairs"
    kept.mkdir()
    for name in ("topics.json-77", "topics.json-78.unfinished"):
        (kept / name).write_bytes(b"half")
    parts.repair.remove_leftover()
    parts.repair.remove_leftover()
    assert sorted(path.name for path in parts.root.iterdir()) == ["commitlog", "kept-repairs"]
    assert [path.name for path in kept.iterdir()] == ["topics.json-77"]


def test_a_disk_that_is_full_before_all_is_kept_changes_nothing_and_keeps_its_room(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bytes(parts.store.data)
    write = os.write

    def full(number: int, data: Any) -> int:
        if "kept-repairs" in os.readlink(f"/proc/self/fd/{number}") and os.fstat(number).st_size:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(number, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        asyncio.run(parts.repair.run(parts.order))
    assert parts.store.data == before
    assert list((parts.root / "kept-repairs").iterdir()) == []
    assert not (parts.root / "repair.unfinished").exists()
    monkeypatch.undo()
    asyncio.run(parts.repair.run(parts.order))
    assert parts.store.durable == SOUND


def test_a_caller_that_goes_away_waits_for_the_step_it_is_in() -> None:
    async def scenario() -> list[str]:
        steps = []
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            begun.set()
            await may_end.wait()
            steps.append("synced")

        async def caller() -> None:
            try:
                await to_its_end(work())
            finally:
                steps.append("turn is over")

        async with asyncio.TaskGroup() as group:
            task = group.create_task(caller())
            await begun.wait()
            task.cancel()
            await asyncio.sleep(0)
            may_end.set()
        assert task.cancelled()
        return steps

    assert asyncio.run(scenario()) == ["synced", "turn is over"]
