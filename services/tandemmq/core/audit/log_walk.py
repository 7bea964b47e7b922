"""Walks over a log whatever lies in it.

A broker's recovery ends at the first bad record, and so it must. An audit has to know what lies behind it: records,
padding, or pieces that are neither. A record's magic code at byte 4 and its own position at byte 28 tell where the next
one starts, without any index.

A walk may be split. Of two walks over [a, b) and [b, c) the first takes everything that begins before b, and the second
begins with the first record at or behind b. Padding behind a file's last record may hold anything, old records too. So
it is best to split where files begin, or where an earlier walk ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final

from tandemmq.core.audit.replica_store import ReplicaStore
from tandemmq.core.message.record import Blank, Corrupt, RecordFound, ScanStop, scan_record
from tandemmq.core.message.record_layout import BLANK, SMALLEST_RECORD_BYTES
from tandemmq.core.replication.log_history import LogRange

if TYPE_CHECKING:
    from tandemmq.core.storage.record_batch import RecordBatch

_READ_BYTES: Final = 4 << 20
"""Columns of so much fit a processor's cache."""
LONGEST_RECORD_BYTES: Final = 64 << 20
"""What claims to be longer is no record: sixteen times RocketMQ's limit."""
_SHORT_BATCH: Final = 16
"""Records. A shorter batch cost more than it saved."""
_PAUSE_BYTES: Final = 256 << 10
"""Read one by one after a short batch: more of what made it short is likely to follow."""
_MAGIC_PREFIX: Final = b"\xda\xa3\x20"
"""V1's and V2's magic code differ in the last byte."""
_MAGIC_AT: Final = 4
_OWN_OFFSET_AT: Final = 28
_SECTOR_BYTES: Final = 512
_REACHES_BYTES: Final = (8 << 10, 256 << 10, LONGEST_RECORD_BYTES)
"""So far back a record is looked for from which records lead to a place: a few of them, whatever their size."""
_QUEUES_MAX: Final = 256
"""That are asked of each mark of a file's end; where there are more, only of those that need not lie there."""
_BEFORE_BYTES: Final = 64 << 10
_BEFORE_MAX: Final = 8
"""Messages before a mark, of which one has to be known where it lies."""
_WINDOW_BYTES: Final = 64 << 10
"""Of records that are looked at one by one: a read of each would cost more than all bytes between them."""


class PieceKind(Enum):
    RECORD = "record"
    PADDING = "padding"
    """The blank that closes a file, and whatever lies behind it."""
    BAD_BODY = "bad body"
    """A record whose body does not match its CRC."""
    MISPLACED = "misplaced"
    """A whole record that was written for another place."""
    ZEROED = "zeroed"
    """No record, and zeros, or with whole sectors of zeros in it."""
    BROKEN = "broken"
    """Anything else that is no record."""
    HOLE = "hole"
    """There is no file."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """One piece. The next one starts where it ends."""

    kind: PieceKind
    start_offset: int
    end_offset: int
    record: RecordFound | None = None
    """For the first three kinds; its `physical_offset` is what the record says itself."""
    reason: str = ""
    """What the decoder says of it."""


def walk_log(
    store: ReplicaStore, start: int, end: int, *, in_batches: bool, from_boundary: bool = False
) -> Iterator[LogPiece | RecordBatch]:
    """Everything that begins in [start, end), in order; `in_batches`: common records many at once.

    `from_boundary`: a record should start at `start`, whatever lies there now.

    Yields hold no bytes of the log; the store may be used between them. A record the replica holds only in part, since
    it is still arriving, ends the walk in silence.
    """
    end = min(end, store.facts.end_offset)
    return _Walk(store, end, in_batches=in_batches).pieces(start, from_boundary=from_boundary)


class _Walk:
    """The bytes at hand, and how far they go."""

    def __init__(self, store: ReplicaStore, end: int, *, in_batches: bool) -> None:
        self._store = store
        self._end = end
        self._in_batches = in_batches
        self._batches_from = 0
        self._last_ms: int | None = None
        """When the last record that was passed was stored."""

    def pieces(self, start: int, *, from_boundary: bool) -> Iterator[LogPiece | RecordBatch]:
        offset = start if from_boundary else _first_boundary(self._store, start, self._end)
        length = _READ_BYTES
        while offset < self._end:
            if self._store.is_in_hole(offset):
                piece = self._hole(offset)
                yield piece
                offset = piece.end_offset
                continue
            file_end = self._store.segment_end(offset)
            # Behind the walk's end lies the rest of its last record.
            rest = _WINDOW_BYTES if length == _READ_BYTES else length
            limit = min(file_end, offset + length, self._end + rest, self._store.facts.end_offset)
            # Collected first: what is done between yields may have the buffer used again.
            found, stopped_at, stop = self._whole_records(offset, limit)
            yield from found
            if stopped_at >= self._end:
                return
            if stopped_at > offset:
                offset, length = stopped_at, _READ_BYTES
                if offset == file_end or stop is ScanStop.INCOMPLETE or stop is None:
                    continue
            is_cut = limit < min(file_end, self._store.facts.end_offset)
            if stop is ScanStop.INCOMPLETE and is_cut and length < LONGEST_RECORD_BYTES:
                length *= 2
                continue
            if stop is ScanStop.INCOMPLETE and self._is_arriving(offset, file_end):
                return
            piece = self._damage(offset, file_end, stop)
            yield piece
            offset, length = piece.end_offset, _READ_BYTES

    def _whole_records(
        self, offset: int, limit: int
    ) -> tuple[list[LogPiece | RecordBatch], int, ScanStop | Corrupt | Blank | None]:
        """Everything of a known length from `offset` on, where it ends, and what ended it; None: nothing did."""
        store = self._store
        file_end = store.segment_end(offset)
        view = store.read_log(offset, limit)
        found: list[LogPiece | RecordBatch] = []
        position = 0
        while offset + position < self._end and position < len(view):
            if self._in_batches and offset + position >= self._batches_from:
                batch = self._batch(view, position, offset)
                if batch is not None:
                    found.append(batch)
                    self._last_ms = int(batch.store_timestamps_ms[-1])
                    position = batch.end_offset - offset
                    continue
            here = offset + position
            record = scan_record(view, position, len(view), physical_offset=here)
            if isinstance(record, RecordFound):
                found.append(LogPiece(PieceKind.RECORD, here, here + record.size, record))
                self._last_ms = record.store_timestamp_ms
                position += record.size
            elif self._is_closing(record, here, file_end):
                found.append(LogPiece(PieceKind.PADDING, here, file_end))
                return found, file_end, None
            elif (piece := _odd_record(view, position, here, record)) is not None:
                found.append(piece)
                position = piece.end_offset - offset
            else:
                return found, here, record
        return found, offset + position, None

    def _is_closing(self, stop: ScanStop | Corrupt | Blank, offset: int, file_end: int) -> bool:
        if not isinstance(stop, Blank) or stop.size != file_end - offset:
            return False
        if self._last_ms is None:
            _, self._last_ms = _chain_up_to(self._store, offset, file_end)
        return _closes_file(self._store, offset, last_ms=self._last_ms)

    def _batch(self, view: memoryview, position: int, offset: int) -> RecordBatch | None:
        from tandemmq.core.storage.record_batch import read_batch

        # A batch goes on to the end of the bytes: those behind the walk's own end are the next walk's.
        limit = min(len(view), max(position, self._end - offset))
        batch = read_batch(view, position, limit, physical_offset=offset + position)
        # Few records before the end of the bytes say nothing of what follows.
        size = int.from_bytes(view[position : position + _MAGIC_AT], "big")
        is_at_end = position + size > limit if batch is None else batch.end_offset - offset + size > limit
        if (batch is None or len(batch) < _SHORT_BATCH) and not is_at_end:
            self._batches_from = offset + position + _PAUSE_BYTES
        return batch

    def _is_arriving(self, offset: int, file_end: int) -> bool:
        """Whether the record at `offset` goes on behind the replica's end because the rest is not there yet."""
        facts = self._store.facts
        if not facts.is_running or facts.end_offset == file_end:
            return False
        view = self._store.read_log(offset, min(offset + SMALLEST_RECORD_BYTES, facts.end_offset))
        if len(view) < _OWN_OFFSET_AT + 8:
            return True
        size = int.from_bytes(view[:4], "big")
        own_offset = int.from_bytes(view[_OWN_OFFSET_AT : _OWN_OFFSET_AT + 8], "big")
        return own_offset == offset and facts.end_offset < offset + size <= file_end

    def _hole(self, offset: int) -> LogPiece:
        """The hole, and what is left of the record that it cut off."""
        store = self._store
        hole_end = next(hole.end_offset for hole in store.facts.holes if hole.start_offset <= offset < hole.end_offset)
        hole_end = min(hole_end, self._end)
        if hole_end < self._end and hole_end % store.facts.segment_bytes:
            hole_end = next_anchor(store, hole_end, min(store.segment_end(hole_end), self._end)) or self._end
        return LogPiece(PieceKind.HOLE, offset, hole_end)

    def _damage(self, offset: int, file_end: int, stop: ScanStop | Corrupt | Blank | None) -> LogPiece:
        """What lies at `offset`, where no sound record starts."""
        store = self._store
        room_end = min(file_end, store.facts.end_offset)
        search_end = min(room_end, max(offset, self._end) + LONGEST_RECORD_BYTES)
        piece_end = next_anchor(store, offset + 1, search_end)
        if piece_end is None:
            piece_end = room_end if room_end <= search_end else self._end
        kind = PieceKind.ZEROED if _has_zero_sectors(store, offset, piece_end) else PieceKind.BROKEN
        return LogPiece(kind, offset, piece_end, reason=_reason(stop, file_end - offset))


def _odd_record(view: memoryview, position: int, offset: int, stop: ScanStop | Corrupt | Blank) -> LogPiece | None:
    """The record at `position` if it is whole but for its body, or was written for another place."""
    if not isinstance(stop, Corrupt) or len(view) - position < SMALLEST_RECORD_BYTES:
        return None
    own_offset = int.from_bytes(view[position + _OWN_OFFSET_AT : position + _OWN_OFFSET_AT + 8], "big", signed=True)
    found = scan_record(view, position, len(view), physical_offset=own_offset, check_crc=own_offset != offset)
    if not isinstance(found, RecordFound):
        return None
    kind = PieceKind.BAD_BODY if own_offset == offset else PieceKind.MISPLACED
    return LogPiece(kind, offset, offset + found.size, found, stop.reason)


def next_anchor(store: ReplicaStore, start: int, end: int) -> int | None:
    """The first place in [start, end), within one file, where a record starts: one that says so itself, or a whole one
    that was written for another place."""
    room_end = min(store.segment_end(start), store.facts.end_offset)
    # Up to the last byte of a magic code of a record that starts before `end`.
    search_end = min(room_end, end + _MAGIC_AT + len(_MAGIC_PREFIX) - 1)
    offset = start
    while offset < end:
        limit = min(search_end, offset + _READ_BYTES)
        data = bytes(store.read_log(offset, limit))
        at = data.find(_MAGIC_PREFIX, _MAGIC_AT)
        while at >= 0 and offset + at - _MAGIC_AT < end:
            candidate = offset + at - _MAGIC_AT
            if _record_at(store, candidate, room_end, physical_offset=candidate, check_crc=False) is not None:
                return candidate
            if _misplaced_at(store, candidate, room_end) is not None:
                return candidate
            at = data.find(_MAGIC_PREFIX, at + 1)
        if limit == search_end:
            return None
        offset = limit - (_MAGIC_AT + len(_MAGIC_PREFIX) - 1)
    return None


def _first_boundary(store: ReplicaStore, start: int, end: int) -> int:
    """The first place at or behind `start` where a walk may begin: where records lead that begin before it, whatever
    lies there; or else, of two records that contain one another, the one that another one follows."""
    facts = store.facts
    if start >= end or start <= facts.min_offset or start % facts.segment_bytes == 0 or store.is_in_hole(start):
        return start
    room_end = min(store.segment_end(start), facts.end_offset)
    boundary, _ = _chain_up_to(store, start, room_end)
    if boundary is not None:
        return boundary
    search_end = min(room_end, start + LONGEST_RECORD_BYTES)
    first = candidate = next_anchor(store, start, search_end)
    while candidate is not None:
        if _is_followed(store, candidate, room_end):
            return candidate
        candidate = next_anchor(store, candidate + 1, search_end)
    if first is not None:
        return first
    # Nothing up to the file's end: a record that began before `start`, or padding. Both are the walk's before this one.
    return room_end if room_end == search_end else start


def _chain_up_to(store: ReplicaStore, start: int, room_end: int) -> tuple[int | None, int | None]:
    """Where the record or the padding ends that begins before `start` and reaches it, or None if damage lies between;
    and when the last record before that was stored."""
    lowest = max(store.facts.min_offset, start - start % store.facts.segment_bytes)
    last_ms: int | None = None
    window = _Window(store, room_end)
    for reach in _REACHES_BYTES:
        low, last_ms = max(lowest, start - reach), None
        place = low if low == lowest else next_anchor(store, low, start)
        while place is not None and place < start:
            record = _record_at(window, place, room_end, physical_offset=place, check_crc=False)
            if record is not None:
                place, last_ms = place + record.size, record.store_timestamp_ms
            elif _closes_file(store, place, last_ms=last_ms):
                place = store.segment_end(place)
            else:
                place = next_anchor(store, place + 1, start)
        if place is not None or low == lowest:
            return place, last_ms
    return None, last_ms


def whole_records_end(store: ReplicaStore, end: int) -> int:
    """Where the last record or padding ends that ends at or before `end`: a record that is still arriving begins there.

    Behind damage at the very end nothing is known, and the last sound record before it counts.
    """
    facts = store.facts
    end = min(end, facts.end_offset)
    if end <= facts.min_offset or end % facts.segment_bytes == 0 or store.is_in_hole(end - 1):
        return max(end, facts.min_offset)
    lowest = max(facts.min_offset, end - end % facts.segment_bytes)
    window = _Window(store, end)
    for reach in _REACHES_BYTES:
        low = max(lowest, end - reach)
        last: int | None = None
        place = low if low == lowest else next_anchor(store, low, end)
        while place is not None and place < end:
            record = _record_at(window, place, end, physical_offset=place, check_crc=False)
            if record is not None:
                last = place = place + record.size
            else:
                place = next_anchor(store, place + 1, end)
        if last is not None:
            return last
        if low == lowest:
            break
    return lowest


def _closes_file(store: ReplicaStore, offset: int, *, last_ms: int | None = None) -> bool:
    """Whether a blank lies here that goes to the end of the file, and was not written over a record. `last_ms`: when
    the record before it was stored, if that is known: what a cut has left behind a mark is older. Where nothing is
    left of the record, ConsumeQueues and IndexFiles still know it."""
    file_end = store.segment_end(offset)
    view = store.read_log(offset, min(offset + BLANK.size, file_end))
    found = scan_record(view, 0, len(view), physical_offset=offset)
    if not isinstance(found, Blank) or found.size != file_end - offset:
        return False
    if offset not in store.marks_over_messages:
        store.marks_over_messages[offset] = _is_known_below(store, offset, file_end)
    if store.marks_over_messages[offset]:
        return False
    place = next_anchor(store, offset + BLANK.size, file_end) if last_ms is not None else None
    if last_ms is None or place is None:
        return True
    behind = _record_at(store, place, file_end, physical_offset=place, check_crc=True)
    return behind is None or behind.store_timestamp_ms < last_ms


def _is_known_below(store: ReplicaStore, mark: int, file_end: int) -> bool:
    """Whether messages lay where a mark of a file's end lies now, and what follows it: two entries of ConsumeQueues
    lead there, or one, and an IndexFile to the same place. One by itself may be what is damaged."""
    room = file_end - mark
    if room < SMALLEST_RECORD_BYTES + BLANK.size:
        return False
    queues = sum(1 for _ in islice(store.queues(), _QUEUES_MAX + 1))
    if queues > _QUEUES_MAX and file_end + SMALLEST_RECORD_BYTES <= store.facts.end_offset:
        # Who writes a mark had a record that did not fit: it begins the next file.
        size = int.from_bytes(store.read_log(file_end, file_end + 4), "big")
        if size + BLANK.size > room:
            return False
    # They import numpy, and this module.
    from tandemmq.core.audit.index_check import indexed_messages
    from tandemmq.core.audit.queue_check import queued_messages

    lost = LogRange(mark, file_end)
    queued = queued_messages(store, lost)
    is_chain = all(one.physical_offset + one.size <= other.physical_offset for one, other in pairwise(queued))
    if not queued or not is_chain or queued[-1].physical_offset + queued[-1].size + BLANK.size > file_end:
        return False
    before = queued_messages(store, LogRange(max(file_end - store.facts.segment_bytes, mark - _BEFORE_BYTES), mark))
    if before and not any(_is_record_of(store, own.physical_offset, own.size) for own in before[-_BEFORE_MAX:]):
        # The file is another log's, and its mark as well.
        return False
    return len(queued) > 1 or queued[0].physical_offset in indexed_messages(store, lost)


def _is_record_of(store: ReplicaStore, offset: int, size: int) -> bool:
    record = _record_at(store, offset, offset + size, physical_offset=offset, check_crc=False)
    return record is not None and record.size == size


def _is_followed(store: ReplicaStore, offset: int, room_end: int) -> bool:
    record = _record_at(store, offset, room_end, physical_offset=offset, check_crc=False)
    if record is None:
        return False
    behind = offset + record.size
    if behind >= store.facts.end_offset:
        return True
    if behind < room_end and _closes_file(store, behind):
        return True
    return _record_at(store, behind, room_end, physical_offset=behind, check_crc=False) is not None


class _Window:
    """The log of a store up to `room_end`, which ends within one file, for who goes from record to record. What was
    read last stays: it is for one look at bytes that are there, not for what may come."""

    def __init__(self, store: ReplicaStore, room_end: int) -> None:
        self._store = store
        self._room_end = room_end
        self._start = 0
        self._bytes = b""

    def read_log(self, start_offset: int, end_offset: int) -> memoryview:
        """See ReplicaStore."""
        if not self._start <= start_offset <= end_offset <= self._start + len(self._bytes):
            limit = max(end_offset, min(start_offset + _WINDOW_BYTES, self._room_end))
            self._start, self._bytes = start_offset, bytes(self._store.read_log(start_offset, limit))
        return memoryview(self._bytes)[start_offset - self._start : end_offset - self._start]


def _record_at(
    log: ReplicaStore | _Window, offset: int, room_end: int, *, physical_offset: int, check_crc: bool
) -> RecordFound | None:
    """The record at `offset`, if there is one that was written for `physical_offset`."""
    head = log.read_log(offset, min(offset + SMALLEST_RECORD_BYTES, room_end))
    if len(head) < SMALLEST_RECORD_BYTES:
        return None
    size = int.from_bytes(head[:4], "big")
    own_offset = int.from_bytes(head[_OWN_OFFSET_AT : _OWN_OFFSET_AT + 8], "big", signed=True)
    largest = min(room_end - offset, LONGEST_RECORD_BYTES)
    if own_offset != physical_offset or not SMALLEST_RECORD_BYTES <= size <= largest:
        return None
    view = log.read_log(offset, offset + size)
    found = scan_record(view, 0, size, physical_offset=physical_offset, check_crc=check_crc)
    return found if isinstance(found, RecordFound) else None


def _misplaced_at(store: ReplicaStore, offset: int, room_end: int) -> RecordFound | None:
    """The whole record at `offset` that says it lies elsewhere in this log."""
    head = store.read_log(offset, min(offset + SMALLEST_RECORD_BYTES, room_end))
    if len(head) < SMALLEST_RECORD_BYTES or bytes(head[_MAGIC_AT : _MAGIC_AT + 3]) != _MAGIC_PREFIX:
        return None
    own_offset = int.from_bytes(head[_OWN_OFFSET_AT : _OWN_OFFSET_AT + 8], "big", signed=True)
    if own_offset == offset:
        return None
    return _record_at(store, offset, room_end, physical_offset=own_offset, check_crc=True)


def _has_zero_sectors(store: ReplicaStore, start: int, end: int) -> bool:
    """Whether some whole sector of zeros lies in [start, end), or all of it is zero."""
    zeros = bytes(_SECTOR_BYTES)
    offset = start
    is_all_zero = True
    while offset < end:
        limit = min(end, offset + _READ_BYTES)
        data = bytes(store.read_log(offset, limit))
        if zeros in data:
            return True
        is_all_zero = is_all_zero and not any(data)
        offset = limit
    return is_all_zero


def _reason(stop: ScanStop | Corrupt | Blank | None, room: int) -> str:
    if isinstance(stop, Corrupt):
        return stop.reason
    if isinstance(stop, Blank):
        own = f"a blank of {stop.size} bytes"
        return f"{own}, and messages were there" if stop.size == room else f"{own} where {room} are left"
    if stop is ScanStop.INCOMPLETE:
        return "the record goes on beyond the end of the file"
    return "zeros"
