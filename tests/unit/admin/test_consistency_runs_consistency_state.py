"""What stands against the replicas: until when, who is told, and when a run is missed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.admin_readings import cached, consistency_of
from support.audit_summaries import diverged_run, equal_group, equal_run, finding, run_of
from support.cluster_states import healthy_cluster
from support.manual_time import ManualTime
from tandemmq.admin.cluster_state import Severity
from tandemmq.admin.consistency_runs import diagnose_consistency, standings
from tandemmq.core.audit.findings import FindingKind, Verdict
from tandemmq.core.audit.run_summary import Outcome, RunSummary, Tier

_NOW = "2023-11-14T22:13:00Z"


def _run(hour: int, run: RunSummary | None = None, **changed: object) -> RunSummary:
    base = run or equal_run()
    values = {name: getattr(base, name) for name in RunSummary.__slots__}
    return RunSummary(**(values | {"run_id": f"20231114T{hour:02d}0000Z-0000", "finished_at": _NOW} | changed))


def _kinds(*runs: RunSummary) -> dict[str, list[FindingKind]]:
    newest_first = sorted(runs, key=lambda run: run.run_id, reverse=True)
    return {each.group: [found.kind for found in each.findings] for each in standings(newest_first)}


def _bad_run(kind: FindingKind, **changed: object) -> RunSummary:
    bad = equal_group("broker-a", outcome=Outcome.DIVERGED, findings=1)
    return run_of([bad, equal_group("broker-b")], [finding(kind)], **changed)


def test_finding_stands_until_a_run_of_its_tier_finds_the_group_equal() -> None:
    zeroed = _bad_run(FindingKind.ZEROED)
    assert _kinds(_run(1, zeroed)) == {"broker-a": [FindingKind.ZEROED], "broker-b": []}
    assert _kinds(_run(1, zeroed), _run(2)) == {"broker-a": [], "broker-b": []}


def test_quick_run_answers_a_deep_one_as_far_as_it_can_see() -> None:
    quick = _run(2)
    assert _kinds(_run(1, _bad_run(FindingKind.ZEROED, tier=Tier.DEEP)), quick)["broker-a"] == []
    assert _kinds(_run(1, _bad_run(FindingKind.BODY_CRC, tier=Tier.DEEP)), quick)["broker-a"] == []
    for kind in (FindingKind.QUEUE_ENTRY_WRONG, FindingKind.INDEX_ENTRY_MISSING):
        deep = _run(1, _bad_run(kind, tier=Tier.DEEP))
        assert _kinds(deep, quick)["broker-a"] == [kind]
        assert _kinds(deep, quick, _run(3, tier=Tier.DEEP))["broker-a"] == []


def test_bit_rot_that_all_replicas_share_is_for_deep_runs() -> None:
    shared = finding(broker_id=None, source_broker_id=None)
    bad = run_of([equal_group(outcome=Outcome.DIVERGED, findings=1)], [shared], tier=Tier.DEEP)
    assert _kinds(_run(1, bad), _run(2))["broker-a"] == [FindingKind.BODY_CRC]


def test_finding_of_both_tiers_is_one() -> None:
    deep = _run(1, _bad_run(FindingKind.QUEUE_GAP, tier=Tier.DEEP))
    quick = _run(2, _bad_run(FindingKind.QUEUE_GAP))
    assert _kinds(deep, quick)["broker-a"] == [FindingKind.QUEUE_GAP]


@pytest.mark.parametrize("outcome", [Outcome.SKIPPED, Outcome.INCOMPLETE])
def test_run_that_did_not_look_answers_nothing(outcome: Outcome) -> None:
    later = _run(2, run_of([equal_group("broker-a", outcome=outcome)]))
    assert _kinds(_run(1, _bad_run(FindingKind.ZEROED)), later)["broker-a"] == [FindingKind.ZEROED]


def test_group_that_no_newest_run_knows_is_gone() -> None:
    assert set(_kinds(_run(1, _bad_run(FindingKind.ZEROED)), _run(2, run_of([equal_group("broker-b")])))) == {
        "broker-b"
    }


def test_run_over_some_groups_answers_for_those_alone() -> None:
    partial = _run(2, run_of([equal_group("broker-b")]), only_groups=("broker-b",))
    assert _kinds(_run(1, _bad_run(FindingKind.ZEROED)), partial) == {"broker-a": [FindingKind.ZEROED], "broker-b": []}


async def test_difference_degrades_the_cluster_and_names_broker_message_and_remedy() -> None:
    clock = ManualTime()
    consistency, _ = consistency_of(_run(1, diverged_run()), clock=clock)
    cluster, _, _ = cached(healthy_cluster(), clock=clock, more_findings=consistency.findings)
    reading = await cluster.read_once()
    assert not reading.healthy
    (found,) = reading.findings
    assert (found.severity, found.subject) == (Severity.PROBLEM, "broker-a:1")
    assert "body does not match its checksum" in found.problem
    assert "orders queue 3 offset 12345 7F00000100002A9F0000018C3B2F0001" in found.problem
    assert "tandemmq repair --plan" in found.remedy


def test_undecided_difference_is_of_the_group() -> None:
    undecided = finding(broker_id=None, source_broker_id=None, verdict=Verdict.UNDECIDED)
    run = run_of([equal_group(outcome=Outcome.DIVERGED, findings=1)], [undecided], finished_at=_NOW)
    consistency, _ = consistency_of(run, clock=ManualTime())
    (found,) = consistency.findings()
    assert found.subject == "broker group broker-a"
    assert "how to decide" in found.remedy


def test_thousands_of_findings_are_told_in_few_words() -> None:
    groups = [equal_group(f"broker-{n}", outcome=Outcome.DIVERGED, findings=40) for n in range(100)]
    many = [finding(group=f"broker-{n % 100}", queue_offset=n) for n in range(500)]
    consistency, _ = consistency_of(run_of(groups, many, finished_at=_NOW), clock=ManualTime())
    found = consistency.findings()
    assert len(found) == 21
    assert "body does not match its checksum, 5 times" in found[0].problem
    assert found[-1].subject == "cluster"


def test_missed_run_is_a_note_and_so_is_a_run_that_never_came() -> None:
    clock = ManualTime()
    consistency, results = consistency_of(_run(1), clock=clock)
    assert consistency.findings() == []
    clock.advance(3 * 3_600_000)
    (late,) = consistency.findings()
    assert (late.severity, late.problem) == (Severity.NOTE, "has not ended a run for 3.0 hours")
    never, _ = consistency_of(clock=clock)
    assert never.findings() == []
    clock.advance(3 * 3_600_000)
    never.read_once()
    assert [found.problem for found in never.findings()] == ["has never run"]
    assert results.runs


def test_a_run_that_ends_in_the_future_is_told_and_misses_none_for_ever() -> None:
    consistency, _ = consistency_of(
        equal_run(finished_at="2033-11-14T22:13:00Z"), clock=(clock := ManualTime(wall_ms=1_700_000_000_000))
    )
    assert any("still to come" in each.problem for each in consistency.findings())
    reading = consistency.latest
    assert reading is not None
    later = replace(reading, watched_ms=reading.overdue_after_ms + 1)
    assert later.overdue_ms(clock.wall_ms()) == later.watched_ms


def test_overdue_may_be_off() -> None:
    clock = ManualTime()
    consistency, _ = consistency_of(_run(1), clock=clock, overdue_after_ms=0)
    clock.advance(30 * 86_400_000)
    assert consistency.findings() == []


def test_unreadable_place_keeps_what_was_read_and_says_so() -> None:
    consistency, results = consistency_of(_run(1, diverged_run()), clock=ManualTime())
    results.error = "ConfigMap mq-consistency: 403 Forbidden"
    consistency.read_once()
    problems = [found.problem for found in consistency.findings()]
    assert len(problems) == 2
    assert "403 Forbidden" in problems[1]
    results.error = ""
    reading = consistency.read_once()
    assert reading is not None
    assert len(diagnose_consistency(reading, now_wall_ms=ManualTime().wall_ms())) == 1


def test_group_that_could_not_be_read_is_a_note() -> None:
    lost = equal_group("broker-a", outcome=Outcome.INCOMPLETE, problem="slave 1 does not answer")
    consistency, _ = consistency_of(run_of([lost], finished_at=_NOW), clock=ManualTime())
    (found,) = consistency.findings()
    assert (found.severity, found.subject) == (Severity.NOTE, "broker group broker-a")
    assert "slave 1 does not answer" in found.problem
