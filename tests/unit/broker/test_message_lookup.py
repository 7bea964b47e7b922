"""A message is found by its id, and it is told how safe it is."""

from __future__ import annotations

import random

from broker.message_lookup import Holding, MessageLookup, earliest_store_ms
from mqclient.message_id import MessageIdSource
from mqcore.metadata import TopicConfig
from mqcore.replication import SlaveView
from mqcore.storage import MessageStore
from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, flush_all, new_store


def _store() -> MessageStore:
    store = new_store(SimulatedDisk(random.Random(1)))
    store.load()
    return store


def _slave(broker_id: int | None, acked_offset: int) -> SlaveView:
    return SlaveView(1, "10.0.0.4:1", broker_id, acked_offset, 0, True, True)


def _lookup(store: MessageStore, slaves: list[SlaveView] | None = None, *, topics: int = 100) -> MessageLookup:
    return MessageLookup(
        store=store,
        topics=[TopicConfig(f"topic-{number}", 1, 1) for number in range(topics)],
        slaves=lambda: slaves or [],
        clock=ManualClock(),
    )


async def test_a_message_is_found_in_whichever_topic_it_is() -> None:
    store = _store()
    store.put(outgoing_message(topic="topic-3", keys=("OTHER",)))
    put = store.put(outgoing_message(topic="topic-77", keys=("ID", "order-1"), tag="paid"))
    (found,) = await _lookup(store).find("ID")
    assert (found.record.topic, found.record.physical_offset) == ("topic-77", put.physical_offset)
    assert found.properties["KEYS"] == "order-1"
    assert await _lookup(store).find("ID", "topic-3") == []
    assert len(await _lookup(store).find("ID", "topic-77")) == 1
    assert await _lookup(store).find("UNKNOWN") == []


async def test_redeliveries_are_found_too_the_newest_first() -> None:
    store = _store()
    for topic in ("topic-1", "topic-2", "topic-1"):
        store.put(outgoing_message(topic=topic, keys=("ID",)))
    found = await _lookup(store).find("ID")
    offsets = [one.record.physical_offset for one in found]
    assert len(offsets) == 3
    assert offsets == sorted(offsets, reverse=True)


async def test_where_it_is_safe() -> None:
    store = _store()
    store.put(outgoing_message(topic="topic-1", keys=("ID",)))
    slaves = [_slave(1, store.end_offset), _slave(None, store.end_offset - 10)]
    (found,) = await _lookup(store, slaves).find("ID")
    assert not found.flushed
    assert found.slaves == (Holding(1, 0), Holding(-1, 10))
    flush_all(store)
    (found,) = await _lookup(store).find("ID")
    assert found.flushed


def test_an_id_tells_from_when_on_to_look() -> None:
    clock = ManualClock()
    made = MessageIdSource(clock).next_id()
    assert clock.now_ms - 3_601_000 <= earliest_store_ms(made) <= clock.now_ms - 3_599_000
    # RocketMQ 4's, and what is none.
    for other in ("7F0000010A1C18B4AAC2123456780001", "", "01" + "Z" * 32, "02" + "0" * 32):
        assert earliest_store_ms(other) == 0
