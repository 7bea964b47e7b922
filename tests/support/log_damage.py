"""What readers of the log take for something else: a mark where none belongs, a number that its neighbours contradict.
The folders are those of `audit_stores.make_group`, ended in order.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from support.audit_stores import make_master
from support.replica_folders import open_replica
from support.store_damage import Damage, Expected, write_at
from tandemmq.core.audit.findings import FindingKind
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log
from tandemmq.core.audit.record_columns import RecordName, read_name
from tandemmq.core.audit.replica_store import ReplicaStore
from tandemmq.core.message.record_layout import BLANK, BLANK_MAGIC

_QUEUE_OFFSET_AT: Final = 20
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


_APPLIED: Final[dict[str, Callable[[Sequence[Path], random.Random], Expected]]] = {
    "early-mark": _early_mark,
    "wrong-queue-offset": _wrong_queue_offset,
    "other-files": _other_files,
    "repeated-file": _repeated_file,
    "crossed": _crossed,
    "wiped-everywhere": _wiped_everywhere,
    "other-file-everywhere": _other_file_everywhere,
    "lost-end-and-queues": _lost_end_and_queues,
}
LOG_DAMAGES: Final = {name: Damage(name, name.replace("-", " "), apply) for name, apply in _APPLIED.items()}
"""By name."""
