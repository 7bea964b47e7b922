"""Each planted bug is found within a bounded number of seeds: the checkers can fail."""

from __future__ import annotations

import pytest

from simulation.plants import Plant
from simulation.pool import run_seeds

SEEDS_MAX = 200


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", Plant, ids=lambda plant: plant.value)
def test_planted_bug_is_found(plant: Plant) -> None:
    assert any(result.failure is not None for result in run_seeds(range(1, SEEDS_MAX + 1), plant=plant))
