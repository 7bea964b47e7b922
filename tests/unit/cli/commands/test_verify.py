"""A run of the consistency job on a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from support.audit_summaries import equal_group, finding, replica, run_of
from tandemmq.admin.cluster_state import ExpectedBroker
from tandemmq.cli.app import app
from tandemmq.cli.commands import verify
from tandemmq.cli.commands.verify import run_view
from tandemmq.cli.local.folder import ClusterFolder, ClusterRecord, MemberRecord, start_mark
from tandemmq.cli.output import drawing
from tandemmq.core.audit.run_summary import Outcome, RunSummary, Tier


def _printed(summary: RunSummary) -> str:
    console = Console(width=300)
    with console.capture() as captured:
        console.print(drawing(run_view(summary)))
    return captured.get()


def test_thousand_groups_and_findings_are_a_page() -> None:
    groups = [equal_group(f"broker-{number:04d}") for number in range(999)]
    groups.append(equal_group("zz", outcome=Outcome.DIVERGED, findings=400))
    many = [finding(group="zz", detail="[0, 10) is [bold]wrong[/bold]") for _ in range(400)]
    text = _printed(run_of(groups, many, tier=Tier.DEEP))
    assert len(text.splitlines()) < 100
    assert text.index("zz") < text.index("broker-0000")
    assert "950 more" in text
    assert "370 more findings" in text
    assert "[0, 10) is [bold]wrong[/bold]" in text


def test_unread_replica_is_named() -> None:
    lost = equal_group(outcome=Outcome.INCOMPLETE, problem="slave 1 does not answer")
    assert "slave 1 does not answer" in _printed(run_of([lost]))
    assert "not everything could be read" in _printed(run_of([lost]))


def test_group_that_the_cluster_should_have_and_nobody_names_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [
        MemberRecord(name, "broker", "SYNC_MASTER", 1, "", {}, "", "", "", ExpectedBroker("mq", name, 0, "", "", ""))
        for name in ("broker-a", "broker-b")
    ]
    pid = os.getpid()
    record = ClusterRecord("", "ready", pid, start_mark(pid) or "", ("127.0.0.1:1",), (), tuple(members))
    ClusterFolder(tmp_path).write_record(record)

    def job(_settings: Sequence[str]) -> int:
        place = tmp_path / "consistency"
        place.mkdir()
        (place / "latest.json").write_text(json.dumps(run_of([equal_group("broker-a")]).to_json()))
        return 0

    monkeypatch.setattr(verify, "_run", job)
    ended = CliRunner().invoke(app, ["verify", "--data", str(tmp_path)])
    assert ended.exit_code == 3
    assert "not compared: broker-b" in ended.stderr
    assert "nothing wrong was found, but not everything could be read" in ended.stdout
    assert "hold the same" not in ended.stdout


def test_equal_is_said_only_where_there_are_two_to_compare() -> None:
    alone = equal_group("broker-a", replicas=(replica(0),))
    assert "hold the same" not in _printed(run_of([alone]))
    assert "no group has a second replica to compare with" in _printed(run_of([alone]))
    assert "all replicas hold the same; 1 of 2 groups have only one" in _printed(run_of([alone, equal_group("b")]))
    assert "nothing was compared" in _printed(run_of([]))
