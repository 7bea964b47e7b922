"""Which disk a replica is, who wrote its log, and what else a broker keeps beside log and tables.

These files are small, and every run reads them. They are evidence before they are findings: of two logs that differ the
one of the later epoch is right (ADR 33), what members remember of a disk tells that it was set back, and who was master
last is not told by a broker id. So they are compared with care:

- *Epochs* agree as far as both logs go. Where they do not, and the bytes differ there too, one log went another way:
  the later epoch is the group's, and the other one is cut at its next start. Where bytes are equal, a file is wrong.
- *A disk id* belongs to one disk. Others remember how often it was started and how far its log went. A smaller number
  of starts is an older copy.
- *Message groups' homes* only become more while a broker group is dead. The shorter list would let messages overtake.
  Of lists that each lack something the right one is the one that an earlier run saw; else a person decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import combinations, pairwise
from typing import Any, Final, NamedTuple, Self

from tandemmq.core.audit.findings import Cause, Finding, FindingKind, Verdict
from tandemmq.core.audit.replica_store import NotShown, ReplicaFacts, ReplicaFiles, StoreEntry, whole_file
from tandemmq.core.message.record import TIMER_TOPIC
from tandemmq.core.metadata.metadata_store import MetadataCorrupt, MetadataFile, read_java_json
from tandemmq.core.replication.log_history import (
    EPOCH_FILE,
    REPLICA_FILE,
    HistoryCorrupt,
    LogHistory,
    LogRange,
    RecordDamaged,
    ReplicaRecord,
)
from tandemmq.core.storage.retention import SavedTime

_BYTES_MAX: Final = 1 << 20
"""Of a file whose length nobody told."""
_HOMES: Final = "messageGroupHomes.json"
_LEASE_CLOCK: Final = "leaseClock.json"
_OBJECTS: Final = (_HOMES, _LEASE_CLOCK, "retentionClock.json")
"""JSON objects of our brokers in `config`; those that cannot be read are told, though a broker goes on without."""
_OF_JAVA: Final = (
    "consumerFilter.json",
    "consumerOrderInfo.json",
    "topicQueueMapping.json",
    "messageRequestMode.json",
    "lmqConsumerOffset.json",
    "timermetrics",
    "transactionMetrics",
)
"""Tables of RocketMQ's brokers alone; as they are for ours."""
_NAMES: Final = frozenset({*_OBJECTS, *_OF_JAVA, *(file.value for file in MetadataFile), f"{TIMER_TOPIC}.state"})
_OF_ROCKSDB: Final = frozenset({"topics", "subscriptionGroups", "consumerOffsets", "metadata", "rocksdb"})
"""Folders in `config` of a RocketMQ broker that keeps its tables there."""
_OF_OURS: Final = re.compile(r"leases-\d{10}\.(snapshot|journal)|leaseClock\.json")
_NONE: Final = "there is no such file"
_ONLY_BACKUP: Final = "there is no such file, only its .bak of before the last change"


class Remembered(NamedTuple):
    """What a replica knows of another disk."""

    disk_id: str
    run: int
    epoch: int
    end_offset: int
    left: bool
    """It stopped in order, and ended just there."""
    master_epoch: int
    broker_id: int = -1


@dataclass(frozen=True, slots=True)
class SideFacts:
    """What these files of one replica say. A problem is why a file says nothing."""

    broker_id: int
    disk_id: str = ""
    run: int = 0
    broker_name: str = ""
    own_broker_id: int = -1
    """As `replica.json` says."""
    promised_epoch: int = 0
    promised_to: str = ""
    remembered: tuple[Remembered, ...] = ()
    record_problem: str = _NONE
    epochs: tuple[tuple[int, int], ...] = ()
    epochs_problem: str = _NONE
    homes: dict[str, list[str]] | None = None
    unreadable: tuple[tuple[str, str], ...] = ()
    """Path and problem of other files."""
    is_ours: bool = False
    """A broker of TandemMQ has run here, and not only a Java one."""
    has_tables: bool = False
    """A broker has run here that keeps its tables in `config`, and not in RocksDB."""
    is_read: bool = True
    """False: a broker of an earlier version does not show them."""

    @property
    def homes_digest(self) -> str:
        """What to remember of the homes of message groups; empty: nothing."""
        text = json.dumps(self.homes, sort_keys=True).encode()
        return blake2b(text, digest_size=8).hexdigest() if self.homes else ""

    @property
    def history(self) -> LogHistory:
        """Of its log."""
        return LogHistory.of(self.epochs)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        known = dict(values)
        known["remembered"] = tuple(Remembered(*own) for own in values["remembered"])
        known["epochs"] = tuple((epoch, start) for epoch, start in values["epochs"])
        known["unreadable"] = tuple((path, problem) for path, problem in values["unreadable"])
        return cls(**known)


def read_side_facts(files: ReplicaFiles, broker_id: int) -> SideFacts:
    """Reads them. Raises ReplicaUnreadable when one of them does not answer, or their folder does not."""
    listed = files.list_folder("config")
    sizes = {entry.name: entry.size for entry in listed if not entry.is_folder}
    values: dict[str, Any] = {
        "unreadable": (*_no_files(listed), *_unreadable(files, sizes)),
        "homes": _homes(files, sizes),
        "is_ours": any(_OF_OURS.fullmatch(name) for name in sizes),
    }
    try:
        values |= _record(_text(files, REPLICA_FILE)) | _epochs(_text(files, EPOCH_FILE))
        values["has_tables"] = _has_tables(files, listed)
    except NotShown:
        return SideFacts(broker_id, **values, is_read=False)
    return SideFacts(broker_id, **values)


def _has_tables(files: ReplicaFiles, listed: Iterable[StoreEntry]) -> bool:
    is_elsewhere = any(entry.is_folder and entry.name in _OF_ROCKSDB for entry in listed)
    return not is_elsewhere and any(entry.name == "checkpoint" for entry in files.list_folder(""))


def _text(files: ReplicaFiles, path: str) -> str | None:
    """None: there is no such file, as far as that can be told from an empty one. Of a folder in its place: its name,
    which is no content of any of these files."""
    data = bytes(files.read(path, 0, _BYTES_MAX))
    if not data and any(entry.is_folder and entry.name == path for entry in files.list_folder("")):
        return f"a folder called {path}"
    return data.decode("utf-8", "surrogateescape") if data else None


def _is_utf8(text: str) -> bool:
    """Whether it was, and none of its bytes had to be kept as they are."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _record(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    if not _is_utf8(text):
        return {"record_problem": f"{REPLICA_FILE} is no UTF-8"}
    try:
        record = ReplicaRecord.from_json(text)
    except RecordDamaged as error:
        return {"record_problem": str(error)}
    return {
        "disk_id": record.disk_id,
        "run": record.run,
        "broker_name": record.broker_name,
        "own_broker_id": record.broker_id,
        "promised_epoch": record.promised_epoch,
        "promised_to": record.promised_to,
        "remembered": tuple(
            Remembered(own.disk_id, own.run, own.epoch, own.end_offset, own.left, own.master_epoch, own.broker_id)
            for own in record.replicas
        ),
        "record_problem": "",
    }


def _epochs(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    if not _is_utf8(text):
        return {"epochs_problem": "no epoch file: it is no UTF-8"}
    try:
        return {"epochs": tuple(map(tuple, LogHistory.from_text(text).epochs)), "epochs_problem": ""}
    except HistoryCorrupt as error:
        return {"epochs_problem": str(error)}


def _no_files(listed: Iterable[StoreEntry]) -> Iterator[tuple[str, str]]:
    for entry in listed:
        if entry.is_folder and (entry.name in _NAMES or _OF_OURS.fullmatch(entry.name)):
            yield f"config/{entry.name}", "a folder, a link or a pipe is in its place"


def _unreadable(files: ReplicaFiles, sizes: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for file in MetadataFile:
        if sizes.get(file.value) == 0:
            yield f"config/{file.value}", "the file is empty; the broker would take its .bak, or refuse"
        elif file.value not in sizes and sizes.get(f"{file.value}.bak"):
            yield f"config/{file.value}", _ONLY_BACKUP
    for name in _OF_JAVA:
        if sizes.get(name) == 0:
            yield f"config/{name}", "the file is empty; RocketMQ's broker would take its .bak, or none"
        elif name in sizes:
            try:
                read_java_json(whole_file(files, f"config/{name}", sizes[name]).decode())
            except (MetadataCorrupt, UnicodeDecodeError) as error:
                yield f"config/{name}", str(error)
            except NotShown:
                continue  # Our brokers, which do not read it, do not show it.
    for name in _OBJECTS:
        if name in sizes:
            try:
                data = whole_file(files, f"config/{name}", sizes[name])
                values = json.loads(data)
                if not isinstance(values, dict):
                    yield f"config/{name}", "it is no JSON object"
                elif problem := _object_problem(name, values, data):
                    yield f"config/{name}", problem
            except (ValueError, RecursionError) as error:
                yield f"config/{name}", "the file is empty" if not sizes[name] else f"it is no JSON: {error}"


def _object_problem(name: str, values: Mapping[str, Any], data: bytes) -> str:
    """What in it no broker has written; empty: nothing."""
    if name == _HOMES:
        odd = [
            topic
            for topic, names in values.items()
            if not (isinstance(names, list) and names and all(isinstance(own, str) and own for own in names))
        ]
        return f"topic {odd[0]} has no list of broker groups" if odd else ""
    if name == _LEASE_CLOCK:
        is_right = isinstance(values.get("bootId"), str) and type(values.get("offsetMs")) is int
        return "" if is_right else "it does not say bootId and offsetMs: the next start counts as after a reboot"
    saved = SavedTime.from_json(data)
    is_right = saved is not None and json.loads(saved.to_json()).items() <= values.items()
    return (
        "" if is_right else "it does not say bootId, believedMs and monotonicMs: the next start trusts the wall clock"
    )


def _homes(files: ReplicaFiles, sizes: Mapping[str, int]) -> dict[str, list[str]] | None:
    try:
        found = json.loads(whole_file(files, f"config/{_HOMES}", sizes[_HOMES])) if sizes.get(_HOMES) else None
        return None if found is None else {str(topic): sorted(map(str, names)) for topic, names in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


# Who is right, where logs differ.


class Fork(NamedTuple):
    """A replica's log beyond the last offset at which it is the group's."""

    broker_id: int
    source_broker_id: int
    start_offset: int
    epoch: int
    later_epoch: int


def forks(facts: Mapping[int, SideFacts], logs: Mapping[int, ReplicaFacts]) -> list[Fork]:
    """Where the epochs of replicas say that their logs went different ways, if they hold bytes there at all."""
    found = []
    for broker_id, own in facts.items():
        best: Fork | None = None
        for other_id, other in facts.items():
            if other_id == broker_id or not (own.epochs and other.epochs) or broker_id not in logs:
                continue
            shared = own.history.shared_end(other.history)
            ours = own.history.epoch_of_last_byte(logs[broker_id].end_offset)
            # What begins behind this log says nothing of it.
            theirs = other.history.last_epoch
            if shared < logs[broker_id].end_offset and ours < theirs and (best is None or theirs > best.later_epoch):
                best = Fork(broker_id, other_id, shared, ours, theirs)
        if best is not None:
            found.append(best)
    return found


def doubtful_ranges(facts: Mapping[int, SideFacts], logs: Mapping[int, ReplicaFacts]) -> list[LogRange]:
    """Where replicas name different masters of what they hold: to be read again, whatever was verified."""
    found = []
    for broker_id, own in facts.items():
        for other_id, other in facts.items():
            if broker_id < other_id and own.epochs and other.epochs and {broker_id, other_id} <= logs.keys():
                start = max(logs[broker_id].min_offset, logs[other_id].min_offset)
                end = min(logs[broker_id].end_offset, logs[other_id].end_offset)
                place = _first_contradiction(own.epochs, other.epochs, start, end)
                found += [LogRange(place, end)] if place is not None else []
    return found


def went_apart(differing: Iterable[LogRange], log_range: LogRange) -> bool:
    """Whether logs that differ in these parts went different ways where the range begins: from there on they hold other
    messages, and not a damaged record here and there."""
    covered, reached = 0, log_range.start_offset
    for start, end in sorted(differing):
        end = min(end, log_range.end_offset)
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return 2 * covered > reached - log_range.start_offset


def resting_master(facts: Mapping[int, SideFacts]) -> int | None:
    """Who was the group's master last, by what all of them wrote down; None: nobody says."""
    claims = [(own.promised_epoch, own.promised_to) for own in facts.values() if own.promised_to]
    claims += [
        (each.master_epoch, each.disk_id) for own in facts.values() for each in own.remembered if each.master_epoch > 0
    ]
    owners = {own.disk_id: broker_id for broker_id, own in facts.items() if own.disk_id}
    last = max((epoch for epoch, _ in claims), default=0)
    named = {owners.get(disk_id) for epoch, disk_id in claims if epoch == last}
    return named.pop() if len(named) == 1 else None


def remembered_ends(facts: Mapping[int, SideFacts]) -> dict[int, tuple[int, int]]:
    """By broker id: how far a log went that was stopped in order, and which replica remembers it. Without what a later
    epoch may have cut."""
    ends: dict[int, tuple[int, int]] = {}
    for broker_id, own in facts.items():
        for other_id, other in facts.items():
            for each in other.remembered:
                is_own = other_id != broker_id and each.disk_id == own.disk_id and own.disk_id
                # At a later run it ended elsewhere, which nobody has told; of an earlier one this is an older copy.
                epoch = own.history.last_epoch if each.run == own.run else other.history.last_epoch
                if is_own and each.left and each.run >= own.run and each.epoch == epoch:
                    ends[broker_id] = max(ends.get(broker_id, (0, 0)), (each.end_offset, other_id))
    return ends


# What is wrong with the files themselves.


def side_findings(
    group: str,
    facts: Mapping[int, SideFacts],
    logs: Mapping[int, ReplicaFacts],
    seen: Mapping[int, tuple[str, int, tuple[tuple[int, int], ...]]],
    differing: Mapping[int, Sequence[LogRange]],
    *,
    settled: bool = True,
    seen_homes: Mapping[int, str] | None = None,
) -> list[Finding]:
    """`seen`: disk id, starts and epochs of each replica in an earlier run; `seen_homes`: its `homes_digest`.
    `differing`: where the replicas' bytes are not equal, by broker id. `settled`: the replicas are at rest, or nothing
    changed while they were read twice."""
    known = {broker_id: own for broker_id, own in facts.items() if own.is_read}
    found = [*_files(group, facts)]
    found += [*_records(group, known, seen), *_histories(group, known, logs, seen, differing)]
    if settled:
        found += _homes_findings(group, facts, seen_homes or {})
    return found


def _new(group: str, kind: FindingKind, broker_id: int | None, detail: str, file: str, **more: Any) -> Finding:
    values: dict[str, Any] = {"verdict": Verdict.OWN_EVIDENCE, "messages": 0} | more
    return Finding(kind=kind, group=group, detail=detail, broker_id=broker_id, file=file, **values)


def _files(group: str, facts: Mapping[int, SideFacts]) -> Iterator[Finding]:
    for broker_id, own in facts.items():
        for path, problem in own.unreadable:
            source = next((other for other, its in facts.items() if path not in dict(its.unreadable)), None)
            kind = FindingKind.METADATA_UNREADABLE
            cause = Cause.NO_FILE if problem == _ONLY_BACKUP else None
            yield _new(group, kind, broker_id, problem, path, source_broker_id=source, cause=cause)


def _records(
    group: str, facts: Mapping[int, SideFacts], seen: Mapping[int, tuple[str, int, tuple[tuple[int, int], ...]]]
) -> Iterator[Finding]:
    kind = FindingKind.DISK_ID_WRONG
    with_record = [broker_id for broker_id, own in facts.items() if not own.record_problem]
    for broker_id, own in facts.items():
        seen_id, seen_run, _ = seen.get(broker_id, ("", 0, ()))
        if own.record_problem:
            is_due = own.record_problem != _NONE or with_record or seen_id or own.is_ours
            if is_due:
                yield _new(group, kind, broker_id, own.record_problem, REPLICA_FILE)
            continue
        twins = [other for other, its in facts.items() if other != broker_id and its.disk_id == own.disk_id]
        if twins:
            # The one whose file it is says its own broker id; an earlier run knows better.
            is_copy = own.own_broker_id != broker_id if not seen_id else seen_id != own.disk_id
            if is_copy:
                detail = f"it has the disk id of replica {twins[0]}, {own.disk_id}, and broker id {own.own_broker_id}"
                yield _new(group, kind, broker_id, detail, REPLICA_FILE)
            continue
        names = {its.broker_name for its in facts.values() if its.broker_name} - {own.broker_name}
        if own.broker_name and own.broker_name != group and group in names:
            detail = f"it says that the disk is of group {own.broker_name}"
            yield _new(group, kind, broker_id, detail, REPLICA_FILE)
            continue
        if own.broker_name == group and own.own_broker_id not in (-1, broker_id):
            detail = f"it says that the disk is that of broker {own.own_broker_id} of its group"
            yield _new(group, kind, broker_id, detail, REPLICA_FILE)
            continue
        told = [
            (each.run, other)
            for other, its in facts.items()
            if other != broker_id
            for each in its.remembered
            if each.disk_id == own.disk_id
        ]
        run, witness = max(told, default=(0, broker_id))
        if own.disk_id == seen_id and seen_run > own.run:
            detail = f"it counts {own.run} starts of this disk, and an earlier run saw {seen_run}: an older copy"
            yield _new(group, kind, broker_id, detail, REPLICA_FILE, verdict=Verdict.STORED_DIGEST)
        elif run > own.run:
            detail = f"it counts {own.run} starts of this disk, and replica {witness} remembers {run}: an older copy"
            verdict = Verdict.EPOCHS
            yield _new(group, kind, broker_id, detail, REPLICA_FILE, verdict=verdict, cause=Cause.OLDER_COPY)


def _histories(
    group: str,
    facts: Mapping[int, SideFacts],
    logs: Mapping[int, ReplicaFacts],
    seen: Mapping[int, tuple[str, int, tuple[tuple[int, int], ...]]],
    differing: Mapping[int, Sequence[LogRange]],
) -> Iterator[Finding]:
    kind = FindingKind.EPOCHS_WRONG
    holding = {
        broker_id: own
        for broker_id, own in facts.items()
        if broker_id in logs and logs[broker_id].end_offset > logs[broker_id].min_offset
    }
    with_epochs = [broker_id for broker_id, own in holding.items() if own.epochs]
    ends = [each.end_offset for own in facts.values() for each in own.remembered]
    group_end = max([*ends, *(logs[broker_id].end_offset for broker_id in holding)], default=0)
    is_whole = {each.broker_id for own in facts.values() for each in own.remembered} <= {-1, *logs}
    wrong: set[int] = set()
    for broker_id, own in holding.items():
        seen_epochs = seen[broker_id][2] if broker_id in seen and seen[broker_id][0] == own.disk_id else ()
        source = next((other for other in with_epochs if other != broker_id), None)
        detail, verdict = "", Verdict.OWN_EVIDENCE
        if own.epochs_problem:
            is_due = own.epochs_problem != _NONE or source is not None or seen_epochs or own.promised_epoch > 0
            detail = own.epochs_problem if is_due else ""
        elif lost := _lost_epochs(seen_epochs, own, logs[broker_id]):
            detail, verdict = lost, Verdict.STORED_DIGEST
        elif is_whole and own.epochs[-1][1] > group_end:
            epoch, start = own.epochs[-1]
            detail = f"epoch {epoch} begins at {start}, and no log of the group ever went beyond {group_end}"
        if detail:
            wrong.add(broker_id)
            yield _new(group, kind, broker_id, detail, EPOCH_FILE, source_broker_id=source, verdict=verdict)
    sound = {broker_id: own for broker_id, own in holding.items() if own.epochs and broker_id not in wrong}
    yield from _contradictions(group, sound, logs, seen, differing)


def _lost_epochs(seen: tuple[tuple[int, int], ...], own: SideFacts, log: ReplicaFacts) -> str:
    """What is there no more, or otherwise, of what an earlier run saw; empty: it all goes on from there."""
    if not seen:
        return ""
    last = own.history.last_epoch
    if seen[-1][0] > last:
        return f"it ends with epoch {last}, and an earlier run saw epoch {seen[-1][0]}"
    now = dict(own.epochs)
    for epoch, start in seen:
        if epoch in now and now[epoch] != start and start < log.end_offset:
            return f"epoch {epoch} begins at {now[epoch]}, and an earlier run saw it begin at {start}"
    # Without bytes an epoch goes, and with a log that is cut.
    for (epoch, start), (_, end) in pairwise(seen):
        if epoch not in now and start < end and epoch >= own.epochs[0][0] and end <= log.end_offset:
            return f"epoch {epoch} is not in it, and an earlier run saw it"
    return ""


def _contradictions(
    group: str,
    facts: Mapping[int, SideFacts],
    logs: Mapping[int, ReplicaFacts],
    seen: Mapping[int, tuple[str, int, tuple[tuple[int, int], ...]]],
    differing: Mapping[int, Sequence[LogRange]],
) -> Iterator[Finding]:
    """Files that say otherwise who wrote bytes which are equal."""
    told: set[int] = set()
    for broker_id, own in facts.items():
        for other_id, other in facts.items():
            if other_id <= broker_id or {broker_id, other_id} & told:
                continue
            start = max(logs[broker_id].min_offset, logs[other_id].min_offset)
            end = min(logs[broker_id].end_offset, logs[other_id].end_offset)
            place = _first_contradiction(own.epochs, other.epochs, start, end)
            if place is None:
                continue
            if went_apart([*differing.get(broker_id, ()), *differing.get(other_id, ())], LogRange(place, end)):
                continue
            victim, source, verdict = _whose_history(broker_id, other_id, facts, seen)
            at = f"of the byte at {place}"
            detail = (
                f"replica {broker_id} has epoch {_epoch_at(own.epochs, place)} {at}, and replica {other_id} epoch "
                f"{_epoch_at(other.epochs, place)}; the bytes behind it are those of one log"
            )
            told.add(broker_id if victim is None else victim)
            kind = FindingKind.EPOCHS_WRONG
            yield _new(group, kind, victim, detail, EPOCH_FILE, source_broker_id=source, verdict=verdict)


def _whose_history(
    first: int,
    second: int,
    facts: Mapping[int, SideFacts],
    seen: Mapping[int, tuple[str, int, tuple[tuple[int, int], ...]]],
) -> tuple[int | None, int | None, Verdict]:
    """Who is wrong, who is right, and how that is known."""
    pair = (first, second)
    known = {own: own in seen and seen[own][2] == facts[own].epochs for own in pair}
    if known[first] != known[second]:
        return (second, first, Verdict.STORED_DIGEST) if known[first] else (first, second, Verdict.STORED_DIGEST)
    older, newer = sorted(pair, key=lambda own: facts[own].history.last_epoch)
    last, due = facts[newer].history.last_epoch, facts[older].history.last_epoch
    if last == due:
        return None, None, Verdict.UNDECIDED
    # A history only grows: the shorter one is an older copy. Not so if nobody ever heard of the later epoch: whoever
    # takes its first byte of another one writes down before that whom it follows.
    if due <= _heard_epoch(facts) < last:
        return newer, older, Verdict.EPOCHS
    return older, newer, Verdict.EPOCHS


def _heard_epoch(facts: Mapping[int, SideFacts]) -> int:
    """The greatest epoch of which `replica.json` of any member tells; -1: there is none."""
    epochs = [-1]
    for own in facts.values():
        epochs += [own.promised_epoch] if not own.record_problem else []
        epochs += [epoch for each in own.remembered for epoch in (each.epoch, each.master_epoch)]
    return max(epochs)


def _first_contradiction(
    ours: tuple[tuple[int, int], ...], theirs: tuple[tuple[int, int], ...], start: int, end: int
) -> int | None:
    """The first byte in a range of which two histories name different epochs; the oldest epochs may be forgotten."""
    start = max(start, ours[0][1], theirs[0][1])
    for place in sorted({start, *(offset for _, offset in (*ours, *theirs))}):
        if start <= place < end and _epoch_at(ours, place) != _epoch_at(theirs, place):
            return place
    return None


def _epoch_at(epochs: Iterable[tuple[int, int]], offset: int) -> int:
    return max((epoch for epoch, start in epochs if start <= offset), default=0)


def _homes_findings(group: str, facts: Mapping[int, SideFacts], seen_homes: Mapping[int, str]) -> Iterator[Finding]:
    """Pair by pair; a replica that is named once is not named again."""
    path = f"config/{_HOMES}"
    kind = FindingKind.MESSAGE_GROUP_HOMES_DIFFER
    known = {broker_id: own for broker_id, own in facts.items() if own.is_ours and path not in dict(own.unreadable)}
    told: set[int] = set()
    for broker_id, other_id in combinations(known, 2):
        if {broker_id, other_id} & told:
            continue
        ours, theirs = known[broker_id].homes or {}, known[other_id].homes or {}
        lacks = {broker_id: _lost_homes(ours, theirs), other_id: _lost_homes(theirs, ours)}
        if not any(lacks.values()):
            continue
        is_seen = {own: seen_homes.get(own) == known[own].homes_digest for own in lacks}
        wrong, verdict = next((own for own, lost in lacks.items() if lost), None), Verdict.EPOCHS
        if is_seen[broker_id] != is_seen[other_id]:
            wrong, verdict = next(own for own in lacks if not is_seen[own]), Verdict.STORED_DIGEST
        elif all(lacks.values()):
            wrong, verdict = None, Verdict.UNDECIDED
        source = None if wrong is None else next(own for own in lacks if own != wrong)
        told |= {wrong} if wrong is not None else set(lacks)
        detail = lacks[broker_id] or lacks[other_id] if wrong is None else lacks[wrong]
        detail = detail or "it has names that the other one, which an earlier run saw, has not"
        pair = f"replicas {broker_id} and {other_id}: {detail}" if wrong is None else detail
        yield _new(group, kind, wrong, pair, path, source_broker_id=source, verdict=verdict)


def _lost_homes(ours: Mapping[str, list[str]], theirs: Mapping[str, list[str]]) -> str:
    """The first topic of which ours lacks a name that theirs has; empty: none."""
    for topic, names in theirs.items():
        if not set(names) <= set(ours.get(topic, ())):
            return f"{topic}: {', '.join(ours.get(topic, ())) or 'nothing'} instead of {', '.join(names)}"
    return ""
