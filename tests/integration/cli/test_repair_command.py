"""`tandemmq repair` against real brokers: a byte the slave has wrong, put right while it serves."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import xxhash

from support.acknowledged_sends import AcknowledgedSender
from support.cluster_processes import ProcessCluster, wait_until
from support.running_time import run_program
from support.topic_admin import broker_status, create_topic
from tandemmq.core.audit.repair_plan import RepairAction, RepairPlan, RepairStep
from tandemmq.core.message.record import RecordFound, scan_record

_TOPIC = "repaired"
_LIMIT_S = 120.0
_FIRST_FILE = "commitlog/00000000000000000000"


def _cli(cluster: ProcessCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tandemmq.cli", "repair", "--namesrv", cluster.namesrv_addr, *arguments]
    return run_program(command, limit_s=_LIMIT_S, stdin=subprocess.DEVNULL)


def _damaged_slave(cluster: ProcessCluster) -> RepairStep:
    """Messages on both brokers, one body byte wrong on the slave, and the step that mends it."""
    cluster.add_name_server()
    settings = {"auditReadRate": str(1 << 30)}
    master = cluster.add_broker(settings=settings)
    cluster.add_broker(broker_id=1, settings=settings)
    asyncio.run(create_topic(master, _TOPIC, queues=2))
    wait_until(
        lambda: any(slave.in_sync for slave in asyncio.run(broker_status(master)).slaves),
        limit_s=_LIMIT_S,
        what="the slave is in sync",
    )
    with AcknowledgedSender(master, _TOPIC, body_bytes=1_000):
        wait_until(
            lambda: asyncio.run(broker_status(master)).flushed_offset > 100_000,
            limit_s=_LIMIT_S,
            what="messages on disk",
        )
    wait_until(
        lambda: asyncio.run(broker_status(cluster.brokers["broker-a-1"])).flushed_offset > 100_000,
        limit_s=_LIMIT_S,
        what="the slave has them on disk",
    )
    log = (cluster.store_folder("broker-a-0") / _FIRST_FILE).read_bytes()
    record = scan_record(log, 0, len(log), physical_offset=0)
    assert isinstance(record, RecordFound)
    sound = log[: record.size]
    wrong = bytearray(sound)
    wrong[100] ^= 0x01
    with (cluster.store_folder("broker-a-1") / _FIRST_FILE).open("r+b") as damaged:
        damaged.write(wrong)
    return RepairStep(
        number=1,
        action=RepairAction.COPY_RANGE,
        group="broker-a",
        target_broker_id=1,
        reason="body does not match its checksum",
        source_broker_id=0,
        start_offset=0,
        end_offset=record.size,
        target_digest=xxhash.xxh3_128(wrong).hexdigest(),
        source_digest=xxhash.xxh3_128(sound).hexdigest(),
    )


def _plan(path: Path, *steps: RepairStep) -> str:
    plan = RepairPlan(run_id="20261121T220000Z-1f3a", cluster="DefaultCluster", steps=steps)
    path.write_text(json.dumps(plan.to_json()), encoding="utf-8")
    return str(path)


def test_wrong_byte_is_mended_only_when_it_is_agreed_to(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path / "cluster") as cluster:
        step = _damaged_slave(cluster)
        plan = _plan(tmp_path / "plan.json", step)
        slave_log = cluster.store_folder("broker-a-1") / _FIRST_FILE
        damaged = slave_log.read_bytes()

        asked = _cli(cluster, "--plan", plan, "--dry-run")
        assert (asked.returncode, "would change 1 byte" in asked.stdout) == (0, True), asked
        unasked = _cli(cluster, "--plan", plan)
        assert (unasked.returncode, "nobody can be asked" in unasked.stderr) == (2, True), unasked
        outdated = _plan(tmp_path / "outdated.json", replace(step, target_digest="00" * 16))
        refused = _cli(cluster, "--plan", outdated, "--yes")
        assert (refused.returncode, "nothing was changed" in refused.stderr) == (1, True), refused
        assert "FAILED_PRECONDITION" in refused.stderr
        unknown = _plan(tmp_path / "unknown.json", replace(step, source_broker_id=7))
        assert "no NameServer knows broker-a:7" in _cli(cluster, "--plan", unknown, "--yes").stderr
        assert slave_log.read_bytes()[: step.end_offset] == damaged[: step.end_offset]

        done = _cli(cluster, "--plan", plan, "--yes")
        assert (done.returncode, "changed 1 byte" in done.stdout) == (0, True), done
        master_log = cluster.store_folder("broker-a-0") / _FIRST_FILE
        assert slave_log.read_bytes()[: step.end_offset] == master_log.read_bytes()[: step.end_offset]
        again = _cli(cluster, "--plan", plan, "--yes")
        assert (again.returncode, "nothing is left to be changed" in again.stdout) == (0, True), again
