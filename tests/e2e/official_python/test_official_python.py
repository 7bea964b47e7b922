"""Scenarios 9, 10, 19, 20, 22 to 24, 32, 36 and 46 of the client API with the official Python client."""

from __future__ import annotations

import asyncio
from collections import Counter

from e2e.official_python.conftest import Endpoint, RunScript


async def test_09_clients_start_and_stop_and_are_forgotten(endpoint: Endpoint, run_script: RunScript) -> None:
    result = await run_script("start_stop")
    assert endpoint.broker.gone_client_ids == result["client_ids"]
    assert len(endpoint.broker.sessions) == 0


async def test_10_what_is_sent_is_what_is_received(run_script: RunScript) -> None:
    sent = await run_script("produce", "--count", "100")
    received = (await run_script("consume"))["messages"]
    assert sorted(message["id"] for message in received) == sorted(sent["message_ids"])
    for message in received:
        number = sent["message_ids"].index(message["id"])
        assert message == {
            "id": message["id"],
            "body": f"body {number} grün",
            "tag": f"tag-{number % 3}",
            "keys": [f"key-{number}"],
            "properties": {"number": str(number)},
            "attempt": 1,
            "corrupted": False,
        }


async def test_22_a_commit_is_delivered_and_a_rollback_is_not(endpoint: Endpoint, run_script: RunScript) -> None:
    sent = await run_script("transactions", "--topic", "payments", "commit", "rollback", "commit")
    received = (await run_script("consume", "--topic", "payments"))["messages"]
    assert sorted(message["id"] for message in received) == sorted(sent["message_ids"][::2])
    assert [message["body"] for message in received] == ["commit", "commit"]
    assert endpoint.broker.api.transactions.undecided_count == 0


async def test_23_24_a_producer_is_asked_until_it_knows(endpoint: Endpoint, run_script: RunScript) -> None:
    endpoint.broker.options.transaction_timeout_ms = 1_000
    endpoint.broker.options.transaction_check_interval_ms = 1_000
    sent = await run_script("transactions", "--topic", "payments", "ask 0", "ask 2")
    assert sent["asked"] == {"ask 0": 1, "ask 2": 3}
    received = (await run_script("consume", "--topic", "payments"))["messages"]
    assert sorted(message["body"] for message in received) == ["ask 0", "ask 2"]
    assert endpoint.broker.api.transactions.doubled_count == 0


async def test_19_20_a_delayed_message_comes_at_its_time_and_a_recalled_one_never(run_script: RunScript) -> None:
    result = await run_script("delay", "--topic", "reminders")
    assert result["bodies"] == ["kept"]
    assert 0 <= result["late_s"] < 60
    assert result["recalled"] == result["recalled_id"]
    assert "40400" in result["again"]
    assert "40400" in result["late_recall"]


async def test_32_acknowledged_messages_do_not_come_again(endpoint: Endpoint, run_script: RunScript) -> None:
    await run_script("produce", "--count", "10")
    assert len((await run_script("consume", "--lease-s", "10"))["messages"]) == 10
    endpoint.clock.push(60_000)
    assert (await run_script("consume"))["messages"] == []


async def test_36_only_the_new_handle_of_a_changed_lease_works(run_script: RunScript) -> None:
    await run_script("produce", "--count", "1")
    result = await run_script("change_lease")
    assert result["handle_changed"]
    assert result["new"] == "OK"
    assert "40013" in result["old"]


async def test_46_two_members_share_a_thousand_messages_and_another_group_gets_all(run_script: RunScript) -> None:
    sent = set((await run_script("produce", "--count", "1000"))["message_ids"])
    results = await asyncio.gather(
        run_script("consume"), run_script("consume"), run_script("consume", "--group", "another-group")
    )
    first, second, another = ([message["id"] for message in result["messages"]] for result in results)
    assert Counter(first + second) == Counter(sent)
    assert first
    assert second
    assert Counter(another) == Counter(sent)
