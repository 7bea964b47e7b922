"""A broker whose time stands still until a test moves it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.broker_assembly import BrokerAssembly
from support.image_packages import without_what_the_image_leaves_out
from support.manual_time import ManualTime


@pytest.fixture(scope="package", autouse=True)
def packages_of_the_image() -> Iterator[None]:
    """What the image lacks is missed here first."""
    with without_what_the_image_leaves_out():
        yield


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
