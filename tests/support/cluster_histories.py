"""An hour of a cluster, or as much of it as a test needs."""

from __future__ import annotations

from tandemmq.admin.cluster_reader import ClusterReading
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.history import ClusterHistory


def observe(history: ClusterHistory, *states: ClusterState, first_wall_ms: int = 0, step_ms: int = 5_000) -> None:
    """Readings of `states`, one each `step_ms`; those before it must lie further back."""
    for number, state in enumerate(states):
        history.observe(
            ClusterReading(
                state=state,
                findings=(),
                healthy=True,
                revision=number + 1,
                read_at_wall_ms=first_wall_ms + number * step_ms,
                read_at_ms=first_wall_ms + number * step_ms,
                duration_ms=3,
            )
        )
