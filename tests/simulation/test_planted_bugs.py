"""Each planted bug is found within a bounded number of seeds: the checkers can fail, and for no other reason."""

from __future__ import annotations

import pytest

from simulation.plants import STEERED_PLANTS, Plant
from simulation.pool import run_seeds

SEEDS_MAX = 60
STEERED_SEED_COUNT = 15


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", list(Plant), ids=str)
def test_planted_bug_is_found(plant: Plant) -> None:
    found = next(result for result in run_seeds(range(1, SEEDS_MAX + 1), plant=plant) if result.failure is not None)
    # A run that is steered to the bug's place fails because of the bug.
    (whole,) = run_seeds([found.seed], steer_for=plant, processes=1)
    assert whole.failure is None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", STEERED_PLANTS, ids=str)
def test_without_the_bug_runs_that_are_steered_to_its_place_keep_every_promise(plant: Plant) -> None:
    results = run_seeds(range(1, STEERED_SEED_COUNT + 1), steer_for=plant)
    failures = [(result.seed, result.failure.sentence) for result in results if result.failure is not None]
    assert not failures
