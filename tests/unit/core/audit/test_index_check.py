"""Headers of IndexFiles: what a search goes by first."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.audit_stores import append_messages, copy_group, open_store
from support.messages import outgoing_message
from support.replica_folders import open_replica
from support.stores import ManualClock
from tandemmq.core.audit.findings import Finding, FindingKind
from tandemmq.core.audit.record_check import check_records


def flipped(folder: Path, place: int, bit: int) -> tuple[Finding, ...]:
    """What is found when one bit of the first IndexFile is another one."""
    path = min((folder / "index").iterdir())
    data = path.read_bytes()
    path.write_bytes(data[:place] + bytes((data[place] ^ 1 << bit,)) + data[place + 1 :])
    found = check_all(folder)
    path.write_bytes(data)
    return found


def check_all(folder: Path) -> tuple[Finding, ...]:
    """What is wrong with a replica by itself."""
    store = open_replica(folder)
    return check_records(store, store.facts.min_offset, store.facts.end_offset).findings


@pytest.mark.parametrize(
    ("first", "end", "name"),
    [(0, 6, "begins at"), (16, 24, "begins with"), (24, 32, "ends with"), (36, 39, "counts")],
)
def test_wrong_header_is_one_finding(first: int, end: int, name: str, equal_group: list[Path], tmp_path: Path) -> None:
    (folder,) = copy_group(equal_group[:1], tmp_path)
    for place in range(first, end):
        for bit in (0, 7) if place < end - 1 else (6,):
            found = flipped(folder, place, bit)
            assert [finding.kind for finding in found] == [FindingKind.INDEX_ENTRY_WRONG], (place, bit, found)
            if place < 36:
                assert name in found[0].detail


def test_file_that_ends_too_early_by_its_header(equal_group: list[Path], tmp_path: Path) -> None:
    """Its newest messages would not be found by a search of their time."""
    (folder,) = copy_group(equal_group[:1], tmp_path)
    (found,) = flipped(folder, 11, 0)
    assert "ends at" in found.detail


def test_only_message_of_a_store(tmp_path: Path) -> None:
    """Its entries lead to offset 0."""
    store = open_store(tmp_path, ManualClock())
    assert store.put(outgoing_message(keys=("one", "two"))).status.name == "PUT_OK"
    store.close()
    assert not check_all(tmp_path)


def test_index_whose_newest_entries_were_taken_back(tmp_path: Path) -> None:
    """A slave that was cut back to what its new master has: the header's end stays behind, and so do entries."""
    clock = ManualClock()
    store = open_store(tmp_path, clock)
    append_messages(store, clock, 0, 100)
    end_offset = store.end_offset
    clock.now_ms += 60_000
    append_messages(store, clock, 100, 100)
    store.truncate(end_offset)
    store.close()
    assert not check_all(tmp_path)


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("byte", [60, 62])
def test_time_of_a_record_is_wrong_and_the_header_is_not(
    byte: int, is_last: bool, equal_group: list[Path], tmp_path: Path
) -> None:
    """The first and the last record of an IndexFile tell what its header should say, unless they were changed."""
    (folder,) = copy_group(equal_group[:1], tmp_path)
    header = min((folder / "index").iterdir()).read_bytes()[:40]
    start = int.from_bytes(header[24:32] if is_last else header[16:24], "big")
    store = open_replica(folder)
    path = folder / store.segment_path(start)
    is_v6 = store.read_log(start, start + 40)[39] & 0x10
    data = bytearray(path.read_bytes())
    data[start % store.facts.segment_bytes + byte + (12 if is_v6 else 0)] ^= 1
    path.write_bytes(data)
    assert len(check_all(folder)) <= 3
    assert not [finding for finding in check_all(folder) if "header" in finding.detail]
