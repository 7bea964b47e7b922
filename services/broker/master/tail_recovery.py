"""Before a master serves: fetch from a slave what a lost page cache or disk took from us (ADR 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from broker.api.peer_client import PeerClient, PeerUnavailable
from mqcore.clock import Clock
from mqcore.replication import LogExtent, LogRange, SlaveCopy, best_copy, tail_range
from mqcore.storage import MessageStore

__all__ = ["TailRecovery"]

log = structlog.get_logger(__name__)

ASK_PAUSE_S: Final = 0.2


class TailRecovery:
    """Asks every slave of the group, and copies from the one that holds most.

    `slaves` gives the metadata endpoints of the group's registered slaves, by broker id.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        clock: Clock,
        slave_count: int,
        slaves: Callable[[], dict[int, str]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._slave_count = slave_count
        self._slaves = slaves

    async def run(self, *, wait_ms: int) -> bool:
        """Waits until all slaves answered or `wait_ms` passed, then copies; False when somebody was not heard."""
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        log.info("master_waits_for_slaves", end_offset=self._store.end_offset, limit_ms=wait_ms)
        copies: dict[int, SlaveCopy] = {}
        while len(copies) < self._slave_count and self._clock.monotonic_ms() < deadline_ms:
            for broker_id, endpoint in self._slaves().items():
                if broker_id not in copies and (copy := await self._ask(broker_id, endpoint)) is not None:
                    copies[broker_id] = copy
            if len(copies) < self._slave_count:
                await asyncio.sleep(ASK_PAUSE_S)
        heard_all = len(copies) >= self._slave_count
        while (best := best_copy(self._store.end_offset, list(copies.values()))) is not None:
            if await self._fetch(best):
                break
            del copies[best.broker_id]
            heard_all = False
        if self._store.dispatched_offset < self._store.end_offset:
            # A slave's log may end inside a record; such a record was never acknowledged.
            self._store.truncate(self._store.dispatched_offset)
        if not heard_all and self._store.end_offset == 0:
            log.info("new_store", heard=sorted(copies), expected=self._slave_count)
        elif not heard_all:
            log.error(
                "started_without_slaves",
                heard=sorted(copies),
                expected=self._slave_count,
                end_offset=self._store.end_offset,
                remedy="a slave with more than this keeps its tail aside: see kept-tails below its store",
            )
        return heard_all

    async def _ask(self, broker_id: int, endpoint: str) -> SlaveCopy | None:
        try:
            async with PeerClient(endpoint) as peer:
                theirs = await peer.log()
                extends = await self._extends_ours(peer, theirs.extent)
        except PeerUnavailable:
            return None
        return SlaveCopy(endpoint, broker_id, theirs.extent, extends_ours=extends)

    async def _extends_ours(self, peer: PeerClient, theirs: LogExtent) -> bool:
        ours = LogExtent(min_offset=self._store.min_offset, end_offset=self._store.end_offset)
        if ours.is_empty:
            return True
        if theirs.end_offset < ours.end_offset or theirs.min_offset >= ours.end_offset:
            return False
        start_offset = max(tail_range(ours).start_offset, theirs.min_offset)
        (their_digest,) = await peer.digests([LogRange(start_offset, ours.end_offset)])
        our_digest = await asyncio.to_thread(self._store.digest, start_offset, ours.end_offset)
        return their_digest == our_digest

    async def _fetch(self, copy: SlaveCopy) -> bool:
        """Copies [our end, the slave's end); False when the slave went away on the way, with what came kept."""
        start_offset = copy.extent.min_offset if self._store.end_offset == 0 else self._store.end_offset
        wanted = LogRange(start_offset, copy.extent.end_offset)
        log.warning(
            "fetching_tail", slave=copy.endpoint, start_offset=wanted.start_offset, end_offset=wanted.end_offset
        )
        try:
            async with PeerClient(copy.endpoint) as peer:
                async for offset, data in peer.read_log(wanted):
                    self._store.append_raw(offset, data)
                    while self._store.dispatch():
                        await asyncio.sleep(0)
        except PeerUnavailable as error:
            log.error("fetch_failed", slave=copy.endpoint, reason=str(error), end_offset=self._store.end_offset)
            return False
        log.warning("tail_fetched", slave=copy.endpoint, end_offset=self._store.end_offset)
        return True
