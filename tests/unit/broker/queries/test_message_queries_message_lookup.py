"""A message is found by its id, and it is told how safe it is."""

from __future__ import annotations

import random

from support.messages import outgoing_message
from support.query_stores import RememberedPages
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock, flush_all, new_store
from tandemmq.broker.queries.message_queries import Holding, MessageQueries
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable
from tandemmq.core.replication.master_replica import SlaveView
from tandemmq.core.storage.message_store import MessageStore


def _store() -> MessageStore:
    store = new_store(SimulatedDisk(random.Random(1)))
    store.load()
    return store


def _slave(broker_id: int | None, acked_offset: int) -> SlaveView:
    return SlaveView(1, "10.0.0.4:1", broker_id, acked_offset, 0, True, True)


def _queries(store: MessageStore, *, topics: int = 100) -> MessageQueries:
    clock = ManualClock()
    configs = TopicTable()
    for number in range(topics):
        configs.put(TopicConfig(f"topic-{number}", 1, 1), now_ms=0)
    return MessageQueries(store=store, topics=configs, pages=RememberedPages(clock), clock=clock, is_indexed=True)


async def test_a_message_is_found_in_whichever_topic_it_is() -> None:
    store = _store()
    store.put(outgoing_message(topic="topic-3", keys=("OTHER",)))
    put = store.put(outgoing_message(topic="topic-77", keys=("ID", "order-1"), tag="paid"))
    (found,) = await _queries(store).find_message("ID")
    assert (found.record.topic, found.record.physical_offset) == ("topic-77", put.physical_offset)
    assert found.properties["KEYS"] == "order-1"
    assert await _queries(store).find_message("ID", "topic-3") == []
    assert len(await _queries(store).find_message("ID", "topic-77")) == 1
    assert await _queries(store).find_message("UNKNOWN") == []


async def test_redeliveries_are_found_too_the_newest_first() -> None:
    store = _store()
    for topic in ("topic-1", "topic-2", "topic-1"):
        store.put(outgoing_message(topic=topic, keys=("ID",)))
    found = await _queries(store).find_message("ID")
    offsets = [one.record.physical_offset for one in found]
    assert len(offsets) == 3
    assert offsets == sorted(offsets, reverse=True)


async def test_where_it_is_safe() -> None:
    store = _store()
    store.put(outgoing_message(topic="topic-1", keys=("ID",)))
    slaves = [_slave(1, store.end_offset), _slave(None, store.end_offset - 10)]
    (found,) = await _queries(store).find_message("ID", slaves=slaves)
    assert not found.flushed
    assert found.slaves == (Holding(1, 0), Holding(-1, 10))
    flush_all(store)
    (found,) = await _queries(store).find_message("ID")
    assert found.flushed
