"""Lets expired files go, and tells when a full disk begins or ends to refuse sends."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from mqcore.clock import Clock
from mqcore.storage import MessageStore

__all__ = ["Retention"]

log = structlog.get_logger(__name__)

_INTERVAL_S: Final = 10.0


class Retention:
    """One task of a broker. Files are deleted off the loop, where it blocks."""

    def __init__(self, store: MessageStore, *, clock: Clock, is_master: bool) -> None:
        self._store = store
        self._clock = clock
        self._is_master = is_master
        self._told_refusal: str | None = None

    async def run(self) -> None:
        """Looks every ten seconds until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            job = self._store.expire(now_wall_ms=self._clock.wall_ms())
            if job is not None:
                log.info("files_expired", files=job.paths)
                await asyncio.to_thread(job.run)
            while self._store.trim_queues():
                await asyncio.sleep(0)
            if self._is_master:
                self._tell_of_full_disk()

    def _tell_of_full_disk(self) -> None:
        """One line when sends begin to be refused, and one when they are taken again."""
        refusal = self._store.refusal
        if refusal == self._told_refusal:
            return
        self._told_refusal = refusal
        if refusal is not None:
            log.error("sends_refused", reason=refusal)
        else:
            log.info("sends_taken_again")
