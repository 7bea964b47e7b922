from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tandemmq.admin.cluster_state import ExpectedBroker
from tandemmq.cli.cluster_address import find_target
from tandemmq.cli.ending import EXIT_REFUSED, CommandError
from tandemmq.cli.local.folder import ClusterFolder, ClusterRecord, MemberRecord, lay_out, start_mark

_BROKER = ExpectedBroker(
    cluster="DefaultCluster",
    broker_name="broker-a",
    broker_id=0,
    client_endpoint="127.0.0.1:8081",
    metadata_endpoint="127.0.0.1:10911",
    ha_endpoint="127.0.0.1:10912",
)


def _record(*, pid: int, mark: str) -> ClusterRecord:
    member = MemberRecord(
        name="broker-a",
        kind="broker",
        role="SYNC_MASTER",
        pid=pid,
        start_mark=mark,
        ports={"listenPort": 10911},
        config="conf/broker-a.properties",
        log="logs/broker-a.log",
        store="store/broker-a",
        broker=_BROKER,
    )
    return ClusterRecord(
        preset="2m-2s-sync",
        state="ready",
        supervisor_pid=pid,
        supervisor_start_mark=mark,
        name_servers=("127.0.0.1:9876",),
        client_endpoints=("127.0.0.1:8081",),
        members=(member,),
    )


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    folder = ClusterFolder(tmp_path)
    folder.prepare()
    return folder


def test_record_reads_back_as_written(folder: ClusterFolder) -> None:
    record = _record(pid=os.getpid(), mark=start_mark(os.getpid()) or "")
    folder.write_record(record)
    assert folder.read_record() == record
    assert record.supervised
    assert record.expected_brokers == (_BROKER,)


def test_reused_pid_is_not_taken_for_the_member(folder: ClusterFolder) -> None:
    record = _record(pid=os.getpid(), mark="started at another time")
    assert not record.supervised
    assert not record.members[0].running


def test_a_cluster_is_over_when_its_processes_are_gone_and_nobody_has_its_ports(folder: ClusterFolder) -> None:
    """Those of a container are hidden from us, and serve all the same."""
    gone = _record(pid=os.getpid(), mark="started at another time")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        gone = replace(gone, members=(replace(gone.members[0], ports={"listenPort": port, "odd": 1 << 30}),))
        assert not gone.is_over
    assert gone.is_over
    assert not _record(pid=os.getpid(), mark=start_mark(os.getpid()) or "").is_over
    folder.write_record(gone)
    with pytest.raises(CommandError) as refused:
        find_target(None, folder.root, None)
    assert "it was killed" in refused.value.cause
    assert f"tandemmq up --data {folder.root}" in refused.value.remedy


def test_no_record_means_nothing_runs(folder: ClusterFolder) -> None:
    assert folder.read_record() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"members": []}', '{"members": [1]}', "\0", b"\xff"])
def test_record_that_we_did_not_write_is_refused_by_its_name(text: str | bytes, folder: ClusterFolder) -> None:
    path = folder.root / "cluster.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(CommandError, match=f"{path} cannot be read"):
        folder.read_record()


def test_record_of_another_user_is_not_said_to_be_damaged(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, encoding: str) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(CommandError) as refused:
        folder.read_record()
    assert "another user" in refused.value.cause
    assert "as that user" in refused.value.remedy
    assert "remove" not in refused.value.remedy


def _places(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*path, key))


_DOCUMENT = json.loads(json.dumps(asdict(_record(pid=1, mark="a mark"))))


@pytest.mark.parametrize("path", list(_places(_DOCUMENT)), ids=lambda path: ".".join(map(str, path)))
def test_a_field_of_a_record_is_of_its_type_or_refused_by_its_name(
    path: tuple[str | int, ...], folder: ClusterFolder
) -> None:
    """A pid of -1 is everybody's processes: `tandemmq down` would end them."""
    for strange in (None, True, -1, 1 << 70, 1.5, "", "text", [], [1], ["text"], {}, {"a": 1}, {"a": "text"}):
        document = json.loads(json.dumps(_DOCUMENT))
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = strange
        (folder.root / "cluster.json").write_text(json.dumps(document), encoding="utf-8")
        found = _read_or_refused(folder)
        if found is None:
            continue
        assert [found.supervised, *(member.running for member in found.members)].count(True) == 0
        assert all(type(pid) is int and 0 <= pid < 1 << 31 for pid in (found.supervisor_pid, *_pids(found)))
        addresses = [*found.name_servers, *found.client_endpoints, found.admin_url, found.preset, found.state]
        addresses += [broker.metadata_endpoint for broker in found.expected_brokers]
        assert found.name_servers
        assert all(isinstance(each, str) for each in addresses)


def _read_or_refused(folder: ClusterFolder) -> ClusterRecord | None:
    try:
        return folder.read_record()
    except CommandError as error:
        refused = error
    assert refused.exit_code == EXIT_REFUSED
    assert refused.remedy
    return None


def _pids(record: ClusterRecord) -> list[int]:
    return [member.pid for member in record.members]


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CommandError, match=f"{file} is no folder"):
        ClusterFolder(file).read_record()


def test_second_lock_is_refused_and_names_the_owner(folder: ClusterFolder) -> None:
    folder.lock()
    with pytest.raises(CommandError, match="another `tandemmq up` is at work in") as checking:
        ClusterFolder(folder.root).lock()
    assert f"process {os.getpid()} holds" in checking.value.cause
    assert "wait" in checking.value.remedy
    folder.write_record(_record(pid=os.getpid(), mark=start_mark(os.getpid()) or ""))
    with pytest.raises(CommandError) as refused:
        ClusterFolder(folder.root).lock()
    assert f"process {os.getpid()} holds" in refused.value.cause
    assert "tandemmq down" in refused.value.remedy


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = ClusterFolder(tmp_path / "file" / "data")
    with pytest.raises(CommandError, match="cannot be used"), folder.kept_if_done():
        folder.prepare()


def test_folder_that_cannot_be_locked_is_refused(folder: ClusterFolder) -> None:
    (folder.root / "lock").mkdir()
    with pytest.raises(CommandError, match="cannot be used") as refused, folder.kept_if_done():
        folder.lock()
    assert refused.value.cause == f"Is a directory: {folder.root / 'lock'}"


@pytest.mark.parametrize("part", ["", "conf", "logs"])
def test_a_folder_of_another_user_is_refused_before_anything_is_written_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Somebody else's `data` in a shared folder, where `tandemmq up` is called without a thought."""
    root, precious = tmp_path / "data", tmp_path / "precious"
    precious.write_text("words")
    (root / part).mkdir(parents=True)
    (root / "lock").symlink_to(precious)
    if os.geteuid() == 0:
        os.chown(root / part, 54_321, -1)
    owner = (root / part).stat().st_uid
    if part and os.geteuid() != 0:
        pytest.skip("only root can make a folder of two owners")
    before = sorted(root.rglob("*"))
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    folder = ClusterFolder(root)
    with pytest.raises(CommandError, match=rf"belongs to another user \(id {owner}\)"), folder.kept_if_done():
        folder.prepare()  # Before the lock is taken, which would follow the link.
    assert sorted(root.rglob("*")) == before
    assert precious.read_text() == "words"


def test_a_folder_of_one_s_own_or_of_root_is_used_and_root_uses_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = tmp_path.stat().st_uid
    for user in {owner, 0, *({12_345} if owner == 0 else ())}:
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        ClusterFolder(tmp_path).prepare()


def test_a_new_data_folder_is_its_owner_s_alone_and_an_old_one_stays(tmp_path: Path) -> None:
    for name, is_there in (("new", False), ("old", True)):
        root = tmp_path / name / "data"
        if is_there:
            root.mkdir(parents=True)
            root.chmod(0o755)
        folder = ClusterFolder(root)
        folder.prepare()
        assert root.stat().st_mode & 0o777 == (0o755 if is_there else 0o700)
        assert folder.logs.stat().st_mode & 0o777 == 0o700


def test_what_a_member_writes_without_end_is_bounded(folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.cli.local.folder._LOG_BYTES_MAX", 1_000)
    path = folder.log_path("broker-a")
    folder.bound_log("broker-a")  # not there yet
    with path.open("ab", buffering=0) as log:
        start = log.seek(0, os.SEEK_END)
        for number in range(500):
            log.write(f"line {number}\n".encode())
            folder.bound_log("broker-a")
            held = sum(each.stat().st_size for each in path.parent.iterdir())
            assert held <= 2 * 1_000 + 20
        before = path.with_name("broker-a.log.1").read_text().splitlines()
        kept = before + path.read_text().splitlines()
    assert kept == [f"line {number}" for number in range(500 - len(kept), 500)]
    assert folder.log_tail("broker-a", lines=1, since=start + 5_000) == ["line 499"]


def test_log_tail_begins_where_this_start_began(folder: ClusterFolder) -> None:
    folder.log_path("broker-a").write_text("old\nnew 1\nnew 2\n")
    assert folder.log_tail("broker-a", lines=5, since=4) == ["new 1", "new 2"]
    assert folder.log_tail("broker-a", lines=1) == ["new 2"]
    assert folder.log_tail("broker-b", lines=5) == []


def test_refused_start_leaves_nothing_of_a_new_folder(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path / "not" / "there" / "data")
    with contextlib.suppress(CommandError), folder.kept_if_done():
        folder.prepare()
        folder.lock()
        (folder.conf / "broker-a.properties").write_text("brokerName=broker-a\n")
        folder.make(folder.root / "authority")
        raise CommandError("refused")
    assert list(tmp_path.iterdir()) == []


def test_start_on_a_full_disk_leaves_nothing_of_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    folder = ClusterFolder(tmp_path / "data")
    with contextlib.suppress(CommandError), folder.kept_if_done():
        folder.prepare()
        folder.lock()
        pytest.fail("its number was written")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_preset_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator deleted comes back on a disk that fills up meanwhile; PRESET is not written twice."""
    folder = ClusterFolder(tmp_path / "data")
    folder.prepare()
    lay_out(folder, "2m-noslave")
    before = (folder.conf / "PRESET").stat()
    (folder.conf / "broker-a.properties").unlink()
    write_text = Path.write_text

    def full(path: Path, text: str, **given: str) -> int:
        write_text(path, text[:10], **given)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        lay_out(folder, None)
    monkeypatch.undo()
    assert sorted(path.name for path in folder.conf.iterdir()) == [
        "PRESET",
        "broker-b.properties",
        "namesrv-0.properties",
        "namesrv-1.properties",
    ]
    assert lay_out(folder, None) == "2m-noslave"
    after = (folder.conf / "PRESET").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_refused_start_leaves_what_was_there_before(tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "notes").mkdir(parents=True)
    folder = ClusterFolder(root)
    with contextlib.suppress(CommandError), folder.kept_if_done():
        folder.prepare()
        folder.lock()
        raise CommandError("refused")
    assert [path.name for path in root.iterdir()] == ["notes"]


def test_refused_start_keeps_the_files_of_an_earlier_one(tmp_path: Path) -> None:
    ClusterFolder(tmp_path / "data").prepare()
    again = ClusterFolder(tmp_path / "data")
    with contextlib.suppress(CommandError), again.kept_if_done():
        again.prepare()
        raise CommandError("refused")
    assert not again.is_new
    assert again.conf.is_dir()


def test_refused_start_leaves_no_empty_folder_beside_earlier_files(tmp_path: Path) -> None:
    (tmp_path / "data" / "conf").mkdir(parents=True)
    folder = ClusterFolder(tmp_path / "data")
    with contextlib.suppress(CommandError), folder.kept_if_done():
        folder.prepare()
        folder.make(folder.root / "authority")
        raise CommandError("refused")
    assert [path.name for path in folder.root.iterdir()] == ["conf"]
