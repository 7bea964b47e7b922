"""What a run leaves in a namespace: a ConfigMap of bounded size, Events on the right StatefulSets, warnings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from support.audit_summaries import diverged_run, equal_group, equal_run, finding, replica, run_of
from tandemmq.consistency.cluster_report import (
    EVENTS_MAX,
    Announcement,
    BrokerStatefulSet,
    announce,
    broker_stateful_set,
    short_summary,
)
from tandemmq.consistency.settings import ConsistencySettings
from tandemmq.core.audit.repair_plan import RepairAction, RepairPlan, RepairStep
from tandemmq.core.audit.run_summary import Outcome, RunSummary, Tier
from tandemmq.service.kubernetes_api import KubernetesUnavailable

_NAME = "mq-consistency"


class _Objects:
    """A namespace in memory; `refused` names what the API server does not allow."""

    def __init__(self, refused: str = "") -> None:
        self.config_maps: dict[str, dict[str, str]] = {}
        self.events: list[Mapping[str, Any]] = []
        self.refused = refused
        self.sets = [
            BrokerStatefulSet(f"mq-{group}-{role}", f"uid-{group}-{role}", group, role)
            for group in ("broker-a", "broker-b")
            for role in ("master", "slave")
        ]

    def _ask(self, what: str) -> None:
        if what == self.refused:
            raise KubernetesUnavailable(f"cannot {what}: 403 Forbidden")

    def broker_stateful_sets(self) -> list[BrokerStatefulSet]:
        self._ask("list")
        return self.sets

    def create_event(self, document: Mapping[str, Any]) -> None:
        self._ask("create")
        self.events.append(document)

    def config_map_data(self, name: str) -> dict[str, str] | None:
        self._ask("get")
        return dict(self.config_maps[name]) if name in self.config_maps else None

    def change_config_map(self, name: str, data: Mapping[str, str | None]) -> None:
        self._ask("patch")
        merged = {**self.config_maps.get(name, {}), **data}
        self.config_maps[name] = {key: text for key, text in merged.items() if text is not None}


def _announcement(objects: _Objects) -> Announcement:
    return Announcement(objects, namespace="ns", log=structlog.get_logger())


def _stored(objects: _Objects) -> dict[str, RunSummary]:
    return {key: RunSummary.from_json(json.loads(text)) for key, text in objects.config_maps[_NAME].items()}


def _large(run_id: str, groups: int = 1_000) -> RunSummary:
    triple = (replica(0), replica(1), replica(2))
    many = [equal_group(f"broker-{number:04d}", replicas=triple) for number in range(groups)]
    bad = equal_group("bad", outcome=Outcome.DIVERGED, findings=300)
    return run_of([*many, bad], [finding(group="bad") for _ in range(300)], run_id=run_id)


def test_summary_is_stored_by_its_run_and_read_back() -> None:
    objects = _Objects()
    _announcement(objects).store(diverged_run(), _NAME)
    assert _stored(objects) == {diverged_run().run_id: diverged_run()}


def test_hourly_runs_do_not_push_out_the_weekly_one() -> None:
    objects = _Objects()
    deep = equal_run(run_id="20261115T000000Z-0000", tier=Tier.DEEP)
    hourly = [equal_run(run_id=f"20261121T{hour:02d}0000Z-0000") for hour in range(20)]
    for run in (deep, *hourly):
        _announcement(objects).store(run, _NAME)
    assert sorted(_stored(objects)) == [deep.run_id, *(run.run_id for run in hourly[-8:])]


def test_thousand_groups_run_after_run_stay_far_below_what_an_object_may_hold() -> None:
    objects = _Objects()
    before = short_summary(_large("20261121T0"), bytes_max=256 << 10)
    objects.config_maps[_NAME] = {f"20261121T{hour:02d}0000Z-0000": before for hour in range(12)}
    _announcement(objects).store(_large("20261121T120000Z-0000"), _NAME)
    assert sum(map(len, objects.config_maps[_NAME].values())) < 512 << 10
    runs = _stored(objects)
    newest, older = runs["20261121T120000Z-0000"], runs["20261121T050000Z-0000"]
    assert len(newest.groups) == 1_001
    assert (newest.findings_total, len(newest.findings)) == (300, 50)
    assert older.outcome is Outcome.DIVERGED
    assert "left out here" in older.notes[-1]


def _plan(run_id: str, steps: int = 1) -> RepairPlan:
    step = RepairStep(1, RepairAction.MANUAL, "broker-a", 1, reason="index is built again")
    return RepairPlan(run_id=run_id, cluster="DefaultCluster", steps=(step,) * steps)


def test_the_last_plans_are_stored_beside_their_runs() -> None:
    objects = _Objects()
    for hour in range(4):
        run = diverged_run(run_id=f"20261121T{hour:02d}0000Z-0000")
        _announcement(objects).store(run, _NAME, _plan(run.run_id))
    _announcement(objects).store(equal_run(), _NAME, _plan(equal_run().run_id, steps=0))
    plans = {key: text for key, text in objects.config_maps[_NAME].items() if key.endswith(".plan")}
    assert sorted(plans) == ["20261121T020000Z-0000.plan", "20261121T030000Z-0000.plan"]
    assert RepairPlan.from_json(json.loads(plans["20261121T030000Z-0000.plan"])) == _plan("20261121T030000Z-0000")
    assert len(objects.config_maps[_NAME]) == 5 + 2


def test_plan_of_thousands_of_steps_stays_in_the_results() -> None:
    objects = _Objects()
    _announcement(objects).store(diverged_run(), _NAME, _plan(diverged_run().run_id, steps=5_000))
    assert list(objects.config_maps[_NAME]) == [diverged_run().run_id]


def test_whatever_has_to_go_the_outcome_and_its_counts_stay() -> None:
    bad = [equal_group(f"bad-{number}", outcome=Outcome.DIVERGED, findings=1) for number in range(500)]
    summary = run_of(bad, [finding(group=f"bad-{number}") for number in range(500)])
    short = RunSummary.from_json(json.loads(short_summary(summary, bytes_max=2_000)))
    assert (short.outcome, short.findings_total, short.groups) == (Outcome.DIVERGED, 500, ())
    assert short.findings_by_kind == {"body-crc": 500}


def test_stored_text_nobody_can_read_is_removed_when_it_is_too_large() -> None:
    objects = _Objects()
    objects.config_maps[_NAME] = {"20200101T000000Z-0000": "x" * 30_000, "20200102T000000Z-0000": "small"}
    _announcement(objects).store(equal_run(), _NAME)
    assert sorted(objects.config_maps[_NAME]) == ["20200102T000000Z-0000", equal_run().run_id]


def test_events_name_the_message_on_the_set_of_the_wrong_replica() -> None:
    objects = _Objects()
    _announcement(objects).tell_events(diverged_run(), stateful_set_prefix="mq-")
    told = [(event["involvedObject"]["name"], event["type"], event["reason"]) for event in objects.events]
    assert told == [
        ("mq-broker-a-slave", "Warning", "ReplicasDiverged"),
        ("mq-broker-b-master", "Normal", "ReplicasEqual"),
        ("mq-broker-b-slave", "Normal", "ReplicasEqual"),
    ]
    message = objects.events[0]["message"]
    assert "orders queue 3 offset 12345 7F00000100002A9F0000018C3B2F0001" in message
    assert diverged_run().run_id in message
    assert objects.events[0]["involvedObject"]["uid"] == "uid-broker-a-slave"


def test_difference_without_a_culprit_is_told_on_both_sets() -> None:
    objects = _Objects()
    summary = replace(diverged_run(), findings=(finding(broker_id=None, source_broker_id=None),))
    _announcement(objects).tell_events(summary, stateful_set_prefix="mq-")
    assert [event["involvedObject"]["name"] for event in objects.events[:2]] == [
        "mq-broker-a-master",
        "mq-broker-a-slave",
    ]


def test_other_releases_and_skipped_groups_are_left_alone() -> None:
    objects = _Objects()
    summary = run_of([equal_group("broker-a", outcome=Outcome.SKIPPED), equal_group("broker-b")])
    _announcement(objects).tell_events(summary, stateful_set_prefix="other-")
    assert objects.events == []
    _announcement(objects).tell_events(summary, stateful_set_prefix="mq-")
    assert {event["involvedObject"]["name"] for event in objects.events} == {"mq-broker-b-master", "mq-broker-b-slave"}


def test_events_are_limited_in_number_and_length() -> None:
    objects = _Objects()
    objects.sets = [BrokerStatefulSet(f"mq-{n}-slave", "", f"broker-{n:04d}", "slave") for n in range(1_000)]
    _announcement(objects).tell_events(_large("20261121T000000Z-0000"), stateful_set_prefix="mq-")
    assert len(objects.events) == EVENTS_MAX
    objects.events.clear()
    objects.sets = [BrokerStatefulSet("mq-bad-slave", "", "bad", "slave")]
    long = run_of(
        [equal_group("bad", outcome=Outcome.DIVERGED, findings=3)], [finding(group="bad", detail="x" * 2_000)]
    )
    _announcement(objects).tell_events(long, stateful_set_prefix="mq-")
    assert len(objects.events[0]["message"]) <= 1_000
    assert objects.events[0]["message"].endswith(f"Run {long.run_id}.")


@pytest.mark.parametrize("refused", ["list", "create", "get", "patch"])
def test_refusals_are_warnings(refused: str) -> None:
    objects = _Objects(refused)
    with capture_logs() as logged:
        _announcement(objects).store(equal_run(), _NAME)
        _announcement(objects).tell_events(equal_run(), stateful_set_prefix="")
    assert [(line["log_level"], "403" in line["reason"]) for line in logged] == [("warning", True)]


def test_outside_a_pod_nothing_is_told_and_nothing_fails() -> None:
    settings = ConsistencySettings.model_validate(
        {
            "path": "data",
            "kubernetesEvents": True,
            "kubernetesResults": _NAME,
            "pushgatewayUrl": "http://127.0.0.1:1",
        }
    )
    with capture_logs() as logged:
        announce(equal_run(), settings)
    assert [line["event"] for line in logged] == ["kubernetes_not_told", "pushgateway_not_told"]


def test_stateful_set_is_read_as_the_api_server_writes_it() -> None:
    labels = {"tandemmq.io/broker-group": "broker-a", "tandemmq.io/home-role": "slave"}
    document = {"metadata": {"name": "mq-broker-a-slave", "uid": "u", "labels": labels}, "spec": {}}
    assert broker_stateful_set(document) == BrokerStatefulSet("mq-broker-a-slave", "u", "broker-a", "slave")
