"""Golden bytes of records that the samples do not hold: the worked example, long topics, IPv6 hosts."""

from __future__ import annotations

from tandemmq.core.message.properties import encode_properties, tags_code
from tandemmq.core.message.record import (
    Host,
    OutgoingMessage,
    decode_record,
    encode_record,
    offset_message_id,
)
from tandemmq.core.message.record_layout import V2_MAGIC
from tandemmq.core.storage.consume_queue import ENTRY
from tandemmq.core.storage.index_file import key_hash

BORN_HOST = Host.parse("127.0.0.1", 54321)
STORE_HOST = Host.parse("10.0.0.1", 10911)
PROPERTIES = encode_properties((("TAGS", "TagA"), ("KEYS", "k1"), ("UNIQ_KEY", "7F0000011F9018B4AAC2576D0F6A0000")))


def message(
    *, topic: str = "TopicTest", born_host: Host = BORN_HOST, properties: bytes = PROPERTIES
) -> OutgoingMessage:
    return OutgoingMessage(
        topic=topic,
        queue_id=2,
        body=b"hello",
        properties=properties,
        tags_code=tags_code("TagA"),
        index_keys=("7F0000011F9018B4AAC2576D0F6A0000", "k1"),
        tag="TagA",
        born_timestamp_ms=1_700_000_000_000,
        born_host=born_host,
    )


def encoded(message: OutgoingMessage, *, store_host: Host = STORE_HOST) -> bytes:
    return encode_record(
        message, queue_offset=0, physical_offset=0, store_timestamp_ms=1_700_000_000_123, store_host=store_host
    )


def test_worked_example_of_the_format_description() -> None:
    record = encoded(message())
    assert record.hex() == (
        "000000a5daa320a73610a6860000000200000000"
        "0000000000000000000000000000000000000000"
        "0000018bcfe568007f0000010000d431"
        "0000018bcfe5687b0a00000100002a9f"
        "000000000000000000000000"
        "0000000568656c6c6f"
        "09546f70696354657374"
        "003c544147530154616741024b455953016b3102554e49515f4b455901"
        "374630303030303131463930313842344141433235373644304636413030303002"
    )  # fmt: skip
    assert ENTRY.pack(0, len(record), tags_code("TagA")).hex() == "0000000000000000000000a5000000000027a807"
    assert offset_message_id(STORE_HOST, 0) == "0A00000100002A9F0000000000000000"
    assert key_hash("TopicTest", "k1") == 2_746_024


def test_topic_beyond_127_bytes_makes_a_v2_record() -> None:
    topic = "%RETRY%" + "g" * 121
    record = encoded(message(topic=topic, properties=b""))
    assert record.hex() == (
        "000000e1daa320ab3610a6860000000200000000"
        "0000000000000000000000000000000000000000"
        "0000018bcfe568007f0000010000d431"
        "0000018bcfe5687b0a00000100002a9f"
        "000000000000000000000000"
        "0000000568656c6c6f"
        "00802552455452592567" + "67" * 120 + "0000"
    )  # fmt: skip
    decoded = decode_record(record)
    assert decoded.magic == V2_MAGIC
    assert decoded.topic == topic


def test_topic_of_127_bytes_stays_v1() -> None:
    record = encoded(message(topic="t" * 127, properties=b""))
    assert record[4:8].hex() == "daa320a7"
    assert record[93] == 127


def test_ipv6_hosts_take_16_bytes_and_set_their_bits() -> None:
    record = encoded(
        message(born_host=Host.parse("2001:db8::1", 54321), properties=b""), store_host=Host.parse("fe80::2", 10911)
    )
    assert record.hex() == (
        "00000081daa320a73610a6860000000200000000"
        "0000000000000000000000000000000000000030"
        "0000018bcfe5680020010db80000000000000000000000010000d431"
        "0000018bcfe5687bfe80000000000000000000000000000200002a9f"
        "000000000000000000000000"
        "0000000568656c6c6f"
        "09546f70696354657374"
        "0000"
    )  # fmt: skip


def test_one_ipv6_host_moves_only_what_follows_it() -> None:
    born_v6 = encoded(message(born_host=Host.parse("::1", 1)))
    store_v6 = encoded(message(), store_host=Host.parse("::1", 1))
    assert (born_v6[36:40].hex(), store_v6[36:40].hex()) == ("00000010", "00000020")
    assert decode_record(born_v6).born_host == decode_record(store_v6).store_host == Host.parse("::1", 1)
    assert decode_record(born_v6).store_host == STORE_HOST
    assert decode_record(store_v6).born_host == BORN_HOST
