"""Scenario 58 with the official Python client: the right key, wrong ones, and none, at a broker that asks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.official_python.conftest import RunAt
from support.cluster_processes import ServiceProcess
from support.guarded_broker import guarded_broker, put_user
from support.topic_admin import broker_status, create_topic

SHOP = ("--access-key", "shop", "--secret-key", "shop-secret")
BILLING = ("--access-key", "billing", "--secret-key", "billing-secret")
EVE = ("--access-key", "eve", "--secret-key", "eve-secret")
WRONG = ("--access-key", "shop", "--secret-key", "another-secret")
UNAUTHORIZED = "40100"


def _policy(subject: str, *entries: tuple[str, str]) -> dict[str, object]:
    return {
        "subject": f"User:{subject}",
        "policies": [{"entries": [{"resource": resource, "actions": [action]} for resource, action in entries]}],
    }


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServiceProcess]:
    users = {"shop": "shop-secret", "billing": "billing-secret"}
    reader = _policy("billing", ("Topic:orders", "Sub"), ("Group:group", "Sub"))
    acls = [_policy("shop", ("Topic:orders", "Pub")), reader]
    with guarded_broker(tmp_path / "cluster", users, acls=acls) as broker:
        yield broker


async def test_58_credentials(broker: ServiceProcess, run_at: RunAt) -> None:
    await create_topic(broker, "orders")
    address = f"127.0.0.1:{broker.ports['grpcServerPort']}"
    sent = await run_at(address, "produce", "--count", "10", *SHOP)
    assert (len(sent["message_ids"]), sent["problem"]) == (10, "")
    received = await run_at(address, "consume", *BILLING)
    assert sorted(message["id"] for message in received["messages"]) == sorted(sent["message_ids"])

    # Whoever is not let in gets no route, and the client does not say why; the broker's log does.
    for stranger in (WRONG, EVE, ()):
        refused = await run_at(address, "produce", "--count", "1", *stranger)
        assert refused["message_ids"] == []
        assert refused["problem"]
    log = broker.log_path.read_text()
    for reason in ("another secret key", "no such user", "names no user"):
        assert reason in log, reason
    assert UNAUTHORIZED in (await run_at(address, "produce", "--count", "1", *BILLING))["problem"], "it may read alone"
    assert UNAUTHORIZED in (await run_at(address, "consume", *SHOP))["problem"], "it may send alone"

    # The key changes under a producer that is at work.
    working = asyncio.create_task(run_at(address, "produce", "--count", "1000000", *SHOP))
    before = await _end_offset(broker)
    while await _end_offset(broker) == before:
        await asyncio.sleep(0.05)
    await put_user(broker, "shop", password="another-secret")
    assert UNAUTHORIZED in (await working)["problem"]
    assert (await run_at(address, "produce", "--count", "1", *WRONG))["problem"] == "", "it is the right one now"


async def _end_offset(broker: ServiceProcess) -> int:
    return (await broker_status(broker)).end_offset
