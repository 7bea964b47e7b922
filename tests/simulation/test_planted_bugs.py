"""Each planted bug is found within a bounded number of seeds: the checkers can fail, and for no other reason."""

from __future__ import annotations

import os
from concurrent.futures import Executor
from typing import Final

import pytest

from simulation.plants import STEERED_PLANTS, Plant
from simulation.pool import run_one, run_seeds

SEEDS_MAX = 60
FOUND_AT: Final = {
    Plant.ACK_BEFORE_REPORT: 26,
    Plant.WITNESS_ALWAYS_BELIEVED: 25,
    Plant.EPOCH_NOT_DURABLE: 5,
    Plant.REPORT_UNPROVEN: 17,
    Plant.NEXT_MASTER_IGNORED: 13,
    Plant.CLAIM_AFTER_START: 5,
    Plant.JOINS_UNCUT: 5,
    Plant.SHOWN_UNCONFIRMED: 13,
    Plant.SETTLED_BEFORE_COPIED: 13,
    Plant.VERSIONS_NOT_ASKED: 5,
}
"""Seeds that found what the first ones do not: they go first, and all others follow where they no longer do."""
STEERED_SEED_COUNT = max(1, int(os.environ.get("SIM_SEEDS", "100")) * 3 // 20)


@pytest.mark.plain
@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", list(Plant), ids=str)
def test_planted_bug_is_found(plant: Plant, processes: Executor) -> None:
    seeds = sorted(range(1, SEEDS_MAX + 1), key=lambda seed: seed != FOUND_AT.get(plant, 1))
    outcomes = run_seeds(seeds, processes, plant=plant)
    found = next(result for result in outcomes if result.failure is not None)
    # A run that is steered to the bug's place fails because of the bug.
    whole = processes.submit(run_one, found.seed, steer_for=plant).result()
    assert whole.failure is None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", STEERED_PLANTS, ids=str)
def test_without_the_bug_runs_that_are_steered_to_its_place_keep_every_promise(
    plant: Plant, processes: Executor
) -> None:
    results = run_seeds(range(1, STEERED_SEED_COUNT + 1), processes, steer_for=plant)
    failures = [(result.seed, result.failure.sentence) for result in results if result.failure is not None]
    assert not failures
