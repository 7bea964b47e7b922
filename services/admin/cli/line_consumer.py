"""Receives messages as lines: written first, acknowledged afterwards, so that a crash repeats rather than loses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from mqclient import BrokerRefused, ClientError, ReceivedMessage

__all__ = ["ConsumeCount", "ConsumeOptions", "consume_lines"]

_BATCH_MESSAGES: Final = 32
# One waits at a broker group that has nothing while others bring what the other groups have.
_PARALLEL_RECEIVES: Final = 4
# The least that a broker waits (RocketMQ's grpcClientConsumerMinLongPollingTimeoutMillis): to ask more often.
_AWAIT_MS: Final = 5_000
_LEASE_MS: Final = 30_000
# Between receives while brokers do not answer.
_RETRY_PAUSE_S: Final = 0.5


class Receiver(Protocol):
    """What is asked of a consumer: `mqclient.SimpleConsumer` has it."""

    async def receive(self, max_messages: int, *, invisible_ms: int, await_ms: int | None) -> list[ReceivedMessage]:
        """Up to `max_messages`, leased; [] when none came in time. Raises ClientError."""
        ...

    async def ack(self, message: ReceivedMessage) -> None:
        """Ends the lease for good. Raises ClientError."""
        ...


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """When to stop."""

    # Messages; None for no end.
    count: int | None
    # Seconds without a message; None waits for ever.
    idle_timeout_s: float | None


@dataclass(slots=True)
class ConsumeCount:
    """What came so far."""

    received: int = 0
    acknowledged: int = 0
    # Delivered before, to this or another consumer.
    redelivered: int = 0
    # Body does not match the digest the broker sent with it.
    damaged: int = 0
    # Of the last receive or acknowledgement that failed.
    last_failure: str = ""


async def consume_lines(
    receiver: Receiver,
    options: ConsumeOptions,
    count: ConsumeCount,
    *,
    write: Callable[[bytes], object],
    stop: asyncio.Event,
) -> None:
    """Receives until a limit of `options`, which sets `stop`, or until somebody else sets it.

    `write` has stored what it was given when it returns. A failed receive is tried again: brokers may be away for a
    while. BrokerRefused that no retry can help is raised, inside an exception group.
    """
    consumption = _Consumption(receiver, options, count, write, stop)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(_PARALLEL_RECEIVES):
            tasks.create_task(consumption.receive_until_stopped())
        if options.idle_timeout_s is not None:
            tasks.create_task(consumption.stop_when_idle(options.idle_timeout_s))


class _Consumption:
    """What the parallel receives share."""

    def __init__(
        self,
        receiver: Receiver,
        options: ConsumeOptions,
        count: ConsumeCount,
        write: Callable[[bytes], object],
        stop: asyncio.Event,
    ) -> None:
        self._receiver = receiver
        self._limit = options.count
        self._count = count
        self._write = write
        self._stop = stop
        # Messages that receives under way may still bring: never more than the limit leaves.
        self._asked_for = 0
        self._last_message_s = asyncio.get_running_loop().time()

    async def receive_until_stopped(self) -> None:
        """One receive after the other."""
        stopped = asyncio.create_task(self._stop.wait())
        try:
            while not self._stop.is_set():
                wanted = self._wanted()
                if wanted == 0:
                    # Others are about to bring the last ones, or to come back without.
                    await asyncio.wait((stopped,), timeout=_RETRY_PAUSE_S)
                    continue
                await self._hand_over(await self._receive(wanted, stopped))
        finally:
            stopped.cancel()

    async def stop_when_idle(self, idle_timeout_s: float) -> None:
        """Sets `stop` once so long nothing came."""
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            left_s = self._last_message_s + idle_timeout_s - loop.time()
            if left_s <= 0:
                self._stop.set()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._stop.wait()

    def _wanted(self) -> int:
        if self._limit is None:
            return _BATCH_MESSAGES
        return min(_BATCH_MESSAGES, self._limit - self._count.received - self._asked_for)

    async def _receive(self, wanted: int, stopped: asyncio.Task[Literal[True]]) -> list[ReceivedMessage]:
        self._asked_for += wanted
        # Cancelled while it waits, a receive brings nothing; what was on its way is delivered again after its lease.
        receiving = asyncio.ensure_future(self._receiver.receive(wanted, invisible_ms=_LEASE_MS, await_ms=_AWAIT_MS))
        try:
            await asyncio.wait((receiving, stopped), return_when=asyncio.FIRST_COMPLETED)
            return receiving.result() if receiving.done() else []
        except ClientError as error:
            if isinstance(error, BrokerRefused) and not error.retryable:
                raise
            self._count.last_failure = str(error)
            await asyncio.wait((stopped,), timeout=_RETRY_PAUSE_S)
            return []
        finally:
            receiving.cancel()
            self._asked_for -= wanted

    async def _hand_over(self, messages: list[ReceivedMessage]) -> None:
        if not messages:
            return
        count = self._count
        self._last_message_s = asyncio.get_running_loop().time()
        self._write(b"".join(message.body + b"\n" for message in messages))
        count.received += len(messages)
        count.redelivered += sum(message.delivery_attempt > 1 for message in messages)
        count.damaged += sum(not message.intact for message in messages)
        async with asyncio.TaskGroup() as tasks:
            for message in messages:
                tasks.create_task(_acknowledge(self._receiver, message, count))
        if self._limit is not None and count.received >= self._limit:
            self._stop.set()


async def _acknowledge(receiver: Receiver, message: ReceivedMessage, count: ConsumeCount) -> None:
    try:
        await receiver.ack(message)
    except ClientError as error:
        # It is delivered again when its lease ends: a repeated line, not a lost one.
        count.last_failure = str(error)
    else:
        count.acknowledged += 1
