from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.messages import STORE_HOST, outgoing_message
from tandemmq.core.message.record import (
    Blank,
    Corrupt,
    Host,
    OutgoingMessage,
    RecordFound,
    ScanStop,
    decode_record,
    encode_record,
    scan_record,
)
from tandemmq.core.message.record_layout import MalformedRecord, encode_blank

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
# A head in which three fields are 0 is packed in its own way.
_ZERO = st.just(0)
HOSTS = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), st.integers(0, 65535))
TOPICS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
MESSAGES = st.builds(
    OutgoingMessage,
    topic=TOPICS,
    queue_id=I32,
    body=st.binary(max_size=300),
    properties=st.binary(max_size=300),
    tags_code=st.just(0),
    index_keys=st.just(()),
    tag=st.none(),
    born_timestamp_ms=I64,
    born_host=HOSTS,
    flag=_ZERO | I32,
    sys_flag=st.integers(0, 0xFFF).map(lambda bits: bits & ~0x30),
    reconsume_times=_ZERO | I32,
    prepared_transaction_offset=_ZERO | I64,
)


@settings(deadline=None)
@given(MESSAGES, I64, I64, I64, HOSTS, st.binary(max_size=20))
def test_record_decodes_to_what_was_encoded_wherever_it_lies(
    message: OutgoingMessage,
    queue_offset: int,
    physical_offset: int,
    store_timestamp_ms: int,
    store_host: Host,
    before: bytes,
) -> None:
    encoded = encode_record(
        message,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp_ms=store_timestamp_ms,
        store_host=store_host,
    )
    buffer = memoryview(before + encoded + b"\xff\xff")
    record = decode_record(buffer, len(before))
    for name in (
        "topic",
        "queue_id",
        "body",
        "properties",
        "born_timestamp_ms",
        "born_host",
        "flag",
        "reconsume_times",
        "prepared_transaction_offset",
    ):
        assert getattr(record, name) == getattr(message, name)
    assert record.sys_flag & ~0x30 == message.sys_flag
    assert (record.queue_offset, record.physical_offset) == (queue_offset, physical_offset)
    assert (record.store_timestamp_ms, record.store_host) == (store_timestamp_ms, store_host)
    assert scan_record(buffer, len(before), len(before) + len(encoded), physical_offset=physical_offset) == RecordFound(
        size=len(encoded),
        queue_id=message.queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=record.sys_flag,
        store_timestamp_ms=store_timestamp_ms,
        topic=message.topic,
        properties=message.properties,
    )


def encoded(message: OutgoingMessage | None = None, *, physical_offset: int = 4096) -> bytearray:
    return bytearray(
        encode_record(
            message or outgoing_message(tag="TagA"),
            queue_offset=7,
            physical_offset=physical_offset,
            store_timestamp_ms=1,
            store_host=STORE_HOST,
        )
    )


def scan(buffer: bytes | bytearray, *, check_crc: bool = True) -> RecordFound | Blank | Corrupt | ScanStop:
    return scan_record(buffer, 0, len(buffer), physical_offset=4096, check_crc=check_crc)


@settings(deadline=None)
@given(st.integers(0, 200))
def test_any_prefix_of_a_record_is_incomplete(length: int) -> None:
    record = encoded()
    prefix = record[: min(length, len(record) - 1)]
    assert scan(prefix) is ScanStop.INCOMPLETE
    with pytest.raises(MalformedRecord):
        decode_record(prefix)


@settings(deadline=None)
@given(st.data())
def test_a_record_with_a_sector_lost_is_never_taken_for_whole(data: st.DataObject) -> None:
    record = encoded(outgoing_message(body=b"b" * 2000))
    start = data.draw(st.integers(0, len(record) // 512)) * 512
    lost = record[start : start + 512]
    record[start : start + 512] = bytes(len(lost))
    assert not isinstance(scan(record), RecordFound)


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (4, b"\xda\xa3\x20\xa8", "magic code daa320a8"),
        (0, struct.pack(">i", -1), "total size -1"),
        (0, struct.pack(">i", 90), "total size 90"),
        (28, struct.pack(">q", 5000), "physical offset 5000"),
        (84, struct.pack(">i", -1), "a body of -1 bytes"),
        (84, struct.pack(">i", 2_000_000_000), "a body of 2000000000 bytes"),
        (88, b"B", "does not match its CRC"),
        (92, b"\x80", "a V1 topic of 128 bytes"),
        (92, b"\x7f", "a topic of 127 bytes"),
        (98, b"\x00\x01", "do not add up"),
        (98, b"\xff\xff", "do not add up"),
    ],
)
def test_damage_is_named(position: int, value: bytes, reason: str) -> None:
    record = encoded()
    record[position : position + len(value)] = value
    found = scan(record)
    assert isinstance(found, Corrupt)
    assert reason in found.reason
    if position != 28:  # Only who scans knows where a record should be.
        with pytest.raises(MalformedRecord):
            decode_record(record)


def test_crc_is_left_alone_when_asked() -> None:
    record = encoded()
    record[88] ^= 1
    assert isinstance(scan(record, check_crc=False), RecordFound)
    assert decode_record(record, check_crc=False).body == b"cody"


def test_zeros_are_the_end_of_data_and_fewer_than_eight_bytes_say_nothing() -> None:
    assert scan(bytes(8)) is ScanStop.END_OF_DATA
    assert scan(bytes(7)) is ScanStop.INCOMPLETE


def test_a_blank_tells_its_size() -> None:
    assert scan(encode_blank(386) + b"anything") == Blank(386)
    assert isinstance(scan(encode_blank(7)), Corrupt)


def test_ipv6_flags_on_a_record_too_short_for_them_are_corrupt() -> None:
    record = encoded(outgoing_message(topic="t", body=b""))
    record[36:40] = struct.pack(">i", 0x30)
    found = scan(record)
    assert isinstance(found, Corrupt)
    with pytest.raises(MalformedRecord):
        decode_record(record)


def test_topic_that_is_no_utf8_is_read_as_java_reads_it() -> None:
    record = encoded(outgoing_message(topic="abc"))
    record[93:96] = b"a\xffc"
    found = scan(record)
    assert isinstance(found, RecordFound)
    assert found.topic == "a�c"
