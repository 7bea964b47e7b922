"""Stores that no code of the broker wrote, changed in several places at once: each change is told, and nothing else."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.inline_audit import run_inline
from support.written_stores import (
    FILE_BYTES,
    JavaStore,
    WrittenStore,
    change_replicas,
    log_file,
    problem_with,
    write_at,
)
from tandemmq.consistency.settings import NothingFound
from tandemmq.core.audit.findings import Finding, FindingKind
from tandemmq.core.audit.repair_plan import RepairAction
from tandemmq.core.audit.run_summary import ExitCode


def problem_of(seed: int, *, replicas: int, count: int, seen_by: str, root: Path, by_java: bool = False) -> str:
    """What is wrong with what a deep run says of it; empty: nothing. `root` is used and removed."""
    try:
        store = JavaStore() if by_java else WrittenStore(seed % 5)
        folders = [root / "groups" / "broker-a" / str(broker_id) for broker_id in range(replicas)]
        for folder in folders:
            store.write(folder)
        if seen_by:
            report = run_inline(root / "results", f"path={root / 'groups'}", f"tier={seen_by}")
            assert report.summary.exit_code is ExitCode.EQUAL, report.findings
        changes = change_replicas(store, folders, random.Random(seed), count=count)
        if seen_by and replicas == 1 and changes[0].what == "filler":
            return ""  # An earlier run saw other bytes: by a digest nobody can say that they were filler.
        report = run_inline(root / "results", f"path={root / 'groups'}", "tier=deep")
        return problem_with(report, changes, store, folders)
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.timeout(900)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(
    seed=st.integers(0, 1 << 16),
    replicas=st.sampled_from((1, 2, 3)),
    count=st.sampled_from((1, 2, 3)),
    seen_by=st.sampled_from(("", "quick", "deep")),
)
def test_several_changes_at_once(
    seed: int, replicas: int, count: int, seen_by: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("written")
    assert problem_of(seed, replicas=replicas, count=count, seen_by=seen_by, root=root) == ""


@pytest.mark.timeout(900)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(
    seed=st.integers(0, 1 << 16),
    replicas=st.sampled_from((1, 2, 3)),
    count=st.sampled_from((1, 2)),
    seen_by=st.sampled_from(("", "quick", "deep")),
)
def test_changes_of_files_that_rocketmq_wrote(
    seed: int, replicas: int, count: int, seen_by: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("java")
    assert problem_of(seed, replicas=replicas, count=count, seen_by=seen_by, root=root, by_java=True) == ""


@pytest.fixture(scope="module")
def store() -> WrittenStore:
    return WrittenStore(0)


def written(store: WrittenStore, root: Path, replicas: int) -> list[Path]:
    folders = [root / "groups" / "broker-a" / str(broker_id) for broker_id in range(replicas)]
    for folder in folders:
        store.write(folder)
    return folders


def told(root: Path) -> list[tuple[FindingKind, int | None]]:
    return [(own.kind, own.broker_id) for own in findings_of(root)]


def findings_of(root: Path) -> tuple[Finding, ...]:
    return run_inline(root / "results", f"path={root / 'groups'}", "tier=deep").findings


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("moved_bytes", [1, FILE_BYTES // 2, 7 * FILE_BYTES])
def test_a_renamed_file_is_named_and_the_log_neither_begins_nor_ends_there(
    store: WrittenStore, tmp_path: Path, number: int, moved_bytes: int, replicas: int
) -> None:
    folder = written(store, tmp_path, replicas)[-1]
    path = sorted((folder / "commitlog").iterdir())[number]
    start = int(path.name)
    path.rename(path.with_name(f"{start + moved_bytes:020d}"))
    found = findings_of(tmp_path)
    # Where what lies there is missing for it, that finding names the file.
    (named,) = [own for own in found if f"commitlog/{start + moved_bytes:020d}" in (own.file, own.detail.split(":")[0])]
    assert named.kind in (FindingKind.SEGMENT_EXTRA, FindingKind.SEGMENT_MISSING)
    assert f"written for {start}" in named.detail
    assert len(found) <= 2
    for own in found:
        if own.kind is FindingKind.SEGMENT_EXTRA:
            continue
        assert (own.start_offset, own.end_offset) == (start, min(len(store.log), start + FILE_BYTES))


def test_a_queue_that_is_gone_is_told_beside_a_damaged_record_of_another(store: WrittenStore, tmp_path: Path) -> None:
    folder, _ = written(store, tmp_path, 2)
    record = store.records[len(store.records) // 2]
    write_at(log_file(folder, record.start), record.start % FILE_BYTES, b"\x7f")
    shutil.rmtree(folder / "consumequeue" / "alpha")
    assert set(told(tmp_path)) == {(FindingKind.FIELD_DIFFERS, 0), (FindingKind.QUEUE_ENTRY_MISSING, 0)}


def test_no_slave_is_blamed_for_records_behind_a_master_whose_file_was_cut(tmp_path: Path) -> None:
    """Its queues know how far its log was, but not of a last record that enters none."""
    store = WrittenStore(0, messages=254)
    assert store.records[-1].start > max(entries[-1][0] for entries in store.queues.values())
    folder, _ = written(store, tmp_path, 2)
    os.truncate(log_file(folder, len(store.log) - 1), 1)
    found = findings_of(tmp_path)
    assert {own.broker_id for own in found} == {0}
    assert max(own.end_offset or 0 for own in found) == len(store.log)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_longer_file_of_another_log_is_one_finding(tmp_path: Path, victim: int) -> None:
    store, longer = WrittenStore(0), WrittenStore(0, messages=320)
    folders = written(store, tmp_path, 2)
    other = tmp_path / "other"
    WrittenStore(77, messages=len(longer.records)).write(other)
    last = log_file(folders[victim], len(store.log) - 1)
    shutil.copyfile(other / "commitlog" / last.name, last)
    run = findings_of(tmp_path)
    assert len(run) == 1, run
    assert run[0].broker_id in (None, victim)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", [b"\0", b"T/x", b"../..", b"\xff"])
def test_a_name_that_is_none_of_a_folder_ends_no_audit(
    store: WrittenStore, tmp_path: Path, name: bytes, replicas: int
) -> None:
    folder = written(store, tmp_path, replicas)[0]
    record = next(own for own in store.records if own.keys and own.keys[0].startswith("alpha#"))
    write_at(log_file(folder, record.start), record.start % FILE_BYTES + record.fields["topic"][0], name)
    assert {own.broker_id for own in findings_of(tmp_path)} == {0}


def test_what_damage_made_of_a_topic_is_no_fault_of_the_table(store: WrittenStore, tmp_path: Path) -> None:
    folder, _ = written(store, tmp_path, 2)
    record = next(own for own in store.records if own.keys and own.keys[0].startswith("alpha#"))
    at = record.start % FILE_BYTES
    write_at(log_file(folder, record.start), at + record.fields["topic"][0], b"o")
    assert told(tmp_path) == [(FindingKind.FIELD_DIFFERS, 0)]


def test_a_checkpoint_of_the_future_is_told_beside_damage_in_the_middle(store: WrittenStore, tmp_path: Path) -> None:
    folder, _ = written(store, tmp_path, 2)
    record = store.records[len(store.records) // 2]
    write_at(log_file(folder, record.start), record.start % FILE_BYTES, bytes(600))
    write_at(folder / "checkpoint", 8, (1_800_000_000_000).to_bytes(8, "big"))
    assert (FindingKind.CHECKPOINT_IMPOSSIBLE, 0) in told(tmp_path)


def test_offsets_are_not_beyond_a_queue_whose_records_lie_elsewhere(store: WrittenStore, tmp_path: Path) -> None:
    (folder,) = written(store, tmp_path, 1)
    first, *_, last = sorted((folder / "commitlog").iterdir())
    one, other = first.read_bytes(), last.read_bytes()
    first.write_bytes(other)
    last.write_bytes(one)
    assert {kind for kind, _ in told(tmp_path)} == {FindingKind.RECORDS_SHIFTED}


@pytest.mark.parametrize("replicas", [2, 3])
def test_an_index_file_that_is_longer_than_those_of_the_others_is_told(
    store: WrittenStore, tmp_path: Path, replicas: int
) -> None:
    folder = written(store, tmp_path, replicas)[1]
    (path,) = (folder / "index").iterdir()
    os.truncate(path, path.stat().st_size + 20)
    assert told(tmp_path) == [(FindingKind.INDEX_ENTRY_WRONG, 1)]


def test_a_table_that_is_no_text_is_told_as_such(store: WrittenStore, tmp_path: Path) -> None:
    folder, _ = written(store, tmp_path, 2)
    write_at(folder / "config" / "topics.json", 5, b"\xff")
    (finding,) = findings_of(tmp_path)
    assert (finding.kind, finding.detail) == (FindingKind.METADATA_UNREADABLE, "it is no UTF-8")


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    ("gone", "witness"),
    [
        (("commitlog",), "ConsumeQueues lead to messages"),
        (("commitlog", "consumequeue"), "IndexFiles know"),
        (("commitlog", "consumequeue", "index"), "the checkpoint vouches for messages"),
    ],
)
def test_a_log_that_only_other_files_know_is_lost(
    store: WrittenStore, tmp_path: Path, gone: tuple[str, ...], witness: str, replicas: int
) -> None:
    for folder in written(store, tmp_path, replicas):
        for name in gone:
            shutil.rmtree(folder / name)
    found = findings_of(tmp_path)
    assert {own.kind for own in found} == {FindingKind.SEGMENT_MISSING}
    assert {own.broker_id for own in found} == set(range(replicas))
    last = store.records[-1].start
    assert all(witness in own.detail and own.start_offset == 0 and (own.end_offset or 0) > last - 999 for own in found)
    if "index" not in gone:
        assert min(own.messages for own in found) > len(store.records) * 4 // 5


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("change", [_emptied, _zeroed])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_store_of_empty_files_has_lost_its_log(
    store: WrittenStore, tmp_path: Path, change: Callable[[Path], None], replicas: int
) -> None:
    for folder in written(store, tmp_path, replicas):
        for path in folder.rglob("*"):
            if path.is_file():
                change(path)
    assert (FindingKind.SEGMENT_MISSING, 0) in told(tmp_path)


@pytest.mark.parametrize("what", ["link to nothing", "file", "empty folder"])
def test_a_replica_of_which_nothing_is_left_is_told(store: WrittenStore, tmp_path: Path, what: str) -> None:
    _, folder = written(store, tmp_path, 2)
    shutil.rmtree(folder)
    if what == "link to nothing":
        folder.symlink_to(tmp_path / "nowhere")
    elif what == "file":
        folder.write_bytes(b"")
    else:
        folder.mkdir()
    (finding,) = findings_of(tmp_path)
    assert (finding.kind, finding.broker_id, finding.messages) == (FindingKind.SEGMENT_MISSING, 1, len(store.records))


def test_replicas_that_share_a_file_are_one(store: WrittenStore, tmp_path: Path) -> None:
    folder, other = written(store, tmp_path, 2)
    path = max((folder / "commitlog").iterdir())
    (other / "commitlog" / path.name).unlink()
    os.link(path, other / "commitlog" / path.name)
    with pytest.raises(NothingFound, match="broker-a:0 and broker-a:1 have a CommitLog file in common"):
        findings_of(tmp_path)


@pytest.mark.parametrize("replicas", [1, 2])
def test_queues_of_a_length_that_no_entries_have(store: WrittenStore, tmp_path: Path, replicas: int) -> None:
    for path in (written(store, tmp_path, replicas)[-1] / "consumequeue").glob("*/*/*"):
        os.truncate(path, 2007)
    assert told(tmp_path) == [(FindingKind.QUEUE_ENTRY_WRONG, replicas - 1)]


@pytest.mark.parametrize("left", ["", "topics.json.bak"])
def test_tables_of_a_single_replica_that_are_gone(store: WrittenStore, tmp_path: Path, left: str) -> None:
    (folder,) = written(store, tmp_path, 1)
    text = (folder / "config" / "topics.json").read_bytes()
    shutil.rmtree(folder / "config")
    (folder / "config").mkdir()
    if left:
        (folder / "config" / left).write_bytes(text)
    assert told(tmp_path) == [(FindingKind.METADATA_UNREADABLE, 0)]


def test_a_logical_queue_leads_to_records_of_their_own_topics(tmp_path: Path) -> None:
    """As RocketMQ enters a message of a lite topic: in its topic's queue, and in one that no table knows."""
    lites = ("%LMQ%one", "%LMQ%two")
    store = WrittenStore(3, lites=lites)
    folders = written(store, tmp_path, 2)
    assert told(tmp_path) == []
    path = folders[1] / "consumequeue" / lites[1] / "0" / f"{0:020d}"
    entries = path.read_bytes()
    for at, kind in ((20, FindingKind.QUEUE_ENTRY_MISSING), (20, FindingKind.QUEUE_ENTRY_EXTRA)):
        is_gone = kind is FindingKind.QUEUE_ENTRY_MISSING
        path.write_bytes(entries[:at] + (bytes(20) if is_gone else entries[:20]) + entries[at + 20 :])
        (finding,) = findings_of(tmp_path)
        assert (finding.kind, finding.broker_id, finding.topic) == (kind, 1, lites[1])
        assert finding.queue_offset == 1


@pytest.mark.timeout(900)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(
    number=st.integers(0, 1 << 16),
    what=st.sampled_from(("UNIQ_KEY", "KEYS", "TAGS", "topic", "queueId", "storeTimestamp")),
    bit=st.integers(0, 6),
    place=st.integers(0, 40),
)
def test_what_no_checksum_covers_is_decided_by_files_that_were_made_of_it(
    store: WrittenStore, number: int, what: str, bit: int, place: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of a single replica: its ConsumeQueue and index are right, and no entry is made again of what was changed."""
    root = tmp_path_factory.mktemp("single")
    (folder,) = written(store, root, 1)
    queued = {entry[0] for entries in store.queues.values() for entry in entries}
    known = [own for own in store.records if len(own.keys) > 3 and own.start >= FILE_BYTES and own.start in queued]
    record = known[number % len(known)]
    start, end = record.fields[what if what in record.fields else "properties"]
    if what in ("UNIQ_KEY", "KEYS", "TAGS"):
        properties = bytes(store.log[record.start + start : record.start + end])
        value = properties.index(what.encode()) + len(what) + 1
        start, end = start + value, start + properties.index(b"\x02", value)
    elif what == "storeTimestamp":
        end -= 2  # Some seconds: what is less no file has.
    at = record.start % FILE_BYTES + start + place % (end - start)
    path = log_file(folder, record.start)
    write_at(path, at, bytes((path.read_bytes()[at] ^ 1 << bit,)))
    report = run_inline(root / "results", f"path={root / 'groups'}", "tier=deep")
    shutil.rmtree(root)
    assert [own.kind for own in report.findings] == [FindingKind.FIELD_DIFFERS], report.findings
    assert (report.findings[0].start_offset, report.findings[0].end_offset) == (record.start, record.end)
    assert {step.action for step in report.plan.steps} == {RepairAction.MANUAL}


@pytest.mark.parametrize("changed", ["", "digestAlgorithm=blake3", "extentBytes=128KiB"])
def test_what_replicas_held_is_known_also_where_digests_are_of_another_kind(tmp_path: Path, changed: str) -> None:
    store = WrittenStore(0)
    written(store, tmp_path, 2)
    assert told(tmp_path) == []
    shutil.rmtree(tmp_path / "groups")
    older = store.before(200)
    written(older, tmp_path, 2)
    overrides = ["tier=deep", *([changed] if changed else [])]
    (finding,) = run_inline(tmp_path / "results", f"path={tmp_path / 'groups'}", *overrides).findings
    assert (finding.kind, finding.start_offset) == (FindingKind.TAIL_MISSING, len(older.log))


@pytest.mark.parametrize("left", [b"", b"{", b"[]", b'{"seen": 5}'])
def test_a_run_says_that_nobody_can_read_what_earlier_ones_saw(
    store: WrittenStore, tmp_path: Path, left: bytes
) -> None:
    written(store, tmp_path, 2)
    assert told(tmp_path) == []
    state = tmp_path / "results" / "state" / "broker-a.json"
    state.write_bytes(left)
    report = run_inline(tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=deep")
    assert any("what earlier runs saw cannot be read" in note for note in report.summary.notes)
    report = run_inline(tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=deep")
    assert not report.summary.notes
