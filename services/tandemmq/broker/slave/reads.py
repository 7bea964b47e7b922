"""A slave gives messages to consumers while its group has no master, and keeps their leases.

`MasterAbsence` in the core decides when. The slave's copy of the leases becomes the table that it works with, as a
master loads its own; topics and groups stay as they are, and nothing is put: neither a dead letter nor a new group. It
gives what its log holds. Of that nothing is taken back: a master that has lost some of it fetches it from here before
it serves (ADR 28), unless an operator says otherwise.

What groups have finished here is in the files when the answer leaves, and a mark beside them says that they are more
than a copy: a master that starts takes them into its own, once it has our promise (`LeaseTable.merge`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from tandemmq.broker.leases import LeaseCopy, LeaseStorage
from tandemmq.broker.parts import READS_ONLY, BrokerParts
from tandemmq.core.replication.master_absence import MasterAbsence, ReadsStep, Sight
from tandemmq.core.routing.values import RegisteredBroker
from tandemmq.core.storage.disk import DiskError

__all__ = ["SlaveReads"]

log = structlog.get_logger(__name__)

GRACE_MS: Final = 3_000
"""Longer than a process takes that is only started again; in a group that fails over its lease comes on top."""
_LOOK_S: Final = 0.25
_TICK_S: Final = 1.0


class SlaveReads:
    """One task of a slave, and what it serves with. `has_link`: the master's log flows to us. `refusal`: why consumers
    are refused otherwise. Event loop only."""

    def __init__(self, parts: BrokerParts, copy: LeaseCopy, *, has_link: Callable[[], bool], refusal: str) -> None:
        self._parts = parts
        self._copy = copy
        self._has_link = has_link
        self._refusal = refusal
        settings = parts.settings
        lease_ms = settings.failover_options().lease_ms if settings.failover_authority else 0
        self._absence = MasterAbsence(GRACE_MS + lease_ms)
        self._storage: LeaseStorage | None = None
        self._since_ms = 0

    @property
    def storage(self) -> LeaseStorage | None:
        """The files of the leases while it serves; None: it does not."""
        return self._storage

    @property
    def served_ms(self) -> int:
        """For how long it has served; 0: it does not."""
        return 0 if self._storage is None else max(1, self._parts.clock.monotonic_ms() - self._since_ms)

    async def run(self) -> None:
        """Until it is cancelled; the caller ends the service."""
        parts = self._parts
        ticked_ms = collected_ms = 0
        while True:
            await asyncio.sleep(_LOOK_S)
            now_ms = parts.clock.monotonic_ms()
            self._act(self._absence.look(self._sight(), rank=self._rank(), now_ms=now_ms), "another member serves")
            storage = self._storage
            if storage is None or now_ms - ticked_ms < _TICK_S * 1_000:
                continue
            ticked_ms = now_ms
            parts.client_api.housekeep()
            if now_ms - collected_ms >= parts.settings.flush_consumer_offset_interval:
                collected_ms = now_ms
                parts.tables.collect_progress(parts.leases)
            try:
                await storage.compact_if_due()
            except DiskError as error:
                parts.disk_failed(error)

    def give_way(self) -> None:
        """A master that starts takes what groups have finished: nothing is given any more when this returns."""
        self._act(self._absence.promised(), "a master starts")

    def end(self, reason: str) -> None:
        """Gives nothing any more, and has written everything. Twice is fine."""
        self._absence.ended()
        storage, self._storage = self._storage, None
        if storage is None:
            return
        parts = self._parts
        if parts.refusal is READS_ONLY:
            parts.refusal = self._refusal
        # Who waits would find an empty table, and nobody to write down what it is given.
        parts.client_api.drain()
        parts.tables.collect_progress(parts.leases)
        try:
            storage.close()
        except DiskError as error:
            parts.disk_failed(error)
        parts.leases.clear()
        self._copy.take_back()
        parts.links.registration_changed()
        log.warning("slave_reads_ended", reason=reason, served_ms=parts.clock.monotonic_ms() - self._since_ms)

    # Inside

    def _act(self, step: ReadsStep, reason: str) -> None:
        if step is ReadsStep.BEGIN:
            self._begin()
        elif step is ReadsStep.END:
            self.end(reason)

    def _begin(self) -> None:
        """On the loop on purpose: nobody may copy, cut or serve meanwhile, and a slave without master serves nobody."""
        parts = self._parts
        storage = LeaseStorage(parts.disk, parts.leases, parts.clock)
        try:
            self._copy.lend()
            storage.load()
        except DiskError as error:
            parts.disk_failed(error)
            return
        self._storage, self._since_ms = storage, parts.clock.monotonic_ms()
        if parts.refusal == self._refusal:
            parts.refusal = READS_ONLY
        parts.links.registration_changed()
        log.warning(
            "slave_serves_reads",
            reason="the group has no master",
            end_offset=parts.store.dispatched_offset,
            remedy="start the master; in a group that fails over, if it is lost: tandemmq failover --unclean",
        )

    def _sight(self) -> Sight:
        parts = self._parts
        if self._has_link():
            return Sight.MASTER
        others = self._others()
        masters = [broker for broker in others if broker.is_master]
        if any(not master.recovering for master in masters):
            return Sight.MASTER
        own_id = parts.identity.broker_id
        readers = [broker for broker in others if broker.endpoints.reads]
        # Of two that began at once the one with the smaller id goes on.
        if any(self._storage is None or reader.identity.broker_id < own_id for reader in readers):
            return Sight.READER
        if not any(link.is_watching for link in parts.links.links):
            return Sight.UNKNOWN
        return Sight.STARTING if masters else Sight.NOBODY

    def _rank(self) -> int:
        """Other slaves that hold more, or as much under a smaller id."""
        ours = (self._parts.store.dispatched_offset, -self._parts.identity.broker_id)
        return sum(
            1
            for broker in self._others()
            if not broker.is_master and (broker.end_offset, -broker.identity.broker_id) > ours
        )

    def _others(self) -> list[RegisteredBroker]:
        own = self._parts.identity
        return [broker for broker in self._parts.members.registered() if broker.identity != own]
