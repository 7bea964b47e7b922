"""The official Python client in processes and an environment of its own, against a broker in this one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

# The environment is the demo's too: one list of pinned requirements for both.
from demo.official_client import install_official_client
from support.broker_assembly import BrokerAssembly
from support.client_endpoint import FRONTS, serving
from support.manual_time import OffsetClock
from support.running_time import PATIENCE_S
from tandemmq.service.event_loop import SystemClock

SCRIPTS = Path(__file__).parent / "scripts"

# Runs a script with the topic, and gives the JSON object it printed.
RunScript = Callable[..., Awaitable[dict[str, Any]]]
# The same at an address.
RunAt = Callable[..., Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A serving broker with the topics `orders` and, for transactions, `payments`; new groups begin at the earliest
    message."""

    address: str
    broker: BrokerAssembly
    clock: OffsetClock


@dataclass(slots=True)
class Push:
    """A running push consumer; see scripts/push.py. `handled` has its handler's calls in their order."""

    process: asyncio.subprocess.Process
    log: Path
    client_id: str = ""
    handled: list[dict[str, Any]] = field(default_factory=list)

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            told = json.loads(line)
            if "started" in told:
                self.client_id = told["started"]
            else:
                self.handled.append(told)

    async def until(self, holds: Callable[[], bool], what: str, *, limit_s: float = PATIENCE_S) -> None:
        """Waits; AssertionError when it does not hold in time, or the program ends."""
        try:
            async with asyncio.timeout(limit_s):
                while not holds():
                    assert self.process.returncode is None, f"{what}: it ended: {self.log.read_text()}"
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not within {limit_s} s: {what}: {self.handled[-50:]}") from None

    def bodies(self) -> list[str]:
        """Of the handler's calls."""
        return [one["body"] for one in self.handled]

    def go_on(self) -> None:
        """Ends the holding of messages."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"go on\n")


RunPush = Callable[..., AbstractAsyncContextManager[Push]]


@pytest.fixture(scope="session")
def official_python() -> Path:
    """The interpreter that has the official client; installed once."""
    return install_official_client() / "bin" / "python"


@pytest.fixture(params=sorted(FRONTS))
async def endpoint(request: pytest.FixtureRequest) -> AsyncIterator[Endpoint]:
    clock = OffsetClock(SystemClock())
    broker = BrokerAssembly(clock=clock, timers=asyncio.get_running_loop())
    broker.add_topic("orders")
    broker.add_topic("payments", message_type="TRANSACTION")
    broker.add_topic("reminders", message_type="DELAY")
    broker.add_topic("ordered", queue_count=2, message_type="FIFO")
    broker.add_group("in-order", fifo=True)
    tasks = [asyncio.create_task(broker.delayed.run()), asyncio.create_task(_keep_house(broker))]
    async with serving(broker, FRONTS[request.param]) as address:
        yield Endpoint(address, broker, clock)
        for task in tasks:
            task.cancel()


async def _keep_house(broker: BrokerAssembly) -> None:
    """As a broker does: leases are renewed, silent clients forgotten, producers asked after transactions."""
    while True:
        await asyncio.sleep(0.2)
        broker.api.housekeep()


@pytest.fixture
def run_at(official_python: Path, tmp_path: Path) -> RunAt:
    """Runs a script at any address."""

    async def run(address: str, name: str, *arguments: str) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            official_python,
            SCRIPTS / f"{name}.py",
            *("--endpoint", address, "--topic", "orders"),
            *arguments,
            # The client logs below the home folder.
            env={**os.environ, "HOME": str(tmp_path)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                output, errors = await process.communicate()
        except TimeoutError:
            process.kill()
            output, errors = await process.communicate()
            raise AssertionError(f"{name}: no end within {PATIENCE_S} s: {errors.decode()}") from None
        assert process.returncode == 0, f"{name}: {errors.decode()}"
        result: dict[str, Any] = json.loads(output)
        return result

    return run


@pytest.fixture
def run_script(endpoint: Endpoint, run_at: RunAt) -> RunScript:
    """Runs a script at the broker of this process."""
    return partial(run_at, endpoint.address)


@pytest.fixture
def push_at(official_python: Path, tmp_path: Path) -> RunPush:
    """Runs push consumers at any address; they are killed at the end of the block."""

    @asynccontextmanager
    async def run(address: str, *arguments: str) -> AsyncIterator[Push]:
        log = tmp_path / f"push-{len(list(tmp_path.glob('push-*')))}.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                official_python,
                SCRIPTS / "push.py",
                *("--endpoint", address, "--topic", "orders"),
                *arguments,
                env={**os.environ, "HOME": str(tmp_path)},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        push = Push(process, log)
        reading = asyncio.create_task(push.read())
        try:
            await push.until(lambda: bool(push.client_id), "the consumer has started")
            yield push
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await reading

    return run


@pytest.fixture
def run_push(endpoint: Endpoint, push_at: RunPush) -> RunPush:
    """Runs push consumers at the broker of this process."""
    return partial(push_at, endpoint.address)
