"""Whatever chance does to a group, a run finds, names and decides it, or leaves it to a person; and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.drawn_damage import HARMLESS, Drawn, drawn_cases, problem_of
from support.store_damage import DAMAGES


@pytest.mark.timeout(900)  # Sixty whole runs, on a machine that may be busy.
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(drawn=drawn_cases())
def test_drawn_damage(drawn: Drawn, equal_group: list[Path], tmp_path_factory: pytest.TempPathFactory) -> None:
    assert problem_of(drawn, equal_group, tmp_path_factory.mktemp("drawn")) == ""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["other-files", "repeated-file", "crossed", "missing-record", "zeroed-page"])
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(data=st.data())
def test_wholes_that_are_replaced_and_damage_on_both_sides(
    kind: str, data: st.DataObject, equal_group: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What the plan copies was right before, and is enough."""
    drawn = data.draw(
        st.builds(
            Drawn,
            st.just(kind),
            st.integers(0, 1 << 16),
            st.sampled_from((2, 3)),
            st.sampled_from(("", "deep")),
            st.just("deep"),
        )
    )
    assert problem_of(drawn, equal_group, tmp_path_factory.mktemp("drawn")) == ""


def test_every_kind_has_its_own_name() -> None:
    assert not set(DAMAGES) & set(HARMLESS)
