"""What would make the replicas equal again: steps that an operator reads, and `tandemmq repair` asks the brokers to do.

A plan is made from findings and changes nothing. Bytes are only copied from a replica that is known to be right. Where
nobody knows the right version, or a running broker cannot mend it, the step is for a person.

Each step says what it expects to find (`target_digest`) and what it will put there (`source_digest`). So a plan from
yesterday cannot harm a log that has changed since.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from tandemmq.core.audit.findings import KINDS, Cause, Finding, FindingKind, Severity, Verdict
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.replication.log_history import EPOCH_FILE, REPLICA_FILE, LogRange
from tandemmq.core.routing.values import MASTER_ID
from tandemmq.core.storage.consume_queue_table import QUEUE_ENDS_FILE


class Refusal(StrEnum):
    """What kind of reason, and so what the operator does next."""

    DISABLED = "disabled"
    """enableRepair is off, or auditReadRate is 0."""
    MALFORMED = "malformed"
    """The request makes no sense."""
    OUT_OF_RANGE = "out-of-range"
    """Part of the range is not held, or not on disk yet."""
    NOT_AS_EXPECTED = "not-as-expected"
    """What is here, or in the group, is not what the plan was made for: verify again."""
    NOT_FOUND = "not-found"
    """There is no such queue, or no record for an entry."""
    BUSY = "busy"
    """Another repair is running."""
    LOG_CHANGED = "log-changed"
    """The log was cut or expired under the repair, which may have written a part: verify again."""
    SOURCE_UNAVAILABLE = "source-unavailable"
    """The source does not answer, or refuses."""
    SOURCE_UNSOUND = "source-unsound"
    """The source gave something else than the plan says, or no sound records."""
    NO_ROOM = "no-room"
    """The disk has no room for a copy of the range."""
    READ_BACK_DIFFERS = "read-back-differs"
    """What was written reads differently: the disk is not to be trusted."""


class RepairRefused(Exception):
    """The repair ended; the message says what to do."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


PLAN_SCHEMA_VERSION: Final = 1


class RepairAction(StrEnum):
    COPY_RANGE = "copy-range"
    """The target broker fetches [start_offset, end_offset) from the source broker of its group, checks both digests,
    and replaces its own bytes."""
    REWRITE_QUEUE_ENTRIES = "rewrite-queue-entries"
    """The target broker writes ConsumeQueue entries again from its own CommitLog."""
    RESTORE_QUEUE_ENTRIES = "restore-queue-entries"
    """The target broker puts back the entries that it has overwritten."""
    REWRITE_TABLE = "rewrite-table"
    """The target broker writes a metadata table again: a slave after it took its master's, a master as it knows it; or
    another small file, as it knows it; or makes an IndexFile again from its own CommitLog."""
    RESTORE_TABLE = "restore-table"
    """The target broker puts back the table or file that it has overwritten."""
    MANUAL = "manual"
    """Needs a person; `reason` says what to do."""


@dataclass(frozen=True, slots=True)
class RepairStep:
    """One step. Digests are xxh3_128 in hex."""

    number: int
    action: RepairAction
    group: str
    target_broker_id: int
    reason: str
    source_broker_id: int | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    target_digest: str | None = None
    source_digest: str | None = None
    topic: str | None = None
    queue_id: int | None = None
    first_queue_offset: int | None = None
    end_queue_offset: int | None = None
    table: str | None = None
    """Name of a metadata table's file, or of another small one; of an IndexFile with its folder."""


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """All steps of one run, in the order in which they are to be done."""

    run_id: str
    cluster: str
    steps: tuple[RepairStep, ...]
    schema: int = PLAN_SCHEMA_VERSION

    def undone(self) -> RepairPlan:
        """What puts back what the plan has overwritten, the last first: each broker kept its own. A table of a slave
        stays so until its master's changes."""
        undone = []
        for step in reversed(self.steps):
            reason = f"put back what step {step.number} has overwritten"
            if step.action is RepairAction.COPY_RANGE:
                undone.append(
                    replace(
                        step,
                        reason=reason,
                        source_broker_id=step.target_broker_id,
                        target_digest=step.source_digest,
                        source_digest=step.target_digest,
                    )
                )
            elif step.action is RepairAction.REWRITE_QUEUE_ENTRIES:
                undone.append(replace(step, action=RepairAction.RESTORE_QUEUE_ENTRIES, reason=reason))
            elif step.action is RepairAction.REWRITE_TABLE:
                undone.append(replace(step, action=RepairAction.RESTORE_TABLE, reason=reason))
        return replace(self, steps=tuple(undone))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """What `to_json` gave. Raises ValueError for anything else: a plan is not guessed at."""
        try:
            if values["schema"] != PLAN_SCHEMA_VERSION:
                raise ValueError(f"schema {values['schema']}: this version carries out {PLAN_SCHEMA_VERSION}")
            steps = tuple(RepairStep(**(step | {"action": RepairAction(step["action"])})) for step in values["steps"])
            return cls(run_id=values["run_id"], cluster=values["cluster"], steps=steps)
        except KeyError as error:
            raise ValueError(f"no repair plan: it lacks {error}") from error
        except TypeError as error:
            raise ValueError("no repair plan: its fields are not those of one") from error


# Findings become steps.

DigestOf = Callable[[str, int, LogRange], str]
"""xxh3_128 in hex of a range of a replica: group, broker id, range."""

_COPIED: Final = frozenset(
    {
        FindingKind.BODY_CRC,
        FindingKind.FIELD_DIFFERS,
        FindingKind.ZEROED,
        FindingKind.TORN,
        FindingKind.RECORD_MISSING,
        FindingKind.RECORD_EXTRA,
        FindingKind.RECORDS_SHIFTED,
        FindingKind.RECORDS_SWAPPED,
    }
)
"""Mended by the right bytes, in a file that is there."""
_OF_TABLES: Final = frozenset(
    {
        FindingKind.TOPIC_MISSING,
        FindingKind.TOPIC_DIFFERS,
        FindingKind.GROUP_MISSING,
        FindingKind.GROUP_DIFFERS,
        FindingKind.ACCESS_DIFFERS,
        FindingKind.CONSUMER_OFFSET_STALE,
        FindingKind.DELAY_OFFSET_STALE,
        FindingKind.METADATA_UNREADABLE,
        FindingKind.TABLE_OLDER,
    }
)
_OF_OWN_FILES: Final = frozenset(
    {
        FindingKind.MESSAGE_GROUP_HOMES_DIFFER,
        FindingKind.DISK_ID_WRONG,
        FindingKind.EPOCHS_WRONG,
        FindingKind.METADATA_UNREADABLE,
        FindingKind.CHECKPOINT_IMPOSSIBLE,
    }
)
_OWN_FILES: Final = frozenset({"messageGroupHomes.json", REPLICA_FILE, EPOCH_FILE, "checkpoint"})
"""What a running broker knows better than the file, if that was damaged since it was read."""
_OF_INDEX: Final = frozenset({FindingKind.INDEX_ENTRY_WRONG, FindingKind.INDEX_ENTRY_MISSING})
_INDEX_FILE: Final = re.compile(r"index/\d+")
"""Made again from the log by a broker that runs; one that it does not know is for a person."""
_REWRITTEN: Final = frozenset({FindingKind.QUEUE_ENTRY_WRONG, FindingKind.QUEUE_ENTRY_MISSING})
_OF_LOGS: Final = (Severity.LOSS, Severity.DAMAGE)
_GAP_BYTES_MAX: Final = 64 << 10
"""Ranges so close to each other are copied as one, if nothing was found between: what lies there is equal then."""
_FOLDERS_MAX: Final = 20
"""Named in a step."""
_RANGE_BYTES_MAX: Final = 64 << 20
"""Merged up to it: a broker holds a range in memory while it checks it. One finding is never cut: its range begins and
ends with a record."""


class _Copy(NamedTuple):
    group: str
    target: int
    source: int
    start_offset: int
    end_offset: int
    reason: str


def plan_repair(
    run_id: str,
    cluster: str,
    findings: Iterable[Finding],
    digest_of: DigestOf,
    *,
    masters: Mapping[str, int | None] | None = None,
    running: Mapping[str, Iterable[int]] | None = None,
) -> RepairPlan:
    """The steps of a run: the CommitLog, ConsumeQueues, which are made from it, tables, then what people have to do.

    `masters`: by group the broker id of the master; a group that is not named has 0. `running`: broker ids of
    groups that were read through their brokers, which know what belongs into their small files; others have read these
    by now. `digest_of`
    may raise ReplicaUnreadable: there is no plan then without that replica's findings.
    """
    running = running or {}
    known = [each for own in findings for each in _of_each(own, running.get(own.group, ()))]
    by_brokers = {
        id(own)
        for own in known
        if _is_rewritten_table(own, (masters or {}).get(own.group, MASTER_ID))
        or (own.group in running and _is_own_file(own))
    }
    tables = [own for own in known if id(own) in by_brokers]
    extra = [own for own in known if _is_erased(own) and own.group in running]
    by_hand = [own for own in known if id(own) not in by_brokers and own not in extra]
    steps = [*_copy_steps(known, digest_of), *_queue_steps(known), *_queue_steps(extra, reason=_ERASED)]
    steps += [*_table_steps(tables), *_manual_steps(by_hand)]
    return RepairPlan(
        run_id=run_id,
        cluster=cluster,
        steps=tuple(replace(step, number=number) for number, step in enumerate(steps, start=1)),
    )


def _of_each(finding: Finding, broker_ids: Iterable[int]) -> Iterator[Finding]:
    """A small file that is wrong on all replicas alike is one finding, and each broker writes its own."""
    if finding.files and finding.cause is not Cause.NO_QUEUE:
        for file in finding.files:
            yield from _of_each(replace(finding, file=file, files=()), broker_ids)
        return
    is_own = finding.kind in _OF_OWN_FILES and _table_name(finding) in _OWN_FILES
    is_shared = finding.broker_id is None and (is_own or (finding.kind in _OF_INDEX and _table_name(finding)))
    if not is_shared or finding.verdict is Verdict.UNDECIDED or not broker_ids:
        yield finding
        return
    for broker_id in broker_ids:
        yield replace(finding, broker_id=broker_id)


def _is_copied(finding: Finding) -> bool:
    return (
        finding.kind in _COPIED
        and finding.verdict is not Verdict.UNDECIDED
        and finding.broker_id is not None
        and finding.source_broker_id is not None
        and finding.start_offset is not None
        and finding.end_offset is not None
    )


def _is_rewritten(finding: Finding) -> bool:
    return finding.kind in _REWRITTEN and finding.broker_id is not None and bool(finding.positions)


def _is_erased(finding: Finding) -> bool:
    """Entries behind the end of a queue that the broker has: it knows that end. What is no queue has none."""
    is_extra = finding.kind is FindingKind.QUEUE_ENTRY_EXTRA and finding.cause is not Cause.NO_QUEUE
    is_extra = is_extra and finding.end_queue_offset is not None
    return is_extra and finding.broker_id is not None and bool(finding.positions)


def _is_rewritten_table(finding: Finding, master_id: int | None) -> bool:
    """Whether a broker can mend a table: a slave has a master to take it from, and what a master's file does not show
    any more it may still know."""
    if finding.kind not in _OF_TABLES or finding.verdict is Verdict.UNDECIDED or finding.broker_id is None:
        return False
    is_slave = master_id is not None and finding.broker_id != master_id
    # The slave that is right knows nothing of a master that is wrong.
    is_from_master = is_slave and finding.source_broker_id == master_id
    is_unreadable = finding.kind is FindingKind.METADATA_UNREADABLE
    is_table = _table_name(finding) not in {None, *_OWN_FILES}
    return is_table and (is_from_master or is_unreadable)


def _is_own_file(finding: Finding) -> bool:
    if finding.kind in _OF_INDEX:
        return finding.broker_id is not None and _table_name(finding) is not None
    is_decided = finding.verdict is not Verdict.UNDECIDED and finding.broker_id is not None
    return finding.kind in _OF_OWN_FILES and is_decided and _table_name(finding) in _OWN_FILES


def _table_name(finding: Finding) -> str | None:
    name = (finding.file or "").removeprefix("config/")
    if finding.kind in _OF_INDEX:
        return name if _INDEX_FILE.fullmatch(name) else None
    return name if name in _OWN_FILES or any(file.value == name for file in MetadataFile) else None


def _table_steps(findings: list[Finding]) -> Iterator[RepairStep]:
    """One step for each file of a replica."""
    grouped: dict[tuple[str, int, str], list[Finding]] = {}
    for finding in findings:
        grouped.setdefault((finding.group, finding.broker_id or 0, _table_name(finding) or ""), []).append(finding)
    for (group, broker_id, table), own in sorted(grouped.items(), key=lambda item: item[0]):
        more = f" and {len(own) - 1} more" if len(own) > 1 else ""
        # A broker may have read the file when it was wrong already.
        is_own = table in _OWN_FILES or own[0].kind in _OF_INDEX
        else_ = f"; if it is found again: {KINDS[own[0].kind].remedy}" if is_own else ""
        yield RepairStep(
            number=0,
            action=RepairAction.REWRITE_TABLE,
            group=group,
            target_broker_id=broker_id,
            reason=f"{KINDS[own[0].kind].title} ({own[0].detail}){more}{else_}",
            source_broker_id=own[0].source_broker_id if own[0].source_broker_id != broker_id else None,
            table=table,
        )


def _copy_steps(findings: list[Finding], digest_of: DigestOf) -> Iterator[RepairStep]:
    copies = [
        _Copy(
            finding.group,
            finding.broker_id or 0,
            finding.source_broker_id or 0,
            finding.start_offset or 0,
            finding.end_offset or 0,
            KINDS[finding.kind].title,
        )
        for finding in findings
        if _is_copied(finding)
    ]
    for copy in _merged(copies, findings):
        log_range = LogRange(copy.start_offset, copy.end_offset)
        yield RepairStep(
            number=0,
            action=RepairAction.COPY_RANGE,
            group=copy.group,
            target_broker_id=copy.target,
            reason=copy.reason,
            source_broker_id=copy.source,
            start_offset=copy.start_offset,
            end_offset=copy.end_offset,
            target_digest=digest_of(copy.group, copy.target, log_range),
            source_digest=digest_of(copy.group, copy.source, log_range),
        )


def _merged(copies: list[_Copy], findings: list[Finding]) -> list[_Copy]:
    """Ranges of the same target and source that adjoin, as one, or nearly adjoin and nothing was found between them."""
    places = {
        group: _places([own for own in findings if own.group == group]) for group in {own.group for own in copies}
    }
    merged: list[_Copy] = []
    for copy in sorted(copies):
        last = merged[-1] if merged else None
        if (
            last is None
            or last[:3] != copy[:3]
            or copy.start_offset > last.end_offset + _GAP_BYTES_MAX
            or copy.end_offset - last.start_offset > max(_RANGE_BYTES_MAX, last.end_offset - last.start_offset)
            or _is_doubtful(places[copy.group], last.end_offset, copy.start_offset)
        ):
            merged.append(copy)
            continue
        reasons = [last.reason] if copy.reason in last.reason else [last.reason, copy.reason]
        merged[-1] = last._replace(end_offset=max(last.end_offset, copy.end_offset), reason="; ".join(reasons))
    return merged


def _places(findings: list[Finding]) -> list[LogRange]:
    """Where anything of any replica's log was found, ascending and disjoint."""
    places: list[LogRange] = []
    for start, end in sorted(
        (own.start_offset, own.end_offset)
        for own in findings
        if own.severity in _OF_LOGS and own.start_offset is not None and own.end_offset is not None
    ):
        if places and start <= places[-1].end_offset:
            places[-1] = LogRange(places[-1].start_offset, max(places[-1].end_offset, end))
        else:
            places.append(LogRange(start, end))
    return places


def _is_doubtful(places: list[LogRange], start: int, end: int) -> bool:
    """Whether anything was found in [start, end): it may be the source that is wrong there."""
    at = bisect_left(places, LogRange(end, end)) - 1
    return at >= 0 and start < places[at].end_offset and start < end


_LEADS_NOWHERE: Final = "ConsumeQueue entries do not lead to their messages"
_ERASED: Final = "entries behind the end of a ConsumeQueue"


def _queue_steps(findings: list[Finding], *, reason: str = _LEADS_NOWHERE) -> Iterator[RepairStep]:
    is_wanted = _is_rewritten if reason == _LEADS_NOWHERE else _is_erased
    entries = sorted(
        (finding.group, finding.broker_id or 0, *queue)
        for finding in findings
        if is_wanted(finding)
        for queue in finding.positions
    )
    merged: list[tuple[str, int, str, int, int, int]] = []
    for entry in entries:
        if merged and merged[-1][:4] == entry[:4] and entry[4] <= merged[-1][5]:
            merged[-1] = (*merged[-1][:5], max(entry[5], merged[-1][5]))
        else:
            merged.append(entry)
    for group, broker_id, topic, queue_id, first, end in merged:
        yield RepairStep(
            number=0,
            action=RepairAction.REWRITE_QUEUE_ENTRIES,
            group=group,
            target_broker_id=broker_id,
            reason=reason,
            topic=topic,
            queue_id=queue_id,
            first_queue_offset=first,
            end_queue_offset=end,
        )


def _manual_steps(findings: list[Finding]) -> Iterator[RepairStep]:
    """One step for all findings of a kind in a replica."""
    grouped: dict[tuple[str, int | None, FindingKind, bool, bool], list[Finding]] = {}
    for finding in findings:
        if not _is_copied(finding) and not _is_rewritten(finding):
            is_undecided, is_no_queue = finding.verdict is Verdict.UNDECIDED, finding.cause is Cause.NO_QUEUE
            key = (finding.group, finding.broker_id, finding.kind, is_undecided, is_no_queue)
            grouped.setdefault(key, []).append(finding)
    for (group, broker_id, kind, is_undecided, is_no_queue), own in grouped.items():
        first = own[0]
        advice = (
            "nothing tells which replica is right: compare the messages with their senders or consumers, "
            "then copy by hand"
            if is_undecided
            else _of_no_queues(own)
            if is_no_queue
            else _advice(kind, first)
        )
        more = f" and {len(own) - 1} more" if len(own) > 1 else ""
        yield RepairStep(
            number=0,
            action=RepairAction.MANUAL,
            group=group,
            target_broker_id=broker_id or 0,
            reason=f"{KINDS[kind].title} ({first.detail}){more}: {advice}",
            source_broker_id=first.source_broker_id,
            start_offset=min((each.start_offset for each in own if each.start_offset is not None), default=None),
            end_offset=max((each.end_offset for each in own if each.end_offset is not None), default=None),
            topic=first.topic,
            queue_id=first.queue_id,
        )


def _of_no_queues(findings: list[Finding]) -> str:
    folders = sorted({file for own in findings for file in own.files or (own.file or "",)})
    more = f" and {len(folders) - _FOLDERS_MAX} more" if len(folders) > _FOLDERS_MAX else ""
    return (
        f"stop the broker, move {', '.join(folders[:_FOLDERS_MAX])}{more} out of its store, and with it the file "
        f"{QUEUE_ENDS_FILE}, which lists what should be there; start it"
    )


def _advice(kind: FindingKind, finding: Finding) -> str:
    """What a person does. Kinds whose usual remedy is a copy come here when there is no source, or no file."""
    if kind in (FindingKind.SEGMENT_MISSING, FindingKind.SEGMENT_SIZE):
        return (
            "stop the broker and copy the file from a sound replica"
            if finding.source_broker_id is not None
            else "stop the broker; restore the file from a backup"
        )
    if kind in _COPIED and finding.source_broker_id is None:
        return "no replica is known to hold it right: restore the range from a backup"
    return KINDS[kind].remedy
