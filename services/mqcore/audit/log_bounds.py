"""Where the logs of a group's replicas begin and end: what they have in common, and tails that some of them lack.

A slave that is behind is no finding: a log may end anywhere, as long as it ends where its own other files say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from mqcore.audit.finding_list import FindingList
from mqcore.audit.findings import Finding, FindingKind, Verdict
from mqcore.audit.log_walk import LogPiece, PieceKind, walk_log
from mqcore.audit.record_names import RecordName, describe, read_name
from mqcore.audit.replica_files import ReplicaFacts
from mqcore.audit.replica_store import ReplicaStore
from mqcore.replication.log_extent import LogRange

__all__ = ["common_range", "extra_tails", "missing_tails"]

_LISTED_MAX: Final = 100
"""Messages of one tail that are named by themselves; one finding more counts the rest."""
_MASTER_ID: Final = 0


def common_range(facts: Iterable[ReplicaFacts]) -> LogRange:
    """What all replicas should hold; empty (start equal to end) if they have nothing in common."""
    known = list(facts)
    start = max((own.min_offset for own in known), default=0)
    return LogRange(start, max(start, min((own.end_offset for own in known), default=0)))


def missing_tails(stores: Mapping[int, ReplicaStore], *, watermark: int = 0) -> list[Finding]:
    """TAIL_MISSING of each replica whose log ends before `watermark`, up to which an earlier run verified it.

    What a replica's own ConsumeQueues know of is within its `end_offset` already, and is found by comparing.
    """
    findings = FindingList()
    for broker_id, store in stores.items():
        facts = store.facts
        if facts.end_offset >= watermark:
            continue
        source = _source(stores, broker_id, watermark)
        template = Finding(
            kind=FindingKind.TAIL_MISSING,
            group=facts.group,
            verdict=Verdict.STORED_DIGEST,
            detail=f"the log ends at {facts.end_offset}; an earlier run verified it up to {watermark}",
            broker_id=broker_id,
            source_broker_id=None if source is None else source.facts.broker_id,
        )
        findings.extend(_tail(source or store, LogRange(facts.end_offset, watermark), template))
    return list(findings.taken())


def extra_tails(stores: Mapping[int, ReplicaStore]) -> list[Finding]:
    """TAIL_EXTRA of each slave whose log goes on beyond its master's end.

    Facts of a running group must be taken of slaves first and of the master last: then no slave only seems ahead.
    """
    master = stores.get(_MASTER_ID)
    findings = FindingList()
    if master is None:
        return []
    end = master.facts.end_offset
    for broker_id, store in stores.items():
        if broker_id == _MASTER_ID or store.facts.end_offset <= end:
            continue
        template = Finding(
            kind=FindingKind.TAIL_EXTRA,
            group=store.facts.group,
            verdict=Verdict.MASTER_RULE,
            detail=f"the master's log ends at {end}, the slave's at {store.facts.end_offset}",
            broker_id=broker_id,
        )
        findings.extend(_tail(store, LogRange(max(end, store.facts.min_offset), store.facts.end_offset), template))
    return list(findings.taken())


def _source(stores: Mapping[int, ReplicaStore], broker_id: int, end_offset: int) -> ReplicaStore | None:
    """A replica that has the tail."""
    others = (own for other, own in stores.items() if other != broker_id)
    return next((own for own in others if own.facts.end_offset >= end_offset), None)


def _tail(store: ReplicaStore, tail: LogRange, template: Finding) -> Iterator[Finding]:
    """The messages of a tail, as the replica has them that holds it: the first by name, the rest in one."""
    names = list(_names(store, tail))
    for name in names[:_LISTED_MAX]:
        yield describe(template, name)
    if len(names) > _LISTED_MAX:
        first, last = names[_LISTED_MAX], names[-1]
        rest = replace(template, detail=f"{template.detail}; the rest of this tail", messages=len(names) - _LISTED_MAX)
        yield describe(rest, first, last=last)
    if not names:
        yield replace(template, start_offset=tail.start_offset, end_offset=tail.end_offset, messages=0)


def _names(store: ReplicaStore, tail: LogRange) -> Iterator[RecordName]:
    for piece in walk_log(store, tail.start_offset, tail.end_offset, in_batches=False):
        assert isinstance(piece, LogPiece), "not in batches"
        if piece.kind in (PieceKind.RECORD, PieceKind.BAD_BODY):
            name = read_name(store.read_log(piece.start_offset, piece.end_offset), 0, piece.start_offset)
            if name is not None:
                yield name
