"""The HA plane's port. What it says and hears is in tests/integration."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable

import pytest

from support.simulated_disk import SimulatedDisk
from support.stores import new_store
from tandemmq.broker.master.ha_listener import SLAVES_MAX, HaListener
from tandemmq.core.replication.frames import REPORT, MasterOptions
from tandemmq.core.replication.master_replica import MasterReplica
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
        await _until(lambda: len(replica.slaves()) == 1)
        for _ in range(SLAVES_MAX + 10):
            silent.append(socket.create_connection(address))
            await asyncio.sleep(0)
        late = socket.create_connection(address)
        silent.append(late)
        late.sendall(REPORT.pack(0))
        await _until(lambda: len(replica.slaves()) == 2)
        assert len(listener.departures) == 0, "nobody who had reported was sent away"
    finally:
        listener.stop()
        for each in (slave, *silent):
            each.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)
