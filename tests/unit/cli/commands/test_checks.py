"""What monitoring is told: one line, performance data, and an exit code from 0 to 3."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from support.audit_summaries import diverged_run, equal_run
from support.cli_cluster import FakeCluster, two_groups
from support.cluster_states import master, slave, with_broker
from tandemmq.admin.cluster_state import ClusterState, DiskState
from tandemmq.admin.operations.operations import Operations
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import FIRST_PAGE, GroupSummary, Page, PageRequest, Unseen
from tandemmq.cli.cluster_address import ClusterContext, ContextFile, Contexts, KubernetesPlace
from tandemmq.cli.commands.checks import (
    CheckLevel,
    CheckResult,
    Measure,
    check_disk,
    check_health,
    check_name_servers,
    check_replication,
    worst,
)
from tandemmq.service.kubernetes_api import KubernetesUnavailable

# SERVICE STATE - text | 'label'=value[unit][;warn[;crit[;min[;max]]]] …
_LINE = re.compile(
    r"^TANDEMMQ [A-Z]+ (OK|WARNING|CRITICAL|UNKNOWN) - [^|]*(\| '[^']+'=[-0-9.]+[a-zA-Z%]*(;[-0-9.]*)*.*)?$"
)
_AWAY = replace(master(), status=None, error="UNAVAILABLE")


def _check(cluster: FakeCluster, *words: str) -> tuple[int, str]:
    result = cluster.invoke("check", *words)
    lines = result.stdout.splitlines()
    assert len(lines) == 1, result.output
    assert _LINE.match(lines[0]), lines[0]
    return result.exit_code, lines[0]


@pytest.mark.parametrize("name", ["health", "nameservers", "replication", "lag"])
def test_healthy_cluster_is_ok(name: str) -> None:
    code, line = _check(FakeCluster(), name)
    assert (code, line.split()[2]) == (0, "OK")


def test_degraded_cluster_is_critical() -> None:
    state = with_broker(two_groups(), master(slaves=()))
    code, line = _check(FakeCluster(state=state), "health")
    assert code == 2
    assert "broker-a:0 has 0 of 1 slaves in sync" in line


def test_name_server_that_is_away_warns_and_all_of_them_are_critical() -> None:
    state = two_groups()
    away = [replace(server, error="UNAVAILABLE", brokers=()) for server in state.name_servers]
    assert check_name_servers(replace(state, name_servers=(state.name_servers[0], away[1]))).level is CheckLevel.WARNING
    assert check_name_servers(replace(state, name_servers=tuple(away))).level is CheckLevel.CRITICAL
    lacking = replace(state.name_servers[1], brokers=("broker-a:0",))
    result = check_name_servers(replace(state, name_servers=(state.name_servers[0], lacking)))
    assert result.level is CheckLevel.WARNING
    assert "does not know broker-a:1, broker-b:0, broker-b:1" in result.reasons[0]


def _replication(state: ClusterState, *, warning: int = 100, critical: int = 1_000) -> CheckResult:
    return check_replication(state, warning_bytes=warning, critical_bytes=critical, warning_s=30, critical_s=300)


def test_replication_is_judged_by_lag_and_by_who_is_missing() -> None:
    assert _replication(two_groups()).level is CheckLevel.OK
    assert _replication(two_groups(), warning=66).level is CheckLevel.WARNING
    assert _replication(two_groups(), warning=1, critical=66).level is CheckLevel.CRITICAL
    assert _replication(with_broker(two_groups(), _AWAY)).level is CheckLevel.CRITICAL
    assert _replication(with_broker(two_groups(), master(slaves=()))).level is CheckLevel.CRITICAL
    assert _replication(ClusterState((), (slave(),))).reasons == ["broker group broker-a has no master"]
    assert _replication(ClusterState((), ())).level is CheckLevel.UNKNOWN


def _with_disk(used: float) -> ClusterState:
    disk = DiskState("/store", 1_000, round(1_000 * (1 - used)), used, 0.9)
    return ClusterState((), (master(disk=disk),))


@pytest.mark.parametrize(("used", "level"), [(0.5, "OK"), (0.8, "WARNING"), (0.95, "CRITICAL")])
def test_disk_is_critical_where_the_broker_refuses_sends(used: float, level: str) -> None:
    result = check_disk(_with_disk(used), warning_ratio=0.75, critical_ratio=None)
    assert result.level.name == level
    assert result.measures[0].text() == f"'broker-a:0 used'={used * 100:g}%;75;90;0;100"


def test_disk_nobody_has_looked_at_is_unknown() -> None:
    assert check_disk(two_groups(), warning_ratio=0.75, critical_ratio=None).level is CheckLevel.UNKNOWN


def test_lag_is_judged_by_group_and_topic() -> None:
    cluster = FakeCluster()
    assert _check(cluster, "lag", "--warning", "1")[0] == 1
    code, line = _check(cluster, "lag", "--group", "billing", "--topic", "payments", "--critical", "5", "-w", "1")
    assert code == 2
    assert "group billing is 6 messages behind" in line
    assert "'billing'=6;1;5;0" in line
    assert _check(cluster, "lag", "--group", "billing", "--critical-age", "1s")[0] == 2


def test_lag_in_a_topic_that_is_not_there_is_unknown() -> None:
    assert _check(FakeCluster(), "lag", "--topic", "orderz")[0] == 3


def test_lag_that_is_seen_in_part_is_unknown() -> None:
    cluster = FakeCluster()
    cluster.operations.unseen = (Unseen("broker-b:0", "UNAVAILABLE"),)
    assert _check(cluster, "lag")[0] == 3


def test_whatever_goes_wrong_is_unknown() -> None:
    cluster = FakeCluster()
    cluster.operations.down = OperationFailed(FailureKind.UNAVAILABLE, "no broker | answers", cause="all\nare away")
    code, line = _check(cluster, "lag")
    assert (code, line) == (3, "TANDEMMQ LAG UNKNOWN - no broker / answers: all are away")
    assert _check(cluster, "health", "--context", "nobody")[0] == 3
    assert cluster.invoke("check", "lag", "--warning", "many").exit_code == 3
    assert cluster.invoke("check", "nonsense").exit_code == 3


def test_cluster_that_hangs_is_unknown_in_time() -> None:
    class _Hanging(FakeCluster):
        pass

    cluster = _Hanging()

    async def hang(*, search: str = "", page: PageRequest = FIRST_PAGE) -> Page[GroupSummary]:
        await asyncio.sleep(60)
        raise AssertionError

    operations: Operations = cluster.operations
    operations.groups = hang
    code, line = _check(cluster, "lag", "--timeout", "50ms")
    assert (code, "did not answer within 0.05 s" in line) == (3, True)


def test_consistency_without_runs_is_unknown(tmp_path: Path) -> None:
    assert _check(FakeCluster(), "consistency", "--results", str(tmp_path))[0] == 3
    code, line = _check(FakeCluster(), "consistency", "-n", "10.0.0.1:9876")
    assert (code, "say it with --results" in line or "not known" in line) == (3, True)


class _Kubernetes:
    """ConfigMaps of one namespace; `connect` stands in for the way to the API server."""

    def __init__(self, data: Mapping[str, Mapping[str, str]]) -> None:
        self.namespace = "mq"
        self.places: list[KubernetesPlace] = []
        self._data = data

    async def connect(self, place: KubernetesPlace) -> Self:
        self.places.append(place)
        return self

    async def config_map(self, name: str) -> dict[str, str]:
        if name not in self._data:
            raise KubernetesUnavailable(f"404: configmaps {name!r} not found")
        return dict(self._data[name])


def test_consistency_of_a_release_is_read_through_the_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"mq-consistency": equal_run(), "other": diverged_run()}
    kubernetes = _Kubernetes({name: {run.run_id: json.dumps(run.to_json())} for name, run in runs.items()})
    monkeypatch.setattr("tandemmq.cli.kube.release.connect", kubernetes.connect)
    place = KubernetesPlace("prod-eu", "mq", "mq")
    ContextFile().write(Contexts().adding("prod", ClusterContext(kubernetes=place)))
    check = ("consistency", "--context", "prod", "--max-age", "9999999h")
    assert _check(FakeCluster(), *check)[0] == 0
    assert _check(FakeCluster(), *check, "--results", "configmap:other")[0] == 2
    code, line = _check(FakeCluster(), *check, "--results", "configmap:none")
    assert (code, "none" in line) == (3, True)
    assert kubernetes.places == [place] * 3


def test_line_holds_no_bar_but_its_own_and_has_an_end() -> None:
    result = CheckResult("x", CheckLevel.OK, ["a | b", "c" * 1_000], [Measure("it's", 1.50, "s", 2.0)])
    assert result.line().count("|") == 1
    assert result.line().endswith("| 'it''s'=1.5s;2")
    assert len(result.line()) < 500


def test_critical_outweighs_unknown_and_unknown_a_warning() -> None:
    assert worst([]) is CheckLevel.OK
    assert worst([CheckLevel.WARNING, CheckLevel.UNKNOWN]) is CheckLevel.UNKNOWN
    assert worst([CheckLevel.CRITICAL, CheckLevel.UNKNOWN]) is CheckLevel.CRITICAL
    assert check_health(two_groups()).level is CheckLevel.OK
