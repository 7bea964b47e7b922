"""A slave serves consumers while its group has no master, and the master takes their progress when it is back."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from support.cluster_processes import wait_until
from support.lone_slave import KINDS, LoneSlave, Reader
from support.running_time import PATIENCE_S
from tandemmq.broker.slave.role import GRACE_MS

TOTAL = 200


@pytest.mark.parametrize("kind", KINDS)
def test_consumers_go_on_without_a_master_and_nothing_acknowledged_comes_again(tmp_path: Path, kind: str) -> None:
    with LoneSlave(tmp_path, kind) as group:
        reader = Reader(group)
        group.send(range(TOTAL // 2))
        group.put_slave_out_of_the_set()
        group.send(range(TOTAL // 2, TOTAL))
        reader.receive(60, lease_ms=20_000)
        reader.acknowledge(40)
        group.wait_equal()
        group.wait_progress_copied(40)

        group.master.kill()
        group.wait_event(group.slave, "slave_serves_reads")
        group.bring_authority_back()
        assert group.serves_reads()
        assert "takes none" in group.send_to(group.slave).message
        assert "does not know how far consumer group strangers is" in Reader(group, name="strangers").refusal()
        # What the master gave is acknowledged at the slave.
        reader.acknowledge(10, at=group.slave)
        reader.receive(80, lease_ms=20_000)
        reader.acknowledge(60, at=group.slave)
        in_hand = set(reader.in_hand)

        group.master.start()
        group.wait_master_back()
        group.wait_event(group.slave, "slave_reads_ended")
        # And what the slave gave at the master.
        reader.acknowledge(len(in_hand) // 2, at=group.master)
        reader.receive_all(TOTAL)
        assert reader.acknowledged == set(range(TOTAL))
        group.wait_equal()
        assert not group.serves_reads()


def test_a_slave_that_stood_still_gives_nothing_until_it_has_seen_again_that_nobody_serves(tmp_path: Path) -> None:
    with LoneSlave(tmp_path, "fixed roles") as group:
        reader = Reader(group)
        group.send(range(TOTAL))
        reader.receive(20, lease_ms=20_000)
        reader.acknowledge(20)
        group.wait_equal()
        group.wait_progress_copied(20)
        group.master.kill()
        group.wait_event(group.slave, "slave_serves_reads")

        os.kill(group.slave.pid, signal.SIGSTOP)
        # Another may serve after so long.
        time.sleep(GRACE_MS / 1_000 + 0.5)
        os.kill(group.slave.pid, signal.SIGCONT)
        group.wait_event(group.slave, "slave_reads_ended")
        ended = next(line for line in group.slave.events() if line.get("event") == "slave_reads_ended")
        assert ended["reason"] == "this process stood still"

        wait_until(group.serves_reads, limit_s=PATIENCE_S, what="the slave serves reads again")
        reader.receive_all(TOTAL)
        assert reader.acknowledged == set(range(TOTAL))
