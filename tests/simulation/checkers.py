"""What must hold at the end of every run, whatever went wrong in it. The same for seeds and scenarios.

The log is read here by walking its bytes with the record scanner, independently of the store's own recovery and
dispatch, and everything else is compared with that walk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from mqcore.message import (
    Blank,
    MessageRecord,
    RecordFound,
    decode_properties,
    decode_record,
    record_tags_code,
    scan_record,
)
from mqcore.storage import MessageStore, QueueEntry
from simulation.ledger import Ledger

__all__ = [
    "Violation",
    "check_acknowledged",
    "check_delivered",
    "check_prefix",
    "check_queues",
    "end_of_filler",
    "last_boundary",
    "read_whole_log",
]

DELAY_LEVELS_MS: Final = (1_000,)


class Violation(AssertionError):
    """A promise was broken. The message is one sentence that names the node, the offset and both values."""


@dataclass(frozen=True, slots=True)
class _Found:
    """One record of a walked log."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    message_id: str


def read_whole_log(store: MessageStore) -> bytes:
    """All bytes a node holds, from its min offset to its end."""
    pieces = []
    offset = store.min_offset
    while offset < store.end_offset:
        piece = store.read_log(offset, store.end_offset - offset)
        if not piece:
            raise Violation(f"the log cannot be read at {offset} although it ends at {store.end_offset}")
        pieces.append(bytes(piece))
        offset += len(piece)
    return b"".join(pieces)


def last_boundary(store: MessageStore, offset: int) -> int:
    """End of the last record, or blank, that ends at or below `offset`."""
    file_start = offset - offset % store.segment_bytes
    data = store.read_log(file_start, offset - file_start)
    position = 0
    while position < len(data):
        found = scan_record(data, position, len(data), physical_offset=file_start + position)
        if isinstance(found, RecordFound) or (isinstance(found, Blank) and position + found.size <= len(data)):
            position += found.size
        else:
            break
    return file_start + position


def end_of_filler(store: MessageStore) -> int:
    """Where the log ends once the filler at a file's end counts as whole, which its first eight bytes decide."""
    start = store.dispatched_offset
    data = store.read_log(start, store.segment_bytes)
    found = scan_record(data, 0, len(data), physical_offset=start)
    return start + found.size if isinstance(found, Blank) else store.end_offset


def check_acknowledged(store: MessageStore, ledger: Ledger) -> int:
    """Every acknowledged message is where the producer was told, byte for byte; returns how many excusably are not."""
    lost = 0
    for promise in ledger.acknowledgements:
        record = _record_at(store, promise.physical_offset)
        wrong = None
        if record is None:
            wrong = f"the log [{store.min_offset}, {store.end_offset}) has no record there"
        elif decode_properties(record.properties).get("UNIQ_KEY") != promise.message_id or record.body != promise.body:
            wrong = f"{decode_properties(record.properties).get('UNIQ_KEY')} is there"
        elif (record.queue_id, record.queue_offset) != (promise.queue_id, promise.queue_offset):
            wrong = (
                f"it was promised queue {promise.queue_id} offset {promise.queue_offset} "
                f"and has queue {record.queue_id} offset {record.queue_offset}"
            )
        if wrong is None:
            continue
        if ledger.may_be_lost(promise) is None:
            raise Violation(
                f"message {promise.message_id}, acknowledged at {promise.at_us / 1e6:.3f} s at physical offset "
                f"{promise.physical_offset}, is lost: {wrong}"
            )
        lost += 1
    return lost


def check_prefix(slave: str, slave_store: MessageStore, master_store: MessageStore) -> None:
    """The slave's log equals its master's over everything it holds."""
    ours, theirs = read_whole_log(slave_store), read_whole_log(master_store)
    start, end = slave_store.min_offset, slave_store.end_offset
    if end > master_store.end_offset:
        raise Violation(f"{slave} ends at {end}, beyond its master's end {master_store.end_offset}")
    if start < master_store.min_offset:
        raise Violation(f"{slave} starts at {start}, before its master's start {master_store.min_offset}")
    expected = theirs[start - master_store.min_offset : end - master_store.min_offset]
    if ours != expected:
        at = next(index for index, (mine, other) in enumerate(zip(ours, expected)) if mine != other)
        raise Violation(f"{slave}'s log differs from its master's at offset {start + at}")


def check_queues(node: str, store: MessageStore) -> None:
    """Every ConsumeQueue is what the CommitLog says, dense from its first entry to its last, and there is no other."""
    expected: dict[tuple[str, int], list[_Found]] = defaultdict(list)
    for found in _walk(node, store):
        expected[found.topic, found.queue_id].append(found)
    for (topic, queue_id), records in expected.items():
        queue = store.consume_queue(topic, queue_id)
        if queue is None:
            raise Violation(f"{node} has no ConsumeQueue {topic}/{queue_id} for {len(records)} records")
        first, last = records[0].queue_offset, records[-1].queue_offset
        if [record.queue_offset for record in records] != list(range(first, last + 1)):
            raise Violation(f"{node}: queue offsets of {topic}/{queue_id} in the CommitLog are not dense")
        if queue.max_offset != last + 1:
            raise Violation(f"{node}: {topic}/{queue_id} ends at {queue.max_offset}, its last record says {last + 1}")
        entries = queue.read(first, len(records))
        wanted = [QueueEntry(record.offset, record.size, record.tags_code) for record in records]
        if entries != wanted:
            raise Violation(f"{node}: {topic}/{queue_id} {_first_difference(entries, wanted, first)}")


def check_delivered(store: MessageStore, delivered: Container[tuple[int, int, str]]) -> None:
    """Every message of the log was given to its group; `delivered` holds (queue id, queue offset, message id)."""
    for found in _walk("master", store):
        if (found.queue_id, found.queue_offset, found.message_id) not in delivered:
            raise Violation(
                f"message {found.message_id}, queue {found.queue_id} offset {found.queue_offset}, was never delivered"
            )


def _first_difference(entries: list[QueueEntry], wanted: list[QueueEntry], first: int) -> str:
    for index, (entry, want) in enumerate(zip(entries, wanted)):
        if entry != want:
            return f"holds {entry} at queue offset {first + index}, the CommitLog says {want}"
    return f"holds {len(entries)} entries from {first}, the CommitLog says {len(wanted)}"


def _walk(node: str, store: MessageStore) -> Iterable[_Found]:
    """Record by record from the first byte to the last; anything else on the way is a violation."""
    data = read_whole_log(store)
    base, position = store.min_offset, 0
    while position < len(data):
        offset = base + position
        segment_end = min(len(data), position + store.segment_bytes - offset % store.segment_bytes)
        found = scan_record(data, position, segment_end, physical_offset=offset)
        if isinstance(found, RecordFound):
            properties = decode_properties(found.properties)
            yield _Found(
                offset=offset,
                size=found.size,
                topic=found.topic,
                queue_id=found.queue_id,
                queue_offset=found.queue_offset,
                tags_code=record_tags_code(
                    found.topic,
                    properties,
                    store_timestamp_ms=found.store_timestamp_ms,
                    delay_levels_ms=DELAY_LEVELS_MS,
                ),
                message_id=properties.get("UNIQ_KEY", ""),
            )
            position += found.size
        elif isinstance(found, Blank) and position + found.size == segment_end:
            position = segment_end
        else:
            raise Violation(f"{node}: no record at offset {offset} of a log that ends at {store.end_offset}: {found}")


def _record_at(store: MessageStore, physical_offset: int) -> MessageRecord | None:
    if not store.min_offset <= physical_offset < store.end_offset:
        return None
    data = store.read_log(physical_offset, store.segment_bytes)
    found = scan_record(data, 0, len(data), physical_offset=physical_offset)
    return decode_record(data) if isinstance(found, RecordFound) else None
