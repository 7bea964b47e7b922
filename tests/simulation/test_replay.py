"""A seed is one story: whatever a failure prints can be seen again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.cluster import Cluster, run
from simulation.run_settings import RunSettings


@pytest.mark.parametrize(("seed", "is_failover"), [(6, False), (7, True)])
def test_a_seed_replays_event_by_event(seed: int, is_failover: bool) -> None:
    stories = []
    for _ in range(2):
        cluster = Cluster(RunSettings.draw(seed))
        assert cluster.settings.failover is is_failover
        run(cluster)
        stories.append((cluster.timeline.events_done, cluster.journal.tail(), cluster.ledger.acknowledgements))
    assert stories[0] == stories[1]


def test_a_seed_is_the_same_story_in_every_process() -> None:
    """Sets of texts have another order in each process."""
    tell = "from simulation.pool import run_one; print(run_one(77).report)"
    tests = str(Path(__file__).resolve().parents[1])
    stories = {
        subprocess.run(
            [sys.executable, "-c", tell],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join((tests, *sys.path))},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(stories) == 1
