"""Steps that make replicas equal: only what is known to be right is copied."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandemmq.core.audit.findings import Cause, Finding, FindingKind, Verdict
from tandemmq.core.audit.repair_plan import RepairAction, RepairPlan, RepairStep, plan_repair
from tandemmq.core.replication.log_history import LogRange


def digest_of(group: str, broker_id: int, log_range: LogRange) -> str:
    """Says what it was asked for."""
    return f"{group}/{broker_id}/{log_range.start_offset}-{log_range.end_offset}"


def damaged(start: int, end: int, *, target: int = 1, source: int | None = 0, **changes: object) -> Finding:
    """A broken body."""
    values: dict[str, object] = {
        "kind": FindingKind.BODY_CRC,
        "group": "broker-a",
        "verdict": Verdict.CHECKSUM,
        "detail": "detail",
        "broker_id": target,
        "source_broker_id": source,
        "start_offset": start,
        "end_offset": end,
    }
    return Finding(**(values | changes))  # type: ignore[arg-type]  # fields by name


def plan(*findings: Finding) -> RepairPlan:
    """Of these findings."""
    return plan_repair("run-1", "cluster", findings, digest_of)


def test_range_is_copied_with_both_digests() -> None:
    (step,) = plan(damaged(100, 300)).steps
    assert step.number == 1
    assert step.action is RepairAction.COPY_RANGE
    assert (step.target_broker_id, step.source_broker_id) == (1, 0)
    assert (step.target_digest, step.source_digest) == ("broker-a/1/100-300", "broker-a/0/100-300")


def test_neighbours_are_one_step() -> None:
    steps = plan(damaged(300, 500), damaged(100, 300), damaged(10_000_000, 10_000_100)).steps
    assert [(step.start_offset, step.end_offset) for step in steps] == [(100, 500), (10_000_000, 10_000_100)]


def test_other_replicas_and_sources_are_other_steps() -> None:
    steps = plan(damaged(100, 300), damaged(300, 400, target=2), damaged(400, 500, source=2)).steps
    assert [(step.target_broker_id, step.source_broker_id) for step in steps] == [(1, 0), (1, 2), (2, 0)]


def test_what_nobody_knows_the_right_version_of_is_left_to_people() -> None:
    undecided = damaged(100, 300, verdict=Verdict.UNDECIDED, broker_id=None, source_broker_id=None)
    everywhere = damaged(500, 600, source=None)
    steps = plan(undecided, everywhere).steps
    assert {step.action for step in steps} == {RepairAction.MANUAL}
    assert "nothing tells which replica is right" in steps[0].reason
    assert "backup" in steps[1].reason


def test_lost_file_is_copied_while_the_broker_is_stopped() -> None:
    (step,) = plan(damaged(0, 4096, kind=FindingKind.SEGMENT_MISSING)).steps
    assert step.action is RepairAction.MANUAL
    assert "stop the broker" in step.reason


def test_queue_entries_are_rewritten_in_runs_after_the_log_is_mended() -> None:
    def wrong(queue_offset: int, messages: int = 1) -> Finding:
        return damaged(
            0,
            10,
            kind=FindingKind.QUEUE_ENTRY_WRONG,
            topic="orders",
            queue_id=2,
            queue_offset=queue_offset,
            messages=messages,
            source_broker_id=None,
        )

    steps = plan(wrong(7), wrong(5, 2), wrong(20), damaged(100, 300)).steps
    assert [step.action for step in steps] == [
        RepairAction.COPY_RANGE,
        RepairAction.REWRITE_QUEUE_ENTRIES,
        RepairAction.REWRITE_QUEUE_ENTRIES,
    ]
    assert [(step.first_queue_offset, step.end_queue_offset) for step in steps[1:]] == [(5, 8), (20, 21)]


def test_plan_goes_through_json() -> None:
    made = plan(damaged(100, 300), damaged(500, 600, source=None))
    assert RepairPlan.from_json(made.to_json()) == made


def test_undone_plan_puts_back_what_its_copies_overwrote() -> None:
    first, second = (
        RepairStep(
            number=number,
            action=RepairAction.COPY_RANGE,
            group="broker-a",
            target_broker_id=1,
            reason="",
            source_broker_id=0,
            start_offset=number,
            end_offset=number + 1,
            target_digest="bad",
            source_digest="good",
        )
        for number in (1, 2)
    )
    by_hand = RepairStep(number=3, action=RepairAction.MANUAL, group="broker-a", target_broker_id=1, reason="")
    undone = RepairPlan("run", "cluster", (first, second, by_hand)).undone()
    assert [step.start_offset for step in undone.steps] == [2, 1]
    assert {(step.source_broker_id, step.target_digest, step.source_digest) for step in undone.steps} == {
        (1, "good", "bad")
    }


def table(broker_id: int, source: int | None, **changes: object) -> Finding:
    """A topic that a replica does not know."""
    values: dict[str, object] = {
        "kind": FindingKind.TOPIC_MISSING,
        "group": "broker-a",
        "verdict": Verdict.OWN_EVIDENCE,
        "detail": "detail",
        "broker_id": broker_id,
        "source_broker_id": source,
        "file": "config/topics.json",
    }
    return Finding(**(values | changes))  # type: ignore[arg-type]  # fields by name


def test_a_slave_takes_its_masters_table_again() -> None:
    (step,) = plan(table(1, 0), table(1, 0, topic="orders")).steps
    assert (step.action, step.table, step.target_broker_id) == (RepairAction.REWRITE_TABLE, "topics.json", 1)
    assert "and 1 more" in step.reason


def test_a_master_cannot_take_a_table_from_its_slave() -> None:
    assert [step.action for step in plan(table(0, 1)).steps] == [RepairAction.MANUAL]
    other_master = plan_repair("run-1", "cluster", [table(0, 1)], digest_of, masters={"broker-a": 1})
    assert [step.action for step in other_master.steps] == [RepairAction.REWRITE_TABLE]


def test_a_broker_writes_again_what_its_file_does_not_show() -> None:
    unreadable = table(0, None, kind=FindingKind.METADATA_UNREADABLE)
    assert [step.action for step in plan(unreadable).steps] == [RepairAction.REWRITE_TABLE]
    clock = table(0, None, kind=FindingKind.METADATA_UNREADABLE, file="config/leaseClock.json")
    assert [step.action for step in plan(clock).steps] == [RepairAction.MANUAL]


def test_what_nobody_decides_about_a_table_is_left_to_people() -> None:
    undecided = replace(table(1, None), verdict=Verdict.UNDECIDED, broker_id=None)
    assert [step.action for step in plan(undecided).steps] == [RepairAction.MANUAL]


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        (FindingKind.EPOCHS_WRONG, "epochFileCheckpoint"),
        (FindingKind.DISK_ID_WRONG, "replica.json"),
        (FindingKind.MESSAGE_GROUP_HOMES_DIFFER, "config/messageGroupHomes.json"),
        (FindingKind.METADATA_UNREADABLE, "config/messageGroupHomes.json"),
    ],
)
def test_a_running_broker_writes_its_small_files_again_and_one_at_rest_has_read_them(
    kind: FindingKind, file: str
) -> None:
    wrong = table(1, 0, kind=kind, file=file)
    running = plan_repair("run-1", "cluster", [wrong], digest_of, running={"broker-a": (0, 1)})
    (step,) = running.steps
    assert (step.action, step.table) == (RepairAction.REWRITE_TABLE, file.rpartition("/")[2])
    (back,) = running.undone().steps
    assert (back.action, back.table) == (RepairAction.RESTORE_TABLE, step.table)
    assert [step.action for step in plan(wrong).steps] == [RepairAction.MANUAL]
    undecided = replace(wrong, verdict=Verdict.UNDECIDED, broker_id=None)
    by_hand = plan_repair("run-1", "cluster", [undecided], digest_of, running={"broker-a": (0, 1)})
    assert [step.action for step in by_hand.steps] == [RepairAction.MANUAL]


@pytest.mark.parametrize("broker_id", [None, 0, 1, 2])
def test_what_lies_between_is_copied_only_if_nothing_was_found_there(broker_id: int | None) -> None:
    """The source may be the one that is wrong there, or nobody knows."""
    other = damaged(320, 350, broker_id=broker_id, source_broker_id=None, verdict=Verdict.UNDECIDED)
    steps = plan(damaged(100, 300), other, damaged(400, 500)).steps
    copies = [(own.start_offset, own.end_offset) for own in steps if own.action is RepairAction.COPY_RANGE]
    assert copies == [(100, 300), (400, 500)]
    steps = plan(damaged(100, 300), replace(other, group="broker-b"), damaged(400, 500)).steps
    copies = [(own.start_offset, own.end_offset) for own in steps if own.action is RepairAction.COPY_RANGE]
    assert copies == [(100, 500)]


def test_a_folder_that_is_no_queues_is_moved_by_hand_and_what_lies_behind_a_queue_is_not() -> None:
    """A broker takes its entries for some: asked to erase them it refuses, and with it all of the plan."""
    extra = damaged(
        0,
        0,
        kind=FindingKind.QUEUE_ENTRY_EXTRA,
        start_offset=None,
        end_offset=None,
        source_broker_id=None,
        topic="orders",
        queue_id=9,
        queue_offset=0,
        end_queue_offset=70,
        messages=70,
        file="consumequeue/orders/9",
    )
    stray = replace(extra, cause=Cause.NO_QUEUE)
    other = replace(
        stray, queue_id=None, queue_offset=None, file="consumequeue", files=("consumequeue/a/0", "consumequeue/b/0")
    )
    steps = plan_repair("run-1", "cluster", [extra, stray, other], digest_of, running={"broker-a": (0, 1)}).steps
    assert [step.action for step in steps] == [RepairAction.REWRITE_QUEUE_ENTRIES, RepairAction.MANUAL]
    assert "move consumequeue/a/0, consumequeue/b/0, consumequeue/orders/9 out of its store" in steps[1].reason
    assert "consumequeue-ends" in steps[1].reason
