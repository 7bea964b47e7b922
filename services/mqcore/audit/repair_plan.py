"""What would make the replicas equal again: steps an operator reads, and `tandemmq repair` asks the brokers to do.

A plan is made from findings and changes nothing. Each step says what it expects to find (`target_digest`) and what it
will put there (`source_digest`), so that a plan from yesterday cannot harm a log that changed since.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self

__all__ = ["PLAN_SCHEMA_VERSION", "RepairAction", "RepairPlan", "RepairStep"]

PLAN_SCHEMA_VERSION: Final = 1


class RepairAction(StrEnum):
    """What a step does."""

    COPY_RANGE = "copy-range"
    """The target broker fetches [start_offset, end_offset) from the source broker of its group, checks both digests,
    and replaces its own bytes."""
    REWRITE_QUEUE_ENTRIES = "rewrite-queue-entries"
    """The target broker writes ConsumeQueue entries again from its own CommitLog."""
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


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """All steps of one run, in the order in which they are to be done."""

    run_id: str
    cluster: str
    steps: tuple[RepairStep, ...]
    schema: int = PLAN_SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        """Plain values by field name."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """What `to_json` gave. Raises ValueError for anything else: a plan is not guessed at."""
        try:
            if values["schema"] != PLAN_SCHEMA_VERSION:
                raise ValueError(f"schema {values['schema']}: this version carries out {PLAN_SCHEMA_VERSION}")
            steps = tuple(RepairStep(**(step | {"action": RepairAction(step["action"])})) for step in values["steps"])
            return cls(run_id=values["run_id"], cluster=values["cluster"], steps=steps)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no repair plan: {error!r}") from error
