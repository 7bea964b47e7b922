"""An operator: creates the topic and the group everybody uses, then others at random times."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Final, Protocol

from simulation.ledger import Ledger
from simulation.network import Network, PeerUnavailable, ServiceKey
from simulation.process import Process
from simulation.run_settings import NAME_SERVER, TOPIC, RunSettings
from simulation.sim_delivery import GROUP
from simulation.sim_producer import ROUTES
from tandemmq.core.metadata.metadata_store import MetadataFile

CALL_TIMEOUT_MS: Final = 3_000
RETRY_PAUSE_MS: Final = 300
PAUSE_MS_MAX: Final = 12_000
QUEUE_COUNT: Final = 2


class AdminService(Protocol):
    """What an operator asks of a master; durable there when it answers. `PeerUnavailable` when it refuses."""

    async def create_topic(self, name: str, queue_count: int) -> None:
        """CreateTopic."""

    async def create_group(self, name: str) -> None:
        """CreateSubscriptionGroup."""


ADMIN: Final = ServiceKey[AdminService]("admin")


@dataclass(slots=True)
class SimOperator:
    """Works until its process ends."""

    process: Process
    network: Network
    ledger: Ledger
    settings: RunSettings
    rng: random.Random
    hosts: dict[int, str]
    """Where to ask before there is a route to the topic: masters by broker id."""
    stopped: bool = False

    def start(self) -> None:
        """Begins to work."""
        self.process.loop.spawn(self._run(), name="operator")

    def stop(self) -> None:
        """Creates nothing new after the present call; what everybody uses is created again even so, if it is lost."""
        self.stopped = True

    async def _run(self) -> None:
        number = 0
        while True:
            await self._create(MetadataFile.TOPICS, TOPIC, self.settings.queue_count)
            await self._create(MetadataFile.SUBSCRIPTION_GROUPS, GROUP)
            await asyncio.sleep(self.rng.randint(100, PAUSE_MS_MAX) / 1000)
            number += 1
            if self.stopped:
                continue
            if self.rng.random() < 0.5:
                await self._create(MetadataFile.TOPICS, f"Topic-{number:03d}")
            else:
                await self._create(MetadataFile.SUBSCRIPTION_GROUPS, f"group-{number:03d}")

    async def _create(self, file: MetadataFile, name: str, queue_count: int = QUEUE_COUNT) -> None:
        async def create(master: AdminService) -> None:
            if file is MetadataFile.TOPICS:
                await master.create_topic(name, queue_count)
            else:
                await master.create_group(name)
            # Before the answer travels: the disk may be gone when it is here.
            self.ledger.created(file.value, name)

        while name in (TOPIC, GROUP) or not self.stopped:
            try:
                host = await self._master()
                await self.network.call(self.process, host, ADMIN, create, timeout_ms=CALL_TIMEOUT_MS)
            except PeerUnavailable:
                await asyncio.sleep(RETRY_PAUSE_MS / 1000)
            else:
                return

    async def _master(self) -> str:
        host = await self.network.call(
            self.process, NAME_SERVER, ROUTES, lambda route: route.master_of(TOPIC), timeout_ms=1_000
        )
        if host is not None:
            return host
        return self.hosts[0] if len(self.hosts) == 1 else self.rng.choice(list(self.hosts.values()))
