"""What the broker asks its helper process for, and how the two talk.

A line of JSON each way. To the helper:

    {"job": 7, "kind": "digest-extents", …}      the fields of one of the classes below
    {"cancel": 7}                                nobody waits for it any more

From the helper, in the order of the work:

    {"job": 7, "items": [...]}                   results so far
    {"job": 7, "done": {...}}                    the last line of a job: its totals
    {"job": 7, "failed": "gone", "message": …}   or this: see JobFailure

Lines and not lengths: reading a line is one step, so a reader that is cancelled never loses its place. The helper does
one job at a time and ends when its input does, or when it had nothing to do for a minute.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final, TypeAlias

from mqcore.audit.replica_store import ReplicaFacts

__all__ = [
    "IDLE_LIMIT_S",
    "LINE_BYTES_MAX",
    "CheckRecordsJob",
    "CheckStagedJob",
    "DigestAlgorithm",
    "DigestExtentsJob",
    "DigestRangeJob",
    "FindEntriesJob",
    "Job",
    "JobFailure",
    "job_from_json",
    "job_to_json",
    "line_of",
]

LINE_BYTES_MAX: Final = 4 << 20
"""Of one line: some thousand findings."""
IDLE_LIMIT_S: Final = 60.0


class DigestAlgorithm(StrEnum):
    """How an extent is digested."""

    XXH3_128 = "xxh3_128"
    BLAKE3 = "blake3"


class JobFailure(StrEnum):
    """Why a job ended without a result."""

    GONE = "gone"
    """A file of the range expired meanwhile."""
    UNREADABLE = "unreadable"
    """The disk refuses."""
    UNSOUND = "unsound"
    """The log is damaged where the job needs it whole."""


@dataclass(frozen=True, slots=True)
class DigestExtentsJob:
    """Items: [start, end, digest in hex], the last "" where a file is missing or short."""

    kind: ClassVar[str] = "digest-extents"
    facts: ReplicaFacts
    start_offset: int
    end_offset: int
    extent_bytes: int
    algorithm: DigestAlgorithm


@dataclass(frozen=True, slots=True)
class DigestRangeJob:
    """One digest (XXH3-128) of a whole range, however long. Done: digest in hex."""

    kind: ClassVar[str] = "digest-range"
    facts: ReplicaFacts
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class CheckRecordsJob:
    """Items: a Finding as JSON; then spans, likewise: tens of thousands of queues are too much for one line. Done:
    records and bytes_read. All as RecordCheck.to_json has them."""

    kind: ClassVar[str] = "check-records"
    facts: ReplicaFacts
    start_offset: int
    end_offset: int
    with_queues: bool
    with_index: bool


@dataclass(frozen=True, slots=True)
class CheckStagedJob:
    """Would the log be sound in [start_offset, end_offset) if it held the bytes of a file?

    Items: a Finding in the range as JSON. Done: records.
    """

    kind: ClassVar[str] = "check-staged"
    facts: ReplicaFacts
    start_offset: int
    end_offset: int
    staged_path: str
    """Of the file, for the operating system."""


@dataclass(frozen=True, slots=True)
class FindEntriesJob:
    """What a queue's entries should be, by the records of [start_offset, end_offset), which starts with one.

    Items: [queue_offset, physical_offset, size, tags_code], the first of each queue offset, in the order of the log.
    The job ends when it has them all.
    """

    kind: ClassVar[str] = "find-entries"
    facts: ReplicaFacts
    start_offset: int
    end_offset: int
    topic: str
    queue_id: int
    first_queue_offset: int
    end_queue_offset: int
    delay_levels_ms: tuple[int, ...]


Job: TypeAlias = DigestExtentsJob | DigestRangeJob | CheckRecordsJob | CheckStagedJob | FindEntriesJob

_KINDS: Final[dict[str, type[Job]]] = {
    kind.kind: kind for kind in (DigestExtentsJob, DigestRangeJob, CheckRecordsJob, CheckStagedJob, FindEntriesJob)
}


def job_to_json(job: Job, *, number: int) -> dict[str, Any]:
    """What goes to the helper."""
    return asdict(job) | {"job": number, "kind": job.kind, "facts": job.facts.to_json()}


def job_from_json(values: dict[str, Any]) -> Job:
    """What `job_to_json` gave. Both ends are of one version: anything else is a KeyError or TypeError."""
    kind = _KINDS[values["kind"]]
    fields = {name: value for name, value in values.items() if name not in {"job", "kind"}}
    fields["facts"] = ReplicaFacts.from_json(fields["facts"])
    if kind is DigestExtentsJob:
        fields["algorithm"] = DigestAlgorithm(fields["algorithm"])
    if kind is FindEntriesJob:
        fields["delay_levels_ms"] = tuple(fields["delay_levels_ms"])
    return kind(**fields)


def line_of(frame: dict[str, Any]) -> bytes:
    """A frame as it is sent."""
    return json.dumps(frame, separators=(",", ":")).encode() + b"\n"
