"""Stores written by the text of the format, by no code of the broker, and changes of which it is known what they
changed: a judge of the audit that shares nothing with what it judges, nor with how other tests plant damage.

Two or three changes at once, in different places: what is told of one must not hide another.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct, pack
from typing import Final
from zlib import crc32

from tandemmq.consistency.audit import AuditReport
from tandemmq.core.audit.findings import Finding
from tandemmq.core.audit.repair_plan import RepairAction
from tandemmq.core.audit.run_summary import ExitCode

FILE_BYTES: Final = 64 << 10
_QUEUE_FILE_BYTES: Final = 2000
_SLOTS, _ENTRIES = 500, 2000
_ENTRY: Final = Struct(">qiq")
_SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"
_DELAY_MS: Final = 10_000
_PREPARED, _COMMIT, _ROLLBACK, _INNER_BATCH = 0x4, 0x8, 0xC, 0xC0


def _java_hash(text: str) -> int:
    value = 0
    for unit in text:
        value = (31 * value + ord(unit)) & 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value


@dataclass(frozen=True, slots=True)
class WrittenRecord:
    start: int
    end: int
    fields: dict[str, tuple[int, int]]
    """Where each lies within the record."""
    keys: tuple[str, ...]
    timestamp_ms: int


class WrittenStore:
    """Half a dozen topics with names and messages of every sort, in some CommitLog files."""

    def __init__(self, seed: int, *, messages: int = 250) -> None:
        self._chance = random.Random(f"written/{seed}")
        self._now_ms = 1_700_000_000_000
        self.log = bytearray()
        self.records: list[WrittenRecord] = []
        self.queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self._next: dict[tuple[str, int], int] = {}
        for number in range(messages):
            self._message(number)

    def _message(self, number: int) -> None:
        pairs = {"UNIQ_KEY": f"01{number:032X}", "note": "ü" * self._chance.randrange(1, 9)}
        if number % 3:
            pairs |= {"KEYS": f"k{number} c{number % 7}", "TAGS": self._chance.choice("ABC")}
        body = self._chance.randbytes(self._chance.choice((0, 1, 90, 400, 900, 9000 if number % 50 == 0 else 30)))
        topic, queue_id = self._chance.choice((("T", 0), ("T", 1), ("alpha", 0), ("beta", 3), ("%LMQ%parent$x", 0)))
        match number % 20:
            case 3:
                self._put("%RETRY%g", 0, body, pairs | {"RETRY_TOPIC": topic})
            case 5:
                self._put("%DLQ%g", 0, body, pairs)
            case 7:
                self._put(_SCHEDULE, 2, body, pairs | {"DELAY": "3", "REAL_TOPIC": topic})
            case 9:
                self._put("RMQ_SYS_TRANS_HALF_TOPIC", 0, body, pairs | {"TRAN_MSG": "true", "REAL_TOPIC": topic})
            case 11:
                self._put(topic, queue_id, body, pairs, flags=_COMMIT)
            case 13:
                self._put(topic, queue_id, body, pairs, flags=self._chance.choice((_PREPARED, _ROLLBACK)))
            case 15:
                inner = {"UNIQ_KEY": pairs["UNIQ_KEY"], "INNER_NUM": "3"}
                self._put("batched", 0, body, inner, flags=_INNER_BATCH, places=3)
            case 17:
                self._put("%RETRY%" + "g" * 140, 0, body, pairs)
            case _:
                self._put(topic, queue_id, body, pairs, is_ipv6=number % 20 == 19)

    def _put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        pairs: dict[str, str],
        *,
        flags: int = 0,
        places: int = 1,
        is_ipv6: bool = False,
    ) -> None:
        properties = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()
        is_long = len(topic) > 127
        host = bytes(range(16)) if is_ipv6 else bytes((10, 0, 0, 1))
        size = 88 + 2 * (len(host) - 4) + len(body) + (2 if is_long else 1) + len(topic) + 2 + len(properties)
        room = FILE_BYTES - len(self.log) % FILE_BYTES
        if size + 8 > room:
            self.log += pack(">II", room, 0xCBD43194).ljust(room, b"\0")
        start = len(self.log)
        self._now_ms += self._chance.randrange(30)
        kind = flags & _ROLLBACK
        queue = (topic, queue_id)
        in_queue = kind in (0, _COMMIT)
        parts = {
            "totalSize": pack(">I", size),
            "magicCode": pack(">I", 0xDAA320AB if is_long else 0xDAA320A7),
            "bodyCRC": pack(">I", crc32(body) & 0x7FFF_FFFF),
            "queueId": pack(">I", queue_id),
            "flag": pack(">I", 0),
            "queueOffset": pack(">q", self._next.get(queue, 0) if in_queue else 0),
            "physicalOffset": pack(">q", start),
            "sysFlag": pack(">I", flags | (0x30 if is_ipv6 else 0)),
            "bornTimestamp": pack(">q", self._now_ms - 3),
            "bornHost": host + pack(">I", 40_000),
            "storeTimestamp": pack(">q", self._now_ms),
            "storeHost": host + pack(">I", 10_911),
            "reconsumeTimes": pack(">I", 0),
            "preparedTransactionOffset": pack(">q", 0),
            "bodyLength": pack(">I", len(body)),
            "body": body,
            "topicLength": pack(">H" if is_long else ">B", len(topic)),
            "topic": topic.encode(),
            "propertiesLength": pack(">H", len(properties)),
            "properties": properties,
        }
        fields, at = {}, 0
        for name, data in parts.items():
            fields[name] = (at, at + len(data))
            at += len(data)
        assert at == size, "the parts of a record add up"
        self.log += b"".join(parts.values())
        if in_queue:
            self._next[queue] = self._next.get(queue, 0) + places
            if not flags & 0x80:
                code = self._now_ms + _DELAY_MS if topic == _SCHEDULE else _java_hash(pairs.get("TAGS", ""))
                self.queues.setdefault(queue, []).append((start, size, code))
        words = [pairs["UNIQ_KEY"], *pairs.get("KEYS", "").split()]
        keys = [f"{topic}#{word}" for word in words] + ([f"{topic}#T#{pairs['TAGS']}"] if "TAGS" in pairs else [])
        is_indexed = kind != _ROLLBACK
        self.records.append(WrittenRecord(start, start + size, fields, tuple(keys if is_indexed else ()), self._now_ms))

    def write(self, folder: Path) -> None:
        """As a broker leaves it that was stopped in order."""
        for name in ("commitlog", "index", "config"):
            (folder / name).mkdir(parents=True)
        for start in range(0, len(self.log), FILE_BYTES):
            data = self.log[start : start + FILE_BYTES].ljust(FILE_BYTES, b"\0")
            (folder / "commitlog" / f"{start:020d}").write_bytes(data)
        for (topic, queue_id), entries in self.queues.items():
            place = folder / "consumequeue" / topic / str(queue_id)
            place.mkdir(parents=True)
            packed = b"".join(_ENTRY.pack(*entry) for entry in entries)
            for start in range(0, len(packed), _QUEUE_FILE_BYTES):
                piece = packed[start : start + _QUEUE_FILE_BYTES].ljust(_QUEUE_FILE_BYTES, b"\0")
                (place / f"{start:020d}").write_bytes(piece)
        (folder / "index" / "20261121000000000").write_bytes(self._index())
        last = max(entries[-1][0] for entries in self.queues.values())
        checkpoint = pack(">6q", self._now_ms, self._now_ms, 0, 0, 0, last)
        (folder / "checkpoint").write_bytes(checkpoint.ljust(4096, b"\0"))
        self._write_tables(folder / "config")

    def _index(self) -> bytes:
        entries = [(key, own) for own in self.records for key in own.keys]
        (_, first), (_, last) = entries[0], entries[-1]
        slots = [0] * _SLOTS
        data = bytearray(20)
        for number, (key, own) in enumerate(entries, 1):
            hashed = abs(_java_hash(key))
            seconds = (own.timestamp_ms - first.timestamp_ms) // 1000
            data += pack(">iqii", hashed, own.start, seconds, slots[hashed % _SLOTS])
            slots[hashed % _SLOTS] = number
        used = sum(slot > 0 for slot in slots)
        times = (first.timestamp_ms, last.timestamp_ms, first.start, last.start)
        head = pack(">qqqqii", *times, used, len(entries) + 1) + pack(f">{_SLOTS}i", *slots)
        return (head + data).ljust(40 + 4 * _SLOTS + 20 * _ENTRIES, b"\0")

    def _write_tables(self, folder: Path) -> None:
        version = {"counter": 7, "stateVersion": 0, "timestamp": 1_700_000_000_000}
        topics = {
            topic: {"perm": 6, "readQueueNums": 18, "writeQueueNums": 18, "topicName": topic, "topicSysFlag": 0}
            for topic, _ in self._next
        }
        offsets = {"T@g": {"0": 2, "1": self._next["T", 1]}}
        for name, table in (
            ("topics.json", {"topicConfigTable": topics}),
            ("subscriptionGroup.json", {"subscriptionGroupTable": {"g": {"groupName": "g"}}}),
            ("consumerOffset.json", {"offsetTable": offsets}),
        ):
            (folder / name).write_text(json.dumps({"dataVersion": version} | table))


# What happens to one replica.


@dataclass(frozen=True, slots=True)
class Change:
    what: str
    broker_id: int
    kinds: str
    """How the names begin of findings that may tell of it, separated by spaces; empty: it harms nothing."""
    start: int = 0
    end: int = 0
    """Bytes of the log that are wrong; both 0: another file is."""


_OF_LOG: Final = (
    "body-crc field-differs zeroed torn record-missing record-extra records-shifted records-swapped tail-missing "
    "segment-missing segment-size segment-extra changed-everywhere"
)
_FIELDS_TOLD_ALONE: Final = ("totalSize", "magicCode", "bodyCRC", "physicalOffset", "bodyLength", "topicLength", "body")


def write_at(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def log_file(folder: Path, offset: int) -> Path:
    return folder / "commitlog" / f"{offset - offset % FILE_BYTES:020d}"


def _change_log(store: WrittenStore, folder: Path, broker_id: int, chance: random.Random) -> Change:
    """The log's first file is left out: whether it expired nobody can tell."""
    record = chance.choice([own for own in store.records[1:-1] if own.start >= FILE_BYTES])
    path, within = log_file(folder, record.start), record.start % FILE_BYTES
    data = path.read_bytes()
    file_start = record.start - within
    file_end = min(len(store.log), file_start + FILE_BYTES)
    what = chance.choice(
        ("field", "field", "zeros", "noise", "remove", "insert", "cut", "lost", "renamed", "swap", "hole")
    )
    start, end = record.start, record.end
    if what == "field":
        name = chance.choice([own for own in _FIELDS_TOLD_ALONE if len(set(record.fields[own])) > 1])
        at = within + chance.randrange(*record.fields[name])
        write_at(path, at, bytes((data[at] ^ 1 << chance.randrange(8),)))
        what = name
    elif what in ("zeros", "noise"):
        length = min(chance.choice((700, 5000, 20_000)), file_end - record.start)
        write_at(path, within, bytes(length) if what == "zeros" else chance.randbytes(length))
        end = record.start + length
    elif what in ("remove", "insert"):
        gone = record.end - record.start if what == "remove" else 0
        more = b"" if what == "remove" else chance.randbytes(chance.choice((1, 8, 300)))
        path.write_bytes((data[:within] + more + data[within + gone :]).ljust(FILE_BYTES, b"\0")[:FILE_BYTES])
        end = file_end
    elif what == "cut":
        os.truncate(path, chance.choice((1, within)))
        start, end = file_start, file_end
    elif what == "lost":
        path.unlink()
        start, end = file_start, file_end
    elif what == "renamed":
        path.rename(path.with_name(f"{file_start + chance.choice((1, FILE_BYTES // 2, 7 * FILE_BYTES)):020d}"))
        start, end = file_start, file_end
    elif what == "hole":
        page = within - within % 4096
        path.write_bytes(data[:page])
        os.truncate(path, page + 4096)
        with path.open("ab") as file:
            file.write(data[page + 4096 :])
        start, end = file_start + page, min(file_start + page + 4096, file_end)
    else:
        other = next((own for own in store.records if own.end - own.start == end - start and own.start != start), None)
        held = bytes(store.log[start:end])
        write_at(path, within, bytes(store.log[other.start : other.end]) if other else bytes(end - start))
        if other:
            write_at(log_file(folder, other.start), other.start % FILE_BYTES, held)
    return Change(what, broker_id, _OF_LOG, start, end)


def _change_queue(store: WrittenStore, folder: Path, broker_id: int, chance: random.Random) -> Change:
    topic, queue_id = chance.choice(sorted(store.queues))
    place = folder / "consumequeue" / topic / str(queue_id)
    path = chance.choice(sorted(place.iterdir()))
    count = len(store.queues[topic, queue_id]) - int(path.name) // 20
    number = chance.randrange(min(count, _QUEUE_FILE_BYTES // 20))
    at = 20 * number
    start, size, _ = store.queues[topic, queue_id][int(path.name) // 20 + number]
    what = chance.choice(("bit", "zeros", "noise", "lost", "cut", "all-zeros", "longer", "topic-lost", "folder"))
    if what == "bit":
        at += chance.randrange(20)
        write_at(path, at, bytes((path.read_bytes()[at] ^ 1 << chance.randrange(8),)))
    elif what in ("zeros", "noise"):
        write_at(path, at, bytes(20) if what == "zeros" else chance.randbytes(20))
    elif what == "all-zeros":
        path.write_bytes(bytes(_QUEUE_FILE_BYTES))
    elif what == "cut":
        os.truncate(path, at)
    elif what == "longer":
        os.truncate(path, _QUEUE_FILE_BYTES + 20)
    elif what == "topic-lost":
        shutil.rmtree(place.parent)
    else:
        path.unlink()
        if what == "folder":
            path.mkdir()
    is_one = what in ("bit", "zeros", "noise")
    place_of_record = (start, start + size) if is_one else (0, 0)
    return Change(f"{what} of {path.relative_to(folder)}", broker_id, "queue-entry", *place_of_record)


def _change_index(_: WrittenStore, folder: Path, broker_id: int, chance: random.Random) -> Change:
    (path,) = (folder / "index").iterdir()
    what = chance.choice(("noise", "cut", "longer", "lost"))
    if what == "noise":
        write_at(path, 40, chance.randbytes(path.stat().st_size - 40))
    elif what == "lost":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size + (20 if what == "longer" else -4000))
    return Change(f"{what} of the index", broker_id, "index-entry")


def _change_table(_: WrittenStore, folder: Path, broker_id: int, chance: random.Random) -> Change:
    path = chance.choice(sorted((folder / "config").iterdir()))
    data = path.read_bytes()
    what = chance.choice((b"", data[: chance.randrange(1, len(data) - 1)], chance.randbytes(99), bytes(99), None))
    if what is None:
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(what)
    return Change(f"{path.name} is {what!r:.20}", broker_id, "metadata-unreadable")


def _change_checkpoint(_: WrittenStore, folder: Path, broker_id: int, chance: random.Random) -> Change:
    path = folder / "checkpoint"
    what = chance.choice(("negative", "cut", "lost"))
    if what == "negative":
        write_at(path, 8 * chance.randrange(2), pack(">q", -5))
    elif what == "cut":
        os.truncate(path, 10)
    else:
        path.unlink()
    return Change(f"{what} checkpoint", broker_id, "checkpoint")


def _change_nothing(_: WrittenStore, folder: Path, broker_id: int, chance: random.Random) -> Change:
    """Hard links, symbolic links, holes where zeros are, what others leave."""
    for path in sorted((folder / "commitlog").iterdir())[:2]:
        os.link(path, folder.parent.parent.parent / f"{folder.parent.name}-{broker_id}-{path.name}")
        data = path.read_bytes().rstrip(b"\0")
        path.write_bytes(data)
        os.truncate(path, FILE_BYTES)
    away = folder.parent.parent.parent / f"{folder.parent.name}-{broker_id}-away"
    name = chance.choice(("commitlog", "consumequeue", "config", "index"))
    (folder / name).rename(away)
    (folder / name).symlink_to(away)
    (away / ".DS_Store").write_bytes(b"x")
    (away / "lost+found").mkdir()
    return Change("harmless", broker_id, "")


_CHANGES: Final[dict[str, Callable[[WrittenStore, Path, int, random.Random], Change]]] = {
    "log": _change_log,
    "queue": _change_queue,
    "index": _change_index,
    "table": _change_table,
    "checkpoint": _change_checkpoint,
    "nothing": _change_nothing,
}


def change_replicas(store: WrittenStore, folders: Sequence[Path], chance: random.Random, *, count: int) -> list[Change]:
    """So many changes, each of another replica or of other files; of one replica by itself what it can tell alone."""
    kinds = [kind for kind in _CHANGES if len(folders) > 1 or kind != "index"]
    places = [(broker_id, kind) for broker_id in range(len(folders)) for kind in kinds]
    # Links last: what is done to a file is done in its place.
    drawn = sorted(chance.sample(places, min(count, len(places))), key=lambda place: place[1] == "nothing")
    return [_CHANGES[kind](store, folders[broker_id], broker_id, chance) for broker_id, kind in drawn]


# What a run makes of it.


def problem_with(report: AuditReport, changes: Sequence[Change], store: WrittenStore, folders: Sequence[Path]) -> str:
    """What is wrong with a deep run's report; empty: nothing."""
    harmful = [own for own in changes if own.kinds]
    findings = report.findings
    told = "; ".join(
        f"{own.kind} {own.broker_id} [{own.start_offset}, {own.end_offset}) {own.detail}" for own in findings
    )
    if report.summary.exit_code is not (ExitCode.DIVERGED if harmful else ExitCode.EQUAL):
        return f"exit {int(report.summary.exit_code)} after {changes}: {told}"
    for change in harmful:
        if not any(_tells_of(own, change) for own in findings) and not _is_beneath(change, harmful):
            return f"nothing is told of {change}: {told}"
    for own in findings:
        if not any(_tells_of(own, change) for change in harmful):
            return f"nothing changed that explains {own}; {changes}"
    if len(findings) > 2 * len(harmful) + 1:
        return f"{len(findings)} findings for {changes}: {told}"
    return _problem_of_plan(report, store, folders)


def _is_beneath(change: Change, harmful: Sequence[Change]) -> bool:
    """Whether it is of an entry whose record is gone as well: nobody knows what it should be."""
    return any(
        own is not change
        and own.broker_id == change.broker_id
        and own.kinds == _OF_LOG
        and own.start < change.end
        and change.start < own.end
        for own in harmful
    )


def _tells_of(finding: Finding, change: Change) -> bool:
    if finding.broker_id not in (None, change.broker_id) or not str(finding.kind).startswith(
        tuple(change.kinds.split())
    ):
        return False
    start, end = finding.start_offset, finding.end_offset
    if not change.end or start is None or end is None:
        return True
    return (start < change.end and change.start < end) or change.what == "swap"


def _problem_of_plan(report: AuditReport, store: WrittenStore, folders: Sequence[Path]) -> str:
    """It copies what is right over what is wrong, and nothing else."""
    for step in report.plan.steps:
        if step.action is RepairAction.COPY_RANGE:
            start, end = step.start_offset or 0, step.end_offset or 0
            due = bytes(store.log[start:end]).ljust(end - start, b"\0")
            held, replaced = (
                _held(folders[broker_id], start, end)
                for broker_id in (step.source_broker_id or 0, step.target_broker_id)
            )
            if held != due or replaced == due:
                return f"[{start}, {end}) is copied from {step.source_broker_id} to {step.target_broker_id}"
    return ""


def _held(folder: Path, start: int, end: int) -> bytes:
    parts = []
    while start < end:
        path, within = log_file(folder, start), start % FILE_BYTES
        length = min(end - start, FILE_BYTES - within)
        parts.append(path.read_bytes()[within : within + length] if path.is_file() else b"")
        start += length
    return b"".join(parts)
