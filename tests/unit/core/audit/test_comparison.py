"""Who is right, and what is wrong with the other: cases beside the catalogue of damages."""

from __future__ import annotations

import random
import shutil
from hashlib import md5
from itertools import pairwise
from pathlib import Path

import pytest

from support.audit_stores import AUDIT_OPTIONS, append_messages, copy_group, make_master, open_group, open_store
from support.folder_audit import audit_folders, whole_digests
from support.replica_folders import open_replica
from support.stores import ManualClock
from tandemmq.core.audit import comparison
from tandemmq.core.audit.comparison import compare_replicas
from tandemmq.core.audit.equality import common_range
from tandemmq.core.audit.findings import FINDINGS_MAX, Finding, FindingKind, FindingList, Verdict
from tandemmq.core.audit.log_walk import LogPiece, walk_log
from tandemmq.core.audit.replica_store import MAX_RECORD_BYTES
from tandemmq.core.message.record import decode_record
from tandemmq.core.message.record_layout import WHOLE_HEADS
from tandemmq.core.replication.log_history import LogRange

SEGMENT_BYTES = AUDIT_OPTIONS.commit_log_file_bytes
HEAD_BYTES = WHOLE_HEADS[0].size


def flip(folder: Path, offset: int) -> None:
    """One bit of the log."""
    path = folder / "commitlog" / f"{offset - offset % SEGMENT_BYTES:020d}"
    data = bytearray(path.read_bytes())
    data[offset % SEGMENT_BYTES] ^= 1
    path.write_bytes(data)


def test_range_may_begin_and_end_within_a_record(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group, tmp_path)
    flip(folders[1], 300_500)
    stores = open_group(folders)
    whole = compare_replicas(stores, common_range(store.facts for store in stores.values())).findings
    assert len(whole) == 1
    assert compare_replicas(stores, LogRange(300_500, 300_501)).findings == whole
    assert not compare_replicas(stores, LogRange(0, whole[0].start_offset or 0)).findings
    assert not compare_replicas(stores, LogRange(whole[0].end_offset or 0, 400_000)).findings


def test_majority_with_a_broken_body_is_not_right(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group, tmp_path)
    stores = open_group(folders)
    flip(folders[0], 300_500)
    (found,) = compare_replicas(stores, LogRange(300_500, 300_501)).findings
    flip(folders[2], 300_500)
    findings = compare_replicas(stores, LogRange(300_500, 300_501)).findings
    if found.kind is FindingKind.BODY_CRC:
        assert {(finding.broker_id, finding.source_broker_id) for finding in findings} == {(0, 1), (2, 1)}
        assert {finding.verdict for finding in findings} == {Verdict.CHECKSUM}


def test_two_replicas_are_damaged_in_different_places(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group[:2], tmp_path)
    flip(folders[0], 100_500)
    flip(folders[1], 200_500)
    audit = audit_folders(folders)
    assert {finding.broker_id for finding in audit.findings} == {0, 1}
    assert {finding.source_broker_id for finding in audit.findings} == {0, 1}


def test_same_record_is_broken_on_both(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group[:2], tmp_path)
    stores = open_group(folders)
    flip(folders[0], 300_500)
    flip(folders[1], 300_501)
    findings = compare_replicas(stores, LogRange(300_500, 300_502)).findings
    assert {finding.broker_id for finding in findings} == {0, 1}
    assert {finding.source_broker_id for finding in findings} == {None}


def test_digest_of_an_earlier_run_decides_where_both_are_damaged_in_one_extent(
    equal_group: list[Path], tmp_path: Path
) -> None:
    """In bytes that no checksum covers: the versions are mixed until the digest comes out."""
    folders = copy_group(equal_group[:2], tmp_path)
    earlier = whole_digests(open_group(folders)[0])
    first, *_, last = (piece for piece in pieces_between(folders[0], 270_000, 320_000))
    flip(folders[0], first + 46)
    flip(folders[1], last + 46)
    found = audit_folders(folders, earlier=earlier).findings
    assert [(own.broker_id, own.source_broker_id, own.start_offset) for own in found] == [(0, 1, first), (1, 0, last)]
    assert {own.verdict for own in found} == {Verdict.STORED_DIGEST}


def test_record_that_no_replica_holds_right_any_more_is_told_of_both(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group[:2], tmp_path)
    earlier = whole_digests(open_group(folders)[0])
    place = pieces_between(folders[0], 270_000, 320_000)[0]
    flip(folders[0], place + 43)
    flip(folders[1], place + 16)
    found = audit_folders(folders, earlier=earlier).findings
    assert {(own.broker_id, own.source_broker_id) for own in found} == {(0, None), (1, None)}
    assert {own.verdict for own in found} == {Verdict.STORED_DIGEST}


def test_first_part_of_an_extent_is_enough_for_what_lies_in_it(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group[:2], tmp_path)
    stores = open_group(folders)
    start, end = 262_144, 262_144 + 50_000
    begun = LogRange(start, end)
    earlier = {begun: md5(stores[0].read_log(start, end)).digest()}
    places = pieces_between(folders[0], start, start + 60_000)
    flip(folders[0], places[1] + 46)
    (finding,) = audit_folders(folders, earlier=earlier).findings
    assert (finding.broker_id, finding.verdict) == (0, Verdict.STORED_DIGEST)
    flip(folders[0], places[1] + 46)
    flip(folders[0], places[-1] + 47)
    (finding,) = audit_folders(folders, earlier=earlier).findings
    assert finding.verdict is not Verdict.STORED_DIGEST


def pieces_between(folder: Path, start: int, end: int) -> list[int]:
    """Where records begin."""
    store = open_replica(folder)
    return [
        piece.start_offset for piece in walk_log(store, start, end, in_batches=False) if isinstance(piece, LogPiece)
    ]


@pytest.mark.parametrize("seed", range(40))
def test_who_has_a_right_body_need_not_be_right_about_the_rest(
    equal_group: list[Path], tmp_path: Path, seed: int
) -> None:
    """A body is broken on one replica, and of the same record a field that no checksum covers is another on the
    second: to copy the whole record from the second would lose what the first alone holds."""
    draw = random.Random(seed)
    folders = copy_group(equal_group[: draw.choice((2, 2, 3))], tmp_path)
    store = open_replica(folders[0])
    start = draw.choice(pieces_between(folders[0], 0, 200_000)[1:-1])
    record = decode_record(store.read_log(start, start + MAX_RECORD_BYTES))
    body = start + HEAD_BYTES + draw.randrange(len(record.body)) if record.body else start + 8
    others = {
        "flag": start + 19,
        "bornTimestamp": start + 47,
        "storeTimestamp": start + 63,
        "reconsumeTimes": start + 75,
        "properties": start + record.total_size - draw.randrange(1, 1 + len(record.properties)),
    }
    other = others[draw.choice([name for name, place in others.items() if abs(place - body) > 16])]
    flip(folders[0], body)
    for folder in folders[1:]:
        flip(folder, other)
    findings = compare_replicas(open_group(folders), LogRange(start, start + 1)).findings
    assert {finding.start_offset for finding in findings} == {start}
    assert {finding.source_broker_id for finding in findings} == {None}


@pytest.mark.parametrize("fill", [0x00, 0xFF, None])
def test_a_stretch_that_was_written_over_is_one_damage(
    equal_group: list[Path], tmp_path: Path, fill: int | None
) -> None:
    folders = copy_group(equal_group[:2], tmp_path)
    starts = pieces_between(folders[0], 0, 200_000)
    draw = random.Random(f"{fill}")  # None would be another one each time.
    for start, end in pairwise(starts[1:]):
        begin = draw.randrange(start, end - 40)
        length = draw.randrange(32, end - begin)
        path = folders[0] / "commitlog" / f"{begin - begin % SEGMENT_BYTES:020d}"
        data = bytearray(path.read_bytes())
        at = begin % SEGMENT_BYTES
        data[at : at + length] = draw.randbytes(length) if fill is None else bytes([fill]) * length
        path.write_bytes(data)
    findings = compare_replicas(open_group(folders), LogRange(starts[1], starts[-1])).findings
    assert {finding.broker_id for finding in findings} == {0}
    assert {finding.source_broker_id for finding in findings} == {1}


def test_logs_that_went_different_ways_are_undecided(equal_group: list[Path], tmp_path: Path) -> None:
    """Two masters at a time: both tails are sound, and nobody knows which was acknowledged."""
    folders = copy_group(equal_group[:2], tmp_path)
    forked_at = open_group(folders)[0].facts.end_offset
    for seed, folder in enumerate(folders):
        clock = ManualClock(now_ms=1_700_000_100_000)
        store = open_store(folder, clock)
        append_messages(store, clock, 2000, 30, seed=seed)
        store.close()
    findings = [finding for finding in audit_folders(folders).findings if finding.kind is not FindingKind.TAIL_EXTRA]
    assert findings
    assert all((finding.start_offset or 0) >= forked_at for finding in findings)
    assert {finding.verdict for finding in findings} == {Verdict.UNDECIDED}
    assert sum(finding.messages for finding in findings) >= 25


@pytest.mark.parametrize("window_bytes", [40_000, 300_000, 16 << 20])
@pytest.mark.parametrize("chunk_bytes", [70_000, 1 << 30])
def test_a_log_of_another_group_is_taken_for_none_of_its_own(
    equal_group: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_bytes: int, chunk_bytes: int
) -> None:
    """Each log's records begin within the other's; neither is damaged, and nothing of one is right for the other."""
    monkeypatch.setattr(comparison, "_WINDOW_BYTES", window_bytes)
    folders = copy_group(equal_group[:2], tmp_path / "own")
    shutil.rmtree(folders[1])
    make_master(folders[1], messages=900, seed=5)
    stores = open_group(folders)
    whole = common_range(store.facts for store in stores.values())
    starts = range(whole.start_offset, whole.end_offset, chunk_bytes)
    found = [
        finding
        for start in starts
        for finding in compare_replicas(stores, LogRange(start, min(start + chunk_bytes, whole.end_offset))).findings
    ]
    assert {finding.verdict for finding in found} == {Verdict.UNDECIDED}
    assert {finding.broker_id for finding in found} == {None}
    assert "hold different messages from here on" in found[0].detail
    # Records of one length in one place, by chance, may be told of apart.
    assert len(found) <= len(starts) + 4
    assert sum(finding.messages for finding in found) >= 800


def test_findings_are_cut_where_nobody_reads_on() -> None:
    found = FindingList()
    found.extend(
        Finding(FindingKind.TORN, "broker-a", Verdict.CHECKSUM, f"number {number}", messages=2)
        for number in range(FINDINGS_MAX + 5)
    )
    taken = found.taken()
    assert len(taken) == FINDINGS_MAX + 1
    assert taken[-1].messages == 10
    assert "5 more" in taken[-1].detail
