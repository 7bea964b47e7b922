"""A run through live brokers: they are asked, nothing of them is read past them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.acknowledged_sends import AcknowledgedSender
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.inline_audit import run_inline
from support.inline_runner import InlineRunner
from support.replica_folders import open_replica
from support.store_damage import write_at
from support.topic_admin import create_topic
from tandemmq.core.audit.findings import FindingKind
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log
from tandemmq.core.audit.run_summary import Outcome

_TOPIC = "audited"
_FAST = {"auditReadRate": str(4 << 30)}
_PAUSE = "secondLookPause=12"
"""Longer than a slave takes between two copies of its master's tables."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path / "cluster") as running:
        running.add_name_server()
        yield running


def _log_bytes(cluster: ProcessCluster, key: str) -> int:
    return open_replica(cluster.store_folder(key)).facts.end_offset


def _first_record(folder: Path) -> LogPiece:
    store = open_replica(folder)
    pieces = walk_log(store, store.facts.min_offset, store.facts.end_offset, in_batches=False)
    return next(piece for piece in pieces if isinstance(piece, LogPiece) and piece.kind is PieceKind.RECORD)


def _pair(cluster: ProcessCluster) -> tuple[ServiceProcess, ServiceProcess]:
    settings = {**_FAST, "totalReplicas": "2", "inSyncReplicas": "2"}
    master = cluster.add_broker(settings=settings)
    slave = cluster.add_broker(broker_id=1, settings=settings)
    asyncio.run(create_topic(master, _TOPIC))
    return master, slave


def _fill(cluster: ProcessCluster, master: ServiceProcess) -> None:
    with AcknowledgedSender(master, _TOPIC, body_bytes=2_000):
        wait_until(lambda: _log_bytes(cluster, "broker-a-1") > 1 << 20, limit_s=120, what="messages are there")


def test_live_replicas_are_proven_equal_while_messages_flow(cluster: ProcessCluster, tmp_path: Path) -> None:
    master, slave = _pair(cluster)
    results, place = tmp_path / "results", f"namesrvAddr={cluster.namesrv_addr}"
    with AcknowledgedSender(master, _TOPIC, body_bytes=2_000):
        wait_until(lambda: _log_bytes(cluster, "broker-a-1") > 1 << 20, limit_s=120, what="messages are there")
        runner = InlineRunner()
        under_load = run_inline(results, place, "tier=deep", _PAUSE, runner=runner)

    # Digests come with the checks; of these a share is read again.
    assert {"check", "reread"} <= {task.kind for task in runner.performed}
    assert "digest" not in {task.kind for task in runner.performed}
    assert under_load.findings == ()
    assert under_load.summary.outcome is Outcome.EQUAL
    assert under_load.summary.records_checked > 0
    slave.stop()
    lonely = run_inline(results, place)
    assert lonely.summary.outcome is Outcome.INCOMPLETE
    assert "broker-a:1" in lonely.summary.groups[0].problem


def test_flipped_byte_of_a_running_slave_is_named(cluster: ProcessCluster, tmp_path: Path) -> None:
    master, _ = _pair(cluster)
    _fill(cluster, master)
    folder = cluster.store_folder("broker-a-1")
    record = _first_record(folder)
    write_at(folder / "commitlog" / f"{0:020d}", record.start_offset + 200, b"\x00\xff\x00\xff")

    damaged = run_inline(tmp_path / "results", f"namesrvAddr={cluster.namesrv_addr}", _PAUSE)

    (finding,) = damaged.findings
    assert (finding.kind, finding.broker_id, finding.topic) == (FindingKind.BODY_CRC, 1, _TOPIC)
    assert (finding.start_offset, finding.end_offset) == (record.start_offset, record.end_offset)
    assert damaged.plan.steps[0].source_broker_id == 0
