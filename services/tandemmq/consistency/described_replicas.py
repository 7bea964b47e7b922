"""The replicas of a group as they describe themselves: whose store each is, what that makes of findings, and what the
next run is to know of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from tandemmq.consistency.planning import GroupMemory
from tandemmq.consistency.tasks import Replica
from tandemmq.core.audit.causes import ranges_of
from tandemmq.core.audit.equality import SeenReplica, is_empty
from tandemmq.core.audit.findings import OF_OFFSETS, Cause, Finding, FindingKind, Severity, Verdict
from tandemmq.core.audit.metadata_comparison import TableMark, groups_named, table_marks
from tandemmq.core.audit.side_files import SideFacts, forks, remembered_ends, went_apart
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.replication.log_history import EPOCH_FILE, REPLICA_FILE, LogRange

OF_TABLES: Final = frozenset(
    {
        FindingKind.TOPIC_MISSING,
        FindingKind.TOPIC_DIFFERS,
        FindingKind.GROUP_MISSING,
        FindingKind.GROUP_DIFFERS,
        FindingKind.ACCESS_DIFFERS,
        *OF_OFFSETS,
    }
)
_LOST_ENDS: Final = frozenset({FindingKind.TAIL_MISSING, FindingKind.ON_FEWER_REPLICAS})


@dataclass(frozen=True, slots=True)
class DescribedReplica:
    """A replica, and the texts of its metadata files."""

    replica: Replica
    metadata: Mapping[MetadataFile, str | None]
    side: SideFacts
    heads: Mapping[int, str]
    """See ReplicaStore.file_heads."""
    is_there: bool = True
    """Somebody answers, or a folder has anything of a store in it."""
    has_foreign_topics: bool = False
    """See metadata_comparison.is_foreign."""


def without_strangers(
    described: dict[int, DescribedReplica], group: str
) -> tuple[dict[int, DescribedReplica], dict[int, str]]:
    """A store of another broker group, as it names itself, none of whose CommitLog files begins as one of this
    group does, holds nothing of this group, and says nothing of it. Also by broker id: whose it is."""
    names = {broker_id: _group_of(found) for broker_id, found in described.items()}
    own = [found for broker_id, found in described.items() if names[broker_id] == group]
    strangers: dict[int, str] = {}
    for broker_id, found in described.items():
        heads = [(head, its.heads.get(at)) for its in own for at, head in found.heads.items() if at in its.heads]
        if names[broker_id] not in ("", group) and heads and not any(one == other for one, other in heads):
            strangers[broker_id] = names[broker_id]
    known = {broker_id: _as_empty(found) if broker_id in strangers else found for broker_id, found in described.items()}
    return known, strangers


def _group_of(described: DescribedReplica) -> str:
    """The broker group that a store says it is of; empty: it does not."""
    named = groups_named(described.metadata.get(MetadataFile.TOPICS) or "")
    return described.side.broker_name or (named[0] if len(named) == 1 else "")


def _as_empty(described: DescribedReplica) -> DescribedReplica:
    """The same without log, tables and what lies beside them."""
    facts = described.replica.facts
    nothing = replace(facts, end_offset=facts.min_offset, holes=(), disk_id="", queued_from=None)
    side = SideFacts(facts.broker_id, is_read=False)
    return DescribedReplica(replace(described.replica, facts=nothing), dict.fromkeys(MetadataFile), side, {})


def of_stranger(finding: Finding, strangers: Mapping[int, str]) -> Finding:
    name = strangers.get(-1 if finding.broker_id is None else finding.broker_id)
    if name is None or finding.cause is not Cause.NO_LOG:
        return finding
    what = f"the store is one of broker group {name}, by its own names and by all of its CommitLog files"
    return replace(finding, detail=finding.detail.replace("the replica has no CommitLog", what))


def other_files(described: Iterable[DescribedReplica]) -> list[LogRange]:
    """CommitLog files that do not begin alike in all replicas that have them."""
    heads: dict[int, set[str]] = {}
    size = 0
    for found in described:
        size = max(size, found.replica.facts.segment_bytes)
        for offset, head in found.heads.items():
            heads.setdefault(offset, set()).add(head)
    return [LogRange(offset, offset + size) for offset, versions in heads.items() if len(versions) > 1]


def by_epochs(findings: Sequence[Finding], described: Mapping[int, DescribedReplica]) -> list[Finding]:
    """Where two logs went different ways, the later epoch is the group's: whatever differs there is one tail."""
    facts = {broker_id: found.side for broker_id, found in described.items()}
    logs = {broker_id: found.replica.facts for broker_id, found in described.items()}
    kept = list(findings)
    for fork in forks(facts, logs):
        end = logs[fork.broker_id].end_offset
        inside = [
            own
            for own in kept
            if own.start_offset is not None
            and fork.start_offset <= own.start_offset < end
            and own.broker_id in (None, fork.broker_id, fork.source_broker_id)
        ]
        # What all of them held when it was verified is no tail that may be cut.
        is_verified = any(own.verdict is Verdict.STORED_DIGEST and own.broker_id != fork.broker_id for own in inside)
        common = LogRange(fork.start_offset, min(end, logs[fork.source_broker_id].end_offset))
        is_apart = common.end_offset <= common.start_offset or went_apart(ranges_of(None, inside), common)
        if not inside or is_verified or not is_apart:
            continue
        first = min(inside, key=lambda own: own.start_offset or 0)
        kept = [own for own in kept if own not in inside]
        kept.append(
            replace(
                first,
                kind=FindingKind.TAIL_EXTRA,
                verdict=Verdict.EPOCHS,
                broker_id=fork.broker_id,
                source_broker_id=fork.source_broker_id,
                start_offset=fork.start_offset,
                end_offset=end,
                messages=max(own.messages for own in inside),
                file=None,
                detail=f"from {fork.start_offset} on it has what the master of epoch {fork.epoch} wrote, and the group "
                f"went on otherwise in epoch {fork.later_epoch}: it keeps and cuts this tail at its next start",
            )
        )
    return kept


def of_older_copies(
    findings: Sequence[Finding], replicas: Mapping[int, Replica], master_id: int | None
) -> list[Finding]:
    """A disk that was set back lacks the end that its log had. If it is the master's, no slave has too much, nor lost
    the oldest files, which expired since."""
    found = list(findings)
    for older in [own for own in found if own.cause is Cause.OLDER_COPY]:
        if older.broker_id == master_id:
            found = [own for own in found if own.broker_id == master_id or not _is_expired_since(own, replicas)]
        for at, own in enumerate(found):
            is_own_end = own.broker_id == older.broker_id and own.kind in _LOST_ENDS
            is_beyond = own.kind is FindingKind.TAIL_EXTRA and own.verdict is not Verdict.EPOCHS
            if not is_own_end and not (is_beyond and older.broker_id == master_id):
                continue
            holders = (key for key, replica in replicas.items() if replica.facts.end_offset >= (own.end_offset or 0))
            found[at] = replace(
                own,
                kind=FindingKind.TAIL_MISSING,
                verdict=own.verdict if own.verdict is Verdict.STORED_DIGEST else older.verdict,
                broker_id=older.broker_id,
                source_broker_id=own.source_broker_id if is_own_end else min(holders, default=None),
                detail=f"{own.detail}; {REPLICA_FILE}: {older.detail}, so that all of the disk was set back",
            )
            found.remove(older)
            break
    return found


def _is_expired_since(finding: Finding, replicas: Mapping[int, Replica]) -> bool:
    """Whether all that tells of a replica's oldest files that these are lost is that its master still has them."""
    own = replicas.get(-1 if finding.broker_id is None else finding.broker_id)
    is_first = own is not None and finding.end_offset == own.facts.min_offset
    return is_first and finding.kind is FindingKind.SEGMENT_MISSING and finding.verdict is Verdict.OWN_EVIDENCE


def tables_gone(
    group: str, described: Mapping[int, DescribedReplica], seen: Mapping[int, Mapping[str, TableMark]]
) -> Iterable[Finding]:
    """Tables that no replica has, and an earlier run saw; topics where the log has messages."""
    for file in MetadataFile:
        is_told = any(f"config/{file.value}" in dict(found.side.unreadable) for found in described.values())
        if is_told or any(found.metadata.get(file) for found in described.values()):
            continue
        is_seen = any(file.value in marks for marks in seen.values())
        is_due = file is MetadataFile.TOPICS and any(
            (found.side.is_ours or found.side.has_tables) and not is_empty(found.replica.facts)
            for found in described.values()
        )
        if is_seen or is_due:
            why = "an earlier run saw it" if is_seen else "the log has messages"
            yield Finding(
                kind=FindingKind.METADATA_UNREADABLE,
                group=group,
                verdict=Verdict.STORED_DIGEST if is_seen else Verdict.OWN_EVIDENCE,
                detail=f"no replica has this file; {why}",
                broker_id=next(iter(described)) if len(described) == 1 else None,
                messages=0,
                file=f"config/{file.value}",
                cause=Cause.NO_FILE,
            )


def table_place(finding: Finding) -> tuple[FindingKind, int | None, str | None, int | None]:
    return finding.kind, finding.broker_id, finding.topic, finding.queue_id


def stood_still(
    finding: Finding, before: Mapping[int, DescribedReplica], after: Mapping[int, DescribedReplica]
) -> bool:
    """Whether the table that a finding is about is the same on that replica as it was."""
    if finding.kind not in OF_TABLES or finding.broker_id is None or finding.file is None:
        return True
    file = MetadataFile(finding.file.removeprefix("config/"))
    found = [described.get(finding.broker_id) for described in (before, after)]
    return None not in found and len({described.metadata.get(file) for described in found if described}) == 1


def lacks_topic(finding: Finding, broker_id: int) -> bool:
    return finding.kind is FindingKind.TOPIC_MISSING and finding.broker_id == broker_id


def seen_of_members(
    seen: Mapping[int, SeenReplica], described: Mapping[int, DescribedReplica]
) -> dict[int, SeenReplica]:
    """What earlier runs saw, and what the members of the group remember of each other's logs if that is more."""
    known = dict(seen)
    facts = {broker_id: found.side for broker_id, found in described.items()}
    for broker_id, (end, witness) in remembered_ends(facts).items():
        own = described[broker_id].replica.facts
        before = known.get(broker_id)
        if own.is_running or (before is not None and before.end_offset >= end):
            continue
        base = before or SeenReplica(own.min_offset, end, disk_id=own.disk_id)
        known[broker_id] = replace(base, end_offset=end, told_by=witness)
    return known


def seen_now(
    memory: GroupMemory,
    watermarks: Mapping[int, int],
    described: Mapping[int, DescribedReplica],
    findings: Sequence[Finding],
    *,
    kept: Mapping[int, Mapping[str, str]],
    common_end: int,
) -> dict[int, SeenReplica]:
    """By replica: what it holds. What it lost since an earlier run is remembered until it is there again."""
    seen = dict(memory.seen)
    lost = [finding for finding in findings if finding.verdict is Verdict.STORED_DIGEST]
    in_doubt = [finding for finding in findings if finding.severity is Severity.METADATA]
    for broker_id, found in described.items():
        facts = found.replica.facts
        before = memory.seen.get(broker_id)
        own = SeenReplica(
            facts.min_offset,
            facts.end_offset,
            watermarks.get(broker_id, 0),
            facts.disk_id,
            found.side.run,
            found.side.epochs,
            table_marks(found.metadata),
            _kept_since(
                before.kept if before is not None else {},
                kept.get(broker_id),
                damaged={own.file for own in findings if own.kind is FindingKind.KEPT_BYTES_DAMAGED},
            ),
            found.side.homes_digest,
            next(iter(groups_named(found.metadata.get(MetadataFile.TOPICS) or "")), ""),
        )
        if any(
            finding.broker_id == broker_id
            and finding.kind is FindingKind.ZEROED
            and finding.end_offset == common_end < facts.end_offset
            for finding in findings
        ):
            # The mark of a file's end lies over its last records: it never was longer than these.
            own = replace(own, end_offset=common_end)
        doubted = {
            path
            for finding in in_doubt
            if finding.broker_id in (None, broker_id)
            for path in (finding.file, *finding.files)
        }
        own = _with_evidence_kept(own, before or SeenReplica(0, 0), doubted)
        kinds = {finding.kind for finding in lost if finding.broker_id == broker_id}
        is_renamed = is_empty(facts) and any(
            finding.kind is FindingKind.SEGMENT_EXTRA and finding.broker_id == broker_id for finding in findings
        )
        if before is not None and is_renamed:
            own = before
        if before is not None and FindingKind.SEGMENT_MISSING in kinds:
            own = replace(own, min_offset=min(before.min_offset, own.min_offset))
            if is_empty(facts):
                own = before
        if before is not None and FindingKind.TAIL_MISSING in kinds:
            own = replace(
                own,
                end_offset=max(before.end_offset, own.end_offset),
                verified_offset=max(before.verified_offset, own.verified_offset),
            )
        seen[broker_id] = own
    return seen


def _with_evidence_kept(own: SeenReplica, before: SeenReplica, doubted: set[str | None]) -> SeenReplica:
    """What a run found to be wrong does not become what the next one compares with: that has what was known before, or
    nothing."""
    tables = {name: mark for name, mark in own.tables.items() if f"config/{name}" not in doubted}
    known = {name: mark for name, mark in before.tables.items() if f"config/{name}" in doubted}
    own = replace(own, tables=tables | known)
    if f"config/{MetadataFile.TOPICS.value}" in doubted:
        own = replace(own, named=before.named)
    if any(path and path.endswith("messageGroupHomes.json") for path in doubted):
        own = replace(own, homes=before.homes)
    if EPOCH_FILE in doubted:
        own = replace(own, epochs=before.epochs)
    if REPLICA_FILE in doubted:
        own = replace(own, disk_id=before.disk_id, run=before.run)
    return own


def _kept_since(
    before: Mapping[str, str], now: Mapping[str, str] | None, *, damaged: Set[str | None]
) -> dict[str, str]:
    """Digests as they were when a file was first seen, and sound; those of files that are gone go as well. None: nobody
    looked."""
    if now is None:
        return dict(before)
    return {path: before.get(path, digest) for path, digest in now.items() if path in before or path not in damaged}
