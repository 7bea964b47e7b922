"""Before a master serves: fetch from a slave what a lost page cache or disk took from us (ADR 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
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

    `slaves` gives the metadata endpoints of the group's registered slaves, by broker id; `flushes_paused` keeps the
    ConsumeQueues from being flushed while the log is cut; `given_up` tells that the broker is to stop instead.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        clock: Clock,
        slave_count: int,
        slaves: Callable[[], dict[int, str]],
        flushes_paused: Callable[[], AbstractAsyncContextManager[None]],
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._clock = clock
        self._slave_count = slave_count
        self._slaves = slaves
        self._given_up = given_up
        self._flushes_paused = flushes_paused

    async def run(self, *, wait_ms: int, registered_wait_ms: int = 0) -> bool:
        """Waits until all slaves answered or `wait_ms` passed, then copies; False when somebody was not heard.

        A slave that is registered and does not answer is waited for up to `registered_wait_ms`: it exists, so an empty
        log of ours is not a new one. One that goes away in the middle of the copy is waited for again.
        """
        started_ms = self._clock.monotonic_ms()
        log.info("master_waits_for_slaves", end_offset=self._store.end_offset, limit_ms=wait_ms)
        copies: dict[int, SlaveCopy] = {}
        while True:
            for broker_id, endpoint in self._slaves().items():
                if broker_id not in copies and (copy := await self._ask(broker_id, endpoint)) is not None:
                    copies[broker_id] = copy
            if self._given_up():
                return False
            heard_all = len(copies) >= self._slave_count
            limit_ms = wait_ms if self._slaves().keys() <= copies.keys() else max(wait_ms, registered_wait_ms)
            is_over = self._clock.monotonic_ms() - started_ms >= limit_ms
            if heard_all or is_over:
                best = best_copy(self._store.end_offset, list(copies.values()))
                if best is None or await self._fetch(best):
                    break
                # It went away, and with it perhaps the only copy: ask again. What the others said is void as well,
                # since they may not extend what came so far.
                copies.clear()
                await self._cut_half_record()
                if is_over:
                    heard_all = False
                    break
            await asyncio.sleep(ASK_PAUSE_S)
        await self._cut_half_record()
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

    async def _cut_half_record(self) -> None:
        """A slave's log, or what we got of it, may end inside a record; such a record was never acknowledged."""
        if self._store.dispatched_offset < self._store.end_offset:
            async with self._flushes_paused():
                self._store.truncate(self._store.dispatched_offset)

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
