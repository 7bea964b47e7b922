"""Which files of a store may be read; on a folder of its own, since links are the point."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.vanishing_files import let_vanish
from tandemmq.broker.audit.store_files import (
    PathRefused,
    StoreFiles,
    commit_log_start,
    keep_next,
    kept_names,
    read_into,
)
from tandemmq.core.audit.replica_store import StoreEntry

SEGMENT = f"commitlog/{0:020d}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("commitlog", "consumequeue/topic/0", "config", "kept-tails", "elsewhere/0"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / SEGMENT).write_bytes(bytes(range(256)) * 16)
    (tmp_path / "commitlog/next.unfinished").write_bytes(b"half")
    (tmp_path / f"consumequeue/topic/0/{0:020d}").write_bytes(b"entries")
    (tmp_path / "config/topics.json").write_text("{}")
    (tmp_path / "checkpoint").write_bytes(b"c")
    (tmp_path / "lock").write_bytes(b"lock")
    (tmp_path / "config/outside.json").symlink_to("/etc/hostname")
    (tmp_path / "config/pipe").touch()
    os.unlink(tmp_path / "config/pipe")
    os.mkfifo(tmp_path / "config/pipe")
    (tmp_path / "consumequeue/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / f"elsewhere/0/{0:020d}").write_bytes(b"x")
    return tmp_path


def test_file_that_goes_while_its_folder_is_read_takes_no_other_with_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / f"commitlog/{4096:020d}").write_bytes(b"expired")
    let_vanish(monkeypatch, root / f"commitlog/{4096:020d}")
    assert [entry.name for entry in StoreFiles(str(root)).list_folder("commitlog")] == [f"{0:020d}"]


def read(root: Path, path: str, offset: int, length: int) -> bytes | None:
    file = StoreFiles(str(root)).open(path)
    if file is None:
        return None
    buffer = bytearray(length)
    return bytes(buffer[: read_into(file.number, memoryview(buffer), offset)])


def test_the_root_shows_what_may_be_read(root: Path) -> None:
    assert StoreFiles(str(root)).list_folder("") == [
        StoreEntry("checkpoint", 1),
        StoreEntry("commitlog", -1),
        StoreEntry("config", -1),
        StoreEntry("consumequeue", -1),
    ]


def test_half_made_files_and_links_are_not_listed(root: Path) -> None:
    files = StoreFiles(str(root))
    assert files.list_folder("commitlog") == [StoreEntry(f"{0:020d}", 4096)]
    assert [entry.name for entry in files.list_folder("consumequeue")] == ["topic"]
    assert "outside.json" not in [entry.name for entry in files.list_folder("config")]
    assert files.list_folder("index") == []
    assert files.list_folder("consumequeue/nobody/3") == []


def test_files_are_read_from_any_place_to_their_end(root: Path) -> None:
    content = (root / SEGMENT).read_bytes()
    assert read(root, SEGMENT, 0, 4096) == content
    assert read(root, SEGMENT, 4_000, 500) == content[4_000:]
    assert read(root, SEGMENT, 5_000, 500) == b""
    assert read(root, "checkpoint", 0, 10) == b"c"
    assert read(root, f"commitlog/{4096:020d}", 0, 1) is None
    assert read(root, f"consumequeue/nobody/0/{0:020d}", 0, 1) is None


@pytest.mark.parametrize(
    "path",
    [
        "",
        "lock",
        "kept-tails/x",
        "commitlog",
        "config/../lock",
        "../x/checkpoint",
        "/etc/hostname",
        "config//topics.json",
        "config/./topics.json",
        "config/\0",
        "config/outside.json",
        "config/pipe",
        "consumequeue/topic/0",
        f"consumequeue/linked/0/{0:020d}",
        "checkpoint/x",
    ],
)
def test_nothing_else_is_opened(root: Path, path: str) -> None:
    with pytest.raises(PathRefused):
        StoreFiles(str(root)).open(path)


@pytest.mark.parametrize("path", ["kept-tails", "elsewhere", "..", "commitlog/00", "consumequeue/linked", "checkpoint"])
def test_nothing_else_is_listed(root: Path, path: str) -> None:
    with pytest.raises(PathRefused):
        StoreFiles(str(root)).list_folder(path)


def test_a_commit_log_file_tells_where_it_starts() -> None:
    assert commit_log_start(f"commitlog/{4096:020d}") == 4096
    assert commit_log_start("commitlog/x") is None
    assert commit_log_start("config/00") is None


def test_what_is_kept_next_never_takes_the_place_of_what_is_kept(tmp_path: Path) -> None:
    """Somebody has moved the oldest away, and a write was cut short."""
    folder = str(tmp_path / "kept-repairs")
    for data in (b"first", b"second"):
        keep_next(folder, "queue-T-0-", data)
    (tmp_path / "kept-repairs/queue-T-0-0000").unlink()
    (tmp_path / "kept-repairs/queue-T-0-0002.unfinished").touch()
    assert keep_next(folder, "queue-T-0-", b"third") == "queue-T-0-0002"
    kept = [(tmp_path / "kept-repairs" / name).read_bytes() for name in kept_names(folder, "queue-T-0-")]
    assert kept == [b"second", b"third"]
