"""A broker whose time stands still until a test moves it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.broker_assembly import BrokerAssembly
from support.manual_time import ManualTime


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def broker(time: ManualTime) -> Iterator[BrokerAssembly]:
    """Topics `orders` (NORMAL, four queues) and `mixed` (MIXED, four queues)."""
    assembly = BrokerAssembly(clock=time, timers=time)
    assembly.add_topic("orders")
    assembly.add_topic("mixed", message_type="MIXED")
    yield assembly
    assembly.close()
