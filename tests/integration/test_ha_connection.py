"""A slave's connection on a real socket: what its thread writes, and what is said of it meanwhile."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import pytest

from support.running_time import PATIENCE_S, until
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, log_bytes, new_store, with_options
from tandemmq.broker.slave.ha_connection import READ_BUFFER_BYTES, HaConnection
from tandemmq.core.replication.frames import REPORT, REPORT_BYTES, TRANSFER_HEADER, SlaveOptions
from tandemmq.core.storage.disk import DiskError, MappedSegment, RawWrite
from tandemmq.core.storage.message_store import MessageStore

FILE_BYTES: Final = 16 << 20
FRAME_BYTES: Final = 32 << 10
# How much a read brings is the kernel's affair, and a megabyte may never come in one; the first part of a frame does.
WRITTEN_APART_BYTES_MIN: Final = 2_000


@dataclass
class HeldSegment:
    """A file that stores nothing before the test says so."""

    segment: MappedSegment
    held: threading.Event
    failure: DiskError | None

    def write_parts(self, start: int, parts: Sequence[memoryview]) -> None:
        assert self.held.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        self.segment.write_parts(start, parts)


@dataclass
class HeldLog:
    """A store whose thread's writes are held back."""

    store: MessageStore
    held: threading.Event = field(default_factory=threading.Event)
    failure: DiskError | None = None
    sizes: list[int] = field(default_factory=list)
    """Of the thread's writes."""

    @property
    def min_offset(self) -> int:
        return self.store.min_offset

    @property
    def end_offset(self) -> int:
        return self.store.end_offset

    def append_replicated(self, start_offset: int, parts: Sequence[memoryview]) -> None:
        self.store.append_replicated(start_offset, parts)

    def replicated_write(self, start_offset: int, parts: Sequence[memoryview]) -> RawWrite | None:
        write = self.store.replicated_write(start_offset, parts)
        if write is None:
            return None
        self.sizes.append(write.size)
        segment = HeldSegment(write.segment, self.held, self.failure)
        return replace(write, segment=cast(MappedSegment, segment))

    def replicated_write_finished(self, write: RawWrite) -> None:
        self.store.replicated_write_finished(write)


@dataclass
class Master:
    """The other end: sends frames, reads reports."""

    log: bytes
    connection: HaConnection
    """The slave's."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sent: int = 0

    async def send(self, size: int) -> None:
        frames = []
        end = self.sent + size
        while self.sent < end:
            length = min(FRAME_BYTES, end - self.sent, FILE_BYTES - self.sent % FILE_BYTES)
            frames += [TRANSFER_HEADER.pack(self.sent, length), self.log[self.sent : self.sent + length]]
            self.sent += length
        self.writer.write(b"".join(frames))

    async def report(self) -> int:
        offset: int = REPORT.unpack(await self.reader.readexactly(REPORT_BYTES))[0]
        return offset

    async def reported(self, offset: int) -> None:
        """Waits for the report of `offset`."""
        while (found := await self.report()) < offset:
            pass
        assert found == offset


@pytest.fixture
def log() -> HeldLog:
    store = new_store(SimulatedDisk(random.Random(1)), options=with_options(commit_log_file_bytes=FILE_BYTES))
    store.load()
    return HeldLog(store)


@asynccontextmanager
async def following(log: HeldLog) -> AsyncIterator[tuple[Master, asyncio.Task[str]]]:
    """A slave that holds 1000 bytes and has reported them."""
    came: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda reader, writer: came.set_result((reader, writer)), "127.0.0.1", 0)
    connection = HaConnection(
        log=cast("Any", log),
        clock=ManualClock(),
        options=SlaveOptions(),
        acknowledged_end=lambda: log.end_offset,
        appended=lambda: None,
        written_apart_bytes_min=WRITTEN_APART_BYTES_MIN,
    )
    async with asyncio.timeout(PATIENCE_S):
        sock = await connection.connect("127.0.0.1", server.sockets[0].getsockname()[1])
        task = asyncio.create_task(connection.follow(sock))
        master = Master(random.Random(2).randbytes(2 * FILE_BYTES), connection, *await came)
        assert await master.report() == 0
        await master.send(1000)
        await master.reported(1000)
        try:
            yield master, task
        finally:
            log.held.set()
            task.cancel()
            await asyncio.wait((task,))
            master.writer.close()
            server.close()


async def until_written(log: HeldLog) -> None:
    await until(lambda: log.sizes)


async def test_large_reads_are_reported_once_the_thread_has_stored_them(log: HeldLog) -> None:
    async with following(log) as (master, _):
        await master.send(2 * READ_BUFFER_BYTES)
        await until_written(log)
        reported = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                while True:
                    reported = await master.report()
        assert max(1000, reported) == log.end_offset < master.sent, "reported before it was stored"
        assert len(log.sizes) == 1, "two writes at a time"
        log.held.set()
        await master.reported(master.sent)
    assert log_bytes(log.store) == master.log[: master.sent]


async def test_reads_across_the_end_of_a_file_arrive_whole(log: HeldLog) -> None:
    log.held.set()
    async with following(log) as (master, _):
        await master.send(FILE_BYTES + (5 << 20))
        await master.reported(master.sent)
    assert log.sizes
    assert log_bytes(log.store) == master.log[: master.sent]


async def test_a_master_with_longer_files_ends_the_connection_and_not_the_broker(log: HeldLog) -> None:
    log.held.set()
    async with following(log) as (master, task):
        await master.send(FILE_BYTES - 1100)
        await master.reported(master.sent)
        frame = TRANSFER_HEADER.pack(master.sent, 1000)
        master.writer.write(frame + master.log[master.sent : master.sent + 1000])
        assert "mappedFileSizeCommitLog" in await task
    assert log_bytes(log.store) == master.log[: master.sent]


async def test_small_reads_behind_a_large_one_keep_their_order(log: HeldLog) -> None:
    async with following(log) as (master, _):
        await master.send(3 << 20)
        await until_written(log)
        await master.send(100)
        await asyncio.sleep(0.05)
        log.held.set()
        await master.reported(master.sent)
    assert log_bytes(log.store) == master.log[: master.sent]


@pytest.mark.parametrize("end", ["closed by the master", "reset by the master", "cancelled"])
async def test_connection_ends_after_its_last_write(log: HeldLog, end: str) -> None:
    async with following(log) as (master, task):
        await master.send(3 << 20)
        await until_written(log)
        if end == "cancelled":
            task.cancel()
        elif end == "reset by the master":
            master.writer.transport.abort()
        else:
            master.writer.close()
        await asyncio.sleep(0.1)
        assert not task.done(), "a write was left alone"
        before = log.end_offset
        log.held.set()
        await asyncio.wait((task,))
        assert log.end_offset > before, "what was written does not belong to the log"
        assert log_bytes(log.store) == master.log[: log.end_offset]
        assert task.cancelled() == (end == "cancelled")


async def test_thread_reads_on_while_the_loop_does_not_look(log: HeldLog) -> None:
    log.held.set()
    async with following(log) as (master, _):
        await master.send(3 << 20)
        await until_written(log)
        await master.send(3 << 20)
        await master.writer.drain()
        await master.reported(master.sent)
        # Back to single reads, which the loop stores itself.
        await master.send(100)
        await master.reported(master.sent)
    assert log_bytes(log.store) == master.log[: master.sent]


async def test_what_the_thread_read_for_a_connection_that_was_dropped_is_not_stored(log: HeldLog) -> None:
    async with following(log) as (master, task):
        await master.send(3 << 20)
        await until_written(log)
        await master.send(1 << 20)
        master.connection.drop("no more")
        await asyncio.sleep(0.05)
        assert not task.done(), "a write was left alone"
        before = log.end_offset
        log.held.set()
        assert await task == "no more"
    assert log.end_offset - before == log.sizes[-1], "more than the write that was out belongs to the log"
    assert log_bytes(log.store) == master.log[: log.end_offset]


async def test_write_that_fails_ends_the_connection_and_counts_for_nothing(log: HeldLog) -> None:
    log.failure = DiskError("no")
    log.held.set()
    async with following(log) as (master, task):
        await master.send(3 << 20)
        assert await task == "no"
        assert log_bytes(log.store) == master.log[: log.end_offset]
        assert log.end_offset < master.sent


async def test_whose_end_it_was_is_known(log: HeldLog) -> None:
    async with following(log) as (master, task):
        master.connection.drop("our own doing")
        await asyncio.wait((task,))
        assert not master.connection.is_ended_there


async def test_an_end_of_the_masters_is_told_as_such(log: HeldLog) -> None:
    async with following(log) as (master, task):
        master.writer.close()
        await asyncio.wait((task,))
        assert master.connection.is_ended_there


async def test_whether_anybody_listens_is_that_machines_word(log: HeldLog) -> None:
    async with following(log) as (master, _):
        with socket.create_server(("127.0.0.1", 0)) as server:
            where = server.getsockname()
            assert await master.connection.listens(*where) is True
        assert await master.connection.listens(*where) is False
