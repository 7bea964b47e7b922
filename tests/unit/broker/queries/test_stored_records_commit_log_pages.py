"""What is cold is read by a thread, once; what is warm is left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandemmq.broker.queries import stored_records as module
from tandemmq.broker.queries.stored_records import CommitLogPages
from tandemmq.core.storage.commit_log import file_name
from tandemmq.service.page_cache import resident_pages

FILE_BYTES = 1 << 20


@pytest.fixture
def folder(disk_path: Path) -> Path:
    """Two files of a log, none of whose pages is in memory."""
    for start in (FILE_BYTES, 2 * FILE_BYTES):
        path = disk_path / file_name(start)
        path.write_bytes(os.urandom(FILE_BYTES))
        chill(path)
    return disk_path


def chill(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm_pages(path: Path) -> bytes:
    with path.open("rb") as file:
        return resident_pages(file.fileno(), 0, FILE_BYTES)


async def test_ranges_are_warm_afterwards(folder: Path) -> None:
    first, second = folder / file_name(FILE_BYTES), folder / file_name(2 * FILE_BYTES)
    if any(warm_pages(first)):
        pytest.skip("this file system keeps its pages")
    pages = CommitLogPages(folder, file_bytes=FILE_BYTES)
    # Across the end of a file, near each other, empty, and where there is no file.
    border = 2 * FILE_BYTES
    await pages.fetch([(border - 5_000, border + 100), (FILE_BYTES + 10, FILE_BYTES + 20), (7, 7), (0, 100)])
    assert warm_pages(first)[0] == 1
    assert warm_pages(first)[-1] == warm_pages(first)[-2] == 1
    assert warm_pages(second)[0] == 1


async def test_what_is_warm_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = CommitLogPages(folder, file_bytes=FILE_BYTES)
    stretch = (FILE_BYTES, FILE_BYTES + 200_000)
    await pages.fetch([stretch])

    def unwanted(_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(module, "_read_all", unwanted)
    await pages.fetch([stretch, (FILE_BYTES + 100, FILE_BYTES + 300)])


async def test_a_file_that_expires_is_no_trouble(folder: Path) -> None:
    pages = CommitLogPages(folder, file_bytes=FILE_BYTES)
    await pages.fetch([(FILE_BYTES, FILE_BYTES + 100)])
    (folder / file_name(FILE_BYTES)).unlink()
    await pages.fetch([(FILE_BYTES, FILE_BYTES + 500_000)])
    for number in range(20):
        await pages.fetch([(number * FILE_BYTES, number * FILE_BYTES + 10)])
