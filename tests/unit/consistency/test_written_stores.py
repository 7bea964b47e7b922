"""Stores that no code of the broker wrote, changed in several places at once: each change is told, and nothing else."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
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
    right_clock,
    set_clock,
    write_at,
)
from tandemmq.consistency.settings import NothingFound
from tandemmq.core.audit.findings import Finding, FindingKind
from tandemmq.core.audit.repair_plan import RepairAction
from tandemmq.core.audit.run_summary import ExitCode


def problem_of(
    seed: int,
    *,
    replicas: int,
    count: int,
    seen_by: str,
    root: Path,
    by_java: bool = False,
    is_clock_set: bool = False,
) -> str:
    """What is wrong with what a deep run says of it; empty: nothing. `root` is used and removed."""
    try:
        clock = set_clock(seed) if is_clock_set else right_clock
        store = JavaStore() if by_java else WrittenStore(seed % 5, ahead_ms=clock)
        folders = [root / "groups" / "broker-a" / str(broker_id) for broker_id in range(replicas)]
        for folder in folders:
            store.write(folder)
        if seen_by:
            report = run_inline(root / "results", f"path={root / 'groups'}", f"tier={seen_by}")
            assert report.summary.exit_code is ExitCode.EQUAL, report.findings
        changes = change_replicas(store, folders, random.Random(seed), count=count)
        if seen_by and replicas == 1 and count and changes[0].what == "filler":
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
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(
    seed=st.integers(0, 1 << 16),
    replicas=st.sampled_from((1, 2, 3)),
    count=st.sampled_from((0, 1, 2)),
    seen_by=st.sampled_from(("", "quick", "deep")),
)
def test_changes_of_what_was_stored_while_the_clock_was_set(
    seed: int, replicas: int, count: int, seen_by: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """None of them too: store times that go back are no damage."""
    root = tmp_path_factory.mktemp("clock")
    assert problem_of(seed, replicas=replicas, count=count, seen_by=seen_by, root=root, is_clock_set=True) == ""


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


# Clocks that were set while messages came.

_HOUR_MS = 3_600_000


def _born_time(store: WrittenStore, number: int) -> tuple[int, bytes]:
    """Of a record: where it lies in the log, and what it is."""
    at = store.records[number].start + store.records[number].fields["bornTimestamp"][0]
    return at, bytes(store.log[at : at + 8])


@pytest.mark.parametrize("victim", [0, 1])
def test_a_record_at_which_the_clock_was_set_is_not_copied_over_by_one_that_fits_beside_it_by_chance(
    tmp_path: Path, victim: int
) -> None:
    """Of times of birth nothing else knows; neighbours of two clocks do not either."""
    first = 125
    born_ms = int.from_bytes(_born_time(WrittenStore(0), first)[1], "big")
    bit = next(own for own in range(21, 10, -1) if not born_ms & 1 << own)
    # Half of the damage more than the hour in which neighbours' records are as long under way.
    set_by_ms = _HOUR_MS + (1 << bit - 1)
    store = WrittenStore(0, ahead_ms=lambda number: set_by_ms if number >= first else 0)
    record = store.records[first]
    born_at, _ = _born_time(store, first)
    folder = written(store, tmp_path, 2)[victim]
    at = born_at + 7 - bit // 8
    write_at(log_file(folder, at), at % FILE_BYTES, bytes((store.log[at] ^ 1 << bit % 8,)))
    report = run_inline(tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=deep")
    assert [(own.kind, own.start_offset) for own in report.findings] == [(FindingKind.FIELD_DIFFERS, record.start)]
    assert report.findings[0].broker_id in (None, victim)
    assert not [step for step in report.plan.steps if step.source_broker_id == victim]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_topic_that_was_deleted_after_the_clock_was_set_back_is_not_missing(tmp_path: Path, replicas: int) -> None:
    """Its last message is of a later time than the table."""
    topic = "%DLQ%g"
    store = WrittenStore(0, ahead_ms=lambda number: _HOUR_MS if number < 246 else 0)
    for folder in written(store, tmp_path, replicas):
        shutil.rmtree(folder / "consumequeue" / topic)
        path = folder / "config" / "topics.json"
        table = json.loads(path.read_text())
        del table["topicConfigTable"][topic]
        table["dataVersion"]["timestamp"] = store.records[-1].timestamp_ms + 1_000
        path.write_text(json.dumps(table))
    assert told(tmp_path) == []


def test_a_checkpoint_is_of_the_last_record_also_if_that_is_in_no_queue(tmp_path: Path) -> None:
    store = WrittenStore(0, messages=254, ahead_ms=lambda number: _HOUR_MS if number == 253 else 0)
    assert store.records[-1].start > max(entries[-1][0] for entries in store.queues.values())
    written(store, tmp_path, 2)
    assert told(tmp_path) == []


@pytest.mark.parametrize("days", [0, 1, 9_000])
def test_files_of_a_time_to_come_may_have_expired(tmp_path: Path, days: int) -> None:
    """The clock was ahead when they were written; retention counts how old they are by another clock."""
    ahead_ms = int(time.time() * 1_000) - 1_700_000_000_000 - _HOUR_MS + days * 24 * _HOUR_MS
    folders = written(WrittenStore(0, ahead_ms=lambda _: ahead_ms), tmp_path, 2)
    assert told(tmp_path) == []
    for folder in folders:
        log_file(folder, 0).unlink()
    assert bool(told(tmp_path)) is (days == 0)


# Nothing, and what cannot be held against anything.


@pytest.mark.parametrize("tier", ["quick", "deep"])
@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("left", ["", "lost+found", "notes.txt"])
def test_nothing_is_not_equal_to_nothing(tmp_path: Path, left: str, is_named: bool, tier: str) -> None:
    """Volumes that are not mounted, and paths that were mistyped."""
    folders = [tmp_path / "groups" / str(broker_id) for broker_id in range(2)]
    for folder in folders:
        folder.mkdir(parents=True)
        if left and is_named:
            (folder / left).touch()
    if is_named:
        place = "sources=" + ";".join(f"broker-a/{broker_id}={folder}" for broker_id, folder in enumerate(folders))
    else:
        place = "path=" + ";".join(map(str, folders))
    report = run_inline(tmp_path / "results", place, f"tier={tier}")
    assert (report.summary.exit_code, report.findings) == (ExitCode.INCOMPLETE, ())
    assert "nothing of a store" in report.summary.groups[0].problem


def test_a_store_without_messages_is_equal_to_another(store: WrittenStore, tmp_path: Path) -> None:
    for folder in written(store, tmp_path, 2):
        for name in ("commitlog", "consumequeue", "index"):
            shutil.rmtree(folder / name)
        (folder / "checkpoint").unlink()
        (folder / "config" / "consumerOffset.json").unlink()
        (folder / "commitlog").mkdir()
    report = run_inline(tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=deep")
    assert report.summary.exit_code is ExitCode.EQUAL, report.findings


# Tables of another broker group, of stores that say nowhere else whose they are.


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("is_seen", [False, True])
def test_a_foreign_table_of_topics_is_told_by_quick_runs_without_a_replica_json(
    store: WrittenStore, tmp_path: Path, is_seen: bool, replicas: int
) -> None:
    """By topics that it does not know; of a group with the same topics by what an earlier run saw."""
    paths = [folder / "config" / "topics.json" for folder in written(store, tmp_path, replicas)]
    arguments = (tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=quick")
    tables = {name: json.loads(paths[0].read_text()) for name in ("broker-a", "broker-z")}
    for name, table in tables.items():
        own = f"rmq_sys_SYNC_BROKER_MEMBER_{name}"
        known = table["topicConfigTable"]
        if name == "broker-z" and not is_seen:
            known.clear()
            known["others"] = {"topicName": "others", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
        known[own] = {"topicName": own, "perm": 1, "readQueueNums": 1, "writeQueueNums": 1}
    tables["broker-z"]["dataVersion"]["timestamp"] += 60_000
    if is_seen:
        for path in paths:
            path.write_text(json.dumps(tables["broker-a"]))
        assert run_inline(*arguments).summary.exit_code is ExitCode.EQUAL
    for path in paths:
        path.write_text(json.dumps(tables["broker-z"]))
    for _ in range(2):
        found = run_inline(*arguments).findings
        assert {(own.kind, own.file) for own in found} == {(FindingKind.METADATA_UNREADABLE, "config/topics.json")}
        assert {own.broker_id for own in found} == ({0} if replicas == 1 else {None} if len(found) == 1 else {0, 1})
    for path in paths:
        path.write_text(json.dumps(tables["broker-a"]))
    assert run_inline(*arguments).summary.exit_code is ExitCode.EQUAL


def test_a_folder_may_be_called_otherwise_than_its_group(store: WrittenStore, tmp_path: Path) -> None:
    (folder,) = written(store, tmp_path, 1)
    path = folder / "config" / "topics.json"
    table = json.loads(path.read_text())
    own = "rmq_sys_SYNC_BROKER_MEMBER_broker-z"
    table["topicConfigTable"][own] = {"topicName": own, "perm": 1, "readQueueNums": 1, "writeQueueNums": 1}
    path.write_text(json.dumps(table))
    for tier in ("quick", "quick", "deep"):
        report = run_inline(tmp_path / "results", f"path={tmp_path / 'groups'}", f"tier={tier}")
        assert report.summary.exit_code is ExitCode.EQUAL, report.findings
