"""What a service checks of its machine before it starts."""

from __future__ import annotations

import socket
from pathlib import Path

from tandemmq.service.settings import check_folder_writable, check_ports_free


def test_taken_port_is_reported_by_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = check_ports_free("127.0.0.1", {"listenPort": port, "other": 0})
    assert len(found) == 1
    assert found[0].startswith(f"listenPort={port}: another process listens")


def test_address_of_another_machine_is_reported() -> None:
    found = check_ports_free("192.0.2.1", {"listenPort": 19_876})
    assert "set bindAddress" in found[0]


def test_folder_that_can_be_made_is_good_and_is_not_left(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for place in ("a/b", "mine/a", "mine"):
        assert check_folder_writable("storePathRootDir", tmp_path / place) == []
        assert [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")] == ["mine"]


def test_folder_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    found = check_folder_writable("storePathRootDir", tmp_path / "file")
    assert found[0].startswith(f"storePathRootDir={tmp_path / 'file'}: cannot be written")
