"""Who is connected, and what the client plane refuses."""

from __future__ import annotations

from collections import Counter
from typing import Final

from broker.api.client_api import ClientApi
from broker.api.sessions import ClientSessions
from broker.client_plane import ClientPlane
from broker.metrics.turn_limit import TurnLimit
from broker.write_path import WritePath
from mqservice.metrics.metric_samples import MetricSamples
from mqservice.metrics.series_limit import OTHER, SeriesLimit

__all__ = ["ClientMetrics"]

_PRODUCER: Final = "PRODUCER"


class ClientMetrics:
    """Tells of clients and of what waits for them."""

    def __init__(
        self,
        *,
        sessions: ClientSessions,
        client_api: ClientApi,
        client_plane: ClientPlane,
        write_path: WritePath,
        group_limit: SeriesLimit[str],
    ) -> None:
        self._sessions = sessions
        self._client_api = client_api
        self._client_plane = client_plane
        self._write_path = write_path
        self._group_limit = group_limit

    async def tell(self, samples: MetricSamples, turn: TurnLimit) -> None:
        """Adds its samples."""
        samples.add("rocketmq_broker_clients", len(self._sessions))
        samples.add("rocketmq_broker_client_connections", self._client_plane.connection_count)
        samples.add_counts("rocketmq_broker_client_plane_events_total", self._client_plane.counters)
        samples.add("rocketmq_processor_watermark", self._write_path.waiting_count, "send")
        samples.add("rocketmq_processor_watermark", self._client_api.waiting_receive_count, "receive")
        await self._tell_sessions(samples, turn)

    async def _tell_sessions(self, samples: MetricSamples, turn: TurnLimit) -> None:
        producer_count = 0
        consumers: Counter[str] = Counter()
        for session in self._sessions.all():
            if session.client_type == _PRODUCER:
                producer_count += 1
            elif session.group:
                consumers[session.group if self._group_limit.admits(session.group) else OTHER] += 1
            if turn.is_reached:
                await turn.pause()
        samples.add("rocketmq_producer_connections", producer_count)
        samples.add_counts("rocketmq_consumer_connections", consumers)
