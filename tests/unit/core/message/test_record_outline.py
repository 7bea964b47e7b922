"""A record's outline says what the whole record says, but for the body, and is refused when it is not whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.message.record import (
    RECORD_HEAD_BYTES_MAX,
    RECORD_TAIL_BYTES_MAX,
    Host,
    decode_record,
    read_record_outline,
)
from tandemmq.core.message.record_layout import MalformedRecord
from unit.core.message.records import ADDRESSES, PHYSICAL_OFFSET, record


@given(topic=st.sampled_from(["t", "t" * 127, "t" * 200, "grün"]), body=st.binary(max_size=200), address=ADDRESSES)
def test_fields_are_those_of_the_whole_record(topic: str, body: bytes, address: bytes) -> None:
    raw = record(topic=topic, body=body, store_host=Host(address, 10_911))
    whole = decode_record(raw)
    outline = read_record_outline(memoryview(raw + b"after"), PHYSICAL_OFFSET)
    for name in ("total_size", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag"):
        assert getattr(outline, name) == getattr(whole, name)
    for name in ("born_timestamp_ms", "born_host", "store_timestamp_ms", "store_host", "topic", "properties"):
        assert getattr(outline, name) == getattr(whole, name)
    assert (outline.reconsume_times, outline.prepared_transaction_offset) == (0, 0)
    start = outline.body_offset - PHYSICAL_OFFSET
    assert raw[start : start + outline.body_bytes] == body


def test_the_body_is_not_looked_at() -> None:
    raw = bytearray(record(body=bytes(100_000)))
    outline = read_record_outline(memoryview(raw), PHYSICAL_OFFSET)
    raw[RECORD_HEAD_BYTES_MAX:-RECORD_TAIL_BYTES_MAX] = b"x" * (
        len(raw) - RECORD_HEAD_BYTES_MAX - RECORD_TAIL_BYTES_MAX
    )
    assert read_record_outline(memoryview(raw), PHYSICAL_OFFSET) == outline


@given(cut=st.integers(0, 150), place=st.integers(0, 149), value=st.integers(0, 255))
def test_what_is_not_whole_is_refused_and_nothing_else_happens(cut: int, place: int, value: int) -> None:
    raw = bytearray(record())
    with pytest.raises(MalformedRecord):
        read_record_outline(memoryview(raw)[: min(cut, len(raw) - 1)], PHYSICAL_OFFSET)
    with pytest.raises(MalformedRecord):
        read_record_outline(memoryview(raw), PHYSICAL_OFFSET + 1)
    raw[place % len(raw)] = value
    try:
        outline = read_record_outline(memoryview(raw), PHYSICAL_OFFSET)
    except MalformedRecord:
        return
    assert outline.body_offset + outline.body_bytes <= PHYSICAL_OFFSET + len(raw)
