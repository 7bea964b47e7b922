"""Receives messages as lines: written first, acknowledged afterwards, so that a crash repeats rather than loses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from mqclient import BrokerRefused, ClientError, ReceivedMessage

__all__ = ["ConsumeCount", "ConsumeOptions", "consume_lines"]

_BATCH_MESSAGES: Final = 32
# Short, because while one broker group is waited for, the others are not asked.
_AWAIT_MS: Final = 2_000
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
    """Receives until a limit of `options` or `stop`. `write` has stored what it was given when it returns.

    A failed receive is tried again: brokers may be away for a while. BrokerRefused that no retry can help is raised.
    """
    loop = asyncio.get_running_loop()
    last_message_s = loop.time()
    while not stop.is_set() and (options.count is None or count.received < options.count):
        left_s = None if options.idle_timeout_s is None else last_message_s + options.idle_timeout_s - loop.time()
        if left_s is not None and left_s <= 0:
            return
        wanted = _BATCH_MESSAGES if options.count is None else min(_BATCH_MESSAGES, options.count - count.received)
        await_ms = _AWAIT_MS if left_s is None else max(1, min(_AWAIT_MS, int(left_s * 1_000)))
        try:
            messages = await receiver.receive(wanted, invisible_ms=_LEASE_MS, await_ms=await_ms)
        except BrokerRefused as error:
            if not error.retryable:
                raise
            count.last_failure = str(error)
            await asyncio.sleep(_RETRY_PAUSE_S)
            continue
        except ClientError as error:
            count.last_failure = str(error)
            await asyncio.sleep(_RETRY_PAUSE_S)
            continue
        if messages:
            last_message_s = loop.time()
            await _hand_over(receiver, messages, count, write)


async def _hand_over(
    receiver: Receiver, messages: list[ReceivedMessage], count: ConsumeCount, write: Callable[[bytes], object]
) -> None:
    write(b"".join(message.body + b"\n" for message in messages))
    count.received += len(messages)
    count.redelivered += sum(message.delivery_attempt > 1 for message in messages)
    count.damaged += sum(not message.intact for message in messages)
    async with asyncio.TaskGroup() as tasks:
        for message in messages:
            tasks.create_task(_acknowledge(receiver, message, count))


async def _acknowledge(receiver: Receiver, message: ReceivedMessage, count: ConsumeCount) -> None:
    try:
        await receiver.ack(message)
    except ClientError as error:
        # It is delivered again when its lease ends: a repeated line, not a lost one.
        count.last_failure = str(error)
    else:
        count.acknowledged += 1
