"""The record in a file: several processes, what a killed one leaves, a lock that somebody keeps."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from support.authority_places import FilePlace, patient
from support.group_records import RECORD
from support.running_time import PATIENCE_S
from tandemmq.broker.failover.authority import AuthorityUnavailable, SwapLost, open_authority

_ROUNDS: Final = 40


@pytest.fixture
def place(tmp_path: Path) -> FilePlace:
    return FilePlace(tmp_path / "records")


def _count_up(folder: str) -> None:
    """Adds one to `renewals`, as often as it is told to, whoever else does."""

    async def count() -> None:
        authority = open_authority(f"file:{folder}", cluster="DefaultCluster", broker_name="broker-a")
        done = 0
        while done < _ROUNDS:
            held = await authority.read()
            assert held is not None
            try:
                await authority.swap(held, replace(held.record, renewals=held.record.renewals + 1))
            except SwapLost:
                continue
            done += 1
        await authority.close()

    with patient(60):
        asyncio.run(count())


async def test_processes_lose_no_swap_of_each_other(place: FilePlace) -> None:
    authority = place.open()
    await authority.swap(None, RECORD)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_count_up, args=(str(place.folder),)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        await asyncio.to_thread(process.join, PATIENCE_S)
        assert process.exitcode == 0
    held = await authority.read()
    assert held is not None
    assert held.record.renewals == len(processes) * _ROUNDS
    assert sorted(each.suffix for each in place.folder.iterdir()) == [".json", ".lock"]
    await authority.close()


async def test_held_lock_stops_swaps_and_no_reads(place: FilePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    # That of the whole call stays longer: if it is over first, the error does not name the lock.
    monkeypatch.setattr("tandemmq.broker.failover.authority._LOCK_LIMIT_S", 0.5)
    authority = place.open()
    held = await authority.swap(None, RECORD)
    fd = os.open(place.path.with_suffix(".lock"), os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(AuthorityUnavailable, match=r"another process holds .*\.lock"):
            await authority.swap(held, replace(RECORD, renewals=1))
        assert await authority.read() == held
        os.close(fd)
        await authority.swap(held, replace(RECORD, renewals=1))
    await authority.close()


async def test_file_of_a_killed_process_goes_with_the_next_swap(place: FilePlace) -> None:
    authority = place.open()
    held = await authority.swap(None, RECORD)
    leftover = place.path.with_name(f"{place.path.name}.0123456789abcdef.new")
    leftover.write_text("half a rec")
    await authority.swap(held, replace(RECORD, renewals=1))
    assert not leftover.exists()
    await authority.close()


async def test_version_behind_a_restored_backup_is_a_new_one(place: FilePlace) -> None:
    authority = place.open()
    first = await authority.swap(None, RECORD)
    shutil.copy(place.path, place.folder / "backup")
    second = await authority.swap(first, replace(RECORD, renewals=1))
    (place.folder / "backup").replace(place.path)
    again = await authority.swap(first, replace(RECORD, epoch=2))
    assert again.version != second.version
    with pytest.raises(SwapLost):
        await authority.swap(second, replace(RECORD, renewals=2))
    await authority.close()


async def test_missing_folder_is_not_an_absent_record(tmp_path: Path) -> None:
    authority = open_authority(f"file:{tmp_path}/missing", cluster="c", broker_name="b")
    with pytest.raises(AuthorityUnavailable, match="the folder must exist"):
        await authority.read()
    with pytest.raises(AuthorityUnavailable, match="the folder must exist"):
        await authority.swap(None, RECORD)
    assert not (tmp_path / "missing").exists()
    await authority.close()


async def test_unreadable_file_is_named(place: FilePlace) -> None:
    place.plant("{")
    authority = place.open()
    with pytest.raises(AuthorityUnavailable, match=r"DefaultCluster@broker-a\.json cannot be read.*put back a copy"):
        await authority.swap(None, RECORD)
    assert place.text() == "{"
    await authority.close()
