"""Brokers as a run meets them: a change of master between two questions is no finding, and a lie is caught."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.audit_stores import copy_group, make_group
from support.inline_audit import run_inline
from support.inline_runner import InlineRunner
from support.store_damage import DAMAGES
from support.written_stores import (
    FILE_BYTES,
    WrittenRecord,
    WrittenStore,
    log_file,
    place,
    right_clock,
    set_clock,
    write_at,
)
from tandemmq.consistency import tasks
from tandemmq.consistency.audit import AuditReport, audit, new_run_id
from tandemmq.consistency.discovery import Discovery
from tandemmq.consistency.progress import Progress
from tandemmq.consistency.results_store import ResultsStore
from tandemmq.consistency.settings import ConsistencySettings
from tandemmq.consistency.source_files.posix_files import SourceKind, SourceSpec
from tandemmq.consistency.source_files.sources import FileSource, Source, open_source
from tandemmq.consistency.tasks import CheckTask, DescribeTask, DigestTask, Replica, Task, TaskAnswer
from tandemmq.core.audit.findings import FindingKind
from tandemmq.core.audit.repair_plan import RepairAction
from tandemmq.core.audit.replica_store import ReplicaFiles, StoreEntry
from tandemmq.core.audit.run_summary import ExitCode, Outcome
from tandemmq.core.replication.log_history import REPLICA_FILE, ReplicaRecord
from tandemmq.service.settings import load_settings


class _Brokers(InlineRunner):
    """Folders in the place of running brokers; from a given description on, the group is in a later epoch."""

    def __init__(self, *, fails_over_at: int) -> None:
        super().__init__()
        self._fails_over_at = fails_over_at
        self._described = 0

    def run(self, tasks: Sequence[Task], *, label: str) -> list[TaskAnswer]:
        answers = super().run([_of_folders(task) for task in tasks], label=label)
        return [
            self._as_running(answer) if isinstance(task, DescribeTask) else answer
            for task, answer in zip(tasks, answers)
        ]

    def _as_running(self, answer: TaskAnswer) -> TaskAnswer:
        self._described += 1
        facts = answer.values["facts"] | {"is_running": True}
        side = dict(answer.values["side"])
        if self._described > self._fails_over_at:
            side["epochs"] = [*side["epochs"], (9, facts["end_offset"])]
        return replace(answer, values=answer.values | {"facts": facts, "side": side})


def _of_folders(task: Any) -> Any:
    changes: dict[str, Any] = {}
    if hasattr(task, "spec"):
        changes["spec"] = replace(task.spec, kind=SourceKind.FOLDER)
    if hasattr(task, "replica"):
        changes["replica"] = _folder(task.replica)
    if hasattr(task, "replicas"):
        changes["replicas"] = tuple(map(_folder, task.replicas))
    return replace(task, **changes)


def _folder(replica: Replica) -> Replica:
    return replace(replica, spec=replace(replica.spec, kind=SourceKind.FOLDER))


def _run(folders: list[Path], results: Path, *, fails_over_at: int) -> AuditReport:
    return _run_with(folders, results, _Brokers(fails_over_at=fails_over_at))


def _run_with(folders: list[Path], results: Path, runner: InlineRunner, *, tier: str = "quick") -> AuditReport:
    loaded = load_settings(
        ConsistencySettings,
        environ={},
        overrides=["secondLookPause=0", "extentBytes=64KiB", f"results={results}", "path=unused", f"tier={tier}"],
    )
    specs = tuple(
        SourceSpec("broker-a", broker_id, SourceKind.BROKER, str(folder)) for broker_id, folder in enumerate(folders)
    )
    return audit(
        loaded,
        Discovery("test", specs),
        runner=runner,
        results=ResultsStore(str(results)),
        run_id=new_run_id(datetime.now(UTC), random.Random(1)),
        progress=Progress(in_flight=lambda: 0, shown=False),
    )


@pytest.mark.parametrize("fails_over", [False, True])
def test_what_two_masters_said_is_no_finding(equal_group: list[Path], tmp_path: Path, fails_over: bool) -> None:
    folders = copy_group(equal_group[:2], tmp_path / "broker-a")
    DAMAGES["extra-tail"].apply(folders, random.Random(3))

    report = _run(folders, tmp_path / "results", fails_over_at=2 if fails_over else 1_000)

    (group,) = report.summary.groups
    assert group.outcome is (Outcome.INCOMPLETE if fails_over else Outcome.DIVERGED)
    assert bool(report.findings) is not fails_over
    assert ("master changed" in group.problem) is fails_over


class _Liars(_Brokers):
    """One broker tells digests of what it should hold, and gives the bytes that it does hold."""

    def __init__(self, sound: Path, *, liar: int = 1) -> None:
        super().__init__(fails_over_at=1_000)
        self._sound = sound
        self._liar = liar

    def run(self, tasks: Sequence[Task], *, label: str) -> list[TaskAnswer]:
        return super().run([self._lied(task) for task in tasks], label=label)

    def _lied(self, task: Any) -> Any:
        is_told = type(task) in (DigestTask, CheckTask)
        if not is_told or task.replica.facts.broker_id != self._liar:
            return task
        spec = replace(task.replica.spec, location=str(self._sound))
        return replace(task, replica=replace(task.replica, spec=spec))


@pytest.mark.parametrize("tier", ["quick", "deep"])
@pytest.mark.parametrize(("replicas", "liar"), [(1, 0), (2, 0), (2, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("lies", ["", "bytes", "zeros", "files"])
def test_a_broker_that_lies_about_its_digests_is_caught_by_its_bytes(
    equal_group: list[Path], tmp_path: Path, lies: str, replicas: int, liar: int, tier: str
) -> None:
    """In whatever part of its log it lies: here in all, of which some are drawn."""
    folders = copy_group(equal_group[:replicas], tmp_path / "broker-a")
    log = {path: path.read_bytes() for path in sorted((folders[liar] / "commitlog").iterdir())}
    for (path, data), before in zip(log.items(), [list(log.values())[-1], *log.values()]):
        other = {"": data, "bytes": bytes(byte ^ 1 for byte in data), "zeros": bytes(len(data)), "files": before}
        path.write_bytes(other[lies])

    report = _run_with(folders, tmp_path / "results", _Liars(equal_group[liar], liar=liar), tier=tier)

    (group,) = report.summary.groups
    assert group.outcome is not (Outcome.EQUAL if lies else Outcome.DIVERGED)
    named = [own.broker_id for own in group.replicas if "told digest" in own.problem or own.findings]
    assert named == ([liar] if lies else [])


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_members_that_a_run_is_not_shown_are_noted(equal_group: list[Path], tmp_path: Path, replicas: int) -> None:
    report = _run(equal_group[:replicas], tmp_path / "results", fails_over_at=1_000)
    assert report.summary.outcome is Outcome.EQUAL
    notes = [note for note in report.summary.notes if "remember" in note]
    assert bool(notes) is (replicas < 3)
    assert all(f"broker-a:{broker_id}" in notes[0] for broker_id in range(replicas, 3))


def _on_another_disk(folder: Path) -> None:
    path = folder / REPLICA_FILE
    record = ReplicaRecord.from_json(path.read_text())
    path.write_text(replace(record, disk_id=record.disk_id[::-1][:-4] + "beef").to_json())


@pytest.mark.parametrize("is_replaced", [False, True])
def test_what_was_verified_of_a_disk_is_not_of_the_one_in_its_place(
    equal_group: list[Path], tmp_path: Path, is_replaced: bool
) -> None:
    """A slave was made anew from its master, and what was written is not what was sent."""
    folders = copy_group(equal_group[:2], tmp_path / "groups" / "broker-a")
    arguments = tmp_path / "results", f"path={tmp_path / 'groups'}", "tier=quick"
    assert run_inline(*arguments).summary.outcome is Outcome.EQUAL
    if is_replaced:
        _on_another_disk(folders[1])
    DAMAGES["flipped-body-bit"].apply(folders[1:], random.Random(1))
    found = run_inline(*arguments)
    assert [own.broker_id for own in found.findings] == [1] * is_replaced
    assert found.findings == run_inline(*arguments).findings


@pytest.mark.parametrize("first", ["quick", "deep"])
def test_a_group_on_other_disks_alone_is_another_group(equal_group: list[Path], tmp_path: Path, first: str) -> None:
    """The cluster was set up anew under its name, beside the results of the former one; or that is lost."""
    groups = tmp_path / "groups" / "broker-a"
    arguments = tmp_path / "results", f"path={tmp_path / 'groups'}"
    copy_group(equal_group[:2], groups)
    assert run_inline(*arguments, "tier=quick").summary.outcome is Outcome.EQUAL
    shutil.rmtree(groups)
    for folder in make_group(groups, replicas=2, seed=5):
        _on_another_disk(folder)
    report = run_inline(*arguments, f"tier={first}")
    assert (report.summary.outcome, report.findings) == (Outcome.INCOMPLETE, ())
    (group,) = report.summary.groups
    assert "other disks" in group.problem
    assert group.new_bytes == group.end_offset
    for tier in ("quick", "deep"):
        report = run_inline(*arguments, f"tier={tier}")
        assert report.summary.outcome is Outcome.EQUAL, report.findings
        assert report.summary.groups[0].new_bytes == 0


class _LiveGroup(_Brokers):
    """A group at work: between any two questions messages come, slaves copy them, entries are written later than
    records, and the checkpoint last; files roll, and old ones are removed, the master's first. If it is a restless one
    its brokers are restarted, a slave becomes master and the others cut what it does not have, and slaves are far
    behind at first."""

    def __init__(self, store: WrittenStore, folders: Sequence[Path], seed: int, *, is_restless: bool = False) -> None:
        super().__init__(fails_over_at=1_000)
        self._store = store
        self._folders = folders
        self._chance = random.Random(seed)
        start = len(store.records) // 2
        self._written = [[start, start, start] for _ in folders]
        """Records, entries, and what the checkpoint vouches for, of each replica."""
        self._first_file = [0 for _ in folders]
        self._is_restless = is_restless
        self._start = start
        self._away = [0 for _ in folders]
        """Questions that a broker does not hear, as it is being started."""
        self._epochs = [(1, 0)]
        self._damages: list[tuple[int, str, int, bytes]] = []
        """Broker, path, place in the file, and what lies there whatever is written."""
        for broker_id, folder in enumerate(folders):
            count = start // 10 if broker_id and is_restless and self._chance.random() < 0.5 else start
            self._written[broker_id] = [count, count, count]
            store.before(count).write(folder)
            if broker_id:
                shutil.copytree(folders[0] / "config", folder / "config", dirs_exist_ok=True)
            (folder / "abort").touch()

    def _as_running(self, answer: TaskAnswer) -> TaskAnswer:
        answer = super()._as_running(answer)
        held = [own for own in self._epochs if own[1] < answer.values["facts"]["end_offset"]]
        side = answer.values["side"] | {"epochs": held, "epochs_problem": ""}
        return replace(answer, values=answer.values | {"side": side})

    def run(self, tasks: Sequence[Task], *, label: str) -> list[TaskAnswer]:
        answers: list[TaskAnswer] = []
        for task in tasks:
            for _ in range(self._chance.randrange(4)):
                self._go_on()
            gone = self._gone(task)
            answers += [TaskAnswer(task.key, problem=gone)] if gone else super().run([task], label=label)
        return answers

    def _gone(self, task: Any) -> str:
        """A broker refuses ranges that have expired, and says nothing while it starts."""
        for broker_id in task.broker_ids:
            if self._away[broker_id]:
                self._away[broker_id] -= 1
                return "UNAVAILABLE"
        ranges = [*getattr(task, "ranges", ()), *([task.log_range] if hasattr(task, "log_range") else [])]
        start = min((own.start_offset for own in ranges), default=1 << 62)
        return "OUT_OF_RANGE" if start < FILE_BYTES * max(self._first_file[own] for own in task.broker_ids) else ""

    def _go_on(self) -> None:
        broker_id = self._chance.randrange(len(self._folders))
        written = self._written[broker_id]
        what = self._chance.randrange(6)
        if self._is_restless and self._chance.random() < 0.02:
            self._chance.choice((self._restart, self._fail_over))(broker_id)
        if what == 0:
            self._expire(broker_id)
            return
        step = min(what // 2, 2)
        limits = (self._written[0][0] if broker_id else len(self._store.records), written[0], written[1])
        written[step] = min(limits[step], written[step] + self._chance.randrange(1, 12))
        self._write(broker_id)

    def _restart(self, broker_id: int) -> None:
        """It dispatches what it holds."""
        records = self._written[broker_id][0]
        self._written[broker_id] = [records, records, records]
        self._write(broker_id)
        self._away[broker_id] = self._chance.randrange(4)

    def _fail_over(self, broker_id: int) -> None:
        """To this one, if it has what all have acknowledged."""
        count = self._written[broker_id][0]
        if count < self._start:
            return
        held = self._store.before(count)
        self._epochs = [own for own in self._epochs if own[1] < len(held.log)]
        self._epochs.append((self._epochs[-1][0] + self._chance.randrange(1, 3), len(held.log)))
        for other, written in enumerate(self._written):
            if written[0] > count:
                self._written[other] = [min(count, own) for own in written]
                for path in (self._folders[other] / "commitlog").iterdir():
                    if int(path.name) > len(held.log):
                        path.unlink()
                due = self._store.before(self._written[other][1]).queue_files()
                for path in (self._folders[other] / "consumequeue").rglob("0*"):
                    if path.is_file() and str(path.relative_to(self._folders[other])) not in due:
                        path.write_bytes(bytes(path.stat().st_size))
                self._write(other)

    def _expire(self, broker_id: int) -> None:
        """Never the last file but one, and of a slave none that its master has."""
        first = self._first_file[broker_id]
        last = self._store.records[self._written[broker_id][0] - 1].start // FILE_BYTES - 1
        if first < (last if broker_id == 0 else min(last, self._first_file[0])) and self._chance.random() < 0.2:
            self._first_file[broker_id] = first + 1
            log_file(self._folders[broker_id], first * FILE_BYTES).unlink()

    def _write(self, broker_id: int) -> None:
        """What is there stays there: files are written in place."""
        records, entries, durable = (self._store.before(count) for count in self._written[broker_id])
        _write_in_place(
            self._folders[broker_id], records, entries=entries, durable=durable, first_file=self._first_file[broker_id]
        )
        self._damage_again(broker_id)

    def damage(self, kind: str) -> tuple[int, WrittenRecord]:
        """What all replicas have had for long is wrong on one of them from now on; which, and of what record."""
        broker_id = self._chance.randrange(len(self._folders))
        first = FILE_BYTES * (max(self._first_file) + 1)
        last = self._store.records[min(written[2] for written in self._written) - 10].start
        queues = self._store.queues.items()
        queued = {entry[0]: (queue, place) for queue, held in queues for place, entry in enumerate(held)}
        known = [own for own in self._store.records if first <= own.start < last and own.start in queued]
        record = self._chance.choice([own for own in known if own.fields["body"][1] - own.fields["body"][0] > 60])
        if kind == "queue":
            (topic, queue_id), place = queued[record.start]
            path = f"consumequeue/{topic}/{queue_id}/{20 * place - 20 * place % 2000:020d}"
            self._damages.append((broker_id, path, 20 * place % 2000, b"\x00\x00\x01"))
        else:
            start, end = record.fields["body"] if kind == "body" else record.fields["bornHost"]
            path = f"commitlog/{record.start - record.start % FILE_BYTES:020d}"
            held = self._store.log[record.start + start : record.start + end]
            changed = bytes(byte ^ 0x15 for byte in held[:7])
            self._damages.append((broker_id, path, record.start % FILE_BYTES + start, changed))
        self._damage_again(broker_id)
        return broker_id, record

    def _damage_again(self, victim: int) -> None:
        for broker_id, path, at, data in self._damages:
            if broker_id == victim and (self._folders[broker_id] / path).exists():
                write_at(self._folders[broker_id] / path, at, data)


@pytest.mark.timeout(900)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(
    seed=st.integers(0, 1 << 16),
    replicas=st.sampled_from((1, 2, 3)),
    tier=st.sampled_from(("quick", "deep")),
    runs=st.sampled_from((1, 3)),
    is_restless=st.booleans(),
)
def test_a_group_at_work_is_never_damaged(
    seed: int, replicas: int, tier: str, runs: int, is_restless: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("live")
    folders = [root / "broker-a" / str(broker_id) for broker_id in range(replicas)]
    group = _LiveGroup(WrittenStore(seed % 3, messages=600), folders, seed, is_restless=is_restless)
    why = (
        ("OUT_OF_RANGE", "UNAVAILABLE", "master changed", "was cut", "no replica") if is_restless else ("OUT_OF_RANGE",)
    )
    for _ in range(runs):
        report = _run_with(folders, root / "results", group, tier=tier)
        assert not report.findings, report.findings
        problem = report.summary.groups[0].problem
        assert report.summary.exit_code is ExitCode.EQUAL or any(own in problem for own in why), problem
    shutil.rmtree(root)


@pytest.mark.timeout(900)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(
    seed=st.integers(0, 1 << 16),
    replicas=st.sampled_from((1, 2, 3)),
    kind=st.sampled_from(("body", "host", "queue")),
    is_seen=st.booleans(),
    is_clock_set=st.booleans(),
)
def test_damage_in_a_group_at_work_is_told_of_who_has_it_and_the_plan_copies_what_is_right(
    seed: int,
    replicas: int,
    kind: str,
    is_seen: bool,
    is_clock_set: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("live")
    folders = [root / "broker-a" / str(broker_id) for broker_id in range(replicas)]
    clock = set_clock(seed) if is_clock_set else right_clock
    store = WrittenStore(seed % 3, messages=600, ahead_ms=clock)
    group = _LiveGroup(store, folders, seed)
    if is_seen:
        assert not _run_with(folders, root / "results", group, tier="deep").findings
    victim, record = group.damage(kind)
    report = _run_with(folders, root / "results", group, tier="deep")
    for own in report.findings:
        assert own.broker_id in (None, victim), own
        # Of a single replica an earlier run knows the extent alone.
        is_extent = own.kind is FindingKind.CHANGED_EVERYWHERE
        assert is_extent or (own.start_offset, own.end_offset) == (record.start, record.end), own
    problem = report.summary.groups[0].problem
    is_due = kind != "host" or replicas > 1
    assert report.findings or not is_due or "OUT_OF_RANGE" in problem, problem
    for step in report.plan.steps:
        if step.action is RepairAction.COPY_RANGE:
            assert (step.target_broker_id, step.start_offset, step.end_offset) == (victim, record.start, record.end)
    shutil.rmtree(root)


# What happens to folders while a run reads them.


class _WatchedFiles:
    """Files of a store; `tick` is called before each question."""

    def __init__(self, files: ReplicaFiles, tick: Callable[[], None]) -> None:
        self._files = files
        self._tick = tick

    def list_folder(self, path: str) -> list[StoreEntry]:
        self._tick()
        return self._files.list_folder(path)

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        self._tick()
        return self._files.read(path, offset, length)


def _expire_on_master(folders: Sequence[Path], _: WrittenStore) -> None:
    log_file(folders[0], 0).unlink()


def _cut_off(folders: Sequence[Path], store: WrittenStore) -> None:
    """As a start does with a tail that nobody acknowledged."""
    _write_again(folders, store.before(len(store.records) - 20))


def _write_again(folders: Sequence[Path], store: WrittenStore) -> None:
    for folder in folders:
        _write_in_place(folder, store, entries=store, durable=store)


def _write_in_place(
    folder: Path, records: WrittenStore, *, entries: WrittenStore, durable: WrittenStore, first_file: int = 0
) -> None:
    """The log from that file on, what was made of it, and how far that is on the disk."""
    for start in range(first_file * FILE_BYTES, len(records.log), FILE_BYTES):
        place(log_file(folder, start), bytes(records.log[start : start + FILE_BYTES]).ljust(FILE_BYTES, b"\0"))
    for path, data in entries.queue_files().items():
        place(folder / path, data)
    (index,) = (folder / "index").iterdir()
    place(index, entries.index())
    place(folder / "checkpoint", durable.checkpoint())


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("event", "moment", "replicas", "tier", "is_damaged"),
    [
        (_expire_on_master, 120, 2, "quick", False),
        (_expire_on_master, 120, 2, "deep", True),
        (_cut_off, 292, 1, "deep", True),
        (_cut_off, 100, 3, "deep", False),
    ],
)
def test_what_happens_while_a_run_reads_is_no_finding_and_hides_none(
    event: Callable[[Sequence[Path], WrittenStore], None],
    moment: int,
    replicas: int,
    tier: str,
    is_damaged: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """`moment`: so many questions to files later. Damage is a body of the last replica, in a file that stays."""
    root = tmp_path_factory.mktemp("meanwhile")
    store = WrittenStore(1, messages=450)
    folders = [root / "groups" / "broker-a" / str(broker_id) for broker_id in range(replicas)]
    for folder in folders:
        store.write(folder)
        # Nobody has received what may be cut off.
        offsets = {"dataVersion": {"counter": 7, "stateVersion": 0, "timestamp": 1}, "offsetTable": {"T@g": {"0": 2}}}
        (folder / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
        (folder / "abort").touch()
    known = [own for own in store.records if FILE_BYTES <= own.start < 2 * FILE_BYTES and len(own.keys) > 2]
    record = next(own for own in known if own.fields["body"][1] - own.fields["body"][0] > 60)
    if is_damaged:
        at = record.start % FILE_BYTES + record.fields["body"][0]
        with log_file(folders[-1], record.start).open("r+b") as file:
            file.seek(at)
            file.write(b"\x5a\xa5\x5a\xa5")
    questions = 0

    def tick() -> None:
        nonlocal questions
        questions += 1
        if questions == moment:
            event(folders, store)

    @contextmanager
    def opened(spec: SourceSpec) -> Iterator[Source]:
        with open_source(spec) as source:
            yield FileSource(spec, _WatchedFiles(source.files, tick))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tasks, "open_source", opened)
        report = run_inline(root / "results", f"path={root / 'groups'}", f"tier={tier}")
    told = [
        own for own in report.findings if own.start_offset == record.start and own.broker_id in (None, replicas - 1)
    ]
    others = [own for own in report.findings if own not in told]
    assert not others, others
    if not is_damaged:
        assert not told, told
    elif tier == "deep" or replicas > 1:
        assert told or report.summary.exit_code is ExitCode.INCOMPLETE, report.summary
    shutil.rmtree(root)
