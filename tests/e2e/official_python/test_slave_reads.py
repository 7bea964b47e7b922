"""The official Python client consumes from a slave whose master is gone, without a change of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.cluster_processes import wait_until
from support.lone_slave import GROUP, KINDS, TOPIC, LoneSlave, Reader

ROOT = Path(__file__).resolve().parents[3]
FIRST, TOTAL = 50, 250
LIMIT_S = 400


@contextmanager
def official_consumer(
    python: Path, folder: Path, group: LoneSlave, *, record: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """The demo's: it acknowledges all that it gets, and ends by itself when TOTAL messages have come."""
    with (folder / "official.log").open("wb") as output:
        process = subprocess.Popen(
            [
                *(str(python), str(ROOT / "demo" / "official_receive.py")),
                *("--endpoints", group.client_of(group.slave), "--topic", TOPIC, "--group", GROUP),
                *("--expect", str(TOTAL), "--record", str(record), "--limit-s", str(LIMIT_S)),
            ],
            # The client logs below the home folder.
            env={**os.environ, "HOME": str(folder)},
            stdout=output,
            stderr=output,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer_goes_on_at_the_slave_and_nothing_comes_again(
    official_python: Path, tmp_path: Path, kind: str
) -> None:
    record = tmp_path / "record"
    with (
        LoneSlave(tmp_path, kind) as group,
        official_consumer(official_python, tmp_path, group, record=record) as consumer,
    ):
        group.send(range(FIRST))
        group.wait_progress_copied(FIRST)
        os.kill(consumer.pid, signal.SIGSTOP)
        group.put_slave_out_of_the_set()
        group.send(range(FIRST, TOTAL))
        group.wait_equal()
        group.master.kill()
        os.kill(consumer.pid, signal.SIGCONT)
        group.wait_event(group.slave, "slave_serves_reads")
        wait_until(lambda: consumer.poll() is not None, limit_s=LIMIT_S + 20, what="the consumer has everything")
        came = {int(line.split("\t")[0]) for line in record.read_text().splitlines()}
        assert came == set(range(TOTAL)), (tmp_path / "official.log").read_text()
        group.bring_authority_back()
        reader = Reader(group)

        def is_finished() -> bool:
            """What the master gave it last, the client could acknowledge nowhere, where roles are fixed."""
            reader.look(lease_ms=10_000)
            reader.acknowledge(len(reader.in_hand))
            return group.finished_at_slave() == TOTAL

        wait_until(is_finished, limit_s=LIMIT_S, what="everything is acknowledged at the slave")
        group.master.start()
        group.wait_master_back()
        reader.look(lease_ms=10_000)
        assert reader.in_hand == {}
