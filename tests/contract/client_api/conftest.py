"""Where the conformance suite is run: one endpoint for each front that can serve the handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from contract.client_api.raw_client import RawClient
from support.broker_assembly import BrokerAssembly
from support.client_endpoint import FRONTS, Front, serving
from support.manual_time import OffsetClock
from tandemmq.service.event_loop import SystemClock


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A serving broker: topics `orders` (NORMAL, 8 queues) and `mixed` (MIXED, 4), new groups from the earliest."""

    address: str
    broker: BrokerAssembly
    clock: OffsetClock


@pytest.fixture(params=list(FRONTS.values()), ids=list(FRONTS))
def front(request: pytest.FixtureRequest) -> Front:
    chosen: Front = request.param
    return chosen


@pytest.fixture
async def endpoint(front: Front) -> AsyncIterator[Endpoint]:
    clock = OffsetClock(SystemClock())
    broker = BrokerAssembly(clock=clock, timers=asyncio.get_running_loop())
    broker.add_topic("orders", queue_count=8)
    broker.add_topic("mixed", message_type="MIXED")
    async with serving(broker, front) as address:
        yield Endpoint(address, broker, clock)


@pytest.fixture
async def client(endpoint: Endpoint) -> AsyncIterator[RawClient]:
    async with RawClient(endpoint.address) as connected:
        yield connected
