"""What people call a record: topic, queue, message id."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mqcore.audit.findings import Finding
from mqcore.message.errors import MalformedRecord
from mqcore.message.message_id import offset_message_id
from mqcore.message.properties import decode_properties
from mqcore.message.property_names import PROPERTY_UNIQUE_KEY
from mqcore.message.record import MessageRecord
from mqcore.message.record_decoder import decode_record
from mqcore.message.record_layout import BLANK, V1_MAGIC, V2_MAGIC

__all__ = ["RecordName", "describe", "name_of_record", "read_damaged_name", "read_name"]


class RecordName(NamedTuple):
    """One record's place and names."""

    start_offset: int
    end_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    """UNIQ_KEY, or else the offset message id."""
    store_timestamp_ms: int
    has_unique_key: bool = True


def name_of_record(record: MessageRecord, *, physical_offset: int | None = None) -> RecordName:
    """Of a record that was read whole; `physical_offset` is where it lies, if that is not what it says itself."""
    start = record.physical_offset if physical_offset is None else physical_offset
    unique_key = decode_properties(record.properties).get(PROPERTY_UNIQUE_KEY)
    return RecordName(
        start_offset=start,
        end_offset=start + record.total_size,
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        message_id=unique_key or offset_message_id(record.store_host, record.physical_offset),
        store_timestamp_ms=record.store_timestamp_ms,
        has_unique_key=unique_key is not None,
    )


def read_name(data: bytes | memoryview, position: int, physical_offset: int) -> RecordName | None:
    """Of the record at `position` of some bytes, whatever its body; None if there is no record."""
    try:
        return name_of_record(decode_record(data, position, check_crc=False), physical_offset=physical_offset)
    except MalformedRecord:
        return None


def read_damaged_name(data: bytes | memoryview, physical_offset: int) -> RecordName | None:
    """Of a record that starts with `data` and has lost its size or its magic code, if the rest of it can be read."""
    for magic in (V1_MAGIC, V2_MAGIC):
        mended = bytearray(data)
        if len(mended) < BLANK.size:
            return None
        for size in (len(mended), int.from_bytes(mended[:4], "big")):
            BLANK.pack_into(mended, 0, min(size, 0x7FFF_FFFF), magic)
            name = read_name(memoryview(mended), 0, physical_offset)
            if name is not None:
                return name
    return None


def describe(finding: Finding, name: RecordName | None, *, last: RecordName | None = None) -> Finding:
    """The finding with the message's names, and with its range if it has none."""
    if name is None:
        return finding
    return replace(
        finding,
        topic=name.topic,
        queue_id=name.queue_id,
        queue_offset=name.queue_offset,
        message_id=name.message_id,
        store_timestamp_ms=name.store_timestamp_ms,
        start_offset=name.start_offset if finding.start_offset is None else finding.start_offset,
        end_offset=(last or name).end_offset if finding.end_offset is None else finding.end_offset,
        last_message_id=finding.last_message_id if last is None else last.message_id,
    )
