"""Has the brokers carry out the steps of a repair plan. Each broker checks for itself before it changes a byte.

A step is asked for three times: without writing, to see whether the broker would do it; for real; and without writing
once more, which finds nothing left to change when the step has worked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import grpc.aio

from tandemmq.admin.rpc import ReplicaRepairCalls, error_text
from tandemmq.core.audit.repair_plan import RepairAction, RepairStep
from tandemmq.proto.broker.v1 import replica_repair_service_pb2 as repair_pb
from tandemmq.service.texts import counted

# Entries a broker writes in one call.
_ENTRIES_MAX: Final = 1_000_000
# Waiting for the helper processes of both brokers, before a byte is read.
_WAIT_S: Final = 60.0
# The target reads the range before and after, the source digests and sends it; and both may be busy.
_READS: Final = 6
_ENTRIES_TIMEOUT_S: Final = 600.0
_TABLE_TIMEOUT_S: Final = 60.0
_INDEX_PREFIX: Final = "index/"
_INDEX_TIMEOUT_S: Final = 3_600.0
"""All of the log that an IndexFile covers is read, at auditReadRate."""
_RATE_UNKNOWN: Final = 8 << 20


class ReplicaKey(NamedTuple):
    """A member of a broker group."""

    group: str
    broker_id: int

    def __str__(self) -> str:
        """`broker-a:1`."""
        return f"{self.group}:{self.broker_id}"


class StepOutcome(StrEnum):
    CHANGED = "changed"
    """Or would be, when it was only asked for."""
    SOUND = "sound already"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step and what its broker said."""

    step: RepairStep
    outcome: StepOutcome
    text: str


class Repair:
    """Carries out steps, one after the other; MANUAL ones are nobody's here."""

    def __init__(self, calls_of: Callable[[ReplicaKey], ReplicaRepairCalls]) -> None:
        self._calls_of = calls_of

    async def attempt(self, step: RepairStep, *, dry_run: bool) -> StepResult:
        """Asks the target broker; a refusal is a result."""
        assert step.action is not RepairAction.MANUAL, "a person does these"
        acts = {
            RepairAction.COPY_RANGE: self._copy,
            RepairAction.REWRITE_TABLE: self._rewrite_table,
            RepairAction.RESTORE_TABLE: self._rewrite_table,
        }
        act = acts.get(step.action, self._rewrite)
        try:
            return await act(step, dry_run=dry_run)
        except grpc.aio.AioRpcError as error:
            return StepResult(step, StepOutcome.REFUSED, f"refused: {error_text(error)}")

    async def attempt_all(
        self, steps: Sequence[RepairStep], *, dry_run: bool, told: Callable[[StepResult], None]
    ) -> list[StepResult]:
        """In their order; a dry run asks for all of them, else the first refusal ends it."""
        results = []
        for step in steps:
            result = await self.attempt(step, dry_run=dry_run)
            told(result)
            results.append(result)
            if result.outcome is StepOutcome.REFUSED and not dry_run:
                break
        return results

    async def _copy(self, step: RepairStep, *, dry_run: bool) -> StepResult:
        request = repair_pb.RepairRangeRequest(
            source_broker_id=_known(step.source_broker_id),
            target_digest=bytes.fromhex(step.target_digest or ""),
            source_digest=bytes.fromhex(step.source_digest or ""),
            dry_run=dry_run,
        )
        request.range.start_offset = _known(step.start_offset)
        request.range.end_offset = _known(step.end_offset)
        calls = self._calls_of(ReplicaKey(step.group, step.target_broker_id))
        timeout_s = await self._copy_timeout_s(step)
        reply = await calls.repair_range(request, timeout_s=timeout_s)
        if not reply.changed_bytes:
            return StepResult(step, StepOutcome.SOUND, "sound already: it holds what its source holds")
        verb = "would change" if dry_run else "changed"
        text = (
            f"{verb} {counted(reply.changed_bytes, 'byte')} in {counted(len(reply.changed_ranges), 'place')}; "
            f"{counted(reply.record_count, 'record')} proven sound"
        )
        return StepResult(step, StepOutcome.CHANGED, text)

    async def _copy_timeout_s(self, step: RepairStep) -> float:
        rates = []
        for broker_id in (step.target_broker_id, _known(step.source_broker_id)):
            told = await self._calls_of(ReplicaKey(step.group, broker_id)).describe()
            rates.append(told.audit_read_rate_bytes or _RATE_UNKNOWN)
        return _WAIT_S + _READS * (_known(step.end_offset) - _known(step.start_offset)) / min(rates)

    async def _rewrite(self, step: RepairStep, *, dry_run: bool) -> StepResult:
        calls = self._calls_of(ReplicaKey(step.group, step.target_broker_id))
        changed = sound = 0
        end = _known(step.end_queue_offset)
        for first in range(_known(step.first_queue_offset), end, _ENTRIES_MAX):
            request = repair_pb.RewriteQueueEntriesRequest(
                topic=step.topic or "",
                queue_id=_known(step.queue_id),
                first_queue_offset=first,
                end_queue_offset=min(first + _ENTRIES_MAX, end),
                dry_run=dry_run,
                undo=step.action is RepairAction.RESTORE_QUEUE_ENTRIES,
            )
            reply = await calls.rewrite_queue_entries(request, timeout_s=_ENTRIES_TIMEOUT_S)
            changed += reply.changed_count
            sound += reply.sound_count
        if not changed:
            return StepResult(step, StepOutcome.SOUND, f"sound already: {counted(sound, 'entry', 'entries')}")
        verb = "would write" if dry_run else "wrote"
        return StepResult(
            step, StepOutcome.CHANGED, f"{verb} {counted(changed, 'entry', 'entries')}; {sound:,} right before"
        )

    async def _rewrite_table(self, step: RepairStep, *, dry_run: bool) -> StepResult:
        calls = self._calls_of(ReplicaKey(step.group, step.target_broker_id))
        undo = step.action is RepairAction.RESTORE_TABLE
        request = repair_pb.RewriteTableRequest(table=step.table or "", dry_run=dry_run, undo=undo)
        is_index = request.table.startswith(_INDEX_PREFIX)
        reply = await calls.rewrite_table(request, timeout_s=_INDEX_TIMEOUT_S if is_index else _TABLE_TIMEOUT_S)
        if not reply.changed:
            made_from = "what follows from the log" if is_index else "what the broker knows"
            known = "it holds what was kept" if undo else f"the file holds {made_from}"
            return StepResult(step, StepOutcome.SOUND, f"sound already: {known}")
        kept = f"; what the file held is kept in {reply.kept_path}" if reply.kept_path else ""
        return StepResult(step, StepOutcome.CHANGED, f"{'would write' if dry_run else 'wrote'} {step.table}{kept}")


def blocks_the_rest(result: StepResult, before: Sequence[StepResult]) -> bool:
    """Whether a refusal of a dry run will be one for real, too.

    Entries of queues and index are looked up in the log: where an earlier step is to mend that log, the lookup may only
    work after it.
    """
    if result.outcome is not StepOutcome.REFUSED:
        return False
    target = ReplicaKey(result.step.group, result.step.target_broker_id)
    mended = any(
        each.step.action is RepairAction.COPY_RANGE
        and each.outcome is StepOutcome.CHANGED
        and ReplicaKey(each.step.group, each.step.target_broker_id) == target
        for each in before
    )
    is_looked_up = result.step.action is RepairAction.REWRITE_QUEUE_ENTRIES or _is_index(result.step)
    return not (mended and is_looked_up)


def _is_index(step: RepairStep) -> bool:
    return step.action is RepairAction.REWRITE_TABLE and (step.table or "").startswith(_INDEX_PREFIX)


def _known(value: int | None) -> int:
    assert value is not None, "a step without its numbers is refused when the plan is read"
    return value
