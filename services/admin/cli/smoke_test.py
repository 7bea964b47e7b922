"""One round trip of many messages: sent, received, compared, acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from mqclient import BrokerRefused, ClientError, ReceivedMessage, SendReceipt
from mqcore.clock import Clock

__all__ = ["SmokeCount", "receive_and_compare", "send_all", "smoke_bodies"]

_BATCH_MESSAGES: Final = 32
# The least that a broker waits when it holds nothing.
_AWAIT_MS: Final = 5_000
_LEASE_MS: Final = 30_000
_RETRY_PAUSE_S: Final = 0.2


class Sender(Protocol):
    """What is asked of a producer: `mqclient.Producer` has it."""

    async def send(self, topic: str, body: bytes) -> SendReceipt:
        """Stores one message. Raises ClientError."""
        ...


class Receiver(Protocol):
    """What is asked of a consumer: `mqclient.SimpleConsumer` has it."""

    async def receive(
        self, max_messages: int = ..., *, invisible_ms: int = ..., await_ms: int | None = ...
    ) -> list[ReceivedMessage]:
        """Up to `max_messages`, leased; [] when none came in time. Raises ClientError."""
        ...

    async def ack(self, message: ReceivedMessage) -> None:
        """Ends the lease for good. Raises ClientError."""
        ...


@dataclass(slots=True)
class SmokeCount:
    """How far the round trip has come."""

    # Bodies that were acknowledged and not received yet.
    missing: set[bytes] = field(default_factory=set)
    sent: int = 0
    received: int = 0
    # Received again; delivery is at least once.
    repeated: int = 0
    # Of an earlier run, acknowledged and left out.
    foreign: int = 0
    # Of this run, with a body that was never sent or that does not match its digest.
    damaged: int = 0
    failed_acks: int = 0
    groups: set[str] = field(default_factory=set)
    # Of the last call that failed.
    last_failure: str = ""
    sent_ms: int = 0
    received_ms: int = 0


def smoke_bodies(run: str, count: int) -> list[bytes]:
    """Bodies that no other run sends, of differing length."""
    return [f"{run} {number} {'.' * (number % 100)}".encode() for number in range(count)]


async def send_all(sender: Sender, topic: str, bodies: list[bytes], count: SmokeCount, clock: Clock) -> None:
    """Sends all at once, within the producer's own limit, each until it is stored: the caller has the limit of time.

    BrokerRefused, inside a group, when trying again cannot help.
    """
    started_ms = clock.monotonic_ms()

    async def one(body: bytes) -> None:
        while True:
            try:
                receipt = await sender.send(topic, body)
            except ClientError as error:
                if isinstance(error, BrokerRefused) and not error.retryable:
                    raise
                # A cluster that has just come up, or a Service without endpoints for a moment.
                count.last_failure = str(error)
                await asyncio.sleep(_RETRY_PAUSE_S)
            else:
                count.groups.add(receipt.broker_name)
                count.sent += 1
                return

    # Before they are stored: a receiver is as fast as an acknowledgement.
    count.missing.update(bodies)
    async with asyncio.TaskGroup() as tasks:
        for body in bodies:
            tasks.create_task(one(body))
    count.sent_ms = clock.monotonic_ms() - started_ms


async def receive_and_compare(
    receiver: Receiver, run: str, bodies: list[bytes], count: SmokeCount, *, parallel: int, done: Callable[[], bool]
) -> None:
    """Receives on `parallel` calls until `done()`. What is foreign is acknowledged and forgotten."""
    expected = frozenset(bodies)
    prefix = f"{run} ".encode()

    async def take(message: ReceivedMessage) -> None:
        try:
            await receiver.ack(message)
        except ClientError as error:
            count.failed_acks += 1
            count.last_failure = str(error)
        if not message.body.startswith(prefix) and message.intact:
            count.foreign += 1
        elif message.body not in expected or not message.intact:
            count.damaged += 1
        elif message.body in count.missing:
            count.missing.discard(message.body)
            count.received += 1
        else:
            count.repeated += 1

    async def receive() -> None:
        while not done():
            try:
                messages = await receiver.receive(_BATCH_MESSAGES, invisible_ms=_LEASE_MS, await_ms=_AWAIT_MS)
            except ClientError as error:
                count.last_failure = str(error)
                await asyncio.sleep(_RETRY_PAUSE_S)
                continue
            for message in messages:
                await take(message)

    async with asyncio.TaskGroup() as tasks:
        receives = [tasks.create_task(receive()) for _ in range(parallel)]
        while not done() and not all(task.done() for task in receives):
            await asyncio.wait(receives, timeout=0.02, return_when=asyncio.FIRST_COMPLETED)
        # Some hold an empty long poll; nothing they could still bring is wanted.
        for task in receives:
            task.cancel()
