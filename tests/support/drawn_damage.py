"""Damage and harmless differences as chance draws them: what, where, on which replica of how many, and seen before or
not. What a whole run makes of each has one answer that is right, or leaves it to a person.

Hypothesis draws; a case that fails is shrunk to the fewest replicas, without memory if it can.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

from support.audit_stores import AUDIT_OPTIONS, copy_group, replicate
from support.file_damage import FILE_DAMAGES
from support.inline_audit import run_inline
from support.inline_runner import InlineRunner
from support.log_damage import LOG_DAMAGES
from support.planted_damage import Planted, judge
from support.replica_folders import open_replica
from support.side_damage import SIDE_DAMAGES
from support.store_damage import DAMAGES, Damage, Expected, write_at
from tandemmq.consistency.audit import AuditReport
from tandemmq.core.audit.findings import KINDS, Finding, FindingKind, Severity, Verdict, is_of_deep_runs
from tandemmq.core.audit.repair_plan import RepairAction
from tandemmq.core.audit.replica_store import extents_of
from tandemmq.core.audit.run_summary import ExitCode
from tandemmq.core.replication.log_history import EPOCH_FILE, REPLICA_FILE, LogRange

# What differs and harms nobody


def _touch(folders: Sequence[Path], chance: random.Random) -> None:
    for path in folders[chance.randrange(len(folders))].rglob("*"):
        os.utime(path, (chance.randrange(1 << 30), chance.randrange(1 << 30)))


def _next_file(folders: Sequence[Path], chance: random.Random) -> None:
    """Made ahead, and nothing in it."""
    folder = chance.choice(folders)
    last = max((folder / "commitlog").iterdir())
    for number in range(1, chance.randrange(2, 4)):
        path = last.with_name(f"{int(last.name) + number * AUDIT_OPTIONS.commit_log_file_bytes:020d}")
        path.write_bytes(bytes(AUDIT_OPTIONS.commit_log_file_bytes))


def _unfinished(folders: Sequence[Path], chance: random.Random) -> None:
    folder = chance.choice(folders)
    for place in ("commitlog", "consumequeue/orders/1", "index", "config"):
        (folder / place / f"{chance.randrange(1 << 30):020d}.unfinished").write_bytes(chance.randbytes(4000))


def _room_in_index(folders: Sequence[Path], chance: random.Random) -> None:
    """Behind the last entry nothing means anything."""
    path = max((chance.choice(folders) / "index").iterdir())
    write_at(path, path.stat().st_size - 400, chance.randbytes(400))


def _older_checkpoint(folders: Sequence[Path], chance: random.Random) -> None:
    """It vouches for less than there is."""
    path = chance.choice(folders) / "checkpoint"
    data = path.read_bytes()
    for place in chance.sample(range(6), chance.randrange(1, 4)):
        value = int.from_bytes(data[8 * place : 8 * place + 8], "big")
        write_at(path, 8 * place, max(0, value - chance.randrange(10_000)).to_bytes(8, "big"))


def _master_expired(folders: Sequence[Path], chance: random.Random) -> None:
    for path in sorted((folders[0] / "commitlog").iterdir())[: chance.randrange(1, 3)]:
        path.unlink()


def _all_expired(folders: Sequence[Path], chance: random.Random) -> None:
    count = chance.randrange(1, 3)
    for folder in folders:
        for path in sorted((folder / "commitlog").iterdir())[:count]:
            path.unlink()


def _behind(folders: Sequence[Path], chance: random.Random) -> None:
    """A slave that was killed while it copied; perhaps within a record."""
    slave = chance.choice(folders[1:])
    end = open_replica(folders[0]).facts.end_offset
    aside = slave.with_name("aside")
    slave.rename(aside)
    replicate(folders[0], slave, end_offset=end - chance.randrange(1, end // 2))
    for path in (REPLICA_FILE, EPOCH_FILE, "config"):
        if (aside / path).is_dir():
            shutil.copytree(aside / path, slave / path, dirs_exist_ok=True)
        else:
            shutil.copyfile(aside / path, slave / path)
    shutil.rmtree(aside)
    (slave / "abort").touch()


def _former_tail(folders: Sequence[Path], chance: random.Random) -> None:
    """What RocketMQ leaves where it cut a log back."""
    folder = chance.choice(folders)
    store = open_replica(folder)
    end = store.facts.end_offset
    room = store.segment_end(end) - end
    if room > 1200:
        place = end + chance.randrange(8, room - 1000)
        write_at(folder / store.segment_path(end), place % store.facts.segment_bytes, chance.randbytes(900))


def _backups(folders: Sequence[Path], chance: random.Random) -> None:
    folder = chance.choice(folders)
    (folder / "config" / "topics.json.bak").write_text("{}")
    (folder / "lock").write_text("lock")
    (folder / "logEnd").write_bytes(bytes(4096))


def _other_padding(folders: Sequence[Path], chance: random.Random) -> None:
    DAMAGES["other-padding"].apply(folders, chance)


def _reformatted(folders: Sequence[Path], chance: random.Random) -> None:
    """Tables with the same in them, in another order and with other spaces."""
    for folder in chance.choice((folders, folders[:1])):
        for name in ("topics.json", "subscriptionGroup.json", "users.json", "acls.json"):
            path = folder / "config" / name
            path.write_text(json.dumps(json.loads(path.read_text()), indent=chance.choice((None, 4)), sort_keys=True))


def _of_others(folders: Sequence[Path], chance: random.Random) -> None:
    """What file systems, editors and people leave, wherever a broker has a folder."""
    folder = chance.choice(folders)
    places = ["", *(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_dir())]
    for place in chance.sample(places, 6):
        for name in chance.sample(("lost+found", ".snapshot", ".Trash-0", "@eaDir", "#recycle"), 2):
            (folder / place / name / "hourly.0").mkdir(parents=True)
            (folder / place / name / "hourly.0" / f"{0:020d}").write_bytes(chance.randbytes(99))
        for name in (".nfs000000000003a7e200000001", ".DS_Store", f"{0:020d}~", f".{0:020d}.swp", f"{0:020d}.orig"):
            (folder / place / name).write_bytes(chance.randbytes(chance.randrange(2000)))


HARMLESS: Final[dict[str, Callable[[Sequence[Path], random.Random], None]]] = {
    "touched": _touch,
    "next-file": _next_file,
    "unfinished": _unfinished,
    "of-others": _of_others,
    "room-in-index": _room_in_index,
    "older-checkpoint": _older_checkpoint,
    "master-expired": _master_expired,
    "all-expired": _all_expired,
    "behind": _behind,
    "former-tail": _former_tail,
    "backups": _backups,
    "padding": _other_padding,
    "reformatted": _reformatted,
}
ALL_DAMAGES: Final = DAMAGES | SIDE_DAMAGES | FILE_DAMAGES | LOG_DAMAGES
_TOLD_BY_ONE: Final = frozenset(
    {
        *(
            "flipped-body-bit",
            "flipped-body-bit-everywhere",
            "torn-record",
            "zeroed-page",
            "truncated-tail",
            "missing-segment",
            "overwritten-log",
        ),
        *("short-segment", "wrong-queue-entry", "wrong-tags-code"),
        *("zeroed-queue-entry", "wrong-index-entry", "lost-index-slot", "lost-queues", "lost-index"),
        *("entry-behind-end", "stray-queue", "tags-code-of-nothing", "overwritten-queue", "overwritten-index"),
        *("zeroed-slots", "records-without-topic", "too-few-queues", "offset-beyond-end", "impossible-checkpoint"),
        *SIDE_DAMAGES,
        *FILE_DAMAGES,
        *LOG_DAMAGES,
    }
    - {
        "other-log",
        "other-homes",
        "config-gone",
        "copied-disk-id",
        "fork",
        "older-offsets",
        "flipped-both-sides",
        "lost-marks",
        "other-files",
        "repeated-file",
        "crossed",
        "own-versions",
        "disk-of-another-group",
        "disk-set-back",
        "earlier-day",
        "same-topics-of-another-group",
        "from-within-properties",
        "many-fields",
    }
)
"""What the one replica of a group says by itself, or with what an earlier run saw."""


def _of_several(name: str, *, is_alike: bool) -> Damage:
    """A kind that one replica tells by itself, on two or more of them at once: at one place, or each at its own."""

    def apply(folders: Sequence[Path], chance: random.Random) -> Expected:
        broker_ids = sorted(chance.sample(range(len(folders)), min(len(folders), chance.randrange(2, 4))))
        seed = chance.random()
        found = [
            ALL_DAMAGES[name].apply([folders[broker_id]], random.Random(f"{seed}{'' if is_alike else broker_id}"))
            for broker_id in broker_ids
        ]
        is_everywhere = len(broker_ids) == len(folders)
        alike = {FindingKind.CHANGED_EVERYWHERE} if is_everywhere else set()
        kinds = frozenset().union(*(own.kinds for own in found))
        if FindingKind.OFFSET_BEYOND_END in kinds:
            alike.add(FindingKind.CONSUMER_OFFSET_STALE)
        return Expected(
            kinds | alike,
            also=frozenset(broker_ids),
            ranges=found[0].ranges,
            consequences=frozenset().union(*(own.consequences for own in found)),
            everywhere=is_everywhere,
            undecidable=not is_everywhere,
            findings_max=sum(own.findings_max for own in found),
            needs_memory=any(own.needs_memory for own in found),
        )

    return Damage(f"{name} {'alike' if is_alike else 'apart'}", "", apply)


_OF_ALL: Final = frozenset(
    {
        "lengthened-alike",
        "skipped-alike",
        "exchanged-alike",
        "first-index-gone-alike",
        "other-file-everywhere",
        "queue-of-unknown-topic",
        "records-without-topic",
        "too-few-queues",
        "broken-end",
    }
)
"""Kinds that are done to all replicas, or of which those that are sound say something else."""
OF_SEVERAL: Final = {
    damage.name: damage
    for name in sorted(_TOLD_BY_ONE - _OF_ALL)
    for damage in (_of_several(name, is_alike=True), _of_several(name, is_alike=False))
}
"""By name."""
_NEVER_SEEN: Final = frozenset({"behind"})
"""Harmless only if no run saw more."""
_SEEN_SOUND: Final = ("", "quick", "deep")
_QUICK_REMEMBERS: Final = frozenset({*SIDE_DAMAGES, "table-set-back"} - {"damaged-kept-bytes", "damaged-leases"})
"""Kinds of which a quick run sees enough."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One folder of a group, and what happened to it."""

    kind: str
    """Of DAMAGES or HARMLESS."""
    seed: int
    """Side and place."""
    replicas: int
    seen_by: str
    """The tier of the run that saw the group sound; empty: none did."""
    tier: str = "deep"
    """Of the run that is judged."""


def drawn_cases() -> st.SearchStrategy[Drawn]:
    kinds = sorted({*ALL_DAMAGES, *HARMLESS} - {"other-padding"})
    return st.builds(
        Drawn,
        st.sampled_from(kinds),
        st.integers(0, 1 << 16),
        st.sampled_from((1, 2, 3)),
        st.sampled_from(_SEEN_SOUND),
        st.sampled_from(("deep", "deep", "quick")),
    ).map(_with_enough_replicas)


def _with_enough_replicas(drawn: Drawn) -> Drawn:
    is_alone = drawn.replicas == 1 and drawn.kind not in _TOLD_BY_ONE
    return replace(drawn, replicas=2) if is_alone else drawn


def problem_of(drawn: Drawn, originals: Sequence[Path], root: Path) -> str:
    """What is wrong with what a deep run says of it; empty: nothing. `root` is used and removed."""
    try:
        folders = copy_group(originals[: drawn.replicas], root / "groups" / "broker-a")
        if drawn.seen_by and drawn.kind not in _NEVER_SEEN:
            report = run_inline(root / "results", f"path={root / 'groups'}", f"tier={drawn.seen_by}")
            assert report.summary.exit_code is ExitCode.EQUAL, report.findings
        chance = random.Random(f"{drawn.kind}/{drawn.seed}")
        damage = ALL_DAMAGES.get(drawn.kind) or OF_SEVERAL.get(drawn.kind)
        expected = Expected()
        if damage is None:
            HARMLESS[drawn.kind](folders, chance)
        else:
            expected = damage.apply(folders, chance)
        report = run_inline(root / "results", f"path={root / 'groups'}", f"tier={drawn.tier}")
        problem = _problem(drawn, damage, expected, report)
        return problem or _problem_of_copies(report, originals, folders, root, f"tier={drawn.tier}")
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _problem(drawn: Drawn, damage: Damage | None, expected: Expected, report: AuditReport) -> str:
    told = "; ".join(f"{own.kind} {own.broker_id} {own.verdict}: {own.detail}" for own in report.findings[:6])
    if damage is None:
        is_silent = report.summary.exit_code is ExitCode.EQUAL and not report.findings
        return "" if is_silent else f"false alarm, exit {int(report.summary.exit_code)}: {told}"
    if drawn.tier == "quick" and expected.everywhere:
        expected = replace(expected, topic=None)  # A quick run does not look what the log has of a topic.
    if drawn.replicas == 1:
        expected = replace(expected, topic=None, message_ids=())  # The name may be what is damaged.
    if report.summary.exit_code is ExitCode.EQUAL and _may_be_missed(drawn, expected):
        return ""
    if expected.needs_memory and not drawn.seen_by:
        # Who does not know the cause may well see what followed from it, which lies elsewhere.
        expected = replace(expected, kinds=expected.kinds | expected.consequences, ranges=())
    if report.summary.exit_code is not ExitCode.DIVERGED:
        return f"missed, exit {int(report.summary.exit_code)}"
    problem = judge(Planted("broker-a", damage, drawn.replicas, expected), report.findings, {}).problem
    problem = problem or _wrong_verdict(drawn, expected, report.findings)
    if not problem and len(report.findings) > expected.findings_max:
        problem = f"{len(report.findings)} findings for one cause"
    return f"{problem}: {told}" if problem else ""


_FILES_GONE: Final = frozenset(
    {"missing-segment", "short-segment", "lost-log", "lost-newest-files", "lost-oldest-file", "other-log"}
)
"""Seen without reading, also by a quick run of a log that was verified."""


def _may_be_missed(drawn: Drawn, expected: Expected) -> bool:
    """Without memory by who has nothing to compare with; by a quick run what it does not read."""
    if expected.needs_memory and drawn.kind == "damaged-leases":
        return True  # Nobody remembers leases: consumers forget them at any time.
    if expected.needs_memory and not (drawn.seen_by == "deep" or (drawn.seen_by and drawn.kind in _QUICK_REMEMBERS)):
        return True
    if drawn.tier != "quick":
        return False
    deep_only = {kind for kind in expected.kinds if is_of_deep_runs(kind, Verdict.OWN_EVIDENCE)}
    # Of a log that was verified it reads a share.
    is_log = any(KINDS[kind].severity in (Severity.LOSS, Severity.DAMAGE) for kind in expected.kinds)
    is_read_again = drawn.kind in _FILES_GONE
    return (
        bool(deep_only)
        or drawn.replicas == 1
        or (is_log and bool(drawn.seen_by) and not is_read_again)
        or expected.everywhere
    )


def _wrong_verdict(drawn: Drawn, expected: Expected, findings: Sequence[Finding]) -> str:
    if drawn.seen_by and expected.undecidable:
        if any(own.verdict is Verdict.UNDECIDED for own in findings):
            return "an earlier run saw what was right, and nobody is named"
        if not expected.victims <= {own.broker_id for own in findings}:
            return "not all that were changed are named"
    return ""


def _problem_of_copies(
    report: AuditReport, originals: Sequence[Path], folders: Sequence[Path], root: Path, tier: str
) -> str:
    """What is wrong with ranges that the plan copies: they were right before the damage, and the next run finds nothing
    if there is nothing else to be done."""
    right = open_replica(originals[0])
    steps = [step for step in report.plan.steps if step.action is RepairAction.COPY_RANGE]
    for step in steps:
        start, end = step.start_offset or 0, step.end_offset or 0
        due = bytes(right.read_log(start, end))
        held = bytes(open_replica(folders[step.source_broker_id or 0]).read_log(start, end))
        target = folders[step.target_broker_id]
        if held != due or bytes(open_replica(target).read_log(start, end)) == due:
            return f"the plan copies [{start}, {end}) from {step.source_broker_id} to {step.target_broker_id}"
        for piece in extents_of(LogRange(start, end), right.facts.segment_bytes):
            path = target / right.segment_path(piece.start_offset)
            within = piece.start_offset % right.facts.segment_bytes
            write_at(path, within, due[piece.start_offset - start : piece.end_offset - start])
    if steps and len(steps) == len(report.plan.steps):
        after = run_inline(root / "results", f"path={root / 'groups'}", tier)
        if after.findings:
            return f"not equal after all copies: {after.findings[0]}"
    return ""


NO_REPAIRS: Final = frozenset(
    {"lengthened-alike", "skipped-alike", "extra-tail", "fork", "queue-of-unknown-topic", "truncated-everywhere"}
)
"""Kinds that nobody mends by putting back what was before: it would take messages away, or as many findings stand."""


def problem_of_two_moments(drawn: Drawn, originals: Sequence[Path], root: Path, *, at: float, is_mended: bool) -> str:
    """What is wrong with a run in whose middle the group is damaged, or its damage mended: somebody is blamed who never
    was damaged, wrong bytes would be copied, or the next run says something else of what is there by then. `at`: of
    the run's questions."""
    try:
        folders = copy_group(originals[: drawn.replicas], root / "groups" / "broker-a")
        aside = root / "aside"
        damaged = copy_group(folders, aside)
        chance = random.Random(f"{drawn.kind}/{drawn.seed}")
        expected = ALL_DAMAGES[drawn.kind].apply(damaged, chance)
        if drawn.seen_by:
            run_inline(root / "results", f"path={root / 'groups'}", f"tier={drawn.seen_by}")
        if is_mended:
            _exchange(folders, damaged)
        counting = InlineRunner()
        rounds: list[int] = []
        counting.before_run = lambda tasks: rounds.append(len(tasks))
        run_inline(root / "counted", f"path={root / 'groups'}", f"tier={drawn.tier}", runner=counting)
        runner, moment = InlineRunner(), int(at * len(rounds))

        def before_run(_: object) -> None:
            nonlocal moment
            if not moment:
                _exchange(folders, damaged)
            moment -= 1

        runner.before_run = before_run
        report = run_inline(root / "results", f"path={root / 'groups'}", f"tier={drawn.tier}", runner=runner)
        if moment >= 0:
            _exchange(folders, damaged)
        told = "; ".join(f"{own.kind} {own.broker_id} {own.verdict}: {own.detail}" for own in report.findings[:6])
        blamed = {own.broker_id for own in report.findings} - {None}
        if not expected.everywhere and not blamed <= expected.victims:
            return f"{blamed} are named instead of {expected.victims}: {told}"
        right = open_replica(originals[0])
        for step in report.plan.steps:
            if step.action is RepairAction.COPY_RANGE:
                start, end = step.start_offset or 0, step.end_offset or 0
                held = open_replica(originals[0] if is_mended else folders[step.source_broker_id or 0])
                if bytes(held.read_log(start, end)) != bytes(right.read_log(start, end)):
                    return f"the plan copies [{start}, {end}) from {step.source_broker_id}: {told}"
        after = run_inline(root / "results", f"path={root / 'groups'}", "tier=deep")
        if not is_mended:
            return _problem(replace(drawn, tier="deep", seen_by=""), ALL_DAMAGES[drawn.kind], expected, after)
        # What nobody was told of may have been remembered as it was.
        is_known = bool(report.findings) or not (expected.everywhere or drawn.replicas == 1)
        return f"{after.findings[0]} after the repair; before: {told}" if after.findings and is_known else ""
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _exchange(folders: Sequence[Path], others: Sequence[Path]) -> None:
    for folder, other in zip(folders, others):
        folder.rename(folder.with_name("exchanged"))
        other.rename(folder)
        folder.with_name("exchanged").rename(other)
