"""A consumer of the group: receives, sometimes forgets to acknowledge, and judges each delivery by the earlier ones."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Final

from simulation.checkers import Violation
from simulation.network import Network, PeerUnavailable
from simulation.process import Process
from simulation.run_settings import NAME_SERVER, TOPIC
from simulation.sim_delivery import DELIVERIES, INVISIBLE_MS, DeliveredMessage
from simulation.sim_producer import ROUTES
from simulation.virtual_time import US_PER_MS

CALL_TIMEOUT_MS: Final = 3_000
IDLE_PAUSE_MS: Final = 700
FORGOTTEN_SHARE: Final = 0.05


@dataclass(slots=True)
class _History:
    """One message of the log as its group has seen it. Times are virtual microseconds."""

    received_us: int
    finished_us: int | None = None


@dataclass(slots=True)
class DeliveryRecord:
    """All deliveries of the group, to whichever consumer, and what they break.

    The journal of the leases is written before each answer and kept by a kill, so a kill excuses nothing. A power loss
    may take its tail: what was finished or leased before one may come again.
    """

    messages: dict[tuple[int, int, str], _History] = field(default_factory=dict)
    """By queue id, queue offset and message id."""
    journal_lost_us: int = -1
    """When the master last lost what it had not flushed."""
    asked: set[tuple[int, int]] = field(default_factory=set)
    """Queue id and offset of everything a consumer ever asked to have finished."""
    two_masters_until_us: int = -1
    """Until then one of two masters may not have heard yet that it is replaced: what it gives comes twice."""
    lease_ms: float = INVISIBLE_MS
    """How long a lease lasts at least, by the fastest clock of all brokers."""
    deliveries: int = 0
    _changed_us: int = -1
    """When another broker became master last: what the one before it gave it may not know."""

    def master_changed(self, *, now_us: int) -> None:
        """Another broker begins with its copy of the leases. What was answered as finished is in it."""
        self._changed_us = now_us

    def first_unasked(self, queue_id: int, offset: int) -> int:
        """The first message from `offset` on that nobody asked to have finished: nothing behind it is committed."""
        while (queue_id, offset) in self.asked:
            offset += 1
        return offset

    def delivered(self, message: DeliveredMessage, *, asked_us: int, now_us: int) -> None:
        """A consumer got a message; it asked for it at `asked_us`."""
        self.deliveries += 1
        key = (message.queue_id, message.queue_offset, message.message_id)
        before = self.messages.get(key)
        if before is None:
            self.messages[key] = _History(received_us=asked_us)
            return
        if now_us < self.two_masters_until_us:
            before.received_us, before.finished_us = asked_us, None
            return
        if before.finished_us is not None and before.finished_us > self.journal_lost_us:
            raise Violation(
                f"{message.message_id}, queue {message.queue_id} offset {message.queue_offset}, was delivered again at "
                f"{now_us / 1e6:.3f} s, acknowledged at {before.finished_us / 1e6:.3f} s"
            )
        # A broker counts whole milliseconds.
        lease_end_us = before.received_us + round((self.lease_ms - 1) * US_PER_MS)
        # Another master counts the rest of a lease by its own wall clock.
        is_other_master = before.received_us <= self._changed_us
        if now_us < lease_end_us and not is_other_master and self.journal_lost_us < before.received_us:
            raise Violation(
                f"{message.message_id} was delivered again at {now_us / 1e6:.3f} s, leased until "
                f"{lease_end_us / 1e6:.3f} s"
            )
        before.received_us = asked_us
        before.finished_us = None

    def finished(self, message: DeliveredMessage, *, asked_us: int) -> None:
        """An acknowledgement was answered with OK."""
        self.messages[message.queue_id, message.queue_offset, message.message_id].finished_us = asked_us


@dataclass(slots=True)
class SimConsumer:
    """Receives until the process ends."""

    process: Process
    network: Network
    record: DeliveryRecord
    rng: random.Random
    master: str | None = None

    def start(self) -> None:
        """Begins to receive."""
        self.process.loop.spawn(self._run(), name="consumer")

    async def _run(self) -> None:
        while True:
            try:
                if not await self._receive():
                    await asyncio.sleep(IDLE_PAUSE_MS / 1000)
            except PeerUnavailable:
                self.master = None
                await asyncio.sleep(IDLE_PAUSE_MS / 1000)

    async def _receive(self) -> bool:
        timeline = self.network.timeline
        if self.master is None:
            self.master = await self.network.call(
                self.process, NAME_SERVER, ROUTES, lambda route: route.master_of(TOPIC), timeout_ms=1_000
            )
            if self.master is None:
                return False
        asked_us = timeline.now_us
        messages = await self.network.call(
            self.process,
            self.master,
            DELIVERIES,
            lambda broker: broker.receive(self.process.host),
            timeout_ms=CALL_TIMEOUT_MS,
        )
        for message in messages:
            self.record.delivered(message, asked_us=asked_us, now_us=timeline.now_us)
        kept = [message for message in messages if self.rng.random() >= FORGOTTEN_SHARE]
        if kept:
            asked_us = timeline.now_us
            handles = [message.handle for message in kept]
            self.record.asked |= {(message.queue_id, message.queue_offset) for message in kept}
            answers = await self.network.call(
                self.process,
                self.master,
                DELIVERIES,
                lambda broker: broker.acknowledge(handles),
                timeout_ms=CALL_TIMEOUT_MS,
            )
            for message, finished in zip(kept, answers):
                if finished:
                    self.record.finished(message, asked_us=asked_us)
        return bool(messages)
