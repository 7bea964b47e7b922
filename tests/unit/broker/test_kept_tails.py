"""What was cut off comes back once, however often it is asked for."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from support.broker_assembly import BrokerAssembly
from support.manual_time import ManualTime
from support.messages import outgoing_message
from support.query_stores import RememberedPages
from support.simulated_disk import SimulatedDisk
from support.stores import ManualClock
from tandemmq.broker.kept_tails import KeptTails, TailUnknown
from tandemmq.broker.queries.message_queries import MessageQueries
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import decode_record
from tandemmq.core.storage.kept_tail import KeptTail, TailWalk
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb

HELD, MISSING, UNKNOWN = pb.HOLDING_STATE_HELD, pb.HOLDING_STATE_MISSING, pb.HOLDING_STATE_UNKNOWN


class Desk:
    """A master whose log lost its tail."""

    def __init__(self, broker: BrokerAssembly, disk: SimulatedDisk, *, is_indexed: bool = True) -> None:
        self.broker = broker
        queries = MessageQueries(
            store=broker.store,
            topics=broker.topics,
            pages=RememberedPages(ManualClock()),
            clock=broker.clock,
            is_indexed=is_indexed,
        )
        self.tails = KeptTails(
            disk=disk, services=broker, queries=queries, is_system_topic=lambda name: name.startswith("rmq_sys_")
        )

    def put(self, message_id: str, body: bytes = b"body", *, topic: str = "orders", queue_id: int = 1) -> None:
        self.broker.store.put(
            outgoing_message(topic=topic, queue_id=queue_id, body=body, keys=(message_id,) if message_id else ())
        )
        self.broker.store.write_appended()

    def cut(self, end_offset: int) -> KeptTail:
        self.broker.store.write_appended()
        kept = self.broker.store.truncate(end_offset, reason="for a test")
        assert kept is not None
        return kept

    async def records(self, tail: KeptTail) -> list[bytes]:
        """What lies in a tail, as a caller far away finds it out."""
        walk = TailWalk(tail.start_offset, tail.end_offset)
        found: list[bytes] = []
        while (wanted := walk.wanted) is not None:
            offset, length = wanted
            data = b""
            while len(data) < length:
                data += await self.tails.read(tail.name, offset + len(data), min(3_000, length - len(data)))
            found += [record for _, record in walk.take(data).records]
        return found

    def held(self, topic: str = "orders") -> Counter[tuple[str, bytes]]:
        """How often each message is there for consumers."""
        found: Counter[tuple[str, bytes]] = Counter()
        for queue_id in self.broker.store.queues.ids_of(topic):
            queue = self.broker.store.consume_queue(topic, queue_id)
            assert queue is not None
            for offset in range(queue.min_offset, queue.max_offset):
                [entry] = queue.read(offset, 1)
                record = self.broker.store.message_at(entry.physical_offset)
                found[decode_properties(record.properties).get("UNIQ_KEY", ""), record.body] += 1
        return found


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    time = ManualTime()
    disk = SimulatedDisk(random.Random(1))
    broker = BrokerAssembly(clock=time, timers=time, disk=disk)
    broker.add_topic("orders")
    broker.add_topic("closed", perm=4)
    yield Desk(broker, disk)
    broker.close()


async def test_what_is_missing_comes_back_as_it_was_and_nothing_else(desk: Desk) -> None:
    desk.put("BEFORE")
    cut_at = desk.broker.store.end_offset
    for number in range(5):
        desk.put(f"ID-{number}", f"body {number}".encode())
    tail = desk.cut(cut_at)
    # Sent again by its client since then, which got no answer; and another message that only shares an id.
    desk.put("ID-1", b"body 1")
    desk.put("ID-2", b"another body")
    records = await desk.records(tail)
    end_offset = desk.broker.store.end_offset
    planned = await desk.tails.restore(records, dry_run=True)
    assert [message.state for message in planned] == [MISSING, HELD, MISSING, MISSING, MISSING]
    assert desk.broker.store.end_offset == end_offset
    restored = await desk.tails.restore(records, dry_run=False)
    assert [message.new_queue_offset >= 0 for message in restored] == [True, False, True, True, True]
    assert not any(message.problem for message in restored)
    expected = Counter({(f"ID-{number}", f"body {number}".encode()): 1 for number in range(5)})
    assert desk.held() == expected + Counter({("BEFORE", b"body"): 1, ("ID-2", b"another body"): 1})
    queue = desk.broker.store.consume_queue("orders", restored[0].queue_id)
    assert queue is not None
    [entry] = queue.read(restored[0].new_queue_offset, 1)
    record, first = desk.broker.store.message_at(entry.physical_offset), decode_record(records[0])
    assert (record.properties, record.born_timestamp_ms) == (first.properties, first.born_timestamp_ms)
    # The second time there is nothing to do.
    end_offset = desk.broker.store.end_offset
    again = await desk.tails.restore(records, dry_run=False)
    assert {message.state for message in again} == {HELD}
    assert desk.broker.store.end_offset == end_offset


@pytest.mark.parametrize("seed", range(20))
async def test_broken_off_anywhere_and_asked_by_several_nothing_is_doubled(desk: Desk, seed: int) -> None:
    rng = random.Random(seed)
    desk.put("BEFORE")
    cut_at = desk.broker.store.end_offset
    wanted: Counter[tuple[str, bytes]] = Counter({("BEFORE", b"body"): 1})
    for number in range(rng.randint(1, 30)):
        message = (f"ID-{number}", rng.randbytes(rng.choice((0, 5, 300))))
        wanted[message] = 1
        for _ in range(rng.choice((1, 1, 2))):  # A client may have sent it twice.
            desk.put(*message, queue_id=rng.randrange(4))
    records = await desk.records(desk.cut(cut_at))
    for _ in range(3):
        broken_off = records[: rng.randint(1, len(records))]
        await asyncio.gather(*(desk.tails.restore(broken_off, dry_run=rng.random() < 0.3) for _ in range(2)))
    await desk.tails.restore(records, dry_run=False)
    assert desk.held() == wanted


async def test_each_says_for_itself_why_it_cannot(desk: Desk) -> None:
    cut_at = desk.broker.store.end_offset
    for topic in ("gone", "closed", "rmq_sys_X", "SCHEDULE_TOPIC_XXXX"):
        desk.put("ID", topic=topic, queue_id=0)
    records = await desk.records(desk.cut(cut_at))
    answers = await desk.tails.restore([*records, b"nonsense"], dry_run=False)
    for answer, part in zip(
        answers,
        ("topic gone, where it came from, does not", "no writable queue", "broker's own", "broker's own", "no record"),
        strict=True,
    ):
        assert part in answer.problem
        assert answer.new_queue_offset == -1
    desk.broker.add_topic("gone")
    [answer] = await desk.tails.restore(records[:1], dry_run=False)
    assert answer.new_queue_offset == 0


async def test_a_message_without_an_id_is_known_by_the_one_made_of_its_place(desk: Desk) -> None:
    desk.put("BEFORE")
    cut_at = desk.broker.store.end_offset
    desk.put("", b"anonymous")
    records = await desk.records(desk.cut(cut_at))
    [restored] = await desk.tails.restore(records, dry_run=False)
    assert restored.message_id
    [again] = await desk.tails.restore(records, dry_run=False)
    assert again.state == HELD
    assert desk.held()[restored.message_id, b"anonymous"] == 1


async def test_what_a_fallen_through_put_left_is_told(desk: Desk) -> None:
    cut_at = desk.broker.store.end_offset
    desk.put("ID")
    records = await desk.records(desk.cut(cut_at))
    desk.broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    [answer] = await desk.tails.restore(records, dry_run=False)
    assert answer.problem
    assert answer.new_queue_offset == 0
    desk.broker.put_status = PutStatus.PUT_OK
    [again] = await desk.tails.restore(records, dry_run=False)
    assert again.state == HELD


async def test_without_an_index_nothing_is_guessed(desk: Desk) -> None:
    desk.put("BEFORE")
    cut_at = desk.broker.store.end_offset
    desk.put("ID")
    tail = desk.cut(cut_at)
    blind = Desk(desk.broker, desk.tails._disk, is_indexed=False)  # type: ignore[arg-type]
    [answer] = await blind.tails.restore(await blind.records(tail), dry_run=False)
    assert answer.state == UNKNOWN
    assert "messageIndexEnable" in answer.problem
    assert answer.new_queue_offset == -1


async def test_fingerprints_are_compared_in_id_topic_and_body(desk: Desk) -> None:
    desk.put("ID", b"the body")

    def fingerprint(message_id: str = "ID", topic: str = "orders", body: bytes = b"the body") -> pb.MessageFingerprint:
        digest = hashlib.sha256(body).digest()
        return pb.MessageFingerprint(message_id=message_id, topic=topic, body_sha256=digest, physical_offset=10_000_000)

    holdings = await desk.tails.check(
        [
            fingerprint(),
            fingerprint("OTHER"),
            fingerprint(topic="closed"),
            fingerprint(body=b"x"),
            fingerprint(topic="?"),
        ]
    )
    assert [holding.state for holding in holdings] == [HELD, MISSING, MISSING, MISSING, MISSING]


async def test_tails_are_listed_by_pages_and_read_in_pieces(desk: Desk) -> None:
    ends = []
    for number in range(3):
        ends.append(desk.broker.store.end_offset)
        desk.put(f"ID-{number}")
    tails = [desk.cut(end) for end in reversed(ends)]
    first, token = await desk.tails.tails(after="", limit=2)
    rest, end = await desk.tails.tails(after=token, limit=2)
    assert [tail.name for tail in (*first, *rest)] == sorted(tail.name for tail in tails)
    assert (first[0].reason, end) == ("for a test", "")
    for name, offset in (("nothing", 0), ("../checkpoint", 0), (tails[0].name, tails[0].end_offset)):
        with pytest.raises(TailUnknown):
            await desk.tails.read(name, offset, 10)
