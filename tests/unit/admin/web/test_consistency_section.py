"""The page's section about the replicas: proven, differing, never, unreadable."""

from __future__ import annotations

import re
from html import unescape

from admin.web import StatusPage
from mqcore.audit.run_summary import Outcome, RunSummary, Tier
from support.admin_readings import FakeResults, cached, consistency_of
from support.audit_summaries import diverged_run, equal_group, equal_run, finding, run_of
from support.manual_time import ManualTime

_PAGE = StatusPage(refresh_ms=2_000)
_TWELVE_MINUTES_AGO = "2023-11-14T22:01:00Z"


async def _section(*runs: RunSummary, error: str = "") -> str:
    clock = ManualTime()
    consistency, results = consistency_of(*runs, clock=clock)
    assert isinstance(results, FakeResults)
    if error:
        results.error = error
        consistency.read_once()
    cluster, _, _ = cached(clock=clock)
    reading = await cluster.read_once()
    html = _PAGE.status(reading, consistency.latest, now_ms=clock.monotonic_ms(), now_wall_ms=clock.wall_ms())
    section = re.search(r'<section aria-labelledby="consistency">.*?</section>', html, re.DOTALL)
    assert section is not None
    return unescape(" ".join(re.sub(r"<[^>]*>", " ", section[0]).split()))


async def test_proven_equal_and_when() -> None:
    text = await _section(equal_run(finished_at=_TWELVE_MINUTES_AGO))
    assert text.startswith("Replicas proven equal 12 min ago")
    assert "Last quick run (what is new, by its digests): 12 min ago, 2 groups, equal" in text
    assert "broker-a equal 0 2 1.0 GiB 3,221,225,472" in text


async def test_findings_with_message_and_first_step() -> None:
    text = await _section(diverged_run(finished_at=_TWELVE_MINUTES_AGO))
    assert text.startswith("Replicas 1 finding, as of 12 min ago")
    assert "broker-a:1 body does not match its checksum" in text
    assert "orders, queue 3, offset 12,345 7F00000100002A9F0000018C3B2F0001" in text
    assert "tandemmq repair --plan" in text


async def test_never_proven_says_how_to_begin() -> None:
    text = await _section()
    assert text.startswith("Replicas never proven")
    assert "kubectl create job --from=cronjob/" in text
    assert "tandemmq verify" in text


async def test_unreadable_results_say_why() -> None:
    text = await _section(error="ConfigMap mq-consistency: 403 Forbidden")
    assert "the results cannot be read" in text
    assert "403 Forbidden" in text
    assert "kubectl create job" not in text


async def test_run_that_could_not_read_all_does_not_hide_the_last_proof() -> None:
    lost = run_of(
        [equal_group("broker-a", outcome=Outcome.INCOMPLETE, problem="slave 1 does not answer")],
        run_id="20231114T220000Z-0000",
        finished_at=_TWELVE_MINUTES_AGO,
    )
    proof = equal_run(run_id="20231114T200000Z-0000", finished_at="2023-11-14T20:00:00Z", tier=Tier.DEEP)
    text = await _section(lost, proof)
    assert "proven equal 2 h ago; the last run could not read all of them" in text
    assert "incomplete: slave 1 does not answer" in text
    assert "Last deep run (every record by itself): 2 h ago" in text


async def test_thousand_groups_show_those_that_matter() -> None:
    groups = [equal_group(f"broker-{number:04d}") for number in range(998)]
    groups += [
        equal_group("bad", outcome=Outcome.DIVERGED, findings=900),
        equal_group("gone", outcome=Outcome.INCOMPLETE),
    ]
    many = [finding(group="bad", queue_offset=number) for number in range(500)]
    text = await _section(run_of(groups, many, finished_at=_TWELVE_MINUTES_AGO))
    assert "900 findings" in text
    assert "All 1,000 groups: 1 diverged, 998 equal, 1 incomplete." in text
    assert "broker-0001" not in text
    assert text.endswith("875 more; the run's report has all.")


async def test_without_a_place_the_page_is_silent() -> None:
    cluster, _, clock = cached()
    html = _PAGE.status(await cluster.read_once(), None, now_ms=clock.monotonic_ms())
    assert 'id="consistency"' not in html
