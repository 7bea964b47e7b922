"""Folders, object stores and throttled files answer alike, and are gentle to who else reads the disk."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from support.vanishing_files import let_vanish
from tandemmq.consistency.source_files.posix_files import (
    ArrowFiles,
    BufferPool,
    PosixFiles,
    ReadMode,
    SourceKind,
    SourceSpec,
    parse_source,
)
from tandemmq.consistency.source_files.sources import ThrottledFiles
from tandemmq.core.audit.replica_store import ReplicaFiles, StoreEntry

_CONTENT = random.Random(4).randbytes((1 << 20) + 1_234)


@pytest.fixture
def folder(disk_path: Path) -> Path:
    (disk_path / "commitlog").mkdir()
    (disk_path / "commitlog" / "00000000000000000000").write_bytes(_CONTENT)
    (disk_path / "checkpoint").write_bytes(b"check")
    return disk_path


_WAYS: dict[str, Callable[[Path], ReplicaFiles]] = {
    "direct": lambda folder: PosixFiles(str(folder), read_mode=ReadMode.DIRECT),
    "cached": lambda folder: PosixFiles(str(folder), read_mode=ReadMode.CACHED),
    "arrow": lambda folder: ArrowFiles(f"file://{folder}"),
    "throttled": lambda folder: ThrottledFiles(PosixFiles(str(folder)), bytes_per_second=1 << 40),
}


@pytest.fixture(params=_WAYS)
def files(folder: Path, request: pytest.FixtureRequest) -> ReplicaFiles:
    return _WAYS[request.param](folder)


def test_any_range_is_read_as_it_is_stored(files: ReplicaFiles) -> None:
    chance = random.Random(5)
    ends = [0, 1, 4_095, 4_096, 4_097, 300_000, len(_CONTENT) - 1, len(_CONTENT), len(_CONTENT) + 5_000]
    for _ in range(60):
        start, end = sorted(chance.choice(ends) + chance.randrange(3) for _ in range(2))
        data = files.read("commitlog/00000000000000000000", start, end - start)
        assert bytes(data) == _CONTENT[start:end], (start, end)


def test_views_keep_their_bytes_while_more_is_read(files: ReplicaFiles) -> None:
    starts = range(0, 900_000, 100_000)

    views = [files.read("commitlog/00000000000000000000", start, 300_000) for start in starts]

    for start, view in zip(starts, views):
        assert bytes(view) == _CONTENT[start : start + 300_000]


def test_what_is_not_there_is_empty(files: ReplicaFiles) -> None:
    assert not files.read("commitlog/00000000001073741824", 0, 10)
    assert not files.read("checkpoint", 5, 10)
    assert files.list_folder("consumequeue") == []


def test_folders_list_names_and_sizes(files: ReplicaFiles) -> None:
    assert files.list_folder("") == [StoreEntry("checkpoint", 5), StoreEntry("commitlog", -1)]
    assert files.list_folder("commitlog") == [StoreEntry("00000000000000000000", len(_CONTENT))]


def test_file_that_goes_while_its_folder_is_read_takes_no_other_with_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "replica.json.unfinished").write_bytes(b"half")
    let_vanish(monkeypatch, folder / "replica.json.unfinished")

    listed = PosixFiles(str(folder)).list_folder("")

    assert listed == [StoreEntry("checkpoint", 5), StoreEntry("commitlog", -1)]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", ["link", "broken link", "folder", "pipe"])
def test_what_is_no_file_is_shown_as_none_and_not_read(folder: Path, kind: str) -> None:
    path = folder / "commitlog" / "00000000000001048576"
    match kind:
        case "link":
            path.symlink_to(folder / "checkpoint")
        case "broken link":
            path.symlink_to("nowhere")
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
    files = PosixFiles(str(folder))

    assert [entry.is_folder for entry in files.list_folder("commitlog")] == [False, True]
    for length in (5, 1 << 20):
        assert files.read("commitlog/00000000000001048576", 0, length) == b""


def test_cached_reading_leaves_the_page_cache_as_it_was(folder: Path) -> None:
    path = folder / "commitlog" / "00000000000000000000"
    fd = os.open(path, os.O_RDWR)
    try:
        for _ in range(20):  # Pages that were only just written may need a second asking.
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if not any(_cached_pages(fd)):
                break
        else:
            pytest.skip("this file system keeps its pages")
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for page in (0, 1, 2, 70, 71):
            os.pread(fd, 4_096, page * 4_096)
        before = _cached_pages(fd)

        files = PosixFiles(str(folder), read_mode=ReadMode.CACHED)
        data = files.read("commitlog/00000000000000000000", 0, len(_CONTENT))

        assert bytes(data) == _CONTENT
        assert _cached_pages(fd) == before
        assert sum(before) == 5
    finally:
        os.close(fd)


def _cached_pages(fd: int) -> list[bool]:
    """Of each page, whether the kernel holds it."""
    length = os.fstat(fd).st_size
    with mmap.mmap(fd, length, flags=mmap.MAP_PRIVATE) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        vector = (ctypes.c_ubyte * -(-length // 4_096))()
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length), vector) == 0
        del first
        return [bool(page & 1) for page in vector]


def test_buffer_is_used_again_only_when_nobody_looks_at_it() -> None:
    pool = BufferPool()
    first = pool.take(8_192)
    first[:4] = b"kept"
    part = first[:4]
    del first

    second = pool.take(8_192)
    second[:4] = b"lost"
    assert bytes(part) == b"kept"

    del part, second
    third = pool.take(4_096)
    assert bytes(third[:4]) in (b"kept", b"lost")


def test_sources_are_spelled_as_the_settings_say() -> None:
    assert parse_source("broker-a/0=/data/a") == SourceSpec("broker-a", 0, SourceKind.FOLDER, "/data/a")
    assert parse_source("broker-a/1=s3://bucket/a") == SourceSpec("broker-a", 1, SourceKind.URI, "s3://bucket/a")
    assert parse_source("b/2=broker://h:10911") == SourceSpec("b", 2, SourceKind.BROKER, "h:10911")
    for wrong in ("broker-a=/data", "broker-a/x=/data", "/0=/data", "broker-a/0=", "broker-a/0"):
        with pytest.raises(ValueError, match="is no source"):
            parse_source(wrong)


def test_source_survives_its_way_to_an_executor() -> None:
    spec = SourceSpec("broker-a", 1, SourceKind.FOLDER, "/data", ReadMode.CACHED, 1 << 20)

    assert SourceSpec.from_json(spec.to_json()) == spec
