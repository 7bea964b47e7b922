"""Damage where it is easily taken for something else, or missed: at borders, in several places, in long records."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from support.audit_stores import AUDIT_OPTIONS, copy_group, make_master, open_group
from support.folder_audit import audit_folders, whole_digests
from support.messages import STORE_HOST, outgoing_message
from support.replica_folders import open_replica
from support.stores import ManualClock
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.core.audit.comparison import compare_replicas
from tandemmq.core.audit.equality import common_range
from tandemmq.core.audit.findings import Finding, FindingKind, Verdict
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log
from tandemmq.core.audit.record_check import check_records
from tandemmq.core.audit.replica_store import ReplicaStore
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.storage.message_store import MessageStore

SEGMENT_BYTES = AUDIT_OPTIONS.commit_log_file_bytes


def flip(folder: Path, offset: int, bit: int = 0, *, segment_bytes: int = SEGMENT_BYTES) -> None:
    path = folder / "commitlog" / f"{offset - offset % segment_bytes:020d}"
    with path.open("r+b") as file:
        file.seek(offset % segment_bytes)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes((byte ^ 1 << bit,)))


def pieces_of(store: ReplicaStore) -> list[LogPiece]:
    """All records and padding."""
    found = walk_log(store, store.facts.min_offset, store.facts.end_offset, in_batches=False)
    return [piece for piece in found if isinstance(piece, LogPiece)]


def compared(folders: list[Path]) -> tuple[Finding, ...]:
    """What differs in all that they have in common."""
    stores = open_group(folders)
    return compare_replicas(stores, common_range(store.facts for store in stores.values())).findings


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("byte", [28, 31, 33, 35])
def test_lost_own_offset_is_no_shift(byte: int, replicas: int, equal_group: list[Path], tmp_path: Path) -> None:
    """And other damage, near the end of another file, is still told for what it is."""
    folders = copy_group(equal_group[:replicas], tmp_path)
    pieces = pieces_of(open_replica(folders[1]))
    victim, last_of_file = (
        pieces[20],
        next(
            before
            for before, behind in pairwise(pieces)
            if behind.kind is PieceKind.PADDING and behind.start_offset > SEGMENT_BYTES
        ),
    )
    flip(folders[1], victim.start_offset + byte)
    flip(folders[1], last_of_file.start_offset + 95)
    first, second = compared(folders)
    assert (first.kind, first.broker_id) == (FindingKind.FIELD_DIFFERS, 1)
    assert "physicalOffset" in first.detail
    assert (second.kind, second.start_offset) == (FindingKind.BODY_CRC, last_of_file.start_offset)


@pytest.mark.parametrize("byte", [0, 5, 30])
def test_first_record_of_a_part_is_damaged(byte: int, equal_group: list[Path], tmp_path: Path) -> None:
    """Where the log is cut for several tasks, just before or within a record that cannot be read."""
    (folder,) = copy_group(equal_group[:1], tmp_path)
    piece = pieces_of(open_replica(folder))[40]
    flip(folder, piece.start_offset + byte, 4)
    store = open_replica(folder)
    end = store.facts.end_offset
    for cut in (piece.start_offset - 30, piece.start_offset, piece.start_offset + 30):
        parts = [check_records(store, 0, cut), check_records(store, cut, end)]
        found = [finding for part in parts for finding in part.findings if finding.start_offset == piece.start_offset]
        assert len(found) == 1, (cut, parts)
        assert sum(part.records for part in parts) == check_records(store, 0, end).records


def test_record_longer_than_usual(tmp_path: Path) -> None:
    """A broker may be told to take messages of more than 4 MiB."""
    options = replace(AUDIT_OPTIONS, commit_log_file_bytes=24 << 20)
    for folder in (tmp_path / "0", tmp_path / "1"):
        store = MessageStore(PosixDisk(folder), ManualClock(), options, store_host=STORE_HOST, process_id=4711)
        store.load()
        body = random.Random(1).randbytes(9 << 20)
        assert store.put(outgoing_message(topic="orders", body=body)).status.name == "PUT_OK"
        assert store.put(outgoing_message(topic="orders")).status.name == "PUT_OK"
        store.close()
    assert not audit_folders([tmp_path / "0", tmp_path / "1"]).compared
    for place in (7 << 20, 5 << 20):
        flip(tmp_path / "1", place, segment_bytes=24 << 20)
        stores = open_group([tmp_path / "0", tmp_path / "1"])
        (finding,) = compare_replicas(stores, LogRange(place, place + 1)).findings
        assert (finding.kind, finding.broker_id, finding.start_offset) == (FindingKind.BODY_CRC, 1, 0)


def damage_alike(folders: list[Path], byte: int) -> int:
    """The same bit of the same record's head on all of them. Returns where the record starts."""
    store = open_replica(folders[0])
    (piece,) = (piece for piece in pieces_of(store)[100:101])
    for folder in folders:
        flip(folder, piece.start_offset + byte, 1)
    return piece.start_offset


def test_earlier_digest_outweighs_a_majority(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group, tmp_path)
    earlier = whole_digests(open_group(folders)[0])
    start = damage_alike([folders[0], folders[2]], 46)
    findings = audit_folders(folders, earlier=earlier).findings
    assert [(found.broker_id, found.source_broker_id) for found in findings] == [(0, 1), (2, 1)]
    assert {(found.start_offset, found.verdict) for found in findings} == {(start, Verdict.STORED_DIGEST)}


@pytest.mark.parametrize("byte", [15, 26])
def test_majority_that_contradicts_its_own_queues_is_not_right(
    byte: int, equal_group: list[Path], tmp_path: Path
) -> None:
    """The queue id and the queue offset are in the ConsumeQueue, too."""
    folders = copy_group(equal_group, tmp_path)
    damage_alike([folders[0], folders[2]], byte)
    findings = compared(folders)
    assert [(found.broker_id, found.source_broker_id) for found in findings] == [(0, 1), (2, 1)]
    assert {found.verdict for found in findings} == {Verdict.OWN_EVIDENCE}


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("byte", [21, 26])
def test_changed_queue_offset_is_no_gap(byte: int, replicas: int, equal_group: list[Path], tmp_path: Path) -> None:
    """Nor are millions of messages lost."""
    folders = copy_group(equal_group[:replicas], tmp_path)
    start = damage_alike(folders[-1:], byte)
    if replicas == 1:
        store = open_replica(folders[0])
        findings = list(check_records(store, 0, store.facts.end_offset).findings)
        assert FindingKind.FIELD_DIFFERS in {found.kind for found in findings}
    else:
        findings = audit_folders(folders).findings
        assert {found.kind for found in findings} == {FindingKind.FIELD_DIFFERS}
    assert {found.start_offset for found in findings} == {start}
    assert {found.broker_id for found in findings} <= {replicas - 1, 0}
    assert max(found.messages for found in findings) == 1


def test_own_offset_is_lost_where_the_other_has_lost_its_body(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group[:2], tmp_path)
    piece = pieces_of(open_replica(folders[0]))[30]
    flip(folders[0], piece.start_offset + 95)
    flip(folders[1], piece.start_offset + 29)
    findings = compared(folders)
    assert [(found.broker_id, found.kind) for found in findings] == [
        (0, FindingKind.BODY_CRC),
        (1, FindingKind.FIELD_DIFFERS),
    ]


def test_two_replicas_that_are_wrong_alike_are_no_proof(equal_group: list[Path], tmp_path: Path) -> None:
    """Nor is one that has lost its body and agrees with one of two that differ."""
    folders = copy_group(equal_group, tmp_path)
    piece = pieces_of(open_replica(folders[0]))[30]
    flip(folders[0], piece.start_offset + 95)
    flip(folders[2], piece.start_offset + 47)
    found = compared(folders)
    assert {(own.broker_id, own.source_broker_id) for own in found} == {(0, None), (None, None)}
    (undecided,) = (own for own in found if own.broker_id is None)
    assert undecided.verdict is Verdict.UNDECIDED
    assert "replica 1 and replica 2 differ" in undecided.detail


def test_records_around_tell_which_time_is_right(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group, tmp_path)
    piece = pieces_of(open_replica(folders[0]))[30]
    for folder in folders[:2]:
        flip(folder, piece.start_offset + 58)
    found = compared(folders)
    assert [(own.broker_id, own.source_broker_id) for own in found] == [(0, 2), (1, 2)]
    assert {own.verdict for own in found} <= {Verdict.NEIGHBOURS, Verdict.OWN_EVIDENCE}


def test_file_that_was_written_over_is_one_finding(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group[:2], tmp_path)
    (folders[0] / "commitlog" / f"{SEGMENT_BYTES:020d}").write_bytes(b"\xff" * SEGMENT_BYTES)
    first, *rest = compared(folders)
    assert (first.kind, first.start_offset, first.broker_id) == (FindingKind.TORN, SEGMENT_BYTES, 0)
    assert first.messages > 100
    assert len(rest) <= 1, "the padding is no message"


def test_file_with_more_bytes_than_it_should_have(equal_group: list[Path], tmp_path: Path) -> None:
    """The broker refuses to start with it."""
    folders = copy_group(equal_group[:2], tmp_path)
    with (folders[1] / "commitlog" / f"{SEGMENT_BYTES:020d}").open("ab") as file:
        file.write(b"more")
    (finding,) = audit_folders(folders).findings
    assert (finding.kind, finding.broker_id) == (FindingKind.SEGMENT_SIZE, 1)
    assert finding.file == f"commitlog/{SEGMENT_BYTES:020d}"


def test_file_of_another_group_is_not_right_where_the_other_replica_is_damaged(
    equal_group: list[Path], tmp_path: Path
) -> None:
    """It is sound, and the only one; its own ConsumeQueue and index say that it is none of their log."""
    folders = copy_group(equal_group[:2], tmp_path)
    make_master(tmp_path / "other", seed=3)
    name = f"{SEGMENT_BYTES:020d}"
    shutil.copyfile(tmp_path / "other" / "commitlog" / name, folders[0] / "commitlog" / name)
    own = [piece for piece in pieces_of(open_replica(folders[1])) if piece.start_offset > SEGMENT_BYTES]
    for piece in own[20:80:20]:
        flip(folders[1], piece.start_offset + 2)
    findings = compared(folders)
    assert not [found for found in findings if found.broker_id == 1 and found.source_broker_id == 0]
