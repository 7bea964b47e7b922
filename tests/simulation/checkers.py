"""What must hold at the end of every run, whatever went wrong in it. The same for seeds and scenarios.

The log is read here by walking its bytes with the record scanner, independently of the store's own recovery and
dispatch, and everything else is compared with that walk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from simulation.ledger import Ledger
from support.simulated_disk import SimulatedDisk
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import Blank, RecordFound, decode_record, record_tags_code, scan_record
from tandemmq.core.metadata.metadata_store import MetadataCorrupt, MetadataFile
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable
from tandemmq.core.storage.consume_queue import QueueEntry
from tandemmq.core.storage.message_store import MessageStore

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


@dataclass(frozen=True, slots=True)
class WalkedLog:
    """A log's bytes and its records by physical offset, in their order: walked once for all checkers."""

    min_offset: int
    data: bytes
    records: dict[int, _Found]

    @property
    def end_offset(self) -> int:
        """One past the last byte."""
        return self.min_offset + len(self.data)


def walk_log(node: str, store: MessageStore) -> WalkedLog:
    """Record by record from the first byte to the last; anything else on the way is a violation."""
    data = read_whole_log(store)
    records = {found.offset: found for found in _walk(node, store, data)}
    return WalkedLog(store.min_offset, data, records)


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


def log_place(offset: int, segment_bytes: int) -> tuple[str, int]:
    """File of the CommitLog and position in it."""
    return f"commitlog/{offset - offset % segment_bytes:020d}", offset % segment_bytes


def readable_end(disk: SimulatedDisk, start_offset: int, segment_bytes: int) -> int:
    """Where the records of a log end, walked from the file of `start_offset` on: nobody finds what is behind."""
    offset = start_offset - start_offset % segment_bytes
    while (data := disk.read_file(log_place(offset, segment_bytes)[0])) is not None:
        position = 0
        while position < len(data):
            found = scan_record(data, position, len(data), physical_offset=offset + position)
            if not isinstance(found, RecordFound | Blank) or position + found.size > len(data):
                return offset + position
            position += found.size
        offset += segment_bytes
    return offset


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
    while start < store.end_offset:
        data = store.read_log(start, store.segment_bytes)
        found = scan_record(data, 0, len(data), physical_offset=start)
        if not isinstance(found, Blank | RecordFound):
            break
        start += found.size
    return max(start, store.end_offset)


def check_acknowledged(log: WalkedLog, ledger: Ledger) -> int:
    """Every acknowledged message is where the producer was told, byte for byte; returns how many excusably are not."""
    lost = 0
    for promise in ledger.acknowledgements:
        found = log.records.get(promise.physical_offset)
        wrong = None
        if found is None:
            wrong = f"the log [{log.min_offset}, {log.end_offset}) has no record there"
        elif found.message_id != promise.message_id or not _has_body(log, found, promise.body):
            wrong = f"{found.message_id} is there"
        elif (found.queue_id, found.queue_offset) != (promise.queue_id, promise.queue_offset):
            wrong = (
                f"it was promised queue {promise.queue_id} offset {promise.queue_offset} "
                f"and has queue {found.queue_id} offset {found.queue_offset}"
            )
        if wrong is None:
            continue
        if (promise.message_id, promise.physical_offset) not in ledger.lost:
            raise Violation(
                f"message {promise.message_id}, acknowledged at {promise.at_us / 1e6:.3f} s at physical offset "
                f"{promise.physical_offset}, is lost: {wrong}"
            )
        lost += 1
    return lost


def check_prefix(slave: str, slave_store: MessageStore, master: WalkedLog) -> None:
    """The slave's log equals its master's over everything it holds."""
    ours = read_whole_log(slave_store)
    start, end = slave_store.min_offset, slave_store.end_offset
    if end > master.end_offset:
        raise Violation(f"{slave} ends at {end}, beyond its master's end {master.end_offset}")
    if start < master.min_offset:
        raise Violation(f"{slave} starts at {start}, before its master's start {master.min_offset}")
    expected = master.data[start - master.min_offset : end - master.min_offset]
    if ours != expected:
        at = next(index for index, (mine, other) in enumerate(zip(ours, expected)) if mine != other)
        raise Violation(f"{slave}'s log differs from its master's at offset {start + at}")


def check_queues(node: str, store: MessageStore, log: WalkedLog) -> None:
    """Every ConsumeQueue is what the CommitLog says, dense from its first entry to its last, and there is no other.

    `log` is the node's own, or one that it was proven to be a part of.
    """
    expected: dict[tuple[str, int], list[_Found]] = defaultdict(list)
    for found in log.records.values():
        if store.min_offset <= found.offset < store.end_offset:
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


def check_delivered(log: WalkedLog, delivered: Container[tuple[int, int, str]], begin: Mapping[int, int]) -> None:
    """Every message of the log was given to its group, from where that begins in each queue.

    `delivered` holds (queue id, queue offset, message id).
    """
    for found in log.records.values():
        is_due = found.queue_offset >= begin.get(found.queue_id, 0)
        if is_due and (found.queue_id, found.queue_offset, found.message_id) not in delivered:
            raise Violation(
                f"message {found.message_id}, queue {found.queue_id} offset {found.queue_offset}, was never delivered"
            )


def check_tables(node: str, disk: SimulatedDisk, ledger: Ledger) -> None:
    """Every topic and group that was created, and that a disk held all the time, is there."""
    for file, names in ledger.tables.items():
        for name in sorted(names):
            if not table_holds(disk, file, name):
                raise Violation(f"{node} has no {name} in {file}")


def table_holds(disk: SimulatedDisk, file: str, name: str) -> bool:
    """Whether a name is in a metadata file, or in its backup."""
    wanted = f'"{name}"'.encode()
    return any(wanted in (disk.read_file(f"config/{file}{suffix}") or b"") for suffix in ("", ".bak"))


def stored_progress(disk: SimulatedDisk, group: str, topic: str) -> dict[int, int]:
    """A group's committed offsets by queue id, as a disk keeps them; empty when it knows nothing of the group."""
    for suffix in ("", ".bak"):
        table = ConsumerOffsetTable()
        try:
            table.load_json((disk.read_file(f"config/{MetadataFile.CONSUMER_OFFSETS.value}{suffix}") or b"").decode())
        except MetadataCorrupt:
            continue
        return table.offsets_of(group, topic)
    return {}


def _has_body(log: WalkedLog, found: _Found, body: bytes) -> bool:
    start = found.offset - log.min_offset
    return decode_record(memoryview(log.data)[start : start + found.size], check_crc=False).body == body


def _first_difference(entries: list[QueueEntry], wanted: list[QueueEntry], first: int) -> str:
    for index, (entry, want) in enumerate(zip(entries, wanted)):
        if entry != want:
            return f"holds {entry} at queue offset {first + index}, the CommitLog says {want}"
    return f"holds {len(entries)} entries from {first}, the CommitLog says {len(wanted)}"


def _walk(node: str, store: MessageStore, data: bytes) -> Iterator[_Found]:
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
