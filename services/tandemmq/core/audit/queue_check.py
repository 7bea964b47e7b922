"""Records against their ConsumeQueues: is each where it should be, and do queue offsets go up by one. Imports numpy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from struct import Struct
from typing import Any, Final, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tandemmq.core.audit.findings import Cause, Finding, FindingKind, Verdict
from tandemmq.core.audit.log_walk import LONGEST_RECORD_BYTES
from tandemmq.core.audit.record_columns import Flags, Integers, RecordColumns, RecordName, describe, read_name
from tandemmq.core.audit.replica_store import ReplicaStore, is_number
from tandemmq.core.message.properties import PROPERTY_MULTI_DISPATCH, PROPERTY_MULTI_QUEUE_OFFSET, raw_property
from tandemmq.core.message.record import SCHEDULE_TOPIC, decode_record
from tandemmq.core.message.record_layout import SMALLEST_RECORD_BYTES
from tandemmq.core.metadata.metadata_store import MetadataCorrupt, MetadataFile
from tandemmq.core.metadata.topic_table import TopicTable
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.storage.consume_queue import ENTRY, FILLER_SIZE, first_false

# Which queue offsets occur in a part of the log, so that gaps between parts are found as well as those within one.


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """The first and the last record of one queue in a part of the log."""

    topic: str
    queue_id: int
    first_queue_offset: int
    next_queue_offset: int
    """What the record behind the last one must have."""
    first_offset: int
    """Where the first record starts in the CommitLog."""
    last_offset: int
    """Where the last one starts."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(**values)


def queue_gap(
    group: str,
    broker_id: int,
    topic: str,
    queue_id: int,
    *,
    after: int,
    next_queue_offset: int,
    found: int,
    before: int,
) -> Finding:
    """Behind the record at `after` in the log `next_queue_offset` was due, and `found` lies at `before`."""
    return Finding(
        kind=FindingKind.QUEUE_GAP,
        group=group,
        verdict=Verdict.OWN_EVIDENCE,
        detail=f"queue offset {found} follows {next_queue_offset - 1}: {found - next_queue_offset} are in no record",
        broker_id=broker_id,
        start_offset=after,
        end_offset=before,
        topic=topic,
        queue_id=queue_id,
        queue_offset=next_queue_offset,
        messages=found - next_queue_offset,
    )


def seam_gaps(
    group: str, broker_id: int, parts: Iterable[Sequence[QueueSpan]], *, damaged: Sequence[LogRange]
) -> list[Finding]:
    """QUEUE_GAPs between parts of one replica's log, which are given in the order of the log.

    `damaged`: ranges of findings of this replica. What is missing may have been there: no gap is reported across one,
    nor before one, whose queue offset may be what was changed.
    """
    last: dict[tuple[str, int], QueueSpan] = {}
    findings = []
    for spans in parts:
        for span in spans:
            before = last.get((span.topic, span.queue_id))
            last[span.topic, span.queue_id] = span
            if before is None or span.first_queue_offset <= before.next_queue_offset:
                continue
            start, end = before.last_offset, span.first_offset
            if any(piece.start_offset <= end and start < piece.end_offset for piece in damaged):
                continue
            findings.append(
                queue_gap(
                    group,
                    broker_id,
                    span.topic,
                    span.queue_id,
                    after=start,
                    next_queue_offset=before.next_queue_offset,
                    found=span.first_queue_offset,
                    before=end,
                )
            )
    return findings


Entries: TypeAlias = npt.NDArray[np.void]

QUEUE_ENTRIES: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert QUEUE_ENTRIES.itemsize == ENTRY.size

_EXTENSION_ADDRESS_MAX: Final = -(1 << 31) - 1
"""A tags code up to it is an address into consumequeue_ext."""
_EXTENSION_BASE: Final = -(1 << 63)
_EXTENSION: Final = Struct(">hqq")
"""Length, tags code and store time of a unit of consumequeue_ext; a bitmap follows."""
_SECOND_MS: Final = 1000
_DELAY_MAX_MS: Final = 40 * 24 * 3600 * _SECOND_MS
"""A delay level of another table is not longer."""
_FIRST_ENTRIES: Final = 200
_MOVED_MAX: Final = 8
"""Records with a wrong queue that are looked for where a queue skips positions; more of them are no flipped bits."""
_LOGICAL_QUEUE: Final = "%LMQ%"
_MULTI_DISPATCH: Final = PROPERTY_MULTI_DISPATCH.encode()
_MULTI_QUEUE_OFFSET: Final = PROPERTY_MULTI_QUEUE_OFFSET.encode()
_SUPERSEDED_LOOKUPS_MAX: Final = 1000


class _QueueBegin(NamedTuple):
    """The oldest message in a queue's files."""

    queue_offset: int
    physical_offset: int


class QueueCheck:
    """Checks one part of a replica's log. Rows come in log order; `damaged` grows meanwhile."""

    def __init__(self, store: ReplicaStore, damaged: Sequence[LogRange], *, with_entries: bool) -> None:
        self._store = store
        self._damaged = damaged
        # A store that keeps its queues elsewhere (RocksDB) has no such folder at all.
        self._with_entries = with_entries and any(True for _ in store.queues())
        self._spans: dict[tuple[str, int], QueueSpan] = {}
        self._begins: dict[tuple[str, int], _QueueBegin | None] = {}
        self._topics: frozenset[str] | None = None
        self._held: frozenset[str] | None = None
        self._extensions: dict[str, list[tuple[int, int]]] = {}
        self._misnumbered: set[int] = set()
        """Where records lie whose queue offset is wrong."""

    @property
    def spans(self) -> tuple[QueueSpan, ...]:
        """The spans of all rows so far."""
        return tuple(self._spans.values())

    def check(self, columns: RecordColumns) -> Iterator[Finding]:
        """What is wrong with the next rows."""
        rows = np.flatnonzero(columns.advances > 0)
        keys = columns.topic_of[rows] << 32 | (columns.queue_ids[rows] & 0xFFFF_FFFF)
        order = np.argsort(keys, kind="stable")
        rows, keys = rows[order], keys[order]
        edges = np.flatnonzero(np.diff(keys)) + 1
        for own in np.split(rows, edges) if len(rows) else ():
            topic, queue_id = columns.topics[int(columns.topic_of[own[0]])], int(columns.queue_ids[own[0]])
            yield from self._gaps(topic, queue_id, columns, own)
            if self._with_entries:
                is_due = columns.enters_queue[own] & (columns.offsets[own] < self._store.facts.queues_offset)
                if self._misnumbered:
                    is_due &= ~np.isin(columns.offsets[own], list(self._misnumbered))
                yield from self._entries(topic, queue_id, columns, own[is_due])

    # Gaps

    def _gaps(self, topic: str, queue_id: int, columns: RecordColumns, rows: Integers) -> Iterator[Finding]:
        found = columns.queue_offsets[rows]
        following = found + columns.advances[rows]
        offsets = columns.offsets[rows]
        before = self._spans.get((topic, queue_id))
        if before is not None:
            found = np.concatenate((found[:1], found))
            following = np.concatenate(([before.next_queue_offset], following))
            offsets = np.concatenate(([before.last_offset], offsets))
        told = -1
        for at in np.flatnonzero(found[1:] != following[:-1]).tolist():
            if at == told:
                continue  # How far it is behind a wrong one says nothing.
            start, end = int(offsets[at]), int(offsets[at + 1])
            advance = following[at + 1] - found[at + 1]
            is_last = at + 2 == len(found)
            if not is_last and found[at + 2] == following[at] + advance:
                told = at + 1
                yield self._wrong_queue_offset(end, int(found[at + 1]), f"instead of {following[at]}")
            elif found[at + 1] < 0 or (
                # A topic that was made again begins at 0, and goes on with 1.
                not is_last and found[at + 2] == following[at] and (found[at + 1] or following[at] > 1)
            ):
                told = at + 1
                yield self._wrong_queue_offset(end, int(found[at + 1]), f"between {following[at] - 1} and the next one")
            # A step back is no gap: the topic was deleted and made again.
            elif found[at + 1] > following[at] and not self._is_damaged(start, end):
                moved = self._moved(topic, queue_id, range(int(following[at]), int(found[at + 1])))
                if moved and all(start < name.start_offset < end for name in moved):
                    self._misnumbered.update(name.start_offset for name in moved)
                    yield from (other_queue_finding(self._store, name, topic, queue_id) for name in moved)
                    continue
                facts = self._store.facts
                yield queue_gap(
                    facts.group,
                    facts.broker_id,
                    topic,
                    queue_id,
                    after=start,
                    next_queue_offset=int(following[at]),
                    found=int(found[at + 1]),
                    before=end,
                )
        self._spans[topic, queue_id] = QueueSpan(
            topic=topic,
            queue_id=queue_id,
            first_queue_offset=int(found[0]) if before is None else before.first_queue_offset,
            next_queue_offset=int(following[-1]),
            first_offset=int(offsets[0]) if before is None else before.first_offset,
            last_offset=int(offsets[-1]),
        )

    def _moved(self, topic: str, queue_id: int, positions: range) -> list[RecordName]:
        """See moved_record: of all positions, or none."""
        if len(positions) > _MOVED_MAX:
            return []
        found = [moved_record(self._store, topic, queue_id, position) for position in positions]
        return [name for name in found if name is not None] if None not in found else []

    def _wrong_queue_offset(self, offset: int, found: int, due: str) -> Finding:
        """A finding for a record behind which the queue goes on as if the record had the right offset, or were not
        there. Its entry follows from that."""
        facts = self._store.facts
        self._misnumbered.add(offset)
        finding = Finding.of(
            facts,
            FindingKind.FIELD_DIFFERS,
            f"queueOffset is {found} {due}: the records before and behind it say so",
            cause=Cause.QUEUE_OFFSET,
            file=self._store.segment_path(offset),
        )
        limit = min(self._store.segment_end(offset), facts.end_offset)
        size = int.from_bytes(self._store.read_log(offset, min(limit, offset + 4)), "big")
        return describe(finding, self._name(offset, min(size, limit - offset)))

    def _is_damaged(self, start: int, end: int) -> bool:
        return any(piece.start_offset < end and start < piece.end_offset for piece in self._damaged)

    # Entries

    def _entries(self, topic: str, queue_id: int, columns: RecordColumns, rows: Integers) -> Iterator[Finding]:
        """Rows of one queue, read in runs of consecutive queue offsets: one, as a rule."""
        edges = np.flatnonzero(np.diff(columns.queue_offsets[rows]) != 1) + 1
        for run in np.split(rows, edges) if len(rows) else ():
            first = int(columns.queue_offsets[run[0]])
            data = self._store.read_queue(topic, queue_id, first, len(run))
            entries = np.zeros(len(run), dtype=QUEUE_ENTRIES)
            read = np.frombuffer(data, dtype=QUEUE_ENTRIES, count=len(data) // ENTRY.size)
            entries[: len(read)] = read
            is_right = (entries["offset"] == columns.offsets[run]) & (entries["size"] == columns.sizes[run])
            is_right &= self._right_tags(topic, entries["tags_code"].astype(np.int64), columns, run)
            if not is_right.all():
                yield from self._wrong_entries(topic, queue_id, columns, run, entries, ~is_right)

    def _right_tags(self, topic: str, found: Integers, columns: RecordColumns, run: Integers) -> Flags:
        is_right: Flags = found == columns.tags_codes[run]
        for at in np.flatnonzero(~is_right & (found <= _EXTENSION_ADDRESS_MAX)).tolist():
            row = run[at]
            due = int(columns.tags_codes[row]), int(columns.store_timestamps_ms[row])
            is_right[at] = self._extension(topic, int(columns.queue_ids[row]), int(found[at])) == due
        if topic == SCHEDULE_TOPIC and not is_right.all():
            # By another table of delay levels, perhaps, or by several: a whole number of seconds.
            delays = found - columns.store_timestamps_ms[run]
            is_right |= (delays > 0) & (delays <= _DELAY_MAX_MS) & (delays % _SECOND_MS == 0)
        return is_right

    def _extension(self, topic: str, queue_id: int, address: int) -> tuple[int, int] | None:
        """Tags code and store time of the unit of consumequeue_ext that a tags code leads to; None: to none."""
        place = address - _EXTENSION_BASE
        folder = f"consumequeue_ext/{topic}/{queue_id}"
        if folder not in self._extensions:
            entries = self._store.files.list_folder(folder)
            self._extensions[folder] = sorted(
                (int(own.name), own.size) for own in entries if not own.is_folder and is_number(own.name)
            )
        for start, size in self._extensions[folder]:
            if start <= place <= start + size - _EXTENSION.size:
                unit = bytes(self._store.read_file(f"{folder}/{start:020d}", place - start, _EXTENSION.size))
                length, tags_code, store_timestamp_ms = _EXTENSION.unpack(unit)
                return (tags_code, store_timestamp_ms) if length >= _EXTENSION.size else None
        return None

    def _wrong_entries(
        self, topic: str, queue_id: int, columns: RecordColumns, run: Integers, entries: Entries, is_wrong: Flags
    ) -> Iterator[Finding]:
        is_wrong &= ~self._is_of_former_topic(topic, queue_id, columns, run)
        if not is_wrong.any():
            return
        is_missing = is_wrong & ((entries["size"] <= 0) | (entries["size"] == FILLER_SIZE))
        state = is_wrong.astype(np.int8) + is_missing
        for part in np.split(np.arange(len(run)), np.flatnonzero(np.diff(state)) + 1):
            first, last = int(part[0]), int(part[-1])
            if not is_wrong[first] or self._is_superseded(topic, queue_id, columns, run[part], entries[part]):
                continue
            if len(part) <= _MOVED_MAX and self._has_other_records(topic, queue_id, columns, run[part], entries[part]):
                yield from (self._second_record(columns, row, entry) for row, entry in zip(run[part], entries[part]))
                continue
            yield self._finding(
                topic, queue_id, columns, run[first], run[last], entries[first], is_missing=bool(is_missing[first])
            )

    def _finding(
        self,
        topic: str,
        queue_id: int,
        columns: RecordColumns,
        first: int,
        last: int,
        entry: np.void,
        *,
        is_missing: bool,
    ) -> Finding:
        store = self._store
        offset, size = int(columns.offsets[first]), int(columns.sizes[first])
        count = int(columns.queue_offsets[last] - columns.queue_offsets[first]) + 1
        held, held_size, held_tags = entry.tolist()
        due = f"offset {offset}, size {size}, tags code {int(columns.tags_codes[first])}"
        finding = Finding.of(
            store.facts,
            FindingKind.QUEUE_ENTRY_MISSING if is_missing else FindingKind.QUEUE_ENTRY_WRONG,
            f"no entry where the CommitLog has {due}"
            if is_missing
            else f"the entry says offset {held}, size {held_size}, tags code {held_tags}; the CommitLog has {due}",
            topic=topic,
            queue_id=queue_id,
            queue_offset=int(columns.queue_offsets[first]),
            messages=count,
            file=self._file_of(topic, queue_id, int(columns.queue_offsets[first])),
        )
        last_name = None
        if count > 1:
            last_name = self._name(int(columns.offsets[last]), int(columns.sizes[last]))
        return describe(finding, self._name(offset, size), last=last_name)

    def _file_of(self, topic: str, queue_id: int, queue_offset: int) -> str:
        return self._store.queue_file(topic, queue_id, queue_offset) or f"consumequeue/{topic}/{queue_id}"

    def _name(self, offset: int, size: int) -> RecordName | None:
        return read_name(self._store.read_log(offset, offset + size), 0, offset)

    # What has no entry and needs none

    def _is_of_former_topic(self, topic: str, queue_id: int, columns: RecordColumns, run: Integers) -> Flags:
        """Rows older than everything in the queue: the topic was deleted since, and perhaps made again."""
        if not self._is_known(topic) and not self._has_queue(topic):
            return np.ones(len(run), dtype=np.bool_)
        begin = self._begin(topic, queue_id)
        if begin is None:
            return np.zeros(len(run), dtype=np.bool_)
        is_older = columns.offsets[run] < begin.physical_offset
        return is_older & (columns.queue_offsets[run] >= begin.queue_offset)

    def _begin(self, topic: str, queue_id: int) -> _QueueBegin | None:
        if (topic, queue_id) not in self._begins:
            self._begins[topic, queue_id] = self._find_begin(topic, queue_id)
        return self._begins[topic, queue_id]

    def _find_begin(self, topic: str, queue_id: int) -> _QueueBegin | None:
        """The first entry that leads to its record: a wrong one at the beginning proves nothing."""
        first, end = self._store.queue_bounds(topic, queue_id)
        while first < end:
            data = self._store.read_queue(topic, queue_id, first, min(_FIRST_ENTRIES, end - first))
            for number, (offset, size, _) in enumerate(ENTRY.iter_unpack(data)):
                if self._leads_to(topic, queue_id, first + number, offset, size):
                    return _QueueBegin(first + number, offset)
            if any(data[-ENTRY.size :]):
                first += _FIRST_ENTRIES
            else:
                return None
        return None

    def _leads_to(self, topic: str, queue_id: int, queue_offset: int, offset: int, size: int) -> bool:
        return leads_to(self._store, topic, queue_id, queue_offset, offset, size)

    def _is_superseded(
        self, topic: str, queue_id: int, columns: RecordColumns, rows: Integers, entries: Entries
    ) -> bool:
        """Whether the entries lead to younger records with the same queue offsets: of the topic that was made again."""
        step = max(1, len(rows) // _SUPERSEDED_LOOKUPS_MAX)
        return all(
            int(entry["offset"]) > int(columns.offsets[row])
            and self._leads_to(
                topic, queue_id, int(columns.queue_offsets[row]), int(entry["offset"]), int(entry["size"])
            )
            for row, entry in zip(rows[::step], entries[::step])
        )

    def _has_other_records(
        self, topic: str, queue_id: int, columns: RecordColumns, rows: Integers, entries: Entries
    ) -> bool:
        """Whether the entries lead to older records that say of themselves that they belong there: nothing is wrong
        with these and with the queue, and the others came to the same place by what was changed in them."""
        return all(
            int(entry["offset"]) < int(columns.offsets[row])
            and self._leads_to(
                topic, queue_id, int(columns.queue_offsets[row]), int(entry["offset"]), int(entry["size"])
            )
            for row, entry in zip(rows, entries)
        )

    def _second_record(self, columns: RecordColumns, row: int, entry: np.void) -> Finding:
        facts = self._store.facts
        offset = int(columns.offsets[row])
        finding = Finding.of(
            facts,
            FindingKind.FIELD_DIFFERS,
            f"its place in the queue is that of the record at {int(entry['offset'])}, to which the entry leads: "
            "topic, queueId, queueOffset or sysFlag was changed",
            cause=Cause.OTHER_RECORD,
            file=self._store.segment_path(offset),
        )
        return describe(finding, self._name(offset, int(columns.sizes[row])))

    def _has_queue(self, topic: str) -> bool:
        """Whether the topic has queues, whoever knows it: with a topic that is deleted they go."""
        if self._held is None:
            self._held = frozenset(own for own, _ in self._store.queues())
        return topic in self._held

    def _is_known(self, topic: str) -> bool:
        """Whether the replica's table has the topic; yes, if it cannot be read."""
        if self._topics is None:
            table = TopicTable()
            try:
                table.load_json(self._store.metadata(MetadataFile.TOPICS) or "")
            except MetadataCorrupt:
                return True
            self._topics = frozenset(config.topic_name for config in table)
        return topic in self._topics


class QueuedMessage(NamedTuple):
    """What an entry knows of a message."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int


_KNOWN_MAX: Final = 1 << 16
"""Of one queue, in one range."""


def queued_messages(store: ReplicaStore, log_range: LogRange) -> list[QueuedMessage]:
    """The messages of a range of the log as the ConsumeQueues have them, in the log's order."""
    found: list[QueuedMessage] = []
    for topic, queue_id in store.queues():
        first, end = store.queue_bounds(topic, queue_id)

        def lies_before(place: int, topic: str = topic, queue_id: int = queue_id) -> bool:
            data = store.read_queue(topic, queue_id, place, 1)
            offset, size, _ = ENTRY.unpack(data) if len(data) == ENTRY.size else (0, 0, 0)
            return bool(size == FILLER_SIZE or (size > 0 and offset < log_range.start_offset))

        place = first_false(first, end, lies_before)
        entries = ENTRY.iter_unpack(store.read_queue(topic, queue_id, place, min(_KNOWN_MAX, end - place)))
        for number, (offset, size, _) in enumerate(entries, place):
            if size <= 0 or offset >= log_range.end_offset:
                break
            if size != FILLER_SIZE and offset >= log_range.start_offset:
                found.append(QueuedMessage(offset, size, topic, queue_id, number))
    return sorted(found)


def leads_to(store: ReplicaStore, topic: str, queue_id: int, queue_offset: int, offset: int, size: int) -> bool:
    """Whether the record at `offset` is the one that an entry at this place of a queue should lead to."""
    facts = store.facts
    if not (0 < size <= LONGEST_RECORD_BYTES and facts.min_offset <= offset <= facts.end_offset - size):
        return False
    data = store.read_log(offset, offset + size)
    name = read_name(data, 0, offset)
    if name is None or (name.topic, name.queue_id, name.queue_offset) == (topic, queue_id, queue_offset):
        return name is not None
    return name.end_offset == offset + size and (topic, queue_id, queue_offset) in _other_places(data)


def moved_record(store: ReplicaStore, topic: str, queue_id: int, position: int) -> RecordName | None:
    """The record that a queue's entry leads to, if its place there and its size are right, it says that it is of
    another queue, and that one does not know it: then its topic or queueId was changed. Not where the entry before it
    is wrong as well: the queue's file may be another one's."""
    offset, size, _ = _entry(store, topic, queue_id, position)
    facts = store.facts
    if not (
        SMALLEST_RECORD_BYTES <= size <= LONGEST_RECORD_BYTES and facts.min_offset <= offset <= facts.end_offset - size
    ):
        return None
    data = store.read_log(offset, offset + size)
    name = read_name(data, 0, offset)
    if name is None or (name.end_offset, name.queue_offset) != (offset + size, position):
        return None
    if (name.topic, name.queue_id) == (topic, queue_id) or (topic, queue_id, position) in _other_places(data):
        return None
    is_known = _entry(store, name.topic, name.queue_id, position)[:2] == (offset, size)
    before = _entry(store, topic, queue_id, position - 1)[:2] if position else None
    is_own_queue = before is None or leads_to(store, topic, queue_id, position - 1, *before)
    return name if is_own_queue and not is_known else None


def _entry(store: ReplicaStore, topic: str, queue_id: int, position: int) -> tuple[int, int, int]:
    data = store.read_queue(topic, queue_id, position, 1)
    return ENTRY.unpack(data) if len(data) == ENTRY.size else (0, 0, 0)


def other_queue_finding(store: ReplicaStore, name: RecordName, topic: str, queue_id: int) -> Finding:
    """For a record of `moved_record`."""
    change = f"topic is {name.topic} instead of {topic}" if name.topic != topic else ""
    if name.queue_id != queue_id:
        change += f"{', ' if change else ''}queueId is {name.queue_id} instead of {queue_id}"
    finding = Finding.of(
        store.facts,
        FindingKind.FIELD_DIFFERS,
        f"{change}: entry {name.queue_offset} of the ConsumeQueue of {topic}, queue {queue_id}, leads to it, "
        "and that queue has no other record there",
        cause=Cause.OTHER_RECORD,
        file=store.segment_path(name.start_offset),
    )
    return describe(finding, name)


def _other_places(data: memoryview) -> Iterator[tuple[str, int, int]]:
    """The queues besides its own that a Java broker entered a record in, and where: it names them in its properties."""
    record = decode_record(data, check_crc=False)
    names = raw_property(record.properties, _MULTI_DISPATCH).decode(errors="replace").split(",")
    places = raw_property(record.properties, _MULTI_QUEUE_OFFSET).decode(errors="replace").split(",")
    for name, place in zip(names, places):
        if is_number(place):
            yield name, 0 if is_logical_queue(name) else record.queue_id, int(place)


def is_logical_queue(topic: str) -> bool:
    """Whether a ConsumeQueue of this name is one of RocketMQ's logical queues (LMQ): of no topic, and in no table."""
    return topic.startswith(_LOGICAL_QUEUE)
