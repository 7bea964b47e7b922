"""Sends lines as messages, a bounded number at a time, and accounts for every one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from admin.cli.line_key import line_key
from mqclient import ClientError, SendReceipt

__all__ = ["LineOptions", "LineSink", "ProduceCount", "UnacknowledgedLine", "produce_lines"]

# Kept to be shown; the rest is counted.
_SHOWN_FAILURES: Final = 10


class Sender(Protocol):
    """What is asked of a producer: `mqclient.Producer` has it."""

    async def send(self, topic: str, body: bytes, *, tag: str | None, keys: list[str]) -> SendReceipt:
        """Stores one message or raises ClientError."""
        ...


class LineSink(Protocol):
    """Takes the lines that were not acknowledged: a file opened for writing bytes has it."""

    def write(self, data: bytes, /) -> int:
        """Takes all of `data`."""
        ...


@dataclass(frozen=True, slots=True)
class LineOptions:
    """How lines become messages."""

    topic: str
    tag: str | None
    # See `line_key`; None for no keys.
    key_field: str | None
    # Lines per second; 0 for as fast as acknowledgements come.
    rate: float
    # Sends waiting for their acknowledgement at once.
    inflight: int


@dataclass(frozen=True, slots=True)
class UnacknowledgedLine:
    """A line whose send failed. It may be stored all the same."""

    number: int
    reason: str


@dataclass(slots=True)
class ProduceCount:
    """What became of the lines so far. Every line read is in exactly one of the three counts or still in flight."""

    acknowledged: int = 0
    unacknowledged: int = 0
    # RocketMQ has no empty messages.
    empty: int = 0
    failures: list[UnacknowledgedLine] = field(default_factory=list)


async def produce_lines(
    sender: Sender, lines: AsyncIterator[bytes], options: LineOptions, count: ProduceCount, *, failed: LineSink | None
) -> None:
    """Sends every line and updates `count` as it goes. With an `inflight` of 1 lines are stored in their order."""
    work: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(options.inflight)

    async def send_lines() -> None:
        while (item := await work.get()) is not None:
            number, line = item
            key = line_key(line, options.key_field) if options.key_field else None
            try:
                await sender.send(options.topic, line, tag=options.tag, keys=[key] if key else [])
            except ClientError as error:
                count.unacknowledged += 1
                if len(count.failures) < _SHOWN_FAILURES:
                    count.failures.append(UnacknowledgedLine(number, str(error)))
                if failed is not None:
                    failed.write(line + b"\n")
            else:
                count.acknowledged += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(options.inflight):
            tasks.create_task(send_lines())
        number = 0
        async for line in _paced(lines, options.rate):
            number += 1
            if line:
                await work.put((number, line))
            else:
                count.empty += 1
        for _ in range(options.inflight):
            await work.put(None)


async def _paced(lines: AsyncIterator[bytes], rate: float) -> AsyncIterator[bytes]:
    """The same lines, none before its turn. Time lost is made up, by at most a second's worth."""
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    async for line in lines:
        if rate > 0:
            due_s = max(due_s + 1 / rate, loop.time() - 1.0)
            if (wait_s := due_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
        yield line
