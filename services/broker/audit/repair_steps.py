"""How a step of a repair is taken that must not be left half done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["to_its_end"]


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Does `work`. A caller that is cancelled meanwhile gets to know when it is done, so that its turn lasts as long.

    What `work` raises then is lost: nobody is there to be told.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
