"""What operators find in a store: by queue, by time, by key, by place."""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Iterable

import pytest

from support.query_stores import QueryStore
from support.stores import flush_all, right_time
from tandemmq.broker.queries.values import (
    IndexIsOff,
    KeyCriteria,
    MessagePage,
    MessageUnknown,
    PageTokenInvalid,
    QueueCriteria,
    TimeCriteria,
    TopicUnknown,
    WantedMessages,
)
from tandemmq.broker.queue_reader import DamagedEntries
from tandemmq.core.message.record_layout import COMPRESSED
from tandemmq.core.storage.consume_queue import ENTRY, FILLER_SIZE
from tandemmq.core.storage.retention import RetentionFloor

START_MS = 1_700_000_000_000


def places(pages: Iterable[MessagePage]) -> list[tuple[int, int]]:
    """Queue and offset of every message."""
    return [(one.outline.queue_id, one.outline.queue_offset) for page in pages for one in page.messages]


def filled(count: int = 40, *, queues: int = 4) -> tuple[QueryStore, list[tuple[int, int]]]:
    """A message each second, in queues by chance; and their places in the order in which they were stored."""
    chance = random.Random(7)
    store = QueryStore(queues=queues)
    stored = []
    for number in range(count):
        queue_id = chance.randrange(queues)
        result = store.put(b"%d" % number, queue_id=queue_id, after_ms=1_000, tag="odd" if number % 2 else "even")
        stored.append((queue_id, result.queue_offset))
    return store, stored


async def test_the_queues_of_a_topic_with_their_extent() -> None:
    store = QueryStore(queues=3)
    store.put(queue_id=1, after_ms=1_000)
    store.put(queue_id=1, after_ms=5_000)
    store.put(queue_id=7)
    store.put(topic="unconfigured")
    states = await store.queries.queue_states("orders")
    assert [(one.queue_id, one.min_offset, one.max_offset) for one in states] == [
        (0, 0, 0),
        (1, 0, 2),
        (2, 0, 0),
        (7, 0, 1),
    ]
    assert (states[1].oldest_store_ms, states[1].newest_store_ms) == (START_MS + 1_000, START_MS + 6_000)
    assert (states[0].oldest_store_ms, states[0].newest_store_ms) == (None, None)
    assert len(await store.queries.queue_states("unconfigured")) == 1
    with pytest.raises(TopicUnknown):
        await store.queries.queue_states("nobody")


async def test_a_queue_in_its_order_page_by_page() -> None:
    store, stored = filled()
    of_queue = [place for place in stored if place[0] == 2]
    for limit in (1, 3, 500):
        wanted = WantedMessages("orders", QueueCriteria(2), limit=limit)
        pages = await store.all_pages(wanted)
        assert places(pages) == of_queue
        assert len(pages) == -(-len(of_queue) // limit)
    part = WantedMessages("orders", QueueCriteria(2, start_offset=2, end_offset=5))
    assert places(await store.all_pages(part)) == [(2, 2), (2, 3), (2, 4)]
    beyond = WantedMessages("orders", QueueCriteria(2, start_offset=1_000))
    assert places(await store.all_pages(beyond)) == []
    nowhere = WantedMessages("orders", QueueCriteria(99))
    assert places(await store.all_pages(nowhere)) == []


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("limit", [1, 7, 500])
async def test_all_queues_by_time(newest_first: bool, limit: int) -> None:
    store, stored = filled()
    for start, end in [(None, None), (10, None), (None, 30), (10, 30), (39, 40), (50, 60), (20, 20), (30, 10)]:
        criteria = TimeCriteria(
            start_ms=None if start is None else START_MS + 1_000 * (start + 1),
            end_ms=None if end is None else START_MS + 1_000 * (end + 1),
            newest_first=newest_first,
        )
        pages = await store.all_pages(WantedMessages("orders", criteria, limit=limit))
        expected = stored[start:end]
        assert places(pages) == (expected[::-1] if newest_first else expected), (start, end)


async def test_by_tag() -> None:
    store, stored = filled()
    for newest_first in (False, True):
        wanted = WantedMessages(
            "orders", TimeCriteria(newest_first=newest_first), limit=3, tags=frozenset({"odd", "unknown"})
        )
        expected = stored[1::2]
        assert places(await store.all_pages(wanted)) == (expected[::-1] if newest_first else expected)


async def test_a_rare_tag_is_not_looked_for_beyond_the_time() -> None:
    store = QueryStore(queues=1)
    store.put(tag="rare")
    for _ in range(3_000):
        store.put(tag="usual", after_ms=10)
    store.put(tag="rare")
    wanted = WantedMessages("orders", TimeCriteria(None, START_MS + 20, False), tags=frozenset({"rare"}))
    (page,) = await store.all_pages(wanted)
    assert len(page.messages) == 1
    backwards = WantedMessages("orders", TimeCriteria(START_MS + 29_000, None, True), tags=frozenset({"rare"}))
    (page,) = await store.all_pages(backwards)
    assert len(page.messages) == 1


async def test_equal_times_are_all_found() -> None:
    store = QueryStore(queues=2)
    stored = [(number % 2, store.put(queue_id=number % 2).queue_offset) for number in range(10)]
    at = WantedMessages("orders", TimeCriteria(START_MS, START_MS + 1), limit=3)
    assert places(await store.all_pages(at)) == stored
    before = WantedMessages("orders", TimeCriteria(None, START_MS, newest_first=True))
    assert places(await store.all_pages(before)) == []


async def test_offsets_at_a_moment_are_those_of_a_search_from_the_beginning() -> None:
    store, stored = filled(60)
    for second in (-5, 0, 1, 17, 59, 60, 61, 1_000):
        found = await store.queries.find_offsets("orders", START_MS + 1_000 * second)
        later = stored[max(0, second - 1) :]
        for one in found:
            ends = [offset for queue_id, offset in stored if queue_id == one.queue_id]
            expected = [offset for queue_id, offset in later if queue_id == one.queue_id]
            assert one.offset == (expected[0] if expected else ends[-1] + 1)


async def test_by_key_the_newest_first() -> None:
    store = QueryStore(topics=("orders", "other"))
    for number in range(30):
        store.put(b"%d" % number, queue_id=number % 4, keys=(f"ID{number}", "order-1", f"n{number}"), after_ms=1_000)
    store.put(topic="other", keys=("ID0", "order-1"))
    wanted = WantedMessages("orders", KeyCriteria("order-1"), limit=4, body_bytes=10)
    pages = await store.all_pages(wanted)
    found = [one.body.data for page in pages for one in page.messages]
    assert found == [b"%d" % number for number in range(29, -1, -1)]
    (page,) = await store.all_pages(WantedMessages("orders", KeyCriteria("n7")))
    assert page.messages[0].properties["UNIQ_KEY"] == "ID7"
    assert len((await store.all_pages(WantedMessages("orders", KeyCriteria("ID7"))))[0].messages) == 1
    narrow = WantedMessages("orders", KeyCriteria("order-1", START_MS + 5_000, START_MS + 8_000), limit=2)
    assert len(places(await store.all_pages(narrow))) == 3
    assert places(await store.all_pages(WantedMessages("orders", KeyCriteria("unknown")))) == []
    with pytest.raises(IndexIsOff):
        await QueryStore(indexed=False).queries.messages(wanted)


async def test_what_was_stored_before_and_after_a_clock_was_set_back_is_found_by_key() -> None:
    """Store times never go back: they stay ahead of the clock, for as long as it was."""
    store = QueryStore()
    store.put(keys=("ID1", "order-1"))
    store.clock.now_ms -= 30 * 86_400_000
    store.put(keys=("ID2", "order-1"), after_ms=1_000)
    assert len(places(await store.all_pages(WantedMessages("orders", KeyCriteria("order-1"))))) == 2
    assert len(await store.queries.with_key("ID1", ["orders"], limit=2)) == 1


async def test_a_key_that_is_also_the_id_is_found_once() -> None:
    store = QueryStore()
    store.put(keys=("ID", "ID"))
    assert len(places(await store.all_pages(WantedMessages("orders", KeyCriteria("ID"), limit=1)))) == 1


async def test_what_its_queue_has_no_more_is_not_found_by_key() -> None:
    store = QueryStore()
    store.put(b"former", keys=("ID1", "order-1"))
    store.store.queues.remove_all()
    assert await store.queries.with_key("ID1", ["orders"], limit=2) == []
    store.put(b"latter", keys=("ID2", "order-1"))
    (page,) = await store.all_pages(WantedMessages("orders", KeyCriteria("order-1"), body_bytes=10))
    assert [one.body.data for one in page.messages] == [b"latter"]


async def test_by_key_in_many_topics() -> None:
    topics = [f"topic-{number}" for number in range(30)]
    store = QueryStore(topics=topics)
    for topic in ("topic-3", "topic-27", "topic-3"):
        store.put(topic=topic, keys=("ID",))
    found = await store.queries.with_key("ID", topics, limit=16)
    assert [one.outline.topic for one in found] == ["topic-3", "topic-27", "topic-3"]
    assert len(await store.queries.with_key("ID", topics, limit=2)) == 2
    assert await store.queries.with_key("ID", ["unknown"], limit=2) == []


async def test_one_message_by_its_place() -> None:
    store = QueryStore()
    store.put(b"first")
    result = store.put(b"second", tag="paid", keys=("ID", "order-1"))
    found = await store.queries.message_at(result.physical_offset, body_bytes=100)
    assert (found.body.data, found.properties["TAGS"], found.outline.topic) == (b"second", "paid", "orders")
    assert found.outline.body_crc == zlib.crc32(b"second") & 0x7FFF_FFFF
    same = await store.queries.message_in_queue("orders", 0, 1, body_bytes=3)
    assert (same.outline, same.body.data) == (found.outline, b"sec")
    for offset in (0, result.physical_offset + 1, store.store.end_offset, 1 << 62, -1):
        if offset:
            with pytest.raises(MessageUnknown):
                await store.queries.message_at(offset, body_bytes=0)
    for queue_id, queue_offset in [(0, 2), (0, -1), (3, 0), (99, 0)]:
        with pytest.raises(MessageUnknown):
            await store.queries.message_in_queue("orders", queue_id, queue_offset, body_bytes=0)
    with pytest.raises(TopicUnknown):
        await store.queries.message_in_queue("nobody", 0, 0, body_bytes=0)


async def test_no_page_of_a_body_is_touched_that_nobody_wants() -> None:
    store = QueryStore()
    result = store.put(bytes(60_000), keys=("ID",))
    found = await store.queries.message_at(result.physical_offset, body_bytes=0)
    assert found.outline.body_bytes == 60_000
    assert found.body.data == b""
    assert sum(end - start for start, end in store.pages.fetched) < 40_000


async def test_bodies_are_unpacked_only_as_far_as_they_are_wanted() -> None:
    store = QueryStore()
    bomb = bytes(8 << 20)  # 8 KiB as it is stored
    packed = store.put_zipped(bomb)
    broken = store.put(b"no zlib", sys_flag=COMPRESSED)
    found = await store.queries.message_at(packed.physical_offset, body_bytes=1_000)
    assert (len(found.body.data), found.body.compression, found.body.problem) == (1_000, "zlib", "")
    whole = await store.queries.message_at(packed.physical_offset, body_bytes=16 << 20)
    assert whole.body.data == bomb
    bad = await store.queries.message_at(broken.physical_offset, body_bytes=10)
    assert bad.body.data == b""
    assert "says it is compressed" in bad.body.problem


async def test_a_damaged_body_is_told_of() -> None:
    store = QueryStore()
    result = store.put(b"0123456789")
    found = await store.queries.message_at(result.physical_offset, body_bytes=10)
    flush_all(store.store)
    store.store.replace_log(found.outline.body_offset, b"X")
    again = await store.queries.message_at(result.physical_offset, body_bytes=10)
    assert again.body.data == b"X123456789"
    assert "damaged" in again.body.problem


async def test_a_page_ends_where_an_answer_would_be_too_long() -> None:
    store = QueryStore(queues=1)
    for number in range(300):
        store.put(bytes([number % 256]) * (15 << 10))
    wanted = WantedMessages("orders", TimeCriteria(newest_first=True), limit=500, body_bytes=1 << 20)
    pages = await store.all_pages(wanted)
    assert sum(len(page.messages) for page in pages) == 300
    assert len(pages) == 2
    assert all(sum(len(one.body.data) for one in page.messages) <= 3 << 20 for page in pages)


async def test_a_page_ends_after_so_many_messages_looked_at() -> None:
    store = QueryStore(queues=1)
    for number in range(6_000):
        # Two texts of one hash, as Java makes it.
        store.put(tag="Aa" if number else "BB")
    wanted = WantedMessages("orders", TimeCriteria(newest_first=True), tags=frozenset({"BB"}))
    pages = await store.all_pages(wanted)
    assert [len(page.messages) for page in pages] == [0, 1]
    assert 5_000 <= pages[0].scanned_count < 5_100


async def test_a_search_ends_in_time() -> None:
    store = QueryStore(queues=1)
    for _ in range(200):
        store.put()
    store.pages.takes_ms = 2_000
    wanted = WantedMessages("orders", TimeCriteria(), limit=500)
    page = await store.queries.messages(wanted)
    assert len(page.messages) == 2 * 24
    store.pages.takes_ms = 0
    assert len((await store.queries.messages(wanted, page.next_page_token)).messages) == 200 - 2 * 24


async def test_tokens_go_with_their_query_only() -> None:
    store, _ = filled()
    wanted = WantedMessages("orders", TimeCriteria(), limit=5)
    token = (await store.queries.messages(wanted)).next_page_token
    more = WantedMessages("orders", TimeCriteria(), limit=50, body_bytes=10)
    assert len((await store.queries.messages(more, token)).messages) == 35
    for other in (
        WantedMessages("orders", TimeCriteria(newest_first=True), limit=5),
        WantedMessages("orders", QueueCriteria(0), limit=5),
        WantedMessages("orders", TimeCriteria(), limit=5, tags=frozenset({"odd"})),
    ):
        with pytest.raises(PageTokenInvalid):
            await store.queries.messages(other, token)
    for wrong in (b"x", token[:-1], token + b"x", bytes(len(token)), b"\x02" + token[1:]):
        with pytest.raises(PageTokenInvalid):
            await store.queries.messages(wanted, wrong)


async def test_gaps_of_a_queue_are_passed_over() -> None:
    store = QueryStore(queues=2)
    store.put(queue_id=0)
    store.put(queue_id=1)
    queue = store.store.consume_queue("orders", 0)
    assert queue is not None
    # As a slave that lost a stretch of the log would have it: the next message of the queue is its thousandth.
    queue._fill_up_to(1_000, store.store.end_offset)
    store.put(queue_id=0, after_ms=1_000)
    assert queue.entry(500).size == FILLER_SIZE
    for newest_first in (False, True):
        pages = await store.all_pages(WantedMessages("orders", TimeCriteria(newest_first=newest_first), limit=1))
        assert [len(page.messages) for page in pages] == [1, 1, 1]
    of_queue = await store.all_pages(WantedMessages("orders", QueueCriteria(0, start_offset=10)))
    assert len(places(of_queue)) == 1
    assert [one.offset for one in await store.queries.find_offsets("orders", START_MS + 500)] == [1, 1]


async def test_expired_messages_are_left_out() -> None:
    store = QueryStore(queues=1)
    for _ in range(20):
        store.put(bytes(10_000), after_ms=1_000)
    assert store.store.end_offset > 3 * store.store.segment_bytes
    flush_all(store.store)
    store.clock.now_ms += 400 * 24 * 3_600_000
    job = None
    for hour in range(24):
        store.clock.now_ms += hour and 3_600_000
        job = job or store.store.expire(store.store.expiry_wish(right_time(store.clock.now_ms)), RetentionFloor())
    assert job is not None
    job.run()
    assert store.store.min_offset > 0
    (page,) = await store.all_pages(WantedMessages("orders", QueueCriteria(0)))
    assert 0 < len(page.messages) < 20
    (state,) = await store.queries.queue_states("orders")
    assert state.min_offset == page.messages[0].outline.queue_offset
    assert state.oldest_store_ms == page.messages[0].outline.store_timestamp_ms
    with pytest.raises(MessageUnknown):
        await store.queries.message_at(0, body_bytes=0)


@pytest.mark.parametrize("moment", range(1, 12, 2))
@pytest.mark.parametrize(
    "criteria",
    [QueueCriteria(0), TimeCriteria(), TimeCriteria(START_MS + 100, START_MS + 900, True), KeyCriteria("all")],
)
async def test_a_log_may_be_cut_under_a_search(
    criteria: QueueCriteria | TimeCriteria | KeyCriteria, moment: int
) -> None:
    """As a slave cuts back to what its master has, and goes on with other messages."""
    store = QueryStore(queues=2)
    for number in range(1_000):
        result = store.put(b"old", queue_id=number % 2, keys=(f"ID{number}", "all"), after_ms=1)
        if number == 300:
            cut_at = result.end_offset
    flush_all(store.store)
    fetches = 0

    def cut() -> None:
        nonlocal fetches
        fetches += 1
        if fetches == moment:
            store.store.truncate(cut_at)
            for number in range(100):
                store.put(b"new" * 40, queue_id=number % 2, keys=("all",), after_ms=1)

    store.pages.meanwhile = cut
    wanted = WantedMessages("orders", criteria, limit=100, body_bytes=10)
    found = [message for page in await store.all_pages(wanted) for message in page.messages]
    for message in found:
        assert message.body.data == (b"newnewnewn" if message.outline.body_bytes > 10 else b"old") or (
            "cut off" in message.body.problem
        )
    assert await store.queries.queue_states("orders")


async def test_the_digest_of_a_range() -> None:
    store = QueryStore()
    first, second = store.put(b"first"), store.put(b"second")
    held = bytes(store.store.read_log(0, store.store.end_offset))
    digest = await store.queries.digest(first.physical_offset, second.end_offset)
    assert digest.sha256 == hashlib.sha256(held).digest()
    assert (digest.min_offset, digest.end_offset, digest.flushed_offset) == (0, len(held), 0)
    assert (await store.queries.digest(second.physical_offset, len(held))).sha256 is None


@pytest.mark.parametrize("newest_first", [False, True])
async def test_an_entry_that_leads_to_another_queues_record_is_told_and_no_message(newest_first: bool) -> None:
    damaged = DamagedEntries()
    store = QueryStore(queues=2, damaged=damaged)
    store.put(queue_id=0)
    other = store.put(queue_id=1)
    queue = store.store.consume_queue("orders", 0)
    assert queue is not None
    queue.rewrite(0, ENTRY.pack(other.physical_offset, other.end_offset - other.physical_offset, 0))
    pages = await store.all_pages(WantedMessages("orders", TimeCriteria(newest_first=newest_first), limit=5))
    assert places(pages) == [(1, 0)]
    assert damaged.first() == ("orders", 0, 0)
    with pytest.raises(MessageUnknown):
        await store.queries.message_in_queue("orders", 0, 0, body_bytes=0)
