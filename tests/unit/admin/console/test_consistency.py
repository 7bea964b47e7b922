"""Pages of the consistency job: proven, differing, never, unreadable; and each run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import structlog

from support.admin_readings import FakeResults, consistency_of
from support.audit_summaries import diverged_run, equal_group, equal_run, finding, run_of
from support.console_client import Page, console_client
from support.fake_operations import FakeOperations
from support.manual_time import ManualTime
from support.operations_samples import NOW_MS
from tandemmq.admin.audit_log import Role
from tandemmq.admin.consistency_runs import ConsistencyRuns
from tandemmq.admin.console.consistency import add_consistency_pages
from tandemmq.admin.operations.values import VerificationState
from tandemmq.core.audit.run_summary import Outcome, RunSummary, Tier


async def _page(*runs: RunSummary, error: str = "", address: str = "/consistency", status: int = 200) -> Page:
    consistency, results = consistency_of(*runs, clock=ManualTime(wall_ms=NOW_MS))
    assert isinstance(results, FakeResults)
    if error:
        results.error = error
        consistency.read_once()
    async with console_client(FakeOperations(), add_consistency_pages, consistency=consistency) as client:
        return await client.get(address, status=status)


def _minutes_ago(minutes: int) -> str:
    return datetime.fromtimestamp(NOW_MS / 1_000 - minutes * 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_proven_equal_and_when() -> None:
    page = await _page(equal_run(finished_at=_minutes_ago(12)))
    assert "Proven equal 12 min ago" in page.text
    assert "Last quick run (what is new, by its digests): 12 min ago, 2 groups, equal" in page.text
    assert "broker-a equal 0 2 1.0 GiB 3,221,225,472" in page.text


async def test_findings_with_message_and_first_step() -> None:
    page = await _page(diverged_run(finished_at=_minutes_ago(12)))
    assert "1 finding, as of 12 min ago" in page.text
    assert "broker-a:1 body does not match its checksum" in page.text
    assert "orders, queue 3, offset 12,345 7F00000100002A9F0000018C3B2F0001" in page.text
    assert "tandemmq repair --plan" in page.text
    assert "/message?id=7F00000100002A9F0000018C3B2F0001" in page.links()


async def test_never_proven_says_how_to_begin() -> None:
    page = await _page()
    assert "Never proven" in page.text
    assert "kubectl create job --from=cronjob/" in page.text
    assert "tandemmq verify" in page.text


async def test_unreadable_results_say_why() -> None:
    page = await _page(error="ConfigMap mq-consistency: 403 Forbidden")
    assert "403 Forbidden" in page.text
    assert "kubectl create job" not in page.text


async def test_run_that_could_not_read_all_does_not_hide_the_last_proof() -> None:
    lost = run_of(
        [equal_group("broker-a", outcome=Outcome.INCOMPLETE, problem="slave 1 does not answer")],
        run_id="20231114T220000Z-0000",
        finished_at=_minutes_ago(12),
    )
    proof = equal_run(run_id="20231114T200000Z-0000", finished_at=_minutes_ago(133), tier=Tier.DEEP)
    page = await _page(lost, proof)
    assert "Proven equal 2 h ago; the last run could not read all of them" in page.text
    assert "incomplete: slave 1 does not answer" in page.text
    assert "Last deep run (every record by itself): 2 h ago" in page.text
    assert "2 h ago equal deep 0 2" in page.text


async def test_a_run_whose_clock_was_ahead_is_not_of_this_moment() -> None:
    page = await _page(equal_run(finished_at=_minutes_ago(-60 * 24 * 365)))
    assert "Proven equal at a time that is still to come" in page.text


async def test_a_run_of_one_group_does_not_prove_the_others_anew() -> None:
    whole = equal_run(run_id="20231114T200000Z-0000", finished_at=_minutes_ago(133))
    one = run_of(
        [equal_group("broker-a")],
        run_id="20231114T220000Z-0000",
        finished_at=_minutes_ago(1),
        only_groups=("broker-a",),
    )
    assert "Proven equal 2 h ago" in (await _page(one, whole)).text


async def test_thousand_groups_show_those_that_matter() -> None:
    groups = [equal_group(f"broker-{number:04d}") for number in range(998)]
    groups += [
        equal_group("bad", outcome=Outcome.DIVERGED, findings=900),
        equal_group("gone", outcome=Outcome.INCOMPLETE),
    ]
    many = [finding(group="bad", queue_offset=number) for number in range(500)]
    page = await _page(run_of(groups, many, finished_at=_minutes_ago(12)))
    assert "900 findings" in page.text
    assert "All 1,000 groups: 1 diverged, 998 equal, 1 incomplete." in page.text
    assert "broker-0001" not in page.text
    assert "875 more; the run's report has all." in page.text


async def test_one_run_whole() -> None:
    run = diverged_run(finished_at=_minutes_ago(12))
    page = await _page(run, address=f"/consistency/{run.run_id}")
    assert page.text.startswith(f"Consistency / runs Run {run.run_id}")
    assert "body does not match its checksum" in page.text
    latest = await _page(equal_run(), address="/consistency/latest")
    assert (
        'aria-label="CommitLog of broker-a from 0 to 4,294,967,296: 25% never verified, 50% verified by an'
        in latest.html
    )
    assert latest.html.count('<rect class="now" x="128" y="2" width="64" height="6">') == 2


async def test_unknown_run() -> None:
    assert "no run 2023 is known" in (await _page(equal_run(), address="/consistency/2023", status=404)).text


async def test_without_a_place_the_page_says_how_to_set_one() -> None:
    consistency = ConsistencyRuns(None, clock=ManualTime(), log=structlog.get_logger(), overdue_after_ms=0)
    async with console_client(FakeOperations(), add_consistency_pages, consistency=consistency) as client:
        page = await client.get("/consistency")
    assert "Nothing is known of the consistency job" in page.text
    assert "consistencyResults" in page.text


async def test_run_is_started_followed_and_its_verdict_told() -> None:
    operations = FakeOperations()
    consistency, _ = consistency_of(equal_run(finished_at=_minutes_ago(12)), clock=ManualTime(wall_ms=NOW_MS))
    async with console_client(operations, add_consistency_pages, consistency=consistency) as client:
        assert "Verify now" in (await client.get("/consistency")).text
        page = await client.post("/consistency/verify", {"tier": "deep"})
        assert page.address == "/consistency"
        assert "A deep run is in progress" in page.text
        assert "It finds out what there is to read." in page.text
        assert "Verify now" not in page.text
        operations.started = replace(
            operations.started, groups_total=3, groups_done=1, read_bytes=1 << 30, planned_bytes=4 << 30, seconds_left=9
        )
        page = await client.get("/consistency")
        assert 'max="100" value="25"' in page.html
        assert "1 of 3 groups, 1.0 GiB of 4.0 GiB, about 9 s left." in page.text
        await client.post("/consistency/verify", {"tier": "quick"})
        assert operations.started.tier is Tier.DEEP
        operations.started = replace(
            operations.started, state=VerificationState.ENDED, outcome="diverged", ended_ms=NOW_MS + 61_000
        )
        page = await client.get("/consistency")
        assert "The deep run ended after 1 min 1 s: diverged" in page.text
        assert "Verify now" in page.text
        operations.started = replace(operations.started, state=VerificationState.FAILED, problem="it broke")
        assert "The deep run came to no verdict it broke" in (await client.get("/consistency")).text


async def test_viewer_sees_no_button_and_starts_nothing() -> None:
    operations = FakeOperations()
    consistency, _ = consistency_of(equal_run(), clock=ManualTime(wall_ms=NOW_MS))
    async with console_client(operations, add_consistency_pages, consistency=consistency, role=Role.VIEWER) as client:
        assert "Verify now" not in (await client.get("/consistency")).text
        await client.post("/consistency/verify", {"tier": "quick"}, status=403)
    assert operations.started.state is VerificationState.NONE
