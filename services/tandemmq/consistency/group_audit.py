"""One group from first question to verdict.

1. Describe: slaves before their master, so that a slave which goes on copying never seems ahead of it.
2. Digest: the planned ranges in waves, the same pieces of all replicas; what a wave found out is remembered.
3. Second look: extents that differ, or changed since an earlier run, are read once more, on running brokers after a
   pause. What is equal by then was read while it was written.
4. Compare: what still differs, down to the message, by tasks that read all replicas.
5. Deep tier: every record of every replica by itself.
6. Metadata.

Whatever one replica does, the others are compared; whatever happens to a group, the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from tandemmq.consistency.described_replicas import (
    OF_TABLES,
    DescribedReplica,
    by_epochs,
    lacks_topic,
    of_older_copies,
    of_stranger,
    other_files,
    seen_now,
    seen_of_members,
    stood_still,
    table_place,
    tables_gone,
    without_strangers,
)
from tandemmq.consistency.extent_reading import ExtentReading, Questions, extent_map
from tandemmq.consistency.planning import (
    GroupMemory,
    RangePlan,
    ScrubOptions,
    chunks,
    differing_to_remember,
    merged,
    plan_ranges,
    total_bytes,
)
from tandemmq.consistency.progress import Progress
from tandemmq.consistency.results_store import GroupStore
from tandemmq.consistency.source_files.posix_files import SourceSpec
from tandemmq.consistency.tasks import (
    BoundsTask,
    CheckTask,
    CompareTask,
    DerivedTask,
    DescribeTask,
    NameTask,
    QueueEndsTask,
    Replica,
    TaskAnswer,
    TaskRunner,
)
from tandemmq.core.audit.causes import collate, place_of, ranges_of, with_one_source, with_sources
from tandemmq.core.audit.derived_facts import DerivedFacts, compare_derived_files, joined_spans
from tandemmq.core.audit.equality import SeenReplica, common_range, is_empty, layers
from tandemmq.core.audit.findings import OF_OFFSETS, Finding, FindingKind, Severity, Verdict, is_of_deep_runs
from tandemmq.core.audit.metadata_comparison import (
    compare_metadata,
    of_another_group,
    older_than_seen,
)
from tandemmq.core.audit.queue_check import QueueSpan, seam_gaps
from tandemmq.core.audit.replica_store import ReplicaFacts
from tandemmq.core.audit.run_summary import GroupSummary, Outcome, ReplicaSummary, Tier
from tandemmq.core.audit.side_files import (
    SideFacts,
    doubtful_ranges,
    resting_master,
    side_findings,
)
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.replication.log_history import LogRange

_CHECKS_PER_SLOT: Final = 8
_COMPARED_AT_ONCE_BYTES: Final = 32 << 20
"""A task that compares holds so much of each replica in memory."""
_COMPARED_BYTES_MAX: Final = 4 << 30
"""Of a group. A replica that is another log altogether is not told message by message."""

_LOST: Final = frozenset(
    {
        FindingKind.ZEROED,
        FindingKind.TORN,
        FindingKind.SEGMENT_MISSING,
        FindingKind.SEGMENT_SIZE,
        FindingKind.TAIL_MISSING,
    }
)
_OF_LOGS: Final = (Severity.LOSS, Severity.DAMAGE)


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What the settings say about a group's audit."""

    tier: Tier
    algorithm: str
    extent_bytes: int
    chunk_bytes: int
    max_lag_bytes: int
    scrub: ScrubOptions
    second_look_pause_s: float
    forget_replicas_after_s: float
    file_reserved_ms: int


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What was found out about one group."""

    summary: GroupSummary
    findings: tuple[Finding, ...] = ()
    benign: Mapping[str, int] = field(default_factory=dict)
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    """Those that were read, for whoever plans a repair."""
    records: int = 0
    cpu_seconds: float = 0.0
    notes: tuple[str, ...] = ()


class GroupAudit:
    """One group in one run. For one thread."""

    def __init__(
        self,
        group: str,
        specs: Sequence[SourceSpec],
        options: AuditOptions,
        *,
        runner: TaskRunner,
        store: GroupStore,
        progress: Progress,
        run_id: str,
        is_over: Callable[[], bool],
    ) -> None:
        self._group = group
        self._specs = {spec.broker_id: spec for spec in specs}
        self._master_id = next((spec.broker_id for spec in specs if spec.is_master), None)
        self._options = options
        self._store = store
        self._progress = progress
        self._run_id = run_id
        self._is_over = is_over
        self._now = datetime.now(UTC)
        self._questions = Questions(group, runner, store, progress)
        self._problems: list[str] = []
        self._benign: dict[str, int] = {}
        self._notes: list[str] = []
        self._records = 0
        self._common = LogRange(0, 0)
        self._kept: dict[int, dict[str, str]] = {}
        """Digests of what was kept aside, by broker id and path."""
        self._first_epochs: int | None = None
        """Of the group when the run began."""

    def run(self) -> GroupResult:
        """The verdict. Raises TasksFailed when the machinery breaks, not when replicas do."""
        described, strangers = self._with_last_master(self._describe(self._specs.values())), dict[int, str]()
        if not self._has_brokers:  # A broker starts with no other's disk.
            described, strangers = without_strangers(described, self._group)
        replicas = {broker_id: found.replica for broker_id, found in sorted(described.items())}
        self._first_epochs = max((found.side.history.last_epoch for found in described.values()), default=None)
        if not replicas:
            return self._left_out(Outcome.INCOMPLETE, replicas, "no replica can be read")
        behind = max(replica.facts.lag_bytes for replica in replicas.values())
        if behind > self._options.max_lag_bytes:
            return self._left_out(
                Outcome.SKIPPED, replicas, f"a slave is {behind} bytes behind its master; maxLagBytes allows fewer"
            )
        memory = self._of_these_disks(self._remembered(), replicas)
        self._note_who_is_absent(memory, replicas)
        self._note_who_is_remembered(described)
        holding = {broker_id: replica for broker_id, replica in replicas.items() if not is_empty(replica.facts)}
        self._common = common_range(replica.facts for replica in holding.values())
        doubtful = doubtful_ranges(
            {broker_id: found.side for broker_id, found in described.items()},
            {broker_id: replica.facts for broker_id, replica in holding.items()},
        )
        # A file that is gone, or is another one, is seen almost without reading, also where it was verified before.
        holes = [hole for replica in holding.values() for hole in replica.facts.holes]
        doubtful += other_files(described[broker_id] for broker_id in holding)
        plan = plan_ranges(
            self._options.tier,
            self._common,
            replace(memory, differing=(*memory.differing, *doubtful, *holes)),
            memory.watermark(holding),
            scrub=self._options.scrub,
            now_s=self._now.timestamp(),
        )
        planned_bytes = self._planned_bytes(plan, holding)
        self._progress.planned(planned_bytes)
        self._questions.expect(planned_bytes)
        reading = self._reading(holding, memory, with_checks=self._is_deep)
        if not reading.read(plan.ranges, is_over=self._is_over):
            self._problems.append("the deadline came first; the next run goes on from here")
        seen = seen_of_members(memory.seen, described)
        bounds = [of_stranger(own, strangers) for own in self._bounds(replicas, seen)]
        compared = [*bounds, *self._compare(reading, replicas)]
        compared += self._compare_between_some(holding, memory)
        compared = by_epochs(compared, described)
        checked = self._check_all(described, compared, reading.checked) if self._is_deep else []
        self._note_what_is_not_compared(described, holding)
        compared += self._compare_metadata(described, memory, compared, checked)
        compared = of_older_copies(compared, replicas, self._master_id)
        known = set(compared)
        checked = [finding for finding in checked if finding not in known]
        told = {(finding.broker_id, finding.file) for finding in checked}
        checked += [own for own in self._kept_bytes_changed(memory) if (own.broker_id, own.file) not in told]
        facts = {broker_id: replica.facts for broker_id, replica in holding.items()}
        compared = with_one_source(compared, facts)
        of_group = frozenset(replicas) - frozenset(strangers)
        findings = with_sources(collate(compared, checked, broker_ids=of_group), facts)
        findings = self._with_lost_names(findings, replicas)
        if memory.deep_findings and not self._is_deep:
            self._notes.append(
                f"{self._group}: the deep run {memory.deep_run_id} had {memory.deep_findings} findings of kinds that "
                "a quick run does not look for"
            )
        if findings:
            findings = self._of_one_moment(findings, described)
        if findings and self._master_changed():
            self._problems.append("the group's master changed during the run; the next run goes on from here")
            findings = [finding for finding in findings if finding.kind not in _OF_MASTERS]
        return self._conclude(memory, plan, reading, described, findings)

    def _planned_bytes(self, plan: RangePlan, holding: Mapping[int, Replica]) -> int:
        """What will be read of all replicas: of a deep run what they hold."""
        if not self._is_deep:
            return total_bytes(plan.ranges) * len(holding)
        return sum(replica.facts.end_offset - replica.facts.min_offset for replica in holding.values())

    def _reading(
        self, replicas: Mapping[int, Replica], memory: GroupMemory, *, with_checks: bool = False
    ) -> ExtentReading:
        return ExtentReading(
            replicas,
            memory,
            self._questions,
            self._store,
            chunk_bytes=self._options.chunk_bytes,
            verified_at=self._now,
            with_checks=with_checks,
        )

    def _compare_between_some(self, replicas: Mapping[int, Replica], memory: GroupMemory) -> list[Finding]:
        """What two or more replicas hold and others do not: it is not verified, but it is compared each time."""
        findings = []
        for log_range, holders in layers(replica.facts for replica in replicas.values()):
            if len(holders) < len(replicas) and not self._is_over():
                reading = self._reading({broker_id: replicas[broker_id] for broker_id in sorted(holders)}, memory)
                reading.read([log_range], is_over=self._is_over)
                findings += self._compare(reading, replicas)
        return findings

    @property
    def _is_deep(self) -> bool:
        return self._options.tier is Tier.DEEP

    @property
    def _has_brokers(self) -> bool:
        return any(spec.is_broker for spec in self._specs.values())

    # What there is

    def _remembered(self) -> GroupMemory:
        """What earlier runs left, without replicas that were taken away for good."""
        options = self._options
        memory = self._store.load_memory(algorithm=options.algorithm, extent_bytes=options.extent_bytes)
        if self._store.is_memory_damaged:
            self._notes.append(
                f"{self._group}: what earlier runs saw cannot be read ({self._store.memory_path}): it is compared as a "
                "new group, and what was lost on all replicas since then is not looked for"
            )
        now_s = self._now.timestamp()
        seen_at_s = {
            broker_id: min(moment_s, now_s)  # The clock may have been ahead.
            for broker_id, moment_s in memory.seen_at_s.items()
            if now_s - moment_s <= options.forget_replicas_after_s
        } | dict.fromkeys(self._specs, now_s)
        watermarks = {key: offset for key, offset in memory.replica_watermarks.items() if key in seen_at_s}
        # Of a version that knew only how far a replica was verified.
        seen = {key: SeenReplica(offset, offset, offset) for key, offset in watermarks.items()} | memory.seen
        seen = {key: own for key, own in seen.items() if key in seen_at_s}
        return replace(memory, replica_watermarks=watermarks, seen_at_s=seen_at_s, seen=seen)

    def _of_these_disks(self, memory: GroupMemory, replicas: Mapping[int, Replica]) -> GroupMemory:
        """Without what was verified of disks that others have replaced. Where all of them are others, it is the memory
        of a group that had the same name, or of one that is lost: this run says so, and the next ones begin anew."""
        others = {
            broker_id
            for broker_id, seen in memory.seen.items()
            if seen.disk_id
            and broker_id in replicas
            and replicas[broker_id].facts.disk_id not in ("", *(own.disk_id for own in memory.seen.values()))
        }
        if others and others == set(memory.seen):
            self._problems.append(
                "all replicas are on other disks than earlier runs saw: what those held is not looked for, and this "
                "group is compared as a new one from now on"
            )
            return GroupMemory(
                memory.algorithm,
                memory.extent_bytes,
                seen_at_s=dict.fromkeys(self._specs, self._now.timestamp()),
                run_id=memory.run_id,
            )
        watermarks = {key: offset for key, offset in memory.replica_watermarks.items() if key not in others}
        return replace(memory, replica_watermarks=watermarks)

    def _describe(self, specs: Iterable[SourceSpec]) -> dict[int, DescribedReplica]:
        """Those that answer."""
        described: dict[int, DescribedReplica] = {}
        for is_master in (False, True):
            turn = [spec for spec in specs if (spec.broker_id == self._master_id) is is_master]
            for spec, answer in zip(turn, self._questions.ask([DescribeTask(spec) for spec in turn])):
                if not answer.problem:
                    facts = ReplicaFacts.from_json(answer.values["facts"])
                    texts = {MetadataFile(name): text for name, text in answer.values["metadata"].items()}
                    side = SideFacts.from_json(answer.values["side"])
                    heads = dict(answer.values.get("heads", ()))
                    described[spec.broker_id] = DescribedReplica(
                        Replica(spec, facts),
                        texts,
                        side,
                        heads,
                        is_there=answer.values.get("is_there", True),
                        has_foreign_topics=answer.values.get("has_foreign_topics", False),
                    )
        return described

    def _with_last_master(self, described: dict[int, DescribedReplica]) -> dict[int, DescribedReplica]:
        """Of folders nobody says who is master; after a failover it is not the one with id 0."""
        if self._has_brokers:
            return described
        master_id = resting_master({broker_id: found.side for broker_id, found in described.items()})
        if master_id is None or master_id == self._master_id:
            return described
        self._master_id = master_id
        return {
            broker_id: replace(
                found,
                replica=replace(found.replica, spec=replace(found.replica.spec, is_master=broker_id == master_id)),
            )
            for broker_id, found in described.items()
        }

    def _note_who_is_absent(self, memory: GroupMemory, replicas: Mapping[int, Replica]) -> None:
        absent = sorted(set(memory.replica_watermarks) - set(self._specs))
        if absent:
            names = ", ".join(f"{self._group}:{broker_id}" for broker_id in absent)
            self._problems.append(f"{names} took part in earlier runs and cannot be found")
        if len(replicas) == 1 and len(self._specs) == 1 and not absent:
            self._notes.append(f"{self._group} has one replica: there was nothing to compare it with")

    def _note_what_is_not_compared(
        self, described: Mapping[int, DescribedReplica], holding: Mapping[int, Replica]
    ) -> None:
        """Nothing is equal to nothing."""
        if not any(found.is_there for found in described.values()):
            self._problems.append(
                "there is nothing of a store where any of its replicas should be: check the paths, and whether the "
                "volumes are mounted"
            )
        shared = [layer.broker_ids for layer in layers(own.facts for own in holding.values())]
        apart = sorted(holding.keys() - frozenset().union(*shared)) if len(holding) > 1 else []
        if apart:
            names = ", ".join(f"{self._group}:{broker_id}" for broker_id in apart)
            self._problems.append(f"no other replica holds any part of the log of {names}: nothing to compare with")

    def _note_who_is_remembered(self, described: Mapping[int, DescribedReplica]) -> None:
        """Members that others remember and nobody showed to this run: they may be gone for good, or hold more."""
        remembered = {each.broker_id for found in described.values() for each in found.side.remembered}
        unread = sorted(remembered - {-1} - set(self._specs))
        if unread:
            names = ", ".join(f"{self._group}:{broker_id}" for broker_id in unread)
            self._notes.append(f"the members of {self._group} remember {names}, which this run was not shown")

    def _bounds(self, replicas: Mapping[int, Replica], known: Mapping[int, SeenReplica]) -> list[Finding]:
        """What a replica lacks at either end of its log and should not: see equality."""
        task = BoundsTask(
            tuple(replicas.values()),
            tuple((broker_id, seen) for broker_id, seen in known.items() if broker_id in replicas),
            self._options.max_lag_bytes,
            self._options.file_reserved_ms,
            int(self._now.timestamp() * 1_000),
        )
        (answer,) = self._questions.ask([task])
        if answer.problem:
            self._problems.append(answer.problem)
        return answer.findings

    # What differs

    def _compare(self, reading: ExtentReading, replicas: Mapping[int, Replica]) -> list[Finding]:
        """What the digests found, looked at again and then told by message."""
        if not (reading.differing or reading.changed):
            return []
        if any(replica.facts.is_running for replica in replicas.values()):
            time.sleep(self._options.second_look_pause_s)
        reading.look_again()
        if reading.equal_at_second_look:
            self._benign["equal-at-second-look"] = reading.equal_at_second_look
        lost = _lost_everywhere(reading)
        findings = [*self._compare_differing(reading), *self._explain_changed(reading)]
        if lost:
            # Alike on all replicas, so that a comparison has nothing to say of it.
            reading.differing.extend(lost)
            findings += [] if self._is_deep else self._check_alone(reading, lost)
        return findings

    def _compare_differing(self, reading: ExtentReading) -> list[Finding]:
        pieces = chunks(merged(reading.differing), _COMPARED_AT_ONCE_BYTES)
        shown = pieces[: _COMPARED_BYTES_MAX // _COMPARED_AT_ONCE_BYTES]
        if len(shown) < len(pieces):
            self._problems.append(f"{total_bytes(pieces)} bytes differ; the first {total_bytes(shown)} were looked at")
        readable = tuple(reading.readable)
        tasks = [
            CompareTask(readable, piece, reading.earlier_of(piece), self._options.algorithm)
            for piece in shown
            if len(readable) > 1
        ]
        findings = []
        harmless = []
        for task, answer in zip(tasks, self._questions.ask(tasks)):
            if answer.problem:
                self._problems.append(answer.problem)
                continue
            findings += answer.findings
            for name, count in answer.values["benign"].items():
                self._benign[name] = self._benign.get(name, 0) + count
            if not answer.findings:
                harmless.append(task.log_range)
        reading.differing[:] = [
            extent
            for extent in reading.differing
            if not any(piece.start_offset <= extent.start_offset < piece.end_offset for piece in harmless)
        ]
        return findings

    def _explain_changed(self, reading: ExtentReading) -> list[Finding]:
        """What all replicas have alike and not as before: the digests say that, the records perhaps what."""
        ranges = merged(reading.changed)
        findings = [
            Finding(
                kind=FindingKind.CHANGED_EVERYWHERE,
                group=self._group,
                verdict=Verdict.STORED_DIGEST,
                detail="the digest that an earlier run stored is another one; all replicas have the same bytes now, "
                "and at least one of these messages was changed",
                start_offset=log_range.start_offset,
                end_offset=log_range.end_offset,
            )
            for log_range in ranges
        ]
        if ranges and reading.readable:
            (answer,) = self._questions.ask([NameTask(reading.readable[0], tuple(findings))])
            findings = answer.findings or findings
        if ranges and not self._is_deep:
            findings += self._check_alone(reading, ranges)
        return findings

    def _check_alone(self, reading: ExtentReading, ranges: tuple[LogRange, ...]) -> list[Finding]:
        """What a deep run would say of some ranges."""
        tasks = [CheckTask(replica, ranges) for replica in reading.readable]
        checked = [finding for answer in self._questions.ask(tasks) for finding in answer.findings]
        return collate([], checked, broker_ids=frozenset(task.broker_ids[0] for task in tasks))

    def _with_lost_names(self, findings: Sequence[Finding], replicas: Mapping[int, Replica]) -> list[Finding]:
        """What no replica holds any more: the messages as the first replica whose ConsumeQueues or index know them."""
        named = list(findings)
        lost = [
            at
            for at, own in enumerate(findings)
            if own.kind in _LOST and own.source_broker_id is None and own.start_offset is not None
        ]
        by_evidence = sorted(replicas, key=lambda broker_id: broker_id in self._questions.problems)
        for broker_id in by_evidence:
            if not lost:
                break
            task = NameTask(replicas[broker_id], tuple(named[at] for at in lost), are_lost=True)
            for answer in self._questions.ask([task]):
                for at, own in zip(lost, answer.findings):
                    named[at] = own
            lost = [at for at in lost if named[at] == findings[at]]
        return named

    # What is wrong with one alone

    def _check_all(
        self,
        described: Mapping[int, DescribedReplica],
        compared: Sequence[Finding],
        done: Sequence[tuple[CheckTask, TaskAnswer]],
    ) -> list[Finding]:
        """All records of all replicas; `done` were checked while they were digested."""
        findings: list[Finding] = []
        replicas = {
            broker_id: found.replica
            for broker_id, found in sorted(described.items())
            if not is_empty(found.replica.facts)
        }
        found: dict[int, list[tuple[LogRange, Sequence[QueueSpan]]]] = {broker_id: [] for broker_id in replicas}

        def take(task: CheckTask, answer: TaskAnswer) -> None:
            findings.extend(answer.findings)
            self._records += answer.values["records"]
            for log_range, of_range in zip(task.ranges, answer.values["spans"]):
                found[task.broker_ids[0]].append((log_range, [QueueSpan.from_json(span) for span in of_range]))

        for task, answer in done:
            take(task, answer)
        tasks = [
            CheckTask(replica, (piece,))
            for broker_id, replica in replicas.items()
            for piece in chunks(
                _without(
                    LogRange(replica.facts.min_offset, replica.facts.end_offset),
                    [log_range for log_range, _ in found[broker_id]],
                ),
                self._options.chunk_bytes,
            )
        ]
        at_once = self._questions.slots * _CHECKS_PER_SLOT
        for first in range(0, len(tasks), at_once):
            if self._is_over():
                self._problems.append("the deadline came before all records were checked")
                break
            wave = [
                task for task in tasks[first : first + at_once] if task.broker_ids[0] not in self._questions.problems
            ]
            for task, answer in zip(wave, self._questions.ask_once(wave)):
                if not answer.problem:
                    take(task, answer)
        spans = {
            broker_id: [own for _, own in sorted(parts, key=lambda part: part[0])] for broker_id, parts in found.items()
        }
        for broker_id, parts in spans.items():
            damaged = ranges_of(broker_id, [*compared, *findings])
            findings += seam_gaps(self._group, broker_id, parts, damaged=damaged)
        if not self._problems and not self._questions.problems:
            findings += self._check_derived(described, spans, [*compared, *findings])
        return findings

    def _check_derived(
        self,
        described: Mapping[int, DescribedReplica],
        spans: Mapping[int, list[Sequence[QueueSpan]]],
        known: list[Finding],
    ) -> list[Finding]:
        """The way back, from derived files to the log: when all of the log was read."""
        group_end = max(found.replica.facts.end_offset for found in described.values())
        of_log = [own for own in known if own.severity is not Severity.DERIVED]
        tasks = [
            DerivedTask(
                described[broker_id].replica,
                tuple(joined_spans(parts).values()),
                tuple(ranges_of(broker_id, of_log)),
                group_end,
            )
            for broker_id, parts in spans.items()
        ]
        findings, facts = [], {}
        for task, answer in zip(tasks, self._questions.ask(tasks)):
            if not answer.problem:
                findings += answer.findings
                facts[task.broker_ids[0]] = DerivedFacts.from_json(answer.values["facts"])
        self._kept = {broker_id: own.kept for broker_id, own in facts.items()}
        texts = {broker_id: found.metadata for broker_id, found in described.items()}
        return findings + compare_derived_files(self._group, facts, texts)

    def _kept_bytes_changed(self, memory: GroupMemory) -> Iterable[Finding]:
        """What was kept aside is never written again; it may be removed."""
        for broker_id, digests in self._kept.items():
            before = memory.seen[broker_id].kept if broker_id in memory.seen else {}
            for path, digest in digests.items():
                if before.get(path, digest) != digest:
                    yield Finding(
                        kind=FindingKind.KEPT_BYTES_DAMAGED,
                        group=self._group,
                        verdict=Verdict.STORED_DIGEST,
                        detail=f"an earlier run saw digest {before[path]}; here is {digest}",
                        broker_id=broker_id,
                        messages=0,
                        file=path,
                    )

    # Metadata

    def _compare_metadata(
        self,
        described: Mapping[int, DescribedReplica],
        memory: GroupMemory,
        compared: Sequence[Finding],
        checked: Sequence[Finding],
    ) -> list[Finding]:
        """Tables and what lies beside them. A running slave copies its master's tables now and then: what it lacks is a
        finding only if its copy stood still over a pause in which it was not equal before and is not equal after.
        """
        findings = self._metadata_findings(described, memory, compared, checked)
        running = [found.replica.spec for found in described.values() if found.replica.facts.is_running]
        if not findings or not running:
            return findings
        time.sleep(self._options.second_look_pause_s)
        later = dict(described) | self._describe(running)
        known = {table_place(finding) for finding in findings}
        return [
            finding
            for finding in self._metadata_findings(later, memory, compared, checked)
            if table_place(finding) in known and stood_still(finding, described, later)
        ]

    def _metadata_findings(
        self,
        described: Mapping[int, DescribedReplica],
        memory: GroupMemory,
        compared: Sequence[Finding],
        checked: Sequence[Finding],
    ) -> list[Finding]:
        texts = {broker_id: found.metadata for broker_id, found in described.items()}
        seen = {broker_id: own.tables for broker_id, own in memory.seen.items() if broker_id in described}
        findings = side_findings(
            self._group,
            {broker_id: found.side for broker_id, found in described.items()},
            {broker_id: found.replica.facts for broker_id, found in described.items()},
            {broker_id: (own.disk_id, own.run, own.epochs) for broker_id, own in memory.seen.items()},
            {broker_id: ranges_of(broker_id, compared) for broker_id in described},
            seen_homes={broker_id: own.homes for broker_id, own in memory.seen.items() if own.homes},
        )
        if not self._has_brokers:
            findings += older_than_seen(self._group, texts, seen)
            findings += tables_gone(self._group, described, seen)
        if self._master_id in texts:
            compare = partial(
                compare_metadata,
                self._group,
                texts[self._master_id],
                {broker_id: own for broker_id, own in texts.items() if broker_id != self._master_id},
                settled=True,
                master_id=self._master_id,
                seen=seen.values(),
                unknown_topics={
                    broker_id: {own.topic or "" for own in checked if lacks_topic(own, broker_id)}
                    for broker_id in described
                },
            )
            differing = compare()
            queues = {(own.topic, own.queue_id) for own in differing if own.kind in OF_OFFSETS}
            findings += compare(queue_ends=self._queue_ends(described, queues)) if queues else differing
        told = {own.broker_id for own in findings if own.file == f"config/{MetadataFile.TOPICS.value}"}
        names = {broker_id: self._known_name(found, memory) for broker_id, found in described.items()}
        return [*findings, *of_another_group(self._group, texts, names, told)]

    def _known_name(self, described: DescribedReplica, memory: GroupMemory) -> str:
        """The broker group whose table of topics a replica should have, as its `replica.json`, its ConsumeQueues, or an
        earlier run know; empty: nobody does."""
        if self._group == described.side.broker_name or described.has_foreign_topics:
            return self._group
        seen = memory.seen.get(described.replica.facts.broker_id)
        return seen.named if seen is not None else ""

    def _queue_ends(
        self, described: Mapping[int, DescribedReplica], queues: Iterable[tuple[str | None, int | None]]
    ) -> dict[tuple[str, int], int]:
        """The furthest end of each queue on any replica; without those that nobody has files of."""
        named = tuple(sorted((topic, number) for topic, number in queues if topic is not None and number is not None))
        ends: dict[tuple[str, int], int] = {}
        for answer in self._questions.ask([QueueEndsTask(found.replica, named) for found in described.values()]):
            for queue, end in zip(named, answer.values.get("ends", ())):
                if end is not None:
                    ends[queue] = max(end, ends.get(queue, 0))
        return ends

    def _of_one_moment(self, findings: Sequence[Finding], described: Mapping[int, DescribedReplica]) -> list[Finding]:
        """Without what was read of parts that a broker removed while the run read them: the oldest files, as retention
        does, or the end, as a start or a new master does; and without what was told of a store at rest whose broker was
        started since. Of stores that stay at rest nothing may go."""
        later = self._describe([found.replica.spec for found in described.values()])
        kept = list(findings)
        for broker_id, found in later.items():
            before, now = described[broker_id].replica.facts, found.replica.facts
            if not (before.is_running or now.is_running):
                continue
            if now.is_running and not before.is_running:
                self._problems.append(
                    f"{self._group}:{broker_id} was started during the run; the next run goes on from here"
                )
                kept = [own for own in kept if own.severity is not Severity.METADATA or own.broker_id != broker_id]
            if now.end_offset < before.end_offset:
                self._problems.append(
                    f"the log of {self._group}:{broker_id} was cut to {now.end_offset} during the run; the next run "
                    "goes on from here"
                )
            held = LogRange(
                now.min_offset if now.min_offset > before.min_offset else 0,
                now.end_offset if now.end_offset < before.end_offset else 1 << 63,
            )
            kept = [own for own in kept if own.broker_id not in (None, broker_id) or _is_within(own, held)]
        return kept

    def _master_changed(self) -> bool:
        """Whether a running group has another master, or another history, than when the run began: then what was told
        of ends and tables was told of two moments."""
        running = [spec for spec in self._specs.values() if spec.is_broker]
        if not running or self._first_epochs is None:
            return False
        later = self._describe(running)
        return bool(later) and max(found.side.history.last_epoch for found in later.values()) != self._first_epochs

    # The end

    def _conclude(
        self,
        memory: GroupMemory,
        plan: RangePlan,
        reading: ExtentReading,
        described: Mapping[int, DescribedReplica],
        findings: Sequence[Finding],
    ) -> GroupResult:
        replicas = {broker_id: found.replica for broker_id, found in sorted(described.items())}
        done = merged(reading.done)
        new = [_overlap(piece, part) for piece in done for part in plan.new]
        new_bytes = total_bytes(part for part in new if part.start_offset < part.end_offset)
        watermarks = self._watermarks(memory, plan, done, replicas)
        holding = [broker_id for broker_id, replica in replicas.items() if not is_empty(replica.facts)]
        watermark = min((watermarks.get(broker_id, 0) for broker_id in holding), default=0)
        differing = differing_to_remember([*reading.differing, *reading.changed])
        deep_only = sum(is_of_deep_runs(finding.kind, finding.verdict) for finding in findings)
        is_through = not self._problems and not self._questions.problems
        # A run that has not seen every replica to the end has not seen what differed before become equal.
        before = [] if is_through else [_overlap(part, self._common) for part in memory.differing]
        still = differing_to_remember([*differing, *(part for part in before if part.start_offset < part.end_offset)])
        self._store.save_memory(
            replace(
                memory,
                replica_watermarks=watermarks,
                seen=seen_now(
                    memory, watermarks, described, findings, kept=self._kept, common_end=self._common.end_offset
                ),
                min_offset=self._common.start_offset,
                scrub_cursor=plan.scrub_cursor if is_through else memory.scrub_cursor,
                scrubbed_at_s=plan.scrubbed_at_s if is_through else memory.scrubbed_at_s,
                differing=still,
                run_id=self._run_id,
                verified_at=self._now.isoformat(timespec="seconds"),
                deep_findings=deep_only if self._is_deep else memory.deep_findings,
                deep_run_id=self._run_id if self._is_deep else memory.deep_run_id,
            ),
            reading.table.table(damaged=ranges_of(None, [own for own in findings if own.severity in _OF_LOGS])),
            start=memory,
            keep_answers=not is_through,
        )
        outcome = Outcome.EQUAL if is_through else Outcome.INCOMPLETE
        summary = GroupSummary(
            group=self._group,
            outcome=Outcome.DIVERGED if findings else outcome,
            replicas=self._replica_summaries(replicas, findings),
            start_offset=self._common.start_offset,
            end_offset=self._common.end_offset,
            new_bytes=new_bytes,
            scrubbed_bytes=total_bytes(done) - new_bytes,
            watermark=watermark,
            findings=len(findings),
            problem=self._problem,
            extent_map=extent_map(
                self._common,
                verified_now=done,
                differing=[*differing, *ranges_of(None, findings)],
                watermark=memory.watermark(replicas),
            ),
            master_id=self._master_id,
        )
        return GroupResult(
            summary=summary,
            findings=tuple(findings),
            benign=self._benign,
            replicas=replicas,
            records=self._records,
            cpu_seconds=self._questions.cpu_seconds,
            notes=tuple(self._notes),
        )

    def _watermarks(
        self, memory: GroupMemory, plan: RangePlan, done: Sequence[LogRange], replicas: Mapping[int, Replica]
    ) -> dict[int, int]:
        """By replica: how far it is verified now. A log that became shorter is verified no further than it goes."""
        watermarks = {
            broker_id: min(offset, self._common.end_offset) if broker_id in replicas else offset
            for broker_id, offset in memory.replica_watermarks.items()
        }
        reached = plan.new[0].start_offset if plan.new else self._common.end_offset
        for piece in done:
            if piece.start_offset <= reached:
                reached = max(reached, piece.end_offset)
        taking_part = [broker_id for broker_id in replicas if broker_id not in self._questions.problems]
        if len(taking_part) > 1 or len(self._specs) == 1:
            for broker_id in taking_part:
                # Of a slave that ends before its master begins nothing was compared.
                own_end = replicas[broker_id].facts.end_offset
                watermarks[broker_id] = max(min(reached, own_end), watermarks.get(broker_id, 0))
        return watermarks

    def _left_out(self, outcome: Outcome, replicas: Mapping[int, Replica], problem: str) -> GroupResult:
        self._problems.insert(0, problem)
        return GroupResult(
            summary=GroupSummary(
                group=self._group,
                outcome=outcome,
                replicas=self._replica_summaries(replicas, ()),
                problem=self._problem,
                master_id=self._master_id,
            ),
            cpu_seconds=self._questions.cpu_seconds,
        )

    @property
    def _problem(self) -> str:
        own = [f"{self._group}:{broker_id}: {text}" for broker_id, text in sorted(self._questions.problems.items())]
        return "; ".join(dict.fromkeys([*self._problems, *own]))

    def _replica_summaries(
        self, replicas: Mapping[int, Replica], findings: Sequence[Finding]
    ) -> tuple[ReplicaSummary, ...]:
        summaries = []
        for broker_id, spec in sorted(self._specs.items()):
            facts = replicas[broker_id].facts if broker_id in replicas else None
            problem = self._questions.problems.get(broker_id, "")
            count = sum(1 for finding in findings if finding.broker_id == broker_id)
            outcome = Outcome.INCOMPLETE if problem else Outcome.EQUAL
            summaries.append(
                ReplicaSummary(
                    broker_id=broker_id,
                    source=spec.location,
                    outcome=Outcome.DIVERGED if count else outcome,
                    min_offset=facts.min_offset if facts else 0,
                    end_offset=facts.end_offset if facts else 0,
                    lag_bytes=facts.lag_bytes if facts else 0,
                    findings=count,
                    bytes_read=self._questions.bytes_read.get(broker_id, 0),
                    problem=problem,
                )
            )
        return tuple(summaries)


_OF_MASTERS: Final = frozenset(
    {
        FindingKind.TAIL_EXTRA,
        FindingKind.TAIL_MISSING,
        FindingKind.ON_FEWER_REPLICAS,
        FindingKind.EPOCHS_WRONG,
        FindingKind.MESSAGE_GROUP_HOMES_DIFFER,
        *OF_TABLES,
    }
)
"""What a change of master in the middle of a run may look like."""


def _is_within(finding: Finding, held: LogRange) -> bool:
    """Whether a finding is of no place in the log, or reaches into what a replica still holds."""
    start, end = place_of(finding)
    return start < 0 or (start < held.end_offset and held.start_offset < end)


def _lost_everywhere(reading: ExtentReading) -> tuple[LogRange, ...]:
    """Parts of differing extents of which no replica has a file."""
    parts = list(reading.differing)
    for replica in reading.readable:
        overlaps = [_overlap(part, hole) for part in parts for hole in replica.facts.holes]
        parts = [part for part in overlaps if part.start_offset < part.end_offset]
    return merged(parts) if reading.readable else ()


def _without(whole: LogRange, parts: Iterable[LogRange]) -> list[LogRange]:
    left = []
    start = whole.start_offset
    for part in merged(parts):
        if start < part.start_offset:
            left.append(LogRange(start, part.start_offset))
        start = max(start, part.end_offset)
    return [*left, LogRange(start, whole.end_offset)] if start < whole.end_offset else left


def _overlap(first: LogRange, second: LogRange) -> LogRange:
    return LogRange(
        max(first.start_offset, second.start_offset),
        min(first.end_offset, second.end_offset),
    )
