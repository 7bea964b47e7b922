"""An hour of a cluster, or as much of it as a test needs."""

from __future__ import annotations

from tandemmq.admin.cluster_reader import ClusterReading
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.history import ClusterHistory


def observe(
    history: ClusterHistory,
    *states: ClusterState,
    first_wall_ms: int = 0,
    first_ms: int | None = None,
    step_ms: int = 5_000,
) -> None:
    """Readings of `states`, one each `step_ms`; those before it must lie further back. `first_ms` on the monotonic
    clock: as on the wall clock, unless it is told."""
    first_ms = first_wall_ms if first_ms is None else first_ms
    for number, state in enumerate(states):
        history.observe(
            ClusterReading(
                state=state,
                findings=(),
                healthy=True,
                revision=number + 1,
                read_at_wall_ms=first_wall_ms + number * step_ms,
                read_at_ms=first_ms + number * step_ms,
                duration_ms=3,
            )
        )
