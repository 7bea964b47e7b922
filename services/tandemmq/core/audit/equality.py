"""What *equal* means, in one place, and which messages a replica lacks by that.

The replicas of a group are equal when all of these hold:

1. *Each holds every message* that any of them holds, or showed to an earlier run (`missing_messages`), in the same
   bytes (digests of extents, then `comparison`).
2. *Derived files agree with the log in both directions*: each record has its ConsumeQueue and index entries, and each
   entry leads to its record (`record_check`, `derived_files`).
3. *Metadata agrees* with the log, and with that of the other replicas (`metadata_comparison`, `derived_files`).

Anything else is a finding, or leaves the run incomplete. Four things look like a loss and are none:

- A running slave is behind: its log ends earlier, and goes on. So does one that was killed. A replica that was stopped
  in order holds all that it will ever have without being started, so there it counts.
- Retention removes a log's oldest files, the master's first, and a slave removes only what its master has removed (ADR
  29). So a slave that begins behind its master, and was there once, lost files. For a master, and for all together, an
  earlier run has to have seen them, and they must be too young to expire.
- A slave that joined late never had the beginning: its ConsumeQueues lead nowhere below it.
- A master began a new epoch below the end of a log: its slaves cut what nobody acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self

from tandemmq.core.audit.findings import Cause, Finding, FindingKind, Verdict
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log
from tandemmq.core.audit.metadata_comparison import TableMark
from tandemmq.core.audit.record_columns import RecordName, describe, read_name
from tandemmq.core.audit.replica_store import (
    ReplicaFacts,
    ReplicaStore,
    is_number,
    is_of_others,
    known_of_lost_log,
    written_for,
)
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.routing.values import MASTER_ID
from tandemmq.core.storage.kept_tail import KEPT_TAILS_FOLDER

_COMPARED_TAIL_BYTES: Final = 4 << 10
_COUNTED_BYTES_MAX: Final = 4 << 30
"""Of messages that are missing; what is more is not counted one by one."""


@dataclass(frozen=True, slots=True)
class SeenReplica:
    """What a replica showed to an earlier run."""

    min_offset: int
    end_offset: int
    verified_offset: int = 0
    """Up to here other replicas held the same: whatever happens, nobody may cut that."""
    disk_id: str = ""
    """Empty: not known."""
    run: int = 0
    """Starts of the disk."""
    epochs: tuple[tuple[int, int], ...] = ()
    """Of its log: epoch and where it begins."""
    tables: dict[str, TableMark] = field(default_factory=dict)
    """Versions and digests of its metadata files, by name."""
    kept: dict[str, str] = field(default_factory=dict)
    """Digests of bytes that were kept aside, by path; of the last deep run."""
    homes: str = ""
    """Digest of the homes of message groups; empty: not known."""
    named: str = ""
    """The broker group that its table of topics named; empty: none."""
    told_by: int | None = None
    """The replica that remembers this, if it was no run."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        known = {name: values[name] for name in cls.__slots__ if name in values}
        known["epochs"] = tuple((epoch, start) for epoch, start in known.get("epochs", ()))
        known["tables"] = {name: TableMark(*mark) for name, mark in known.get("tables", {}).items()}
        return cls(**known)


@dataclass(frozen=True, slots=True)
class BoundRules:
    """What else decides where a log may begin and end."""

    master_id: int | None = MASTER_ID
    live: frozenset[int] = frozenset()
    """Replicas that were read through their running brokers: these say themselves what they hold, and go on."""
    max_lag_bytes: int = 1 << 30
    """A running slave may be so far behind."""
    file_reserved_ms: int = 0
    """Younger files do not expire; 0: nobody knows."""
    now_ms: int = 0
    """Wall clock."""


class Layer(NamedTuple):
    """A part of the log, and who holds all of it."""

    log_range: LogRange
    broker_ids: frozenset[int]


def is_empty(facts: ReplicaFacts) -> bool:
    """Whether a replica holds no byte of the log."""
    return facts.end_offset <= facts.min_offset


def common_range(facts: Iterable[ReplicaFacts]) -> LogRange:
    """What all replicas hold that hold anything; empty (start equal to end) if they have nothing in common."""
    known = [own for own in facts if not is_empty(own)]
    start = max((own.min_offset for own in known), default=0)
    return LogRange(start, max(start, min((own.end_offset for own in known), default=0)))


def layers(facts: Iterable[ReplicaFacts]) -> list[Layer]:
    """The log in parts of which each is held by the same replicas, two or more; ascending."""
    known = [own for own in facts if not is_empty(own)]
    cuts = sorted({offset for own in known for offset in (own.min_offset, own.end_offset)})
    found = []
    for start, end in pairwise(cuts):
        holders = frozenset(own.broker_id for own in known if own.min_offset <= start and end <= own.end_offset)
        if len(holders) > 1:
            found.append(Layer(LogRange(start, end), holders))
    return found


def missing_messages(
    stores: Mapping[int, ReplicaStore], *, seen: Mapping[int, SeenReplica] | None = None, rules: BoundRules
) -> list[Finding]:
    """One finding for each end of each replica's log that should go on: which messages it lacks, and who holds them;
    and one for each file of a log at rest that keeps its broker from starting.

    `seen`: by broker id, from earlier runs. Facts of a running group must be taken of slaves first and of the master
    last: then no slave only seems ahead. Raises ReplicaUnreadable.
    """
    return list(_Bounds(stores, seen or {}, rules).findings())


class _Bounds:
    """One call of missing_messages."""

    def __init__(self, stores: Mapping[int, ReplicaStore], seen: Mapping[int, SeenReplica], rules: BoundRules) -> None:
        self._stores = dict(sorted(stores.items()))
        self._seen = seen
        self._rules = rules
        self._master_had = 0
        """How far the master's log was, as is told of the master: what slaves have of that is not too much."""

    def findings(self) -> Iterator[Finding]:
        for broker_id, store in self._stores.items():
            if is_empty(store.facts):
                yield from _renamed_segments(store) or self._nothing_left(broker_id, store)
                yield from self._aside(broker_id, store)
                continue
            if not store.facts.is_running:
                yield from odd_segments(store)
                yield from long_segments(store, store.facts.min_offset, store.facts.end_offset)
                yield from _short_segments(store)
            yield from self._aside(broker_id, store)
            yield from self._lost_beginning(broker_id, store)
            yield from self._lost_end(broker_id, store)
        yield from self._extra_ends()
        yield from self._other_lengths()

    def _aside(self, broker_id: int, store: ReplicaStore) -> Iterable[Finding]:
        return () if broker_id in self._rules.live else _segments_aside(store)

    # Files that fit each other, and none of another replica

    def _other_lengths(self) -> Iterator[Finding]:
        """A broker starts with no file that is not as long as its settings say. Right is the length at whose multiples
        records begin, the most of them; else the one that somebody would choose."""
        lengths: dict[int, list[ReplicaStore]] = {}
        for broker_id, store in self._stores.items():
            if broker_id not in self._rules.live and not is_empty(store.facts):
                lengths.setdefault(store.facts.segment_bytes, []).append(store)
        if len(lengths) < 2:
            return
        weights = {length: _weight_of_length(length, own) for length, own in lengths.items()}
        right, second, *_ = sorted(weights, key=lambda length: weights[length], reverse=True)
        for store in self._stores.values():
            facts = store.facts
            if is_empty(facts) or facts.segment_bytes not in lengths or facts.segment_bytes == right:
                continue
            holder = lengths[right][0].facts.broker_id
            detail = f"its CommitLog files have {facts.segment_bytes} bytes, and those of replica {holder} have {right}"
            finding = _of_file(FindingKind.SEGMENT_SIZE, facts, f"{facts.min_offset:020d}", detail)
            finding = replace(finding, cause=Cause.OTHER_LENGTH)
            if weights[right] == weights[second]:
                detail = f"of replica {facts.broker_id}: {detail}; nothing tells which is right"
                yield replace(finding, broker_id=None, verdict=Verdict.UNDECIDED, detail=detail)
                return
            yield finding

    # A replica without a log

    def _nothing_left(self, broker_id: int, store: ReplicaStore) -> Iterator[Finding]:
        seen = self._seen_on_disk(broker_id, store)
        if broker_id in self._rules.live and seen is None:
            return  # It has just begun to fetch.
        others = [own.facts for own in self._others(broker_id)]
        start = min([own.min_offset for own in others] + ([seen.min_offset] if seen else []), default=0)
        end = max([own.end_offset for own in others] + ([self._seen_end(seen, broker_id)] if seen else []), default=0)
        verdict = Verdict.STORED_DIGEST if seen else Verdict.OWN_EVIDENCE
        detail = "the replica has no CommitLog"
        if start >= end and (known := known_of_lost_log(store)) is not None:
            (start, end), witness = known
            detail = f"{detail}, and {witness}"
        if start < end:
            finding = self._finding(FindingKind.SEGMENT_MISSING, broker_id, LogRange(start, end), verdict, detail)
            yield replace(finding, cause=Cause.NO_LOG)

    # The oldest files

    def _lost_beginning(self, broker_id: int, store: ReplicaStore) -> Iterator[Finding]:
        facts = store.facts
        seen = self._seen_on_disk(broker_id, store)
        queued_from = facts.queued_from
        held_from = min([facts.min_offset, *([queued_from] if queued_from is not None else [])])
        why = f"its ConsumeQueues lead to records from {held_from} on"
        verdict = Verdict.OWN_EVIDENCE
        if seen is not None and seen.min_offset < facts.min_offset:
            held_from, verdict = seen.min_offset, Verdict.STORED_DIGEST
            why = f"an earlier run saw it begin at {seen.min_offset}"
        if held_from < facts.min_offset and self._may_not_expire(broker_id, store, is_seen=seen is not None):
            lost = LogRange(held_from, facts.min_offset)
            detail = f"the log begins at {facts.min_offset}; {why}"
            yield self._finding(FindingKind.SEGMENT_MISSING, broker_id, lost, verdict, detail)

    def _may_not_expire(self, broker_id: int, store: ReplicaStore, *, is_seen: bool) -> bool:
        """Whether retention cannot have removed what is not there."""
        rules = self._rules
        master = self._stores.get(rules.master_id) if rules.master_id is not None else None
        is_master_home = broker_id in (rules.master_id, MASTER_ID)
        if is_master_home or master is None or is_empty(master.facts):
            begins_behind_master = False
        else:
            begins_behind_master = master.facts.min_offset < store.facts.min_offset
        if begins_behind_master:
            return True
        if not is_seen or broker_id in rules.live or not rules.file_reserved_ms:
            return False
        # The oldest file that is left was begun when the one before was full: that one is about as old.
        # Of a time to come nobody knows how long ago it was: the clock was set back since.
        begun_ms = _first_time_ms(store)
        return begun_ms is not None and 0 <= rules.now_ms - begun_ms < rules.file_reserved_ms

    # The newest records

    def _lost_end(self, broker_id: int, store: ReplicaStore) -> Iterator[Finding]:
        facts = store.facts
        master = self._stores.get(self._rules.master_id) if self._rules.master_id is not None else None
        others = [own.facts.end_offset for own in self._others(broker_id)]
        # What a slave has beyond its master is told of that slave, and is nothing that the others lack.
        has_master = master is not None and not is_empty(master.facts)
        best_end = master.facts.end_offset if master is not None and has_master else max(others, default=0)
        seen = self._seen_on_disk(broker_id, store)
        seen_end = self._seen_end(seen, broker_id) if seen is not None else 0
        if seen is not None and seen_end > facts.end_offset and broker_id != self._rules.master_id:
            seen_end = min([seen_end, *_kept_from(store, seen_end, verified_offset=seen.verified_offset)])
        if seen_end > facts.end_offset:
            is_verified = seen is not None and seen.verified_offset >= seen_end
            told = f"verified it up to {seen_end}" if is_verified else f"saw it end at {seen_end}"
            who, verdict = "an earlier run", Verdict.STORED_DIGEST
            if seen is not None and seen.told_by is not None:
                who, verdict = f"replica {seen.told_by}, when it was stopped in order,", Verdict.EPOCHS
            detail = f"the log ends at {facts.end_offset}; {who} {told}"
            if broker_id == self._rules.master_id:
                self._master_had = seen_end
            lost = LogRange(facts.end_offset, max(seen_end, 0 if facts.is_running else best_end))
            yield self._finding(FindingKind.TAIL_MISSING, broker_id, lost, verdict, detail)
            return
        if facts.end_offset > best_end and has_master and broker_id != self._rules.master_id:
            return  # See _extra_ends.
        # A master that ends before its slaves is told by what these have too much, unless its own files tell otherwise.
        if broker_id == self._rules.master_id:
            yield from self._broken_end(store)
            return
        if best_end <= facts.end_offset:
            return
        is_behind = facts.is_running and best_end - facts.end_offset <= self._rules.max_lag_bytes
        if is_behind or broker_id in self._rules.live:
            return
        lost = LogRange(facts.end_offset, best_end)
        detail = f"the log ends at {facts.end_offset}, and the longest at {best_end}"
        finding = self._finding(FindingKind.ON_FEWER_REPLICAS, broker_id, lost, Verdict.MASTER_RULE, detail)
        if finding.messages:  # Else the longest has lost what it knows of, and is told of that.
            yield finding

    def _broken_end(self, master: ReplicaStore) -> Iterator[Finding]:
        """A master whose records break off, and go on behind that as a slave has them, had them all; so had one whose
        files end before its log does."""
        facts = master.facts
        best = max(self._others(facts.broker_id), key=lambda own: own.facts.end_offset, default=master)
        is_cut = bool(facts.holes) and facts.holes[-1].end_offset == facts.end_offset
        if is_cut and best.facts.end_offset > facts.end_offset:
            lost = LogRange(facts.end_offset, best.facts.end_offset)
            detail = (
                f"its files end at {facts.holes[-1].start_offset}, and the log of replica {best.facts.broker_id} at "
                f"{best.facts.end_offset}"
            )
            self._master_had = max(self._master_had, lost.end_offset)
            yield self._finding(FindingKind.TAIL_MISSING, facts.broker_id, lost, Verdict.OWN_EVIDENCE, detail)
            return
        for own in self._others(facts.broker_id):
            end = own.facts.end_offset
            start = max(facts.end_offset, end - _COMPARED_TAIL_BYTES)
            if end <= facts.end_offset or not any(held := bytes(own.read_log(start, end))):
                continue
            if bytes(master.read_log(start, end)) == held:
                detail = (
                    f"the records break off at {facts.end_offset}, and behind that the files hold what replica "
                    f"{own.facts.broker_id} holds, up to {end}"
                )
                lost = LogRange(facts.end_offset, end)
                self._master_had = max(self._master_had, end)
                yield self._finding(FindingKind.TAIL_MISSING, facts.broker_id, lost, Verdict.OWN_EVIDENCE, detail)
                return

    def _extra_ends(self) -> Iterator[Finding]:
        """Slaves that go on beyond all that their master has, or had: one by itself is named; of several nobody knows
        who is wrong."""
        master = self._stores.get(self._rules.master_id) if self._rules.master_id is not None else None
        if master is None or is_empty(master.facts):
            return
        end = max(master.facts.end_offset, self._master_had)
        beyond = [own for own in self._stores.values() if own.facts.end_offset > end and not is_empty(own.facts)]
        if not beyond:
            return
        longest = max(beyond, key=lambda own: own.facts.end_offset)
        extra = LogRange(max(end, longest.facts.min_offset), longest.facts.end_offset)
        ends = ", ".join(f"that of replica {own.facts.broker_id} at {own.facts.end_offset}" for own in beyond)
        finding = Finding(
            kind=FindingKind.TAIL_EXTRA,
            group=longest.facts.group,
            verdict=Verdict.MASTER_RULE if len(beyond) == 1 else Verdict.UNDECIDED,
            detail=f"the master's log ends at {end}, {ends}",
            broker_id=longest.facts.broker_id if len(beyond) == 1 else None,
            start_offset=extra.start_offset,
            end_offset=extra.end_offset,
            messages=0,
            file=longest.segment_path(extra.start_offset),
        )
        finding = with_messages(finding, longest, extra)
        held = _who_holds(finding.messages, longest, beyond)
        yield replace(finding, detail=f"{finding.detail}; {held.replace('here', 'on the master')}")

    def _seen_end(self, seen: SeenReplica | None, broker_id: int) -> int:
        """How far the log was, of what nobody may cut: a running group may have failed over meanwhile."""
        if seen is None:
            return 0
        return seen.verified_offset if broker_id in self._rules.live else max(seen.end_offset, seen.verified_offset)

    def _seen_on_disk(self, broker_id: int, store: ReplicaStore) -> SeenReplica | None:
        """What an earlier run saw of this very disk."""
        seen = self._seen.get(broker_id)
        if seen is None or (seen.disk_id and store.facts.disk_id and seen.disk_id != store.facts.disk_id):
            return None
        return seen

    def _others(self, broker_id: int) -> list[ReplicaStore]:
        return [own for other, own in self._stores.items() if other != broker_id and not is_empty(own.facts)]

    def _finding(
        self,
        kind: FindingKind,
        broker_id: int,
        lost: LogRange,
        verdict: Verdict,
        detail: str,
    ) -> Finding:
        """The messages of a range by number, and the first and the last by name, as who holds most of them says: a log
        may be as long, and hold nothing there."""
        finding = Finding(
            kind=kind,
            group=self._stores[broker_id].facts.group,
            verdict=verdict,
            detail=detail,
            broker_id=broker_id,
            start_offset=lost.start_offset,
            end_offset=lost.end_offset,
            messages=0,
            file=self._stores[broker_id].segment_path(lost.start_offset),
        )
        others = [own for own in self._others(broker_id) if _held_bytes(own.facts, lost) > 0]
        held = [(with_messages(finding, own, _overlap(own.facts, lost)), own) for own in others]
        named, holder = max(held, key=lambda pair: pair[0].messages, default=(finding, None))
        if holder is None or not named.messages:
            return replace(finding, detail=f"{detail}; no replica holds what lies between")
        holders = [own for other, own in held if other.messages == named.messages]
        who = _who_holds(named.messages, holder, holders)
        return replace(named, source_broker_id=holder.facts.broker_id, detail=f"{detail}; {who}")


def with_messages(finding: Finding, store: ReplicaStore, log_range: LogRange) -> Finding:
    """The finding with the number of messages in a range, and the names of the first and the last, as a replica has
    them."""
    first, last, count = _messages(store, log_range)
    return describe(replace(finding, messages=count), first, last=last if count > 1 else None)


def _who_holds(count: int, holder: ReplicaStore, holders: list[ReplicaStore]) -> str:
    messages = f"{count} message{'s are' if count != 1 else ' is'}"
    if len(holders) == 1:
        return f"{messages} on replica {holder.facts.broker_id} only"
    return f"{messages} on replicas {', '.join(str(own.facts.broker_id) for own in holders)} and not here"


def _overlap(facts: ReplicaFacts, log_range: LogRange) -> LogRange:
    start = max(facts.min_offset, log_range.start_offset)
    return LogRange(start, max(start, min(facts.end_offset, log_range.end_offset)))


def _held_bytes(facts: ReplicaFacts, log_range: LogRange) -> int:
    overlap = _overlap(facts, log_range)
    return overlap.end_offset - overlap.start_offset


def _messages(store: ReplicaStore, log_range: LogRange) -> tuple[RecordName | None, RecordName | None, int]:
    """The first and the last message of a range, and how many there are."""
    first = last = None
    count = 0
    end = min(log_range.end_offset, log_range.start_offset + _COUNTED_BYTES_MAX)
    for piece in walk_log(store, log_range.start_offset, end, in_batches=True):
        if isinstance(piece, LogPiece):
            if piece.kind not in (PieceKind.RECORD, PieceKind.BAD_BODY):
                continue
            starts, ends = (piece.start_offset, piece.start_offset), (piece.end_offset, piece.end_offset)
            count += 1
        else:
            starts = int(piece.offsets[0]), int(piece.offsets[-1])
            ends = starts[0] + int(piece.sizes[0]), piece.end_offset
            count += len(piece)
        if first is None:
            first = starts[0], ends[0]
        last = starts[1], ends[1]
    return _name(store, first), _name(store, last), count


def _name(store: ReplicaStore, place: tuple[int, int] | None) -> RecordName | None:
    return None if place is None else read_name(store.read_log(*place), 0, place[0])


def _kept_from(store: ReplicaStore, end: int, *, verified_offset: int) -> Iterator[int]:
    """Where tails begin that a slave cut off up to `end`, as its master's log asks for, and keeps: nothing is lost.
    Below `verified_offset` nobody may cut."""
    for entry in store.files.list_folder(KEPT_TAILS_FOLDER):
        start, dash, _ = entry.name.partition("-")
        is_tail = bool(dash) and entry.name.endswith(".log") and is_number(start)
        if is_tail and verified_offset <= int(start) < end <= int(start) + entry.size:
            yield int(start)


def _first_time_ms(store: ReplicaStore) -> int | None:
    """When the oldest record was stored."""
    facts = store.facts
    for piece in walk_log(store, facts.min_offset, facts.min_offset + 1, in_batches=False):
        if isinstance(piece, LogPiece) and piece.record is not None:
            return piece.record.store_timestamp_ms
    return None


# Files of the log that are not as long as others, or lie where none belongs. A broker starts with neither.

_NAME_DIGITS: Final = 20
_PAGE_BYTES: Final = 4 << 10
_BEGINNINGS_MAX: Final = 64
_HEAD_BYTES: Final = 36
"""Of a record, up to its own offset."""
_MADE_AHEAD_BYTES: Final = 64 << 10
"""Of a file behind the end that are looked at: one that was made ahead holds nothing."""


def long_segments(store: ReplicaStore, start: int, end: int) -> Iterator[Finding]:
    """Files of a range with more bytes than a CommitLog file has. Those with fewer are holes."""
    facts = store.facts
    for name, size in _segments(store):
        if start <= int(name) < min(end, facts.end_offset) and size > facts.segment_bytes:
            detail = f"the file has {size} bytes instead of {facts.segment_bytes}"
            yield _of_file(FindingKind.SEGMENT_SIZE, facts, name, detail)


def odd_segments(store: ReplicaStore) -> Iterator[Finding]:
    """Files between others, behind a gap, or behind the log's end and not empty; with a number for a name, and not the
    one of a file; what has the name of a file before or behind the log, and is none: in the log that is a hole. The
    store is at rest."""
    facts = store.facts
    for entry in store.files.list_folder("commitlog"):
        if is_number(entry.name) and len(entry.name) != _NAME_DIGITS:
            detail = f"names of files have {_NAME_DIGITS} digits"
            yield _of_own_place(store, entry.name, detail)
    for name, size in _segments(store, of_files=False):
        if size < 0 and not facts.min_offset <= int(name) < facts.end_offset:
            yield _of_file(FindingKind.SEGMENT_EXTRA, facts, name, "a folder, a link or a pipe is in its place")
    length = facts.segment_bytes
    due = facts.end_offset - facts.end_offset % length
    found = _segments(store)
    for name, size in found:
        start = int(name)
        detail, cause = "", None
        is_odd = bool((start - facts.min_offset) % length)
        is_outside = is_odd or not facts.min_offset <= start <= facts.end_offset
        own = written_for(store.files, name) if is_outside else None
        if is_odd:
            detail = f"files begin at multiples of {length}"
        if own is not None and own != start:
            detail += f"{'; ' if detail else ''}it begins with a record that was written for {own}"
        elif is_odd:
            pass
        elif start >= facts.end_offset and start > due:
            detail, cause = f"the file before it, {due:020d}, is not there", Cause.BEHIND_A_GAP
        elif start >= facts.end_offset and size not in (length, 0 if name == found[-1][0] else length):
            detail = f"the file has {size} bytes instead of {length}, and the log ends before it"
        elif start > facts.end_offset and any(store.read_file(f"commitlog/{name}", 0, _MADE_AHEAD_BYTES)):
            detail = f"it holds bytes, and the log ends before it, at {facts.end_offset}"
        if detail and own not in (None, start):
            yield _of_own_place(store, name, detail)
        elif detail:
            yield replace(_of_file(FindingKind.SEGMENT_EXTRA, facts, name, detail), cause=cause)
        elif start >= facts.end_offset - facts.end_offset % length:
            due = start + length


def _of_own_place(store: ReplicaStore, name: str, detail: str) -> Finding:
    """Of a file that has another name than the log would give it; where it belongs, if it begins with a record."""
    own = written_for(store.files, name)
    finding = _of_file(FindingKind.SEGMENT_EXTRA, store.facts, name, detail)
    return finding if own is None else replace(finding, cause=Cause.OTHER_NAME, leads_to=own)


def _segments_aside(store: ReplicaStore) -> Iterator[Finding]:
    """Files of the log that lie in a folder below it, or have more than a number for a name, while none has the name
    that they were written for. Without the first ones it looks as if they had expired."""
    found = store.files.list_folder("commitlog")
    held = {int(entry.name) for entry in found if entry.size > 0 and is_number(entry.name)}
    names: list[tuple[str, int]] = []
    for entry in found:
        if is_of_others(entry.name) or is_number(entry.name):
            continue
        if entry.is_folder:
            inner = store.files.list_folder(f"commitlog/{entry.name}")
            names += [(f"{entry.name}/{own.name}", own.size) for own in inner if not is_of_others(own.name)]
        else:
            names.append((entry.name, entry.size))
    for name, size in names[:_BEGINNINGS_MAX]:
        if size != store.facts.segment_bytes and not is_empty(store.facts):
            continue
        own = written_for(store.files, name) if size > 0 else None
        if own is not None and own not in held:
            yield _of_own_place(store, name, f"it is the file {own:020d} of the log, which is not there")


def _renamed_segments(store: ReplicaStore) -> list[Finding]:
    """Of a log none of whose files has the name that it was written for: it is all there, and nobody finds it."""
    found = _segments(store)
    own = written_for(store.files, found[0][0]) if found else None
    if own is None or own == int(found[0][0]):
        return []
    detail = (
        f"no CommitLog file, of {len(found)}, has the name that its records were written for: {found[0][0]} begins "
        f"with the one of {own}. Give each its own, this one {own:020d}, with mv -n: none may be written over"
    )
    return [_of_file(FindingKind.SEGMENT_EXTRA, store.facts, found[0][0], detail)]


def _weight_of_length(length: int, replicas: list[ReplicaStore]) -> tuple[int, bool, bool]:
    files = max(_files_that_begin(store) for store in replicas)
    return files, not length % _PAGE_BYTES, not length & (length - 1)


def _files_that_begin(store: ReplicaStore) -> int:
    """How many files begin with a record that was written for there; 0 if one does not."""
    count = 0
    starts = range(store.facts.min_offset, store.facts.end_offset, store.facts.segment_bytes)
    for start in starts[:_BEGINNINGS_MAX]:
        if int.from_bytes(store.read_log(start, start + _HEAD_BYTES)[-8:], "big", signed=True) != start:
            return 0
        count += 1
    return count


def _short_segments(store: ReplicaStore) -> Iterator[Finding]:
    """Files that lack bytes and no record: a broker starts with none of them. What lacks records is told by these."""
    facts = store.facts
    found = _segments(store)
    for name, size in found:
        start = int(name)
        is_made = size > 0 or name == found[-1][0]
        if start < facts.min_offset and not is_made:
            yield _of_file(FindingKind.SEGMENT_SIZE, facts, name, "the file is empty")
        elif 0 < size < facts.segment_bytes and facts.min_offset <= start < facts.end_offset:
            last = min(facts.end_offset, start + facts.segment_bytes)
            if start + size >= last or _is_padded(store, start, start + size):
                detail = f"the file has {size} bytes instead of {facts.segment_bytes}; no record is lost"
                yield _of_file(FindingKind.SEGMENT_SIZE, facts, name, detail)


def _is_padded(store: ReplicaStore, start: int, end: int) -> bool:
    """Whether the records of a file that goes on with the next one have ended before `end`, with the mark of that."""
    pieces = walk_log(store, start, end, in_batches=False)
    return any(isinstance(piece, LogPiece) and piece.kind is PieceKind.PADDING for piece in pieces)


def _segments(store: ReplicaStore, *, of_files: bool = True) -> list[tuple[str, int]]:
    """Name and length of each file with a name of the log; otherwise of whatever has such a name."""
    return [
        (entry.name, entry.size)
        for entry in store.files.list_folder("commitlog")
        if not (of_files and entry.is_folder) and len(entry.name) == _NAME_DIGITS and is_number(entry.name)
    ]


def _of_file(kind: FindingKind, facts: ReplicaFacts, name: str, detail: str) -> Finding:
    return Finding.of(facts, kind, detail, messages=0, file=f"commitlog/{name}")
