"""Whatever chance does to a group, a run finds, names and decides it, or leaves it to a person; and nothing else."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from support.audit_stores import AUDIT_OPTIONS, copy_group, make_master, open_store, replicate, write_side_files
from support.drawn_damage import (
    ALL_DAMAGES,
    HARMLESS,
    NO_REPAIRS,
    OF_SEVERAL,
    Drawn,
    drawn_cases,
    problem_of,
    problem_of_two_moments,
)
from support.inline_audit import run_inline
from support.messages import outgoing_message
from support.replica_folders import open_replica
from support.store_damage import DAMAGES, write_at
from support.stores import ManualClock, flush_all
from tandemmq.consistency.audit import AuditReport
from tandemmq.core.audit.findings import Cause, FindingKind
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log
from tandemmq.core.audit.record_columns import RecordCollector
from tandemmq.core.audit.repair_plan import RepairAction
from tandemmq.core.audit.run_summary import ExitCode
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable
from tandemmq.core.storage.consume_queue_table import QUEUE_ENDS_FILE
from tandemmq.core.storage.disk import DiskUsage
from tandemmq.core.storage.retention import ExpiryWish, RetentionFloor

_CASES = int(os.environ.get("DRAWN_SEEDS", "24"))
"""Each a whole run; more of them: DRAWN_SEEDS=1000. `make audit-check` draws hundreds."""


@pytest.mark.timeout(900)
@settings(max_examples=_CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(drawn=drawn_cases())
@example(drawn=Drawn("message-twice", 9, 2, "", "deep"))  # A store time of 0.
@example(drawn=Drawn("message-twice", 3_100, 2, "", "deep"))  # Beside a record whose keys two IndexFiles have.
def test_drawn_damage(drawn: Drawn, equal_group: list[Path], tmp_path_factory: pytest.TempPathFactory) -> None:
    assert problem_of(drawn, equal_group, tmp_path_factory.mktemp("drawn")) == ""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind",
    [
        "other-files",
        "repeated-file",
        "crossed",
        "missing-record",
        "zeroed-page",
        "mark-over-zeros",
        "message-twice",
        "own-versions",
        "lengthened-alike",
        "first-index-gone-alike",
        "disk-of-another-group",
        "disk-set-back",
    ],
)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(data=st.data())
def test_wholes_that_are_replaced_and_damage_on_both_sides(
    kind: str, data: st.DataObject, equal_group: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What the plan copies was right before, and is enough."""
    drawn = data.draw(
        st.builds(
            Drawn,
            st.just(kind),
            st.integers(0, 1 << 16),
            st.sampled_from((2, 3)),
            st.sampled_from(("", "deep")),
            st.just("deep"),
        )
    )
    assert problem_of(drawn, equal_group, tmp_path_factory.mktemp("drawn")) == ""


@pytest.mark.timeout(900)
@settings(max_examples=_CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(data=st.data())
def test_one_kind_of_damage_on_several_replicas_at_once(
    data: st.DataObject, equal_group: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """At one place, or each at its own."""
    drawn = data.draw(
        st.builds(
            Drawn,
            st.sampled_from(sorted(OF_SEVERAL)),
            st.integers(0, 1 << 16),
            st.sampled_from((2, 3)),
            st.sampled_from(("", "quick", "deep")),
            st.sampled_from(("deep", "deep", "quick")),
        )
    )
    assert problem_of(drawn, equal_group, tmp_path_factory.mktemp("several")) == ""


@pytest.mark.timeout(900)
@settings(max_examples=_CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(drawn=drawn_cases(), at=st.sampled_from((0.2, 0.4, 0.6, 0.8, 1.0)), is_mended=st.booleans())
def test_a_run_in_whose_middle_something_is_damaged_or_mended(
    drawn: Drawn, at: float, is_mended: bool, equal_group: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assume(drawn.kind in ALL_DAMAGES and drawn.kind not in NO_REPAIRS)
    root = tmp_path_factory.mktemp("moments")
    assert problem_of_two_moments(drawn, equal_group, root, at=at, is_mended=is_mended) == ""


@pytest.mark.timeout(900)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(data=st.data())
def test_messages_that_no_replica_holds_are_named_by_what_was_made_of_them(
    data: st.DataObject, equal_group: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each by topic, queue and queue offset; without ConsumeQueues by number and by the hashes of their keys."""
    root = tmp_path_factory.mktemp("wiped")
    folders = copy_group(equal_group[: data.draw(st.integers(1, 3))], root / "groups" / "broker-a")
    store = open_replica(folders[0])
    columns = RecordCollector()
    for piece in walk_log(store, 0, store.facts.end_offset, in_batches=False):
        if isinstance(piece, LogPiece) and piece.kind is PieceKind.RECORD and piece.record is not None:
            columns.add_record(piece.record)
    records = columns.take()
    first = data.draw(st.integers(1, len(records) - 14))
    start = int(records.offsets[first])
    end = min(int(records.offsets[first + data.draw(st.integers(1, 12))]), store.segment_end(start))
    byte, has_queues = data.draw(st.sampled_from((b"\0", b"\x5a"))), data.draw(st.booleans())
    for folder in folders:
        write_at(folder / store.segment_path(start), start % store.facts.segment_bytes, byte * (end - start))
        if not has_queues:
            shutil.rmtree(folder / "consumequeue")
    report = run_inline(root / "results", f"path={root / 'groups'}", "tier=deep")
    (told,) = (own for own in report.findings if own.kind in (FindingKind.ZEROED, FindingKind.TORN))
    is_lost = (records.offsets >= start) & (records.offsets < end)
    queued = {
        (records.topics[topic], queue_id, queue_offset)
        for topic, queue_id, queue_offset in zip(
            records.topic_of[is_lost & records.enters_queue].tolist(),
            records.queue_ids[is_lost & records.enters_queue].tolist(),
            records.queue_offsets[is_lost & records.enters_queue].tolist(),
        )
    }
    if has_queues and queued:
        named = {
            (topic, queue_id, place) for topic, queue_id, low, high in told.positions for place in range(low, high)
        }
        assert named == queued
        assert told.messages == len(queued)
    indexed = set(records.offsets[records.index_records].tolist()) & set(records.offsets[is_lost].tolist())
    if not has_queues and indexed:
        assert told.messages == len(indexed)
        assert f"IndexFiles know {len(indexed)} message" in told.detail


@pytest.mark.timeout(300)
@pytest.mark.parametrize("beside", ["torn-record", "flipped-body-bit"])
@pytest.mark.parametrize("seed", [0, 2, 3])
def test_files_of_another_log_are_few_findings_beside_another_damage(
    beside: str, seed: int, equal_group: list[Path], tmp_path: Path
) -> None:
    """Where two chains of records meet by chance nobody can decide, record by record."""
    chance = random.Random(f"other-files{seed}")
    folders = copy_group(equal_group[: chance.choice((2, 3))], tmp_path / "groups" / "broker-a")
    ALL_DAMAGES["other-files"].apply(folders, chance)
    ALL_DAMAGES[beside].apply(folders, chance)
    report = run_inline(tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=deep")
    assert len(report.findings) <= 4, [(own.kind, own.broker_id, own.detail) for own in report.findings]
    right = open_replica(equal_group[0])
    for step in report.plan.steps:
        if step.action is RepairAction.COPY_RANGE:
            start, end = step.start_offset or 0, step.end_offset or 0
            held = open_replica(folders[step.source_broker_id or 0]).read_log(start, end)
            assert bytes(held) == bytes(right.read_log(start, end))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("beside", ["torn-record", "flipped-property", "zeroed-page"])
@pytest.mark.parametrize("kind", ["older-epochs", "moved-epoch"])
def test_a_damaged_record_makes_no_other_log_of_one_with_wrong_epochs(
    kind: str, beside: str, equal_group: list[Path], tmp_path: Path
) -> None:
    for seed in range(4):
        chance = random.Random(f"{kind}/{beside}/{seed}")
        folders = copy_group(equal_group[: chance.choice((2, 3))], tmp_path / str(seed) / "broker-a")
        epochs = ALL_DAMAGES[kind].apply(folders, chance)
        record = ALL_DAMAGES[beside].apply(folders, chance)
        found = run_inline(tmp_path / "results" / str(seed), f"path={tmp_path / str(seed)}", "tier=deep").findings
        told = [(str(own.kind), own.broker_id, own.detail) for own in found]
        assert not any(own.kind is FindingKind.TAIL_EXTRA for own in found), told
        wrong = [own for own in found if own.kind is FindingKind.EPOCHS_WRONG]
        assert [own.broker_id for own in wrong if own.broker_id is not None] in ([], [epochs.broker_id]), told
        assert wrong, told
        assert any(own.kind in record.kinds for own in found), told


@pytest.mark.parametrize("kind", ["wrong-queue-offset", "message-twice", "moved-epoch", "other-table-everywhere"])
def test_what_a_run_found_to_be_wrong_is_no_evidence_for_the_next_one(
    kind: str, equal_group: list[Path], tmp_path: Path
) -> None:
    """Whoever was mended first is right."""
    folders = copy_group(equal_group[:2], tmp_path / "groups" / "broker-a")
    arguments = (tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=deep")
    seed = next(
        seed
        for seed in range(9)
        if kind != "message-twice" or random.Random(seed).random() < 0.5  # Done to both.
    )
    ALL_DAMAGES[kind].apply(folders, random.Random(seed))
    assert run_inline(*arguments).findings
    shutil.rmtree(folders[0])
    shutil.copytree(equal_group[0], folders[0])
    again = run_inline(*arguments)
    assert 0 not in {own.broker_id for own in again.findings}, again.findings
    assert not [step for step in again.plan.steps if step.target_broker_id == 0 and step.source_broker_id == 1]
    shutil.rmtree(folders[1])
    shutil.copytree(equal_group[1], folders[1])
    assert not run_inline(*arguments).findings


def test_a_master_that_was_set_back_before_files_expired_is_named_alone(
    equal_group: list[Path], tmp_path: Path
) -> None:
    """Its older copy has what its slave was right to delete."""
    folders = copy_group(equal_group[:2], tmp_path / "groups" / "broker-a")
    for folder in folders:
        for path in sorted((folder / "commitlog").iterdir())[:2]:
            path.unlink()
    seed = next(seed for seed in range(99) if random.Random(seed).randrange(2) == 0)
    assert ALL_DAMAGES["disk-set-back"].apply(folders, random.Random(seed)).broker_id == 0
    report = run_inline(tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=deep")
    assert [(own.kind, own.broker_id) for own in report.findings] == [(FindingKind.TAIL_MISSING, 0)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_table_of_another_group_is_told_by_a_quick_run_and_put_back_it_is_no_older_one(
    replicas: int, equal_group: list[Path], tmp_path: Path
) -> None:
    folders = copy_group(equal_group[:replicas], tmp_path / "groups" / "broker-a")
    arguments = (tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=quick")
    assert run_inline(*arguments).summary.exit_code is ExitCode.EQUAL
    paths = [folder / "config" / "topics.json" for folder in folders]
    right = paths[0].read_text()
    version = re.search(r'"timestamp": *(\d+)', right)
    assert version is not None
    for path in paths:
        path.write_text(right.replace("_broker-a", "_broker-z").replace(version[1], str(int(version[1]) + 60_000)))
    (told,) = run_inline(*arguments).findings
    assert (told.kind, told.file) == (FindingKind.METADATA_UNREADABLE, "config/topics.json")
    for path in paths:
        path.write_text(right)
    assert run_inline(*arguments).summary.exit_code is ExitCode.EQUAL


@pytest.mark.timeout(300)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(data=st.data())
def test_what_may_not_be_read_is_neither_equal_nor_gone(
    data: st.DataObject, equal_group: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A file or folder of one replica, of several, or of all."""
    root = tmp_path_factory.mktemp("refused")
    folders = copy_group(equal_group[: data.draw(st.integers(1, 3))], root / "groups" / "broker-a")
    places = sorted(own.relative_to(folders[0]) for own in folders[0].rglob("*") if own.is_dir() or own.stat().st_size)
    place = data.draw(st.sampled_from(places))
    refused = data.draw(st.sets(st.sampled_from([str(own / place) for own in folders]), min_size=1))

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(path: Any, *arguments: Any, **more: Any) -> Any:
            if isinstance(path, str) and any(path == own or path.startswith(f"{own}/") for own in refused):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return call(path, *arguments, **more)

        return refuse

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "open", refusing(os.open))
        patched.setattr(os, "scandir", refusing(os.scandir))
        report = run_inline(root / "results", f"path={root / 'groups'}", "tier=deep")
    assert not report.findings, (place, report.findings[0])
    assert report.summary.exit_code is ExitCode.INCOMPLETE, place
    shutil.rmtree(root)


def test_every_kind_has_its_own_name() -> None:
    assert not set(DAMAGES) & set(HARMLESS)


def test_a_copy_of_a_queue_says_nothing_of_the_log(equal_group: list[Path], tmp_path: Path) -> None:
    """Its entries lead to messages of the index, which are those of the queue that it was copied from."""
    (folder,) = copy_group(equal_group[:1], tmp_path / "groups" / "broker-a")
    shutil.copytree(folder / "consumequeue" / "payments", folder / "consumequeue" / "nobody")
    (index, *_) = sorted((folder / "index").iterdir())
    write_at(index, 40 + 500 * 4 + 150 * 20 + 16, (1 << 30).to_bytes(4, "big"))
    found = run_inline(tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=deep").findings
    assert {own.kind for own in found} == {FindingKind.QUEUE_ENTRY_EXTRA, FindingKind.INDEX_ENTRY_WRONG}


@pytest.mark.parametrize("name", ["orders/9", "ORDERS/1", "nobody/0"])
def test_a_folder_that_is_no_queues_goes_as_the_plan_says_and_does_not_come_back(
    name: str, equal_group: list[Path], tmp_path: Path
) -> None:
    """A start makes a queue again whose folder has another name; that one stays."""
    folders = copy_group(equal_group[:2], tmp_path / "groups" / "broker-a")
    stray = folders[1] / "consumequeue" / name
    stray.parent.mkdir(exist_ok=True)
    (folders[1] / "consumequeue" / "orders" / "1").rename(stray)

    def restarted() -> AuditReport:
        open_store(folders[1], ManualClock()).close()
        return run_inline(tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=deep")

    for _ in range(2):
        report = restarted()
        assert [(own.kind, own.broker_id, own.cause) for own in report.findings] == [
            (FindingKind.QUEUE_ENTRY_EXTRA, 1, Cause.NO_QUEUE)
        ]
        (step,) = report.plan.steps
        folder = f"consumequeue/{name if name == 'orders/9' else name.partition('/')[0]}"
        assert f"move {folder} out of its store" in step.reason
    (folders[1] / folder).rename(tmp_path / "aside")
    open_store(folders[1], ManualClock()).close()
    assert stray.exists(), "with the list of what should be there it comes back"
    shutil.rmtree(folders[1] / folder)
    (folders[1] / QUEUE_ENDS_FILE).unlink()
    report = restarted()
    assert report.summary.exit_code is ExitCode.EQUAL, report.findings
    assert not stray.exists()


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_topic_that_an_operator_deleted_is_not_missing(
    is_made_again: bool, equal_group: list[Path], tmp_path: Path
) -> None:
    """Its ConsumeQueues stay. The mark of a deletion says nothing of a topic that was made again, and had messages."""
    for folder in copy_group(equal_group[:2], tmp_path / "groups" / "broker-a"):
        path, table = folder / "config" / "topics.json", TopicTable()
        table.load_json(path.read_text())
        table.remove("logs", now_ms=1_600_000_000_000 if is_made_again else 1_800_000_000_000)
        path.write_text(table.to_json())
    found = run_inline(tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=deep").findings
    assert [own.kind for own in found] == ([FindingKind.TOPIC_MISSING] if is_made_again else [])


@pytest.mark.parametrize("was_damaged", [False, True])
def test_a_topic_that_an_operator_gave_fewer_queues_is_none_that_differs(
    was_damaged: bool, equal_group: list[Path], tmp_path: Path
) -> None:
    """Its messages stay in the queues that it has no more. Of a table that lost them by itself nothing says so."""
    for folder in copy_group(equal_group[:2], tmp_path / "groups" / "broker-a"):
        path, table = folder / "config" / "topics.json", TopicTable()
        table.load_json(path.read_text())
        table.put(TopicConfig("orders", 1, 1), now_ms=1_600_000_000_000 if was_damaged else 1_800_000_000_000)
        path.write_text(table.to_json())
    report = run_inline(tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=deep")
    assert [own.kind for own in report.findings] == ([FindingKind.TOPIC_DIFFERS] if was_damaged else [])
    assert report.summary.exit_code is (ExitCode.DIVERGED if was_damaged else ExitCode.EQUAL)


def test_a_queue_whose_topic_was_deleted_and_whose_messages_have_expired_is_no_stray_folder(tmp_path: Path) -> None:
    """What is left of it is its last file, and of the deletion perhaps not even a mark."""
    folders = [tmp_path / "groups" / "broker-a" / str(broker_id) for broker_id in range(2)]
    store = open_store(folders[0], ManualClock())
    for _ in range(3):
        store.put(outgoing_message(topic="deleted"))
    store.close()
    make_master(folders[0], messages=600)
    replicate(folders[0], folders[1])
    write_side_files(folders)
    file_bytes = AUDIT_OPTIONS.commit_log_file_bytes
    for folder in folders:
        store = open_store(folder, ManualClock())
        flush_all(store)
        wish = ExpiryWish(DiskUsage(90, 100), 0, *(file_bytes,) * 4, is_short=True)
        job = store.expire(wish, RetentionFloor())
        assert job is not None
        job.run()
        while store.trim_queues():
            pass
        store.close()
        assert (folder / "consumequeue" / "deleted").is_dir()
    report = run_inline(tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=deep")
    assert report.summary.exit_code is ExitCode.EQUAL, report.findings
