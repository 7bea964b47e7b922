"""A walk goes on behind whatever is no record, and may be split anywhere."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from support.audit_stores import copy_group, open_store
from support.messages import outgoing_message
from support.replica_folders import FolderFiles, open_replica
from support.store_damage import write_at
from support.stores import ManualClock
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log
from tandemmq.core.audit.replica_store import ReplicaStore


def starts(store: ReplicaStore, start: int, end: int, *, in_batches: bool = True) -> list[int]:
    """Where records start, by a walk."""
    found: list[int] = []
    for piece in walk_log(store, start, end, in_batches=in_batches):
        if not isinstance(piece, LogPiece):
            found += piece.offsets.tolist()
        elif piece.kind is PieceKind.RECORD:
            found.append(piece.start_offset)
    return found


def test_batches_hold_what_single_records_are(equal_group: list[Path]) -> None:
    store = open_replica(equal_group[0])
    end = store.facts.end_offset
    assert starts(store, 0, end) == starts(store, 0, end, in_batches=False)
    assert len(starts(store, 0, end)) == 900


def test_pieces_leave_no_gap(equal_group: list[Path]) -> None:
    store = open_replica(equal_group[0])
    offset = 0
    for piece in walk_log(store, 0, store.facts.end_offset, in_batches=False):
        assert isinstance(piece, LogPiece)
        assert piece.start_offset == offset
        offset = piece.end_offset
    assert offset == store.facts.end_offset


@pytest.mark.parametrize("seed", range(5))
def test_split_walks_find_each_record_once(seed: int, equal_group: list[Path]) -> None:
    store = open_replica(equal_group[0])
    end = store.facts.end_offset
    chance = random.Random(seed)
    cuts = sorted({0, end, *(chance.randrange(end) for _ in range(20))})
    found = [start for low, high in pairwise(cuts) for start in starts(store, low, high)]
    assert found == starts(store, 0, end)


def test_a_walk_of_one_record_reads_little_wherever_it_begins(equal_group: list[Path]) -> None:
    """Before it lie a dozen records, which are no dozen reads: each is a request where the log is another machine's."""
    files = FolderFiles(equal_group[0])
    facts = open_replica(equal_group[0]).facts
    # Near a file's end lies the mark of it, which ConsumeQueues are asked of.
    places = [offset for offset in range(0, facts.end_offset, 997) if offset % facts.segment_bytes < 180_000]
    for start in places:
        store = ReplicaStore(files, facts)
        files.reads = 0
        list(walk_log(store, start, start + 1, in_batches=False))
        assert files.reads <= 7
        assert store.bytes_read < 300_000


def test_a_length_that_no_record_has_is_not_read(tmp_path: Path) -> None:
    store = open_store(tmp_path, ManualClock())
    first = store.put(outgoing_message())
    second = store.put(outgoing_message())
    third = store.put(outgoing_message())
    store.close()
    facts = replace(open_replica(tmp_path).facts, segment_bytes=1 << 30, end_offset=1 << 30)
    path = tmp_path / "commitlog" / f"{0:020d}"
    write_at(path, first.physical_offset, (1 << 29).to_bytes(4, "big"))
    os.truncate(path, facts.end_offset)
    replica = ReplicaStore(FolderFiles(tmp_path), facts)
    assert starts(replica, second.physical_offset - 10, third.physical_offset) == [second.physical_offset]
    assert replica.bytes_read < 8 << 20


def test_record_within_a_body_is_no_boundary(tmp_path: Path) -> None:
    """A client may send what looks like a record of this very log."""
    store = open_store(tmp_path, ManualClock())
    for _ in range(3):
        store.put(outgoing_message())
    own = bytearray(store.read_log(0, store.end_offset)[: store.put(outgoing_message()).physical_offset // 3])
    body_at = store.end_offset + 88
    own[28:36] = body_at.to_bytes(8, "big")
    fake = store.put(outgoing_message(body=bytes(own)))
    following = store.put(outgoing_message())
    store.close()
    replica = open_replica(tmp_path)
    assert fake.physical_offset + 88 == body_at
    assert starts(replica, body_at - 20, replica.facts.end_offset) == [following.physical_offset]


def test_kinds_of_damage(equal_group: list[Path], tmp_path: Path) -> None:
    (folder,) = copy_group(equal_group[:1], tmp_path)
    whole = starts(open_replica(folder), 0, 200_000)
    path = folder / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    bad_body, broken, zeroed, misplaced = whole[10], whole[20], whole[30], whole[40]
    data[bad_body + 88] ^= 1
    data[broken + 4] ^= 1
    data[zeroed : zeroed + 2000] = bytes(2000)
    data[misplaced + 30] ^= 1
    path.write_bytes(data)
    kinds = {
        piece.start_offset: piece.kind
        for piece in walk_log(open_replica(folder), 0, 200_000, in_batches=False)
        if isinstance(piece, LogPiece) and piece.kind is not PieceKind.RECORD
    }
    assert kinds == {
        bad_body: PieceKind.BAD_BODY,
        broken: PieceKind.BROKEN,
        zeroed: PieceKind.ZEROED,
        misplaced: PieceKind.MISPLACED,
    }


@pytest.mark.parametrize("is_older", [True, False])
def test_mark_of_a_files_end_before_records_is_none_unless_these_were_cut_off(tmp_path: Path, is_older: bool) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock)
    old = store.put(outgoing_message(body=bytes(500)))
    clock.now_ms += 1_000
    store.put(outgoing_message(body=bytes(150_000)))
    new = store.put(outgoing_message(body=bytes(500)))
    end = store.end_offset
    store.put(outgoing_message(body=bytes(150_000)))
    store.close()
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    size = end - new.physical_offset
    place = end + 200
    source = old if is_older else new
    data[place : place + size] = data[source.physical_offset : source.physical_offset + size]
    data[place + 28 : place + 36] = place.to_bytes(8, "big")
    path.write_bytes(data)
    replica = open_replica(tmp_path)

    for in_batches in (True, False):
        pieces = [own for own in walk_log(replica, 0, 262_144, in_batches=in_batches) if isinstance(own, LogPiece)]
        found = next(own for own in pieces if own.start_offset == end)
        assert found.kind is (PieceKind.PADDING if is_older else PieceKind.BROKEN)
        assert found.end_offset == (262_144 if is_older else place)
