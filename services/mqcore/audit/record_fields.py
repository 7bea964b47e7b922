"""What two versions of one record differ in, by RocketMQ's names of the fields."""

from __future__ import annotations

from typing import Final

from mqcore.message.errors import MalformedRecord
from mqcore.message.properties import decode_properties
from mqcore.message.record import MessageRecord
from mqcore.message.record_decoder import decode_record
from mqcore.message.record_layout import HOST_FLAGS, V1_MAGIC, WHOLE_HEADS

__all__ = ["changed_fields", "field_differences", "has_zero_text"]

_BODY_SHOWN_BYTES: Final = 16
_VALUE_SHOWN: Final = 80


def field_differences(held: bytes | memoryview, right: bytes | memoryview) -> str:
    """ "storeTimestamp 5 instead of 4, …": `held` is what a replica has, both are whole records but for their bodies.

    Empty if they are equal, or if one of them is no record.
    """
    try:
        ours, theirs = decode_record(held, check_crc=False), decode_record(right, check_crc=False)
    except MalformedRecord:
        return ""
    differences = [
        f"{name} {value} instead of {due}"
        for (name, value), (_, due) in zip(_plain_fields(ours), _plain_fields(theirs))
        if value != due
    ]
    if ours.body != theirs.body:
        differences.append(_body_difference(ours.body, theirs.body))
    if ours.properties != theirs.properties:
        differences.append(_property_difference(ours.properties, theirs.properties))
    return ", ".join(differences)


def changed_fields(held: bytes | memoryview, right: bytes | memoryview) -> list[str]:
    """The fields in which bytes differ, where `held` is no record any more; `right` is one, of the same length."""
    return [
        f"{name} {bytes(held[start:end]).hex()} instead of {bytes(right[start:end]).hex()}"
        if end - start <= _BODY_SHOWN_BYTES
        else name
        for name, start, end in _places(right)
        if held[start:end] != right[start:end]
    ]


def has_zero_text(record: bytes | memoryview) -> bool:
    """Whether a record has zeros in its topic or its properties: recovery takes that for a torn write."""
    try:
        found = decode_record(record, check_crc=False)
    except MalformedRecord:
        return False
    return "\0" in found.topic or b"\0" in found.properties


def _plain_fields(record: MessageRecord) -> list[tuple[str, object]]:
    return [
        ("totalSize", record.total_size),
        ("magicCode", f"{record.magic:08x}"),
        ("bodyCRC", f"{record.body_crc:08x}"),
        ("queueId", record.queue_id),
        ("flag", record.flag),
        ("queueOffset", record.queue_offset),
        ("physicalOffset", record.physical_offset),
        ("sysFlag", f"{record.sys_flag:#x}"),
        ("bornTimestamp", record.born_timestamp_ms),
        ("bornHost", record.born_host),
        ("storeTimestamp", record.store_timestamp_ms),
        ("storeHost", record.store_host),
        ("reconsumeTimes", record.reconsume_times),
        ("preparedTransactionOffset", record.prepared_transaction_offset),
        ("topic", record.topic),
    ]


def _body_difference(held: bytes, right: bytes) -> str:
    if len(held) != len(right):
        return f"a body of {len(held)} bytes instead of {len(right)}"
    places = [place for place, (ours, due) in enumerate(zip(held, right)) if ours != due]
    first = places[0]
    return (
        f"{len(places)} bytes of the body, the first at {first}: {held[first]:02x} instead of {right[first]:02x}"
        if len(places) > 1
        else f"byte {first} of the body: {held[first]:02x} instead of {right[first]:02x}"
    )


def _property_difference(held: bytes, right: bytes) -> str:
    ours, due = decode_properties(held), decode_properties(right)
    changes = [
        f"{name} {_shown(ours.get(name))} instead of {_shown(due.get(name))}"
        for name in sorted({*ours, *due})
        if ours.get(name) != due.get(name)
    ]
    return "properties: " + (", ".join(changes) if changes else "bytes that mean nothing")


def _shown(value: str | None) -> str:
    return "none" if value is None else repr(value[:_VALUE_SHOWN])


def _places(record: bytes | memoryview) -> list[tuple[str, int, int]]:
    """Name, start and end of every field of a whole record."""
    sys_flag = int.from_bytes(record[36:40], "big")
    host_flags = sys_flag & HOST_FLAGS
    born = 16 if host_flags & 0x10 else 4
    store = 16 if host_flags & 0x20 else 4
    head_bytes = WHOLE_HEADS[host_flags >> 4].size
    widths = [
        ("totalSize", 4),
        ("magicCode", 4),
        ("bodyCRC", 4),
        ("queueId", 4),
        ("flag", 4),
        ("queueOffset", 8),
        ("physicalOffset", 8),
        ("sysFlag", 4),
        ("bornTimestamp", 8),
        ("bornHost", born + 4),
        ("storeTimestamp", 8),
        ("storeHost", store + 4),
        ("reconsumeTimes", 4),
        ("preparedTransactionOffset", 8),
        ("bodyLength", 4),
        ("body", int.from_bytes(record[head_bytes - 4 : head_bytes], "big")),
    ]
    topic_length_bytes = 1 if int.from_bytes(record[4:8], "big") == V1_MAGIC else 2
    topic_at = sum(width for _, width in widths)
    topic_bytes = int.from_bytes(record[topic_at : topic_at + topic_length_bytes], "big")
    widths += [("topicLength", topic_length_bytes), ("topic", topic_bytes), ("propertiesLength", 2)]
    places = []
    start = 0
    for name, width in widths:
        places.append((name, start, start + width))
        start += width
    return [*places, ("properties", start, len(record))]
