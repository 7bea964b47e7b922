"""Swaps through an etcd of three members whose leader is killed: none is lost, and none counts twice."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from support.group_records import RECORD
from support.running_time import run_program
from tandemmq.broker.failover.authority import Authority, AuthorityUnavailable, SwapLost, open_authority

_ROOT: Final = Path(__file__).resolve().parents[2]
# Unpacking Debian's package on a slow line.
_TOOL_LIMIT_S: Final = 300
_PATIENCE_S: Final = 60
_POLL_S: Final = 0.1
_WORKERS: Final = 3


class _Member:
    def __init__(self, number: int, program: str, folder: Path, ports: list[tuple[int, int]]) -> None:
        self.number = number
        self.client = f"127.0.0.1:{ports[number][0]}"
        peer = f"http://127.0.0.1:{ports[number][1]}"
        arguments = {
            "name": f"m{number}",
            "data-dir": str(folder / f"m{number}"),
            "listen-client-urls": f"http://{self.client}",
            "advertise-client-urls": f"http://{self.client}",
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(f"m{each}=http://127.0.0.1:{port}" for each, (_, port) in enumerate(ports)),
            # The machine may be busy, and the disk slow.
            "heartbeat-interval": "200",
            "election-timeout": "2000",
        }
        self._command = [program, *(f"--{name}={value}" for name, value in arguments.items())]
        self._log_path = folder / f"m{number}.log"
        self.start()

    def start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        """As a power cut ends it."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(_PATIENCE_S)

    def status(self) -> dict[str, Any] | None:
        """As its gateway tells; None: it does not answer."""
        request = urllib.request.Request(f"http://{self.client}/v3/maintenance/status", data=b"{}")
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=2) as answer:
                return dict(json.load(answer))
        except OSError:
            return None

    def is_leader(self) -> bool:
        status = self.status()
        return status is not None and status.get("leader") == status["header"]["member_id"]


@pytest.fixture(scope="module")
def program() -> str:
    done = run_program([str(_ROOT / "tools" / "etcd.sh")], limit_s=_TOOL_LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.fixture
def members(program: str, tmp_path: Path) -> Iterator[list[_Member]]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(6)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        numbers = [each.getsockname()[1] for each in sockets]
    ports = list(zip(numbers[::2], numbers[1::2], strict=True))
    started = [_Member(number, program, tmp_path, ports) for number in range(3)]
    yield started
    for member in started:
        member.kill()


async def _leader(members: list[_Member]) -> _Member:
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            for member in members:
                if await asyncio.to_thread(member.is_leader):
                    return member
            await asyncio.sleep(_POLL_S)


class _Worker:
    """Counts `renewals` up until it is told to stop, and keeps the books."""

    def __init__(self, number: int, authority: Authority) -> None:
        self.authority = authority
        self.number = number
        self.confirmed: list[int] = []
        self.unknown: list[int] = []
        self.versions: list[str] = []

    async def run(self, until: asyncio.Event) -> None:
        while not until.is_set():
            try:
                held = await self.authority.read()
            except AuthorityUnavailable:
                await asyncio.sleep(_POLL_S)
                continue
            assert held is not None
            count = held.record.renewals + 1
            try:
                after = await self.authority.swap(held, replace(held.record, renewals=count, nonce=f"w{self.number}"))
            except SwapLost:
                continue
            except AuthorityUnavailable:
                self.unknown.append(count)
                continue
            self.confirmed.append(count)
            self.versions.append(after.version)


async def _grows(workers: list[_Worker]) -> None:
    """Until each worker has won ten more swaps."""
    wanted = [len(worker.confirmed) + 10 for worker in workers]
    async with asyncio.timeout(_PATIENCE_S):
        while any(len(worker.confirmed) < count for worker, count in zip(workers, wanted, strict=True)):
            await asyncio.sleep(_POLL_S)


async def test_killed_leader_loses_and_doubles_no_swap(members: list[_Member]) -> None:
    setting = f"etcd:{','.join(member.client for member in members)}"
    workers = [
        _Worker(number, open_authority(setting, cluster="DefaultCluster", broker_name="broker-a"))
        for number in range(_WORKERS)
    ]
    await _leader(members)
    await workers[0].authority.swap(None, RECORD)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for worker in workers:
            tasks.create_task(worker.run(stop))
        await _grows(workers)
        for _ in range(2):
            leader = await _leader(members)
            leader.kill()
            await _leader([member for member in members if member is not leader])
            await _grows(workers)
            leader.start()
        await _grows(workers)
        stop.set()
    last = await workers[0].authority.read()
    assert last is not None
    confirmed = [count for worker in workers for count in worker.confirmed]
    # One won each number: nobody was told of a swap that another one replaced.
    assert len(set(confirmed)) == len(confirmed)
    versions = [version for worker in workers for version in worker.versions]
    assert len(set(versions)) == len(versions)
    # What nobody confirmed was applied, if at all, by a swap whose outcome was unknown.
    missing = set(range(1, last.record.renewals + 1)) - set(confirmed)
    assert missing <= {count for worker in workers for count in worker.unknown}
    assert max(confirmed) <= last.record.renewals
    # In the order of their versions the numbers grow: no swap was put back.
    pairs = [pair for worker in workers for pair in zip(map(int, worker.versions), worker.confirmed, strict=True)]
    assert [count for _, count in sorted(pairs)] == sorted(confirmed)
    for worker in workers:
        await worker.authority.close()
