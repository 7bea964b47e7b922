"""What RocketMQ's `-i` does: the same again and again, until Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mqservice.command_line import stop_requested

__all__ = ["repeat"]


async def repeat(action: Callable[[], Awaitable[None]], *, interval_s: float) -> None:
    """Does it once, and then every `interval_s` seconds unless that is 0."""
    await action()
    if not interval_s:
        return
    with stop_requested() as stop:
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await stop.wait()
                return
            except TimeoutError:
                await action()
