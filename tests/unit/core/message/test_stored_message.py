"""A record read in place says what the whole record says, and is refused when it is not whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.message.record import Host, decode_record
from tandemmq.core.message.record_layout import MalformedRecord
from tandemmq.core.message.stored_message import read_store_timestamp_ms, read_stored_message
from unit.core.message.records import ADDRESSES, PHYSICAL_OFFSET, record

FIELDS = (
    "queue_id",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "born_timestamp_ms",
    "born_address",
    "store_timestamp_ms",
    "store_address",
    "store_port",
    "body",
    "properties",
)


@given(topic=st.sampled_from(["t", "t" * 127, "t" * 200]), body=st.binary(max_size=200), address=ADDRESSES)
def test_fields_are_those_of_the_whole_record(topic: str, body: bytes, address: bytes) -> None:
    raw = record(topic=topic, body=body, store_host=Host(address, 10_911))
    whole = decode_record(raw)
    log = memoryview(b"before" + raw + b"after")
    message = read_stored_message(log, 6, len(raw), PHYSICAL_OFFSET)
    assert tuple(getattr(message, name) for name in FIELDS) == (
        whole.queue_id,
        whole.queue_offset,
        whole.physical_offset,
        whole.sys_flag,
        whole.born_timestamp_ms,
        whole.born_host.address,
        whole.store_timestamp_ms,
        whole.store_host.address,
        whole.store_host.port,
        whole.body,
        whole.properties,
    )


@given(data=st.data())
def test_a_damaged_record_is_refused_or_read_within_its_bounds(data: st.DataObject) -> None:
    raw = bytearray(record())
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    try:
        message = read_stored_message(memoryview(raw), 0, len(raw), PHYSICAL_OFFSET)
    except MalformedRecord:
        return
    # Only the parts under no check: flags, times, hosts, topic and properties.
    assert message.body == b"body"
    assert len(message.properties) < len(raw)


@pytest.mark.parametrize("size_change", [-1, 1])
def test_another_size_is_refused(size_change: int) -> None:
    raw = record()
    with pytest.raises(MalformedRecord):
        read_stored_message(memoryview(raw + b"x"), 0, len(raw) + size_change, PHYSICAL_OFFSET)


def test_a_record_that_is_cut_off_is_refused() -> None:
    raw = record()
    for length in range(len(raw)):
        with pytest.raises(MalformedRecord):
            read_stored_message(memoryview(raw)[:length], 0, len(raw), PHYSICAL_OFFSET)


def test_a_record_of_another_place_is_refused() -> None:
    raw = record()
    with pytest.raises(MalformedRecord, match="another record"):
        read_stored_message(memoryview(raw), 0, len(raw), PHYSICAL_OFFSET + 1)


@given(address=ADDRESSES)
def test_the_head_alone_says_when_a_record_was_stored(address: bytes) -> None:
    raw = memoryview(record(store_host=Host(address, 10_911)))
    assert read_store_timestamp_ms(raw[:110], PHYSICAL_OFFSET) == 1_700_000_000_001


def test_what_is_no_record_of_that_place_was_never_stored() -> None:
    raw = memoryview(record())
    assert read_store_timestamp_ms(raw, PHYSICAL_OFFSET + 1) is None
    assert read_store_timestamp_ms(raw[:20], PHYSICAL_OFFSET) is None
    assert read_store_timestamp_ms(memoryview(bytes(200)), 0) is None
