"""Whatever chance does to a group, a run finds, names and decides it, or leaves it to a person; and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from support.drawn_damage import HARMLESS, Drawn, drawn_cases, problem_of
from support.store_damage import DAMAGES


@pytest.mark.timeout(900)  # Sixty whole runs, on a machine that may be busy.
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(drawn=drawn_cases())
def test_drawn_damage(drawn: Drawn, equal_group: list[Path], tmp_path_factory: pytest.TempPathFactory) -> None:
    assert problem_of(drawn, equal_group, tmp_path_factory.mktemp("drawn")) == ""


def test_every_kind_has_its_own_name() -> None:
    assert not set(DAMAGES) & set(HARMLESS)
