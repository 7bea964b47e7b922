"""Searches in a store a Java broker wrote: every message is found, and compressed bodies are what was sent."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator

import pytest

from support import store_samples as samples
from support.query_stores import RememberedPages
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock
from tandemmq.broker.queries.message_queries import MessageQueries
from tandemmq.broker.queries.values import KeyCriteria, QueriedMessage, QueueCriteria, TimeCriteria, WantedMessages
from tandemmq.core.message.record_layout import enters_consume_queue
from tandemmq.core.metadata.topic_table import TopicTable
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions

# Topics as a broker knows them by their queues alone; those of delayed and of half messages are among them.
_INTERNAL = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_wheel_timer")


@pytest.fixture
def queries() -> Iterator[MessageQueries]:
    disk = SimulatedDisk(random.Random(0))
    for path in samples.STORE.rglob("*"):
        if path.is_file():
            disk.write_file(str(path.relative_to(samples.STORE)), path.read_bytes())
    clock = ManualClock(1_795_260_000_000)
    options = StoreOptions(
        commit_log_file_bytes=samples.COMMIT_LOG_FILE_BYTES,
        consume_queue_file_bytes=samples.CONSUME_QUEUE_FILE_BYTES,
        index_slot_count=samples.INDEX_SLOT_COUNT,
        index_entry_count=samples.INDEX_ENTRY_COUNT,
    )
    store = MessageStore(disk, clock, options, store_host=samples.STORE_HOST)
    store.load()
    yield MessageQueries(store=store, topics=TopicTable(), pages=RememberedPages(clock), clock=clock, is_indexed=True)
    store.close()


def decoded() -> list[dict[str, object]]:
    """What Java's classes read of every record a queue has."""
    lines = [line.fields for line in samples.decoded_lines() if not line.is_blank and not line.is_end]
    return [line for line in lines if enters_consume_queue(int(line["sys_flag"]))]


async def found(queries: MessageQueries, wanted: WantedMessages) -> list[QueriedMessage]:
    messages: list[QueriedMessage] = []
    token = b""
    while True:
        page = await queries.messages(wanted, token)
        messages += page.messages
        token = page.next_page_token
        if not token:
            return messages


async def test_every_message_of_every_topic_is_found_by_time(queries: MessageQueries) -> None:
    topics = sorted({str(line["topic"]) for line in decoded()})
    assert set(_INTERNAL) <= set(topics)
    for topic in topics:
        expected = [line for line in decoded() if line["topic"] == topic]
        for newest_first in (False, True):
            wanted = WantedMessages(topic, TimeCriteria(newest_first=newest_first), limit=7)
            messages = await found(queries, wanted)
            offsets = [message.outline.physical_offset for message in messages]
            assert (offsets[::-1] if newest_first else offsets) == [line["phys"] for line in expected]
        ascending = sorted(messages, key=lambda message: message.outline.physical_offset)
        for message, line in zip(ascending, expected, strict=True):
            assert message.properties == line["props"]
            assert message.outline.queue_offset == line["queue_offset"]
            assert f"/{message.outline.born_host}" == line["born_host"]


async def test_keys_and_ids_are_found_by_the_index_java_made(queries: MessageQueries) -> None:
    for line in decoded():
        properties = line["props"]
        assert isinstance(properties, dict)
        keys = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split()]
        for key in filter(None, keys):
            messages = await found(queries, WantedMessages(str(line["topic"]), KeyCriteria(key)))
            assert line["phys"] in [message.outline.physical_offset for message in messages]


async def test_delayed_messages_are_found_by_their_tag(queries: MessageQueries) -> None:
    """Their queue has the time there at which each is due."""
    wanted = WantedMessages("SCHEDULE_TOPIC_XXXX", TimeCriteria(), tags=frozenset({"Delay"}))
    assert len(await found(queries, wanted)) == 2


async def test_bodies_java_compressed_are_what_was_sent(queries: MessageQueries) -> None:
    sent = {}
    for text in (samples.SAMPLES / "manifest-remoting.jsonl").read_text().splitlines():
        line = json.loads(text)
        if str(line["kind"]).startswith("compressed"):
            sent[line["props_after_send"]["UNIQ_KEY"]] = line
    seen = set()
    for queue_id in range(4):
        wanted = WantedMessages("sample", QueueCriteria(queue_id), limit=500, body_bytes=1 << 20)
        for message in await found(queries, wanted):
            assert not message.body.problem
            if line := sent.get(message.properties.get("UNIQ_KEY")):
                assert len(message.body.data) == line["body_len"]
                assert zlib.crc32(message.body.data) == line["body_crc32"]
                seen.add(message.body.compression)
    assert seen == {"zlib", "lz4", "zstd"}
