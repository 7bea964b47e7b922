"""A slave on a real socket never vouches for bytes that are not what their sender wrote."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Final, Self

import pytest
from structlog.testing import capture_logs

from support.messages import outgoing_message
from support.running_time import PATIENCE_S, until
from support.simulated_disk import SimulatedDisk
from support.stores import log_bytes, new_store, with_options
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.broker.replica_proof import CommonEnd
from tandemmq.broker.slave.follower import Follower, MasterAddress
from tandemmq.core.replication.frames import REPORT, REPORT_BYTES, TRANSFER_HEADER, SlaveOptions
from tandemmq.core.replication.log_history import LogExtent, LogHistory
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.service.event_loop import SystemClock

_FILE_BYTES: Final = 64 << 10
_OPTIONS: Final = with_options(commit_log_file_bytes=_FILE_BYTES)


class RawMaster:
    """A master as Java's is: no metadata plane. Sends `log` from where the slave says, in pieces; keeps all reports."""

    def __init__(self, log: bytes, rng: random.Random) -> None:
        self.log = log
        self.rng = rng
        self.reports: list[list[int]] = []
        """Of each connection."""
        self.damaged_connections = 0
        """Of the next so many the byte at `damaged_at` arrives damaged."""
        self.damaged_at = -1
        self._heard = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reports: list[int] = []
        self.reports.append(reports)
        log = bytearray(self.log)
        if self.damaged_connections > 0:
            self.damaged_connections -= 1
            log[self.damaged_at] ^= 0x40
        try:
            (offset,) = REPORT.unpack(await reader.readexactly(REPORT_BYTES))
            reports.append(offset)
            sending = asyncio.create_task(self._send(bytes(log), offset, writer))
            try:
                while True:
                    (report,) = REPORT.unpack(await reader.readexactly(REPORT_BYTES))
                    async with self._heard:
                        reports.append(report)
                        self._heard.notify_all()
            finally:
                sending.cancel()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _send(self, log: bytes, offset: int, writer: asyncio.StreamWriter) -> None:
        while offset < len(log):
            length = min(self.rng.choice((1, 40, 700, 9_000)), len(log) - offset, _FILE_BYTES - offset % _FILE_BYTES)
            writer.write(TRANSFER_HEADER.pack(offset, length) + log[offset : offset + length])
            await writer.drain()
            offset += length
            await asyncio.sleep(0)

    async def reported(self, offset: int) -> None:
        async with self._heard:
            await self._heard.wait_for(lambda: any(offset in reports for reports in self.reports))


@asynccontextmanager
async def _no_flushes() -> AsyncIterator[None]:
    yield


async def _nothing_to_cut() -> None:
    pass


@asynccontextmanager
async def _followed(master: RawMaster, store: MessageStore, *, metadata: str | None = None) -> AsyncIterator[Follower]:
    server = await asyncio.start_server(master.serve, "127.0.0.1", 0)
    address = MasterAddress(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", metadata)
    failures: list[Exception] = []
    follower = Follower(
        store=store,
        clock=SystemClock(),
        options=SlaveOptions(),
        identity=BrokerIdentity("DefaultCluster", "broker-a", 1),
        replica=ReplicaIdentity(
            SimulatedDisk(random.Random(0)), BrokerIdentity("DefaultCluster", "broker-a", 1), new_disk_id=str, nonce="N"
        ),
        metadata_endpoint=lambda: "",
        master=lambda: address,
        reports_flushed_only=False,
        kick_flush=lambda: None,
        flushes_paused=_no_flushes,
        failed=failures.append,
        cut_progress=_nothing_to_cut,
    )
    task = asyncio.create_task(follower.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield follower
    finally:
        task.cancel()
        await asyncio.wait((task,))
        server.close()
    assert not failures


def _masters_log(rng: random.Random) -> tuple[bytes, list[tuple[int, int]]]:
    """A log of several files, and where the records lie in it."""
    store = new_store(SimulatedDisk(rng), options=_OPTIONS)
    store.load()
    records = []
    for _ in range(60):
        result = store.put(outgoing_message(body=rng.randbytes(rng.choice((10, 300, 9_000))), tag="t", keys=("k",)))
        store.write_appended()
        records.append((int(result.physical_offset), int(result.end_offset)))
    return log_bytes(store), records


@pytest.mark.parametrize("seed", range(8))
async def test_a_record_that_came_damaged_is_never_reported_and_comes_again(seed: int) -> None:
    rng = random.Random(seed)
    log, records = _masters_log(rng)
    master = RawMaster(log, rng)
    start, _ = rng.choice(records)
    # A byte of the head that is checked, or of the body: the first eight are size and magic code.
    master.damaged_at = start + rng.choice((0, 3, 5, 9, 30, 85, 88, 90))
    master.damaged_connections = 1
    slave = new_store(SimulatedDisk(rng), options=_OPTIONS)
    slave.load()
    async with _followed(master, slave):
        await master.reported(len(log))
    damaged, *later = master.reports
    assert max(damaged) <= start, "a damaged record was vouched for"
    assert later
    assert log_bytes(slave) == log


async def test_a_record_that_is_damaged_at_its_master_is_never_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    log, records = _masters_log(rng)
    start, end = records[30]
    master = RawMaster(log, rng)
    master.damaged_at, master.damaged_connections = end - 60, 1_000
    slave = new_store(SimulatedDisk(rng), options=_OPTIONS)
    slave.load()
    monkeypatch.setattr("tandemmq.broker.slave.follower.CORRUPT_PAUSE_MAX_S", 0.6)
    async with _followed(master, slave):
        await until(lambda: len(master.reports) >= 4)
    assert max(map(max, filter(None, master.reports))) <= start, "a damaged record was vouched for"
    assert log_bytes(slave)[:start] == log[:start]


class _OtherLog:
    """The metadata plane of a master whose log is as long as the slave's, of the same masters, and another one."""

    endpoint = "master:1"

    def __init__(self, extent: LogExtent) -> None:
        self._extent = extent

    def __call__(self, _endpoint: str) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing was opened."""

    async def log(self) -> SimpleNamespace:
        return SimpleNamespace(
            broker_name="",
            extent=self._extent,
            segment_bytes=_FILE_BYTES,
            serving=True,
            history=LogHistory(),
            disk_id="M",
            ha_tls=False,
        )

    async def verify(self, *_: object, **__: object) -> None:
        """It differs."""


async def test_a_log_that_contradicts_its_masters_is_compared_ever_less_often_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To compare may read all of both logs."""
    rng = random.Random(4)
    log, records = _masters_log(rng)
    slave = new_store(SimulatedDisk(rng), options=_OPTIONS)
    slave.load()
    async with _followed(master := RawMaster(log, rng), slave):
        await master.reported(len(log))
    compared = []

    async def find_common_end(*_: object, **__: object) -> CommonEnd:
        compared.append(asyncio.get_running_loop().time())
        return CommonEnd(records[30][0], ours_is_damaged=False)

    module = "tandemmq.broker.slave.follower"
    monkeypatch.setattr(f"{module}.PeerClient", _OtherLog(LogExtent(0, len(log))))
    monkeypatch.setattr(f"{module}.find_common_end", find_common_end)
    monkeypatch.setattr(f"{module}.RETRY_PAUSE_S", 0.02)
    with capture_logs() as lines:
        async with _followed(RawMaster(log, rng), slave, metadata="master:1") as follower:
            await until(lambda: len(compared) >= 6)
            assert follower.is_refusing
    pauses = [after - before for before, after in pairwise(compared)]
    assert pauses[-1] > 4 * 0.02
    told = [line["event"] for line in lines]
    assert [told.count(event) for event in ("slave_resynchronising", "master_not_followed")] == [1, 1]
