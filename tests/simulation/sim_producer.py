"""A producer: finds the master by route, sends one message after the other, retries, and writes promises down."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Final, Protocol

from simulation.ledger import Acknowledgement, Ledger
from simulation.network import Network, PeerUnavailable, ServiceKey
from simulation.process import Process
from simulation.run_settings import NAME_SERVER, TOPIC, RunSettings
from tandemmq.core.message.properties import encode_properties, tags_code
from tandemmq.core.message.record import Host, OutgoingMessage
from tandemmq.core.storage.put_result import AppendResult, PutStatus

ATTEMPTS: Final = 3
BORN_HOST: Final = Host.parse("10.0.0.9", 4_000)


class SendService(Protocol):
    """The client API of a broker."""

    async def send(self, message: OutgoingMessage) -> AppendResult:
        """Stores one message and answers with its final status."""


class RouteService(Protocol):
    """The client API of a NameServer."""

    async def master_of(self, topic: str) -> str | None:
        """Host of the writable master."""


SENDS: Final = ServiceKey[SendService]("send")
ROUTES: Final = ServiceKey[RouteService]("route")


@dataclass(slots=True)
class SimProducer:
    """Sends until `stop`, one message at a time: the order of its acknowledgements is the order of its sends."""

    process: Process
    network: Network
    ledger: Ledger
    settings: RunSettings
    rng: random.Random
    stopped: bool = False
    sent: int = 0
    master: str | None = None

    def start(self) -> None:
        """Begins to send."""
        self.process.loop.spawn(self._run(), name="producer")

    def stop(self) -> None:
        """Ends after the present message."""
        self.stopped = True

    async def _run(self) -> None:
        while not self.stopped:
            await self._send_with_retries()
            await asyncio.sleep(self.rng.randint(1, self.settings.pause_ms_max) / 1000)

    async def _send_with_retries(self) -> None:
        self.sent += 1
        message_id = f"{self.process.host}-{self.sent:06d}"
        message = self._message(message_id)
        for _ in range(ATTEMPTS):
            result = await self._send(message)
            if result is None or not result.status.stored:
                await asyncio.sleep(0.2)
                continue
            if result.status is PutStatus.PUT_OK:
                self.ledger.acknowledged(
                    Acknowledgement(
                        message_id=message_id,
                        body=message.body,
                        queue_id=message.queue_id,
                        queue_offset=result.queue_offset,
                        physical_offset=result.physical_offset,
                        waited=message.wait_store_ok,
                        at_us=self.network.timeline.now_us,
                    )
                )
            return

    async def _send(self, message: OutgoingMessage) -> AppendResult | None:
        try:
            if self.master is None:
                self.master = await self.network.call(
                    self.process, NAME_SERVER, ROUTES, lambda route: route.master_of(TOPIC), timeout_ms=1_000
                )
                if self.master is None:
                    return None
            result = await self.network.call(
                self.process,
                self.master,
                SENDS,
                lambda broker: broker.send(message),
                timeout_ms=self.settings.send_timeout_ms,
            )
        except PeerUnavailable:
            self.master = None
            self.ledger.status_counts["no answer"] += 1
            return None
        self.ledger.status_counts[result.status.name] += 1
        return result

    def _message(self, message_id: str) -> OutgoingMessage:
        rng = self.rng
        alike = self.settings.equal_messages
        waits = alike or rng.random() >= self.settings.no_wait_share
        tag = "paid" if alike else rng.choice((None, "paid", "sent"))
        properties = [("UNIQ_KEY", message_id)]
        if tag is not None:
            properties.append(("TAGS", tag))
        if not waits:
            properties.append(("WAIT", "false"))
        filler = rng.randbytes(self.settings.body_bytes_max if alike else rng.randint(0, self.settings.body_bytes_max))
        return OutgoingMessage(
            topic=TOPIC,
            queue_id=rng.randrange(self.settings.queue_count),
            body=message_id.encode() + filler,
            properties=encode_properties(properties),
            tags_code=tags_code(tag),
            index_keys=(message_id,),
            tag=tag,
            born_timestamp_ms=self.process.clock.wall_ms(),
            born_host=BORN_HOST,
            wait_store_ok=waits,
        )
