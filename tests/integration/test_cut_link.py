"""A replication link that is cut without a word: both ends know within seconds, and say so."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pytest

from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import new_store, with_options
from tandemmq.broker.master.ha_listener import HaListener
from tandemmq.broker.slave.ha_connection import HaConnection
from tandemmq.core.replication.frames import MasterOptions, SlaveOptions
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.service.loop_meter import SystemClock

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "iptables"))), reason="needs root, ip and iptables"
)

LIMIT_S: Final = 14.0
"""Of a step on a busy machine; a silent link was closed after 20 s."""
SLAVES_ADDRESS: Final = "10.213.7.2"
MASTERS_ADDRESS: Final = "10.213.7.1"
_CLONE_NEWNET: Final = 0x4000_0000


@dataclass(frozen=True)
class Namespace:
    """A machine of its own, as far as the network goes: the slave's."""

    name: str

    def run(self, *command: str) -> None:
        subprocess.run(["ip", "netns", "exec", self.name, *command], check=True, capture_output=True)

    def cut(self) -> None:
        """From now on nothing arrives and nothing leaves, and nobody is told."""
        for chain in ("INPUT", "OUTPUT"):
            self.run("iptables", "-A", chain, "-j", "DROP")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Sockets that this thread makes meanwhile belong there."""
        libc = ctypes.CDLL(None, use_errno=True)
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        try:
            assert libc.setns(there, _CLONE_NEWNET) == 0
            try:
                yield
            finally:
                assert libc.setns(here, _CLONE_NEWNET) == 0
        finally:
            os.close(here)
            os.close(there)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    name = f"tandemmq-{os.getpid()}"
    here, there = f"tq{os.getpid() % 100_000}a", f"tq{os.getpid() % 100_000}b"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no network namespace: {made.stderr.decode()}")
    try:
        found = Namespace(name)
        commands = (
            f"ip link add {here} type veth peer name {there} netns {name}",
            f"ip addr add {MASTERS_ADDRESS}/30 dev {here}",
            f"ip link set {here} up",
        )
        for command in commands:
            subprocess.run(command.split(), check=True, capture_output=True)
        found.run("ip", "addr", "add", f"{SLAVES_ADDRESS}/30", "dev", there)
        found.run("ip", "link", "set", there, "up")
        yield found
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network of our own: {error.stderr.decode()}")
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", here], check=False, capture_output=True)


@pytest.mark.parametrize("something_is_sent", [False, True], ids=["idle", "while sending"])
async def test_both_ends_of_a_cut_link_know_in_seconds(namespace: Namespace, something_is_sent: bool) -> None:
    clock = SystemClock()
    masters, slaves = (new_store(SimulatedDisk(random.Random(seed))) for seed in range(2))
    masters.load()
    slaves.load()
    masters.put(outgoing_message())
    masters.write_appended()
    replica = MasterReplica(masters, MasterOptions())
    heard = asyncio.Event()
    listener = HaListener(replica=replica, log_reader=masters, clock=clock, after_input=heard.set)
    listener.start(host=MASTERS_ADDRESS, port=0)
    connection = HaConnection(
        log=slaves,
        clock=clock,
        options=SlaveOptions(),
        acknowledged_end=lambda: slaves.end_offset,
        appended=lambda: None,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            with namespace.entered():
                sock = await connection.connect(MASTERS_ADDRESS, listener.port)
            following = asyncio.create_task(connection.follow(sock))
            while not any(slave.acked_offset == masters.end_offset for slave in replica.slaves()):
                heard.clear()
                listener.pump()
                await heard.wait()
        [slave] = replica.slaves()
        traffic = listener.traffic(slave.link)
        assert traffic is not None
        assert traffic.silent_ms is not None
        assert traffic.silent_ms < 3_000
        namespace.cut()
        if something_is_sent:
            masters.put(outgoing_message())
            masters.write_appended()
            listener.pump()
        async with asyncio.timeout(LIMIT_S):
            while not listener.departures:
                await asyncio.sleep(0.05)
            reason = await following
        assert "has not answered" in listener.departures[-1].reason
        assert "has not answered" in reason
    finally:
        listener.stop()


async def test_a_slave_without_room_is_not_taken_for_one_that_is_gone(namespace: Namespace) -> None:
    """Its kernel answers each question after room: TCP_USER_TIMEOUT would end this connection."""
    options = with_options(commit_log_file_bytes=64 << 20, max_message_bytes=1 << 20)
    masters = new_store(SimulatedDisk(random.Random(1)), options=options)
    masters.load()
    for _ in range(30):
        masters.put(outgoing_message(body=bytes(1_000_000)))
        masters.write_appended()
    replica = MasterReplica(masters, MasterOptions())
    listener = HaListener(replica=replica, log_reader=masters, clock=SystemClock(), after_input=lambda: None)
    listener.start(host=MASTERS_ADDRESS, port=0)
    with namespace.entered():
        sock = socket.socket()
    sock.setblocking(False)
    try:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.get_running_loop().sock_connect(sock, (MASTERS_ADDRESS, listener.port))
            sock.send(bytes(8))
            while not replica.slaves():
                await asyncio.sleep(0.01)
            listener.pump()
            # Nobody reads, for longer than a link that is cut would live.
            await asyncio.sleep(7)
        assert not listener.departures
        [slave] = replica.slaves()
        assert slave.lag_bytes > 20_000_000, "all of it found room"
    finally:
        sock.close()
        listener.stop()
