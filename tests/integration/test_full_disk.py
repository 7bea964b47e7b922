"""A broker that runs out of room on its disk, or of files that it may open, says so in words, stays up, and goes on."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.acknowledged_sends import AcknowledgedSender
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.running_time import PATIENCE_S
from support.topic_admin import broker_status, create_topic


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 24 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    folder = tmp_path / "broker-a-1"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.decode()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def _end(broker: ServiceProcess) -> int:
    return int(asyncio.run(broker_status(broker)).end_offset)


def _link_state(broker: ServiceProcess) -> str:
    return str(asyncio.run(broker_status(broker)).master_link.state)


def _is_filled(path: Path) -> bool:
    """Fills the disk by this file, and whether it is full for good: a file that the slave begins beside it and gives up
    again leaves room behind."""

    def fill() -> int:
        with suppress(OSError), path.open("ab", buffering=0) as more:
            while True:
                more.write(bytes(4_096))
        return path.stat().st_size

    size = fill()
    # Longer than the slave waits before it tries again.
    time.sleep(3)
    return fill() == size


def test_a_slave_with_a_full_disk_says_so_and_goes_on_when_there_is_room(tmp_path: Path, small_disk: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        settings = {"mappedFileSizeCommitLog": str(4 << 20), "maxMessageSize": "65536", "maxHashSlotNum": "1000"}
        master = cluster.add_broker("broker-a", settings=settings | {"brokerRole": "ASYNC_MASTER"})
        slave = cluster.add_broker("broker-a", broker_id=1, settings=settings)
        asyncio.run(create_topic(master, "orders"))
        # What somebody else left on that disk.
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(8 << 20))

        def told() -> list[str]:
            assert slave.process is not None
            assert slave.process.poll() is None, f"it ended:\n{slave.log_text()}"
            names = ("slave_disk_full", "disk_full")
            return [str(event["reason"]) for event in slave.events() if event.get("event") in names]

        with AcknowledgedSender(master, "orders", body_bytes=16_000):
            wait_until(lambda: told() != [], limit_s=120, what="the slave says that its disk is full")
            wait_until(
                lambda: _link_state(slave) in ("disk full", "refusing"), limit_s=PATIENCE_S, what="its status says so"
            )
            assert _link_state(slave) != "refusing"
            # Not even a checkpoint has room.
            wait_until(lambda: _is_filled(small_disk / "more"), limit_s=PATIENCE_S, what="the disk is full")
            # Nor the table of topics.
            asyncio.run(create_topic(master, "later"))
            wait_until(lambda: any("config/topics.json" in line for line in told()), limit_s=120, what="it says so")
            begun = _end(master)
            wait_until(lambda: _end(master) > begun + (1 << 20), limit_s=120, what="the master goes on")
        assert "disk full: commitlog/" in told()[0]
        assert "4,194,304 bytes are needed and" in told()[0]
        stopped_at = _end(slave)
        assert stopped_at < _end(master)
        ballast.unlink()
        (small_disk / "more").unlink()
        wait_until(lambda: _end(slave) > stopped_at, limit_s=120, what="it goes on")
        assert told()
        topics = small_disk / "config" / "topics.json"
        wait_until(lambda: "later" in topics.read_text(), limit_s=120, what="the table is saved")
        assert master.stop() == 0
        assert slave.stop() == 0


@pytest.mark.parametrize("hard", [400, 4_000])
def test_connections_leave_a_broker_files_of_its_own(tmp_path: Path, hard: int) -> None:
    """Its store ends it when a file cannot be opened, and anybody can connect."""
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        small = {"mappedFileSizeCommitLog": str(1 << 20), "maxMessageSize": "65536", "brokerRole": "ASYNC_MASTER"}
        broker = cluster.add_broker(settings=small)
        broker.stop()
        broker.prefix = ("sh", "-c", f'ulimit -Sn 200; ulimit -Hn {hard}; exec "$@"', "sh")
        broker.start()
        said = Path(f"/proc/{broker.pid}/limits").read_text(encoding="ascii")
        assert re.findall(r"Max open files +(\d+) +(\d+)", said) == [(str(hard), str(hard))], "all that it may"
        bounded = [event for event in broker.events() if event["event"] == "client_connections_bounded"]
        assert [event["connections"] for event in bounded] == [hard * 3 // 4]
        address = ("127.0.0.1", broker.ports["grpcServerPort"])
        strangers = [socket.create_connection(address) for _ in range(600)]
        asyncio.run(create_topic(broker, "orders"))
        with AcknowledgedSender(broker, "orders", body_bytes=16_000) as sender:
            wait_until(lambda: len(sender.acknowledged) > 200, limit_s=120, what="some files of the log are full")
        for stranger in strangers:
            stranger.close()
        assert broker.process is not None
        assert broker.process.poll() is None, broker.log_text()
