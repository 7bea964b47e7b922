"""What a comparison of replicas can find: the kinds, what each means to operators, and one finding.

A finding names where (group, replica, physical range), whose message (topic, queue, offset, id), who is right and why.
Differences that harm nobody are counted apart: a report that cries wolf is not read. The digests by which replicas are
compared first are here as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from tandemmq.core.audit.replica_store import ReplicaFacts


class Severity(StrEnum):
    """How much a finding matters, worst first."""

    LOSS = "loss"
    """A message exists on fewer replicas than it should; if this replica becomes the only one, it is gone."""
    DAMAGE = "damage"
    """Bytes differ from what was written; whoever reads this replica is refused or gets something else."""
    DERIVED = "derived"
    """ConsumeQueue or index: nothing is lost, it is rebuilt from the CommitLog."""
    METADATA = "metadata"
    """Topics, groups or offsets: after a switch consumers would start elsewhere."""


class Verdict(StrEnum):
    """By what evidence the wrong replica is named."""

    MAJORITY = "majority"
    """More replicas hold one content than any other: of earlier versions' runs; it is no proof."""
    CHECKSUM = "checksum"
    """The body matches its CRC on one side only, or the record's structure is whole on one side only."""
    STORED_DIGEST = "stored-digest"
    """An earlier run saw what one side still holds."""
    OWN_EVIDENCE = "own-evidence"
    """The replica contradicts itself: its ConsumeQueue, checkpoint or file sizes know more than its log holds."""
    NEIGHBOURS = "neighbours"
    """Only one side's times and host fit those of the records before and behind."""
    EPOCHS = "epochs"
    """A later master's epoch, or what the group's members remember of each other's disks."""
    MASTER_RULE = "master-rule"
    """By definition: a slave's log is a prefix of its master's, its metadata a copy."""
    UNDECIDED = "undecided"
    """They differ and nothing tells who is right."""


class FindingKind(StrEnum):
    BODY_CRC = "body-crc"
    FIELD_DIFFERS = "field-differs"
    ZEROED = "zeroed"
    TORN = "torn"
    RECORD_MISSING = "record-missing"
    RECORD_EXTRA = "record-extra"
    RECORDS_SHIFTED = "records-shifted"
    RECORDS_SWAPPED = "records-swapped"
    TAIL_MISSING = "tail-missing"
    TAIL_EXTRA = "tail-extra"
    SEGMENT_MISSING = "segment-missing"
    SEGMENT_SIZE = "segment-size"
    SEGMENT_EXTRA = "segment-extra"
    ON_FEWER_REPLICAS = "on-fewer-replicas"
    CHANGED_EVERYWHERE = "changed-everywhere"
    QUEUE_ENTRY_WRONG = "queue-entry-wrong"
    QUEUE_ENTRY_MISSING = "queue-entry-missing"
    QUEUE_GAP = "queue-gap"
    QUEUE_ENTRY_EXTRA = "queue-entry-extra"
    INDEX_ENTRY_WRONG = "index-entry-wrong"
    INDEX_ENTRY_MISSING = "index-entry-missing"
    TOPIC_MISSING = "topic-missing"
    TOPIC_DIFFERS = "topic-differs"
    GROUP_MISSING = "group-missing"
    GROUP_DIFFERS = "group-differs"
    ACCESS_DIFFERS = "access-differs"
    CONSUMER_OFFSET_STALE = "consumer-offset-stale"
    DELAY_OFFSET_STALE = "delay-offset-stale"
    OFFSET_BEYOND_END = "offset-beyond-end"
    LEASES_MISSING = "leases-missing"
    CHECKPOINT_IMPOSSIBLE = "checkpoint-impossible"
    METADATA_UNREADABLE = "metadata-unreadable"
    TABLE_OLDER = "table-older"
    MESSAGE_GROUP_HOMES_DIFFER = "message-group-homes-differ"
    DISK_ID_WRONG = "disk-id-wrong"
    EPOCHS_WRONG = "epochs-wrong"
    KEPT_BYTES_DAMAGED = "kept-bytes-damaged"


class Cause(StrEnum):
    """What a finding comes of, where that decides what else follows from it: text is for people alone."""

    NO_LOG = "no-log"
    """The replica has no CommitLog file at all."""
    OTHER_LENGTH = "other-length"
    """All CommitLog files of the replica have another length than those of the others."""
    BEHIND_A_GAP = "behind-a-gap"
    """A CommitLog file that was made ahead; the one before it is not there."""
    BEHIND_INDEX = "behind-index"
    """The last IndexFile ends before it."""
    BEYOND_END = "beyond-end"
    """It speaks of messages behind the end of the log."""
    OTHER_MESSAGES = "other-messages"
    """A stretch of the log holds sound records, and they are not those of the group."""
    OLDER_COPY = "older-copy"
    """The disk was set back to an earlier state, by how often it was started."""
    OLDER_TABLE = "older-table"
    """The table has an older version than the one that is right."""
    NO_FILE = "no-file"
    """A file is not there."""
    OTHER_NAME = "other-name"
    """A file or folder is there, under another name or in another folder than its own."""
    NO_QUEUE = "no-queue"
    """A folder of ConsumeQueue files that is none of a queue: no topic has it, and no message is in it."""
    QUEUE_OFFSET = "queue-offset"
    """The records of its queue say that a record has another's queue offset."""
    OTHER_RECORD = "other-record"
    """ConsumeQueue or index, which agree with themselves, were made of another version of the record."""
    CUT_OFF = "cut-off"
    """It stands for all that a FindingList has left out."""


@dataclass(frozen=True, slots=True)
class KindMeaning:
    """What a kind means, in words for whoever is on duty."""

    severity: Severity
    title: str
    why: str
    """Why it matters."""
    remedy: str
    """What to do first."""


_COPY: Final = "copy the range from a sound replica: tandemmq repair --plan"
_REINDEX: Final = (
    "stop the broker, move its consumequeue, index and checkpoint elsewhere, make an empty file called abort, and "
    "start it: both are built again from the CommitLog"
)
_REBUILD: Final = f"rewrite the entries from the CommitLog: tandemmq repair --plan; or {_REINDEX}"
_RESYNC: Final = (
    "of a slave: restart it, it takes its master's table again; of a master: stop it, copy the file of a replica that "
    "has it right, and start it; then verify again"
)

KINDS: Final[dict[FindingKind, KindMeaning]] = {
    FindingKind.BODY_CRC: KindMeaning(
        Severity.DAMAGE,
        "body does not match its checksum",
        "bit rot: a consumer that reads this replica is refused the message",
        _COPY,
    ),
    FindingKind.FIELD_DIFFERS: KindMeaning(
        Severity.DAMAGE,
        "a field differs between replicas",
        "after a switch the message has another identity, time or property",
        _COPY,
    ),
    FindingKind.ZEROED: KindMeaning(
        Severity.LOSS, "zeros where messages were", "a page was never written or was lost by the disk", _COPY
    ),
    FindingKind.TORN: KindMeaning(
        Severity.LOSS, "a record is cut off", "recovery of this replica would end its log here", _COPY
    ),
    FindingKind.RECORD_MISSING: KindMeaning(
        Severity.LOSS, "a record is missing", "an acknowledged message exists on fewer replicas than promised", _COPY
    ),
    FindingKind.RECORD_EXTRA: KindMeaning(
        Severity.DAMAGE, "a record only this replica has", "after a switch consumers would see it", _COPY
    ),
    FindingKind.RECORDS_SHIFTED: KindMeaning(
        Severity.LOSS,
        "records lie at another place than they were written for",
        "bytes were inserted or removed before them; none of them can be read here",
        _COPY,
    ),
    FindingKind.RECORDS_SWAPPED: KindMeaning(
        Severity.DAMAGE, "records lie in each other's place", "neither can be read here", _COPY
    ),
    FindingKind.TAIL_MISSING: KindMeaning(
        Severity.LOSS,
        "the end of the log was there and is gone",
        "the replica once held these messages, which is why they were acknowledged",
        "start the slave: it fetches its tail from the master; for a master see docs/operations/consistency.md",
    ),
    FindingKind.TAIL_EXTRA: KindMeaning(
        Severity.DAMAGE,
        "the slave's log goes on beyond its master's",
        "either the master lost acknowledged messages, or the slave kept a tail nobody acknowledged",
        "do not restart either before their tails are compared: docs/operations/consistency.md",
    ),
    FindingKind.SEGMENT_MISSING: KindMeaning(
        Severity.LOSS, "a CommitLog file is missing", "all its messages exist on fewer replicas than promised", _COPY
    ),
    FindingKind.SEGMENT_SIZE: KindMeaning(
        Severity.LOSS, "a CommitLog file has another length", "the broker refuses to start with it", _COPY
    ),
    FindingKind.SEGMENT_EXTRA: KindMeaning(
        Severity.DAMAGE,
        "a CommitLog file lies where none belongs",
        "the broker refuses to start with it",
        "stop the broker and look what is in the file: if it is one that is missing, give it its name; else move "
        "it out of the folder commitlog, and start it",
    ),
    FindingKind.ON_FEWER_REPLICAS: KindMeaning(
        Severity.LOSS,
        "messages are on fewer replicas than the group has",
        "the replica was stopped before it had them; if the others are lost, so are these messages",
        "start the replica and let it catch up, then verify again",
    ),
    FindingKind.CHANGED_EVERYWHERE: KindMeaning(
        Severity.DAMAGE,
        "all replicas agree, but not with an earlier run, or with what was made of the log",
        "the log was changed after it was written, on all replicas alike",
        "restore the range from a backup taken before this run",
    ),
    FindingKind.QUEUE_ENTRY_WRONG: KindMeaning(
        Severity.DERIVED, "a ConsumeQueue entry is wrong", "consumers skip the message or are refused", _REBUILD
    ),
    FindingKind.QUEUE_ENTRY_MISSING: KindMeaning(
        Severity.DERIVED, "a ConsumeQueue entry is missing", "consumers never see the message", _REBUILD
    ),
    FindingKind.QUEUE_ENTRY_EXTRA: KindMeaning(
        Severity.DERIVED,
        "ConsumeQueue entries lead to no message of their queue",
        "consumers wait at them, or are given what is of another queue",
        "of a folder that is no queue's: stop the broker, move it and the file consumequeue-ends out of the store, and "
        f"start it; else {_REINDEX}",
    ),
    FindingKind.QUEUE_GAP: KindMeaning(
        Severity.LOSS,
        "queue offsets skip a position",
        "a message of this queue is in no place of the log",
        "compare with the producer's record of what was acknowledged",
    ),
    FindingKind.INDEX_ENTRY_WRONG: KindMeaning(
        Severity.DERIVED,
        "an index entry is wrong",
        "a search by key misses the message",
        _REINDEX,
    ),
    FindingKind.INDEX_ENTRY_MISSING: KindMeaning(
        Severity.DERIVED,
        "a message is not in the index",
        "a search by key misses it",
        _REINDEX,
    ),
    FindingKind.TOPIC_MISSING: KindMeaning(
        Severity.METADATA, "a replica does not know a topic", "after a switch sends to it fail", _RESYNC
    ),
    FindingKind.TOPIC_DIFFERS: KindMeaning(
        Severity.METADATA, "a topic's configuration differs", "after a switch its queues or rights change", _RESYNC
    ),
    FindingKind.GROUP_MISSING: KindMeaning(
        Severity.METADATA, "a replica does not know a group", "after a switch its retries behave otherwise", _RESYNC
    ),
    FindingKind.GROUP_DIFFERS: KindMeaning(
        Severity.METADATA, "a group's configuration differs", "after a switch its retries behave otherwise", _RESYNC
    ),
    FindingKind.ACCESS_DIFFERS: KindMeaning(
        Severity.METADATA,
        "a user, or what it may do, differs",
        "after a switch clients are refused, or may do what they were denied",
        _RESYNC,
    ),
    FindingKind.CONSUMER_OFFSET_STALE: KindMeaning(
        Severity.METADATA,
        "a consumer offset differs from the other replicas'",
        "after a switch messages are consumed again or skipped",
        _RESYNC,
    ),
    FindingKind.DELAY_OFFSET_STALE: KindMeaning(
        Severity.METADATA,
        "a delay offset differs from the other replicas'",
        "after a switch delayed messages are delivered again or not at all",
        _RESYNC,
    ),
    FindingKind.OFFSET_BEYOND_END: KindMeaning(
        Severity.METADATA,
        "an offset lies beyond the end of its queue",
        "what comes next to this queue is never delivered to the group",
        "set the group back to the queue's end: tandemmq group reset; verify again",
    ),
    FindingKind.LEASES_MISSING: KindMeaning(
        Severity.METADATA,
        "the files of leases are missing or damaged",
        "after a start messages that were received and not acknowledged are delivered again at once",
        "of a slave: restart it, it takes its master's; of a master: stop it and copy config/leases-* of a slave",
    ),
    FindingKind.CHECKPOINT_IMPOSSIBLE: KindMeaning(
        Severity.METADATA,
        "the checkpoint says what cannot be",
        "after a kill recovery would begin too late and leave entries out",
        "stop the broker, remove the file checkpoint, make an empty file called abort, and start it",
    ),
    FindingKind.METADATA_UNREADABLE: KindMeaning(
        Severity.METADATA,
        "a metadata file is unreadable",
        "the broker falls back to its .bak file, or refuses",
        _RESYNC,
    ),
    FindingKind.TABLE_OLDER: KindMeaning(
        Severity.METADATA,
        "a metadata table is older than an earlier run saw it",
        "topics or groups that were made or changed since are not known any more",
        "a slave: restart it, it takes its master's; a master: copy the file of the replica that is named as right; if "
        "none is, make again what is missing, with tandemmq topic, or restore the file from a backup",
    ),
    FindingKind.MESSAGE_GROUP_HOMES_DIFFER: KindMeaning(
        Severity.METADATA,
        "the broker groups that message groups live in differ",
        "after a switch ordered messages go to another broker group and overtake what waits in the first",
        "stop the broker and copy config/messageGroupHomes.json of the replica that is named as right; start it",
    ),
    FindingKind.DISK_ID_WRONG: KindMeaning(
        Severity.METADATA,
        "the file that says which disk it is does not fit",
        "a group that fails over may take this disk for another one, or an older state of it for the newest",
        "find out whether the whole store was set back or exchanged; if only replica.json was, remove it: the disk "
        "gets a new id",
    ),
    FindingKind.EPOCHS_WRONG: KindMeaning(
        Severity.METADATA,
        "the history of masters is missing, damaged or another one",
        "at the next start it is not known up to where this log is the group's",
        "stop the broker and copy epochFileCheckpoint of a replica that has it right; start it",
    ),
    FindingKind.KEPT_BYTES_DAMAGED: KindMeaning(
        Severity.DAMAGE,
        "bytes that were kept aside are not what was kept",
        "what was cut off, or overwritten by a repair, cannot be put back from here",
        "look for the same bytes on the other replicas before you need them; then remove the file",
    ),
}

OF_OFFSETS: Final = frozenset({FindingKind.CONSUMER_OFFSET_STALE, FindingKind.DELAY_OFFSET_STALE})
_OF_DEEP_RUNS: Final = frozenset(
    {
        FindingKind.QUEUE_ENTRY_WRONG,
        FindingKind.QUEUE_ENTRY_MISSING,
        FindingKind.QUEUE_ENTRY_EXTRA,
        FindingKind.QUEUE_GAP,
        FindingKind.INDEX_ENTRY_WRONG,
        FindingKind.INDEX_ENTRY_MISSING,
        FindingKind.OFFSET_BEYOND_END,
        FindingKind.LEASES_MISSING,
        FindingKind.CHECKPOINT_IMPOSSIBLE,
        FindingKind.KEPT_BYTES_DAMAGED,
    }
)


def is_of_deep_runs(kind: FindingKind, verdict: Verdict) -> bool:
    """Whether only a deep run looks for such a finding: its absence in a quick one says nothing."""
    is_of_topics = kind in (FindingKind.TOPIC_MISSING, FindingKind.TOPIC_DIFFERS)
    return kind in _OF_DEEP_RUNS or (is_of_topics and verdict is Verdict.OWN_EVIDENCE)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. Offsets are bytes in the CommitLog, ranges half-open; None: does not apply."""

    kind: FindingKind
    group: str
    """Broker name."""
    verdict: Verdict
    detail: str
    """What exactly, with the values on both sides; one sentence."""
    broker_id: int | None = None
    """The replica that is wrong; None when undecided, or when all are."""
    source_broker_id: int | None = None
    """A replica that holds it right; None if none is known."""
    start_offset: int | None = None
    end_offset: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    message_id: str | None = None
    """UNIQ_KEY, or else the offset message id."""
    store_timestamp_ms: int | None = None
    messages: int = 1
    """Messages concerned; the fields above name the first."""
    last_message_id: str | None = None
    """Set when several messages are concerned."""
    file: str | None = None
    """Path below the store's root."""
    queues: tuple[tuple[str, int, int, int], ...] = ()
    """Topic, queue id and the positions [first, end) that are wrong, of each queue, if there are several."""
    files: tuple[str, ...] = ()
    """Paths of all that are concerned, if there are several of a kind."""
    end_queue_offset: int | None = None
    """One past the last position of the queue that is concerned, if `messages` do not lie side by side."""
    cause: Cause | None = None
    whose: str | None = None
    """Consumer group, delay level or user that a table has otherwise."""
    leads_to: int | None = None
    """Where an index entry leads, if no record of its key lies there; or where a file of the log belongs that has
    another name."""

    @classmethod
    def of(
        cls,
        facts: ReplicaFacts,
        kind: FindingKind,
        detail: str,
        *,
        verdict: Verdict = Verdict.OWN_EVIDENCE,
        **where: Any,
    ) -> Self:
        """Of that replica; `where` are the other fields by name."""
        return cls(kind, facts.group, verdict, detail, facts.broker_id, **where)

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind].severity

    @property
    def positions(self) -> tuple[tuple[str, int, int, int], ...]:
        """As `queues`, of a finding about one queue as well; nothing of one that does not say where it is."""
        if self.queues or self.topic is None or self.queue_id is None or self.queue_offset is None:
            return self.queues
        first = self.queue_offset
        return ((self.topic, self.queue_id, first, self.end_queue_offset or first + self.messages),)

    def to_json(self) -> dict[str, Any]:
        """Plain values by field name, with `severity`."""
        return asdict(self) | {"kind": str(self.kind), "verdict": str(self.verdict), "severity": str(self.severity)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """What `to_json` gave; unknown keys are ignored, so that an older reader reads a newer report."""
        known = {name: values[name] for name in cls.__slots__ if name in values}
        known["kind"] = FindingKind(known["kind"])
        known["verdict"] = Verdict(known["verdict"])
        known["cause"] = Cause(known["cause"]) if known.get("cause") else None
        known["files"] = tuple(known.get("files") or ())
        known["queues"] = tuple((topic, *numbers) for topic, *numbers in known.get("queues") or ())
        return cls(**known)

    def of_group(self, group: str) -> Self:
        """The same in another group's name."""
        return replace(self, group=group)


# Findings of one part of the log, cut where nobody reads on.

FINDINGS_MAX: Final = 1000


class FindingList:
    """Keeps the first FINDINGS_MAX findings, counts the others, and says so in one more."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._first_left_out: Finding | None = None
        self._left_out = 0
        self._messages_left_out = 0

    def extend(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if len(self._kept) < FINDINGS_MAX:
                self._kept.append(finding)
                continue
            self._first_left_out = self._first_left_out or finding
            self._left_out += 1
            self._messages_left_out += finding.messages

    def taken(self) -> tuple[Finding, ...]:
        """Those kept, and the one that stands for the rest."""
        if self._first_left_out is None:
            return tuple(self._kept)
        rest = replace(
            self._first_left_out,
            detail=f"and {self._left_out} more findings in this range, the first: {self._first_left_out.detail}",
            cause=Cause.CUT_OFF,
            messages=self._messages_left_out,
        )
        return (*self._kept, rest)


# Digests of a log's extents. Replicas are compared by these before anybody reads a byte. Extents start at multiples of
# their length, so digests of different replicas and runs cover the same bytes. The first and the last may be partial.
