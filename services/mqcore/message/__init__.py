"""Messages as RocketMQ stores them: record format, properties, tags codes, message ids. Imports nothing but offsets."""

from __future__ import annotations

from mqcore.message.errors import InvalidProperty, MalformedRecord, MessageError
from mqcore.message.host import Host
from mqcore.message.java_string import extend_hash, java_hash
from mqcore.message.message_id import offset_message_id, parse_offset_message_id
from mqcore.message.properties import (
    MAX_PROPERTIES_BYTES,
    decode_properties,
    encode_properties,
    index_terms,
    java_map_order,
)
from mqcore.message.record import MessageRecord, OutgoingMessage
from mqcore.message.record_decoder import (
    Blank,
    Corrupt,
    RecordFound,
    ScanResult,
    ScanStop,
    decode_record,
    scan_record,
)
from mqcore.message.record_encoder import RecordEncoder, encode_record, record_size
from mqcore.message.record_layout import BLANK_MAGIC, V1_MAGIC, V2_MAGIC, encode_blank
from mqcore.message.record_outline import RecordOutline, read_record_outline
from mqcore.message.stored_message import StoredMessage, read_store_timestamp_ms, read_stored_message
from mqcore.message.sys_flag import enters_consume_queue, enters_index
from mqcore.message.tags_code import SCHEDULE_TOPIC, delay_tags_code, record_tags_code, tags_code

__all__ = [
    "BLANK_MAGIC",
    "MAX_PROPERTIES_BYTES",
    "SCHEDULE_TOPIC",
    "V1_MAGIC",
    "V2_MAGIC",
    "Blank",
    "Corrupt",
    "Host",
    "InvalidProperty",
    "MalformedRecord",
    "MessageError",
    "MessageRecord",
    "OutgoingMessage",
    "RecordEncoder",
    "RecordFound",
    "RecordOutline",
    "ScanResult",
    "ScanStop",
    "StoredMessage",
    "decode_properties",
    "decode_record",
    "delay_tags_code",
    "encode_blank",
    "encode_properties",
    "encode_record",
    "enters_consume_queue",
    "enters_index",
    "extend_hash",
    "index_terms",
    "java_hash",
    "java_map_order",
    "offset_message_id",
    "parse_offset_message_id",
    "read_record_outline",
    "read_store_timestamp_ms",
    "read_stored_message",
    "record_size",
    "record_tags_code",
    "scan_record",
    "tags_code",
]
