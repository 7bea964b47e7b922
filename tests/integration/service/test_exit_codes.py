"""How a service ends that cannot start: 2 until somebody mends it, 75 when the next start may find it mended.

What restarts services looks at the code alone. So each cause has the same one in each service.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.cluster_processes import SMALL_STORE
from tandemmq.service.settings import EXIT_REFUSED, EXIT_TRY_AGAIN

_LIMIT_S = 180
# An address for documentation: no machine has it.
_ABSENT_ADDRESS = "192.0.2.1"
_PORTS = {
    "nameserver": ("listenPort",),
    "admin": ("httpPort",),
    "broker": ("listenPort", "haListenPort", "grpcServerPort"),
}
_HAS_FOLDER = ("nameserver", "broker")
_METRICS = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0", "metricsPromExporterHost": _ABSENT_ADDRESS}


@pytest.fixture
def taken_port() -> Iterator[str]:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        yield str(taken.getsockname()[1])


def _ended(service: str, folder: Path, **settings: str) -> tuple[int, str]:
    """The exit code and what it said."""
    every = {"bindAddress": "127.0.0.1", **dict.fromkeys(_PORTS[service], "0")}
    if service in _HAS_FOLDER:
        every["storePathRootDir"] = str(folder / "store")
    if service == "broker":
        every |= dict(SMALL_STORE) | {"brokerIP1": "127.0.0.1", "namesrvAddr": "127.0.0.1:1"}
    words = [word for key, value in (every | settings).items() for word in ("--set", f"{key}={value}")]
    ended = subprocess.run(
        [sys.executable, "-m", f"tandemmq.{service}", *words],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        cwd=folder,
    )
    said = ended.stdout + ended.stderr
    assert "Traceback" not in said
    return ended.returncode, said


@pytest.mark.parametrize("service", _PORTS)
def test_a_wrong_setting_is_final(service: str, tmp_path: Path) -> None:
    code, said = _ended(service, tmp_path, namesrvAdr="127.0.0.1:9876")
    assert code == EXIT_REFUSED
    assert "namesrvAdr" in said


@pytest.mark.parametrize("service", _PORTS)
def test_a_taken_port_is_tried_again(service: str, tmp_path: Path, taken_port: str) -> None:
    code, said = _ended(service, tmp_path, **{_PORTS[service][0]: taken_port})
    assert code == EXIT_TRY_AGAIN
    assert f"{_PORTS[service][0]}={taken_port}: another process listens" in said


@pytest.mark.parametrize("service", _PORTS)
def test_a_wrong_setting_beside_a_taken_port_is_final(service: str, tmp_path: Path, taken_port: str) -> None:
    settings = {_PORTS[service][0]: taken_port, "bindAddress": "127.0.0.1", "serviceTlsMode": "enforcing"}
    code, said = _ended(service, tmp_path, **settings)
    assert code == EXIT_REFUSED
    assert "serviceTlsPath" in said


@pytest.mark.parametrize("service", _PORTS)
def test_an_address_that_is_not_there_yet_is_tried_again(service: str, tmp_path: Path, taken_port: str) -> None:
    settings = {"bindAddress": _ABSENT_ADDRESS, _PORTS[service][0]: taken_port}
    if service == "admin":
        settings["adminToken"] = "correct-horse-battery"
    code, said = _ended(service, tmp_path, **settings)
    assert code == EXIT_TRY_AGAIN
    assert "set bindAddress to an address of this machine" in said


@pytest.mark.parametrize("service", _PORTS)
def test_a_certificate_that_is_not_there_yet_is_tried_again(service: str, tmp_path: Path) -> None:
    code, said = _ended(service, tmp_path, serviceTlsMode="enforcing", serviceTlsPath=str(tmp_path / "absent"))
    assert code == EXIT_TRY_AGAIN
    assert "serviceTlsPath" in said


@pytest.mark.parametrize("service", ["nameserver", "broker"])
def test_metrics_at_an_address_that_is_not_there_yet_are_tried_again(service: str, tmp_path: Path) -> None:
    code, said = _ended(service, tmp_path, **_METRICS)
    assert code == EXIT_TRY_AGAIN
    assert _ABSENT_ADDRESS in said


@pytest.mark.parametrize("service", _HAS_FOLDER)
def test_a_disk_that_is_not_mounted_yet_is_tried_again(service: str, tmp_path: Path) -> None:
    # Where nobody can make a folder, root neither.
    code, said = _ended(service, tmp_path, storePathRootDir="/proc/not-mounted/store")
    assert code == EXIT_TRY_AGAIN
    assert "storePathRootDir=/proc/not-mounted/store: cannot be written" in said


@pytest.mark.parametrize("service", _HAS_FOLDER)
def test_a_file_in_the_place_of_the_folder_is_final(service: str, tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"")
    code, said = _ended(service, tmp_path)
    assert code == EXIT_REFUSED
    assert f"storePathRootDir={tmp_path / 'store'}: cannot be written" in said


def test_a_name_without_an_address_yet_is_tried_again(tmp_path: Path) -> None:
    code, said = _ended("broker", tmp_path, brokerIP1="broker.invalid", addressResolveTimeout="700")
    assert code == EXIT_TRY_AGAIN
    assert "brokerIP1=broker.invalid: does not resolve" in said


def test_a_store_made_with_other_settings_is_final(tmp_path: Path) -> None:
    log = tmp_path / "store" / "commitlog"
    log.mkdir(parents=True)
    for start in (0, 1 << 20):
        (log / f"{start:020}").write_bytes(bytes(1 << 20))
    code, said = _ended("broker", tmp_path)
    assert code == EXIT_REFUSED
    assert "SegmentSizeMismatch" in said
