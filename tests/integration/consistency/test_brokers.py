"""A run through live brokers: they are asked, nothing of them is read past them."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.acknowledged_sends import AcknowledgedSender
from support.audit_traffic import received_ids
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.inline_audit import run_inline
from support.inline_runner import InlineRunner
from support.replica_folders import open_replica
from support.running_time import run_program, running_time
from support.store_damage import write_at
from support.topic_admin import create_topic
from tandemmq.consistency.audit import AuditReport
from tandemmq.consistency.discovery import discover
from tandemmq.consistency.settings import ConsistencySettings, NothingFound
from tandemmq.core.audit.findings import FindingKind
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log
from tandemmq.core.audit.repair_plan import RepairAction
from tandemmq.core.audit.run_summary import Outcome

_TOPIC = "audited"
_FAST = {"auditReadRate": str(4 << 30)}
_PAUSE = "secondLookPause=12"
"""Longer than a slave takes between two copies of its master's tables."""
_TRICKLE_S = 0.4
"""Between two sends of one of 16, once there is enough to look at: each run reads all that was sent so far."""


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


def test_a_person_is_told_within_seconds_that_no_name_server_answers() -> None:
    with socket.socket() as one, socket.socket() as two:
        # Bound and not listened on: nobody else can come there.
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        absent = [f"127.0.0.1:{each.getsockname()[1]}" for each in (one, two)]
        settings = ConsistencySettings.model_validate(
            {"namesrvAddr": ";".join(absent), "results": "unused", "progress": "person"}
        )
        with running_time() as seconds:
            with pytest.raises(NothingFound) as told:
                discover(settings)
            took_s = seconds()
    assert all(f"NameServer {each} does not answer" in str(told.value) for each in absent)
    assert "start a cluster with `tandemmq up`" in str(told.value)
    # A job, which waits for a pod that is being moved, takes ten seconds for each.
    assert took_s < 19


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


class _LiveDamage:
    """Damage below running brokers, drawn by chance: no place is damaged twice. Each kind says what a deep run has to
    find, and on which replica."""

    KINDS = ("body", "page", "entry", "tags", "index", "table", "entries", "epochs", "record")

    def __init__(self, folders: list[Path], chance: random.Random) -> None:
        self._folders = folders
        self._chance = chance
        store = open_replica(folders[0])
        found = [
            piece.record
            for piece in walk_log(store, store.facts.min_offset, store.facts.end_offset, in_batches=False)
            if isinstance(piece, LogPiece) and piece.record is not None and piece.record.topic == _TOPIC
        ]
        # Far enough from each other that no page has two of them; what is behind them is not on disk yet, perhaps.
        self._records = chance.sample(found[: len(found) // 2 : 8], 12)

    def plant(self, kind: str) -> tuple[set[FindingKind], int]:
        victim = self._chance.randrange(len(self._folders))
        folder, record = self._folders[victim], self._records.pop()
        log = folder / "commitlog" / f"{0:020d}"
        queue = folder / "consumequeue" / _TOPIC / str(record.queue_id) / f"{0:020d}"
        match kind:
            case "body":
                write_at(log, record.physical_offset + 300, bytes(self._chance.randbytes(9)))
                return {FindingKind.BODY_CRC}, victim
            case "page":
                start = record.physical_offset - record.physical_offset % 512 + 512
                write_at(log, start, bytes(1024))
                return {FindingKind.ZEROED, FindingKind.BODY_CRC, FindingKind.TORN}, victim
            case "entry":
                write_at(queue, 20 * record.queue_offset, bytes(20))
                return {FindingKind.QUEUE_ENTRY_WRONG, FindingKind.QUEUE_ENTRY_MISSING}, victim
            case "tags":
                write_at(queue, 20 * record.queue_offset + 12, self._chance.randbytes(8))
                return {FindingKind.QUEUE_ENTRY_WRONG}, victim
            case "index":
                path = min((folder / "index").iterdir())
                slots_bytes = (path.stat().st_size - 40) // 84 * 4
                write_at(path, 40 + slots_bytes + 20 * self._chance.randrange(10, 200), self._chance.randbytes(30))
                return {FindingKind.INDEX_ENTRY_WRONG, FindingKind.INDEX_ENTRY_MISSING}, victim
            case "table":
                path = folder / "config" / self._chance.choice(("topics.json", "subscriptionGroup.json"))
                path.write_bytes(path.read_bytes()[: self._chance.randrange(1, 100)])
                return {FindingKind.METADATA_UNREADABLE}, victim
            case "entries":
                path = self._folders[1] / "config" / "topics.json"
                path.write_text(path.read_text().replace(f'"{_TOPIC}"', '"another"'))
                return {FindingKind.TOPIC_MISSING, FindingKind.TOPIC_DIFFERS}, 1
            case "epochs":
                (folder / "epochFileCheckpoint").write_bytes(self._chance.randbytes(20))
                return {FindingKind.EPOCHS_WRONG}, victim
            case _:
                (folder / "replica.json").write_bytes(b"{")
                return {FindingKind.DISK_ID_WRONG}, victim


def _repair(report: AuditReport, plan: Path, namesrv_addr: str, *options: str) -> None:
    plan.write_text(json.dumps(report.plan.to_json()))
    command = [sys.executable, "-m", "tandemmq.cli", "repair", "--yes", "--namesrv", namesrv_addr, "--plan", str(plan)]
    command += options
    done = run_program(command, limit_s=300)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def _messages_flow(cluster: ProcessCluster) -> Iterator[list[Path]]:
    """Through a group of two, whose stores these are; in the end consumers get all that was acknowledged."""
    settings = {**_FAST, "totalReplicas": "2", "inSyncReplicas": "2", "consumeFromEarliest": "true"}
    master = cluster.add_broker(settings=settings)
    cluster.add_broker(broker_id=1, settings=settings)
    asyncio.run(create_topic(master, _TOPIC))
    folders = [cluster.store_folder(f"broker-a-{broker_id}") for broker_id in range(2)]
    with AcknowledgedSender(master, _TOPIC, body_bytes=2_000) as sender:
        wait_until(lambda: _log_bytes(cluster, "broker-a-1") > 2 << 20, limit_s=120, what="messages are there")
        sender.pause_s = _TRICKLE_S
        queues = [folder / "consumequeue" / _TOPIC / str(queue_id) for folder in folders for queue_id in range(8)]
        wait_until(
            lambda: all((queue / f"{0:020d}").exists() for queue in queues), limit_s=120, what="queues are there"
        )
        yield folders
    ids = received_ids([f"{master.host}:{master.ports['grpcServerPort']}"], "all", _TOPIC, set(sender.acknowledged))
    assert set(sender.acknowledged) <= ids


@pytest.mark.timeout(1_200)
def test_live_damage_is_found_repaired_to_equal_and_nothing_acknowledged_is_lost(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    place, results = f"namesrvAddr={cluster.namesrv_addr}", tmp_path / "results"
    chance = random.Random(20_261_125)
    with _messages_flow(cluster) as folders:
        damage = _LiveDamage(folders, chance)
        # All kinds, and of tables one at a time: a torn one hides that an entry is missing.
        for kinds in (("body", "entry", "table", "epochs", "index"), ("page", "tags", "entries", "record")):
            due = [damage.plant(kind) for kind in kinds]
            damaged = run_inline(results, place, "tier=deep", _PAUSE)
            found = {(finding.kind, finding.broker_id) for finding in damaged.findings}
            for wanted, victim in due:
                assert any((kind, victim) in found for kind in wanted), (wanted, victim, damaged.findings)
            assert {broker_id for _, broker_id in found} <= {victim for _, victim in due}, damaged.findings
            assert RepairAction.MANUAL not in {step.action for step in damaged.plan.steps}, damaged.plan
            _repair(damaged, tmp_path / "plan.json", cluster.namesrv_addr)
            proven = run_inline(results, place, "tier=deep", _PAUSE)
            assert (proven.findings, proven.summary.outcome) == ((), Outcome.EQUAL)


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", [7])
def test_a_live_repair_is_undone_and_done_again_while_messages_flow(
    seed: int, cluster: ProcessCluster, tmp_path: Path
) -> None:
    """What was damaged is so again, by the same findings; then it is repaired once more, and nothing is lost."""
    place, results, plan = f"namesrvAddr={cluster.namesrv_addr}", tmp_path / "results", tmp_path / "plan.json"
    chance = random.Random(seed)
    with _messages_flow(cluster) as folders:
        # Of two tables that each lack a topic an earlier run has to tell which is right.
        assert run_inline(results, place, "tier=deep", _PAUSE).findings == ()
        damage = _LiveDamage(folders, chance)
        # A torn table is never put back: no broker could read it; nor an IndexFile that has grown since.
        left_out = ("table", "entries", "index")
        kinds = chance.sample([kind for kind in _LiveDamage.KINDS if kind not in left_out], 4)
        due = [damage.plant(kind) for kind in [*kinds, "entries"]]
        damaged = run_inline(results, place, "tier=deep", _PAUSE)
        found = {(finding.kind, finding.broker_id) for finding in damaged.findings}
        for wanted, victim in due:
            assert any((kind, victim) in found for kind in wanted), (wanted, victim, sorted(found))
        _repair(damaged, plan, cluster.namesrv_addr)
        _repair(damaged, plan, cluster.namesrv_addr, "--undo")
        _repair(damaged, plan, cluster.namesrv_addr, "--undo")
        again = run_inline(results, place, "tier=deep", _PAUSE)
        assert {(finding.kind, finding.broker_id) for finding in again.findings} == found, (kinds, again.findings)
        _repair(again, plan, cluster.namesrv_addr)
        proven = run_inline(results, place, "tier=deep", _PAUSE)
        assert (proven.findings, proven.summary.outcome) == ((), Outcome.EQUAL)
