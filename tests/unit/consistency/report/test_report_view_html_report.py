"""The report: what it says at a glance, that it needs nothing from elsewhere, and that it stays readable when large."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

import pytest

from support.audit_summaries import diverged_run, equal_group, equal_run, finding, replica, run_of
from tandemmq.consistency.report import render_report
from tandemmq.consistency.report.report_view import EVIDENCE
from tandemmq.core.audit.findings import KINDS, FindingKind, Verdict
from tandemmq.core.audit.run_summary import Outcome, RunSummary, Tier

_VOID = {"meta", "br", "link", "img"}


class _Balance(HTMLParser):
    """Fails on a tag that is closed out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Closed at once."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag


def _page(summary: RunSummary, *earlier: RunSummary) -> str:
    html = render_report(summary, earlier=earlier)
    parser = _Balance()
    parser.feed(html)
    assert parser.open == []
    return html


def _text(html: str) -> str:
    """What is read, without the tags; for words only, as it is markup no more."""
    body = re.sub(r"<(style|title)>.*?</\1>", "", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_equal_run_says_so_first() -> None:
    text = _text(_page(equal_run()))
    assert text.startswith("? ■ All replicas hold the same. 2 groups, 4 replicas: 2.0 GiB compared on every replica")
    assert "What to do" not in text
    assert "what to do" not in text


def test_a_damaged_time_is_shown_as_it_is() -> None:
    damaged = finding(FindingKind.FIELD_DIFFERS, store_timestamp_ms=1_700_000_000_123 | 1 << 62)
    assert f"stored {1_700_000_000_123 | 1 << 62} ms" in _text(_page(run_of([equal_group("broker-a")], [damaged])))


def test_diverged_run_names_the_message_the_replica_and_the_remedy() -> None:
    text = _text(_page(diverged_run()))
    assert "1 of 2 groups differs." in text
    assert "1 finding (other bytes than were written: 1)." in text
    for fact in (
        "broker-a slave 1 right on master",
        "orders, queue 3, offset 12,345",
        "7F00000100002A9F0000018C3B2F0001",
        "stored 2023-11-14 22:13:20.123",
        "2,147,483,648 to 2,147,484,848",
        "body CRC 0x1f2e3d4c, stored 0x1f2e3d4d",
        EVIDENCE[Verdict.CHECKSUM],
        KINDS[FindingKind.BODY_CRC].why,
        KINDS[FindingKind.BODY_CRC].remedy,
    ):
        assert fact in text


def test_worst_group_comes_first() -> None:
    groups = [
        equal_group("broker-a"),
        equal_group("broker-b", outcome=Outcome.SKIPPED, problem="slave 1 is 2.1 GiB behind"),
        equal_group("broker-c", outcome=Outcome.INCOMPLETE, problem="slave 1 does not answer"),
        equal_group("broker-d", outcome=Outcome.DIVERGED, findings=3),
    ]
    html = _page(run_of(groups))
    assert re.findall(r'<h3><span class="sign \w+" aria-hidden="true">.</span> (broker-.)</h3>', html) == [
        "broker-d",
        "broker-c",
        "broker-b",
        "broker-a",
    ]
    text = _text(html)
    assert "skipped: slave 1 is 2.1 GiB behind" in text
    assert "incomplete: slave 1 does not answer" in text


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome.INCOMPLETE, "Nothing wrong was found, but not everything could be read."),
        (Outcome.SKIPPED, "Nothing was compared."),
    ],
)
def test_what_was_not_read_is_not_called_equal(outcome: Outcome, words: str) -> None:
    assert words in _text(_page(run_of([equal_group(outcome=outcome)])))


@pytest.mark.parametrize("kind", list(FindingKind))
@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_kind_and_verdict_has_words(kind: FindingKind, verdict: Verdict) -> None:
    bare = finding(
        kind,
        verdict=verdict,
        broker_id=None,
        source_broker_id=None,
        start_offset=None,
        end_offset=None,
        topic=None,
        queue_id=None,
        queue_offset=None,
        message_id=None,
        store_timestamp_ms=None,
    )
    text = _text(render_report(run_of([equal_group(outcome=Outcome.DIVERGED, findings=1)], [bare])))
    assert KINDS[kind].title in text
    assert EVIDENCE[verdict] in text


def test_findings_that_are_not_listed_are_counted() -> None:
    summary = diverged_run(findings_total=7_000, findings_by_kind={"body-crc": 6_000, "zeroed": 1_000})
    text = _text(_page(summary))
    assert "The first 1 of 7,000, worst first" in text
    assert "zeros where messages were (1,000, zeroed )" in text


def test_thousand_groups_fold_what_is_equal_and_stay_a_file_a_browser_opens() -> None:
    triple = (replica(0), replica(1), replica(2))
    groups = [equal_group(f"broker-{number:04d}", replicas=triple) for number in range(997)]
    groups += [
        equal_group(f"bad-{number}", outcome=Outcome.DIVERGED, findings=1, extent_map="=x=") for number in range(3)
    ]
    html = _page(run_of(groups, [finding(group=f"bad-{number}") for number in range(3)]))
    assert len(html) < 3_000_000
    text = _text(html)
    assert "✕ 3 diverged · ■ 997 equal" in text
    assert "200 more groups with pictures" in text
    unfolded = html[: html.index("<details>")]
    assert unfolded.count('<article class="card diverged"') == 3
    assert '<article class="card equal"' not in unfolded
    assert all(f"broker-{number:04d}" in html for number in range(997))


def test_earlier_runs_make_a_strip_that_ends_with_this_one() -> None:
    earlier = [equal_run(run_id=f"20261121T{hour:02d}0000Z-0000") for hour in range(22)]
    earlier[3] = diverged_run(run_id="20261121T030000Z-0000")
    later = equal_run(run_id="20261122T000000Z-0000")
    html = _page(equal_run(), *reversed(earlier), later)
    assert "The last 23 runs: 22 equal, 1 diverged. The last that found something: 20261121T030000Z-0000." in _text(
        html
    )
    assert len(re.findall(r'class="sign \w+( this)?" title=', html)) == 23


def test_nothing_of_a_cluster_becomes_markup_and_nothing_is_loaded() -> None:
    hostile = "<script>alert(1)</script>"
    wrong = finding(group=hostile, topic=hostile, detail=hostile, message_id='"><img src=x>')
    groups = [equal_group(hostile, outcome=Outcome.DIVERGED, findings=1, problem=hostile)]
    summary = run_of(groups, [wrong], cluster=hostile, notes=(hostile,))
    html = _page(summary)
    assert "<script" not in html
    assert "<img" not in html
    assert re.findall(r'(?:src|href)="(?!#)([^"]*)"', html) == []
    assert "url(http" not in html
    assert "@import" not in html


def test_deep_run_tells_its_records_and_padding() -> None:
    text = _text(_page(equal_run(tier=Tier.DEEP, records_checked=1_234_567, benign={"padding": 2})))
    assert "every record looked at by itself" in text
    assert "1,234,567" in text
    assert "2 × padding: differs and harms nobody; it lies behind the last record of a CommitLog file" in text
