"""A seed is one story: whatever a failure prints can be seen again."""

from __future__ import annotations

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
