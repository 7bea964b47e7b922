"""What readers of the log take for something else: a mark where none belongs, a number that its neighbours contradict.
The folders are those of `audit_stores.make_group`, ended in order.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

from support.audit_stores import make_master
from support.replica_folders import open_replica
from support.store_damage import Damage, Expected, write_at
from tandemmq.core.audit.findings import FindingKind
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log
from tandemmq.core.audit.record_columns import RecordName, read_name
from tandemmq.core.audit.replica_store import ReplicaStore
from tandemmq.core.message.record_layout import (
    BLANK,
    BLANK_MAGIC,
    CRC_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)

_FLAG_AT: Final = 16
_QUEUE_ID_AT: Final = 12
_QUEUE_OFFSET_AT: Final = 20
_SYS_FLAG_AT: Final = 36
_STORE_TIMESTAMP_AT: Final = 56
_BODY_AT: Final = 88


def _names(store: ReplicaStore) -> list[RecordName]:
    pieces = walk_log(store, 0, store.facts.end_offset, in_batches=False)
    places = [
        (own.start_offset, own.end_offset)
        for own in pieces
        if isinstance(own, LogPiece) and own.kind is PieceKind.RECORD
    ]
    names = (read_name(store.read_log(start, end), 0, start) for start, end in places)
    return [name for name in names if name is not None]


def _early_mark(folders: Sequence[Path], chance: random.Random) -> Expected:
    """The mark of a file's end over a record: a reader passes over all that follows. Perhaps on all but one."""
    broker_ids = sorted(chance.sample(range(len(folders)), max(1, len(folders) - chance.randrange(1, 3))))
    store = open_replica(folders[0])
    place = chance.choice(_names(store)[100:-100]).start_offset
    mark = BLANK.pack(store.segment_end(place) - place, BLANK_MAGIC)
    for broker_id in broker_ids:
        write_at(folders[broker_id] / store.segment_path(place), place % store.facts.segment_bytes, mark)
    kinds = frozenset({FindingKind.TORN, FindingKind.FIELD_DIFFERS})
    return Expected(kinds, broker_ids[0], also=frozenset(broker_ids[1:]), findings_max=len(broker_ids))


def _wrong_queue_offset(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Of one message, on all replicas alike: the messages beside it say that, and nothing is lost."""
    store = open_replica(folders[0])
    topic = chance.choice(("orders", "logs"))
    # Parts of transactions have no place in the queue.
    names = [own for own in _names(store) if (own.topic, own.queue_id) == (topic, 1) and own.queue_offset]
    name = chance.choice(names[2:-2])
    wrong = chance.choice((0, 1, name.queue_offset - 1, name.queue_offset + 1, 1 << 40, -1))
    if wrong == name.queue_offset:
        wrong = 0
    place = name.start_offset + _QUEUE_OFFSET_AT
    for folder in folders:
        data = wrong.to_bytes(8, "big", signed=True)
        write_at(folder / store.segment_path(place), place % store.facts.segment_bytes, data)
    kinds = frozenset({FindingKind.FIELD_DIFFERS})
    consequences = frozenset({FindingKind.CHANGED_EVERYWHERE})
    return Expected(kinds, topic=topic, consequences=consequences, everywhere=True, findings_max=1)


def _other_files(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Some CommitLog files of a replica are those of another broker group."""
    broker_id = chance.randrange(len(folders))
    folder = folders[broker_id]
    other = folder.with_name("other")
    make_master(other, messages=900, seed=1 + chance.randrange(1 << 16))
    names = sorted(path.name for path in (folder / "commitlog").iterdir())
    first = chance.randrange(len(names) - 1)
    for name in names[first : chance.randrange(first + 1, len(names))]:
        shutil.copyfile(other / "commitlog" / name, folder / "commitlog" / name)
    shutil.rmtree(other)
    kinds = frozenset({FindingKind.RECORD_MISSING, FindingKind.TORN, FindingKind.ZEROED, FindingKind.TAIL_MISSING})
    # The first message of that log may have the id and the length of the first one of this.
    return Expected(kinds, broker_id, consequences=frozenset({FindingKind.FIELD_DIFFERS}), findings_max=2)


def _repeated_file(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A CommitLog file holds what another one of the same replica holds."""
    broker_id = chance.randrange(len(folders))
    files = sorted((folders[broker_id] / "commitlog").iterdir())[:-1]
    one, other = chance.sample(files, 2)
    data = one.read_bytes()
    other.unlink()
    other.write_bytes(data)
    return Expected(frozenset({FindingKind.RECORD_MISSING}), broker_id, findings_max=1)


def _crossed(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Zeros over some records of one replica, and within them a damaged body on another one."""
    one, other = chance.sample(range(len(folders)), 2)
    store = open_replica(folders[0])
    names = _names(store)
    at = chance.randrange(1, len(names) - 8)
    first, inner, last = names[at], names[at + chance.randrange(1, 4)], names[at + 4]
    place = inner.start_offset + _BODY_AT + 24
    write_at(folders[other] / store.segment_path(place), place % store.facts.segment_bytes, bytes((0x5A, 0xA5)))
    start, end = first.start_offset + chance.randrange(40), last.start_offset + chance.randrange(40)
    for begin, stop in ((start, min(end, store.segment_end(start))), (max(start, store.segment_end(start)), end)):
        if begin < stop:
            where = folders[one] / store.segment_path(begin)
            write_at(where, begin % store.facts.segment_bytes, bytes(stop - begin))
    kinds = {FindingKind.ZEROED, FindingKind.BODY_CRC, FindingKind.FIELD_DIFFERS, FindingKind.TORN}
    return Expected(frozenset(kinds), one, also=frozenset({other}), ranges=((start, end),), findings_max=5)


def _wiped_everywhere(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Zeros or other bytes over some records, on all replicas alike: queues and index know what was there."""
    store = open_replica(folders[0])
    names = _names(store)
    at = chance.randrange(1, len(names) - 20)
    first, last = names[at], names[at + chance.randrange(1, 12)]
    start = first.start_offset + chance.randrange(8)
    length = min(last.end_offset, store.segment_end(start)) - start
    content = bytes(length) if chance.random() < 0.6 else chance.randbytes(length)
    for folder in folders:
        write_at(folder / store.segment_path(start), start % store.facts.segment_bytes, content)
        if chance.random() < 0.2:
            shutil.rmtree(folder / "index")
    kinds = frozenset({FindingKind.ZEROED, FindingKind.TORN, FindingKind.FIELD_DIFFERS, FindingKind.BODY_CRC})
    consequences = frozenset({FindingKind.INDEX_ENTRY_MISSING, FindingKind.CHANGED_EVERYWHERE})
    ranges = ((first.start_offset, start + length),)
    return Expected(kinds, ranges=ranges, consequences=consequences, everywhere=True)


def _other_file_everywhere(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A CommitLog file of all replicas is one of another broker group; their queues and index are their own."""
    other = folders[0].with_name("other")
    make_master(other, messages=900, seed=1 + chance.randrange(1 << 16))
    path = chance.choice(sorted((folders[0] / "commitlog").iterdir())[:2])
    for folder in folders:
        shutil.copyfile(other / "commitlog" / path.name, folder / "commitlog" / path.name)
    shutil.rmtree(other)
    return Expected(frozenset({FindingKind.CHANGED_EVERYWHERE}), everywhere=True, findings_max=1)


def _lost_end_and_queues(folders: Sequence[Path], chance: random.Random) -> Expected:
    """The last records or files are gone, and so are the ConsumeQueues; the index is whole. Perhaps on all replicas."""
    broker_ids = list(range(len(folders))) if chance.random() < 0.5 else [chance.randrange(len(folders))]
    store = open_replica(folders[0])
    names = _names(store)
    start = chance.choice(names[len(names) // 2 : -2]).start_offset
    if chance.random() < 0.5:
        start = max(start, store.facts.end_offset // store.facts.segment_bytes * store.facts.segment_bytes)
    for broker_id in broker_ids:
        shutil.rmtree(folders[broker_id] / "consumequeue")
        for path in sorted((folders[broker_id] / "commitlog").iterdir()):
            if int(path.name) >= start and chance.random() < 0.5:
                path.unlink()
            elif store.segment_end(int(path.name)) > start:
                within = max(0, start - int(path.name))
                write_at(path, within, bytes(path.stat().st_size - within))
    kinds = {FindingKind.TAIL_MISSING, FindingKind.ON_FEWER_REPLICAS, FindingKind.SEGMENT_MISSING, FindingKind.ZEROED}
    return Expected(
        frozenset(kinds),
        broker_ids[0] if len(broker_ids) < len(folders) else None,
        also=frozenset(broker_ids),
        consequences=frozenset({FindingKind.QUEUE_ENTRY_MISSING, FindingKind.SEGMENT_EXTRA}),
        ranges=((start, store.facts.end_offset),),
        everywhere=len(broker_ids) == len(folders),
        findings_max=2,
    )


def _mark_over_zeros(folders: Sequence[Path], chance: random.Random) -> Expected:
    """The mark of a file's end where records were, and zeros behind it, as a writer leaves it: of some replicas or of
    all, within the log or at its end."""
    broker_ids = sorted(chance.sample(range(len(folders)), chance.randrange(1, len(folders) + 1)))
    store = open_replica(folders[0])
    size, end = store.facts.segment_bytes, store.facts.end_offset
    file_start = chance.choice(range(0, end, size))
    names = [own for own in _names(store) if file_start <= own.start_offset < file_start + size]
    # Two at least: one may be a part of a transaction, of which nothing else knows.
    first = chance.choice(names[-40:-3])
    for broker_id in broker_ids:
        room = file_start + size - first.start_offset
        mark = BLANK.pack(room, BLANK_MAGIC).ljust(room, b"\0")
        write_at(folders[broker_id] / store.segment_path(file_start), first.start_offset - file_start, mark)
    kinds = {FindingKind.ZEROED, FindingKind.TAIL_MISSING}
    return Expected(
        # A log that is longer by the mark alone is seen without reading.
        frozenset(kinds | {FindingKind.TAIL_EXTRA}),
        broker_ids[0] if len(broker_ids) < len(folders) else None,
        also=frozenset(broker_ids),
        ranges=((first.start_offset, names[-1].end_offset),),
        everywhere=len(broker_ids) == len(folders),
        findings_max=len(broker_ids),
    )


def _other_part_of_transaction(folders: Sequence[Path], chance: random.Random) -> Expected:
    """What was prepared, or rolled back, is a message now: its place in the queue is one that another message has."""
    broker_ids = list(range(len(folders))) if chance.random() < 0.5 else [chance.randrange(len(folders))]
    store = open_replica(folders[0])
    names = _names(store)

    def flag_of(name: RecordName) -> int:
        place = name.start_offset + _SYS_FLAG_AT
        return int.from_bytes(store.read_log(place, place + 4), "big")

    of_orders = [own for own in names if own.topic == "payments" and not flag_of(own) & TRANSACTION_PREPARED]
    first, last = of_orders[3].start_offset, of_orders[-3].start_offset
    parts = [own for own in names if own.topic == "payments" and first < own.start_offset < last]
    name = chance.choice([own for own in parts if flag_of(own) & TRANSACTION_ROLLBACK == TRANSACTION_PREPARED])
    data = (flag_of(name) ^ TRANSACTION_ROLLBACK).to_bytes(4, "big")
    for broker_id in broker_ids:
        place = name.start_offset + _SYS_FLAG_AT
        write_at(folders[broker_id] / store.segment_path(place), place % store.facts.segment_bytes, data)
    return Expected(
        frozenset({FindingKind.FIELD_DIFFERS}),
        broker_ids[0] if len(broker_ids) < len(folders) else None,
        also=frozenset(broker_ids),
        message_ids=(name.message_id,),
        ranges=((name.start_offset, name.end_offset),),
        consequences=frozenset({FindingKind.CHANGED_EVERYWHERE}),
        everywhere=len(broker_ids) == len(folders),
        undecidable=len(broker_ids) < len(folders),
        findings_max=1,
    )


def _message_twice(folders: Sequence[Path], chance: random.Random) -> Expected:
    """In the place of a message lies a copy of an older one of its queue, as if it had been put there."""
    broker_ids = list(range(len(folders))) if chance.random() < 0.5 else [chance.randrange(len(folders))]
    store = open_replica(folders[0])
    alike: dict[tuple[str, int, int], list[RecordName]] = {}
    for own in _names(store):
        if own.topic in ("orders", "payments", "logs") and own.queue_offset:
            alike.setdefault((own.topic, own.queue_id, own.end_offset - own.start_offset), []).append(own)
    older, name = chance.choice([own for own in alike.values() if len(own) > 1])[:2]
    copy, due = bytearray(store.read_log(*older[:2])), bytes(store.read_log(*name[:2]))
    for at in (_QUEUE_OFFSET_AT, _QUEUE_OFFSET_AT + 8, _STORE_TIMESTAMP_AT):
        copy[at : at + 8] = due[at : at + 8]
    for broker_id in broker_ids:
        path = folders[broker_id] / store.segment_path(name.start_offset)
        write_at(path, name.start_offset % store.facts.segment_bytes, bytes(copy))
    return Expected(
        frozenset({FindingKind.RECORD_MISSING, FindingKind.FIELD_DIFFERS}),
        broker_ids[0] if len(broker_ids) < len(folders) else None,
        also=frozenset(broker_ids),
        ranges=((name.start_offset, name.end_offset),),
        consequences=frozenset({FindingKind.CHANGED_EVERYWHERE}),
        everywhere=len(broker_ids) == len(folders),
        undecidable=len(broker_ids) < len(folders),
        findings_max=1,
    )


def _own_versions(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Records near each other of which one replica has what was written, each time another one, and each of the others
    a version of its own: the checksum fits, and other fields differ as well."""
    store = open_replica(folders[0])
    bodies = [
        own for own in _names(store) if own.topic in ("orders", "logs") and own.end_offset - own.start_offset > 300
    ]
    at = chance.randrange(1, len(bodies) - 16)
    named = sorted(chance.sample(bodies[at : at + 15], chance.randrange(1, 5)))
    victims: set[int] = set()
    for name in named:
        due = bytes(store.read_log(*name[:2]))
        path, within = store.segment_path(name.start_offset), name.start_offset % store.facts.segment_bytes
        wrong = [*range(len(folders))]
        wrong.remove(chance.choice(wrong))
        for broker_id in wrong:
            held = bytearray(due)
            body_at = _BODY_AT + 12 * (due[_SYS_FLAG_AT + 3] & 0x30).bit_count()  # Hosts of IPv6 are longer.
            size = int.from_bytes(due[body_at - 4 : body_at], "big")
            held[body_at : body_at + size] = chance.randbytes(size)
            held[8:12] = (crc32(held[body_at : body_at + size]) & CRC_MASK).to_bytes(4, "big")
            held[_FLAG_AT : _FLAG_AT + 4] = (broker_id + 5).to_bytes(4, "big")
            write_at(folders[broker_id] / path, within, bytes(held))
        victims.update(wrong)
    return Expected(
        frozenset({FindingKind.FIELD_DIFFERS}),
        also=frozenset(victims),
        ranges=tuple((own.start_offset, own.end_offset) for own in named),
        undecidable=True,
        findings_max=len(named) * (len(folders) - 1),
    )


def _lengthened_alike(folders: Sequence[Path], chance: random.Random) -> Expected:
    """All replicas have some sound records more than when they were stopped."""
    store = open_replica(folders[0])
    end = start = store.facts.end_offset
    queues = {(own.topic, own.queue_id): own.queue_offset for own in _names(store)}
    more = [
        own for own in _names(store) if own.topic in ("orders", "logs") and own.end_offset - own.start_offset < 2000
    ]
    chosen = chance.sample(more, chance.randrange(1, 6))
    for own in chosen:
        record = bytearray(store.read_log(*own[:2]))
        queues[own.topic, own.queue_id] += 1
        record[_QUEUE_OFFSET_AT : _QUEUE_OFFSET_AT + 8] = queues[own.topic, own.queue_id].to_bytes(8, "big")
        record[_QUEUE_OFFSET_AT + 8 : _QUEUE_OFFSET_AT + 16] = end.to_bytes(8, "big")
        record[_SYS_FLAG_AT + 3] &= ~TRANSACTION_ROLLBACK & 0xFF
        for folder in folders:
            write_at(folder / store.segment_path(end), end % store.facts.segment_bytes, bytes(record))
        end += len(record)
    return Expected(
        frozenset({FindingKind.QUEUE_ENTRY_MISSING}),
        topic=chosen[0].topic,
        ranges=((start, end),),
        everywhere=True,
        findings_max=1,
    )


def _skipped_alike(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A queue skips a place, on all replicas, in the log as in the queue."""
    store = open_replica(folders[0])
    names = [own for own in _names(store) if (own.topic, own.queue_id) == ("orders", 1)]
    place = chance.randrange(3, 60)
    behind = [own for own in names if own.queue_offset >= place and own.start_offset > names[2].start_offset]
    for folder in folders:
        for own in behind:
            at = own.start_offset + _QUEUE_OFFSET_AT
            data = (own.queue_offset + 1).to_bytes(8, "big")
            write_at(folder / store.segment_path(at), at % store.facts.segment_bytes, data)
        path = folder / "consumequeue" / "orders" / "1" / f"{0:020d}"
        held = path.read_bytes()
        write_at(path, 20 * place, bytes(20) + held[20 * place : -20])
    return Expected(
        frozenset({FindingKind.QUEUE_GAP}),
        topic="orders",
        # Where queues ended was written down before.
        consequences=frozenset({FindingKind.CHANGED_EVERYWHERE, FindingKind.CHECKPOINT_IMPOSSIBLE}),
        everywhere=True,
    )


def _other_queue_id(folders: Sequence[Path], chance: random.Random) -> Expected:
    """A record says that it is of another queue; its own ConsumeQueue knows better."""
    broker_id = chance.randrange(len(folders))
    store = open_replica(folders[broker_id])
    # Parts of transactions are in no queue.
    names = [own for own in _names(store) if own.topic == "orders" and own.queue_offset > 0]
    name = chance.choice(names[3:-3])
    place = name.start_offset + _QUEUE_ID_AT
    data = ((name.queue_id + chance.randrange(1, 4)) % 4).to_bytes(4, "big")
    write_at(folders[broker_id] / store.segment_path(place), place % store.facts.segment_bytes, data)
    ranges = ((name.start_offset, name.end_offset),)
    return Expected(frozenset({FindingKind.FIELD_DIFFERS}), broker_id, ranges=ranges, findings_max=1)


def _from_within_properties(folders: Sequence[Path], chance: random.Random) -> Expected:
    """Other bytes from the middle of a record's properties on: no checksum covers the first of them."""
    broker_id = chance.randrange(len(folders))
    store = open_replica(folders[broker_id])
    names = _names(store)
    at = chance.randrange(10, len(names) - 20)
    start = names[at].end_offset - chance.randrange(4, 20)
    end = min(names[at + chance.randrange(3, 9)].start_offset + 50, store.segment_end(start))
    data = bytes(byte ^ 0x11 for byte in store.read_log(start, end))
    write_at(folders[broker_id] / store.segment_path(start), start % store.facts.segment_bytes, data)
    kinds = {FindingKind.TORN, FindingKind.FIELD_DIFFERS, FindingKind.BODY_CRC, FindingKind.ZEROED}
    return Expected(frozenset(kinds), broker_id, ranges=((start, end),), findings_max=1)


def _many_fields(folders: Sequence[Path], chance: random.Random) -> Expected:
    """The flag of many records, one behind the other: a tool that went over them, or a bit that sticks."""
    broker_id = chance.randrange(len(folders))
    store = open_replica(folders[broker_id])
    names = _names(store)
    at = chance.randrange(10, len(names) - 80)
    chosen = [own for own in names[at : at + chance.randrange(30, 60)] if own.start_offset % 3]
    for own in chosen:
        place = own.start_offset + _FLAG_AT
        write_at(folders[broker_id] / store.segment_path(place), place % store.facts.segment_bytes, b"\0\0\0\7")
    ranges = ((chosen[0].start_offset, chosen[-1].end_offset),)
    kinds = frozenset({FindingKind.FIELD_DIFFERS})
    # Padding ends a stretch.
    return Expected(kinds, broker_id, ranges=ranges, undecidable=True, findings_max=2)


_APPLIED: Final[dict[str, Callable[[Sequence[Path], random.Random], Expected]]] = {
    "early-mark": _early_mark,
    "wrong-queue-offset": _wrong_queue_offset,
    "other-files": _other_files,
    "repeated-file": _repeated_file,
    "crossed": _crossed,
    "wiped-everywhere": _wiped_everywhere,
    "other-file-everywhere": _other_file_everywhere,
    "lost-end-and-queues": _lost_end_and_queues,
    "mark-over-zeros": _mark_over_zeros,
    "other-part-of-transaction": _other_part_of_transaction,
    "message-twice": _message_twice,
    "own-versions": _own_versions,
    "lengthened-alike": _lengthened_alike,
    "skipped-alike": _skipped_alike,
    "other-queue-id": _other_queue_id,
    "from-within-properties": _from_within_properties,
    "many-fields": _many_fields,
}
LOG_DAMAGES: Final = {name: Damage(name, name.replace("-", " "), apply) for name, apply in _APPLIED.items()}
"""By name."""
