"""Messages of many kinds through the client library: what the replicas are made of that a consistency check reads."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tandemmq.client import ClientError, ClientOptions, Producer, SimpleConsumer
from tandemmq.service.event_loop import SystemClock

_IN_FLIGHT: Final = 32
# A pause between the load's messages: a trickle that keeps every file moving and leaves the machine to the job.
_LOAD_PAUSE_S: Final = 0.01
# A receive that finds nothing waits for 5 s, and so does its connection for the broker that was killed.
_STOP_LIMIT_S: Final = 40.0


@dataclass(frozen=True, slots=True)
class TopicKind:
    """A topic and what its messages look like."""

    name: str
    queues: int
    body_bytes: tuple[int, int]
    """Smallest and largest."""
    weight: int
    """Its share of all messages."""
    message_type: str = "NORMAL"
    tags: tuple[str, ...] = ()
    has_keys: bool = False
    message_groups: int = 0


TOPICS: Final = (
    TopicKind("orders", 8, (100, 4_000), weight=700, tags=("created", "paid", "shipped"), has_keys=True),
    TopicKind("payments", 4, (200, 1_500), weight=270, message_type="FIFO", has_keys=True, message_groups=40),
    TopicKind("ledger", 2, (20_000, 60_000), weight=27, tags=("päivitys",)),
    # So large that a file ends with a long blank before one.
    TopicKind("images", 1, (300_000, 700_000), weight=3),
)


@dataclass
class _Source:
    """Makes the messages, the same for the same seed but for their ids."""

    chance: random.Random
    number: int = 0
    block: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        self.block = self.chance.randbytes(1 << 20)

    async def send_next(self, producer: Producer) -> str:
        """Sends one and returns its id."""
        chance, number = self.chance, self.number
        self.number += 1
        [kind] = chance.choices(TOPICS, [topic.weight for topic in TOPICS])
        size = chance.randint(*kind.body_bytes)
        start = chance.randrange(len(self.block) - size)
        receipt = await producer.send(
            kind.name,
            self.block[start : start + size],
            tag=chance.choice(kind.tags) if kind.tags else None,
            keys=[f"{kind.name}-{number:08d}", f"customer-{number % 97}"] if kind.has_keys else [],
            properties={"region": "north", "try": str(number % 3)} if number % 4 == 0 else {},
            message_group=f"account-{number % kind.message_groups}" if kind.message_groups else None,
        )
        return receipt.message_id


def send(endpoints: Sequence[str], count: int, *, seed: int) -> list[str]:
    """Sends `count` messages over all topics; ids of all, every one of them acknowledged."""
    return asyncio.run(_send(endpoints, count, _Source(random.Random(seed))))


async def _send(endpoints: Sequence[str], count: int, source: _Source) -> list[str]:
    ids: list[str] = []

    async def sender(producer: Producer) -> None:
        while source.number < count:
            ids.append(await source.send_next(producer))

    options = ClientOptions(tuple(endpoints), send_attempts_max=10, request_timeout_ms=30_000)
    async with Producer(options, SystemClock()) as producer, asyncio.TaskGroup() as tasks:
        for _ in range(_IN_FLIGHT):
            tasks.create_task(sender(producer))
    return ids


def consume(endpoints: Sequence[str], group: str, topic: str, count: int) -> int:
    """Receives and acknowledges messages of a topic until `count` are done or none is left; how many were done."""
    return asyncio.run(_consume(endpoints, group, topic, count))


def received_ids(endpoints: Sequence[str], group: str, topic: str, wanted: Set[str]) -> set[str]:
    """Ids of what a new group receives of a topic, until all wanted ones came or nothing is left."""
    return asyncio.run(_received_ids(endpoints, group, topic, wanted))


async def _received_ids(endpoints: Sequence[str], group: str, topic: str, wanted: Set[str]) -> set[str]:
    ids: set[str] = set()
    empty_in_turn = 0
    options = ClientOptions(tuple(endpoints), request_timeout_ms=30_000)
    async with SimpleConsumer(
        options, SystemClock(), group=group, subscriptions={topic: "*"}, await_ms=5_000
    ) as consumer:
        while not wanted <= ids and empty_in_turn < 4:
            messages = await consumer.receive(32)
            empty_in_turn = 0 if messages else empty_in_turn + 1
            for message in messages:
                ids.add(message.message_id)
                await consumer.ack(message)
    return ids


async def _consume(endpoints: Sequence[str], group: str, topic: str, count: int) -> int:
    done = empty_in_turn = 0
    options = ClientOptions(tuple(endpoints), request_timeout_ms=30_000)
    async with SimpleConsumer(
        options, SystemClock(), group=group, subscriptions={topic: "*"}, await_ms=5_000
    ) as consumer:
        while done < count and empty_in_turn < 2:
            messages = await consumer.receive(32)
            empty_in_turn = 0 if messages else empty_in_turn + 1
            for message in messages:
                await consumer.ack(message)
            done += len(messages)
    return done


class BackgroundLoad:
    """Sends and consumes in a process of its own while the `with` block runs; a broker that is away is tried again.

    Not on a thread: grpc.aio serves one event loop a process well, and two with complaints.
    """

    def __init__(self, endpoints: Sequence[str], *, group: str, seed: int) -> None:
        self._command = [sys.executable, "-m", "support.audit_traffic", ";".join(endpoints), group, str(seed)]
        self._process: subprocess.Popen[str] | None = None
        self.sent = 0
        self.consumed = 0

    def __enter__(self) -> Self:
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        try:
            # Its input ends: that is how it is told to stop.
            output, _ = self._process.communicate(timeout=_STOP_LIMIT_S)
        finally:
            self._process.kill()
        self.sent, self.consumed = map(int, output.split())


class _Load:
    """What runs in that process."""

    def __init__(self, endpoints: tuple[str, ...], group: str, seed: int) -> None:
        self._endpoints = endpoints
        self._group = group
        self._source = _Source(random.Random(seed))
        self._is_stopping = False
        self.sent = 0
        self.consumed = 0

    async def run(self) -> None:
        """Until standard input ends."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._produce())
            tasks.create_task(self._consume())
            await asyncio.to_thread(sys.stdin.read)
            self._is_stopping = True

    async def _produce(self) -> None:
        async with Producer(ClientOptions(self._endpoints, request_timeout_ms=30_000), SystemClock()) as producer:
            while not self._is_stopping:
                try:
                    await self._source.send_next(producer)
                    self.sent += 1
                except ClientError:
                    await asyncio.sleep(0.2)
                await asyncio.sleep(_LOAD_PAUSE_S)

    async def _consume(self) -> None:
        async with SimpleConsumer(
            ClientOptions(self._endpoints, request_timeout_ms=30_000),
            SystemClock(),
            group=self._group,
            subscriptions={"orders": "*"},
            await_ms=5_000,
        ) as consumer:
            while not self._is_stopping:
                try:
                    for message in await consumer.receive(16):
                        await consumer.ack(message)
                        self.consumed += 1
                except ClientError:
                    await asyncio.sleep(0.2)


def _main() -> None:
    endpoints, group, seed = sys.argv[1:]
    load = _Load(tuple(endpoints.split(";")), group, int(seed))
    asyncio.run(load.run())
    sys.stdout.write(f"{load.sent} {load.consumed}\n")


if __name__ == "__main__":
    _main()
