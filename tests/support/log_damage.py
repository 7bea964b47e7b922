"""What readers of the log take for something else: a mark where none belongs, a number that its neighbours contradict.
The folders are those of `audit_stores.make_group`, ended in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from support.replica_folders import open_replica
from support.store_damage import Damage, Expected, write_at
from tandemmq.core.audit.findings import FindingKind
from tandemmq.core.audit.log_walk import LogPiece, PieceKind, walk_log
from tandemmq.core.audit.record_columns import RecordName, read_name
from tandemmq.core.audit.replica_store import ReplicaStore
from tandemmq.core.message.record_layout import BLANK, BLANK_MAGIC

_QUEUE_OFFSET_AT: Final = 20


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


_APPLIED: Final[dict[str, Callable[[Sequence[Path], random.Random], Expected]]] = {
    "early-mark": _early_mark,
    "wrong-queue-offset": _wrong_queue_offset,
}
LOG_DAMAGES: Final = {name: Damage(name, name.replace("-", " "), apply) for name, apply in _APPLIED.items()}
"""By name."""
