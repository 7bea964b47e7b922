"""One replica's records, each by itself: structure, own position, body CRC; then its ConsumeQueue and index entries.

Finds what replicas have in common, which no comparison does. Works on columns, a microsecond a record or so, and takes
records one by one only where something is uncommon. Imports numpy: see record_batch.

What legitimately has no entry is left alone: parts of transactions, inner batches, records of a topic that was deleted,
or deleted and made again, and whatever the facts say is not in the files yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from tandemmq.core.audit.equality import long_segments
from tandemmq.core.audit.findings import Finding, FindingKind, FindingList, Verdict
from tandemmq.core.audit.index_check import IndexCheck
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log
from tandemmq.core.audit.queue_check import QueueCheck, QueueSpan
from tandemmq.core.audit.record_columns import (
    RecordCollector,
    RecordName,
    describe,
    has_zero_text,
    read_damaged_name,
    read_name,
)
from tandemmq.core.audit.replica_store import MAX_RECORD_BYTES, ReplicaStore
from tandemmq.core.replication.log_history import LogRange

# What one replica's own log says is wrong with it: pieces of a walk that are no sound records, as findings.

_GROUP_PIECES_MAX: Final = 4096
"""Misplaced records that are looked at together, to see whether they only changed places."""
_READ_BYTES: Final = 4 << 20


class DamageReport:
    """Takes the pieces of one walk in order. What adjoins and is alike becomes one finding."""

    def __init__(self, store: ReplicaStore) -> None:
        self._store = store
        self._misplaced: list[LogPiece] = []
        self._sound: LogRange | None = None
        """The sound record before the next piece."""
        self._findings: list[Finding] = []
        self.damaged: list[LogRange] = []
        """Everything that is no sound record or padding, so far."""
        self.half_zeroed: set[int] = set()
        """Where those records start that zeros reach into, though no checksum is wrong."""

    def add(self, piece: LogPiece) -> None:
        """The next piece; sound ones too, as they end what came before."""
        if piece.kind is PieceKind.MISPLACED:
            self._note(piece)
            if self._misplaced and self._misplaced[-1].end_offset != piece.start_offset:
                self._close_misplaced(followed_by=None)
            self._misplaced.append(piece)
            if len(self._misplaced) >= _GROUP_PIECES_MAX:
                self._close_misplaced(followed_by=piece)
            return
        if self._misplaced:
            self._close_misplaced(followed_by=piece)
        sound, self._sound = self._sound, None
        if piece.kind in (PieceKind.RECORD, PieceKind.PADDING):
            if piece.kind is PieceKind.RECORD:
                self._sound = LogRange(piece.start_offset, piece.end_offset)
            return
        if piece.kind is PieceKind.ZEROED and sound is not None and self._ends_in_zeros(sound):
            # Zeros do not end where records do: those of this one's properties are not under its checksum.
            piece = replace(piece, start_offset=sound.start_offset)
            self.half_zeroed.add(sound.start_offset)
        self._note(piece)
        if self._is_rest_of_shift(piece):
            last = self._findings.pop()
            self._findings.append(replace(last, end_offset=piece.end_offset))
            return
        self._append(self._finding(piece))

    def pass_sound(self, last_start: int, last_end: int) -> None:
        """Sound records come next, the last of them there: what was misplaced ends here."""
        self._sound = LogRange(last_start, last_end)
        if self._misplaced:
            last = self._misplaced[-1].end_offset
            self._close_misplaced(followed_by=LogPiece(PieceKind.RECORD, last, last))

    def findings(self) -> list[Finding]:
        """The findings of all pieces, when the walk is over."""
        self._close_misplaced(followed_by=None)
        return self._findings

    def _note(self, piece: LogPiece) -> None:
        if self.damaged and self.damaged[-1].end_offset == piece.start_offset:
            self.damaged[-1] = LogRange(self.damaged[-1].start_offset, piece.end_offset)
        else:
            self.damaged.append(LogRange(piece.start_offset, piece.end_offset))

    def _ends_in_zeros(self, record: LogRange) -> bool:
        """A record without properties ends in two, for their length."""
        data = self._store.read_log(record.start_offset, record.end_offset)
        return data[-1] == 0 and has_zero_text(data)

    def _append(self, finding: Finding) -> None:
        """Joins it to the one before, if that is of the same kind and adjoins."""
        last = self._findings[-1] if self._findings else None
        if (
            last is not None
            and last.kind is finding.kind
            and last.end_offset == finding.start_offset
            and last.detail == finding.detail
        ):
            finding = replace(
                last,
                end_offset=finding.end_offset,
                messages=last.messages + finding.messages,
                last_message_id=finding.last_message_id or finding.message_id or last.last_message_id,
            )
            self._findings.pop()
        self._findings.append(finding)

    def _new(self, kind: FindingKind, start: int, end: int, detail: str, *, messages: int = 1) -> Finding:
        facts = self._store.facts
        return Finding.of(
            facts,
            kind,
            detail,
            verdict=Verdict.CHECKSUM if kind is FindingKind.BODY_CRC else Verdict.OWN_EVIDENCE,
            start_offset=start,
            end_offset=end,
            messages=messages,
            file=self._store.segment_path(start),
        )

    def _finding(self, piece: LogPiece) -> Finding:
        store, start, end = self._store, piece.start_offset, piece.end_offset
        if piece.kind is PieceKind.BAD_BODY:
            return describe(self._new(FindingKind.BODY_CRC, start, end, piece.reason), self._name(start, end))
        if piece.kind is PieceKind.HOLE:
            is_whole = start % store.facts.segment_bytes == 0
            kind = FindingKind.SEGMENT_MISSING if is_whole else FindingKind.SEGMENT_SIZE
            return self._new(kind, start, end, "there is no file" if is_whole else "the file ends here", messages=0)
        name = read_damaged_name(store.read_log(start, min(end, start + MAX_RECORD_BYTES)), start)
        hole = next((own for own in store.facts.holes if own.start_offset < end and start < own.end_offset), None)
        if hole is not None:
            # A record that a short file has cut off.
            detail = f"the file ends at {hole.start_offset}"
            return describe(self._new(FindingKind.SEGMENT_SIZE, start, end, detail), name)
        if piece.kind is PieceKind.ZEROED:
            zeros_start = trailing_zeros_start(store, start, end)
            if end == store.facts.end_offset and zeros_start < end:
                detail = f"zeros from {zeros_start} on, where there were records up to {end}"
                return describe(self._new(FindingKind.TAIL_MISSING, start, end, detail, messages=0), name)
            return describe(self._new(FindingKind.ZEROED, start, end, f"{piece.reason}; sectors of zeros"), name)
        return describe(self._new(FindingKind.TORN, start, end, piece.reason), name)

    def _name(self, start: int, end: int) -> RecordName | None:
        return read_name(self._store.read_log(start, end), 0, start)

    # Records at the wrong place

    def _close_misplaced(self, *, followed_by: LogPiece | None) -> None:
        pieces, self._misplaced = self._misplaced, []
        if not pieces:
            return
        if changed_places(pieces):
            self._append(self._several(FindingKind.RECORDS_SWAPPED, pieces, "they lie in each other's place"))
            return
        partner = self._partner(pieces[0]) if len(pieces) == 1 else None
        if partner is not None:
            if partner > pieces[0].start_offset or not self._is_checked(partner):
                detail = f"it lies in the place of the record at {partner}, which lies in its place"
                self._append(self._several(FindingKind.RECORDS_SWAPPED, pieces, detail))
            return
        if len(pieces) == 1 and followed_by is not None and followed_by.kind in (PieceKind.RECORD, PieceKind.PADDING):
            detail = f"physicalOffset is {own_offset(pieces[0])} instead of {pieces[0].start_offset}"
            self._append(self._several(FindingKind.FIELD_DIFFERS, pieces, detail))
            return
        for run in _runs(pieces):
            shift = own_offset(run[0]) - run[0].start_offset
            detail = f"written for {abs(shift)} bytes {'further on' if shift > 0 else 'further back'}"
            self._append(self._several(FindingKind.RECORDS_SHIFTED, run, detail))

    def _several(self, kind: FindingKind, pieces: list[LogPiece], detail: str) -> Finding:
        first, last = pieces[0], pieces[-1]
        finding = self._new(kind, first.start_offset, last.end_offset, detail, messages=len(pieces))
        last_name = self._name(last.start_offset, last.end_offset) if len(pieces) > 1 else None
        return describe(finding, self._name(first.start_offset, first.end_offset), last=last_name)

    def _partner(self, piece: LogPiece) -> int | None:
        """Where the record is whose place this one has taken, if that one is in this one's place."""
        place = own_offset(piece)
        facts = self._store.facts
        if not facts.min_offset <= place < facts.end_offset - 36 or self._store.is_in_hole(place):
            return None
        head = self._store.read_log(place, place + 36)
        return place if int.from_bytes(head[28:36], "big", signed=True) == piece.start_offset else None

    def _is_checked(self, offset: int) -> bool:
        """Whether what lies there was reported already."""
        return any(piece.start_offset <= offset < piece.end_offset for piece in self.damaged)

    def _is_rest_of_shift(self, piece: LogPiece) -> bool:
        """Whether a piece is what records left behind when they moved towards the file's beginning."""
        last = self._findings[-1] if self._findings else None
        if last is None or last.kind is not FindingKind.RECORDS_SHIFTED or last.end_offset != piece.start_offset:
            return False
        return piece.end_offset in (self._store.segment_end(piece.start_offset), self._store.facts.end_offset)


def trailing_zeros_start(store: ReplicaStore, start: int, end: int) -> int:
    """From where on [start, end) is zero; `end` if its last byte is not."""
    while start < end:
        piece_start = max(start, end - _READ_BYTES)
        used = bytes(store.read_log(piece_start, end)).rstrip(b"\0")
        if used:
            return piece_start + len(used)
        end = piece_start
    return start


def own_offset(piece: LogPiece) -> int:
    assert piece.record is not None, "a misplaced record was read"
    return piece.record.physical_offset


def changed_places(pieces: list[LogPiece]) -> bool:
    """Whether the records, each put where it was written for, fill just the place they have."""
    if len(pieces) < 2:
        return False
    offset = pieces[0].start_offset
    for piece in sorted(pieces, key=own_offset):
        if own_offset(piece) != offset:
            return False
        offset += piece.end_offset - piece.start_offset
    return offset == pieces[-1].end_offset


def _runs(pieces: list[LogPiece]) -> Iterator[list[LogPiece]]:
    """Neighbours that are equally far from their place."""
    run: list[LogPiece] = []
    for piece in pieces:
        if run and own_offset(piece) - piece.start_offset != own_offset(run[-1]) - run[-1].start_offset:
            yield run
            run = []
        run.append(piece)
    yield run


WINDOW_RECORDS: Final = 1 << 18
"""Checked against ConsumeQueues and index at once: some 30 MB of columns."""


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """What was found in one part of one replica's log."""

    findings: tuple[Finding, ...] = ()
    queue_spans: tuple[QueueSpan, ...] = ()
    """One for each queue, for the seams to the parts before and behind: see `seam_gaps`."""
    records: int = 0
    bytes_read: int = 0
    """Bytes of all files."""

    def to_json(self) -> dict[str, Any]:
        return {
            "findings": [finding.to_json() for finding in self.findings],
            "queue_spans": [span.to_json() for span in self.queue_spans],
            "records": self.records,
            "bytes_read": self.bytes_read,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(
            findings=tuple(Finding.from_json(finding) for finding in values["findings"]),
            queue_spans=tuple(QueueSpan.from_json(span) for span in values["queue_spans"]),
            records=values["records"],
            bytes_read=values["bytes_read"],
        )


def check_records(
    store: ReplicaStore, start: int, end: int, *, with_queues: bool = True, with_index: bool = True
) -> RecordCheck:
    """Checks every record that starts in [start, end); see log_walk for where to split a log.

    Raises ReplicaUnreadable. Findings of the same kind that adjoin are one, with the number of messages; no list is
    longer than a thousand and one, the last then saying how many more there are.
    """
    bytes_before = store.bytes_read
    report = DamageReport(store)
    queues = QueueCheck(store, report.damaged, with_entries=with_queues)
    index = IndexCheck(store, report.damaged, start=start, end=end) if with_index else None
    findings = FindingList()
    collector = RecordCollector()
    records = 0

    def check_window() -> None:
        columns = collector.take()
        # What is zero contradicts its ConsumeQueue and index entries as well.
        findings.extend(own for own in queues.check(columns) if own.start_offset not in report.half_zeroed)
        if index is not None:
            findings.extend(own for own in index.check(columns) if own.start_offset not in report.half_zeroed)

    for piece in walk_log(store, start, end, in_batches=True):
        if not isinstance(piece, LogPiece):
            collector.add_batch(piece)
            report.pass_sound(int(piece.offsets[-1]), piece.end_offset)
            records += len(piece)
        else:
            report.add(piece)
            if piece.kind is PieceKind.RECORD and piece.record is not None:
                collector.add_record(piece.record)
                records += 1
        if len(collector) >= WINDOW_RECORDS:
            check_window()
    check_window()
    if index is not None:
        findings.extend(index.chains())
    log_findings = FindingList()
    log_findings.extend(long_segments(store, start, end))
    log_findings.extend(report.findings())
    return RecordCheck(
        findings=(*log_findings.taken(), *findings.taken()),
        queue_spans=queues.spans,
        records=records,
        bytes_read=store.bytes_read - bytes_before,
    )
