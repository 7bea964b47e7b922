"""Stores written by the text of the format, by no code of the broker, or by RocketMQ itself, and changes of which it
is known what they changed: a judge of the audit that shares nothing with what it judges, nor with how other tests plant
damage.

Two or three changes at once, in different places: what is told of one must not hide another.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct, pack, unpack
from typing import Final, TypeAlias
from zlib import crc32

from support.store_samples import (
    COMMIT_LOG_FILE_BYTES,
    END_OFFSET,
    INDEX_SLOT_COUNT,
    commit_log_files,
    consume_queue_files,
)
from support.store_samples import STORE as JAVA_STORE
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


def right_clock(_number: int) -> int:
    """See WrittenStore: it is never set."""
    return 0


class WrittenStore:
    """Half a dozen topics with names and messages of every sort, in some CommitLog files."""

    file_bytes = FILE_BYTES

    def __init__(
        self,
        seed: int,
        *,
        messages: int = 250,
        lites: Sequence[str] = (),
        ahead_ms: Callable[[int], int] = right_clock,
    ) -> None:
        """`lites`: logical queues (LMQ) that messages of topic alpha are in as well. `ahead_ms`: how far the broker's
        clock goes before its clients' when it stores a message, by the message's number."""
        self._lites = lites
        self._ahead_ms = 0
        self._chance = random.Random(f"written/{seed}")
        self._now_ms = 1_700_000_000_000
        self.log = bytearray()
        self.records: list[WrittenRecord] = []
        self.queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self._next: dict[tuple[str, int], int] = {}
        for number in range(messages):
            self._ahead_ms = ahead_ms(number)
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
                if topic == "alpha" and self._lites:
                    places = (str(len(self.queues.get((name, 0), ()))) for name in self._lites)
                    pairs |= {
                        "INNER_MULTI_DISPATCH": ",".join(self._lites),
                        "INNER_MULTI_QUEUE_OFFSET": ",".join(places),
                    }
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
        stored_ms = self._now_ms + self._ahead_ms
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
            "storeTimestamp": pack(">q", stored_ms),
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
                code = stored_ms + _DELAY_MS if topic == _SCHEDULE else _java_hash(pairs.get("TAGS", ""))
                lites = [(lite, 0) for lite in self._lites if "INNER_MULTI_DISPATCH" in pairs]
                for entered in (queue, *lites):
                    self.queues.setdefault(entered, []).append((start, size, code))
        words = [pairs["UNIQ_KEY"], *pairs.get("KEYS", "").split()]
        keys = [f"{topic}#{word}" for word in words] + ([f"{topic}#T#{pairs['TAGS']}"] if "TAGS" in pairs else [])
        is_indexed = kind != _ROLLBACK
        self.records.append(WrittenRecord(start, start + size, fields, tuple(keys if is_indexed else ()), stored_ms))

    def write(self, folder: Path) -> None:
        """As a broker leaves it that was stopped in order."""
        for name in ("commitlog", "index", "config"):
            (folder / name).mkdir(parents=True)
        for start in range(0, len(self.log), FILE_BYTES):
            data = self.log[start : start + FILE_BYTES].ljust(FILE_BYTES, b"\0")
            (folder / "commitlog" / f"{start:020d}").write_bytes(data)
        for path, entries in self.queue_files().items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(entries)
        (folder / "index" / "20261121000000000").write_bytes(self.index())
        (folder / "checkpoint").write_bytes(self.checkpoint())
        self._write_tables(folder / "config")

    def before(self, count: int) -> WrittenStore:
        """The same with its first records alone."""
        first = copy.copy(self)
        first.records = self.records[:count]
        first.log = bytearray(self.log[: first.records[-1].end])
        end = len(first.log)
        first.queues = {
            queue: held
            for queue, entries in self.queues.items()
            if (held := [entry for entry in entries if entry[0] < end])
        }
        return first

    def queue_files(self) -> dict[str, bytes]:
        """Path below the store to content."""
        files = {}
        for (topic, queue_id), entries in self.queues.items():
            packed = b"".join(_ENTRY.pack(*entry) for entry in entries)
            for start in range(0, len(packed), _QUEUE_FILE_BYTES):
                piece = packed[start : start + _QUEUE_FILE_BYTES].ljust(_QUEUE_FILE_BYTES, b"\0")
                files[f"consumequeue/{topic}/{queue_id}/{start:020d}"] = piece
        return files

    def checkpoint(self) -> bytes:
        last = max(entries[-1][0] for entries in self.queues.values())
        newest_ms = self.records[-1].timestamp_ms
        return pack(">6q", newest_ms, newest_ms, 0, 0, 0, last).ljust(4096, b"\0")

    def index(self) -> bytes:
        entries = [(key, own) for own in self.records for key in own.keys]
        (_, first), (_, last) = entries[0], entries[-1]
        slots = [0] * _SLOTS
        data = bytearray(20)
        for number, (key, own) in enumerate(entries, 1):
            hashed = abs(_java_hash(key))
            seconds = max(0, own.timestamp_ms - first.timestamp_ms) // 1000
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
        offsets = {"T@g": {"0": 2, "1": len(self.queues["T", 1])}}
        for name, table in (
            ("topics.json", {"topicConfigTable": topics}),
            ("subscriptionGroup.json", {"subscriptionGroupTable": {"g": {"groupName": "g"}}}),
            ("consumerOffset.json", {"offsetTable": offsets}),
        ):
            (folder / name).write_text(json.dumps({"dataVersion": version} | table))


_FIELDS: Final = (
    ("totalSize", 4),
    ("magicCode", 4),
    ("bodyCRC", 4),
    ("queueId", 4),
    ("flag", 4),
    ("queueOffset", 8),
    ("physicalOffset", 8),
    ("sysFlag", 4),
    ("bornTimestamp", 8),
    ("bornHost", 8),
    ("storeTimestamp", 8),
    ("storeHost", 8),
    ("reconsumeTimes", 4),
    ("preparedTransactionOffset", 8),
)
"""Of a record with IPv4 hosts, up to its body."""


class JavaStore:
    """The files that RocketMQ 5.5 wrote. See tests/contract/samples/README.md."""

    file_bytes = COMMIT_LOG_FILE_BYTES

    def __init__(self) -> None:
        self.log = bytearray(b"".join(commit_log_files().values()))[:END_OFFSET]
        self.records: list[WrittenRecord] = []
        start = 0
        while start < END_OFFSET:
            size, magic = unpack(">II", self.log[start : start + 8])
            if magic != 0xCBD43194:
                self.records.append(_record_of(bytes(self.log[start : start + size]), start))
            start += size
        self.queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        for path, data in consume_queue_files().items():
            topic, queue_id = path.split("/")[1:3]
            entries = [entry for entry in _ENTRY.iter_unpack(data) if entry[1] > 0]
            self.queues.setdefault((topic, int(queue_id)), []).extend(entries)

    def write(self, folder: Path) -> None:
        shutil.copytree(JAVA_STORE, folder)


def _record_of(data: bytes, start: int) -> WrittenRecord:
    fields, at = {}, 0

    def take(name: str, length: int) -> int:
        nonlocal at
        fields[name] = (at, at + length)
        at += length
        return int.from_bytes(data[at - length : at], "big")

    for name, length in _FIELDS:
        take(name, length)
    take("body", take("bodyLength", 4))
    take("topic", take("topicLength", 1))
    take("properties", take("propertiesLength", 2))
    assert at == len(data), "the parts of a record add up"
    return WrittenRecord(start, start + at, fields, (), int.from_bytes(data[56:64], "big"))


Store: TypeAlias = WrittenStore | JavaStore


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


def place(path: Path, data: bytes) -> None:
    """Writes into a file that may be there, or makes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(data)


def log_file(folder: Path, offset: int, file_bytes: int = FILE_BYTES) -> Path:
    return folder / "commitlog" / f"{offset - offset % file_bytes:020d}"


def _change_log(store: Store, folder: Path, broker_id: int, chance: random.Random) -> Change:
    """The log's first file is left out: whether it expired nobody can tell."""
    file_bytes = store.file_bytes
    record = chance.choice([own for own in store.records[1:-1] if own.start >= file_bytes])
    path, within = log_file(folder, record.start, file_bytes), record.start % file_bytes
    data = path.read_bytes()
    file_start = record.start - within
    file_end = min(len(store.log), file_start + file_bytes)
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
        path.write_bytes((data[:within] + more + data[within + gone :]).ljust(file_bytes, b"\0")[:file_bytes])
        end = file_end
    elif what == "cut":
        os.truncate(path, chance.choice((1, within)))
        start, end = file_start, file_end
    elif what == "lost":
        path.unlink()
        start, end = file_start, file_end
    elif what == "renamed":
        path.rename(path.with_name(f"{file_start + chance.choice((1, file_bytes // 2, 7 * file_bytes)):020d}"))
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
            write_at(log_file(folder, other.start, file_bytes), other.start % file_bytes, held)
    return Change(what, broker_id, _OF_LOG, start, end)


def _change_queue(store: Store, folder: Path, broker_id: int, chance: random.Random) -> Change:
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


def _change_index(_: Store, folder: Path, broker_id: int, chance: random.Random) -> Change:
    (path,) = (folder / "index").iterdir()
    what = chance.choice(("noise", "cut", "longer", "lost"))
    if what == "noise":
        write_at(path, 40, chance.randbytes(path.stat().st_size - 40))
    elif what == "lost":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size + (20 if what == "longer" else -4000))
    return Change(f"{what} of the index", broker_id, "index-entry")


def _change_table(_: Store, folder: Path, broker_id: int, chance: random.Random) -> Change:
    path = chance.choice(sorted((folder / "config").iterdir()))
    data = path.read_bytes()
    what = chance.choice((b"", data[: chance.randrange(1, len(data) - 1)], chance.randbytes(99), bytes(99), None))
    if what is None:
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(what)
    return Change(f"{path.name} is {what!r:.20}", broker_id, "metadata-unreadable")


def _change_checkpoint(_: Store, folder: Path, broker_id: int, chance: random.Random) -> Change:
    path = folder / "checkpoint"
    what = chance.choice(("negative", "cut", "lost"))
    if what == "negative":
        write_at(path, 8 * chance.randrange(2), pack(">q", -5))
    elif what == "cut":
        os.truncate(path, 10)
    else:
        path.unlink()
    return Change(f"{what} checkpoint", broker_id, "checkpoint")


def _change_nothing(store: Store, folder: Path, broker_id: int, chance: random.Random) -> Change:
    """Hard links, symbolic links, holes where zeros are, what others leave."""
    for path in sorted((folder / "commitlog").iterdir())[:2]:
        os.link(path, folder.parent.parent.parent / f"{folder.parent.name}-{broker_id}-{path.name}")
        data = path.read_bytes().rstrip(b"\0")
        path.write_bytes(data)
        os.truncate(path, store.file_bytes)
    away = folder.parent.parent.parent / f"{folder.parent.name}-{broker_id}-away"
    name = chance.choice(("commitlog", "consumequeue", "config", "index"))
    (folder / name).rename(away)
    (folder / name).symlink_to(away)
    (away / ".DS_Store").write_bytes(b"x")
    (away / "lost+found").mkdir()
    return Change("harmless", broker_id, "")


def _change_java(store: Store, folder: Path, broker_id: int, chance: random.Random) -> Change:
    """What only files of RocketMQ's brokers have, or have otherwise."""
    what = chance.choice(sorted(_OF_JAVA))
    kinds, change = _OF_JAVA[what]
    return Change(what, broker_id, kinds, *(change(store, folder, chance) or ()))


def _java_index(folder: Path, at: int, data: bytes) -> None:
    (path,) = (folder / "index").iterdir()
    write_at(path, at, data)


def _java_slot(folder: Path, chance: random.Random, value: int) -> None:
    (path,) = (folder / "index").iterdir()
    slots = unpack(f">{INDEX_SLOT_COUNT}i", path.read_bytes()[40 : 40 + 4 * INDEX_SLOT_COUNT])
    used = [number for number, slot in enumerate(slots) if slot]
    write_at(path, 40 + 4 * chance.choice(used), pack(">i", value))


def _java_entry(folder: Path, chance: random.Random) -> None:
    (path,) = (folder / "index").iterdir()
    data = path.read_bytes()
    number = chance.randrange(1, int.from_bytes(data[36:40], "big"))
    at = 40 + 4 * INDEX_SLOT_COUNT + 20 * number + chance.randrange(20)
    write_at(path, at, bytes((data[at] ^ 1 << chance.randrange(8),)))


def _java_blank(store: Store, folder: Path, at: int, data: bytes) -> tuple[int, int]:
    start = max(own.end for own in store.records if own.end <= store.file_bytes)
    write_at(log_file(folder, 0, store.file_bytes), start + at, data)
    return start, store.file_bytes


def _java_behind_queue(store: Store, folder: Path, chance: random.Random) -> None:
    topic, queue_id = chance.choice(sorted(store.queues))
    path = max((folder / "consumequeue" / topic / str(queue_id)).iterdir())
    record = chance.choice(store.records)
    number = len(store.queues[topic, queue_id]) - int(path.name) // 20 + chance.choice((0, 1, 5))
    write_at(path, 20 * number, _ENTRY.pack(record.start, record.end - record.start, 0))


def _java_new(folder: Path, name: str, data: bytes) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def _java_replace(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / "config" / name).read_text()
    (folder / "config" / name).write_text(text.replace(old, new))


def _java_table(folder: Path, chance: random.Random) -> Path:
    return chance.choice(sorted((folder / "config").iterdir()))


def _java_logical_queue(store: Store, folder: Path, *, is_whole: bool) -> None:
    """As a record of a topic that is in a logical queue as well has them; nobody has such a record here."""
    name = "%LMQ%lite"
    place = folder / "consumequeue" / name / "0"
    place.mkdir(parents=True)
    record = store.records[-1]
    entry = b"" if is_whole else _ENTRY.pack(record.start, record.end - record.start, 0)
    (place / f"{0:020d}").write_bytes(entry.ljust(_QUEUE_FILE_BYTES, b"\0"))


_JavaChange: TypeAlias = Callable[[Store, Path, random.Random], tuple[int, int] | None]

_OF_JAVA: Final[dict[str, tuple[str, _JavaChange]]] = {
    # What harms.
    "slot of the index": ("index-entry", lambda _, folder, c: _java_slot(folder, c, c.choice((0, -1, 3999, 729)))),
    "count of slots": ("index-entry", lambda _, folder, c: _java_index(folder, 35, c.randbytes(1))),
    "count of entries": ("index-entry", lambda _, folder, c: _java_index(folder, 38, b"\x01")),
    "entry of the index": ("index-entry", lambda _, folder, c: _java_entry(folder, c)),
    "begin of the index": ("index-entry", lambda _, folder, c: _java_index(folder, 20, b"\x01")),
    "entry behind a queue": ("queue-entry", lambda store, folder, c: _java_behind_queue(store, folder, c)),
    "checkpoint": (
        "checkpoint",
        lambda _, folder, c: write_at(folder / "checkpoint", 8 * c.randrange(6), pack(">q", c.choice((-1, 1 << 62)))),
    ),
    "delay offset": (
        "offset-beyond delay",
        lambda _, folder, c: _java_replace(folder, "delayOffset.json", "3:1", "3:9"),
    ),
    "offset": (
        "offset-beyond consumer",
        lambda _, folder, c: _java_replace(folder, "consumerOffset.json", "0:2", "0:99"),
    ),
    "empty table": ("metadata-unreadable", lambda _, folder, c: os.truncate(_java_table(folder, c), 0)),
    "half a table": ("metadata-unreadable", lambda _, folder, c: os.truncate(_java_table(folder, c), 20)),
    "no topics": ("metadata-unreadable", lambda _, folder, c: (folder / "config" / "topics.json").unlink()),
    "no tables": ("metadata-unreadable", lambda _, folder, c: shutil.rmtree(folder / "config")),
    "topics as .bak": (
        "metadata-unreadable",
        lambda _, folder, c: _moved(folder / "config" / "topics.json", "topics.json.bak"),
    ),
    "magic of the blank": (_OF_LOG, lambda store, folder, c: _java_blank(store, folder, 4 + c.randrange(4), b"\x17")),
    "size of the blank": (_OF_LOG, lambda store, folder, c: _java_blank(store, folder, c.randrange(4), b"\x77")),
    "no queues": ("queue-entry", lambda _, folder, c: shutil.rmtree(folder / "consumequeue")),
    "a length of no entries": ("queue-entry", lambda store, folder, c: _java_odd_lengths(folder)),
    "foreign logical queue": (
        "queue-entry",
        lambda store, folder, c: _java_logical_queue(store, folder, is_whole=False),
    ),
    # What does not.
    "filler": ("", lambda store, folder, c: _java_blank(store, folder, 8 + c.randrange(300), b"\x17") and None),
    "bytes behind the log": (
        "",
        lambda store, folder, c: write_at(
            log_file(folder, len(store.log), store.file_bytes),
            len(store.log) % store.file_bytes + c.choice((0, 8, 9000)),
            c.randbytes(300),
        ),
    ),
    "file made ahead": (
        "",
        lambda store, folder, c: _java_new(folder, f"commitlog/{2 * store.file_bytes:020d}", bytes(store.file_bytes)),
    ),
    "empty logical queue": ("", lambda store, folder, c: _java_logical_queue(store, folder, is_whole=True)),
    "copies of tables": ("", lambda _, folder, c: _copied(_java_table(folder, c))),
    "timers": ("", lambda _, folder, c: _java_new(folder, f"timerlog/{0:020d}", c.randbytes(4096))),
    "timer wheel": ("", lambda _, folder, c: _java_new(folder, "timerwheel", c.randbytes(3200))),
    "filter bitmaps": ("", lambda _, folder, c: _java_new(folder, f"consumequeue_ext/sample/0/{0:020d}", bytes(4096))),
    "name of no file": (
        "",
        lambda _, folder, c: _java_new(
            folder, c.choice(("commitlog", "index", "consumequeue/sample/0")) + "/x.orig", b""
        ),
    ),
    "batch queue": (
        "",
        lambda _, folder, c: _java_new(folder, f"batchconsumequeue/sample-bcq/0/{0:020d}", bytes(4600)),
    ),
}


def _moved(path: Path, name: str) -> None:
    path.rename(path.with_name(name))


def _copied(path: Path) -> None:
    shutil.copyfile(path, path.with_name(f"{path.name}.bak"))


def _java_odd_lengths(folder: Path) -> None:
    for path in (folder / "consumequeue").glob("*/*/*"):
        os.truncate(path, _QUEUE_FILE_BYTES + 7)


_CHANGES: Final[dict[str, Callable[[Store, Path, int, random.Random], Change]]] = {
    "log": _change_log,
    "queue": _change_queue,
    "index": _change_index,
    "table": _change_table,
    "checkpoint": _change_checkpoint,
    "nothing": _change_nothing,
    "java": _change_java,
}


def change_replicas(store: Store, folders: Sequence[Path], chance: random.Random, *, count: int) -> list[Change]:
    """So many changes, each of another replica or of other files; of one replica by itself what it can tell alone."""
    if isinstance(store, JavaStore):  # One of a replica: many of them are of whole folders.
        kinds = ("log", "queue", "checkpoint", "nothing", "java", "java", "java")
        chosen = chance.sample(range(len(folders)), min(count, len(folders)))
        places = [(broker_id, chance.choice(kinds)) for broker_id in chosen]
    else:
        of_all = [kind for kind in _CHANGES if kind != "java" and (len(folders) > 1 or kind != "index")]
        places = [(broker_id, kind) for broker_id in range(len(folders)) for kind in of_all]
    # Links last: what is done to a file is done in its place.
    drawn = sorted(chance.sample(places, min(count, len(places))), key=lambda place: place[1] == "nothing")
    return [_CHANGES[kind](store, folders[broker_id], broker_id, chance) for broker_id, kind in drawn]


# What a run makes of it.


def problem_with(report: AuditReport, changes: Sequence[Change], store: Store, folders: Sequence[Path]) -> str:
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


def _problem_of_plan(report: AuditReport, store: Store, folders: Sequence[Path]) -> str:
    """It copies what is right over what is wrong, and nothing else."""
    for step in report.plan.steps:
        if step.action is RepairAction.COPY_RANGE:
            start, end = step.start_offset or 0, step.end_offset or 0
            due = bytes(store.log[start:end]).ljust(end - start, b"\0")
            held, replaced = (
                _held(folders[broker_id], start, end, store.file_bytes)
                for broker_id in (step.source_broker_id or 0, step.target_broker_id)
            )
            if held != due or replaced == due:
                return f"[{start}, {end}) is copied from {step.source_broker_id} to {step.target_broker_id}"
    return ""


def _held(folder: Path, start: int, end: int, file_bytes: int) -> bytes:
    parts = []
    while start < end:
        path, within = log_file(folder, start, file_bytes), start % file_bytes
        length = min(end - start, file_bytes - within)
        parts.append(path.read_bytes()[within : within + length] if path.is_file() else b"")
        start += length
    return b"".join(parts)


def set_clock(seed: int) -> Callable[[int], int]:
    """A broker's clock that is set forward and back, by hours or seconds, some times in a hundred messages."""
    chance = random.Random(f"clock/{seed}")
    times: list[int] = [0]

    def ahead_ms(number: int) -> int:
        while len(times) <= number:
            is_set = chance.random() < 0.04
            reach = chance.choice((5_000, 5_400_000, 40_000_000))
            times.append(chance.randrange(-reach, reach) if is_set else times[-1])
        return times[number]

    return ahead_ms
