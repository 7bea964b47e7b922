"""Traces for the page and the HTTP API: asked of the brokers when somebody wants them, a few at a time."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from admin.cluster_cache import CachedCluster
from admin.cluster_state import BrokerState
from admin.rpc import Channels
from admin.trace_findings import TraceFindings, TraceList
from admin.trace_reader import TraceReader

__all__ = ["ClusterTraces", "TraceSource"]

_QUESTIONS_AT_ONCE: Final = 4
"""Each asks every broker of the cluster; who comes later waits."""


class TraceSource(Protocol):
    """Whoever knows the traces of a cluster."""

    async def find(self, key: str, *, topic: str = "") -> TraceFindings:
        """By a message id, a trace id or a traceparent."""

    async def newest(self, *, count: int, notable_only: bool = False) -> TraceList:
        """The newest traces."""


class ClusterTraces:
    """A `TraceSource`: the brokers of the newest reading are asked."""

    def __init__(self, cluster: CachedCluster, channels: Channels) -> None:
        self._cluster = cluster
        self._reader = TraceReader(channels)
        self._slots = asyncio.Semaphore(_QUESTIONS_AT_ONCE)

    async def find(self, key: str, *, topic: str = "") -> TraceFindings:
        """`TraceSource`'s."""
        async with self._slots:
            return await self._reader.find(self._brokers, key, topic=topic)

    async def newest(self, *, count: int, notable_only: bool = False) -> TraceList:
        """`TraceSource`'s."""
        async with self._slots:
            return await self._reader.newest(self._brokers, count=count, notable_only=notable_only)

    @property
    def _brokers(self) -> tuple[BrokerState, ...]:
        return self._cluster.latest.state.brokers if self._cluster.latest is not None else ()
