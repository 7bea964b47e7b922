"""A cache with a reader in a test's hands."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from admin.cluster_cache import CachedCluster
from admin.cluster_state import ClusterState, ExpectedBroker
from support.cluster_states import healthy_cluster
from support.manual_time import ManualTime

__all__ = ["FakeReader", "cached"]


class FakeReader:
    """Gives `state`; keeps what it was asked to remember."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.remembered: list[str] = []

    async def read(self, remembered: Iterable[ExpectedBroker] = ()) -> ClusterState:
        """The state it was given."""
        self.remembered = [f"{broker.broker_name}:{broker.broker_id}" for broker in remembered]
        return self.state


def cached(
    state: ClusterState | None = None, *, clock: ManualTime | None = None, forget_after_ms: int = 60_000
) -> tuple[CachedCluster, FakeReader, ManualTime]:
    """A cache that has read nothing yet."""
    clock = clock or ManualTime()
    reader = FakeReader(state or healthy_cluster())
    log = structlog.get_logger()
    return CachedCluster(reader, clock=clock, log=log, forget_after_ms=forget_after_ms), reader, clock
