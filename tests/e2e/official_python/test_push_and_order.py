"""Scenarios 12, 27, 29, 45 and 47 to 50 of the client API with the official Python client."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

from contract.client_api.raw_client import RawClient
from e2e.official_python.conftest import Endpoint, Push, RunPush, RunScript
from support.api_requests import receive_request
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupConfig

BODY_MAX = 4 << 20
STEP_MS = 1_000
# Leases of a client that fell silent: its session's 120 s, and a second.
SILENT_MS = 121_000


def has_finished(endpoint: Endpoint, group: str = "group", topic: str = "orders") -> bool:
    """Nothing of the topic is left to this group, nor in anybody's hands."""
    backlog = endpoint.broker.leases.backlog_of(group, topic)
    return bool(endpoint.broker.leases.progress_of(group, topic)) and backlog.is_empty


def retries_each_second(endpoint: Endpoint, group: str, *, fifo: bool = False, retry_max_times: int = 16) -> None:
    """A group whose failed messages come again after 1 s, and then 2 s each time."""
    config = SubscriptionGroupConfig(group, consume_message_orderly=fifo, retry_max_times=retry_max_times)
    endpoint.broker.groups.put(config.with_retry_delays((1, 2)), now_ms=endpoint.clock.wall_ms())


async def test_12_bodies_at_the_limit(run_script: RunScript) -> None:
    sent = await run_script("produce", "--body-bytes", str(BODY_MAX), str(BODY_MAX + 1))
    assert len(sent["message_ids"]) == 1
    assert str(BODY_MAX) in sent["problem"] or "41301" in sent["problem"], sent["problem"]
    (received,) = (await run_script("consume"))["messages"]
    assert received["body"] == "x" * BODY_MAX
    assert not received["corrupted"]


async def test_45_filters_give_matches_alone_and_a_bad_one_is_told(run_script: RunScript) -> None:
    await run_script("produce", "--count", "9")
    by_tag = await run_script("consume", "--tags", "tag-0 || tag-1")
    assert Counter(one["tag"] for one in by_tag["messages"]) == {"tag-0": 3, "tag-1": 3}
    by_sql = await run_script("consume", "--group", "another-group", "--sql", "number > 3")
    assert sorted(int(one["properties"]["number"]) for one in by_sql["messages"]) == [4, 5, 6, 7, 8]
    # The client waits for settings without a limit; so it gets them, and each receive tells what is wrong.
    bad = await run_script("consume", "--group", "third-group", "--sql", "number > AND")
    assert (bad["messages"], "40010" in bad["problem"]) == ([], True), bad["problem"]


async def test_47_a_push_consumer_handles_each_message_once(
    endpoint: Endpoint, run_script: RunScript, run_push: RunPush
) -> None:
    async with run_push() as push:
        sent = await run_script("produce", "--count", "1000")
        await push.until(lambda: len(push.handled) >= 1000, "all messages are handled")
        await push.until(lambda: has_finished(endpoint), "all messages are acknowledged")
        assert Counter(one["id"] for one in push.handled) == Counter(sent["message_ids"])


async def test_48_a_message_in_hand_for_150_s_does_not_come_again(
    endpoint: Endpoint, run_script: RunScript, run_push: RunPush
) -> None:
    async with run_push() as push:
        await run_script("produce", "--bodies", "hold")
        await push.until(lambda: push.bodies() == ["hold"], "the handler has it")
        for _ in range(150_000 // STEP_MS):
            await heard_lately(endpoint, push)
            endpoint.clock.push(STEP_MS)
            endpoint.broker.api.housekeep()
        assert push.bodies() == ["hold"]
        push.go_on()
        await push.until(lambda: has_finished(endpoint), "it is acknowledged, with the handle of the receive")
        assert push.bodies() == ["hold"]


async def heard_lately(endpoint: Endpoint, push: Push) -> None:
    """The clock runs ahead of the client's heartbeats, but never so far that it counts as silent."""

    def is_heard() -> bool:
        session = endpoint.broker.sessions.get(push.client_id)
        assert session is not None, "the client is forgotten"
        return endpoint.clock.monotonic_ms() - session.last_seen_ms < 60_000

    await push.until(is_heard, "the client beats")


async def test_49_what_fails_comes_again_in_its_time(
    endpoint: Endpoint, run_script: RunScript, run_push: RunPush
) -> None:
    retries_each_second(endpoint, "failing")
    async with run_push("--group", "failing") as push:
        await run_script("produce", "--bodies", "fail 2")
        await push.until(lambda: len(push.handled) == 3, "the third delivery")
        await push.until(lambda: has_finished(endpoint, "failing"), "it is acknowledged")
        assert [one["attempt"] for one in push.handled] == [1, 2, 3]
        times_s = [one["at_s"] for one in push.handled]
        # Never before its time; how soon after it is for a benchmark to say.
        assert times_s[1] - times_s[0] >= 0.99
        assert times_s[2] - times_s[1] >= 1.99


async def test_49_what_always_fails_is_a_dead_letter_that_names_its_origin(
    endpoint: Endpoint, run_script: RunScript, run_push: RunPush
) -> None:
    retries_each_second(endpoint, "failing", retry_max_times=1)
    async with run_push("--group", "failing") as push, RawClient(endpoint.address) as raw:
        [message_id] = (await run_script("produce", "--bodies", "always fails"))["message_ids"]
        await push.until(lambda: endpoint.broker.topics.get("%DLQ%failing") is not None, "there are dead letters")
        [dead] = (await raw.receive(receive_request("%DLQ%failing", group="undertaker"))).messages
        origin = dead.system_properties.dead_letter_queue
        assert (origin.topic, origin.message_id) == ("orders", message_id)
        assert dead.body == b"always fails"
        await push.until(lambda: has_finished(endpoint, "failing"), "the group is done with it")
        await push.until(lambda: len(push.handled) >= 2, "what the handler printed is read")
        assert [one["attempt"] for one in push.handled] == [1, 2]


async def test_50_another_member_gets_what_a_killed_one_held(
    endpoint: Endpoint, run_script: RunScript, run_push: RunPush
) -> None:
    async with run_push() as killed:
        sent = await run_script("produce", "--bodies", *(["hold"] * 5))
        await killed.until(lambda: len(killed.handled) == 5, "it holds all")
        async with run_push() as other:
            killed.process.kill()
            await killed.process.wait()
            killed_at_ms = endpoint.clock.monotonic_ms()
            while len(other.handled) < 5:
                await heard_lately(endpoint, other)
                # Beyond the time that its leases may last, only what waits is waited for.
                if endpoint.clock.monotonic_ms() - killed_at_ms < SILENT_MS + 60_000:
                    endpoint.clock.push(STEP_MS)
                endpoint.broker.api.housekeep()
                await asyncio.sleep(0.02)
                assert endpoint.clock.monotonic_ms() - killed_at_ms < 400_000, "the other member gets nothing"
            assert Counter(one["id"] for one in other.handled) == Counter(sent["message_ids"])
            other.go_on()
            await other.until(lambda: has_finished(endpoint), "the other member acknowledges them")


async def test_27_message_groups_keep_their_order(endpoint: Endpoint, run_script: RunScript, run_push: RunPush) -> None:
    arguments = ("--topic", "ordered")
    async with run_push(*arguments, "--group", "in-order") as push:
        await run_script("produce", *arguments, "--count", "1000", "--groups", "10")
        await push.until(lambda: len(push.handled) >= 1_000, "what the handler printed is read")
        await push.until(lambda: has_finished(endpoint, "in-order", "ordered"), "all messages are acknowledged")
        seen: dict[str, list[int]] = defaultdict(list)
        for one in push.handled:
            seen[one["group"]].append(int(one["body"].split()[1]))
        assert seen == {f"group-{number}": list(range(number, 1000, 10)) for number in range(10)}


async def test_29_what_fails_holds_back_what_follows_it(
    endpoint: Endpoint, run_script: RunScript, run_push: RunPush
) -> None:
    retries_each_second(endpoint, "in-order", fifo=True)
    arguments = ("--topic", "ordered")
    async with run_push(*arguments, "--group", "in-order") as push:
        await run_script("produce", *arguments, "--bodies", "fail 3", "second", "third", "--groups", "1")
        await push.until(lambda: len(push.handled) >= 6, "what the handler printed is read")
        await push.until(lambda: has_finished(endpoint, "in-order", "ordered"), "all messages are acknowledged")
        assert push.bodies() == ["fail 3"] * 4 + ["second", "third"]
