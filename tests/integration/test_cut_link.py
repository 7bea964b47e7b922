"""A replication link that is cut without a word: both ends know within seconds, and say so."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator

import pytest

from support.messages import outgoing_message
from support.own_network import Network, NetworkUnavailable, can_make_networks, own_network
from support.running_time import PATIENCE_S, until
from support.simulated_disk import SimulatedDisk
from support.stores import new_store, with_options
from tandemmq.broker.master.ha_listener import HaListener
from tandemmq.broker.slave.ha_connection import HaConnection
from tandemmq.core.replication.frames import MasterOptions, SlaveOptions
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.service.event_loop import SystemClock

pytestmark = pytest.mark.skipif(not can_make_networks(), reason="needs root, ip and iptables")


@pytest.fixture
def network() -> Iterator[Network]:
    """The slave is on the one node, the master here."""
    try:
        with own_network(1) as network:
            yield network
    except NetworkUnavailable as error:
        pytest.skip(f"no network of our own: {error}")


@pytest.mark.parametrize("something_is_sent", [False, True], ids=["idle", "while sending"])
async def test_both_ends_of_a_cut_link_know_in_seconds(network: Network, something_is_sent: bool) -> None:
    clock = SystemClock()
    masters, slaves = (new_store(SimulatedDisk(random.Random(seed))) for seed in range(2))
    masters.load()
    slaves.load()
    masters.put(outgoing_message())
    masters.write_appended()
    replica = MasterReplica(masters, MasterOptions())
    heard = asyncio.Event()
    listener = HaListener(replica=replica, log_reader=masters, clock=clock, after_input=heard.set)
    listener.start(host=network.address, port=0)
    connection = HaConnection(
        log=slaves,
        clock=clock,
        options=SlaveOptions(),
        acknowledged_end=lambda: slaves.end_offset,
        appended=lambda: None,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            with network.nodes[0].entered():
                sock = await connection.connect(network.address, listener.port)
            following = asyncio.create_task(connection.follow(sock))
            while not any(slave.acked_offset == masters.end_offset for slave in replica.slaves()):
                heard.clear()
                listener.pump()
                await heard.wait()
        [slave] = replica.slaves()
        traffic = listener.traffic(slave.link)
        assert traffic is not None
        assert traffic.silent_ms is not None
        network.nodes[0].cut()
        if something_is_sent:
            masters.put(outgoing_message())
            masters.write_appended()
            listener.pump()
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: listener.departures)
            reason = await following
        assert "has not answered" in listener.departures[-1].reason
        assert "has not answered" in reason
    finally:
        listener.stop()


async def test_a_slave_without_room_is_not_taken_for_one_that_is_gone(network: Network) -> None:
    """Its kernel answers each question after room: TCP_USER_TIMEOUT would end this connection."""
    options = with_options(commit_log_file_bytes=64 << 20)
    masters = new_store(SimulatedDisk(random.Random(1)), options=options)
    masters.load()
    for _ in range(30):
        masters.put(outgoing_message(body=bytes(1_000_000)))
        masters.write_appended()
    replica = MasterReplica(masters, MasterOptions())
    listener = HaListener(replica=replica, log_reader=masters, clock=SystemClock(), after_input=lambda: None)
    listener.start(host=network.address, port=0)
    with network.nodes[0].entered():
        sock = socket.socket()
    sock.setblocking(False)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.get_running_loop().sock_connect(sock, (network.address, listener.port))
            sock.send(bytes(8))
            await until(lambda: replica.slaves())
            listener.pump()
            # Nobody reads, for longer than a link that is cut would live.
            await asyncio.sleep(7)
        assert not listener.departures
        [slave] = replica.slaves()
        assert slave.lag_bytes > 20_000_000, "all of it found room"
    finally:
        sock.close()
        listener.stop()
