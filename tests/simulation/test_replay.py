"""A seed is one story: whatever a failure prints can be seen again."""

from __future__ import annotations

from simulation.cluster import Cluster, run
from simulation.run_settings import RunSettings


def test_a_seed_replays_event_by_event() -> None:
    stories = []
    for _ in range(2):
        cluster = Cluster(RunSettings.draw(6))
        run(cluster)
        stories.append((cluster.timeline.events_done, cluster.journal.tail(), cluster.ledger.acknowledgements))
    assert stories[0] == stories[1]
