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
from tandemmq.core.message.record_layout import CRC_MASK
from tandemmq.core.metadata.metadata_store import MetadataFile, read_java_json, write_java_json
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable, GroupOffset
from tandemmq.core.metadata.topic_table import TopicTable

__all__ = ["DAMAGES", "Damage", "Expected"]

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
    undecided_with_two: bool = False
    """With two replicas nobody may be able to tell which is right, unless an earlier run took digests."""
    benign: bool = False
    """Bytes differ, and it harms nobody."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that can go wrong."""

    name: str
    description: str
    apply: Callable[[Sequence[Path], random.Random], Expected] = field(repr=False)
    """Does it to the folders of a group, the master's first."""


class _Victim:
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
        """Where the body is in a record."""
        sys_flag = int.from_bytes(self.read(record.start_offset + 36, 4), "big")
        return 88 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)

    def body_bytes(self, record: RecordName) -> int:
        """Length of the body."""
        return int.from_bytes(self.read(record.start_offset + self.body_start(record) - 4, 4), "big")

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the log."""
        return bytes(self.store.read_log(offset, offset + length))

    def write(self, offset: int, data: bytes) -> None:
        """Bytes of the log, within one file."""
        segment_bytes = self.store.facts.segment_bytes
        write_at(self.folder / self.store.segment_path(offset), offset % segment_bytes, data)

    def flip_bit(self, offset: int, bit: int = 0) -> None:
        """One bit of the log."""
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


def _any(folders: Sequence[Path], chance: random.Random) -> _Victim:
    return _Victim(folders, chance.randrange(len(folders)))


def _slave(folders: Sequence[Path], chance: random.Random) -> _Victim:
    return _Victim(folders, chance.randrange(1, len(folders)))


# The log


def _flip_body(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _any(folders, chance)
    record = victim.choose(chance)
    place = record.start_offset + victim.body_start(record) + chance.randrange(victim.body_bytes(record))
    victim.flip_bit(place, chance.randrange(8))
    return victim.expected(FindingKind.BODY_CRC, records=[record])


def _flip_body_everywhere(folders: Sequence[Path], chance: random.Random) -> Expected:
    victims = [_Victim(folders, broker_id) for broker_id in range(len(folders))]
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
        victim = _any(folders, chance)
        record = victim.choose(chance)
        victim.flip_bit(record.start_offset + position, 1)
        return victim.expected(FindingKind.FIELD_DIFFERS, records=[record], undecided_with_two=True)

    return apply


def _flip_properties(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _any(folders, chance)
    record = victim.choose(chance)
    # The unique id's digits, away from separators and from the ConsumeQueue's and the index's own values.
    raw = victim.read(record.start_offset, record.end_offset - record.start_offset)
    at = raw.rfind(b"UNIQ_KEY\x01")
    assert at > 0, "every record has a unique id"
    victim.write(record.start_offset + at, b"UNIQ_KEX")
    return victim.expected(
        FindingKind.FIELD_DIFFERS,
        records=[record],
        undecided_with_two=True,
        consequences=frozenset({FindingKind.INDEX_ENTRY_WRONG}),
    )


def _flip_topic_length(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _any(folders, chance)
    record = victim.choose(chance)
    victim.flip_bit(record.start_offset + victim.body_start(record) + victim.body_bytes(record), 5)
    return victim.expected(FindingKind.FIELD_DIFFERS, FindingKind.TORN, records=[record])


def _flip_structure(position: int) -> Callable[[Sequence[Path], random.Random], Expected]:
    """A bit of the size or the magic code."""

    def apply(folders: Sequence[Path], chance: random.Random) -> Expected:
        victim = _any(folders, chance)
        record = victim.choose(chance)
        victim.flip_bit(record.start_offset + position, 4)
        return victim.expected(FindingKind.FIELD_DIFFERS, FindingKind.TORN, records=[record])

    return apply


def _zero_page(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _any(folders, chance)
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
    victim = _any(folders, chance)
    record = victim.choose(chance, body_bytes_min=200)
    half = record.start_offset + victim.body_start(record) + victim.body_bytes(record) // 2
    victim.write(half, b"\x5a" * (record.end_offset - half))
    return victim.expected(FindingKind.TORN, records=[record])


def _truncate_tail(folders: Sequence[Path], chance: random.Random) -> Expected:
    """The log lost its end, and nothing else did."""
    victim = _any(folders, chance)
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
    victim = _any(folders, chance)
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
    victim = _any(folders, chance)
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
    victim = _any(folders, chance)
    segments = sorted((victim.folder / "commitlog").iterdir())
    start, size = int(segments[1].name), victim.store.facts.segment_bytes
    lost = [record for record in victim.records if start <= record.start_offset < start + size]
    segments[1].unlink()
    return victim.expected(FindingKind.SEGMENT_MISSING, FindingKind.TAIL_MISSING, records=[lost[0], lost[-1]])


def _shorten_segment(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _any(folders, chance)
    path = min((victim.folder / "commitlog").iterdir())
    size = victim.store.facts.segment_bytes
    lost = [record for record in victim.records if size // 2 < record.end_offset <= size]
    if path.stat().st_nlink > 1:
        write_at(path, 0, b"")
    os.truncate(path, size // 2)
    return victim.expected(FindingKind.SEGMENT_SIZE, records=[lost[0], lost[-1]])


def _other_padding(folders: Sequence[Path], chance: random.Random) -> Expected:
    """What lies behind the blank of a file's end means nothing."""
    victim = _any(folders, chance)
    for before, behind in zip(victim.records, victim.records[1:]):
        if behind.start_offset - before.end_offset > 8:
            place = chance.randrange(before.end_offset + 8, behind.start_offset)
            victim.flip_bit(place, chance.randrange(8))
            return Expected(benign=True)
    raise AssertionError("no file ends with more than the head of a blank")


# ConsumeQueues and index


def _queue_entry(victim: _Victim, chance: random.Random) -> tuple[RecordName, Path, int]:
    """A record and where its entry is."""
    while True:
        record = victim.choose(chance)
        path = victim.store.queue_file(record.topic, record.queue_id, record.queue_offset)
        held = victim.store.read_queue(record.topic, record.queue_id, record.queue_offset, 1)
        if path is not None and held[:8] == record.start_offset.to_bytes(8, "big"):
            start = int(path.rpartition("/")[2])
            return record, victim.folder / path, record.queue_offset * _ENTRY_BYTES - start


def _wrong_queue_entry(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _any(folders, chance)
    record, path, position = _queue_entry(victim, chance)
    other = next(own for own in victim.records if own.start_offset != record.start_offset)
    write_at(path, position, other.start_offset.to_bytes(8, "big"))
    return victim.expected(FindingKind.QUEUE_ENTRY_WRONG, records=[record])


def _wrong_tags_code(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _any(folders, chance)
    record, path, position = _queue_entry(victim, chance)
    held = path.read_bytes()[position + 19]
    write_at(path, position + 19, bytes((held ^ 1,)))
    return victim.expected(FindingKind.QUEUE_ENTRY_WRONG, records=[record])


def _zero_queue_entry(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _any(folders, chance)
    record, path, position = _queue_entry(victim, chance)
    write_at(path, position, bytes(_ENTRY_BYTES))
    return victim.expected(FindingKind.QUEUE_ENTRY_MISSING, records=[record])


def _first_entry(data: bytes, *, begin: bytes) -> int:
    places = (at.start() - 4 for at in re.finditer(re.escape(begin), data))
    return next(place for place in places if place >= _ENTRY_BYTES and not any(data[place - _ENTRY_BYTES : place]))


def _index_entry(victim: _Victim, chance: random.Random) -> tuple[RecordName, Path, int]:
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
    victim = _any(folders, chance)
    record, path, position = _index_entry(victim, chance)
    # An entry of a key: those of tags some versions do not write, so that they are not missed; but this one is wrong.
    write_at(path, position + 4, (record.start_offset + 1).to_bytes(8, "big"))
    return victim.expected(FindingKind.INDEX_ENTRY_WRONG)


def _lost_index_slot(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A slot that leads nowhere: all its keys are lost to a search."""
    victim = _any(folders, chance)
    path = victim.folder / "index" / victim.store.index_files()[0].name
    data = path.read_bytes()
    used = [at for at in range(40, 2000, 4) if any(data[at : at + 4])]
    write_at(path, chance.choice(used), bytes(4))
    return victim.expected(FindingKind.INDEX_ENTRY_WRONG)


# Metadata


def _metadata(victim: _Victim, file: MetadataFile) -> Path:
    return victim.folder / "config" / file.value


def _rewrite(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def _stale_consumer_offset(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = _metadata(victim, MetadataFile.CONSUMER_OFFSETS)
    table = ConsumerOffsetTable()
    table.load_json(path.read_text())
    moved: GroupOffset = chance.choice([own for own in table if own.offset > 1])
    fields = read_java_json(path.read_text())
    offsets = {name: fields.object("offsetTable").offsets(name) for name in fields.object("offsetTable")}
    offsets[f"{moved.topic}@{moved.group}"][moved.queue_id] = moved.offset // 2
    _rewrite(path, write_java_json({"dataVersion": fields.raw("dataVersion"), "offsetTable": offsets}))
    return Expected(kinds=frozenset({FindingKind.CONSUMER_OFFSET_STALE}), broker_id=victim.broker_id, topic=moved.topic)


def _stale_delay_offset(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = _metadata(victim, MetadataFile.DELAY_OFFSETS)
    fields = read_java_json(path.read_text())
    offsets = fields.offsets("offsetTable")
    level = chance.choice([own for own, offset in offsets.items() if offset > 0])
    offsets[level] -= 1
    _rewrite(path, write_java_json({"dataVersion": fields.raw("dataVersion"), "offsetTable": offsets}))
    return Expected(kinds=frozenset({FindingKind.DELAY_OFFSET_STALE}), broker_id=victim.broker_id)


def _missing_topic(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = _metadata(victim, MetadataFile.TOPICS)
    table = TopicTable()
    table.load_json(path.read_text())
    named = {record.topic for record in victim.records}
    topic = chance.choice(sorted(own.topic_name for own in table if own.topic_name in named))
    fields = read_java_json(path.read_text())
    topics = fields.raw("topicConfigTable")
    del topics[topic]
    _rewrite(path, write_java_json({"dataVersion": fields.raw("dataVersion"), "topicConfigTable": topics}))
    return Expected(kinds=frozenset({FindingKind.TOPIC_MISSING}), broker_id=victim.broker_id, topic=topic)


def _other_topic(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = _metadata(victim, MetadataFile.TOPICS)
    named = sorted({record.topic for record in victim.records})
    text = path.read_text()
    topic = next(own for own in named if f'"topicName":"{own}"' in text)
    pattern = rf'("topicName":"{re.escape(topic)}",\s*"topicSysFlag":0,\s*"writeQueueNums":)(\d+)'
    changed = re.sub(pattern, r"\g<1>9", text)
    assert changed != text, "the topic is in the file"
    _rewrite(path, changed)
    return Expected(kinds=frozenset({FindingKind.TOPIC_DIFFERS}), broker_id=victim.broker_id, topic=topic)


def _other_group(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = _metadata(victim, MetadataFile.SUBSCRIPTION_GROUPS)
    text = path.read_text()
    _rewrite(path, text.replace('"retryMaxTimes":16', '"retryMaxTimes":3', 1))
    return Expected(kinds=frozenset({FindingKind.GROUP_DIFFERS}), broker_id=victim.broker_id)


def _missing_group(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = _metadata(victim, MetadataFile.SUBSCRIPTION_GROUPS)
    fields = read_java_json(path.read_text())
    groups = fields.raw("subscriptionGroupTable")
    del groups[chance.choice(sorted(groups))]
    _rewrite(path, write_java_json({"dataVersion": fields.raw("dataVersion"), "subscriptionGroupTable": groups}))
    return Expected(kinds=frozenset({FindingKind.GROUP_MISSING}), broker_id=victim.broker_id)


def _torn_metadata(folders: Sequence[Path], chance: random.Random) -> Expected:
    victim = _slave(folders, chance)
    path = _metadata(victim, MetadataFile.TOPICS)
    _rewrite(path, path.read_text()[: path.stat().st_size // 2])
    return Expected(kinds=frozenset({FindingKind.METADATA_UNREADABLE}), broker_id=victim.broker_id)


def _body_rewritten(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Another body with its right checksum: what a person, or a bug, writes."""
    victim = _any(folders, chance)
    record = victim.choose(chance)
    size = victim.body_bytes(record)
    body = bytes(byte ^ 0x20 for byte in victim.read(record.start_offset + victim.body_start(record), size))
    victim.write(record.start_offset + victim.body_start(record), body)
    victim.write(record.start_offset + 8, (zlib.crc32(body) & CRC_MASK).to_bytes(4, "big"))
    return victim.expected(FindingKind.FIELD_DIFFERS, records=[record], undecided_with_two=True)


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
        Damage("torn-metadata", "half of a slave's topics.json is missing", _torn_metadata),
    )
}
"""By name."""
