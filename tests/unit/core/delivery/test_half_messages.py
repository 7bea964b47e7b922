"""Ids that say where a half lies, records about halves, and the table that follows from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.delivery.half_messages import (
    BadTransactionId,
    Half,
    HalfMessages,
    Resolution,
    TransactionId,
    check_record,
    committed_copy,
    op_record,
)
from tandemmq.core.message.properties import decode_properties, encode_properties
from tandemmq.core.message.record import Host, MessageRecord
from tandemmq.core.message.record_layout import COMPRESSED, V1_MAGIC
from tandemmq.core.offsets import PhysicalOffset, QueueOffset

_HOST = Host.parse("127.0.0.1", 10_911)
_NAMES = st.from_regex(r"[%a-zA-Z0-9_-]{1,127}", fullmatch=True)


@given(broker=_NAMES, place=st.integers(0, 1 << 62), offset=st.integers(0, 1 << 62), message_id=st.text(min_size=1))
def test_an_id_is_read_as_it_was_made(broker: str, place: int, offset: int, message_id: str) -> None:
    parsed = TransactionId.parse(TransactionId(broker, place, offset, message_id).encode())
    assert (parsed.broker_name, parsed.queue_offset, parsed.physical_offset) == (broker, place, offset)
    assert parsed.message_id == message_id


@given(st.text(max_size=200))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(BadTransactionId):
        TransactionId.parse(text)


def _half(place: int) -> Half:
    return Half(place, place * 100, "payments", 0, f"id-{place}", 0, 0)


def _read(table: HalfMessages, records: list[object]) -> None:
    for record in records:
        properties = decode_properties(record.properties)  # type: ignore[attr-defined]
        table.read_op(properties["TAGS"], properties, record.body)  # type: ignore[attr-defined]


def test_records_say_what_ended_how_and_what_was_asked_after() -> None:
    table = HalfMessages()
    for place in range(4):
        table.learn(_half(place), due_ms=place)
    _read(
        table,
        [
            op_record(0, Resolution.COMMIT, undecided_from=1, host=_HOST, wall_ms=0),
            op_record(2, Resolution.ROLLBACK, undecided_from=1, host=_HOST, wall_ms=0),
            check_record([1, 3], undecided_from=1, host=_HOST, wall_ms=0),
            check_record([1], undecided_from=1, host=_HOST, wall_ms=0),
        ],
    )
    assert {half.queue_offset: half.check_count for half in table.undecided()} == {1: 2, 3: 1}
    assert table.resolution(0) == (Resolution.COMMIT, False)
    assert table.resolution(2) == (Resolution.ROLLBACK, False)
    assert table.undecided_from() == 1
    assert [half.queue_offset for half in table.take_due(2, count_max=9)] == [1]


def test_a_record_of_rocketmq_ends_several_at_once() -> None:
    table = HalfMessages()
    for place in range(3):
        table.learn(_half(place), due_ms=0)
    table.read_op("d", {"TAGS": "d"}, b"0,2,")
    assert [half.queue_offset for half in table.undecided()] == [1]
    table.read_op("x", {"TAGS": "x"}, b"1,")
    table.read_op("d", {"TAGS": "d"}, b"no number")
    assert len(table) == 1


def test_a_second_commit_counts_and_one_that_is_said_again_does_not() -> None:
    table = HalfMessages()
    table.learn(_half(0), due_ms=0)
    commit = op_record(0, Resolution.COMMIT, undecided_from=1, host=_HOST, wall_ms=0)
    again = op_record(0, Resolution.COMMIT, undecided_from=1, host=_HOST, wall_ms=0, is_again=True)
    _read(table, [commit, again, again])
    assert table.doubled_count == 0
    _read(table, [commit])
    assert table.doubled_count == 1


def test_what_is_remembered_is_bounded() -> None:
    table = HalfMessages(remembered_max=10)
    for place in range(100):
        half = _half(place)
        table.learn(half, due_ms=0)
        table.end(half, Resolution.ROLLBACK)
    assert table.resolution(89) is None
    assert table.resolution(90) is not None
    assert table.undecided_from() == 100


_PAIRS = st.dictionaries(st.from_regex(r"[A-Z_]{1,9}", fullmatch=True), st.text("abc", min_size=1), max_size=6)


@given(before=_PAIRS, after=_PAIRS, ends_openly=st.booleans())
def test_a_commit_leaves_all_properties_but_two_as_they_are(
    before: dict[str, str], after: dict[str, str], ends_openly: bool
) -> None:
    kept = {name: value for name, value in (before | after).items() if name not in ("REAL_TOPIC", "REAL_QID")}
    pairs = [*before.items(), ("REAL_TOPIC", "payments"), ("REAL_QID", "3")]
    pairs = [pair for pair in pairs if pair[0] not in after] + list(after.items())
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names) or not {"REAL_TOPIC", "REAL_QID"} <= set(names):
        return
    properties = encode_properties(pairs)
    record = MessageRecord(
        total_size=0,
        magic=V1_MAGIC,
        body_crc=0,
        queue_id=0,
        flag=7,
        queue_offset=QueueOffset(5),
        physical_offset=PhysicalOffset(500),
        sys_flag=COMPRESSED | 0x10,
        born_timestamp_ms=1,
        born_host=_HOST,
        store_timestamp_ms=2,
        store_host=_HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"body",
        topic="RMQ_SYS_TRANS_HALF_TOPIC",
        properties=properties[:-1] if ends_openly else properties,
    )
    copy = committed_copy(record, topic="payments", queue_id=3)
    assert decode_properties(copy.properties) == kept
    assert (copy.prepared_transaction_offset, copy.sys_flag, copy.flag) == (500, COMPRESSED | 0x8, 7)
