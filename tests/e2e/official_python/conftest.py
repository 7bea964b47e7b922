"""The official Python client in processes and an environment of its own, against a broker in this one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

# The environment is the demo's too: one list of pinned requirements for both.
from demo.official_client import install_official_client
from support.broker_assembly import BrokerAssembly
from support.client_endpoint import FRONTS, serving
from support.manual_time import OffsetClock
from tandemmq.service.loop_meter import SystemClock

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT_LIMIT_S = 90

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
    delivering = asyncio.get_running_loop().create_task(broker.delayed.run())
    async with serving(broker, FRONTS[request.param]) as address:
        yield Endpoint(address, broker, clock)
    delivering.cancel()


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
            async with asyncio.timeout(SCRIPT_LIMIT_S):
                output, errors = await process.communicate()
        except TimeoutError:
            process.kill()
            output, errors = await process.communicate()
            raise AssertionError(f"{name}: no end within {SCRIPT_LIMIT_S} s: {errors.decode()}") from None
        assert process.returncode == 0, f"{name}: {errors.decode()}"
        result: dict[str, Any] = json.loads(output)
        return result

    return run


@pytest.fixture
def run_script(endpoint: Endpoint, run_at: RunAt) -> RunScript:
    """Runs a script at the broker of this process."""
    return partial(run_at, endpoint.address)
