"""Signals become an event that the process's main task waits for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["stop_requested"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_requested() -> Iterator[asyncio.Event]:
    """An event that SIGTERM or SIGINT sets. A second signal acts as the operating system's default: the process ends.

    To be entered on the event loop's thread, which must be the main thread.
    """
    loop = asyncio.get_running_loop()
    requested = asyncio.Event()

    def request() -> None:
        requested.set()
        # Whoever signals twice does not want to wait for an orderly end.
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, request)
    try:
        yield requested
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
