"""The files a Java broker wrote, and what its own classes read in them. See tests/contract/samples/README.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tandemmq.core.message.properties import decode_properties, index_terms, tags_code
from tandemmq.core.message.record import Host, MessageRecord, OutgoingMessage

SAMPLES: Final = Path(__file__).parents[1] / "contract" / "samples"
STORE: Final = SAMPLES / "store"

COMMIT_LOG_FILE_BYTES: Final = 262_144
CONSUME_QUEUE_FILE_BYTES: Final = 2000
INDEX_SLOT_COUNT: Final = 1000
INDEX_ENTRY_COUNT: Final = 4000
STORE_HOST: Final = Host.parse("127.0.0.1", 10911)
END_OFFSET: Final = 318_984
"""Where the records end: 56840 bytes into the second file."""


@dataclass(frozen=True, slots=True)
class DecodedLine:
    """One line of commitlog-decoded.jsonl."""

    fields: dict[str, Any]

    @property
    def is_blank(self) -> bool:
        return "blank" in self.fields

    @property
    def is_end(self) -> bool:
        return "end" in self.fields


def commit_log_files() -> dict[str, bytes]:
    """File name to content."""
    return {path.name: path.read_bytes() for path in sorted((STORE / "commitlog").iterdir())}


def consume_queue_files() -> dict[str, bytes]:
    """Path below the store's root to content."""
    return {
        str(path.relative_to(STORE)): path.read_bytes()
        for path in sorted((STORE / "consumequeue").rglob("*"))
        if path.is_file()
    }


def index_file() -> tuple[str, bytes]:
    """Path below the store's root and content of the one IndexFile."""
    (path,) = (STORE / "index").iterdir()
    return str(path.relative_to(STORE)), path.read_bytes()


def decoded_lines() -> Iterator[DecodedLine]:
    """What Java's classes read in the CommitLog: records, the blank, the end."""
    for line in (SAMPLES / "commitlog-decoded.jsonl").read_text().splitlines():
        yield DecodedLine(json.loads(line))


def outgoing(record: MessageRecord) -> OutgoingMessage:
    """What a sender would have to put to get this record."""
    properties = decode_properties(record.properties)
    tag, index_keys = index_terms(properties)
    return OutgoingMessage(
        topic=record.topic,
        queue_id=record.queue_id,
        body=record.body,
        properties=record.properties,
        tags_code=tags_code(tag),
        index_keys=index_keys,
        tag=tag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
        flag=record.flag,
        sys_flag=record.sys_flag,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )
