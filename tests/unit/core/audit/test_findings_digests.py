"""Digests are of absolute extents, whatever the range and the files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.audit_stores import copy_group, open_group
from support.replica_folders import open_replica
from tandemmq.core.audit.replica_store import DigestingStore, digest_extents, extents_of
from tandemmq.core.replication.log_history import LogRange

EXTENT_BYTES = 100_000
"""Divides no file."""


def test_extents_lie_at_absolute_multiples() -> None:
    assert list(extents_of(LogRange(150, 410), 100)) == [(150, 200), (200, 300), (300, 400), (400, 410)]
    assert not list(extents_of(LogRange(100, 100), 100))


def test_digest_is_of_the_bytes_whichever_files_they_lie_in(equal_group: list[Path]) -> None:
    store = open_replica(equal_group[0])
    log_range = LogRange(123, store.facts.end_offset)
    found = list(digest_extents(store, log_range, extent_bytes=EXTENT_BYTES, new_hash=hashlib.sha256))
    assert [(extent.start_offset, extent.end_offset) for extent in found] == list(extents_of(log_range, EXTENT_BYTES))
    whole = b"".join(path.read_bytes() for path in sorted((equal_group[0] / "commitlog").iterdir()))
    for start, end, digest in found:
        assert digest == hashlib.sha256(whole[start:end]).digest()


def test_digests_of_parts_are_those_of_the_whole(equal_group: list[Path]) -> None:
    store = open_replica(equal_group[0])

    def digests(start: int, end: int) -> list[tuple[int, int, bytes]]:
        return list(digest_extents(store, LogRange(start, end), extent_bytes=EXTENT_BYTES, new_hash=hashlib.md5))

    assert digests(0, 300_000) + digests(300_000, 700_000) == digests(0, 700_000)


def test_pieces_do_not_change_a_digest(equal_group: list[Path]) -> None:
    store = open_replica(equal_group[0])
    log_range = LogRange(1234, 600_000)
    whole = list(digest_extents(store, log_range, extent_bytes=EXTENT_BYTES, new_hash=hashlib.md5))
    pieces = digest_extents(store, log_range, extent_bytes=EXTENT_BYTES, new_hash=hashlib.md5, piece_bytes=7000)
    assert list(pieces) == whole


def test_extent_in_a_hole_has_no_digest(equal_group: list[Path], tmp_path: Path) -> None:
    folders = copy_group(equal_group[:1], tmp_path)
    (folders[0] / "commitlog" / f"{262_144:020d}").unlink()
    store = open_group(folders)[0]
    assert store.facts.holes == (LogRange(262_144, 524_288),)
    reached = [
        extent.start_offset
        for extent in digest_extents(store, LogRange(0, 800_000), extent_bytes=EXTENT_BYTES, new_hash=hashlib.md5)
        if not extent.digest
    ]
    assert reached == [200_000, 300_000, 400_000, 500_000]


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_digests_on_the_way_are_the_same_whatever_is_read_in_which_order(
    equal_group: list[Path], tmp_path: Path, data: st.DataObject
) -> None:
    """What reads may skip, repeat, overlap and jump; and one file is missing, or not."""
    folder = tmp_path / data.draw(st.sampled_from(("whole", "holed")))
    if not folder.exists():
        copy_group([equal_group[0]], folder)
        if folder.name == "holed":
            sorted((folder / "0" / "commitlog").iterdir())[1].unlink()
    plain = open_replica(folder / "0")
    end = plain.facts.end_offset
    start = data.draw(st.integers(0, end - 1))
    log_range = LogRange(start, data.draw(st.integers(start, end)))
    expected = list(digest_extents(plain, log_range, extent_bytes=EXTENT_BYTES, new_hash=hashlib.md5))
    store = DigestingStore(plain.files, plain.facts, log_range, extent_bytes=EXTENT_BYTES, new_hash=hashlib.md5)
    place = start
    for _ in range(data.draw(st.integers(0, 12))):
        place = max(0, min(end, place + data.draw(st.sampled_from((0, 0, 0, -70_000, 5, 3_000, 90_000, 400_000)))))
        length = data.draw(st.integers(0, 250_000))
        read = store.read_log(place, min(end, place + length))
        assert bytes(read) == bytes(plain.read_log(place, min(end, place + length)))
        place = min(end, place + length)
    assert store.digests() == expected
