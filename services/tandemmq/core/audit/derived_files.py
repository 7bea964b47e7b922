"""What a replica's other files say against its log: the way back from ConsumeQueues, index and metadata. Imports numpy.

`record_check` goes from each record to its entries. Here it is asked what is there besides: entries behind a queue's
end, queues that no record has, records without a topic, parts of the log that no IndexFile covers, offsets of messages
that never were, a checkpoint that vouches for more than there is, leases that are gone.

A replica is looked at by itself here; what only the others can tell comes last, in `derived_facts`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, Final
from zlib import crc32

import numpy as np
import xxhash

from tandemmq.core.audit.derived_facts import DerivedFacts, Queue
from tandemmq.core.audit.equality import odd_segments
from tandemmq.core.audit.findings import Cause, Finding, FindingKind
from tandemmq.core.audit.index_check import IndexFile, indexed_messages, read_index_file
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log
from tandemmq.core.audit.queue_check import (
    QUEUE_ENTRIES,
    QueuedMessage,
    QueueSpan,
    is_logical_queue,
    leads_to,
    moved_record,
    other_queue_finding,
    queued_messages,
)
from tandemmq.core.audit.record_columns import RecordCollector, RecordColumns, RecordName, describe, read_name
from tandemmq.core.audit.replica_store import (
    CHECKPOINT_BYTES,
    ReplicaStore,
    is_number,
    is_of_others,
    is_queue_id,
    whole_file,
)
from tandemmq.core.delivery.journal import LeaseReplay, read_frames
from tandemmq.core.delivery.timer_queue import TimerQueue
from tandemmq.core.message.record import SCHEDULE_TOPIC, TIMER_OP_TOPIC, TIMER_TOPIC
from tandemmq.core.metadata.metadata_store import MetadataCorrupt, MetadataFile, read_java_json
from tandemmq.core.metadata.replica_merge import read_removals
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.storage.consume_queue import ENTRY, FILLER_SIZE
from tandemmq.core.storage.consume_queue_table import QUEUE_ENDS_FILE, QueueEnds
from tandemmq.core.storage.flush_jobs import StoreCheckpoint
from tandemmq.core.storage.kept_tail import KEPT_REPAIRS_FOLDER, KEPT_TAILS_FOLDER

_LIVE_ENTRIES: Final = 200
"""Looked at behind the end of a running broker's queue: a page."""
_BLOCK_ENTRIES: Final = 1 << 16
_LOOKUPS_MAX: Final = 2_000
_UNINDEXED_BYTES_MAX: Final = 64 << 20
"""Looked through for records with keys, between two IndexFiles or behind the last."""
_MARGIN_MS: Final = 3_000
_CHECKPOINT_FIELDS_BYTES: Final = 64
"""Six of eight bytes, and room for what later versions add."""
_NAME_DIGITS: Final = 20
_PAGE_BYTES: Final = 4096
_LEASE_FILE: Final = re.compile(r"leases-(\d{10})\.(snapshot|journal)")
_LEASE_BYTES_MAX: Final = 64 << 20
_UNFINISHED_SUFFIX: Final = ".unfinished"
_KEPT_REPAIR: Final = re.compile(r"(\d{20})-(\d{20})-([0-9a-f]{32})")
_NO_REASON: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
_KEPT_PIECE_BYTES: Final = 4 << 20
_FILES_LOOKED_AT_MAX: Final = 64
_SAMPLES: Final = 64
_MOVED_MAX: Final = 8
"""Entries that lead to a record of another queue because that was changed: more of them are no flipped bits."""
_OTHER_MESSAGES_MIN: Final = 16
"""That ConsumeQueues and index know alike and the log does not: fewer are single damages."""


def check_derived_files(
    store: ReplicaStore,
    spans: Mapping[Queue, QueueSpan],
    damaged: Sequence[LogRange],
    *,
    group_end: int,
    is_live: bool = False,
) -> tuple[list[Finding], DerivedFacts]:
    """What is there and should not be, or cannot be, in one replica's files; `spans` are those of its whole log.

    `damaged`: ranges of findings, whose records nobody can be asked for. `group_end`: the greatest end of a log of the
    group. `is_live`: the files belong to a running broker, which goes on writing. Raises ReplicaUnreadable.
    """
    check = _DerivedCheck(store, spans, damaged, group_end=group_end, is_live=is_live)
    return list(check.findings()), check.facts()


class _DerivedCheck:
    def __init__(
        self,
        store: ReplicaStore,
        spans: Mapping[Queue, QueueSpan],
        damaged: Sequence[LogRange],
        *,
        group_end: int,
        is_live: bool,
    ) -> None:
        self._store = store
        self._spans = spans
        self._damaged = damaged
        self._group_end = group_end
        self._is_live = is_live
        self._is_at_rest = not is_live and not store.facts.is_running
        self._topics = self._read_topics()
        self._all_index = self._read_index()
        self._index = [file for file in self._all_index if file.begin_offset <= store.facts.end_offset]
        self._leases = [] if is_live else self._lease_files()
        self._subscriptions: int | None = None
        self._kept: dict[str, str] = {}
        found = [own for own in self._store.files.list_folder("") if own.name == QUEUE_ENDS_FILE]
        self._has_ends = self._is_at_rest and bool(found)

    def findings(self) -> Iterator[Finding]:
        if not self._is_live:
            yield from self._other_messages()
        yield from self._queues()
        if self._topics is not None and self._is_at_rest:
            yield from self._records_of_topics(self._topics)
        if self._is_at_rest:
            yield from odd_segments(self._store)
            yield from self._queue_lengths()
            yield from self._index_lengths()
            yield from self._lost_end()
            yield from self._index_gaps()
            yield from self._index_twice()
            checkpoint = list(self._checkpoint())
            yield from checkpoint or self._queue_ends()
            yield from self._damaged_leases()
            yield from self._progress_beyond_end()
            yield from self._timers()
            yield from self._kept_bytes()

    def facts(self) -> DerivedFacts:
        facts = self._store.facts
        return DerivedFacts(
            broker_id=facts.broker_id,
            queue_ends=self._queue_ends_known(),
            min_offset=facts.min_offset,
            index_from=min((file.begin_offset for file in self._index), default=None),
            lease_files=None if self._is_live or facts.is_running else len(self._leases),
            log_bytes=facts.end_offset - facts.min_offset,
            index_bytes=self._index_bytes() if self._is_at_rest else 0,
            lease_subscriptions=self._subscriptions,
            kept=self._kept,
            has_ends=self._has_ends if self._is_at_rest else None,
        )

    def _index_bytes(self) -> int:
        found = [entry.size for entry in self._store.index_files()]
        return _usual_length(found) if found else 0

    def _queue_ends_known(self) -> dict[Queue, int]:
        """Where records are damaged, entries still tell how far a queue was."""
        ends = {queue: span.next_queue_offset for queue, span in self._spans.items()}
        if self._damaged:
            for queue in self._store.queues():
                ends[queue] = max(ends.get(queue, 0), self._store.queue_end(*queue) or 0)
        return ends

    def _is_damaged(self, offset: int) -> bool:
        return any(piece.start_offset <= offset < piece.end_offset for piece in self._damaged)

    def _new(self, kind: FindingKind, detail: str, file: str, *, messages: int = 0, **more: Any) -> Finding:
        facts = self._store.facts
        return Finding.of(facts, kind, detail, messages=messages, file=file, **more)

    # The log, as two kinds of files that were made of it say

    def _other_messages(self) -> Iterator[Finding]:
        """Files of the log that hold sound records, and others than ConsumeQueues and index were made of: these agree
        with each other. Of one kind alone it is that one which is wrong."""
        size = self._store.facts.segment_bytes
        starts = {
            start
            for part in self._damaged
            for start in range(part.start_offset - part.start_offset % size, part.end_offset, size)
        }
        for start in sorted(starts)[:_FILES_LOOKED_AT_MAX]:
            file = LogRange(start, min(start + size, self._store.facts.end_offset))
            queued = queued_messages(self._store, file)
            known = set(indexed_messages(self._store, file)) & {own.physical_offset for own in queued}
            step = max(1, len(known) // _SAMPLES)
            sample = [own for own in queued if own.physical_offset in known][::step]
            if sum(not _is_held(self._store, own) for own in sample) < _OTHER_MESSAGES_MIN:
                continue
            # A copy of a queue under another name has right places, and its own one knows them.
            held = {own.physical_offset for own in queued if _is_held(self._store, own)}
            lost = [own for own in queued if own.physical_offset in known - held]
            extra = sorted(self._records(file) - {own.physical_offset for own in queued} - known)
            if min(len(lost), len(extra)) < _OTHER_MESSAGES_MIN:
                continue
            detail = (
                f"ConsumeQueues and IndexFiles know {len(lost)} messages there that it does not hold, the first at "
                f"{lost[0].physical_offset}: {_spelled(lost[:1])}; and neither knows {len(extra)} of its records"
            )
            first_offset = min(lost[0].physical_offset, extra[0])
            more: dict[str, Any] = {"start_offset": first_offset, "end_offset": file.end_offset}
            path = self._store.segment_path(start)
            finding = self._new(FindingKind.CHANGED_EVERYWHERE, detail, path, messages=len(extra), **more)
            yield describe(finding, self._name(extra[0]), last=self._name(extra[-1]))

    def _records(self, log_range: LogRange) -> set[int]:
        """Where the records begin of a range."""
        starts: set[int] = set()
        for piece in walk_log(self._store, *log_range, in_batches=True):
            if not isinstance(piece, LogPiece):
                starts.update(piece.offsets.tolist())
            elif piece.kind is PieceKind.RECORD:
                starts.add(piece.start_offset)
        return starts

    def _lost_end(self) -> Iterator[Finding]:
        """Records behind the end of the log of which index and checkpoint know, where no ConsumeQueue is left to."""
        end = self._store.facts.end_offset
        known_end = max((file.end_offset for file in self._all_index), default=0)
        durable_end = self._store.checkpoint().logics_physical_offset
        if min(known_end, durable_end) < end:
            return
        lost = LogRange(end, max(known_end, durable_end) + 1)
        detail = (
            f"the log ends at {end}; the index knows messages up to {known_end}, the checkpoint up to {durable_end}"
        )
        more: dict[str, Any] = {"start_offset": lost.start_offset, "end_offset": lost.end_offset}
        yield self._new(FindingKind.TAIL_MISSING, detail, self._store.segment_path(end), **more)

    # ConsumeQueues

    def _queues(self) -> Iterator[Finding]:
        held = set(self._store.queues())
        due = sum(span.next_queue_offset - span.first_queue_offset for span in self._spans.values())
        first_due = min((span.first_offset for span in self._spans.values()), default=0)
        if not held and due and self._store.facts.queues_offset > first_due and not self._keeps_queues_elsewhere():
            detail = "there is no ConsumeQueue at all"
            yield self._new(FindingKind.QUEUE_ENTRY_MISSING, detail, "consumequeue", messages=due)
        for topic, queue_id in sorted(held):
            yield from self._queue(topic, queue_id)
        if self._is_at_rest:
            yield from self._odd_folders()

    def _keeps_queues_elsewhere(self) -> bool:
        """RocksDB holds them in a folder of its own."""
        return any(entry.name.startswith("consumequeue_r") for entry in self._store.files.list_folder(""))

    def _queue(self, topic: str, queue_id: int) -> Iterator[Finding]:
        first, room_end = self._store.queue_bounds(topic, queue_id)
        span = self._spans.get((topic, queue_id))
        behind = span.next_queue_offset if span is not None else first
        limit = min(room_end, behind + _LIVE_ENTRIES) if self._is_live else room_end
        extra = self._strangers(topic, queue_id, behind, limit)
        if span is not None and not self._is_live:
            extra = self._strangers(topic, queue_id, first, min(span.first_queue_offset, room_end)) + extra
        path = self._store.queue_file(topic, queue_id, extra[0][0] if extra else first)
        folder = f"consumequeue/{topic}/{queue_id}"
        few = extra[:_MOVED_MAX]
        moved = [name for place, _, _ in few if (name := moved_record(self._store, topic, queue_id, place)) is not None]
        if moved and len(moved) == len(extra):
            yield from (other_queue_finding(self._store, name, topic, queue_id) for name in moved)
        elif extra and span is None and (due := self._due_name(topic, queue_id, extra)) is not None:
            own = "{}/{}".format(*due)
            detail = f"{folder} has the entries of consumequeue/{own}, which is not there"
            more: dict[str, Any] = {"topic": due[0], "queue_id": due[1], "queue_offset": extra[0][0]}
            more["cause"] = Cause.OTHER_NAME
            more["end_queue_offset"] = extra[-1][0] + 1
            yield self._new(FindingKind.QUEUE_ENTRY_EXTRA, detail, folder, messages=len(extra), **more)
        elif extra:
            (queue_offset, offset, size), *_ = extra
            detail = (
                f"{len(extra)} entries lead to no message of this queue: "
                f"{'it ends at ' + str(behind) if span is not None else 'the log has none of it'}, and entry "
                f"{queue_offset} says offset {offset}, size {size}"
            )
            more = {"topic": topic, "queue_id": queue_id, "queue_offset": queue_offset}
            more["end_queue_offset"] = extra[-1][0] + 1
            if span is None and self._is_no_queue(topic, queue_id):
                path, more["cause"] = self._folder_to_move(topic, queue_id), Cause.NO_QUEUE
            yield self._new(FindingKind.QUEUE_ENTRY_EXTRA, detail, path or folder, messages=len(extra), **more)
        elif span is None and self._is_at_rest and (lost := self._unwritten(topic, queue_id, first, room_end)):
            detail = f"{len(lost)} positions are empty before the last entry"
            more = {"topic": topic, "queue_id": queue_id, "queue_offset": lost[0]}
            more["end_queue_offset"] = lost[-1] + 1
            yield self._new(FindingKind.QUEUE_ENTRY_MISSING, detail, path or folder, messages=len(lost), **more)
        elif (
            span is None
            and self._is_at_rest
            and self._is_no_queue(topic, queue_id)
            and not self._had_entries(topic, queue_id, first, room_end)
        ):
            detail = "a ConsumeQueue of no topic, or beyond the number of its queues, that holds nothing"
            more = {"topic": topic, "queue_id": queue_id, "cause": Cause.NO_QUEUE}
            folder = self._folder_to_move(topic, queue_id)
            yield self._new(FindingKind.QUEUE_ENTRY_EXTRA, detail, folder, **more)

    def _had_entries(self, topic: str, queue_id: int, first: int, end: int) -> bool:
        """They have expired: the topic was deleted since, or has fewer queues, and its folder stays."""
        while first < end:
            data = self._store.read_queue(topic, queue_id, first, min(_BLOCK_ENTRIES, end - first))
            sizes = np.frombuffer(data, dtype=QUEUE_ENTRIES, count=len(data) // ENTRY.size)["size"]
            if sizes.any() or not len(sizes):
                return bool(len(sizes))
            first += len(sizes)
        return False

    def _folder_to_move(self, topic: str, queue_id: int) -> str:
        """Of what is no queue: with all of its topic, if there is none."""
        is_topic = topic in (self._topics or ()) or any(known == topic for known, _ in self._spans)
        return f"consumequeue/{topic}/{queue_id}" if is_topic else f"consumequeue/{topic}"

    def _due_name(self, topic: str, queue_id: int, entries: Sequence[tuple[int, int, int]]) -> Queue | None:
        """The one queue that all entries of another one lead to, each to its own place, and that has no files."""
        found: set[Queue] = set()
        for place, offset, size in entries[:: max(1, len(entries) // _SAMPLES)]:
            name = self._name(offset)
            if name is None or (name.queue_offset, name.end_offset - name.start_offset) != (place, size):
                return None
            found.add((name.topic, name.queue_id))
        due = found.pop() if len(found) == 1 else (topic, queue_id)
        return due if due != (topic, queue_id) and self._store.queue_bounds(*due) == (0, 0) else None

    def _strangers(self, topic: str, queue_id: int, first: int, end: int) -> list[tuple[int, int, int]]:
        """Entries of [first, end) that should not be there: queue offset, physical offset, size."""
        facts = self._store.facts
        found: list[tuple[int, int, int]] = []
        while first < end and len(found) < _LOOKUPS_MAX:
            data = self._store.read_queue(topic, queue_id, first, min(_BLOCK_ENTRIES, end - first))
            entries = np.frombuffer(data, dtype=QUEUE_ENTRIES, count=len(data) // ENTRY.size)
            if not len(entries):
                break
            offsets, sizes = entries["offset"].astype(np.int64), entries["size"].astype(np.int64)
            is_written = (offsets != 0) | (sizes != 0) | (entries["tags_code"] != 0)
            # What has expired, and what fills positions before the first message, is as it should be.
            is_written &= ~((sizes == FILLER_SIZE) & (offsets <= facts.end_offset) & (offsets >= 0))
            is_written &= ~((sizes > 0) & (offsets >= 0) & (offsets < facts.min_offset))
            if facts.is_running:
                # A running broker's newest messages, and what a torn record of a killed one has left.
                is_written &= offsets < facts.end_offset
            for piece in self._damaged:
                is_written &= (offsets < piece.start_offset) | (offsets >= piece.end_offset)
            for at in np.flatnonzero(is_written)[: _LOOKUPS_MAX - len(found)].tolist():
                offset, size = int(offsets[at]), int(sizes[at])
                if not leads_to(self._store, topic, queue_id, first + at, offset, size):
                    found.append((first + at, offset, size))
            first += len(entries)
        return found

    def _unwritten(self, topic: str, queue_id: int, first: int, end: int) -> list[int]:
        """Positions of a logical queue that hold nothing, before one that does: no record says by its topic that it
        belongs there. How far the last one goes nobody looks."""
        if not is_logical_queue(topic):
            return []
        data = self._store.read_queue(topic, queue_id, first, end - first)
        sizes = np.frombuffer(data, dtype=QUEUE_ENTRIES, count=len(data) // ENTRY.size)["size"]
        written = np.flatnonzero(sizes > 0)
        empty = np.flatnonzero(sizes[: int(written[-1])] <= 0) if len(written) else written
        return [first + place for place in empty.tolist()]

    def _queue_lengths(self) -> Iterator[Finding]:
        """A broker starts with no file of another length, or takes it for damaged; entries that are gone are told by
        themselves."""
        files = [
            (f"consumequeue/{topic}/{queue_id}", entry, topic, queue_id)
            for topic, queue_id in sorted(self._store.queues())
            for entry in self._store.files.list_folder(f"consumequeue/{topic}/{queue_id}")
            if not entry.is_folder and is_number(entry.name)
        ]
        usual = _usual_length(entry.size for _, entry, _, _ in files)
        found: list[Finding] = []
        for folder, entry, topic, queue_id in files:
            detail = ""
            if entry.size % ENTRY.size:
                detail = f"the file has {entry.size} bytes, and entries have {ENTRY.size}"
            elif entry.size != usual:
                detail = f"the file has {entry.size} bytes, and ConsumeQueue files here have {usual}"
            elif len(entry.name) != _NAME_DIGITS or int(entry.name) % usual:
                detail = f"files here have {usual} bytes, and names that are multiples of it, of {_NAME_DIGITS} digits"
            if detail:
                more: dict[str, Any] = {"topic": topic, "queue_id": queue_id}
                found.append(self._new(FindingKind.QUEUE_ENTRY_WRONG, detail, f"{folder}/{entry.name}", **more))
        if len(found) > 1:
            detail = f"{len(found)} files have another length or name, the first {found[0].file}: {found[0].detail}"
            paths = tuple(own.file or "" for own in found)
            found = [self._new(FindingKind.QUEUE_ENTRY_WRONG, detail, "consumequeue", files=paths)]
        yield from found

    def _is_no_queue(self, topic: str, queue_id: int) -> bool:
        if self._topics is None or is_logical_queue(topic):
            return False
        config = self._topics.get(topic)
        return config is None or (topic != SCHEDULE_TOPIC and queue_id >= config.queue_count)

    def _odd_folders(self) -> Iterator[Finding]:
        """Folders that no queue has the name of."""
        for topic in self._store.files.list_folder("consumequeue"):
            if not topic.is_folder or _is_passed_over(topic.name):
                continue
            queues = [entry for entry in self._store.files.list_folder(f"consumequeue/{topic.name}") if entry.is_folder]
            odd = [entry.name for entry in queues if not is_queue_id(entry.name)]
            for name in (name for name in odd if not _is_passed_over(name)):
                path = f"consumequeue/{topic.name}/{name}"
                more: dict[str, Any] = {"topic": topic.name, "cause": Cause.NO_QUEUE}
                yield self._new(FindingKind.QUEUE_ENTRY_EXTRA, "no queue has such a name", path, **more)
            if not queues and self._is_no_queue(topic.name, 0) and topic.name not in (self._topics or ()):
                path = f"consumequeue/{topic.name}"
                detail = "a folder of a topic that does not exist"
                more = {"topic": topic.name, "cause": Cause.NO_QUEUE}
                yield self._new(FindingKind.QUEUE_ENTRY_EXTRA, detail, path, **more)

    # Topics

    def _read_topics(self) -> dict[str, TopicConfig] | None:
        """None: the table cannot be read, which is a finding elsewhere."""
        text = self._store.metadata(MetadataFile.TOPICS)
        table = TopicTable()
        try:
            table.load_json(text or "")
        except MetadataCorrupt:
            return None
        return {config.topic_name: config for config in table} if text else None

    def _records_of_topics(self, topics: Mapping[str, TopicConfig]) -> Iterator[Finding]:
        by_topic: dict[str, list[QueueSpan]] = {}
        for (topic, _), span in self._spans.items():
            # What damage made of a record's topic or queue is told of the record.
            if not (self._is_damaged(span.first_offset) and self._is_damaged(span.last_offset)):
                by_topic.setdefault(topic, []).append(span)
        held = {topic for topic, _ in self._store.queues()}
        table = read_java_json(self._store.metadata(MetadataFile.TOPICS) or "{}")
        version_ms, removals = table.object("dataVersion").integer("timestamp", 0), read_removals(table)
        for topic, spans in sorted(by_topic.items()):
            messages = sum(max(0, span.next_queue_offset - span.first_queue_offset) for span in spans)
            config = topics.get(topic)
            if config is None:
                # A topic that was deleted has a mark of that; or, by RocketMQ, no queues, and the table was changed.
                last_ms = self._last_ms(spans)
                if last_ms > removals.get(topic, -1) and (topic in held or last_ms > version_ms):
                    detail = f"the log has {messages} messages of topic {topic}, and the table does not know it"
                    yield self._topic_finding(FindingKind.TOPIC_MISSING, topic, detail, messages)
                continue
            # So has one that got fewer queues.
            shut = [span for span in spans if topic != SCHEDULE_TOPIC and span.queue_id >= config.queue_count]
            if shut and self._last_ms(shut) > removals.get(topic, -1):
                highest = max(span.queue_id for span in shut)
                detail = f"topic {topic} has {config.queue_count} queues; the log has messages of queue {highest}"
                count = sum(span.next_queue_offset - span.first_queue_offset for span in shut)
                yield self._topic_finding(FindingKind.TOPIC_DIFFERS, topic, detail, count)

    def _last_ms(self, spans: Sequence[QueueSpan]) -> int:
        """When their last message was stored: after it, all that came behind it was, whatever time that had before the
        clock was set."""
        last_offset = max(span.last_offset for span in spans)
        behind = [time_ms for offset, time_ms in self._last_times.items() if offset >= last_offset]
        return min(behind, default=0)

    @cached_property
    def _last_times(self) -> dict[int, int]:
        """When the last record of each queue was stored, and each behind all of these, by where it lies."""
        last_offset = max((span.last_offset for span in self._spans.values()), default=self._store.facts.min_offset)
        names = [(span.last_offset, self._name(span.last_offset)) for span in self._spans.values()]
        times = {offset: name.store_timestamp_ms for offset, name in names if name is not None}
        for piece in walk_log(self._store, last_offset, self._store.facts.end_offset, in_batches=False):
            if isinstance(piece, LogPiece) and piece.kind is PieceKind.RECORD and piece.record is not None:
                times[piece.start_offset] = piece.record.store_timestamp_ms
        return times

    def _topic_finding(self, kind: FindingKind, topic: str, detail: str, messages: int) -> Finding:
        return self._new(kind, detail, f"config/{MetadataFile.TOPICS.value}", messages=messages, topic=topic)

    def _name(self, offset: int) -> RecordName | None:
        return read_name_at(self._store, offset)

    # Index

    def _read_index(self) -> list[IndexFile]:
        if self._is_live:
            return []
        found = (read_index_file(self._store, entry) for entry in self._store.index_files())
        # A header of any bytes is told as such, and says nothing of the log.
        files = [file for file in found if file is not None and file.next_entry > 1 and _is_plausible(file)]
        return sorted(files, key=lambda file: file.begin_offset)

    def _index_gaps(self) -> Iterator[Finding]:
        facts = self._store.facts
        files = self._index
        if not files:
            if not self._store.index_files() and self._store.checkpoint().index_message_timestamp_ms > 0:
                detail = "there is no IndexFile, and the checkpoint knows of one"
                yield self._new(FindingKind.INDEX_ENTRY_MISSING, detail, "index")
            return
        if self._begins_within_record(files[0]):
            yield from self._unindexed(files[0], LogRange(facts.min_offset, files[0].begin_offset))
        for number, file in enumerate(files):
            end = files[number + 1].begin_offset if number + 1 < len(files) else facts.end_offset
            start = max(facts.min_offset, file.end_offset)
            if end > start:
                cause = Cause.BEHIND_INDEX if end == facts.end_offset else None
                yield from self._unindexed(file, LogRange(start, end), indexed=start, cause=cause)

    def _begins_within_record(self, file: IndexFile) -> bool:
        """Whether a record has some keys in it and the others nowhere: the file before it was there, and held all that
        came before. Of a log whose oldest files expired that file expires with them."""
        begin = file.begin_offset
        if begin <= self._store.facts.min_offset or self._is_damaged(begin) or self._name(begin) is None:
            return False
        columns = self._columns(LogRange(begin, begin + 1))
        terms, keys = set(columns.index_hashes.tolist()), set(columns.index_hashes[~columns.index_is_tag].tolist())
        entries = file.entries(1, 1 + len(columns.index_hashes))
        held = set(entries["hash"][entries["offset"] == begin].tolist())
        return bool(terms & held) and bool(keys - held)

    def _columns(self, log_range: LogRange) -> RecordColumns:
        collector = RecordCollector()
        for piece in walk_log(self._store, *log_range, in_batches=True, from_boundary=True):
            if not isinstance(piece, LogPiece):
                collector.add_batch(piece)
            elif piece.kind is PieceKind.RECORD and piece.record is not None:
                collector.add_record(piece.record)
        return collector.take()

    def _unindexed(
        self, file: IndexFile, gap: LogRange, *, indexed: int = -1, cause: Cause | None = None
    ) -> Iterator[Finding]:
        """The records with keys behind the last one of a file, which begins at `indexed`, and before the first one of
        the next."""
        if any(piece.start_offset < gap.end_offset and gap.start_offset < piece.end_offset for piece in self._damaged):
            return
        columns = self._columns(
            LogRange(gap.start_offset, min(gap.end_offset, gap.start_offset + _UNINDEXED_BYTES_MAX))
        )
        rows = np.unique(columns.index_records[~columns.index_is_tag])
        rows = rows[columns.offsets[rows] > indexed]
        if len(rows):
            first, last = (self._name(int(columns.offsets[row])) for row in (rows[0], rows[-1]))
            detail = f"no IndexFile covers the log from {gap.start_offset} to {gap.end_offset}"
            finding = self._new(FindingKind.INDEX_ENTRY_MISSING, detail, file.path, messages=len(rows), cause=cause)
            yield describe(finding, first, last=last if len(rows) > 1 else None)

    def _index_lengths(self) -> Iterator[Finding]:
        """The same of IndexFiles; and those that hold anything but an index."""
        found = [entry for entry in self._store.files.list_folder("index") if is_number(entry.name)]
        files = [entry for entry in found if not entry.is_folder]
        usual = _usual_length(entry.size for entry in files)
        known = {file.name for file in self._all_index}
        for entry in files:
            path = f"index/{entry.name}"
            if entry.size != usual:
                detail = f"the file has {entry.size} bytes, and IndexFiles here have {usual}"
                yield self._new(FindingKind.INDEX_ENTRY_WRONG, detail, path)
            elif entry.name not in known and any(self._store.read_file(path, 0, _PAGE_BYTES)):
                yield self._new(FindingKind.INDEX_ENTRY_WRONG, "its header is none of an IndexFile", path)

    def _index_twice(self) -> Iterator[Finding]:
        """What two files cover is found twice; and a start goes on from the end of the file with the last name. Not of
        files that are those of another log: each of their entries is wrong."""
        files = sorted(filter(self._is_of_this_log, self._all_index), key=lambda file: file.name)
        for before, file in pairwise(files):
            if file.begin_offset < before.end_offset:
                detail = (
                    f"it covers the log from {file.begin_offset} on, and {before.path} before it covers it up to "
                    f"{before.end_offset}"
                )
                yield self._new(FindingKind.INDEX_ENTRY_WRONG, detail, file.path)

    def _is_of_this_log(self, file: IndexFile) -> bool:
        ends = ((file.begin_offset, file.begin_timestamp_ms), (file.end_offset, file.end_timestamp_ms))
        names = ((self._name(offset), time_ms) for offset, time_ms in ends if offset < self._store.facts.end_offset)
        return any(name is not None and name.store_timestamp_ms == time_ms for name, time_ms in names)

    # Checkpoint

    def _checkpoint(self) -> Iterator[Finding]:
        facts = self._store.facts
        if not facts.end_offset > facts.min_offset:
            return
        sizes = {entry.name: entry.size for entry in self._store.files.list_folder("") if not entry.is_folder}
        size = sizes.get("checkpoint")
        if size != CHECKPOINT_BYTES:
            detail = "there is no checkpoint" if size is None else f"it has {size} bytes instead of {CHECKPOINT_BYTES}"
            yield self._new(FindingKind.CHECKPOINT_IMPOSSIBLE, detail, "checkpoint")
            return
        wrong = self._impossible(self._store.checkpoint())
        if not wrong and any(self._store.read_file("checkpoint", _CHECKPOINT_FIELDS_BYTES, CHECKPOINT_BYTES)):
            wrong = [f"behind byte {_CHECKPOINT_FIELDS_BYTES}, where its fields have ended, there are more than zeros"]
        if wrong:
            values = astuple(self._store.checkpoint())
            cause = Cause.BEYOND_END if all(values[:1]) and min(values) >= 0 else None
            yield self._new(FindingKind.CHECKPOINT_IMPOSSIBLE, "; ".join(wrong), "checkpoint", cause=cause)

    def _impossible(self, checkpoint: StoreCheckpoint) -> list[str]:
        facts = self._store.facts
        times = [*self._last_times.values(), *(file.end_timestamp_ms for file in self._index)]
        newest_ms = max(times, default=0)
        last_offset = max((span.last_offset for span in self._spans.values()), default=0)
        is_newest_known = not any(last_offset < piece.end_offset for piece in self._damaged)
        wrong = []
        if times and checkpoint.physic_message_timestamp_ms == 0:
            wrong.append("physicMsgTimestamp is 0, though the broker was stopped in order and the log has messages")
        for field_name, time_ms in (
            ("physicMsgTimestamp", checkpoint.physic_message_timestamp_ms),
            ("logicsMsgTimestamp", checkpoint.logics_message_timestamp_ms),
            ("indexMsgTimestamp", checkpoint.index_message_timestamp_ms),
        ):
            if time_ms < 0 or (times and is_newest_known and time_ms > newest_ms + _MARGIN_MS):
                wrong.append(f"{field_name} is {time_ms}; the newest message is of {newest_ms}")
        for field_name, offset, end in (
            ("logicsPhysicalOffset", checkpoint.logics_physical_offset, facts.end_offset),
            ("masterFlushedOffset", checkpoint.master_flushed_offset, max(self._group_end, facts.end_offset)),
            ("confirmPhyOffset", checkpoint.confirm_physical_offset, max(self._group_end, facts.end_offset)),
        ):
            is_lost = any(piece.start_offset <= offset < piece.end_offset for piece in self._damaged)
            if not 0 <= offset <= end and not is_lost:
                wrong.append(f"{field_name} is {offset}; the log ends at {end}")
        return wrong

    def _queue_ends(self) -> Iterator[Finding]:
        """Where queues ended at the last stop in order: without it a start does not see what their files have lost."""
        if not self._has_ends:
            return
        data = bytes(self._store.read_file(QUEUE_ENDS_FILE, 0, _LEASE_BYTES_MAX))
        problem = ""
        try:
            written = QueueEnds.decode(data)
        except ValueError as error:
            problem = str(error)
        else:
            durable = self._store.checkpoint().logics_physical_offset
            if written.durable_offset < durable:  # A checkpoint may vouch for less.
                problem = f"it is of an earlier stop, at {written.durable_offset}, than the checkpoint, at {durable}"
            problem = problem or next(filter(None, (self._end_problem(*own) for own in written.ends)), "")
        if problem:
            yield self._new(FindingKind.CHECKPOINT_IMPOSSIBLE, problem, QUEUE_ENDS_FILE, cause=Cause.BEYOND_END)

    def _end_problem(self, topic: str, queue_id: int, first_start: int, end: int) -> str:
        """What its files have lost is told of the queue; here the queue is whole, and was written down otherwise."""
        span = self._spans.get((topic, queue_id))
        first, room_end = self._store.queue_bounds(topic, queue_id)
        if span is None or self._damaged or first * ENTRY.size != first_start or span.next_queue_offset > room_end:
            return ""
        known = span.next_queue_offset
        if end == self._store.queue_end(topic, queue_id):
            return ""  # Its files end there as well: what they lack is told of the queue.
        return "" if known == end else f"{topic}, queue {queue_id} ended at {end}; the log has it up to {known}"

    # Leases

    def _lease_files(self) -> list[tuple[int, str, int]]:
        """Generation, kind and length of each."""
        found = []
        for entry in self._store.files.list_folder("config"):
            match = _LEASE_FILE.fullmatch(entry.name)
            if match and not entry.is_folder:
                found.append((int(match[1]), match[2], entry.size))
        return sorted(found)

    def _damaged_leases(self) -> Iterator[Finding]:
        snapshots = [own for own in self._leases if own[1] == "snapshot"]
        journals = [own for own in self._leases if own[1] == "journal"]
        newest = max((generation for generation, _, _ in snapshots), default=0)
        if journals and not snapshots and journals[0][0] > 1:
            detail = f"the journals begin with number {journals[0][0]}, and the snapshot before them is gone"
            yield self._new(FindingKind.LEASES_MISSING, detail, f"config/leases-{journals[0][0]:010d}.snapshot")
        if snapshots and all(generation < newest for generation, _, _ in journals):
            detail = f"snapshot {newest} has no journal"
            yield self._new(FindingKind.LEASES_MISSING, detail, f"config/leases-{newest:010d}.journal")
        for generation, kind, size in self._leases:
            if generation < newest or size > _LEASE_BYTES_MAX:
                continue
            path = f"config/leases-{generation:010d}.{kind}"
            data = bytes(self._store.read_file(path, 0, size))
            whole = _whole_frames(data)
            if whole < len(data.rstrip(b"\0")):
                detail = f"it can be read up to byte {whole} of {len(data)}"
                yield self._new(FindingKind.LEASES_MISSING, detail, path)

    def _progress_beyond_end(self) -> Iterator[Finding]:
        """A consumer group that has received what its queue never had passes over what comes next."""
        if not self._leases or any(size > _LEASE_BYTES_MAX for _, _, size in self._leases):
            return
        newest = max((generation for generation, kind, _ in self._leases if kind == "snapshot"), default=0)
        parts = {"snapshot": b"", "journal": b""}
        for generation, kind, size in self._leases:
            if generation >= newest:
                parts[kind] += bytes(self._store.read_file(f"config/leases-{generation:010d}.{kind}", 0, size))
        try:
            replay = LeaseReplay.of_files(parts["snapshot"], parts["journal"])
        except (ValueError, IndexError, KeyError):
            return  # Told above.
        self._subscriptions = len(replay.subscriptions)
        for subscription in replay.subscriptions.values():
            for queue in subscription.queues.values():
                span = self._spans.get((subscription.topic, queue.queue_id))
                if span is None or queue.next_offset <= span.next_queue_offset or self._damaged:
                    continue
                detail = (
                    f"leases of consumer group {subscription.group}, topic {subscription.topic}, "
                    f"queue {queue.queue_id}: offset {queue.next_offset}; the queue ends at {span.next_queue_offset}"
                )
                more: dict[str, Any] = {"topic": subscription.topic, "queue_id": queue.queue_id}
                path = f"config/leases-{newest:010d}.snapshot"
                yield self._new(FindingKind.OFFSET_BEYOND_END, detail, path, **more)

    # Timers

    def _timers(self) -> Iterator[Finding]:
        """The saved state of the timers: a start reads all again where it cannot be read, and less where it says so."""
        path = f"config/{TIMER_TOPIC}.state"
        sizes = {entry.name: entry.size for entry in self._store.files.list_folder("config") if not entry.is_folder}
        size = sizes.get(f"{TIMER_TOPIC}.state")
        if size is None:
            return
        queue = TimerQueue()
        kind = FindingKind.METADATA_UNREADABLE
        if not queue.load(whole_file(self._store.files, path, size)):
            yield self._new(kind, "its checksum is wrong: the next start reads all timers again", path)
            return
        for topic, read in ((TIMER_TOPIC, queue.timer_next), (TIMER_OP_TOPIC, queue.op_next)):
            span = self._spans.get((topic, 0))
            end = span.next_queue_offset if span is not None else self._store.queue_bounds(topic, 0)[0]
            if not 0 <= read <= end and not self._damaged:
                detail = f"it has read {topic} up to {read}, and the queue ends at {end}"
                yield self._new(FindingKind.OFFSET_BEYOND_END, detail, path, topic=topic, queue_id=0)

    # Bytes that were kept aside

    def _kept_bytes(self) -> Iterator[Finding]:
        """Those that a repair has overwritten are named by their digest, those that were cut off say how many."""
        kind = FindingKind.KEPT_BYTES_DAMAGED
        for folder in (KEPT_TAILS_FOLDER, KEPT_REPAIRS_FOLDER):
            sizes = {entry.name: entry.size for entry in self._store.files.list_folder(folder)}
            for name, size in sizes.items():
                path = f"{folder}/{name}"
                if _is_passed_over(name):
                    continue
                if size < 0:
                    if _KEPT_REPAIR.fullmatch(name) or name.endswith((".log", ".json")):
                        yield self._new(kind, "a folder, a link or a pipe is in its place", path)
                    continue
                if name.endswith(".json"):
                    try:
                        self._reason_of(path)
                    except _NO_REASON as error:
                        problem = f"it does not say any more what was cut off, and why: {error!r}"
                        yield self._new(kind, problem, path)
                    continue
                digest = self._digest_of(path, size)
                self._kept[path] = digest
                if name.endswith(".log") and (problem := self._tail_problem(path, size)):
                    yield self._new(kind, problem, path)
                match = _KEPT_REPAIR.fullmatch(name) if folder == KEPT_REPAIRS_FOLDER else None
                if match is not None and (digest != match[3] or size != int(match[2]) - int(match[1])):
                    yield self._new(kind, f"its {size} bytes have digest {digest}, and not the one of its name", path)

    def _tail_problem(self, path: str, size: int) -> str:
        """What the file beside a kept tail says against it; that one may be damaged itself, which is told there."""
        try:
            length, crc = self._reason_of(f"{path.removesuffix('.log')}.json")
        except _NO_REASON:
            return ""
        if length != size:
            return f"{length} bytes were kept, and the file has {size}"
        is_other = crc is not None and crc != self._crc_of(path, size)
        return f"its {size} bytes have not the CRC that was written down, {crc:08x}" if is_other else ""

    def _reason_of(self, path: str) -> tuple[int, int | None]:
        """How many bytes were cut off, and their CRC, which older ones lack. Raises _NO_REASON."""
        document = json.loads(bytes(self._store.read_file(path, 0, _KEPT_PIECE_BYTES)))
        crc = document.get("crc32")
        return int(document["endOffset"]) - int(document["startOffset"]), None if crc is None else int(crc)

    def _crc_of(self, path: str, size: int) -> int:
        crc = 0
        for start in range(0, size, _KEPT_PIECE_BYTES):
            crc = crc32(self._store.read_file(path, start, min(_KEPT_PIECE_BYTES, size - start)), crc)
        return crc

    def _digest_of(self, path: str, size: int) -> str:
        hashed = xxhash.xxh3_128()
        for start in range(0, size, _KEPT_PIECE_BYTES):
            hashed.update(self._store.read_file(path, start, min(_KEPT_PIECE_BYTES, size - start)))
        return hashed.hexdigest()


def _is_passed_over(name: str) -> bool:
    return name.endswith(_UNFINISHED_SUFFIX) or is_of_others(name)


def _is_plausible(file: IndexFile) -> bool:
    """Whether a header fits the entries of its file: wherever these lead, it is one."""
    if file.begin_offset <= file.store.facts.end_offset:
        return 0 <= file.begin_offset <= file.end_offset
    ends = [file.entries(number, number + 1)["offset"].tolist() for number in (1, file.next_entry - 1)]
    return ends == [[file.begin_offset], [file.end_offset]]


# What was in a part of the log that no replica has any more.


def with_known_messages(finding: Finding, store: ReplicaStore) -> Finding:
    """The finding with the messages of its range that ConsumeQueues or IndexFiles still know, and the log does not
    hold; unchanged if there are none."""
    if finding.start_offset is None or finding.end_offset is None:
        return finding
    lost = LogRange(finding.start_offset, finding.end_offset)
    queued = [own for own in queued_messages(store, lost) if not _is_held(store, own)]
    indexed = indexed_messages(store, lost)
    if not queued:
        # By hashes of their keys alone.
        left = {offset: hashes for offset, hashes in indexed.items() if read_name_at(store, offset) is None}
        if not left:
            return finding
        offset = next(iter(left))
        told = (
            f"IndexFiles know {_counted(len(left))} there, the first at {offset}, by the hashes {_listed(left[offset])}"
        )
        return replace(finding, detail=f"{finding.detail}; {told}", messages=max(finding.messages, len(left)))
    first, last = queued[0], queued[-1]
    told = f"ConsumeQueues know {_counted(len(queued))} there: {_spelled(queued)}"
    if hashes := indexed.get(first.physical_offset):
        told += f"; the index has the first one by the hashes {_listed(hashes)}"
    named: dict[str, Any] = {"topic": first.topic, "queue_id": first.queue_id, "queue_offset": first.queue_offset}
    return replace(
        finding,
        detail=f"{finding.detail}; {told}",
        messages=max(finding.messages, len(queued)),
        queues=_positions(queued) if first != last else (),
        **(named if finding.topic is None else {}),
    )


_SPELLED_MAX: Final = 8


def _counted(count: int) -> str:
    return f"{count} message{'s' if count != 1 else ''}"


def _listed(hashes: Sequence[int]) -> str:
    return ", ".join(map(str, hashes[:_SPELLED_MAX]))


def _spelled(queued: Sequence[QueuedMessage]) -> str:
    shown = [f"{own.topic}/{own.queue_id}@{own.queue_offset}" for own in queued[:_SPELLED_MAX]]
    return ", ".join(shown) + (f" and {len(queued) - len(shown)} more" if len(queued) > len(shown) else "")


def _positions(queued: Iterable[QueuedMessage]) -> tuple[tuple[str, int, int, int], ...]:
    """Topic, queue id and runs of queue offsets."""
    runs: list[tuple[str, int, int, int]] = []
    by_queue = sorted(queued, key=lambda own: (own.topic, own.queue_id, own.queue_offset))
    for (topic, queue_id), own in groupby(by_queue, key=lambda each: (each.topic, each.queue_id)):
        for place in (each.queue_offset for each in own):
            if runs and runs[-1][:2] == (topic, queue_id) and runs[-1][3] == place:
                runs[-1] = (topic, queue_id, runs[-1][2], place + 1)
            else:
                runs.append((topic, queue_id, place, place + 1))
    return tuple(runs)


def _is_held(store: ReplicaStore, own: QueuedMessage) -> bool:
    name = read_name_at(store, own.physical_offset)
    found = (
        None if name is None else (name.topic, name.queue_id, name.queue_offset, name.end_offset - name.start_offset)
    )
    return found == (own.topic, own.queue_id, own.queue_offset, own.size)


def read_name_at(store: ReplicaStore, offset: int) -> RecordName | None:
    """The record there; None: there is none, or a damaged one."""
    limit = min(store.segment_end(offset), store.facts.end_offset)
    size = int.from_bytes(store.read_log(offset, min(limit, offset + 4)), "big") if offset < limit else 0
    return read_name(store.read_log(offset, min(limit, offset + size)), 0, offset) if size > 0 else None


def _whole_frames(data: bytes) -> int:
    try:
        return read_frames(data)[1]
    except (ValueError, IndexError, KeyError):
        return 0


def _usual_length(sizes: Iterable[int]) -> int:
    """Of files that are all as long; of two lengths that are as frequent the greater; 1 without any."""
    counts = Counter(size for size in sizes if size > 0)
    return max(counts, key=lambda size: (counts[size], size), default=1)
