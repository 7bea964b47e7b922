"""The HA plane's port. What it says and hears is in tests/integration."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest
from structlog.testing import capture_logs

from support.running_time import until
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, new_store
from tandemmq.broker.master.ha_listener import SLAVES_MAX, STRANGERS_LINES_MAX, HaListener
from tandemmq.broker.write_path import WritePath
from tandemmq.core.replication.frames import REPORT, MasterOptions
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.routing.values import connection_end
from tandemmq.core.storage.options import FlushDiskType
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.rpc import ListenError


async def test_a_port_that_is_taken_is_named() -> None:
    store = new_store(SimulatedDisk(random.Random(1)))
    store.load()
    listener = HaListener(
        replica=MasterReplica(store, MasterOptions()), log_reader=store, clock=SystemClock(), after_input=lambda: None
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            listener.start(host="127.0.0.1", port=port)


async def test_who_opens_all_connections_and_says_nothing_keeps_no_slave_out() -> None:
    store = new_store(SimulatedDisk(random.Random(1)))
    store.load()
    replica = MasterReplica(store, MasterOptions())
    listener = HaListener(replica=replica, log_reader=store, clock=SystemClock(), after_input=lambda: None)
    listener.start(host="127.0.0.1", port=0)
    address = ("127.0.0.1", listener.port)
    slave = socket.create_connection(address)
    silent: list[socket.socket] = []
    try:
        slave.sendall(REPORT.pack(0))
        await until(lambda: len(replica.slaves()) == 1)
        for _ in range(SLAVES_MAX + 10):
            silent.append(socket.create_connection(address))
            await asyncio.sleep(0)
        late = socket.create_connection(address)
        silent.append(late)
        late.sendall(REPORT.pack(0))
        await until(lambda: len(replica.slaves()) == 2)
        assert len(listener.departures) == 0, "nobody who had reported was sent away"
    finally:
        listener.stop()
        for each in (slave, *silent):
            each.close()


async def test_strangers_do_not_fill_the_log_and_proven_slaves_are_told_of_all_the_same() -> None:
    store, clock = new_store(SimulatedDisk(random.Random(1))), ManualClock()
    store.load()
    replica = MasterReplica(store, MasterOptions())
    changes: list[None] = []
    listener = HaListener(replica=replica, log_reader=store, clock=clock, after_input=lambda: changes.append(None))
    listener.start(host="127.0.0.1", port=0)
    address = ("127.0.0.1", listener.port)

    async def come_and_go() -> None:
        changes.clear()
        socket.create_connection(address).close()
        await until(lambda: len(changes) == 2)

    try:
        with capture_logs() as lines:
            for _ in range(200):
                await come_and_go()
            assert len(lines) == STRANGERS_LINES_MAX
            slave = socket.create_connection(address)
            host, port = slave.getsockname()
            replica.verified(1, 0, peer=connection_end(host, port), now_ms=clock.monotonic_ms())
            slave.sendall(REPORT.pack(0))
            await until(lambda: bool(replica.slaves()))
            slave.close()
            await until(lambda: not replica.slaves())
            assert [line["event"] for line in lines[STRANGERS_LINES_MAX:]] == ["slave_disconnected"]
            clock.now_ms += 60_000
            await come_and_go()
        assert lines[-2]["not_told"] == 2 * 200 + 1 - STRANGERS_LINES_MAX
        assert "not_told" not in lines[-1]
    finally:
        listener.stop()


@pytest.mark.parametrize("report", [1 << 40, -2, 0])
async def test_what_strangers_report_does_not_fill_the_log_and_is_counted(report: int) -> None:
    store, clock = new_store(SimulatedDisk(random.Random(1))), ManualClock()
    store.load()
    replica = MasterReplica(store, MasterOptions())
    path = WritePath(
        store=store,
        replica=replica,
        clock=clock,
        flush_disk_type=FlushDiskType.ASYNC_FLUSH,
        waits_for_slaves=True,
        kick_flush=lambda: None,
        appended=lambda topic: None,
        answered=lambda: None,
        refusal=lambda: None,
        failed=_fail,
    )
    listener = HaListener(replica=replica, log_reader=store, clock=clock, after_input=path.collect)
    path.attach(listener)
    listener.start(host="127.0.0.1", port=0)
    address = ("127.0.0.1", listener.port)
    try:
        with capture_logs() as lines:
            for number in range(1, 101):
                with socket.create_connection(address) as stranger:
                    stranger.sendall(REPORT.pack(report))
                    if report == 0:
                        await until(lambda: len(replica.slaves()) == 1)
                    else:
                        await until(lambda: path.refused_report_count == number)  # noqa: B023 - asked before the next
                await until(lambda: not replica.slaves())
            assert len(lines) == STRANGERS_LINES_MAX
            if report != 0:
                assert path.refused_counts.total() == 100, "what is not told is counted"
            with socket.create_connection(address) as slave:
                host, port = slave.getsockname()
                replica.verified(1, 0, peer=connection_end(host, port), now_ms=clock.monotonic_ms())
                slave.sendall(REPORT.pack(0))
                await until(lambda: any(view.broker_id == 1 for view in replica.slaves()))
                slave.sendall(REPORT.pack(1 << 40))
                await until(lambda: not replica.slaves())
            told = [line["event"] for line in lines[STRANGERS_LINES_MAX:]]
            assert told == ["slave_started", "slave_in_sync", "slave_report_refused", "slave_link_closed"]
            clock.now_ms += 60_000
            socket.create_connection(address).close()
            await until(lambda: len(lines) > STRANGERS_LINES_MAX + len(told))
        assert lines[STRANGERS_LINES_MAX + len(told)]["not_told"] > 0
    finally:
        listener.stop()


def _fail(error: Exception) -> None:
    raise error
