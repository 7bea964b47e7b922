"""How far groups are said to be behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from support.broker_assembly import BrokerAssembly
from support.manual_time import ManualTime
from support.messages import outgoing_message
from tandemmq.broker import metrics
from tandemmq.broker.metrics import ConsumerMetrics
from tandemmq.broker.metrics_catalogue import BROKER_METRICS
from tandemmq.broker.queries.stored_records import read_stored_at_ms
from tandemmq.core.delivery.queue_progress import Received
from tandemmq.core.delivery.subscription import TagFilter
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.service.event_loop import TurnLimit
from tandemmq.service.metrics import OTHER, MetricSamples, SeriesLimit

INVISIBLE_MS = 30_000
ALL_TAGS = TagFilter.parse("*")


class Group:
    """One group on one topic of a broker, and what is told of it."""

    def __init__(self, *, series_max: int = 10) -> None:
        self.time = ManualTime()
        self.broker = BrokerAssembly(clock=self.time, timers=self.time)
        self.deleted: set[str] = set()
        self.metrics = ConsumerMetrics(
            leases=self.broker.leases,
            store=self.broker.store,
            has_topic=lambda topic: topic not in self.deleted,
            clock=self.time,
            pair_limit=SeriesLimit(series_max),
        )

    def put(self, count: int, *, topic: str = "orders") -> None:
        for _ in range(count):
            assert self.broker.store.put(outgoing_message(topic=topic)).status.stored

    def receive(self, batch: int, *, topic: str = "orders", group: str = "billing") -> Received:
        assert ALL_TAGS is not None
        return self.broker.leases.receive(
            group=group,
            topic=topic,
            queue_ids=range(1),
            tag_filter=ALL_TAGS,
            batch_size=batch,
            invisible_ms=INVISIBLE_MS,
            now_ms=self.time.monotonic_ms(),
            max_attempts=17,
            auto_renew=False,
            client_id="client",
        )

    def acknowledge(self, received: Received, count: int) -> None:
        for delivery in received.deliveries[:count]:
            assert self.broker.leases.acknowledge(
                group="billing", topic="orders", handle=delivery.handle, now_ms=self.time.monotonic_ms()
            )

    async def told(self) -> dict[tuple[str, ...], float]:
        """Value by the metric's name after `rocketmq_consumer_` and its labels."""
        samples = MetricSamples(BROKER_METRICS, base=("c", "broker", "a", "0"))
        await self.metrics.tell(samples, TurnLimit(self.time))
        found: dict[tuple[str, ...], float] = {}
        for family in samples.families():
            for labels, value in family.samples:
                assert isinstance(value, int | float)
                found[family.info.name.removeprefix("rocketmq_consumer_"), *labels[4:]] = value
        return found


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    made.broker.close()


async def test_what_was_never_delivered_lags_and_is_ready(group: Group) -> None:
    group.put(1)
    group.acknowledge(group.receive(1), 1)
    group.put(5)
    group.time.advance(2_000)
    told = await group.told()
    labels = ("orders", "billing")
    assert told["lag_messages", *labels, "false"] == 5
    assert told["ready_messages", *labels, "false"] == 5
    assert told["inflight_messages", *labels, "false"] == 0
    assert told["lag_latency", *labels, "false"] == 2_000
    assert told["queueing_latency", *labels, "false"] == 2_000


async def test_what_is_in_somebodys_hands_lags_but_does_not_queue(group: Group) -> None:
    group.put(5)
    group.time.advance(1_000)
    received = group.receive(5)
    group.acknowledge(received, 2)
    told = await group.told()
    labels = ("orders", "billing")
    assert told["lag_messages", *labels, "false"] == 3
    assert told["ready_messages", *labels, "false"] == 0
    assert told["inflight_messages", *labels, "false"] == 3
    assert told["lag_latency", *labels, "false"] == 1_000
    assert told["queueing_latency", *labels, "false"] == 0


async def test_what_waits_for_another_attempt_is_told_apart(group: Group) -> None:
    group.put(3)
    group.receive(3)
    group.time.advance(INVISIBLE_MS + 1)
    group.broker.leases.expire(group.time.monotonic_ms())
    told = await group.told()
    labels = ("orders", "billing")
    assert (told["lag_messages", *labels, "false"], told["lag_messages", *labels, "true"]) == (0, 3)
    assert (told["ready_messages", *labels, "false"], told["ready_messages", *labels, "true"]) == (0, 3)


async def test_ages_follow_the_group_from_call_to_call(group: Group) -> None:
    group.put(1)
    group.time.advance(5_000)
    group.put(1)
    received = group.receive(2)
    assert (await group.told())["lag_latency", "orders", "billing", "false"] == 5_000
    group.time.advance(1_000)
    assert (await group.told())["lag_latency", "orders", "billing", "false"] == 6_000
    group.acknowledge(received, 1)
    assert (await group.told())["lag_latency", "orders", "billing", "false"] == 1_000


async def test_a_deleted_topic_keeps_nobody_waiting(group: Group) -> None:
    group.put(2)
    group.receive(1)
    assert await group.told()
    group.deleted.add("orders")
    assert await group.told() == {}


async def test_what_was_read_before_a_call_was_given_up_is_not_read_again(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("orders", "bills"):
        group.put(1, topic=topic)
        group.receive(1, topic=topic)
        group.put(1, topic=topic)

    class Impatient(TurnLimit):
        @property
        def is_reached(self) -> bool:
            return True

        async def pause(self) -> None:
            raise asyncio.CancelledError

    reads = []

    def counted(store: MessageStore, physical_offset: int) -> int | None:
        reads.append(physical_offset)
        return read_stored_at_ms(store, physical_offset)

    monkeypatch.setattr(metrics, "read_stored_at_ms", counted)
    samples = MetricSamples(BROKER_METRICS, base=("c", "broker", "a", "0"))
    with pytest.raises(asyncio.CancelledError):
        await group.metrics.tell(samples, Impatient(group.time))
    assert len(reads) == 2
    await group.told()
    assert len(reads) == len(set(reads)) == 4


async def test_calls_that_are_always_given_up_do_not_fill_the_memory(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_POSITIONS_MAX", 10)

    class Impatient(TurnLimit):
        @property
        def is_reached(self) -> bool:
            return True

        async def pause(self) -> None:
            raise asyncio.CancelledError

    group.put(50)
    for _ in range(40):
        group.acknowledge(group.receive(1), 1)
        samples = MetricSamples(BROKER_METRICS, base=("c", "broker", "a", "0"))
        with pytest.raises(asyncio.CancelledError):
            await group.metrics.tell(samples, Impatient(group.time))
    assert len(group.metrics._stored_at_ms) <= 10


async def test_beyond_the_limit_groups_are_one() -> None:
    group = Group(series_max=1)
    for topic in ("orders", "bills", "letters"):
        group.put(2, topic=topic)
        group.receive(1, topic=topic)
    told = await group.told()
    group.broker.close()
    assert told["lag_messages", "orders", "billing", "false"] == 2
    assert told["lag_messages", OTHER, OTHER, "false"] == 4
    assert ("lag_latency", OTHER, OTHER, "false") not in told
    assert ("lag_messages", "bills", "billing", "false") not in told
