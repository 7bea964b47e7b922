"""A slave's own spans of the sends its master traced: asks which those are, and tells when it had them.

The master is asked once a second and knows nothing of the answer. A put that has not come yet is kept in mind: the span
of a slave that was away is the one somebody will look for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from tandemmq.broker.peer_client import PeerClient, PeerUnavailable
from tandemmq.broker.tracing.send_tracer import BrokerTracing
from tandemmq.core.tracing import attributes as names
from tandemmq.core.tracing.replica_spans import ReplicaTimelines, TracedPut, replica_spans
from tandemmq.core.tracing.span_data import AttributeValue

__all__ = ["TracedPutsPull"]

log = structlog.get_logger(__name__)

PULL_INTERVAL_S: Final = 1.0
# A master that is away, or one of another make that does not know the question.
RETRY_PAUSE_S: Final = 5.0
# Puts that are traced and not here yet, and how long they are waited for.
_PENDING_MAX: Final = 2_000
_PATIENCE_NS: Final = 300 * 1_000_000_000
# Of one turn of the loop, which is about 2 ms.
_BUILT_AT_ONCE: Final = 32


class TracedPutsPull:
    """One task of a slave. `master` gives the metadata endpoint or None."""

    def __init__(
        self,
        *,
        tracing: BrokerTracing,
        timelines: ReplicaTimelines,
        master: Callable[[], str | None],
        reports_flushed_only: bool,
    ) -> None:
        self._tracing = tracing
        self._timelines = timelines
        self._master = master
        self._reports_flushed_only = reports_flushed_only
        identity = tracing.identity
        self._broker: dict[str, AttributeValue] = {
            names.BROKER_GROUP: identity.broker_name,
            names.BROKER_ID: identity.broker_id,
            # As the master's events name it.
            names.SLAVE: str(identity.broker_id),
        }
        self._incarnation = 0
        self._sequence = 0
        self._has_failed = False
        self._pending: list[tuple[int, TracedPut]] = []

    async def run(self) -> None:
        """Asks until cancelled."""
        while True:
            endpoint = self._master()
            if endpoint is not None:
                try:
                    async with PeerClient(endpoint) as peer:
                        await self._follow(peer)
                except PeerUnavailable as error:
                    log.debug("traced_puts_unknown", master=endpoint, reason=str(error))
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _follow(self, peer: PeerClient) -> None:
        """Asks one master until it fails or another takes its place."""
        while self._master() == peer.endpoint:
            while await self.pull(peer):
                pass
            await asyncio.sleep(PULL_INTERVAL_S)

    async def pull(self, peer: PeerClient) -> bool:
        """Asks once and makes the spans that can be made; whether the master has more to tell."""
        page = await peer.traced_puts(incarnation=self._incarnation, after_sequence=self._sequence)
        if page.incarnation != self._incarnation:
            self._incarnation, self._sequence = page.incarnation, 0
        now_ns = self._tracing.clock.monotonic_ns()
        if page.puts:
            self._sequence = page.puts[-1].sequence
        puts = [*self._pending, *((now_ns + _PATIENCE_NS, put) for put in page.puts)]
        self._pending = []
        for start in range(0, len(puts), _BUILT_AT_ONCE):
            for give_up_ns, put in puts[start : start + _BUILT_AT_ONCE]:
                if not self._make(put) and give_up_ns > now_ns:
                    self._pending.append((give_up_ns, put))
            await asyncio.sleep(0)
        del self._pending[:-_PENDING_MAX]
        return bool(page.puts)

    def _make(self, put: TracedPut) -> bool:
        """Hands out a put's spans; False when it is not here yet. Never raises: a trace is not worth a slave."""
        try:
            spans = replica_spans(
                put,
                self._timelines,
                reports_flushed_only=self._reports_flushed_only,
                broker=self._broker,
                sampler=self._tracing.sampler,
                wall_offset_ns=self._tracing.wall_offset_ns(),
            )
            if spans:
                self._tracing.sink.add(spans)
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                log.exception("put_not_traced")
            return True
        return spans is not None
