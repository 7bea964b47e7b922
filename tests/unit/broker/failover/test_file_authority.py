"""The record in a folder: several processes, one that is stopped or killed at any call, what older releases left."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest

from support.authority_places import FilePlace, patient
from support.group_records import RECORD
from support.running_time import PATIENCE_S
from tandemmq.broker.failover import authority as authority_module
from tandemmq.broker.failover.authority import (
    AuthorityUnavailable,
    FileAuthority,
    Held,
    RecordSpoilt,
    SwapLost,
    open_authority,
)

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
    assert [len(files) for _, _, files in os.walk(place.folder)] == [0, 0, 1]
    await authority.close()


class _CutOs:
    """`os` that stops or kills its process before or after a call of a given number."""

    def __init__(self, at: int, then: signal.Signals) -> None:
        self._left = at
        self._then = then

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if not callable(found) or name in ("fspath", "fsdecode", "fsencode"):
            return found

        def call(*arguments: object, **named: object) -> object:
            self._step()
            result = found(*arguments, **named)
            self._step()
            return result

        return call

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._then)


_WON, _LOST = 0, 1


def _outcome(call: Callable[[], Held]) -> int:
    try:
        call()
    except SwapLost:
        return _LOST
    return _WON


def _older(folder: Path) -> None:
    """As a release before this one left it."""
    document = {"version": "7-0123456789abcdef", "record": json.loads(RECORD.to_text())}
    (folder / "c@b.json").write_text(json.dumps(document))


@contextmanager
def _cut_swap(
    authority: FileAuthority, before: Held | None, at: int, then: signal.Signals
) -> Iterator[tuple[int, int]]:
    """A swap in a process of its own, and how that stands."""
    child = os.fork()
    if not child:
        with mock.patch.object(authority_module, "os", _CutOs(at, then)):
            os._exit(_outcome(partial(authority._swap, before, replace(RECORD, epoch=2, nonce="cut"))))
    _, status = os.waitpid(child, os.WUNTRACED)
    try:
        yield child, status
    except BaseException:
        if os.WIFSTOPPED(status):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        raise


def _cut_everywhere(root: str, then: signal.Signals, kind: str) -> None:
    """A swap is cut at one call after the other: whatever it has done, others read what there is and go on."""
    at = 0
    is_cut = True
    while is_cut:
        at += 1
        folder = Path(root, f"{at}")
        folder.mkdir()
        if kind == "older":
            _older(folder)
        authority = FileAuthority(folder, cluster="c", broker_name="b")
        before = authority._swap(None, RECORD) if kind == "replace" else authority._read()
        with _cut_swap(authority, before, at, then) as (child, status):
            is_stopped, is_cut = os.WIFSTOPPED(status), not os.WIFEXITED(status)
            held = authority._read()
            is_applied = held is not None and held.record.nonce == "cut"
            assert is_applied or held == before
            try:
                later = authority._swap(held, replace(RECORD, epoch=3, nonce="other"))
            except AuthorityUnavailable:
                # The lock of an older release, which the first swap behind one needs, and no later one.
                assert (kind, is_stopped, is_applied) == ("older", True, False)
                os.kill(child, signal.SIGCONT)
                os.waitpid(child, 0)
                continue
            for epoch in range(4, 7):
                later = authority._swap(later, replace(later.record, epoch=epoch))
                assert authority._read() == later
            if is_stopped:
                os.kill(child, signal.SIGCONT)
                _, status = os.waitpid(child, 0)
                assert os.WEXITSTATUS(status) == (_WON if is_applied else _LOST)
                assert authority._read() == later, "who was stopped has undone what came after it"
            authority._swap(later, RECORD)
            kept = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
            assert len(kept) == 1, kept
    assert at > 10


@pytest.mark.parametrize("kind", ["create", "replace", "older"])
@pytest.mark.parametrize("then", [signal.SIGSTOP, signal.SIGKILL])
def test_a_swap_that_is_cut_at_any_call_keeps_nobody(tmp_path: Path, then: signal.Signals, kind: str) -> None:
    # In a process without threads, since each cut is in a copy of it.
    process = multiprocessing.get_context("spawn").Process(target=_cut_everywhere, args=(str(tmp_path), then, kind))
    process.start()
    process.join(2 * PATIENCE_S)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0


async def test_members_of_an_older_release_change_nothing_any_more(place: FilePlace) -> None:
    """Neither who waits for the lock, nor who has a file ready: what they read, and what they would replace, is a
    folder."""
    document = {"version": "7-0123456789abcdef", "record": json.loads(RECORD.to_text())}
    place.plant(json.dumps(document))
    leftover = place.path.with_name(f"{place.path.name}.0123456789abcdef.new")
    leftover.write_text("half a rec")
    authority = place.open()
    held = await authority.read()
    assert held == Held(RECORD, "7-0123456789abcdef")
    with pytest.raises(SwapLost):
        await authority.swap(None, RECORD)
    after = await authority.swap(held, replace(RECORD, renewals=1))
    assert after.version.startswith("8-")
    assert await place.open().read() == after
    assert not leftover.exists()
    with pytest.raises(IsADirectoryError):
        place.path.read_bytes()
    # Copied with the folder, it leads to the copy.
    shutil.copytree(place.folder, place.folder.with_name("copy"), symlinks=True)
    copied = open_authority(f"file:{place.folder.with_name('copy')}", cluster="DefaultCluster", broker_name="broker-a")
    last = await authority.swap(after, RECORD)
    assert await copied.read() == after
    assert await authority.read() == last
    # Somebody puts the older release's file back: it is the record, as any backup is.
    place.path.unlink()
    place.plant(json.dumps(document))
    assert await authority.read() == held
    with pytest.raises(SwapLost):
        await authority.swap(last, RECORD)
    again = await authority.swap(held, RECORD)
    assert await authority.read() == again
    assert len([path for path in place.folder.rglob("*") if path.is_file()]) == 1
    await copied.close()
    await authority.close()


async def test_a_lock_of_an_older_release_stops_the_first_swap_and_no_reads(
    place: FilePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That of the whole call stays longer: if it is over first, the error does not name the lock.
    monkeypatch.setattr("tandemmq.broker.failover.authority._LOCK_LIMIT_S", 0.5)
    place.plant(json.dumps({"version": "7-0123456789abcdef", "record": json.loads(RECORD.to_text())}))
    authority = place.open()
    fd = os.open(place.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    async with asyncio.timeout(PATIENCE_S):
        held = await authority.read()
        with pytest.raises(AuthorityUnavailable, match=r"another process holds .*\.lock"):
            await authority.swap(held, replace(RECORD, renewals=1))
        assert await authority.read() == held
        os.close(fd)
        await authority.swap(held, replace(RECORD, renewals=1))
    await authority.close()


async def test_version_behind_a_restored_backup_is_a_new_one(place: FilePlace) -> None:
    authority = place.open()
    first = await authority.swap(None, RECORD)
    shutil.copytree(place.path, place.folder / "backup")
    second = await authority.swap(first, replace(RECORD, renewals=1))
    shutil.rmtree(place.path)
    (place.folder / "backup").replace(place.path)
    again = await authority.swap(first, replace(RECORD, epoch=2))
    assert again.version != second.version
    with pytest.raises(SwapLost):
        await authority.swap(second, replace(RECORD, renewals=2))
    await authority.close()


async def test_a_record_that_is_two_or_half_of_one_is_named(place: FilePlace) -> None:
    authority = place.open()
    first = await authority.swap(None, RECORD)
    (version,) = place.path.iterdir()
    shutil.copytree(version, place.path / "9-00")
    with pytest.raises(RecordSpoilt, match=r"one version is in force, and there are 1-.*, 9-00.*remove it"):
        await authority.read()
    shutil.rmtree(version)
    with pytest.raises(RecordSpoilt, match=r"9-00\.json cannot be read \(it is missing"):
        await authority.read()
    (place.path / "9-00" / f"{version.name}.json").rename(place.path / "9-00" / "9-00.json")
    with pytest.raises(RecordSpoilt, match=f"it is version {version.name}"):
        await authority.read()
    with pytest.raises(SwapLost):
        await authority.swap(None, RECORD)
    with pytest.raises(SwapLost):
        await authority.swap(first, RECORD)
    shutil.rmtree(place.path / "9-00")
    # Emptied by an operator: there is no record.
    assert await authority.read() is None
    again = await authority.swap(None, RECORD)
    assert await authority.read() == again
    shutil.rmtree(place.path)
    place.path.symlink_to("away")
    with pytest.raises(RecordSpoilt, match="it leads to nothing"):
        await authority.read()
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


async def test_a_full_disk_is_said_to_be_full(place: FilePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's error of a write names no file."""
    authority = place.open()
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(authority_module, "_write_durably", full)
    with pytest.raises(AuthorityUnavailable, match=r"\(No space left on device\); .* have room"):
        await authority.swap(None, RECORD)
