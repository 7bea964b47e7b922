"""What can go wrong with the replicas of a group, done to their folders on purpose.

Each damage is done to stores that are equal and were ended in order, and says what an audit must find. Files with hard
links elsewhere are replaced by copies first.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from support.replica_folders import open_replica
from tandemmq.core.audit.findings import FindingKind
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log
from tandemmq.core.audit.record_columns import RecordName, read_name
from tandemmq.core.audit.replica_store import ReplicaStore
from tandemmq.core.delivery.journal import LeaseReplay
from tandemmq.core.message.record import SCHEDULE_TOPIC
from tandemmq.core.message.record_layout import CRC_MASK
from tandemmq.core.metadata.metadata_store import MetadataFile, read_java_json, write_java_json
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable, GroupOffset
from tandemmq.core.metadata.topic_table import TopicTable

_PAGE_BYTES: Final = 4096
_ENTRY_BYTES: Final = 20
_SLOT_WITH_ENTRIES_BYTES: Final = 4 + 4 * _ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class Expected:
    """What an audit must find."""

    kinds: frozenset[FindingKind] = frozenset()
    """At least one finding of one of these kinds names the replica; none must be found if it is empty."""
    broker_id: int | None = None
    """The damaged replica; None: all of them, or none."""
    message_ids: tuple[str, ...] = ()
    """Each is the first or the last message, or within the range, of some finding."""
    ranges: tuple[tuple[int, int], ...] = ()
    """Where those messages lie; a finding must reach into each of them."""
    topic: str | None = None
    """Of what is damaged."""
    consequences: frozenset[FindingKind] = frozenset()
    """Kinds that may be found besides, on the same replica."""
    everywhere: bool = False
    """All replicas are damaged alike: only a deep run finds it, or one that remembers."""
    undecidable: bool = False
    """Nobody may be able to tell which is right, however many are alike, unless an earlier run took digests."""
    benign: bool = False
    """Bytes differ, and it harms nobody."""
    also: frozenset[int] = frozenset()
    """Further replicas that are damaged alike."""
    findings_max: int = 3
    """With what follows from it, and may be told apart."""
    needs_memory: bool = False
    """Only an earlier run, or another replica, can know."""

    @property
    def victims(self) -> frozenset[int]:
        """Replicas that may be named."""
        return self.also if self.broker_id is None else self.also | {self.broker_id}


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that can go wrong."""

    name: str
    description: str
    apply: Callable[[Sequence[Path], random.Random], Expected] = field(repr=False)
    """Does it to the folders of a group, the master's first."""


class Victim:
    """One replica to be damaged: its records, and its files to be written."""

    def __init__(self, folders: Sequence[Path], broker_id: int) -> None:
        self.folder = folders[broker_id]
        self.broker_id = broker_id
        self.store: ReplicaStore = open_replica(self.folder, broker_id=broker_id)

    @cached_property
    def records(self) -> list[RecordName]:
        """All records in order; to be asked for before anything is damaged."""
        found = []
        facts = self.store.facts
        for piece in walk_log(self.store, facts.min_offset, facts.end_offset, in_batches=False):
            assert isinstance(piece, LogPiece), "not in batches"
            if piece.kind is PieceKind.RECORD:
                name = read_name(self.store.read_log(piece.start_offset, piece.end_offset), 0, piece.start_offset)
                assert name is not None, "a sound record has a name"
                found.append(name)
        return found

    def choose(self, chance: random.Random, *, body_bytes_min: int = 16) -> RecordName:
        """A record somewhere in the middle, with a body."""
        inner = self.records[1:-1]
        for _ in range(1000):
            record = chance.choice(inner)
            if self.body_bytes(record) >= body_bytes_min:
                return record
        raise AssertionError("no record has such a body")

    def body_start(self, record: RecordName) -> int:
        sys_flag = int.from_bytes(self.read(record.start_offset + 36, 4), "big")
        return 88 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)

    def body_bytes(self, record: RecordName) -> int:
        return int.from_bytes(self.read(record.start_offset + self.body_start(record) - 4, 4), "big")

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.store.read_log(offset, offset + length))

    def write(self, offset: int, data: bytes) -> None:
        """Bytes of the log, within one file."""
        segment_bytes = self.store.facts.segment_bytes
        write_at(self.folder / self.store.segment_path(offset), offset % segment_bytes, data)

    def flip_bit(self, offset: int, bit: int = 0) -> None:
        (byte,) = self.read(offset, 1)
        self.write(offset, bytes((byte ^ 1 << bit,)))

    def expected(self, *kinds: FindingKind, records: Sequence[RecordName] = (), **more: object) -> Expected:
        """What must be found of these records."""
        return Expected(
            kinds=frozenset(kinds),
            broker_id=self.broker_id,
            message_ids=tuple(record.message_id for record in records),
            ranges=tuple((record.start_offset, record.end_offset) for record in records),
            topic=records[0].topic if records else None,
            **more,  # type: ignore[arg-type]  # the other fields, by name
        )


def write_at(path: Path, position: int, data: bytes) -> None:
    """Writes into a file that may have other hard links, which keep their bytes."""
    if path.stat().st_nlink > 1:
        copy = path.with_name(f"{path.name}.copy")
        shutil.copyfile(path, copy)
        os.replace(copy, path)
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def any_replica(folders: Sequence[Path], chance: random.Random) -> Victim:
    return Victim(folders, chance.randrange(len(folders)))


def _slave(folders: Sequence[Path], chance: random.Random) -> Victim:
    return Victim(folders, chance.randrange(1, len(folders)))


# The log


def _flip_body(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    record = victim.choose(chance)
    place = record.start_offset + victim.body_start(record) + chance.randrange(victim.body_bytes(record))
    victim.flip_bit(place, chance.randrange(8))
    return victim.expected(FindingKind.BODY_CRC, records=[record])


def _flip_body_everywhere(folders: Sequence[Path], chance: random.Random) -> Expected:
    victims = [Victim(folders, broker_id) for broker_id in range(len(folders))]
    record = victims[0].choose(chance)
    place = record.start_offset + victims[0].body_start(record)
    for victim in victims:
        victim.flip_bit(place)
    return Expected(
        kinds=frozenset({FindingKind.BODY_CRC, FindingKind.CHANGED_EVERYWHERE}),
        message_ids=(record.message_id,),
        ranges=((record.start_offset, record.end_offset),),
        topic=record.topic,
        everywhere=True,
    )


def _flip_field(position: int) -> Callable[[Sequence[Path], random.Random], Expected]:
    """A bit of a field that no checksum covers and no structure depends on."""

    def apply(folders: Sequence[Path], chance: random.Random) -> Expected:
        victim = any_replica(folders, chance)
        record = victim.choose(chance)
        victim.flip_bit(record.start_offset + position, 1)
        return victim.expected(FindingKind.FIELD_DIFFERS, records=[record], undecidable=True)

    return apply


def _flip_properties(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    record = victim.choose(chance)
    # The unique id's digits, away from separators and from the ConsumeQueue's and the index's own values.
    raw = victim.read(record.start_offset, record.end_offset - record.start_offset)
    at = raw.rfind(b"UNIQ_KEY\x01")
    assert at > 0, "every record has a unique id"
    victim.write(record.start_offset + at, b"UNIQ_KEX")
    return victim.expected(
        FindingKind.FIELD_DIFFERS,
        records=[record],
        undecidable=True,
        consequences=frozenset({FindingKind.INDEX_ENTRY_WRONG}),
    )


def _flip_topic_length(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    record = victim.choose(chance)
    victim.flip_bit(record.start_offset + victim.body_start(record) + victim.body_bytes(record), 5)
    return victim.expected(FindingKind.FIELD_DIFFERS, FindingKind.TORN, records=[record])


def _flip_structure(position: int) -> Callable[[Sequence[Path], random.Random], Expected]:
    """A bit of the size or the magic code."""

    def apply(folders: Sequence[Path], chance: random.Random) -> Expected:
        victim = any_replica(folders, chance)
        record = victim.choose(chance)
        victim.flip_bit(record.start_offset + position, 4)
        return victim.expected(FindingKind.FIELD_DIFFERS, FindingKind.TORN, records=[record])

    return apply


def _zero_page(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    facts = victim.store.facts
    first_page, end_page = facts.min_offset // _PAGE_BYTES + 1, facts.end_offset // _PAGE_BYTES - 1
    hit: list[RecordName] = []
    # Not one that lies in the blank at the end of a file.
    while not hit:
        page = chance.randrange(first_page, end_page) * _PAGE_BYTES
        page_end = page + _PAGE_BYTES
        hit = [record for record in victim.records if record.start_offset < page_end and page < record.end_offset]
    victim.write(page, bytes(_PAGE_BYTES))
    return victim.expected(
        FindingKind.ZEROED, FindingKind.BODY_CRC, records=[hit[0]], consequences=frozenset({FindingKind.TORN})
    )


def _tear_record(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    record = victim.choose(chance, body_bytes_min=200)
    half = record.start_offset + victim.body_start(record) + victim.body_bytes(record) // 2
    victim.write(half, b"\x5a" * (record.end_offset - half))
    return victim.expected(FindingKind.TORN, records=[record])


def _truncate_tail(folders: Sequence[Path], chance: random.Random) -> Expected:
    """The log lost its end, and nothing else did."""
    victim = any_replica(folders, chance)
    count = chance.randrange(2, 8)
    lost = victim.records[-count:]
    end = victim.store.facts.end_offset
    start = max(lost[0].start_offset, end - end % victim.store.facts.segment_bytes)
    victim.write(start, bytes(end - start))
    lost = [record for record in lost if record.start_offset >= start]
    return victim.expected(FindingKind.TAIL_MISSING, records=lost[:1])


def _extend_tail(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A slave has a record that its master never had."""
    victim = _slave(folders, chance)
    end = victim.store.facts.end_offset
    last = victim.records[-1]
    record = bytearray(victim.read(last.start_offset, last.end_offset - last.start_offset))
    record[28:36] = end.to_bytes(8, "big")
    record[20:28] = (last.queue_offset + 1).to_bytes(8, "big")
    victim.write(end, bytes(record))
    return Expected(
        kinds=frozenset({FindingKind.TAIL_EXTRA}),
        broker_id=victim.broker_id,
        message_ids=(last.message_id,),
        ranges=((end, end + len(record)),),
        topic=last.topic,
        consequences=frozenset({FindingKind.QUEUE_ENTRY_MISSING}),
    )


def _swap_records(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    at = chance.randrange(1, len(victim.records) - 2)
    while victim.records[at].end_offset != victim.records[at + 1].start_offset:
        at -= 1
    first, second = victim.records[at : at + 2]
    one = victim.read(first.start_offset, first.end_offset - first.start_offset)
    other = victim.read(second.start_offset, second.end_offset - second.start_offset)
    victim.write(first.start_offset, other + one)
    return victim.expected(FindingKind.RECORDS_SWAPPED, records=[first, second])


def _remove_record(folders: Sequence[Path], chance: random.Random) -> Expected:
    """One record is gone and those behind it in the file have moved up."""
    victim = any_replica(folders, chance)
    segment_bytes = victim.store.facts.segment_bytes
    at = chance.randrange(1, len(victim.records) - 8)
    record = victim.records[at]
    segment_end = victim.store.segment_end(record.start_offset)
    behind = [own for own in victim.records[at + 1 :] if own.start_offset < segment_end]
    if len(behind) < 3:
        return _remove_record(folders, chance)
    end = min(segment_end, victim.store.facts.end_offset)
    rest = victim.read(record.end_offset, end - record.end_offset)
    victim.write(record.start_offset, rest + bytes(record.end_offset - record.start_offset))
    assert end <= record.start_offset - record.start_offset % segment_bytes + segment_bytes
    return victim.expected(
        FindingKind.RECORD_MISSING, records=[record], consequences=frozenset({FindingKind.RECORDS_SHIFTED})
    )


def _remove_segment(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    segments = sorted((victim.folder / "commitlog").iterdir())
    start, size = int(segments[1].name), victim.store.facts.segment_bytes
    lost = [record for record in victim.records if start <= record.start_offset < start + size]
    segments[1].unlink()
    return victim.expected(FindingKind.SEGMENT_MISSING, FindingKind.TAIL_MISSING, records=[lost[0], lost[-1]])


def _shorten_segment(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    path = min((victim.folder / "commitlog").iterdir())
    size = victim.store.facts.segment_bytes
    lost = [record for record in victim.records if size // 2 < record.end_offset <= size]
    if path.stat().st_nlink > 1:
        write_at(path, 0, b"")
    os.truncate(path, size // 2)
    return victim.expected(FindingKind.SEGMENT_SIZE, records=[lost[0], lost[-1]])


def _other_padding(folders: Sequence[Path], chance: random.Random) -> Expected:
    """What lies behind the blank of a file's end means nothing."""
    victim = any_replica(folders, chance)
    for before, behind in zip(victim.records, victim.records[1:]):
        if behind.start_offset - before.end_offset > 8:
            place = chance.randrange(before.end_offset + 8, behind.start_offset)
            victim.flip_bit(place, chance.randrange(8))
            return Expected(benign=True)
    raise AssertionError("no file ends with more than the head of a blank")


# ConsumeQueues and index


def queue_entry_of(victim: Victim, chance: random.Random) -> tuple[RecordName, Path, int]:
    while True:
        record = victim.choose(chance)
        path = victim.store.queue_file(record.topic, record.queue_id, record.queue_offset)
        held = victim.store.read_queue(record.topic, record.queue_id, record.queue_offset, 1)
        if path is not None and held[:8] == record.start_offset.to_bytes(8, "big"):
            start = int(path.rpartition("/")[2])
            return record, victim.folder / path, record.queue_offset * _ENTRY_BYTES - start


def _wrong_queue_entry(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    record, path, position = queue_entry_of(victim, chance)
    other = next(own for own in victim.records if own.start_offset != record.start_offset)
    write_at(path, position, other.start_offset.to_bytes(8, "big"))
    return victim.expected(FindingKind.QUEUE_ENTRY_WRONG, records=[record])


def _wrong_tags_code(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    record, path, position = queue_entry_of(victim, chance)
    held = path.read_bytes()[position + 19]
    write_at(path, position + 19, bytes((held ^ 1,)))
    return victim.expected(FindingKind.QUEUE_ENTRY_WRONG, records=[record])


def _zero_queue_entry(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    record, path, position = queue_entry_of(victim, chance)
    write_at(path, position, bytes(_ENTRY_BYTES))
    return victim.expected(FindingKind.QUEUE_ENTRY_MISSING, records=[record])


def _first_entry(data: bytes, *, begin: bytes) -> int:
    places = (at.start() - 4 for at in re.finditer(re.escape(begin), data))
    return next(place for place in places if place >= _ENTRY_BYTES and not any(data[place - _ENTRY_BYTES : place]))


def _index_entry(victim: Victim, chance: random.Random) -> tuple[RecordName, Path, int]:
    """A record and where one of its entries is in an IndexFile."""
    by_start = {record.start_offset: record for record in victim.records}
    path = victim.folder / "index" / victim.store.index_files()[0].name
    data = path.read_bytes()
    slots, rest = divmod(len(data) - 40, _SLOT_WITH_ENTRIES_BYTES)
    # RocketMQ's proportion, or else by what is there: entry 0 is zero, and entry 1 leads to where the header says.
    first = slots * 4 + _ENTRY_BYTES if rest == 0 else _first_entry(data[40:], begin=data[16:24])
    count = int.from_bytes(data[36:40], "big")
    while True:
        number = chance.randrange(2, count)
        position = 40 + first + (number - 1) * _ENTRY_BYTES
        offset = int.from_bytes(data[position + 4 : position + 12], "big")
        if offset in by_start:
            return by_start[offset], path, position


def _wrong_index_entry(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    record, path, position = _index_entry(victim, chance)
    # An entry of a key: those of tags some versions do not write, so that they are not missed; but this one is wrong.
    write_at(path, position + 4, (record.start_offset + 1).to_bytes(8, "big"))
    return victim.expected(FindingKind.INDEX_ENTRY_WRONG)


def _lost_index_slot(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A slot that leads nowhere: all its keys are lost to a search."""
    victim = any_replica(folders, chance)
    path = victim.folder / "index" / victim.store.index_files()[0].name
    data = path.read_bytes()
    used = [at for at in range(40, 2000, 4) if any(data[at : at + 4])]
    write_at(path, chance.choice(used), bytes(4))
    return victim.expected(FindingKind.INDEX_ENTRY_WRONG)


# Metadata


def metadata_path(victim: Victim, file: MetadataFile) -> Path:
    return victim.folder / "config" / file.value


def rewrite(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def _stale_consumer_offset(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = metadata_path(victim, MetadataFile.CONSUMER_OFFSETS)
    table = ConsumerOffsetTable()
    table.load_json(path.read_text())
    moved: GroupOffset = chance.choice([own for own in table if own.offset > 1])
    fields = read_java_json(path.read_text())
    offsets = {name: fields.object("offsetTable").offsets(name) for name in fields.object("offsetTable")}
    offsets[f"{moved.topic}@{moved.group}"][moved.queue_id] = moved.offset // 2
    rewrite(path, write_java_json({"dataVersion": fields.raw("dataVersion"), "offsetTable": offsets}))
    return Expected(kinds=frozenset({FindingKind.CONSUMER_OFFSET_STALE}), broker_id=victim.broker_id, topic=moved.topic)


def _stale_delay_offset(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = metadata_path(victim, MetadataFile.DELAY_OFFSETS)
    fields = read_java_json(path.read_text())
    offsets = fields.offsets("offsetTable")
    level = chance.choice([own for own, offset in offsets.items() if offset > 0])
    offsets[level] -= 1
    rewrite(path, write_java_json({"dataVersion": fields.raw("dataVersion"), "offsetTable": offsets}))
    return Expected(kinds=frozenset({FindingKind.DELAY_OFFSET_STALE}), broker_id=victim.broker_id)


def _missing_topic(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = metadata_path(victim, MetadataFile.TOPICS)
    table = TopicTable()
    table.load_json(path.read_text())
    named = {record.topic for record in victim.records}
    topic = chance.choice(sorted(own.topic_name for own in table if own.topic_name in named))
    fields = read_java_json(path.read_text())
    topics = fields.raw("topicConfigTable")
    del topics[topic]
    rewrite(path, write_java_json({"dataVersion": fields.raw("dataVersion"), "topicConfigTable": topics}))
    return Expected(kinds=frozenset({FindingKind.TOPIC_MISSING}), broker_id=victim.broker_id, topic=topic)


def _other_topic(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = metadata_path(victim, MetadataFile.TOPICS)
    named = sorted({record.topic for record in victim.records})
    text = path.read_text()
    topic = next(own for own in named if f'"topicName":"{own}"' in text)
    pattern = rf'("topicName":"{re.escape(topic)}",\s*"topicSysFlag":0,\s*"writeQueueNums":)(\d+)'
    changed = re.sub(pattern, r"\g<1>9", text)
    assert changed != text, "the topic is in the file"
    rewrite(path, changed)
    kinds = frozenset({FindingKind.TOPIC_DIFFERS})
    return Expected(kinds=kinds, broker_id=victim.broker_id, topic=topic, undecidable=True)


def _other_group(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = metadata_path(victim, MetadataFile.SUBSCRIPTION_GROUPS)
    text = path.read_text()
    rewrite(path, text.replace('"retryMaxTimes":16', '"retryMaxTimes":3', 1))
    return Expected(kinds=frozenset({FindingKind.GROUP_DIFFERS}), broker_id=victim.broker_id, undecidable=True)


def _missing_group(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = metadata_path(victim, MetadataFile.SUBSCRIPTION_GROUPS)
    fields = read_java_json(path.read_text())
    groups = fields.raw("subscriptionGroupTable")
    del groups[chance.choice(sorted(groups))]
    rewrite(path, write_java_json({"dataVersion": fields.raw("dataVersion"), "subscriptionGroupTable": groups}))
    return Expected(kinds=frozenset({FindingKind.GROUP_MISSING}), broker_id=victim.broker_id)


def _torn_metadata(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = metadata_path(victim, MetadataFile.TOPICS)
    rewrite(path, path.read_text()[: path.stat().st_size // 2])
    return Expected(kinds=frozenset({FindingKind.METADATA_UNREADABLE}), broker_id=victim.broker_id)


def _body_rewritten(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Another body with its right checksum: what a person, or a bug, writes."""
    victim = any_replica(folders, chance)
    record = victim.choose(chance)
    size = victim.body_bytes(record)
    body = bytes(byte ^ 0x20 for byte in victim.read(record.start_offset + victim.body_start(record), size))
    victim.write(record.start_offset + victim.body_start(record), body)
    victim.write(record.start_offset + 8, (zlib.crc32(body) & CRC_MASK).to_bytes(4, "big"))
    return victim.expected(FindingKind.FIELD_DIFFERS, records=[record], undecidable=True)


# Files that are gone, and what lies where nothing should


def remove_paths(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()


def _lose_log(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    lost = [victim.records[0], victim.records[-1]]
    remove_paths(victim.folder, "commitlog", *(("consumequeue", "index") if chance.random() < 0.5 else ()))
    return victim.expected(FindingKind.SEGMENT_MISSING, records=lost)


def _lose_newest_files(folders: Sequence[Path], chance: random.Random) -> Expected:
    """All files but the first; the ConsumeQueues still know what was in them."""
    victim = any_replica(folders, chance)
    # Not the one that is made ahead and holds nothing.
    newest = victim.records[-1].start_offset
    segments = [path for path in sorted((victim.folder / "commitlog").iterdir()) if int(path.name) <= newest]
    kept = chance.randrange(1, len(segments))
    lost = [record for record in victim.records if record.start_offset >= int(segments[kept].name)]
    for path in segments[kept:]:
        path.unlink()
    ahead = victim.folder / "commitlog" / f"{int(segments[-1].name) + victim.store.facts.segment_bytes:020d}"
    if chance.random() < 0.5 and not ahead.exists():
        # As a broker may have made it when it was stopped.
        ahead.touch()
        os.truncate(ahead, victim.store.facts.segment_bytes)
    kinds = (FindingKind.SEGMENT_MISSING, FindingKind.TAIL_MISSING, FindingKind.ON_FEWER_REPLICAS)
    return victim.expected(*kinds, records=[lost[0], lost[-1]] if lost else [])


def _lose_newest_files_and_queues(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A slave that knows nothing of what it lost."""
    victim = _slave(folders, chance)
    segments = sorted((victim.folder / "commitlog").iterdir())
    lost = [record for record in victim.records if record.start_offset >= int(segments[1].name)]
    for path in segments[1:]:
        path.unlink()
    remove_paths(victim.folder, "consumequeue", "index")
    return victim.expected(
        FindingKind.ON_FEWER_REPLICAS,
        FindingKind.TAIL_MISSING,
        records=[lost[0], lost[-1]],
        consequences=frozenset({FindingKind.QUEUE_ENTRY_MISSING, FindingKind.INDEX_ENTRY_MISSING}),
    )


def _lose_oldest_file(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = min((victim.folder / "commitlog").iterdir())
    end = int(path.name) + victim.store.facts.segment_bytes
    lost = [record for record in victim.records if record.start_offset < end]
    path.unlink()
    return victim.expected(FindingKind.SEGMENT_MISSING, records=[lost[0], lost[-1]])


def _lose_queues(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    record = queue_entry_of(victim, chance)[0]
    depth = chance.randrange(3)
    remove_paths(victim.folder, "/".join(("consumequeue", record.topic, str(record.queue_id))[: depth + 1]))
    return Expected(kinds=frozenset({FindingKind.QUEUE_ENTRY_MISSING}), broker_id=victim.broker_id)


def _lose_index(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    files = sorted((victim.folder / "index").iterdir())
    remove_paths(victim.folder, "index" if chance.random() < 0.4 else f"index/{chance.choice(files).name}")
    return Expected(kinds=frozenset({FindingKind.INDEX_ENTRY_MISSING}), broker_id=victim.broker_id)


def _entry_behind_end(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    record, _, _ = queue_entry_of(victim, chance)
    _, room_end = victim.store.queue_bounds(record.topic, record.queue_id)
    end = max(
        own.queue_offset for own in victim.records if (own.topic, own.queue_id) == (record.topic, record.queue_id)
    )
    if end + 1 >= room_end:
        return _entry_behind_end(folders, chance)
    place = end + 1 + (chance.randrange(room_end - end - 1) if chance.random() < 0.5 else 0)
    path = victim.store.queue_file(record.topic, record.queue_id, place)
    assert path is not None, "it has files"
    held = victim.store.read_queue(record.topic, record.queue_id, record.queue_offset, 1)
    write_at(victim.folder / path, place * _ENTRY_BYTES - int(path.rpartition("/")[2]), held)
    return Expected(kinds=frozenset({FindingKind.QUEUE_ENTRY_EXTRA}), broker_id=victim.broker_id, topic=record.topic)


def _stray_queue(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    record, path, _ = queue_entry_of(victim, chance)
    source, name = (path.parent, f"{record.topic}/97") if chance.random() < 0.5 else (path.parents[1], "nobody")
    shutil.copytree(source, victim.folder / "consumequeue" / name)
    return Expected(kinds=frozenset({FindingKind.QUEUE_ENTRY_EXTRA}), broker_id=victim.broker_id)


def _tags_code_of_nothing(folders: Sequence[Path], chance: random.Random) -> Expected:
    """As if it were an address into consumequeue_ext."""
    victim = any_replica(folders, chance)
    record, path, position = queue_entry_of(victim, chance)
    held = path.read_bytes()[position + 12]
    write_at(path, position + 12, bytes((0x80 | held & 0x7F,)) + chance.randbytes(3))
    return victim.expected(FindingKind.QUEUE_ENTRY_WRONG, records=[record])


def _overwrite_queue(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    record, path, position = queue_entry_of(victim, chance)
    size = min(chance.randrange(40, 4000), path.stat().st_size - position)
    write_at(path, position, chance.randbytes(size))
    return Expected(
        kinds=frozenset(
            {FindingKind.QUEUE_ENTRY_WRONG, FindingKind.QUEUE_ENTRY_MISSING, FindingKind.QUEUE_ENTRY_EXTRA}
        ),
        broker_id=victim.broker_id,
        topic=record.topic,
    )


def _overwrite_index(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    _, path, position = _index_entry(victim, chance)
    # Whole entries that are in use: behind the last one nothing means anything.
    count = min(chance.randrange(2, 60), (_index_end(path) - position) // _ENTRY_BYTES)
    size = max(1, count) * _ENTRY_BYTES
    write_at(path, position, bytes(size) if chance.random() < 0.5 else chance.randbytes(size))
    return Expected(
        kinds=frozenset({FindingKind.INDEX_ENTRY_WRONG, FindingKind.INDEX_ENTRY_MISSING}), broker_id=victim.broker_id
    )


def _index_end(path: Path) -> int:
    """Where the entries of an IndexFile end."""
    data = path.read_bytes()
    slots, rest = divmod(len(data) - 40, _SLOT_WITH_ENTRIES_BYTES)
    first = slots * 4 + _ENTRY_BYTES if rest == 0 else _first_entry(data[40:], begin=data[16:24])
    return 40 + first + (int.from_bytes(data[36:40], "big") - 1) * _ENTRY_BYTES


def _zero_index_slots(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    path = victim.folder / "index" / victim.store.index_files()[0].name
    data = path.read_bytes()
    used = next(at for at in range(40, len(data), 4) if any(data[at : at + 4]))
    write_at(path, used, bytes(chance.randrange(1, 200) * 4))
    return Expected(kinds=frozenset({FindingKind.INDEX_ENTRY_WRONG}), broker_id=victim.broker_id)


def _overwrite_log(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    record = victim.choose(chance)
    size = min(chance.randrange(2_000, 60_000), victim.records[-1].start_offset - record.start_offset)
    size = min(size, victim.store.segment_end(record.start_offset) - record.start_offset)
    # Zeros up to the end of what was written are a lost tail, if nothing is behind them.
    victim.write(record.start_offset, chance.randbytes(max(size, 200)))
    return victim.expected(FindingKind.TORN, records=[record])


def _swap_files(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    first, second = sorted((victim.folder / "commitlog").iterdir())[:2]
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    kinds = (FindingKind.RECORDS_SHIFTED, FindingKind.RECORDS_SWAPPED, FindingKind.RECORD_MISSING, FindingKind.TORN)
    return Expected(kinds=frozenset(kinds), broker_id=victim.broker_id)


def _rewrite_alike(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Another body with its right checksum, on all replicas but one."""
    right = chance.randrange(len(folders))
    victims = [Victim(folders, broker_id) for broker_id in range(len(folders)) if broker_id != right]
    record = victims[0].choose(chance)
    for victim in victims:
        size = victim.body_bytes(record)
        body = bytes(byte ^ 0x20 for byte in victim.read(record.start_offset + victim.body_start(record), size))
        victim.write(record.start_offset + victim.body_start(record), body)
        victim.write(record.start_offset + 8, (zlib.crc32(body) & CRC_MASK).to_bytes(4, "big"))
    return Expected(
        kinds=frozenset({FindingKind.FIELD_DIFFERS}),
        message_ids=(record.message_id,),
        ranges=((record.start_offset, record.end_offset),),
        topic=record.topic,
        undecidable=True,
        also=frozenset(victim.broker_id for victim in victims),
    )


# What metadata and the checkpoint say of a log that is whole


def change_everywhere(folders: Sequence[Path], file: MetadataFile, change: Callable[[str], str]) -> None:
    for folder in folders:
        path = folder / "config" / file.value
        before = path.read_text()
        rewrite(path, change(before))
        assert path.read_text() != before, f"{file.value} has changed"


def _records_without_topic(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = Victim(folders, 0)
    topic = queue_entry_of(victim, chance)[0].topic
    change_everywhere(folders, MetadataFile.TOPICS, lambda text: text.replace(f'"{topic}"', '"another"'))
    kinds = frozenset({FindingKind.TOPIC_MISSING, FindingKind.TABLE_OLDER})
    return Expected(kinds=kinds, topic=topic, everywhere=True)


def _too_few_queues(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = Victim(folders, 0)
    topic = chance.choice(sorted({own.topic for own in victim.records if own.queue_id and own.queue_id < 8}))
    if topic == SCHEDULE_TOPIC:
        return _too_few_queues(folders, chance)

    def change(text: str) -> str:
        fields = read_java_json(text)
        topics = fields.raw("topicConfigTable")
        topics[topic] |= {"readQueueNums": 1, "writeQueueNums": 1}  # type: ignore[operator]  # it is an object
        return write_java_json({"dataVersion": fields.raw("dataVersion"), "topicConfigTable": topics})

    change_everywhere(folders, MetadataFile.TOPICS, change)
    kinds = frozenset({FindingKind.TOPIC_DIFFERS, FindingKind.TABLE_OLDER})
    return Expected(kinds=kinds, topic=topic, everywhere=True)


def _offset_beyond_end(folders: Sequence[Path], chance: random.Random) -> Expected:
    table = ConsumerOffsetTable()
    table.load_json((folders[0] / "config" / MetadataFile.CONSUMER_OFFSETS.value).read_text())
    held = {(own.topic, own.queue_id) for own in Victim(folders, 0).records}
    moved = chance.choice([own for own in table if (own.topic, own.queue_id) in held])

    def change(text: str) -> str:
        fields = read_java_json(text)
        offsets = {name: fields.object("offsetTable").offsets(name) for name in fields.object("offsetTable")}
        offsets[f"{moved.topic}@{moved.group}"][moved.queue_id] = 1_000_000 + moved.offset
        return write_java_json({"dataVersion": fields.raw("dataVersion"), "offsetTable": offsets})

    change_everywhere(folders, MetadataFile.CONSUMER_OFFSETS, change)
    return Expected(kinds=frozenset({FindingKind.OFFSET_BEYOND_END}), topic=moved.topic, everywhere=True)


def _impossible_checkpoint(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    path = victim.folder / "checkpoint"
    match chance.randrange(4):
        case 0:
            path.unlink()
        case 1:
            path.write_bytes(path.read_bytes()[: chance.randrange(4096)])
        case 2:
            # A time, hours later than any message.
            later_ms = victim.records[-1].store_timestamp_ms + 10 * 3_600_000
            write_at(path, 8 * chance.randrange(3), later_ms.to_bytes(8, "big"))
        case _:
            write_at(path, 8 * chance.randrange(3, 6), (victim.store.facts.end_offset + 1).to_bytes(8, "big"))
    return Expected(kinds=frozenset({FindingKind.CHECKPOINT_IMPOSSIBLE}), broker_id=victim.broker_id)


def _empty_table(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = metadata_path(victim, MetadataFile.TOPICS)
    rewrite(path, '{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},"topicConfigTable":{}}')
    return Expected(kinds=frozenset({FindingKind.TOPIC_MISSING}), broker_id=victim.broker_id)


def _lose_table(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = any_replica(folders, chance)
    file = chance.choice([MetadataFile.TOPICS, MetadataFile.SUBSCRIPTION_GROUPS, MetadataFile.CONSUMER_OFFSETS])
    remove_paths(victim.folder, f"config/{file.value}", f"config/{file.value}.bak")
    return Expected(kinds=frozenset({FindingKind.METADATA_UNREADABLE}), broker_id=victim.broker_id)


def _lose_leases(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Both files, or one of them, or the end of one."""
    for folder in folders:
        # Stores of tests have none: as brokers leave them when nothing was received.
        if not any((folder / "config").glob("leases-*")):
            snapshot = LeaseReplay.of_files(b"", b"").to_snapshot()
            for name, content in (("snapshot", snapshot), ("journal", b"")):
                (folder / "config" / f"leases-0000000007.{name}").write_bytes(content)
    broker_id = chance.randrange(len(folders))
    files = sorted((folders[broker_id] / "config").glob("leases-*"))
    for path in files if chance.random() < 0.5 else [chance.choice(files)]:
        path.unlink()
    return Expected(kinds=frozenset({FindingKind.LEASES_MISSING}), broker_id=broker_id)


DAMAGES: Final[dict[str, Damage]] = {
    damage.name: damage
    for damage in (
        Damage("flipped-body-bit", "one bit of a body on one replica", _flip_body),
        Damage("flipped-body-bit-everywhere", "the same bit of a body on all replicas", _flip_body_everywhere),
        Damage("flipped-header-field", "a bit of storeTimestamp on one replica", _flip_field(60)),
        Damage("flipped-born-host", "a bit of bornTimestamp on one replica", _flip_field(44)),
        Damage("flipped-property", "a letter of a property's name on one replica", _flip_properties),
        Damage("flipped-topic-length", "a bit of the topic's length on one replica", _flip_topic_length),
        Damage("flipped-total-size", "a bit of the record's size on one replica", _flip_structure(2)),
        Damage("flipped-magic-code", "a bit of the magic code on one replica", _flip_structure(5)),
        Damage("rewritten-body", "another body with a right checksum on one replica", _body_rewritten),
        Damage("zeroed-page", "a page of a CommitLog file is zero", _zero_page),
        Damage("torn-record", "the second half of a record is something else", _tear_record),
        Damage("truncated-tail", "the last records are gone, their ConsumeQueue entries are not", _truncate_tail),
        Damage("extra-tail", "a slave has one record more than its master", _extend_tail),
        Damage("swapped-records", "two neighbours have changed places", _swap_records),
        Damage("missing-record", "a record is gone, and those behind it have moved up", _remove_record),
        Damage("missing-segment", "a CommitLog file is gone", _remove_segment),
        Damage("short-segment", "a CommitLog file has half its length", _shorten_segment),
        Damage("other-padding", "other bytes behind the blank of a file's end", _other_padding),
        Damage("wrong-queue-entry", "a ConsumeQueue entry leads to another message", _wrong_queue_entry),
        Damage("wrong-tags-code", "a ConsumeQueue entry has another tags code", _wrong_tags_code),
        Damage("zeroed-queue-entry", "a ConsumeQueue entry is zero", _zero_queue_entry),
        Damage("wrong-index-entry", "an index entry leads beside its message", _wrong_index_entry),
        Damage("lost-index-slot", "a slot of an IndexFile is zero", _lost_index_slot),
        Damage("stale-consumer-offset", "a slave has an older offset of a consumer group", _stale_consumer_offset),
        Damage("stale-delay-offset", "a slave has an older offset of a delay level", _stale_delay_offset),
        Damage("missing-topic", "a slave does not know a topic", _missing_topic),
        Damage("other-topic", "a slave has another number of queues of a topic", _other_topic),
        Damage("missing-group", "a slave does not know a consumer group", _missing_group),
        Damage("other-group", "a slave retries a consumer group less often", _other_group),
        Damage("lost-log", "a replica has no CommitLog at all", _lose_log),
        Damage("lost-newest-files", "the last CommitLog files are gone", _lose_newest_files),
        Damage("nearly-empty", "one CommitLog file is left, and no queues", _lose_newest_files_and_queues),
        Damage("lost-oldest-file", "a slave's first CommitLog file is gone, its master's is not", _lose_oldest_file),
        Damage("lost-queues", "consumequeue, a topic or a queue in it is gone", _lose_queues),
        Damage("lost-index", "index or a file in it is gone", _lose_index),
        Damage("entry-behind-end", "an entry behind the end of a ConsumeQueue", _entry_behind_end),
        Damage("stray-queue", "a ConsumeQueue that the log has nothing of", _stray_queue),
        Damage("tags-code-of-nothing", "a tags code that leads into no consumequeue_ext", _tags_code_of_nothing),
        Damage("overwritten-queue", "a part of a ConsumeQueue file is something else", _overwrite_queue),
        Damage("overwritten-index", "entries of an IndexFile are something else", _overwrite_index),
        Damage("zeroed-slots", "slots of an IndexFile are zero", _zero_index_slots),
        Damage("overwritten-log", "kilobytes of the log are something else", _overwrite_log),
        Damage("swapped-files", "two CommitLog files have each other's name", _swap_files),
        Damage("rewritten-alike", "all replicas but one were rewritten alike", _rewrite_alike),
        Damage("records-without-topic", "no replica knows a topic that has messages", _records_without_topic),
        Damage("too-few-queues", "a topic has fewer queues than the log", _too_few_queues),
        Damage("offset-beyond-end", "a group's offset is beyond the end of the queue", _offset_beyond_end),
        Damage("impossible-checkpoint", "the checkpoint says what cannot be", _impossible_checkpoint),
        Damage("empty-table", "a slave's topics.json holds nothing", _empty_table),
        Damage("lost-table", "a replica lacks a metadata file", _lose_table),
        Damage("lost-leases", "files of leases are gone", _lose_leases),
        Damage("torn-metadata", "half of a slave's topics.json is missing", _torn_metadata),
    )
}
"""By name."""
