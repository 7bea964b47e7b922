"""What one run of the consistency job tells: read by people, monitors, the admin service and the next run.

`summary.json` is this, in JSON. Readers ignore keys they do not know; a changed meaning raises SCHEMA_VERSION.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final, Self

from tandemmq.core.audit.findings import Finding
from tandemmq.core.routing.values import MASTER_ID

SCHEMA_VERSION: Final = 1
FINDINGS_LISTED_MAX: Final = 500
"""Findings in summary.json; all are in findings.parquet."""


class Tier(StrEnum):
    """How thorough a run is."""

    QUICK = "quick"
    """Digests of new extents and of some old ones, differing ones down to the message, metadata."""
    DEEP = "deep"
    """Also every record by itself: structure, body CRC, ConsumeQueue and index; finds what all replicas have alike."""


class Outcome(StrEnum):
    """What came of a run, a group or a replica."""

    EQUAL = "equal"
    DIVERGED = "diverged"
    INCOMPLETE = "incomplete"
    """Nothing wrong was found in what could be read, but not all could be."""
    SKIPPED = "skipped"
    """A group that was left out on purpose, because a slave is too far behind or nothing was new."""


class ExitCode(IntEnum):
    """What the job's process ends with; 1 and above 3 mean that it broke."""

    EQUAL = 0
    DIVERGED = 2
    INCOMPLETE = 3


@dataclass(frozen=True, slots=True)
class ReplicaSummary:
    """One member of a group."""

    broker_id: int
    source: str
    """Where it was read: broker host:port, or a path or URI."""
    outcome: Outcome
    min_offset: int = 0
    end_offset: int = 0
    lag_bytes: int = 0
    findings: int = 0
    bytes_read: int = 0
    problem: str = ""
    """Why it could not be read; empty if it was."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    group: str
    outcome: Outcome
    replicas: tuple[ReplicaSummary, ...]
    start_offset: int = 0
    end_offset: int = 0
    """The common range [start_offset, end_offset) of all replicas."""
    new_bytes: int = 0
    """Verified for the first time, counted once, not per replica."""
    scrubbed_bytes: int = 0
    """Verified again."""
    watermark: int = 0
    """Everything below it was verified by this run or an earlier one."""
    findings: int = 0
    problem: str = ""
    """Why it was skipped or is incomplete."""
    extent_map: str = ""
    """The common range in at most 256 equal parts, a letter each, for a picture: `.` never verified, `o` by an earlier
    run, `=` equal now, `x` differs."""
    master_id: int | None = MASTER_ID
    """Its master, as the NameServers said; by the id where only folders were read. None: they knew none."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    run_id: str
    """Sortable: 20261121T220000Z-1f3a."""
    tier: Tier
    cluster: str
    started_at: str
    """ISO 8601, UTC, with Z."""
    finished_at: str
    outcome: Outcome
    groups: tuple[GroupSummary, ...]
    findings: tuple[Finding, ...] = ()
    """The first FINDINGS_LISTED_MAX, worst first."""
    findings_total: int = 0
    findings_by_kind: dict[str, int] = field(default_factory=dict)
    benign: dict[str, int] = field(default_factory=dict)
    """Differences that harm nobody, by name: padding (after a file's last record)."""
    bytes_read: int = 0
    """Over all replicas."""
    records_checked: int = 0
    duration_seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU of the driver and of its executors' Python, as far as known."""
    spark_application_id: str = ""
    notes: tuple[str, ...] = ()
    """What a reader of the report should know, a sentence each."""
    only_groups: tuple[str, ...] = ()
    """Groups that the run was asked for; empty for all. The others' standing is what it was."""
    schema: int = SCHEMA_VERSION

    @property
    def exit_code(self) -> ExitCode:
        """What the process ends with."""
        if self.outcome is Outcome.DIVERGED:
            return ExitCode.DIVERGED
        return ExitCode.INCOMPLETE if self.outcome is Outcome.INCOMPLETE else ExitCode.EQUAL

    @property
    def sentence(self) -> str:
        """The verdict, for people. It says equal only of what was compared with something."""
        compared = [group for group in self.groups if group.outcome is not Outcome.SKIPPED]
        alone = sum(len(group.replicas) == 1 for group in compared)
        match self.outcome:
            case Outcome.DIVERGED:
                return "replicas differ"
            case Outcome.INCOMPLETE:
                return "nothing wrong was found, but not everything could be read"
            case Outcome.EQUAL if alone and alone == len(compared):
                return "nothing wrong was found; no group has a second replica to compare with"
            case Outcome.EQUAL if alone:
                return f"all replicas hold the same; {alone:,} of {len(self.groups):,} groups have only one"
            case Outcome.EQUAL if compared:
                return "all replicas hold the same"
        return "nothing was compared"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "findings": [finding.to_json() for finding in self.findings],
            "exit_code": int(self.exit_code),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """What `to_json` gave, of this version or a newer one that only adds. Raises ValueError for anything else."""
        try:
            if values["schema"] != SCHEMA_VERSION:
                raise ValueError(f"schema {values['schema']}: this reader knows {SCHEMA_VERSION}")
            known = {name: values[name] for name in cls.__slots__ if name in values}
            known["tier"] = Tier(known["tier"])
            known["outcome"] = Outcome(known["outcome"])
            known["findings"] = tuple(Finding.from_json(finding) for finding in known.get("findings", ()))
            known["groups"] = tuple(_group(group) for group in known["groups"])
            known["notes"] = tuple(known.get("notes", ()))
            known["only_groups"] = tuple(known.get("only_groups", ()))
            return cls(**known)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no summary of a run: {error!r}") from error


def _group(values: dict[str, Any]) -> GroupSummary:
    known = {name: values[name] for name in GroupSummary.__slots__ if name in values}
    known["outcome"] = Outcome(known["outcome"])
    known["replicas"] = tuple(_replica(replica) for replica in known["replicas"])
    return GroupSummary(**known)


def _replica(values: dict[str, Any]) -> ReplicaSummary:
    known = {name: values[name] for name in ReplicaSummary.__slots__ if name in values}
    known["outcome"] = Outcome(known["outcome"])
    return ReplicaSummary(**known)
