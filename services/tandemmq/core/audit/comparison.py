"""Compares the replicas of a group where their digests differ, and names every difference down to the message.

Theory of operation. The log is cut into spans. A span is one record, or the padding of one file; any replica with a
sound record at a place may define it. Where replicas have sound records of different lengths, other messages, the span
goes on to where their records end together: what is right about one half of a log is right about the other. Where
replicas differ in a span, the right one is found in this order:

1. the version that carries its own checksum and fits it, if another one does not;
2. what an earlier run saw: versions are tried in all mixtures until the digest it stored comes out, so that it also
   decides where several replicas are damaged in one extent, and about extents that had only begun then;
3. the only version that is sound: a whole record whose body fits its CRC. It is not believed where a broken version
   differs in a second place, of which no checksum speaks: each may have been changed once; nor where its own
   ConsumeQueue and index both contradict it: a file of another log is sound as well;
4. the only one that the ConsumeQueues and the index beside it do not contradict;
5. the only one that fits the records before and behind it which all have alike;
6. else nobody knows, and a person decides. More replicas that hold one version are no proof of it: a slave that was
   made anew from a damaged one holds the same.

Then the comparison names what each other replica holds instead. Neighbours with the same fate become one finding.

Records that moved are recognised by what they say of themselves. A replica that lost one record and moved up all others
has one RECORD_MISSING and one RECORDS_SHIFTED, not a thousand fields that differ.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from math import prod
from typing import Final, NamedTuple

import numpy as np

from tandemmq.core.audit.findings import Cause, Finding, FindingKind, FindingList, Verdict
from tandemmq.core.audit.log_walk import LONGEST_RECORD_BYTES, LogPiece, PieceKind, walk_log
from tandemmq.core.audit.record_check import (
    DamageReport,
    changed_places,
    check_records,
    own_offset,
    trailing_zeros_start,
)
from tandemmq.core.audit.record_columns import (
    RecordName,
    changed_fields,
    describe,
    field_differences,
    has_broken_text,
    has_right_checksum,
    has_zero_text,
    read_name,
)
from tandemmq.core.audit.replica_store import MAX_RECORD_BYTES, Hash, ReplicaStore
from tandemmq.core.message.record import decode_record
from tandemmq.core.message.record_layout import MalformedRecord
from tandemmq.core.replication.log_history import LogRange

PADDING_BENIGN: Final = "padding"

_WINDOW_BYTES: Final = 16 << 20
"""Bytes of each replica in memory at a time; a record more may be there."""
_BLANK_HEAD_BYTES: Final = 8
_BODY_CRC: Final = slice(8, 12)
"""Where a record has the checksum of its body."""
_ZERO_RUN_BYTES: Final = 9
"""Differing bytes that are all zero, and so many: not written, rather than a field that changed."""
_CONSISTENCY_CHECKS_MAX: Final = 2000
"""In one range; some milliseconds each. Nobody reads so many findings."""
_LAGS_APART_MS: Final = 3_600_000
"""Between a message's birth and its storing; neighbours' differ by less."""
_STRETCH_GAP_BYTES: Final = 8
_STRETCHES_MAX: Final = 10
_RIVAL_STRETCHES_MAX: Final = 6
_MIXTURES_MAX: Final = 2_000
_MIXTURE_BYTES_MAX: Final = 8 << 30
"""Hashed for one extent: a second or two."""
_FIELDS_MAX: Final = 3
"""Differences in more fields are no flipped bits."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs in one range."""

    findings: tuple[Finding, ...] = ()
    benign: dict[str, int] = field(default_factory=dict)
    """Differences that harm nobody, by name."""


def compare_replicas(
    stores: Mapping[int, ReplicaStore],
    log_range: LogRange,
    *,
    earlier: Mapping[LogRange, bytes] | None = None,
    new_hash: Callable[[], Hash] | None = None,
) -> Comparison:
    """Compares two or more replicas of a group, by broker id, in a range that all of them should hold.

    `earlier`: digests an earlier run took with `new_hash`, by what it read: extents, perhaps only the first part of
    one. Reads from the start of the record that the range begins in to the end of the last one. Raises
    ReplicaUnreadable.
    """
    return _Comparer(stores, earlier or {}, new_hash).compare(log_range)


_SOUND: Final = (PieceKind.RECORD, PieceKind.PADDING)


class _Piece(NamedTuple):
    """What a walk found at one place."""

    kind: PieceKind
    end_offset: int
    piece: LogPiece | None
    """None: a sound record that was read with many others."""


class _Replica:
    """One replica's bytes and pieces of the window, and what is known of the whole of it."""

    def __init__(self, broker_id: int, store: ReplicaStore) -> None:
        self.broker_id: Final = broker_id
        self.store: Final = store
        self.start = 0
        self.data = memoryview(b"")
        self.pieces: dict[int, _Piece] = {}
        self.starts: list[int] = []
        """Where pieces begin, ascending."""
        self.sound_starts: list[int] = []
        """Where sound records and padding begin, ascending."""
        self._misplaced: list[tuple[int, int]] = []
        self._shifts: dict[int, list[int]] = {}
        self.swapped: set[int] = set()
        """Where records lie that changed places."""
        self._tail_start: int | None = None

    def load(self, start: int, end: int) -> int:
        """Takes the pieces that begin in [start, end). Returns where they end."""
        self.start = start
        self.pieces = {}
        misplaced: list[LogPiece] = []
        offset = start
        for found in walk_log(self.store, start, end, in_batches=True, from_boundary=True):
            if isinstance(found, LogPiece):
                self.pieces[found.start_offset] = _Piece(found.kind, found.end_offset, found)
                if found.kind is PieceKind.MISPLACED:
                    misplaced.append(found)
                offset = found.end_offset
                continue
            for place, size in zip(found.offsets.tolist(), found.sizes.tolist()):
                self.pieces[place] = _Piece(PieceKind.RECORD, place + size, None)
            offset = found.end_offset
        self._take_rest_of_record(start)
        self.starts = sorted(self.pieces)
        self.sound_starts = [place for place, piece in self.pieces.items() if piece.kind in _SOUND]
        self._misplaced = []
        self._note_misplaced(misplaced)
        return offset

    def _take_rest_of_record(self, start: int) -> None:
        """A record that began before `start` is sound in its rest as well: other replicas' records end there."""
        first = self.pieces.get(start)
        if first is None or first.kind in _SOUND:
            return
        facts = self.store.facts
        low = max(facts.min_offset, start - start % facts.segment_bytes, start - MAX_RECORD_BYTES)
        place, is_sound = _last_boundary(self.store, low, start) or (start, False)
        if is_sound and place < start:
            end = place + int.from_bytes(self.store.read_log(place, place + 4), "big")
            if end > start:
                rest = {own: piece for own, piece in self.pieces.items() if own >= end}
                self.pieces = {start: _Piece(PieceKind.RECORD, end, None)} | rest

    def records_in(self, start: int, end: int) -> list[int]:
        """Where the records begin, ascending, whose starts are in [start, end)."""
        found = self.sound_starts[bisect_right(self.sound_starts, start - 1) : bisect_right(self.sound_starts, end - 1)]
        return [place for place in found if self.pieces[place].kind is PieceKind.RECORD]

    def load_bytes(self, end: int) -> None:
        """Takes the window's bytes up to `end`."""
        self.data = memoryview(bytes(self.store.read_log(self.start, end)))

    def content(self, start: int, end: int) -> memoryview:
        """Bytes of the window."""
        return self.data[start - self.start : end - self.start]

    def is_sound(self, start: int, end: int) -> bool:
        """Whether [start, end) is all sound records or padding, whatever they are."""
        at = bisect_right(self.sound_starts, start) - 1
        offset = start
        while at >= 0 and at < len(self.sound_starts) and self.sound_starts[at] <= offset < end:
            offset = self.pieces[self.sound_starts[at]].end_offset
            at += 1
        return offset >= end

    def shifts(self, offset: int) -> list[int]:
        """By how much records of the file of `offset` lie before the place they were written for; of all windows so
        far."""
        return self._shifts.get(self.store.segment_end(offset), [])

    def has_misplaced(self, start: int, end: int) -> bool:
        """Whether a record lies in [start, end) that was written for another place."""
        at = bisect_right(self._misplaced, (end, 0)) - 1
        return at >= 0 and self._misplaced[at][1] > start

    def is_below_mark(self, offset: int) -> bool:
        """Whether it lies where a mark of the file's end was written over messages, or behind that mark."""
        place = self.starts[max(0, bisect_right(self.starts, offset) - 1)]
        return self.store.marks_over_messages.get(place, False) and offset < self.pieces[place].end_offset

    def holds_at(self, offset: int, right: memoryview) -> bool:
        """Whether these bytes lie at `offset`."""
        facts = self.store.facts
        end = offset + len(right)
        if offset < facts.min_offset or end > facts.end_offset:
            return False
        if self.start <= offset and end <= self.start + len(self.data):
            return self.content(offset, end) == right
        return bytes(self.store.read_log(offset, end)) == right

    @property
    def tail_start(self) -> int:
        """From where on the log is zero up to its end."""
        if self._tail_start is None:
            facts = self.store.facts
            self._tail_start = trailing_zeros_start(self.store, facts.min_offset, facts.end_offset)
        return self._tail_start

    def _note_misplaced(self, misplaced: list[LogPiece]) -> None:
        groups: list[list[LogPiece]] = []
        for piece in misplaced:
            if groups and groups[-1][-1].end_offset == piece.start_offset:
                groups[-1].append(piece)
            else:
                groups.append([piece])
        for group in groups:
            if changed_places(group):
                self.swapped.update(own_offset(piece) for piece in group)
                continue
            if len(group) == 1 and self._is_out_of_place(group[0]):
                continue
            self._misplaced += [(piece.start_offset, piece.end_offset) for piece in group]
            for piece in group:
                shifts = self._shifts.setdefault(self.store.segment_end(piece.start_offset), [])
                shift = own_offset(piece) - piece.start_offset
                # Files are written one by one: what was inserted or removed moves nothing beyond its own.
                if shift not in shifts and self.store.segment_path(own_offset(piece)) == self.store.segment_path(
                    piece.start_offset
                ):
                    shifts.append(shift)

    def _is_out_of_place(self, piece: LogPiece) -> bool:
        """Whether a record that is alone in being misplaced changed places with another, or has only lost its own
        offset: the next one is where it was written for."""
        place = own_offset(piece)
        if self._lies_at(place, piece.start_offset):
            self.swapped.update((place, piece.start_offset))
            return True
        behind = self.pieces.get(piece.end_offset)
        if behind is None:
            return piece.end_offset >= self.store.facts.end_offset
        return behind.kind in _SOUND

    def _lies_at(self, place: int, written_for: int) -> bool:
        facts = self.store.facts
        if not facts.min_offset <= place <= facts.end_offset - 36:
            return False
        return int.from_bytes(self.store.read_log(place, place + 36)[28:36], "big", signed=True) == written_for


class _Judgement(NamedTuple):
    """Who is right about a span."""

    right: _Replica | None
    """None: nobody knows."""
    wrong: list[_Replica]
    verdict: Verdict
    candidates: tuple[list[_Replica], ...] = ()
    """Two or more versions of which one is right, and who holds each."""
    content: memoryview | None = None
    """What is right although no replica holds it any more."""


class _Run(NamedTuple):
    """Neighbouring records of one replica that are all lost in the same way."""

    kind: FindingKind
    right: _Replica
    wrong: _Replica
    end_offset: int


_OF_QUEUES: Final = {FindingKind.QUEUE_ENTRY_WRONG, FindingKind.QUEUE_ENTRY_MISSING}
_OF_INDEX: Final = {FindingKind.INDEX_ENTRY_WRONG, FindingKind.INDEX_ENTRY_MISSING}
_RUN_KINDS: Final = frozenset(
    {
        FindingKind.RECORDS_SHIFTED,
        FindingKind.SEGMENT_MISSING,
        FindingKind.TAIL_MISSING,
    }
)


class _Comparer:
    """One call of compare_replicas."""

    def __init__(
        self,
        stores: Mapping[int, ReplicaStore],
        earlier: Mapping[LogRange, bytes],
        new_hash: Callable[[], Hash] | None,
    ) -> None:
        assert len(stores) > 1, "one replica is equal to itself"
        self._replicas = [_Replica(broker_id, store) for broker_id, store in sorted(stores.items())]
        facts = [store.facts for store in stores.values()]
        self._group = facts[0].group
        self._min_offset = max(own.min_offset for own in facts)
        self._end_offset = min(own.end_offset for own in facts)
        self._earlier = earlier
        self._new_hash = new_hash
        self._settled: dict[LogRange, bytes | None] = {}
        self._consistency_checks = 0
        self._findings = _JoinedFindings()
        self._run: _Run | None = None
        self._benign: Counter[str] = Counter()

    def compare(self, log_range: LogRange) -> Comparison:
        end = min(log_range.end_offset, self._end_offset)
        start = max(log_range.start_offset, self._min_offset)
        if start < end:
            start = self._boundary_before(start)
        while start < end:
            start = self._compare_window(start, min(end, start + _WINDOW_BYTES))
        return Comparison(self._findings.taken(), dict(self._benign))

    def _boundary_before(self, offset: int) -> int:
        """Where the record begins that holds the byte at `offset`: as a replica says in which it is sound, if any."""
        first = self._replicas[0].store
        lowest = max(self._min_offset, offset - offset % first.facts.segment_bytes)
        low = lowest
        for reach in (MAX_RECORD_BYTES, LONGEST_RECORD_BYTES):
            low = max(lowest, offset - reach)
            found = [_last_boundary(replica.store, low, offset) for replica in self._replicas]
            known = [own for own in found if own is not None]
            if known:
                best = any(is_sound for _, is_sound in known)
                return min(place for place, is_sound in known if is_sound is best)
        return low

    def _compare_window(self, start: int, end: int) -> int:
        """Judges all spans that begin in [start, end); returns where the last one ends."""
        spans_end = max(replica.load(start, end) for replica in self._replicas)
        spans_end = min(max(spans_end, end), max(replica.store.facts.end_offset for replica in self._replicas))
        for replica in self._replicas:
            replica.load_bytes(spans_end)
        offset = start
        starts = sorted({place for replica in self._replicas for place in replica.sound_starts})
        next_start = iter([*starts, spans_end])
        upcoming = next(next_start)
        while offset < end:
            while upcoming < offset:
                upcoming = next(next_start, spans_end)
            span_end = self._span_end(offset)
            if span_end is None:
                piece_end = upcoming if upcoming > offset else next(next_start, spans_end)
                span_end = max(piece_end, offset + 1)
                self._compare_ruins(offset, span_end)
            elif not self._is_equal(offset, min(span_end, self._end_offset)):
                span_end = self._compare_span(offset, span_end)
            offset = span_end
        return offset

    def _span_end(self, offset: int) -> int | None:
        """Where the span at `offset` ends, as most replicas say that have something sound there; None: none has."""
        holders = [
            replica for replica in self._replicas if offset in replica.pieces and replica.pieces[offset].kind in _SOUND
        ]
        ends = Counter(replica.pieces[offset].end_offset for replica in holders)
        with_record = [replica for replica in holders if replica.pieces[offset].kind is PieceKind.RECORD]
        if len(ends) > 1 and with_record:
            # Where others have closed the file, records are compared one by one: it is they that may be lost.
            return self._where_records_meet(with_record, offset)
        return ends.most_common(1)[0][0] if ends else None

    @staticmethod
    def _where_records_meet(replicas: list[_Replica], offset: int) -> int:
        """The first place behind `offset` where a record of each of them ends, or up to which all of them have sound
        records and one has something else, or nothing in this window."""
        reached = [offset] * len(replicas)
        while True:
            hindmost = reached.index(min(reached))
            piece = replicas[hindmost].pieces.get(reached[hindmost])
            if piece is None or piece.kind not in _SOUND:
                return reached[hindmost]
            reached[hindmost] = piece.end_offset
            if len(set(reached)) == 1:
                return reached[0]

    def _is_equal(self, start: int, end: int) -> bool:
        first = self._replicas[0].content(start, end)
        return all(replica.content(start, end) == first for replica in self._replicas[1:])

    # One span

    def _compare_span(self, start: int, end: int) -> int:
        """Returns where what it told of ends."""
        if self._run is not None and self._goes_on(self._run, start, end):
            self._run = self._run._replace(end_offset=end)
            self._findings.lengthen(self._run.wrong.broker_id, self._run.right, start, end)
            return end
        self._run = None
        if self._is_padding(start, end):
            self._benign[PADDING_BENIGN] += 1
            return end
        judgement = self._judge(start, end)
        if judgement.right is None and judgement.content is None:
            self._add_undecided(start, end, judgement.candidates)
            for replica in judgement.wrong:
                self._report_damage(replica, start, end)
            return end
        end = self._record_end(judgement, start, end)
        right = judgement.content if judgement.right is None else judgement.right.content(start, end)
        assert right is not None, "a replica holds it, or an earlier run saw it"
        name = read_name(right, 0, start)
        source = None if judgement.right is None else judgement.right.broker_id
        records = [] if judgement.right is None else judgement.right.records_in(start, end)
        for replica in judgement.wrong:
            for finding in self._differences(replica, start, right, name, len(records)):
                found = replace(finding, verdict=judgement.verdict, source_broker_id=source)
                if judgement.right is not None and len(records) > 1 and found.messages:
                    last = read_name(judgement.right.content(records[-1], end), 0, records[-1])
                    found = replace(found, messages=len(records), last_message_id=last and last.message_id)
                self._findings.add(found)
                if judgement.right is not None and len(judgement.wrong) == 1 and found.kind in _RUN_KINDS:
                    self._run = _Run(found.kind, judgement.right, replica, end)
        return end

    def _record_end(self, judgement: _Judgement, start: int, end: int) -> int:
        """Where the last record of who is right ends: the others' records may have broken off within it, and half a
        record is nothing to copy. Those that are right have to agree."""
        right = judgement.right
        if right is None:
            return end
        place = right.sound_starts[bisect_right(right.sound_starts, end - 1) - 1]
        record_end = right.pieces[place].end_offset
        if record_end <= end or place < start or record_end > self._end_offset:
            return end
        content = right.content(start, record_end)
        agree = all(own in judgement.wrong or own.content(start, record_end) == content for own in self._replicas)
        return record_end if agree else end

    def _goes_on(self, run: _Run, start: int, end: int) -> bool:
        """Whether this record shares the fate of the one before it: quick to see where a whole file is lost."""
        right, wrong = run.right, run.wrong
        piece = right.pieces.get(start)
        if run.end_offset != start or piece is None or piece.kind is not PieceKind.RECORD or piece.end_offset != end:
            return False
        content = right.content(start, end)
        if any(own.content(start, end) != content for own in self._replicas if own is not wrong):
            return False
        match run.kind:
            case FindingKind.RECORDS_SHIFTED:
                return start not in wrong.swapped and any(
                    wrong.holds_at(start - shift, content) for shift in wrong.shifts(start)
                )
            case FindingKind.SEGMENT_MISSING:
                return wrong.store.is_in_hole(start) and wrong.store.is_in_hole(end - 1)
            case _:
                return not any(wrong.content(start, end)) and not wrong.store.is_in_hole(start)

    def _is_padding(self, start: int, end: int) -> bool:
        """Whether all replicas close their file here alike, and only what lies behind differs."""
        return all(
            start in replica.pieces and replica.pieces[start].kind is PieceKind.PADDING for replica in self._replicas
        ) and self._is_equal(start, min(end, start + _BLANK_HEAD_BYTES))

    def _judge(self, start: int, end: int) -> _Judgement:
        groups: list[list[_Replica]] = []
        for replica in self._replicas:
            content = self._judged_content(replica, start, end)
            group = next((own for own in groups if self._judged_content(own[0], start, end) == content), None)
            if group is None:
                groups.append([replica])
            else:
                group.append(replica)
        sound = [group for group in groups if group[0].is_sound(start, end)]
        # No length tells of zeros or of other bytes where topic and properties were, but no broker writes such text.
        sound = [group for group in sound if not has_broken_text(group[0].content(start, end))] or sound
        sound = [group for group in sound if not _is_stray_padding(group[0], start)] or sound
        # A checksum over the whole record, which its broker put into it.
        fitting = [group for group in sound if has_right_checksum(group[0].content(start, end)) is not False]
        sound = fitting or sound
        seen = self._seen_version(groups, start, end)
        if seen is not None and (seen.right is None or any(seen.right in group for group in sound)):
            return seen
        if len(sound) == 1:
            rivals = [
                replica for group in groups for replica in group if self._is_rival(replica, sound[0][0], start, end)
            ]
            if not rivals and self._is_of_another_log(sound[0], start, end):
                rivals = [replica for group in groups if group is not sound[0] for replica in group]
            if rivals:
                broken = [replica for group in groups if group is not sound[0] for replica in group]
                return _Judgement(None, broken, Verdict.UNDECIDED, (sound[0], rivals))
            return self._judgement(sound[0], groups, Verdict.CHECKSUM)
        consistent = [
            group
            for group in sound
            if self._is_consistent(group, start, end)
            and not any(self._is_in_place_of(group[0], other[0], start, end) for other in sound if other is not group)
        ]
        if len(consistent) == 1:
            return self._judgement(consistent[0], groups, Verdict.OWN_EVIDENCE)
        fitting = [group for group in sound if self._fits_neighbours(group[0], start, end)]
        if len(fitting) == 1:
            return self._judgement(fitting[0], groups, Verdict.NEIGHBOURS)
        broken = [replica for group in groups if group not in sound for replica in group]
        return _Judgement(None, broken, Verdict.UNDECIDED, tuple(sound))

    def _is_rival(self, replica: _Replica, sound: _Replica, start: int, end: int) -> bool:
        """Whether a broken version differs from the only sound one in another place too, where it may be the right one.

        It is one that is sound as well when only some of its stretches that differ are mended: no checksum speaks of
        the others. Records in wrong places, and what was overwritten as a whole, are broken in one place.
        """
        due, held = bytes(sound.content(start, end)), bytes(replica.content(start, end))
        if due == held or has_right_checksum(due) or start in replica.swapped:
            return False
        if replica.shifts(start) or replica.has_misplaced(start, end):
            return False
        stretches = _one_damage_each(_differing_stretches([held, due]), held)
        if len(stretches) > _RIVAL_STRETCHES_MAX:
            return False
        for mended in product((False, True), repeat=len(stretches)):
            if all(mended) or not any(mended):
                continue
            mixture = bytearray(due)
            for (begin, stop), is_mended in zip(stretches, mended):
                if not is_mended:
                    mixture[begin:stop] = held[begin:stop]
            if _is_whole_record(bytes(mixture), start):
                return True
        return False

    def _fits_neighbours(self, replica: _Replica, start: int, end: int) -> bool:
        """Whether a record's times and its broker fit those of the records before and behind it."""
        own = _marks(replica.content(start, end))
        at = bisect_right(replica.sound_starts, start - 1)
        before = replica.sound_starts[max(0, at - 1) : at]
        around = [(place, marks) for place in (*before, end) if (marks := self._common_marks(place))]
        if own is None or len(around) < 2 or not _are_neighbours(*(marks for _, marks in around)):
            return True
        for place, marks in around:
            if not (_are_neighbours(marks, own) if place < start else _are_neighbours(own, marks)):
                return False
        return True

    def _common_marks(self, place: int) -> _Marks | None:
        """Of the record there, which all replicas have alike that are not damaged there: where they differ it says
        nothing for either."""
        pieces = [(own, own.pieces.get(place)) for own in self._replicas]
        contents = [
            own.content(place, piece.end_offset)
            for own, piece in pieces
            if piece is not None and piece.kind is PieceKind.RECORD
        ]
        if not contents or any(piece is None for _, piece in pieces) or any(own != contents[0] for own in contents):
            return None
        return _marks(contents[0])

    def _is_consistent(self, group: list[_Replica], start: int, end: int) -> bool:
        """Whether the ConsumeQueue and the index of a replica say of these records what they say themselves.

        Where replicas are different logs altogether nobody is asked for ever.
        """
        if self._consistency_checks >= _CONSISTENCY_CHECKS_MAX:
            return True
        self._consistency_checks += 1
        return any(not check_records(replica.store, start, end).findings for replica in group)

    @staticmethod
    def _is_in_place_of(replica: _Replica, other: _Replica, start: int, end: int) -> bool:
        """Whether a replica's own ConsumeQueue leads to its record from where the other version of it belongs: its
        topic, queueId or queueOffset was changed."""
        name, due = (read_name(own.content(start, end), 0, start) for own in (replica, other))
        if name is None or due is None or name.end_offset != end:
            return False
        places = [(own.topic, own.queue_id, own.queue_offset) for own in (name, due)]
        if places[0] == places[1] or due.queue_offset < 0:
            return False
        held = [replica.store.read_queue(*place, 1)[:12] if place[2] >= 0 else b"" for place in places]
        entry = start.to_bytes(8, "big") + (end - start).to_bytes(4, "big")
        return held[1] == entry != held[0]

    def _is_of_another_log(self, group: list[_Replica], start: int, end: int) -> bool:
        """Whether ConsumeQueue and index both say that these sound records are none of their log: that of somebody else
        is sound as well. One of them alone may be what is damaged."""
        if self._consistency_checks >= _CONSISTENCY_CHECKS_MAX:
            return False
        self._consistency_checks += 1
        for replica in group:
            kinds = {own.kind for own in check_records(replica.store, start, end).findings}
            if not (kinds & _OF_QUEUES and kinds & _OF_INDEX):
                return False
        return True

    def _judged_content(self, replica: _Replica, start: int, end: int) -> memoryview:
        """What counts of a span: of padding its head."""
        if any(start in other.pieces and other.pieces[start].kind is PieceKind.PADDING for other in self._replicas):
            end = min(end, start + _BLANK_HEAD_BYTES)
        return replica.content(start, end)

    @staticmethod
    def _judgement(right: list[_Replica], groups: list[list[_Replica]], verdict: Verdict) -> _Judgement:
        wrong = [replica for group in groups if group is not right for replica in group]
        return _Judgement(right[0], wrong, verdict)

    def _seen_version(self, groups: list[list[_Replica]], start: int, end: int) -> _Judgement | None:
        """What an earlier run saw of a span, if its digests tell."""
        parts = [
            (extent, settled)
            for extent in self._earlier
            if extent.start_offset < end and start < extent.end_offset
            if (settled := self._settled_bytes(extent)) is not None
        ]
        if not parts:
            return None

        def agrees(content: memoryview) -> bool:
            return all(
                content[max(start, extent.start_offset) - start : min(end, extent.end_offset) - start]
                == settled[max(start, extent.start_offset) - extent.start_offset :][
                    : min(end, extent.end_offset) - max(start, extent.start_offset)
                ]
                for extent, settled in parts
            )

        right = [group for group in groups if agrees(group[0].content(start, end))]
        if len(right) == 1:
            return self._judgement(right[0], groups, Verdict.STORED_DIGEST)
        extent, settled = parts[0]
        if not right and extent.start_offset <= start and end <= extent.end_offset:
            content = memoryview(settled)[start - extent.start_offset : end - extent.start_offset]
            wrong = [replica for group in groups for replica in group]
            return _Judgement(None, wrong, Verdict.STORED_DIGEST, content=content)
        return None

    def _settled_bytes(self, extent: LogRange) -> bytes | None:
        """The bytes that an earlier run digested: those of a replica, or a mixture; None: they cannot be found."""
        if extent not in self._settled:
            stored, new_hash = self._earlier[extent], self._new_hash
            has_all = self._min_offset <= extent.start_offset and extent.end_offset <= self._end_offset
            self._settled[extent] = None
            if stored and new_hash is not None and has_all:
                contents = [bytes(replica.store.read_log(*extent)) for replica in self._replicas]
                starts = {place for replica in self._replicas for place in replica.sound_starts}
                within = sorted(place - extent.start_offset for place in starts if place in range(*extent))
                self._settled[extent] = _mixture_of(contents, within, stored, new_hash)
        return self._settled[extent]

    def _new(
        self, kind: FindingKind, replica: _Replica, start: int, end: int, detail: str, *, messages: int = 1
    ) -> Finding:
        """A finding whose verdict is the span's, unless it is replaced."""
        return Finding(
            kind=kind,
            group=self._group,
            verdict=Verdict.UNDECIDED,
            detail=detail,
            broker_id=replica.broker_id,
            start_offset=start,
            end_offset=end,
            messages=messages,
            file=replica.store.segment_path(start),
        )

    def _add_undecided(self, start: int, end: int, versions: tuple[list[_Replica], ...]) -> None:
        """Several versions are sound and differ, and nothing tells which is right."""
        first, second = versions[0][0], versions[1][0]
        between = " and ".join(_replica_names(version) for version in versions)
        contents = first.content(start, end), second.content(start, end)
        records = max((version[0].records_in(start, end) for version in versions), key=len)
        differences = "" if len(records) > 1 or _are_other_messages(*contents) else field_differences(*contents)
        if differences:
            detail = (
                f"{between} differ, and nothing tells who is right: {_replica_names(versions[0])} has {differences}"
            )
            finding = self._new(FindingKind.FIELD_DIFFERS, first, start, end, detail)
        else:
            detail = f"{between} hold different messages from here on"
            finding = self._new(FindingKind.RECORD_EXTRA, first, start, end, detail, messages=max(1, len(records)))
        names = (read_name(content, 0, start) for content in contents)
        known = sorted((name for name in names if name is not None), key=lambda name: not name.has_unique_key)
        self._findings.add(replace(describe(finding, known[0] if known else None), broker_id=None, file=None))

    # What a replica has instead

    def _differences(
        self, replica: _Replica, start: int, right: memoryview, name: RecordName | None, records: int
    ) -> Iterator[Finding]:
        """`records` that lie in what is right."""
        end = start + len(right)
        held = replica.content(start, end)
        messages = int(name is not None)
        if replica.store.is_in_hole(start) or replica.store.is_in_hole(end - 1):
            yield describe(self._lost_file(replica, start, end, messages), name)
            return
        if start in replica.swapped:
            detail = "it lies elsewhere, and another record in its place"
            yield describe(self._new(FindingKind.RECORDS_SWAPPED, replica, start, end, detail), name)
            return
        for shift in replica.shifts(start):
            if name is not None and replica.holds_at(start - shift, right):
                way = "before" if shift > 0 else "behind"
                detail = f"it lies {abs(shift)} bytes {way} its place"
                yield describe(self._new(FindingKind.RECORDS_SHIFTED, replica, start, end, detail), name)
                return
        if self._is_rest_of_shift(replica, start, end):
            # What closes the file moved as well: who copies the records alone leaves it damaged.
            kind = FindingKind.RECORD_MISSING if name is not None else FindingKind.RECORDS_SHIFTED
            yield describe(
                self._new(kind, replica, start, end, "other records lie in its place", messages=messages), name
            )
            return
        piece = replica.pieces.get(start)
        is_sound = piece is not None and piece.kind is PieceKind.RECORD and not has_broken_text(held)
        is_other = records > 1 or _are_other_messages(held, right)
        if piece is not None and is_sound and name is not None and not is_other:
            yield from self._other_record(replica, start, piece.end_offset, right, name)
            return
        if name is not None and replica.is_sound(start, end) and not has_broken_text(held):
            finding = self._new(FindingKind.RECORD_MISSING, replica, start, end, "other messages lie in its place")
            yield describe(replace(finding, cause=Cause.OTHER_MESSAGES), name)
            return
        yield describe(self._damage(replica, start, held, right, piece, messages), name)

    def _lost_file(self, replica: _Replica, start: int, end: int, messages: int) -> Finding:
        hole = next(hole for hole in replica.store.facts.holes if hole.start_offset < end and start < hole.end_offset)
        is_whole = hole.start_offset % replica.store.facts.segment_bytes == 0
        kind = FindingKind.SEGMENT_MISSING if is_whole else FindingKind.SEGMENT_SIZE
        detail = "there is no file" if is_whole else f"the file ends at {hole.start_offset}"
        return self._new(kind, replica, start, end, detail, messages=messages)

    def _is_rest_of_shift(self, replica: _Replica, start: int, end: int) -> bool:
        """Whether records that moved lie in this place, or what they left behind at the end."""
        if replica.has_misplaced(start, end):
            return True
        shifts = replica.shifts(start)
        piece = replica.pieces.get(start)
        if not shifts or (piece is not None and piece.kind in (*_SOUND, PieceKind.BAD_BODY)):
            return False
        room_end = min(replica.store.segment_end(start), replica.store.facts.end_offset)
        return end + max(map(abs, shifts)) >= room_end

    def _other_record(
        self, replica: _Replica, start: int, held_end: int, right: memoryview, name: RecordName
    ) -> Iterator[Finding]:
        """A sound record in the place of the right one: with other fields, or another message."""
        end = start + len(right)
        window_end = replica.start + len(replica.data)
        held = replica.content(start, min(held_end, window_end))
        held_name = read_name(held, 0, start)
        if held_name is None or held_name.message_id == name.message_id or held_end == end:
            detail = field_differences(held, right) or "its bytes"
            yield describe(self._new(FindingKind.FIELD_DIFFERS, replica, start, end, detail), name)
            return
        detail = f"message {held_name.message_id} lies in its place"
        yield describe(self._new(FindingKind.RECORD_MISSING, replica, start, end, detail), name)
        detail = f"in the place of message {name.message_id}"
        yield describe(self._new(FindingKind.RECORD_EXTRA, replica, start, held_end, detail), held_name)

    def _damage(
        self,
        replica: _Replica,
        start: int,
        held: memoryview,
        right: memoryview,
        piece: _Piece | None,
        messages: int,
    ) -> Finding:
        """The bytes are no sound record."""
        end = start + len(right)
        differing = [place for place, (ours, due) in enumerate(zip(held, right)) if ours != due]
        if len(differing) > _BLANK_HEAD_BYTES and replica.is_below_mark(start):
            detail = "the mark of the file's end lies in its place"
            return self._new(FindingKind.ZEROED, replica, start, end, detail, messages=messages)
        is_long = len(differing) >= _ZERO_RUN_BYTES or (bool(messages) and has_zero_text(held))
        is_long = is_long or (bool(differing) and self._ends_zeros(replica, start, held[: differing[-1] + 1]))
        if (is_long and not any(held[place] for place in differing)) or not any(held):
            if end > replica.tail_start:
                detail = f"zeros up to the end of the log, which was at {replica.store.facts.end_offset}"
                return self._new(FindingKind.TAIL_MISSING, replica, start, end, detail, messages=messages)
            return self._new(FindingKind.ZEROED, replica, start, end, "zeros in its place", messages=messages)
        if piece is not None and piece.kind is PieceKind.BAD_BODY and piece.end_offset == end:
            detail = field_differences(held, right)
            is_sum = bytes(held[_BODY_CRC]) != bytes(right[_BODY_CRC])
            kind = FindingKind.FIELD_DIFFERS if is_sum else FindingKind.BODY_CRC
            return self._new(kind, replica, start, end, detail)
        fields = changed_fields(held, right) if messages else []
        if 0 < len(fields) <= _FIELDS_MAX and not (len(fields) > 1 and "body" in fields):
            return self._new(FindingKind.FIELD_DIFFERS, replica, start, end, ", ".join(fields))
        if messages and 2 * len(differing) > len(right):
            # In the same words for all of a stretch that was written over: it is one finding then.
            return self._new(FindingKind.TORN, replica, start, end, "other bytes lie in its place")
        detail = f"{len(differing)} bytes differ, the first is byte {differing[0] if differing else 0}"
        return self._new(FindingKind.TORN, replica, start, end, detail, messages=messages)

    @staticmethod
    def _ends_zeros(replica: _Replica, start: int, head: memoryview) -> bool:
        """Whether the zeros before a record go on in its first bytes, and nowhere else. No record ends with so many."""
        begin = start - _BLANK_HEAD_BYTES
        is_within = start % replica.store.facts.segment_bytes >= _BLANK_HEAD_BYTES
        return is_within and not any(head) and not any(replica.store.read_log(begin, start))

    # Where no replica has anything sound

    def _compare_ruins(self, start: int, end: int) -> None:
        """Each replica is left to what its own bytes say."""
        if self._is_equal(start, min(end, self._end_offset)):
            return
        for replica in self._replicas:
            self._report_damage(replica, start, end)

    def _report_damage(self, replica: _Replica, start: int, end: int) -> None:
        report = DamageReport(replica.store)
        self._report_rest_of_damage(replica, start, end)
        for place, piece in sorted(replica.pieces.items()):
            if start <= place < end and piece.piece is not None:
                report.add(piece.piece)
        behind = replica.pieces.get(end)
        if behind is not None and behind.kind in _SOUND:
            report.pass_sound(end, behind.end_offset)
        for finding in report.findings():
            self._findings.add(finding)

    def _report_rest_of_damage(self, replica: _Replica, start: int, end: int) -> None:
        """Damage that began before `start`, where another replica had something sound: without it this one would pass
        for right here."""
        at = bisect_right(replica.starts, start - 1) - 1
        piece = replica.pieces[replica.starts[at]] if at >= 0 else None
        if piece is None or piece.kind not in (PieceKind.ZEROED, PieceKind.BROKEN) or piece.end_offset <= start:
            return
        end = min(end, piece.end_offset)
        held = replica.content(start, end)
        names = (
            read_name(other.content(start, own.end_offset), 0, start)
            for other in self._replicas
            if (own := other.pieces.get(start)) is not None and own.kind is PieceKind.BAD_BODY
        )
        name = next((own for own in names if own is not None), None)
        finding = self._damage(replica, start, held, held, None, int(name is not None))
        self._findings.add(describe(replace(finding, verdict=Verdict.OWN_EVIDENCE), name))


def _is_stray_padding(replica: _Replica, start: int) -> bool:
    """Whether what closes a file lies behind something that is not sound: a blank does not say where it belongs."""
    at = bisect_right(replica.sound_starts, start) - 1
    place = replica.sound_starts[at] if at >= 0 else -1
    if place < 0 or replica.pieces[place].kind is not PieceKind.PADDING:
        return False
    before = next((own for own in replica.pieces.values() if own.end_offset == place), None)
    return before is not None and before.kind not in _SOUND


class _Marks(NamedTuple):
    """What a record has in common with its neighbours."""

    stored_ms: int
    born_ms: int
    store_host: str


def _are_neighbours(before: _Marks, behind: _Marks) -> bool:
    """Whether one master with one clock stored both. Where a clock was set between two records, or another master
    followed, the one between them fits neither, and a damaged one may by chance."""
    is_alike = abs((before.stored_ms - before.born_ms) - (behind.stored_ms - behind.born_ms)) <= _LAGS_APART_MS
    return before.stored_ms <= behind.stored_ms and is_alike and before.store_host == behind.store_host


def _marks(content: memoryview) -> _Marks | None:
    try:
        record = decode_record(content, check_crc=False)
    except MalformedRecord:
        return None
    return _Marks(record.store_timestamp_ms, record.born_timestamp_ms, str(record.store_host))


def _replica_names(replicas: list[_Replica]) -> str:
    numbers = ", ".join(str(replica.broker_id) for replica in replicas)
    return f"replica {numbers}" if len(replicas) == 1 else f"replicas {numbers}"


def _mixture_of(
    contents: list[bytes], starts: Sequence[int], stored: bytes, new_hash: Callable[[], Hash]
) -> bytes | None:
    """Bytes with this digest: one of the versions, or those of one of them for each record in which they differ, or for
    each stretch. `starts`: where records begin, ascending."""

    def fits(content: bytes | bytearray) -> bool:
        hashed = new_hash()
        hashed.update(memoryview(content))
        return hashed.digest() == stored

    whole = next((content for content in dict.fromkeys(contents) if fits(content)), None)
    if whole is not None or len(set(contents)) < 2:
        return whole
    for stretches in (_differing_records(contents, starts), _differing_stretches(contents)):
        versions = [sorted({content[start:end] for content in contents}) for start, end in stretches]
        count = prod(len(own) for own in versions)
        if count > _MIXTURES_MAX or count * len(contents[0]) > _MIXTURE_BYTES_MAX:
            continue
        mixture = bytearray(contents[0])
        for choice in product(*versions):
            for (start, end), content in zip(stretches, choice):
                mixture[start:end] = content
            if fits(mixture):
                return bytes(mixture)
    return None


def _differing_records(contents: list[bytes], starts: Sequence[int]) -> list[tuple[int, int]]:
    """The parts between `starts`, ascending, in which versions of one length differ."""
    cuts = sorted({0, *starts, len(contents[0])})
    return [(start, end) for start, end in pairwise(cuts) if len({content[start:end] for content in contents}) > 1]


def _differing_stretches(contents: list[bytes]) -> list[tuple[int, int]]:
    """Where versions of one length differ; places near each other as one, if there are many."""
    columns = [np.frombuffer(content, dtype=np.uint8) for content in contents]
    is_different = np.zeros(len(columns[0]), dtype=np.bool_)
    for column in columns[1:]:
        is_different |= column != columns[0]
    places = np.flatnonzero(is_different)
    gap = _STRETCH_GAP_BYTES
    while True:
        cuts = np.flatnonzero(np.diff(places) > gap)
        starts, ends = places[np.concatenate(([0], cuts + 1))], places[np.concatenate((cuts, [len(places) - 1]))] + 1
        if len(starts) <= _STRETCHES_MAX:
            return list(zip(starts.tolist(), ends.tolist()))
        gap *= 2


def _one_damage_each(stretches: list[tuple[int, int]], held: bytes) -> list[tuple[int, int]]:
    """The same; those between which one byte is repeated are one: they were overwritten with it."""
    joined: list[tuple[int, int]] = []
    for start, end in stretches:
        if joined and len(set(held[joined[-1][1] - 1 : start + 1])) == 1:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _are_other_messages(held: memoryview, right: memoryview) -> bool:
    """Whether two records differ in id and body: no damage makes one of the other."""
    try:
        ours, theirs = decode_record(held, check_crc=False), decode_record(right, check_crc=False)
    except MalformedRecord:
        return False
    names = read_name(held, 0, ours.physical_offset), read_name(right, 0, theirs.physical_offset)
    ids = {name.message_id for name in names if name is not None}
    return len(ids) > 1 and bytes(ours.body) != bytes(theirs.body)


def _is_whole_record(content: bytes, offset: int) -> bool:
    """Whether it is one sound record that was written for `offset`."""
    try:
        record = decode_record(content)
    except MalformedRecord:
        return False
    is_whole = record.total_size == len(content) and record.physical_offset == offset
    return is_whole and not has_broken_text(content) and has_right_checksum(content) is not False


def _last_boundary(store: ReplicaStore, low: int, offset: int) -> tuple[int, bool] | None:
    """Where the last record in [low, offset] begins, or ought to, and whether it is sound; None: nothing tells."""
    last = (low, False) if low <= store.facts.min_offset or low % store.facts.segment_bytes == 0 else None
    for piece in walk_log(store, low, offset + 1, in_batches=True):
        if not isinstance(piece, LogPiece):
            last = (int(piece.offsets[-1]), True)
        elif piece.kind in _SOUND:
            last = (piece.start_offset, True)
        elif last is not None:
            last = (piece.start_offset, False)
    return last


class _JoinedFindings:
    """Findings in log order, of each replica those that adjoin and are alike as one."""

    def __init__(self) -> None:
        self._open: dict[int | None, Finding] = {}
        self._longer: dict[int | None, tuple[_Replica, int, int, int]] = {}
        """What was added to an open finding and is not in it yet: who has the last record, where, messages."""
        self._done = FindingList()

    def add(self, finding: Finding) -> None:
        """The next one of its replica."""
        last = self._settled(finding.broker_id)
        if last is None or not _adjoin(last, finding):
            if last is not None:
                self._done.extend([last])
            self._open[finding.broker_id] = finding
            return
        self._open[finding.broker_id] = replace(
            last,
            end_offset=finding.end_offset,
            messages=last.messages + finding.messages,
            last_message_id=finding.last_message_id or finding.message_id or last.last_message_id,
        )

    def lengthen(self, broker_id: int, right: _Replica, start: int, end: int) -> None:
        """One more record, right behind, belongs to the replica's last finding."""
        _, _, _, messages = self._longer.get(broker_id, (right, 0, 0, 0))
        self._longer[broker_id] = (right, start, end, messages + 1)

    def taken(self) -> tuple[Finding, ...]:
        """All of them, in the order of the log."""
        for broker_id in list(self._open):
            last = self._settled(broker_id)
            if last is not None:
                self._done.extend([last])
        return tuple(sorted(self._done.taken(), key=lambda finding: finding.start_offset or 0))

    def _settled(self, broker_id: int | None) -> Finding | None:
        """The replica's last finding, complete."""
        last = self._open.get(broker_id)
        longer = self._longer.pop(broker_id, None)
        if last is None or longer is None:
            return last
        right, start, end, messages = longer
        name = read_name(right.store.read_log(start, end), 0, start)
        last = replace(
            last,
            end_offset=end,
            messages=last.messages + messages,
            last_message_id=name.message_id if name is not None else last.last_message_id,
        )
        self._open[broker_id] = last
        return last


def _adjoin(last: Finding, finding: Finding) -> bool:
    return (
        last.kind is finding.kind
        and last.end_offset == finding.start_offset
        and last.verdict is finding.verdict
        and last.source_broker_id == finding.source_broker_id
        and (last.detail == finding.detail or last.kind is FindingKind.SEGMENT_MISSING)
    )
