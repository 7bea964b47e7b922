"""A broker group that nobody names any more is missed: what was not looked at is not proven equal."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.audit_stores import copy_group
from support.inline_runner import InlineRunner
from tandemmq.consistency.audit import AuditReport, audit, write_report
from tandemmq.consistency.discovery import Discovery
from tandemmq.consistency.progress import Progress
from tandemmq.consistency.results_store import ResultsStore
from tandemmq.consistency.settings import ConsistencySettings
from tandemmq.consistency.source_files.posix_files import SourceKind, SourceSpec
from tandemmq.core.audit.run_summary import ExitCode, Outcome
from tandemmq.service.settings import load_settings


class _Cluster:
    """Groups as NameServers name them, one run after the other."""

    def __init__(self, stores: list[Path], folder: Path) -> None:
        self._groups = {name: copy_group(stores, folder / name) for name in ("broker-a", "broker-b")}
        self._results = ResultsStore(str(folder / "results"))
        self._runs = 0

    def run(self, *groups: str, cluster: str = "mq", options: tuple[str, ...] = ()) -> AuditReport:
        where = "namesrvAddr=unused:1"
        settings = load_settings(
            ConsistencySettings,
            environ={},
            overrides=["secondLookPause=0", "extentBytes=64KiB", "results=unused", "tier=quick", where, *options],
        )
        specs = [
            SourceSpec(group, broker_id, SourceKind.FOLDER, str(folder))
            for group in groups
            for broker_id, folder in enumerate(self._groups[group])
        ]
        self._runs += 1
        report = audit(
            settings,
            Discovery(cluster, tuple(specs)),
            runner=InlineRunner(),
            results=self._results,
            run_id=f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{self._runs:04x}",
            progress=Progress(in_flight=lambda: 0, shown=False),
        )
        write_report(self._results, report)
        return report


@pytest.fixture
def cluster(equal_group: list[Path], tmp_path: Path) -> _Cluster:
    return _Cluster(equal_group[:2], tmp_path)


def test_group_that_is_away_as_a_whole_makes_a_run_incomplete(cluster: _Cluster) -> None:
    assert cluster.run("broker-a", "broker-b").summary.outcome is Outcome.EQUAL
    for _ in range(2):
        summary = cluster.run("broker-a").summary
        assert summary.exit_code is ExitCode.INCOMPLETE
        assert {each.group: each.outcome for each in summary.groups} == {
            "broker-a": Outcome.EQUAL,
            "broker-b": Outcome.INCOMPLETE,
        }
        assert "no NameServer knows" in summary.groups[1].problem
        assert summary.groups[1].problem.endswith("results/state/broker-b.json")
    assert cluster.run("broker-a", "broker-b").summary.outcome is Outcome.EQUAL


def test_group_that_nobody_asked_for_or_that_was_forgotten_is_not_missed(cluster: _Cluster) -> None:
    cluster.run("broker-a", "broker-b")
    assert cluster.run("broker-a", options=("groups=broker-a",)).summary.outcome is Outcome.EQUAL
    assert cluster.run("broker-a", options=("forgetReplicasAfter=0",)).summary.outcome is Outcome.EQUAL
    problem = cluster.run("broker-a").summary.groups[1].problem
    Path(problem.rpartition("delete ")[2]).unlink()
    assert cluster.run("broker-a").summary.outcome is Outcome.EQUAL


def test_group_of_another_cluster_is_not_missed(cluster: _Cluster) -> None:
    cluster.run("broker-a", "broker-b")
    assert cluster.run("broker-a", cluster="other").summary.outcome is Outcome.EQUAL
