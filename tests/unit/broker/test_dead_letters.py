"""Dead letters go back to where they came from, as they were."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

import pytest

from support.broker_assembly import BrokerAssembly
from support.manual_time import ManualTime
from support.messages import BORN_HOST
from support.query_stores import RememberedPages
from support.stores import ManualClock
from tandemmq.broker.client_api.validation import OK, Outcome
from tandemmq.broker.dead_letters import DeadLetterQueues, DeadLetterResend
from tandemmq.broker.put import DeliveryMeter
from tandemmq.broker.queries.message_queries import MessageQueries
from tandemmq.core.message.properties import decode_properties, encode_properties, index_terms, tags_code
from tandemmq.core.message.record import MessageRecord, OutgoingMessage
from tandemmq.core.message.record_layout import COMPRESSED
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb

LETTERS = "%DLQ%workers"


class Desk:
    """A broker with dead letters of the group `workers`, and what sends them again."""

    def __init__(self, broker: BrokerAssembly) -> None:
        self.broker = broker
        self.queries = MessageQueries(
            store=broker.store,
            topics=broker.topics,
            pages=RememberedPages(ManualClock()),
            clock=broker.clock,
            is_indexed=True,
        )
        self._resend = DeadLetterResend(broker, self.queries)
        self._dead_letters = DeadLetterQueues(broker, DeliveryMeter())

    def put(
        self, properties: dict[str, str], *, topic: str = "orders", body: bytes = b"body", sys_flag: int = 0
    ) -> int:
        """Stores a message; returns where."""
        tag, keys = index_terms(properties)
        message = OutgoingMessage(
            topic=topic,
            queue_id=1 if topic == "orders" else 0,
            body=body,
            properties=encode_properties(properties.items()),
            tags_code=tags_code(tag),
            index_keys=keys,
            tag=tag,
            born_timestamp_ms=1_600_000_000_000,
            born_host=BORN_HOST,
            flag=7,
            sys_flag=sys_flag,
        )
        return int(self.broker.store.put(message).physical_offset)

    def bury(self, properties: dict[str, str], *, body: bytes = b"body", sys_flag: int = 0) -> None:
        """Stores a message, and the dead letter that becomes of it."""
        record = self.broker.store.message_at(self.put(properties, body=body, sys_flag=sys_flag))
        outcomes: list[Outcome] = []
        self._dead_letters.move(record, group="workers", attempts=17, done=outcomes.append)
        assert outcomes == [OK]

    async def resend(self, *queue_offsets: int, dry_run: bool = False) -> list[pb.ResentDeadLetter]:
        return await self._resend.resend("workers", queue_offsets, dry_run)

    async def sent(self, letter: pb.ResentDeadLetter) -> MessageRecord:
        return await self.queries.record_in_queue(letter.topic, letter.queue_id, letter.new_queue_offset)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    time = ManualTime()
    broker = BrokerAssembly(clock=time, timers=time)
    broker.add_topic("orders")
    broker.add_topic("odd", message_type="MIXED")
    broker.add_topic("urgent", message_type="PRIORITY")
    broker.add_topic("closed", perm=4)
    # As a file of RocketMQ may have it.
    broker.topics.load_json(broker.topics.to_json().replace("MIXED", "ODD"))
    yield Desk(broker)
    broker.close()


async def test_a_letter_goes_back_as_it_was(desk: Desk) -> None:
    first = {"UNIQ_KEY": "ID", "KEYS": "order-1 order-2", "TAGS": "paid", "colour": "grün", "__BORNHOST": "10.0.0.9"}
    body = zlib.compress(b"the body")
    desk.bury(first, body=body, sys_flag=COMPRESSED)
    (letter,) = await desk.resend(0)
    assert (letter.topic, letter.message_id, letter.problem) == ("orders", "ID", "")
    assert letter.new_queue_offset >= 0
    record = await desk.sent(letter)
    assert decode_properties(record.properties) == first | {"ORIGIN_MESSAGE_ID": "ID"}
    assert (record.body, record.flag, record.sys_flag & COMPRESSED) == (body, 7, COMPRESSED)
    assert (record.born_timestamp_ms, record.born_host, record.reconsume_times) == (1_600_000_000_000, BORN_HOST, 0)
    # The letter itself stays.
    assert desk.broker.store.queue_max_offset(LETTERS, 0) == 1


@pytest.mark.parametrize(("id_characters", "filler"), [(11_000, 0), (20_000, 0), (34, 32_600), (34, 32_710)])
async def test_a_letter_leaves_out_of_its_origin_what_has_no_room(desk: Desk, id_characters: int, filler: int) -> None:
    first = {"UNIQ_KEY": "i" * id_characters, "colour": "x" * filler}
    desk.bury({name: value for name, value in first.items() if value})
    (letter,) = await desk.resend(0, dry_run=True)
    assert letter.message_id == first["UNIQ_KEY"]
    has_room_for_topic = filler < 32_700
    assert letter.topic == ("orders" if has_room_for_topic else "")


async def test_a_letter_goes_back_however_long_its_properties_are(desk: Desk) -> None:
    fillers = range(32_450, 32_700, 5)
    for filler in fillers:
        desk.bury({"UNIQ_KEY": f"{filler:034}", "colour": "x" * filler})
    letters = await desk.resend(*range(len(fillers)))
    assert {letter.problem for letter in letters} == {""}
    for letter, filler in zip(letters, fillers, strict=True):
        properties = decode_properties((await desk.sent(letter)).properties)
        assert (properties["UNIQ_KEY"], len(properties["colour"])) == (f"{filler:034}", filler)


async def test_a_letter_with_a_priority_goes_to_the_queue_of_it(desk: Desk) -> None:
    for priority in ("0", "1", "99", "much"):
        desk.put({"UNIQ_KEY": priority, "DLQ_ORIGIN_TOPIC": "urgent", "_SYS_MSG_PRIORITY_": priority}, topic=LETTERS)
    config = desk.broker.topics.get("urgent")
    assert config is not None
    for letter, queue_id in zip(await desk.resend(0, 1, 2), [0, 1, config.write_queue_count - 1], strict=True):
        assert (letter.problem, letter.queue_id) == ("", queue_id)
    (unread,) = await desk.resend(3)
    assert unread.problem == ""


async def test_a_dry_run_says_the_same_and_stores_nothing(desk: Desk) -> None:
    desk.bury({"UNIQ_KEY": "ID"})
    end_offset = desk.broker.store.end_offset
    (letter,) = await desk.resend(0, dry_run=True)
    assert (letter.topic, letter.message_id, letter.problem) == ("orders", "ID", "")
    assert letter.new_queue_offset == -1
    assert desk.broker.store.end_offset == end_offset


async def test_each_says_for_itself_why_it_cannot(desk: Desk) -> None:
    desk.bury({"UNIQ_KEY": "GOOD"})
    desk.put({"UNIQ_KEY": "NOWHERE"}, topic=LETTERS)
    for topic in ("gone", "odd", "closed", "%RETRY%workers"):
        desk.put({"UNIQ_KEY": topic, "DLQ_ORIGIN_TOPIC": topic}, topic=LETTERS)
    letters = await desk.resend(0, 1, 2, 3, 4, 5, 6, -1, 0)
    assert [letter.queue_offset for letter in letters] == [0, 1, 2, 3, 4, 5, 6, -1, 0]
    assert [letter.problem for letter in letters[:1]] == [""]
    for letter, part in zip(
        letters[1:],
        [
            "does not say which topic",
            "topic gone, where it came from, does not exist",
            "takes ODD messages",
            "no writable queue",
            "takes no new messages",
            "has no message there",
            "has no message there",
            "named twice",
        ],
        strict=True,
    ):
        assert part in letter.problem
        assert letter.new_queue_offset == -1


async def test_a_group_without_dead_letters(desk: Desk) -> None:
    (letter,) = await desk.resend(0)
    assert "does not exist on this broker" in letter.problem


async def test_a_letter_of_a_java_broker_came_from_its_retry_topic(desk: Desk) -> None:
    properties = {"UNIQ_KEY": "ID", "RETRY_TOPIC": "orders", "DLQ_ORIGIN_TOPIC": "%RETRY%workers", "DELAY": "3"}
    desk.put(properties, topic=LETTERS)
    (letter,) = await desk.resend(0)
    assert letter.topic == "orders"
    assert set(decode_properties((await desk.sent(letter)).properties)) == {"UNIQ_KEY", "ORIGIN_MESSAGE_ID"}


async def test_messages_of_a_message_group_keep_their_queue(desk: Desk) -> None:
    for number in range(3):
        desk.bury({"UNIQ_KEY": f"ID{number}", "__SHARDINGKEY": "customer-7"})
    letters = await desk.resend(0, 1, 2)
    assert len({letter.queue_id for letter in letters}) == 1
    assert [letter.new_queue_offset for letter in letters] == sorted(letter.new_queue_offset for letter in letters)


async def test_what_is_stored_without_its_copies_is_told_with_its_place(desk: Desk) -> None:
    desk.bury({"UNIQ_KEY": "ID"})
    desk.broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    (letter,) = await desk.resend(0)
    assert letter.problem.startswith("stored, but too few slaves")
    assert letter.new_queue_offset >= 0


async def test_more_than_fit_into_one_round(desk: Desk) -> None:
    for number in range(20):
        desk.bury({"UNIQ_KEY": f"ID{number}"})
    letters = await desk.resend(*range(20))
    assert [letter.message_id for letter in letters] == [f"ID{number}" for number in range(20)]
    assert all(not letter.problem for letter in letters)
    assert {letter.queue_id for letter in letters} == {0, 1, 2, 3}


async def test_what_there_was_no_time_for_is_not_sent(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.broker.dead_letters.PUT_LIMIT_S", 0.2)
    for number in range(10):
        desk.bury({"UNIQ_KEY": f"ID{number}"})
    desk.broker.puts_held = True
    stored = sum(desk.broker.store.queue_max_offset("orders", queue_id) for queue_id in range(4))
    letters = await desk.resend(*range(10))
    # Eight are put at once; fewer where the machine stood still.
    sent = [letter for letter in letters if "is not known in time" in letter.problem]
    assert sent == letters[: len(sent)]
    assert len(sent) <= 8
    assert {letter.problem for letter in letters[len(sent) :]} == {
        "not sent: those before it took all the time there was"
    }
    assert sum(desk.broker.store.queue_max_offset("orders", queue_id) for queue_id in range(4)) == stored + len(sent)
