"""One cause, one finding: what follows from something else is told beneath it, and what one file has many times once.

A page of an IndexFile that is overwritten loses a hundred chains, a slave with an old table lacks forty topics, a
replica that lost its last files has a checkpoint that vouches for them. Whoever is on duty mends one thing each time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tandemmq.core.audit.findings import OF_OFFSETS, Cause, Finding, FindingKind, Severity, Verdict
from tandemmq.core.audit.replica_store import ReplicaFacts
from tandemmq.core.replication.log_history import LogRange

_LISTED_MAX: Final = 8
_RECORDS_APART_MAX: Final = 3
"""Near each other that differ alike, told apart."""
_STRETCH_GAP_BYTES: Final = 64 << 10
_STRETCH_BYTES_MAX: Final = 64 << 20
"""Of such records as one: a broker holds what it copies in memory."""
_TABLE_FINDINGS_MAX: Final = 3
"""Of one metadata file told apart; a table of another time differs in more."""
_BOUNDS: Final = (FindingKind.SEGMENT_MISSING, FindingKind.TAIL_MISSING, FindingKind.ON_FEWER_REPLICAS)
_LOST_AT_BYTES: Final = (
    FindingKind.RECORD_MISSING,
    FindingKind.ZEROED,
    FindingKind.TORN,
    FindingKind.BODY_CRC,
    FindingKind.RECORDS_SHIFTED,
)
"""Neighbours of these kinds on one replica are one damage, named after the first of them."""
_OF_QUEUES: Final = (FindingKind.QUEUE_ENTRY_WRONG, FindingKind.QUEUE_ENTRY_MISSING, FindingKind.QUEUE_ENTRY_EXTRA)
_OF_INDEX: Final = (FindingKind.INDEX_ENTRY_WRONG, FindingKind.INDEX_ENTRY_MISSING)
_INDEX_FOLDER: Final = "index"
_QUEUES_FOLDER: Final = "consumequeue"
_OF_EMPTY_DISKS: Final = (
    FindingKind.METADATA_UNREADABLE,
    FindingKind.DISK_ID_WRONG,
    FindingKind.EPOCHS_WRONG,
    FindingKind.MESSAGE_GROUP_HOMES_DIFFER,
    FindingKind.LEASES_MISSING,
)
_QUEUES_APART_MAX: Final = 2
"""That lack entries, told apart."""
_MANY_ENTRIES: Final = 16
"""Of a queue, that are wrong: more than a damage of single entries."""
_SET_BACK: Final = (
    FindingKind.TAIL_MISSING,
    FindingKind.TABLE_OLDER,
    FindingKind.EPOCHS_WRONG,
    FindingKind.DISK_ID_WRONG,
)


def one_for_each_cause(findings: Iterable[Finding]) -> list[Finding]:
    """The same, joined. Raises nothing; what is joined says so in its detail."""
    rest = _of_many_records(_beneath_changed_records(findings))
    rest = _beneath_other_messages(_of_other_files(rest))
    rest = _without_repeated_topics(_behind_other_messages(rest))
    rest = _under_their_names(_neighbours(rest, _BOUNDS))
    # What was overwritten may begin or end within the properties of a record, which no checksum covers.
    rest = _neighbours(rest, (*_LOST_AT_BYTES, FindingKind.FIELD_DIFFERS))
    rest = _gaps_of_one_stretch(_without_empty_ends(rest))
    rest = _without_lost_ends(_of_other_length(rest))
    rest = _without_impossible_offsets(rest)
    rest = _without_lengths(_without_unreadable(rest))
    rest = _joined(rest, _OF_QUEUES, lambda own: (own.topic, own.queue_id) if own.queue_id is not None else None)
    rest = _behind_all(_joined(rest, _OF_QUEUES, _whole_queue))
    without_index = {own.broker_id for own in rest if own.kind in _OF_INDEX and own.file == _INDEX_FOLDER}
    rest = _joined(rest, _OF_INDEX, lambda own: _INDEX_FOLDER if own.broker_id in without_index else own.file)
    rest = _joined(rest, (FindingKind.LEASES_MISSING,), lambda own: own.broker_id)
    return _set_back(_tables(_without_folder(_queues_of_another(rest))))


def _under_their_names(findings: list[Finding]) -> list[Finding]:
    """What is not there, as it lies under another name: one cause, told where it is missing."""
    rest = list(findings)
    for other in [own for own in findings if own.cause is Cause.OTHER_NAME]:
        for at, own in enumerate(rest):
            start, end = place_of(own)
            is_file = own.kind in _BOUNDS and start <= (-1 if other.leads_to is None else other.leads_to) < end
            is_queue = own.kind is FindingKind.QUEUE_ENTRY_MISSING and other.topic is not None
            is_queue = is_queue and (own.topic, own.queue_id) == (other.topic, other.queue_id)
            # What none of them has in its place may lie elsewhere on each.
            if own.broker_id in (None, other.broker_id) and (is_file or is_queue):
                where = f"{other.file}: {other.detail}" if is_file else other.detail
                where = where if own.broker_id == other.broker_id else f"replica {other.broker_id}: {where}"
                rest[at] = replace(own, detail=f"{where}; {own.detail}")
                rest.remove(other)
                break
    return rest


def _beneath_changed_records(findings: Iterable[Finding]) -> list[Finding]:
    """A record that was changed contradicts its entries, and the order of the queue that it is in now. Of two findings
    of one record the ConsumeQueue's says more than the index's."""
    rest = list(findings)
    for changed in [own for own in rest if own.cause is Cause.OTHER_RECORD]:
        start, _ = place_of(changed)
        told = [
            own
            for own in rest
            if own is not changed
            and own.broker_id == changed.broker_id
            and own.messages <= 1
            and (place_of(own)[0] == start or _is_second_of(own, changed))
            and (own.kind in (*_OF_QUEUES, *_OF_INDEX) or own.cause in (Cause.QUEUE_OFFSET, Cause.OTHER_RECORD))
            and (own.cause is not Cause.OTHER_RECORD or own.detail < changed.detail)
        ]
        rest = _without(rest, told) if changed in rest else rest
    starts = {(own.broker_id, own.start_offset) for own in rest if own.cause is Cause.QUEUE_OFFSET}
    return [
        own
        for own in rest
        if own.kind not in _OF_INDEX or own.messages > 1 or (own.broker_id, place_of(own)[0]) not in starts
    ]


def _is_second_of(finding: Finding, changed: Finding) -> bool:
    """Whether a finding of the order in a queue is of the place to which the changed record came."""
    place, other = ((own.topic, own.queue_id, own.queue_offset) for own in (finding, changed))
    return finding.cause is Cause.QUEUE_OFFSET and place == other


def _of_many_records(findings: list[Finding]) -> list[Finding]:
    """Many records near each other that differ alike, and nothing else between them: the stretch was written again, and
    is copied as one."""
    stretches: list[list[Finding]] = []
    of_log = (own for own in findings if own.kind in _LOG_KINDS and own.start_offset is not None)
    for own in sorted(of_log, key=place_of):
        last = stretches[-1] if stretches else []
        start, end = place_of(own)
        if (
            last
            and own.kind is last[-1].kind is FindingKind.FIELD_DIFFERS
            and own.cause is last[-1].cause
            and (own.broker_id, own.source_broker_id) == (last[-1].broker_id, last[-1].source_broker_id)
            and start <= place_of(last[-1])[1] + _STRETCH_GAP_BYTES
            and end <= place_of(last[0])[0] + _STRETCH_BYTES_MAX
        ):
            last.append(own)
        else:
            stretches.append([own])
    many = [stretch for stretch in stretches if len(stretch) > _RECORDS_APART_MAX]
    rest = _without(findings, [own for stretch in many for own in stretch])
    for stretch in many:
        first, end_one = stretch[0], stretch[-1]
        whole = replace(
            first,
            detail=f"{len(stretch)} places up to {end_one.end_offset}, the first: {first.detail}",
            end_offset=end_one.end_offset,
            messages=sum(own.messages for own in stretch),
            last_message_id=end_one.last_message_id or end_one.message_id,
        )
        rest.append(whole)
    return rest


def _beneath_other_messages(findings: list[Finding]) -> list[Finding]:
    """Where the log holds other messages than ConsumeQueues and index were made of, these contradict it entry by entry,
    and queue offsets before and behind do not fit."""
    rest = findings
    for changed in [own for own in findings if own.kind is FindingKind.CHANGED_EVERYWHERE and _is_by_own_files(own)]:
        start, end = changed.start_offset or 0, changed.end_offset or 0
        told: list[Finding] = []
        queues: set[tuple[str | None, int | None]] = set()
        for own in sorted(rest, key=lambda each: each.start_offset or 0):
            if own.broker_id != changed.broker_id or own is changed:
                continue
            first, last = place_of(own)
            is_beneath = own.kind in (*_OF_QUEUES, *_OF_INDEX, FindingKind.QUEUE_GAP) or own.cause is Cause.OTHER_RECORD
            if is_beneath and first <= end and start <= last:
                told.append(own)
            elif (
                own.cause is Cause.QUEUE_OFFSET
                and (own.start_offset or 0) >= start
                and (own.topic, own.queue_id) not in queues
            ):
                # In the stretch, or the first one behind it.
                queues |= {(own.topic, own.queue_id)} if first >= end else set()
                told.append(own)
        rest = _without(rest, told)
    return rest


def _of_other_files(findings: list[Finding]) -> list[Finding]:
    """Where a replica has another log's file, what nobody could decide within it is decided: neither record by record,
    nor entry by entry. Where its source is damaged as well, it stays as it was."""
    of_files: dict[tuple[int, str], list[Finding]] = {}
    for own in findings:
        if own.broker_id is not None and own.file is not None and own.kind in _LOST_AT_BYTES:
            of_files.setdefault((own.broker_id, own.file), []).append(own)
    rest = findings
    spans: dict[int, list[LogRange]] = {}
    for (broker_id, _), damages in sorted(of_files.items()):
        others = [own for own in damages if own.cause is Cause.OTHER_MESSAGES and own.source_broker_id is not None]
        if sum(own.messages for own in others) < _MANY_ENTRIES:
            continue
        start, end = min(own.start_offset or 0 for own in damages), max(own.end_offset or 0 for own in damages)
        for own in sorted(filter(_is_undecided, rest), key=place_of):
            end = max(end, place_of(own)[1]) if start <= place_of(own)[0] <= end else end
        rest = [_as_others(own, others[0], findings) if start <= place_of(own)[0] < end else own for own in rest]
        before = spans.setdefault(broker_id, [])
        if before and start <= before[-1].end_offset:
            start = before.pop().start_offset
        before.append(LogRange(start, end))
    return [
        own
        for own in rest
        if own.kind not in (*_OF_QUEUES, *_OF_INDEX)
        or not any(_lies_in(own, span) for span in spans.get(-1 if own.broker_id is None else own.broker_id, ()))
    ]


def _as_others(undecided: Finding, other: Finding, findings: Sequence[Finding]) -> Finding:
    """As the other messages of the file, if their source is sound there."""
    if not _is_undecided(undecided):
        return undecided
    first, last = place_of(undecided)
    for own in findings:
        start, end = place_of(own)
        if own.broker_id == other.source_broker_id and own.kind in _LOG_KINDS and start < last and first < end:
            return undecided
    named = replace(undecided, broker_id=other.broker_id, source_broker_id=other.source_broker_id)
    return replace(
        named, kind=other.kind, verdict=other.verdict, detail=other.detail, cause=other.cause, file=other.file
    )


def _lies_in(finding: Finding, span: LogRange) -> bool:
    start, end = place_of(finding)
    return span.start_offset <= start and end <= span.end_offset


def _is_undecided(finding: Finding) -> bool:
    """Of the log, in which nobody is named."""
    is_of_log = finding.kind in _LOG_KINDS and finding.broker_id is None
    return is_of_log and finding.verdict is Verdict.UNDECIDED and finding.start_offset is not None


def _behind_other_messages(findings: list[Finding]) -> list[Finding]:
    """A file with other messages may hold more of them than the log has: nobody lacks these, and no entry is due."""
    rest = findings
    for changed in [own for own in findings if own.cause is Cause.OTHER_MESSAGES and own.broker_id is not None]:
        end = changed.end_offset or 0
        longer = [
            own
            for own in rest
            if own.start_offset == end
            and (
                (own.kind is FindingKind.TAIL_EXTRA and own.broker_id == changed.broker_id)
                or (own.kind is FindingKind.ON_FEWER_REPLICAS and own.source_broker_id == changed.broker_id)
            )
        ]
        if not longer:
            continue
        of_entries = (*_OF_QUEUES, *_OF_INDEX)
        due = [
            own
            for own in rest
            if own.broker_id == changed.broker_id
            and own.kind in of_entries
            and place_of(own)[0] >= (changed.start_offset or 0)
        ]
        beyond = max(own.end_offset or 0 for own in longer)
        whole = replace(changed, detail=f"{changed.detail}; and more of them up to {beyond}, where the log has ended")
        rest = [whole if own is changed else own for own in _without(rest, [*longer, *due])]
    return rest


def _is_by_own_files(finding: Finding) -> bool:
    return finding.verdict is Verdict.OWN_EVIDENCE


def place_of(finding: Finding) -> tuple[int, int]:
    """Its range of the log, or the place that it names; (-1, -1): none."""
    start, end = finding.start_offset, finding.end_offset
    if start is None and finding.leads_to is not None:
        return finding.leads_to, finding.leads_to + 1
    return (-1, -1) if start is None or end is None else (start, end)


def _gaps_of_one_stretch(findings: list[Finding]) -> list[Finding]:
    """Queues that all skip positions in one stretch of the log: what is not there lay between the same records."""
    gaps = [own for own in findings if own.kind is FindingKind.QUEUE_GAP]
    rest = _without(findings, gaps)
    joined: list[list[Finding]] = []
    for gap in sorted(gaps, key=lambda own: (-1 if own.broker_id is None else own.broker_id, own.start_offset or 0)):
        last = joined[-1] if joined else []
        if last and last[0].broker_id == gap.broker_id and (gap.start_offset or 0) < _first_end(last):
            last.append(gap)
        else:
            joined.append([gap])
    return rest + [own[0] if len(own) == 1 else _one_gap(own) for own in joined]


def _first_end(gaps: Iterable[Finding]) -> int:
    return min(own.end_offset or 0 for own in gaps)


def _one_gap(gaps: list[Finding]) -> Finding:
    start, end = gaps[-1].start_offset, _first_end(gaps)
    messages = sum(own.messages for own in gaps)
    return replace(
        gaps[0],
        detail=f"{len(gaps)} queues skip {messages} positions between {start} and {end}, the first: {gaps[0].detail}",
        queue_id=None,
        queue_offset=None,
        start_offset=start,
        end_offset=end,
        messages=messages,
    )


def _without(findings: Iterable[Finding], told: Iterable[Finding]) -> list[Finding]:
    """There may be as many of both as a store has queues."""
    gone = frozenset(told)
    return [finding for finding in findings if finding not in gone]


def _without_folder(findings: list[Finding]) -> list[Finding]:
    """Many tables that are not there, and what else lies beside them: the folder is gone, or is another one."""
    rest = list(findings)
    for broker_id in {own.broker_id for own in findings if own.kind is FindingKind.METADATA_UNREADABLE}:
        gone = [own for own in rest if own.broker_id == broker_id and _is_gone(own)]
        tables = [own for own in gone if own.kind is FindingKind.METADATA_UNREADABLE]
        if len(tables) <= _TABLE_FINDINGS_MAX:
            continue
        names = ", ".join((own.file or "").removeprefix("config/") for own in gone if own.file != "config")
        detail = f"{names} and what lies beside them are not there: the folder is gone, or another one"
        files = tuple(own.file or "" for own in tables)
        rest = _without(rest, gone)
        rest.append(replace(tables[0], detail=detail, file="config", files=files))
    return rest


def _is_gone(finding: Finding) -> bool:
    is_beside = (finding.file or "").partition("/")[0] == "config" and finding.severity is Severity.METADATA
    return is_beside and (finding.cause is Cause.NO_FILE or finding.kind is FindingKind.MESSAGE_GROUP_HOMES_DIFFER)


def _behind_all(findings: list[Finding]) -> list[Finding]:
    """What neither ConsumeQueues nor index have, up to the end of the log: it came behind the last stop, or both are of
    an earlier one."""
    for last in [own for own in findings if own.cause is Cause.BEHIND_INDEX]:
        lacking = [
            own
            for own in findings
            if own.broker_id == last.broker_id
            and own.kind is FindingKind.QUEUE_ENTRY_MISSING
            and own.positions
            and (own.end_offset or 0) >= (last.start_offset or 0)
        ]
        if lacking:
            whole = lacking[0] if len(lacking) == 1 else _of_queues(lacking)
            whole = replace(
                whole,
                detail=f"{whole.detail}; {last.detail}; the log was lengthened behind both, or both are older",
                end_offset=max(whole.end_offset or 0, last.end_offset or 0),
                messages=max(whole.messages, last.messages),
            )
            findings = [*_without(findings, [*lacking, last]), whole]
    return findings


def _of_queues(wrong: list[Finding]) -> Finding:
    """One finding for those of several queues."""
    wrong = sorted(wrong, key=lambda own: own.start_offset or 0)
    queues = tuple(position for own in wrong for position in own.positions)
    first, last = wrong[0], wrong[-1]
    messages = sum(own.messages for own in wrong)
    kind = min((own.kind for own in wrong), key=_OF_QUEUES.index)
    what = "lack" if kind is FindingKind.QUEUE_ENTRY_MISSING else "have wrong or lack"
    return replace(
        first,
        kind=kind,
        detail=f"{len(queues)} queues {what} {messages} entries, the first: {first.detail}",
        queue_id=None,
        queue_offset=None,
        end_queue_offset=None,
        queues=queues,
        messages=messages,
        last_message_id=last.last_message_id or last.message_id,
        end_offset=max((own.end_offset for own in wrong if own.end_offset is not None), default=None),
        file=_QUEUES_FOLDER,
    )


def _queues_of_another(findings: list[Finding]) -> list[Finding]:
    """Many queues of a replica that lack entries, or have many wrong ones: its ConsumeQueues are older than its log, or
    those of other queues."""
    groups: dict[int | None, list[Finding]] = {}
    for own in findings:
        is_many = own.kind is FindingKind.QUEUE_ENTRY_WRONG and own.messages >= _MANY_ENTRIES
        is_whole = own.file == _QUEUES_FOLDER
        if (is_many or own.kind is FindingKind.QUEUE_ENTRY_MISSING) and own.positions and not is_whole:
            groups.setdefault(own.broker_id, []).append(own)
    for broker_id, wrong in groups.items():
        queues = tuple(position for own in wrong for position in own.positions)
        if len({queue[:2] for queue in queues}) <= _QUEUES_APART_MAX:
            continue
        whole = _of_queues(wrong)
        topics = {queue[0] for queue in queues}
        # Of a topic whose folder is that of another one.
        empty = [own for own in findings if own.broker_id == broker_id and own.topic in topics and _holds_nothing(own)]
        findings = [*_without(findings, [*wrong, *empty]), whole]
    return findings


def _without_lengths(findings: list[Finding]) -> list[Finding]:
    """Files of ConsumeQueues that are too short for their entries are told with what they lack."""
    rest = list(findings)
    for cut in [own for own in findings if own.kind is FindingKind.QUEUE_ENTRY_WRONG and not own.messages]:
        folders = {path.rpartition("/")[0] for path in cut.files or (cut.file or "",)}
        lacking: dict[str, Finding] = {
            f"{_QUEUES_FOLDER}/{topic}/{queue_id}": own
            for own in rest
            if own.kind is FindingKind.QUEUE_ENTRY_MISSING and own.broker_id in (None, cut.broker_id)
            for topic, queue_id, *_ in own.positions
        }
        if folders <= lacking.keys():
            first = lacking[min(folders)]
            rest.remove(cut)
            rest[rest.index(first)] = replace(first, detail=f"{first.detail}; {cut.detail}")
    return rest


def _holds_nothing(finding: Finding) -> bool:
    return finding.kind is FindingKind.QUEUE_ENTRY_EXTRA and not finding.messages and finding.queue_offset is None


def _set_back(findings: list[Finding]) -> list[Finding]:
    """What an earlier run saw newer on one replica: several tables are one, and the tables of a disk whose log went
    back as well are told with that."""
    rest = list(findings)
    for broker_id in {own.broker_id for own in findings if own.kind in _SET_BACK}:
        own = [
            each
            for each in rest
            if each.broker_id == broker_id and each.kind in _SET_BACK and each.verdict is Verdict.STORED_DIGEST
        ]
        first = next((each for each in own if each.kind is FindingKind.TAIL_MISSING), None)
        # Epochs alone say something else than tables do.
        older = [each for each in own if each.kind is FindingKind.TABLE_OLDER]
        with_it = (
            [each for each in own if each is first or each.kind is not FindingKind.TAIL_MISSING] if first else older
        )
        first = first or (with_it[0] if with_it else None)
        if first is None or len(with_it) < 2:
            continue
        others = ", ".join(each.file or "" for each in with_it if each is not first)
        rest = _without(rest, with_it)
        rest.append(replace(first, detail=f"{first.detail}; {others} are older, too: the disk was set back"))
    return rest


def _is_of_whole_queue(finding: Finding) -> bool:
    """Whether a queue is gone, or should not be: several of a topic go together."""
    is_folder = finding.file is not None and not finding.file.rpartition("/")[2].startswith("0" * 8)
    return is_folder or finding.kind is FindingKind.QUEUE_ENTRY_EXTRA


def _whole_queue(finding: Finding) -> Hashable:
    """What is told once of several of them."""
    return (finding.topic, finding.cause is Cause.NO_QUEUE) if _is_of_whole_queue(finding) else None


def _without_repeated_topics(findings: list[Finding]) -> list[Finding]:
    """What a slave has otherwise than its master need not be told by its own log as well."""
    told = {
        (own.kind, own.broker_id, own.topic)
        for own in findings
        if own.severity is Severity.METADATA and own.source_broker_id is not None
    }
    return [
        own
        for own in findings
        if own.source_broker_id is not None
        or own.severity is not Severity.METADATA
        or own.topic is None
        or (own.kind, own.broker_id, own.topic) not in told
    ]


def _without_lost_ends(findings: list[Finding]) -> list[Finding]:
    """What speaks of messages that a replica lost needs no finding of its own; nor do the tables of an empty disk, nor
    the file that was made ahead of what is lost."""
    lost = {own.broker_id for own in findings if own.kind in _BOUNDS}
    if any(own.kind is FindingKind.TAIL_MISSING and own.source_broker_id is None for own in findings):
        lost.add(None)
    if any(own.kind is FindingKind.TAIL_MISSING and own.broker_id is None for own in findings):
        lost |= {own.broker_id for own in findings}
    empty = {own.broker_id for own in findings if own.cause is Cause.NO_LOG}
    return [
        own
        for own in findings
        if not (_is_beyond_end(own) and own.broker_id in lost)
        and not (own.kind in _OF_EMPTY_DISKS and own.broker_id in empty)
        and not (own.cause is Cause.BEHIND_A_GAP and own.broker_id in lost)
    ]


def _without_empty_ends(findings: list[Finding]) -> list[Finding]:
    """A log whose last records give way to the mark of a file's end goes on to that, and holds no message there."""
    ends = {(own.broker_id, own.end_offset) for own in findings if own.kind in _LOST_AT_BYTES}
    return [
        own
        for own in findings
        if own.kind is not FindingKind.TAIL_EXTRA or own.messages or (own.broker_id, own.start_offset) not in ends
    ]


def _is_beyond_end(finding: Finding) -> bool:
    return finding.kind is FindingKind.OFFSET_BEYOND_END or finding.cause is Cause.BEYOND_END


def _is_empty_size(finding: Finding) -> bool:
    """Of a file's length, that costs no message."""
    return finding.kind is FindingKind.SEGMENT_SIZE and not finding.messages


def _of_other_length(findings: list[Finding]) -> list[Finding]:
    """A file that lacks bytes behind its last record is told once. Where all files of a replica are longer or shorter,
    records seem cut off at their ends; a file that lacks records is told with these."""
    other = {own.broker_id for own in findings if own.cause is Cause.OTHER_LENGTH}
    is_lost = (FindingKind.SEGMENT_MISSING, FindingKind.SEGMENT_SIZE)
    whole = {(own.broker_id, own.file) for own in findings if _is_empty_size(own) and own.start_offset is None}
    findings = [
        own
        for own in findings
        if not (_is_empty_size(own) and own.start_offset is not None and (own.broker_id, own.file) in whole)
    ]
    lossy = {own.broker_id for own in findings if own.kind in is_lost and own.start_offset is not None}
    return [
        own
        for own in findings
        if own.broker_id not in other
        or not (
            (own.kind is FindingKind.TORN and own.verdict is Verdict.OWN_EVIDENCE)
            or (own.cause is Cause.OTHER_LENGTH and own.broker_id in lossy)
        )
    ]


def _without_impossible_offsets(findings: list[Finding]) -> list[Finding]:
    """An offset beyond the end of its queue is further than any other one, and no evidence against these; where the
    tables tell as well that it is wrong, once is enough."""
    beyond = {_offset_place(own, own.broker_id): own for own in findings if own.kind is FindingKind.OFFSET_BEYOND_END}
    rest: list[Finding] = []
    told: list[Finding] = []
    places = {place[1:] for place in beyond}
    for own in findings:
        if own.kind in OF_OFFSETS and _offset_place(own, own.source_broker_id) in beyond:
            continue
        if own.kind in OF_OFFSETS and own.broker_id is None and _offset_place(own, None)[1:] in places:
            continue
        if own.kind in OF_OFFSETS and (other := beyond.get(_offset_place(own, own.broker_id))) is not None:
            told.append(other)
            own = replace(own, detail=f"{own.detail}; {other.detail.rpartition('; ')[2]}")
        rest.append(own)
    return _without(rest, told)


def _offset_place(finding: Finding, broker_id: int | None) -> tuple[object, ...]:
    """Whose offset of which queue on a replica."""
    return broker_id, finding.topic, finding.queue_id, finding.whose


def _without_unreadable(findings: list[Finding]) -> list[Finding]:
    """A file that cannot be read has no other finding, nor has it two; that it is older is told by what it lacks."""
    told: dict[tuple[int | None, str | None], Finding] = {}
    for own in findings:
        if own.kind is FindingKind.METADATA_UNREADABLE:
            told.setdefault((own.broker_id, own.file), own)
    readable = [own for own in findings if told.get((own.broker_id, own.file), own) is own or not _is_of_table(own)]
    older = {(own.broker_id, own.file): own for own in readable if own.kind is FindingKind.TABLE_OLDER}
    rest: list[Finding] = []
    for own in readable:
        for place in ((own.broker_id, own.file), (None, own.file)):
            if _is_of_table(own) and own.kind is not FindingKind.TABLE_OLDER and place in older:
                own = replace(own, detail=f"{own.detail}; {older.pop(place).detail}")
        rest.append(own)
    return [own for own in rest if own.kind is not FindingKind.TABLE_OLDER or (own.broker_id, own.file) in older]


def _is_of_table(finding: Finding) -> bool:
    return finding.severity is Severity.METADATA


def with_changes_beneath(findings: Iterable[Finding], broker_ids: frozenset[int]) -> list[Finding]:
    """Bytes that all replicas have otherwise than an earlier run saw: told with the damage that all of them have."""
    rest = list(findings)
    for changed in [own for own in rest if own.kind is FindingKind.CHANGED_EVERYWHERE and not _is_by_own_files(own)]:
        start, end = changed.start_offset or 0, changed.end_offset or 0
        for place, own in enumerate(rest):
            is_of_all = own.broker_id is None or broker_ids == {own.broker_id}
            is_damage = own.severity in (Severity.LOSS, Severity.DAMAGE) and own.start_offset is not None
            is_inside = (own.start_offset or 0) < end and start < (own.end_offset or 0)
            if own is not changed and is_of_all and is_damage and is_inside:
                beneath = f"an earlier run stored another digest of [{start}, {end})"
                rest[place] = replace(own, detail=f"{own.detail}; {beneath}")
                rest.remove(changed)
                break
    return rest


def _neighbours(findings: list[Finding], kinds: Sequence[FindingKind]) -> list[Finding]:
    """Findings of these kinds that adjoin or overlap on one replica, as one."""
    own = [finding for finding in findings if finding.kind in kinds and finding.start_offset is not None]
    rest = [finding for finding in findings if not (finding.kind in kinds and finding.start_offset is not None)]
    joined: list[Finding] = []
    for finding in sorted(own, key=lambda each: (each.broker_id or 0, each.start_offset or 0)):
        last = joined[-1] if joined else None
        if (
            last is None
            or (last.broker_id, last.source_broker_id) != (finding.broker_id, finding.source_broker_id)
            or finding.broker_id is None
            or (last.end_offset or 0) < (finding.start_offset or 0)
        ):
            joined.append(finding)
            continue
        first = min(last, finding, key=lambda each: kinds.index(each.kind))
        second = finding if first is last else last
        joined[-1] = replace(
            first,
            detail=first.detail if second.detail in first.detail else f"{first.detail}; {second.detail}",
            start_offset=last.start_offset,
            end_offset=max(last.end_offset or 0, finding.end_offset or 0),
            topic=last.topic or finding.topic,
            queue_id=last.queue_id if last.topic else finding.queue_id,
            queue_offset=last.queue_offset if last.topic else finding.queue_offset,
            message_id=last.message_id or finding.message_id,
            store_timestamp_ms=last.store_timestamp_ms if last.topic else finding.store_timestamp_ms,
            messages=last.messages + finding.messages,
            last_message_id=finding.last_message_id or finding.message_id or last.last_message_id,
            file=last.file,
        )
    return rest + joined


def _joined(
    findings: list[Finding], kinds: Sequence[FindingKind], key_of: Callable[[Finding], Hashable]
) -> list[Finding]:
    """Findings of these kinds on one replica that have the same key, as one; those whose key is None stay."""
    groups: dict[Hashable, list[Finding]] = {}
    rest = []
    for finding in findings:
        key = key_of(finding) if finding.kind in kinds else None
        if key is None:
            rest.append(finding)
        else:
            groups.setdefault((finding.broker_id, key), []).append(finding)
    return rest + [own[0] if len(own) == 1 else _one_of(own, kinds) for own in groups.values()]


def _one_of(findings: list[Finding], kinds: Sequence[FindingKind]) -> Finding:
    """The first of them, for all."""
    findings = sorted(findings, key=lambda own: (own.queue_id or 0, own.queue_offset or 0, own.start_offset or 0))
    named = [own for own in findings if own.message_id is not None]
    first = (named or findings)[0]
    last = (named or findings)[-1]
    kind = min((own.kind for own in findings), key=kinds.index)
    queues = {own.queue_id for own in findings}
    messages = sum(own.messages for own in findings)
    if kind in _OF_INDEX:
        # A message has several keys, and is told for each of them.
        several = sum(own.messages for own in findings if own.messages > 1 or own.message_id is None)
        messages = several + len({own.message_id for own in findings if own.messages <= 1 and own.message_id})
    rewritten = [own for own in findings if own.kind is not FindingKind.QUEUE_ENTRY_EXTRA] or findings
    is_no_queue = first.cause is Cause.NO_QUEUE
    # Who writes entries again erases what is behind the end of the queue.
    ends = [own.end_queue_offset or own.queue_offset + own.messages for own in findings if own.queue_offset is not None]
    return replace(
        first,
        kind=kind,
        detail=f"{len(findings)} places of {_place(findings)}, the first: {findings[0].detail}",
        queue_id=first.queue_id if len(queues) == 1 else None,
        queue_offset=rewritten[0].queue_offset if len(queues) == 1 else None,
        end_queue_offset=max(ends, default=None) if len(queues) == 1 else None,
        queues=tuple(position for own in rewritten for position in own.positions) if len(queues) > 1 else (),
        start_offset=min((own.start_offset for own in findings if own.start_offset is not None), default=None),
        end_offset=max((own.end_offset for own in findings if own.end_offset is not None), default=None),
        messages=messages,
        last_message_id=last.last_message_id or (last.message_id if last is not first else first.last_message_id),
        file=_place(findings),
        files=tuple(sorted({own.file or "" for own in findings})) if is_no_queue else first.files,
    )


def _place(findings: list[Finding]) -> str:
    """The file that all of them are about, or the folder."""
    files = sorted({own.file or "" for own in findings})
    if len(files) == 1:
        return files[0]
    first, last = files[0].split("/"), files[-1].split("/")
    common = [one for one, other in zip(first, last) if one == other]
    return "/".join(common)


def _tables(findings: list[Finding]) -> list[Finding]:
    """Metadata: many differences of one file are one table of another time, and several older tables a folder of an
    earlier day."""
    groups: dict[tuple[int | None, str | None], list[Finding]] = {}
    rest = []
    for finding in findings:
        if finding.severity is Severity.METADATA and finding.file is not None:
            place = None if finding.cause is Cause.OLDER_TABLE and finding.broker_id is not None else finding.file
            groups.setdefault((finding.broker_id, place), []).append(finding)
        else:
            rest.append(finding)
    for (_, place), own in groups.items():
        if len(own) <= (_TABLE_FINDINGS_MAX if place is not None else 1):
            rest += own
            continue
        others = [each.topic or each.whose or each.detail for each in own[1 : _LISTED_MAX + 1]]
        more = f" and {len(own) - 1 - len(others)} more" if len(own) - 1 > len(others) else ""
        detail = f"{len(own)} differences, the first: {own[0].detail}; others: {', '.join(others)}{more}"
        files = tuple(dict.fromkeys(each.file or "" for each in own))
        if len(files) > 1:
            detail = f"{detail}; {', '.join(files)} are all older"
        whole = replace(own[0], detail=detail, messages=sum(each.messages for each in own))
        rest.append(replace(whole, files=files if len(files) > 1 else ()))
    return rest


# One list of what several checks found: nothing twice, what all replicas share once, the worst first.

_WEIGHT: Final = {severity: place for place, severity in enumerate(Severity)}
_IN_PIECES: Final = frozenset(
    {FindingKind.ZEROED, FindingKind.RECORDS_SHIFTED, FindingKind.SEGMENT_MISSING, FindingKind.SEGMENT_SIZE}
)
"""Found in pieces where a task ended, though it is one thing."""
_OF_ONE: Final = frozenset(
    {
        FindingKind.SEGMENT_EXTRA,
        FindingKind.SEGMENT_SIZE,
        FindingKind.METADATA_UNREADABLE,
        FindingKind.DISK_ID_WRONG,
        FindingKind.EPOCHS_WRONG,
    }
)
"""Told of each replica by itself, though several were looked at."""


def _lost_by_all(findings: Sequence[Finding], broker_ids: frozenset[int]) -> list[Finding]:
    """Ends of the log that every replica has lost alike, whoever remembers them: one finding."""
    ends: dict[tuple[int | None, int | None], list[Finding]] = {}
    for own in findings:
        if own.kind is FindingKind.TAIL_MISSING and own.source_broker_id is None and own.broker_id is not None:
            ends.setdefault((own.start_offset, own.end_offset), []).append(own)
    rest = list(findings)
    for alike in ends.values():
        if len(alike) > 1 and {own.broker_id for own in alike} == broker_ids:
            rest = [own for own in rest if own not in alike]
            rest.append(_on_all(_anonymous(alike[0]), len(broker_ids)))
    return rest


def collate(compared: Iterable[Finding], checked: Iterable[Finding], *, broker_ids: frozenset[int]) -> list[Finding]:
    """Findings of one group.

    `compared` come from looking at several replicas, `checked` from looking at one of them alone. Where both speak of
    the same bytes of the same replica, the former is kept.
    """
    known = _pieces_joined(_without_doubles(compared))
    rest = without_repeats(known, _without_doubles(checked), broker_ids=broker_ids)[len(known) :]
    own = [finding for finding in known if finding.kind in _OF_ONE and finding.source_broker_id is None]
    others = _without(known, own)
    alike = _lost_by_all([*others, *_shared_once([*own, *_pieces_joined(rest)], broker_ids)], broker_ids)
    once = one_for_each_cause(alike)
    return sorted(with_changes_beneath(once, broker_ids), key=by_weight)


def by_weight(finding: Finding) -> tuple[int, str, int, int, str]:
    """Sort key: the worst first, then by place."""
    return (
        _WEIGHT[finding.severity],
        finding.group,
        finding.start_offset if finding.start_offset is not None else -1,
        finding.broker_id if finding.broker_id is not None else -1,
        finding.kind,
    )


def _without_doubles(findings: Iterable[Finding]) -> list[Finding]:
    """Two tasks may both see the record that lies where they meet."""
    return list(dict.fromkeys(findings))


def _pieces_joined(findings: Sequence[Finding]) -> list[Finding]:
    """Neighbours of one kind on one replica as one finding."""
    whole: list[Finding] = []
    pieces = sorted(
        filter(_is_piece, findings),
        key=lambda finding: (finding.kind, finding.broker_id or 0, finding.start_offset or 0),
    )
    for piece in pieces:
        last = whole[-1] if whole else None
        if (
            last is not None
            and (last.kind, last.broker_id, last.verdict, last.source_broker_id)
            == (piece.kind, piece.broker_id, piece.verdict, piece.source_broker_id)
            and last.end_offset == piece.start_offset
        ):
            whole[-1] = replace(
                last,
                end_offset=piece.end_offset,
                messages=last.messages + piece.messages,
                last_message_id=piece.last_message_id or piece.message_id or last.last_message_id,
            )
        else:
            whole.append(piece)
    return [finding for finding in findings if not _is_piece(finding)] + whole


def _is_piece(finding: Finding) -> bool:
    return finding.kind in _IN_PIECES and finding.start_offset is not None


def _shared_once(findings: Sequence[Finding], broker_ids: frozenset[int]) -> list[Finding]:
    """What every replica has alike is one finding that names none of them."""
    if len(broker_ids) < 2:
        return list(findings)
    sharers: dict[Finding, set[int]] = {}
    for finding in findings:
        if finding.broker_id is not None:
            sharers.setdefault(_anonymous(finding), set()).add(finding.broker_id)
    shared = {finding for finding, found in sharers.items() if found == broker_ids}
    rest = [finding for finding in findings if finding.broker_id is None or _anonymous(finding) not in shared]
    return rest + [_on_all(finding, len(broker_ids)) for finding in shared]


def _anonymous(finding: Finding) -> Finding:
    return replace(finding, broker_id=None, source_broker_id=None)


def _on_all(finding: Finding, count: int) -> Finding:
    return replace(finding, detail=f"{finding.detail}; alike on all {count} replicas", verdict=finding.verdict)


# Who else has it right.

_OF_FILES: Final = frozenset(
    {
        FindingKind.BODY_CRC,
        FindingKind.ZEROED,
        FindingKind.TORN,
        FindingKind.SEGMENT_MISSING,
        FindingKind.SEGMENT_SIZE,
    }
)


def with_sources(findings: Sequence[Finding], replicas: Mapping[int, ReplicaFacts]) -> list[Finding]:
    """What one replica says of itself alone is right on another one that holds the same part and has no finding there:
    nobody needs a backup."""
    return [
        replace(finding, source_broker_id=_holder(finding, findings, replicas))
        if finding.kind in _OF_FILES and finding.broker_id is not None and finding.source_broker_id is None
        else finding
        for finding in findings
    ]


def with_one_source(findings: Sequence[Finding], replicas: Mapping[int, ReplicaFacts]) -> list[Finding]:
    """Neighbours on one replica that others have right have one source, if one of these has all of it right: it is one
    damage, and who copies the whole file must not take it from a replica that is damaged in the middle."""
    found = list(findings)
    for chain in _chains(found):
        sources = {found[at].source_broker_id for at in chain}
        if len(sources) == 1:
            continue
        whole = replace(found[chain[-1]], start_offset=found[chain[0]].start_offset)
        holder = _holder(whole, findings, {key: own for key, own in replicas.items() if key in sources})
        if holder is not None:
            for at in chain:
                found[at] = replace(found[at], source_broker_id=holder)
    return found


def _chains(findings: Sequence[Finding]) -> list[list[int]]:
    """Places of findings of damage, with a source, that adjoin on one replica, in the order of the log."""
    done: list[list[int]] = []
    chains: dict[int | None, list[int]] = {}
    for at in sorted(range(len(findings)), key=lambda at: findings[at].start_offset or 0):
        own = findings[at]
        if own.kind not in (*_BOUNDS, *_OF_FILES) or own.start_offset is None or own.source_broker_id is None:
            continue
        chain = chains.get(own.broker_id)
        if chain is None or findings[chain[-1]].end_offset != own.start_offset:
            chain = chains[own.broker_id] = []
            done.append(chain)
        chain.append(at)
    return done


def _holder(finding: Finding, findings: Sequence[Finding], replicas: Mapping[int, ReplicaFacts]) -> int | None:
    start, end = finding.start_offset, finding.end_offset
    if start is None or end is None:
        name = (finding.file or "").rpartition("/")[2]
        start = int(name) if name.isdecimal() else 0
        end = start + 1
    for broker_id, facts in replicas.items():
        has_it = facts.min_offset <= start and end <= facts.end_offset
        damaged = [*ranges_of(broker_id, findings), *facts.holes]
        is_sound = not any(part.start_offset < end and start < part.end_offset for part in damaged)
        if broker_id != finding.broker_id and has_it and is_sound:
            return broker_id
    return None


def ranges_of(broker_id: int | None, findings: Iterable[Finding]) -> list[LogRange]:
    """Where findings of a replica are, or with None those of all."""
    return [
        LogRange(finding.start_offset, finding.end_offset)
        for finding in findings
        if finding.start_offset is not None
        and finding.end_offset is not None
        and (broker_id is None or finding.broker_id in (None, broker_id))
    ]


def without_repeats(
    compared: Sequence[Finding], checked: Sequence[Finding], *, broker_ids: frozenset[int] = frozenset()
) -> list[Finding]:
    """Findings of a comparison of `broker_ids`, and of `record_check` those that it does not explain: of another
    replica, or of another range of the log. A record that was changed contradicts its own ConsumeQueue and index
    entries as well, and one that has another's place makes a gap of the records behind it."""
    ranges: dict[tuple[str, int | None], list[tuple[int, int]]] = {}
    for finding in compared:
        if finding.kind in _LOG_KINDS and finding.start_offset is not None and finding.end_offset is not None:
            ranges.setdefault((finding.group, finding.broker_id), []).append((finding.start_offset, finding.end_offset))

    told_of: dict[Finding, set[int | None]] = {}
    for finding in checked:
        if finding.cause is Cause.QUEUE_OFFSET:
            told_of.setdefault(_anonymous(finding), set()).add(finding.broker_id)

    def is_explained(finding: Finding) -> bool:
        named = (*ranges.get((finding.group, finding.broker_id), ()), *ranges.get((finding.group, None), ()))
        start, end = place_of(finding)
        if start < 0:
            return False
        if finding.cause is Cause.QUEUE_OFFSET and any(other_end <= start for _, other_end in named):
            # The bytes are those of the other replicas; if these find nothing, the records before it are to blame.
            return len(told_of[_anonymous(finding)]) < len(broker_ids)
        if finding.messages > 1 and finding.kind in (*_OF_QUEUES, *_OF_INDEX):
            # A run of entries may begin before the damage and end behind it.
            return any(other_start <= start and end <= other_end for other_start, other_end in named)
        # A gap in a queue ends where the record begins whose queue offset is too high: that may be what was changed.
        end += finding.kind is FindingKind.QUEUE_GAP
        return any(other_start < end and start < other_end for other_start, other_end in named)

    left = [finding for finding in checked if not is_explained(finding)]
    # What stands for the rest of many follows from the same as they do.
    unexplained = {finding.broker_id for finding in left if finding.cause is not Cause.CUT_OFF}
    told = {finding.broker_id for finding in checked if finding.cause is not Cause.CUT_OFF} - unexplained
    return [*compared, *(own for own in left if not (own.cause is Cause.CUT_OFF and own.broker_id in told))]


_LOG_KINDS: Final = frozenset(
    {
        FindingKind.BODY_CRC,
        FindingKind.FIELD_DIFFERS,
        FindingKind.ZEROED,
        FindingKind.TORN,
        FindingKind.RECORD_MISSING,
        FindingKind.RECORD_EXTRA,
        FindingKind.RECORDS_SHIFTED,
        FindingKind.RECORDS_SWAPPED,
        FindingKind.TAIL_MISSING,
        FindingKind.TAIL_EXTRA,
        FindingKind.SEGMENT_MISSING,
        FindingKind.SEGMENT_SIZE,
    }
)
