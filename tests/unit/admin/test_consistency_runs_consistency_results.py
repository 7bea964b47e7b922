"""Runs as they are found in a folder and in a ConfigMap."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.audit_summaries import diverged_run, equal_run
from tandemmq.admin.consistency_runs import (
    RUNS_MAX,
    ConfigMapResults,
    FolderResults,
    ResultsUnavailable,
    results_place,
)
from tandemmq.core.audit.run_summary import RunSummary


def _write(folder: Path, summary: RunSummary) -> Path:
    path = folder / "runs" / summary.run_id / "summary.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(summary.to_json()), encoding="utf-8")
    return path


def test_folder_gives_its_newest_runs_first(tmp_path: Path) -> None:
    runs = [equal_run(run_id=f"202311{number:02d}T000000Z-0000") for number in range(RUNS_MAX + 5)]
    for run in runs:
        _write(tmp_path, run)
    assert FolderResults(tmp_path).read() == runs[::-1][:RUNS_MAX]


def test_folder_that_is_not_there_has_no_runs(tmp_path: Path) -> None:
    assert FolderResults(tmp_path / "later").read() == []


def test_unfinished_foreign_and_newer_runs_are_left_out(tmp_path: Path) -> None:
    _write(tmp_path, diverged_run())
    (tmp_path / "runs" / "20300101T000000Z-0000").mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("mine", encoding="utf-8")
    for name, text in (("a", "{"), ("b", "[]"), ("c", json.dumps(equal_run().to_json() | {"schema": 99}))):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "summary.json").write_text(text, encoding="utf-8")
    assert FolderResults(tmp_path).read() == [diverged_run()]


def test_known_run_is_not_read_again_and_a_removed_one_is_forgotten(tmp_path: Path) -> None:
    place = FolderResults(tmp_path)
    first = _write(tmp_path, equal_run(run_id="20231101T000000Z-0000"))
    _write(tmp_path, equal_run(run_id="20231102T000000Z-0000"))
    before = place.read()
    first.write_text("{", encoding="utf-8")
    assert place.read() == before
    first.unlink()
    first.parent.rmdir()
    assert [run.run_id for run in place.read()] == ["20231102T000000Z-0000"]


def test_folder_that_cannot_be_read_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(ResultsUnavailable, match="too long"):
        FolderResults(tmp_path / ("x" * 300)).read()


def test_config_map_is_parsed_again_only_where_it_changed() -> None:
    data = {run.run_id: json.dumps(run.to_json()) for run in (equal_run(), diverged_run(run_id="20300101T000000Z-0"))}
    place = ConfigMapResults("mq-consistency", namespace="ns", read_data=lambda: data)
    first = place.read()
    assert first == [diverged_run(run_id="20300101T000000Z-0"), equal_run()]
    data["20310101T000000Z-0"] = "no json"
    data["20300101T000000Z-0"] = json.dumps(equal_run(run_id="20300101T000000Z-0").to_json())
    second = place.read()
    assert second[1] is first[1]
    assert second[0] == equal_run(run_id="20300101T000000Z-0")


def test_place_is_chosen_by_the_setting() -> None:
    assert results_place("", namespace="") is None
    assert isinstance(results_place("configmap:mq-consistency", namespace=""), ConfigMapResults)
    assert isinstance(results_place("data/consistency", namespace=""), FolderResults)
